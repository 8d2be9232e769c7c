//! KV blocks and their indexes, in one pool of 1 TiB.
//!
//! Each round draws N from 1 to 128 and requests N objects of the first size, then N of the second.
//! On failure one twentieth of all live objects are evicted at random, repeatedly until the request
//! fits. Utilization is sampled just before each such eviction, so its few samples are the fullest
//! moments of the pool.

use anyhow::Result;
use kvmem_testkit::workload::stream;
use rand::RngExt;

use super::{Outcome, REQUESTS, VICTIMS};
use crate::bench::clock::Stopwatch;
use crate::bench::contender::{Contender, Space};
use crate::bench::live_set::LiveSet;
use crate::bench::stats::Utilization;

/// Bytes of a KV object: 64 tokens of the published model.
pub const KV_BYTES: u64 = 3_274_752;
/// Bytes of an index object.
pub const INDEX_BYTES: u64 = 658_432;
/// The most objects of each size in a round.
pub const MAX_OBJECTS: u64 = 128;
/// The published pool.
pub const POOL: u64 = 1 << 40;

/// Runs `warm_up` rounds and then `rounds` measured ones in `pool` bytes.
pub fn run<C: Contender>(seed: u64, pool: u64, warm_up: u64, rounds: u64) -> Result<Outcome> {
    let space = Space::for_sizes_from(INDEX_BYTES, pool);
    let mut live = LiveSet::new(C::create(space)?, space.max_live, stream(seed, VICTIMS));
    let mut requests = stream(seed, REQUESTS);
    let mut samples = Vec::with_capacity(4096);
    let mut round = |live: &mut LiveSet<C>, samples: &mut Vec<u64>| -> Result<u64> {
        let n = requests.random_range(1..=MAX_OBJECTS);
        for size in [KV_BYTES, INDEX_BYTES] {
            for _ in 0..n {
                live.put_evicting_many(size, |bytes| samples.push(bytes))?;
            }
        }
        Ok(2 * n)
    };
    for _ in 0..warm_up {
        round(&mut live, &mut samples)?;
    }
    samples.clear();
    let mut ops = 0;
    let watch = Stopwatch::start();
    for _ in 0..rounds {
        ops += round(&mut live, &mut samples)?;
    }
    let ns_per_op = watch.ns_per_op(ops);
    Ok(Outcome { util: Utilization::of(&mut samples, pool)?, ns_per_op })
}
