//! [`WriteBehindBuilder`]: the settings of a queue of evicted values.

use std::io;
use std::sync::Arc;

use super::queue::{OnDrop, QueueOptions, WhenFull};
use super::write_behind::WriteBehind;
use crate::pool::Pool;
use crate::tier::Tier;

/// Settings of a queue. See [`WriteBehind::builder`].
#[must_use = "there is no queue before `build`"]
pub struct WriteBehindBuilder {
    tier: Arc<dyn Tier>,
    options: QueueOptions,
}

/// The default bound, in bytes, of a queue on a large pool.
const MAX_BYTES: u64 = 64 << 20;
/// The part of a smaller pool.
const PART_OF_POOL: u64 = 16;

impl WriteBehind {
    /// Returns the settings of a queue above `tier`, for caches on `pool`.
    pub fn builder(pool: &Pool, tier: Arc<dyn Tier>) -> WriteBehindBuilder {
        let options = QueueOptions {
            max_bytes: MAX_BYTES.min(pool.capacity() / PART_OF_POOL),
            when_full: WhenFull::default(),
            writers: 1,
            on_drop: OnDrop::default(),
        };
        WriteBehindBuilder { tier, options }
    }
}

impl WriteBehindBuilder {
    /// Limits the bytes of the values in the queue, including those being written. They are in use
    /// in the pool. A value that is longer waits until the queue is empty. Default: 64 MiB, at most
    /// a 16th of the pool.
    pub fn max_bytes(mut self, bytes: u64) -> Self {
        self.options.max_bytes = bytes;
        self
    }

    /// Sets what happens when the queue is full. Default: [`WhenFull::Wait`].
    pub fn when_full(mut self, when_full: WhenFull) -> Self {
        self.options.when_full = when_full;
        self
    }

    /// Sets the number of threads that write, at least one. Default: 1.
    pub fn writers(mut self, writers: usize) -> Self {
        self.options.writers = writers.max(1);
        self
    }

    /// Sets what happens to values in the queue when it is dropped. Default: [`OnDrop::Write`].
    pub fn on_drop(mut self, on_drop: OnDrop) -> Self {
        self.options.on_drop = on_drop;
        self
    }

    /// Starts the writers.
    ///
    /// # Errors
    /// The system's error: no thread can be started.
    pub fn build(self) -> io::Result<WriteBehind> {
        WriteBehind::start(self.tier, &self.options)
    }
}
