//! Registrars under limits, on pools of hugepages, and with injected failures of system calls.

use std::ops::Range;
use std::os::fd::AsRawFd;
use std::time::{Duration, Instant};

use kvmem::arena::{ArenaError, Call, Errno, Ladder, PageSize, Populate, Region};
use kvmem::fault;
use kvmem::register::{
    Account, IoUring, Key, Mlock, Policy, RegisterError, RegisterLimit, Registrar, RegistrarError,
    RegistrationSet, RingTable,
};

use super::child::{again, passes, role};
use super::fixed::{Worker, rings};
use super::limits::set_limit;
use super::pools::Pool;
use super::{MIB, alone, descriptors};

const PAGE: usize = 4096;

/// Maps resident base pages.
fn base(bytes: usize) -> Region {
    let builder = Region::builder(bytes).ladder(Ladder::only(PageSize::Base));
    builder.populate(Populate::Auto).map().expect("a little memory")
}

/// Returns whether so much may be locked; prints why not.
fn may_lock(bytes: usize) -> bool {
    match Mlock::default().limits().memlock {
        Some(limit) if limit.limit_bytes < limit.used_bytes + bytes as u64 => {
            println!("skipped: RLIMIT_MEMLOCK is {} bytes", limit.limit_bytes);
            false
        }
        _ => true,
    }
}

/// Returns four ranges as large as a hugepage, on its boundaries: the side ring is used for them
/// even if a limit applies.
fn quarters(region: &Region) -> [Range<usize>; 4] {
    let start = (region.base().as_ptr() as usize).next_multiple_of(2 * MIB)
        - region.base().as_ptr() as usize;
    [0, 1, 2, 3].map(|number| start + number * 2 * MIB..start + (number + 1) * 2 * MIB)
}

fn register(
    registrar: &dyn Registrar,
    region: &Region,
    range: Range<usize>,
) -> Result<Key, RegistrarError> {
    assert!(range.start <= range.end && range.end <= region.len());
    // SAFETY: within the region, which every test drops after its keys.
    unsafe { registrar.register(region.base().add(range.start), range.len()) }
}

/// Returns a line of `/proc/self/status` in bytes.
fn status(name: &str) -> usize {
    let text = std::fs::read_to_string("/proc/self/status").expect("our own status");
    let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
    let kib = line.and_then(|line| line.trim().strip_suffix("kB")?.trim().parse::<usize>().ok());
    kib.expect("a figure") << 10
}

/// Returns the bytes that rings have pinned for this process.
fn pinned() -> usize {
    status("VmPin")
}

fn locked() -> usize {
    status("VmLck")
}

