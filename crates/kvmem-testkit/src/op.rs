//! Operations on a space, as plain data.
//!
//! A test of an allocator must request what is interesting *at that moment*: exactly the longest
//! free range, one byte more, the size of an allocation that was just freed. An operation therefore
//! names no absolute sizes. It names an [`Amount`] relative to the state at its execution, and
//! allocations by a [`Pick`]. Any sequence of operations is valid in any state, so proptest can
//! shrink it and a fuzzer can cut it.

// The fields of operations have names that say what they are; `raw` chooses the raw interface.
#![expect(missing_docs)]

use kvmem::offset::Placement;

/// Selects one of the existing entries, each equally likely.
pub type Pick = u16;

/// The reference of an [`Amount`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Base {
    /// This many bytes.
    Bytes(u64),
    /// The length of the space.
    Capacity,
    /// The longest range that the empty space could serve.
    Limit,
    /// All free bytes.
    Free,
    /// The length of the longest free range.
    Largest,
    /// The length of a free range.
    Hole(Pick),
    /// The size of a live allocation.
    Held(Pick),
    /// One past the last byte in use.
    EndOfLast,
}

/// A part of a whole: `share`/65,535 of it, plus `off` bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Part {
    /// 65,535 is the whole.
    pub share: u16,
    /// Bytes to add or subtract.
    pub off: i8,
}

impl Part {
    /// The whole.
    pub const ALL: Part = Part { share: u16::MAX, off: 0 };
    /// Nothing.
    pub const NONE: Part = Part { share: 0, off: 0 };

    /// Returns the part of `whole`, saturating at 64 bits.
    #[must_use]
    pub fn of(self, whole: u64) -> u64 {
        let part = u128::from(whole) * u128::from(self.share) / u128::from(u16::MAX);
        (part as u64).saturating_add_signed(i64::from(self.off))
    }
}

/// A number of bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Amount {
    /// The reference.
    pub base: Base,
    /// The part of the reference.
    pub part: Part,
}

impl Amount {
    /// Creates an absolute number of bytes.
    #[must_use]
    pub fn bytes(bytes: u64) -> Self {
        Amount { base: Base::Bytes(bytes), part: Part::ALL }
    }

    /// Creates the whole of `base`.
    #[must_use]
    pub fn all(base: Base) -> Self {
        Amount { base, part: Part::ALL }
    }
}

/// The number of ranges of a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Count {
    /// This many.
    Exactly(u8),
    /// As many as fit, but at most [`Count::MAX`].
    AsManyAsFit,
    /// One more than fit, but at most [`Count::MAX`].
    OneTooMany,
}

impl Count {
    /// The limit of numbers that depend on the space.
    pub const MAX: u128 = 64;

    /// Returns the number if `fit` ranges fit.
    #[must_use]
    pub fn of(self, fit: u128) -> usize {
        match self {
            Count::Exactly(n) => n.into(),
            Count::AsManyAsFit => fit.min(Self::MAX) as usize,
            Count::OneTooMany => (fit + 1).min(Self::MAX) as usize,
        }
    }
}

/// The settings of a space.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Config {
    /// Length of the space, 1..=2^63 bytes.
    pub capacity: u64,
    /// The boundary that no allocation may cross, at least 1 byte.
    pub boundary: Option<u64>,
    /// How to choose among the holes that fit.
    pub placement: Placement,
    /// The limit of the number of ranges, at least 16.
    pub max_ranges: Option<u32>,
    /// The cache settings. Only the first space of a test decides whether there are caches.
    pub cache: Option<Cache>,
}

/// The settings of the caches above a space.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cache {
    /// Sizes that are hot from the beginning; invalid ones are skipped.
    pub hot: [u64; 4],
    /// Whether further sizes become hot automatically.
    pub auto_hot_sizes: bool,
    /// The limit of cached bytes; by default 1/32 of the space.
    pub max_cached_bytes: Option<u64>,
}

impl Default for Cache {
    /// Returns the defaults of `ExtentCache`.
    fn default() -> Self {
        Cache { hot: [0; 4], auto_hot_sizes: true, max_cached_bytes: None }
    }
}

/// The order in which a run of adjacent allocations is freed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// By address.
    Ascending,
    /// By address, backwards.
    Descending,
    /// First the ones at even positions, then the ones at odd positions.
    Riffled,
}

impl Order {
    /// All orders.
    pub const ALL: [Order; 3] = [Order::Ascending, Order::Descending, Order::Riffled];
}

/// A change of one allocation, raw or owned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// Drops it, or frees it by its handle.
    Free,
    /// Shrinks it to a part of its size.
    Shrink(Part),
    /// Extends it by a part of the free bytes behind it.
    Extend(Part),
    /// Frees the part between two positions in it.
    FreeRange(Part, Part),
    /// Converts an owned allocation to a raw one, or a raw one to an owned one.
    Turn,
}

/// A call of the raw interface with an invalid handle.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Call {
    Free,
    Resolve,
    Shrink,
    Extend,
    Adopt,
}

impl Call {
    /// All calls.
    pub const ALL: [Call; 5] = [Call::Free, Call::Resolve, Call::Shrink, Call::Extend, Call::Adopt];
}

/// A handle that names no live allocation of the space.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Forgery {
    /// A handle that was valid and was freed or adopted.
    Stale(Pick),
    /// A handle of another space.
    Foreign(Pick),
    /// A valid handle with one bit flipped.
    Flipped(Pick, u8),
    /// Any bits.
    Garbage(u64, u64),
}

/// One step of a test.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Op {
    /// `allocate`, or `allocate_raw`.
    Allocate { size: Amount, raw: bool },
    /// `allocate_aligned`, or `allocate_aligned_raw`.
    AllocateAligned { size: Amount, align: u64, raw: bool },
    /// `allocate_batch`
    AllocateBatch { size: Amount, n: Count },
    /// `allocate_scattered`
    AllocateScattered { total: Amount, max_ranges: u8 },
    /// Changes an allocation of the space.
    Held(Pick, Change),
    /// Changes an allocation whose allocator was dropped.
    Orphan(Pick, Change),
    /// Frees a batch: adjacent owned allocations, and an orphan if there is one.
    FreeBatch { first: Pick, len: u8, order: Order },
    /// Frees many allocations from all over the space, without a comparison in between.
    Burst { seed: Pick, n: u8 },
    /// Calls the raw interface with an invalid handle.
    Misuse { call: Call, handle: Forgery },
    /// `grow`
    Grow(Amount),
    /// `shrink_to`
    ShrinkTo(Amount),
    /// Drops the allocator and continues with its clone.
    Clone,
    /// Drops the allocator while its allocations live on, and creates a new one.
    Replace(Config),
}
