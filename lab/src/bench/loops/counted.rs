//! *Counted*: loops by name with a given number of operations, for tools that count instructions.
//!
//! The difference of two runs of different lengths is that of their operations: starting the
//! process, making the space and filling it take the same number of instructions in both. Each loop
//! also tells the time of its measured operations.

use super::{LoopError, churn, impossible, pair, paired, random, uniform};
use crate::bench::contender::{Contender, ContenderId, Visitor};
use crate::bench::stats::mean;
use crate::bench::suite::names;

/// The seed of all counted loops.
const SEED: u64 = 1;
/// The size of `uniform`: 16,384 ranges alive.
const UNIFORM: u64 = 128 << 10;
/// The size of `uniform-many`: 65,536 ranges alive.
const UNIFORM_MANY: u64 = 32 << 10;
/// A sixteenth of the published space, and as many rounds as fill it.
const PAIRED: (u64, u64) = (paired::POOL / 16, 320);
/// The mean number of operations of a round of `paired`.
const PAIRED_OPS: u64 = 129;

names! {
    /// The counted loops by name.
    pub enum CountedLoop ("loop") {
        /// [`random`] with the published sizes.
        Random = "random",
        /// [`random`] with the [other sizes](random::mixes), an equal number of operations each.
        Mix = "mix",
        /// [`paired`].
        Paired = "paired",
        /// [`uniform`] with one size.
        Uniform = "uniform",
        /// [`uniform`] with a smaller size, so with more ranges.
        UniformMany = "uniform-many",
        /// [`churn`].
        Churn = "churn",
        /// [`pair`].
        Pair = "pair",
        /// [`impossible`].
        Impossible = "impossible",
    }
}

impl CountedLoop {
    /// Runs about `ops` operations of the loop with a contender; returns the processor time of one
    /// in nanoseconds.
    ///
    /// # Errors
    /// [`LoopError`] if the contender does not serve the loop.
    pub fn run(self, contender: ContenderId, ops: u64) -> Result<f64, LoopError> {
        contender.visit(Counted { which: self, ops })
    }

    /// Runs about `ops` operations of the loop with a contender of the caller; returns the
    /// processor time of one in nanoseconds.
    ///
    /// # Errors
    /// [`LoopError`] if the contender does not serve the loop.
    pub fn run_with<C: Contender>(self, ops: u64) -> Result<f64, LoopError> {
        Counted { which: self, ops }.visit::<C>()
    }
}

/// A loop and its length, ready for any contender.
struct Counted {
    which: CountedLoop,
    ops: u64,
}

impl Visitor for Counted {
    type Output = Result<f64, LoopError>;

    fn visit<C: Contender>(self) -> Self::Output {
        let ops = self.ops;
        match self.which {
            CountedLoop::Random => random::run::<C>(SEED, &random::sizes(), random::POOL, ops)
                .map(|outcome| outcome.ns_per_op),
            CountedLoop::Mix => {
                let mixes = random::mixes();
                let each = ops / mixes.len() as u64;
                let times = mixes.iter().map(|(_, sizes)| {
                    random::run::<C>(SEED, sizes, random::POOL, each)
                        .map(|outcome| outcome.ns_per_op)
                });
                Ok(mean(&times.collect::<Result<Vec<_>, _>>()?).unwrap_or_default())
            }
            CountedLoop::Paired => {
                let (pool, warm_up) = PAIRED;
                paired::run::<C>(SEED, pool, warm_up, ops / PAIRED_OPS)
                    .map(|outcome| outcome.ns_per_op)
            }
            CountedLoop::Uniform => uniform::run::<C>(SEED, UNIFORM, uniform::POOL, ops)
                .map(|outcome| outcome.ns_per_op),
            CountedLoop::UniformMany => uniform::run::<C>(SEED, UNIFORM_MANY, uniform::POOL, ops)
                .map(|outcome| outcome.ns_per_op),
            CountedLoop::Churn => churn::run::<C>(SEED, ops),
            CountedLoop::Pair => pair::run::<C>(ops),
            CountedLoop::Impossible => impossible::run::<C>(ops),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The contenders that `cargo xtask count` compares.
    const CONTENDERS: [ContenderId; 4] =
        [ContenderId::Kvmem, ContenderId::KvmemCached, ContenderId::Binned, ContenderId::Null];

    #[test]
    fn every_loop_runs_with_the_compared_contenders() {
        for which in CountedLoop::ALL {
            for contender in CONTENDERS {
                // A round of `paired` ends with the first eviction after the space is full.
                let ns = which.run(contender, 30 * PAIRED_OPS);
                assert!(ns.as_ref().is_ok_and(|&ns| ns > 0.0), "{which} with {contender}: {ns:?}");
            }
        }
    }
}
