//! Changing and freeing allocations, with their allocator or without.

use std::ops::Range;

use anyhow::{Context, Result, ensure};
use kvmem::offset::{AllocError, RawError, RawHandle};

use super::space::{HeldRange, Space};
use super::tested_allocator::{OwnedRange, TestedAllocator};
use super::{Driver, Tally, pick_of};
use crate::op::{Change, Order, Part, Pick};

fn out_of_bounds(part: Range<u64>, whole: Range<u64>) -> AllocError {
    AllocError::OutOfBounds {
        start: part.start,
        end: part.end,
        allocation_start: whole.start,
        allocation_end: whole.end,
    }
}

/// Converts an error of the raw interface to that of the RAII interface.
fn alloc_error(error: RawError) -> Result<AllocError> {
    match error {
        RawError::Failed(error) => Ok(error),
        other => Err(other).context("a good handle"),
    }
}

impl<A: TestedAllocator> HeldRange<A> {
    fn shrink(&mut self, space: &Space<A>, new_size: u64) -> Result<Result<(), AllocError>> {
        Ok(match self {
            HeldRange::Owned(allocation) => allocation.shrink(new_size),
            HeldRange::Raw(handle) => match space.allocator().shrink_raw(*handle, new_size) {
                Ok(()) => Ok(()),
                Err(error) => Err(alloc_error(error)?),
            },
        })
    }

    fn extend(&mut self, space: &Space<A>, new_size: u64) -> Result<Result<(), AllocError>> {
        Ok(match self {
            HeldRange::Owned(allocation) => allocation.extend(new_size),
            HeldRange::Raw(handle) => match space.allocator().extend_raw(*handle, new_size) {
                Ok(()) => Ok(()),
                Err(error) => Err(alloc_error(error)?),
            },
        })
    }
}

impl<A: TestedAllocator> Space<A> {
    /// Returns the used range that begins at `start`.
    fn range_at(&self, start: u64) -> Range<u64> {
        self.oracle.used_at(start).expect("what is held is in use")
    }

    fn expect_shrink(&self, start: u64, new_size: u64) -> Result<(), AllocError> {
        let range = self.range_at(start);
        match new_size {
            0 => Err(AllocError::ZeroSize),
            _ if new_size > range.end - start => {
                Err(out_of_bounds(start..start.saturating_add(new_size), range))
            }
            _ => Ok(()),
        }
    }

    fn expect_extend(&self, start: u64, new_size: u64) -> Result<(), AllocError> {
        let (range, limit) = (self.range_at(start), self.oracle.limit());
        let max = range.end - start + self.oracle.free_behind(start);
        if new_size < range.end - start {
            Err(out_of_bounds(start..start + new_size, range))
        } else if new_size > limit {
            Err(AllocError::TooLarge { requested: new_size, limit })
        } else if new_size > max {
            Err(AllocError::CannotExtend { requested: new_size, max })
        } else {
            Ok(())
        }
    }

    /// Changes the allocation at `index`. Returns a handle that is no longer valid, if there is
    /// one.
    fn change(
        &mut self,
        index: usize,
        change: Change,
        tally: &mut Tally,
    ) -> Result<Option<RawHandle>> {
        let (start, mut held) = self.take(index);
        let range = self.range_at(start);
        let size = range.end - start;
        match change {
            Change::Free => {
                tally.count("free");
                self.oracle.free(start)?;
                match held {
                    HeldRange::Owned(allocation) if A::CACHES => {
                        self.other_threads.free(allocation)
                    }
                    HeldRange::Owned(allocation) => drop(allocation),
                    HeldRange::Raw(handle) => {
                        let freed = self.allocator().free_raw(handle);
                        ensure!(freed == Ok(size), "{range:?} by handle: {freed:?}");
                        return Ok(Some(handle));
                    }
                }
            }
            Change::Shrink(part) => {
                let new_size = part.of(size);
                let (got, expected) =
                    (held.shrink(self, new_size)?, self.expect_shrink(start, new_size));
                let full = match got {
                    Err(AllocError::TooManyRanges { ranges }) => self.may_be_full(ranges),
                    _ => false,
                };
                ensure!(
                    got == expected || full,
                    "{range:?} to {new_size} bytes: {got:?} instead of {expected:?}"
                );
                tally.count(if got.is_ok() { "shrink: granted" } else { "shrink: failed" });
                self.hold(start, held);
                if got.is_ok() {
                    self.oracle.resize(start, new_size)?;
                }
            }
            Change::Extend(part) => {
                let more = Part { off: 0, ..part }.of(self.oracle.free_behind(start));
                let new_size = (size + more).saturating_add_signed(part.off.into());
                let (got, expected) =
                    (held.extend(self, new_size)?, self.expect_extend(start, new_size));
                ensure!(
                    got == expected,
                    "{range:?} to {new_size} bytes: {got:?} instead of {expected:?}"
                );
                tally.count(if got.is_ok() { "extend: granted" } else { "extend: failed" });
                self.hold(start, held);
                if got.is_ok() {
                    self.oracle.resize(start, new_size)?;
                }
            }
            Change::FreeRange(from, to) => return self.free_range(start, held, from, to, tally),
            Change::Turn => match held {
                HeldRange::Owned(allocation) => {
                    let raw = A::make_raw(self.allocator.as_ref(), allocation);
                    if raw.is_ok() {
                        tally.count("into_raw");
                    }
                    self.hold(start, raw.map_or_else(HeldRange::Owned, HeldRange::Raw));
                }
                HeldRange::Raw(handle) => {
                    tally.count("adopt_raw");
                    let allocation = self.allocator().adopt_raw(handle).context("a good handle")?;
                    self.hold(start, HeldRange::Owned(allocation));
                    return Ok(Some(handle));
                }
            },
        }
        Ok(None)
    }

