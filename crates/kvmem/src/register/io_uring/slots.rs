//! *Slots*: which places of a ring's table are taken, and by which key.
//!
//! A slot is used again, so its number alone would let a key that was given back long ago take away
//! a buffer that is somebody else's by now. A key is therefore the slot and a number that no other
//! key of the ring has.

/// What is known of one slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Slot {
    Free,
    /// A call for it is under way.
    Busy,
    /// Holds the buffer of the key with this number.
    Live {
        serial: u32,
        bytes: u64,
    },
}

/// The books of a table.
#[derive(Debug)]
pub(super) struct Slots {
    /// As far as the last slot that is not free: those after it are.
    used: Vec<Slot>,
    /// Slots that may be used.
    most: u32,
    /// How many are free, before the end of `used` and after it.
    free: u32,
    next_serial: u32,
}

/// A slot that was taken for a new buffer.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Taken {
    pub(super) slot: u32,
    /// Whether all slots after it are free.
    pub(super) is_last: bool,
}

impl Slots {
    /// Books of so many slots, all free.
    pub(super) fn new(most: u32) -> Slots {
        Slots { used: Vec::new(), most, free: most, next_serial: 0 }
    }

    /// How many slots are free.
    pub(super) fn free(&self) -> u32 {
        self.free
    }

    /// From now on there are only so many slots. Those that are beyond stay until they are given
    /// back.
    pub(super) fn shrink(&mut self, most: u32) {
        self.most = self.most.min(most);
        let holes =
            self.used.iter().take(self.most as usize).filter(|slot| **slot == Slot::Free).count();
        self.free = holes as u32 + self.most.saturating_sub(self.used.len() as u32);
    }

    /// Takes a free slot: the one after all that are used, if there is one, else any between them.
    pub(super) fn take(&mut self) -> Option<Taken> {
        let end = self.used.len();
        if end < self.most as usize {
            self.used.push(Slot::Busy);
            self.free -= 1;
            return Some(Taken { slot: end as u32, is_last: true });
        }
        let hole =
            self.used.iter().take(self.most as usize).position(|slot| *slot == Slot::Free)?;
        self.used[hole] = Slot::Busy;
        self.free -= 1;
        Some(Taken { slot: hole as u32, is_last: false })
    }

    /// The slot that was taken holds a buffer now. Returns the handle of its key.
    pub(super) fn fill(&mut self, slot: u32, bytes: u64) -> u64 {
        let serial = self.next_serial;
        self.next_serial = serial.wrapping_add(1);
        self.used[slot as usize] = Slot::Live { serial, bytes };
        u64::from(serial) << 32 | u64::from(slot)
    }

    /// Makes a live slot busy. Returns it and the bytes that it holds; `None` if no such key is
    /// live.
    pub(super) fn claim(&mut self, handle: u64) -> Option<(u32, u64)> {
        let (slot, wanted) = (handle as u32, (handle >> 32) as u32);
        let entry = self.used.get_mut(slot as usize)?;
        match *entry {
            Slot::Live { serial, bytes } if serial == wanted => {
                *entry = Slot::Busy;
                Some((slot, bytes))
            }
            _ => None,
        }
    }

    /// The slot that was claimed holds its buffer still.
    pub(super) fn restore(&mut self, handle: u64, bytes: u64) {
        self.used[handle as u32 as usize] = Slot::Live { serial: (handle >> 32) as u32, bytes };
    }

    /// The slot that was taken or claimed is free again.
    pub(super) fn give_back(&mut self, slot: u32) {
        self.used[slot as usize] = Slot::Free;
        if slot < self.most {
            self.free += 1;
        }
        while self.used.last() == Some(&Slot::Free) {
            self.used.pop();
        }
    }

    /// The slots that hold buffers, and how many bytes each.
    pub(super) fn live(&self) -> impl Iterator<Item = (u32, u64)> {
        self.used.iter().zip(0..).filter_map(|(slot, at)| match slot {
            Slot::Live { bytes, .. } => Some((at, *bytes)),
            _ => None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn take(slots: &mut Slots) -> (u32, bool) {
        let taken = slots.take().expect("a slot is left");
        (taken.slot, taken.is_last)
    }

    #[test]
    fn slots_are_taken_behind_all_others_first() {
        let mut slots = Slots::new(3);
        let first: Vec<u64> = (0..2)
            .map(|want| {
                assert_eq!(take(&mut slots), (want, true));
                slots.fill(want, 10)
            })
            .collect();
        assert_eq!((first[0], slots.free()), (0, 1));
        assert_eq!(slots.claim(first[0]), Some((0, 10)));
        slots.give_back(0);
        // The hole waits until there is nothing behind.
        assert_eq!(take(&mut slots), (2, true));
        assert_eq!(take(&mut slots), (0, false));
        assert_eq!((slots.take(), slots.free()), (None, 0));
        // With the last gone, the end comes nearer, over all that is free.
        slots.give_back(0);
        slots.give_back(2);
        assert_eq!(slots.claim(first[1]), Some((1, 10)));
        slots.give_back(1);
        assert_eq!((slots.free(), slots.live().count()), (3, 0));
        assert_eq!(take(&mut slots), (0, true));
    }

    #[test]
    fn a_key_that_does_not_stand_harms_nothing() {
        let mut slots = Slots::new(4);
        let (slot, _) = take(&mut slots);
        assert_eq!(slots.claim(0), None, "it is not filled yet");
        let old = slots.fill(slot, 1);
        assert_eq!(slots.claim(old), Some((0, 1)));
        assert_eq!(slots.claim(old), None, "somebody is at it");
        slots.restore(old, 1);
        assert_eq!(slots.claim(old), Some((0, 1)));
        slots.give_back(slot);
        let (slot, _) = take(&mut slots);
        let new = slots.fill(slot, 2);
        assert_eq!(new as u32, old as u32, "the same slot");
        assert_eq!(slots.claim(old), None, "another key");
        for handle in [1, u64::MAX, 4, 1 << 33] {
            assert_eq!(slots.claim(handle), None);
        }
        assert_eq!(slots.live().collect::<Vec<_>>(), [(0, 2)]);
    }

    #[test]
    fn fewer_slots_than_before() {
        let mut slots = Slots::new(100);
        let keys: Vec<u64> = (0..10)
            .map(|at| {
                let (slot, _) = take(&mut slots);
                slots.fill(slot, at)
            })
            .collect();
        slots.claim(keys[1]).expect("live");
        slots.give_back(1);
        slots.shrink(4);
        assert_eq!(slots.free(), 1);
        // What is beyond does not come back.
        slots.claim(keys[9]).expect("live");
        slots.give_back(9);
        assert_eq!(slots.free(), 1);
        assert_eq!(take(&mut slots), (1, false));
        assert_eq!(slots.take(), None);
        for key in &keys[2..9] {
            let (slot, _) = slots.claim(*key).expect("live");
            slots.give_back(slot);
        }
        slots.give_back(1);
        assert_eq!((slots.free(), slots.live().count()), (3, 1));
    }
}
