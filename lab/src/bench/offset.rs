//! The benchmark of the offset layer: one allocator of offsets on one thread.
//!
//! 1. *Contenders.* The published allocator, in both forms, runs wherever figures were published;
//!    `null` runs wherever times are compared. Exact best fit and the crate are slow with many live
//!    objects and do not run in those rows. `kvmem, n shards` is a space with shards.
//! 2. *Figures.* `ns` are those of a request, the median of the repetitions; the others are shares
//!    of the pool: `util` and `min` are the mean and the least utilization. A contender
//!    `…, published` has the figures that others published.

use std::fmt::{self, Display, Formatter};

use anyhow::Result;
use kvmem_testkit::workload::{Bimodal, Lifetimes, Sizes};

use super::contender::kvmem::{BestFitPlaced, Sharded};
use super::contender::{Contender, ContenderId, with_contender};
use super::loops::filled::{self, Filled};
use super::loops::random::Scattered;
use super::loops::{Outcome, aging, bimodal, memory, paired, random, shift, short, uniform};
use super::published;
use super::stats::mean;
use super::suite::{Figures, Run, SMALLEST, Turns};

use ContenderId::{BestFit, Binned, BinnedUnrounded, Kvmem, KvmemCached, Null, OffsetAllocator};

/// The seed of every random choice.
const SEED: u64 = 20_250_718;
/// With more live objects than this, only the fast contenders run in uniform rows.
const MANY_LIVE: u64 = 20_000;
/// With more live objects than this, a quick run is too short for the allocator without rounding to
/// reach a steady state.
const STEADY_WHEN_QUICK: u64 = 5_000;
/// Spaces that exist at the same time when resident bytes are measured.
const RESIDENT_SPACES: usize = 16;
/// The live fraction, in hundredths, at which failures are counted.
const RL_PERCENT: u64 = 95;

/// The contenders of workloads in which the crate, which manages at most 3.75 GiB, has no part.
const LARGE: [ContenderId; 6] = [Kvmem, KvmemCached, Binned, BinnedUnrounded, BestFit, Null];

/// A workload, ready for any contender.
#[derive(Clone, Copy)]
enum Job<'a> {
    Metadata { churn: bool },
    Uniform { size: u64, ops: u64 },
    Random { seed: u64, ops: u64 },
    Mix { seed: u64, index: usize, ops: u64 },
    Paired { seed: u64, rounds: (u64, u64) },
    Rl { events: &'a Bimodal },
    Shift { ratio: f64, seeds: u64 },
    Filled { filled: Filled, ops: u64 },
    Aging { sizes: &'a [Sizes], seeds: u64 },
    AgingPairs { pool: u64 },
    Churn { ops: u64 },
    Pair { ops: u64 },
    Impossible { ops: u64 },
}

impl Job<'_> {
    fn run<C: Contender>(self) -> Result<Figures> {
        Ok(match self {
            Job::Metadata { churn } => {
                // First, while no memory of a freed space is reused.
                let empty = if churn { None } else { memory::resident::<C>(RESIDENT_SPACES)? };
                let freed = if churn { memory::LIVE / 2 } else { 0 };
                let per_live = memory::per_live::<C>(SEED, memory::LIVE, freed)?;
                let figures = Figures::of("bytes a range", per_live.unwrap_or_default());
                match empty {
                    Some(bytes) => figures.with("bytes when empty", bytes as f64),
                    None => figures,
                }
            }
            Job::Uniform { size, ops } => {
                let Outcome { util, ns_per_op } =
                    uniform::run::<C>(SEED, size, uniform::pool_for(size), ops)?;
                Figures::of("util", util.avg).with("min", util.min).with("ns", ns_per_op)
            }
            Job::Random { seed, ops } => mixed(random::run::<C>(seed, &random::sizes(), ops)?),
            Job::Mix { seed, index, ops } => {
                mixed(random::run::<C>(seed, &random::mixes()[index].1, ops)?)
            }
            Job::Paired { seed, rounds: (warm, measured) } => {
                mixed(paired::run::<C>(seed, paired::POOL, warm, measured)?)
            }
            Job::Rl { events } => {
                let highest = bimodal::highest::<C>(events)?;
                let pool = bimodal::pool_for(events, RL_PERCENT);
                Figures::of("live", highest.few_failures)
                    .with("live, no failure", highest.no_failure)
                    .with("failures at 0.95", bimodal::fail_rate::<C>(events, pool)?)
            }
            Job::Shift { ratio, seeds } => {
                let all = (0..seeds).map(|seed| shift::run::<C>(SEED + seed, ratio));
                let all = all.collect::<Result<Vec<_>>>()?;
                let of = |at: usize| {
                    mean(&all.iter().map(|one| one[at]).collect::<Vec<_>>()).unwrap_or_default()
                };
                Figures::of("during", of(0)).with("util", of(1)).with("late", of(2))
            }
            Job::Filled { filled, ops } => {
                let Outcome { util, ns_per_op } = filled::run::<C>(SEED, filled, ops)?;
                Figures::of("util", util.avg).with("ns", ns_per_op)
            }
            Job::Aging { sizes, seeds } => {
                let all = sizes.iter().flat_map(|sizes| (0..seeds).map(move |seed| (sizes, seed)));
                let of = |(sizes, seed)| aging::mixed::<C>(SEED + seed, sizes);
                aged(&all.map(of).collect::<Result<Vec<_>>>()?)
            }
            Job::AgingPairs { pool } => aged(&[aging::pairs::<C>(SEED, pool)?]),
            Job::Churn { ops } => Figures::of("ns", short::churn::<C>(SEED, ops)?),
            Job::Pair { ops } => Figures::of("ns", short::pair::<C>(ops)?),
            Job::Impossible { ops } => Figures::of("ns", short::impossible::<C>(ops)?),
        })
    }
}

