//! *Plan*: what a run consists of: groups of tasks that take turns, and how long each is.

use super::system;
use super::{ContenderId, Op, Options, Pages, Skipped};

use ContenderId::{Bumpalo, Kvmem, KvmemAuto, MapPopulate, Mutex, Seed, Touch};

/// Sizes of a bump allocation, in bytes.
const SIZES: [u64; 2] = [64, 4096];
/// Threads that share a bump arena.
const BUMP_THREADS: [u32; 3] = [1, 2, 8];
/// Threads that populate.
const POPULATE_THREADS: [u32; 3] = [1, 2, 4];
/// Bytes mapped and left untouched.
pub(super) const MAPPED: u64 = 1 << 40;
/// Populating less than this says nothing.
const LEAST_POPULATED: u64 = 64 << 20;

/// How long the measurements are.
#[derive(Clone, Copy, Debug)]
pub(super) struct Effort {
    /// Repetitions of bump loops.
    pub(super) bump_reps: u32,
    /// Repetitions of everything else.
    pub(super) page_reps: u32,
    /// Allocations of a bump loop on one thread.
    pub(super) bump_ops: u64,
    /// Allocations of a bump loop on several threads, of all of them together.
    pub(super) shared_ops: u64,
    /// Failing calls; of a contender that logs them, a fiftieth.
    pub(super) full_ops: u64,
    /// Bytes populated and discarded.
    pub(super) populate_bytes: u64,
}

impl Effort {
    pub(super) fn of(options: &Options) -> Self {
        let mut effort = if options.quick {
            Self {
                bump_reps: 5,
                page_reps: 3,
                bump_ops: 300_000,
                shared_ops: 1_000_000,
                full_ops: 200_000,
                populate_bytes: 512 << 20,
            }
        } else {
            Self {
                bump_reps: 15,
                page_reps: 5,
                bump_ops: 1_000_000,
                shared_ops: 4_000_000,
                full_ops: 1_000_000,
                populate_bytes: 2 << 30,
            }
        };
        if let Some(reps) = options.reps {
            (effort.bump_reps, effort.page_reps) = (reps.max(1), reps.max(1));
        }
        effort
    }
}

/// One measurement.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Task {
    pub(super) op: Op,
    pub(super) pages: Option<Pages>,
    /// `None` where the contender chooses.
    pub(super) threads: Option<u32>,
    pub(super) size_bytes: u64,
    pub(super) contender: ContenderId,
}

impl Task {
    /// About how many milliseconds it takes.
    pub(super) fn units(&self, effort: &Effort) -> u64 {
        let nanoseconds = match self.op {
            Op::Bump if self.threads == Some(1) => effort.bump_ops * 10,
            Op::Bump => effort.shared_ops * 15,
            Op::BumpFull => effort.full_ops * 10,
            Op::Map => 1_000_000,
            // A thread populates some GiB a second, and as many are given back in less.
            Op::Populate => self.size_bytes / 3,
            Op::Discard => self.size_bytes / 2,
        };
        nanoseconds / 1_000_000 + 1
    }
}

/// Tasks that take turns.
#[derive(Debug)]
pub(super) struct Group {
    pub(super) tasks: Vec<Task>,
    pub(super) reps: u32,
}

impl Group {
    fn of(tasks: Vec<Task>, reps: u32) -> Self {
        Self { tasks, reps }
    }

    /// The pages that all its tasks need.
    pub(super) fn pages(&self) -> Option<Pages> {
        self.tasks.first().and_then(|task| task.pages)
    }

    /// Bytes that a task makes resident.
    pub(super) fn resident_bytes(&self) -> u64 {
        let resident =
            self.tasks.iter().filter(|task| matches!(task.op, Op::Populate | Op::Discard));
        resident.map(|task| task.size_bytes).max().unwrap_or(0)
    }

    pub(super) fn units(&self, effort: &Effort) -> u64 {
        let each: u64 = self.tasks.iter().map(|task| task.units(effort)).sum();
        each * u64::from(self.reps)
    }
}

