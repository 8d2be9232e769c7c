//! *Operations*: what can be done to a space, as plain data.
//!
//! A test of an allocator has to ask for what is interesting *now*: exactly the longest free range,
//! one byte more, the size of something that has just died. So an operation does not name bytes; it
//! names an [`Amount`] relative to the state it will meet, and allocations by a [`Pick`]. Any
//! sequence of operations makes sense in any state, which lets proptest shrink it and a fuzzer cut
//! it up.

use kvmem::offset::Placement;

/// Chooses one of what there is, evenly.
pub type Pick = u16;

/// What an [`Amount`] is measured against.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Base {
    /// So many bytes.
    Bytes(u64),
    /// The length of the space.
    Capacity,
    /// The longest range the space could ever hand out.
    Limit,
    /// All that is free.
    Free,
    /// The longest range that is free.
    Largest,
    /// The length of some free range.
    Hole(Pick),
    /// The size of some allocation alive.
    Held(Pick),
    /// One past the last byte in use.
    EndOfLast,
}

/// A part of something: `share`/65,535 of it, give or take `off` bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Part {
    /// 65,535 is all of it.
    pub share: u16,
    /// Bytes more or less.
    pub off: i8,
}

impl Part {
    /// All of it.
    pub const ALL: Part = Part { share: u16::MAX, off: 0 };
    /// Nothing of it.
    pub const NONE: Part = Part { share: 0, off: 0 };

    /// The part of `whole`, as far as it can be said in 64 bits.
    pub fn of(self, whole: u64) -> u64 {
        let part = u128::from(whole) * u128::from(self.share) / u128::from(u16::MAX);
        (part as u64).saturating_add_signed(i64::from(self.off))
    }
}

/// A number of bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Amount {
    /// What it is measured against.
    pub base: Base,
    /// How much of that.
    pub part: Part,
}

impl Amount {
    /// So many bytes.
    pub fn bytes(bytes: u64) -> Self {
        Amount { base: Base::Bytes(bytes), part: Part::ALL }
    }

    /// All of `base`.
    pub fn all(base: Base) -> Self {
        Amount { base, part: Part::ALL }
    }
}

/// How many of a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Count {
    /// So many.
    Exactly(u8),
    /// As many as fit, but not more than [`Count::MOST`].
    AsManyAsFit,
    /// One more than fit. If more than [`Count::MOST`] do, so many.
    OneTooMany,
}

impl Count {
    /// More are only asked for by their number.
    pub const MOST: u128 = 64;

    /// How many that is where `fit` do.
    pub fn of(self, fit: u128) -> usize {
        match self {
            Count::Exactly(n) => n.into(),
            Count::AsManyAsFit => fit.min(Self::MOST) as usize,
            Count::OneTooMany => (fit + 1).min(Self::MOST) as usize,
        }
    }
}

/// The settings of a space.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Config {
    /// Length of the space, 1..=2^63 bytes.
    pub capacity: u64,
    /// What no allocation may straddle, at least 1 byte.
    pub boundary: Option<u64>,
    /// How to choose among the holes that fit.
    pub placement: Placement,
    /// How many ranges there may be, at least 16.
    pub max_ranges: Option<u32>,
    /// Whether hot sizes are cached; only that of the first space of a test says so.
    pub cache: Option<Cache>,
}

/// The settings of the caches above a space.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cache {
    /// Sizes that are hot from the beginning; those that cannot be are left out.
    pub hot: [u64; 4],
    /// Whether further sizes are learnt.
    pub learns: bool,
    /// The most bytes that may be cached; a 32nd part of the space if nothing is said.
    pub max_cached_bytes: Option<u64>,
}

impl Default for Cache {
    /// As an `ExtentCache` that is told nothing.
    fn default() -> Self {
        Cache { hot: [0; 4], learns: true, max_cached_bytes: None }
    }
}

/// The order in which a run of neighbours is handed back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// By address.
    Ascending,
    /// By address, backwards.
    Descending,
    /// First those in even places, then those in odd ones.
    Riffled,
}

/// What is done to one allocation, raw or RAII.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// It is dropped, or freed by its handle.
    Free,
    /// To a part of its size.
    Shrink(Part),
    /// By a part of the room behind it.
    Extend(Part),
    /// From and to a part of its size behind its start.
    FreeRange(Part, Part),
    /// An RAII allocation becomes a raw one, or the other way round.
    Turn,
}

/// What is asked for with a handle that is no good.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Call {
    /// `free_raw`
    Free,
    /// `resolve_raw`
    Resolve,
    /// `shrink_raw`
    Shrink,
    /// `extend_raw`
    Extend,
    /// `adopt_raw`
    Adopt,
}

/// A handle that names no allocation of the space.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Forgery {
    /// One that was good and has been freed or adopted.
    Stale(Pick),
    /// One of another space.
    Foreign(Pick),
    /// A good one with one bit flipped.
    Flipped(Pick, u8),
    /// Any bits.
    Garbage(u64, u64),
}

/// One step of a test.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Op {
    /// `allocate`, or `allocate_raw`.
    Allocate {
        /// Size.
        size: Amount,
        /// Through the raw face.
        raw: bool,
    },
    /// `allocate_aligned`, or `allocate_aligned_raw`.
    AllocateAligned {
        /// Size.
        size: Amount,
        /// Alignment: good ones and others.
        align: u64,
        /// Through the raw face.
        raw: bool,
    },
    /// `allocate_batch`
    AllocateBatch {
        /// Size of each.
        size: Amount,
        /// How many.
        n: Count,
    },
    /// `allocate_scattered`
    AllocateScattered {
        /// Size of all together.
        total: Amount,
        /// In at most so many ranges.
        max_ranges: u8,
    },
    /// Changes an allocation of the space.
    Held(Pick, Change),
    /// Changes an allocation whose allocator is gone.
    Orphan(Pick, Change),
    /// `free_batch` of RAII allocations that follow each other, and of an orphan if there is one.
    FreeRun {
        /// The run begins here.
        first: Pick,
        /// Longest run.
        len: u8,
        /// In this order.
        order: Order,
    },
    /// Frees many, one after the other, from everywhere: nobody looks before the last is gone.
    Burst {
        /// Chooses them.
        seed: Pick,
        /// How many at most.
        n: u8,
    },
    /// Misuses the raw face.
    Misuse {
        /// What is asked for.
        call: Call,
        /// With which handle.
        handle: Forgery,
    },
    /// `grow`
    Grow(Amount),
    /// `shrink_to`
    ShrinkTo(Amount),
    /// Drops the allocator in favour of its clone.
    Clone,
    /// Drops the allocator while its allocations live on; a new one takes its place.
    Replace(Config),
}
