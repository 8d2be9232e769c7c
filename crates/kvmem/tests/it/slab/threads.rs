//! Blocks that other threads free than allocated them, and threads that end and restart.

use std::ptr::NonNull;
use std::sync::mpsc;
use std::thread;

use kvmem::slab::{SlabAllocator, SlabSettings};

/// A block that is sent to another thread, filled with its size.
struct Parcel(NonNull<u8>, usize);

// SAFETY: the holder of the parcel is the block's only user.
unsafe impl Send for Parcel {}

impl Parcel {
    fn pack(slabs: &SlabAllocator, size: usize) -> Parcel {
        let block = slabs.allocate(size).expect("there is memory");
        // SAFETY: the block is in use by this test and has this size.
        unsafe { block.write_bytes(size as u8, size) };
        Parcel(block, size)
    }

    fn open(self, slabs: &SlabAllocator) {
        let Parcel(block, size) = self;
        // SAFETY: the block is in use by this test and was written whole.
        let bytes = unsafe { std::slice::from_raw_parts(block.as_ptr(), size) };
        assert!(bytes.iter().all(|byte| *byte == size as u8));
        // SAFETY: allocated with this size, freed once.
        unsafe { slabs.free(block, size) };
    }
}

fn crossing(slabs: &SlabAllocator) {
    let (sender, receiver) = mpsc::sync_channel::<Vec<Parcel>>(4);
    thread::scope(|scope| {
        for seed in 0..2u64 {
            let sender = sender.clone();
            scope.spawn(move || {
                let mut state = seed + 1;
                for _ in 0..60 {
                    let parcels = (0..500).map(|_| {
                        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(99);
                        Parcel::pack(slabs, 1 + (state >> 33) as usize % 1024)
                    });
                    sender.send(parcels.collect()).expect("there is a consumer");
                }
            });
        }
        drop(sender);
        scope.spawn(move || {
            for (number, mut parcels) in receiver.into_iter().enumerate() {
                // Some are freed by threads that end at once.
                let rest = parcels.split_off(250);
                thread::scope(|inner| {
                    inner.spawn(|| rest.into_iter().for_each(|parcel| parcel.open(slabs)));
                });
                parcels.into_iter().for_each(|parcel| parcel.open(slabs));
                if number % 16 == 0 {
                    slabs.trim();
                }
            }
        });
    });
    slabs.trim();
    assert_eq!(
        slabs.stats().classes.iter().map(|class| class.in_use + class.cached).sum::<usize>(),
        0
    );
    assert_eq!(slabs.stats().mapped_bytes, 0);
}

#[test]
fn frees_cross_threads() {
    crossing(&SlabAllocator::builder().settings(SlabSettings::default()).build().unwrap());
}

#[test]
fn frees_cross_threads_under_debugging() {
    let settings = SlabSettings { always_malloc: false, debug_blocks: true };
    crossing(&SlabAllocator::builder().settings(settings).build().unwrap());
}
