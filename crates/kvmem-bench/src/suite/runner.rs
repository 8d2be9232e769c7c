//! *Runner*: measures the groups of a plan.
//!
//! Machines drift while a benchmark runs. The tasks of a group therefore take turns, each
//! repetition starts with another one, and a row is made from all samples of its task, usually by
//! their medians.

use std::time::Instant;

use kvmem_testkit::workload::{Rng, stream};
use rand::seq::SliceRandom;

use super::plan::{Group, Order, Stop};
use super::{BenchError, Measured, Plan, Report, Suite};
use crate::progress::Progress;

/// Runs the benchmark that `options` select.
pub(crate) fn run<S: Measured>(
    options: &S::Options,
    progress: &mut dyn Progress<S::Row>,
) -> Result<Report<S>, BenchError<S::Error>> {
    let start = Instant::now();
    let plan = S::plan(options);
    progress.begin(plan.groups.iter().map(Group::units).sum());
    let Plan { quick, groups, skipped, fixture, details } = plan;
    let mut run = Run::<S> { fixture, details, skipped, rows: Vec::new(), progress };
    for group in &groups {
        run.group(group)?;
    }
    let Run { fixture, mut details, skipped, rows, .. } = run;
    drop(fixture);
    S::finish(&mut details);
    Ok(Report::new(quick, details, start.elapsed().as_secs_f64(), rows, skipped))
}

/// A run, and its results so far.
struct Run<'a, S: Measured> {
    fixture: S::Fixture,
    details: S::Details,
    skipped: Vec<S::Skipped>,
    rows: Vec<S::Row>,
    progress: &'a mut dyn Progress<S::Row>,
}

impl<S: Measured> Run<'_, S> {
    /// Measures the tasks of `group` and adds a row for each. A reason that holds for several
    /// groups is recorded once.
    fn group(&mut self, group: &Group<S::Task>) -> Result<(), BenchError<S::Error>> {
        let mut remaining = group.units();
        match self.samples(group, &mut remaining) {
            Ok(samples) => {
                for (task, samples) in group.tasks().zip(&samples) {
                    if let Some(row) = S::row(&mut self.details, task, samples) {
                        self.progress.row(&row);
                        self.rows.push(row);
                    }
                }
            }
            Err(Stop::Skip(skipped)) if self.skipped.contains(&skipped) => {}
            Err(Stop::Skip(skipped)) => self.skipped.push(skipped),
            Err(Stop::Fail(error)) => return Err(error),
        }
        self.progress.advance(remaining);
        Ok(())
    }

    /// Measures the tasks of `group` in turns; returns the samples of each.
    fn samples(
        &mut self,
        group: &Group<S::Task>,
        remaining: &mut u64,
    ) -> Result<Vec<Vec<S::Sample>>, TaskStop<S>> {
        let Some(first) = group.turns.first() else { return Ok(Vec::new()) };
        let prepared = S::prepare(&mut self.fixture, &first.task, self.progress);
        prepared.map_err(|stop| of_task::<S>(&first.task, stop))?;
        let mut samples: Vec<Vec<S::Sample>> = group.turns.iter().map(|_| Vec::new()).collect();
        let mut rounds = Rounds::new(group, self.rows.len() as u64);
        while let Some(round) = rounds.next_round() {
            for at in round.turns {
                let turn = &group.turns[at];
                self.progress.step(&S::name(&turn.task));
                let rep = round.rep.unwrap_or(0);
                let sample = S::measure(&mut self.fixture, &turn.task, rep);
                let sample = sample.map_err(|stop| of_task::<S>(&turn.task, stop))?;
                if round.rep.is_some() {
                    samples[at].push(sample);
                }
                let units = turn.units.min(*remaining);
                *remaining -= units;
                self.progress.advance(units);
            }
        }
        Ok(samples)
    }
}

/// The reason why a group ends early, with the name of the task.
type TaskStop<S> = Stop<<S as Suite>::Skipped, BenchError<<S as Measured>::Error>>;

