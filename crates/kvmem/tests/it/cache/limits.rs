//! Limits, and settings that are errors.

use kvmem::arena::PageSize;
use kvmem::cache::KvCache;
use kvmem::cache::{KvCacheBuilder, KvCacheError, KvCacheSetupError};

use kvmem::pool::{InitOn, Pool};
use kvmem::tier::{Priority, TierHints};

use super::{held, one_shard, pool};

#[test]
fn a_value_that_is_too_large_is_an_error_and_evicts_nothing() {
    let pool = pool(64 << 10);
    for (max_bytes, limit) in [(None, pool.capacity()), (Some(1000), 1000)] {
        let cache = one_shard(&pool, |builder| match max_bytes {
            Some(bytes) => builder.max_bytes(bytes),
            None => builder,
        });
        cache.insert(1, &[1; 900]).unwrap();
        let requested = limit + 1;
        let failed = cache.reserve(2, requested as usize).map(drop);
        assert_eq!(failed, Err(KvCacheError::TooLarge { requested, limit }));
        assert_eq!(cache.insert(2, &[]), Err(KvCacheError::Empty));
        assert_eq!(held(&cache, 0..9), [1]);
        // The largest possible value takes the whole limit.
        drop(cache.reserve(2, limit as usize).unwrap().commit());
        assert_eq!(held(&cache, 0..9), [2]);
    }
}

#[test]
fn a_full_cache_takes_over_blocks_of_the_same_length_and_no_other() {
    for full_pool in [false, true] {
        let pool = pool(64 << 10);
        let cache =
            one_shard(&pool, |builder| if full_pool { builder } else { builder.max_blocks(16) });
        let offset = |key: u64| cache.get(&key).unwrap().block().offset();
        for key in 0..16 {
            cache.insert(key, &[key as u8; 4096]).unwrap();
        }
        // These look-ups leave the order as it is.
        let offsets: Vec<u64> = (0..16).map(offset).collect();
        let pinned = cache.get(&0).unwrap();
        // The victim is the oldest that is not pinned. The hints of its value do not outlive it.
        let hints = TierHints { depth: 7, priority: Priority::MAX, ..TierHints::default() };
        cache.insert_with(16, &[16; 4096], hints).unwrap();
        assert_eq!((offset(16), cache.contains(&1)), (offsets[1], false));
        cache.insert(17, &[17; 4096]).unwrap();
        assert_eq!((offset(17), cache.contains(&2)), (offsets[2], false));
        // A value under its own key goes first, and a shorter one gets a block of its length.
        let own = offset(16);
        cache.insert(16, &[61; 4096]).unwrap();
        assert_eq!((offset(16), cache.get(&16).unwrap().hints()), (own, TierHints::default()));
        cache.insert(18, &[18; 100]).unwrap();
        assert_eq!(cache.get(&18).unwrap().block().len(), 100);
        assert_eq!((pinned.bytes(), cache.len()), (&[0; 4096][..], 16));
        // A reservation that is dropped frees the block that it took over.
        let bytes = cache.bytes();
        let mut room = cache.reserve(19, 4096).unwrap();
        room.bytes_mut().fill(19);
        assert_eq!((cache.bytes(), room.key()), (bytes, &19));
        drop(room);
        assert_eq!((cache.bytes(), pool.metrics().allocated), (bytes - 4096, bytes - 4096));
        // Nothing is evicted for a value that can never fit.
        let len = cache.len();
        assert!(cache.insert(20, &vec![0; pool.capacity() as usize + 1]).is_err());
        assert_eq!(cache.len(), len);
        cache.check().unwrap();
    }
}

/// Bytes that are cleared between two users are cleared for values of a cache, too.
#[test]
fn a_pool_that_clears_bytes_clears_them_for_each_value() {
    for init_on in [InitOn::Alloc, InitOn::Free] {
        let pool = Pool::builder(64 << 10).ladder(PageSize::Base).init_on(init_on).build().unwrap();
        let cache = one_shard(&pool, |builder| builder.max_blocks(4));
        for key in 0..12 {
            cache
                .insert_filled(key, 4096, |bytes| {
                    assert!(bytes.iter().all(|&byte| byte == 0), "{init_on}: key {key}");
                    bytes.fill(7);
                })
                .unwrap();
        }
    }
}

