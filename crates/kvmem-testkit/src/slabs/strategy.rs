//! Proptest strategies for operations on slabs.

use proptest::prelude::*;

use super::op::{How, SEATS, SlabConfig, SlabOp, Who};

/// Generates settings, mostly the default ones.
pub fn config() -> impl Strategy<Value = SlabConfig> {
    let limit = prop_oneof![3 => Just(SlabConfig::PLAIN.limit), 1 => 0..=SlabConfig::PLAIN.limit];
    let max_cached = prop_oneof![2 => Just(None), 1 => (0..4_000_000u32).prop_map(Some)];
    (prop::bool::weighted(0.1), prop::bool::weighted(0.2), limit, max_cached).prop_map(
        |(always_malloc, debug_blocks, limit, max_cached_bytes)| SlabConfig {
            always_malloc,
            debug_blocks,
            limit,
            max_cached_bytes,
        },
    )
}

/// Generates mostly a few sizes, which fill magazines, and sometimes others.
fn size() -> impl Strategy<Value = usize> {
    prop_oneof![
        12 => prop::sample::select(vec![16usize, 24, 100, 1024, 8192]),
        4 => 1..=600usize,
        2 => 1..=9000usize,
        1 => 8193..=65_535usize,
        1 => prop::sample::select(vec![0, usize::MAX]),
    ]
}

fn seat() -> impl Strategy<Value = u8> {
    0..SEATS
}

fn who() -> impl Strategy<Value = Who> {
    prop_oneof![2 => seat().prop_map(Who::Seat), 1 => Just(Who::Outsider)]
}

fn op() -> impl Strategy<Value = SlabOp> {
    let how = prop_oneof![2 => Just(How::Plain), 1 => Just(How::Zeroed), 1 => Just(How::Copy)];
    let pick = any::<u16>;
    prop_oneof![
        12 => (seat(), size(), how).prop_map(|(seat, size, how)| SlabOp::Alloc { seat, size, how }),
        12 => (seat(), size(), prop_oneof![2 => 0..50u16, 1 => 0..1000u16])
            .prop_map(|(seat, size, n)| SlabOp::Batch { seat, size, n }),
        8 => (seat(), pick()).prop_map(|(seat, pick)| SlabOp::Free { seat, pick }),
        16 => (seat(), pick(), any::<u8>())
            .prop_map(|(seat, pick, n)| SlabOp::FreeBatch { seat, pick, n }),
        8 => (seat(), pick(), any::<u8>(), any::<u16>())
            .prop_map(|(seat, pick, n, link)| SlabOp::FreeChain { seat, pick, n, link }),
        3 => who().prop_map(SlabOp::Trim),
        6 => (who(), 5..40u8).prop_map(|(who, seconds)| SlabOp::Tick { who, seconds }),
        5 => seat().prop_map(SlabOp::End),
        2 => Just(SlabOp::Look),
        1 => config().prop_map(SlabOp::Replace),
    ]
}

/// Generates up to `len` operations. Rarely all threads end and time passes.
pub fn ops(len: usize) -> impl Strategy<Value = Vec<SlabOp>> {
    let silence = Just(
        (0..SEATS)
            .map(SlabOp::End)
            .chain([20, 20].map(|seconds| SlabOp::Tick { who: Who::Outsider, seconds }))
            .collect::<Vec<_>>(),
    );
    let some = prop_oneof![40 => op().prop_map(|op| vec![op]), 1 => silence];
    prop::collection::vec(some, 1..len).prop_map(|some| some.concat())
}
