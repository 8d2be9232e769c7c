//! Which share of requested blocks each policy of eviction finds: no times, and the same figures at
//! each run.
//!
//! 1. *Traces.* The generated [`Prefixes`] of the testkit, and recorded ones from files. A request
//!    is a chain of blocks; a block is found only if it and all blocks before it are held. What is
//!    not found is put in.
//! 2. *Pools.* 1/64 to 1/2 of the different blocks of a trace have room. All blocks are of one
//!    size.
//! 3. *Policies.* [`PolicyId::Lru`] and [`PolicyId::ScanResistant`] are those of the library: a
//!    [`KvCache`](kvmem::pool::KvCache) with one and with eight shards, driven as the replay of a
//!    trace drives it. The others are models in a few lines, with one order for all blocks: S3-FIFO
//!    after Yang et al., *FIFO queues are all you need for cache eviction* (SOSP 2023), ARC after
//!    Megiddo and Modha, *ARC: a self-tuning, low overhead replacement cache* (FAST 2003), and the
//!    *optimum*, which knows the future.
//! 4. *The optimum.* Belady's rule: the block whose next use is farthest goes, and one that is not
//!    used again never comes in (*A study of replacement algorithms for a virtual-storage
//!    computer*, IBM Systems Journal 5, 1966). Blocks are of one size, so no policy finds more
//!    blocks one by one. A request that uses a block uses all blocks before it, so their next uses
//!    are never later; and of blocks that are used next by the same request the rule lets the last
//!    of the chain go first. So what it holds are whole prefixes, every block that it finds is
//!    found with its prefix, and no policy finds more of those either.

mod arc;
mod html;
mod library;
mod model;
mod optimum;
mod report;
mod s3_fifo;
mod trace;

use std::path::PathBuf;
use std::time::Instant;

use kvmem_testkit::workload::Prefixes;
use serde::{Deserialize, Serialize};

pub use self::report::{Report, Row};
pub use self::trace::Trace;
use super::MeasureError;
use crate::names::names;
use crate::progress::Progress;

/// Requests of a generated trace.
const REQUESTS: usize = 12_000;
/// As many, in a quick run.
const QUICK_REQUESTS: usize = 1_500;
/// Seed of all generated traces.
const SEED: u64 = 1;
/// Of the different blocks of a trace, one in so many has room.
pub const POOLS: [u64; 6] = [64, 32, 16, 8, 4, 2];
/// Shards of the library's caches.
pub const SHARDS: [u32; 2] = [1, 8];

/// What to run.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// Shorter traces.
    pub quick: bool,
    /// Files with recorded traces, one JSON object a line with `hash_ids`.
    pub traces: Vec<PathBuf>,
}

/// Why a run ended early.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum HitsError {
    /// A trace cannot be read.
    #[error("cannot read the trace {path}: {why}")]
    Trace {
        /// The file.
        path: String,
        /// Why not.
        why: String,
    },
    /// The library's cache failed.
    #[error(transparent)]
    Cache(#[from] MeasureError),
}

/// The policies by name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum PolicyId {
    /// The library's LRU.
    Lru,
    /// The library's scan-resistant policy.
    ScanResistant,
    /// S3-FIFO.
    S3Fifo,
    /// ARC.
    Arc,
    /// What no policy exceeds.
    Optimum,
}

impl PolicyId {
    /// All policies, in the order in which reports list them.
    pub const ALL: [Self; 5] =
        [Self::Lru, Self::ScanResistant, Self::S3Fifo, Self::Arc, Self::Optimum];

    /// The name in JSON.
    pub fn name(self) -> &'static str {
        match self {
            Self::Lru => "lru",
            Self::ScanResistant => "scan-resistant",
            Self::S3Fifo => "s3-fifo",
            Self::Arc => "arc",
            Self::Optimum => "optimum",
        }
    }

    /// How many shards it is measured with.
    fn shards(self) -> &'static [u32] {
        match self {
            Self::Lru | Self::ScanResistant => &SHARDS,
            Self::S3Fifo | Self::Arc | Self::Optimum => &[1],
        }
    }
}

names!(PolicyId, UnknownPolicy, "policy", "A name that no policy bears.");

