//! *Region*: the library's regions, mapped, populated and discarded under the clock.

use std::time::Instant;

use kvmem::arena::{ArenaError, Backing, Ladder, PageSize, Populate, Region, RegionBuilder};

use super::measure::Seen;
use super::{MeasureError, Pages};
use crate::machine::resident_bytes;

impl From<ArenaError> for MeasureError {
    fn from(error: ArenaError) -> Self {
        Self::Library(error.to_string())
    }
}

/// The library's word for this kind of pages.
pub(crate) fn page_size(pages: Pages) -> PageSize {
    match pages {
        Pages::Base => PageSize::Base,
        Pages::Thp | Pages::Shared => PageSize::Thp,
        Pages::Huge => PageSize::Huge2M,
    }
}

/// A region to be of such memory. Shared memory is let have base pages, as it is when its own
/// setting leaves it none else.
fn builder(pages: Pages, bytes: usize) -> RegionBuilder {
    match pages {
        Pages::Shared => Region::builder(bytes)
            .ladder(Ladder::new([PageSize::Thp, PageSize::Base]))
            .backing(Backing::Shared),
        private => Region::builder(bytes).ladder(page_size(private)),
    }
}

/// Maps `bytes` and leaves them untouched. The bytes resident are those of the process, before and
/// after.
pub(super) fn map(pages: Pages, bytes: usize) -> Result<Seen, MeasureError> {
    let before = resident_bytes();
    let start = Instant::now();
    let region = builder(pages, bytes).populate(Populate::None).map()?;
    let took = start.elapsed();
    let after = resident_bytes();
    drop(region);
    Ok(Seen {
        ns: took.as_nanos() as f64,
        threads: 1,
        resident_bytes: before.zip(after).map(|(before, after)| after.saturating_sub(before)),
    })
}

/// Maps `bytes` and makes them resident, by `threads` or by as many as the library chooses.
///
/// The time ends when the region is there, its receipt included.
pub(super) fn populate(
    pages: Pages,
    bytes: usize,
    threads: Option<u32>,
) -> Result<Seen, MeasureError> {
    let who = threads.map_or(Populate::Auto, |threads| Populate::threads(threads as usize));
    let start = Instant::now();
    let region = builder(pages, bytes).populate(who).map()?;
    let took = start.elapsed();
    let receipt = region.receipt();
    let error: u64 = receipt.ranges.iter().map(|range| range.resident_error_bytes).sum();
    let resident = receipt.resident_bytes();
    if resident + error < bytes as u64 {
        return Err(MeasureError::Library(format!(
            "only {resident} of {bytes} bytes became resident"
        )));
    }
    Ok(Seen {
        ns: took.as_nanos() as f64,
        threads: u32::try_from(receipt.threads).unwrap_or(u32::MAX),
        resident_bytes: None,
    })
}

/// Gives back the pages of a region of `bytes` that is resident as a whole.
pub(super) fn discard(pages: Pages, bytes: usize) -> Result<Seen, MeasureError> {
    let region = builder(pages, bytes).populate(Populate::Auto).map()?;
    let start = Instant::now();
    region.discard(0..bytes)?;
    let took = start.elapsed();
    Ok(Seen { ns: took.as_nanos() as f64, threads: 1, resident_bytes: None })
}
