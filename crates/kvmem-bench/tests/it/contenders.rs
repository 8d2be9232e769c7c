//! Every contender compared with a plain record of the live ranges.

use std::collections::BTreeMap;

use kvmem_bench::contender::binned::{Binned, BinnedUnrounded};
use kvmem_bench::contender::crates_io::CrateAllocator;
use kvmem_bench::contender::null::Null;
use kvmem_bench::contender::{Contender, ContenderId, RangeHandle, Space, Visitor};
use kvmem_testkit::workload::{Sizes, stream};
use rand::RngExt;

/// Live ranges by start.
#[derive(Default)]
struct Account(BTreeMap<u64, u64>);

impl Account {
    fn add(&mut self, capacity: u64, held: &impl RangeHandle) {
        let (start, end) = (held.offset(), held.offset() + held.size());
        assert!(end <= capacity, "{start}..{end} passes the end, {capacity}");
        let before = self.0.range(..end).next_back();
        assert!(
            before.is_none_or(|(_, &other)| other <= start),
            "{start}..{end} overlaps {before:?}"
        );
        self.0.insert(start, end);
    }

    fn remove(&mut self, held: &impl RangeHandle) {
        assert_eq!(self.0.remove(&held.offset()), Some(held.offset() + held.size()));
    }
}

/// Allocates and frees at random in a space of `capacity` and checks for overlaps.
#[derive(Clone, Copy)]
struct Churn {
    capacity: u64,
    smallest: u64,
    largest: u64,
}

impl Visitor for Churn {
    type Output = ();

    fn visit<C: Contender>(self) {
        let Self { capacity, smallest, largest } = self;
        let Ok(space) = C::create(Space::for_sizes_from(smallest, capacity)) else {
            assert_eq!(C::ID, ContenderId::OffsetAllocator);
            assert!(capacity > 15 << 28);
            return;
        };
        let (mut account, mut live) = (Account::default(), Vec::new());
        let sizes = Sizes::LogUniform { min: smallest, max: largest };
        let mut rng = stream(11, 0);
        let mut failures = 0;
        for _ in 0..20_000 {
            if rng.random_bool(0.55) {
                let size = sizes.sample(&mut rng);
                match space.allocate(size) {
                    Some(held) => {
                        assert_eq!(held.size(), size);
                        account.add(capacity, &held);
                        live.push(held);
                    }
                    None => failures += 1,
                }
            } else if !live.is_empty() {
                let held = live.swap_remove(rng.random_range(0..live.len()));
                account.remove(&held);
            }
        }
        assert!(failures > 0, "{} was never full", C::ID);
        live.clear();
        // Everything has merged: a request that fits an empty space fits now.
        let whole = if C::ID == ContenderId::OffsetAllocator { capacity / 8 * 7 } else { capacity };
        assert!(space.allocate(whole).is_some(), "{} did not merge", C::ID);
    }
}

fn real() -> impl Iterator<Item = ContenderId> {
    ContenderId::ALL.into_iter().filter(|&id| id != ContenderId::Null)
}

#[test]
fn no_contender_allocates_a_byte_twice() {
    for id in real() {
        id.visit(Churn { capacity: 1 << 20, smallest: 16, largest: 1 << 15 });
        id.visit(Churn { capacity: 1 << 40, smallest: 1 << 20, largest: 1 << 35 });
    }
}

/// Checks scattered requests: sizes add up, at most the allowed ranges, no overlap, no change on
/// failure.
struct Scatter;

impl Visitor for Scatter {
    type Output = ();

    fn visit<C: Contender>(self) {
        if !C::SCATTERS {
            return;
        }
        let capacity = 1 << 20;
        let space = C::create(Space::for_sizes_from(1, capacity)).unwrap();
        let (mut account, mut live) = (Account::default(), Vec::<Vec<C::Handle>>::new());
        let mut rng = stream(12, 0);
        let mut in_pieces = 0;
        for _ in 0..5_000 {
            let (total, most) = (rng.random_range(1..=1 << 17), rng.random_range(1..=4));
            if let Some(ranges) = space.allocate_scattered(total, most) {
                assert!((1..=most).contains(&ranges.len()));
                assert_eq!(ranges.iter().map(RangeHandle::size).sum::<u64>(), total);
                ranges.iter().for_each(|held| account.add(capacity, held));
                in_pieces += usize::from(ranges.len() > 1);
                live.push(ranges);
            } else {
                let ranges = live.swap_remove(rng.random_range(0..live.len()));
                ranges.iter().for_each(|held| account.remove(held));
            }
        }
        assert!(in_pieces > 0);
        live.clear();
        assert!(space.allocate(capacity).is_some());
    }
}

