//! A space at a constant fill, as a store has it: ranges are freed at random, and others allocated.
//!
//! Each operation draws a size, evicts one range at a time until the request keeps to the fill, and
//! puts it, evicting further ranges if it does not fit. The space is as long as makes `live` ranges
//! fill it that far. At 100 % every request evicts until it fits.

use std::fmt::{self, Display, Formatter};
use std::str::FromStr;

use anyhow::{Context, Error, Result, ensure};
use kvmem_testkit::workload::{Sizes, stream};

use super::{Outcome, REQUESTS, VICTIMS};
use crate::bench::clock::Stopwatch;
use crate::bench::contender::{Contender, Space};
use crate::bench::live_set::LiveSet;
use crate::bench::stats::Utilization;
use crate::bench::suite::names;

names! {
    /// The sizes of the requests.
    pub enum FilledSizes ("distribution of sizes") {
        Sixteen = "sixteen",
        Random = "random",
    }
}

impl FilledSizes {
    fn sizes(self) -> Sizes {
        match self {
            FilledSizes::Sixteen => Sizes::OneOf((0..16).map(|n| 4096 + 512 * n).collect()),
            FilledSizes::Random => Sizes::Uniform { min: 1 << 10, max: 64 << 10 },
        }
    }

    fn mean(self) -> u64 {
        match self {
            FilledSizes::Sixteen => 4096 + 512 * 15 / 2,
            FilledSizes::Random => ((1 + 64) << 10) / 2,
        }
    }
}

/// How far the space is filled, with what.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Filled {
    /// The sizes of the requests.
    pub sizes: FilledSizes,
    /// Live bytes that the loop keeps to, in percent of the space.
    pub percent: u64,
    /// About how many ranges fill the space that far.
    pub live: u64,
}

impl Filled {
    /// The fills that are measured.
    pub const PERCENT: [u64; 3] = [75, 95, 100];
    /// The numbers of live ranges that are measured.
    pub const LIVE: [u64; 3] = [1_000, 10_000, 100_000];

    /// Returns all loops.
    pub fn all() -> impl Iterator<Item = Filled> {
        let fills = || Self::PERCENT.into_iter();
        let of = move |sizes| {
            fills().flat_map(move |percent| {
                Self::LIVE.into_iter().map(move |live| Filled { sizes, percent, live })
            })
        };
        FilledSizes::ALL.into_iter().flat_map(of)
    }
}

/// `SIZES-PERCENT-LIVE`
impl Display for Filled {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.pad(&format!("{}-{}-{}", self.sizes, self.percent, self.live))
    }
}

impl FromStr for Filled {
    type Err = Error;

    fn from_str(name: &str) -> Result<Self> {
        let mut words = name.split('-');
        let mut word = || words.next().with_context(|| format!("{name:?}: SIZES-PERCENT-LIVE"));
        let filled =
            Filled { sizes: word()?.parse()?, percent: word()?.parse()?, live: word()?.parse()? };
        ensure!((1..=100).contains(&filled.percent), "{name:?}: the fill is from 1 to 100 %");
        ensure!(filled.live > 0 && words.next().is_none(), "{name:?}: SIZES-PERCENT-LIVE");
        Ok(filled)
    }
}

/// Runs `ops` measured operations.
pub fn run<C: Contender>(seed: u64, filled: Filled, ops: u64) -> Result<Outcome> {
    let Filled { sizes, percent, live: ranges } = filled;
    let pool = sizes.mean() * ranges * 100 / percent;
    let budget = pool / 100 * percent;
    let sizes = sizes.sizes();
    let space = Space::for_sizes_from(sizes.min(), pool);
    let mut live = LiveSet::new(C::create(space)?, space.max_live, stream(seed, VICTIMS));
    let mut requests = stream(seed, REQUESTS);
    let mut exchange = |live: &mut LiveSet<C>| -> Result<()> {
        let size = sizes.sample(&mut requests);
        while live.bytes() + size > budget && live.evict() {}
        Ok(live.put(size)?)
    };
    // The space is filled, and then each range replaced twice.
    for _ in 0..3 * ranges {
        exchange(&mut live)?;
    }
    let mut samples = Vec::with_capacity(ops as usize);
    let watch = Stopwatch::start();
    for _ in 0..ops {
        exchange(&mut live)?;
        samples.push(live.bytes());
    }
    let ns_per_op = watch.ns_per_op(ops);
    Ok(Outcome { util: Utilization::of(&mut samples, pool)?, ns_per_op })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::contender::binned::Binned;

    #[test]
    fn names_are_read_back_and_others_are_not() {
        assert_eq!(Filled::all().count(), 18);
        for filled in Filled::all() {
            assert_eq!(filled.to_string().parse::<Filled>().unwrap(), filled);
        }
        for name in ["", "sixteen", "sixteen-75", "sixteen-0-10", "random-101-10", "other-75-10"] {
            assert!(name.parse::<Filled>().is_err(), "{name}");
        }
        assert!(
            "random-75-10-1".parse::<Filled>().is_err() && "random-75-0".parse::<Filled>().is_err()
        );
    }

    #[test]
    fn a_space_is_filled_as_far_as_it_says() {
        for (percent, least) in [(75, 0.74), (95, 0.8), (100, 0.8)] {
            let filled = Filled { sizes: FilledSizes::Sixteen, percent, live: 1000 };
            let util = run::<Binned>(1, filled, 1000).unwrap().util;
            assert!(util.avg > least && util.avg <= percent as f64 / 100.0, "{filled}: {util:?}");
        }
    }
}