/// Repetitions have different seeds: their means count, and the median of their times.
fn mixed(outcome: Outcome) -> Figures {
    let util = outcome.util;
    Figures::default()
        .least("min", util.min)
        .mean("p99", util.p99)
        .mean("p90", util.p90)
        .mean("p50", util.p50)
        .mean("util", util.avg)
        .with("ns", outcome.ns_per_op)
}

/// Returns the means of courses.
fn aged(all: &[aging::Course]) -> Figures {
    let steps = aging::STEPS.iter().enumerate();
    steps.fold(Figures::default(), |figures, (at, (_, name))| {
        let of: Vec<f64> = all.iter().map(|course| course[at]).collect();
        figures.with(name, mean(&of).unwrap_or_default())
    })
}

/// A contender with published figures beside it.
struct Published(ContenderId);

impl Display for Published {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "{}, published", self.0)
    }
}

/// A space with this many shards.
#[derive(Clone, Copy)]
struct Shards(u32);

impl Display for Shards {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "kvmem, {} shard(s)", self.0)
    }
}

/// A contender in the rows of an ageing space, or `None` for the library with
/// [`BestFit`](::kvmem::offset::Placement::BestFit).
#[derive(Clone, Copy)]
struct Aged(Option<ContenderId>);

impl Display for Aged {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some(id) => id.fmt(f),
            None => f.write_str("kvmem, best fit"),
        }
    }
}