#[test]
fn limits_are_never_exceeded_by_any_number_of_shards() {
    for shards in [1, 4, 64] {
        let pool = pool(1 << 20);
        let builder =
            KvCache::<u64>::builder(&pool).shards(shards).max_bytes(50_000).max_blocks(70);
        let cache = builder.build().unwrap();
        assert_eq!(cache.shards(), shards);
        for key in 0..2000 {
            cache
                .insert_filled(key, 1 + (key as usize * 37) % 3000, |bytes| bytes.fill(1))
                .unwrap();
            assert!(cache.len() <= 70 && cache.bytes() <= 50_000);
            assert!(cache.contains(&key));
        }
        // Each of both limits evicts no more than needed.
        assert!(cache.bytes() > 45_000 || cache.len() > 60, "{cache:?}");
        cache.check().unwrap();
        assert_eq!(cache.evict_to(10_000).min(10_001), cache.bytes());
        cache.clear_in_memory();
        assert_eq!((cache.len(), pool.metrics().allocated), (0, 0));
        cache.check().unwrap();
    }
}

#[test]
fn one_large_value_evicts_evenly_from_all_shards() {
    // The pool has room for everything: values are evicted for the limit alone.
    let pool = pool(2 << 20);
    let cache = KvCache::<u64>::builder(&pool).shards(8).max_bytes(800_000).build().unwrap();
    // Consecutive numbers are avoided: some seeds of the hash spread them unevenly over the shards.
    let key = |number: u64| number.wrapping_mul(number).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    for number in 1..=800 {
        cache.insert_filled(key(number), 1000, |bytes| bytes.fill(1)).unwrap();
    }
    drop(cache.reserve(0, 400_000).unwrap().commit());
    assert_eq!(cache.stats().evictions, 400, "of 800, for half of the bytes");
    // Each shard has 100 blocks and evicts the older 50, so few of the newest 200 are evicted.
    let newest = (601..=800).filter(|&number| cache.contains(&key(number))).count();
    assert!(newest >= 180, "{newest} of the newest 200 are held");
}

#[test]
#[cfg_attr(miri, ignore = "many insertions")]
fn shards_that_evict_several_blocks_in_a_row_evict_what_is_nearly_the_oldest() {
    const HELD: u64 = 16_384;
    let pool = pool(HELD as usize * 128);
    let cache = KvCache::<u64>::builder(&pool).shards(8).max_blocks(HELD).build().unwrap();
    for key in 0..3 * HELD {
        cache.insert(key, &key.to_le_bytes()).unwrap();
    }
    assert_eq!((cache.len(), cache.stats().evictions), (HELD, 2 * HELD));
    // A victim is younger than the oldest by 3/512 of the blocks at most, and by some commits that
    // the clock does not count yet.
    let newest = 2 * HELD + HELD / 64..3 * HELD;
    assert_eq!(newest.clone().find(|key| !cache.contains(key)), None, "{newest:?} are held");
    cache.check().unwrap();
}

#[test]
fn invalid_settings_are_errors() {
    let pool = pool(64 << 10);
    let error = |settings: fn(KvCacheBuilder<u64>) -> KvCacheBuilder<u64>| {
        settings(KvCache::<u64>::builder(&pool)).build().map(drop).unwrap_err()
    };
    assert_eq!(error(|it| it.max_bytes(0)), KvCacheSetupError::ZeroLimit { of: "bytes" });
    assert_eq!(error(|it| it.max_blocks(0)), KvCacheSetupError::ZeroLimit { of: "blocks" });
    let requested = u64::from(u32::MAX);
    assert_eq!(
        error(|it| it.max_blocks(u64::from(u32::MAX))),
        KvCacheSetupError::TooManyBlocks { requested, limit: requested - 15 }
    );
    assert!(matches!(error(|it| it.shards(0)), KvCacheSetupError::Shards { requested: 0, .. }));
    assert!(error(|it| it.shards(1 << 20)).to_string().contains("1048576"));
    // A small limit of blocks gets one shard.
    assert_eq!(KvCache::<u64>::builder(&pool).max_blocks(100).build().unwrap().shards(), 1);
    assert!(KvCache::<u64>::new(&pool).shards() >= 16);
}
