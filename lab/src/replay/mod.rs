//! Replay of a KV-cache trace through keyed blocks on a pool.
//!
//! ```text
//! trace ──requests──▶ workers ──get, reserve, commit──▶ store ──allocate, free──▶ pool
//! (kvmem_trace)       hits, misses, payloads and        KvCache: pins, eviction   memory, or
//!                     their checksums, on N threads                               addresses
//! ```
//!
//! - [`worker`] serves requests from a [`store`], above a tier if there is one ([`tiered`]),
//! - [`moves`] measures a plain copy of the same bytes,
//! - [`report`] is the result.
//!
//! The trace's clock is not kept: each thread serves one request after the other, as fast as it
//! can.

mod key;
mod moves;
mod report;
mod store;
mod tiered;
mod worker;

use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Error, Result, ensure};
use indicatif::ProgressBar;
use kvmem_cli::output::{Failure, JsonSink, progress_bar};
use kvmem_cli::output_file::OutputFiles;
use kvmem_cli::workload::latency::timer_overhead_ns;
use kvmem_cli::workload::model::BlockLayout;
use kvmem_cli::workload::payload::Payloads;
use kvmem_trace::{Request, Trace, TraceFile};

use self::moves::Moves;
use self::report::{Backed, ReplayReport, ThreadFigures};
use self::store::{Calls, Store, StoreError};
use self::tiered::{TierPlace, Tiered};
use self::worker::{Counters, Worker, verify_all};
use crate::args::ReplayArgs;

/// Replays the trace, and prints the report.
pub fn run(args: &ReplayArgs) -> Result<(), Failure> {
    let failed = |error: Error| {
        let damaged = matches!(error.downcast_ref(), Some(StoreError::Mismatch { .. }));
        Failure::new(format_args!("{error:#}"), if damaged { 1 } else { 2 })
    };
    let mut files = OutputFiles::new();
    for file in kvmem_trace::files(&args.trace).map_err(|error| failed(error.into()))? {
        files = files.protect("the trace that is replayed", &file);
    }
    let json = JsonSink::open(&mut files, args.json.as_deref())?;
    let report = replay(args).map_err(failed)?;
    json.write(&report, &report)
}

fn replay(args: &ReplayArgs) -> Result<ReplayReport> {
    let file = TraceFile::open(&args.trace, args.reading.sessions)?;
    let bar = progress_bar(file.len_bytes(), "{elapsed_precise} {wide_bar} {percent:>3} % {msg}");
    let mut trace = file.requests(&args.reading.options())?;
    let (layout, model) = args.block.layout(trace.block_tokens()?)?;
    ensure!(
        args.pool >= layout.bytes(),
        "the pool of {} bytes is smaller than one block: {} objects, {} bytes in all",
        args.pool,
        layout.objects().len(),
        layout.bytes()
    );
    let pool = store::pool(args.pool, args.backed)?;
    let tiered = match &args.tier {
        Some(path) => {
            let bytes = args.tier_size.unwrap_or(args.pool.saturating_mul(4));
            let place = TierPlace { path: path.clone(), bytes };
            let least = layout.objects().iter().copied().min().unwrap_or(1);
            let tiered = Tiered::open(&place, least, &pool);
            Some(tiered.with_context(|| format!("--tier {}", path.display()))?)
        }
        None => None,
    };
    let store = Store::new(&pool, args.policy.eviction(), args.threads, tiered);
    let feed = Feed { trace, dealt: 0, span_ms: None, failed: None };
    let run = Replay {
        feed: Mutex::new(feed),
        args,
        payloads: args.backed.then(|| Payloads::new(layout.objects())),
        layout,
        model,
        pool_bytes: pool.capacity(),
        full: AtomicBool::new(false),
        bar,
    };
    let start = Instant::now();
    let done = run.together(&store);
    run.bar.finish_and_clear();
    run.finish(store, done, start.elapsed())
}

