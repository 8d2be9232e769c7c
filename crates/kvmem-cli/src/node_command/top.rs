//! `kvmem top`: who uses the memory of a node, why keys have no values, and what other memories
//! would bring.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io::{self, IsTerminal};
use std::thread;
use std::time::{Duration, Instant};

use indicatif::{BinaryBytes, HumanCount};
use kvmem::pool::observe::Stats;
use kvmem_node::{NamespaceStats, NodeStats};
use kvmem_trace::escape::escaped;
use serde::Serialize;

use super::{KNOWN_WITHIN, connect, connect_for, failure, labelled, name_of};
use crate::args::TopArgs;
use crate::output::{Failure, JsonSink, to_stdout};
use crate::output_file::OutputFiles;

/// Moves the cursor to the first line, and clears what is after it.
const CLEAR: &str = "\u{1b}[H\u{1b}[J";

/// The time that a live screen waits for a server that restarts.
const RESTART: Duration = Duration::from_secs(10);

/// Columns after the name: head, width, and rank. On a narrow screen the highest ranks go first.
const COLUMNS: [(&str, usize, u8); 11] = [
    ("bytes", 12, 0),
    ("of all", 8, 5),
    ("keys/s", 9, 6),
    ("misses/s", 9, 1),
    ("mostly", 13, 2),
    ("unused/s", 9, 7),
    ("0.5x", 8, 8),
    ("1x", 8, 0),
    ("2x", 8, 0),
    ("4x", 8, 9),
    ("8x", 8, 4),
];

/// Width of the shortest column of names.
const MIN_NAME: usize = 9;

/// Shows the screen, once or until its reader ends.
pub(crate) fn run(args: &TopArgs) -> Result<(), Failure> {
    let json = JsonSink::open(&mut OutputFiles::new(), args.json.as_deref())?;
    // A server that is not there fails at once, and one that restarts is waited for.
    connect(&args.server)?;
    let client = connect_for(&args.server, RESTART, KNOWN_WITHIN)?;
    let stats = || client.stats().map(|stats| (stats, Instant::now())).map_err(failure);
    let interval = Duration::from_secs(args.interval);
    let mut before = stats()?;
    let first = before.0.clone();
    let is_terminal = io::stdout().is_terminal();
    loop {
        thread::sleep(interval);
        let now = stats()?;
        let seconds = now.1.duration_since(before.1).as_secs_f64();
        if args.once || args.json.is_some() {
            let view = View::new(&now.0, &before.0, &NodeStats::default(), seconds);
            return json.write(view.text(usize::MAX, usize::MAX), &view);
        }
        let view = View::new(&now.0, &before.0, &first, seconds);
        let (width, height) = screen();
        let clear = if is_terminal { CLEAR } else { "\n" };
        if !to_stdout(&format!("{clear}{}", view.text(width, height)))? {
            return Ok(());
        }
        before = now;
    }
}

/// Returns the columns and lines of the terminal.
fn screen() -> (usize, usize) {
    match rustix::termios::tcgetwinsize(io::stdout()) {
        Ok(size) if size.ws_col > 0 && size.ws_row > 0 => (size.ws_col.into(), size.ws_row.into()),
        _ => (usize::MAX, usize::MAX),
    }
}

/// The figures of the screen. Rates are those of the last interval.
#[derive(Serialize)]
struct View {
    /// The interval.
    seconds: f64,
    capacity: u64,
    used: u64,
    pinned_bytes: u64,
    reserved_bytes: u64,
    values: u64,
    max_blocks: u64,
    clients: u64,
    committed_per_s: f64,
    evicted_per_s: f64,
    evicted_unused_per_s: f64,
    expired_per_s: f64,
    removed_per_s: f64,
    out_of_space_per_s: f64,
    pressure_per_s: f64,
    tier: &'static str,
    tier_stored_per_s: f64,
    tier_not_stored_per_s: f64,
    tier_fetched_per_s: f64,
    tier_failed_per_s: f64,
    calls_per_s: f64,
    /// Seconds within which half of the calls, and 99 of 100, were served; `None`: there was none,
    /// or the server was slower than its longest class.
    call_p50_s: Option<f64>,
    call_p99_s: Option<f64>,
    kv_event_subscribers: u64,
    kv_events_per_s: f64,
    kv_event_wait_ms: u64,
    /// The sums of all namespaces.
    all: Usage,
    namespaces: Vec<Usage>,
}

