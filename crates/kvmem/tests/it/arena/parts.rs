//! Parts of regions, and memory of others.

use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::{MIB, base, page};
use kvmem::arena::{Advice, ArenaError, Populate, ProgressOptions, Region};

fn mapped(at: usize) -> bool {
    let maps = std::fs::read_to_string("/proc/self/maps").expect("our own maps");
    maps.lines().any(|line| {
        let (from, to) = line.split(' ').next().unwrap().split_once('-').unwrap();
        (usize::from_str_radix(from, 16).unwrap()..usize::from_str_radix(to, 16).unwrap())
            .contains(&at)
    })
}

#[test]
fn regions_go_from_thread_to_thread() {
    fn shared_by_threads<T: Send + Sync>() {}
    shared_by_threads::<Region>();
    shared_by_threads::<kvmem::arena::Slice<'_>>();
    let mut region = base(MIB).map().expect("little memory");
    let region = std::thread::spawn(move || {
        region.as_mut_bytes().expect("private memory").fill(4);
        region
    });
    let mut region = region.join().expect("no panic");
    assert!(region.as_mut_bytes().expect("private memory").iter().all(|byte| *byte == 4));
}

#[test]
fn parts_share_the_mapping_and_the_last_ends_it() {
    // The guards mark the addresses, so that no mapping of another test joins them.
    let region = base(4 * MIB).guard_pages(true).map().expect("little memory");
    let first = region.base();
    let (mut left, right) = region.split_at(MIB + 5).expect("within");
    assert_eq!((left.len(), right.len()), (MIB + 5, 3 * MIB - 5));
    assert_eq!(right.base().addr().get(), first.addr().get() + MIB + 5);
    assert_eq!((left.start_in_mapping(), right.start_in_mapping()), (0, MIB + 5));
    left.as_mut_bytes().expect("private memory").fill(1);
    let (mut middle, end) = right.split_at(MIB).expect("within");
    middle.as_mut_bytes().expect("private memory").fill(2);
    assert!(left.as_mut_bytes().expect("private memory").iter().all(|byte| *byte == 1));
    assert_eq!(end.receipt(), left.receipt());
    drop((left, end));
    assert!(mapped(first.addr().get()), "a part is left");
    assert_eq!(middle.as_mut_bytes().expect("private memory")[MIB - 1], 2);
}

#[test]
fn split_in_equal_parts() {
    let page = page();
    let region = base(10 * page).map().expect("little memory");
    let at = region.base().addr().get();
    let parts = region.split(3 * page).expect("parts");
    let ranges: Vec<_> =
        parts.iter().map(|part| (part.base().addr().get() - at, part.len())).collect();
    assert_eq!(
        ranges,
        [(0, 3 * page), (3 * page, 3 * page), (6 * page, 3 * page), (9 * page, page)]
    );
    // What a part does stays within it.
    parts[1].populate(.., Populate::Auto, &ProgressOptions::new()).expect("little memory");
    let resident: Vec<_> = parts
        .iter()
        .map(|part| part.residency(..).expect("asked").resident_bytes as usize)
        .collect();
    assert_eq!(resident, [0, 3 * page, 0, 0]);
    assert!(matches!(parts[0].discard(..4 * page), Err(ArenaError::OutOfBounds { .. })));
    parts[1].discard(page..2 * page).expect("whole pages");
    assert_eq!(parts[1].residency(..).expect("asked").resident_bytes as usize, 2 * page);

    let region = base(page).map().expect("little memory");
    let (all, none) = region.split_at(page).expect("at the end");
    assert!(none.is_empty() && !all.is_empty());
    assert_eq!(none.residency(..).expect("asked").len_bytes, 0);
    assert!(matches!(all.split(0), Err(ArenaError::ZeroSize)));
    let gone = none.split_at(1).map(drop);
    assert_eq!(gone, Err(ArenaError::OutOfBounds { start: 1, end: 1, len: 0 }));
}

#[test]
fn slices_have_bounds() {
    let region = base(2 * page()).map().expect("little memory");
    let slice = region.slice(10..20).expect("within");
    assert_eq!((slice.len(), slice.as_ptr().addr()), (10, region.base().addr().get() + 10));
    assert_eq!(slice.as_ptr_range().end.addr(), region.base().addr().get() + 20);
    assert!(region.slice(..=region.len()).is_err());
    assert!(region.slice(region.len()..).expect("the end").is_empty());
    assert_eq!(region.as_ptr_range().end.addr() - region.as_ptr_range().start.addr(), region.len());
}

#[test]
fn memory_of_others_keeps_its_owner_to_the_end() {
    struct Owner(Arc<AtomicUsize>, Vec<u8>);
    impl Drop for Owner {
        fn drop(&mut self) {
            // Relaxed: the same thread reads it.
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }
    let drops = Arc::new(AtomicUsize::new(0));
    let mut bytes = vec![3u8; 10_000];
    let at = NonNull::new(bytes.as_mut_ptr()).expect("a vector's address");
    let owner = Owner(Arc::clone(&drops), bytes);
    assert_eq!(owner.1.len(), 10_000);
    // SAFETY: the vector is not touched until the owner is dropped, which the region does.
    let region = unsafe { Region::from_raw(at, 10_000, owner) }.expect("some bytes");
    assert_eq!((region.base(), region.len(), region.fd().is_none()), (at, 10_000, true));
    assert_eq!(region.receipt().backing, None);
    assert!(region.is_resident(..).expect("asked"));
    // SAFETY: nobody writes.
    assert!(unsafe { region.bytes() }.iter().all(|byte| *byte == 3));
    assert!(matches!(
        region.discard(0..0),
        Err(ArenaError::Foreign { .. } | ArenaError::Misaligned { .. })
    ));
    assert!(region.advise(.., Advice::Random).is_err());
    region.populate(.., Populate::Auto, &ProgressOptions::new()).expect("it is there");
    let (left, mut right) = region.split_at(1).expect("within");
    drop(left);
    assert!(matches!(right.as_mut_bytes(), Err(ArenaError::Foreign { .. })));
    // Relaxed: see above.
    assert_eq!(drops.load(Ordering::Relaxed), 0);
    drop(right);
    // Relaxed: see above.
    assert_eq!(drops.load(Ordering::Relaxed), 1);

    // SAFETY: refused before anything is done with it.
    let error = unsafe { Region::from_raw(at, 0, ()) }.expect_err("no bytes");
    assert_eq!(error, ArenaError::ZeroSize);
    // SAFETY: as above.
    let error = unsafe { Region::from_raw(at, usize::MAX, ()) }.expect_err("too many bytes");
    assert!(matches!(error, ArenaError::TooLarge { .. }));
}
