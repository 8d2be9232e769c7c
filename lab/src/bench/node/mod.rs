//! The benchmark of a node: one pool of memory that several processes share.
//!
//! 1. *Processes.* The server is a process of its own, and so are the clients whose calls are
//!    timed: each of them is this program, which
//!    [acts](act) a part. The memory and the index are made here, and the server gets their
//!    descriptors, as from a memory holder.
//! 2. *Calls.* A call releases the pins of 64 values and pins 64 others, of 4096 values of 256
//!    bytes. One client calls, or four at the same time. A figure of four clients is the sum of
//!    their rates, or the time of the slowest.
//! 3. *Values.* A pass stores values of 1 MiB under the keys of earlier ones, or reads as many in
//!    random order, 64 in a call. To store is to reserve, copy and commit; to read is to acquire,
//!    copy out and release. The reservations or the acquisitions of the next 64 values are sent
//!    before these 64 are copied, and the answer to a commit is awaited after the next copies.
//!    `memcpy` is the limit: the same bytes copied to and from a memory file of the same kind and
//!    size by this process alone. All pages are populated, and mapped where they are used.
//! 4. *Look-ups.* A call looks up 64 keys that have values, and pins nothing.
//! 5. *Restart.* A server with many committed blocks is killed by SIGKILL and started again. The
//!    time ends when a client that was connected has the answer of its next look-up. The pages of
//!    the values were never touched: nothing reads them.
//! 6. *Events.* A writer stores values under new keys over those of before, for 250 ms at a time at
//!    a server without a publisher of KV events, and at one with a publisher and a subscriber,
//!    which is a process of its own. A value that is not written is committed as it was reserved:
//!    nothing but calls. The lag of a key is the time from the call that commits it until the
//!    subscriber has read it.
//! 7. *Announcement.* A server with committed blocks is killed and started again. The time ends
//!    when a new subscriber has read of all of them.
//! 8. *Resizing.* A client with rings reads values of 16 KiB, 128 KiB and 1 MiB at random and
//!    stores those that are missing, compares all bytes, and has the last 20 pinned, while the
//!    memory becomes half as large and as large as before. The longest call is that of all rounds,
//!    `--reps` of them, apart from times in which the machine had no processor.
//! 9. *Turns.* Contenders take turns, and the medians count. Every value begins with its number and
//!    is otherwise random, and after a pass of reads all of them are compared, outside of the time.
//!
//! A contender outside of this program talks as [`beside`](super::beside) has it:
//!
//! | call | answer |
//! |---|---|
//! | `{"call":"open","dir":D,"bytes":B,"value_bytes":V,"batch":N}`: room for B / V values | `{}` |
//! | `{"call":"store","first":F,"count":C}`: stores the values F to F + C − 1, each under the key of its number modulo B / V, N in a call | `{"seconds":S}` |
//! | `{"call":"read","numbers":[…]}`: reads these values, N in a call, and compares the numbers in their first eight bytes | the same |
//! | `{"call":"lookup","numbers":[…],"times":T}`: looks up the keys of these values in one call, T times | the same |

mod calls;
mod events;
mod exchange;
mod memory;
mod resize;
mod restart;
mod role;
mod subscriber;
mod values;
mod writer;

use std::process::Command;
use std::time::Duration;

use anyhow::{Result, ensure};
use tempfile::TempDir;

use self::calls::CallsFixture;
use self::events::CommitRates;
use self::exchange::{CallTimes, KEYS};
use self::resize::Resized;
pub use self::role::{NodeRole, act};
use self::values::{BATCH, VALUE_BYTES};
use self::writer::Stores;
use super::beside::Beside;
use super::suite::{Figures, Run, Turns, names};
use super::values::{Memory, ValueTurn};

use NodeContenderId::{Memcpy, Ring, Socket};

/// Returns the command of a process that [acts](act) a role.
pub type NodeChild = fn(&NodeRole) -> Command;

