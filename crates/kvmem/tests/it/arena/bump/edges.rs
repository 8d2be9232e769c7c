//! Extreme sizes and alignments.

use std::alloc::Layout;
use std::ptr;

use kvmem::arena::{BumpArena, BumpError, HeapMemory, Memory};
use rustix::mm::{MapFlags, MprotectFlags, ProtFlags, mmap_anonymous, mprotect, munmap};

use super::{Reservation, arena, figures};

const GIB: usize = 1 << 30;

fn start(bytes: std::ptr::NonNull<[u8]>) -> usize {
    bytes.cast::<u8>().addr().get()
}

/// From 1 B to 1 GiB, in memory that itself begins at an odd address.
#[test]
fn the_address_is_aligned_not_the_offset() {
    for skip in [0, 1, 63, 4095] {
        let arena = BumpArena::new(Reservation::new(4 * GIB, skip));
        let mut end = arena.base().addr().get();
        for shift in (0..=30).chain((0..30).rev()) {
            let align = 1usize << shift;
            let at = start(arena.allocate_bytes(1, align).unwrap());
            assert_eq!(at % align, 0);
            assert_eq!(
                at,
                end.next_multiple_of(align),
                "padding is what alignment {align} needs and no more"
            );
            end = at + 1;
            assert_eq!(arena.stats().used, end - arena.base().addr().get());
        }
    }
}

#[test]
fn sizes_at_the_end() {
    const LEN: usize = 1000;
    for size in [1, 2, LEN - 1, LEN] {
        let arena = arena(LEN);
        arena.allocate_bytes(size, 1).unwrap();
        let remaining = LEN - size;
        assert_eq!(figures(arena.stats()), (LEN, size, remaining));
        let too_large = arena.allocate_bytes(remaining + 1, 1);
        assert_eq!(too_large, Err(BumpError::Full { requested: remaining + 1, remaining }));
        if remaining > 0 {
            let rest = arena.allocate_bytes(remaining, 1).unwrap();
            assert_eq!((start(rest), rest.len()), (arena.base().addr().get() + size, remaining));
        }
        assert_eq!(arena.stats().remaining, 0);
        assert_eq!(arena.allocate_bytes(1, 1), Err(BumpError::Full { requested: 1, remaining: 0 }));
    }
    let arena = arena(LEN);
    assert_eq!(
        arena.allocate_bytes(LEN + 1, 1),
        Err(BumpError::Full { requested: LEN + 1, remaining: LEN })
    );
}

/// `remaining` does not count bytes that only padding could use.
#[test]
fn left_is_the_largest_possible_request() {
    let arena = arena(256);
    arena.allocate_bytes(1, 1).unwrap();
    assert_eq!(
        arena.allocate_bytes(193, 64),
        Err(BumpError::Full { requested: 193, remaining: 192 })
    );
    assert_eq!(
        arena.allocate_bytes(1, 1 << 40),
        Err(BumpError::Full { requested: 1, remaining: 0 })
    );
    arena.allocate_bytes(192, 64).unwrap();
    assert_eq!(arena.allocate_bytes(1, 64), Err(BumpError::Full { requested: 1, remaining: 0 }));
}

/// A failed request has no effect: a smaller one still gets the same address.
#[test]
fn a_failed_request_changes_nothing() {
    let arena = arena(256);
    arena.allocate_bytes(10, 1).unwrap();
    let before = arena.stats();
    for (size, align) in
        [(0, 1), (1, 0), (1, 3), (247, 1), (1, 1 << 62), (usize::MAX, 1), (isize::MAX as usize, 1)]
    {
        arena.allocate_bytes(size, align).unwrap_err();
        arena.allocate_uninit(size, align).unwrap_err();
        assert_eq!(arena.stats(), before, "{size} at {align}");
    }
    assert_eq!(start(arena.allocate_bytes(246, 1).unwrap()), arena.base().addr().get() + 10);
}

