//! Locks, as the kernel reports them for each mapping.

use std::ops::Range;
use std::ptr::NonNull;
use std::sync::{Mutex, MutexGuard, PoisonError};

use kvmem::arena::{Errno, Ladder, PageSize, Region};
use kvmem::register::{Account, Key, Mlock, Registrar};

const PAGE: usize = 4096;

/// The limit on locked memory may be small and is for the whole process: these tests run in turn.
fn turn() -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::new(());
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Maps a region, if so much may be locked and base pages have the size that these tests assume.
fn region(pages: usize) -> Option<Region> {
    let bytes = pages * PAGE;
    let limit = Mlock::default().limits().memlock;
    if let Some(limit) = limit.filter(|limit| limit.limit_bytes < limit.used_bytes + bytes as u64) {
        println!("skipped: RLIMIT_MEMLOCK is {} bytes", limit.limit_bytes);
        return None;
    }
    if PageSize::Base.bytes() != PAGE {
        println!("skipped: pages have {} bytes", PageSize::Base.bytes());
        return None;
    }
    Some(
        Region::builder(bytes).ladder(Ladder::only(PageSize::Base)).map().expect("a little memory"),
    )
}

fn register(mlock: &Mlock, region: &Region, range: Range<usize>) -> Key {
    assert!(range.end <= region.len());
    // SAFETY: within the region, which every test drops after its keys.
    unsafe { mlock.register(region.base().add(range.start), range.len()) }.expect("below the limit")
}

/// Returns the locked pages of a region.
fn locked(region: &Region) -> Vec<usize> {
    let text = std::fs::read_to_string("/proc/self/smaps").expect("our own maps");
    let start = region.base().as_ptr() as usize;
    let (mut pages, mut mapping) = (Vec::new(), 0..0);
    for line in text.lines() {
        let mut words = line.split(' ');
        let first = words.next().unwrap_or("");
        if let Some((from, to)) = first.split_once('-')
            && let (Ok(from), Ok(to)) =
                (usize::from_str_radix(from, 16), usize::from_str_radix(to, 16))
        {
            mapping = from.max(start)..to.min(start + region.len());
        } else if first == "VmFlags:" && words.any(|flag| flag == "lo") {
            pages.extend(mapping.clone().step_by(PAGE).map(|at| (at - start) / PAGE));
        }
    }
    pages
}

fn pages(numbers: impl IntoIterator<Item = usize>) -> Vec<usize> {
    numbers.into_iter().collect()
}

#[test]
fn a_page_is_locked_until_its_last_key_is_deregistered() {
    let _turn = turn();
    let Some(region) = region(16) else { return };
    let (one, two) = (Mlock::default(), Mlock::new("mlock:2"));
    let a = register(&one, &region, 0..8 * PAGE);
    let b = register(&two, &region, 4 * PAGE..12 * PAGE);
    let c = register(&two, &region, 6 * PAGE..7 * PAGE);
    assert_eq!(locked(&region), pages(0..12));
    assert_eq!(
        region.residency(..12 * PAGE).expect("the kernel reports residency").resident_bytes,
        12 * PAGE as u64
    );
    one.deregister(a).expect("the key is live");
    assert_eq!(locked(&region), pages(4..12));
    two.deregister(b).expect("the key is live");
    assert_eq!(locked(&region), pages(6..7));
    two.deregister(c).expect("the key is live");
    assert_eq!(locked(&region), pages([]));
}

#[test]
fn registering_a_range_twice_gives_two_keys() {
    let _turn = turn();
    let Some(region) = region(4) else { return };
    let mlock = Mlock::default();
    let keys = [0; 2].map(|_| register(&mlock, &region, 0..4 * PAGE));
    assert_ne!(keys[0].handle, keys[1].handle);
    mlock.deregister(keys[0]).expect("the key is live");
    assert_eq!(locked(&region), pages(0..4));
    mlock.deregister(keys[1]).expect("the key is live");
    assert_eq!(locked(&region), pages([]));
}

#[test]
fn ranges_that_meet_within_a_page_share_its_lock() {
    let _turn = turn();
    let Some(region) = region(4) else { return };
    let mlock = Mlock::default();
    let left = register(&mlock, &region, 10..PAGE + 100);
    let right = register(&mlock, &region, PAGE + 100..2 * PAGE + 1);
    assert_eq!(locked(&region), pages(0..3));
    mlock.deregister(left).expect("the key is live");
    assert_eq!(locked(&region), pages(1..3));
    mlock.deregister(right).expect("the key is live");
    assert_eq!(locked(&region), pages([]));
}