/// A trace that is being replayed: its requests go to the threads one at a time, in the order in
/// which these ask.
struct Feed {
    trace: Trace,
    dealt: u64,
    /// First and last arrival, in milliseconds.
    span_ms: Option<(f64, f64)>,
    failed: Option<Error>,
}

impl Feed {
    /// Returns the next request and its number, from 1; `None` at the end, or after a failure.
    fn deal(&mut self, most: Option<u64>, block_tokens: u64) -> Option<(u64, Request)> {
        if self.failed.is_some() || most.is_some_and(|most| self.dealt >= most) {
            return None;
        }
        let request = match self.trace.next()? {
            Ok(request) => request,
            Err(error) => {
                self.fail(error.into());
                return None;
            }
        };
        if request.block_tokens != block_tokens {
            self.fail(anyhow::anyhow!(
                "request {} has blocks of {} tokens, the requests before it blocks of \
                 {block_tokens}: replay sessions of one block_size at a time; kvmem trace curve \
                 reads both",
                self.dealt + 1,
                request.block_tokens
            ));
            return None;
        }
        let first_ms = self.span_ms.map_or(request.timestamp, |(first, _)| first);
        self.span_ms = Some((first_ms, request.timestamp));
        self.dealt += 1;
        Some((self.dealt, request))
    }

    /// Records a failure; the first one is reported.
    fn fail(&mut self, error: Error) {
        self.failed.get_or_insert(error);
    }
}

/// A replay whose pool exists.
struct Replay<'a> {
    feed: Mutex<Feed>,
    args: &'a ReplayArgs,
    payloads: Option<Payloads>,
    layout: BlockLayout,
    model: String,
    pool_bytes: u64,
    /// Whether a call has failed.
    full: AtomicBool,
    bar: ProgressBar,
}

/// The result of one thread.
struct ThreadResult {
    counters: Counters,
    inserted: Vec<u64>,
    moves: Moves,
    calls: Calls,
    took: Duration,
}