#[test]
fn invalid_requests_have_distinct_errors() {
    let arena = arena(4096);
    let max = isize::MAX as usize;
    let wrong = [
        (0, 1, BumpError::Zero),
        (0, 1 << 63, BumpError::Zero),
        (0, 0, BumpError::BadAlign { align: 0 }),
        (1, 0, BumpError::BadAlign { align: 0 }),
        (1, 3, BumpError::BadAlign { align: 3 }),
        (1, usize::MAX, BumpError::BadAlign { align: usize::MAX }),
        (usize::MAX, 6, BumpError::BadAlign { align: 6 }),
        (usize::MAX, 1, BumpError::Overflow { requested: usize::MAX, align: 1 }),
        (usize::MAX, 1 << 63, BumpError::Overflow { requested: usize::MAX, align: 1 << 63 }),
        (max + 1, 1, BumpError::Overflow { requested: max + 1, align: 1 }),
        (max, 2, BumpError::Overflow { requested: max, align: 2 }),
        (1, 1 << 63, BumpError::Overflow { requested: 1, align: 1 << 63 }),
        (max, 1, BumpError::Full { requested: max, remaining: 4096 }),
        (1 << 62, 1 << 62, BumpError::Full { requested: 1 << 62, remaining: 0 }),
    ];
    for (size, align, error) in wrong {
        assert_eq!(arena.allocate_bytes(size, align), Err(error), "{size} at {align}");
        assert_eq!(arena.allocate_uninit(size, align).map(drop), Err(error), "{size} at {align}");
        assert!(HeapMemory::new(size, align).is_err(), "{size} at {align}");
        assert!(!error.to_string().is_empty());
    }
    assert_eq!(arena.allocate(Layout::new::<()>()), Err(BumpError::Zero));
    assert_eq!(arena.stats().used, 0);
}

#[test]
fn an_arena_owns_exactly_its_memory() {
    let memory = HeapMemory::new(1000, 8).unwrap();
    let base = memory.base().as_ptr().cast_const();
    let arena = BumpArena::new(memory);
    assert!(arena.owns(base) && arena.owns(base.wrapping_add(999)));
    assert!(!arena.owns(base.wrapping_sub(1)) && !arena.owns(base.wrapping_add(1000)));
    assert!(!arena.owns(ptr::null()) && !arena.owns(ptr::without_provenance(usize::MAX)));
    assert!(arena.owns(arena.allocate_bytes(10, 1).unwrap().as_ptr().cast()));
}

#[test]
fn a_reset_hands_out_the_same_bytes_again() {
    let mut arena = arena(1 << 16);
    for _ in 0..3 {
        let first = arena.allocate_uninit(1 << 15, 4096).unwrap().as_ptr();
        assert_eq!(first.addr(), arena.base().addr().get());
        arena.allocate_uninit(1 << 15, 1).unwrap();
        assert_eq!(arena.stats().remaining, 0);
        arena.reset();
        assert_eq!(figures(arena.stats()), (1 << 16, 0, 1 << 16));
    }
    assert_eq!(arena.into_memory().len(), 1 << 16);
}

/// The arena is in a read-only page: any write to it, even of the same value, kills the process.
#[test]
fn a_failed_request_writes_nothing() {
    type Arena = BumpArena<HeapMemory>;
    let (len, flags) = (size_of::<Arena>(), MapFlags::PRIVATE);
    // SAFETY: the kernel chooses the address of the new mapping.
    let page =
        unsafe { mmap_anonymous(ptr::null_mut(), len, ProtFlags::READ | ProtFlags::WRITE, flags) }
            .unwrap();
    let place = page.cast::<Arena>();
    // SAFETY: the page is large and aligned enough.
    unsafe { place.write(arena(4096)) };
    // SAFETY: the value was written just now.
    unsafe { &*place }.allocate_bytes(4096, 1).unwrap();
    // SAFETY: the page belongs to this test; a fault in it fails the test.
    unsafe { mprotect(page, len, MprotectFlags::READ) }.unwrap();
    // SAFETY: the page belongs to this test.
    let full = unsafe { &*place };
    for (size, align) in [(1, 1), (4096, 64), (0, 1), (1, 3), (usize::MAX, 1)] {
        full.allocate_bytes(size, align).unwrap_err();
        full.allocate_uninit(size, align).unwrap_err();
    }
    assert_eq!(full.stats().remaining, 0);
    assert!(full.owns(full.base().as_ptr()));
    // SAFETY: the page belongs to this test; the arena is moved out before the page is unmapped,
    // and is not used at its old address.
    unsafe {
        mprotect(page, len, MprotectFlags::READ | MprotectFlags::WRITE).unwrap();
        drop(place.read());
        munmap(page, len).unwrap();
    }
}
