//! *Requirements*: a description of memory before any of it is mapped.

use serde::Serialize;

use crate::arena::{Ladder, PageSize};

/// The largest size: half of a 64-bit address space.
const SIZE_MAX: u64 = 1 << 63;

/// The size of the memory, its kinds of pages, and its use.
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
    /// Describes `size_bytes` bytes (1 to 2^63) of private memory that will be pinned, on any node,
    /// with the rungs of `ladder`; a strict ladder has only its first rung. The last rung has no
    /// alternative.
    ///
    /// # Errors
    /// [`RequirementsError`] if the size is out of range, the ladder is empty, or it names a page
    /// size twice.
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

    /// Sets whether the memory is a memfd that other processes attach. Default: private memory.
    #[must_use]
    pub fn shared(mut self, shared: bool) -> Self {
        self.shared = shared;
        self
    }

    /// Sets whether the memory will be pinned: registered with a device, or locked. Default: yes.
    #[must_use]
    pub fn pinned(mut self, pinned: bool) -> Self {
        self.pinned = pinned;
        self
    }

    /// Sets the NUMA nodes that provide the memory in even shares; an empty list means any node.
    #[must_use]
    pub fn nodes(mut self, nodes: impl IntoIterator<Item = u32>) -> Self {
        self.nodes = nodes.into_iter().collect();
        self.nodes.sort_unstable();
        self.nodes.dedup();
        self
    }

    /// Returns the size in bytes.
    #[must_use]
    pub fn size_bytes(&self) -> u64 {
        self.size_bytes
    }

    /// Returns the kinds of pages to try, first choice first; never empty.
    #[must_use]
    pub fn pages(&self) -> &[PageSize] {
        &self.pages
    }

    /// Returns whether the memory will be shared.
    #[must_use]
    pub fn is_shared(&self) -> bool {
        self.shared
    }

    /// Returns whether the memory will be pinned.
    #[must_use]
    pub fn is_pinned(&self) -> bool {
        self.pinned
    }

    /// Returns the nodes that provide the memory, in ascending order; empty for any node.
    #[must_use]
    pub fn required_nodes(&self) -> &[u32] {
        &self.nodes
    }

    /// Returns whether `page` is on the ladder.
    pub(super) fn has(&self, page: PageSize) -> bool {
        self.pages.contains(&page)
    }

    /// Returns whether `page` is the last rung, which has no alternative.
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

/// The reason why requirements are invalid.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RequirementsError {
    /// The size is 0 or exceeds the address space.
    #[error("cannot check a size of {requested} bytes: give one from 1 to {limit}")]
    Size {
        /// The requested size in bytes.
        requested: u64,
        /// The largest size in bytes.
        limit: u64,
    },
    /// The ladder is empty.
    #[error("cannot check an empty page ladder: name at least one of 1G, 2M, thp and 4k")]
    NoPages,
    /// The ladder names a page size twice.
    #[error(
        "the page ladder names {page} twice: name each page size once, in the order to try them"
    )]
    Twice {
        /// The page size.
        page: PageSize,
    },
}
