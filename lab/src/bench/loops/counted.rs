//! *Counted*: loops by name with a given number of operations, for tools that count instructions.
//!
//! The difference of two runs of different lengths is that of their operations: starting the
//! process, making the space and filling it take the same number of instructions in both. Each loop
//! also tells the time of its measured operations.

use anyhow::Result;

use super::{paired, random, short, uniform};
use crate::bench::contender::Contender;
use crate::bench::suite::names;

/// The seed of all counted loops.
pub const SEED: u64 = 1;
/// The sizes of `uniform` and `uniform-many`: 16,384 and 65,536 ranges alive.
const UNIFORM: [u64; 2] = [128 << 10, 32 << 10];
/// A sixteenth of the published space, and as many rounds as fill it.
const PAIRED: (u64, u64) = (paired::POOL / 16, 320);
/// The mean number of operations of a round of `paired`.
const PAIRED_OPS: u64 = 129;

names! {
    /// The counted loops by name; `mix` has an equal number of operations of each distribution.
    pub enum CountedLoop ("loop") {
        Random = "random",
        Mix = "mix",
        Paired = "paired",
        Uniform = "uniform",
        UniformMany = "uniform-many",
        Churn = "churn",
        Pair = "pair",
        Impossible = "impossible",
    }
}

impl CountedLoop {
    /// Runs about `ops` operations of the loop with a contender; returns the processor time of one
    /// in nanoseconds.
    pub fn run<C: Contender>(self, ops: u64) -> Result<f64> {
        let outcome = match self {
            CountedLoop::Random => random::run::<C>(SEED, &random::sizes(), ops),
            CountedLoop::Mix => {
                let mixes = random::mixes();
                let count = mixes.len() as u64;
                let time = |(_, sizes)| Ok(random::run::<C>(SEED, &sizes, ops / count)?.ns_per_op);
                return mixes
                    .into_iter()
                    .map(time)
                    .sum::<Result<f64>>()
                    .map(|all| all / count as f64);
            }
            CountedLoop::Paired => paired::run::<C>(SEED, PAIRED.0, PAIRED.1, ops / PAIRED_OPS),
            CountedLoop::Uniform => uniform::run::<C>(SEED, UNIFORM[0], uniform::POOL, ops),
            CountedLoop::UniformMany => uniform::run::<C>(SEED, UNIFORM[1], uniform::POOL, ops),
            CountedLoop::Churn => return short::churn::<C>(SEED, ops),
            CountedLoop::Pair => return short::pair::<C>(ops),
            CountedLoop::Impossible => return short::impossible::<C>(ops),
        };
        Ok(outcome?.ns_per_op)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::contender::{ContenderId, with_contender};

    #[test]
    fn every_loop_runs_with_the_contenders_that_are_counted() {
        use ContenderId::{Binned, Kvmem, KvmemCached, Null};
        for which in CountedLoop::ALL {
            for id in [Kvmem, KvmemCached, Binned, Null] {
                // A round of `paired` ends with the first eviction after the space is full.
                let ns = with_contender!(id, C => which.run::<C>(30 * PAIRED_OPS)).unwrap();
                assert!(ns > 0.0, "{which} with {id}: {ns}");
            }
        }
    }
}
