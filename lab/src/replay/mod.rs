//! Replay of a KV-cache trace through keyed blocks on a pool.
//!
//! ```text
//! trace ──requests──▶ workers ──get, reserve, commit──▶ store ──allocate, free──▶ pool
//! (kvmem_trace)       hits, misses, payloads and        KvCache: pins, eviction   memory, or
//!                     their checksums, on N threads                               addresses
//! ```
//!
//! - [`kvmem_trace`] reads the requests, and [`feed`] deals them to threads,
//! - `kvmem_cli::workload` knows the objects of a block, their keys and their payloads,
//! - [`worker`] serves requests from a [`store`]: a [`pooled`] one as in a server, or one whose
//!   objects another allocator has [`placed`],
//! - [`calls`] counts the calls of the allocator and times them,
//! - [`moves`] measures a plain copy of the same bytes,
//! - [`backing`] is the memory of the pool, if there is any,
//! - [`report`] is the result,
//! - [`sampling`] samples the pool on the way, and [`page`] draws the samples.
//!
//! The trace's clock is not kept: each thread serves one request after the other, as fast as it
//! can.

pub mod backing;
pub mod calls;
pub mod feed;
pub mod key;
pub mod moves;
pub mod page;
pub mod placed;
pub mod pooled;
pub mod report;
pub mod sampling;
pub mod store;
pub mod tiered;
pub mod worker;

use std::collections::HashSet;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use backing::BackingError;
use calls::Calls;
use feed::{Dealt, Feed};
use kvmem::cache::Eviction;
use kvmem::pool::observe::Exporter;
use kvmem_bench::contender::{Contender, ContenderId, CreateError, Space, Visitor};
use kvmem_cli::workload::model::BlockLayout;
use kvmem_cli::workload::payload::Payloads;
use moves::Moves;
use placed::Placed;
use pooled::Pooled;
use report::{Backed, Recorded, ReplayReport, ThreadFigures};
use sampling::ReplaySamples;
use store::{Store, StoreError};
use tiered::{TierPlace, Tiered, TieredError};
use worker::{Counters, Worker, verify_all};

use crate::ops::format::Header;
use crate::ops::recorder::Recorder;
use kvmem_cli::output_file::OutputError;
use kvmem_trace::escape::shown;
use kvmem_trace::{Trace, TraceError};

/// A replay: which trace, on which allocator.
#[derive(Clone, Debug)]
pub struct Options {
    /// The trace's file, or `-`.
    pub trace: PathBuf,
    /// The objects of a block.
    pub layout: BlockLayout,
    /// The name of that layout.
    pub model: String,
    /// The allocator: `kvmem` is a pool, `kvmem-cached` a pool whose threads cache hot sizes; the
    /// others only place objects.
    pub contender: ContenderId,
    /// The size of the pool.
    pub pool_bytes: u64,
    /// The eviction policy.
    pub eviction: Eviction,
    /// Threads that serve requests.
    pub threads: u32,
    /// Whether the pool has memory.
    pub backed: bool,
    /// Where evicted objects go.
    pub tier: Option<TierPlace>,
    /// Stop after this many requests.
    pub requests_max: Option<u64>,
}

impl Options {
    /// Checks that such a replay is possible, with a recording of its calls if one was requested.
    ///
    /// # Errors
    /// [`ReplayError`] for the first option that makes it impossible.
    pub fn check(&self, is_recorded: bool) -> Result<(), ReplayError> {
        let &Options { ref layout, pool_bytes, contender, threads, backed, .. } = self;
        if pool_bytes < layout.bytes() {
            let (objects, block_bytes) = (layout.objects().len(), layout.bytes());
            return Err(ReplayError::PoolTooSmall { pool_bytes, objects, block_bytes });
        }
        check_contender(contender, threads, backed, is_recorded, self.tier.is_some())
    }
}

