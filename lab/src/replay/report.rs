//! *Report*: the result of a replay, as text and as JSON.

use std::fmt;

use indicatif::{BinaryBytes, HumanCount};
use kvmem_cli::workload::latency::LatencyFigures;
use serde::Serialize;

use super::tiered::TierUseFigures;

/// The result of a replay.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct ReplayReport {
    pub suite: &'static str,
    pub version: &'static str,
    /// The trace, as named on the command line.
    pub trace: String,
    /// The model's name, or `custom`.
    pub model: String,
    /// The eviction policy.
    pub policy: &'static str,
    pub pool_bytes: u64,
    pub block_tokens: u64,
    /// Bytes of all objects of a block.
    pub block_bytes: u64,
    pub block_objects: u64,
    /// Requests of the trace that were replayed.
    pub requests: u64,
    /// Time between the first and the last request, by the trace's clock.
    pub trace_span_s: f64,
    /// Requested blocks, and prompt tokens.
    pub blocks: u64,
    pub tokens: u64,
    /// Blocks found in the cache together with their prefix.
    pub hits: u64,
    pub hit_rate_blocks: f64,
    /// The share of the prompt tokens that lie in hit blocks.
    pub hit_rate_tokens: f64,
    /// Blocks left out because requests being served exceeded the pool.
    pub not_cached: u64,
    /// Blocks in the cache at the end with all of their objects.
    pub blocks_held: u64,
    /// Bytes of all objects in the cache at the end.
    pub held_bytes: u64,
    /// Objects evicted.
    pub evictions: u64,
    /// Requested bytes of the held objects over the pool, at the end; the mean and the least since
    /// the pool was first full.
    pub utilization_end: f64,
    pub utilization_full_mean: Option<f64>,
    pub utilization_full_min: Option<f64>,
    /// Calls of the allocator.
    pub allocations: u64,
    pub failed_allocations: u64,
    pub frees: u64,
    /// Latency of a call of allocate, failed calls and the timer included.
    pub allocate_ns: LatencyFigures,
    /// Latency of the failed calls alone.
    pub no_room_ns: LatencyFigures,
    /// The latency measured for an empty call.
    pub timer_overhead_ns: u64,
    /// Calls of the allocator, and requested blocks, a second, over the whole replay.
    pub ops_per_s: f64,
    pub blocks_per_s: f64,
    /// Seconds of the whole replay: reading, cache, allocator, memory.
    pub wall_s: f64,
    /// One for each thread that served requests.
    pub threads: Vec<ThreadFigures>,
    /// Hits that a tier below has made possible.
    pub tier_hits: u64,
    pub tier: Option<TierUseFigures>,
    /// The moved and verified bytes, if the pool has memory.
    pub backed: Option<Backed>,
}

/// The figures of one thread.
#[derive(Clone, Copy, PartialEq, Debug, Serialize)]
pub struct ThreadFigures {
    pub requests: u64,
    pub blocks: u64,
    /// Blocks a second while the thread was at work.
    pub blocks_per_s: f64,
    /// Bytes written and copied out a second of that work, without checksums.
    pub bytes_per_s: f64,
}

/// The use of the pool's memory.
#[derive(Clone, Copy, PartialEq, Debug, Serialize)]
pub struct Backed {
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
    /// Bytes a second of comparing checksums; all threads together.
    pub checked_bytes_per_s: f64,
    /// Bytes written and copied out a second of the whole replay, with checksums and with reading
    /// the trace.
    pub whole_bytes_per_s: f64,
}

