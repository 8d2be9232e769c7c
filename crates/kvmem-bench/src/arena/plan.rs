//! *Plan* of a run: groups of tasks that take turns, and the length of each.

use super::suite::ArenaFixture;
use super::{ArenaContenderId, ArenaDetails, ArenaOptions, ArenaSkipped, ArenaSuite, Op, Pages};
use crate::limits;
use crate::suite::plan::{Group, Order, SMALLEST, Turn};
use crate::suite::{Plan, chosen};

use ArenaContenderId::{Bumpalo, Kvmem, KvmemAuto, MapPopulate, Mutex, PublishedArena, Touch};

/// Sizes of a bump allocation, in bytes.
const SIZES: [u64; 2] = [64, 4096];
/// Threads that share a bump arena.
const BUMP_THREADS: [u32; 3] = [1, 2, 8];
/// Threads that populate.
const POPULATE_THREADS: [u32; 3] = [1, 2, 4];
/// Bytes mapped and left untouched.
const MAPPED: u64 = 1 << 40;
/// The smallest size that is worth populating.
const MIN_POPULATED: u64 = 64 << 20;

/// Lengths of the measurements.
#[derive(Clone, Copy, Debug)]
pub(super) struct ArenaEffort {
    /// Repetitions of bump loops.
    pub(super) bump_reps: u32,
    /// Repetitions of everything else.
    pub(super) page_reps: u32,
    /// Allocations of a bump loop on one thread.
    pub(super) bump_ops: u64,
    /// Allocations of a bump loop on several threads, all threads together.
    pub(super) shared_ops: u64,
    /// Failing calls; a fiftieth of it for a contender that logs them.
    pub(super) full_ops: u64,
    /// Bytes populated and discarded.
    pub(super) populate_bytes: u64,
}

