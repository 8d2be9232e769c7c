//! Proptest strategies for spaces and operations, weighted towards known failures of allocators.
//!
//! Requests are for exactly the free bytes, for a byte more or less, for the size of a freed
//! allocation, for mixtures of small and large sizes, and sometimes for invalid values.

use kvmem::offset::Placement;
use proptest::prelude::*;

use crate::op::{Amount, Base, Cache, Call, Change, Config, Count, Forgery, Op, Order, Part, Pick};

/// The size of a space.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scale {
    /// Up to 600 bytes: every bin is exact, and any two objects can be adjacent.
    Small,
    /// Up to 1 GiB: bins are wide, and small objects have their own region.
    Medium,
    /// Numbers that overflow types of less than 64 bits.
    Huge,
}

/// Generates settings of a space of this scale.
pub fn config(scale: Scale) -> impl Strategy<Value = Config> {
    let capacity = match scale {
        Scale::Small => (1..=600u64).boxed(),
        Scale::Medium => (16..=30u32, any::<u64>())
            .prop_map(|(log2, bits)| 1 << log2 | bits >> (64 - log2))
            .boxed(),
        Scale::Huge => prop_oneof![
            Just((1 << 40) - 1),
            Just(1000 << 30),
            Just((1 << 40) + 1),
            Just(4 << 30),
            Just(15 << 28),
            Just((1 << 62) + 12_345),
            Just((1 << 63) - 1),
            Just(1 << 63),
            (1u64 << 32..=1 << 63),
        ]
        .boxed(),
    };
    let boundary = prop_oneof![
        4 => Just(None),
        // From two segments to a few thousand, mostly not a power of two.
        2 => (1..=12u32, any::<u16>()).prop_map(|(log2, more)| Some((log2, u64::from(more)))),
        1 => (1..=12u32).prop_map(|log2| Some((log2, 0))),
    ];
    let max_ranges = prop_oneof![4 => Just(None), 1 => (16..=80u32).prop_map(Some)];
    (capacity, boundary, any::<bool>(), max_ranges).prop_map(
        |(capacity, boundary, best_fit, max_ranges)| Config {
            capacity,
            boundary: boundary.map(|(log2, more)| {
                let boundary = (capacity >> log2).max(1);
                if more == 0 { 1 << boundary.ilog2() } else { boundary + more % boundary }
            }),
            placement: if best_fit { Placement::BestFit } else { Placement::Renewal },
            max_ranges,
            cache: None,
        },
    )
}

/// Generates the same with caches, whose limit is between nothing and the whole space.
pub fn cached_config(scale: Scale) -> impl Strategy<Value = Config> {
    let any_length = any::<u64>().prop_map(|bits| bits >> (bits % 64));
    let size = prop_oneof![1 => Just(0), 2 => 1..=64u64, 2 => any_length];
    let max_cached_bytes = prop_oneof![2 => Just(None), 3 => (0..8u32).prop_map(Some)];
    (config(scale), prop::array::uniform4(size), any::<bool>(), max_cached_bytes).prop_map(
        |(config, hot, auto_hot_sizes, max_cached_bytes)| {
            let max_cached_bytes = max_cached_bytes.map(|shift| config.capacity >> shift);
            Config { cache: Some(Cache { hot, auto_hot_sizes, max_cached_bytes }), ..config }
        },
    )
}

/// Generates a sequence that mostly requests a few sizes repeatedly until the space is full, as a
/// KV cache does.
pub fn paged_ops(len: usize) -> impl Strategy<Value = Vec<Op>> {
    let sizes = prop::array::uniform3(prop_oneof![
        (1..=64u64).prop_map(Amount::bytes),
        (200..9000u16).prop_map(|share| of(Base::Capacity, Part { share, off: 0 })),
    ]);
    let step = prop_oneof![
        10 => (0..3usize, prop::bool::weighted(0.2)).prop_map(|(size, raw)| (size, raw, None)),
        8 => any::<Pick>().prop_map(|pick| (0, false, Some(Op::Held(pick, Change::Free)))),
        1 => (any::<Pick>(), 0..40u8).prop_map(|(seed, n)| (0, false, Some(Op::Burst { seed, n }))),
        3 => op().prop_map(|op| (0, false, Some(op))),
    ];
    (sizes, prop::collection::vec(step, 1..=len)).prop_map(|(sizes, steps)| {
        let step = |(size, raw, op): (usize, bool, Option<Op>)| {
            op.unwrap_or(Op::Allocate { size: sizes[size], raw })
        };
        steps.into_iter().map(step).collect()
    })
}

/// Generates a sequence of operations.
pub fn ops(len: usize) -> impl Strategy<Value = Vec<Op>> {
    prop::collection::vec(op(), 1..=len)
}

/// Generates a sequence that mixes small and large sizes, as a store with small index entries does.
pub fn mixed_ops(len: usize) -> impl Strategy<Value = Vec<Op>> {
    let bulk = (400..9000u16).prop_map(|share| of(Base::Capacity, Part { share, off: 0 }));
    let crumb = (1..=40u64).prop_map(Amount::bytes);
    let step = prop_oneof![
        5 => bulk.prop_map(|size| Op::Allocate { size, raw: false }),
        5 => crumb.prop_map(|size| Op::Allocate { size, raw: false }),
        6 => any::<Pick>().prop_map(|pick| Op::Held(pick, Change::Free)),
        1 => (any::<Pick>(), 0..40u8).prop_map(|(seed, n)| Op::Burst { seed, n }),
        3 => op(),
    ];
    prop::collection::vec(step, 1..=len)
}

fn of(base: Base, part: Part) -> Amount {
    Amount { base, part }
}