#[test]
fn a_key_that_is_not_live_is_named() {
    let _turn = turn();
    let Some(region) = region(2) else { return };
    let (one, two) = (Mlock::default(), Mlock::new("mlock:2"));
    let key = register(&one, &region, 0..PAGE);
    let error = two.deregister(key).expect_err("a key of another registrar");
    assert_eq!(error.errno, Errno::ENOENT);
    assert!(error.to_string().contains(&format!("handle {}", key.handle)), "{error}");
    assert_eq!(locked(&region), pages(0..1));
    one.deregister(key).expect("the key is live");
    assert_eq!(one.deregister(key).expect_err("deregistered before").errno, Errno::ENOENT);
}

#[test]
fn dropping_unlocks_pages_without_other_keys() {
    let _turn = turn();
    let Some(region) = region(8) else { return };
    let two = Mlock::new("mlock:2");
    let key = register(&two, &region, 2 * PAGE..4 * PAGE);
    {
        let one = Mlock::default();
        register(&one, &region, 0..3 * PAGE);
        register(&one, &region, 6 * PAGE..8 * PAGE);
        assert_eq!(locked(&region), pages((0..4).chain(6..8)));
    }
    assert_eq!(locked(&region), pages(2..4));
    two.deregister(key).expect("the key is live");
}

#[test]
fn an_unmapped_range_fails_and_nothing_stays_locked() {
    let _turn = turn();
    let Some(region) = region(4) else { return };
    let mlock = Mlock::default();
    let at = region.base();
    // SAFETY: the call fails and locks nothing.
    let failure =
        |at: NonNull<u8>, len| unsafe { mlock.register(at, len) }.expect_err("cannot be locked");
    assert_eq!(failure(at, 0).errno, Errno::EINVAL);
    assert_eq!(failure(at, usize::MAX).errno, Errno::EINVAL);
    // SAFETY: the kernel chooses the address.
    let hole = unsafe {
        libc::mmap(
            std::ptr::null_mut(),
            3 * PAGE,
            3,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
            -1,
            0,
        )
    };
    let hole = NonNull::new(hole.cast::<u8>()).expect("an address");
    // SAFETY: the page in the middle was mapped by this test, and is not used.
    assert_eq!(unsafe { libc::munmap(hole.as_ptr().add(PAGE).cast(), PAGE) }, 0);
    // SAFETY: the region is only queried, and the range outlives it.
    let around = unsafe { Region::from_raw(hole, 3 * PAGE, ()) }.expect("a range");
    let error = failure(hole, 3 * PAGE);
    assert_eq!((error.errno, &error.exceeded), (Errno::ENOMEM, &None), "{error}");
    assert!(error.to_string().contains("not all of it is mapped"), "{error}");
    assert_eq!(locked(&around), pages([]));
    drop(around);
    for page in [0, 2] {
        // SAFETY: mapped by this test, and not used any more.
        assert_eq!(unsafe { libc::munmap(hole.as_ptr().add(page * PAGE).cast(), PAGE) }, 0);
    }
}

#[test]
fn eight_threads_over_the_same_pages() {
    let _turn = turn();
    let Some(region) = region(64) else { return };
    let registrars: Vec<Mlock> =
        (0..8).map(|number| Mlock::new(format!("mlock:{number}"))).collect();
    std::thread::scope(|scope| {
        for (number, mlock) in registrars.iter().enumerate() {
            let region = &region;
            scope.spawn(move || {
                for round in 0..60 {
                    let start = (number * 7 + round * 3) % 40;
                    let own = start + 1..start + 2 + (number + round) % 20;
                    let key = register(mlock, region, own.start * PAGE..own.end * PAGE);
                    let now = locked(region);
                    assert!(
                        own.clone().all(|page| now.contains(&page)),
                        "{own:?} is not in {now:?}"
                    );
                    mlock.deregister(key).expect("the key is live");
                }
            });
        }
    });
    assert_eq!(locked(&region), pages([]));
}

#[test]
fn limits_are_those_of_the_process() {
    let limits = Mlock::new("pages").limits();
    assert_eq!(
        (limits.device.as_str(), limits.max_bytes, limits.max_keys),
        ("pages", u64::MAX, u64::MAX)
    );
    assert!(limits.memlock.is_none_or(|memlock| memlock.account == Account::Locked));
}