/// The use of the memory by a namespace.
#[derive(Clone, Serialize)]
struct Usage {
    name: String,
    bytes: u64,
    /// What it can have without taking any from others.
    memory: u64,
    keys_per_s: f64,
    hits_per_s: f64,
    misses_per_s: BTreeMap<&'static str, f64>,
    evicted_unused_per_s: f64,
    /// Shares of the keys that have a value with these multiples of its memory; `None`: no key was
    /// acquired.
    hit_rates: BTreeMap<&'static str, Option<f64>>,
}

impl Usage {
    /// Returns the use of a namespace, with rates since `before` and hit rates since `first`.
    fn new(
        now: &NamespaceStats,
        before: &NamespaceStats,
        first: &NamespaceStats,
        seconds: f64,
    ) -> Usage {
        let rate = |now: u64, before: u64| now.saturating_sub(before) as f64 / seconds.max(1e-9);
        // A server that restarted counts from zero.
        let zero = NamespaceStats::default();
        let first = if now.keys < first.keys { &zero } else { first };
        let keys = now.keys - first.keys;
        let hit_rate = |(now, first)| rate_of(now, first, keys);
        let misses = labelled(now, "reason").zip(labelled(before, "reason"));
        let hits = labelled(now, "factor").zip(labelled(first, "factor"));
        let hits = hits.chain([(("1", now.hits), ("1", first.hits))]);
        Usage {
            name: now.name.clone(),
            bytes: now.bytes,
            memory: now.memory,
            keys_per_s: rate(now.keys, before.keys),
            hits_per_s: rate(now.hits, before.hits),
            misses_per_s: misses.map(|((name, now), (_, was))| (name, rate(now, was))).collect(),
            evicted_unused_per_s: rate(now.evicted_unused_total, before.evicted_unused_total),
            hit_rates: hits.map(|((name, now), (_, was))| (name, hit_rate((now, was)))).collect(),
        }
    }

    fn misses(&self) -> f64 {
        self.misses_per_s.values().sum()
    }

    /// Returns the most frequent reason of misses.
    fn main_reason(&self) -> &'static str {
        let most = self.misses_per_s.iter().max_by(|a, b| a.1.total_cmp(b.1));
        most.filter(|(_, rate)| **rate > 0.0).map_or("-", |(name, _)| name)
    }

    /// Returns the cells of [`COLUMNS`].
    fn cells(&self, used: u64) -> [String; COLUMNS.len()] {
        let hits = |factor| percent(self.hit_rates.get(factor).copied().flatten());
        let share = (used > 0).then(|| self.bytes as f64 / used as f64);
        [
            BinaryBytes(self.bytes).to_string(),
            percent(share),
            count(self.keys_per_s),
            count(self.misses()),
            self.main_reason().to_owned(),
            count(self.evicted_unused_per_s),
            hits("0.5"),
            hits("1"),
            hits("2"),
            hits("4"),
            hits("8"),
        ]
    }
}

/// Returns the seconds within which a share of the calls was served.
fn calls_within(now: &NodeStats, before: &NodeStats, share: f64) -> Option<f64> {
    let wanted = now.calls.saturating_sub(before.calls) as f64 * share;
    let classes = labelled(now, "le").zip(labelled(before, "le"));
    let mut served = classes.map(|((le, now), (_, was))| (le, now.saturating_sub(was) as f64));
    let (le, _) = served.find(|(_, served)| *served > 0.0 && *served >= wanted)?;
    le.parse().ok().filter(|seconds: &f64| seconds.is_finite())
}

/// Returns the share of keys that had a value.
fn rate_of(hits: u64, before: u64, keys: u64) -> Option<f64> {
    (keys > 0).then(|| hits.saturating_sub(before) as f64 / keys as f64)
}

