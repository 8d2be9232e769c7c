//! The plan of a run: groups of tasks that take turns, and the length of each.

use super::{Pattern, SlabContenderId, SlabOptions, SlabSkipped, Task, heap};

/// Largest blocks of the random pattern, in bytes.
const RANDOM_MAX: [u32; 2] = [512, 1024];
/// Size of the blocks of the fixed pattern.
const FIXED: u32 = 64;
/// Threads of the first two patterns.
const THREADS: [u32; 4] = [1, 2, 3, 4];

/// Lengths of the measurements.
#[derive(Clone, Copy, Debug)]
pub(super) struct SlabEffort {
    pub(super) reps: u32,
    /// Duration of one measurement.
    pub(super) milliseconds: u32,
}

impl SlabEffort {
    pub(super) fn of(options: &SlabOptions) -> Self {
        let effort = if options.quick {
            Self { reps: 3, milliseconds: 20 }
        } else {
            Self { reps: 9, milliseconds: 250 }
        };
        Self { reps: options.reps.map_or(effort.reps, |reps| reps.max(1)), ..effort }
    }

    /// Estimates the milliseconds of a task, including its process and its preparation.
    pub(super) fn units(&self) -> u64 {
        u64::from(self.milliseconds) + 20
    }
}

/// Tasks that differ only in the contender and take turns.
#[derive(Debug)]
pub(super) struct SlabGroup {
    pub(super) tasks: Vec<Task>,
}

/// Returns the groups that `options` select, in order, and the absent contenders.
pub(super) fn groups(
    options: &SlabOptions,
    effort: &SlabEffort,
) -> (Vec<SlabGroup>, Vec<SlabSkipped>) {
    let wanted = SlabContenderId::ALL
        .into_iter()
        .filter(|id| options.contenders.is_empty() || options.contenders.contains(id));
    let mut present = Vec::new();
    let mut skipped = Vec::new();
    for contender in wanted {
        match heap::absent(contender) {
            None => present.push(contender),
            Some(reason) => skipped.push(SlabSkipped { contender, reason }),
        }
    }
    let mut groups = Vec::new();
    for pattern in Pattern::ALL {
        if !options.patterns.is_empty() && !options.patterns.contains(&pattern) {
            continue;
        }
        for (max_block_bytes, threads) in shapes(pattern, &options.threads) {
            let task = |&contender: &SlabContenderId| Task {
                pattern,
                max_block_bytes,
                threads,
                contender,
                milliseconds: effort.milliseconds,
            };
            groups.push(SlabGroup { tasks: present.iter().map(task).collect() });
        }
    }
    groups.retain(|group| !group.tasks.is_empty());
    (groups, skipped)
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
