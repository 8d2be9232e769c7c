//! The benchmark of the disk tier: values that leave memory for a file, and come back.
//!
//! 1. *Passes.* A pass stores a number of values under new keys, or fetches as many of those that
//!    were stored before, in random order. Contenders take turns pass by pass, and the medians
//!    count. Every contender was full before the first pass, so a store evicts what is oldest, and
//!    no pass writes to blocks that the file system has never written.
//! 2. *Contenders.* `kvmem` is the library's tier, with its index,
//!    journal, checksums and eviction; `kvmem-codec` compresses values, `kvmem-keys` encrypts them,
//!    and `kvmem-codec-keys` does both. `plain` is the limit: the same
//!    number of bytes read and written by io_uring, with direct I/O and fixed buffers, as many
//!    transfers in flight, in one loop that does nothing else. `files`
//!    is one file for each value with `read()` and `write()`, as engines do it;
//!    `files-direct` the same with direct I/O on 16 threads.
//!    Programs of other people's code take part as [`Beside`]: they are started once, are told by a
//!    line of JSON what to do, and time themselves. One of them is fio, the usual generator of
//!    I/O: `plain` is a model of it, and the comparison with fio shows whether the model holds.
//! 3. *Time* is wall time of the pass and processor time of the process, with all its threads. What
//!    `files` has written counts when it is on the device (`syncfs`), since the others write past
//!    the page cache; its files leave the page cache before they are read.
//! 4. *Bytes.* Every value begins with its number; the rest is BF16, the keys and values of random
//!    weights that `bench codec` makes. After a pass of fetches all of them are compared, outside
//!    the time. GB/s are of these bytes, and the table `size` has those written to the device for
//!    each, with padding and without the journal.
//! 5. *Index.* A tier with many values of a byte each shows the memory of the index for each value
//!    and the seconds until it is open again. A tier without a disk, which only counts blocks,
//!    shows the utilization of the file for a pair of objects, one for the KV cache and one for its
//!    index, at the moment when the next one has no room.
//!
//! A contender outside of this program talks as [`beside`](super::beside) has it:
//!
//! | call | answer |
//! |---|---|
//! | `{"call":"open","dir":D,"bytes":B,"value_bytes":V,"depth":N}` | `{}` |
//! | `{"call":"store","first":F,"count":C}`: stores the values F to F + C − 1 | `{"seconds":S,"cpu_seconds":P}` |
//! | `{"call":"fetch","numbers":[…]}`: fetches these values, and compares the numbers in their first eight bytes | the same |

mod contenders;
mod index;

use std::fs;

use anyhow::{Context, Result};
use kvmem::tier::DataType;
use tempfile::TempDir;

use self::contenders::{Room, contender};
use super::args::TierArgs;
use super::beside::Beside;
use super::codec::numbers::{random_weights, rounded};
use super::suite::{Figures, Run, Turns, names};
use super::values::{Memory, ValueTurn, padded};

/// Bytes of the values: two common ones, and a block of KV cache.
const VALUE_BYTES: [u64; 3] = [64 << 10, 1 << 20, 3_274_752];
/// Transfers in flight.
const DEPTH: u32 = 32;

