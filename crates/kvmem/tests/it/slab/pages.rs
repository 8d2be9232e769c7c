//! Where slabs come from, and that they go back.

use std::collections::BTreeSet;
use std::ptr::NonNull;
use std::sync::Arc;
use std::time::Duration;

use kvmem::arena::{ExclusiveRegion, Region};
use kvmem::slab::{ManualClock, SlabAllocator, SlabError, SlabSettings};

/// Bytes of this range that are resident.
fn resident(from: usize, len: usize) -> usize {
    let page = kvmem::arena::PageSize::Base.bytes();
    let mut pages = vec![0u8; len / page];
    // SAFETY: a byte for each page; the kernel checks the range.
    let done = unsafe { libc::mincore(from as *mut _, len, pages.as_mut_ptr()) };
    if done != 0 {
        // Not mapped any more: nothing of it is resident.
        return 0;
    }
    pages.iter().filter(|page| **page & 1 == 1).count() * page
}

fn free(slices: &SlabAllocator, blocks: impl IntoIterator<Item = NonNull<u8>>, size: usize) {
    for block in blocks {
        // SAFETY: ours, of this size, freed once.
        unsafe { slices.free(block, size) };
    }
}

#[test]
fn empty_slabs_are_given_back() {
    let slices = SlabAllocator::builder().settings(SlabSettings::default()).build().unwrap();
    let mut blocks = Vec::new();
    slices.alloc_batch(500, 100_000, &mut blocks).unwrap();
    let full = slices.stats();
    assert!(full.slab_bytes > 50_000_000 && full.slab_bytes < 57_000_000, "{}", full.slab_bytes);
    // Every page of a slab was touched by its header or an object.
    for block in &blocks {
        // SAFETY: ours, of this size.
        unsafe { block.write_bytes(1, 500) };
    }
    let spans: BTreeSet<usize> =
        blocks.iter().map(|block| block.addr().get() & !((2 << 20) - 1)).collect();
    let now = || spans.iter().map(|span| resident(*span, 2 << 20)).sum::<usize>();
    assert!(now() > 50_000_000, "{}", now());

    // Every tenth slab stays, so that every span does, and nothing else is mapped there meanwhile.
    // Magazines keep what was freed for their working set's time; trimming does not wait.
    let (blocks, rest): (Vec<_>, Vec<_>) =
        blocks.into_iter().partition(|block| (block.addr().get() / 8192).is_multiple_of(10));
    free(&slices, rest, 500);
    slices.trim();
    let trimmed = slices.stats();
    assert!(trimmed.slab_bytes < 6_000_000 && trimmed.unused_bytes == 0, "{trimmed:?}");
    assert!(now() > 5_000_000 && now() < 8_000_000, "{}", now());

    free(&slices, blocks, 500);
    slices.trim();
    assert_eq!(slices.stats().mapped_bytes, 0);
}

#[test]
fn a_region_is_used_to_its_end_and_held() {
    let region = Region::builder(4 << 20).map().unwrap();
    let range = region.base().addr().get()..region.base().addr().get() + region.len();
    let region = ExclusiveRegion::new(region).unwrap();
    let slices =
        SlabAllocator::builder().settings(SlabSettings::default()).region(region).build().unwrap();
    for _ in 0..3 {
        let mut blocks = Vec::new();
        let error = loop {
            match slices.alloc(1000) {
                Ok(block) => blocks.push(block),
                Err(error) => break error,
            }
        };
        assert_eq!(error, SlabError::NoMemory { requested: 1000 });
        assert!(blocks.len() * 1024 > (4 << 20) * 7 / 8 && blocks.len() * 1000 < 4 << 20);
        assert!(blocks.iter().all(|block| range.contains(&block.addr().get())));
        for block in &blocks {
            // SAFETY: ours, of this size.
            unsafe { block.write_bytes(1, 1000) };
        }
        // Above the limit is the system's.
        let large = slices.alloc(10_000).unwrap();
        assert!(!range.contains(&large.addr().get()));
        free(&slices, [large], 10_000);
        free(&slices, blocks, 1000);
        slices.trim();
        assert_eq!(slices.stats().slab_bytes, 0);
    }
    assert!(resident(range.start, 4 << 20) < 1 << 20);
}

#[test]
fn dropping_frees_what_nobody_freed() {
    let slices = SlabAllocator::builder().settings(SlabSettings::default()).build().unwrap();
    let other = slices.clone();
    let block = slices.alloc(100).unwrap();
    let span = block.addr().get() & !((2 << 20) - 1);
    drop(slices);
    // SAFETY: a handle is left, so the block is still ours.
    unsafe { block.write_bytes(1, 100) };
    assert!(resident(span, 2 << 20) > 0);
    drop(other);
}

#[test]
fn what_nobody_comes_for_is_given_back_in_time() {
    let clock = Arc::new(ManualClock::default());
    let slices = SlabAllocator::builder()
        .settings(SlabSettings::default())
        .clock(clock.clone())
        .working_set(Duration::from_secs(15))
        .build()
        .unwrap();
    let mut blocks = Vec::new();
    slices.alloc_batch(500, 100_000, &mut blocks).unwrap();
    let full = slices.stats().slab_bytes;
    free(&slices, blocks, 500);
    for _ in 0..4 {
        clock.advance(Duration::from_secs(15));
        slices.tick();
    }
    let left = slices.stats();
    assert!(left.slab_bytes + left.unused_bytes < full / 8, "{} of {full}", left.slab_bytes);
}

#[test]
fn what_is_stranded_is_bounded() {
    let slices = SlabAllocator::builder()
        .settings(SlabSettings::default())
        .max_cached_bytes(1 << 20)
        .build()
        .unwrap();
    let mut blocks = Vec::new();
    slices.alloc_batch(500, 20_000, &mut blocks).unwrap();
    free(&slices, blocks, 500);
    let cached = slices.stats().cached_bytes;
    assert!(cached > 0 && cached <= 1 << 20, "{cached}");
}
