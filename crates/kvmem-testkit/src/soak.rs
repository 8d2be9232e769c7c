//! Hundreds of millions of operations on long-lived spaces, with comparisons.
//!
//! Property tests are short: a few hundred steps in a space that starts empty. Some states need an
//! old space: long and worn free lists, metadata that was split and coalesced a million times, a
//! policy that has seen its traffic change. A soak reaches them. It consists of *ages* of up to a
//! million steps. Each age has its own space and traffic, drawn from the seed; allocations of
//! earlier ages, whose allocators were dropped, are freed during it.
//!
//! Every step is compared to [`Depth::Grants`], every eighth to [`Depth::Figures`], and one in
//! 65,536 (more in short runs) to [`Depth::Everything`].

use std::fmt;

use kvmem::offset::Placement;

use crate::driver::tested_allocator::TestedAllocator;
use crate::driver::{Depth, Driver, StepError, Tally};
use crate::op::{Amount, Base, Cache, Call, Change, Config, Count, Forgery, Op, Order, Part, Pick};
use crate::random::Random;

/// The largest number of steps of an age.
const AGE: u64 = 1_000_000;
/// The largest number of steps between two full comparisons.
const COMPARE_EVERY: u64 = 1 << 16;
/// The largest number of live allocations.
const MAX_LIVE: usize = 100_000;

/// A distribution of request sizes.
#[derive(Clone, Copy, Debug)]
enum Traffic {
    /// One size.
    Uniform(u64),
    /// Any size up to this, equally likely.
    Even(u64),
    /// Any size up to this; the length in bits is uniform.
    Log(u64),
    /// Either of two sizes.
    Paired(u64, u64),
    /// Large sizes up to this, mixed with sizes of at most a hundredth of it.
    Crumbs(u64),
}

impl Traffic {
    fn draw(capacity: u64, random: &mut Random) -> Self {
        // Between a few and ten thousand allocations fit.
        let max = (capacity >> random.below(17)).max(1);
        match random.below(5) {
            0 => Traffic::Uniform(max),
            1 => Traffic::Even(max),
            2 => Traffic::Log(max),
            3 => Traffic::Paired(max, 1 + random.below(max)),
            _ => Traffic::Crumbs(max),
        }
    }

    fn size(self, random: &mut Random) -> u64 {
        match self {
            Traffic::Uniform(size) => size,
            Traffic::Even(max) => 1 + random.below(max),
            Traffic::Log(max) => 1 + random.log_below(max),
            Traffic::Paired(one, other) => [one, other][random.below(2) as usize],
            Traffic::Crumbs(max) if random.once_in(3) => 1 + random.below(max / 100 + 1),
            Traffic::Crumbs(max) => max - random.below(max / 4 + 1),
        }
    }
}

/// The result of a soak.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// Steps made.
    pub ops: u64,
    /// Number of ages.
    pub ages: u64,
    /// Number of full comparisons.
    pub comparisons: u64,
    /// The largest number of live allocations.
    pub max_live: usize,
    /// Counts of the outcomes of all steps.
    pub tally: Tally,
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Report { ops, ages, comparisons, max_live, tally } = self;
        write!(
            f,
            "{ops} operations in {ages} ages, {comparisons} full comparisons, \
             up to {max_live} alive\n{tally}"
        )
    }
}

/// Makes `ops` steps that the seed determines, on spaces of type `A`; calls `progress` after each
/// age.
///
/// # Errors
/// [`StepError`] if the allocator and the oracle disagree.
pub fn soak<A: TestedAllocator>(
    ops: u64,
    seed: u64,
    mut progress: impl FnMut(&Report),
) -> Result<Report, StepError> {
    let mut random = Random::new(seed);
    let mut report = Report::default();
    let failure = |step: u64, op| move |what| StepError { step: step as usize, op, what };
    let mut config = draw_config(A::CACHES, &mut random);
    // Not dropped on failure: frees might not survive broken metadata.
    let mut driver =
        std::mem::ManuallyDrop::new(Driver::<A>::new(&config).map_err(failure(0, None))?);
    let age = (ops / 20).clamp(10_000, AGE);
    let compare_every = COMPARE_EVERY.min(age / 4);
    while report.ops < ops {
        let mut traffic = Traffic::draw(config.capacity, &mut random);
        // Determines the fill: one in this many failing requests is followed by several frees.
        let thin_out = 1 + random.below(30);
        let mut frees = 0;
        for step in 0..age.min(ops - report.ops) {
            if random.once_in(age / 4) {
                traffic = Traffic::draw(config.capacity, &mut random);
            }
            let failed = driver.failed_requests();
            let op = if frees > 0 || driver.live() > MAX_LIVE {
                frees = u64::saturating_sub(frees, 1);
                Op::Held(random.bits() as Pick, Change::Free)
            } else {
                draw_op(traffic, &mut random)
            };
            let depth = match step {
                _ if step % compare_every == compare_every - 1 => Depth::Everything,
                _ if random.once_in(8) => Depth::Figures,
                _ => Depth::Grants,
            };
            driver.step(&op, depth).map_err(failure(report.ops, Some(op)))?;
            report.ops += 1;
            report.comparisons += u64::from(depth == Depth::Everything);
            report.max_live = report.max_live.max(driver.live());
            if driver.failed_requests() > failed {
                frees = if random.once_in(thin_out) { driver.live() as u64 / 20 } else { 1 };
            }
        }
        report.ages += 1;
        report.tally = driver.tally().clone();
        progress(&report);
        config = draw_config(A::CACHES, &mut random);
        driver.step(&Op::Replace(config), Depth::Everything).map_err(failure(report.ops, None))?;
    }
    driver.finish().map_err(failure(report.ops, None))?;
    drop(std::mem::ManuallyDrop::into_inner(driver));
    Ok(report)
}