/// Runs the benchmark. Its files take as many bytes as the contenders may store, 28 GiB in a full
/// run of the seven in this program, and are removed at the end.
pub fn run(run: &mut Run, args: &TierArgs) -> Result<()> {
    let reps = run.reps(9, 3);
    let bytes = args.size.unwrap_or(run.length(4 << 30, 512 << 20, 16 << 20));
    let pass = run.length(256 << 20, 64 << 20, 4 << 20).min(bytes / 4);
    let depth = args.depth.unwrap_or(DEPTH);
    run.settings(format_args!(
        "{reps} repetition(s), {depth} transfers in flight, files of {} MiB, passes of {} MiB",
        bytes >> 20,
        pass >> 20
    ));
    for table in ["store", "fetch"] {
        run.about(table, "GB/s, and seconds of processor time for a GB");
    }
    run.about("size", "bytes written for each byte of the values");
    let parent = args.dir.clone().unwrap_or_else(std::env::temp_dir);
    fs::create_dir_all(&parent)?;
    let new_dir = || TempDir::with_prefix_in("kvmem-bench-", &parent);
    let here = TierContenderId::ALL.map(TierContenderId::name);
    let names = run.chosen(&Beside::names(&here, &args.beside)?);
    let lengths = if args.value_bytes.is_empty() { &VALUE_BYTES[..] } else { &args.value_bytes };
    let passes = ["store", "fetch", "size"].into_iter().any(|table| run.wants(table));
    let numbers = run.length(2 << 20, 2 << 20, 64 << 10);
    let content = rounded(&random_weights(numbers), DataType::Bfloat16);
    for &value_bytes in lengths.iter().filter(|_| passes) {
        let line = format!("{value_bytes} bytes");
        // The files are in it. Those of the last length have made room for these.
        let dir = new_dir()?;
        let stride = padded(value_bytes);
        let mut memory = Memory::new(value_bytes, (pass / stride).max(1))?;
        memory.fill(&content);
        let gb = (memory.count * memory.len) as f64 / 1e9;
        // The values stored last, of which fetches choose: half of those that have room.
        let window = (bytes / stride / 2).max(memory.count as u64);
        let mut turns = Vec::new();
        for name in &names {
            run.step(format_args!("{line}: {name}"));
            let room = Room { dir: &dir.path().join(name), bytes, depth };
            fs::create_dir(room.dir)?;
            let open = ValueTurn::open(room.dir, bytes, value_bytes, ("depth", depth.into()))?;
            let (count, pool) = (memory.count, memory.pool.clone());
            let here = || contender(name.parse()?, room, stride as usize, count, &pool);
            // Full, and one more. Compressed values are more than half as long.
            let fill = bytes / stride * if name.contains("codec") { 2 } else { 1 } + 1;
            turns.push(ValueTurn::new(name, &args.beside, &open, here, &mut memory, fill)?);
        }
        for table in ["store", "fetch"] {
            run.turns((table, &line), &names, Turns::of(reps), |name, rep| {
                let turn = ValueTurn::of(&mut turns, name);
                let time = match table {
                    "store" => turn.store(&mut memory)?,
                    _ => turn.fetch(&mut memory, window, rep, "fetch")?,
                };
                let cpu = time.cpu_seconds.context("an answer without `cpu_seconds`")?;
                Ok(Figures::of("GB/s", gb / time.seconds).with("s/GB", cpu / gb))
            })?;
        }
        for (name, turn) in names.iter().zip(&turns) {
            if let Some(share) = turn.written_share(&memory) {
                run.row("size", &line, name, Figures::of("of plain", share));
            }
        }
    }
    if run.wants("index") {
        run.step("index");
        let entries = run.length(1_000_000, 100_000, 1000);
        let space = run.length(64 << 30, 8 << 30, 512 << 20);
        let figures = index::measure(new_dir()?.path(), entries, space)?;
        run.row("index", &format!("{entries} values"), "kvmem", figures);
    }
    goals(run);
    Ok(())
}

fn goals(run: &mut Run) {
    let short = |line: &str| line == "65536 bytes";
    let long = |line: &str| !short(line);
    let one = |line: &str| line == "1048576 bytes";
    let over = |run: &Run, other: &str, figure: &str, lines: &dyn Fn(&str) -> bool| {
        let tables = ["store", "fetch"].into_iter();
        tables.flat_map(|table| run.over(table, ("kvmem", other), figure, lines)).collect()
    };
    for limit in ["plain", "fio"] {
        let name = format!("kvmem: bytes per second over those of {limit}");
        run.at_least(&format!("{name}, 1 MiB and more"), 0.95, over(run, limit, "GB/s", &long));
        run.at_least(&format!("{name}, 64 KiB"), 0.85, over(run, limit, "GB/s", &short));
        let name = format!("kvmem: processor time for a byte over that of {limit}");
        run.at_most(&name, 1.3, over(run, limit, "s/GB", &|_| true));
    }
    let name = "kvmem, 1 MiB: bytes per second over those of foyer";
    run.at_least(name, 1.3, over(run, "foyer", "GB/s", &one));
    let name = "kvmem, 1 MiB: processor time for a byte over that of foyer";
    run.at_most(name, 0.5, over(run, "foyer", "s/GB", &one));
    for device in ["plain", "fio"] {
        for (ours, limit) in [("kvmem-codec", 1.3), ("kvmem-keys", 0.9)] {
            let name = format!("{ours}, fetch: bytes per second over those of {device}");
            let rates = run.over("fetch", (ours, device), "GB/s", |_| true);
            run.at_least(&name, limit, rates);
        }
    }
    for other in ["kvmem", "fio"] {
        let name = format!("kvmem-keys, store: bytes per second over those of {other}");
        run.at_least(&name, 0.9, run.over("store", ("kvmem-keys", other), "GB/s", |_| true));
    }
    for (other, limit) in [("files", 2.0), ("hicache-file", 3.0)] {
        let name = format!("kvmem: bytes per second over those of {other}");
        run.at_least(&name, limit, over(run, other, "GB/s", &|_| true));
    }
    let index = |run: &Run, figure: &str| run.values("index", "kvmem", figure, |_| true);
    run.at_most("index: bytes for each value", 64.0, index(run, "bytes a value"));
    run.at_most("index: seconds to open", 2.0, index(run, "s to open"));
    run.at_least("file: utilization for pairs of objects", 0.999, index(run, "utilization"));
}

names! {
    /// The contenders in this program by name.
    pub enum TierContenderId ("contender") {
        Kvmem = "kvmem",
        Codec = "kvmem-codec",
        Keys = "kvmem-keys",
        CodecKeys = "kvmem-codec-keys",
        Plain = "plain",
        Files = "files",
        FilesDirect = "files-direct",
    }
}
