//! The benchmark of the arena layer: bump allocation, and populating memory.
//!
//! 1. *Tables.* `bump` allocates 64 B and 4 KiB on 1, 2 and 8 threads; `bump-full` is the same call
//!    on a full arena. `populate` maps memory and makes it resident, `discard` returns its pages,
//!    `map` maps 1 TiB and leaves it untouched.
//! 2. *Contenders.* kvmem's bump arena is compared with a mutex, the crate `bumpalo` and a model of
//!    the published arena that it descends from ([`bump`]). Its populated regions are compared with
//!    one thread that uses `MAP_POPULATE` and one thread that writes to each page.
//! 3. *Time.* A bump allocation computes and never waits, so its time is the processor time of its
//!    thread, the mean of the threads. Callers wait for populating, so its time is wall time, from
//!    before the mapping until the memory is resident; unmapping is not part of it.
//! 4. *Noise.* In a virtual machine, the first touch of memory that was returned to the host costs
//!    many times as much as the second. The memory is therefore populated once before the clock
//!    runs.
//! 5. *Missing rows.* Rows need their kind of pages. Hugepages of 2 MiB are those that the machine
//!    has free (`vm.nr_hugepages`).

pub(super) mod bump;
pub mod mapping;
mod region;

use anyhow::{Error, Result};
use rustix::io::Errno;

use self::bump::{Bump, Bumpalo, KvmemArena, MutexArena, PublishedArena};
pub use self::region::page_size;
use super::limits;
use super::machine::Machine;
use super::suite::{Figures, Run, Skip, Turns, names};

/// Sizes of a bump allocation, in bytes.
const SIZES: [usize; 2] = [64, 4096];
/// Bytes mapped and left untouched.
const MAPPED: usize = 1 << 40;
/// The smallest size that is worth populating.
const MIN_POPULATED: u64 = 64 << 20;

names! {
    /// Bump arenas by name.
    pub enum BumpId ("arena") {
        Kvmem = "kvmem",
        PublishedArena = "published-arena",
        Mutex = "mutex",
        Bumpalo = "bumpalo",
    }
}

names! {
    /// Ways to make memory resident by name.
    pub enum PopulateId ("way to populate") {
        Kvmem1 = "kvmem ×1",
        Kvmem2 = "kvmem ×2",
        Kvmem4 = "kvmem ×4",
        Kvmem8 = "kvmem ×8",
        Kvmem16 = "kvmem ×16",
        KvmemAuto = "kvmem-auto",
        MapPopulate = "map-populate",
        Touch = "touch",
    }
}

names! {
    /// Kinds of pages by name, and kinds of memory where they decide about the pages.
    pub enum Pages ("kind of pages") {
        Base = "base",
        Thp = "thp",
        Huge = "2m",
        Shared = "shared",
    }
}

impl PopulateId {
    /// The library with fixed numbers of threads.
    const FIXED: [(Self, usize); 5] = [
        (Self::Kvmem1, 1),
        (Self::Kvmem2, 2),
        (Self::Kvmem4, 4),
        (Self::Kvmem8, 8),
        (Self::Kvmem16, 16),
    ];

    /// Returns the fixed number of threads; `None` if the library or the kernel chooses.
    fn threads(self) -> Option<usize> {
        Self::FIXED.iter().find_map(|&(id, threads)| (id == self).then_some(threads))
    }

    /// Returns the ways for this machine: up to twice as many threads as processors.
    fn able() -> Vec<Self> {
        let most = 2 * Machine::here().cores;
        Self::ALL.into_iter().filter(|id| id.threads().is_none_or(|n| n <= most)).collect()
    }
}

impl Pages {
    /// The kinds for private memory.
    pub const PRIVATE: [Self; 3] = [Self::Base, Self::Thp, Self::Huge];

    /// Returns why the machine lacks `bytes` of these pages, if it does.
    pub fn missing(self, bytes: u64) -> Option<String> {
        match self {
            Pages::Thp => limits::thp_missing(),
            Pages::Huge => limits::hugepages_missing(bytes),
            Pages::Base | Pages::Shared => None,
        }
    }
}

