//! *Wish*: the memory somebody wants, before any of it is mapped.

use serde::Serialize;

use super::super::pages::{Ladder, PageSize};

/// The largest wish: what half of a 64-bit address space could hold.
const SIZE_MAX: u64 = 1 << 63;

/// How much memory, of which pages, and for what.
///
/// ```
/// use kvmem::arena::Ladder;
/// use kvmem::arena::preflight::Requirements;
///
/// let requirements = Requirements::new(64 << 30, "2M,thp,4k".parse::<Ladder>()?)?.shared(true);
/// assert_eq!(requirements.to_string(), "64 GiB of 2M, thp, 4k pages, shared, pinned");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Requirements {
    size_bytes: u64,
    pages: Vec<PageSize>,
    shared: bool,
    pinned: bool,
    nodes: Vec<u32>,
}

impl Requirements {
    /// Wishes for `size_bytes` bytes (1 to 2^63) of private memory that will be pinned, on any
    /// node, of the rungs of `ladder`, of which a strict one has only the first. Of the last
    /// rung it is these pages or nothing.
    ///
    /// # Errors
    /// [`RequirementsError`] for a size out of range, no page size at all, or one that is named twice.
    pub fn new(size_bytes: u64, ladder: impl Into<Ladder>) -> Result<Self, RequirementsError> {
        let ladder = ladder.into();
        let pages = ladder.usable().to_vec();
        if size_bytes == 0 || size_bytes > SIZE_MAX {
            return Err(RequirementsError::Size { requested: size_bytes, limit: SIZE_MAX });
        }
        if pages.is_empty() {
            return Err(RequirementsError::NoPages);
        }
        for (at, &page) in pages.iter().enumerate() {
            if pages[..at].contains(&page) {
                return Err(RequirementsError::Twice { page });
            }
        }
        Ok(Requirements { size_bytes, pages, shared: false, pinned: true, nodes: Vec::new() })
    }

    /// Whether the memory is a memfd that other processes attach, instead of private.
    #[must_use]
    pub fn shared(mut self, shared: bool) -> Self {
        self.shared = shared;
        self
    }

    /// Whether the memory will be pinned: registered with a device, or locked. It is unless this
    /// says otherwise.
    #[must_use]
    pub fn pinned(mut self, pinned: bool) -> Self {
        self.pinned = pinned;
        self
    }

    /// The NUMA nodes that the memory must come from, in even shares; none means any.
    #[must_use]
    pub fn nodes(mut self, nodes: impl IntoIterator<Item = u32>) -> Self {
        self.nodes = nodes.into_iter().collect();
        self.nodes.sort_unstable();
        self.nodes.dedup();
        self
    }

    /// Bytes wanted.
    pub fn size_bytes(&self) -> u64 {
        self.size_bytes
    }

    /// The pages to try, first choice first; never empty.
    pub fn pages(&self) -> &[PageSize] {
        &self.pages
    }

    /// Whether the memory is to be shared.
    pub fn is_shared(&self) -> bool {
        self.shared
    }

    /// Whether the memory is to be pinned.
    pub fn is_pinned(&self) -> bool {
        self.pinned
    }

    /// The nodes it must come from, ascending; empty for any.
    pub fn wanted_nodes(&self) -> &[u32] {
        &self.nodes
    }

    /// Whether `page` is on the ladder.
    pub(super) fn has(&self, page: PageSize) -> bool {
        self.pages.contains(&page)
    }

    /// Whether there is nothing to fall back on after `page`.
    pub(super) fn is_last(&self, page: PageSize) -> bool {
        self.pages.last() == Some(&page)
    }
}

impl std::fmt::Display for Requirements {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let join = |names: Vec<String>| names.join(", ");
        let pages = join(self.pages.iter().map(ToString::to_string).collect());
        write!(f, "{} of {pages} pages", super::check::human_bytes(self.size_bytes))?;
        if !self.nodes.is_empty() {
            write!(f, " on nodes {}", join(self.nodes.iter().map(ToString::to_string).collect()))?;
        }
        let or = |is: bool, yes, no| if is { yes } else { no };
        write!(
            f,
            ", {}, {}",
            or(self.shared, "shared", "private"),
            or(self.pinned, "pinned", "not pinned")
        )
    }
}

/// A wish that makes no sense.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RequirementsError {
    /// Nothing, or more than can be addressed.
    #[error("a size of {requested} bytes; it must be from 1 to {limit}")]
    Size {
        /// Bytes asked for.
        requested: u64,
        /// The most there can be.
        limit: u64,
    },
    /// An empty ladder.
    #[error("no page size; name at least one of 1G, 2M, thp and 4k")]
    NoPages,
    /// A page size that is on the ladder already.
    #[error("page size {page} is named twice; name each once, in the order to try them")]
    Twice {
        /// The page size.
        page: PageSize,
    },
}
