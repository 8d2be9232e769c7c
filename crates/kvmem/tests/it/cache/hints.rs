//! Hints of values: they travel to the tier and back, and values expire.

use std::sync::Arc;
use std::thread;
use std::time::Duration;

use kvmem::cache::{KvCache, KvCacheError, KvCacheSetupError};
use kvmem::pool::Pool;
use kvmem::tier::{DataType, Priority, Tier, TierHints, TierKey, TierValue, WriteBehind};
use kvmem_testkit::counting_tier::CountingTier;

use super::{one_shard, pool};

const HOUR: Duration = Duration::from_secs(3600);
/// Long enough for a look-up in time, and short enough to wait for.
const SHORT: Duration = Duration::from_millis(400);

fn hints(ttl: Duration) -> TierHints {
    TierHints { priority: Priority::MAX, ttl: Some(ttl), depth: 5, data_type: DataType::Float16 }
}

fn above(pool: &Pool) -> (Arc<CountingTier>, KvCache<u64>) {
    let tier = Arc::new(CountingTier::default());
    let cache = one_shard(pool, |builder| builder.lower_tier(Arc::clone(&tier) as _));
    (tier, cache)
}

fn check(hints: TierHints) {
    let TierHints { priority, depth, data_type, .. } = hints;
    assert_eq!((priority, depth, data_type), (Priority::MAX, 5, DataType::Float16));
    assert!(hints.ttl.is_some_and(|left| left <= HOUR && left > HOUR / 2), "{hints:?}");
}

#[test]
fn hints_travel_to_the_tier_and_back() {
    let pool = pool(1 << 20);
    for writes_behind in [false, true] {
        let tier = Arc::new(CountingTier::default());
        let mut below = Arc::clone(&tier) as Arc<dyn Tier>;
        if writes_behind {
            below = Arc::new(WriteBehind::builder(&pool, below).build().unwrap());
        }
        let cache = one_shard(&pool, |builder| builder.lower_tier(Arc::clone(&below)));
        cache.insert_with(1, b"hinted", hints(HOUR)).unwrap();
        cache.insert(2, b"plain").unwrap();
        check(cache.get(&1).unwrap().hints());
        for _ in 0..2 {
            cache.evict_to(0);
            below.sync().unwrap();
            check(tier.hints(&1_u64.key_bytes()).unwrap());
            assert_eq!(tier.hints(&2_u64.key_bytes()), Some(TierHints::default()));
            check(cache.get(&1).unwrap().hints());
            assert_eq!(cache.get(&2).unwrap().hints(), TierHints::default());
        }
        // A new value has its own hints.
        cache.insert(1, b"plain").unwrap();
        assert_eq!(cache.get(&1).unwrap().hints(), TierHints::default());
    }
}

#[test]
fn each_data_type_and_the_highest_depth_travel_together() {
    let pool = pool(1 << 20);
    let cache = one_shard(&pool, |builder| builder);
    for data_type in DataType::ALL {
        assert_eq!(DataType::named(data_type.name()), Some(data_type));
        for (depth, expected) in [(0, 0), (7, 7), (u32::MAX, (1 << 29) - 1)] {
            let hints = TierHints { depth, data_type, ..TierHints::default() };
            cache.insert_with(1, b"typed", hints).unwrap();
            let expected = TierHints { depth: expected, ..hints };
            assert_eq!(cache.get(&1).unwrap().hints(), expected);
        }
    }
    assert_eq!(DataType::named("float64"), None);
}

