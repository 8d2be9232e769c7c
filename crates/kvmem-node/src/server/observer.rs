//! [`NodeObserver`]: the statistics of a server, for other threads.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use super::drain::{Drain, DrainProgress};
use crate::node::NodeStats;

/// Shows other threads what a server did last: its statistics, and that it still runs.
///
/// The server publishes at least once a second, between two messages. A reader never waits for the
/// server's work, and the server never for a reader longer than a copy of the statistics takes.
#[derive(Clone, Debug, Default)]
pub struct NodeObserver(Arc<Published>);

#[derive(Debug, Default)]
struct Published {
    stats: Mutex<NodeStats>,
    drain: Mutex<Option<DrainProgress>>,
    beats: AtomicU64,
}

impl NodeObserver {
    pub(super) fn publish(&self, stats: NodeStats, drain: Option<&Drain>) {
        let drain = drain.map(Drain::progress);
        *self.0.drain.lock().unwrap_or_else(PoisonError::into_inner) = drain;
        *self.0.stats.lock().unwrap_or_else(PoisonError::into_inner) = stats;
        // Relaxed: the number pairs with nothing; it says only that it changes.
        self.0.beats.fetch_add(1, Ordering::Relaxed);
    }

    /// Returns the statistics of at most a second ago, while the server runs.
    #[must_use]
    pub fn stats(&self) -> NodeStats {
        self.0.stats.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Returns what a server that was [stopped](super::Stopper::stop) has still to store; `None`:
    /// it was not stopped.
    #[must_use]
    pub fn drain(&self) -> Option<DrainProgress> {
        *self.0.drain.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns a number that grows at least once a second while the server's event loop runs.
    #[must_use]
    pub fn beats(&self) -> u64 {
        self.0.beats.load(Ordering::Relaxed)
    }
}
