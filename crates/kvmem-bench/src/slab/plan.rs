//! *Plan*: what a run consists of: groups of tasks that take turns, and how long each is.

use super::{ContenderId, Options, Pattern, Skipped, Task, heap};

/// Largest blocks of the random pattern, in bytes.
const RANDOM_MAX: [u32; 2] = [512, 1024];
/// Size of the blocks that have one.
const FIXED: u32 = 64;
/// Threads of the first two patterns.
const THREADS: [u32; 4] = [1, 2, 3, 4];

/// How long the measurements are.
#[derive(Clone, Copy, Debug)]
pub(super) struct Effort {
    pub(super) reps: u32,
    /// Of one measurement.
    pub(super) milliseconds: u32,
}

impl Effort {
    pub(super) fn of(options: &Options) -> Self {
        let effort = if options.quick {
            Self { reps: 3, milliseconds: 20 }
        } else {
            Self { reps: 9, milliseconds: 250 }
        };
        Self { reps: options.reps.map_or(effort.reps, |reps| reps.max(1)), ..effort }
    }

    /// About how many milliseconds a task takes, with its process and what it prepares.
    pub(super) fn units(&self) -> u64 {
        u64::from(self.milliseconds) + 20
    }
}

/// Tasks that differ in nothing but the contender, and take turns.
#[derive(Debug)]
pub(super) struct Group {
    pub(super) tasks: Vec<Task>,
}

/// Everything that `options` ask for, in order; and who is absent.
pub(super) fn groups(options: &Options, effort: &Effort) -> (Vec<Group>, Vec<Skipped>) {
    let wanted = ContenderId::ALL
        .into_iter()
        .filter(|id| options.contenders.is_empty() || options.contenders.contains(id));
    let mut present = Vec::new();
    let mut skipped = Vec::new();
    for contender in wanted {
        match heap::absent(contender) {
            None => present.push(contender),
            Some(reason) => skipped.push(Skipped { contender, reason }),
        }
    }
    let mut groups = Vec::new();
    for pattern in Pattern::ALL {
        if !options.patterns.is_empty() && !options.patterns.contains(&pattern) {
            continue;
        }
        for (max_block_bytes, threads) in shapes(pattern, &options.threads) {
            let task = |&contender: &ContenderId| Task {
                pattern,
                max_block_bytes,
                threads,
                contender,
                milliseconds: effort.milliseconds,
            };
            groups.push(Group { tasks: present.iter().map(task).collect() });
        }
    }
    groups.retain(|group| !group.tasks.is_empty());
    (groups, skipped)
}

/// Sizes and numbers of threads of a pattern; `named` are the numbers that are asked for.
fn shapes(pattern: Pattern, named: &[u32]) -> Vec<(u32, u32)> {
    let sizes: &[u32] = match pattern {
        Pattern::Random => &RANDOM_MAX,
        Pattern::Fixed => &[FIXED],
        Pattern::ProducerConsumer => &RANDOM_MAX[..1],
    };
    let threads = if named.is_empty() { &THREADS[..] } else { named };
    // Half of the threads allocate for the other half.
    let able = |&threads: &u32| pattern != Pattern::ProducerConsumer || threads.is_multiple_of(2);
    let threads: Vec<u32> = threads.iter().copied().filter(able).collect();
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
