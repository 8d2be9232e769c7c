//! *Append-only table*: a table whose entries never move and live until the process ends.
//!
//! The first entries are in the table itself, which is a static, so finding them takes no load. The
//! other entries are in segments, each twice as long as the one before.
//!
//! No thread waits for another thread's segment. Two threads that need one at once both make it,
//! and the second one discards its own. So a fork in the middle leaves nothing in the child that it
//! could wait for.

use std::ptr;
use std::slice;
use std::sync::atomic::{AtomicPtr, Ordering};

const FIRST_LOG2: u32 = 5;
/// The number of entries in the table itself.
pub const FIRST: usize = 1 << FIRST_LOG2;
/// With the first entries, the segments cover every `u32`.
const SEGMENTS: usize = 32 - FIRST_LOG2 as usize;

/// The table. An entry of a table that is a static costs no other table anything.
pub struct AppendOnlyTable<T: 'static> {
    first: [T; FIRST],
    /// Null, or the first entry of a segment. Segments are freed only with the table.
    more: [AtomicPtr<T>; SEGMENTS],
    make: fn() -> T,
}

// SAFETY: the table owns its entries, so the condition is that of `T`; `AtomicPtr` does not imply
// it.
unsafe impl<T: Send> Send for AppendOnlyTable<T> {}
// SAFETY: the table shares references to entries, and one thread may find, and drop with the table,
// an entry that another thread made.
unsafe impl<T: Send + Sync> Sync for AppendOnlyTable<T> {}

impl<T> AppendOnlyTable<T> {
    /// Makes a table with these first entries; `make` makes all others.
    pub const fn new(first: [T; FIRST], make: fn() -> T) -> Self {
        AppendOnlyTable { first, more: [const { AtomicPtr::new(ptr::null_mut()) }; SEGMENTS], make }
    }

    /// Returns the entry of a number; makes it if needed.
    #[inline]
    pub fn get(&self, index: u32) -> &T {
        match self.first.get(index as usize) {
            Some(entry) => entry,
            None => self.get_in_segment(index),
        }
    }

    /// Returns the entry of a number, if it exists.
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

    /// Iterates over all existing entries with their numbers.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (u32, &T)> {
        let more = (0..SEGMENTS).filter_map(|number| self.segment(number));
        let further = more.flat_map(|segment| (segment.len() as u32..).zip(segment.iter()));
        (0..).zip(&self.first).chain(further)
    }

    /// Returns the size on the heap in bytes.
    pub(crate) fn bytes(&self) -> usize {
        (0..SEGMENTS).filter_map(|number| self.segment(number)).map(size_of_val).sum()
    }

    /// Returns a segment, if it exists.
    #[inline]
    fn segment(&self, number: usize) -> Option<&[T]> {
        // Acquire pairs with the Release in `make_segment`: the entries are initialized.
        let segment = self.more[number].load(Ordering::Acquire);
        // SAFETY: a non-null pointer came from a box of this many entries, which lives until the
        // table is dropped.
        (!segment.is_null()).then(|| unsafe { slice::from_raw_parts(segment, entries(number)) })
    }

    #[cold]
    #[inline(never)]
    fn get_in_segment(&self, index: u32) -> &T {
        let number = number(index);
        let segment = self.segment(number).unwrap_or_else(|| self.make_segment(number));
        &segment[index as usize - segment.len()]
    }

    /// Makes a segment, unless another thread makes it first.
    fn make_segment(&self, number: usize) -> &[T] {
        let made: Box<[T]> = std::iter::repeat_with(self.make).take(entries(number)).collect();
        let made = Box::into_raw(made);
        // Release pairs with the Acquire in `segment`; Acquire pairs with the Release of another
        // thread here.
        let put = self.more[number].compare_exchange(
            ptr::null_mut(),
            made.cast(),
            Ordering::AcqRel,
            Ordering::Acquire,
        );
        let segment = match put {
            Ok(_) => made.cast::<T>(),
            Err(other) => {
                // SAFETY: the pointer came from the box above, and no other thread knows it.
                drop(unsafe { Box::from_raw(made) });
                other
            }
        };
        // SAFETY: the segment has this many entries and lives until the table is dropped.
        unsafe { slice::from_raw_parts(segment, entries(number)) }
    }
}

impl<T> Drop for AppendOnlyTable<T> {
    fn drop(&mut self) {
        for (number, segment) in self.more.iter_mut().enumerate() {
            let segment = *segment.get_mut();
            if !segment.is_null() {
                // SAFETY: it came from a box of this many entries, and the exclusive reference
                // shows that no other reference exists.
                drop(unsafe {
                    Box::from_raw(ptr::slice_from_raw_parts_mut(segment, entries(number)))
                });
            }
        }
    }
}

/// Returns the segment of an entry that is not among the first ones.
#[inline]
fn number(index: u32) -> usize {
    (index.ilog2() - FIRST_LOG2) as usize
}

/// Returns the length of a segment: segment k holds the numbers from 2^(FIRST_LOG2 + k) up to twice
/// that.
#[inline]
fn entries(number: usize) -> usize {
    FIRST << number
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    static TABLE: AppendOnlyTable<u64> = AppendOnlyTable::new([0; FIRST], || 1);

    #[test]
    fn threads_that_make_a_segment_at_once_share_it() {
        let table = AppendOnlyTable::new([const { String::new() }; FIRST], || "made".into());
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
