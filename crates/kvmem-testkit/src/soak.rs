//! *Soak*: hundreds of millions of operations on spaces that live long, compared as they go.
//!
//! Property tests are short: a few hundred steps in a space that was empty a moment ago. What needs
//! a space to be old (free lists that are long and worn, books that were cut up and joined a
//! million times, a policy that has seen the traffic change) only a long run reaches. It goes
//! through *ages* of up to a million steps. An age has a space and a traffic of its own, drawn from
//! the seed; allocations of former ages, their allocators gone, die within it.
//!
//! Every step is compared as [`Depth::Grants`] says, every eighth as [`Depth::Figures`], and
//! [`Depth::Everything`] is looked at every 65,536 steps at most.

use std::fmt;

use kvmem::offset::Placement;

use crate::driver::face::Face;
use crate::driver::{Depth, Driver, Failure, Tally};
use crate::op::{Amount, Base, Cache, Call, Change, Config, Count, Forgery, Op, Order, Part, Pick};
use crate::random::Random;

/// Steps of an age at most.
const AGE: u64 = 1_000_000;
/// Steps between two looks at everything at most.
const LOOK_EVERY: u64 = 1 << 16;
/// Allocations alive at most.
const LIVE_MAX: usize = 100_000;

/// What requests are like for a while.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Traffic {
    /// One size.
    Uniform(u64),
    /// Any size up to this.
    Even(u64),
    /// Any size up to this, small ones as often as large ones.
    Log(u64),
    /// Either of two sizes.
    Paired(u64, u64),
    /// Bulk up to this size, and crumbs beside it.
    Crumbs(u64),
}

impl Traffic {
    pub(crate) fn draw(capacity: u64, random: &mut Random) -> Self {
        // So that from a few to some ten thousand are alive.
        let most = (capacity >> random.below(17)).max(1);
        match random.below(5) {
            0 => Traffic::Uniform(most),
            1 => Traffic::Even(most),
            2 => Traffic::Log(most),
            3 => Traffic::Paired(most, 1 + random.below(most)),
            _ => Traffic::Crumbs(most),
        }
    }

    fn size(self, random: &mut Random) -> u64 {
        match self {
            Traffic::Uniform(size) => size,
            Traffic::Even(most) => 1 + random.below(most),
            Traffic::Log(most) => 1 + random.log_below(most),
            Traffic::Paired(one, other) => [one, other][random.below(2) as usize],
            Traffic::Crumbs(most) if random.once_in(3) => 1 + random.below(most / 100 + 1),
            Traffic::Crumbs(most) => most - random.below(most / 4 + 1),
        }
    }
}

/// How a soak went.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// Steps made.
    pub ops: u64,
    /// Spaces gone through.
    pub ages: u64,
    /// Looks at everything.
    pub looks: u64,
    /// Most allocations that were alive at a time.
    pub live_max: usize,
    /// What the steps came to.
    pub tally: Tally,
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Report { ops, ages, looks, live_max, tally } = self;
        write!(
            f,
            "{ops} operations in {ages} ages, {looks} looks at everything, up to {live_max} alive\n{tally}"
        )
    }
}

/// Makes `ops` steps that the seed decides, on spaces with this face; tells `progress` of each age.
///
/// # Errors
/// [`Failure`] where allocator and oracle disagree.
pub fn soak<F: Face>(
    ops: u64,
    seed: u64,
    mut progress: impl FnMut(&Report),
) -> Result<Report, Failure> {
    let mut random = Random::new(seed);
    let mut report = Report::default();
    let failure = |step: u64, op| move |what| Failure { step: step as usize, op, what };
    let mut config = draw_config(F::CACHES, &mut random);
    // Never dropped on failure: broken books may not survive the frees.
    let mut driver =
        std::mem::ManuallyDrop::new(Driver::<F>::new(&config).map_err(failure(0, None))?);
    let age = (ops / 20).clamp(10_000, AGE);
    let look_every = LOOK_EVERY.min(age / 4);
    while report.ops < ops {
        let mut traffic = Traffic::draw(config.capacity, &mut random);
        // How full it is kept: of one request in so many the failure is followed by several deaths.
        let thin_out = 1 + random.below(30);
        let mut deaths = 0;
        for step in 0..age.min(ops - report.ops) {
            if random.once_in(age / 4) {
                traffic = Traffic::draw(config.capacity, &mut random);
            }
            let refused = driver.refusals();
            let op = if deaths > 0 || driver.live() > LIVE_MAX {
                deaths = u64::saturating_sub(deaths, 1);
                Op::Held(random.bits() as Pick, Change::Free)
            } else {
                draw_op(traffic, &mut random)
            };
            let depth = match step {
                _ if step % look_every == look_every - 1 => Depth::Everything,
                _ if random.once_in(8) => Depth::Figures,
                _ => Depth::Grants,
            };
            driver.step(&op, depth).map_err(failure(report.ops, Some(op)))?;
            report.ops += 1;
            report.looks += u64::from(depth == Depth::Everything);
            report.live_max = report.live_max.max(driver.live());
            if driver.refusals() > refused {
                deaths = if random.once_in(thin_out) { driver.live() as u64 / 20 } else { 1 };
            }
        }
        report.ages += 1;
        report.tally = driver.tally().clone();
        progress(&report);
        config = draw_config(F::CACHES, &mut random);
        driver.step(&Op::Replace(config), Depth::Everything).map_err(failure(report.ops, None))?;
    }
    driver.finish().map_err(failure(report.ops, None))?;
    drop(std::mem::ManuallyDrop::into_inner(driver));
    Ok(report)
}

fn draw_config(caches: bool, random: &mut Random) -> Config {
    let capacity = 1 + random.log_below(1 << 63);
    // From two segments to some thousand, of any length.
    let boundary = random
        .once_in(3)
        .then(|| (capacity >> (1 + random.below(10))).max(1) + random.log_below(1000));
    let placement = if random.once_in(3) { Placement::BestFit } else { Placement::Renewal };
    let max_ranges = random.once_in(6).then(|| 16 + random.log_below(5000) as u32);
    let cache = caches.then(|| draw_cache(capacity, random));
    Config { capacity, boundary, placement, max_ranges, cache }
}

/// Caches that may hold anything from nothing to all of the space.
pub(crate) fn draw_cache(capacity: u64, random: &mut Random) -> Cache {
    let max_cached_bytes = random.once_in(2).then(|| capacity >> random.below(20));
    let mut hot = [0; 4];
    if random.once_in(2) {
        hot.fill_with(|| 1 + random.log_below(max_cached_bytes.unwrap_or(capacity / 32).max(1)));
    }
    Cache { hot, learns: !random.once_in(4), max_cached_bytes }
}

pub(crate) fn draw_op(traffic: Traffic, random: &mut Random) -> Op {
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
            let order =
                [Order::Ascending, Order::Descending, Order::Riffled][random.below(3) as usize];
            Op::FreeRun { first: pick, len: random.below(20) as u8, order }
        }
        970..985 => {
            const CALLS: [Call; 5] =
                [Call::Free, Call::Resolve, Call::Shrink, Call::Extend, Call::Adopt];
            let handle = match random.below(3) {
                0 => Forgery::Stale(pick),
                1 => Forgery::Foreign(pick),
                _ => Forgery::Garbage(random.bits(), random.bits()),
            };
            Op::Misuse { call: CALLS[random.below(5) as usize], handle }
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