#[test]
fn scattered_requests_add_up() {
    for id in real() {
        id.visit(Scatter);
    }
}

/// The crate is a port of the allocator that the published one is derived from. Without rounding
/// the model must return the same offsets.
#[test]
fn the_model_without_rounding_returns_the_offsets_of_the_crate() {
    let capacity = 2_000_000_003;
    let space = Space::for_sizes_from(1000, capacity);
    let (model, port) =
        (BinnedUnrounded::create(space).unwrap(), CrateAllocator::create(space).unwrap());
    let sizes = Sizes::LogUniform { min: 1, max: 100_000_000 };
    let mut rng = stream(13, 0);
    let mut live = Vec::new();
    for _ in 0..30_000 {
        if live.is_empty() || rng.random_bool(0.55) {
            let size = sizes.sample(&mut rng);
            match (model.allocate(size), port.allocate(size)) {
                (Some(ours), Some(theirs)) => {
                    assert_eq!(ours.offset(), theirs.offset());
                    live.push((ours, theirs));
                }
                (None, None) => {
                    live.swap_remove(rng.random_range(0..live.len()));
                }
                (ours, theirs) => panic!("{size}: {} but {}", ours.is_some(), theirs.is_some()),
            }
        } else {
            live.swap_remove(rng.random_range(0..live.len()));
        }
    }
}

#[test]
fn the_models_fail_where_the_published_allocator_fails() {
    let space = |capacity| Space { capacity, max_live: 16 };
    // The range is in the bin below the one where the search for the request starts.
    assert!(BinnedUnrounded::create(space(699_050)).unwrap().allocate(664_908).is_none());
    assert!(Binned::create(space(699_050)).unwrap().allocate(664_908).is_none());
    let narrow = BinnedUnrounded::create(space(324)).unwrap();
    let _first = narrow.allocate(255).unwrap();
    assert!(narrow.allocate(67).is_none());
    // Above 3.75 GiB, offsets count units.
    let scaled = Binned::create(space(1 << 40)).unwrap();
    let (first, second) = (scaled.allocate(1).unwrap(), scaled.allocate(1).unwrap());
    assert_eq!(second.offset() - first.offset(), 512);
}

#[test]
fn handles_outlive_the_models() {
    let space = Binned::create(Space { capacity: 1 << 20, max_live: 4 }).unwrap();
    let held = space.allocate(4096).unwrap();
    drop(space);
    assert_eq!((held.offset(), held.size()), (0, 4096));
}

#[test]
fn handles_have_the_published_size() {
    assert_eq!(size_of::<<Binned as Contender>::Handle>(), 40);
    assert_eq!(size_of::<<Null as Contender>::Handle>(), 20);
    let space = Binned::create(Space { capacity: 1 << 20, max_live: 2000 }).unwrap();
    let empty = space.metadata_bytes().unwrap();
    let held: Vec<_> = (0..1000).map(|_| space.allocate(64).unwrap()).collect();
    assert_eq!(space.metadata_bytes().unwrap() - empty, 1000 * 32);
    drop(held);
    assert_eq!(space.metadata_bytes().unwrap(), empty);
}

#[test]
fn null_counts_bytes_and_stops_at_the_capacity() {
    let space = Null::create(Space { capacity: 100, max_live: 10 }).unwrap();
    let held = space.allocate(60).unwrap();
    assert!(space.allocate(41).is_none() && space.allocate(0).is_none());
    let rest = space.allocate(40).unwrap();
    drop(held);
    assert!(space.allocate(61).is_none());
    assert_eq!(space.allocate(60).unwrap().size() + rest.size(), 100);
}

#[test]
fn invalid_spaces_are_errors() {
    let of = |capacity, max_live| Space { capacity, max_live };
    assert!(Binned::create(of(0, 1)).is_err());
    assert!(Binned::create(of(1 << 20, usize::MAX)).is_err());
    assert!(CrateAllocator::create(of(0, 1)).is_err());
    assert!(CrateAllocator::create(of(1 << 32, 1)).is_err());
}

#[test]
fn names_parse_back() {
    for id in ContenderId::ALL {
        assert_eq!(id.to_string().parse(), Ok(id));
        assert_eq!(serde_json::to_string(&id).unwrap(), format!("\"{id}\""));
    }
    assert!("worst-fit".parse::<ContenderId>().unwrap_err().to_string().contains("worst-fit"));
}