#[test]
fn an_expired_value_is_a_miss_and_leaves_no_older_one() {
    let pool = pool(1 << 20);
    for how in 0..4 {
        let (tier, cache) = above(&pool);
        cache.insert(1, b"older").unwrap();
        cache.evict_to(0);
        assert!(tier.hints(&1_u64.key_bytes()).is_some());
        cache.insert_with(1, b"short", hints(SHORT)).unwrap();
        let pinned = cache.get(&1).unwrap();
        // A use does not make it live longer.
        thread::sleep(SHORT / 2);
        assert!(cache.contains(&1));
        thread::sleep(SHORT / 2 + Duration::from_millis(1));
        tier.take_calls();
        assert!(!cache.contains_in_memory(&1) && cache.get_in_memory(&1).is_none());
        assert!(!cache.contains(&1));
        assert_eq!(tier.take_calls(), "-");
        match how {
            0 => assert!(cache.get(&1).is_none()),
            1 => assert!(cache.get_batch(&[1])[0].is_none()),
            2 => assert!(cache.remove(&1).unwrap().is_none()),
            _ => assert_eq!(
                {
                    drop(pinned.clone());
                    cache.len()
                },
                1
            ),
        }
        if how == 3 {
            drop(pinned);
            cache.evict_to(0);
        } else {
            assert_eq!((pinned.bytes(), pinned.hints().ttl), (&b"short"[..], Some(Duration::ZERO)));
        }
        assert_eq!(tier.hints(&1_u64.key_bytes()), None, "{how}");
        assert_eq!((cache.len_in_memory(), cache.len()), (0, 0), "{how}");
        cache.check().unwrap();
        // The key works as before.
        cache.insert(1, b"newer").unwrap();
        assert_eq!(cache.get(&1).unwrap().bytes(), b"newer");
    }
}

#[test]
fn values_expire_without_a_tier_and_with_exact_uses() {
    let pool = pool(1 << 20);
    for exact in [false, true] {
        let cache = one_shard(&pool, |builder| builder.exact_recency(exact));
        cache.insert_with(1, b"short", hints(SHORT)).unwrap();
        cache.insert(2, b"stays").unwrap();
        for _ in 0..3 {
            assert!(cache.get(&1).is_some() && cache.get(&2).is_some());
        }
        thread::sleep(SHORT);
        assert!(cache.get(&1).is_none() && cache.get(&2).is_some());
        assert_eq!(cache.stats().misses, 1);
        cache.check().unwrap();
        // A time that no clock reaches is forever.
        cache.insert_with(1, b"forever", hints(Duration::MAX)).unwrap();
        assert_eq!(cache.get(&1).unwrap().hints().ttl, None);
    }
}

#[test]
fn a_value_that_the_tier_finds_after_its_time_is_a_miss() {
    let pool = pool(1 << 20);
    let (tier, cache) = above(&pool);
    let value =
        TierValue::new(&[1, 0, 0, 0, 0, 0, 0, 0], b"late").with_hints(hints(Duration::ZERO));
    tier.store(&[value]).pop().unwrap().unwrap();
    assert!(cache.get(&1).is_none());
    assert_eq!(cache.len_in_memory(), 0);
}

#[test]
fn a_batch_is_inserted_as_a_whole_or_not_at_all() {
    let pool = pool(1 << 20);
    let cache = one_shard(&pool, |builder| builder.max_blocks(3));
    cache.insert_batch([]).unwrap();
    let (one, other) = (hints(HOUR), TierHints::default());
    cache.insert_batch([(1, &b"one"[..], one), (2, b"other", other), (2, b"last", one)]).unwrap();
    assert_eq!((cache.get(&2).unwrap().bytes(), cache.len()), (&b"last"[..], 2));
    check(cache.get(&1).unwrap().hints());
    let many: Vec<(u64, &[u8], TierHints)> = (10..14).map(|key| (key, &b"v"[..], one)).collect();
    assert!(matches!(cache.insert_batch(many), Err(KvCacheError::NothingToEvict { .. })));
    assert!((10..14).all(|key| !cache.contains(&key)));
}

#[test]
fn a_cache_has_a_callback_or_a_tier() {
    let pool = pool(1 << 20);
    for is_first in [false, true] {
        let tier: Arc<dyn Tier> = Arc::new(CountingTier::default());
        let mut builder = KvCache::<u64>::builder(&pool);
        if is_first {
            builder = builder.on_evict(drop);
        }
        builder = builder.lower_tier(tier);
        assert!(is_first || builder.build().is_ok());
        if !is_first {
            builder = builder.on_evict(drop);
        }
        let error = builder.build().unwrap_err();
        assert_eq!(error, KvCacheSetupError::TwoSinks);
        assert!(error.to_string().contains("on_evict and lower_tier are both set"), "{error}");
    }
}
