//! *Counted*: loops by name with a given number of operations, for tools that count instructions.
//!
//! The difference of two runs of different lengths is that of their operations: starting the
//! process, making the space and filling it take the same number of instructions in both.

use super::{LoopError, churn, impossible, pair, paired, random, uniform};
use crate::contender::{Contender, ContenderId, Visitor};
use crate::suite::names;

/// The seed of all counted loops.
const SEED: u64 = 1;
/// The size of `uniform`: 16,384 ranges alive.
const UNIFORM: u64 = 128 << 10;
/// A sixteenth of the published space, and as many rounds as fill it.
const PAIRED: (u64, u64) = (paired::POOL / 16, 320);
/// The mean number of operations of a round of `paired`.
const PAIRED_OPS: u64 = 129;

names! {
    /// The counted loops by name.
    pub enum CountedLoop ("loop", UnknownLoopError) {
        /// [`random`] with the published sizes.
        Random = "random",
        /// [`random`] with the [other sizes](random::mixes), an equal number of operations each.
        Mix = "mix",
        /// [`paired`].
        Paired = "paired",
        /// [`uniform`] with one size.
        Uniform = "uniform",
        /// [`churn`].
        Churn = "churn",
        /// [`pair`].
        Pair = "pair",
        /// [`impossible`].
        Impossible = "impossible",
    }
}

impl CountedLoop {
    /// Runs about `ops` operations of the loop with a contender.
    ///
    /// # Errors
    /// [`LoopError`] if the contender does not serve the loop.
    pub fn run(self, contender: ContenderId, ops: u64) -> Result<(), LoopError> {
        contender.visit(Counted { which: self, ops })
    }

    /// Runs about `ops` operations of the loop with a contender of the caller.
    ///
    /// # Errors
    /// [`LoopError`] if the contender does not serve the loop.
    pub fn run_with<C: Contender>(self, ops: u64) -> Result<(), LoopError> {
        Counted { which: self, ops }.visit::<C>()
    }
}

/// A loop and its length, ready for any contender.
struct Counted {
    which: CountedLoop,
    ops: u64,
}

impl Visitor for Counted {
    type Output = Result<(), LoopError>;

    fn visit<C: Contender>(self) -> Self::Output {
        let ops = self.ops;
        match self.which {
            CountedLoop::Random => {
                random::run::<C>(SEED, &random::sizes(), random::POOL, ops).map(drop)
            }
            CountedLoop::Mix => {
                let mixes = random::mixes();
                let each = ops / mixes.len() as u64;
                mixes.iter().try_for_each(|(_, sizes)| {
                    random::run::<C>(SEED, sizes, random::POOL, each).map(drop)
                })
            }
            CountedLoop::Paired => {
                let (pool, warm_up) = PAIRED;
                paired::run::<C>(SEED, pool, warm_up, ops / PAIRED_OPS).map(drop)
            }
            CountedLoop::Uniform => uniform::run::<C>(SEED, UNIFORM, uniform::POOL, ops).map(drop),
            CountedLoop::Churn => churn::run::<C>(SEED, ops).map(drop),
            CountedLoop::Pair => pair::run::<C>(ops).map(drop),
            CountedLoop::Impossible => impossible::run::<C>(ops).map(drop),
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
                let served = which.run(contender, 30 * PAIRED_OPS);
                assert_eq!(served, Ok(()), "{which} with {contender}");
            }
        }
    }
}
