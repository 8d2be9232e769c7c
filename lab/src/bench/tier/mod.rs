//! The benchmark of the disk tier: values that leave memory for a file, and come back.
//!
//! 1. *Passes.* A pass stores a number of values under new keys, or fetches as many of those that
//!    were stored before, in random order. Contenders take turns pass by pass, and the medians
//!    count. Every contender was full before the first pass, so a store evicts what is oldest, and
//!    no pass writes to blocks that the file system has never written.
//! 2. *Contenders.* `kvmem` is the library's tier, with its index,
//!    journal, checksums and eviction. `plain` is the limit: the same
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
//! 4. *Bytes.* Every value begins with its number and is otherwise random. After a pass of fetches
//!    all of them are compared, outside of the time.
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

mod args;
mod contenders;
mod index;

use std::fs;

use anyhow::Result;
use kvmem_testkit::workload::stream;
use rand::seq::SliceRandom;
use tempfile::TempDir;

pub use self::args::TierArgs;
use self::contenders::{BesideContender, PassTime, Room, TierContender, contender, timed};
use self::index::{IndexEffort, IndexFigures};
use super::beside::{Beside, BesideError};
use super::suite::{Figures, Run, Turns, names};
use super::values::{Memory, ValueError, padded};

/// Bytes of the values: two common ones, and a block of KV cache.
const VALUE_BYTES: [u64; 3] = [64 << 10, 1 << 20, 3_274_752];
/// Transfers in flight.
const DEPTH: u32 = 32;

/// Runs the benchmark. Its files take as many bytes as the contenders may store, 16 GiB in a full
/// run of the four in this program, and are removed at the end.
///
/// # Errors
/// A contender fails, or returns other bytes than were stored.
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
    let parent = args.dir.clone().unwrap_or_else(std::env::temp_dir);
    fs::create_dir_all(&parent)?;
    let new_dir = || TempDir::with_prefix_in("kvmem-bench-", &parent);
    let here = TierContenderId::ALL.map(TierContenderId::name);
    let names = run.chosen(&Beside::names(&here, &args.beside)?);
    let lengths = if args.value_bytes.is_empty() { &VALUE_BYTES[..] } else { &args.value_bytes };
    let passes = run.wants("store") || run.wants("fetch");
    for &value_bytes in lengths.iter().filter(|_| passes) {
        let line = format!("{value_bytes} bytes");
        // The files are in it. Those of the last length have made room for these.
        let dir = new_dir()?;
        let stride = padded(value_bytes);
        let mut memory = Memory::new(value_bytes, (pass / stride).max(1))?;
        let gb = (memory.count * memory.len) as f64 / 1e9;
        // The values stored last, of which fetches choose: half of those that have room.
        let window = (bytes / stride / 2).max(memory.count as u64);
        let mut turns = Vec::new();
        for name in &names {
            run.step(format_args!("{line}: {name}"));
            let room = Room { dir: &dir.path().join(name), bytes, depth };
            turns.push(TierTurn::new(name, &args.beside, room, &mut memory)?);
        }
        for table in ["store", "fetch"] {
            run.turns((table, &line), &names, Turns::of(reps), |name, rep| {
                let at = names.iter().position(|of| *of == name).unwrap_or_default();
                let time = match table {
                    "store" => turns[at].store(&mut memory)?,
                    _ => turns[at].fetch(&mut memory, window, rep)?,
                };
                Ok(Figures::of("GB/s", gb / time.seconds).with("s/GB", time.cpu_seconds / gb))
            })?;
        }
    }
    let effort = IndexEffort {
        entries: run.length(1_000_000, 100_000, 1000),
        space: run.length(64 << 30, 8 << 30, 512 << 20),
    };
    if run.wants("index") {
        run.step("index");
        let IndexFigures { bytes_per_entry, open_s, utilization } =
            index::measure(new_dir()?.path(), effort)?;
        let figures = Figures::of("bytes a value", bytes_per_entry)
            .with("s to open", open_s)
            .with("utilization", utilization);
        run.row("index", &format!("{} values", effort.entries), "kvmem", figures);
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
    for (other, limit) in [("files", 2.0), ("hicache-file", 3.0)] {
        let name = format!("kvmem: bytes per second over those of {other}");
        run.at_least(&name, limit, over(run, other, "GB/s", &|_| true));
    }
    let index = |run: &Run, figure: &str| run.values("index", "kvmem", figure, |_| true);
    run.at_most("index: bytes for each value", 64.0, index(run, "bytes a value"));
    run.at_most("index: seconds to open", 2.0, index(run, "s to open"));
    run.at_least("file: utilization for pairs of objects", 0.999, index(run, "utilization"));
}