impl Replay<'_> {
    fn feed(&self) -> MutexGuard<'_, Feed> {
        self.feed.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Runs on all threads.
    fn together(&self, store: &Store) -> Vec<ThreadResult> {
        let threads = self.args.threads;
        if threads == 1 {
            return vec![self.work(store)];
        }
        thread::scope(|scope| {
            let start = |number| {
                let builder = thread::Builder::new().name(format!("replay-{number}"));
                builder.spawn_scoped(scope, || self.work(store)).map_err(|error| {
                    let what = format!("cannot start thread {number} of {threads}");
                    self.feed().fail(Error::new(error).context(what));
                })
            };
            let all: Vec<_> = (1..=threads).map_while(|number| start(number).ok()).collect();
            let ended = all.into_iter().map(|thread| thread.join());
            ended
                .map(|done| done.unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
                .collect()
        })
    }

    /// Serves requests until the feed ends.
    fn work(&self, store: &Store) -> ThreadResult {
        let start = Instant::now();
        drop(Calls::take());
        let mut worker = Worker::new(store, &self.layout, self.payloads.as_ref());
        loop {
            let mut feed = self.feed();
            let next = feed.deal(self.args.requests, self.layout.block_tokens());
            let position = feed.trace.position();
            drop(feed);
            let Some((number, request)) = next else { break };
            if let Err(error) = worker.serve(&request) {
                let error = Error::new(error).context(format!("request {number}"));
                self.feed().fail(error);
                break;
            }
            // Relaxed: the flag decides only when samples begin.
            if Calls::any_failed() {
                self.full.store(true, Ordering::Relaxed);
            }
            if self.full.load(Ordering::Relaxed) {
                worker.sample();
            }
            // The bar takes a lock, so it is updated once every 64 requests.
            if number.is_multiple_of(64) {
                self.bar.set_position(position);
            }
        }
        let (counters, inserted, moves) = worker.finish();
        ThreadResult { counters, inserted, moves, calls: Calls::take(), took: start.elapsed() }
    }

    /// Makes the report of the results, given the time of the whole replay.
    fn finish(self, store: Store, done: Vec<ThreadResult>, took: Duration) -> Result<ReplayReport> {
        let Replay { args, payloads, layout, model, pool_bytes, .. } = self;
        let feed = self.feed.into_inner().unwrap_or_else(PoisonError::into_inner);
        if let Some(error) = feed.failed {
            return Err(error);
        }
        let (first_ms, last_ms) = feed
            .span_ms
            .with_context(|| format!("{}: the trace is empty", args.trace.display()))?;
        let wall_s = took.as_secs_f64();
        let share = |part: f64, whole: f64| if whole > 0.0 { part / whole } else { 0.0 };
        let of_pool = |bytes: f64| bytes / pool_bytes as f64;

        let (mut counters, mut calls) = (Counters::default(), Calls::default());
        let (mut bytes_per_s, mut checked_per_s) = (0.0, 0.0);
        let (mut inserted, mut moves, mut threads) = (HashSet::new(), Vec::new(), Vec::new());
        for one in done {
            let Counters { requests, blocks, written_bytes, verified_bytes, .. } = one.counters;
            let moved = (written_bytes + verified_bytes) as f64;
            let rate = share(moved, one.counters.moving.as_secs_f64());
            bytes_per_s += rate;
            checked_per_s += share(verified_bytes as f64, one.counters.checking.as_secs_f64());
            let blocks_per_s = share(blocks as f64, one.took.as_secs_f64());
            threads.push(ThreadFigures { requests, blocks, blocks_per_s, bytes_per_s: rate });
            counters.add(&one.counters);
            calls.add(&one.calls);
            inserted.extend(one.inserted);
            moves.push(one.moves);
        }
        let holding = verify_all(&store, &layout, payloads.as_ref(), &inserted)?;
        let (held_bytes, objects_held) = (store.cache.bytes(), store.cache.len());
        let evictions = store.cache.stats().evictions;
        let tier = store.tier().map(Tiered::figures);
        let backed = payloads.map(|payloads| {
            let moved = (counters.written_bytes + counters.verified_bytes) as f64;
            let plain = store.into_memory().and_then(|mut memory| {
                moves::plain_bytes_per_s(moves, &mut memory, &layout, &payloads)
            });
            Backed {
                written_bytes: counters.written_bytes,
                verified_on_hits_bytes: counters.verified_bytes,
                verified_at_end_bytes: holding.bytes,
                bytes_per_s,
                plain_bytes_per_s: plain,
                of_plain: plain.map(|plain| share(bytes_per_s, plain)),
                checked_bytes_per_s: checked_per_s,
                whole_bytes_per_s: share(moved, wall_s),
            }
        });
        let full = counters.full_samples > 0;
        let (allocations, failed_allocations) = (calls.served(), calls.no_room.count());
        let frees = allocations.saturating_sub(objects_held);
        Ok(ReplayReport {
            suite: "replay",
            version: env!("CARGO_PKG_VERSION"),
            trace: args.trace.display().to_string(),
            model,
            policy: args.policy.eviction().name(),
            pool_bytes,
            block_tokens: layout.block_tokens(),
            block_bytes: layout.bytes(),
            block_objects: layout.objects().len() as u64,
            requests: counters.requests,
            trace_span_s: (last_ms - first_ms) / 1000.0,
            blocks: counters.blocks,
            tokens: counters.tokens,
            hits: counters.hits,
            hit_rate_blocks: share(counters.hits as f64, counters.blocks as f64),
            hit_rate_tokens: share(counters.hit_tokens as f64, counters.tokens as f64),
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
            timer_overhead_ns: timer_overhead_ns(),
            ops_per_s: share((allocations + failed_allocations + frees) as f64, wall_s),
            blocks_per_s: share(counters.blocks as f64, wall_s),
            wall_s,
            threads,
            tier_hits: counters.hits - counters.memory_hits,
            tier,
            backed,
        })
    }
}