impl View {
    fn new(now: &NodeStats, before: &NodeStats, first: &NodeStats, seconds: f64) -> View {
        // The number of a namespace may have got another name.
        let same = |of: &NodeStats, at: usize, name: &str| {
            of.namespaces.get(at).filter(|it| it.name == name).cloned().unwrap_or_default()
        };
        let usage = |(at, of): (usize, &NamespaceStats)| {
            let (before, first) = (same(before, at, &of.name), same(first, at, &of.name));
            Usage::new(of, &before, &first, seconds)
        };
        let in_use = |it: &Usage| !it.name.is_empty() || it.bytes > 0 || it.keys_per_s > 0.0;
        let mut namespaces: Vec<Usage> =
            now.namespaces.iter().enumerate().map(usage).filter(in_use).collect();
        namespaces.sort_by(|a, b| b.bytes.cmp(&a.bytes).then_with(|| a.name.cmp(&b.name)));
        let sum = |of: &NodeStats| {
            of.namespaces.iter().cloned().fold(NamespaceStats::default(), |sum, mut it| {
                // No limit is the largest number.
                it.max_bytes = 0;
                sum.plus(it)
            })
        };
        let rate = |of: fn(&NodeStats) -> u64| {
            of(now).saturating_sub(of(before)) as f64 / seconds.max(1e-9)
        };
        View {
            seconds,
            capacity: now.capacity,
            used: now.used,
            pinned_bytes: now.pinned_bytes,
            reserved_bytes: now.reserved_bytes,
            values: now.values,
            max_blocks: now.max_blocks,
            clients: now.sessions,
            committed_per_s: rate(|it| it.committed_total),
            evicted_per_s: rate(|it| it.evicted_total),
            evicted_unused_per_s: rate(|it| it.evicted_unused_total),
            expired_per_s: rate(|it| it.expired_total),
            removed_per_s: rate(|it| it.removed_total),
            out_of_space_per_s: rate(|it| it.out_of_space_total),
            pressure_per_s: rate(|it| it.pressure_total),
            tier: now.tier_state.name(),
            tier_stored_per_s: rate(|it| it.tier_stored_total),
            tier_not_stored_per_s: rate(|it| it.tier_not_stored_total),
            tier_fetched_per_s: rate(|it| it.tier_fetched_total),
            tier_failed_per_s: rate(|it| it.tier_failed_total),
            calls_per_s: rate(|it| it.calls),
            call_p50_s: calls_within(now, before, 0.5),
            call_p99_s: calls_within(now, before, 0.99),
            kv_event_subscribers: now.kv_event_subscribers,
            kv_events_per_s: rate(|it| it.kv_events_total),
            kv_event_wait_ms: now.kv_event_wait_ms,
            all: Usage::new(&sum(now), &sum(before), &sum(first), seconds),
            namespaces,
        }
    }

    /// Returns the screen, in lines of at most `width` characters and at most `height` lines.
    fn text(&self, width: usize, height: usize) -> String {
        let mut lines = self.summary();
        // Besides: an empty line, the heads, and the line of the cursor.
        let room = height.saturating_sub(lines.len() + 3);
        lines.extend(self.table(width, room));
        let cut = |line: &String| line.chars().take(width).collect::<String>() + "\n";
        lines.iter().map(cut).collect()
    }

    fn summary(&self) -> Vec<String> {
        let bytes = |bytes| BinaryBytes(bytes).to_string();
        let share = (self.capacity > 0).then(|| self.used as f64 / self.capacity as f64);
        let hits = |factor| percent(self.all.hit_rates.get(factor).copied().flatten());
        let reasons: String =
            by_rate(&self.all.misses_per_s).fold(String::new(), |mut text, (name, rate)| {
                let _ = write!(text, ", {}/s {}", count(rate), name.replace('-', " "));
                text
            });
        vec![
            format!(
                "memory  {} of {} in use ({}), {} pinned, {} reserved; pressure {}/s",
                bytes(self.used),
                bytes(self.capacity),
                percent(share),
                bytes(self.pinned_bytes),
                bytes(self.reserved_bytes),
                count(self.pressure_per_s)
            ),
            format!(
                "values  {} of at most {}, {} client(s)",
                HumanCount(self.values),
                HumanCount(self.max_blocks),
                self.clients
            ),
            format!(
                "stores  {}/s, {}/s evicted, {}/s of them never used, {}/s expired, {}/s removed, \
                 {}/s without space",
                count(self.committed_per_s),
                count(self.evicted_per_s),
                count(self.evicted_unused_per_s),
                count(self.expired_per_s),
                count(self.removed_per_s),
                count(self.out_of_space_per_s)
            ),
            format!(
                "tier    {}: {}/s stored, {}/s not stored, {}/s fetched, {}/s failed",
                self.tier,
                count(self.tier_stored_per_s),
                count(self.tier_not_stored_per_s),
                count(self.tier_fetched_per_s),
                count(self.tier_failed_per_s)
            ),
            format!(
                "calls   {}/s, half of them within {}, 99 % within {}",
                count(self.calls_per_s),
                time(self.call_p50_s),
                time(self.call_p99_s)
            ),
            format!(
                "events  {}/s to {} subscriber(s), waiting for {} ms",
                count(self.kv_events_per_s),
                self.kv_event_subscribers,
                self.kv_event_wait_ms
            ),
            format!(
                "keys    {}/s, {}/s hits, {}/s misses{reasons}",
                count(self.all.keys_per_s),
                count(self.all.hits_per_s),
                count(self.all.misses())
            ),
            format!(
                "hits    {} of the keys; with half of the memory {}, with twice {}, 4x {}, 8x {}",
                hits("1"),
                hits("0.5"),
                hits("2"),
                hits("4"),
                hits("8")
            ),
        ]
    }

