//! `kvmem stat`: the statistics, once or as a live screen.

use std::fmt;
use std::io::{self, IsTerminal, Write};
use std::thread;
use std::time::{Duration, Instant};

use indicatif::{BinaryBytes, HumanCount};
use kvmem_node::{NamespaceStats, NodeStats};

use super::{KNOWN_WITHIN, connect, connect_for, failure, name_of};
use crate::args::StatArgs;
use crate::output::{Failure, JsonSink};
use crate::output_file::OutputFiles;
use kvmem_trace::escape::escaped;

/// Moves the cursor to the first line, and clears what is below.
const CLEAR: &str = "\u{1b}[H\u{1b}[J";

/// The time that a live screen waits for a server that restarts.
const RESTART: Duration = Duration::from_secs(10);

/// Prints the statistics.
pub(crate) fn run(args: &StatArgs) -> Result<(), Failure> {
    if let Some(seconds) = args.watch {
        return watch(args, Duration::from_secs(seconds));
    }
    let json = JsonSink::open(&mut OutputFiles::new(), args.json.as_deref())?;
    let stats = connect(&args.server)?.stats().map_err(failure)?;
    json.write(Screen { stats: &stats, rates: None }, &stats)
}

/// Prints the statistics and what has changed, until standard output is closed.
fn watch(args: &StatArgs, interval: Duration) -> Result<(), Failure> {
    // A server that is not there learns it at once, and one that restarts is waited for.
    connect(&args.server)?;
    let client = connect_for(&args.server, RESTART, KNOWN_WITHIN)?;
    let clear = if io::stdout().is_terminal() { CLEAR } else { "" };
    let mut before: Option<(NodeStats, Instant)> = None;
    for shown in 1.. {
        let stats = client.stats().map_err(failure)?;
        let now = Instant::now();
        let rates = before
            .as_ref()
            .map(|(before, at)| Rates { before, seconds: now.duration_since(*at).as_secs_f64() });
        let text = escaped(Screen { stats: &stats, rates });
        let end = if clear.is_empty() { "\n" } else { "" };
        let mut out = io::stdout().lock();
        match write!(out, "{clear}{text}{end}").and_then(|()| out.flush()) {
            // The reader has seen enough.
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => return Ok(()),
            Err(error) => {
                let message = format_args!("cannot write to standard output: {error}");
                return Err(Failure::new(message, 1));
            }
            Ok(()) => {}
        }
        drop(out);
        if args.count == Some(shown) {
            break;
        }
        before = Some((stats, now));
        thread::sleep(interval);
    }
    Ok(())
}

/// The statistics of a moment before.
struct Rates<'a> {
    before: &'a NodeStats,
    seconds: f64,
}

impl Rates<'_> {
    /// Returns what has come a second. A server that restarted counts from zero.
    fn of(&self, now: u64, count: impl Fn(&NodeStats) -> u64) -> f64 {
        now.saturating_sub(count(self.before)) as f64 / self.seconds.max(1e-9)
    }
}

/// The statistics as text.
struct Screen<'a> {
    stats: &'a NodeStats,
    rates: Option<Rates<'a>>,
}

impl Screen<'_> {
    /// Formats a counter, with its rate if there is one.
    fn counter(&self, count: impl Fn(&NodeStats) -> u64) -> String {
        let total = count(self.stats);
        let per_second = |rates: &Rates<'_>| format!(" ({:.0}/s)", rates.of(total, &count));
        let rate = self.rates.as_ref().map_or_else(String::new, per_second);
        format!("{}{rate}", HumanCount(total))
    }

    /// Returns the share of keys that had a value, of those since the last screen.
    fn hit_rate(&self) -> String {
        let (mut hits, mut misses) = (self.stats.hits, self.stats.misses);
        if let Some(Rates { before, .. }) = self.rates {
            hits = hits.saturating_sub(before.hits);
            misses = misses.saturating_sub(before.misses);
        }
        rate(hits, misses)
    }
}

/// Formats the share of keys that had a value.
fn rate(hits: u64, misses: u64) -> String {
    match hits + misses {
        0 => "-".to_owned(),
        all => format!("{:.1} %", 100.0 * hits as f64 / all as f64),
    }
}

/// Formats the misses by reason, the most frequent reason first.
fn reasons(stats: &NodeStats) -> String {
    let mut reasons = [
        ("never stored", stats.never_stored_misses),
        ("evicted", stats.evicted_misses),
        ("expired", stats.expired_misses),
        ("removed", stats.removed_misses),
        ("damaged", stats.damaged_misses),
        ("tier away", stats.tier_away_misses),
        ("lost by the tier", stats.tier_lost_misses),
        ("not fetched", stats.not_fetched_misses),
    ];
    reasons.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
    let of = |(name, count): &(&str, u64)| {
        (*count > 0).then(|| format!("{} {name}", HumanCount(*count)))
    };
    let text: Vec<String> = reasons.iter().filter_map(of).collect();
    if text.is_empty() { String::new() } else { format!(": {}", text.join(", ")) }
}

impl fmt::Display for Screen<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let stats = self.stats;
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
        line("hit rate", self.hit_rate())?;
        line("hits", self.counter(|it| it.hits))?;
        line("misses", self.counter(|it| it.misses) + &reasons(stats))?;
        line("reserved", self.counter(|it| it.reserved_total))?;
        line("committed", self.counter(|it| it.committed_total))?;
        line("evicted", self.counter(|it| it.evicted_total))?;
        line("never used", self.counter(|it| it.evicted_unused_total))?;
        line("removed", self.counter(|it| it.removed_total))?;
        line("expired", self.counter(|it| it.expired_total))?;
        line("fenced", self.counter(|it| it.fenced_total))?;
        line("out of space", self.counter(|it| it.out_of_space_total))?;
        line("verified", self.counter(|it| it.scrubbed_total))?;
        line("damaged", self.counter(|it| it.damaged_total))?;
        line("tier", stats.tier_state.name().to_owned())?;
        line("tier stored", self.counter(|it| it.tier_stored_total))?;
        line("tier fetched", self.counter(|it| it.tier_fetched_total))?;
        line("tier failed", self.counter(|it| it.tier_failed_total))?;
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
        for it in all {
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
        Ok(())
    }
}
