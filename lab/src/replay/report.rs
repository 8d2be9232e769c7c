//! *Report*: the result of a replay, as text and as JSON.

use std::fmt;

use indicatif::{BinaryBytes, HumanCount};
use serde::Serialize;

use super::tiered::TierUseFigures;
use kvmem_cli::workload::latency::LatencyFigures;

/// The result of a replay.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct ReplayReport {
    /// Always `replay`.
    pub suite: &'static str,
    /// The version of the command.
    pub version: &'static str,
    /// The trace, as named on the command line.
    pub trace: String,
    /// The model's name, or `custom`.
    pub model: String,
    /// The allocator's name.
    pub contender: &'static str,
    /// The eviction policy.
    pub policy: &'static str,
    /// The size of the pool.
    pub pool_bytes: u64,
    /// Tokens of a block.
    pub block_tokens: u64,
    /// Tokens of a page.
    pub page_tokens: u64,
    /// Bytes of all objects of a block.
    pub block_bytes: u64,
    /// Objects of a block.
    pub block_objects: u64,
    /// Requests of the trace that were replayed.
    pub requests: u64,
    /// Time between the first and the last request, by the trace's clock.
    pub trace_span_s: f64,
    /// Requested blocks.
    pub blocks: u64,
    /// Requested prompt tokens.
    pub tokens: u64,
    /// Blocks found in the cache together with their prefix.
    pub hits: u64,
    /// `hits / blocks`.
    pub hit_rate_blocks: f64,
    /// The share of the prompt tokens that lie in hit blocks.
    pub hit_rate_tokens: f64,
    /// Blocks held without the prefix before them; they do not count as hits.
    pub hits_behind_gap: u64,
    /// Blocks left out because requests being served exceeded the pool.
    pub not_cached: u64,
    /// Blocks in the cache at the end with all of their objects.
    pub blocks_held: u64,
    /// Bytes of all objects in the cache at the end.
    pub held_bytes: u64,
    /// Objects evicted.
    pub evictions: u64,
    /// Requested bytes of the held objects over the pool, at the end.
    pub utilization_end: f64,
    /// The mean utilization over all requests since the pool was first full; absent if it never
    /// was.
    pub utilization_full_mean: Option<f64>,
    /// The least utilization since the pool was first full.
    pub utilization_full_min: Option<f64>,
    /// Objects allocated.
    pub allocations: u64,
    /// Calls of allocate that failed.
    pub failed_allocations: u64,
    /// Objects freed.
    pub frees: u64,
    /// Latency of a call of allocate, failed calls and the timer included.
    pub allocate_ns: LatencyFigures,
    /// Latency of the failed calls alone.
    pub no_room_ns: LatencyFigures,
    /// The latency measured for an empty call.
    pub timer_overhead_ns: u64,
    /// Bytes of metadata of the allocator at the end, without handles, if it reports them.
    pub metadata_bytes: Option<u64>,
    /// Calls of allocate and free a second, over the whole replay.
    pub ops_per_s: f64,
    /// Requested blocks a second, over the whole replay.
    pub blocks_per_s: f64,
    /// Seconds of the whole replay: reading, cache, allocator, memory.
    pub wall_s: f64,
    /// One for each thread that served requests.
    pub threads: Vec<ThreadFigures>,
    /// Hits that the tier below has made possible, if there is one.
    pub tier_hits: Option<u64>,
    /// The tier below, if there is one.
    pub tier: Option<TierUseFigures>,
    /// The moved and verified bytes, if the pool has memory.
    pub backed: Option<Backed>,
    /// The recording, if one was requested.
    pub recorded: Option<Recorded>,
}

/// The figures of one thread.
#[derive(Clone, Copy, PartialEq, Debug, Serialize)]
pub struct ThreadFigures {
    /// Requests.
    pub requests: u64,
    /// Requested blocks.
    pub blocks: u64,
    /// Blocks a second while the thread was at work.
    pub blocks_per_s: f64,
    /// Bytes written and copied out a second of that work, if the pool has memory; without
    /// checksums.
    pub bytes_per_s: Option<f64>,
}

/// Calls of the allocator that were recorded.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Recorded {
    /// The file.
    pub file: String,
    /// The number of calls.
    pub calls: u64,
}

/// The use of the pool's memory.
#[derive(Clone, Copy, PartialEq, Debug, Serialize)]
pub struct Backed {
    /// Bytes of objects that were written.
    pub written_bytes: u64,
    /// Bytes that were copied out when their block was hit, and whose checksum was compared.
    pub verified_on_hits_bytes: u64,
    /// Bytes whose checksum was compared at the end: all objects held.
    pub verified_at_end_bytes: u64,
    /// Bytes written and copied out a second of that work: look-ups, reserving, and copying; all
    /// threads together.
    pub bytes_per_s: f64,
    /// Bytes a second of a loop of plain copies of the same objects with as many threads; absent
    /// if nothing was moved.
    pub plain_bytes_per_s: Option<f64>,
    /// The first over the second.
    pub of_plain: Option<f64>,
    /// Bytes a second of comparing checksums; all threads together. Absent if none was compared.
    pub checked_bytes_per_s: Option<f64>,
    /// Bytes written and copied out a second of the whole replay, with checksums and with reading
    /// the trace.
    pub whole_bytes_per_s: f64,
}

