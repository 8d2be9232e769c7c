//! Allocation requests.

use anyhow::{Context, Result, ensure};
use kvmem::offset::AllocError;

use super::Driver;
use super::space::{HeldRange, Space};
use super::tested_allocator::{OwnedRange, TestedAllocator};
use crate::op::Count;

/// The number of holes that an aligned request examines in a space without a boundary, and the
/// number of runs in a space with one, besides a run at the end of the space. If there are more
/// free ranges, it may miss an aligned start.
const EXAMINED: (usize, usize) = (384, 64);

impl<A: TestedAllocator> Space<A> {
    /// Returns whether a request may fail although an aligned start is free: one behind the holes
    /// and runs that it examines.
    fn may_miss(&self, align: Option<u64>) -> bool {
        let examined = if self.oracle.boundary().is_none() { EXAMINED.0 } else { EXAMINED.1 };
        align.is_some_and(|align| align > 1) && self.oracle.free_ranges() > examined
    }

    /// Returns the expected error of a request that no free range can serve.
    fn out_of_space(&self, requested: u64) -> AllocError {
        let oracle = &self.oracle;
        AllocError::OutOfSpace {
            requested,
            free: oracle.free_bytes(),
            largest_free: oracle.largest_free(),
        }
    }

    /// Returns the expected result of a request.
    fn expect_grant(&self, size: u64, align: u64) -> Result<(), AllocError> {
        let limit = self.oracle.limit();
        if !align.is_power_of_two() {
            return Err(AllocError::BadAlign { align });
        }
        match size {
            0 => Err(AllocError::ZeroSize),
            _ if size > limit => Err(AllocError::TooLarge { requested: size, limit }),
            _ if !self.oracle.fits(size, align) => Err(self.out_of_space(size)),
            _ => Ok(()),
        }
    }
}

impl<A: TestedAllocator> Driver<A> {
    /// Requests one range, aligned if an alignment is given.
    pub(super) fn allocate(&mut self, size: u64, align: Option<u64>, raw: bool) -> Result<()> {
        let allocator = self.space.allocator();
        let own = |allocation: A::Owned| {
            (allocation.offset(), allocation.len(), HeldRange::Owned(allocation))
        };
        let got = match (align, raw) {
            (None, false) => allocator.allocate(size).map(own),
            (Some(align), false) => allocator.allocate_aligned(size, align).map(own),
            (_, true) => match align {
                None => allocator.allocate_raw(size),
                Some(align) => allocator.allocate_aligned_raw(size, align),
            }
            .map(|allocation| {
                (allocation.offset, allocation.size, HeldRange::Raw(allocation.handle))
            }),
        };
        let expected = self.space.expect_grant(size, align.unwrap_or(1));
        self.tally.count(match (align, &got) {
            (None, Ok(_)) => "allocate: granted",
            (None, Err(_)) => "allocate: failed",
            (Some(_), Ok(_)) => "allocate_aligned: granted",
            (Some(_), Err(_)) => "allocate_aligned: failed",
        });
        match got {
            Ok((offset, got_size, held)) => {
                ensure!(
                    expected.is_ok(),
                    "{size} bytes at {align:?}: {offset} instead of {expected:?}"
                );
                ensure!(got_size == size, "{got_size} bytes instead of {size}");
                ensure!(
                    offset.is_multiple_of(align.unwrap_or(1)),
                    "{offset} is not aligned to {align:?}"
                );
                self.hold(offset, size, held)
            }
            Err(got) => {
                self.failed_requests += 1;
                // If two arguments are invalid, the error may name either.
                let both = size == 0 && matches!(expected, Err(AllocError::BadAlign { .. }));
                let exact = self.space.oracle.has_exact(size, align.unwrap_or(1));
                let full = match got {
                    AllocError::TooManyRanges { ranges } => self.space.may_be_full(ranges),
                    _ => false,
                };
                let missed = expected.is_ok()
                    && self.space.may_miss(align)
                    && self.is_expected(got, Err(self.space.out_of_space(size)));
                ensure!(
                    self.is_expected(got, expected)
                        || missed
                        || both && got == AllocError::ZeroSize
                        || full && !exact,
                    "{size} bytes at {align:?}: {got:?} instead of {expected:?}"
                );
                Ok(())
            }
        }
    }

