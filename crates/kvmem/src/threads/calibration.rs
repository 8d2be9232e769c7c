//! *Calibration*: the number of threads that is fastest, measured on the work itself.
//!
//! The best number so far is compared with twice as many threads, in alternation, until doubling
//! gains nothing. The fastest round of each number counts, because other work on the machine can
//! only slow a round down.
//!
//! [`choose_threads`] decides; a [`ThreadProbe`] says what a round is. Populating and registering
//! each have one.

/// The number of rounds in which two numbers of threads are compared.
pub(crate) const ROUNDS: usize = 3;
/// The speed-up that more threads must bring to be used.
const MIN_SPEEDUP: f64 = 1.02;

/// The work on which numbers of threads are compared.
pub(crate) trait ThreadProbe {
    /// Why a round fails.
    type Error;

    /// Returns the number of rounds in which `more` threads are compared with the best number so
    /// far. 0: too little work remains for the comparison.
    fn rounds(&self, more: usize) -> usize;

    /// Does one round with `threads` threads. All rounds of a comparison do the same amount of
    /// work, enough for its larger number, `more`. Returns the speed in GiB/s; `None` if it cannot
    /// be measured.
    fn measure(&mut self, threads: usize, more: usize) -> Result<Option<f64>, Self::Error>;
}

/// Two numbers of threads, each with the speed of its fastest round in GiB/s.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct SpeedComparison {
    pub(crate) fewer_gib_per_s: f64,
    pub(crate) more_threads: usize,
    pub(crate) more_gib_per_s: f64,
}

/// The fastest number of threads, and the comparisons behind it.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct ThreadChoice {
    pub(crate) threads: usize,
    pub(crate) comparisons: Vec<SpeedComparison>,
}

/// Returns the numbers of threads that are compared with the best so far: 2, 4, … up to `max`.
pub(crate) fn ladder(max: usize) -> impl Iterator<Item = usize> {
    rungs(1, max)
}

/// Returns twice `from`, four times `from`, … up to `max`, and `max` itself.
fn rungs(from: usize, max: usize) -> impl Iterator<Item = usize> {
    let next = move |threads: &usize| (*threads < max).then(|| (2 * threads).min(max));
    std::iter::successors(next(&from), next)
}

/// Compares `start` threads with more, up to `max`. Returns `None` if a round cannot be measured.
///
/// # Errors
/// The first error of the probe.
pub(crate) fn choose_threads<P: ThreadProbe>(
    start: usize,
    max: usize,
    probe: &mut P,
) -> Result<Option<ThreadChoice>, P::Error> {
    let mut choice = ThreadChoice { threads: start, comparisons: Vec::new() };
    for more in rungs(start, max) {
        let rounds = probe.rounds(more);
        if rounds == 0 {
            break;
        }
        let (mut best_speed, mut more_speed) = (0.0f64, 0.0f64);
        for _ in 0..rounds {
            for (threads, speed) in [(choice.threads, &mut best_speed), (more, &mut more_speed)] {
                let Some(measured) = probe.measure(threads, more)? else { return Ok(None) };
                *speed = speed.max(measured);
            }
        }
        choice.comparisons.push(SpeedComparison {
            fewer_gib_per_s: best_speed,
            more_threads: more,
            more_gib_per_s: more_speed,
        });
        if more_speed < best_speed * MIN_SPEEDUP {
            break;
        }
        choice.threads = more;
    }
    Ok(Some(choice))
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    /// The speed of each number of threads, with a slow first round.
    struct Machine {
        speed: fn(usize) -> f64,
        /// Comparisons that the work suffices for.
        comparisons: usize,
        log: Vec<usize>,
    }

    impl ThreadProbe for Machine {
        type Error = ();

        fn rounds(&self, _more: usize) -> usize {
            if self.log.len() < self.comparisons * 2 * ROUNDS { ROUNDS } else { 0 }
        }

        fn measure(&mut self, threads: usize, _more: usize) -> Result<Option<f64>, ()> {
            let slow = self.log.len().is_multiple_of(2 * ROUNDS);
            self.log.push(threads);
            let speed = (self.speed)(threads);
            Ok((speed > 0.0).then_some(if slow { speed / 10.0 } else { speed }))
        }
    }

    fn choose(start: usize, max: usize, speed: fn(usize) -> f64, comparisons: usize) -> Machine {
        let mut machine = Machine { speed, comparisons, log: Vec::new() };
        let choice = choose_threads(start, max, &mut machine);
        machine.log.push(choice.unwrap().map_or(0, |choice| choice.threads));
        machine
    }

    #[test]
    fn the_ladder_doubles_up_to_the_largest_number() {
        let all = |max| ladder(max).collect::<Vec<_>>();
        assert!(all(0).is_empty() && all(1).is_empty());
        assert_eq!(all(2), [2]);
        assert_eq!(all(6), [2, 4, 6]);
        assert_eq!(all(8), [2, 4, 8]);
    }

    #[test]
    fn doubling_ends_when_it_gains_nothing() {
        let chosen = |start, max, speed, comparisons| {
            choose(start, max, speed, comparisons).log.pop().expect("the choice")
        };
        assert_eq!(chosen(1, 8, |threads| threads as f64, 9), 8);
        assert_eq!(chosen(1, 6, |threads| threads as f64, 9), 6);
        assert_eq!(chosen(1, 8, |threads| threads.min(4) as f64, 9), 4);
        assert_eq!(chosen(1, 8, |_| 1.0, 9), 1);
        assert_eq!(chosen(1, 8, |threads| 1.0 + threads as f64 / 100.0, 9), 1, "1 % is no gain");
        assert_eq!(chosen(1, 8, |threads| threads as f64, 2), 4, "the work ended");
        assert_eq!(chosen(8, 8, |threads| threads as f64, 9), 8, "there is nothing to compare");
        assert_eq!(chosen(1, 8, |threads| if threads < 4 { 1.0 } else { 0.0 }, 9), 1);
        assert_eq!(chosen(1, 8, |threads| if threads < 4 { threads as f64 } else { 0.0 }, 9), 0);
    }

    #[test]
    fn two_numbers_take_turns() {
        let machine = choose(1, 4, |threads| threads as f64, 9);
        assert_eq!(machine.log, [1, 2, 1, 2, 1, 2, 2, 4, 2, 4, 2, 4, 4]);
    }
}
