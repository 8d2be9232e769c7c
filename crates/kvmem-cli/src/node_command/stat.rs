//! `kvmem stat`: the statistics.

use std::fmt;

use indicatif::{BinaryBytes, HumanCount};
use kvmem_node::{NamespaceStats, NodeStats};

use super::{connect, failure, labelled, name_of};
use crate::args::StatArgs;
use crate::output::{Failure, JsonSink};
use crate::output_file::OutputFiles;

/// Prints the statistics.
pub(crate) fn run(args: &StatArgs) -> Result<(), Failure> {
    let json = JsonSink::open(&mut OutputFiles::new(), args.json.as_deref())?;
    let stats = connect(&args.server)?.stats().map_err(failure)?;
    json.write(Screen(&stats), &stats)
}

/// The statistics as text.
struct Screen<'a>(&'a NodeStats);

/// Formats the share of keys that had a value.
fn rate(hits: u64, misses: u64) -> String {
    match hits + misses {
        0 => "-".to_owned(),
        all => format!("{:.1} %", 100.0 * hits as f64 / all as f64),
    }
}

/// Formats the misses by reason, the most frequent reason first.
fn reasons(stats: &NodeStats) -> String {
    let mut reasons: Vec<_> = labelled(stats, "reason").filter(|(_, count)| *count > 0).collect();
    reasons.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
    let of =
        |(name, count): &(&str, u64)| format!("{} {}", HumanCount(*count), name.replace('-', " "));
    let text: Vec<String> = reasons.iter().map(of).collect();
    if text.is_empty() { String::new() } else { format!(": {}", text.join(", ")) }
}

impl fmt::Display for Screen<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let stats = self.0;
        let count = |count: u64| HumanCount(count).to_string();
        let mut line = |name: &str, value: String| writeln!(f, "{name:<13} {value}");
        let share = 100.0 * stats.used as f64 / stats.capacity.max(1) as f64;
        line(
            "memory",
            format!(
                "{} of {} in use ({share:.1} %), {} in the largest free range",
                BinaryBytes(stats.used),
                BinaryBytes(stats.capacity),
                BinaryBytes(stats.largest_free)
            ),
        )?;
        line(
            "size",
            format!(
                "{} wanted, of {} to {}; {} given back, {} times under pressure",
                BinaryBytes(stats.wanted_capacity),
                BinaryBytes(stats.min_capacity),
                BinaryBytes(stats.max_capacity),
                BinaryBytes(stats.given_back_bytes_total),
                HumanCount(stats.pressure_total)
            ),
        )?;
        line(
            "values",
            format!(
                "{}, {} of them pinned ({}); at most {} blocks",
                HumanCount(stats.values),
                HumanCount(stats.pinned),
                BinaryBytes(stats.pinned_bytes),
                HumanCount(stats.max_blocks)
            ),
        )?;
        line("dead", format!("{} of values whose parent is gone", BinaryBytes(stats.dead_bytes)))?;
        line(
            "reservations",
            format!(
                "{} of {}, {} of them ended for silent clients",
                HumanCount(stats.reservations),
                BinaryBytes(stats.reserved_bytes),
                BinaryBytes(stats.fenced_bytes)
            ),
        )?;
        line("clients", format!("{}, {} not connected", stats.sessions, stats.orphaned_sessions))?;
        line("hit rate", rate(stats.hits, stats.misses))?;
        line("hits", count(stats.hits))?;
        line("misses", count(stats.misses) + &reasons(stats))?;
        line("reserved", count(stats.reserved_total))?;
        line("committed", count(stats.committed_total))?;
        line("evicted", count(stats.evicted_total))?;
        line("never used", count(stats.evicted_unused_total))?;
        line("removed", count(stats.removed_total))?;
        line("expired", count(stats.expired_total))?;
        line("fenced", count(stats.fenced_total))?;
        line("out of space", count(stats.out_of_space_total))?;
        line("verified", count(stats.scrubbed_total))?;
        line("damaged", count(stats.damaged_total))?;
        line("tier", stats.tier_state.name().to_owned())?;
        let not_stored = count(stats.tier_not_stored_total) + " not stored";
        line("tier stored", count(stats.tier_stored_total) + ", " + &not_stored)?;
        line("tier fetched", count(stats.tier_fetched_total))?;
        line("tier failed", count(stats.tier_failed_total))?;
        // Every connection has a namespace, and that of the operators is empty.
        let in_use = |it: &&NamespaceStats| !it.name.is_empty() || it.bytes > 0 || it.pinned > 0;
        let all: Vec<&NamespaceStats> = stats.namespaces.iter().filter(in_use).collect();
        if all.is_empty() {
            return Ok(());
        }
        let width = all.iter().map(|it| it.name.chars().count()).max().unwrap_or(0).max(13);
        writeln!(
            f,
            "\n{:<width$} {:>12} {:>12} {:>10} {:>6} {:>9} {:>10}",
            "namespace", "bytes", "limit", "pinned", "share", "hit rate", "never used"
        )?;
        for it in &all {
            let NamespaceStats { name, bytes, max_bytes, pinned, share, .. } = it;
            let (rate, unused) = (rate(it.hits, it.misses), it.evicted_unused_total);
            let limit = match *max_bytes {
                u64::MAX => "-".to_owned(),
                bytes => BinaryBytes(bytes).to_string(),
            };
            let (name, bytes) = (name_of(name), BinaryBytes(*bytes).to_string());
            writeln!(
                f,
                "{name:<width$} {bytes:>12} {limit:>12} {pinned:>10} {share:>6} {rate:>9} \
                 {unused:>10}"
            )?;
        }
        writeln!(
            f,
            "\n{:<width$} {:>12} {:>12} {:>7} {:>8} {:>7} {:>7} {:>7}",
            "hits with", "memory", "keys", "half", "as it is", "twice", "4 times", "8 times"
        )?;
        for it in all {
            let (name, memory) = (name_of(&it.name), BinaryBytes(it.memory).to_string());
            write!(f, "{name:<width$} {memory:>12} {:>12}", count(it.keys))?;
            let rate_of = |hits: u64| rate(hits, it.keys.saturating_sub(hits));
            let mut rates: Vec<String> =
                labelled(it, "factor").map(|(_, hits)| rate_of(hits)).collect();
            // The factors are 0.5, 2, 4 and 8; the hits are those with 1.
            rates.insert(1, format!("{:>8}", rate_of(it.hits)));
            rates.iter().try_for_each(|rate| write!(f, " {rate:>7}"))?;
            writeln!(f)?;
        }
        Ok(())
    }
}
