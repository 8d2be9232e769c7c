//! *Residency*: how much of a range is in memory, and how exact the answer is.
//!
//! There are three methods, in order of preference: a scan of the page tables (Linux 6.7), which is
//! exact and quick; the page table as a file; `mincore`. The last two work page by page, so a long
//! range is sampled: it is divided into as many strata as there are samples, and one page of each
//! is checked.
//!
//! The error of a sample of n pages is at most √(ln(2/0.01) / 2n) of the range in 99 cases of 100
//! (Hoeffding 1963): 1.3 % for 16,384 pages.

use std::fs::File;
use std::ptr::NonNull;

use serde::{Deserialize, Serialize};

use crate::arena::Errno;
use crate::arena::pages::address_at;
use crate::sys::{self, PageRegion};

/// The largest number of pages that are checked one by one; longer ranges are sampled.
const EXACT: usize = 1 << 20;
/// The number of pages in a sample.
const SAMPLE: usize = 1 << 14;

/// The method that measured residency.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Method {
    /// Every page, by a scan of the page tables.
    Scan,
    /// `/proc/self/pagemap`.
    Pagemap,
    /// `mincore`. For shared memory it counts pages in memory for any process, mapped here or not.
    Mincore,
}

/// How much of a range is resident: in memory, of its own (not the common page of zeros that
/// reading gives).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Residency {
    /// The length of the range.
    pub len_bytes: u64,
    /// The resident bytes; an estimate if `error_bytes` is not 0.
    pub resident_bytes: u64,
    /// The largest error of `resident_bytes` in 99 cases of 100; 0 if every page was checked.
    pub error_bytes: u64,
    /// The bytes mapped by hugepages, if the kernel reports them.
    pub huge_bytes: Option<u64>,
    /// The method.
    pub method: Method,
}

impl Residency {
    /// Returns whether every checked page is resident.
    #[must_use]
    pub fn is_whole(&self) -> bool {
        self.resident_bytes == self.len_bytes
    }
}

/// Measures a range of whole pages.
pub(crate) fn measure(at: NonNull<u8>, len: usize) -> Result<Residency, Errno> {
    if let Ok(pagemap) = sys::open_pagemap() {
        if let Ok(found) = scan(&pagemap, at, len) {
            return Ok(found);
        }
        if let Ok(found) = count_resident(len, Method::Pagemap, |first, pages| {
            read_table(&pagemap, at, first, pages)
        }) {
            return Ok(found);
        }
    }
    count_resident(len, Method::Mincore, |first, pages| {
        let page = sys::page_size();
        sys::mincore(address_at(at, first * page), pages.len() * page, pages)
    })
}

/// Estimates the resident bytes of a range of whole pages from a sample that takes some
/// microseconds: enough to distinguish populated memory from unpopulated memory. Where the kernel
/// can scan page tables, the shared zero page that reading maps does not count as resident.
pub(crate) fn glance(at: NonNull<u8>, len: usize) -> Result<u64, Errno> {
    let page = sys::page_size();
    let strata = (len >> 21).clamp(16, 64).min(len / page);
    let pagemap = sys::open_pagemap();
    let found = sample(len / page, strata, |number| {
        let at = address_at(at, number * page);
        let mut answer = [0u8];
        if let Ok(pagemap) = &pagemap {
            if let Ok(found) = scan(pagemap, at, page) {
                return Ok(found.is_whole());
            }
            if read_table(pagemap, at, 0, &mut answer).is_ok() {
                return Ok(answer[0] == 1);
            }
        }
        sys::mincore(at, page, &mut answer)?;
        Ok(answer[0] & 1 == 1)
    })?;
    Ok((len as u128 * found as u128 / strata.max(1) as u128) as u64)
}

/// Divides a range into `strata` parts, checks one page in each, and returns how many of these are
/// resident.
fn sample(
    pages: usize,
    strata: usize,
    mut is_resident: impl FnMut(usize) -> Result<bool, Errno>,
) -> Result<usize, Errno> {
    let edge = |n: usize| (pages as u128 * n as u128 / strata as u128) as usize;
    let mut found = 0;
    for stratum in 0..strata {
        let (from, to) = (edge(stratum), edge(stratum + 1));
        found += usize::from(is_resident(from + scatter(stratum as u64) as usize % (to - from))?);
    }
    Ok(found)
}

