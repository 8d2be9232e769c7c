//! *Magazines* of the model: per core and size, below a bound of cached bytes, as an
//! [`ExtentCache`](kvmem::slab::ExtentCache) has them.

use std::collections::HashMap;

use super::costs::HIT;
use crate::concurrency::CallKind;

/// One part in this many of the space may be cached.
const BOUND_SHARE: u64 = 32;
/// A magazine holds one part in this many of the bound.
const MAGAZINE_SHARE: u64 = 16;
/// The most ranges of a magazine.
const MAX_ROUNDS: u64 = 32;
/// Full magazines that the depot keeps for each size.
const MAX_FULL: u64 = 8;
/// Calls with a size after which it is hot, the sizes that are counted, and the most hot ones.
const HOT_CALLS: u32 = 8;
const CANDIDATES: usize = 64;
const MAX_HOT: usize = 32;

/// The two magazines of a core for one size: how many ranges each holds, if it exists.
#[derive(Clone, Copy, Debug, Default)]
struct Pair {
    loaded: Option<u64>,
    previous: Option<u64>,
}

/// The depot of one size.
#[derive(Clone, Debug)]
struct Depot {
    /// Ranges of a full magazine.
    rounds: u64,
    full: u64,
    /// The core that had its line last.
    at: Option<usize>,
    pairs: Vec<Pair>,
}

/// What a call does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Served {
    /// It takes this time, and this many transfers.
    Here { ps: u64, lines: u64 },
    /// It makes this many calls of the space under one lock.
    BySpace { calls: u64 },
}

/// All magazines.
#[derive(Clone, Debug)]
pub(super) struct MagazineModel {
    cores: usize,
    bound: u64,
    charged: u64,
    depots: HashMap<u64, Depot>,
    /// Sizes that may become hot, with their calls. A size takes the place of another.
    candidates: Vec<(u64, u32)>,
    /// Calls that a magazine or the depot served.
    pub(super) hits: u64,
}

impl MagazineModel {
    pub(super) fn new(cores: usize, capacity: u64) -> Self {
        let bound = capacity / BOUND_SHARE;
        let candidates = vec![(0, 0); CANDIDATES];
        MagazineModel { cores, bound, charged: 0, depots: HashMap::new(), candidates, hits: 0 }
    }

