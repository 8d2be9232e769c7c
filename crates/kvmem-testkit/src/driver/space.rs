//! One space: its allocator while it exists, its oracle, and its live allocations.

use std::cell::Cell;
use std::collections::HashMap;
use std::rc::Rc;

use anyhow::{Context, Result, bail, ensure};
use kvmem::offset::{RawHandle, SpaceError};

use super::other_threads::OtherThreads;
use super::pick_of;
use super::tested_allocator::{OwnedRange, TestedAllocator};
use crate::op::{Amount, Base, Config, Part, Pick};
use crate::oracle::Oracle;

const MAX_CAPACITY: u64 = 1 << 63;
/// With caches, one of this many full comparisons includes the calls that empty the caches.
const EMPTYING_EVERY: u32 = 8;

/// An allocation, owned or raw.
pub(super) enum HeldRange<A: TestedAllocator> {
    Owned(A::Owned),
    Raw(RawHandle),
}

pub(super) struct Space<A: TestedAllocator> {
    /// `None` after the allocator was dropped.
    pub(super) allocator: Option<A>,
    /// The threads that free allocations.
    pub(super) other_threads: Rc<OtherThreads<A::Owned>>,
    /// Identity of the allocator in its raw handles.
    pub(super) id: u64,
    pub(super) oracle: Oracle,
    max_ranges: Option<u32>,
    /// The start of each allocation, and the allocation.
    held: Vec<(u64, HeldRange<A>)>,
    /// Start → index in `held`.
    indexes: HashMap<u64, usize>,
    /// Full comparisons so far.
    comparisons: Cell<u32>,
}

/// Returns the allocator's part of a handle.
pub(super) fn allocator_of(handle: RawHandle) -> u64 {
    (handle.to_bits() >> 64) as u64
}

impl<A: TestedAllocator> Space<A> {
    /// Creates an empty space; also returns a stale handle of it.
    pub(super) fn new(
        config: &Config,
        other_threads: Rc<OtherThreads<A::Owned>>,
    ) -> Result<(Self, RawHandle)> {
        let allocator = A::open(config)?;
        ensure!(allocator.boundary() == config.boundary, "{config:?} became {allocator:?}");
        let first = allocator.allocate_raw(1).context("the first byte of an empty space")?;
        ensure!(allocator.free_raw(first.handle) == Ok(1), "the first byte cannot be freed");
        let space = Space {
            allocator: Some(allocator),
            other_threads,
            id: allocator_of(first.handle),
            oracle: Oracle::new(config.capacity, config.boundary),
            max_ranges: config.max_ranges,
            held: Vec::new(),
            indexes: HashMap::new(),
            comparisons: Cell::new(0),
        };
        Ok((space, first.handle))
    }

    pub(super) fn allocator(&self) -> &A {
        self.allocator.as_ref().expect("an orphan has no allocator")
    }

    pub(super) fn clone_allocator(&mut self) {
        self.allocator = self.allocator.clone();
    }

    /// Drops the allocator. Raw allocations can then no longer be freed; returns their handles.
    /// With caches, dropping the allocator frees their ranges.
    pub(super) fn orphan(&mut self) -> Result<Vec<RawHandle>> {
        self.allocator = None;
        let mut handles = Vec::new();
        for index in (0..self.held.len()).rev() {
            if let HeldRange::Raw(handle) = self.held[index].1 {
                handles.push(handle);
                let (start, _) = self.take(index);
                if A::CACHES {
                    self.oracle.free(start)?;
                }
            }
        }
        Ok(handles)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.held.is_empty()
    }

    pub(super) fn len(&self) -> usize {
        self.held.len()
    }

    pub(super) fn hold(&mut self, start: u64, held: HeldRange<A>) {
        self.indexes.insert(start, self.held.len());
        self.held.push((start, held));
    }

    /// Removes the allocation at `index`; the last allocation moves there.
    pub(super) fn take(&mut self, index: usize) -> (u64, HeldRange<A>) {
        let (start, held) = self.held.swap_remove(index);
        self.indexes.remove(&start);
        if let Some((moved, _)) = self.held.get(index) {
            self.indexes.insert(*moved, index);
        }
        (start, held)
    }

    /// Removes the owned allocation that begins at `start`, if there is one.
    pub(super) fn take_own_at(&mut self, start: u64) -> Option<A::Owned> {
        let index = *self.indexes.get(&start)?;
        matches!(self.held[index].1, HeldRange::Owned(_)).then(|| match self.take(index).1 {
            HeldRange::Owned(allocation) => allocation,
            HeldRange::Raw(_) => unreachable!("checked before"),
        })
    }