    /// Returns whether an error is the expected one. Its longest free range may be an upper bound
    /// unless the figures were just read; with caches, both numbers may exclude cached ranges.
    fn is_expected(&self, got: AllocError, expected: Result<(), AllocError>) -> bool {
        match (got, expected) {
            (
                AllocError::OutOfSpace { requested, free, largest_free: bound },
                Err(AllocError::OutOfSpace {
                    requested: expected_requested,
                    free: expected_free,
                    largest_free,
                }),
            ) => {
                if A::CACHES {
                    return requested == expected_requested
                        && free <= expected_free
                        && bound <= free;
                }
                (requested, free) == (expected_requested, expected_free)
                    && bound >= largest_free
                    && bound <= free
                    && (bound == largest_free || !self.figures_read)
            }
            _ => expected == Err(got),
        }
    }

    pub(super) fn allocate_batch(&mut self, size: u64, n: Count) -> Result<()> {
        let fit = if size == 0 { 0 } else { self.space.oracle.fits_times(size) };
        let n = n.of(fit);
        let got = self.space.allocator().allocate_batch(size, n);
        let mut expected = if n == 0 { Ok(()) } else { self.space.expect_grant(size, 1) };
        if expected.is_ok() && n > 0 && fit < n as u128 {
            expected = Err(self.space.out_of_space(size));
        }
        if let Err(AllocError::OutOfSpace { requested, .. }) = &mut expected {
            *requested = size.saturating_mul(n as u64);
        }
        self.tally.count(if got.is_ok() {
            "allocate_batch: granted"
        } else {
            "allocate_batch: failed"
        });
        match got {
            Ok(batch) => {
                ensure!(
                    expected.is_ok(),
                    "{n} × {size} bytes were granted instead of {expected:?}"
                );
                ensure!(batch.len() == n, "{} ranges instead of {n}", batch.len());
                for allocation in batch {
                    ensure!(
                        allocation.len() == size,
                        "{} bytes instead of {size}",
                        allocation.len()
                    );
                    self.hold(allocation.offset(), size, HeldRange::Owned(allocation))?;
                }
                Ok(())
            }
            Err(got) => {
                self.failed_requests += 1;
                let full = matches!(got, AllocError::TooManyRanges { .. })
                    && self.space.may_be_too_many(n);
                ensure!(
                    self.is_expected(got, expected) || full,
                    "{n} × {size} bytes: {got:?} instead of {expected:?}"
                );
                Ok(())
            }
        }
    }

    pub(super) fn allocate_scattered(&mut self, total: u64, max_ranges: usize) -> Result<()> {
        let oracle = &self.space.oracle;
        let got = self.space.allocator().allocate_scattered(total, max_ranges);
        let expected = match (total, max_ranges) {
            (0, _) => Err(AllocError::ZeroSize),
            (_, 0) => Err(AllocError::NoRanges { requested: total }),
            _ if total > oracle.capacity() => {
                Err(AllocError::TooLarge { requested: total, limit: oracle.capacity() })
            }
            _ if !oracle.fits_scattered(total, max_ranges) => Err(self.space.out_of_space(total)),
            _ => Ok(()),
        };
        self.tally.count(match &got {
            Ok(parts) if parts.len() > 1 => "allocate_scattered: granted in several",
            Ok(_) => "allocate_scattered: granted in one",
            Err(_) => "allocate_scattered: failed",
        });
        let what = || format!("{total} bytes in {max_ranges} ranges");
        match got {
            Ok(parts) => {
                ensure!(expected.is_ok(), "{} were granted instead of {expected:?}", what());
                ensure!((1..=max_ranges).contains(&parts.len()), "{}: {parts:?}", what());
                ensure!(
                    parts.len() == 1
                        || A::CACHES
                        || total > oracle.largest_free()
                        || self.space.may_be_too_many(max_ranges),
                    "{} fit into one: {parts:?}",
                    what()
                );
                let sum: u64 = parts.iter().map(OwnedRange::len).sum();
                ensure!(sum == total, "{}: {sum} were granted", what());
                for part in parts {
                    self.hold(part.offset(), part.len(), HeldRange::Owned(part))
                        .with_context(what)?;
                }
                Ok(())
            }
            Err(got) => {
                self.failed_requests += 1;
                let full = matches!(got, AllocError::TooManyRanges { .. })
                    && self.space.may_be_too_many(max_ranges);
                ensure!(
                    self.is_expected(got, expected) || full,
                    "{}: {got:?} instead of {expected:?}",
                    what()
                );
                Ok(())
            }
        }
    }
}
