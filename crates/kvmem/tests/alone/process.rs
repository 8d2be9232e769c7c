//! Failing system calls of the process arena and of preflight.

use std::path::PathBuf;

use kvmem::arena::preflight::{Machine, Report, Requirements, Verdict};
use kvmem::arena::{
    ArenaSettings, Call, Errno, FreeError, Ladder, ProcessAllocError, ProcessArena, SetupError,
};
use kvmem::fault;

use super::child::{again, passes, role};
use super::{MIB, alone, descriptors, maps};

/// The process arena without a pool: a failed mapping is reported, and a failed unmapping can be
/// repeated.
#[test]
fn mappings_of_the_process_arena_may_fail() {
    let _alone = alone();
    // In a separate process, because threads of other tests make and remove mappings.
    if role().is_none() {
        passes(&mut again("process::mappings_of_the_process_arena_may_fail", "child"));
        return;
    }
    let arena = ProcessArena::new(ArenaSettings::off()).expect("nothing is mapped for it");
    let before = (maps(), descriptors());
    {
        let _plan = fault::fail(Call::MapAnonymous, 1, Errno::ENOMEM);
        let error = arena.allocate(10_000, 64).expect_err("the call fails");
        assert_eq!(
            error,
            ProcessAllocError::Map { requested: 10_000, align: 64, errno: Errno::ENOMEM }
        );
    }
    // The alignment exceeds a page: both cuts may fail, and nothing stays mapped.
    for nth in 1..=3 {
        let plan = fault::fail(Call::Unmap, nth, Errno::ENOMEM);
        let outcome = arena.allocate(10_000, 2 * MIB);
        // The first call is one of the cuts, wherever the kernel put the mapping.
        assert!(nth > 1 || outcome.is_err() && plan.failed() == 1, "{outcome:?}");
        drop(plan);
        if let Ok(bytes) = outcome {
            // SAFETY: the allocation is not used.
            unsafe { arena.free(bytes.cast()) }.expect("a mapping of this arena");
        }
    }
    assert_eq!((maps(), descriptors()), before, "after failed allocations");
    let bytes = arena.allocate(10_000, 64).expect("a little memory");
    {
        let _plan = fault::fail(Call::Unmap, 1, Errno::ENOMEM);
        // SAFETY: the allocation is not used.
        let error = unsafe { arena.free(bytes.cast()) }.expect_err("the call fails");
        assert!(matches!(error, FreeError::Unmap { errno: Errno::ENOMEM, .. }), "{error}");
        let stats = arena.stats();
        assert_eq!(stats.mapped_frees + 1, stats.mapped_allocations);
    }
    // SAFETY: the allocation is not used.
    unsafe { arena.free(bytes.cast()) }.expect("the second time it works");
    assert_eq!((maps(), descriptors()), before, "after a failed free");
    let _plan = fault::fail_all(Call::Reserve, Errno::ENOMEM);
    let error = ProcessArena::new(ArenaSettings::pool(MIB)).expect_err("no pool can be mapped");
    assert!(matches!(error, SetupError::Map { pool_bytes: MIB, .. }), "{error}");
}

/// A file such as engines leave in `/dev/shm`, if there is that folder. Removed when dropped.
struct Leftover(PathBuf);

impl Leftover {
    fn new() -> Leftover {
        let path = PathBuf::from(format!("/dev/shm/psm_kvmem-test-{}", std::process::id()));
        let _ = std::fs::write(&path, b"left");
        Leftover(path)
    }
}

impl Drop for Leftover {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

/// Limits that cannot be read are unknown, never `ok`.
#[test]
fn preflight_without_data_says_so() {
    let _alone = alone();
    let requirements = Requirements::new(1 << 30, Ladder::default()).expect("valid requirements");
    // An engine's file that no process uses: it must not be overlooked if it cannot be examined.
    let _leftover = Leftover::new();
    let names = |report: &Report| {
        report.with(Verdict::Ok).map(|check| check.name.clone()).collect::<Vec<_>>()
    };
    for call in [
        Call::ReadText,
        Call::GetLimit,
        Call::SpaceAt,
        Call::Affinity,
        Call::IoUringSetup,
        Call::Stat,
        Call::ListFolder,
        Call::MapFile,
    ] {
        let healthy = Machine::here().preflight(&requirements);
        let plan = fault::fail_all(call, Errno::EACCES);
        let report = Machine::here().preflight(&requirements);
        assert!(plan.failed() > 0, "{call} is not made");
        let (ok, before) = (names(&report), names(&healthy));
        assert!(
            ok.iter().all(|name| before.contains(name)),
            "{call}: {ok:?} are ok, before {before:?}"
        );
        if call == Call::ReadText {
            assert_eq!(report.tally().fail, 0, "unknown limits do not fail");
            assert!(report.tally().unknown > 10, "{report}");
        }
    }
}