/// Blocks found with all before them, of the blocks requested.
///
/// # Errors
/// [`MeasureError`]: the library's cache failed.
pub fn hits(
    trace: &Trace,
    policy: PolicyId,
    shards: u32,
    blocks: u64,
) -> Result<u64, MeasureError> {
    let room = blocks as usize;
    let model: &mut dyn model::Model = match policy {
        PolicyId::Lru | PolicyId::ScanResistant => {
            &mut library::Library::new(policy, shards, blocks)?
        }
        PolicyId::S3Fifo => &mut s3_fifo::S3Fifo::new(room),
        PolicyId::Arc => &mut arc::Arc::new(room),
        PolicyId::Optimum => &mut optimum::Optimum::new(room, trace),
    };
    trace.requests.iter().map(|chain| model.request(chain)).sum()
}

/// Runs all policies on all traces.
///
/// # Errors
/// [`HitsError`] when a trace cannot be read, or the library's cache fails.
pub fn run(options: &Options, progress: &mut dyn Progress<Row>) -> Result<Report, HitsError> {
    let began = Instant::now();
    let requests = if options.quick { QUICK_REQUESTS } else { REQUESTS };
    let mut traces = Vec::new();
    for path in &options.traces {
        traces.push(Trace::read(path, options.quick.then_some(QUICK_REQUESTS))?);
    }
    traces.extend(Prefixes::ALL.map(|kind| Trace::new(kind.name(), kind.requests(SEED, requests))));
    let columns = PolicyId::ALL
        .iter()
        .flat_map(|&policy| policy.shards().iter().map(move |&shards| (policy, shards)));
    let columns: Vec<(PolicyId, u32)> = columns.collect();
    progress.begin((traces.len() * POOLS.len() * columns.len()) as u64);
    let mut rows = Vec::new();
    for trace in &traces {
        for pool in POOLS {
            let blocks = (trace.distinct / pool).max(1);
            for &(policy, shards) in &columns {
                progress.step(&format!("{} 1/{pool} {}", trace.name, policy.name()));
                let hits = hits(trace, policy, shards, blocks)?;
                rows.push(Row {
                    trace: trace.name.clone(),
                    pool,
                    blocks,
                    policy,
                    shards,
                    hits,
                    requested: trace.requested,
                });
                progress.advance(1);
            }
        }
    }
    Ok(Report::new(options.quick, began.elapsed().as_secs_f64(), rows))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn quick() -> Vec<Trace> {
        Prefixes::ALL.map(|kind| Trace::new(kind.name(), kind.requests(7, 1200))).into()
    }

    #[test]
    fn scan_resistant_finds_at_least_as_much_as_lru() {
        // An unoptimized build takes half a minute for two of them.
        let pools: &[u64] = if cfg!(debug_assertions) { &[64, 16] } else { &[64, 32, 16, 8] };
        let mut gain = 0.0;
        for kind in Prefixes::ALL {
            // The traces have to be long enough for the model to learn.
            let trace = Trace::new(kind.name(), kind.requests(7, 3000));
            for &pool in pools {
                for shards in SHARDS {
                    let blocks = trace.distinct / pool;
                    let [lru, other] = [PolicyId::Lru, PolicyId::ScanResistant]
                        .map(|policy| hits(&trace, policy, shards, blocks).unwrap());
                    assert!(
                        other >= lru,
                        "{} in 1/{pool}, {shards} shards: {other} blocks, LRU {lru}",
                        trace.name
                    );
                    gain += 100.0 * (other - lru) as f64 / trace.requested as f64;
                }
            }
        }
        assert!(gain > 40.0, "{gain} percent more");
    }

    #[test]
    fn nothing_exceeds_the_optimum_and_nothing_finds_what_was_never_there() {
        for trace in quick() {
            let mut seen = std::collections::HashSet::new();
            let ever = trace.requests.iter().flatten().filter(|&&block| !seen.insert(block)).count()
                as u64;
            let mut last = 0;
            for pool in POOLS {
                let of = |policy| hits(&trace, policy, 1, trace.distinct / pool).unwrap();
                let optimum = of(PolicyId::Optimum);
                assert!((last..=ever).contains(&optimum), "{}: {optimum}", trace.name);
                for policy in PolicyId::ALL {
                    assert!(of(policy) <= optimum, "{} in 1/{pool}: {}", trace.name, policy.name());
                }
                last = optimum;
            }
        }
    }

    #[test]
    fn what_all_have_room_for_all_find() {
        let trace = &quick()[0];
        let found = PolicyId::ALL.map(|policy| hits(trace, policy, 1, 2 * trace.distinct).unwrap());
        assert!(found.iter().all(|&hits| hits == found[0]), "{found:?}");
    }
}
