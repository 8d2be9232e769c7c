//! Every system call made to fail: nothing leaks, nothing hangs, and what is said is so.

use std::os::fd::AsFd;
use std::ptr::NonNull;

use super::pools::Pool;
use super::{MIB, alone, descriptors, maps};
use kvmem::arena::{
    Advice, ArenaError, Backing, Call, Errno, Ladder, Method, Numa, PageSize, Populate,
    ProgressOptions, Region,
};
use kvmem::fault;

const SIZE: usize = 5 * MIB + 1;

/// What is true of every region that was mapped.
fn check(region: &Region) {
    let receipt = region.receipt();
    let mut end = 0;
    for part in &receipt.ranges {
        assert_eq!(part.range.start, end);
        end = part.range.end;
        assert!(part.resident_bytes <= part.range.len() as u64);
        assert!(part.resident_bytes + part.resident_error_bytes <= 2 * part.range.len() as u64);
    }
    assert_eq!((end, receipt.usable_bytes), (region.len(), region.len()));
    assert!(region.len() >= receipt.requested_bytes && receipt.mapped_bytes >= region.len());
    // All of it can be used.
    // SAFETY: nobody else knows of this memory.
    let bytes = unsafe { region.slice(..).expect("all of it").as_mut_bytes() };
    for at in (0..bytes.len()).step_by(4096) {
        bytes[at] = 1;
    }
}

/// A policy, where policies may be set.
fn policy(numa: Numa) -> Numa {
    let tried = Region::builder(1).ladder(PageSize::Base).numa(numa.clone()).map();
    if matches!(tried, Err(ArenaError::PolicyRefused { .. })) { Numa::None } else { numa }
}

fn private(numa: Numa) -> Result<(), ArenaError> {
    let region = Region::builder(SIZE)
        .ladder(Ladder::new([PageSize::Huge2M, PageSize::Thp, PageSize::Base]))
        .guard_pages(true)
        .numa(numa)
        .populate(Populate::threads(2))
        .map()?;
    check(&region);
    region.residency(..)?;
    let (left, right) = region.split_at(4 * MIB)?;
    right.advise(.., Advice::Normal)?;
    right.discard(..)?;
    right.populate(.., Populate::Auto, &ProgressOptions::new())?;
    check_part(&left);
    Ok(())
}

fn check_part(region: &Region) {
    assert!(!region.slice(..).expect("all of it").is_empty());
}

fn shared(numa: Numa) -> Result<(), ArenaError> {
    let region = Region::builder(SIZE)
        .ladder(Ladder::new([PageSize::Huge2M, PageSize::Thp, PageSize::Base]))
        .backing(Backing::Shared)
        .numa(numa)
        .map()?;
    check(&region);
    let fd = region.share()?.expect("shared memory has one");
    let attached = Region::attach(fd, Some(region.len()))?;
    check(&attached);
    Ok(())
}

/// Hugepages that faults need not make.
fn populated(numa: Numa) -> Result<(), ArenaError> {
    let region = Region::builder(SIZE)
        .ladder(Ladder::new([PageSize::Thp, PageSize::Base]))
        .backing(Backing::Shared)
        .numa(numa)
        .populate(Populate::threads(2))
        .map()?;
    check(&region);
    // Whatever kind of pages it came to be.
    assert_eq!(region.receipt().resident_bytes(), region.len() as u64);
    Ok(())
}

fn strict(_: Numa) -> Result<(), ArenaError> {
    let region =
        Region::builder(SIZE).ladder(Ladder::only(PageSize::Thp)).populate(Populate::Auto).map()?;
    check(&region);
    assert_eq!(region.receipt().bytes_on(PageSize::Thp), region.len());
    Ok(())
}

fn foreign(_: Numa) -> Result<(), ArenaError> {
    let mut bytes = vec![0u8; 100_000];
    let at = NonNull::new(bytes.as_mut_ptr()).expect("a vector's address");
    // SAFETY: the vector is not touched until the region drops it.
    let region = unsafe { Region::from_raw(at, bytes.len(), bytes) }?;
    region.populate(.., Populate::threads(1), &ProgressOptions::new())?;
    region.is_resident(..)?;
    Ok(())
}

