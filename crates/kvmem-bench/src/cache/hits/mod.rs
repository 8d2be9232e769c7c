//! The hit rates of eviction policies: no times, and the same figures in each run.
//!
//! 1. *Traces.* The generated [`Prefixes`] of the testkit, and recorded traces from files. A
//!    request is a chain of blocks; a block is found only if it and all blocks before it are
//!    cached. A block that is not found is inserted.
//! 2. *Pools.* A pool holds 1/64 to 1/2 of the distinct blocks of a trace. All blocks have one
//!    size.
//! 3. *Policies.* [`PolicyId::Lru`] and [`PolicyId::ScanResistant`] are those of the library: a
//!    [`KvCache`](kvmem::cache::KvCache) with one and with eight shards, driven as the replay of a
//!    trace drives it. [`PolicyId::NodeLru`] and [`PolicyId::NodeScanResistant`] are those of a
//!    node with one client, which stores chains. The others are short models with one order for
//!    all blocks: S3-FIFO after Yang et al., *FIFO queues are all you need for cache eviction*
//!    (SOSP 2023); ARC after Megiddo and Modha, *ARC: a self-tuning, low overhead replacement
//!    cache* (FAST 2003); the policy of the connector `vllm-marconi-offload`; and the *optimum*,
//!    which knows the future.
//! 4. *The optimum.* Belady's rule evicts the block whose next use is farthest, and does not insert
//!    a block that is never used again (*A study of replacement algorithms for a virtual-storage
//!    computer*, IBM Systems Journal 5, 1966). Blocks have one size, so no policy finds more single
//!    blocks. A request that uses a block uses all blocks before it, so their next uses are never
//!    later; among blocks whose next use is the same request, the rule evicts the last of the chain
//!    first. The optimum therefore holds whole prefixes, every block that it finds is found with
//!    its prefix, and no policy finds more blocks with their prefixes either.

mod arc;
mod library;
mod marconi;
mod model;
mod node;
mod optimum;
mod s3_fifo;
mod suite;
mod trace;

use std::path::PathBuf;
use std::sync::Arc;

use kvmem_testkit::workload::Prefixes;

pub use self::suite::{HitRateDetails, HitRateRow, HitRateSuite};
pub use self::trace::Trace;
use super::CacheMeasureError;
use crate::progress::Progress;
use crate::suite::{BenchError, Report, names};

/// Requests of a generated trace.
const REQUESTS: usize = 12_000;
/// Requests of a generated trace in a quick run.
const QUICK_REQUESTS: usize = 1_500;
/// Seed of all generated traces.
const SEED: u64 = 1;
/// A pool holds one in this many of the distinct blocks of a trace.
pub const POOLS: [u64; 6] = [64, 32, 16, 8, 4, 2];
/// Shards of the library's caches.
pub const SHARDS: [u32; 2] = [1, 8];

/// The result of a run.
pub type HitRateReport = Report<HitRateSuite>;

/// What to run.
#[derive(Clone, Debug, Default)]
pub struct HitRateOptions {
    /// Whether to use shorter traces.
    pub quick: bool,
    /// Files with recorded traces, one JSON object per line with `hash_ids`.
    pub traces: Vec<PathBuf>,
}

/// The error that ended a run early.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum HitsError {
    /// A trace cannot be read.
    #[error("cannot read the trace {path}: {why}")]
    Trace {
        /// The file.
        path: String,
        /// The reason.
        why: String,
    },
    /// The library's cache failed.
    #[error(transparent)]
    Cache(#[from] BenchError<CacheMeasureError>),
}

names! {
    /// The policies by name.
    pub enum PolicyId ("policy", UnknownPolicyError) {
        /// The library's LRU.
        Lru = "lru",
        /// The library's scan-resistant policy.
        ScanResistant = "scan-resistant",
        /// The LRU of a node.
        NodeLru = "node-lru",
        /// The scan-resistant policy of a node.
        NodeScanResistant = "node-scan-resistant",
        /// S3-FIFO.
        S3Fifo = "s3-fifo",
        /// ARC.
        Arc = "arc",
        /// The policy of `vllm-marconi-offload`.
        Marconi = "marconi",
        /// The bound of all policies.
        Optimum = "optimum",
    }
}

