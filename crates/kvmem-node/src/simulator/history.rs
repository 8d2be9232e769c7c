//! *Histories*: a seed and its steps, and how a failing one is made short.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};

use kvmem_testkit::random::Random;

use super::config::Config;
use super::environment;
use super::world::{Counts, World};

/// The steps of a history: numbers that choose what happens.
#[derive(Clone, Debug)]
struct History {
    seed: u64,
    steps: Vec<u64>,
}

/// A history that has held.
struct WholeHistory {
    counts: Counts,
    trace: Vec<String>,
}

/// A history that has failed.
struct FailedHistory {
    error: String,
    /// The steps that were made.
    steps: usize,
    trace: Vec<String>,
}

impl History {
    fn new(seed: u64, steps: usize) -> History {
        let mut random = Random::new(seed);
        History { seed, steps: (0..steps).map(|_| random.bits()).collect() }
    }

    /// Runs the history. With `winds_up`, all faults end after its steps, and all clients.
    fn run(&self, trace: bool) -> Result<WholeHistory, FailedHistory> {
        environment::begin(self.seed);
        let mut made = 0;
        let mut last = Vec::new();
        let outcome = catch_unwind(AssertUnwindSafe(|| {
            let mut world = World::new(Config::new(self.seed));
            world.trace = trace.then(Vec::new);
            let begun = world.counts.simulated;
            let mut run = || {
                for &step in &self.steps {
                    made += 1;
                    world.step(step)?;
                }
                world.wind_up(&mut Random::new(self.seed ^ 1))
            };
            let result =
                catch_unwind(AssertUnwindSafe(&mut run)).unwrap_or_else(|it| Err(text_of(&*it)));
            last = world.trace.take().unwrap_or_default();
            world.counts.simulated = environment::time() - begun;
            result.map(|()| world.counts)
        }));
        environment::end();
        let outcome = outcome.unwrap_or_else(|panic| Err(text_of(&*panic)));
        match outcome {
            Ok(counts) => Ok(WholeHistory { counts, trace: last }),
            Err(error) => Err(FailedHistory { error, steps: made, trace: last }),
        }
    }

    /// Removes steps while the history fails, for a limited number of runs.
    fn shrunk(mut self, failure: &FailedHistory) -> History {
        self.steps.truncate(failure.steps);
        let (mut len, mut runs) = (self.steps.len().div_ceil(2), 0);
        while len > 0 && runs < 150 {
            let mut at = 0;
            while at < self.steps.len() && runs < 150 {
                let mut fewer = self.clone();
                fewer.steps.drain(at..(at + len).min(self.steps.len()));
                runs += 1;
                match fewer.run(false) {
                    Err(failure) => {
                        fewer.steps.truncate(failure.steps);
                        self = fewer;
                    }
                    Ok(_) => at += len,
                }
            }
            len /= 2;
        }
        self
    }
}

fn text_of(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("a panic").to_owned()
}

/// Runs the history of a seed. Panics with a short history if it fails.
fn simulate(seed: u64, steps: usize) -> Counts {
    let history = History::new(seed, steps);
    match history.run(false) {
        Ok(success) => success.counts,
        Err(failure) => {
            let hook = std::panic::take_hook();
            std::panic::set_hook(Box::new(|_| {}));
            let short = history.shrunk(&failure);
            let again = short.run(true).err();
            std::panic::set_hook(hook);
            let again = again.expect("a history is the same every time");
            let trace = &again.trace[again.trace.len().saturating_sub(400)..];
            panic!(
                "seed {seed} fails at step {}: {}\n{} steps are left:\n{}\n{}\n{:?}",
                failure.steps,
                failure.error,
                short.steps.len(),
                trace.join("\n"),
                again.error,
                Config::new(seed),
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use super::*;

    /// A variable of the environment, as a number.
    fn number(name: &str, default: u64) -> u64 {
        std::env::var(name).map_or(default, |text| text.parse().expect("a number"))
    }

    #[test]
    fn a_seed_has_one_history() {
        let (first, seeds) = (number("KVMEM_TEST_SEED", 0), number("KVMEM_TEST_ROUNDS", 3));
        let steps = number("KVMEM_TEST_STEPS", 1000) as usize;
        for seed in first..first + seeds {
            let history = History::new(seed, steps);
            let [first, second] = [(); 2].map(|()| history.run(true).map_err(|it| it.error));
            let [first, second] = [first.expect("it holds"), second.expect("it holds")];
            let differs = first.trace.iter().zip(&second.trace).find(|(one, other)| one != other);
            assert_eq!(differs, None, "seed {seed}");
            assert_eq!(first.counts.digest, second.counts.digest, "seed {seed}");
        }
    }

    #[test]
    fn nodes_keep_their_promises() {
        let (first, seeds) = (number("KVMEM_TEST_SEED", 0), number("KVMEM_TEST_ROUNDS", 5));
        let steps = number("KVMEM_TEST_STEPS", 1500) as usize;
        let (mut sum, begun) = (Counts::default(), Instant::now());
        for seed in first..first + seeds {
            let counts = simulate(seed, steps);
            sum.steps += counts.steps;
            sum.iterations += counts.iterations;
            sum.prefixes += counts.prefixes;
            sum.server_kills += counts.server_kills;
            sum.client_kills += counts.client_kills;
            sum.simulated += counts.simulated;
            if (seed + 1 - first) % 100 == 0 || seed + 1 == first + seeds {
                report(first, seed, &sum, begun.elapsed());
            }
        }
        assert!(seeds < 20 || (sum.server_kills > 0 && sum.client_kills > 0));
    }

    fn report(first: u64, last: u64, sum: &Counts, took: Duration) {
        let (took, simulated) = (took.as_secs_f64(), sum.simulated.as_secs_f64());
        let Counts { steps, iterations, prefixes, server_kills, client_kills, .. } = *sum;
        println!(
            "seeds {first} to {last}: {steps} steps, {iterations} iterations, {prefixes} prefixes, \
             {server_kills} and {client_kills} kills of servers and clients, {:.1} h in {took:.1} \
             s: {:.0} steps/s, {:.0} h an hour",
            simulated / 3600.0,
            steps as f64 / took,
            simulated / took,
        );
    }
}