/// Waits until what threads leave behind is gone, then compares.
pub(super) fn assert_clean(before: &(Vec<String>, usize), what: &str) {
    let now = (maps(), descriptors());
    if now == *before {
        return;
    }
    let new: Vec<_> = now.0.iter().filter(|line| !before.0.contains(line)).collect();
    let gone: Vec<_> = before.0.iter().filter(|line| !now.0.contains(line)).collect();
    panic!("{what}: {} descriptors, then {}; new {new:#?}, gone {gone:#?}", before.1, now.1);
}

type Scenario<'a> = (&'static str, fn(Numa) -> Result<(), ArenaError>, &'a Numa);

#[test]
fn any_call_may_fail_and_nothing_leaks() {
    let _alone = alone();
    // Where we may, so that those calls are among them.
    let _pool = Pool::with_free(PageSize::Huge2M, 6).inspect_err(|reason| {
        println!("no hugepages, so their calls are not among those that fail: {reason}")
    });
    let bind = policy(Numa::Bind(vec![0]));
    let interleave = policy(Numa::Interleave(vec![0]));
    let scenarios: [Scenario<'_>; 5] = [
        ("private", private, &bind),
        ("shared", shared, &interleave),
        ("populated", populated, &bind),
        ("strict", strict, &bind),
        ("foreign", foreign, &bind),
    ];
    // Until the allocator's and the threads' own mappings stay the same.
    for _ in 0..10 {
        for (_, scenario, numa) in scenarios {
            let _ = scenario(numa.clone());
        }
    }
    let (mut tried, mut failed) = (0, 0);
    for (name, scenario, numa) in scenarios {
        let scenario = || scenario(numa.clone());
        let counted = fault::count();
        let outcome = scenario();
        let made: Vec<(Call, u64)> =
            Call::ALL.iter().map(|call| (*call, counted.made(*call))).collect();
        drop(counted);
        println!("{name}: {outcome:?}; {made:?}");
        let before = (maps(), descriptors());
        drop(scenario());
        assert_clean(&before, name);
        for (call, times) in made {
            for nth in (1..=times.min(12)).chain([times].into_iter().filter(|times| *times > 12)) {
                for errno in [Errno::ENOMEM, Errno::EPERM, Errno::EINVAL, Errno::EHWPOISON] {
                    let what = format!("{name}: call {nth} of {call} fails with {errno:?}");
                    let guard = fault::fail(call, nth, errno);
                    // An error or none: either way it says so itself, and `check` looks at the
                    // rest.
                    let outcome = scenario();
                    assert!(guard.failed() <= 1, "{what}");
                    failed += guard.failed();
                    drop(guard);
                    if let Err(error) = &outcome {
                        assert!(!error.to_string().is_empty());
                    }
                    assert_clean(&before, &what);
                    tried += 1;
                }
            }
            // And all of that kind, from now on.
            if times > 0 && call != Call::Unmap {
                let guard = fault::fail_all(call, Errno::ENOMEM);
                let _ = scenario();
                drop(guard);
                assert_clean(&before, &format!("{name}: every {call} fails"));
            }
        }
    }
    println!("{tried} plans, {failed} calls failed");
    // The kernel may have fewer hugepages the second time, and then other calls are made.
    assert!(failed > 200 && failed * 10 > tried * 9, "{tried} plans, {failed} calls failed");
}