impl PolicyId {
    /// Returns the numbers of shards with which it is measured.
    fn shards(self) -> &'static [u32] {
        match self {
            Self::Lru | Self::ScanResistant => &SHARDS,
            _ => &[1],
        }
    }
}

/// Returns the number of requested blocks that are found with all blocks before them.
///
/// # Errors
/// [`CacheMeasureError`] if the library's cache fails.
pub fn hits(
    trace: &Trace,
    policy: PolicyId,
    shards: u32,
    blocks: u64,
) -> Result<u64, CacheMeasureError> {
    let capacity = blocks as usize;
    let model: &mut dyn model::Model = match policy {
        PolicyId::Lru | PolicyId::ScanResistant => {
            &mut library::Library::new(policy, shards, blocks)?
        }
        PolicyId::NodeLru | PolicyId::NodeScanResistant => {
            &mut node::NodeCache::new(policy, blocks)?
        }
        PolicyId::S3Fifo => &mut s3_fifo::S3Fifo::new(capacity),
        PolicyId::Marconi => &mut marconi::Marconi::new(capacity),
        PolicyId::Arc => &mut arc::ArcPolicy::new(capacity),
        PolicyId::Optimum => &mut optimum::Optimum::new(capacity, trace),
    };
    trace.requests.iter().map(|chain| model.request(chain)).sum()
}

/// Runs all policies on all traces.
///
/// # Errors
/// [`HitsError`] if a trace cannot be read, or if the library's cache fails.
pub fn run(
    options: &HitRateOptions,
    progress: &mut dyn Progress<HitRateRow>,
) -> Result<HitRateReport, HitsError> {
    let requests = if options.quick { QUICK_REQUESTS } else { REQUESTS };
    let mut traces = Vec::new();
    for path in &options.traces {
        traces.push(Trace::read(path, options.quick.then_some(QUICK_REQUESTS))?);
    }
    traces.extend(Prefixes::ALL.map(|kind| Trace::new(kind.name(), kind.requests(SEED, requests))));
    let traces = traces.into_iter().map(Arc::new).collect();
    Ok(crate::suite::run(&suite::Traces { quick: options.quick, traces }, progress)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An unoptimized build is slow. It takes fewer requests and pools.
    const SLOW: bool = cfg!(debug_assertions);

    fn quick() -> Vec<Trace> {
        let requests = if SLOW { 400 } else { 1200 };
        Prefixes::ALL.map(|kind| Trace::new(kind.name(), kind.requests(7, requests))).into()
    }

    #[test]
    fn scan_resistant_finds_at_least_as_much_as_lru() {
        // The traces have to be long enough for the model to learn: longer for smaller pools. The
        // gains of one pool do not add up to the sum.
        let (pools, shards): (&[u64], &[u32]) =
            if SLOW { (&[64], &SHARDS[..1]) } else { (&[64, 32, 16, 8], &SHARDS) };
        let mut gain = 0.0;
        for kind in Prefixes::ALL {
            let trace = Trace::new(kind.name(), kind.requests(7, 3000));
            for &pool in pools {
                for &shards in shards {
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
        assert!(SLOW || gain > 40.0, "{gain} percent more");
    }

    #[test]
    fn no_policy_exceeds_the_optimum_and_the_optimum_not_the_repeated_blocks() {
        for trace in quick() {
            let mut seen = std::collections::HashSet::new();
            let ever = trace.requests.iter().flatten().filter(|&&block| !seen.insert(block)).count()
                as u64;
            let mut last = 0;
            for pool in POOLS.into_iter().step_by(if SLOW { 3 } else { 1 }) {
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
    fn all_policies_find_the_same_if_everything_fits() {
        let trace = &quick()[0];
        let found = PolicyId::ALL.map(|policy| hits(trace, policy, 1, 2 * trace.distinct).unwrap());
        assert!(found.iter().all(|&hits| hits == found[0]), "{found:?}");
    }
}
