//! *Map options*: what a mapping is made of.

use crate::arena::machine::hugetlb;
use crate::arena::region::backing::Backing;
use crate::arena::{ArenaError, Fallback, Ladder, Numa, PageSize};

/// The options of a mapping.
#[derive(Clone, Debug)]
pub(crate) struct MapOptions {
    pub(crate) requested: usize,
    pub(crate) ladder: Ladder,
    pub(crate) numa: Numa,
    pub(crate) backing: Backing,
    /// No other mapping of a shared region can write.
    pub(crate) readers_only: bool,
    /// The file of a shared region can become longer.
    pub(crate) growable: bool,
    pub(crate) guard_pages: bool,
    pub(crate) dont_fork: bool,
    pub(crate) dont_dump: bool,
    /// All of it will be populated, now or later, before its first use.
    pub(crate) populated: bool,
}

impl MapOptions {
    /// Returns whether collapsing may provide hugepages of shared memory. Not for a region smaller
    /// than a hugepage, which would be rounded up to one. Not with interleaved pages: a hugepage
    /// lies on the node of its first page, and the first pages often all lie on the same node.
    pub(crate) fn can_collapse(&self) -> bool {
        self.populated
            && self.requested >= PageSize::Thp.bytes()
            && !matches!(self.numa, Numa::Interleave(_))
    }

    /// Returns the requested bytes, rounded up to whole pages of `page` bytes.
    pub(super) fn whole_pages(&self, page: usize) -> Result<usize, ArenaError> {
        let max = isize::MAX as usize & !(page - 1);
        self.requested
            .checked_next_multiple_of(page)
            .filter(|len| *len <= max)
            .ok_or(ArenaError::TooLarge { requested: self.requested, max })
    }

    /// Returns how many of `wanted` pages of a hugetlb pool are available on the nodes of the
    /// policy, and the reason if not all are.
    pub(super) fn pages_available(
        &self,
        page: PageSize,
        wanted: usize,
    ) -> (usize, Option<Fallback>) {
        let nodes = self.numa.nodes();
        let bound = matches!(self.numa, Numa::Bind(_)).then_some(&nodes);
        let (pages, reason) = hugetlb::available(page, wanted as u64, bound);
        (pages as usize, reason)
    }
}
