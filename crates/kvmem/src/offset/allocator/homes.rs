//! *Homes*: the shard that a thread requests from first.
//!
//! Threads that start one after the other have homes that are a *stride* apart. The stride is about
//! the golden section of the ring, so as many threads as come have homes spread evenly, and what a
//! home cannot serve is stolen from shards behind it that are no other thread's home yet. It has no
//! divisor in common with the number of shards, so as many threads as shards have all of them.

/// How threads are assigned to shards.
#[derive(Clone, Copy, Debug)]
pub(super) struct Homes {
    shards: u32,
    stride: u32,
}

impl Homes {
    /// Assigns threads to `shards` ≥ 1 shards.
    pub(super) fn new(shards: usize) -> Self {
        let shards = shards as u32;
        // The greatest number up to 0.618 of the shards that has no divisor in common with them.
        let golden = (u64::from(shards) * 618 / 1000) as u32;
        let stride = (1..=golden).rev().find(|&stride| divisor(shards, stride) == 1).unwrap_or(1);
        Homes { shards, stride }
    }

    /// Assigns threads with the stride of [`new`](Self::new).
    #[inline]
    pub(super) fn with(shards: usize, stride: u32) -> Self {
        Homes { shards: shards as u32, stride }
    }

    /// Returns the distance of the homes of two threads.
    pub(super) fn stride(self) -> u32 {
        self.stride
    }

    /// Returns the home of the thread with this number.
    #[inline]
    pub(super) fn of(self, thread: usize) -> usize {
        // In 32 bits, which many processors divide faster. After 2^22 threads at the earliest, the
        // product wraps, and the next thread's home is any.
        (thread as u32).wrapping_mul(self.stride).wrapping_rem(self.shards) as usize
    }
}

/// Returns the greatest common divisor.
fn divisor(a: u32, b: u32) -> u32 {
    if b == 0 { a } else { divisor(b, a % b) }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn as_many_threads_as_shards_have_all_of_them() {
        for shards in 1..=130 {
            let homes = Homes::new(shards);
            for first in [1, 77] {
                let all: BTreeSet<usize> = (first..first + shards).map(|n| homes.of(n)).collect();
                assert_eq!(all.len(), shards, "{homes:?}");
                assert!(all.iter().all(|&home| home < shards), "{homes:?}");
            }
        }
    }

    #[test]
    fn the_homes_of_few_threads_are_apart() {
        for shards in 8..=130 {
            let homes = Homes::new(shards);
            for first in 1..20 {
                let (one, next) = (homes.of(first), homes.of(first + 1));
                let apart = (shards + next - one) % shards;
                assert!(apart.min(shards - apart) >= shards / 4, "{homes:?}: {one}, {next}");
            }
        }
    }
}
