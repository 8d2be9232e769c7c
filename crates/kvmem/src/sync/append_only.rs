//! *Stable*: a table that only grows, for as long as the process: its entries never move and never
//! end.
//!
//! The first entries stand in the table itself, which is a static, so that finding them takes no
//! load; the rest in segments that double.
//!
//! Nobody waits for another's segment: two that need one at once make it both, and the second
//! throws its own away. So a fork in the middle leaves nothing in the child that it would wait for.

use std::ptr;
use std::slice;
use std::sync::atomic::{AtomicPtr, Ordering};

const FIRST_LOG2: u32 = 5;
/// Entries in the table itself.
pub const FIRST: usize = 1 << FIRST_LOG2;
/// Together with the first, one for every `u32`.
const SEGMENTS: usize = 32 - FIRST_LOG2 as usize;

/// The table. Where it is a static of its own, one entry costs nobody else.
pub struct Stable<T: 'static> {
    first: [T; FIRST],
    /// Null, or the first entry of a segment that is never freed but with the table.
    more: [AtomicPtr<T>; SEGMENTS],
    make: fn() -> T,
}

// SAFETY: as for the entries, of which it is an owner: `AtomicPtr` says nothing of what it points
// to.
unsafe impl<T: Send> Send for Stable<T> {}
// SAFETY: what is shared are references to entries; what one thread makes, another may find and,
// with the table, drop.
unsafe impl<T: Send + Sync> Sync for Stable<T> {}

impl<T> Stable<T> {
    /// The table with these entries, and others as `make` makes them.
    pub const fn new(first: [T; FIRST], make: fn() -> T) -> Self {
        Stable { first, more: [const { AtomicPtr::new(ptr::null_mut()) }; SEGMENTS], make }
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
            None => {
                let segment = self.segment(number(index))?;
                Some(&segment[index as usize - segment.len()])
            }
        }
    }

    /// All entries that exist, by their numbers.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (u32, &T)> {
        let more = (0..SEGMENTS).filter_map(|number| self.segment(number));
        let further = more.flat_map(|segment| (segment.len() as u32..).zip(segment.iter()));
        (0..).zip(&self.first).chain(further)
    }

    /// Bytes on the heap.
    pub(crate) fn bytes(&self) -> usize {
        (0..SEGMENTS).filter_map(|number| self.segment(number)).map(size_of_val).sum()
    }

    /// A segment, if it exists.
    #[inline]
    fn segment(&self, number: usize) -> Option<&[T]> {
        // Acquire pairs with the Release in `further`: its entries are made.
        let segment = self.more[number].load(Ordering::Acquire);
        // SAFETY: what is not null came from a box of so many, and stays until the table is
        // dropped.
        (!segment.is_null()).then(|| unsafe { slice::from_raw_parts(segment, entries(number)) })
    }

    #[cold]
    #[inline(never)]
    fn further(&self, index: u32) -> &T {
        let number = number(index);
        let segment = self.segment(number).unwrap_or_else(|| self.made(number));
        &segment[index as usize - segment.len()]
    }

    /// Makes a segment, unless another thread is quicker.
    fn made(&self, number: usize) -> &[T] {
        let made: Box<[T]> = std::iter::repeat_with(self.make).take(entries(number)).collect();
        let made = Box::into_raw(made);
        // Release pairs with the Acquire in `segment`, and Acquire with another's Release here.
        let put = self.more[number].compare_exchange(
            ptr::null_mut(),
            made.cast(),
            Ordering::AcqRel,
            Ordering::Acquire,
        );
        let segment = match put {
            Ok(_) => made.cast::<T>(),
            Err(other) => {
                // SAFETY: it is the box of above, which nobody knows.
                drop(unsafe { Box::from_raw(made) });
                other
            }
        };
        // SAFETY: as in `segment`.
        unsafe { slice::from_raw_parts(segment, entries(number)) }
    }
}

impl<T> Drop for Stable<T> {
    fn drop(&mut self) {
        for (number, segment) in self.more.iter_mut().enumerate() {
            let segment = *segment.get_mut();
            if !segment.is_null() {
                // SAFETY: it came from a box of so many, and nobody refers to the table any more.
                drop(unsafe {
                    Box::from_raw(ptr::slice_from_raw_parts_mut(segment, entries(number)))
                });
            }
        }
    }
}

/// The segment of an entry that is none of the first.
#[inline]
fn number(index: u32) -> usize {
    (index.ilog2() - FIRST_LOG2) as usize
}

/// Entries of a segment: segment k holds the numbers from 2^(FIRST_LOG2 + k) up to twice that.
#[inline]
fn entries(number: usize) -> usize {
    FIRST << number
}

#[cfg(test)]
mod tests {
    use super::*;

    static TABLE: Stable<u64> = Stable::new([0; FIRST], || 1);

    #[test]
    fn threads_that_need_a_segment_at_once_get_the_same() {
        let table = Stable::new([const { String::new() }; FIRST], || "made".into());
        let all = std::thread::scope(|scope| {
            let get = || {
                (0..300)
                    .map(|index| std::ptr::from_ref(table.get(index)).addr())
                    .collect::<Vec<_>>()
            };
            let threads: Vec<_> = (0..4).map(|_| scope.spawn(get)).collect();
            threads.into_iter().map(|thread| thread.join().expect("no panic")).collect::<Vec<_>>()
        });
        assert!(all.windows(2).all(|two| two[0] == two[1]));
        assert!(table.iter().skip(FIRST).all(|(_, entry)| entry == "made"));
    }

    #[test]
    fn every_number_has_its_own_entry() {
        assert_eq!((TABLE.iter().count(), TABLE.bytes()), (FIRST, 0));
        assert!(TABLE.find(FIRST as u32).is_none() && TABLE.find(u32::MAX).is_none());
        let mut seen = std::collections::HashSet::new();
        for index in 0..1000 {
            assert!(
                seen.insert(std::ptr::from_ref(TABLE.get(index))),
                "entry {index} is another's"
            );
            assert!(std::ptr::eq(TABLE.get(index), TABLE.get(index)));
            assert_eq!(*TABLE.get(index), u64::from(index as usize >= FIRST));
            assert!(TABLE.find(index).is_some_and(|entry| std::ptr::eq(entry, TABLE.get(index))));
        }
        assert_eq!((TABLE.iter().count(), TABLE.bytes()), (1024, 8 * (1024 - FIRST)));
        assert!(TABLE.iter().zip(0..).all(|((index, _), at)| index == at));
    }
}