/// Names the task that stopped.
fn of_task<S: Measured>(task: &S::Task, stop: Stop<S::Skipped, S::Error>) -> TaskStop<S> {
    match stop {
        Stop::Skip(skipped) => Stop::Skip(skipped),
        Stop::Fail(error) => Stop::Fail(BenchError { task: S::name(task), error }),
    }
}

/// A round: the turns of a repetition.
struct Round {
    /// The number of the repetition; `None` if it does not count.
    rep: Option<u32>,
    /// The positions of the tasks in their order.
    turns: Vec<usize>,
}

/// The rounds of a group.
struct Rounds {
    order: Order,
    /// Repetitions of each task.
    reps: Vec<u32>,
    next: u32,
    shuffled: Vec<usize>,
    random: Rng,
    /// When the first round that counts began.
    start: Instant,
}

impl Rounds {
    /// Creates the rounds of `group`; `number` distinguishes groups with the same seed.
    fn new<T>(group: &Group<T>, number: u64) -> Self {
        let seed = match group.order {
            Order::Rotated => 0,
            Order::Shuffled(shuffled) => shuffled.seed,
        };
        Rounds {
            order: group.order,
            reps: group.turns.iter().map(|turn| turn.reps).collect(),
            next: 0,
            shuffled: (0..group.turns.len()).collect(),
            random: stream(seed, number),
            start: Instant::now(),
        }
    }

    fn next_round(&mut self) -> Option<Round> {
        let round = self.next;
        self.next += 1;
        let reps = self.reps.iter().copied().max().unwrap_or(0);
        match self.order {
            Order::Rotated => (round < reps).then(|| {
                let count = self.reps.len();
                let rotated = (0..count).map(|i| (i + round as usize) % count);
                let turns = rotated.filter(|&at| round < self.reps[at]).collect();
                Round { rep: Some(round), turns }
            }),
            Order::Shuffled(shuffled) => {
                if round == 1 {
                    self.start = Instant::now();
                }
                let more = round <= reps || self.start.elapsed() <= shuffled.budget;
                (round <= shuffled.max_reps && more).then(|| {
                    self.shuffled.shuffle(&mut self.random);
                    let mut turns = self.shuffled.clone();
                    if round == 0 {
                        turns.truncate(shuffled.warm);
                    }
                    Round { rep: round.checked_sub(1), turns }
                })
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::suite::plan::{Shuffled, Turn};

    fn rounds<T>(group: &Group<T>) -> Vec<(Option<u32>, Vec<usize>)> {
        let mut rounds = Rounds::new(group, 0);
        let next = || rounds.next_round().map(|round| (round.rep, round.turns));
        std::iter::from_fn(next).collect()
    }

    #[test]
    fn each_repetition_begins_with_another_task_and_some_have_fewer() {
        let mut group = Group::rotated(["a", "b", "c"], 3, 1);
        group.turns[1].reps = 1;
        let expected = [(Some(0), vec![0, 1, 2]), (Some(1), vec![2, 0]), (Some(2), vec![2, 0])];
        assert_eq!(rounds(&group), expected);
        assert_eq!(group.units(), 7);
    }

    #[test]
    fn a_shuffled_order_has_a_round_that_does_not_count() {
        let shuffled = Shuffled { seed: 1, warm: 1, max_reps: 2, budget: Duration::ZERO };
        let turns = (0..4).map(|task| Turn { task, reps: 2, units: 1 }).collect();
        let group = Group { turns, order: Order::Shuffled(shuffled) };
        let rounds = rounds(&group);
        let counts: Vec<_> = rounds.iter().map(|(rep, turns)| (*rep, turns.len())).collect();
        assert_eq!(counts, [(None, 1), (Some(0), 4), (Some(1), 4)]);
        let mut sorted = rounds[2].1.clone();
        sorted.sort_unstable();
        assert_eq!((sorted, group.units()), (vec![0, 1, 2, 3], 12));
    }
}
