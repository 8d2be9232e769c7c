//! Where slabs get their pages, and that they return them.

use std::collections::BTreeSet;
use std::ptr::NonNull;
use std::sync::Arc;
use std::time::Duration;

use kvmem::arena::{ExclusiveRegion, PageSize, Region};
use kvmem::slab::{ManualClock, SlabAllocator, SlabError, SlabSettings};

/// Returns the resident bytes of a range.
fn resident(from: usize, len: usize) -> usize {
    let page = PageSize::Base.bytes();
    let mut pages = vec![0u8; len / page];
    // SAFETY: the vector has a byte for each page; the kernel checks the range.
    let done = unsafe { libc::mincore(from as *mut _, len, pages.as_mut_ptr()) };
    if done != 0 {
        // Not mapped any more: none of it is resident.
        return 0;
    }
    pages.iter().filter(|page| **page & 1 == 1).count() * page
}

fn free(slabs: &SlabAllocator, blocks: impl IntoIterator<Item = NonNull<u8>>, size: usize) {
    for block in blocks {
        // SAFETY: allocated with this size, freed once.
        unsafe { slabs.free(block, size) };
    }
}

#[test]
fn empty_slabs_are_returned() {
    let slabs = SlabAllocator::builder().settings(SlabSettings::default()).build().unwrap();
    let mut blocks = Vec::new();
    slabs.allocate_batch(500, 100_000, &mut blocks).unwrap();
    let full = slabs.stats();
    assert!(full.slab_bytes > 50_000_000 && full.slab_bytes < 57_000_000, "{}", full.slab_bytes);
    // The header or an object has touched every page of a slab.
    for block in &blocks {
        // SAFETY: the block is in use by this test and has this size.
        unsafe { block.write_bytes(1, 500) };
    }
    let spans: BTreeSet<usize> =
        blocks.iter().map(|block| block.addr().get() & !((2 << 20) - 1)).collect();
    let now = || spans.iter().map(|span| resident(*span, 2 << 20)).sum::<usize>();
    assert!(now() > 50_000_000, "{}", now());

    // Every tenth slab stays, so every span does, and nothing else is mapped there meanwhile.
    // Magazines keep freed blocks for the working set's interval; trimming does not wait.
    let (blocks, rest): (Vec<_>, Vec<_>) =
        blocks.into_iter().partition(|block| (block.addr().get() / 8192).is_multiple_of(10));
    free(&slabs, rest, 500);
    slabs.trim();
    let trimmed = slabs.stats();
    assert!(trimmed.slab_bytes < 6_000_000 && trimmed.unused_bytes == 0, "{trimmed:?}");
    assert!(now() > 5_000_000 && now() < 8_000_000, "{}", now());

    free(&slabs, blocks, 500);
    slabs.trim();
    assert_eq!(slabs.stats().mapped_bytes, 0);
}

#[test]
fn a_region_is_used_completely_and_kept_alive() {
    // Base pages: the kernel may join others to hugepages at any time, which are then resident.
    let region = Region::builder(4 << 20).ladder(PageSize::Base).map().unwrap();
    let range = region.base().addr().get()..region.base().addr().get() + region.len();
    let region = ExclusiveRegion::new(region).unwrap();
    let slabs =
        SlabAllocator::builder().settings(SlabSettings::default()).region(region).build().unwrap();
    for _ in 0..3 {
        let mut blocks = Vec::new();
        let error = loop {
            match slabs.allocate(1000) {
                Ok(block) => blocks.push(block),
                Err(error) => break error,
            }
        };
        assert_eq!(error, SlabError::NoMemory { requested: 1000 });
        assert!(blocks.len() * 1024 > (4 << 20) * 7 / 8 && blocks.len() * 1000 < 4 << 20);
        assert!(blocks.iter().all(|block| range.contains(&block.addr().get())));
        for block in &blocks {
            // SAFETY: the block is in use by this test and has this size.
            unsafe { block.write_bytes(1, 1000) };
        }
        // A block above the limit comes from the system.
        let large = slabs.allocate(10_000).unwrap();
        assert!(!range.contains(&large.addr().get()));
        free(&slabs, [large], 10_000);
        free(&slabs, blocks, 1000);
        slabs.trim();
        assert_eq!(slabs.stats().slab_bytes, 0);
    }
    assert!(resident(range.start, 4 << 20) < 1 << 20);
}

#[test]
fn dropping_frees_blocks_in_use() {
    let slabs = SlabAllocator::builder().settings(SlabSettings::default()).build().unwrap();
    let other = slabs.clone();
    let block = slabs.allocate(100).unwrap();
    let span = block.addr().get() & !((2 << 20) - 1);
    drop(slabs);
    // SAFETY: a handle remains, so the block is still valid.
    unsafe { block.write_bytes(1, 100) };
    assert!(resident(span, 2 << 20) > 0);
    drop(other);
}

#[test]
fn idle_magazines_are_returned_in_time() {
    let clock = Arc::new(ManualClock::default());
    let slabs = SlabAllocator::builder()
        .settings(SlabSettings::default())
        .clock(clock.clone())
        .working_set(Duration::from_secs(15))
        .build()
        .unwrap();
    let mut blocks = Vec::new();
    slabs.allocate_batch(500, 100_000, &mut blocks).unwrap();
    let full = slabs.stats().slab_bytes;
    free(&slabs, blocks, 500);
    for _ in 0..4 {
        clock.advance(Duration::from_secs(15));
        slabs.tick();
    }
    let remaining = slabs.stats();
    assert!(
        remaining.slab_bytes + remaining.unused_bytes < full / 8,
        "{} of {full}",
        remaining.slab_bytes
    );
}

#[test]
fn cached_bytes_are_bounded() {
    let slabs = SlabAllocator::builder()
        .settings(SlabSettings::default())
        .max_cached_bytes(1 << 20)
        .build()
        .unwrap();
    let mut blocks = Vec::new();
    slabs.allocate_batch(500, 20_000, &mut blocks).unwrap();
    free(&slabs, blocks, 500);
    let cached = slabs.stats().cached_bytes;
    assert!(cached > 0 && cached <= 1 << 20, "{cached}");
}
