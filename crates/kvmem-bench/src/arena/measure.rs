//! One task, measured once.

use super::bump::{self, Bump, Bumpalo, KvmemArena, MutexArena, PublishedArena};
use super::plan::{ArenaEffort, ArenaTask};
use super::{ArenaContenderId, ArenaMeasureError, Op, Pages, mapping, region};

/// The result of one measurement.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct ArenaSample {
    /// Nanoseconds per operation; of the whole size for `populate` and `discard`.
    pub(super) ns: f64,
    /// Threads that took part.
    pub(super) threads: u32,
    /// Bytes that became resident, where they are measured.
    pub(super) resident_bytes: Option<u64>,
}

/// Measures `task` once.
pub(super) fn measure(
    task: &ArenaTask,
    effort: &ArenaEffort,
) -> Result<ArenaSample, ArenaMeasureError> {
    let threads = task.threads.unwrap_or(1);
    let seen = |ns| ArenaSample { ns, threads, resident_bytes: None };
    let bytes = task.size_bytes as usize;
    let pages = task.pages.unwrap_or(Pages::Base);
    match (task.op, task.contender) {
        (Op::Bump | Op::BumpFull, ArenaContenderId::Kvmem) => {
            shared::<KvmemArena>(task, effort).map(seen)
        }
        (Op::Bump | Op::BumpFull, ArenaContenderId::PublishedArena) => {
            shared::<PublishedArena>(task, effort).map(seen)
        }
        (Op::Bump | Op::BumpFull, ArenaContenderId::Mutex) => {
            shared::<MutexArena>(task, effort).map(seen)
        }
        (Op::Bump, ArenaContenderId::Bumpalo) if threads == 1 => {
            bump::alone::<Bumpalo>(bytes, effort.bump_ops).map(seen)
        }
        (Op::BumpFull, ArenaContenderId::Bumpalo) => {
            bump::full::<Bumpalo>(bytes, effort.full_ops).map(seen)
        }
        (Op::Map, ArenaContenderId::Kvmem) => region::map(pages, bytes),
        (Op::Populate, ArenaContenderId::Kvmem | ArenaContenderId::KvmemAuto) => {
            region::populate(pages, bytes, task.threads)
        }
        (Op::Populate, ArenaContenderId::MapPopulate) => {
            Ok(seen(mapping::map_populate(pages, bytes)?.as_nanos() as f64))
        }
        (Op::Populate, ArenaContenderId::Touch) => {
            Ok(seen(mapping::touch(pages, bytes)?.as_nanos() as f64))
        }
        (Op::Discard, ArenaContenderId::Kvmem) => region::discard(pages, bytes),
        _ => Err(ArenaMeasureError::Unsupported),
    }
}

/// Runs the bump loop of `task` with an arena that threads can share.
fn shared<B: Bump + Sync>(
    task: &ArenaTask,
    effort: &ArenaEffort,
) -> Result<f64, ArenaMeasureError> {
    let size = task.size_bytes as usize;
    match (task.op, task.threads) {
        (Op::BumpFull, _) => {
            // A call that logs takes about 0.4 µs, so fewer are enough.
            let logs = task.contender == ArenaContenderId::PublishedArena;
            bump::full::<B>(size, if logs { effort.full_ops / 50 } else { effort.full_ops })
        }
        (_, Some(threads)) if threads > 1 => bump::together::<B>(size, effort.shared_ops, threads),
        _ => bump::alone::<B>(size, effort.bump_ops),
    }
}