/// A contender that takes turns, and the number of its next value.
struct TierTurn {
    contender: AnyContender,
    next: u64,
}

/// A program of its own times itself.
enum AnyContender {
    Here(Box<dyn TierContender>),
    Beside(BesideContender),
}

impl TierTurn {
    /// Makes a contender and fills its room.
    fn new(
        name: &str,
        beside: &[Beside],
        room: Room<'_>,
        memory: &mut Memory,
    ) -> Result<TierTurn, TierMeasureError> {
        fs::create_dir(room.dir).map_err(TierMeasureError::system("make a directory"))?;
        let contender = match beside.iter().find(|beside| beside.name == name) {
            Some(beside) => {
                AnyContender::Beside(BesideContender::new(beside, room, memory.len as u64)?)
            }
            None => {
                let id = name.parse().expect("the names are those of this program");
                AnyContender::Here(contender(id, room, memory)?)
            }
        };
        let mut turn = TierTurn { contender, next: 0 };
        while turn.next <= room.bytes / memory.stride as u64 {
            turn.store(memory)?;
        }
        Ok(turn)
    }

    /// Stores as many values as `memory` has.
    fn store(&mut self, memory: &mut Memory) -> Result<PassTime, TierMeasureError> {
        let first = self.next;
        self.next += memory.count as u64;
        match &mut self.contender {
            AnyContender::Here(contender) => timed(|| contender.store(memory, first)),
            AnyContender::Beside(beside) => beside.store(first, memory.count as u64),
        }
    }

    /// Fetches as many of the values that were stored last, in random order.
    fn fetch(
        &mut self,
        memory: &mut Memory,
        window: u64,
        rep: u32,
    ) -> Result<PassTime, TierMeasureError> {
        // All contenders fetch the same ones, counted from the last.
        let mut numbers: Vec<u64> = (1..=window).map(|back| self.next - back).collect();
        numbers.shuffle(&mut stream(1, rep.into()));
        numbers.truncate(memory.count);
        match &mut self.contender {
            AnyContender::Here(contender) => {
                contender.before_fetch(&numbers)?;
                memory.forget();
                let time = timed(|| contender.fetch(memory, &numbers))?;
                memory.compare(&numbers)?;
                Ok(time)
            }
            AnyContender::Beside(beside) => beside.fetch(&numbers),
        }
    }
}

/// The error of one measurement.
#[derive(Debug, thiserror::Error)]
pub enum TierMeasureError {
    /// The system refused a file or a transfer.
    #[error("{call}: {source}")]
    System {
        /// What was tried.
        call: &'static str,
        /// The system's error.
        source: std::io::Error,
    },
    /// The tier failed.
    #[error(transparent)]
    Tier(#[from] kvmem_tier::TierError),
    /// A value was not stored.
    #[error(transparent)]
    Store(#[from] kvmem_tier::StoreError),
    /// Values could not be made, or other bytes came back than were stored.
    #[error(transparent)]
    Values(#[from] ValueError),
    /// A value that was stored is not found.
    #[error("value {number} is not found: {found}")]
    Lost {
        /// The number of the value.
        number: u64,
        /// What was found.
        found: String,
    },
    /// A program that takes part failed.
    #[error(transparent)]
    Beside(#[from] BesideError),
}

impl TierMeasureError {
    fn system(call: &'static str) -> impl FnOnce(std::io::Error) -> TierMeasureError {
        move |source| TierMeasureError::System { call, source }
    }
}

names! {
    /// The contenders in this program by name.
    pub enum TierContenderId ("contender") {
        /// The library's tier.
        Kvmem = "kvmem",
        /// Reads and writes alone.
        Plain = "plain",
        /// A file for each value, one thread.
        Files = "files",
        /// A file for each value, direct I/O, 16 threads.
        FilesDirect = "files-direct",
    }
}
