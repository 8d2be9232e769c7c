//! The benchmark of the register layer: the time until every device has its keys, and the time to
//! give them back.
//!
//! 1. *Lines.* A line is a region of one size and kind of pages, registered with 1, 4 or 8
//!    contexts, resident beforehand or not. The contexts are io_uring rings, which pin pages by the
//!    same kernel path as RDMA drivers, or NICs of two simulated machines. These reproduce
//!    published figures: on one, parallel registration of resident memory gains a factor of four;
//!    on the other it loses a factor of 2.7.
//! 2. *Contenders.* `sequential` and `parallel` are the two published strategies: each context gets
//!    the whole region in the largest chunks it accepts, one context after another or on a thread
//!    for each, and nothing populates it. The benchmark implements them with rings that are used as
//!    engines use them (`plain_ring.rs`) and with as few calls as possible. The other contenders
//!    are the library with its own rings: its fixed policies, and `auto`, which chooses one itself.
//! 3. *Time* is wall time, or simulated time on a simulated machine. It has three parts:
//!    populating, where the contender does it; registering, with all planning and calibration;
//!    giving back. The total is their sum. It excludes mapping the region, opening the contexts and
//!    unmapping, and populating a region that is resident beforehand.
//! 4. *Fresh memory.* A region that is not resident is mapped anew for each run. A resident one is
//!    mapped and populated once for all lines of its size and pages, and registered repeatedly,
//!    which does not change its pages.
//! 5. *Noise.* A virtual machine returns free memory to its host every two seconds, a part at a
//!    time, and the next first touch of it costs up to thirty times as much as the second. Before
//!    each run that takes fresh memory, the same amount is therefore made resident and freed. Base
//!    pages take longer than two seconds; they come from free memory that the host cannot reclaim,
//!    because resident pages keep it fragmented (`Ballast`). Hugepages of the pool are never
//!    returned. The first round does not count. Short lines get more rounds. Simulated time has no
//!    noise.
//! 6. *Pools.* The table `pool` builds pools on a simulated machine: registering overlaps with
//!    populating.
//! 7. *Missing rows.* Rows that lack pages, memory, rings or locked memory are absent, and the
//!    report says why. Large regions that are not resident are registered with the largest number
//!    of contexts only: with fewer, a run takes as long and says less.

mod fixture;
mod measure;
mod plain_ring;
mod strategies;

use std::time::{Duration, Instant};

use anyhow::Result;
use kvmem::arena::{PageSize, Populate, Region};
use kvmem::pool::Pool;
use kvmem::register::{IoUring, Limits, PlanOptions, Policy, plan};
use kvmem_testkit::simulated::{
    CallCosts, Costs, NicLimits, PopulateCosts, Published, SimulatedMachine,
};

use self::fixture::{Ballast, GroupFixture};
use self::measure::measure;
use super::arena::{Pages, mapping};
use super::limits;
use super::stats::median;
use super::suite::{Figures, Run, Turns, names};

use RegisterContenderId::{Auto, KvmemParallel, KvmemSequential, Parallel, Sequential};

/// The table of pools.
const POOL: &str = "pool";
/// Contexts that register a region.
const CONTEXTS: [u32; 3] = [1, 4, 8];
/// Sizes of a region on io_uring.
const SIZES: [u64; 2] = [1 << 30, 8 << 30];
/// Larger regions that are not resident are registered with the most contexts only.
const LARGE: u64 = 2 << 30;
/// The smallest region that is worth registering.
const MIN_REGION: u64 = 4 << 20;

names! {
    /// The contenders by name.
    pub enum RegisterContenderId ("policy") {
        Sequential = "sequential",
        Parallel = "parallel",
        KvmemSequential = "kvmem-sequential",
        KvmemParallel = "kvmem-parallel",
        Auto = "auto",
    }
}

/// Runs the benchmark. On io_uring the full run makes up to 8 GiB resident at a time, a quick one
/// 1 GiB; less if less is available.
pub fn run(run: &mut Run) -> Result<()> {
    let reps = run.reps(5, 3);
    run.settings(format_args!("{reps} or more round(s)"));
    run.about(
        "io_uring",
        "seconds to populate, register and give back, rings as contexts; parallel: whether auto \
         registered most of it so",
    );
    rings(run)?;
    for (table, published) in [
        ("simulated-parallel-wins", &Published::PARALLEL_WINS),
        ("simulated-parallel-loses", &Published::PARALLEL_LOSES),
    ] {
        run.about(table, "the same in simulated seconds, with NICs as contexts");
        if !run.wants(table) {
            continue;
        }
        let Some(group) = run.or_skip(table, GroupFixture::simulated(published)) else { continue };
        for (resident, contexts) in cells(published.len_bytes, false) {
            let region = group.region(resident)?;
            let line = line(published.len_bytes, None, resident, contexts);
            run.turns((table, &line), &RegisterContenderId::ALL, Turns::of(1), |id, _| {
                let machine = group.for_run(contexts, resident);
                Ok(figures(measure(id, &machine, &region)?, id))
            })?;
        }
    }
    pools(run)?;
    if let Some(ms) = planning_ms() {
        run.row("plan", "1 TiB for 8 registrars", "kvmem", Figures::of("ms", ms));
    }
    goals(run);
    Ok(())
}

