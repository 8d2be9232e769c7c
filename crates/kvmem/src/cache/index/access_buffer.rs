//! *Access buffer*: the slots that were used, in order, until they are drained to the policy.

use crate::cache::Slot;
use crate::sync::{AtomicU32, Ordering};

/// The capacity of a buffer. With the stripe's counts it fills two cache lines.
const CAPACITY: usize = 24;

/// Recorded uses of one stripe. A thread writes them that holds the stripe of the lock, or all
/// stripes. Everything is therefore relaxed: the lock passes one thread's records on to the next.
#[derive(Debug, Default)]
pub(in crate::cache) struct AccessBuffer {
    len: AtomicU32,
    slots: [AtomicU32; CAPACITY],
}

impl AccessBuffer {
    /// Records a use. Returns false if the buffer is full.
    #[inline]
    pub(in crate::cache) fn note(&self, slot: Slot) -> bool {
        // Relaxed, here and below: see the type.
        let len = self.len.load(Ordering::Relaxed);
        let place = self.slots.get(len as usize);
        if let Some(place) = place {
            place.store(slot, Ordering::Relaxed);
            self.len.store(len + 1, Ordering::Relaxed);
        }
        place.is_some()
    }

    /// Empties the buffer and calls `report` for each slot, in order. The buffer is empty even if
    /// `report` panics.
    pub(in crate::cache) fn drain(&self, mut report: impl FnMut(Slot)) {
        // Not a swap, which waits for all earlier stores of the thread: it has the buffer for
        // itself.
        let len = self.len.load(Ordering::Relaxed);
        self.len.store(0, Ordering::Relaxed);
        for slot in self.slots.iter().take(len as usize) {
            report(slot.load(Ordering::Relaxed));
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    fn all(uses: &AccessBuffer) -> Vec<Slot> {
        let mut slots = Vec::new();
        uses.drain(|slot| slots.push(slot));
        slots
    }

    #[test]
    fn they_are_told_once_and_in_order() {
        let uses = AccessBuffer::default();
        assert!(uses.note(7) && uses.note(3) && uses.note(7));
        assert_eq!(all(&uses), [7, 3, 7]);
        assert!(all(&uses).is_empty());
    }

    #[test]
    fn they_are_as_many_as_find_room() {
        let uses = AccessBuffer::default();
        assert!((0..CAPACITY as Slot).all(|slot| uses.note(slot)));
        assert!(!uses.note(0));
        assert_eq!(all(&uses), (0..CAPACITY as Slot).collect::<Vec<_>>());
        assert!(uses.note(0));
    }
}
