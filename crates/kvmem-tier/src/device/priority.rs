//! *Priority*: reads go before writes.
//!
//! An engine waits for a read, and hardly any thread waits for a write. A drive queues everything
//! that is in flight, so a read behind 32 MiB of writes waits for all of them. The device therefore
//! writes in pieces. Together they have a few MiB in flight, which occupy a drive. While a read
//! is in flight, and a moment longer, the device writes one short piece at a time: a thread that
//! reads one value after the other finds the same drive each time.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// What writes may have in flight.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Share {
    /// Bytes of one transfer, at most: whole blocks.
    pub(super) piece: usize,
    /// Bytes of all transfers of a batch. One transfer may be in flight whatever its length.
    pub(super) bytes: usize,
}

impl Share {
    /// Of a batch of reads: no limit but that of a request to the kernel, whose length has 32 bits.
    pub(super) const READS: Share = Share { piece: 1 << 30, bytes: usize::MAX };
    /// Of writes alone. The fastest drives have 1 MiB in flight when they are busy. A piece has as
    /// much as all of them may: a thread that encodes the next value submits no further piece. The
    /// forms of 4 MiB of encoded values are a little longer than that, and are in flight together.
    pub(super) const ALONE: Share = Share { piece: 4 << 20, bytes: (4 << 20) + (512 << 10) };
    /// Of writes during reads.
    const DURING_READS: Share = Share { piece: 256 << 10, bytes: 256 << 10 };
}

/// How long after a read the next one is expected.
const MOMENT: Duration = Duration::from_millis(2);

/// The reads of a device.
pub(super) struct Priority {
    began: Instant,
    /// Batches of reads that are in flight.
    reads: AtomicUsize,
    /// When the last one ended, in nanoseconds since the beginning.
    last: AtomicU64,
    /// Held by a thread that writes without a ring, while it may write next to reads.
    write_lock: Mutex<()>,
}

impl Priority {
    pub(super) fn new() -> Priority {
        let (reads, last) = (AtomicUsize::new(0), AtomicU64::new(0));
        Priority { began: Instant::now(), reads, last, write_lock: Mutex::new(()) }
    }

    fn now(&self) -> u64 {
        self.began.elapsed().as_nanos() as u64
    }

    /// Notes that a batch of reads is in flight, until the result is dropped.
    pub(super) fn reading(&self) -> ReadInFlight<'_> {
        // Relaxed, here as at the next uses: writes that miss a change are only paced a little
        // later.
        self.reads.fetch_add(1, Ordering::Relaxed);
        ReadInFlight(self)
    }

    /// Returns what writes may have in flight now.
    pub(super) fn share_of_writes(&self) -> Share {
        let last = self.last.load(Ordering::Relaxed);
        let is_reading = self.reads.load(Ordering::Relaxed) > 0
            || last > 0 && self.now().saturating_sub(last) < MOMENT.as_nanos() as u64;
        if is_reading { Share::DURING_READS } else { Share::ALONE }
    }

    /// Returns what a thread that writes without a ring may have in flight now. Beside reads it
    /// waits for its permission, which lasts until the guard is dropped.
    pub(super) fn begin_write(&self) -> (Share, Option<MutexGuard<'_, ()>>) {
        let share = self.share_of_writes();
        let lock = || self.write_lock.lock().unwrap_or_else(PoisonError::into_inner);
        (share, (share == Share::DURING_READS).then(lock))
    }
}

/// A batch of reads that is in flight.
pub(super) struct ReadInFlight<'a>(&'a Priority);

impl Drop for ReadInFlight<'_> {
    fn drop(&mut self) {
        self.0.last.store(self.0.now(), Ordering::Relaxed);
        self.0.reads.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn writes_have_less_while_a_read_is_in_flight_and_a_moment_longer() {
        let priority = Priority::new();
        assert_eq!(priority.share_of_writes(), Share::ALONE);
        assert!(priority.begin_write().1.is_none());
        let (one, other) = (priority.reading(), priority.reading());
        drop(one);
        assert_eq!(priority.share_of_writes(), Share::DURING_READS);
        std::thread::sleep(2 * MOMENT);
        assert_eq!(priority.share_of_writes(), Share::DURING_READS);
        let lock = priority.begin_write();
        assert!(priority.write_lock.try_lock().is_err());
        drop((lock, other));
        // The next read is expected for a moment.
        let ended = Duration::from_nanos(priority.last.load(Ordering::Relaxed));
        while priority.share_of_writes() == Share::DURING_READS {
            std::thread::yield_now();
        }
        assert!(priority.began.elapsed() - ended >= MOMENT);
    }
}