/// Runs the benchmark. A full run takes about 9 GiB of memory.
pub fn run(run: &mut Run, beside: &[Beside], child: NodeChild) -> Result<()> {
    let reps = run.reps(9, run.length(9, 3, 1));
    let time = Duration::from_millis(run.length(1000, 250, 50));
    let values: u64 = run.length(128, 64, 4);
    let lookups: u64 = run.length(2000, 500, 10);
    let blocks = run.length(1_000_000, 100_000, 2000);
    run.settings(format_args!(
        "{reps} repetition(s), calls for {} ms, passes of {values} values of {} KiB, {BATCH} in a \
         call",
        time.as_millis(),
        VALUE_BYTES >> 10
    ));
    run.about("calls", "µs to pin and release 64 values, and million keys per second");
    run.about("values", "GB/s");
    run.about("lookup", "million keys per second, 64 in a call");
    run.about("restart", "seconds until a server that is killed and started serves the next hit");
    let new_dir = || TempDir::with_prefix("kvmem-bench-");
    let nodes = run.chosen(&[Ring, Socket]);
    if run.wants("calls") && !nodes.is_empty() {
        let fixture = CallsFixture::new(new_dir()?, child)?;
        for clients in [1, 4] {
            let line = format!("{clients} client(s)");
            run.turns(("calls", &line), &nodes, Turns::of(reps), |id, _| {
                let found = fixture.measure(id == Ring, clients, time, child)?;
                let CallTimes { keys_per_s, p50_us, p99_us } = found;
                Ok(Figures::of("p50 µs", p50_us)
                    .with("p99 µs", p99_us)
                    .with("M keys/s", keys_per_s / 1e6))
            })?;
        }
    }
    let here = NodeContenderId::ALL.map(NodeContenderId::name);
    let names = run.chosen(&Beside::names(&here, beside)?);
    if run.wants("values") || run.wants("lookup") {
        let gb = (values * VALUE_BYTES) as f64 / 1e9;
        let dir = new_dir()?;
        let mut memory = Memory::new(VALUE_BYTES, values)?;
        let mut turns = values::turns(&dir, &names, beside, &mut memory, child)?;
        let rate = |seconds: f64| Figures::of("GB/s", gb / seconds);
        // A pass takes milliseconds, and passes differ by more than the goals allow.
        let passes = Turns::of(run.reps(45, reps));
        run.turns(("values", "store"), &names, passes, |name, _| {
            Ok(rate(ValueTurn::of(&mut turns, name).store(&mut memory)?.seconds))
        })?;
        run.turns(("values", "read"), &names, passes, |name, rep| {
            let turn = ValueTurn::of(&mut turns, name);
            Ok(rate(turn.fetch(&mut memory, 2 * values, rep, "read")?.seconds))
        })?;
        let keyed: Vec<&str> =
            names.iter().copied().filter(|name| *name != Memcpy.name()).collect();
        let keys = lookups as f64 * KEYS as f64 / 1e6;
        run.turns(("lookup", "lookup"), &keyed, Turns::of(reps), |name, _| {
            let time = ValueTurn::of(&mut turns, name).lookup(2 * values, KEYS, lookups)?;
            Ok(Figures::of("M keys/s", keys / time.seconds))
        })?;
    }
    let line = format!("{blocks} blocks");
    run.turns(("restart", &line), &[Socket], Turns::of(reps.min(3)), |_, _| {
        Ok(Figures::of("s", restart::measure(&new_dir()?, blocks, child)?))
    })?;
    publishing(run, reps, &nodes, child)?;
    resizing(run, child)?;
    goals(run);
    Ok(())
}

/// A line of stores at a rate at which an engine may store: 2.6 GB a second.
const PACED: &str = "20,000 values of 128 KiB a second";

fn publishing(run: &mut Run, reps: u32, nodes: &[NodeContenderId], child: NodeChild) -> Result<()> {
    run.about(
        "events",
        "thousand commits per second without and with a subscriber, its events, its lag",
    );
    run.about(
        "announce",
        "seconds until a subscriber knows all blocks of a server that is started",
    );
    let time = Duration::from_millis(run.length(1000, 500, 50));
    for (line, batch, value_bytes, writes, per_s) in [
        (PACED, 8, 128 << 10, true, 20_000),
        ("64 values of 128 KiB a call", 64, 128 << 10, true, 0),
        ("1 value of 128 KiB a call", 1, 128 << 10, true, 0),
        ("64 values that are not written a call", 64, 4 << 10, false, 0),
        ("1 value that is not written a call", 1, 4 << 10, false, 0),
    ] {
        let stores = Stores { batch, value_bytes, writes, per_s };
        run.turns(("events", line), nodes, Turns::of(reps), |id, _| {
            let dir = TempDir::with_prefix("kvmem-bench-")?;
            let found = events::measure(&dir, (id == Ring, stores), time, child)?;
            let CommitRates { silent_per_s, heard_per_s, published_per_s, p50_ms, p99_ms } = found;
            let figures = Figures::of("k/s without", silent_per_s / 1e3)
                .with("with", heard_per_s / 1e3)
                .with("ratio", heard_per_s / silent_per_s)
                .with("k events/s", published_per_s / 1e3);
            // Where as much is stored as possible, the subscriber is behind by design.
            Ok(if per_s == 0 {
                figures
            } else {
                figures.with("p50 ms", p50_ms).with("p99 ms", p99_ms)
            })
        })?;
    }
    let blocks = run.length(100_000, 100_000, 2000);
    let line = format!("{blocks} blocks");
    run.turns(("announce", &line), &[Socket], Turns::of(reps), |_, _| {
        let dir = TempDir::with_prefix("kvmem-bench-")?;
        Ok(Figures::of("s", events::announce(&dir, blocks, child)?))
    })
}