impl ArenaEffort {
    pub(super) fn of(options: &ArenaOptions) -> Self {
        let mut effort = if options.quick && SMALLEST {
            Self {
                bump_reps: 1,
                page_reps: 3,
                bump_ops: 20_000,
                shared_ops: 100_000,
                full_ops: 10_000,
                populate_bytes: MIN_POPULATED,
            }
        } else if options.quick {
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
pub(crate) struct ArenaTask {
    pub(super) op: Op,
    pub(super) pages: Option<Pages>,
    /// `None` where the contender chooses.
    pub(super) threads: Option<u32>,
    pub(super) size_bytes: u64,
    pub(super) contender: ArenaContenderId,
}

impl ArenaTask {
    /// Returns the bytes that it makes resident.
    pub(super) fn resident_bytes(&self) -> u64 {
        if matches!(self.op, Op::Populate | Op::Discard) { self.size_bytes } else { 0 }
    }

    /// Returns the record of its group as skipped.
    pub(super) fn skipped(&self, reason: String) -> ArenaSkipped {
        ArenaSkipped { op: self.op, pages: self.pages, reason }
    }

    /// Estimates its duration in milliseconds.
    pub(super) fn units(&self, effort: &ArenaEffort) -> u64 {
        let nanoseconds = match self.op {
            Op::Bump if self.threads == Some(1) => effort.bump_ops * 10,
            Op::Bump => effort.shared_ops * 15,
            Op::BumpFull => effort.full_ops * 10,
            Op::Map => 1_000_000,
            // A thread populates some GiB per second; returning the pages takes less time.
            Op::Populate => self.size_bytes / 3,
            Op::Discard => self.size_bytes / 2,
        };
        nanoseconds / 1_000_000 + 1
    }
}

/// Returns the plan that `options` select.
pub(super) fn plan(options: &ArenaOptions) -> Plan<ArenaSuite> {
    let mut effort = ArenaEffort::of(options);
    let (groups, skipped) = groups(options, &mut effort);
    let (bump_reps, page_reps) = (effort.bump_reps, effort.page_reps);
    Plan {
        quick: options.quick,
        groups,
        skipped,
        fixture: ArenaFixture {
            effort,
            borrow_hugepages: options.borrow_hugepages,
            hugepages: None,
        },
        details: ArenaDetails { bump_reps, page_reps, mapped_resident_bytes: None },
    }
}

/// Returns the groups that `options` select, in order, and the rows that this machine must skip.
fn groups(
    options: &ArenaOptions,
    effort: &mut ArenaEffort,
) -> (Vec<Group<ArenaTask>>, Vec<ArenaSkipped>) {
    let mut groups = Vec::new();
    let mut skipped = Vec::new();
    for op in chosen(&options.ops) {
        match op {
            Op::Bump => groups.extend(bump()),
            Op::BumpFull => groups.extend(bump_full()),
            Op::Map => groups.push(map()),
            Op::Populate | Op::Discard => match fit(effort) {
                Ok(()) => {
                    for pages in able(op) {
                        match (pages, limits::thp_missing()) {
                            (Pages::Thp, Some(reason)) => {
                                skipped.push(ArenaSkipped { op, pages: Some(pages), reason })
                            }
                            _ => groups.push(resident(op, pages, effort)),
                        }
                    }
                }
                Err(reason) => skipped.push(ArenaSkipped { op, pages: None, reason }),
            },
        }
    }
    let contenders = chosen(&options.contenders);
    let group = |mut tasks: Vec<ArenaTask>| {
        tasks.retain(|task| contenders.contains(&task.contender));
        let turn = |task: ArenaTask| {
            let bump = matches!(task.op, Op::Bump | Op::BumpFull);
            let reps = if bump { effort.bump_reps } else { effort.page_reps };
            Turn { task, reps, units: task.units(effort) }
        };
        Group { turns: tasks.into_iter().map(turn).collect(), order: Order::Rotated }
    };
    (groups.into_iter().map(group).filter(|group| !group.turns.is_empty()).collect(), skipped)
}

/// Returns the kinds of pages that take part. Hugepages of a pool are not discarded individually:
/// the pool might be empty at the next touch, and the kernel would kill the process.
fn able(op: Op) -> impl Iterator<Item = Pages> {
    Pages::ALL.into_iter().filter(move |&pages| op != Op::Discard || pages != Pages::Huge)
}

fn bump() -> impl Iterator<Item = Vec<ArenaTask>> {
    SIZES.into_iter().flat_map(|size| BUMP_THREADS.map(|threads| (size, threads))).map(
        |(size_bytes, threads)| {
            let able: &[ArenaContenderId] = if threads == 1 {
                &[Kvmem, PublishedArena, Mutex, Bumpalo]
            } else {
                &[Kvmem, PublishedArena, Mutex]
            };
            let task = |&contender| ArenaTask {
                op: Op::Bump,
                pages: None,
                threads: Some(threads),
                size_bytes,
                contender,
            };
            able.iter().map(task).collect()
        },
    )
}

fn bump_full() -> impl Iterator<Item = Vec<ArenaTask>> {
    SIZES.into_iter().map(|size_bytes| {
        let task = |contender| ArenaTask {
            op: Op::BumpFull,
            pages: None,
            threads: Some(1),
            size_bytes,
            contender,
        };
        [Kvmem, PublishedArena, Mutex, Bumpalo].map(task).to_vec()
    })
}

fn map() -> Vec<ArenaTask> {
    vec![ArenaTask {
        op: Op::Map,
        pages: Some(Pages::Thp),
        threads: Some(1),
        size_bytes: MAPPED,
        contender: Kvmem,
    }]
}

fn resident(op: Op, pages: Pages, effort: &ArenaEffort) -> Vec<ArenaTask> {
    let task = |threads, contender| ArenaTask {
        op,
        pages: Some(pages),
        threads,
        size_bytes: effort.populate_bytes,
        contender,
    };
    if op == Op::Discard {
        vec![task(Some(1), Kvmem)]
    } else {
        let ours = POPULATE_THREADS.map(|threads| task(Some(threads), Kvmem));
        let rest = [task(None, KvmemAuto), task(Some(1), MapPopulate), task(Some(1), Touch)];
        [&ours[..], &rest].concat()
    }
}

/// Reduces the populated size to at most half of the available memory.
fn fit(effort: &mut ArenaEffort) -> Result<(), String> {
    let Some(available) = limits::available_bytes() else { return Ok(()) };
    while effort.populate_bytes > available / 2 {
        effort.populate_bytes /= 2;
    }
    if effort.populate_bytes < MIN_POPULATED {
        return Err(format!(
            "{available} bytes of memory are available, and the rows need {}: free memory or \
             raise the group's limit",
            2 * MIN_POPULATED
        ));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_row_is_planned_and_filters_leave_only_what_they_name() {
        let all = ArenaOptions::default();
        let mut effort = ArenaEffort::of(&all);
        let (groups, skipped) = groups(&all, &mut effort);
        let tasks =
            |op| groups.iter().flat_map(Group::tasks).filter(move |task| task.op == op).count();
        // Three contenders, and the fourth with one thread only.
        assert_eq!((tasks(Op::Bump), tasks(Op::BumpFull), tasks(Op::Map)), (2 * (4 + 3 + 3), 8, 1));
        let kinds =
            Pages::ALL.len() - skipped.iter().filter(|skip| skip.op == Op::Populate).count();
        assert_eq!((tasks(Op::Populate), tasks(Op::Discard)), (6 * kinds, kinds - 1));

        let some = ArenaOptions { ops: vec![Op::Bump], contenders: vec![Bumpalo], ..all };
        let (groups, _) = super::groups(&some, &mut effort);
        assert_eq!(groups.len(), 2);
        assert!(groups.iter().all(|group| group.turns.len() == 1));
        assert!(groups.iter().flat_map(Group::tasks).all(|task| task.resident_bytes() == 0));
    }
}
