//! The library's regions: mapped, populated and discarded under the clock.

use std::time::Instant;

use kvmem::arena::{ArenaError, Backing, Ladder, PageSize, Populate, Region, RegionBuilder};

use super::measure::ArenaSample;
use super::{ArenaMeasureError, Pages};
use crate::machine::resident_bytes;

impl From<ArenaError> for ArenaMeasureError {
    fn from(error: ArenaError) -> Self {
        Self::Library(error.to_string())
    }
}

/// Converts to the library's page size.
pub(crate) fn page_size(pages: Pages) -> PageSize {
    match pages {
        Pages::Base => PageSize::Base,
        Pages::Thp | Pages::Shared => PageSize::Thp,
        Pages::Huge => PageSize::Huge2M,
    }
}

/// Returns a builder for a region of such memory. Shared memory may fall back to base pages, as it
/// does when the system's setting for shared memory excludes transparent hugepages.
fn builder(pages: Pages, bytes: usize) -> RegionBuilder {
    match pages {
        Pages::Shared => Region::builder(bytes)
            .ladder(Ladder::new([PageSize::Thp, PageSize::Base]))
            .backing(Backing::Shared),
        private => Region::builder(bytes).ladder(page_size(private)),
    }
}

/// Maps `bytes` and leaves them untouched; reports the change of the process's resident bytes.
pub(super) fn map(pages: Pages, bytes: usize) -> Result<ArenaSample, ArenaMeasureError> {
    let before = resident_bytes();
    let start = Instant::now();
    let region = builder(pages, bytes).populate(Populate::None).map()?;
    let took = start.elapsed();
    let after = resident_bytes();
    drop(region);
    Ok(ArenaSample {
        ns: took.as_nanos() as f64,
        threads: 1,
        resident_bytes: before.zip(after).map(|(before, after)| after.saturating_sub(before)),
    })
}

/// Maps `bytes` and populates them with `threads` threads, or with as many as the library chooses.
///
/// The time ends when the region and its receipt exist.
pub(super) fn populate(
    pages: Pages,
    bytes: usize,
    threads: Option<u32>,
) -> Result<ArenaSample, ArenaMeasureError> {
    let workers = threads.map_or(Populate::Auto, |threads| Populate::threads(threads as usize));
    let start = Instant::now();
    let region = builder(pages, bytes).populate(workers).map()?;
    let took = start.elapsed();
    let receipt = region.receipt();
    let error: u64 = receipt.ranges.iter().map(|range| range.resident_error_bytes).sum();
    let resident = receipt.resident_bytes();
    if resident + error < bytes as u64 {
        return Err(ArenaMeasureError::Library(format!(
            "only {resident} of {bytes} bytes became resident"
        )));
    }
    Ok(ArenaSample {
        ns: took.as_nanos() as f64,
        threads: u32::try_from(receipt.threads).unwrap_or(u32::MAX),
        resident_bytes: None,
    })
}

/// Returns the pages of a fully resident region of `bytes`.
pub(super) fn discard(pages: Pages, bytes: usize) -> Result<ArenaSample, ArenaMeasureError> {
    let region = builder(pages, bytes).populate(Populate::Auto).map()?;
    let start = Instant::now();
    region.discard(0..bytes)?;
    let took = start.elapsed();
    Ok(ArenaSample { ns: took.as_nanos() as f64, threads: 1, resident_bytes: None })
}