/// Builds pools on a simulated machine with 16 cores and one GPU.
fn pools(run: &mut Run) -> Result<()> {
    let about = "simulated seconds until a pool of 64 GiB is ready, one GPU, 16 cores";
    run.about(POOL, about);
    if !run.wants(POOL) {
        return Ok(());
    }
    for (line, ms_per_gib, gib_per_s) in [
        ("populated twice as fast as registered", 20.0, 100.0),
        ("populated as fast as registered", 20.0, 50.0),
        ("populated half as fast as registered", 37.0, 13.5),
    ] {
        let register = CallCosts { ms_per_gib, ..CallCosts::default() };
        let populate = PopulateCosts { gib_per_s: gib_per_s / 4.0, max_gib_per_s: gib_per_s };
        let limits = NicLimits { preferred_chunk_bytes: Some(256 << 20), ..NicLimits::default() };
        let costs = Costs { register, populate, ..Costs::default() };
        let machine = SimulatedMachine::builder().cores(16).nics(1).costs(costs).limits(limits);
        let machine = machine.build();
        let pool = Pool::builder(64 << 30)
            .ladder(PageSize::Thp)
            .registrars(machine.nics())
            .platform(machine.platform());
        let Some(outcome) = pool.build()?.report().registered else { continue };
        let (populate, register) = (outcome.populated.seconds, 64.0 * ms_per_gib / 1e3);
        let figures = Figures::of("s", outcome.seconds)
            .with("populate", populate)
            .with("register", register)
            .with("over the longer", outcome.seconds / populate.max(register));
        run.row(POOL, line, Auto, figures);
    }
    Ok(())
}

fn figures(found: measure::RegisterSample, id: RegisterContenderId) -> Figures {
    let total = Figures::of("s", found.total_s());
    match id {
        Auto => total
            .with("give back", found.unregister_s)
            .with("populate", found.populate_s)
            .with("parallel", f64::from(u8::from(found.chosen == "parallel"))),
        Sequential => total.with("give back", found.unregister_s),
        _ => total,
    }
}

/// Returns whether the region is resident, and the contexts, of each line.
fn cells(bytes: u64, on_rings: bool) -> Vec<(bool, u32)> {
    let resident = CONTEXTS.map(|contexts| (true, contexts));
    let rest = CONTEXTS.map(|contexts| (false, contexts)).into_iter();
    let most = CONTEXTS[CONTEXTS.len() - 1];
    let worth = |(_, contexts): &(bool, u32)| !on_rings || bytes <= LARGE || *contexts == most;
    resident.into_iter().chain(rest.filter(worth)).collect()
}

fn line(bytes: u64, pages: Option<Pages>, resident: bool, contexts: u32) -> String {
    let pages = pages.map_or_else(String::new, |pages| format!(" {pages}"));
    let not = if resident { "" } else { "not " };
    let size = if bytes < 1 << 30 {
        format!("{} MiB", bytes >> 20)
    } else {
        format!("{} GiB", bytes >> 30)
    };
    format!("{size}{pages}, {not}resident, {contexts} context(s)")
}

/// Measures registering with rings.
fn rings(run: &mut Run) -> Result<()> {
    if !run.wants("io_uring") {
        return Ok(());
    }
    if run.or_skip("io_uring", IoUring::available()).is_none() {
        return Ok(());
    }
    let mut sizes = Vec::new();
    let available = limits::available_bytes().unwrap_or(u64::MAX);
    for wanted in run.length(&SIZES[..], &SIZES[..1], &[64 << 20]) {
        let mut bytes = *wanted;
        while bytes > available / 2 {
            bytes /= 2;
        }
        if bytes != *wanted {
            run.skip(
                &format!("io_uring, {} MiB", wanted >> 20),
                format_args!(
                    "{available} bytes of memory are available, and a run uses half of it: {} MiB \
                 instead",
                    bytes >> 20
                ),
            );
        }
        if bytes >= MIN_REGION && !sizes.contains(&bytes) {
            sizes.push(bytes);
        }
    }
    for bytes in sizes {
        for pages in Pages::PRIVATE {
            group(run, bytes, pages)?;
        }
    }
    Ok(())
}

