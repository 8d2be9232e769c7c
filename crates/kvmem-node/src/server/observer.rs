//! [`NodeObserver`]: the statistics of a server, for other threads.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use crate::node::{Node, NodeStats};

/// Shows other threads what a server did last: its statistics, and that it still turns.
///
/// The server publishes at least once a second, between two messages. A reader never waits for the
/// server's work, and the server never for a reader longer than a copy of the statistics takes.
#[derive(Clone, Debug, Default)]
pub struct NodeObserver(Arc<Published>);

#[derive(Debug, Default)]
struct Published {
    stats: Mutex<NodeStats>,
    beats: AtomicU64,
}

impl NodeObserver {
    pub(super) fn publish(&self, node: &Node) {
        let stats = node.stats();
        *self.0.stats.lock().unwrap_or_else(PoisonError::into_inner) = stats;
        // Relaxed: the number pairs with nothing; it says only that it changes.
        self.0.beats.fetch_add(1, Ordering::Relaxed);
    }

    /// Returns the statistics of at most a second ago, while the server runs.
    #[must_use]
    pub fn stats(&self) -> NodeStats {
        self.0.stats.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Returns a number that grows at least once a second while the server's loop turns.
    #[must_use]
    pub fn beats(&self) -> u64 {
        self.0.beats.load(Ordering::Relaxed)
    }
}
