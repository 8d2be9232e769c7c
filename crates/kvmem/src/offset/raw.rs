//! *Raw handles*: allocations named by plain data, for C and Python.
//!
//! A raw handle can be copied, kept too long, freed twice or given to the wrong allocator. It
//! carries the identity of its allocator (good within one process), the slot of its range and the
//! *seal* that was put on the slot when the handle was made; freeing breaks the seal. So every
//! misuse is seen, in release builds too, and nothing is touched. Seals are numbered by a
//! 32-bit counter for each allocator: a stale handle could pass only if exactly a multiple of 2^32
//! − 1 handles were made since, the last of them on the same slot.
//!
//! Seals stand beside the nodes and exist only where raw handles do: a program that uses RAII pays
//! nothing. Each has the length of its range with it, as an RAII handle has: from the books it
//! would take two reads more, one after the other, and a branch by chance.

use super::error::RawError;

/// Slots that share a lane.
const LANE: usize = 256;

/// Places for lanes that are kept when there are fewer.
const KEPT: usize = 8;

/// Plain-data name of an allocation: 16 bytes, any bits are safe to pass back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RawHandle {
    pub(crate) allocator: u64,
    pub(crate) slot: u32,
    pub(crate) generation: u32,
}

impl RawHandle {
    /// All of the handle in one number; never 0.
    pub fn to_bits(self) -> u128 {
        u128::from(self.allocator) << 64 | u128::from(self.slot) << 32 | u128::from(self.generation)
    }

    /// The handle that [`to_bits`](Self::to_bits) made a number of. Any number is safe: one that is
    /// no handle of the allocator it is given to is refused there.
    pub fn from_bits(bits: u128) -> Self {
        RawHandle {
            allocator: (bits >> 64) as u64,
            slot: (bits >> 32) as u32,
            generation: bits as u32,
        }
    }
}

/// An allocation made through the raw face.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct RawAllocation {
    /// Its name.
    pub handle: RawHandle,
    /// Where it begins, in bytes.
    pub offset: u64,
    /// Its length, in bytes: what was asked for.
    pub size: u64,
}

/// That of a slot, and the length of the slot's range.
#[derive(Clone, Copy)]
struct Seal {
    /// 0: no raw handle names this slot.
    generation: u32,
    /// As a [`Range`](super::Range) has it.
    size: u32,
}

impl Seal {
    const NONE: Seal = Seal { generation: 0, size: 0 };

    #[inline(always)]
    fn is(self, generation: u32) -> bool {
        self.generation != 0 && self.generation == generation
    }
}

/// The seals of some neighbouring slots.
struct Lane {
    seals: [Seal; LANE],
    sealed: u32,
}

/// Which slots have a raw handle, and of which generation.
pub(crate) struct Seals {
    lanes: Vec<Option<Box<Lane>>>,
    /// A lane without seals, for the next that is needed: who frees his only allocation and asks
    /// for another needs no memory for that.
    spare: Option<Box<Lane>>,
    /// Generation of the latest seal.
    last: u32,
    /// Slots that have one.
    sealed: u64,
}

impl Seals {
    pub(crate) fn new() -> Self {
        Seals { lanes: Vec::new(), spare: None, last: 0, sealed: 0 }
    }

    /// Raw handles alive.
    pub(crate) fn sealed(&self) -> u64 {
        self.sealed
    }

    pub(crate) fn bytes(&self) -> usize {
        self.lanes.capacity() * size_of::<Option<Box<Lane>>>()
            + self.lanes.iter().flatten().chain(&self.spare).count() * size_of::<Lane>()
    }

    /// Puts a new seal on a slot that has none, and whose range is so long.
    #[inline]
    pub(crate) fn seal(&mut self, slot: u32, size: u32) -> u32 {
        self.last = self.last.checked_add(1).unwrap_or(1);
        let chunk = slot as usize / LANE;
        let lane = match self.lanes.get_mut(chunk) {
            Some(Some(lane)) => lane,
            _ => Self::open(&mut self.lanes, &mut self.spare, chunk),
        };
        lane.seals[slot as usize % LANE] = Seal { generation: self.last, size };
        lane.sealed += 1;
        self.sealed += 1;
        self.last
    }

