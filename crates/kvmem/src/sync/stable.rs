//! *Stable*: a table that only grows, for as long as the process: its entries never move and never end.
//!
//! The first entries stand in the table itself, which is a static, so that finding them takes no load; the rest in segments that
//! double.

use std::sync::OnceLock;

const FIRST_LOG2: u32 = 5;
/// Entries in the table itself.
pub const FIRST: usize = 1 << FIRST_LOG2;
/// Together with the first, one for every `u32`.
const SEGMENTS: usize = 32 - FIRST_LOG2 as usize;

/// The table. Where it is a static of its own, one entry costs nobody else.
pub struct Stable<T: 'static> {
    first: [T; FIRST],
    more: [OnceLock<Box<[T]>>; SEGMENTS],
    make: fn() -> T,
}

impl<T> Stable<T> {
    /// The table with these entries, and others as `make` makes them.
    pub const fn new(first: [T; FIRST], make: fn() -> T) -> Self {
        Stable { first, more: [const { OnceLock::new() }; SEGMENTS], make }
    }

    /// The entry of a number.
    #[inline]
    pub fn get(&self, index: u32) -> &T {
        match self.first.get(index as usize) {
            Some(entry) => entry,
            None => self.further(index),
        }
    }

    /// The entry of a number, if it exists.
    #[inline]
    pub fn find(&self, index: u32) -> Option<&T> {
        match self.first.get(index as usize) {
            Some(entry) => Some(entry),
            None => self.segment(index).get().map(|segment| &segment[index as usize - segment.len()]),
        }
    }

    /// All entries that exist, by their numbers.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (u32, &T)> {
        let more = self.more.iter().filter_map(OnceLock::get);
        let further = more.flat_map(|segment| (segment.len() as u32..).zip(segment.iter()));
        (0..).zip(&self.first).chain(further)
    }

    /// Bytes on the heap.
    pub(crate) fn bytes(&self) -> usize {
        self.more.iter().filter_map(OnceLock::get).map(|segment| size_of_val(&**segment)).sum()
    }

    /// Segment k holds the numbers 2^(FIRST_LOG2 + k) up to twice that. `index` is none of the first.
    fn segment(&self, index: u32) -> &OnceLock<Box<[T]>> {
        &self.more[(index.ilog2() - FIRST_LOG2) as usize]
    }

    #[cold]
    #[inline(never)]
    fn further(&self, index: u32) -> &T {
        let len = 1usize << index.ilog2();
        let segment =
            self.segment(index).get_or_init(|| std::iter::repeat_with(self.make).take(len).collect());
        &segment[index as usize - len]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    static TABLE: Stable<u64> = Stable::new([0; FIRST], || 1);

    #[test]
    fn every_number_has_its_own_entry() {
        assert_eq!((TABLE.iter().count(), TABLE.bytes()), (FIRST, 0));
        assert!(TABLE.find(FIRST as u32).is_none() && TABLE.find(u32::MAX).is_none());
        let mut seen = std::collections::HashSet::new();
        for index in 0..1000 {
            assert!(seen.insert(std::ptr::from_ref(TABLE.get(index))), "entry {index} is another's");
            assert!(std::ptr::eq(TABLE.get(index), TABLE.get(index)));
            assert_eq!(*TABLE.get(index), u64::from(index as usize >= FIRST));
            assert!(TABLE.find(index).is_some_and(|entry| std::ptr::eq(entry, TABLE.get(index))));
        }
        assert_eq!((TABLE.iter().count(), TABLE.bytes()), (1024, 8 * (1024 - FIRST)));
        assert!(TABLE.iter().zip(0..).all(|((index, _), at)| index == at));
    }
}