/// Waits until the kernel has unpinned pages, which it does a moment later.
fn soon(what: &str, holds: impl Fn() -> bool) {
    let start = Instant::now();
    while !holds() {
        assert!(start.elapsed() < Duration::from_secs(120), "{what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn pages_are_pinned_while_a_key_is_live() {
    let _alone = alone();
    if !rings() {
        return;
    }
    let ring = IoUring::new(0).expect("rings are allowed");
    let (region, before) = (base(4 * MIB), pinned());
    let chunks = |bytes: usize| (0..4 * MIB).step_by(bytes).map(move |start| start..start + bytes);
    for bytes in [4 * MIB, MIB, 64 << 10] {
        let mut keys = Vec::new();
        for chunk in chunks(bytes) {
            keys.push(register(&ring, &region, chunk.clone()).expect("below the limit"));
            assert_eq!(pinned(), before + chunk.end);
        }
        // Every other key, then the rest.
        let (even, odd): (Vec<_>, Vec<_>) =
            keys.iter().enumerate().partition(|(number, _)| number % 2 == 0);
        for (done, (_, key)) in even.into_iter().chain(odd).enumerate() {
            ring.deregister(*key).expect("the key is live");
            assert_eq!(pinned(), before + 4 * MIB - (done + 1) * bytes);
        }
    }
    // Dropping the registrar unpins the rest.
    register(&ring, &region, 0..MIB).expect("below the limit");
    register(&ring, &region, MIB..2 * MIB).expect("below the limit");
    drop(ring);
    assert_eq!(pinned(), before);
}

#[test]
fn an_extended_table_keeps_all_buffers() {
    let _alone = alone();
    if !rings() {
        return;
    }
    let ring = IoUring::new(0).expect("rings are allowed");
    let most = ring.limits().max_keys;
    // More buffers than the table has slots at first, if it can be extended.
    let count = if most > 1024 { 1500 } else { 1000 };
    let (region, before) = (base(count * PAGE), pinned());
    let page = |number: usize| number * PAGE..(number + 1) * PAGE;
    let keys: Vec<Key> = (0..count)
        .map(|number| register(&ring, &region, page(number)).expect("a free slot"))
        .collect();
    assert_eq!((pinned(), ring.limits().max_keys), (before + count * PAGE, most - count as u64));
    for key in &keys {
        ring.deregister(*key).expect("the key is live");
    }
    assert_eq!((pinned(), ring.limits().max_keys), (before, most));
}

#[test]
fn pages_of_a_pool_are_read_and_written_by_their_key() {
    let _alone = alone();
    let _pool = match Pool::with_free(PageSize::Huge2M, 3) {
        Ok(pool) => pool,
        Err(reason) => return println!("skipped: {reason}"),
    };
    let region =
        Region::builder(6 * MIB).ladder(Ladder::only(PageSize::Huge2M)).map().expect("three pages");
    for table in [RingTable::New(8), RingTable::Existing(0..8)] {
        let Some(mut worker) = Worker::new() else { return };
        if let RingTable::Existing(_) = table {
            worker.ring.submitter().register_buffers_sparse(8).expect("a table");
        }
        let ring = worker.adopt(table).expect("the ring accepts the table");
        let before = pinned();
        for chunk in [0..2 * MIB, 2 * MIB..6 * MIB, 0..6 * MIB, MIB..3 * MIB, 6 * MIB - 1..6 * MIB]
        {
            let key = register(&ring, &region, chunk.clone()).expect("below the limit");
            // Hugepages are charged as a whole.
            let whole = chunk.start / (2 * MIB) * 2 * MIB..chunk.end.next_multiple_of(2 * MIB);
            assert_eq!(pinned(), before + whole.len());
            // SAFETY: within the region.
            let at = |offset: usize| unsafe { region.base().add(offset) };
            worker.prove(key, at(chunk.start), chunk.len());
            worker.prove(key, at(chunk.end - 1), 1);
            ring.deregister(key).expect("the key is live");
            worker.assert_unusable(key, at(chunk.start), chunk.len());
            assert_eq!(pinned(), before);
        }
    }
}

/// Drops `CAP_IPC_LOCK` in this thread; the limit applies to it then.
fn drop_privilege() {
    #[repr(C)]
    struct Header {
        version: u32,
        pid: i32,
    }
    let header = Header { version: 0x2008_0522, pid: 0 };
    let mut sets = [[0u32; 3]; 2];
    // SAFETY: the header is of version 3, whose output is two groups of three words.
    assert_eq!(unsafe { libc::syscall(libc::SYS_capget, &raw const header, sets.as_mut_ptr()) }, 0);
    // Effective and permitted.
    sets[0][0] &= !(1 << 14);
    sets[0][1] &= !(1 << 14);
    // SAFETY: the header is of version 3, whose input is two groups of three words.
    assert_eq!(unsafe { libc::syscall(libc::SYS_capset, &raw const header, sets.as_ptr()) }, 0);
}

/// Runs a test in its own process; returns whether this is that process.
fn in_a_child(test: &str) -> bool {
    let is_child = role().is_some();
    if !is_child {
        passes(&mut again(&format!("register::{test}"), "child"));
    }
    is_child
}

#[test]
fn rings_name_the_limit_that_they_hit() {
    let _alone = alone();
    if !in_a_child("rings_name_the_limit_that_they_hit") || !rings() {
        return;
    }
    let region = base(10 * MIB);
    // The kernel decides at the creation of a ring whether the limit applies to it.
    let free = IoUring::new(7).expect("rings are allowed");
    drop_privilege();
    let ring = IoUring::new(0).expect("rings are allowed");
    // A buffer that is charged too much in the side ring may still fit into the table itself.
    if ring.limits().max_keys > 1024 {
        let [quarter, ..] = quarters(&region);
        let plan = fault::fail(Call::RingFill, 1, Errno::ENOMEM);
        let key = register(&ring, &region, quarter).expect("in the table itself");
        assert_eq!(
            (plan.failed(), plan.made(Call::RingFill), plan.made(Call::RingClone)),
            (1, 2, 0)
        );
        ring.deregister(key).expect("the key is live");
    }
    // This much is allowed even if other rings of the user have pinned memory.
    let (small, large) = (64 << 10, 4 * MIB);
    let kept = register(&ring, &region, 0..small).expect("little");
    set_limit(libc::RLIMIT_MEMLOCK, 2 << 20);
    let before = pinned();
    let limit = ring.limits().memlock.expect("a limit applies");
    assert_eq!(
        (limit.account, limit.limit_bytes, limit.used_bytes),
        (Account::Rings, 2 << 20, small as u64)
    );
    for range in [0..large, small..small + large, 1..large] {
        let need_bytes = range.len() as u64;
        let error = register(&ring, &region, range).expect_err("more than the limit");
        let (account, used_bytes) = (Account::Rings, small as u64);
        let exceeded =
            RegisterLimit::Memlock { account, limit_bytes: 2 << 20, used_bytes, need_bytes };
        assert_eq!(
            (error.errno, error.exceeded.as_ref()),
            (Errno::ENOMEM, Some(&exceeded)),
            "{error}"
        );
        let text = error.to_string();
        let kib = (need_bytes + used_bytes).div_ceil(1024);
        for word in [
            "RLIMIT_MEMLOCK is 2097152 bytes",
            &format!("raise it to {kib} KiB"),
            "CAP_IPC_LOCK",
            "ulimit -l",
        ] {
            assert!(text.contains(word), "{word}: {text}");
        }
        assert_eq!(pinned(), before, "nothing stays pinned");
    }
    ring.deregister(kept).expect("the key is live");
    let used = || ring.limits().memlock.expect("a limit applies").used_bytes;
    assert_eq!(used(), 0);
    let key = register(&ring, &region, 0..MIB).expect("below the limit");
    assert_eq!(used(), 1 << 20);
    ring.deregister(key).expect("the key is live");
    {
        // The limit is for all rings together, and a dropped ring is not charged any more.
        let other = IoUring::new(2).expect("rings are allowed");
        register(&other, &region, 0..MIB).expect("below the limit");
        assert_eq!(used(), 1 << 20);
    }
    assert_eq!(used(), 0);
    if free.limits().memlock.is_some() {
        return println!("skipped in part: the process had no CAP_IPC_LOCK to begin with");
    }
    let key = register(&free, &region, 0..8 * MIB).expect("no limit applies to it");
    assert_eq!(pinned(), before - small + 8 * MIB);
    free.deregister(key).expect("the key is live");
    // Not even a ring can be created.
    set_limit(libc::RLIMIT_MEMLOCK, 0);
    if let Err(why) = IoUring::new(1) {
        let text = why.to_string();
        assert!(text.contains("RLIMIT_MEMLOCK is 0 bytes") && text.contains("ulimit -l"), "{text}");
    }
}

#[test]
fn locks_name_the_limit_that_they_hit() {
    let _alone = alone();
    if !in_a_child("locks_name_the_limit_that_they_hit") || !may_lock(2 * MIB) {
        return;
    }
    drop_privilege();
    let (region, before) = (base(4 * MIB), locked());
    let (mlock, small, large) = (Mlock::default(), 64 << 10, 2 * MIB);
    set_limit(libc::RLIMIT_MEMLOCK, (before + MIB) as u64);
    let limit_bytes = (before + MIB) as u64;
    let kept = register(&mlock, &region, 0..small).expect("below the limit");
    let limit = mlock.limits().memlock.expect("a limit applies");
    assert_eq!(
        (limit.account, limit.limit_bytes, limit.used_bytes),
        (Account::Locked, limit_bytes, (before + small) as u64)
    );
    let error = register(&mlock, &region, 0..large).expect_err("more than the limit");
    let exceeded = RegisterLimit::Memlock {
        account: Account::Locked,
        limit_bytes,
        used_bytes: (before + small) as u64,
        // The rest is already locked.
        need_bytes: (large - small) as u64,
    };
    assert_eq!((error.errno, error.exceeded.as_ref()), (Errno::ENOMEM, Some(&exceeded)), "{error}");
    assert!(error.to_string().contains("raise it to"), "{error}");
    assert_eq!(locked(), before + small, "exactly the earlier lock stays");
    // Pages that are already locked are charged once.
    let again = register(&mlock, &region, 0..MIB).expect("exactly the limit");
    mlock.deregister(again).expect("the key is live");
    assert_eq!(locked(), before + small);
    mlock.deregister(kept).expect("the key is live");
    assert_eq!(locked(), before);
    Mlock::available().expect("a page may be locked");
    set_limit(libc::RLIMIT_MEMLOCK, 0);
    let error = register(&mlock, &region, 0..PAGE).expect_err("nothing may be locked");
    assert_eq!(error.errno, Errno::EPERM);
    assert!(
        matches!(error.exceeded, Some(RegisterLimit::Memlock { limit_bytes: 0, .. })),
        "{error}"
    );
    let why = Mlock::available().expect_err("nothing may be locked");
    assert!(why.to_string().contains("RLIMIT_MEMLOCK is 0 bytes"), "{why}");
}

#[test]
fn a_lack_of_descriptors_is_handled_or_named() {
    let _alone = alone();
    if !in_a_child("a_lack_of_descriptors_is_handled_or_named") || !rings() {
        return;
    }
    // The lowest free number.
    let next =
        std::fs::File::open("/dev/null").expect("a device of every machine").as_raw_fd() as u64;
    set_limit(libc::RLIMIT_NOFILE, next);
    let why = IoUring::new(0).expect_err("no free descriptor").to_string();
    assert!(why.contains("EMFILE") && why.contains("RLIMIT_NOFILE"), "{why}");
    // Enough for a ring, but not for its side ring: slower, but correct.
    set_limit(libc::RLIMIT_NOFILE, next + 1);
    let ring = IoUring::new(0).expect("one free descriptor");
    set_limit(libc::RLIMIT_NOFILE, next + 100);
    assert_eq!(ring.limits().max_keys, 1024);
    let (region, before) = (base(MIB), pinned());
    let key = register(&ring, &region, 0..MIB).expect("below the limit");
    assert_eq!(pinned(), before + MIB);
    ring.deregister(key).expect("the key is live");
    assert_eq!(pinned(), before);
}

const ERRNOS: [Errno; 9] = [
    Errno::EPERM,
    Errno::ENOMEM,
    Errno::EINVAL,
    Errno::EMFILE,
    Errno::ENOSYS,
    Errno::EFAULT,
    Errno::EBUSY,
    Errno::EOPNOTSUPP,
    Errno::EEXIST,
];

#[test]
fn a_failure_of_any_call_of_a_ring_leaks_nothing() {
    let _alone = alone();
    if !rings() {
        return;
    }
    let (region, before) = (base(10 * MIB), (descriptors(), pinned()));
    let quarters = quarters(&region);
    let calls =
        [Call::IoUringSetup, Call::RingTable, Call::RingClone, Call::RingFill, Call::RingEmpty];
    let mut failed = 0;
    for call in calls {
        for errno in ERRNOS {
            // Up to the first fault that no call meets.
            for nth in 1.. {
                let plan = fault::fail(call, nth, errno);
                let mut text = Vec::new();
                match IoUring::new(0) {
                    Err(why) => text.push(why.to_string()),
                    Ok(ring) => {
                        let free = ring.limits().max_keys;
                        for quarter in &quarters {
                            match register(&ring, &region, quarter.clone()) {
                                Ok(key) => {
                                    if let Err(error) = ring.deregister(key) {
                                        text.push(error.to_string());
                                        ring.deregister(key).expect("the key is still live");
                                    }
                                }
                                Err(error) => {
                                    assert_eq!(error.errno, errno);
                                    text.push(error.to_string());
                                }
                            }
                        }
                        // Without the side ring there are fewer slots, but no slot is lost.
                        let left = ring.limits().max_keys;
                        assert!(
                            left == free || left == 1024,
                            "{call} {nth}, {errno}: {left} of {free}"
                        );
                        soon("all is let go of", || pinned() == before.1);
                        if plan.failed() == 1 {
                            let key = register(&ring, &region, quarters[0].clone())
                                .expect("no faults remain");
                            assert_eq!(pinned(), before.1 + 2 * MIB);
                            ring.deregister(key).expect("the key is live");
                        }
                    }
                }
                assert!(text.len() <= 1, "{text:?}");
                assert!(text.iter().all(|text| text.contains(&errno.to_string())), "{text:?}");
                if plan.failed() == 0 {
                    assert!(text.is_empty(), "{text:?}");
                    assert!(nth > 1, "{call} is called more than once");
                    break;
                }
                failed += 1;
                soon("rings are closed", || descriptors() == before.0);
                assert_eq!(pinned(), before.1, "{call} {nth}, {errno}");
            }
        }
    }
    println!("{failed} failures");
}

#[test]
fn an_adopted_ring_stays_usable_when_calls_fail() {
    let _alone = alone();
    let Some(mut worker) = Worker::new() else { return };
    let (region, before) = (base(4 * PAGE), descriptors());
    for (call, table) in [
        (Call::RingTable, RingTable::New(4)),
        (Call::RingEmpty, RingTable::Existing(0..4)),
        (Call::RingFill, RingTable::New(4)),
    ] {
        for errno in ERRNOS {
            let plan = fault::fail(call, 1, errno);
            match worker.adopt(table.clone()) {
                Err(error) => {
                    assert_eq!(
                        (error.errno, error.call.as_ref()),
                        (errno, call.to_string().as_str())
                    );
                }
                Ok(ring) => {
                    let error = register(&ring, &region, 0..PAGE).expect_err("the first fails");
                    assert_eq!(error.errno, errno);
                    let key = register(&ring, &region, 0..PAGE).expect("the second does not");
                    worker.prove(key, region.base(), PAGE);
                    drop(ring);
                    worker.ring.submitter().unregister_buffers().expect("it has a table");
                }
            }
            assert_eq!(plan.failed(), 1);
            drop(plan);
            assert_eq!(descriptors(), before);
        }
    }
}

#[test]
fn a_side_ring_that_cannot_be_emptied_is_closed() {
    let _alone = alone();
    if !rings() {
        return;
    }
    let (region, before) = (base(10 * MIB), pinned());
    let [quarter, ..] = quarters(&region);
    let ring = IoUring::new(0).expect("rings are allowed");
    if ring.limits().max_keys == 1024 {
        return println!("skipped: the kernel cannot clone buffers");
    }
    // The side ring cannot be emptied, and no other can be created: from then on there is none.
    let plan =
        fault::fail(Call::RingEmpty, 1, Errno::EIO).and(Call::IoUringSetup, 1, 1, Errno::EMFILE);
    let key = register(&ring, &region, quarter.clone()).expect("cloned into the table");
    assert_eq!((plan.failed(), ring.limits().max_keys), (2, 1023));
    drop(plan);
    soon("it is closed", || pinned() == before + 2 * MIB);
    ring.deregister(key).expect("the key is live");
    soon("it is closed", || pinned() == before);
    let key = register(&ring, &region, quarter.clone()).expect("in the table itself");
    ring.deregister(key).expect("the key is live");
    assert_eq!((pinned(), ring.limits().max_keys), (before, 1024));
}

#[test]
fn interrupted_calls_are_repeated() {
    let _alone = alone();
    let region = base(10 * MIB);
    let mlock = Mlock::default();
    if may_lock(PAGE) {
        let plan = fault::count().and(Call::Lock, 1, 5, Errno::EINTR).and(
            Call::Unlock,
            1,
            5,
            Errno::EINTR,
        );
        let key = register(&mlock, &region, 0..PAGE).expect("after the interruptions");
        mlock.deregister(key).expect("after the interruptions");
        assert_eq!(plan.failed(), 10);
    }
    if !rings() {
        return;
    }
    let calls =
        [Call::IoUringSetup, Call::RingTable, Call::RingClone, Call::RingFill, Call::RingEmpty];
    for call in calls {
        let plan = fault::count().and(call, 1, 5, Errno::EINTR);
        let ring = IoUring::new(0).expect("after the interruptions");
        let [quarter, ..] = quarters(&region);
        let key = register(&ring, &region, quarter).expect("after the interruptions");
        ring.deregister(key).expect("after the interruptions");
        assert_eq!(plan.failed(), 5, "{call}");
    }
}

#[test]
fn failed_locks_leave_no_pages_locked() {
    let _alone = alone();
    if !may_lock(6 * PAGE) {
        return;
    }
    let (region, before) = (base(8 * PAGE), locked());
    let mlock = Mlock::default();
    for errno in ERRNOS.into_iter().chain([Errno::EAGAIN]) {
        {
            let plan = fault::fail(Call::Lock, 1, errno);
            let error = register(&mlock, &region, 0..4 * PAGE).expect_err("the call fails");
            assert_eq!((error.errno, error.call.as_ref(), plan.failed()), (errno, "mlock", 1));
            assert_eq!(locked(), before);
        }
        // A key whose pages cannot be unlocked stays live, and so do the others.
        let one = register(&mlock, &region, 0..4 * PAGE).expect("below the limit");
        let two = register(&mlock, &region, 2 * PAGE..6 * PAGE).expect("below the limit");
        {
            let _plan = fault::fail(Call::Unlock, 1, errno);
            let error = mlock.deregister(one).expect_err("the call fails");
            assert_eq!((error.errno, error.call.as_ref()), (errno, "munlock"));
        }
        assert_eq!(locked(), before + 6 * PAGE);
        mlock.deregister(two).expect("the key is live");
        assert_eq!(locked(), before + 4 * PAGE);
        mlock.deregister(one).expect("the key is still live");
        assert_eq!(locked(), before);
        assert_eq!(mlock.deregister(one).expect_err("deregistered before").errno, Errno::ENOENT);
    }
}

#[test]
fn a_limit_that_is_too_small_is_reported_before_a_page_is_touched() {
    let _alone = alone();
    if !in_a_child("a_limit_that_is_too_small_is_reported_before_a_page_is_touched") || !rings() {
        return;
    }
    drop_privilege();
    set_limit(libc::RLIMIT_MEMLOCK, 8 << 20);
    let rings = || {
        let rings = (0..2).map(|index| IoUring::new(index).expect("rings are allowed"));
        rings.fold(RegistrationSet::builder(), |builder, ring| builder.registrar(ring))
    };
    let untouched = |mib: usize| {
        let builder = Region::builder(mib * MIB).ladder(Ladder::only(PageSize::Base));
        std::sync::Arc::new(builder.map().expect("addresses"))
    };
    let region = untouched(6);
    let error = rings().register(std::sync::Arc::clone(&region)).unwrap_err();
    let RegisterError::Limited { device, .. } = &error else { panic!("{error}") };
    assert_eq!(device, "io_uring:0, io_uring:1");
    let text = error.to_string();
    for word in [
        "RLIMIT_MEMLOCK is 8388608 bytes",
        "12582912 more",
        "12288 KiB",
        "ulimit -l",
        "CAP_IPC_LOCK",
    ] {
        assert!(text.contains(word), "{word}: {text}");
    }
    assert_eq!(region.residency(..).expect("the kernel reports residency").resident_bytes, 0);
    // A little less suffices for both rings.
    let set = rings().register(untouched(3)).expect("6 MiB of 8");
    drop(set);
    // The memory pinned by other rings of the user is unknown. Then a call fails half of the way,
    // and everything is deregistered.
    let before = pinned();
    let other_ring = IoUring::new(9).expect("rings are allowed");
    let kept = base(2 * MIB);
    let key = register(&other_ring, &kept, 0..2 * MIB).expect("below the limit");
    std::mem::forget(other_ring);
    let plan = fault::fail_all(Call::GetLimit, Errno::EPERM);
    let error = rings().chunk_bytes(1 << 20).register(untouched(4)).unwrap_err();
    drop(plan);
    let RegisterError::ChunkFailed { error, kept } = &error else { panic!("{error}") };
    assert_eq!((error.cause.errno, kept.len(), key.rkey), (Errno::ENOMEM, 0, None));
    assert_eq!(pinned(), before + 2 * MIB, "only the other ring's memory");
}

#[test]
fn registering_needs_no_second_thread() {
    let _alone = alone();
    if !rings() || !may_lock(0) {
        return;
    }
    let rings = || (0..3).map(|index| IoUring::new(index).expect("rings are allowed"));
    let builder = rings().fold(RegistrationSet::builder(), |builder, ring| builder.registrar(ring));
    let builder = builder.policy(Policy::all_at_once()).chunk_bytes(1 << 20);
    let region = std::sync::Arc::new(base(2 * MIB));
    let plan = fault::fail_all(Call::Spawn, Errno::EAGAIN);
    let set = builder.register(std::sync::Arc::clone(&region)).expect("one thread suffices");
    assert!(plan.failed() > 0);
    assert_eq!((set.outcome().threads, set.outcome().keys), (1, 6), "{}", set.outcome());
    drop(set);
    let error = builder.register_in_background(region).unwrap_err();
    assert_eq!(error, RegisterError::NoThread { errno: Errno::EAGAIN });
}

#[test]
fn memory_that_cannot_be_populated_is_an_error() {
    let _alone = alone();
    if !rings() {
        return;
    }
    let before = pinned();
    let builder = RegistrationSet::builder().registrar(IoUring::new(0).expect("rings are allowed"));
    let region =
        Region::builder(4 * MIB).ladder(Ladder::only(PageSize::Base)).map().expect("addresses");
    let region = std::sync::Arc::new(region);
    let plan = fault::fail_all(Call::PopulateWrite, Errno::EHWPOISON);
    let error = builder.register(std::sync::Arc::clone(&region)).unwrap_err();
    assert!(plan.failed() > 0);
    drop(plan);
    let text = error.to_string();
    assert!(
        matches!(error, RegisterError::Populate(_)) && text.contains("hardware memory error"),
        "{text}"
    );
    // Even if nothing is populated beforehand, the limits that trigger the OOM killer are checked.
    let huge =
        Region::builder(1 << 44).ladder(Ladder::only(PageSize::Base)).map().expect("addresses");
    let error =
        builder.clone().policy(Policy::Sequential).chunk_bytes(1 << 30).register(huge).unwrap_err();
    // A ring with too few slots is reported before the first call.
    let early =
        matches!(&error, RegisterError::Limited { exceeded: RegisterLimit::Keys { .. }, .. });
    assert!(
        early || matches!(&error, RegisterError::Populate(ArenaError::NoHeadroom { .. })),
        "{error}"
    );
    assert_eq!(pinned(), before);
    // The region is unchanged.
    builder.register(region).expect("no faults remain");
}