impl fmt::Display for ReplayReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let percent = |share: f64| format!("{:.2} %", 100.0 * share);
        let count = |number: u64| HumanCount(number).to_string();
        let mut line = |name: &str, value: String| writeln!(f, "{name:<14} {value}");

        line(
            "trace",
            format!(
                "{}: {} requests over {:.0} s",
                self.trace,
                count(self.requests),
                self.trace_span_s
            ),
        )?;
        line(
            "model",
            format!(
                "{}: a block of {} tokens is {} objects, {}",
                self.model,
                self.block_tokens,
                self.block_objects,
                BinaryBytes(self.block_bytes)
            ),
        )?;
        line(
            "pool",
            format!(
                "{}, allocator {}, policy {}",
                BinaryBytes(self.pool_bytes),
                self.contender,
                self.policy
            ),
        )?;
        line(
            "hit rate",
            format!(
                "{} of {} blocks, {} of {} tokens",
                percent(self.hit_rate_blocks),
                count(self.blocks),
                percent(self.hit_rate_tokens),
                count(self.tokens)
            ),
        )?;
        line(
            "blocks held",
            format!("{}, {} objects evicted", count(self.blocks_held), count(self.evictions)),
        )?;
        if self.not_cached > 0 {
            line(
                "not cached",
                format!("{} blocks of prompts larger than the pool", count(self.not_cached)),
            )?;
        }
        let full = match (self.utilization_full_mean, self.utilization_full_min) {
            (Some(mean), Some(min)) => {
                format!("{} mean, {} least since full", percent(mean), percent(min))
            }
            _ => "never full".into(),
        };
        line("utilization", format!("{} at the end, {full}", percent(self.utilization_end)))?;
        let latency = |figures: &LatencyFigures| {
            format!(
                "p50 {} ns, p99 {} ns, p99.9 {} ns, mean {:.0} ns, longest {} ns",
                figures.p50, figures.p99, figures.p999, figures.mean, figures.max
            )
        };
        line(
            "allocate",
            format!(
                "{} (each with {} ns of timer)",
                latency(&self.allocate_ns),
                self.timer_overhead_ns
            ),
        )?;
        if self.no_room_ns.count > 0 {
            line("  no room", latency(&self.no_room_ns))?;
        }
        line(
            "calls",
            format!(
                "{} allocated, {} without room, {} freed",
                count(self.allocations),
                count(self.failed_allocations),
                count(self.frees)
            ),
        )?;
        line(
            "speed",
            format!(
                "{} calls/s, {} blocks/s, {:.2} s in all",
                count(self.ops_per_s as u64),
                count(self.blocks_per_s as u64),
                self.wall_s
            ),
        )?;
        if self.threads.len() > 1 {
            for (number, thread) in (1..).zip(&self.threads) {
                let ThreadFigures { requests, blocks, blocks_per_s, bytes_per_s } = *thread;
                let moved = bytes_per_s
                    .map_or_else(String::new, |bytes| format!(", {:.2} GB/s", bytes / 1e9));
                line(
                    &format!("  thread {number}"),
                    format!(
                        "{} requests, {} blocks, {} blocks/s{moved}",
                        count(requests),
                        count(blocks),
                        count(blocks_per_s as u64)
                    ),
                )?;
            }
        }
        if let Some(backed) = &self.backed {
            line(
                "verified",
                format!(
                    "{} bytes on hits, {} bytes at the end, no mismatch",
                    count(backed.verified_on_hits_bytes),
                    count(backed.verified_at_end_bytes)
                ),
            )?;
            let gb = |bytes_per_s: f64| format!("{:.2} GB/s", bytes_per_s / 1e9);
            let plain = match (backed.plain_bytes_per_s, backed.of_plain) {
                (Some(plain), Some(share)) => {
                    format!(", {} of a plain copy's {}", percent(share), gb(plain))
                }
                _ => String::new(),
            };
            line(
                "moved",
                format!(
                    "{} bytes in, {} out: {}{plain}",
                    count(backed.written_bytes),
                    count(backed.verified_on_hits_bytes),
                    gb(backed.bytes_per_s)
                ),
            )?;
            let checked = backed
                .checked_bytes_per_s
                .map_or_else(String::new, |rate| format!("checksums {}, ", gb(rate)));
            line(
                "",
                format!("{checked}with reading the trace and all {}", gb(backed.whole_bytes_per_s)),
            )?;
        }
        if let Some(tier) = &self.tier {
            let hits = self.tier_hits.unwrap_or(0);
            let of_blocks = hits as f64 / (self.blocks as f64).max(1.0);
            line(
                "tier",
                format!(
                    "{}, {}: {} hits more, {} of all blocks",
                    tier.file,
                    BinaryBytes(tier.capacity_bytes),
                    count(hits),
                    percent(of_blocks)
                ),
            )?;
            line(
                "",
                format!(
                    "{} objects before, {} now; {} fetched, {} written, {} evicted, {} damaged",
                    count(tier.objects_before),
                    count(tier.objects),
                    count(tier.fetched_objects),
                    count(tier.stored_objects),
                    count(tier.evictions),
                    count(tier.damaged_objects)
                ),
            )?;
            let milliseconds = |figures: &LatencyFigures| {
                format!(
                    "p50 {:.2} ms, p99 {:.2} ms ({} fetches)",
                    figures.p50 as f64 / 1e6,
                    figures.p99 as f64 / 1e6,
                    count(figures.count)
                )
            };
            line("  first block", milliseconds(&tier.first_block_ns))?;
            line("  the rest", milliseconds(&tier.rest_ns))?;
        }
        if let Some(Recorded { file, calls }) = &self.recorded {
            line("recorded", format!("{} calls in {file}", count(*calls)))?;
        }
        Ok(())
    }
}