#[test]
fn refusals_name_the_call_and_the_reason() {
    let _alone = alone();
    let map = || Region::builder(MIB).ladder(PageSize::Base).populate(Populate::threads(1)).map();
    for call in [Call::Reserve, Call::Protect] {
        let _guard = fault::fail(call, 1, Errno::ENOMEM);
        let error = map().expect_err("made to fail");
        assert!(
            matches!(error, ArenaError::Refused { call: told, errno: Errno::ENOMEM, .. } if told == call),
            "{error}"
        );
    }
    for (errno, word) in
        [(Errno::ENOMEM, "ask for less"), (Errno::EHWPOISON, "broken"), (Errno::EFAULT, "deadly")]
    {
        // The first is the question whether the kernel knows the request.
        let _guard = fault::fail(Call::PopulateWrite, 2, errno);
        let error = map().expect_err("made to fail");
        let ArenaError::Populate { range, call: Call::PopulateWrite, errno: told, .. } = &error
        else {
            panic!("{error}")
        };
        assert_eq!((range.clone(), *told), (0..MIB, errno));
        assert!(error.to_string().contains(word), "{error}");
    }
    for call in [Call::Bind, Call::GetPolicy] {
        let _guard = fault::fail_all(call, Errno::EPERM);
        let error = Region::builder(MIB)
            .ladder(PageSize::Base)
            .numa(Numa::Bind(vec![0]))
            .map()
            .expect_err("refused");
        assert!(
            matches!(&error, ArenaError::PolicyRefused { call: told, .. } if *told == call),
            "{error}"
        );
        assert!(error.to_string().contains("seccomp"), "{error}");
    }
}

#[test]
fn interruptions_are_no_errors() {
    let _alone = alone();
    for errno in [Errno::EINTR, Errno::EAGAIN] {
        let guard = fault::count().and(Call::PopulateWrite, 2, 5, errno);
        let region = Region::builder(MIB)
            .ladder(PageSize::Base)
            .populate(Populate::Auto)
            .map()
            .expect("in the end");
        assert_eq!(guard.failed(), 5);
        assert_eq!(region.receipt().resident_bytes(), 1 << 20);
    }
}

#[test]
fn threads_that_cannot_be_had_are_done_without() {
    let _alone = alone();
    let _guard = fault::fail_all(Call::Spawn, Errno::EAGAIN);
    let region = Region::builder(40 * MIB)
        .ladder(PageSize::Base)
        .populate(Populate::threads(2))
        .map()
        .expect("alone");
    assert_eq!((region.receipt().threads, region.receipt().resident_bytes()), (1, 40 << 20));
}

#[test]
fn kernels_that_cannot_populate_are_touched_without_harm() {
    let _alone = alone();
    let _guard = fault::fail_all(Call::PopulateWrite, Errno::EINVAL);
    for shared in [false, true] {
        let region = Region::builder(6 * MIB + 1)
            .ladder(Ladder::new([PageSize::Thp, PageSize::Base]))
            .memfd(shared)
            .populate(Populate::threads(2))
            .map()
            .expect("by touching");
        assert_eq!(region.receipt().resident_bytes(), region.len() as u64);
        // What is there stays as it is, while another thread writes.
        let address = region.base();
        // SAFETY: an aligned word that lives as long as the region, and is only used as an atomic.
        let word = unsafe { std::sync::atomic::AtomicU32::from_ptr(address.as_ptr().cast()) };
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for _ in 0..100_000 {
                    // Relaxed: only the sum matters, and it is read after the thread has ended.
                    word.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
                }
            });
            for _ in 0..50 {
                region
                    .populate(..4096, Populate::threads(1), &ProgressOptions::new())
                    .expect("it is there");
            }
        });
        // Relaxed: see above.
        assert_eq!(word.load(std::sync::atomic::Ordering::Relaxed), 100_000);
    }
    // What cannot be written to is an error there too, and no signal.
    // SAFETY: the kernel chooses the address.
    let at = unsafe {
        libc::mmap(
            std::ptr::null_mut(),
            4096,
            libc::PROT_READ,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
            -1,
            0,
        )
    };
    let at = NonNull::new(at.cast::<u8>()).expect("an address");
    // SAFETY: it is only asked about and populated, and stays mapped.
    let region = unsafe { Region::from_raw(at, 4096, ()) }.expect("a page");
    let error =
        region.populate(.., Populate::threads(1), &ProgressOptions::new()).expect_err("read-only");
    assert!(
        matches!(error, ArenaError::Populate { call: Call::Touch, errno: Errno::EFAULT, .. }),
        "{error}"
    );
}

