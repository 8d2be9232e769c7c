//! *Scattered values*: the second and later extents of values that have several.
//!
//! Nearly all values have one extent, which their [slot](super::slots) has. The others are in a
//! table apart from the slots, which takes no memory while there are none.

use std::hash::RandomState;

use hashbrown::HashMap;

use super::ranges::Ranges;
use crate::format::{Extent, Extents, MAX_EXTENTS};

/// An extent with the lower half of its range's handle.
#[derive(Clone, Copy)]
struct Part {
    extent: Extent,
    range: [u32; 2],
}

/// The parts of a value behind its first one.
type Parts = [Part; MAX_EXTENTS - 1];

/// The values in several extents, by slot.
#[derive(Default)]
pub(super) struct Scattered(HashMap<u32, Parts, RandomState>);

impl Scattered {
    /// Returns the number of values.
    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    /// Returns the bytes of the table in memory.
    pub(super) fn bytes(&self) -> usize {
        self.0.allocation_size()
    }

    /// Adds the extents of a value that has several.
    #[cold]
    pub(super) fn add(&mut self, slot: u32, extents: &Extents, ranges: &Ranges) {
        let none = Part { extent: Extent::default(), range: [0; 2] };
        let mut parts = [none; MAX_EXTENTS - 1];
        let behind = extents.iter().zip(ranges.lower_halves()).skip(1);
        for (part, (&extent, range)) in parts.iter_mut().zip(behind) {
            *part = Part { extent, range };
        }
        self.0.insert(slot, parts);
    }

    /// Removes a value.
    #[cold]
    pub(super) fn remove(&mut self, slot: u32) {
        self.0.remove(&slot);
    }

    /// Returns all extents of a value of `blocks` blocks that begins at `start`, and the lower
    /// halves of the handles behind the first one.
    #[cold]
    pub(super) fn get(
        &self,
        slot: u32,
        start: u32,
        blocks: u32,
    ) -> (Extents, [[u32; 2]; MAX_EXTENTS - 1]) {
        let parts = &self.0[&slot];
        let behind: u32 = parts.iter().map(|part| part.extent.blocks).sum();
        let mut extents = [Extent { start, blocks: blocks - behind }; MAX_EXTENTS];
        for (extent, part) in extents[1..].iter_mut().zip(parts) {
            *extent = part.extent;
        }
        let count = 1 + parts.iter().filter(|part| part.extent.blocks > 0).count();
        let extents = Extents::of(&extents[..count]).expect("they are those that were added");
        (extents, parts.map(|part| part.range))
    }
}
