//! System calls of the process arena and of the preflight made to fail.

use kvmem::arena::preflight::{Machine, Report, Requirements, Verdict};
use kvmem::arena::{
    ArenaSettings, Call, Errno, FreeError, Ladder, ProcessAllocError, ProcessArena, SetupError,
};
use kvmem::fault;

use super::{MIB, again, alone, descriptors, maps, role};

/// The arena of a process, its pool full or off: what a refused mapping says, and that a refused
/// unmapping can be tried again.
#[test]
fn mappings_of_the_process_arena_may_fail() {
    let _alone = alone();
    // In a process of its own: the threads of other tests come and go with mappings of theirs.
    if role().is_none() {
        let child = again("process::mappings_of_the_process_arena_may_fail", "child");
        assert!(child.status.success(), "{}", String::from_utf8_lossy(&child.stdout));
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
    // More than a page of alignment: both cuts may fail, and nothing of the mapping stays.
    for nth in 1..=3 {
        let plan = fault::fail(Call::Unmap, nth, Errno::ENOMEM);
        let outcome = arena.allocate(10_000, 2 * MIB);
        // The first of them is among the cuts, wherever the kernel put the mapping.
        assert!(nth > 1 || outcome.is_err() && plan.failed() == 1, "{outcome:?}");
        drop(plan);
        if let Ok(bytes) = outcome {
            // SAFETY: it is not used.
            unsafe { arena.free(bytes.cast()) }.expect("a mapping of this arena");
        }
    }
    assert_eq!((maps(), descriptors()), before, "after refused allocations");
    let bytes = arena.allocate(10_000, 64).expect("a little memory");
    {
        let _plan = fault::fail(Call::Unmap, 1, Errno::ENOMEM);
        // SAFETY: it is not used.
        let error = unsafe { arena.free(bytes.cast()) }.expect_err("the call fails");
        assert!(matches!(error, FreeError::Unmap { errno: Errno::ENOMEM, .. }), "{error}");
        let stats = arena.stats();
        assert_eq!(stats.mapped_frees + 1, stats.mapped_allocations);
    }
    // SAFETY: it is not used.
    unsafe { arena.free(bytes.cast()) }.expect("the second time it works");
    assert_eq!((maps(), descriptors()), before, "after a refused free");
    let _plan = fault::fail_all(Call::Reserve, Errno::ENOMEM);
    let error = ProcessArena::new(ArenaSettings::pool(MIB)).expect_err("no pool can be mapped");
    assert!(matches!(error, SetupError::Map { pool_bytes: MIB, .. }), "{error}");
}

/// Whatever cannot be asked is unknown, and never said to be well.
#[test]
fn a_preflight_that_is_told_nothing_says_so() {
    let _alone = alone();
    let wish = Requirements::new(1 << 30, Ladder::default()).expect("a good wish");
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
    ] {
        let healthy = Machine::here().preflight(&wish);
        let plan = fault::fail_all(call, Errno::EACCES);
        let report = Machine::here().preflight(&wish);
        assert!(plan.failed() > 0, "{call} is not made");
        let (told, before) = (names(&report), names(&healthy));
        assert!(
            told.iter().all(|name| before.contains(name)),
            "{call}: {told:?} are well, before {before:?}"
        );
        if call == Call::ReadText {
            assert_eq!(report.tally().fail, 0, "what is unknown does not fail");
            assert!(report.tally().unknown > 10, "{report}");
        }
    }
}
