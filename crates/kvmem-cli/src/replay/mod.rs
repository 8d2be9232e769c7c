//! Replay of a KV-cache trace through a prefix cache on an allocator of offsets.
//!
//! ```text
//! trace ──requests──▶ cache ──allocate, free──▶ allocator of offsets
//! one JSON line a     hits, misses, LRU            │
//! request             eviction of blocks           ▼
//!                                               backing (on request): real memory, checksums
//! ```
//!
//! - [`trace`] reads the requests,
//! - [`model`] says which objects a block of them consists of,
//! - [`cache`] walks them, and times every allocation with [`latency`],
//! - [`backing`] proves that no two blocks share a byte,
//! - [`report`] is what comes out,
//! - [`sampling`] looks at the pool on the way, for the [`page`] that can be drawn of it.
//!
//! The trace's clock is not kept: requests are served one after the other, as fast as they can be.

pub mod backing;
pub mod cache;
pub mod latency;
pub mod model;
pub mod page;
pub mod report;
pub mod sampling;
pub mod trace;

use std::io::BufRead;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use backing::{Backing, BackingError};
use cache::{CacheError, PrefixCache};
use kvmem_bench::contender::{Contender, ContenderId, CreateError, Space};
use model::BlockLayout;
use report::{Backed, Report};
use sampling::Sampling;
use trace::{BLOCK_TOKENS, Trace, TraceError};

/// What to replay on what.
#[derive(Clone, Debug)]
pub struct Options {
    /// The trace's file, or `-`.
    pub trace: PathBuf,
    /// What the blocks are made of.
    pub layout: BlockLayout,
    /// The name of that.
    pub model: String,
    /// The size of the pool.
    pub pool_bytes: u64,
    /// Whether to put memory behind the pool.
    pub backed: bool,
    /// Stop after so many requests.
    pub requests_max: Option<u64>,
}

impl Options {
    /// Whether such a replay is possible at all.
    ///
    /// # Errors
    /// [`ReplayError::PoolTooSmall`] if the pool cannot hold a block.
    pub fn check(&self) -> Result<(), ReplayError> {
        let &Options { ref layout, pool_bytes, .. } = self;
        if pool_bytes < layout.bytes() {
            let (objects, block_bytes) = (layout.objects().len(), layout.bytes());
            return Err(ReplayError::PoolTooSmall { pool_bytes, objects, block_bytes });
        }
        Ok(())
    }
}