/// Measures the lines of one size and kind of pages, which share their memory.
fn group(run: &mut Run, bytes: u64, pages: Pages) -> Result<()> {
    let what = format!("io_uring, {} MiB {pages}", bytes >> 20);
    if let Some(reason) = pages.missing(bytes) {
        run.skip(&what, reason);
        return Ok(());
    }
    let most = CONTEXTS[CONTEXTS.len() - 1];
    let made = GroupFixture::rings(most, bytes, pages);
    let Some(group) = run.or_skip(&what, made) else { return Ok(()) };
    if pages == Pages::Huge {
        let populated = mapping::map_populate(pages, bytes as usize);
        let Some(_) = run.or_skip(&what, populated) else { return Ok(()) };
    }
    let turns = Turns {
        warm: true,
        budget: Duration::from_millis(run.length(2000, 300, 0)),
        max_reps: if run.has_own_reps() { run.reps(5, 3) } else { 101 },
        ..Turns::of(run.reps(5, 3))
    };
    let mut kept = None;
    let mut ballast = None;
    let cells = if run.quick() { vec![(true, most), (false, most)] } else { cells(bytes, true) };
    for (resident, contexts) in cells {
        let line = line(bytes, Some(pages), resident, contexts);
        if let Some(reason) = group.too_little_memlock(contexts, bytes) {
            run.skip(&line, reason);
            continue;
        }
        run.step(format_args!("{line}: memory"));
        if resident && kept.is_none() {
            kept = run.or_skip(&line, group.region(true));
            if kept.is_none() {
                continue;
            }
        } else if !resident {
            kept = None;
            if pages == Pages::Base && ballast.is_none() {
                // A quarter more than a run needs: other processes take from it too.
                ballast = run.or_skip(&line, Ballast::new(bytes / 4 * 5));
                if ballast.is_none() {
                    continue;
                }
            }
        }
        run.turns(("io_uring", &line), &RegisterContenderId::ALL, turns, |id, _| {
            if !resident && pages != Pages::Huge {
                // Fetches from the host the memory that the run is about to take.
                drop(group.region(true)?);
            }
            let region = match &kept {
                Some(region) => region.clone(),
                None => group.region(false)?,
            };
            Ok(figures(measure(id, &group.for_run(contexts, resident), &region)?, id))
        })?;
    }
    Ok(())
}

/// Measures the milliseconds to plan a region of 1 TiB for 8 registrars with the limits of rings.
/// `None` if no region of that size can be mapped.
fn planning_ms() -> Option<f64> {
    let region =
        Region::builder(1 << 40).ladder(PageSize::Thp).populate(Populate::None).map().ok()?;
    let limits = |number| Limits {
        max_bytes: 1 << 30,
        max_keys: 16_384,
        preferred_chunk_bytes: Some(256 << 20),
        ..Limits::none(format!("io_uring:{number}"))
    };
    let limits: Vec<Limits> = (0..8).map(limits).collect();
    let options = PlanOptions::new(Policy::Auto, limits.len());
    let once = |_| {
        let start = Instant::now();
        let plan = plan(region.receipt(), &limits, &options).ok()?;
        let took = start.elapsed().as_secs_f64() * 1e3;
        drop(plan);
        Some(took)
    };
    median((0..25).map(once).collect::<Option<_>>()?)
}

fn goals(run: &mut Run) {
    let all = |_: &str| true;
    let tables = ["io_uring", "simulated-parallel-wins", "simulated-parallel-loses"];
    for table in tables {
        for (others, ids) in [
            ("the better of sequential and parallel", &[Sequential, Parallel][..]),
            ("the best of all four", &[Sequential, Parallel, KvmemSequential, KvmemParallel]),
        ] {
            // The total over the least of the others is the greatest of the ratios.
            let mut worst: Vec<(f64, String)> = Vec::new();
            for id in ids {
                for (ratio, line) in run.over(table, (Auto, *id), "s", all) {
                    match worst.iter_mut().find(|(_, of)| *of == line) {
                        Some((most, _)) => *most = most.max(ratio),
                        None => worst.push((ratio, line)),
                    }
                }
            }
            run.at_most(&format!("{table}, auto: total over that of {others}"), 1.1, worst);
        }
    }
    for (pages, limit) in [(Pages::Thp, 0.5), (Pages::Base, 0.9)] {
        let lines = |line: &str| line.contains(&format!(" {pages}, not resident, 8 "));
        let found = run.over("io_uring", (Auto, Sequential), "s", lines);
        let name =
            format!("auto, {pages}, not resident, 8 contexts: total over that of sequential");
        run.at_most(&name, limit, found);
    }
    // One context leaves nothing to do in parallel. A deregistration of less than a millisecond
    // depends on the number of keys, not on the order in which they are given back.
    let slow = run.values("io_uring", Sequential, "give back", |line| !line.contains(" 1 context"));
    let slow: Vec<String> =
        slow.into_iter().filter(|(s, _)| *s >= 1e-3).map(|(_, line)| line).collect();
    let back = run.over("io_uring", (Auto, Sequential), "give back", |line| {
        slow.iter().any(|slow| slow == line)
    });
    run.at_most("auto, several contexts: time to give back over that of sequential", 1.0, back);
    let ratios = run.values(POOL, Auto, "over the longer", all);
    run.at_most("pool: seconds over the longer of populating and registering", 1.15, ratios);
    run.at_most("plan: ms for 1 TiB and 8 registrars", 1.0, run.values("plan", "kvmem", "ms", all));
}