    /// Returns the lines of the namespaces, `max` at most.
    fn table(&self, width: usize, max: usize) -> Vec<String> {
        if self.namespaces.is_empty() {
            return Vec::new();
        }
        let names: Vec<String> = self
            .namespaces
            .iter()
            .map(|it| escaped(name_of(&it.name)).replace('\n', "\\n"))
            .collect();
        let mut columns: Vec<usize> = (0..COLUMNS.len()).collect();
        let taken = |columns: &[usize]| columns.iter().map(|at| COLUMNS[*at].1).sum::<usize>();
        while taken(&columns) + MIN_NAME > width
            && let Some(at) = (0..columns.len()).max_by_key(|at| COLUMNS[columns[*at]].2)
            && COLUMNS[columns[at]].2 > 0
        {
            columns.remove(at);
        }
        let longest = names.iter().map(|name| name.chars().count()).max().unwrap_or(0);
        let name_width = longest.min(width.saturating_sub(taken(&columns))).max(MIN_NAME);
        let line = |name: &str, cells: &[String]| {
            let name: String = name.chars().take(name_width).collect();
            columns.iter().fold(format!("{name:<name_width$}"), |mut line, at| {
                let _ = write!(line, "{:>1$}", cells[*at], COLUMNS[*at].1);
                line
            })
        };
        let mut lines = vec![String::new(), line("namespace", &COLUMNS.map(|it| it.0.to_owned()))];
        let rows = names.iter().zip(&self.namespaces);
        let shown = if names.len() > max.max(1) { max.saturating_sub(1) } else { names.len() };
        lines.extend(rows.take(shown).map(|(name, it)| line(name, &it.cells(self.used))));
        if shown < names.len() {
            lines.push(format!("and {} more", names.len() - shown));
        }
        lines
    }
}

/// Returns what is not zero, the highest rate first.
fn by_rate(
    rates: &BTreeMap<&'static str, f64>,
) -> impl Iterator<Item = (&'static str, f64)> + use<> {
    let mut rates: Vec<_> = rates.iter().map(|(name, rate)| (*name, *rate)).collect();
    rates.retain(|(_, rate)| *rate > 0.0);
    rates.sort_by(|a, b| b.1.total_cmp(&a.1));
    rates.into_iter()
}

/// Formats a rate: small ones with a digit behind the point.
fn count(rate: f64) -> String {
    if rate > 0.0 && rate < 9.95 {
        format!("{rate:.1}")
    } else {
        HumanCount(rate.round() as u64).to_string()
    }
}

fn time(seconds: Option<f64>) -> String {
    match seconds {
        None => "-".to_owned(),
        Some(seconds) if seconds < 1e-3 => format!("{:.0} µs", seconds * 1e6),
        Some(seconds) => format!("{:.1} ms", seconds * 1e3),
    }
}