    pub(super) fn pick(&self, pick: Pick) -> Option<usize> {
        pick_of(pick, self.held.len())
    }

    pub(super) fn start_of(&self, index: usize) -> u64 {
        self.held[index].0
    }

    /// Returns a live raw handle: the picked one or the next.
    pub(super) fn raw_from(&self, pick: Pick) -> Option<RawHandle> {
        let (before, behind) = self.held.split_at(self.pick(pick)?);
        behind.iter().chain(before).find_map(|(_, held)| match held {
            HeldRange::Raw(handle) => Some(*handle),
            HeldRange::Owned(_) => None,
        })
    }

    pub(super) fn is_raw_alive(&self, handle: RawHandle) -> bool {
        self.held.iter().any(|(_, held)| matches!(held, HeldRange::Raw(alive) if *alive == handle))
    }

    /// Returns the current number of bytes of an amount.
    pub(super) fn amount(&self, Amount { base, part }: Amount) -> u64 {
        let oracle = &self.oracle;
        part.of(match base {
            Base::Bytes(bytes) => bytes,
            Base::Capacity => oracle.capacity(),
            Base::Limit => oracle.limit(),
            Base::Free => oracle.free_bytes(),
            Base::Largest => oracle.largest_free(),
            Base::EndOfLast => oracle.end_of_last(),
            Base::Hole(pick) => {
                let at = Part { share: pick, off: 0 }.of(oracle.end_of_last());
                oracle.free_from(at).map_or(0, |hole| hole.end - hole.start)
            }
            Base::Held(pick) => {
                let range = self.pick(pick).and_then(|index| oracle.used_at(self.start_of(index)));
                range.map_or(0, |range| range.end - range.start)
            }
        })
    }

    pub(super) fn expect_capacity(&self, to: u64) -> Result<(), SpaceError> {
        match to {
            1..=MAX_CAPACITY => Ok(()),
            _ => Err(SpaceError::Capacity { requested: to, limit: MAX_CAPACITY }),
        }
    }

    pub(super) fn expect_grow(&self, to: u64) -> Result<(), SpaceError> {
        let capacity = self.oracle.capacity();
        if to < capacity {
            Err(SpaceError::WrongDirection { capacity, requested: to })
        } else {
            Ok(())
        }
    }

    pub(super) fn expect_shrink_to(&self, to: u64) -> Result<(), SpaceError> {
        let (capacity, end_of_last) = (self.oracle.capacity(), self.oracle.end_of_last());
        if to > capacity {
            return Err(SpaceError::WrongDirection { capacity, requested: to });
        }
        if to < end_of_last {
            Err(SpaceError::InUse { requested: to, end_of_last })
        } else {
            Ok(())
        }
    }

    /// Returns whether the limit on ranges can explain the error of one change. It cannot while a
    /// cached range still occupies metadata.
    pub(super) fn may_be_full(&self, ranges: u64) -> bool {
        if self.allocator.as_ref().is_some_and(|allocator| allocator.cached().0 > 0) {
            return false;
        }
        self.max_ranges.is_some_and(|max| ranges <= max.into() && ranges + 4 > max.into())
    }

    /// Returns whether `n` more ranges may exceed the limit: each may leave a free one beside it.
    pub(super) fn may_be_too_many(&self, n: usize) -> bool {
        let (live, free) = (self.oracle.live() as u128, self.oracle.free_pieces());
        self.max_ranges.is_some_and(|max| live + free + 2 * n as u128 + 4 > max.into())
    }

    pub(super) fn compare_hint(&self) -> Result<()> {
        let (hint, largest_free) =
            (self.allocator().largest_free_hint(), self.oracle.largest_free());
        ensure!(
            hint >= largest_free,
            "the hint is {hint}, but {largest_free} bytes are free in one piece"
        );
        Ok(())
    }

