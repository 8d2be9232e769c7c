//! *Plan* of a run: the groups of each pattern, and the length of each measurement.

use super::{Pattern, SlabContenderId, SlabOptions, SlabSkipped, SlabSuite, SlabTask, heap, loops};
use crate::suite::plan::{Group, SMALLEST};
use crate::suite::{Plan, SeededRepetitions, chosen};

/// Largest blocks of the random pattern, in bytes.
const RANDOM_MAX: [u32; 2] = [512, 1024];
/// Size of the blocks of the fixed pattern.
const FIXED: u32 = 64;
/// Threads of the first two patterns.
const THREADS: [u32; 4] = [1, 2, 3, 4];

/// Milliseconds that a measurement takes longer than its loop: its process and its preparation.
const PREPARATION: u64 = 20;

/// Returns the plan that `options` select. Tasks that differ only in the contender take turns.
pub(super) fn plan(options: &SlabOptions) -> Plan<SlabSuite> {
    let (usual_reps, milliseconds) = match options.quick {
        true => (3, if SMALLEST { 2 } else { 20 }),
        false => (9, 250),
    };
    let reps = options.reps.map_or(usual_reps, |reps| reps.max(1));
    let mut present: Vec<SlabContenderId> = Vec::new();
    let mut skipped = Vec::new();
    for contender in chosen(&options.contenders) {
        match heap::absent(contender) {
            None => present.push(contender),
            Some(reason) => skipped.push(SlabSkipped { contender, reason }),
        }
    }
    let mut groups = Vec::new();
    for pattern in chosen(&options.patterns) {
        for (max_block_bytes, threads) in shapes(pattern, &options.threads) {
            let tasks = present.iter().map(|&contender| SlabTask {
                pattern,
                max_block_bytes,
                threads,
                contender,
                milliseconds,
            });
            groups.push(Group::rotated(tasks, reps, u64::from(milliseconds) + PREPARATION));
        }
    }
    Plan {
        quick: options.quick,
        groups,
        skipped,
        fixture: options.child,
        details: SeededRepetitions { seed: loops::SEED.into(), reps },
    }
}

/// Returns the sizes and numbers of threads of a pattern; `named` are the selected numbers.
fn shapes(pattern: Pattern, named: &[u32]) -> Vec<(u32, u32)> {
    let sizes: &[u32] = match pattern {
        Pattern::Random => &RANDOM_MAX,
        Pattern::Fixed => &[FIXED],
        Pattern::ProducerConsumer => &RANDOM_MAX[..1],
    };
    let threads = if named.is_empty() { &THREADS[..] } else { named };
    // Half of the threads allocate for the other half.
    let supported =
        |&threads: &u32| pattern != Pattern::ProducerConsumer || threads.is_multiple_of(2);
    let threads: Vec<u32> = threads.iter().copied().filter(supported).collect();
    sizes.iter().flat_map(|&size| threads.iter().map(move |&threads| (size, threads))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn producers_have_consumers() {
        assert_eq!(shapes(Pattern::ProducerConsumer, &[]), [(512, 2), (512, 4)]);
        assert_eq!(shapes(Pattern::Fixed, &[1, 3]), [(64, 1), (64, 3)]);
        assert_eq!(shapes(Pattern::Random, &[2]), [(512, 2), (1024, 2)]);
        assert!(shapes(Pattern::ProducerConsumer, &[3]).is_empty());
    }
}