fn percent(share: Option<f64>) -> String {
    share.map_or("-".to_owned(), |share| format!("{:.1} %", 100.0 * share))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn namespace(name: &str, bytes: u64, hits: u64) -> NamespaceStats {
        let mut of = NamespaceStats::default();
        (of.name, of.bytes, of.hits, of.keys) = (name.to_owned(), bytes, hits, 1000);
        (of.hits_at_half, of.hits_at_2) = (hits / 2, hits + 100);
        (of.hits_at_4, of.hits_at_8) = (hits + 150, hits + 200);
        (of.evicted_misses, of.never_stored_misses, of.misses) = (300, 100, 400);
        of.evicted_unused_total = 20;
        of
    }

    fn view() -> View {
        let mut now = NodeStats::default();
        (now.capacity, now.used, now.values, now.evicted_total) = (1 << 30, 1 << 29, 1234, 70);
        now.namespaces = vec![
            namespace("small\x1b", 1 << 20, 100),
            namespace("", 0, 0),
            namespace("a name that is quite long", 1 << 28, 600),
        ];
        now.namespaces[1].keys = 0;
        (now.calls_within_4us, now.calls_within_16us, now.calls_within_1ms) = (4, 60, 99);
        (now.calls_within_64us, now.calls_within_256us, now.calls) = (60, 61, 100);
        (now.kv_events_total, now.kv_event_subscribers, now.kv_event_wait_ms) = (500, 3, 2);
        View::new(&now, &NodeStats::default(), &NodeStats::default(), 2.0)
    }

    #[test]
    fn a_screen_has_the_namespaces_by_their_bytes() {
        let text = view().text(usize::MAX, usize::MAX);
        let expected = "\
memory  512.00 MiB of 1.00 GiB in use (50.0 %), 0 B pinned, 0 B reserved; pressure 0/s
values  1,234 of at most 0, 0 client(s)
stores  0/s, 35/s evicted, 0/s of them never used, 0/s expired, 0/s removed, 0/s without space
tier    none: 0/s stored, 0/s not stored, 0/s fetched, 0/s failed
calls   50/s, half of them within 16 µs, 99 % within 1.0 ms
events  250/s to 3 subscriber(s), waiting for 2 ms
keys    1,000/s, 350/s hits, 600/s misses, 450/s evicted, 150/s never stored
hits    35.0 % of the keys; with half of the memory 17.5 %, with twice 50.0 %, 4x 57.5 %, 8x 65.0 %

namespace                       bytes  of all   keys/s misses/s       mostly unused/s   \
\u{20}0.5x      1x      2x      4x      8x
a name that is quite long  256.00 MiB  50.0 %      500      200      evicted       10 \
\u{20}30.0 %  60.0 %  70.0 %  75.0 %  80.0 %
small\\u{1b}                  1.00 MiB   0.2 %      500      200      evicted       10  \
\u{20}5.0 %  10.0 %  20.0 %  25.0 %  30.0 %
";
        assert_eq!(text, expected, "{text}");
    }

    #[test]
    fn a_narrow_screen_has_fewer_columns() {
        let heads = |width: usize| {
            let text = view().text(width, usize::MAX);
            assert!(text.lines().all(|line| line.chars().count() <= width), "{text}");
            let head = text.lines().nth(9).expect("a table").to_owned();
            head.split_whitespace().skip(1).map(str::to_owned).collect::<Vec<_>>().join(" ")
        };
        assert_eq!(heads(80), "bytes of all misses/s mostly 1x 2x 8x");
        assert_eq!(heads(60), "bytes misses/s mostly 1x 2x");
        assert_eq!(heads(40), "bytes 1x 2x");
        assert_eq!(heads(10), "");
    }

    #[test]
    fn a_low_screen_says_how_many_it_left_out() {
        let text = view().text(80, 11);
        assert!(text.lines().count() <= 11 && text.ends_with("\nand 2 more\n"), "{text}");
        assert!(!view().text(80, 14).contains("more"));
    }

    #[test]
    fn a_server_that_started_again_counts_from_zero() {
        let (mut now, mut first) = (NodeStats::default(), NodeStats::default());
        now.namespaces = vec![namespace("a", 1, 100)];
        first.namespaces = vec![namespace("a", 1, 100)];
        first.namespaces[0].keys = 5000;
        let view = View::new(&now, &first, &first, 1.0);
        assert_eq!(view.namespaces[0].hit_rates["2"], Some(0.2));
        assert_eq!(view.namespaces[0].keys_per_s, 0.0);
    }
}