impl fmt::Display for ReplayReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let percent = |share: f64| format!("{:.2} %", 100.0 * share);
        let count = |number: u64| HumanCount(number).to_string();
        let gb = |bytes_per_s: f64| format!("{:.2} GB/s", bytes_per_s / 1e9);
        let latency = |figures: &LatencyFigures| {
            format!(
                "p50 {} ns, p99 {} ns, p99.9 {} ns, mean {:.0} ns, longest {} ns",
                figures.p50, figures.p99, figures.p999, figures.mean, figures.max
            )
        };
        let requests = count(self.requests);
        let (blocks, tokens) = (count(self.blocks), count(self.tokens));
        let (objects, block) = (self.block_objects, BinaryBytes(self.block_bytes));
        writeln!(
            f,
            "trace          {}: {requests} requests over {:.0} s",
            self.trace, self.trace_span_s
        )?;
        writeln!(
            f,
            "model          {}: a block of {} tokens is {objects} objects, {block}",
            self.model, self.block_tokens
        )?;
        writeln!(f, "pool           {}, policy {}", BinaryBytes(self.pool_bytes), self.policy)?;
        writeln!(
            f,
            "hit rate       {} of {blocks} blocks, {} of {tokens} tokens",
            percent(self.hit_rate_blocks),
            percent(self.hit_rate_tokens)
        )?;
        let (held, evicted) = (count(self.blocks_held), count(self.evictions));
        writeln!(f, "blocks held    {held}, {evicted} objects evicted")?;
        if self.not_cached > 0 {
            let left_out = count(self.not_cached);
            writeln!(f, "not cached     {left_out} blocks of prompts larger than the pool")?;
        }
        let full = match self.utilization_full_mean.zip(self.utilization_full_min) {
            Some((mean, min)) => {
                format!("{} mean, {} least since full", percent(mean), percent(min))
            }
            None => "never full".into(),
        };
        writeln!(f, "utilization    {} at the end, {full}", percent(self.utilization_end))?;
        let (took, timer) = (latency(&self.allocate_ns), self.timer_overhead_ns);
        writeln!(f, "allocate       {took} (each with {timer} ns of timer)")?;
        if self.no_room_ns.count > 0 {
            writeln!(f, "  no room      {}", latency(&self.no_room_ns))?;
        }
        writeln!(
            f,
            "calls          {} allocated, {} without room, {} freed",
            count(self.allocations),
            count(self.failed_allocations),
            count(self.frees)
        )?;
        let (ops, rate) = (count(self.ops_per_s as u64), count(self.blocks_per_s as u64));
        writeln!(f, "speed          {ops} calls/s, {rate} blocks/s, {:.2} s in all", self.wall_s)?;
        for (number, of) in (1..).zip(&self.threads).filter(|_| self.threads.len() > 1) {
            writeln!(
                f,
                "  thread {number:<4} {} requests, {} blocks, {} blocks/s, {}",
                count(of.requests),
                count(of.blocks),
                count(of.blocks_per_s as u64),
                gb(of.bytes_per_s)
            )?;
        }
        if let Some(backed) = &self.backed {
            let verified = backed.verified_on_hits_bytes;
            writeln!(
                f,
                "verified       {} bytes on hits, {} bytes at the end, no mismatch",
                count(verified),
                count(backed.verified_at_end_bytes)
            )?;
            let plain = backed.plain_bytes_per_s.zip(backed.of_plain);
            let plain = plain.map_or_else(String::new, |(plain, share)| {
                format!(", {} of a plain copy's {}", percent(share), gb(plain))
            });
            writeln!(
                f,
                "moved          {} bytes in, {} out: {}{plain}",
                count(backed.written_bytes),
                count(verified),
                gb(backed.bytes_per_s)
            )?;
            let (checked, whole) = (gb(backed.checked_bytes_per_s), gb(backed.whole_bytes_per_s));
            writeln!(
                f,
                "               checksums {checked}, with reading the trace and all {whole}"
            )?;
        }
        if let Some(tier) = &self.tier {
            let (hits, of_blocks) =
                (count(self.tier_hits), self.tier_hits as f64 / (self.blocks as f64).max(1.0));
            writeln!(
                f,
                "tier           {}, {}: {hits} hits more, {} of all blocks",
                tier.file,
                BinaryBytes(tier.capacity_bytes),
                percent(of_blocks)
            )?;
            writeln!(
                f,
                "               {} objects before, {} now; {} fetched, {} written, {} evicted, {} \
                 damaged",
                count(tier.objects_before),
                count(tier.objects),
                count(tier.fetched_objects),
                count(tier.stored_objects),
                count(tier.evictions),
                count(tier.damaged_objects)
            )?;
            for (what, of) in [("first block", &tier.first_block_ns), ("the rest", &tier.rest_ns)] {
                let (p50, p99) = (of.p50 as f64 / 1e6, of.p99 as f64 / 1e6);
                let fetches = count(of.count);
                writeln!(f, "  {what:<12} p50 {p50:.2} ms, p99 {p99:.2} ms ({fetches} fetches)")?;
            }
        }
        Ok(())
    }
}
