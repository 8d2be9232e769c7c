//! Blocks of every size, and batches.

use std::collections::BTreeMap;
use std::ptr::NonNull;

use kvmem::arena::{ExclusiveRegion, Region};
use kvmem::slab::{SlabAllocator, SlabError, SlabSettings, SlabSetupError};

/// The blocks in use: address, size, and the value of every byte.
#[derive(Default)]
struct Model(BTreeMap<usize, (NonNull<u8>, usize, u8)>);

impl Model {
    fn alloc(&mut self, slabs: &SlabAllocator, size: usize, byte: u8) {
        let block = slabs.allocate(size).expect("there is memory");
        let start = block.addr().get();
        assert!(start.is_multiple_of(16), "{size} bytes at {start:#x}");
        if let Some((at, (_, len, _))) = self.0.range(..start + size).next_back() {
            assert!(at + len <= start, "{size} bytes at {start:#x} overlap {len} at {at:#x}");
        }
        // SAFETY: the block is in use by this test and has this size.
        unsafe { block.write_bytes(byte, size) };
        self.0.insert(start, (block, size, byte));
    }

    fn free(&mut self, slabs: &SlabAllocator, which: usize) {
        let Some(&start) = self.0.keys().nth(which % self.0.len().max(1)) else { return };
        let (block, size, byte) = self.0.remove(&start).expect("just found");
        // SAFETY: the block is in use by this test and was written whole.
        let bytes = unsafe { std::slice::from_raw_parts(block.as_ptr(), size) };
        assert!(
            bytes.iter().all(|found| *found == byte),
            "{size} bytes at {start:#x} were changed"
        );
        // SAFETY: allocated with this size and not used afterwards.
        unsafe { slabs.free(block, size) };
    }
}

fn plain() -> SlabAllocator {
    SlabAllocator::builder().settings(SlabSettings::default()).build().unwrap()
}

#[test]
fn every_size_up_to_the_limit_and_beyond() {
    let slabs = plain();
    let mut model = Model::default();
    for size in 1..=8192 + 64 {
        model.alloc(&slabs, size, size as u8);
        let usable = slabs.usable(size);
        assert!(
            usable >= size && (usable - size < 16 || (usable - size) * 16 <= size),
            "{size}: {usable}"
        );
    }
    assert_eq!(slabs.stats().system_blocks, 64);
    while !model.0.is_empty() {
        model.free(&slabs, 7);
    }
}

#[test]
fn impossible_requests_return_errors() {
    let slabs = plain();
    assert_eq!(slabs.allocate(0), Err(SlabError::ZeroSize));
    assert!(matches!(
        slabs.allocate(usize::MAX),
        Err(SlabError::TooLarge { requested: usize::MAX, .. })
    ));
    let max = isize::MAX as usize - 15;
    assert_eq!(slabs.allocate(max), Err(SlabError::NoMemory { requested: max }));
    assert_eq!(
        SlabAllocator::builder().limit(8193).build().err(),
        Some(SlabSetupError::Limit { requested: 8193, max: 8192 })
    );
}

#[test]
fn a_batch_equals_single_allocations() {
    let all = [(false, false), (true, false), (false, true)];
    for (always_malloc, debug_blocks) in all {
        let settings = SlabSettings { always_malloc, debug_blocks };
        for max_cached_bytes in [0, 50_000, u64::MAX] {
            let slabs = SlabAllocator::builder()
                .settings(settings)
                .max_cached_bytes(max_cached_bytes)
                .build()
                .unwrap();
            let mut blocks = Vec::new();
            for (size, count) in
                [(40, 0), (40, 1), (40, 16), (40, 17), (40, 5000), (40, 1), (9000, 20)]
            {
                let before = blocks.clone();
                assert_eq!(slabs.allocate_batch(size, count, &mut blocks), Ok(count));
                assert_eq!(
                    (blocks.len(), &blocks[..before.len()]),
                    (before.len() + count, &before[..])
                );
                for block in &blocks[before.len()..] {
                    // SAFETY: the block is in use by this test and has this size.
                    unsafe { block.write_bytes(count as u8, size) };
                }
            }
            let large = blocks.split_off(5035);
            let mut addresses: Vec<_> = blocks.iter().map(|block| block.addr().get()).collect();
            addresses.sort_unstable();
            assert!(addresses.windows(2).all(|two| two[0] + 40 <= two[1]));
            // SAFETY: allocated with these sizes, freed once.
            unsafe {
                slabs.free_batch(&blocks[..3000], 40);
                slabs.free_batch(&blocks[3000..], 40);
                slabs.free_batch(&large, 9000);
                slabs.free_batch(&[], 40);
            }
            let stats = slabs.stats();
            assert!(stats.cached_bytes <= max_cached_bytes);
            assert_eq!(slabs.report_leaks(), 0);
            slabs.trim();
            let stats = slabs.stats();
            assert_eq!((stats.slab_bytes, stats.system_blocks), (0, 0));
        }
    }
}

/// A batch of any count returns the number of blocks that were available.
#[test]
fn a_batch_ends_with_the_memory() {
    let region = ExclusiveRegion::new(Region::builder(1 << 20).map().unwrap()).unwrap();
    let slabs =
        SlabAllocator::builder().settings(SlabSettings::default()).region(region).build().unwrap();
    let mut blocks = Vec::new();
    for _ in 0..3 {
        let got = slabs.allocate_batch(500, usize::MAX, &mut blocks).expect("a megabyte");
        assert!(got == blocks.len() && (1500..=2100).contains(&got), "{got}");
        assert_eq!(
            slabs.allocate_batch(500, 3, &mut blocks),
            Err(SlabError::NoMemory { requested: 500 })
        );
        assert_eq!(blocks.len(), got);
        // SAFETY: allocated with this size, freed once.
        unsafe { slabs.free_batch(&blocks, 500) };
        blocks.clear();
    }
    assert_eq!(slabs.allocate_batch(0, 3, &mut blocks), Err(SlabError::ZeroSize));
    assert_eq!(slabs.allocate_batch(0, 0, &mut blocks), Ok(0));
}
