//! Caches above a lower tier.

use std::collections::HashMap;
use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use super::{one_shard, pool};
use crate::cache::KvCache;
use crate::pool::Pool;
use crate::sys::forked;
use crate::tier::{BoxError, Lookup, StoreOutcome, Tier, TierHints, TierHit, TierRead, TierValue};

/// Bytes and hints.
type TestValue = (Vec<u8>, TierHints);

/// A tier in memory whose look-ups panic if that is set.
#[derive(Debug, Default)]
struct MapTier {
    values: Mutex<HashMap<Vec<u8>, TestValue>>,
    panics: AtomicBool,
    /// The calls of [`Tier::fetch`], which wait for this lock.
    fetches: Mutex<u32>,
}

impl Tier for MapTier {
    fn store(&self, values: &[TierValue<'_>]) -> Vec<Result<StoreOutcome, BoxError>> {
        let mut map = self.values.lock().unwrap();
        let mut store = |value: &TierValue<'_>| {
            map.insert(value.key.to_vec(), (value.bytes.to_vec(), value.hints));
            Ok(StoreOutcome::Stored)
        };
        values.iter().map(&mut store).collect()
    }

    fn look_up(&self, keys: &[&[u8]]) -> Vec<Lookup> {
        assert!(!self.panics.load(Ordering::Relaxed), "a fault of the tier");
        let map = self.values.lock().unwrap();
        let look_up = |key: &&[u8]| match map.get(*key) {
            Some((bytes, _)) => Lookup::Found(bytes.len() as u64),
            None => Lookup::Missing,
        };
        keys.iter().map(look_up).collect()
    }

    fn fetch(&self, reads: &mut [TierRead<'_>]) -> Vec<Option<TierHit>> {
        *self.fetches.lock().unwrap() += 1;
        let map = self.values.lock().unwrap();
        let fetch = |read: &mut TierRead<'_>| {
            let (bytes, hints) = map.get(read.key)?;
            read.into.copy_from_slice(bytes);
            Some(TierHit { hints: *hints, ..TierHit::default() })
        };
        reads.iter_mut().map(fetch).collect()
    }

    fn remove(&self, keys: &[&[u8]]) -> Result<(), BoxError> {
        let mut map = self.values.lock().unwrap();
        keys.iter().for_each(|key| drop(map.remove(*key)));
        Ok(())
    }

    fn clear(&self) -> Result<(), BoxError> {
        self.values.lock().unwrap().clear();
        Ok(())
    }

    fn values(&self) -> u64 {
        self.values.lock().unwrap().len() as u64
    }

    fn wait_for_release(&self, seen: u64) -> Option<u64> {
        (seen < 5).then_some(seen + 2)
    }
}

fn above(pool: &Pool) -> (Arc<MapTier>, KvCache<u64>) {
    let tier = Arc::new(MapTier::default());
    let cache = one_shard(pool, |builder| builder.lower_tier(Arc::clone(&tier) as _));
    (tier, cache)
}

#[test]
fn a_value_of_the_tier_is_fetched_once() {
    let pool = pool(64 << 10);
    let (tier, cache) = above(&pool);
    (0..4).for_each(|key| cache.insert(key, &[key as u8; 10]).unwrap());
    assert_eq!(cache.evict_to(0), 0);
    assert_eq!((cache.len_in_memory(), cache.len(), cache.is_empty()), (0, 4, false));
    for _ in 0..2 {
        assert_eq!(cache.get(&1).unwrap().bytes(), [1; 10]);
        assert!(cache.get(&9).is_none());
    }
    assert_eq!(*tier.fetches.lock().unwrap(), 1);
    let found = cache.get_batch(&[1, 9, 3, 0]);
    let bytes = found.iter().map(|it| it.as_ref().map(|it| it.bytes()[0])).collect::<Vec<_>>();
    assert_eq!(bytes, [Some(1), None, Some(3), Some(0)]);
    assert_eq!((*tier.fetches.lock().unwrap(), cache.len_in_memory(), cache.len()), (2, 3, 4));
    cache.clear().unwrap();
    assert!(cache.is_empty() && cache.get(&1).is_none());
}