    /// Counts a call and returns what serves it.
    pub(super) fn call(&mut self, core: usize, kind: CallKind, bytes: u64) -> Served {
        let single = Served::BySpace { calls: 1 };
        if !self.depots.contains_key(&bytes) {
            let place = bytes.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
            let candidate = &mut self.candidates[place as usize % CANDIDATES];
            let seen = if candidate.0 == bytes { candidate.1 + 1 } else { 1 };
            *candidate = (bytes, seen);
            if seen < HOT_CALLS || self.depots.len() == MAX_HOT {
                return single;
            }
            let rounds = (self.bound / MAGAZINE_SHARE / bytes).clamp(1, MAX_ROUNDS);
            let pairs = vec![Pair::default(); self.cores];
            self.depots.insert(bytes, Depot { rounds, full: 0, at: None, pairs });
        }
        let Some(depot) = self.depots.get_mut(&bytes) else { return single };
        let (bound, charged) = (self.bound, &mut self.charged);
        let charge = depot.rounds * bytes;
        let mut make = || {
            let may = *charged + charge <= bound;
            *charged += if may { charge } else { 0 };
            may
        };
        let rounds = depot.rounds;
        let pair = &mut depot.pairs[core];
        // Swaps the magazines if only the other one can serve the call.
        let serves = |magazine: Option<u64>| match kind {
            CallKind::Allocate => magazine.is_some_and(|held| held > 0),
            _ => magazine.is_some_and(|held| held < rounds),
        };
        if !serves(pair.loaded) && serves(pair.previous) {
            std::mem::swap(&mut pair.loaded, &mut pair.previous);
        }
        let allocates = kind == CallKind::Allocate;
        if serves(pair.loaded) {
            pair.loaded = pair.loaded.map(|held| if allocates { held - 1 } else { held + 1 });
            self.hits += 1;
            return Served::Here { ps: HIT, lines: 0 };
        }
        let lines = u64::from(depot.at.is_some_and(|at| at != core));
        if allocates {
            if depot.full > 0 {
                (depot.full, depot.at) = (depot.full - 1, Some(core));
                if pair.loaded.replace(rounds - 1).is_some() {
                    // The empty magazine no longer counts.
                    self.charged -= charge;
                }
                self.hits += 1;
                return Served::Here { ps: 2 * HIT, lines };
            }
            if pair.loaded.is_some() || make() {
                pair.loaded = Some(rounds - 1);
                return Served::BySpace { calls: rounds };
            }
            return single;
        }
        if pair.loaded.is_none() && make() {
            pair.loaded = Some(1);
        } else if pair.loaded.is_some() && pair.previous.is_none() && make() {
            pair.previous = pair.loaded.replace(1);
        } else if pair.loaded.is_some() && depot.full < MAX_FULL && make() {
            // The full magazine goes to the depot, and an empty one comes.
            (depot.full, depot.at) = (depot.full + 1, Some(core));
            pair.loaded = Some(1);
            self.hits += 1;
            return Served::Here { ps: 2 * HIT, lines };
        } else if pair.loaded.is_some() {
            // The ranges of the full magazine, and this one, return to the space.
            pair.loaded = Some(0);
            return Served::BySpace { calls: rounds + 1 };
        } else {
            return single;
        }
        self.hits += 1;
        Served::Here { ps: HIT, lines: 0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    fn hits(model: &mut MagazineModel, calls: impl Iterator<Item = (CallKind, u64)>) -> (u64, u64) {
        let before = model.hits;
        let all = calls.map(|(kind, bytes)| model.call(0, kind, bytes)).count() as u64;
        (model.hits - before, all)
    }

    #[test]
    fn one_size_hits_and_different_sizes_miss() {
        let mut model = MagazineModel::new(2, 16 << 30);
        let pairs = |at: u64| [(CallKind::Allocate, at), (CallKind::Free, at)];
        hits(&mut model, (0..100).flat_map(|_| pairs(MIB)));
        assert_eq!(hits(&mut model, (0..100).flat_map(|_| pairs(MIB))), (200, 200));
        assert_eq!(hits(&mut model, (0..1000).flat_map(|at| pairs(MIB + 1 + at))), (0, 2000));
    }

    #[test]
    fn the_bound_leaves_cores_without_magazines() {
        // 32 MiB cached, magazines of 2 MiB: one range of 2 MiB each.
        let mut model = MagazineModel::new(64, 1 << 30);
        let mut served = Vec::new();
        for _ in 0..10 {
            for core in 0..64 {
                let one = model.call(core, CallKind::Allocate, 2 * MIB);
                let other = model.call(core, CallKind::Free, 2 * MIB);
                served.push((core, one, other));
            }
        }
        let (here, space) = (Served::Here { ps: HIT, lines: 0 }, Served::BySpace { calls: 1 });
        let last = &served[served.len() - 64..];
        let without =
            last.iter().filter(|(_, one, other)| (*one, *other) == (space, space)).count();
        let with = last.iter().filter(|(_, one, other)| (*one, *other) == (here, here)).count();
        assert_eq!((with, without), (16, 48), "{last:?}");
        assert!(model.charged <= model.bound);
    }

    #[test]
    fn a_full_magazine_of_one_core_serves_another() {
        let mut model = MagazineModel::new(2, 16 << 30);
        // 32 ranges a magazine: three of the first core fill, and one of them reaches the depot.
        (0..HOT_CALLS).for_each(|_| _ = model.call(0, CallKind::Free, 4096));
        let frees = (0..97).map(|_| model.call(0, CallKind::Free, 4096)).collect::<Vec<_>>();
        assert!(frees.contains(&Served::Here { ps: 2 * HIT, lines: 0 }), "{frees:?}");
        let first = model.call(1, CallKind::Allocate, 4096);
        assert_eq!(first, Served::Here { ps: 2 * HIT, lines: 1 });
        let mut calls = (0..31).map(|_| model.call(1, CallKind::Allocate, 4096));
        assert!(calls.all(|call| call == Served::Here { ps: HIT, lines: 0 }));
    }
}