    pub(super) fn compare_figures(&self) -> Result<()> {
        let (allocator, oracle) = (self.allocator(), &self.oracle);
        let metrics = allocator.metrics();
        ensure!(
            metrics.largest_free <= oracle.largest_free(),
            "the longest free range is in {metrics:?}"
        );
        // The reported longest range may be a part of a longer one.
        let cached = A::CACHES && allocator.cached().0 > 0;
        let largest_free = if cached { oracle.largest_free() } else { metrics.largest_free };
        let got = (metrics.capacity, metrics.allocated, metrics.free, metrics.live, largest_free);
        let expected = (
            oracle.capacity(),
            oracle.allocated(),
            oracle.free_bytes(),
            oracle.live() as u64,
            oracle.largest_free(),
        );
        ensure!(
            got == expected,
            "(capacity, allocated, free, live, largest free) are {got:?} instead of {expected:?}"
        );
        ensure!(
            allocator.capacity() == oracle.capacity(),
            "the capacity is {}",
            allocator.capacity()
        );
        Ok(())
    }

    pub(super) fn compare_everything(&self) -> Result<()> {
        self.allocator().check()?;
        self.compare_map()?;
        self.comparisons.set(self.comparisons.get() + 1);
        if !A::CACHES || self.comparisons.get().is_multiple_of(EMPTYING_EVERY) {
            self.compare_bins()?;
            ensure!(
                self.allocator().cached().0 == 0,
                "the bins were read, and ranges are still cached"
            );
            self.compare_figures()?;
        }
        self.compare_held()
    }

    fn compare_map(&self) -> Result<()> {
        let mut map: Vec<(u64, u64, bool)> = Vec::new();
        let mut free_ranges = 0;
        for (offset, size, used) in self.allocator().map() {
            free_ranges += u64::from(!used);
            match map.last_mut() {
                Some((start, length, false)) if !used && *start + *length == offset => {
                    *length += size;
                }
                _ => map.push((offset, size, used)),
            }
        }
        let counted = self.allocator().metrics().free_ranges;
        ensure!(
            counted == free_ranges,
            "the map has {free_ranges} free ranges, the metrics count {counted}"
        );
        let expected = self.oracle.map();
        ensure!(map.len() == expected.len(), "the map is {map:?} instead of {expected:?}");
        for (got, expected) in map.iter().zip(&expected) {
            ensure!(got == expected, "the map has {got:?} instead of {expected:?}");
        }
        Ok(())
    }

    fn compare_bins(&self) -> Result<()> {
        let (allocator, oracle) = (self.allocator(), &self.oracle);
        let bins = allocator.bins();
        let free_ranges = allocator.metrics().free_ranges;
        let (mut bytes, mut ranges, mut above) = (0, 0, 0);
        for bin in &bins {
            ensure!(
                bin.size_min >= above && bin.size_max >= bin.size_min,
                "bins are out of order: {bins:?}"
            );
            let fits = |bytes: u64| u128::from(bytes) * u128::from(bin.ranges);
            ensure!(
                bin.ranges > 0
                    && (fits(bin.size_min)..=fits(bin.size_max)).contains(&u128::from(bin.bytes)),
                "not a possible bin: {bin:?}"
            );
            above = bin.size_max.saturating_add(1);
            bytes += bin.bytes;
            ranges += bin.ranges;
        }
        ensure!(
            bytes == oracle.free_bytes(),
            "{bytes} bytes in bins, {} are free",
            oracle.free_bytes()
        );
        ensure!(ranges == free_ranges, "{ranges} ranges in bins, metrics say {free_ranges}");
        // Only boundaries, and the seams of parts, keep free ranges apart.
        let seams = allocator.parts() as u128 - 1;
        let (min, max) = (oracle.free_ranges() as u128, oracle.free_pieces() + seams);
        ensure!(
            (min..=max).contains(&u128::from(free_ranges)),
            "{free_ranges} free ranges in the metadata; expected from {min} to {max}"
        );
        Ok(())
    }

    /// Checks that every live allocation still reports its range.
    pub(super) fn compare_held(&self) -> Result<()> {
        for (start, held) in &self.held {
            let Some(expected) = self.oracle.used_at(*start) else {
                bail!("the test is wrong: nothing is in use at {start}");
            };
            match held {
                HeldRange::Owned(allocation) => {
                    let got = (allocation.offset(), allocation.len(), allocation.range());
                    ensure!(
                        got == (*start, expected.end - start, expected.clone()),
                        "{expected:?} says it is {got:?}"
                    );
                }
                HeldRange::Raw(handle) => {
                    let got = self.allocator().resolve_raw(*handle);
                    ensure!(got == Ok(expected.clone()), "{expected:?} resolves to {got:?}");
                }
            }
        }
        Ok(())
    }
}