/// Runs the benchmark. The full run makes up to 2 GiB resident at a time, a quick one 512 MiB; less
/// if less is available.
pub fn run(run: &mut Run) -> Result<()> {
    let (bump_reps, page_reps) = (run.reps(15, run.length(15, 5, 1)), run.reps(5, 3));
    run.settings(format_args!("{bump_reps} and {page_reps} repetition(s)"));
    run.about("bump", "ns of each thread's processor time per allocation");
    run.about("bump-full", "ns per allocation that fails because the arena is full");
    run.about("populate", "GiB/s mapped and made resident");
    run.about("discard", "GiB/s returned");
    run.about("map", "1 TiB of address space without memory: ms, and bytes resident");
    let alone = run.length(1_000_000, 300_000, 20_000);
    let shared = run.length(4_000_000, 1_000_000, 100_000);
    let full = run.length(1_000_000, 200_000, 10_000);
    for size in SIZES {
        for threads in [1, 2, 8] {
            let ops = if threads == 1 { alone } else { shared };
            let able = if threads == 1 { &BumpId::ALL[..] } else { &BumpId::ALL[..3] };
            let line = format!("{size} B, {threads} thread(s)");
            run.turns(("bump", &line), able, Turns::of(bump_reps), |id, _| {
                let ns = match id {
                    BumpId::Kvmem => bumped::<KvmemArena>(size, ops, threads),
                    BumpId::PublishedArena => bumped::<PublishedArena>(size, ops, threads),
                    BumpId::Mutex => bumped::<MutexArena>(size, ops, threads),
                    BumpId::Bumpalo => bump::alone::<Bumpalo>(size, ops),
                };
                Ok(Figures::of("ns", ns?))
            })?;
        }
    }
    for size in SIZES {
        let line = format!("{size} B, 1 thread(s)");
        run.turns(("bump-full", &line), &BumpId::ALL, Turns::of(bump_reps), |id, _| {
            let ns = match id {
                BumpId::Kvmem => bump::full::<KvmemArena>(size, full),
                // A call that logs takes about 0.4 µs, so fewer are enough.
                BumpId::PublishedArena => bump::full::<PublishedArena>(size, full / 50),
                BumpId::Mutex => bump::full::<MutexArena>(size, full),
                BumpId::Bumpalo => bump::full::<Bumpalo>(size, full),
            };
            Ok(Figures::of("ns", ns?))
        })?;
    }
    run.turns(("map", "1 TiB"), &["kvmem"], Turns::of(page_reps), |_, _| {
        // A limit forbids the mapping; this says nothing about a contender's speed.
        let (ms, resident) = region::map(MAPPED).map_err(|error| Skip(error.to_string()))?;
        Ok(Figures::of("ms", ms).with("bytes resident", resident as f64))
    })?;
    pages(run, page_reps)?;
    goals(run);
    Ok(())
}

fn bumped<B: Bump + Sync>(size: usize, ops: u64, threads: u32) -> Result<f64> {
    if threads == 1 { bump::alone::<B>(size, ops) } else { bump::together::<B>(size, ops, threads) }
}

