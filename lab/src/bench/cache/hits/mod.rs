//! The hit rates of eviction policies: no times, and the same figures in each run.
//!
//! 1. *Traces.* The generated [`Prefixes`] of the testkit, and recorded traces from files. A
//!    request is a chain of blocks; a block is found only if it and all blocks before it are
//!    cached. A block that is not found is inserted.
//! 2. *Pools.* A pool holds 1/64 to 1/2 of the distinct blocks of a trace. All blocks have one
//!    size.
//! 3. *Policies.* `lru` and `scan-resistant` are those of the library: a
//!    [`KvCache`](kvmem::cache::KvCache) with one and with eight shards, driven as the replay of a
//!    trace drives it. `node-lru` and `node-scan-resistant` are those of a node with one client,
//!    which stores chains. The others are short models with one order for all blocks: S3-FIFO after
//!    Yang et al., *FIFO queues are all you need for cache eviction* (SOSP 2023); ARC after Megiddo
//!    and Modha, *ARC: a self-tuning, low overhead replacement cache* (FAST 2003); and the
//!    *optimum*, which knows the future.
//! 4. *The optimum.* Belady's rule evicts the block whose next use is farthest, and does not insert
//!    a block that is never used again (*A study of replacement algorithms for a virtual-storage
//!    computer*, IBM Systems Journal 5, 1966). Blocks have one size, so no policy finds more single
//!    blocks. A request that uses a block uses all blocks before it, so their next uses are never
//!    later; among blocks whose next use is the same request, the rule evicts the last of the chain
//!    first. The optimum therefore holds whole prefixes, every block that it finds is found with
//!    its prefix, and no policy finds more blocks with their prefixes either.

mod arc;
mod library;
mod model;
mod node;
mod optimum;
mod s3_fifo;

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use anyhow::{Result, ensure};
use kvmem_testkit::workload::Prefixes;
use kvmem_trace::{TraceFile, TraceOptions};

use crate::bench::suite::{Figures, Run, Turns, names};

/// Seed of all generated traces.
const SEED: u64 = 1;
/// A pool holds one in this many of the distinct blocks of a trace.
const POOLS: [u64; 6] = [64, 32, 16, 8, 4, 2];

names! {
    /// The policies by name.
    pub enum PolicyId ("policy") {
        Lru = "lru",
        ScanResistant = "scan-resistant",
        Lru8 = "lru ×8",
        ScanResistant8 = "scan-resistant ×8",
        NodeLru = "node-lru",
        NodeScanResistant = "node-scan-resistant",
        S3Fifo = "s3-fifo",
        Arc = "arc",
        Optimum = "optimum",
    }
}

/// The requested chains of blocks, numbered from 0.
pub struct Trace {
    requests: Vec<Vec<u32>>,
    /// Number of distinct blocks.
    distinct: u64,
    /// Number of blocks in all chains.
    requested: u64,
}

impl Trace {
    /// Creates a trace from chains of arbitrarily named blocks.
    fn new(requests: impl IntoIterator<Item = Vec<u64>>) -> Trace {
        let mut numbers = HashMap::new();
        let mut number = |block| {
            let next = numbers.len() as u32;
            *numbers.entry(block).or_insert(next)
        };
        let chain = |chain: Vec<u64>| chain.into_iter().map(&mut number).collect();
        let requests: Vec<Vec<u32>> = requests.into_iter().map(chain).collect();
        let requested = requests.iter().map(|chain| chain.len() as u64).sum();
        Trace { requests, distinct: numbers.len() as u64, requested }
    }

    /// Reads at most `most` requests of a file.
    fn read(path: &Path, most: usize) -> Result<Trace> {
        let trace = TraceFile::open(path, 1)?.requests(&TraceOptions::default())?;
        let requests = trace.take(most).map(|request| Ok(request?.hash_ids));
        let requests = requests.collect::<Result<Vec<_>>>()?;
        ensure!(!requests.is_empty(), "{}: it contains no request", path.display());
        Ok(Trace::new(requests))
    }
}

/// Returns the number of requested blocks that are found with all blocks before them.
fn hits(trace: &Trace, policy: PolicyId, blocks: u64) -> Result<u64> {
    let capacity = blocks as usize;
    let model: &mut dyn model::Model = match policy {
        PolicyId::Lru => &mut library::Library::new(false, 1, blocks)?,
        PolicyId::ScanResistant => &mut library::Library::new(true, 1, blocks)?,
        PolicyId::Lru8 => &mut library::Library::new(false, 8, blocks)?,
        PolicyId::ScanResistant8 => &mut library::Library::new(true, 8, blocks)?,
        PolicyId::NodeLru | PolicyId::NodeScanResistant => {
            &mut node::NodeCache::new(policy, blocks)?
        }
        PolicyId::S3Fifo => &mut s3_fifo::S3Fifo::new(capacity),
        PolicyId::Arc => &mut arc::ArcPolicy::new(capacity),
        PolicyId::Optimum => &mut optimum::Optimum::new(capacity, trace),
    };
    trace.requests.iter().map(|chain| model.request(chain)).sum()
}

/// Runs all policies on the generated traces and on those of `files`.
pub fn run(run: &mut Run, files: &[PathBuf]) -> Result<()> {
    run.settings("the same figures at each run");
    let requests = run.length(12_000, 1_500, 400);
    let mut traces = Vec::new();
    for path in files {
        let most = if run.quick() { requests } else { usize::MAX };
        traces.push((path.display().to_string(), Trace::read(path, most)?));
    }
    let generated =
        |kind: Prefixes| (kind.name().to_owned(), Trace::new(kind.requests(SEED, requests)));
    traces.extend(Prefixes::ALL.map(generated));
    for (name, trace) in &traces {
        let requested = trace.requested;
        let about = "requested blocks that are found with all before them";
        run.about(name, format_args!("percent of {requested} {about}"));
        for pool in POOLS {
            let blocks = (trace.distinct / pool).max(1);
            let line = format!("1/{pool}, {blocks} blocks");
            run.turns((name, &line), &PolicyId::ALL, Turns::of(1), |policy, _| {
                let hits = hits(trace, policy, blocks)? as f64;
                Ok(Figures::of("%", 100.0 * hits / requested as f64))
            })?;
        }
        for (ours, lru) in
            [(PolicyId::ScanResistant, PolicyId::Lru), (PolicyId::ScanResistant8, PolicyId::Lru8)]
        {
            let goal = format!("{name}, {ours}: hits over those of LRU");
            run.at_least(&goal, 1.0, run.over(name, (ours, lru), "%", |_| true));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_policy_exceeds_the_optimum_and_all_find_the_same_if_everything_fits() {
        for kind in Prefixes::ALL {
            let trace = Trace::new(kind.requests(7, 400));
            let of = |policy, blocks| hits(&trace, policy, blocks).unwrap();
            let optimum = of(PolicyId::Optimum, trace.distinct / 16);
            let all = of(PolicyId::Optimum, 2 * trace.distinct);
            for policy in PolicyId::ALL {
                assert!(of(policy, trace.distinct / 16) <= optimum, "{kind:?} {policy}");
                // Shards fill unevenly.
                assert!(of(policy, 2 * trace.distinct) == all, "{kind:?} {policy}");
            }
        }
    }
}
