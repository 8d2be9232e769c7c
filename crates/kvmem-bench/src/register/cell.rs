//! *Cell*: a region and its contexts, and groups of cells that share their memory.

use std::fmt;

use super::{Backend, Pages, RegisterRow, RegisterSkipped};

/// Larger regions that are not resident are registered with the most contexts only.
const LARGE: u64 = 2 << 30;
const GIB: u64 = 1 << 30;

/// A region and its contexts: the conditions that all contenders share.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Cell {
    pub(super) backend: Backend,
    pub(super) region_bytes: u64,
    pub(super) contexts: u32,
    pub(super) pages: Option<Pages>,
    pub(super) resident: bool,
}

impl Cell {
    pub(super) fn of(row: &RegisterRow) -> Self {
        let RegisterRow { backend, region_bytes, contexts, pages, resident, .. } = *row;
        Self { backend, region_bytes, contexts, pages, resident }
    }

    /// Estimates the milliseconds of a run.
    pub(super) fn run_units(&self) -> u64 {
        let each = match (self.backend, self.pages, self.resident) {
            (Backend::IoUring, Some(Pages::Base), false) => 600,
            (Backend::IoUring, _, false) => 400,
            (Backend::IoUring, Some(Pages::Base), true) => 30 * u64::from(self.contexts),
            (Backend::IoUring, _, true) => 3 * u64::from(self.contexts),
            _ => 0,
        };
        self.region_bytes * each / GIB + 1
    }
}

impl fmt::Display for Cell {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let pages = self.pages.map_or_else(String::new, |pages| format!(" {pages}"));
        let not = if self.resident { "" } else { "not " };
        let many = if self.contexts == 1 { "" } else { "s" };
        let (backend, size, contexts) = (self.backend, size(self.region_bytes), self.contexts);
        write!(f, "{backend}, {size}{pages}, {not}resident, {contexts} context{many}")
    }
}

/// Formats bytes in the largest unit in which they are a whole number.
pub(super) fn size(bytes: u64) -> String {
    let units = ["B", "KiB", "MiB", "GiB", "TiB"];
    let unit = (bytes.max(1).trailing_zeros() as usize / 10).min(units.len() - 1);
    format!("{} {}", bytes >> (10 * unit), units[unit])
}

/// Cells with the same size and kind of pages.
#[derive(Clone, Debug)]
pub(super) struct RegisterGroup {
    pub(super) backend: Backend,
    pub(super) region_bytes: u64,
    pub(super) pages: Option<Pages>,
    pub(super) cells: Vec<Cell>,
}

impl RegisterGroup {
    pub(super) fn new(
        backend: Backend,
        region_bytes: u64,
        pages: Option<Pages>,
        contexts: &[u32],
    ) -> Self {
        let max_contexts = contexts.iter().copied().max();
        let cell = |resident, contexts| Cell { backend, region_bytes, contexts, pages, resident };
        let large = |contexts| {
            backend == Backend::IoUring && region_bytes > LARGE && Some(contexts) != max_contexts
        };
        let resident = contexts.iter().map(|&contexts| cell(true, contexts));
        let rest = contexts
            .iter()
            .filter(|&&contexts| !large(contexts))
            .map(|&contexts| cell(false, contexts));
        Self { backend, region_bytes, pages, cells: resident.chain(rest).collect() }
    }

    pub(super) fn skipped(&self, contexts: Option<u32>, reason: String) -> RegisterSkipped {
        RegisterSkipped {
            backend: self.backend,
            region_bytes: Some(self.region_bytes),
            pages: self.pages,
            contexts,
            reason,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cells_and_sizes_have_names() {
        let cell = Cell {
            backend: Backend::IoUring,
            region_bytes: 3 << 29,
            contexts: 1,
            pages: Some(Pages::Huge),
            resident: false,
        };
        assert_eq!(cell.to_string(), "io_uring, 1536 MiB 2m, not resident, 1 context");
        assert_eq!(
            (size(0), size(4096), size(1 << 50)),
            ("0 B".into(), "4 KiB".into(), "1024 TiB".into())
        );
    }
}
