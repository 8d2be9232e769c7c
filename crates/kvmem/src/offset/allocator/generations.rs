//! *Generations*: which raw handle of a slot is valid.
//!
//! Issuing a handle assigns a generation to its slot; freeing revokes it. Generations are numbered
//! by a 32-bit counter per allocator: a stale handle could pass only if exactly a multiple of 2^32
//! − 1 handles were issued since, the last of them for the same slot.
//!
//! Generations are stored next to the nodes and exist only where raw handles do: a program that
//! uses RAII pays nothing. Each is stored with the length of its range, as in an RAII handle.
//! Reading the length from the metadata would take two more reads, one after the other, and an
//! unpredictable branch.

use crate::offset::error::RawError;

/// Slots per chunk.
const CHUNK_SLOTS: usize = 256;

/// Capacity for chunks that is kept when there are fewer.
const KEPT_CHUNKS: usize = 8;

/// The generation of a slot, and the length of the slot's range.
#[derive(Clone, Copy)]
struct SlotGeneration {
    /// 0: no raw handle for this slot.
    generation: u32,
    /// As in a [`Range`](super::Range).
    size: u32,
}

impl SlotGeneration {
    const NONE: SlotGeneration = SlotGeneration { generation: 0, size: 0 };

    #[inline(always)]
    fn matches(self, generation: u32) -> bool {
        self.generation != 0 && self.generation == generation
    }
}

/// The generations of adjacent slots.
struct GenerationChunk {
    generations: [SlotGeneration; CHUNK_SLOTS],
    live_handles: u32,
}

/// The generation of every slot that has a raw handle.
pub(crate) struct GenerationTable {
    chunks: Vec<Option<Box<GenerationChunk>>>,
    /// A chunk without live handles, for the next one that is needed. A caller that frees its only
    /// allocation and requests another needs no memory for that.
    spare_chunk: Option<Box<GenerationChunk>>,
    /// The latest generation.
    last: u32,
    /// Number of live handles.
    live_handles: u64,
}

impl GenerationTable {
    pub(crate) fn new() -> Self {
        GenerationTable { chunks: Vec::new(), spare_chunk: None, last: 0, live_handles: 0 }
    }

    /// Returns tables with the live handles of the slots of each of `parts` parts, to which
    /// `part_of` assigns them. O(slots).
    pub(crate) fn divide(&self, parts: usize, part_of: impl Fn(u32) -> usize) -> Vec<Self> {
        let empty = || GenerationTable { last: self.last, ..Self::new() };
        let mut tables: Vec<Self> = (0..parts).map(|_| empty()).collect();
        for (slot, generation) in self.iter() {
            let table = &mut tables[part_of(slot)];
            table.last = generation.wrapping_sub(1);
            table.issue(slot, self.size_of(slot));
            table.last = self.last;
        }
        tables
    }

    /// Returns the length of the range of a slot with a live handle.
    fn size_of(&self, slot: u32) -> u32 {
        let chunk = self.chunks.get(slot as usize / CHUNK_SLOTS).and_then(Option::as_ref);
        chunk.map_or(0, |chunk| chunk.generations[slot as usize % CHUNK_SLOTS].size)
    }

    /// Returns the number of live raw handles.
    pub(crate) fn live_handles(&self) -> u64 {
        self.live_handles
    }

    pub(crate) fn bytes(&self) -> usize {
        self.chunks.capacity() * size_of::<Option<Box<GenerationChunk>>>()
            + self.chunks.iter().flatten().chain(&self.spare_chunk).count()
                * size_of::<GenerationChunk>()
    }

    /// Issues a new generation for a slot that has none, whose range has the length `size`.
    #[inline]
    pub(crate) fn issue(&mut self, slot: u32, size: u32) -> u32 {
        self.last = self.last.checked_add(1).unwrap_or(1);
        let number = slot as usize / CHUNK_SLOTS;
        let chunk = match self.chunks.get_mut(number) {
            Some(Some(chunk)) => chunk,
            _ => Self::open_chunk(&mut self.chunks, &mut self.spare_chunk, number),
        };
        chunk.generations[slot as usize % CHUNK_SLOTS] =
            SlotGeneration { generation: self.last, size };
        chunk.live_handles += 1;
        self.live_handles += 1;
        self.last
    }

