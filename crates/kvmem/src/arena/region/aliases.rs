//! *Aliases*: other mappings of a region's memory file in this process.
//!
//! An engine that receives the descriptor of shared memory maps it a second time. The pages exist
//! then, but the page tables of the engine's mapping are empty: the first touch of each page
//! faults, which takes as long as copying the page. `/proc/self/maps` lists the mappings of the
//! file. Filling their page tables beforehand (`MADV_POPULATE_WRITE`) needs no help from the
//! engine.

use std::ops::Range;
use std::ptr::NonNull;

use super::region::Region;
use crate::arena::error::call_failed;
use crate::arena::populate::{PopulateRange, measure, populate};
use crate::arena::{ArenaError, Call, PageSize, Populate, ProgressOptions};
use crate::sys::{self, FileId};

impl Region {
    /// Makes the pages of this region's memory file resident in all other shared, writable mappings
    /// of the file in this process, as [`populate`](Self::populate) does in the region's own
    /// mapping. Returns the total length of those mappings in bytes; 0 for private memory, and
    /// where `/proc` is not mounted.
    ///
    /// Takes time in proportion to the mappings of the process and to the page tables that are
    /// filled.
    ///
    /// # Errors
    /// The errors of [`populate`](Self::populate). A mapping that its owner removes meanwhile
    /// causes no error.
    pub fn populate_aliases(
        &self,
        how: Populate,
        watch: &ProgressOptions,
    ) -> Result<u64, ArenaError> {
        let Some(file) = self.mapping().file() else { return Ok(0) };
        let file =
            sys::file_id(file).map_err(|errno| call_failed(Call::FileSize, self.len(), errno))?;
        let own = self.mapping().base().addr().get();
        let own = own..own + self.mapping().len();
        let find = || {
            let text = sys::read_text("/proc/self/maps").unwrap_or_default();
            let found = text.lines().filter_map(|line| range_of_alias(line, file));
            found
                .filter(|range| range.end <= own.start || own.end <= range.start)
                .collect::<Vec<_>>()
        };
        let mut offset = 0;
        let parts: Vec<PopulateRange> = find()
            .into_iter()
            .filter_map(|range| {
                let at = NonNull::new(std::ptr::with_exposed_provenance_mut(range.start))?;
                let span = offset..offset + range.len();
                offset = span.end;
                let page =
                    self.page_at(0).filter(|page| page.is_pooled()).unwrap_or(PageSize::Base);
                Some(PopulateRange { at, range: span, page, by_collapse: false })
            })
            .collect();
        // Pages that are resident in the file need no more memory, however often they are mapped.
        let found = measure(self.mapping().base(), self.mapping().len());
        let resident = found.map_or(0, |found| match found.is_whole() {
            true => offset as u64,
            false => found.resident_bytes.min(offset as u64),
        });
        match populate(&parts, how, watch, resident) {
            Ok(_) => Ok(offset as u64),
            Err(ArenaError::Populate { .. }) if find().len() < parts.len() => Ok(offset as u64),
            Err(error) => Err(error),
        }
    }
}

/// Returns the address range in a line of `/proc/self/maps` if the line is a shared, writable
/// mapping of the file. A private mapping is skipped: making its pages resident would copy each of
/// them.
fn range_of_alias(line: &str, file: FileId) -> Option<Range<usize>> {
    let mut words = line.split_ascii_whitespace();
    let (from, to) = words.next()?.split_once('-')?;
    let may = words.next()?;
    let (major, minor) = words.nth(1)?.split_once(':')?;
    let hex = |number| u32::from_str_radix(number, 16).ok();
    let here =
        FileId { major: hex(major)?, minor: hex(minor)?, number: words.next()?.parse().ok()? };
    if here != file || !(may.starts_with("rw") && may.ends_with('s')) {
        return None;
    }
    let address = |number| usize::from_str_radix(number, 16).ok();
    Some(address(from)?..address(to)?).filter(|range| !range.is_empty())
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn lines_range_of_alias_are_known_by_device_and_number() {
        let file = FileId { major: 0, minor: 1, number: 1042 };
        let line = |text: &str| range_of_alias(text, file);
        assert_eq!(
            line("7f00-8f00 rw-s 00001000 00:01 1042   /memfd:kvmem (deleted)"),
            Some(0x7f00..0x8f00)
        );
        for other in [
            "7f00-8f00 r--s 00000000 00:01 1042   /memfd:kvmem (deleted)",
            "7f00-8f00 rw-p 00000000 00:01 1042   /memfd:kvmem (deleted)",
            "7f00-8f00 rw-s 00000000 00:0f 1042   /memfd:kvmem (deleted)",
            "7f00-8f00 rw-s 00000000 00:01 1043   /memfd:kvmem (deleted)",
            "7f00-8f00 rw-p 00000000 00:00 0",
            "7f00-8f00 rw-s",
            "7f00 rw-s 00000000 00:01 1042",
            "x-y rw-s 00000000 00:01 1042",
            "",
        ] {
            assert_eq!(line(other), None, "{other}");
        }
    }
}
