//! *Slots*: the slots of a ring's table in use, and their keys.
//!
//! Slots are reused. With the slot's number alone, a stale key could deregister the buffer of
//! another owner. A key is therefore the slot and a serial number that no other key of the ring
//! has.

/// The state of one slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SlotState {
    Free,
    /// A call for this slot is in progress.
    Busy,
    /// Holds the buffer of the key with this serial number.
    Live {
        serial: u32,
        bytes: u64,
    },
}

/// The state of a table.
#[derive(Debug)]
pub(super) struct BufferSlots {
    /// The slots up to the last one that is not free; all later ones are free.
    used: Vec<SlotState>,
    /// The number of slots that may be used.
    max_slots: u32,
    /// The number of free slots, before the end of `used` and after it.
    free: u32,
    next_serial: u32,
}

/// A slot taken for a new buffer.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct ReservedSlot {
    pub(super) slot: u32,
    /// Whether all later slots are free.
    pub(super) is_last: bool,
}

impl BufferSlots {
    /// Returns a table of `max_slots` slots, all free.
    pub(super) fn new(max_slots: u32) -> BufferSlots {
        BufferSlots { used: Vec::new(), max_slots, free: max_slots, next_serial: 0 }
    }

    /// Returns the number of free slots.
    pub(super) fn free(&self) -> u32 {
        self.free
    }

    /// Limits the table to `max_slots` slots. Slots beyond that stay in use until they are
    /// freed.
    pub(super) fn shrink(&mut self, max_slots: u32) {
        self.max_slots = self.max_slots.min(max_slots);
        let holes = self
            .used
            .iter()
            .take(self.max_slots as usize)
            .filter(|slot| **slot == SlotState::Free)
            .count();
        self.free = holes as u32 + self.max_slots.saturating_sub(self.used.len() as u32);
    }

    /// Takes a free slot: the one after all used ones if it exists, otherwise one between them.
    pub(super) fn reserve(&mut self) -> Option<ReservedSlot> {
        let end = self.used.len();
        if end < self.max_slots as usize {
            self.used.push(SlotState::Busy);
            self.free -= 1;
            return Some(ReservedSlot { slot: end as u32, is_last: true });
        }
        let hole = self
            .used
            .iter()
            .take(self.max_slots as usize)
            .position(|slot| *slot == SlotState::Free)?;
        self.used[hole] = SlotState::Busy;
        self.free -= 1;
        Some(ReservedSlot { slot: hole as u32, is_last: false })
    }

    /// Records that the taken slot holds a buffer. Returns the handle of its key.
    pub(super) fn fill(&mut self, slot: u32, bytes: u64) -> u64 {
        let serial = self.next_serial;
        self.next_serial = serial.wrapping_add(1);
        self.used[slot as usize] = SlotState::Live { serial, bytes };
        u64::from(serial) << 32 | u64::from(slot)
    }

    /// Begins to release a live slot, which becomes busy. Returns it and the bytes of its buffer;
    /// `None` if no such key is live.
    pub(super) fn begin_release(&mut self, handle: u64) -> Option<(u32, u64)> {
        let (slot, wanted) = (handle as u32, (handle >> 32) as u32);
        let entry = self.used.get_mut(slot as usize)?;
        match *entry {
            SlotState::Live { serial, bytes } if serial == wanted => {
                *entry = SlotState::Busy;
                Some((slot, bytes))
            }
            _ => None,
        }
    }

    /// Ends a failed release: the slot holds its buffer still.
    pub(super) fn cancel_release(&mut self, handle: u64, bytes: u64) {
        self.used[handle as u32 as usize] =
            SlotState::Live { serial: (handle >> 32) as u32, bytes };
    }

    /// Frees a busy slot.
    pub(super) fn free_slot(&mut self, slot: u32) {
        self.used[slot as usize] = SlotState::Free;
        if slot < self.max_slots {
            self.free += 1;
        }
        while self.used.last() == Some(&SlotState::Free) {
            self.used.pop();
        }
    }

    /// Returns the slots that hold buffers, each with its bytes.
    pub(super) fn live(&self) -> impl Iterator<Item = (u32, u64)> {
        self.used.iter().zip(0..).filter_map(|(slot, at)| match slot {
            SlotState::Live { bytes, .. } => Some((at, *bytes)),
            _ => None,
        })
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    fn take(slots: &mut BufferSlots) -> (u32, bool) {
        let reserved = slots.reserve().expect("a slot is left");
        (reserved.slot, reserved.is_last)
    }

    #[test]
    fn slots_after_all_others_are_taken_first() {
        let mut slots = BufferSlots::new(3);
        let first: Vec<u64> = (0..2)
            .map(|want| {
                assert_eq!(take(&mut slots), (want, true));
                slots.fill(want, 10)
            })
            .collect();
        assert_eq!((first[0], slots.free()), (0, 1));
        assert_eq!(slots.begin_release(first[0]), Some((0, 10)));
        slots.free_slot(0);
        // The hole is not used while there are slots after all others.
        assert_eq!(take(&mut slots), (2, true));
        assert_eq!(take(&mut slots), (0, false));
        assert_eq!((slots.reserve(), slots.free()), (None, 0));
        // When the last used slot is freed, `used` ends before all free slots.
        slots.free_slot(0);
        slots.free_slot(2);
        assert_eq!(slots.begin_release(first[1]), Some((1, 10)));
        slots.free_slot(1);
        assert_eq!((slots.free(), slots.live().count()), (3, 0));
        assert_eq!(take(&mut slots), (0, true));
    }

    #[test]
    fn a_key_that_is_not_live_has_no_effect() {
        let mut slots = BufferSlots::new(4);
        let (slot, _) = take(&mut slots);
        assert_eq!(slots.begin_release(0), None, "it is not filled yet");
        let old = slots.fill(slot, 1);
        assert_eq!(slots.begin_release(old), Some((0, 1)));
        assert_eq!(slots.begin_release(old), None, "its release has begun");
        slots.cancel_release(old, 1);
        assert_eq!(slots.begin_release(old), Some((0, 1)));
        slots.free_slot(slot);
        let (slot, _) = take(&mut slots);
        let new = slots.fill(slot, 2);
        assert_eq!(new as u32, old as u32, "the same slot");
        assert_eq!(slots.begin_release(old), None, "another key");
        for handle in [1, u64::MAX, 4, 1 << 33] {
            assert_eq!(slots.begin_release(handle), None);
        }
        assert_eq!(slots.live().collect::<Vec<_>>(), [(0, 2)]);
    }

    #[test]
    fn a_smaller_table_frees_only_slots_within_it() {
        let mut slots = BufferSlots::new(100);
        let keys: Vec<u64> = (0..10)
            .map(|at| {
                let (slot, _) = take(&mut slots);
                slots.fill(slot, at)
            })
            .collect();
        slots.begin_release(keys[1]).expect("live");
        slots.free_slot(1);
        slots.shrink(4);
        assert_eq!(slots.free(), 1);
        // A freed slot beyond the limit is not used again.
        slots.begin_release(keys[9]).expect("live");
        slots.free_slot(9);
        assert_eq!(slots.free(), 1);
        assert_eq!(take(&mut slots), (1, false));
        assert_eq!(slots.reserve(), None);
        for key in &keys[2..9] {
            let (slot, _) = slots.begin_release(*key).expect("live");
            slots.free_slot(slot);
        }
        slots.free_slot(1);
        assert_eq!((slots.free(), slots.live().count()), (3, 1));
    }
}