fn draw_config(caches: bool, random: &mut Random) -> Config {
    let capacity = 1 + random.log_below(1 << 63);
    // From two segments to about a thousand, of any length.
    let boundary = random
        .once_in(3)
        .then(|| (capacity >> (1 + random.below(10))).max(1) + random.log_below(1000));
    let placement = if random.once_in(3) { Placement::BestFit } else { Placement::Renewal };
    let max_ranges = random.once_in(6).then(|| 16 + random.log_below(5000) as u32);
    let cache = caches.then(|| draw_cache(capacity, random));
    Config { capacity, boundary, placement, max_ranges, cache }
}

/// Draws cache settings; the limit of cached bytes is between nothing and the whole space.
fn draw_cache(capacity: u64, random: &mut Random) -> Cache {
    let max_cached_bytes = random.once_in(2).then(|| capacity >> random.below(20));
    let mut hot = [0; 4];
    if random.once_in(2) {
        hot.fill_with(|| 1 + random.log_below(max_cached_bytes.unwrap_or(capacity / 32).max(1)));
    }
    Cache { hot, auto_hot_sizes: !random.once_in(4), max_cached_bytes }
}

fn draw_op(traffic: Traffic, random: &mut Random) -> Op {
    let pick = random.bits() as Pick;
    let part = |random: &mut Random| Part { share: random.bits() as u16, off: 0 };
    let size = Amount::bytes(traffic.size(random));
    match random.below(1000) {
        0..700 => Op::Allocate { size, raw: random.once_in(16) },
        700..760 => {
            Op::AllocateAligned { size, align: 1 << random.below(14), raw: random.once_in(16) }
        }
        760..765 => Op::AllocateBatch { size, n: Count::Exactly(random.below(12) as u8) },
        765..785 => Op::AllocateScattered { total: size, max_ranges: random.below(6) as u8 },
        785..800 => Op::Allocate { size: Amount::all(Base::Hole(pick)), raw: false },
        800..880 => Op::Held(pick, Change::Free),
        880..900 => Op::Held(pick, Change::Shrink(part(random))),
        900..930 => {
            let part = if random.once_in(2) { Part::ALL } else { part(random) };
            Op::Held(pick, Change::Extend(part))
        }
        930..950 => Op::Held(pick, Change::FreeRange(part(random), part(random))),
        950..960 => Op::Held(pick, Change::Turn),
        960..970 => {
            let order = Order::ALL[random.below(3) as usize];
            Op::FreeBatch { first: pick, len: random.below(20) as u8, order }
        }
        970..985 => {
            let handle = match random.below(3) {
                0 => Forgery::Stale(pick),
                1 => Forgery::Foreign(pick),
                _ => Forgery::Garbage(random.bits(), random.bits()),
            };
            Op::Misuse { call: Call::ALL[random.below(5) as usize], handle }
        }
        985..993 => Op::Orphan(pick, Change::Free),
        993..995 => Op::Burst { seed: pick, n: random.below(60) as u8 },
        995 => Op::ShrinkTo(Amount {
            base: Base::Capacity,
            part: Part { share: u16::MAX - 900, off: 0 },
        }),
        996 => Op::ShrinkTo(Amount::all(Base::EndOfLast)),
        997 => Op::Grow(Amount { base: Base::Capacity, part: Part { share: u16::MAX, off: 100 } }),
        998 => Op::Clone,
        _ => Op::Allocate { size: Amount::all(Base::Largest), raw: false },
    }
}