#[test]
fn residency_is_the_same_by_every_way_of_asking() {
    let _alone = alone();
    let region = Region::builder(4 * MIB).ladder(PageSize::Base).map().expect("little memory");
    region
        .populate(MIB..2 * MIB, Populate::threads(1), &ProgressOptions::new())
        .expect("little memory");
    let ask = || region.residency(..).expect("one way is left");
    let mut methods = vec![ask()];
    {
        let _guard = fault::fail_all(Call::PagemapScan, Errno::ENOTTY);
        let found = ask();
        assert_eq!(found.method, Method::Pagemap);
        methods.push(found);
        // Half of an answer is none.
        let _guard = _guard.and(Call::Pread, 1, u64::MAX, Errno::EPERM);
        assert_eq!(ask().method, Method::Mincore);
    }
    {
        let guard = fault::fail_all(Call::OpenPagemap, Errno::EACCES);
        let found = ask();
        assert_eq!(found.method, Method::Mincore);
        methods.push(found);
        let _guard = guard.and(Call::Mincore, 1, u64::MAX, Errno::EPERM);
        let error = region.residency(..).expect_err("no way is left");
        assert!(matches!(error, ArenaError::Refused { call: Call::Mincore, .. }), "{error}");
    }
    for found in methods {
        assert_eq!((found.resident_bytes, found.error_bytes), (1 << 20, 0), "{found:?}");
    }
}

#[test]
fn a_receipt_that_knows_nothing_says_so() {
    let _alone = alone();
    let _guard = fault::fail_all(Call::OpenPagemap, Errno::EACCES)
        .and(Call::Mincore, 1, u64::MAX, Errno::EPERM)
        .and(Call::NodesOf, 1, u64::MAX, Errno::EPERM);
    let region = Region::builder(MIB)
        .ladder(PageSize::Base)
        .populate(Populate::Auto)
        .map()
        .expect("little memory");
    let [part] = &region.receipt().ranges[..] else { panic!("{}", region.receipt()) };
    assert_eq!((part.resident_bytes, part.resident_error_bytes), (0, 1 << 20));
    assert!(part.nodes.0.is_empty() && part.huge_bytes.is_none());
}

#[test]
fn a_tebibyte_costs_less_than_a_mebibyte() {
    let _alone = alone();
    let resident = || {
        let text = std::fs::read_to_string("/proc/self/statm").expect("our own figures");
        text.split(' ').nth(1).expect("a field").parse::<u64>().expect("a number")
            * PageSize::Base.bytes() as u64
    };
    let map =
        || Region::builder(1 << 40).ladder(Ladder::new([PageSize::Thp, PageSize::Base])).map();
    drop(map().expect("addresses are plenty"));
    let before = resident();
    let start = std::time::Instant::now();
    let region = map().expect("addresses are plenty");
    println!("1 TiB mapped in {:?}", start.elapsed());
    let cost = resident().saturating_sub(before);
    assert!(cost < 1 << 20, "{cost} bytes");
    assert_eq!(region.residency(..).expect("asked").resident_bytes, 0);
}

#[test]
fn descriptors_are_closed_on_exec() {
    let _alone = alone();
    let region =
        Region::builder(MIB).memfd(true).ladder(PageSize::Base).map().expect("little memory");
    let copy = region.share().expect("a descriptor").expect("shared memory has one");
    for fd in [region.fd().expect("shared memory has one"), copy.as_fd()] {
        use std::os::fd::AsRawFd;
        // SAFETY: takes nothing.
        let flags = unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_GETFD) };
        assert_eq!(flags & libc::FD_CLOEXEC, libc::FD_CLOEXEC);
    }
}
