//! Memory that is registered with the rings of a device.

use std::path::Path;
use std::sync::Arc;

use kvmem::arena::{Backing, PageSize, Region};
use kvmem::pool::{Block, Pool};
use kvmem::tier::TierRead;
use kvmem_tier::device::{Engine, FileDevice, FixedBuffersError};
use kvmem_tier::{DiskTier, DiskTierOptions, Fetched};

use crate::files::temp_path;

/// Opens a tier, and registers a pool with it. `None`, and a line about it, if this machine does
/// not allow that.
fn tier_and_pool(file: &Path) -> Option<(DiskTier, Pool)> {
    let device = FileDevice::open(file, 32 << 20, 8).unwrap();
    let (tier, _) = DiskTier::on(device, &DiskTierOptions::default()).unwrap();
    let pool = Pool::builder("4 MiB").ladder(PageSize::Base).build().unwrap();
    match tier.register_memory(&pool) {
        Ok(()) => Some((tier, pool)),
        Err(error) => {
            println!("skipped: {error}");
            None
        }
    }
}

/// Stores blocks of `len` bytes, and fetches them into others; returns how many transfers used a
/// fixed buffer.
fn round_trip(tier: &DiskTier, pool: &Pool, len: usize, count: usize) -> u64 {
    let before = tier.device().fixed_buffers().transfers;
    let allocate = || pool.allocate_aligned(len, 4096).unwrap();
    let mut source: Vec<Block> = (0..count).map(|_| allocate()).collect();
    let mut target: Vec<Block> = (0..count).map(|_| allocate()).collect();
    for (number, block) in source.iter_mut().enumerate() {
        block.bytes_mut().fill(number as u8 + 1);
    }
    let keys: Vec<[u8; 16]> =
        (0..count).map(|number| ((len as u128) << 64 | number as u128).to_le_bytes()).collect();
    let batch: Vec<(&[u8], &[u8])> =
        keys.iter().zip(&source).map(|(key, block)| (&key[..], block.bytes())).collect();
    assert!(tier.store(&batch).iter().all(Result::is_ok));
    let mut requests: Vec<TierRead<'_>> = keys
        .iter()
        .zip(&mut target)
        .map(|(key, block)| TierRead { key, into: block.bytes_mut() })
        .collect();
    assert!(tier.fetch(&mut requests).iter().all(|&found| found == Fetched::Hit));
    for (source, target) in source.iter().zip(&target) {
        assert_eq!(source.bytes(), target.bytes());
    }
    tier.device().fixed_buffers().transfers - before
}

#[test]
fn whole_blocks_of_registered_memory_need_no_pinning() {
    let file = temp_path("fixed");
    let Some((tier, pool)) = tier_and_pool(&file) else { return };
    assert_eq!(tier.device().fixed_buffers().bytes, pool.capacity());
    assert_eq!(round_trip(&tier, &pool, 65_536, 20), 40, "20 writes and 20 reads");
    // A padded block is written from elsewhere.
    assert!(round_trip(&tier, &pool, 70_001, 10) <= 10);
    // Other memory is transferred as before.
    let value = vec![9; 65_536];
    let before = tier.device().fixed_buffers().transfers;
    tier.store(&[(b"elsewhere", &value)]).remove(0).unwrap();
    assert_eq!(tier.device().fixed_buffers().transfers, before);
    // A value that was written from elsewhere is read into registered memory.
    let mut block = pool.allocate_aligned(65_536, 4096).unwrap();
    let request = TierRead { key: b"elsewhere", into: block.bytes_mut() };
    assert_eq!(tier.fetch(&mut [request]), [Fetched::Hit]);
    assert_eq!(block.bytes(), value);
    assert_eq!(tier.device().fixed_buffers().transfers, before + 1);
}

