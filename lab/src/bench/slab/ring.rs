//! A queue of blocks from one thread to another. It is as cheap as possible, because the benchmark
//! measures the blocks and not the queue.
//!
//! Both sides count the blocks that passed them, from 0 without wrapping; the counts select the
//! slots. Each side publishes its count once every [`BATCH`] blocks, so the counts' cache lines
//! move between processors only once per batch.

use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicUsize, Ordering};

/// The largest number of blocks in transit.
const SLOTS: usize = 2048;
/// Blocks that pass before the count is published.
const BATCH: usize = 64;

/// A count on its own cache line.
#[derive(Debug, Default)]
#[repr(align(128))]
struct Count(AtomicUsize);

#[derive(Debug, Default)]
struct Slot {
    block: AtomicPtr<u8>,
    size: AtomicU32,
}

/// The queue.
#[derive(Debug)]
pub(super) struct Ring {
    put: Count,
    taken: Count,
    closed: AtomicBool,
    slots: Box<[Slot]>,
}

/// The sending side.
pub(super) struct Sender<'a> {
    ring: &'a Ring,
    put: usize,
    taken: usize,
}

/// The receiving side.
pub(super) struct Receiver<'a> {
    ring: &'a Ring,
    put: usize,
    taken: usize,
}

impl Ring {
    pub(super) fn new() -> Self {
        let slots = (0..SLOTS).map(|_| Slot::default()).collect();
        Self {
            put: Count::default(),
            taken: Count::default(),
            closed: AtomicBool::new(false),
            slots,
        }
    }

    /// Returns the sending side, for one thread only.
    pub(super) fn sender(&self) -> Sender<'_> {
        Sender { ring: self, put: 0, taken: 0 }
    }

    /// Returns the receiving side, for one thread only.
    pub(super) fn receiver(&self) -> Receiver<'_> {
        Receiver { ring: self, put: 0, taken: 0 }
    }
}

impl Sender<'_> {
    /// Returns whether there is space for a block.
    #[inline]
    pub(super) fn has_space(&mut self) -> bool {
        if self.put - self.taken < SLOTS {
            return true;
        }
        // Acquire: pairs with the release in `Receiver::take`; the receiver has read the slots
        // before they are written again.
        self.taken = self.ring.taken.0.load(Ordering::Acquire);
        self.put - self.taken < SLOTS
    }

    /// Sends a block; there must be space.
    #[inline]
    pub(super) fn put(&mut self, block: *mut u8, size: u32) {
        let slot = &self.ring.slots[self.put % SLOTS];
        // Relaxed: the count publishes both.
        slot.block.store(block, Ordering::Relaxed);
        slot.size.store(size, Ordering::Relaxed);
        self.put += 1;
        if self.put.is_multiple_of(BATCH) {
            self.publish();
        }
    }

    fn publish(&self) {
        // Release: pairs with the acquire in `Receiver::take`; the slots and the blocks are written
        // before they are read.
        self.ring.put.0.store(self.put, Ordering::Release);
    }
}

impl Drop for Sender<'_> {
    fn drop(&mut self) {
        self.publish();
        // Release: pairs with the acquire in `Receiver::over`, which also makes the last count
        // visible.
        self.ring.closed.store(true, Ordering::Release);
    }
}

impl Receiver<'_> {
    /// Returns the next block and its size, if one has arrived.
    #[inline]
    pub(super) fn take(&mut self) -> Option<(*mut u8, u32)> {
        if self.taken == self.put {
            // Acquire: pairs with the release in `Sender::publish`.
            self.put = self.ring.put.0.load(Ordering::Acquire);
            if self.taken == self.put {
                return None;
            }
        }
        let slot = &self.ring.slots[self.taken % SLOTS];
        // Relaxed: the count published both.
        let found = (slot.block.load(Ordering::Relaxed), slot.size.load(Ordering::Relaxed));
        self.taken += 1;
        if self.taken.is_multiple_of(BATCH) {
            // Release: pairs with the acquire in `Sender::has_space`.
            self.ring.taken.0.store(self.taken, Ordering::Release);
        }
        Some(found)
    }

    /// Returns whether the sender is dropped. Blocks that it sent may remain.
    pub(super) fn over(&self) -> bool {
        // Acquire: pairs with the release when the sender is dropped.
        self.ring.closed.load(Ordering::Acquire)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::thread;

    #[test]
    fn blocks_arrive_in_order_and_once() {
        const ALL: u32 = 50_001;
        let ring = Ring::new();
        let mut seen = 0;
        thread::scope(|scope| {
            scope.spawn(|| {
                let mut sender = ring.sender();
                for i in 0..ALL {
                    while !sender.has_space() {
                        thread::yield_now();
                    }
                    sender.put(std::ptr::without_provenance_mut(i as usize + 1), i);
                }
            });
            let mut receiver = ring.receiver();
            loop {
                let over = receiver.over();
                while let Some((block, size)) = receiver.take() {
                    assert_eq!((block.addr(), size), (seen as usize + 1, seen));
                    seen += 1;
                }
                if over {
                    break;
                }
                thread::yield_now();
            }
        });
        assert_eq!(seen, ALL);
    }

    #[test]
    fn a_full_ring_has_no_space_until_a_batch_is_taken() {
        let ring = Ring::new();
        let (mut sender, mut receiver) = (ring.sender(), ring.receiver());
        for i in 0..SLOTS as u32 {
            assert!(sender.has_space());
            sender.put(std::ptr::null_mut(), i);
        }
        assert!(!sender.has_space());
        for i in 0..BATCH as u32 {
            assert_eq!(receiver.take().map(|(_, size)| size), Some(i));
        }
        assert!(sender.has_space());
    }
}
