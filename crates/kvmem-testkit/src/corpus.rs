//! The initial inputs of the fuzz targets.
//!
//! Short sequences of valid operations that a fuzzer mutates: each kind of traffic on each kind of
//! space, and sequences that have broken allocators (*traps*).

use kvmem::offset::Placement;

pub use self::slabs::slab;
use crate::codec::{encode, encode_cached};
use crate::op::{Amount, Base, Cache, Change, Config, Count, Op, Part};
use crate::random::Random;
use crate::soak;

mod slabs;

/// Length of a sequence of traffic.
const STEPS: usize = 30;

/// Returns names and bytes of the inputs for offset spaces.
#[must_use]
pub fn offset() -> Vec<(String, Vec<u8>)> {
    let mut inputs = traps();
    let configs = [
        (
            "small",
            Config {
                capacity: 500,
                boundary: None,
                placement: Placement::Renewal,
                max_ranges: None,
                cache: None,
            },
        ),
        (
            "small-bounded",
            Config {
                capacity: 500,
                boundary: Some(60),
                placement: Placement::BestFit,
                max_ranges: None,
                cache: None,
            },
        ),
        (
            "medium",
            Config {
                capacity: 16 << 20,
                boundary: None,
                placement: Placement::Renewal,
                max_ranges: None,
                cache: None,
            },
        ),
        (
            "medium-bounded",
            Config {
                capacity: 3 << 20,
                boundary: Some(1 << 16),
                placement: Placement::Renewal,
                max_ranges: None,
                cache: None,
            },
        ),
        (
            "uneven",
            Config {
                capacity: 699_050,
                boundary: Some(70_001),
                placement: Placement::BestFit,
                max_ranges: None,
                cache: None,
            },
        ),
        (
            "huge",
            Config {
                capacity: 1 << 63,
                boundary: None,
                placement: Placement::Renewal,
                max_ranges: None,
                cache: None,
            },
        ),
    ];
    let mut random = Random::new(7);
    for (name, config) in configs {
        for round in 0..4 {
            let traffic = soak::Traffic::draw(config.capacity, &mut random);
            let ops: Vec<Op> = (0..STEPS).map(|_| soak::draw_op(traffic, &mut random)).collect();
            inputs.push((format!("{name}-{round}"), encode(&config, &ops)));
        }
    }
    inputs
}

/// Returns names and bytes of the inputs for cached spaces.
#[must_use]
pub fn extents() -> Vec<(String, Vec<u8>)> {
    let plain = Config {
        capacity: 64_000,
        boundary: None,
        placement: Placement::Renewal,
        max_ranges: None,
        cache: None,
    };
    let all = |hot| Cache { hot, auto_hot_sizes: false, max_cached_bytes: Some(64_000) };
    let page = |size| Op::Allocate { size: Amount::bytes(size), raw: false };
    let raw = Op::Allocate { size: Amount::bytes(1000), raw: true };
    let free = |pick| Op::Held(pick, Change::Free);
    // Fills the space with pages and frees some; then makes requests that need the cached ones.
    let full = |after: &[Op]| {
        let mut ops = vec![Op::AllocateBatch { size: Amount::bytes(1000), n: Count::AsManyAsFit }];
        ops.extend((0..24).map(|i| free(i * 2600)));
        ops.extend(after);
        ops
    };
    let largest = Op::Allocate { size: Amount::all(Base::Largest), raw: false };
    let traps = [
        ("largest", all([1000, 0, 0, 0]), plain, full(&[largest, raw, free(9), largest])),
        (
            "between",
            all([1, 0, 0, 0]),
            plain,
            (0..60)
                .map(|i| page(1 + 99 * (i % 2)))
                .chain((0..60).map(|_| free(40_000)))
                .chain([largest])
                .collect(),
        ),
        (
            "full-books",
            all([1000, 0, 0, 0]),
            Config { max_ranges: Some(24), ..plain },
            full(&[
                Op::Held(
                    9,
                    Change::FreeRange(Part { share: 9000, off: 0 }, Part { share: 20_000, off: 0 }),
                ),
                Op::Held(9000, Change::Shrink(Part { share: 9000, off: 0 })),
                Op::Grow(Amount::bytes(1 << 40)),
            ]),
        ),
        (
            "learnt",
            Cache::default(),
            plain,
            (0..30)
                .flat_map(|_| [page(77), free(0)])
                .chain([Op::Replace(plain), page(77), largest])
                .collect(),
        ),
        (
            "bounded",
            Cache { hot: [1000, 100, 0, 0], auto_hot_sizes: true, max_cached_bytes: None },
            Config { boundary: Some(8000), placement: Placement::BestFit, ..plain },
            full(&[
                Op::AllocateAligned { size: Amount::bytes(1000), align: 4096, raw: true },
                Op::AllocateScattered { total: Amount::all(Base::Free), max_ranges: 30 },
                Op::ShrinkTo(Amount::all(Base::EndOfLast)),
            ]),
        ),
    ];
    let traps = traps.into_iter().map(|(name, cache, config, ops)| {
        (format!("trap-{name}"), encode_cached(&Config { cache: Some(cache), ..config }, &ops))
    });
    let mut random = Random::new(8);
    let traffic = (0..12).map(|round| {
        let config = Config { capacity: 500 << (round * 3), ..plain };
        let traffic = soak::Traffic::draw(config.capacity, &mut random);
        let ops: Vec<Op> = (0..STEPS).map(|_| soak::draw_op(traffic, &mut random)).collect();
        let cache = soak::draw_cache(config.capacity, &mut random);
        (format!("traffic-{round}"), encode_cached(&Config { cache: Some(cache), ..config }, &ops))
    });
    traps.chain(traffic.collect::<Vec<_>>()).collect()
}