    fn free_range(
        &mut self,
        start: u64,
        held: HeldRange<A>,
        from: Part,
        to: Part,
        tally: &mut Tally,
    ) -> Result<Option<RawHandle>> {
        let range = self.range_at(start);
        let bound = |part: Part| {
            let at = start + Part { off: 0, ..part }.of(range.end - start);
            at.saturating_add_signed(part.off.into())
        };
        let sub = bound(from)..bound(to);
        let (allocation, outdated) = match held {
            HeldRange::Owned(allocation) => (allocation, None),
            HeldRange::Raw(handle) => {
                (self.allocator().adopt_raw(handle).context("a good handle")?, Some(handle))
            }
        };
        let inside = !sub.is_empty() && sub.start >= range.start && sub.end <= range.end;
        match allocation.free_range(sub.clone()) {
            Ok(left_and_right) => {
                ensure!(inside, "{sub:?} of {range:?} was freed");
                tally.count("free_range: granted");
                self.oracle.free_part(start, sub.clone())?;
                let expected = [range.start..sub.start, sub.end..range.end];
                let got = [left_and_right.0, left_and_right.1];
                for (got, expected) in got.into_iter().zip(expected) {
                    ensure!(
                        got.as_ref().map(OwnedRange::range)
                            == (!expected.is_empty()).then(|| expected.clone()),
                        "{sub:?} of {range:?} was freed: {got:?} is left instead of {expected:?}"
                    );
                    if let Some(allocation) = got {
                        self.hold(expected.start, HeldRange::Owned(allocation));
                    }
                }
            }
            Err((allocation, got)) => {
                let expected = out_of_bounds(sub.clone(), range.clone());
                let full =
                    matches!(got, AllocError::TooManyRanges { ranges } if self.may_be_full(ranges));
                ensure!(
                    !inside && got == expected || inside && full,
                    "{sub:?} of {range:?}: {got:?}"
                );
                tally.count("free_range: failed");
                self.hold(start, HeldRange::Owned(allocation));
            }
        }
        Ok(outdated)
    }
}

impl<A: TestedAllocator> Driver<A> {
    /// Changes an allocation of the space.
    pub(super) fn change(&mut self, pick: Pick, change: Change) -> Result<()> {
        let Some(index) = self.space.pick(pick) else { return Ok(()) };
        if let Some(handle) = self.space.change(index, change, &mut self.tally)? {
            self.outdate(handle);
        }
        Ok(())
    }

    /// Frees many allocations, one after the other.
    pub(super) fn burst(&mut self, seed: Pick, n: u8) -> Result<()> {
        for i in 0..Pick::from(n) {
            // Steps of the golden section spread over the whole range and rarely repeat.
            self.change(seed.wrapping_add(i.wrapping_mul(40_503)), Change::Free)?;
            self.space.compare_hint()?;
        }
        self.tally.count("burst");
        Ok(())
    }

    /// Changes an allocation whose allocator was dropped.
    pub(super) fn change_orphan(&mut self, pick: Pick, change: Change) -> Result<()> {
        let total = self.orphans.iter().map(Space::len).sum();
        let Some(mut index) = pick_of(pick, total) else { return Ok(()) };
        for orphan in &mut self.orphans {
            if index < orphan.len() {
                orphan.change(index, change, &mut self.tally)?;
                // A raw allocation without an allocator cannot be freed.
                self.foreign.extend(orphan.orphan()?);
                self.tally.count("a change without an allocator");
                break;
            }
            index -= orphan.len();
        }
        while self.foreign.len() > super::MEMORY {
            self.foreign.pop_front();
        }
        Ok(())
    }

    /// Frees a run of adjacent allocations, and an orphan if there is one.
    pub(super) fn free_batch(&mut self, first: Pick, len: u8, order: Order) -> Result<()> {
        let Some(index) = self.space.pick(first) else { return Ok(()) };
        let first = self.space.start_of(index);
        let starts: Vec<u64> =
            self.space.oracle.used_from(first).take(len.into()).map(|range| range.start).collect();
        let mut run = Vec::new();
        for start in starts {
            if let Some(allocation) = self.space.take_own_at(start) {
                self.space.oracle.free(start)?;
                run.push(allocation);
            }
        }
        match order {
            Order::Ascending => {}
            Order::Descending => run.reverse(),
            Order::Riffled => {
                let mut index = 0;
                let (even, odd): (Vec<_>, Vec<_>) = run.into_iter().partition(|_| {
                    index += 1;
                    index % 2 == 1
                });
                run = even.into_iter().chain(odd).collect();
            }
        }
        if run.len() > 1 {
            self.tally.count("free_run of several");
        }
        if let Some(orphan) = self.orphans.iter_mut().find(|orphan| !orphan.is_empty()) {
            let (start, held) = orphan.take(0);
            if let HeldRange::Owned(allocation) = held {
                orphan.oracle.free(start)?;
                run.push(allocation);
                self.tally.count("free_run with a stranger");
            }
        }
        self.space.allocator().free_batch(run);
        Ok(())
    }
}