/// Measures populating and discarding of each kind of pages.
fn pages(run: &mut Run, reps: u32) -> Result<()> {
    let mut bytes: u64 = run.length(2 << 30, 512 << 20, MIN_POPULATED);
    // At most half of the available memory.
    let available = limits::available_bytes().unwrap_or(u64::MAX);
    while bytes > available / 2 {
        bytes /= 2;
    }
    if bytes < MIN_POPULATED {
        let need = 2 * MIN_POPULATED;
        run.skip("populate", format_args!(
            "{available} bytes of memory are available, and the rows need {need}: free memory or \
             raise the group's limit"
        ));
        return Ok(());
    }
    let size = bytes as usize;
    let rate = |seconds: f64| Figures::of("GiB/s", bytes as f64 / (1u64 << 30) as f64 / seconds);
    for pages in Pages::ALL {
        let line = format!("{pages}, {} MiB", bytes >> 20);
        if let Some(reason) = pages.missing(bytes) {
            run.skip(&line, reason);
            continue;
        }
        let Some(_) = run.or_skip(&line, mapping::map_populate(pages, size)) else { continue };
        let once = |id| {
            Ok(match id {
                PopulateId::MapPopulate => mapping::map_populate(pages, size)?.as_secs_f64(),
                PopulateId::Touch => mapping::touch(pages, size)?.as_secs_f64(),
                kvmem => region::populate(pages, size, kvmem.threads())?,
            })
        };
        let skip = |error: Error| match error.downcast::<Errno>() {
            Ok(errno) => Skip(format!("cannot map or populate memory: {errno}")).into(),
            Err(error) => error,
        };
        run.turns(("populate", &line), &PopulateId::able(), Turns::of(reps), |id, _| {
            // Creating hugepages for a memory file after a turn that used base pages would also pay
            // for fetching them from the host; an unmeasured one pays instead.
            if pages == Pages::Shared {
                once(id).map_err(skip)?;
            }
            once(id).map_err(skip).map(rate)
        })?;
        // Hugepages of a pool are not discarded individually: the pool might be empty at the next
        // touch, and the kernel would kill the process.
        if pages != Pages::Huge {
            run.turns(("discard", &line), &["kvmem"], Turns::of(reps), |_, _| {
                Ok(rate(region::discard(pages, size)?))
            })?;
        }
    }
    Ok(())
}

fn goals(run: &mut Run) {
    let published = (BumpId::Kvmem, BumpId::PublishedArena);
    for (threads, limit) in [(1, 0.6), (2, 0.7)] {
        let lines = |line: &str| line.ends_with(&format!(" {threads} thread(s)"));
        let name = format!("bump, {threads} thread(s): time over that of published-arena");
        run.at_most(&name, limit, run.over("bump", published, "ns", lines));
    }
    if Machine::here().cores >= 16 {
        let eight = |line: &str| line.ends_with(" 8 thread(s)");
        let ns = run.values("bump", BumpId::Kvmem, "ns", eight);
        run.at_most("bump, 8 thread(s): ns of a call", 60.0, ns);
    }
    let served = run.values("bump", BumpId::Kvmem, "ns", |line| line.ends_with(" 1 thread(s)"));
    let full = run.values("bump-full", BumpId::Kvmem, "ns", |_| true).into_iter().zip(served);
    let full = full.map(|((full, line), (served, _))| (full / served, line)).collect();
    run.at_most("bump-full: time over that of a call that succeeds", 1.0, full);
    let two = (PopulateId::Kvmem2, PopulateId::MapPopulate);
    let auto = (PopulateId::KvmemAuto, PopulateId::MapPopulate);
    let all: fn(&str) -> bool = |_| true;
    let goals = [
        ("THP, two threads", 1.7, two, (|line| line.starts_with("thp")) as fn(&str) -> bool),
        ("threads chosen", 1.0, auto, all),
        ("shared memory", 4.0, auto, |line| line.starts_with("shared")),
    ];
    for (name, limit, pair, lines) in goals {
        let name = format!("populate, {name}: rate over that of map-populate");
        run.at_least(&name, limit, run.over("populate", pair, "GiB/s", lines));
    }
    let best = PopulateId::FIXED
        .map(|(fixed, _)| run.over("populate", (PopulateId::KvmemAuto, fixed), "GiB/s", all));
    let name = "populate, threads chosen: rate over that of the best number";
    run.at_least(name, 0.9, best.concat());
    run.at_most("map: ms for 1 TiB, untouched", 5.0, run.values("map", "kvmem", "ms", all));
    let resident = run.values("map", "kvmem", "bytes resident", all);
    run.at_most("map: bytes resident after 1 TiB", ((1 << 20) - 1) as f64, resident);
}