/// Runs the benchmark. The full run takes some minutes and up to 1.5 GiB of memory (nine million
/// live objects of 15 bytes, and their handles); a quick one takes well under a minute.
pub fn run(run: &mut Run) -> Result<()> {
    let reps = run.reps(3, 1);
    run.settings(format_args!("seed {SEED}, {reps} repetition(s)"));
    describe(run);
    // The goal of `random` is a mean of three seeds.
    let three = Turns::of(reps.max(3));
    let (timed, once) = (Turns::of(reps), Turns::of(1));
    let measure = |job: Job<'_>, id: ContenderId| with_contender!(id, C => job.run::<C>());

    for (line, churn) in [("packed", false), ("churned", true)] {
        run.turns(("metadata", line), &[Kvmem, Binned], once, |id, _| {
            measure(Job::Metadata { churn }, id)
        })?;
    }
    let ops = run.length(1_000_000, 200_000, 10_000);
    let few = |size: &u64| !SMALLEST || uniform::pool_for(*size) / size <= STEADY_WHEN_QUICK;
    for size in uniform::sizes().into_iter().filter(few) {
        uniform_row(run, size, ops, timed)?;
    }
    let ops = run.length(1_000_000, 300_000, 10_000);
    // As many as fill the pool, and as many as evict.
    let rounds = run.length((5_000, 50_000), (5_000, 5_000), (4_400, 400));
    let seed = |rep: u32| SEED + u64::from(rep);
    run.turns(("random", "random"), &ContenderId::ALL, three, |id, rep| {
        measure(Job::Random { seed: seed(rep), ops }, id)
    })?;
    let all: &[ContenderId] =
        if run.quick() { &[Kvmem, KvmemCached, Binned, Null] } else { &LARGE };
    run.turns(("paired", "paired"), all, timed, |id, rep| {
        if rep > 0 && matches!(id, BestFit | BinnedUnrounded) {
            return Ok(Figures::default());
        }
        measure(Job::Paired { seed: seed(rep), rounds }, id)
    })?;
    for (table, id, outcome) in [
        ("random", Binned, published::RANDOM_ROUNDED),
        ("random", BinnedUnrounded, published::RANDOM_EXACT),
        ("paired", Binned, published::PAIRED_ROUNDED),
    ] {
        run.row(table, table, Published(id), mixed(outcome));
    }
    for lifetimes in [Lifetimes::Object, Lifetimes::Batch] {
        for producers in [1, 2, 8].into_iter().filter(|_| run.wants("rl")).collect::<Vec<_>>() {
            let batches = run.length(64_000, 8_000, 1_000) / producers;
            let events = Bimodal::new(SEED, producers, lifetimes, batches);
            let line = format!("{producers} producer(s), lives of {lifetimes:?}").to_lowercase();
            run.turns(("rl", &line), &[Kvmem, Binned, BestFit], once, |id, _| {
                measure(Job::Rl { events: &events }, id)
            })?;
        }
    }
    let seeds = run.length(3, 1, 1);
    for ratio in shift::RATIOS {
        let line = format!("B/A={ratio}");
        run.turns(("shift", &line), &[Kvmem, Binned, BestFit], once, |id, _| {
            measure(Job::Shift { ratio, seeds }, id)
        })?;
    }
    let mix_ops = run.length(1_000_000, 100_000, 10_000);
    for (index, (line, _)) in random::mixes().iter().enumerate() {
        run.turns(("mix", line), &[Kvmem, Binned, BestFit, Null], timed, |id, rep| {
            if rep > 0 && id == BestFit {
                return Ok(Figures::default());
            }
            measure(Job::Mix { seed: seed(rep), index, ops: mix_ops }, id)
        })?;
    }
    let scatter_ops = run.length(250_000, 50_000, 5_000);
    for max_ranges in [2, 4] {
        let line = format!("ranges<={max_ranges}");
        let job = Job::Random { seed: SEED, ops: scatter_ops };
        run.turns(("scatter", &line), &[Kvmem, BestFit], timed, |id, _| match max_ranges {
            2 => with_contender!(id, C => job.run::<Scattered<C, 2>>()),
            _ => with_contender!(id, C => job.run::<Scattered<C, 4>>()),
        })?;
    }
    let shards = [1, 2, 8, 32].map(Shards);
    run.turns(("shards", "random"), &shards, three, |shards, rep| {
        sharded(shards, Job::Random { seed: seed(rep), ops })
    })?;
    run.turns(("shards", "paired"), &shards, timed, |shards, rep| {
        sharded(shards, Job::Paired { seed: seed(rep), rounds })
    })?;
    age(run)?;
    let ops = run.length(300_000, 100_000, 1_000);
    for filled in Filled::all().filter(|filled| !SMALLEST || filled.live <= 1_000) {
        let line = filled.to_string();
        run.turns(("filled", &line), &[Kvmem, KvmemCached, Binned, Null], timed, |id, _| {
            measure(Job::Filled { filled, ops }, id)
        })?;
    }
    let ops = run.length(3_000_000, 500_000, 10_000);
    for (line, job) in [
        ("churn", Job::Churn { ops }),
        ("pair", Job::Pair { ops }),
        ("impossible", Job::Impossible { ops }),
    ] {
        run.turns(("short", line), &LARGE, timed, |id, _| measure(job, id))?;
    }
    goals(run);
    Ok(())
}