/// Checks that an allocator can do what is requested, whatever the blocks of the trace are.
///
/// # Errors
/// [`ReplayError`] for the first request that it cannot.
pub fn check_contender(
    contender: ContenderId,
    threads: u32,
    is_backed: bool,
    is_recorded: bool,
    has_tier: bool,
) -> Result<(), ReplayError> {
    for (wanted, option) in [(is_backed, "--backed"), (is_recorded, "--record")] {
        if wanted && contender == ContenderId::Null {
            return Err(ReplayError::PlacesNothing { contender, option });
        }
    }
    if has_tier && learns(contender).is_none() {
        return Err(ReplayError::NoCache { contender });
    }
    if threads > 1 && learns(contender).is_none() {
        return Err(ReplayError::OneThread { contender, threads });
    }
    Ok(())
}

/// Whether threads of the pool cache hot sizes; `None` for another allocator.
fn learns(contender: ContenderId) -> Option<bool> {
    match contender {
        ContenderId::Kvmem => Some(false),
        ContenderId::KvmemCached => Some(true),
        _ => None,
    }
}

/// A replay failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ReplayError {
    /// The trace cannot be read.
    #[error(transparent)]
    Trace(#[from] TraceError),
    /// The trace holds no request.
    #[error("{}: the trace is empty", shown(.path))]
    Empty {
        /// The trace.
        path: PathBuf,
    },
    /// Blocks differ in their length.
    #[error(
        "request {request} has blocks of {found} tokens, the requests before it blocks of \
         {expected}: replay sessions of one block_size at a time; kvmem trace curve reads both"
    )]
    MixedBlocks {
        /// The request, from 1.
        request: u64,
        /// Tokens of its blocks.
        found: u64,
        /// Tokens of the blocks before.
        expected: u64,
    },
    /// The pool cannot hold a block.
    #[error(
        "the pool of {pool_bytes} bytes is smaller than one block: {objects} objects, \
         {block_bytes} bytes in all"
    )]
    PoolTooSmall {
        /// The requested size of the pool.
        pool_bytes: u64,
        /// Objects of a block.
        objects: usize,
        /// Bytes of a block.
        block_bytes: u64,
    },
    /// The allocator cannot be created for such a pool.
    #[error(transparent)]
    Contender(#[from] CreateError),
    /// The allocator returns no offsets.
    #[error("{contender} returns no offsets: {option} needs them")]
    PlacesNothing {
        /// The allocator.
        contender: ContenderId,
        /// The option that needs offsets.
        option: &'static str,
    },
    /// The allocator is not made for several threads.
    #[error(
        "--threads {threads} needs a pool that threads can share: choose --contender kvmem or \
         kvmem-cached, or one thread for {contender}"
    )]
    OneThread {
        /// The allocator.
        contender: ContenderId,
        /// The requested number.
        threads: u32,
    },
    /// The pool cannot be built.
    #[error(transparent)]
    Backing(#[from] BackingError),
    /// The allocator has no cache that a tier can be below.
    #[error(
        "--tier needs a cache: choose --contender kvmem or kvmem-cached instead of {contender}"
    )]
    NoCache {
        /// The allocator.
        contender: ContenderId,
    },
    /// The tier cannot be opened.
    #[error("--tier {}: {source}", shown(.path))]
    Tier {
        /// The file.
        path: PathBuf,
        /// The reason.
        source: Box<TieredError>,
    },
    /// The calls cannot be recorded.
    #[error(transparent)]
    Record(#[from] OutputError),
    /// A thread could not be started.
    #[error("cannot start thread {number} of {threads}: {source}; ask for fewer --threads")]
    Thread {
        /// Its number, from 1.
        number: u32,
        /// The requested number.
        threads: u32,
        /// The error of the system.
        source: std::io::Error,
    },
    /// The replay failed.
    #[error("request {request}: {source}")]
    Serve {
        /// The request being served, from 1.
        request: u64,
        /// The failure.
        source: StoreError,
    },
}

impl ReplayError {
    /// Returns the exit status of the command: 2 if the request cannot be carried out, 1 if the
    /// allocator is at fault.
    pub fn exit_status(&self) -> u8 {
        match self {
            ReplayError::Serve {
                source: StoreError::Mismatch { .. } | StoreError::OutsidePool(_),
                ..
            } => 1,
            _ => 2,
        }
    }
}

