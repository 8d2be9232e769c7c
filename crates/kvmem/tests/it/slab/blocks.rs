//! Blocks of every size, against a model that knows each byte of each block.

use std::collections::BTreeMap;
use std::ptr::{self, NonNull};

use kvmem::arena::{ExclusiveRegion, Region};
use kvmem::slab::{SlabAllocator, SlabError, SlabSettings, SlabSetupError};
use proptest::prelude::*;

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

fn settings() -> impl Strategy<Value = SlabSettings> {
    (any::<bool>(), any::<bool>())
        .prop_map(|(always_malloc, debug_blocks)| SlabSettings { always_malloc, debug_blocks })
}

proptest! {
    #![proptest_config(ProptestConfig {
        failure_persistence: None,
        ..ProptestConfig::with_cases(48)
    })]

    #[test]
    fn no_block_touches_another(
        settings in settings(),
        limit in prop_oneof![Just(8192usize), 0usize..=8192],
        steps in prop::collection::vec((0u8..100, 1usize..20_000, any::<u8>()), 1..400),
    ) {
        let slabs = SlabAllocator::builder().settings(settings).limit(limit).build().unwrap();
        let mut model = Model::default();
        for (what, number, byte) in steps {
            match what {
                // Mostly small ones.
                0..45 => model.alloc(&slabs, 1 + number % 600, byte),
                45..55 => model.alloc(&slabs, number, byte),
                55..99 => model.free(&slabs, number),
                _ => slabs.trim(),
            }
        }
        while !model.0.is_empty() {
            model.free(&slabs, 0);
        }
        slabs.trim();
        let stats = slabs.stats();
        prop_assert_eq!((stats.slab_bytes, stats.unused_bytes, stats.mapped_bytes), (0, 0, 0));
        prop_assert_eq!((stats.system_blocks, stats.system_bytes), (0, 0));
    }
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
fn zeroed_and_copied() {
    let slabs = plain();
    for size in [1, 16, 100, 5000, 100_000] {
        let dirty = slabs.allocate(size).unwrap();
        // SAFETY: allocated with this size, freed once.
        unsafe {
            dirty.write_bytes(0xff, size);
            slabs.free(dirty, size);
        }
        let block = slabs.allocate_zeroed(size).unwrap();
        // SAFETY: the block is in use by this test and was written whole.
        let zeroed = unsafe { std::slice::from_raw_parts(block.as_ptr(), size) };
        assert!(zeroed.iter().all(|byte| *byte == 0));
        let text: Vec<u8> = (0..size).map(|byte| byte as u8).collect();
        let copy = slabs.copy(&text).unwrap();
        // SAFETY: the block is in use by this test and was written whole.
        assert_eq!(unsafe { std::slice::from_raw_parts(copy.as_ptr(), size) }, text);
        // SAFETY: allocated with this size, freed once.
        unsafe {
            slabs.free(block, size);
            slabs.free(copy, size);
        }
    }
}

#[test]
fn chains_and_batches() {
    let slabs = plain();
    for (size, link) in [(24, 16), (16, 0), (500, 3), (20_000, 10_001)] {
        let mut blocks = Vec::new();
        assert_eq!(slabs.allocate_batch(size, 1000, &mut blocks), Ok(1000));
        let mut first: *mut u8 = ptr::null_mut();
        for block in blocks {
            // SAFETY: the link is within the block, which is in use by this test.
            unsafe { block.add(link).cast::<*mut u8>().write_unaligned(first) };
            first = block.as_ptr();
        }
        // SAFETY: a chain of blocks of this size, linked at this offset.
        unsafe { slabs.free_chain(NonNull::new(first), size, link) };
        // SAFETY: an empty chain.
        unsafe { slabs.free_chain(None, size, link) };
    }
    slabs.trim();
    let stats = slabs.stats();
    assert!(stats.classes.iter().all(|class| class.in_use + class.cached == 0));
    assert_eq!((stats.mapped_bytes, stats.system_blocks), (0, 0));
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

#[test]
fn slabs_waste_an_eighth_at_most() {
    let stats = plain().stats();
    assert_eq!(stats.classes.last().map(|class| class.object_bytes), Some(8192));
    for class in stats.classes {
        assert!(class.slab_objects >= 8, "{class:?}");
        let waste = class.slab_bytes - class.slab_objects * class.object_bytes;
        assert!(waste * 8 <= class.slab_bytes, "{class:?}");
    }
}