/// Generates the whole; a few bytes more or less; any share; a small share.
fn part() -> impl Strategy<Value = Part> {
    prop_oneof![
        5 => Just(Part::ALL),
        2 => (-2..=2i8).prop_map(|off| Part { off, ..Part::ALL }),
        1 => any::<i8>().prop_map(|off| Part { off, ..Part::ALL }),
        3 => any::<u16>().prop_map(|share| Part { share, off: 0 }),
        2 => (0..14u32, any::<i8>())
            .prop_map(|(shift, off)| Part { share: u16::MAX >> shift, off }),
        1 => any::<i8>().prop_map(|off| Part { share: 0, off }),
    ]
}

/// Generates a request size.
fn size() -> impl Strategy<Value = Amount> {
    let any_part = |base| part().prop_map(move |part| of(base, part));
    let few =
        (2..14u32).prop_map(|shift| of(Base::Capacity, Part { share: u16::MAX >> shift, off: 0 }));
    prop_oneof![
        6 => few,
        6 => (1..=64u64).prop_map(Amount::bytes),
        6 => (any::<Pick>(), part()).prop_map(|(pick, part)| of(Base::Hole(pick), part)),
        4 => (any::<Pick>(), part()).prop_map(|(pick, part)| of(Base::Held(pick), part)),
        3 => any_part(Base::Largest),
        2 => any_part(Base::Limit),
        1 => any_part(Base::Free),
        1 => any_part(Base::Capacity),
        1 => prop_oneof![Just(0), Just(u64::MAX), any::<u64>(), Just(u64::from(u32::MAX))]
            .prop_map(Amount::bytes),
    ]
}

fn align() -> impl Strategy<Value = u64> {
    prop_oneof![
        8 => (0..13u32).prop_map(|log2| 1 << log2),
        2 => (0..64u32).prop_map(|log2| 1 << log2),
        1 => prop_oneof![Just(0), Just(3), Just(u64::MAX), any::<u64>()],
    ]
}

fn count() -> impl Strategy<Value = Count> {
    prop_oneof![
        3 => (0..16u8).prop_map(Count::Exactly),
        2 => Just(Count::AsManyAsFit),
        1 => Just(Count::OneTooMany),
    ]
}

fn change() -> impl Strategy<Value = Change> {
    prop_oneof![
        9 => Just(Change::Free),
        2 => part().prop_map(Change::Shrink),
        3 => part().prop_map(Change::Extend),
        2 => (part(), part()).prop_map(|(from, to)| Change::FreeRange(from, to)),
        1 => (any::<u16>(), any::<u16>()).prop_map(|(a, b)| {
            let part = |share| Part { share, off: 0 };
            Change::FreeRange(part(a.min(b)), part(a.max(b)))
        }),
        4 => Just(Change::Turn),
    ]
}

fn misuse() -> impl Strategy<Value = Op> {
    let call = prop::sample::select(Call::ALL.to_vec());
    let handle = prop_oneof![
        3 => any::<Pick>().prop_map(Forgery::Stale),
        2 => any::<Pick>().prop_map(Forgery::Foreign),
        2 => (any::<Pick>(), any::<u8>()).prop_map(|(pick, bit)| Forgery::Flipped(pick, bit)),
        1 => (any::<u64>(), any::<u64>()).prop_map(|(high, low)| Forgery::Garbage(high, low)),
    ];
    (call, handle).prop_map(|(call, handle)| Op::Misuse { call, handle })
}

fn run() -> impl Strategy<Value = Op> {
    let order = prop::sample::select(Order::ALL.to_vec());
    (any::<Pick>(), 0..12u8, order).prop_map(|(first, len, order)| Op::FreeBatch {
        first,
        len,
        order,
    })
}

fn any_config() -> impl Strategy<Value = Config> {
    prop_oneof![config(Scale::Small), config(Scale::Medium), config(Scale::Huge)]
}

fn op() -> impl Strategy<Value = Op> {
    let new_end = || {
        let base =
            prop_oneof![Just(Base::Capacity), Just(Base::EndOfLast), Just(Base::Bytes(1 << 63))];
        (base, part()).prop_map(|(base, part)| of(base, part))
    };
    let of_free = part().prop_map(|part| of(Base::Free, part));
    let wider = (1..3000u64, any::<i8>(), any::<bool>());
    prop_oneof![
        32 => (size(), prop::bool::weighted(0.15))
            .prop_map(|(size, raw)| Op::Allocate { size, raw }),
        8 => (size(), align(), prop::bool::weighted(0.15))
            .prop_map(|(size, align, raw)| Op::AllocateAligned { size, align, raw }),
        4 => (size(), count()).prop_map(|(size, n)| Op::AllocateBatch { size, n }),
        3 => (size(), 0..8u8)
            .prop_map(|(total, max_ranges)| Op::AllocateScattered { total, max_ranges }),
        3 => (of_free, 1..12u8)
            .prop_map(|(total, max_ranges)| Op::AllocateScattered { total, max_ranges }),
        24 => (any::<Pick>(), change()).prop_map(|(pick, change)| Op::Held(pick, change)),
        3 => (any::<Pick>(), change()).prop_map(|(pick, change)| Op::Orphan(pick, change)),
        2 => run(),
        3 => (any::<Pick>(), 0..40u8).prop_map(|(seed, n)| Op::Burst { seed, n }),
        4 => misuse(),
        2 => new_end().prop_map(Op::ShrinkTo),
        1 => new_end().prop_map(Op::Grow),
        1 => wider.prop_map(|(bytes, off, absolute)| {
            let base = if absolute { Base::Bytes(bytes) } else { Base::Capacity };
            Op::Grow(of(base, Part { off, ..Part::ALL }))
        }),
        1 => Just(Op::Clone),
        1 => any_config().prop_map(Op::Replace),
    ]
}