/// The progress of a replay.
#[derive(Clone, Copy, Debug)]
pub struct Progress {
    /// Bytes of the trace read so far.
    pub bytes_read: u64,
    /// Requests served so far.
    pub requests: u64,
}

/// Receives the progress of a replay.
pub trait Watch: Send {
    /// Called once pool and cache exist, with the exporter of their figures. Other allocators than
    /// kvmem have none.
    fn built(&mut self, figures: Exporter);
    /// Called after each request.
    fn served(&mut self, progress: Progress);
}

/// Replays `trace` on a fresh pool and calls `watch` after every request. Samples are taken if
/// there is a place for them; their time does not count. A `recorder` records all calls of the
/// allocator.
///
/// # Errors
/// [`ReplayError`]; a replay that fails has no report.
pub fn replay(
    trace: Trace,
    options: &Options,
    recorder: Option<Recorder>,
    sampling: Option<&mut ReplaySamples>,
    watch: &mut dyn Watch,
) -> Result<ReplayReport, ReplayError> {
    options.check(recorder.is_some())?;
    let recorder = recorder.map(Arc::new);
    let Some(learn) = learns(options.contender) else {
        let seen = sampling.is_some();
        let feed = Feed::new(trace, options, sampling, watch);
        return options.contender.visit(OnContender { feed, options, seen, recorder });
    };
    let pool = backing::pool(options.pool_bytes, options.backed, learn)?;
    let open = |place: &TierPlace| {
        let least = options.layout.objects().iter().copied().min().unwrap_or(1);
        Tiered::open(place, least, &pool).map_err(|source| ReplayError::Tier {
            path: place.path.clone(),
            source: Box::new(source),
        })
    };
    let tiered = options.tier.as_ref().map(open).transpose()?;
    let store = Pooled::new(
        &pool,
        options.backed,
        options.eviction.clone(),
        options.threads,
        recorder.clone(),
        tiered,
    );
    watch.built(store.exporter());
    let feed = Feed::new(trace, options, sampling, watch);
    let run = Run::new(feed, options, pool.capacity(), recorder);
    match options.threads {
        1 => run.alone(store),
        threads => run.together(store, threads),
    }
}

/// A replay that does not know its contender's type yet.
struct OnContender<'a> {
    feed: Feed<'a>,
    options: &'a Options,
    seen: bool,
    recorder: Option<Arc<Recorder>>,
}

impl Visitor for OnContender<'_> {
    type Output = Result<ReplayReport, ReplayError>;

    fn visit<C: Contender>(self) -> Self::Output {
        let OnContender { feed, options, seen, recorder } = self;
        let &Options { ref layout, pool_bytes, .. } = options;
        // Twice the objects of whole blocks, since of some blocks only small objects remain.
        let live_max =
            (pool_bytes / layout.bytes() + 1).saturating_mul(2 * layout.objects().len() as u64);
        let space = C::create(Space { capacity: pool_bytes, max_live: live_max as usize })?;
        let memory = options.backed.then(|| backing::memory(pool_bytes)).transpose()?;
        let store = Placed::new(space, memory, options.eviction.clone(), seen, recorder.clone())?;
        Run::new(feed, options, pool_bytes, recorder).alone(store)
    }
}

/// A replay whose pool exists.
struct Run<'a> {
    feed: Mutex<Feed<'a>>,
    options: &'a Options,
    pool_bytes: u64,
    payloads: Option<Payloads>,
    recorder: Option<Arc<Recorder>>,
    timer_overhead_ns: u64,
    /// Whether a call has failed.
    full: AtomicBool,
}

/// The result of one thread.
struct ThreadResult {
    counters: Counters,
    inserted: Vec<u64>,
    moves: Moves,
    calls: Calls,
    took: Duration,
}