    /// Creates a chunk where there is none.
    #[cold]
    #[inline(never)]
    fn open_chunk<'a>(
        chunks: &'a mut Vec<Option<Box<GenerationChunk>>>,
        spare_chunk: &mut Option<Box<GenerationChunk>>,
        number: usize,
    ) -> &'a mut GenerationChunk {
        if number >= chunks.len() {
            chunks.resize_with(number + 1, || None);
        }
        let new = || {
            Box::new(GenerationChunk {
                generations: [SlotGeneration::NONE; CHUNK_SLOTS],
                live_handles: 0,
            })
        };
        chunks[number].get_or_insert_with(|| spare_chunk.take().unwrap_or_else(new))
    }

    /// Checks that the slot has this generation.
    pub(crate) fn verify(&self, slot: u32, generation: u32) -> Result<(), RawError> {
        let chunk = self.chunks.get(slot as usize / CHUNK_SLOTS).and_then(Option::as_ref);
        match chunk.map(|chunk| chunk.generations[slot as usize % CHUNK_SLOTS]) {
            Some(issue) if issue.matches(generation) => Ok(()),
            _ => Err(RawError::Stale { slot, generation }),
        }
    }

    /// Returns the generation of a slot, if it has one.
    pub(crate) fn generation_of(&self, slot: u32) -> Option<u32> {
        let chunk = self.chunks.get(slot as usize / CHUNK_SLOTS)?.as_ref()?;
        Some(chunk.generations[slot as usize % CHUNK_SLOTS].generation)
            .filter(|generation| *generation != 0)
    }

    /// Returns the slots with live handles, and their generations. O(slots).
    pub(crate) fn iter(&self) -> impl Iterator<Item = (u32, u32)> {
        let slots = (0..).zip(&self.chunks).filter(|(_, chunk)| chunk.is_some());
        let slots =
            slots.flat_map(|(chunk, _): (usize, _)| chunk * CHUNK_SLOTS..(chunk + 1) * CHUNK_SLOTS);
        slots.filter_map(|slot| Some((slot as u32, self.generation_of(slot as u32)?)))
    }

    /// Changes the length of the range of a slot.
    pub(crate) fn resize(&mut self, slot: u32, size: u32) {
        if let Some(Some(chunk)) = self.chunks.get_mut(slot as usize / CHUNK_SLOTS) {
            chunk.generations[slot as usize % CHUNK_SLOTS].size = size;
        }
    }

    /// Revokes the generation of a slot, if it is this one; returns the length of the range.
    #[inline]
    pub(crate) fn take(&mut self, slot: u32, generation: u32) -> Result<u32, RawError> {
        let Some(Some(chunk)) = self.chunks.get_mut(slot as usize / CHUNK_SLOTS) else {
            return Err(RawError::Stale { slot, generation });
        };
        let issue = &mut chunk.generations[slot as usize % CHUNK_SLOTS];
        if !issue.matches(generation) {
            return Err(RawError::Stale { slot, generation });
        }
        let size = issue.size;
        *issue = SlotGeneration::NONE;
        chunk.live_handles -= 1;
        self.live_handles -= 1;
        // The first chunk stays: in a small space it is emptied and needed again all the time.
        let number = slot as usize / CHUNK_SLOTS;
        if chunk.live_handles == 0 && number > 0 {
            self.retire_chunk(number);
        }
        Ok(size)
    }

    /// Removes a chunk without live handles.
    #[cold]
    fn retire_chunk(&mut self, number: usize) {
        self.spare_chunk = self.chunks[number].take();
        while let Some(None) = self.chunks.last() {
            self.chunks.pop();
        }
        let len = self.chunks.len();
        // Rarely: some global allocators shorten a block by copying it.
        if self.chunks.capacity() > (len * 4).max(KEPT_CHUNKS) {
            self.chunks.shrink_to((len * 2).max(KEPT_CHUNKS));
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_generation_is_valid_once() {
        let mut generations = GenerationTable::new();
        let first = generations.issue(300, 10);
        assert_eq!(generations.verify(300, first), Ok(()));
        assert!(generations.verify(300, first + 1).is_err());
        assert!(generations.verify(299, 0).is_err(), "a slot without a handle has no generation 0");
        generations.resize(300, 11);
        generations.resize(1 << 20, 12);
        assert_eq!(
            (
                generations.generation_of(300),
                generations.generation_of(299),
                generations.generation_of(1 << 20)
            ),
            (Some(first), None, None)
        );
        assert_eq!(generations.iter().collect::<Vec<_>>(), [(300, first)]);
        assert_eq!(generations.take(300, first), Ok(11));
        assert_eq!((generations.generation_of(300), generations.iter().count()), (None, 0));
        assert!(generations.take(300, first).is_err());
        assert!(generations.verify(300, first).is_err());
        assert!(
            generations.bytes() <= KEPT_CHUNKS * size_of::<usize>() + size_of::<GenerationChunk>()
        );
        assert!(generations.verify(300, 0).is_err() && generations.issue(300, 10) > first);
    }
}
