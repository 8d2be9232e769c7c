//! Requests at every edge.

use std::alloc::Layout;
use std::ptr;

use kvmem::arena::{BumpArena, BumpError, BumpStats, HeapMemory, Memory};
use rustix::mm::{MapFlags, MprotectFlags, ProtFlags, mmap_anonymous, mprotect, munmap};

use super::{Reservation, arena};

const GIB: usize = 1 << 30;

fn start(bytes: std::ptr::NonNull<[u8]>) -> usize {
    bytes.cast::<u8>().addr().get()
}

/// From 1 B to 1 GiB, in memory that itself begins at an odd address.
#[test]
fn the_address_is_aligned_and_not_the_offset() {
    for skip in [0, 1, 63, 4095] {
        let arena = BumpArena::new(Reservation::new(4 * GIB, skip));
        let mut end = arena.base().addr().get();
        for shift in (0..=30).chain((0..30).rev()) {
            let align = 1usize << shift;
            let at = start(arena.alloc_bytes(1, align).unwrap());
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
        arena.alloc_bytes(size, 1).unwrap();
        let left = LEN - size;
        assert_eq!(arena.stats(), BumpStats { capacity: LEN, used: size, left });
        let refused = arena.alloc_bytes(left + 1, 1);
        assert_eq!(refused, Err(BumpError::Full { requested: left + 1, left }));
        if left > 0 {
            let rest = arena.alloc_bytes(left, 1).unwrap();
            assert_eq!((start(rest), rest.len()), (arena.base().addr().get() + size, left));
        }
        assert_eq!(arena.stats().left, 0);
        assert_eq!(arena.alloc_bytes(1, 1), Err(BumpError::Full { requested: 1, left: 0 }));
    }
    let arena = arena(LEN);
    assert_eq!(
        arena.alloc_bytes(LEN + 1, 1),
        Err(BumpError::Full { requested: LEN + 1, left: LEN })
    );
}

/// What only padding could use is not said to be left.
#[test]
fn left_is_what_could_be_had() {
    let arena = arena(256);
    arena.alloc_bytes(1, 1).unwrap();
    assert_eq!(arena.alloc_bytes(193, 64), Err(BumpError::Full { requested: 193, left: 192 }));
    assert_eq!(arena.alloc_bytes(1, 1 << 40), Err(BumpError::Full { requested: 1, left: 0 }));
    arena.alloc_bytes(192, 64).unwrap();
    assert_eq!(arena.alloc_bytes(1, 64), Err(BumpError::Full { requested: 1, left: 0 }));
}

/// A refusal leaves no trace: what fits is still granted, where it would have been.
#[test]
fn a_refusal_changes_nothing() {
    let arena = arena(256);
    arena.alloc_bytes(10, 1).unwrap();
    let before = arena.stats();
    for (size, align) in
        [(0, 1), (1, 0), (1, 3), (247, 1), (1, 1 << 62), (usize::MAX, 1), (isize::MAX as usize, 1)]
    {
        arena.alloc_bytes(size, align).unwrap_err();
        arena.alloc_uninit(size, align).unwrap_err();
        assert_eq!(arena.stats(), before, "{size} at {align}");
    }
    assert_eq!(start(arena.alloc_bytes(246, 1).unwrap()), arena.base().addr().get() + 10);
}

#[test]
fn what_makes_no_sense_is_told_apart() {
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
        (max, 1, BumpError::Full { requested: max, left: 4096 }),
        (1 << 62, 1 << 62, BumpError::Full { requested: 1 << 62, left: 0 }),
    ];
    for (size, align, error) in wrong {
        assert_eq!(arena.alloc_bytes(size, align), Err(error), "{size} at {align}");
        assert_eq!(arena.alloc_uninit(size, align).map(drop), Err(error), "{size} at {align}");
        assert!(HeapMemory::new(size, align).is_err(), "{size} at {align}");
        assert!(!error.to_string().is_empty());
    }
    assert_eq!(arena.alloc(Layout::new::<()>()), Err(BumpError::Zero));
    assert_eq!(arena.stats().used, 0);
}

#[test]
fn an_arena_owns_its_memory_and_nothing_beside_it() {
    let memory = HeapMemory::new(1000, 8).unwrap();
    let base = memory.base().as_ptr().cast_const();
    let arena = BumpArena::new(memory);
    assert!(arena.owns(base) && arena.owns(base.wrapping_add(999)));
    assert!(!arena.owns(base.wrapping_sub(1)) && !arena.owns(base.wrapping_add(1000)));
    assert!(!arena.owns(ptr::null()) && !arena.owns(ptr::without_provenance(usize::MAX)));
    assert!(arena.owns(arena.alloc_bytes(10, 1).unwrap().as_ptr().cast()));
}

#[test]
fn a_reset_hands_out_the_same_bytes_again() {
    let mut arena = arena(1 << 16);
    for _ in 0..3 {
        let first = arena.alloc_uninit(1 << 15, 4096).unwrap().as_ptr();
        assert_eq!(first.addr(), arena.base().addr().get());
        arena.alloc_uninit(1 << 15, 1).unwrap();
        assert_eq!(arena.stats().left, 0);
        arena.reset();
        assert_eq!(arena.stats(), BumpStats { capacity: 1 << 16, used: 0, left: 1 << 16 });
    }
    assert_eq!(arena.into_memory().len(), 1 << 16);
}

/// An arena in a page that can only be read: whatever writes to it, if only to put back what was
/// there, dies.
#[test]
fn a_refusal_writes_nothing() {
    type Arena = BumpArena<HeapMemory>;
    let (len, flags) = (size_of::<Arena>(), MapFlags::PRIVATE);
    // SAFETY: a new mapping where the kernel likes.
    let page =
        unsafe { mmap_anonymous(ptr::null_mut(), len, ProtFlags::READ | ProtFlags::WRITE, flags) }
            .unwrap();
    let place = page.cast::<Arena>();
    // SAFETY: the page is large and aligned enough.
    unsafe { place.write(arena(4096)) };
    // SAFETY: just written.
    unsafe { &*place }.alloc_bytes(4096, 1).unwrap();
    // SAFETY: our page; what may go wrong in it is what the test is about.
    unsafe { mprotect(page, len, MprotectFlags::READ) }.unwrap();
    // SAFETY: as before.
    let full = unsafe { &*place };
    for (size, align) in [(1, 1), (4096, 64), (0, 1), (1, 3), (usize::MAX, 1)] {
        full.alloc_bytes(size, align).unwrap_err();
        full.alloc_uninit(size, align).unwrap_err();
    }
    assert_eq!(full.stats().left, 0);
    assert!(full.owns(full.base().as_ptr()));
    // SAFETY: the page is ours; the arena is taken out before it goes, and is not used where it
    // was.
    unsafe {
        mprotect(page, len, MprotectFlags::READ | MprotectFlags::WRITE).unwrap();
        drop(place.read());
        munmap(page, len).unwrap();
    }
}
