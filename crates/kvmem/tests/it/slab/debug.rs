//! Every misuse is detected, with its address and its size.

use std::alloc::{GlobalAlloc, Layout, System};
use std::ptr::NonNull;
use std::sync::{Arc, Mutex};

use kvmem::slab::{SlabAllocator, SlabFault, SlabSettings};

type Seen = Arc<Mutex<Vec<SlabFault>>>;

fn recording(always_malloc: bool) -> (SlabAllocator, Seen) {
    let seen = Seen::default();
    let sink = Arc::clone(&seen);
    let slices = SlabAllocator::builder()
        .settings(SlabSettings { always_malloc, debug_blocks: true })
        .on_fault(move |fault| sink.lock().unwrap().push(*fault))
        .build()
        .unwrap();
    (slices, seen)
}

fn take(seen: &Seen) -> Vec<SlabFault> {
    std::mem::take(&mut seen.lock().unwrap())
}

#[test]
fn misuse_is_reported_and_harmless() {
    for (always_malloc, size) in [(false, 40), (true, 40), (false, 9000)] {
        let (slices, seen) = recording(always_malloc);
        let block = slices.allocate(size).unwrap();
        let address = block.addr().get();
        // SAFETY: with debugging enabled, any address may be freed; the written memory still
        // exists.
        unsafe {
            slices.free(block, size + 1);
            assert_eq!(
                take(&seen),
                [SlabFault::WrongSize { address, allocated: size, freed: size + 1 }]
            );
            slices.free(block, 0);
            assert_eq!(take(&seen), [SlabFault::WrongSize { address, allocated: size, freed: 0 }]);

            slices.free(block, size);
            assert_eq!(take(&seen), []);
            slices.free(block, size);
            assert_eq!(take(&seen), [SlabFault::DoubleFree { address, size }]);

            let mut other_memory = 0u64;
            let foreign = NonNull::from(&mut other_memory).cast::<u8>();
            slices.free(foreign, 8);
            assert_eq!(
                take(&seen),
                [SlabFault::Foreign { address: foreign.addr().get(), size: 8 }]
            );
            let other = slices.allocate(size).unwrap();
            slices.free(other.add(16), size);
            assert_eq!(
                take(&seen),
                [SlabFault::Foreign { address: other.addr().get() + 16, size }]
            );

            block.add(7).write(1);
            slices.trim();
            assert_eq!(take(&seen), [SlabFault::WriteAfterFree { address, size, offset: 7 }]);

            drop(slices);
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
    let (slices, seen) = recording(false);
    for round in 0..5000usize {
        let size = 1 + round * 37 % 10_000;
        let block = slices.allocate_zeroed(size).unwrap();
        // SAFETY: allocated with this size, freed once.
        unsafe {
            block.write_bytes(1, size);
            slices.free(block, size);
        }
    }
    let kept = slices.allocate(5).unwrap();
    assert_eq!(slices.report_leaks(), 1);
    assert_eq!(take(&seen), [SlabFault::Leak { address: kept.addr().get(), size: 5 }]);
    // SAFETY: allocated with this size, freed once.
    unsafe { slices.free(kept, 5) };
    drop(slices);
    assert_eq!(take(&seen), []);
}

#[test]
fn without_debugging_a_double_free_is_detected_in_the_slab() {
    let seen = Seen::default();
    let sink = Arc::clone(&seen);
    let slices = SlabAllocator::builder()
        .settings(SlabSettings::default())
        .on_fault(move |fault| sink.lock().unwrap().push(*fault))
        .build()
        .unwrap();
    let (_kept, block) = (slices.allocate(64).unwrap(), slices.allocate(64).unwrap());
    // SAFETY: nothing is allocated between the two frees, so the block has no other user.
    unsafe {
        slices.free(block, 64);
        slices.free(block, 64);
    }
    slices.trim();
    assert_eq!(take(&seen), [SlabFault::DoubleFree { address: block.addr().get(), size: 64 }]);
}
