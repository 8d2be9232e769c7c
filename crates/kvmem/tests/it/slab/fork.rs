//! Forked children while other threads allocate and free.

use std::ptr::NonNull;
use std::thread;

use kvmem::arena::{ExclusiveRegion, Region};
use kvmem::slab::{SlabAllocator, SlabSettings};

use crate::child::{fork_while_threads, forked};

fn pair(slabs: &SlabAllocator, size: usize) -> bool {
    let Ok(block) = slabs.allocate(size) else { return false };
    // SAFETY: allocated with this size, freed once.
    unsafe {
        block.write_bytes(1, size);
        slabs.free(block, size);
    }
    true
}

#[test]
#[cfg_attr(miri, ignore = "forks")]
fn a_child_finds_every_lock_free() {
    let slabs = SlabAllocator::builder().settings(SlabSettings::default()).build().unwrap();
    let work = |thread, call| {
        // Many at once, so slabs and pages are used.
        let size = (thread * 100 + call * 391) as usize % 8000 + 1;
        let blocks: Vec<NonNull<u8>> = (0..300).map_while(|_| slabs.allocate(size).ok()).collect();
        for block in blocks {
            // SAFETY: allocated with this size, freed once.
            unsafe { slabs.free(block, size) };
        }
        slabs.trim();
    };
    let child = || {
        let fine = (1..8000).step_by(13).all(|size| pair(&slabs, size));
        slabs.trim();
        i32::from(!fine)
    };
    fork_while_threads(30, work, || child);
}

#[test]
fn allocations_fail_in_a_child_without_the_region() {
    for inherited in [false, true] {
        let region = Region::builder(1 << 20).dont_fork(!inherited).map().unwrap();
        let region = ExclusiveRegion::new(region).unwrap();
        let slabs = SlabAllocator::builder()
            .settings(SlabSettings::default())
            .region(region)
            .build()
            .unwrap();
        // This thread has no block in its magazines; another one, which lives on in the parent, has
        // one.
        let (sender, receiver) = std::sync::mpsc::channel::<()>();
        thread::scope(|scope| {
            let (ready, wait) = std::sync::mpsc::channel();
            let slabs = &slabs;
            scope.spawn(move || {
                assert!(pair(slabs, 100));
                ready.send(()).expect("the test waits");
                let _ = receiver.recv();
            });
            wait.recv().expect("a block was freed");
            let status = forked(|| {
                slabs.trim();
                i32::from(pair(slabs, 100))
            });
            assert_eq!(status, i32::from(inherited));
            assert!(pair(slabs, 100));
            drop(sender);
        });
    }
}
