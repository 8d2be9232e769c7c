//! *Backoff*: how a thread waits for another one that is about to finish.

use std::time::Duration;

use super::checker::{MODELLED, hint, sleep, thread};

/// Loads of a held lock before the waiter yields its processor. Few for the model checker, which
/// tries all orders of them.
const SPINS: u32 = if MODELLED { 2 } else { 100 };
/// Loads before the waiter sleeps.
const SPINS_AND_YIELDS: u32 = if MODELLED { 3 } else { 150 };
/// The time that it sleeps between loads.
pub(super) const NAP: Duration = Duration::from_micros(50);

/// Waits between two checks of a condition that another thread is about to change.
#[derive(Default)]
pub(crate) struct Backoff {
    looks: u32,
}

impl Backoff {
    /// Returns how often the thread has slept.
    pub(super) fn naps(&self) -> u32 {
        self.looks.saturating_sub(SPINS_AND_YIELDS - 1)
    }

    /// Spins at first, then yields the processor, then sleeps for short periods.
    pub(crate) fn pause(&mut self) {
        self.looks = self.looks.saturating_add(1);
        match self.looks {
            0..SPINS => hint::spin_loop(),
            SPINS..SPINS_AND_YIELDS => thread::yield_now(),
            _ => nap(),
        }
    }
}

fn nap() {
    // A model has no time: sleeping means that the other threads run first.
    if MODELLED { thread::yield_now() } else { sleep(NAP) }
}
