//! *Residency*: makes the pages of a region resident, and measures which of them are.

use std::ops::{Range, RangeBounds};
use std::time::Instant;

use super::map::{nodes_found, survey};
use super::receipt::Receipt;
use super::region::Region;
use crate::arena::error::call_failed;
use crate::arena::pages::outward;
use crate::arena::populate::{PopulateRange, glance, measure, populate};
use crate::arena::{ArenaError, Call, Populate, Populated, ProgressOptions, Residency};
use crate::sys;

impl Region {
    /// Makes a range resident and writable without changing a byte, with the number of threads that
    /// `how` selects.
    ///
    /// # Errors
    /// The errors of populating: [`Populate`](ArenaError::Populate),
    /// [`NoHeadroom`](ArenaError::NoHeadroom), [`Cancelled`](ArenaError::Cancelled),
    /// [`OverBudget`](ArenaError::OverBudget), [`Misplaced`](ArenaError::Misplaced); and
    /// [`OutOfBounds`](ArenaError::OutOfBounds). The region remains mapped, and the pages populated
    /// so far stay resident.
    pub fn populate(
        &self,
        range: impl RangeBounds<usize>,
        how: Populate,
        watch: &ProgressOptions,
    ) -> Result<Populated, ArenaError> {
        let range = self.resolve(range)?;
        let parts: Vec<PopulateRange> = self
            .segments(range.clone())
            .map(|(segment, within)| {
                // SAFETY: the range lies within the region, which is one allocation.
                let at = unsafe { self.base().add(within.start) };
                let (at, len) = outward(at, within.len());
                PopulateRange {
                    at,
                    range: within.start..within.start + len,
                    page: segment.obtained,
                    by_collapse: segment.by_collapse,
                }
            })
            .collect();
        let resident = |part: &PopulateRange| match measure(part.at, part.range.len()) {
            Ok(found) if !part.page.is_pooled() => {
                found.resident_bytes.saturating_sub(found.error_bytes)
            }
            _ => 0,
        };
        let start = Instant::now();
        let done = populate(&parts, how, watch, parts.iter().map(resident).sum())?;
        let seconds = start.elapsed().as_secs_f64();
        for part in &parts {
            // Nodes that the kernel does not report are not verified.
            let nodes =
                nodes_found(part.at, part.range.len(), sys::page_size()).unwrap_or_default();
            self.mapping().numa().verify(&part.range, &nodes)?;
        }
        Ok(Populated {
            bytes: if done.is_empty() { 0 } else { range.len() as u64 },
            seconds,
            threads: done.iter().map(|done| done.threads).max().unwrap_or(0),
        })
    }

    /// Measures how much of a range is resident.
    ///
    /// The result is exact where the kernel can scan page tables (Linux 6.7), and elsewhere up to a
    /// million pages. A longer range is sampled; the result states the error.
    ///
    /// # Errors
    /// [`OutOfBounds`](ArenaError::OutOfBounds) if the range is not within the region, and
    /// [`CallFailed`](ArenaError::CallFailed) if every method fails.
    pub fn residency(&self, range: impl RangeBounds<usize>) -> Result<Residency, ArenaError> {
        let range = self.resolve(range)?;
        // SAFETY: the range lies within the region, which is one allocation.
        let (at, len) = outward(unsafe { self.base().add(range.start) }, range.len());
        measure(at, len).map_err(|errno| call_failed(Call::Mincore, len, errno))
    }

    /// Returns whether every page of a range, or every page of the sample, is resident; see
    /// [`residency`](Region::residency).
    ///
    /// # Errors
    /// The errors of [`residency`](Region::residency).
    pub fn is_resident(&self, range: impl RangeBounds<usize>) -> Result<bool, ArenaError> {
        self.residency(range).map(|found| found.is_whole())
    }

    /// Estimates the resident bytes of a range in some microseconds: from the receipt if the whole
    /// range was populated, otherwise from a sample of up to 64 pages.
    pub(crate) fn glance(&self, range: Range<usize>) -> Result<u64, ArenaError> {
        let start = self.start_in_mapping();
        if self.mapping().was_populated(&(range.start + start..range.end + start)) {
            return Ok(range.len() as u64);
        }
        // SAFETY: the range lies within the region, which is one allocation.
        let (at, len) = outward(unsafe { self.base().add(range.start) }, range.len());
        let found = glance(at, len).map_err(|errno| call_failed(Call::Mincore, len, errno))?;
        Ok(found.min(range.len() as u64))
    }

    /// Returns the receipt with the current residency.
    ///
    /// # Errors
    /// The errors of [`residency`](Region::residency); [`OutOfBounds`](ArenaError::OutOfBounds) for
    /// a part that was split off.
    pub fn receipt_now(&self) -> Result<Receipt, ArenaError> {
        let mut receipt = self.receipt().clone();
        for part in &mut receipt.ranges {
            let found = self.residency(part.range.clone())?;
            part.resident_bytes = found.resident_bytes;
            part.resident_error_bytes = found.error_bytes;
            part.huge_bytes = found.huge_bytes;
        }
        Ok(receipt)
    }

    /// Returns the receipt of the whole mapping after its pages were populated, compared with the
    /// request as if [`map`](crate::arena::RegionBuilder::map) had populated them.
    ///
    /// # Errors
    /// The errors of [`residency`](Region::residency); [`NoPages`](ArenaError::NoPages) if `strict`
    /// and the kernel used base pages for a part of a range of transparent hugepages.
    pub(crate) fn populated_receipt(&self, strict: bool) -> Result<Receipt, ArenaError> {
        let whole = self.whole_mapping();
        let mut receipt = whole.receipt_now()?;
        for part in &mut receipt.ranges {
            // SAFETY: the ranges of a receipt lie within the mapping, which is one allocation.
            let at = unsafe { whole.base().add(part.range.start) };
            part.nodes = nodes_found(at, part.range.len(), sys::page_size()).unwrap_or_default();
            survey::verify(part, self.mapping().numa(), strict)?;
        }
        Ok(receipt)
    }
}