impl<'a> Run<'a> {
    fn new(
        feed: Feed<'a>,
        options: &'a Options,
        pool_bytes: u64,
        recorder: Option<Arc<Recorder>>,
    ) -> Self {
        if let Some(recorder) = &recorder {
            let allocator = options.contender.name().to_owned();
            recorder.begin(&Header { allocator, threads: options.threads, capacity: pool_bytes });
        }
        Run {
            feed: Mutex::new(feed),
            options,
            pool_bytes,
            payloads: options.backed.then(|| Payloads::new(options.layout.objects())),
            recorder,
            timer_overhead_ns: kvmem_cli::workload::latency::timer_overhead_ns(),
            full: AtomicBool::new(false),
        }
    }

    /// Runs on this thread.
    fn alone<S: Store>(self, store: S) -> Result<ReplayReport, ReplayError> {
        let start = Instant::now();
        let done = self.work(&store);
        self.finish(store, vec![done], start.elapsed())
    }

    /// Runs on this many threads.
    fn together<S: Store + Sync>(
        self,
        store: S,
        threads: u32,
    ) -> Result<ReplayReport, ReplayError> {
        let start = Instant::now();
        let done = thread::scope(|scope| {
            let start = |number| {
                let builder = thread::Builder::new().name(format!("replay-{number}"));
                builder.spawn_scoped(scope, || self.work(&store)).map_err(|source| {
                    let error = ReplayError::Thread { number, threads, source };
                    self.feed().fail(error);
                })
            };
            let all: Vec<_> = (1..=threads).map_while(|number| start(number).ok()).collect();
            let ended = all.into_iter().map(|thread| thread.join());
            ended
                .map(|done| done.unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
                .collect()
        });
        self.finish(store, done, start.elapsed())
    }

    fn feed(&self) -> MutexGuard<'_, Feed<'a>> {
        self.feed.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Serves requests until the feed ends.
    fn work<S: Store>(&self, store: &S) -> ThreadResult {
        let start = Instant::now();
        drop(Calls::take());
        let mut worker = Worker::new(store, &self.options.layout, self.payloads.as_ref());
        let mut next = self.feed().deal();
        while let Some((number, request)) = next {
            let before = *worker.counters();
            if let Err(source) = worker.serve(&request) {
                self.feed().fail(ReplayError::Serve { request: number, source });
                break;
            }
            // Relaxed: the count decides only when samples begin.
            if calls::any_failed() {
                self.full.store(true, Ordering::Relaxed);
            }
            if self.full.load(Ordering::Relaxed) {
                worker.sample();
            }
            let now = worker.counters();
            let mut feed = self.feed();
            feed.served(now.blocks - before.blocks, now.hits - before.hits, store, self.pool_bytes);
            next = feed.deal();
        }
        let (counters, inserted, moves) = worker.finish();
        ThreadResult { counters, inserted, moves, calls: Calls::take(), took: start.elapsed() }
    }

    /// Makes the report of the results, given the time of the whole replay.
    fn finish<S: Store>(
        self,
        store: S,
        done: Vec<ThreadResult>,
        took: Duration,
    ) -> Result<ReplayReport, ReplayError> {
        let Run { options, pool_bytes, payloads, .. } = self;
        let layout = &options.layout;
        let feed = self.feed.into_inner().unwrap_or_else(PoisonError::into_inner);
        let Dealt { so_far, span_ms: (first_ms, last_ms), sampling, looked_on } =
            feed.finish(&options.trace)?;
        let recorded = match &self.recorder {
            Some(recorder) => {
                let file = recorder.path().display().to_string();
                Some(Recorded { file, calls: recorder.finish()? })
            }
            None => None,
        };
        if let Some(sampling) = sampling {
            sampling.finish(&store, pool_bytes, so_far);
        }
        let wall_s = took.saturating_sub(looked_on).as_secs_f64();
        let share = |part: f64, whole: f64| if whole > 0.0 { part / whole } else { 0.0 };
        let of_pool = |bytes: f64| bytes / pool_bytes as f64;

        let (mut counters, mut calls) = (Counters::default(), Calls::default());
        let (mut bytes_per_s, mut checked_per_s) = (0.0, 0.0);
        let (mut inserted, mut moves, mut per_thread) = (HashSet::new(), Vec::new(), Vec::new());
        for one in done {
            let Counters {
                requests, blocks, written_bytes, verified_bytes, moving, checking, ..
            } = one.counters;
            let seconds = one.took.as_secs_f64();
            let rate = share((written_bytes + verified_bytes) as f64, moving.as_secs_f64());
            bytes_per_s += rate;
            checked_per_s += share(verified_bytes as f64, checking.as_secs_f64());
            per_thread.push(ThreadFigures {
                requests,
                blocks,
                blocks_per_s: share(blocks as f64, seconds),
                bytes_per_s: options.backed.then_some(rate),
            });
            counters.add(&one.counters);
            calls.add(&one.calls);
            inserted.extend(one.inserted);
            moves.push(one.moves);
        }
        let holding = verify_all(&store, layout, payloads.as_ref(), &inserted)
            .map_err(|source| ReplayError::Serve { request: counters.requests, source })?;
        let (held_bytes, objects_held) = (store.bytes(), store.objects());
        let (evictions, metadata_bytes) = (store.evictions(), store.metadata_bytes());
        let tier = store.tier();
        let backed = payloads.map(|payloads| {
            let moved = counters.written_bytes + counters.verified_bytes;
            let plain_bytes_per_s = store.into_memory().and_then(|mut memory| {
                moves::plain_bytes_per_s(moves, &mut memory, layout, &payloads)
            });
            Backed {
                written_bytes: counters.written_bytes,
                verified_on_hits_bytes: counters.verified_bytes,
                verified_at_end_bytes: holding.bytes,
                bytes_per_s,
                plain_bytes_per_s,
                of_plain: plain_bytes_per_s.map(|plain| share(bytes_per_s, plain)),
                checked_bytes_per_s: (checked_per_s > 0.0).then_some(checked_per_s),
                whole_bytes_per_s: share(moved as f64, wall_s),
            }
        });

        let full = counters.full_samples > 0;
        let (allocations, failed_allocations) = (calls.served(), calls.no_room.count());
        let frees = allocations.saturating_sub(objects_held);
        Ok(ReplayReport {
            suite: "replay",
            version: env!("CARGO_PKG_VERSION"),
            trace: options.trace.display().to_string(),
            model: options.model.clone(),
            contender: options.contender.name(),
            policy: options.eviction.name(),
            pool_bytes,
            block_tokens: layout.block_tokens(),
            page_tokens: layout.page_tokens(),
            block_bytes: layout.bytes(),
            block_objects: layout.objects().len() as u64,
            requests: counters.requests,
            trace_span_s: (last_ms - first_ms) / 1000.0,
            blocks: counters.blocks,
            tokens: counters.tokens,
            hits: counters.hits,
            hit_rate_blocks: share(counters.hits as f64, counters.blocks as f64),
            hit_rate_tokens: share(counters.hit_tokens as f64, counters.tokens as f64),
            hits_behind_gap: counters.hits_behind_gap,
            not_cached: counters.not_cached,
            blocks_held: holding.whole_blocks,
            held_bytes,
            evictions,
            utilization_end: of_pool(held_bytes as f64),
            utilization_full_mean: full
                .then(|| of_pool(counters.full_sum_bytes / counters.full_samples as f64)),
            utilization_full_min: full.then(|| of_pool(counters.full_min_bytes as f64)),
            allocations,
            failed_allocations,
            frees,
            allocate_ns: calls.allocate.figures(),
            no_room_ns: calls.no_room.figures(),
            timer_overhead_ns: self.timer_overhead_ns,
            metadata_bytes,
            ops_per_s: share((allocations + failed_allocations + frees) as f64, wall_s),
            blocks_per_s: share(counters.blocks as f64, wall_s),
            wall_s,
            threads: per_thread,
            tier_hits: tier.is_some().then(|| counters.hits - counters.memory_hits),
            tier,
            backed,
            recorded,
        })
    }
}