    /// A lane where none is.
    #[cold]
    #[inline(never)]
    fn open<'a>(
        lanes: &'a mut Vec<Option<Box<Lane>>>,
        spare: &mut Option<Box<Lane>>,
        chunk: usize,
    ) -> &'a mut Lane {
        if chunk >= lanes.len() {
            lanes.resize_with(chunk + 1, || None);
        }
        let new = || Box::new(Lane { seals: [Seal::NONE; LANE], sealed: 0 });
        lanes[chunk].get_or_insert_with(|| spare.take().unwrap_or_else(new))
    }

    /// Whether the slot bears this seal.
    pub(crate) fn verify(&self, slot: u32, generation: u32) -> Result<(), RawError> {
        let lane = self.lanes.get(slot as usize / LANE).and_then(Option::as_ref);
        match lane.map(|lane| lane.seals[slot as usize % LANE]) {
            Some(seal) if seal.is(generation) => Ok(()),
            _ => Err(RawError::Stale { slot, generation }),
        }
    }

    /// The generation of a slot's seal, if it has one.
    #[cfg(not(loom))]
    pub(crate) fn of(&self, slot: u32) -> Option<u32> {
        let lane = self.lanes.get(slot as usize / LANE)?.as_ref()?;
        Some(lane.seals[slot as usize % LANE].generation).filter(|generation| *generation != 0)
    }

    /// The sealed slots with the generations of their seals. O(slots).
    #[cfg(not(loom))]
    pub(crate) fn iter(&self) -> impl Iterator<Item = (u32, u32)> {
        let slots = (0..).zip(&self.lanes).filter(|(_, lane)| lane.is_some());
        let slots = slots.flat_map(|(lane, _): (usize, _)| lane * LANE..(lane + 1) * LANE);
        slots.filter_map(|slot| Some((slot as u32, self.of(slot as u32)?)))
    }

    /// The range of a sealed slot is so long from now on.
    pub(crate) fn resize(&mut self, slot: u32, size: u32) {
        if let Some(Some(lane)) = self.lanes.get_mut(slot as usize / LANE) {
            lane.seals[slot as usize % LANE].size = size;
        }
    }

    /// Breaks the seal of a slot, if it bears this one; how long the range is.
    #[inline]
    pub(crate) fn take(&mut self, slot: u32, generation: u32) -> Result<u32, RawError> {
        let Some(Some(lane)) = self.lanes.get_mut(slot as usize / LANE) else {
            return Err(RawError::Stale { slot, generation });
        };
        let seal = &mut lane.seals[slot as usize % LANE];
        if !seal.is(generation) {
            return Err(RawError::Stale { slot, generation });
        }
        let size = seal.size;
        *seal = Seal::NONE;
        lane.sealed -= 1;
        self.sealed -= 1;
        if lane.sealed == 0 {
            self.retire(slot as usize / LANE);
        }
        Ok(size)
    }

    /// Puts a lane without seals away.
    #[cold]
    fn retire(&mut self, chunk: usize) {
        self.spare = self.lanes[chunk].take();
        while let Some(None) = self.lanes.last() {
            self.lanes.pop();
        }
        self.lanes.shrink_to((self.lanes.len() * 2).max(KEPT));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bits_go_there_and_back() {
        let handle = RawHandle { allocator: u64::MAX - 1, slot: 7, generation: u32::MAX };
        assert_eq!(RawHandle::from_bits(handle.to_bits()), handle);
    }

    #[test]
    fn a_seal_is_good_once() {
        let mut seals = Seals::new();
        let first = seals.seal(300, 10);
        assert_eq!(seals.verify(300, first), Ok(()));
        assert!(seals.verify(300, first + 1).is_err());
        assert!(seals.verify(299, 0).is_err(), "an unsealed slot has no generation 0");
        seals.resize(300, 11);
        seals.resize(1 << 20, 12);
        assert_eq!((seals.of(300), seals.of(299), seals.of(1 << 20)), (Some(first), None, None));
        assert_eq!(seals.iter().collect::<Vec<_>>(), [(300, first)]);
        assert_eq!(seals.take(300, first), Ok(11));
        assert_eq!((seals.of(300), seals.iter().count()), (None, 0));
        assert!(seals.take(300, first).is_err());
        assert!(seals.verify(300, first).is_err());
        assert!(seals.bytes() <= KEPT * size_of::<usize>() + size_of::<Lane>());
        assert!(seals.verify(300, 0).is_err() && seals.seal(300, 10) > first);
    }
}