fn traps() -> Vec<(String, Vec<u8>)> {
    let allocate = |size| Op::Allocate { size, raw: false };
    let free = |pick| Op::Held(pick, Change::Free);
    let largest = || Amount::all(Base::Largest);
    let plain = |capacity| Config {
        capacity,
        boundary: None,
        placement: Placement::Renewal,
        max_ranges: None,
        cache: None,
    };
    let share = |share| Part { share, off: 0 };
    let traps = [
        (
            "one-bin",
            plain(699_050),
            vec![allocate(Amount::bytes(664_908)), free(0), allocate(largest())],
        ),
        (
            "one-bin-again",
            plain(324),
            vec![allocate(Amount::bytes(255)), allocate(Amount::bytes(67)), free(0)],
        ),
        ("whole", plain((1 << 40) - 1), vec![allocate(largest()), free(0), allocate(largest())]),
        (
            "pending-joins",
            plain(1000),
            vec![
                Op::AllocateBatch { size: Amount::bytes(10), n: Count::Exactly(9) },
                free(10_000),
                free(30_000),
                free(20_000),
                allocate(Amount::bytes(10)),
                allocate(Amount::bytes(30)),
            ],
        ),
        (
            "parts-and-runs",
            Config { boundary: Some(256), ..plain(4096) },
            vec![
                Op::AllocateBatch { size: Amount::all(Base::Limit), n: Count::AsManyAsFit },
                Op::Held(9000, Change::FreeRange(share(10_000), share(20_000))),
                Op::Held(50_000, Change::Shrink(share(30_000))),
                Op::Held(50_000, Change::Extend(Part::ALL)),
                Op::FreeBatch { first: 20_000, len: 8, order: crate::op::Order::Riffled },
                Op::AllocateScattered { total: Amount::all(Base::Free), max_ranges: 20 },
            ],
        ),
        (
            "ends-move",
            Config { boundary: Some(1000), ..plain(3500) },
            vec![
                allocate(Amount::bytes(900)),
                Op::ShrinkTo(Amount::all(Base::EndOfLast)),
                Op::Grow(Amount::bytes(1 << 63)),
                Op::AllocateAligned { size: Amount::bytes(500), align: 512, raw: true },
                Op::ShrinkTo(Amount::bytes(3000)),
            ],
        ),
        (
            // The only run with an aligned start is behind more runs than a request examines.
            "behind-runs",
            Config { boundary: Some(161), ..plain(1 << 63) },
            vec![
                Op::AllocateScattered { total: Amount::bytes(161 * 254 + 100), max_ranges: 255 },
                Op::AllocateScattered { total: Amount::bytes(161 * 255), max_ranges: 255 },
                Op::Burst { seed: 300, n: 99 },
                Op::Burst { seed: 900, n: 99 },
                Op::AllocateAligned { size: Amount::all(Base::Limit), align: 1 << 36, raw: true },
            ],
        ),
        (
            "orphans",
            plain(10_000),
            vec![
                Op::AllocateBatch { size: Amount::bytes(100), n: Count::Exactly(20) },
                Op::Held(5, Change::Turn),
                Op::Replace(plain(5000)),
                Op::Orphan(1000, Change::FreeRange(share(1000), share(9000))),
                Op::Orphan(2000, Change::Turn),
                Op::Orphan(3000, Change::Free),
                Op::FreeBatch { first: 0, len: 2, order: crate::op::Order::Ascending },
            ],
        ),
    ];
    traps
        .into_iter()
        .map(|(name, config, ops)| (format!("trap-{name}"), encode(&config, &ops)))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::codec::{decode, decode_cached};
    use crate::driver;

    #[test]
    fn inputs_reach_the_common_outcomes() {
        let inputs = offset();
        let mut tally = driver::Tally::default();
        for (name, bytes) in &inputs {
            let (config, ops) = decode(bytes).expect("a valid input");
            assert!(ops.len() > 2, "{name} has {} steps", ops.len());
            tally.add(
                &driver::run(&config, &ops).unwrap_or_else(|failure| panic!("{name}: {failure}")),
            );
        }
        for what in [
            "allocate: granted",
            "free",
            "allocate_scattered: granted in several",
            "extend: granted",
        ] {
            assert!(tally.of(what) > 0, "no step has the outcome “{what}”:\n{tally}");
        }
    }

    #[test]
    fn inputs_for_slabs_reach_the_common_outcomes() {
        let mut tally = driver::Tally::default();
        for (name, bytes) in slab() {
            let (config, ops) = crate::slabs::codec::decode(&bytes).expect("a valid input");
            assert!(ops.len() > 2, "{name} has {} steps", ops.len());
            tally.add(
                &crate::slabs::run(&config, &ops)
                    .unwrap_or_else(|wrong| panic!("{name}: {wrong:#}")),
            );
        }
        for what in
            ["alloc", "free_chain of several", "trim", "tick with no thread left", "replace"]
        {
            assert!(tally.of(what) > 0, "no step has the outcome “{what}”:\n{tally}");
        }
    }

    #[test]
    fn inputs_for_cached_spaces_reach_the_common_outcomes() {
        let mut tally = driver::Tally::default();
        for (name, bytes) in extents() {
            let (config, ops) = decode_cached(&bytes).expect("a valid input");
            tally.add(
                &driver::run(&config, &ops).unwrap_or_else(|failure| panic!("{name}: {failure}")),
            );
        }
        let reached = [
            "allocate: granted",
            "allocate: failed",
            "something is cached",
            "reclaims",
            "grow: granted",
        ];
        assert!(reached.iter().all(|what| tally.of(what) > 0), "{tally}");
    }
}
