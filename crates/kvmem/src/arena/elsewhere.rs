//! *Elsewhere*: what else in this process has mapped a region's memory file.
//!
//! An engine that is given the descriptor of shared memory maps it once more, by itself. The pages
//! are there then, but the page tables of its mapping are empty: each page is a fault when it is
//! first touched, which takes as long as copying it does. What `/proc/self/maps` says of the file
//! shows where these mappings are, and filling their tables beforehand (`MADV_POPULATE_WRITE`)
//! needs nothing of the engine.

use std::ops::Range;
use std::ptr::NonNull;

use super::diagnose::refused;
use super::populate::{Part, populate};
use super::residency::measure;
use super::{ArenaError, Call, PageSize, Populate, ProgressOptions, Region};
use crate::sys::{self, FileId};

impl Region {
    /// Makes the pages of this region's memory file resident in all other mappings that this
    /// process has of it, those that are shared and writable, as [`populate`](Self::populate)
    /// does in the region's own. Returns how many bytes those mappings have; 0 for private memory,
    /// and where `/proc` is not mounted.
    ///
    /// O(mappings of the process), and the page tables that are filled.
    ///
    /// # Errors
    /// As for [`populate`](Self::populate). A mapping that its owner takes away meanwhile is no
    /// error.
    pub fn populate_aliases(
        &self,
        how: Populate,
        watch: &ProgressOptions,
    ) -> Result<u64, ArenaError> {
        let Some(file) = self.mapping().file() else { return Ok(0) };
        let file =
            sys::file_id(file).map_err(|errno| refused(Call::FileSize, self.len(), errno))?;
        let own = self.mapping().base().addr().get();
        let own = own..own + self.mapping().len();
        let find = || {
            let text = sys::read_text("/proc/self/maps").unwrap_or_default();
            let found = text.lines().filter_map(|line| of_the_file(line, file));
            found
                .filter(|range| range.end <= own.start || own.end <= range.start)
                .collect::<Vec<_>>()
        };
        let mut offset = 0;
        let parts: Vec<Part> = find()
            .into_iter()
            .filter_map(|range| {
                let at = NonNull::new(std::ptr::with_exposed_provenance_mut(range.start))?;
                let place = offset..offset + range.len();
                offset = place.end;
                let page =
                    self.page_at(0).filter(|page| page.is_pooled()).unwrap_or(PageSize::Base);
                Some(Part { at, range: place, page, by_collapse: false })
            })
            .collect();
        // What is resident in the file needs no room, however often it is mapped.
        let there = measure(self.mapping().base(), self.mapping().len());
        let resident = there.map_or(0, |found| match found.is_whole() {
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

/// The range that a line of `/proc/self/maps` tells of, if that is a mapping of the file that can
/// be written. A private one is left alone: to make its pages resident would copy each of them.
fn of_the_file(line: &str, file: FileId) -> Option<Range<usize>> {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_the_file_are_known_by_device_and_number() {
        let file = FileId { major: 0, minor: 1, number: 1042 };
        let line = |text: &str| of_the_file(text, file);
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