fn scan(pagemap: &File, at: NonNull<u8>, len: usize) -> Result<Residency, Errno> {
    let (start, end) = (at.addr().get() as u64, (at.addr().get() + len) as u64);
    let mut runs = [PageRegion::default(); 512];
    let (mut resident, mut huge, mut from) = (0, 0, start);
    while from < end {
        let (count, walked) = sys::pagemap_scan(pagemap, from, end, &mut runs)?;
        for run in &runs[..count] {
            let bytes = run.end.min(end) - run.start.max(start).min(run.end.min(end));
            resident += bytes;
            huge += if run.huge() { bytes } else { 0 };
        }
        if walked <= from {
            return Err(Errno::EIO);
        }
        from = walked;
    }
    Ok(Residency {
        len_bytes: len as u64,
        resident_bytes: resident,
        error_bytes: 0,
        huge_bytes: Some(huge),
        method: Method::Scan,
    })
}

/// Reads the page table entries of some pages; the lowest bit of each byte of `pages` then says
/// whether the page is resident.
fn read_table(
    pagemap: &File,
    at: NonNull<u8>,
    first: usize,
    pages: &mut [u8],
) -> Result<(), Errno> {
    let mut entries = vec![0u8; pages.len() * 8];
    let offset = (at.addr().get() / sys::page_size() + first) as u64 * 8;
    let mut filled = 0;
    while filled < entries.len() {
        match sys::pread(pagemap, &mut entries[filled..], offset + filled as u64)? {
            0 => return Err(Errno::EIO),
            more => filled += more,
        }
    }
    for (page, entry) in pages.iter_mut().zip(entries.chunks_exact(8)) {
        // Bit 63: present.
        *page = entry[7] >> 7;
    }
    Ok(())
}

/// Checks page by page: all pages, or a sample.
fn count_resident(
    len: usize,
    method: Method,
    read: impl Fn(usize, &mut [u8]) -> Result<(), Errno>,
) -> Result<Residency, Errno> {
    let page = sys::page_size();
    let pages = len / page;
    let mut found = 0usize;
    let error_bytes = if pages <= EXACT {
        let mut answers = vec![0u8; pages.min(1 << 16)];
        let mut first = 0;
        while first < pages {
            let count = answers.len().min(pages - first);
            read(first, &mut answers[..count])?;
            found += answers[..count].iter().filter(|answer| **answer & 1 == 1).count();
            first += count;
        }
        0
    } else {
        found = sample(pages, SAMPLE, |number| {
            let mut answer = [0u8];
            read(number, &mut answer)?;
            Ok(answer[0] & 1 == 1)
        })?;
        let error = ((2.0f64 / 0.01).ln() / (2.0 * SAMPLE as f64)).sqrt();
        (len as f64 * error) as u64
    };
    let checked = if error_bytes == 0 { pages } else { SAMPLE };
    Ok(Residency {
        len_bytes: len as u64,
        resident_bytes: (len as u128 * found as u128 / checked.max(1) as u128) as u64,
        error_bytes,
        huge_bytes: None,
        method,
    })
}

/// Returns a pseudorandom number (splitmix64), so that no regular pattern of pages hides between
/// the samples.
fn scatter(seed: u64) -> u64 {
    let mut x = seed.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_sample_is_within_its_stated_error() {
        let page = sys::page_size();
        let pages = 3 * EXACT;
        // Every other page, a third of each 192, and one half of the range: patterns that a regular
        // sample would measure wrongly.
        type Pattern = (fn(usize) -> bool, f64);
        let patterns: [Pattern; 3] = [
            (|n| n % 2 == 0, 1.0 / 2.0),
            (|n| n % 192 < 64, 1.0 / 3.0),
            (|n| n < 3 << 19, 1.0 / 2.0),
        ];
        for (pattern, share) in patterns {
            let found = count_resident(pages * page, Method::Pagemap, |first, answers| {
                for (n, answer) in answers.iter_mut().enumerate() {
                    *answer = u8::from(pattern(first + n));
                }
                Ok(())
            })
            .expect("the pattern answers");
            let off = (found.resident_bytes as f64 - share * (pages * page) as f64).abs();
            assert!(found.error_bytes > 0 && off <= found.error_bytes as f64, "{found:?}");
            assert!(found.error_bytes < found.len_bytes / 50);
        }
    }
}