#[test]
fn a_value_whose_time_has_passed_hides_and_then_removes_the_older_one_of_the_tier() {
    let pool = pool(64 << 10);
    let (tier, cache) = above(&pool);
    cache.insert(1, b"older").unwrap();
    cache.evict_to(0);
    let past = TierHints { ttl: Some(Duration::ZERO), ..TierHints::default() };
    cache.insert_with(1, b"short", past).unwrap();
    assert!(!cache.contains(&1) && tier.values() == 1);
    assert!(cache.get(&1).is_none());
    assert_eq!((cache.len_in_memory(), tier.values(), cache.stats().evictions), (0, 0, 2));
    // A value of the tier is there, and then one that the cache may not fetch.
    cache.insert(1, b"again").unwrap();
    cache.evict_to(0);
    assert!(cache.contains(&1) && !cache.contains(&2));
    let failed = cache.remove_with(&1, || Err("not now"));
    assert!(failed.is_err() && !cache.contains(&1) && cache.get(&1).is_none());
}

#[test]
fn a_tier_that_panics_leaves_no_fetch_behind() {
    let pool = pool(64 << 10);
    let (tier, cache) = above(&pool);
    cache.insert(1, b"one").unwrap();
    cache.evict_to(0);
    tier.panics.store(true, Ordering::Relaxed);
    for _ in 0..2 {
        // Another thread may wait for the same fetch.
        let others = cache.inner.fetches.join([1].iter(), |_, _| true);
        assert!(catch_unwind(AssertUnwindSafe(|| cache.get(&1))).is_err());
        assert!(cache.inner.fetches.are_done(&others));
        assert!(matches!(&cache.inner.fetches.leave(&others, false)[..], [None]));
    }
    tier.panics.store(false, Ordering::Relaxed);
    assert_eq!(cache.get(&1).unwrap().bytes(), b"one");
}

#[test]
fn an_insertion_waits_for_a_tier_that_releases_values() {
    let pool = pool(64 << 10);
    let (_, cache) = above(&pool);
    let waited = [0, 3, 5].map(|seen| cache.inner.waited_for_release(seen));
    assert_eq!(waited, [Some(2), Some(5), None]);
    let plain = one_shard(&pool, |builder| builder);
    assert_eq!(plain.inner.waited_for_release(0), None);
}

#[test]
fn the_drop_of_a_cache_ends_its_threads() {
    let pool = pool(64 << 10);
    let (_, cache) = above(&pool);
    cache.insert(1, b"one").unwrap();
    cache.evict_to(0);
    let found = cache.start_fetch(&[1, 2]).wait();
    assert!(found[0].is_some() && found[1].is_none());
    drop(found);
    let fetches = Arc::clone(&cache.inner.fetches);
    drop(cache);
    assert_eq!(Arc::strong_count(&fetches), 1, "its threads have ended");
    assert!(!fetches.submit(&fetches.join([7].iter(), |_, _| true)), "no other one starts");
}

/// The thread that reads for the parent does not exist in the child.
#[test]
#[cfg_attr(miri, ignore = "forks")]
fn a_child_waits_for_no_fetch() {
    let pool = pool(64 << 10);
    let (tier, cache) = above(&pool);
    cache.insert(1, b"one").unwrap();
    cache.evict_to(0);
    let done = cache.start_fetch(&[1]);
    done.wait_until(Instant::now() + Duration::from_secs(1000));
    assert_eq!(cache.remove_in_memory(&1).unwrap().bytes(), b"one");
    let room = cache.reserve(7, 10).unwrap();
    // The tier does not answer before the child has ended.
    let reading = tier.fetches.lock().unwrap();
    let [mut first, second] = std::array::from_fn(|_| cache.start_fetch(&[1]));
    let status = forked(|| {
        let first = Pin::new(&mut first).poll(&mut Context::from_waker(Waker::noop()));
        let is_right = cache.is_forked()
            && room.is_forked()
            && matches!(first, Poll::Ready(found) if found[0].is_none())
            && second.is_done()
            && second.wait()[0].is_none()
            && done.into_values()[0].is_none()
            && cache.get(&1).is_none()
            && cache.start_fetch(&[1]).wait()[0].is_none()
            && !cache.contains(&1)
            && cache.len() == cache.len_in_memory();
        i32::from(!is_right)
    });
    assert_eq!(status, 0);
    assert!(!room.is_forked() && !first.is_done());
    drop(reading);
    assert_eq!(first.wait()[0].as_ref().unwrap().bytes(), b"one");
    drop(room);
}