fn describe(run: &mut Run) {
    for (table, text) in [
        ("metadata", "memory that the allocator itself takes, of a million live ranges"),
        ("uniform", "one size at a time: utilization, and ns per request"),
        ("random", "1 KiB to 64 MiB in 2 GiB: utilization, and ns per request"),
        ("paired", "KV and index objects in 1 TiB: utilization before each eviction, ns"),
        (
            "rl",
            "payloads and metadata with short lives: peak of live bytes over the pool at which \
                one payload in 10,000 fails",
        ),
        (
            "shift",
            "a change of object size: utilization while it happens, one to two turnovers \
                   after it, and ten to twenty",
        ),
        ("mix", "seven other distributions of sizes"),
        (
            "aging",
            "utilization in the course of a history, in turnovers: at the first failure, then \
                   from step to step",
        ),
        ("scatter", "random with several ranges for a request"),
        ("shards", "random and paired in a space with n shards, from one thread"),
        (
            "filled",
            "sizes, percent and live ranges of a space at a constant fill: ns per exchange of a \
                   range, and the utilization that is reached",
        ),
        (
            "short",
            "ns per operation: an exchange of one of 1000 ranges of sixteen sizes in 1 TiB; \
                   a range of 4 KiB allocated and freed; a request of a full space",
        ),
    ] {
        run.about(table, text);
    }
}

/// Measures the rows of ageing spaces.
fn age(run: &mut Run) -> Result<()> {
    let mixes = random::mixes().map(|(_, sizes)| sizes);
    let seeds = run.length(100, 10, 1);
    let pool = run.length(paired::POOL, paired::POOL >> 6, paired::POOL >> 8);
    let contenders = [Some(Kvmem), None, Some(Binned), Some(BestFit)].map(Aged);
    for (line, job, contenders) in [
        ("random", Job::Aging { sizes: &[random::sizes()], seeds }, &contenders[..]),
        ("mix", Job::Aging { sizes: &mixes, seeds }, &contenders),
        // Exact best fit is slow with many live objects.
        ("paired", Job::AgingPairs { pool }, &contenders[..3]),
    ] {
        run.turns(("aging", line), contenders, Turns::of(1), |Aged(id), _| match id {
            Some(id) => with_contender!(id, C => job.run::<C>()),
            None => job.run::<BestFitPlaced>(),
        })?;
    }
    Ok(())
}

/// Runs a job in a space with shards.
fn sharded(Shards(shards): Shards, job: Job<'_>) -> Result<Figures> {
    match shards {
        1 => job.run::<Sharded<1>>(),
        2 => job.run::<Sharded<2>>(),
        8 => job.run::<Sharded<8>>(),
        _ => job.run::<Sharded<32>>(),
    }
}

/// Measures one size.
fn uniform_row(run: &mut Run, size: u64, ops: u64, turns: Turns) -> Result<()> {
    let (pool, line) = (uniform::pool_for(size), format!("{size} B"));
    let live = pool / size;
    let contenders: &[ContenderId] = match (run.quick(), live) {
        (true, ..=STEADY_WHEN_QUICK) | (false, MANY_LIVE..) => {
            &[Kvmem, KvmemCached, Binned, BinnedUnrounded, Null]
        }
        (true, _) => &[Kvmem, KvmemCached, Binned, Null],
        (false, _) => &ContenderId::ALL,
    };
    // Every repetition replays the same seed: only the time differs.
    run.turns(("uniform", &line), contenders, turns, |id, rep| {
        if rep > 0 && matches!(id, BestFit | BinnedUnrounded | OffsetAllocator) {
            return Ok(Figures::default());
        }
        with_contender!(id, C => Job::Uniform { size, ops }.run::<C>())
    })?;
    let bound = uniform::bound(size, pool);
    run.row("uniform", &line, "bound", Figures::of("util", bound).with("min", bound));
    for id in [Binned, BinnedUnrounded] {
        if let Some([min, mean, ns]) = published::uniform(id, size) {
            let figures = Figures::of("util", mean).with("min", min).with("ns", ns);
            run.row("uniform", &line, Published(id), figures);
        }
    }
    Ok(())
}

