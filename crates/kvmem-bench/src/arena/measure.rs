//! *Measure*: one task, timed once.

use super::bump::{self, Bump, Bumpalo, KvmemArena, MutexArena, SeedArena};
use super::plan::{Effort, Task};
use super::{ContenderId, MeasureError, Op, Pages, mapping, region};

/// What one measurement saw.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Seen {
    /// Nanoseconds per operation; of `populate` and `discard`, of the whole size.
    pub(super) ns: f64,
    /// Threads that took part.
    pub(super) threads: u32,
    /// Bytes that became resident, where that is asked.
    pub(super) resident_bytes: Option<u64>,
}

/// Runs `task` once.
pub(super) fn measure(task: &Task, effort: &Effort) -> Result<Seen, MeasureError> {
    let threads = task.threads.unwrap_or(1);
    let seen = |ns| Seen { ns, threads, resident_bytes: None };
    let bytes = task.size_bytes as usize;
    let pages = task.pages.unwrap_or(Pages::Base);
    match (task.op, task.contender) {
        (Op::Bump | Op::BumpFull, ContenderId::Kvmem) => {
            shared::<KvmemArena>(task, effort).map(seen)
        }
        (Op::Bump | Op::BumpFull, ContenderId::Seed) => shared::<SeedArena>(task, effort).map(seen),
        (Op::Bump | Op::BumpFull, ContenderId::Mutex) => {
            shared::<MutexArena>(task, effort).map(seen)
        }
        (Op::Bump, ContenderId::Bumpalo) if threads == 1 => {
            bump::alone::<Bumpalo>(bytes, effort.bump_ops).map(seen)
        }
        (Op::BumpFull, ContenderId::Bumpalo) => {
            bump::full::<Bumpalo>(bytes, effort.full_ops).map(seen)
        }
        (Op::Map, ContenderId::Kvmem) => region::map(pages, bytes),
        (Op::Populate, ContenderId::Kvmem | ContenderId::KvmemAuto) => {
            region::populate(pages, bytes, task.threads)
        }
        (Op::Populate, ContenderId::MapPopulate) => {
            Ok(seen(mapping::map_populate(pages, bytes)?.as_nanos() as f64))
        }
        (Op::Populate, ContenderId::Touch) => {
            Ok(seen(mapping::touch(pages, bytes)?.as_nanos() as f64))
        }
        (Op::Discard, ContenderId::Kvmem) => region::discard(pages, bytes),
        _ => Err(MeasureError::NotAble),
    }
}

/// The bump loop of `task` with an arena that threads can share.
fn shared<B: Bump + Sync>(task: &Task, effort: &Effort) -> Result<f64, MeasureError> {
    let size = task.size_bytes as usize;
    match (task.op, task.threads) {
        (Op::BumpFull, _) => {
            // A call that logs takes microseconds.
            let logs = task.contender == ContenderId::Seed;
            bump::full::<B>(size, if logs { effort.full_ops / 50 } else { effort.full_ops })
        }
        (_, Some(threads)) if threads > 1 => bump::together::<B>(size, effort.shared_ops, threads),
        _ => bump::alone::<B>(size, effort.bump_ops),
    }
}