/// Everything that `options` ask for, in order; and what of it this machine cannot do.
pub(super) fn groups(options: &Options, effort: &mut Effort) -> (Vec<Group>, Vec<Skipped>) {
    let wanted = |op| options.ops.is_empty() || options.ops.contains(&op);
    let mut groups = Vec::new();
    let mut skipped = Vec::new();
    for op in Op::ALL.into_iter().filter(|&op| wanted(op)) {
        match op {
            Op::Bump => groups.extend(bump(effort)),
            Op::BumpFull => groups.extend(bump_full(effort)),
            Op::Map => groups.push(map(effort)),
            Op::Populate | Op::Discard => match fit(effort) {
                Ok(()) => {
                    for pages in able(op) {
                        match (pages, system::thp_missing()) {
                            (Pages::Thp, Some(reason)) => {
                                skipped.push(Skipped { op, pages: Some(pages), reason })
                            }
                            _ => groups.push(resident(op, pages, effort)),
                        }
                    }
                }
                Err(reason) => skipped.push(Skipped { op, pages: None, reason }),
            },
        }
    }
    for group in &mut groups {
        let named = |task: &Task| {
            options.contenders.is_empty() || options.contenders.contains(&task.contender)
        };
        group.tasks.retain(named);
    }
    groups.retain(|group| !group.tasks.is_empty());
    (groups, skipped)
}

/// The kinds of pages that take part. Hugepages of a pool are not discarded one by one: the pool
/// might be empty when they are touched again, and the process would be killed.
fn able(op: Op) -> impl Iterator<Item = Pages> {
    Pages::ALL.into_iter().filter(move |&pages| op != Op::Discard || pages != Pages::Huge)
}

fn bump(effort: &Effort) -> impl Iterator<Item = Group> {
    SIZES.into_iter().flat_map(|size| BUMP_THREADS.map(|threads| (size, threads))).map(
        |(size_bytes, threads)| {
            let able: &[ContenderId] =
                if threads == 1 { &[Kvmem, Seed, Mutex, Bumpalo] } else { &[Kvmem, Seed, Mutex] };
            let task = |&contender| Task {
                op: Op::Bump,
                pages: None,
                threads: Some(threads),
                size_bytes,
                contender,
            };
            Group::of(able.iter().map(task).collect(), effort.bump_reps)
        },
    )
}

fn bump_full(effort: &Effort) -> impl Iterator<Item = Group> {
    SIZES.into_iter().map(|size_bytes| {
        let task = |contender| Task {
            op: Op::BumpFull,
            pages: None,
            threads: Some(1),
            size_bytes,
            contender,
        };
        Group::of([Kvmem, Seed, Mutex, Bumpalo].map(task).to_vec(), effort.bump_reps)
    })
}

fn map(effort: &Effort) -> Group {
    let task = Task {
        op: Op::Map,
        pages: Some(Pages::Thp),
        threads: Some(1),
        size_bytes: MAPPED,
        contender: Kvmem,
    };
    Group::of(vec![task], effort.page_reps)
}

fn resident(op: Op, pages: Pages, effort: &Effort) -> Group {
    let task = |threads, contender| Task {
        op,
        pages: Some(pages),
        threads,
        size_bytes: effort.populate_bytes,
        contender,
    };
    let tasks = if op == Op::Discard {
        vec![task(Some(1), Kvmem)]
    } else {
        let ours = POPULATE_THREADS.map(|threads| task(Some(threads), Kvmem));
        let rest = [task(None, KvmemAuto), task(Some(1), MapPopulate), task(Some(1), Touch)];
        [&ours[..], &rest].concat()
    };
    Group::of(tasks, effort.page_reps)
}

/// Sizes what is populated so that it takes no more than half of what is available.
fn fit(effort: &mut Effort) -> Result<(), String> {
    let Some(available) = system::available_bytes() else { return Ok(()) };
    while effort.populate_bytes > available / 2 {
        effort.populate_bytes /= 2;
    }
    if effort.populate_bytes < LEAST_POPULATED {
        return Err(format!(
            "{available} bytes of memory are available, and the rows need {}: free some or raise the group's limit",
            2 * LEAST_POPULATED
        ));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_row_is_planned_and_filters_leave_only_what_they_name() {
        let all = Options::default();
        let mut effort = Effort::of(&all);
        let (groups, skipped) = groups(&all, &mut effort);
        let tasks = |op| {
            groups.iter().flat_map(|group| &group.tasks).filter(move |task| task.op == op).count()
        };
        // Three contenders, and the fourth where one thread is alone.
        assert_eq!((tasks(Op::Bump), tasks(Op::BumpFull), tasks(Op::Map)), (2 * (4 + 3 + 3), 8, 1));
        let kinds =
            Pages::ALL.len() - skipped.iter().filter(|skip| skip.op == Op::Populate).count();
        assert_eq!((tasks(Op::Populate), tasks(Op::Discard)), (6 * kinds, kinds - 1));

        let some = Options { ops: vec![Op::Bump], contenders: vec![Bumpalo], ..all };
        let (groups, _) = super::groups(&some, &mut effort);
        assert_eq!(groups.len(), 2);
        assert!(groups.iter().all(|group| group.tasks.len() == 1 && group.resident_bytes() == 0));
    }
}