fn resizing(run: &mut Run, child: NodeChild) -> Result<()> {
    run.about(
        "resize",
        "the longest call and the 99.99th percentile, the longest one with pauses of the machine, \
         and seconds for a change",
    );
    let bytes: u64 = run.length(8 << 30, 1 << 30, 64 << 20);
    let rounds = run.reps(10, 2);
    let line = format!("{} MiB and half, {rounds} times", bytes >> 20);
    run.turns(("resize", &line), &[Ring], Turns::of(1), |_, _| {
        let dir = TempDir::with_prefix("kvmem-bench-")?;
        let found = resize::measure(&dir, bytes, rounds, child)?;
        let Resized { longest_ms, p9999_ms, longest_with_pauses_ms, .. } = found;
        Ok(Figures::of("longest ms", longest_ms)
            .with("p99.99 ms", p9999_ms)
            .with("with pauses", longest_with_pauses_ms)
            .with("smaller s", found.smaller_s)
            .with("larger s", found.larger_s)
            .with("values compared", found.compared as f64))
    })
}

fn goals(run: &mut Run) {
    let all = |_: &str| true;
    for (id, limit) in [(Socket, 40.0), (Ring, 12.0)] {
        let one = run.values("calls", id, "p50 µs", |line| line == "1 client(s)");
        run.at_most(&format!("{id}, one client: µs to pin and release 64 values"), limit, one);
    }
    for (line, limit) in [("1 client(s)", 1.5), ("4 client(s)", 2.5)] {
        let both = [Ring, Socket].into_iter();
        let both = both.flat_map(|id| run.values("calls", id, "M keys/s", |of| of == line));
        let both = both.collect();
        run.at_least(&format!("{line}: million keys pinned and released per second"), limit, both);
    }
    for (table, line, other, limit) in [
        ("values", "store", Memcpy.name(), 0.95),
        ("values", "read", Memcpy.name(), 0.95),
        ("values", "read", "redis", 5.0),
        ("lookup", "lookup", "lmcache", 20.0),
        ("values", "store", "lmcache", 3.0),
    ] {
        let figure = if table == "lookup" { "M keys/s" } else { "GB/s" };
        let both = [Ring, Socket].into_iter();
        let both = both.flat_map(|id| run.over(table, (id, other), figure, |of| of == line));
        let both = both.collect();
        run.at_least(&format!("{line}: {figure} over those of {other}"), limit, both);
    }
    run.at_most("restart: seconds to the first hit", 2.0, run.values("restart", Socket, "s", all));
    let of = |table, figure, lines: fn(&str) -> bool| {
        let both = [Ring, Socket].into_iter();
        both.flat_map(|id| run.values(table, id, figure, lines)).collect::<Vec<_>>()
    };
    let is_written = |line: &str| line.contains("KiB");
    let [ratio, empty] = [of("events", "ratio", is_written), of("events", "ratio", |_| true)];
    let lag = of("events", "p99 ms", |line| line == PACED);
    let [announce, longest, larger] =
        [("announce", "s"), ("resize", "longest ms"), ("resize", "larger s")]
            .map(|(table, figure)| of(table, figure, |_| true));
    run.at_least("events: commits over those without a subscriber", 0.97, ratio);
    run.at_least("events: the same, values that are not written, too", 0.97, empty);
    run.at_most("events: ms from commit to subscriber, 99th percentile", 5.0, lag);
    run.at_most("announce: seconds", 1.0, announce);
    run.at_most("resize: ms of the longest call", 50.0, longest);
    run.at_most("resize: seconds until the memory is as large as before", 5.0, larger);
}

/// Returns an error unless all values that were stored are found.
fn unless_all(found: usize, wanted: usize) -> Result<()> {
    ensure!(found == wanted, "{found} of {wanted} values are found");
    Ok(())
}

names! {
    /// The contenders in this program by name.
    pub enum NodeContenderId ("contender") {
        Ring = "ring",
        Socket = "socket",
        Memcpy = "memcpy",
    }
}