fn goals(run: &mut Run) {
    let all = |_: &str| true;
    let live = |line: &str| {
        let size = line.split(' ').next().and_then(|size| size.parse().ok()).unwrap_or(1);
        uniform::pool_for(size) / size
    };
    for (ours, suffix) in [(Kvmem, ""), (KvmemCached, ", cached")] {
        // Magazines must not lose anything: the same limits hold with them.
        let below = run.over("uniform", (ours, "bound"), "min", all).into_iter();
        let below = below.map(|(share, line)| ((1.0 - share).abs(), line)).collect();
        run.at_most(&format!("uniform{suffix}: least utilization below the bound"), 1e-6, below);
        for (table, figure, limit) in
            [("random", "util", 0.874), ("paired", "util", 0.9996), ("paired", "min", 0.999)]
        {
            let name = format!("{table}{suffix}: {figure} of the utilization");
            run.at_least(&name, limit, run.values(table, ours, figure, all));
        }
    }
    for (table, limit) in [("shift", 0.905), ("mix", 0.885)] {
        let found = averaged(run.values(table, Kvmem, "util", all));
        run.at_least(&format!("{table}: mean utilization of all lines"), limit, found);
    }
    run.at_least(
        "mix: utilization over that of binned, worst distribution",
        1.0,
        run.over("mix", (Kvmem, Binned), "util", all),
    );
    for (ranges, limit) in [("ranges<=2", 0.945), ("ranges<=4", 0.97)] {
        let found = run.values("scatter", Kvmem, "util", |line| line == ranges);
        run.at_least(&format!("scatter, {ranges}: mean utilization"), limit, found);
    }
    if !run.quick() {
        // The peak determines the pool. In a shorter run it exceeds the average by less.
        let found = run.values("rl", Kvmem, "failures at 0.95", all);
        run.at_most("rl: share of payloads that fail at 0.95 live", 1e-4, found);
    }
    for (table, other, limit) in [
        ("paired", Binned, 0.5),
        ("random", Binned, 0.8),
        ("mix", Binned, 1.0),
        ("scatter", BestFit, 0.3),
    ] {
        let name = format!("{table}: time over that of {other}");
        run.at_most(&name, limit, run.over(table, (Kvmem, other), "ns", all));
    }
    let mixes = averaged(run.over("mix", (Kvmem, Binned), "ns", all));
    run.at_most("mix: time over that of binned, mean of all distributions", 0.9, mixes);
    for (ours, other, limit) in [(Kvmem, Binned, 0.5), (Kvmem, Null, 5.0), (KvmemCached, Null, 2.5)]
    {
        let few = |line: &str| live(line) <= MANY_LIVE;
        let name = format!("uniform, few live: time of {ours} over that of {other}");
        run.at_most(&name, limit, run.over("uniform", (ours, other), "ns", few));
    }
    let many = run.over("uniform", (Kvmem, Binned), "ns", |line| live(line) > MANY_LIVE);
    run.at_most("uniform, many live: time over that of binned", 0.5, many);
    for line in ["churn", "pair"] {
        let found = run.over("short", (Kvmem, Binned), "ns", |of| of == line);
        run.at_most(&format!("{line}: time over that of binned"), 0.8, found);
    }
    let filled = run.over("filled", (Kvmem, Binned), "ns", all);
    run.at_most("filled: time over that of binned", 1.0, filled);
    let filled = run.over("filled", (KvmemCached, Kvmem), "ns", all);
    run.at_most("filled: time with magazines over that without", 1.05, filled);
    let hopeless = run.values("short", Kvmem, "ns", |line| line == "impossible");
    run.at_most("impossible: ns per request", 3.0, hopeless);
    let packed = |line: &str| line == "packed";
    let bytes = run.values("metadata", Kvmem, "bytes a range", packed);
    run.at_most("metadata: bytes for each live range, handle included", 40.0, bytes);
    let resident = run.values("metadata", Kvmem, "bytes when empty", packed);
    run.at_most("metadata: bytes resident in a fresh space of 1 TiB", 65_535.0, resident);
    for (table, id) in ["uniform", "random", "paired"]
        .into_iter()
        .flat_map(|table| [Binned, BinnedUnrounded].map(|id| (table, id)))
    {
        let off = run.over(table, (id, Published(id)), "util", all).into_iter();
        let off = off.map(|(share, line)| ((share - 1.0).abs(), line)).collect();
        let name = format!("{table}: utilization of the model {id} off the published figure");
        run.at_most(&name, 0.003, off);
    }
}

fn averaged(figures: Vec<(f64, String)>) -> Vec<(f64, String)> {
    let values: Vec<f64> = figures.into_iter().map(|(value, _)| value).collect();
    mean(&values).map(|mean| (mean, "mean".to_owned())).into_iter().collect()
}