#[test]
fn memory_is_registered_and_deregistered_at_any_time() {
    let file = temp_path("fixed-changes");
    let Some((tier, pool)) = tier_and_pool(&file) else { return };
    let other = Pool::builder("2 MiB").ladder(PageSize::Base).build().unwrap();
    for _ in 0..3 {
        tier.register_memory(&other).unwrap();
        // Again: it is not counted twice.
        tier.register_memory(&pool).unwrap();
        assert_eq!(tier.device().fixed_buffers().bytes, pool.capacity() + other.capacity());
        assert_eq!(round_trip(&tier, &other, 32_768, 5), 10);
        tier.deregister_memory(&other);
        assert_eq!(tier.device().fixed_buffers().bytes, pool.capacity());
        assert_eq!(round_trip(&tier, &other, 32_768, 5), 0);
        assert_eq!(round_trip(&tier, &pool, 32_768, 5), 10);
    }
    // The memory of a pool that was dropped stays mapped until the tier is dropped.
    drop(pool);
    assert!(tier.device().fixed_buffers().bytes > 0);
    assert_eq!(round_trip(&tier, &other, 32_768, 5), 0);
}

#[test]
fn each_thread_has_a_ring_with_the_buffers() {
    let file = temp_path("fixed-threads");
    let Some((tier, pool)) = tier_and_pool(&file) else { return };
    let extra = Pool::builder("1 MiB").ladder(PageSize::Base).build().unwrap();
    std::thread::scope(|scope| {
        for thread in 1..4 {
            let (tier, pool) = (&tier, &pool);
            scope.spawn(move || {
                for _ in 0..50 {
                    round_trip(tier, pool, thread * 8192, 4);
                }
            });
        }
        // The table changes beneath them.
        for _ in 0..50 {
            tier.register_memory(&extra).unwrap();
            tier.deregister_memory(&extra);
        }
    });
    assert_eq!(round_trip(&tier, &pool, 8192, 4), 8);
    assert_eq!(tier.stats().checksum_misses, 0);
}

#[test]
fn a_device_without_rings_has_no_fixed_buffers() {
    let file = temp_path("fixed-threads-engine");
    let device = FileDevice::open(&file, 8 << 20, 8).unwrap().without_rings();
    let (tier, _) = DiskTier::on(device, &DiskTierOptions::default()).unwrap();
    let pool = Pool::builder("1 MiB").ladder(PageSize::Base).build().unwrap();
    let error = tier.register_memory(&pool).unwrap_err();
    assert!(matches!(error, FixedBuffersError::NoRings), "{error}");
    assert_eq!(tier.device().engine(), Engine::Threads);
    assert_eq!(round_trip(&tier, &pool, 8192, 4), 0);
}

#[test]
fn memory_of_another_allocator_is_registered_as_a_region() {
    let file = temp_path("fixed-region");
    let Some((tier, pool)) = tier_and_pool(&file) else { return };
    tier.deregister_memory(&pool);
    let builder = Region::builder(1 << 20).ladder(PageSize::Base);
    let region = Arc::new(builder.backing(Backing::Shared).map().unwrap());
    tier.register_region(&region).unwrap();
    tier.register_region(&region).unwrap();
    assert_eq!(tier.device().fixed_buffers().bytes, 1 << 20, "registered once");
    // SAFETY: nothing else uses the region, which lives until the end of the test.
    let memory = unsafe { std::slice::from_raw_parts_mut(region.base().as_ptr(), 1 << 20) };
    let (source, target) = memory.split_at_mut(1 << 19);
    source[..65_536].fill(7);
    assert!(tier.store(&[(b"key", &source[..65_536])]).iter().all(Result::is_ok));
    let into = &mut target[..65_536];
    assert_eq!(tier.fetch(&mut [TierRead { key: b"key", into }]), [Fetched::Hit]);
    assert_eq!(source[..65_536], target[..65_536]);
    assert_eq!(tier.device().fixed_buffers().transfers, 2);
    let memory_users = Arc::strong_count(&region);
    tier.deregister_region(&region);
    tier.deregister_region(&region);
    assert!(Arc::strong_count(&region) < memory_users);
    assert_eq!(tier.device().fixed_buffers().bytes, 0);
}