/// Why there is no report.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ReplayError {
    /// The trace cannot be read.
    #[error(transparent)]
    Trace(#[from] TraceError),
    /// The trace holds no request.
    #[error("{}: the trace is empty", .path.display())]
    Empty {
        /// The trace.
        path: PathBuf,
    },
    /// The pool cannot hold a block.
    #[error(
        "the pool of {pool_bytes} bytes is smaller than one block: {objects} objects, {block_bytes} bytes in all"
    )]
    PoolTooSmall {
        /// The pool asked for.
        pool_bytes: u64,
        /// Objects of a block.
        objects: usize,
        /// Bytes of a block.
        block_bytes: u64,
    },
    /// The allocator cannot be had for such a pool.
    #[error(transparent)]
    Contender(#[from] CreateError),
    /// The allocator places nothing, so there is nothing to put memory behind.
    #[error("{0} hands out no places: it cannot be replayed with --backed")]
    PlacesNothing(ContenderId),
    /// There is no memory behind the pool.
    #[error(transparent)]
    Backing(#[from] BackingError),
    /// The replay itself went wrong.
    #[error("request {request}: {source}")]
    Cache {
        /// The request being served, from 1.
        request: u64,
        /// What went wrong.
        source: CacheError,
    },
}

impl ReplayError {
    /// The exit status of the command: 2 if the fault is in what was asked for, 1 if it is in the allocator.
    pub fn exit_status(&self) -> u8 {
        match self {
            ReplayError::Cache {
                source: CacheError::Mismatch { .. } | CacheError::OutsidePool(_), ..
            } => 1,
            _ => 2,
        }
    }
}

/// What a running replay tells its watcher.
#[derive(Clone, Copy, Debug)]
pub struct Progress {
    /// Bytes of the trace read so far.
    pub bytes_read: u64,
    /// Requests served so far.
    pub requests: u64,
}

/// Replays `trace` on a fresh `C`, telling `watch` after every request how far it has come. Samples are taken if there is
/// something to put them into; the time that takes counts for nothing.
///
/// # Errors
/// [`ReplayError`]; nothing of a replay that fails is reported.
pub fn replay<C: Contender, R: BufRead>(
    mut trace: Trace<R>,
    options: &Options,
    mut sampling: Option<&mut Sampling>,
    mut watch: impl FnMut(Progress),
) -> Result<Report, ReplayError> {
    options.check()?;
    let &Options { ref layout, pool_bytes, .. } = options;
    if options.backed && C::ID == ContenderId::Null {
        return Err(ReplayError::PlacesNothing(C::ID));
    }
    let objects = layout.objects().len() as u64;
    let live_max = (pool_bytes / layout.bytes() + 1).saturating_mul(objects);
    let max_live = usize::try_from(live_max).unwrap_or(usize::MAX);
    let space = C::create(Space { capacity: pool_bytes, max_live })?;
    let backing = options.backed.then(|| Backing::new(pool_bytes)).transpose()?;
    let timer_overhead_ns = latency::timer_overhead_ns();

    let mut cache = PrefixCache::<C>::new(space, layout.clone(), backing);
    let mut span_ms: Option<(f64, f64)> = None;
    let mut looked_on = Duration::ZERO;
    let start = Instant::now();
    while options.requests_max.is_none_or(|max| cache.counters().requests < max) {
        let Some(request) = trace.next().transpose()? else { break };
        let first_ms = span_ms.map_or(request.timestamp, |(first, _)| first);
        span_ms = Some((first_ms, request.timestamp));
        let served = cache.serve(&request);
        let requests = cache.counters().requests;
        served.map_err(|source| ReplayError::Cache { request: requests, source })?;
        if let Some(sampling) = &mut sampling {
            let start = Instant::now();
            sampling.look(trace.position(), &cache, pool_bytes);
            looked_on += start.elapsed();
        }
        watch(Progress { bytes_read: trace.position(), requests });
    }
    let Some((first_ms, last_ms)) = span_ms else {
        return Err(ReplayError::Empty { path: options.trace.clone() });
    };
    let wall_s = start.elapsed().saturating_sub(looked_on).as_secs_f64();
    if let Some(sampling) = sampling {
        sampling.finish(&cache, pool_bytes);
    }

    let requests = cache.counters().requests;
    let verified_at_end_bytes =
        cache.verify_all().map_err(|source| ReplayError::Cache { request: requests, source })?;
    let counters = cache.counters();
    let share = |part: f64, whole: f64| if whole > 0.0 { part / whole } else { 0.0 };
    let of_pool = |bytes: f64| bytes / pool_bytes as f64;
    let full = counters.full_samples > 0;
    let calls = counters.allocations + counters.failed_allocations + counters.frees;
    Ok(Report {
        suite: "replay",
        version: env!("CARGO_PKG_VERSION"),
        trace: options.trace.display().to_string(),
        model: options.model.clone(),
        contender: C::ID.name(),
        pool_bytes,
        block_tokens: BLOCK_TOKENS,
        page_tokens: layout.page_tokens(),
        block_bytes: layout.bytes(),
        block_objects: objects,
        requests,
        trace_span_s: (last_ms - first_ms) / 1000.0,
        blocks: counters.blocks,
        tokens: counters.tokens,
        hits: counters.hits,
        hit_rate_blocks: share(counters.hits as f64, counters.blocks as f64),
        hit_rate_tokens: share(counters.hit_tokens as f64, counters.tokens as f64),
        hits_behind_gap: counters.hits_behind_gap,
        not_cached: counters.not_cached,
        blocks_held: cache.held_blocks(),
        evictions: counters.evictions,
        utilization_end: of_pool(cache.held_bytes() as f64),
        utilization_full_mean: full.then(|| of_pool(counters.full_sum_bytes / counters.full_samples as f64)),
        utilization_full_min: full.then(|| of_pool(counters.full_min_bytes as f64)),
        allocations: counters.allocations,
        failed_allocations: counters.failed_allocations,
        frees: counters.frees,
        allocate_ns: cache.allocate_latency().figures(),
        no_room_ns: cache.no_room_latency().figures(),
        timer_overhead_ns,
        metadata_bytes: cache.space().metadata_bytes(),
        ops_per_s: share(calls as f64, wall_s),
        wall_s,
        backed: options
            .backed
            .then_some(Backed { verified_on_hits_bytes: counters.verified_bytes, verified_at_end_bytes }),
    })
}
