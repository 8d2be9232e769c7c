//! *Plan*: the measurements of a run as data: groups of tasks that take turns.

use std::time::Duration;

/// Whether quick runs take the smallest sizes. The figures of a build without optimization are
/// compared with nothing: its runs only show that every row can be measured.
pub(crate) const SMALLEST: bool = cfg!(debug_assertions);

/// One task of a group.
#[derive(Clone, Debug)]
pub(crate) struct Turn<T> {
    /// The measurement.
    pub(crate) task: T,
    /// Repetitions that count.
    pub(crate) reps: u32,
    /// Estimated milliseconds of a repetition.
    pub(crate) units: u64,
}

/// Tasks that take turns, because their figures are compared.
#[derive(Clone, Debug)]
pub(crate) struct Group<T> {
    pub(crate) turns: Vec<Turn<T>>,
    pub(crate) order: Order,
}

/// The order of the turns.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Order {
    /// Each repetition begins with another task.
    Rotated,
    /// The tasks are shuffled for each repetition.
    Shuffled(Shuffled),
}

/// A shuffled order, with a first round that does not count.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shuffled {
    /// Seed of the order.
    pub(crate) seed: u64,
    /// Tasks in the round that does not count.
    pub(crate) warm: usize,
    /// The largest number of rounds that count.
    pub(crate) max_reps: u32,
    /// There are more rounds than the tasks' repetitions only within this time.
    pub(crate) budget: Duration,
}

impl<T> Group<T> {
    /// Creates a group whose tasks take turns in rotated order.
    pub(crate) fn rotated(tasks: impl IntoIterator<Item = T>, reps: u32, units: u64) -> Self {
        let turn = |task| Turn { task, reps, units };
        Group { turns: tasks.into_iter().map(turn).collect(), order: Order::Rotated }
    }

    /// Returns the tasks.
    pub(crate) fn tasks(&self) -> impl Iterator<Item = &T> {
        self.turns.iter().map(|turn| &turn.task)
    }

    /// Estimates the milliseconds of all repetitions.
    pub(super) fn units(&self) -> u64 {
        let warm = u64::from(matches!(self.order, Order::Shuffled(_)));
        self.turns.iter().map(|turn| (u64::from(turn.reps) + warm) * turn.units).sum()
    }
}

/// The reason why a group ends early.
#[derive(Debug)]
pub(crate) enum Stop<K, E> {
    /// This machine cannot measure these rows.
    Skip(K),
    /// A contender failed at an operation that should succeed here.
    Fail(E),
}

impl<K, E> From<E> for Stop<K, E> {
    fn from(error: E) -> Self {
        Stop::Fail(error)
    }
}
