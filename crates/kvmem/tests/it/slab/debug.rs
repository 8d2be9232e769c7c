//! Every misuse is detected, with its address and its size.

use std::alloc::{GlobalAlloc, Layout, System};
use std::ptr::NonNull;
use std::sync::{Arc, Mutex};

use kvmem::slab::{SlabAllocator, SlabFault, SlabSettings};

type Seen = Arc<Mutex<Vec<SlabFault>>>;

fn recording(always_malloc: bool) -> (SlabAllocator, Seen) {
    let seen = Seen::default();
    let sink = Arc::clone(&seen);
    let slabs = SlabAllocator::builder()
        .settings(SlabSettings { always_malloc, debug_blocks: true })
        .on_fault(move |fault| sink.lock().unwrap().push(*fault))
        .build()
        .unwrap();
    (slabs, seen)
}

fn take(seen: &Seen) -> Vec<SlabFault> {
    std::mem::take(&mut seen.lock().unwrap())
}

#[test]
fn misuse_is_reported_and_harmless() {
    for (always_malloc, size) in [(false, 40), (true, 40), (false, 9000)] {
        let (slabs, seen) = recording(always_malloc);
        let block = slabs.allocate(size).unwrap();
        let address = block.addr().get();
        // SAFETY: with debugging enabled, any address may be freed; the written memory still
        // exists.
        unsafe {
            slabs.free(block, size + 1);
            assert_eq!(
                take(&seen),
                [SlabFault::WrongSize { address, allocated: size, freed: size + 1 }]
            );
            slabs.free(block, 0);
            assert_eq!(take(&seen), [SlabFault::WrongSize { address, allocated: size, freed: 0 }]);

            slabs.free(block, size);
            assert_eq!(take(&seen), []);
            slabs.free(block, size);
            assert_eq!(take(&seen), [SlabFault::DoubleFree { address, size }]);

            let mut other_memory = 0u64;
            let foreign = NonNull::from(&mut other_memory).cast::<u8>();
            slabs.free(foreign, 8);
            assert_eq!(
                take(&seen),
                [SlabFault::Foreign { address: foreign.addr().get(), size: 8 }]
            );
            let other = slabs.allocate(size).unwrap();
            slabs.free(other.add(16), size);
            assert_eq!(
                take(&seen),
                [SlabFault::Foreign { address: other.addr().get() + 16, size }]
            );

            block.add(7).write(1);
            slabs.trim();
            assert_eq!(take(&seen), [SlabFault::WriteAfterFree { address, size, offset: 7 }]);

            drop(slabs);
            assert_eq!(take(&seen), [SlabFault::Leak { address: other.addr().get(), size }]);
            if always_malloc || size > 8192 {
                // A block of the system's allocator outlives the slab allocator.
                System.dealloc(other.as_ptr(), Layout::from_size_align(size, 16).unwrap());
            }
        }
    }
}

#[test]
fn correct_use_is_not_reported() {
    let (slabs, seen) = recording(false);
    for round in 0..5000usize {
        let size = 1 + round * 37 % 10_000;
        let block = slabs.allocate_zeroed(size).unwrap();
        // SAFETY: allocated with this size, freed once.
        unsafe {
            block.write_bytes(1, size);
            slabs.free(block, size);
        }
    }
    let kept = slabs.allocate(5).unwrap();
    assert_eq!(slabs.report_leaks(), 1);
    assert_eq!(take(&seen), [SlabFault::Leak { address: kept.addr().get(), size: 5 }]);
    // SAFETY: allocated with this size, freed once.
    unsafe { slabs.free(kept, 5) };
    drop(slabs);
    assert_eq!(take(&seen), []);
}

#[test]
fn without_debugging_a_double_free_is_detected_in_the_slab() {
    let seen = Seen::default();
    let sink = Arc::clone(&seen);
    let slabs = SlabAllocator::builder()
        .settings(SlabSettings::default())
        .on_fault(move |fault| sink.lock().unwrap().push(*fault))
        .build()
        .unwrap();
    let (_kept, block) = (slabs.allocate(64).unwrap(), slabs.allocate(64).unwrap());
    // SAFETY: nothing is allocated between the two frees, so the block has no other user.
    unsafe {
        slabs.free(block, 64);
        slabs.free(block, 64);
    }
    slabs.trim();
    assert_eq!(take(&seen), [SlabFault::DoubleFree { address: block.addr().get(), size: 64 }]);
}
