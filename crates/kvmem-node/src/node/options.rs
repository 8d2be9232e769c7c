//! *Options* of a node.

/// The length of the pieces in which devices register the memory of a node, unless its boundary is
/// longer: the piece that a GPU registers best.
pub(crate) const PIECE_BYTES: u64 = 1 << 30;

/// The [boundary](NodeOptions::boundary) of memory that has none.
pub const NO_BOUNDARY: u64 = 0;

/// How a node is made. A recovery takes the sizes from the index file.
#[derive(Clone, Debug, PartialEq)]
pub struct NodeOptions {
    /// The most blocks at one time. The index file has 192 bytes for each, and pages that were
    /// never used take no memory. `None`: one for each 64 KiB of memory, at least 1024.
    pub max_blocks: Option<u32>,
    /// The bytes of the memory that are used: whole pages of its front, at most all. A recovery
    /// keeps the values that fit, those that were used last. The memory can
    /// [become](crate::NodeOperator::resize) as long as its file.
    pub size: u64,
    /// The length to which a recovery extends a shorter memory file, whole pages, if that is
    /// [growable](kvmem::arena::RegionBuilder::growable). Clients of before connect anew then. The
    /// number of blocks stays.
    pub max_size: u64,
    /// Under memory pressure the server gives memory back, but not below this size, and takes it
    /// again when the pressure is over. Not below [`size`](Self::size): it does not.
    pub min_size: u64,
    /// The alignment of all blocks in bytes, a power of two.
    pub align: u64,
    /// No block crosses a multiple of this number of bytes, nor is longer: a power of two, at least
    /// `align`. Devices register the memory in pieces that end at its multiples, and a GPU cannot
    /// copy a value that lies in two pieces. Memory that is not longer than the boundary has none;
    /// [`NO_BOUNDARY`]: no memory has one.
    pub boundary: u64,
    /// The most memory that one session may have reserved at a time. A value takes whole units of
    /// `align`.
    pub max_reserved_per_session: u64,
    /// The most pins and reservations of one session.
    #[doc(hidden)]
    pub max_handles_per_session: usize,
    /// The most memory whose values one session may have pinned at a time. A value with several
    /// pins counts once.
    pub max_pinned_bytes_per_session: u64,
    /// Which values are evicted first.
    pub eviction: Eviction,
    /// The limits of namespaces without limits of their own.
    pub default_limits: NamespaceLimits,
    /// The limits of single namespaces.
    pub limits: Vec<(String, NamespaceLimits)>,
    /// The most events that are stored for [subscribers](super::Event).
    #[doc(hidden)]
    pub max_events: usize,
}

impl Default for NodeOptions {
    fn default() -> NodeOptions {
        NodeOptions {
            max_blocks: None,
            size: u64::MAX,
            max_size: 0,
            min_size: u64::MAX,
            align: 4096,
            boundary: PIECE_BYTES,
            max_reserved_per_session: u64::MAX,
            max_handles_per_session: 1 << 20,
            max_pinned_bytes_per_session: u64::MAX,
            eviction: Eviction::default(),
            default_limits: NamespaceLimits::default(),
            limits: Vec::new(),
            max_events: 65_536,
        }
    }
}

/// Which values of a node are evicted first, of those that namespaces and priorities leave. Ends of
/// chains are evicted before starts in any case.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Eviction {
    /// Those that were used least recently.
    #[default]
    Lru,
    /// Those that are worth least, by their number of uses and the time since the last one. The
    /// node learns what these say of further uses; see
    /// [`kvmem`](kvmem::cache::Eviction::ScanResistant). A restart of the server forgets
    /// it.
    ScanResistant,
}

/// Limits of a namespace.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct NamespaceLimits {
    /// The most memory that its values and reservations take, each whole units of the
    /// [alignment](NodeOptions::align).
    pub max_bytes: u64,
    /// The most values that are pinned at a time.
    pub max_pins: u64,
    /// The most memory that pinned values take at a time.
    pub max_pinned_bytes: u64,
    /// The share of the memory and of the blocks, relative to the shares of the others: the
    /// namespace that exceeds its share of either most gives up values first.
    pub share: u32,
}

impl Default for NamespaceLimits {
    fn default() -> NamespaceLimits {
        NamespaceLimits {
            max_bytes: u64::MAX,
            max_pins: u64::MAX,
            max_pinned_bytes: u64::MAX,
            share: 1,
        }
    }
}

impl NodeOptions {
    pub(super) fn limits_of(&self, name: &str) -> NamespaceLimits {
        let own = self.limits.iter().find(|(of, _)| of == name);
        own.map_or(self.default_limits, |(_, limits)| *limits)
    }
}

/// The most keys, sizes or handles of one call.
pub const MAX_BATCH: usize = 1024;
