//! The library's regions: mapped, populated and discarded under the clock.

use std::time::Instant;

use anyhow::{Result, ensure};
use kvmem::arena::{Backing, Ladder, PageSize, Populate, Region, RegionBuilder};

use super::Pages;
use crate::bench::machine::resident_bytes;

/// Converts to the library's page size.
pub fn page_size(pages: Pages) -> PageSize {
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

/// Maps `bytes` and leaves them untouched; returns milliseconds and the growth of the process's
/// resident bytes.
pub(super) fn map(bytes: usize) -> Result<(f64, u64)> {
    let before = resident_bytes().unwrap_or(0);
    let start = Instant::now();
    let region = builder(Pages::Thp, bytes).populate(Populate::None).map()?;
    let took = start.elapsed();
    let after = resident_bytes().unwrap_or(0);
    drop(region);
    Ok((took.as_secs_f64() * 1e3, after.saturating_sub(before)))
}

/// Maps `bytes` and populates them with `threads` threads, or with as many as the library chooses.
/// Returns the seconds until the region and its receipt exist.
pub(super) fn populate(pages: Pages, bytes: usize, threads: Option<usize>) -> Result<f64> {
    let workers = threads.map_or(Populate::Auto, Populate::threads);
    let start = Instant::now();
    let region = builder(pages, bytes).populate(workers).map()?;
    let took = start.elapsed();
    let receipt = region.receipt();
    let error: u64 = receipt.ranges.iter().map(|range| range.resident_error_bytes).sum();
    let resident = receipt.resident_bytes();
    let all = resident + error >= bytes as u64;
    ensure!(all, "only {resident} of {bytes} bytes became resident");
    Ok(took.as_secs_f64())
}

/// Returns the seconds in which the pages of a resident region of `bytes` are returned.
pub(super) fn discard(pages: Pages, bytes: usize) -> Result<f64> {
    let region = builder(pages, bytes).populate(Populate::Auto).map()?;
    let start = Instant::now();
    region.discard(0..bytes)?;
    Ok(start.elapsed().as_secs_f64())
}
