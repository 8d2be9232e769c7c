//! Fetches from the lower tier: shared, in the background, with deadlines, cancelled.

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};
use std::time::{Duration, Instant};

use kvmem::cache::KvCache;
use kvmem::cache::{Fetching, Pinned};
use kvmem::pool::Pool;
use kvmem::tier::Tier;
use kvmem_testkit::random::Random;

use super::below::{Below, Mood};
use super::pool;
use crate::child::forked;

fn value(key: u64) -> Vec<u8> {
    vec![key as u8; 1000 + key as usize]
}

/// Returns a cache above a tier that has values under the keys 0..100.
fn above(pool: &Pool) -> (Arc<Below>, KvCache<u64>) {
    let below = Arc::new(Below::default());
    below.state().values = (0..100).map(|key| (key, value(key))).collect();
    let tier: Arc<dyn Tier> = Arc::clone(&below) as _;
    (below, KvCache::builder(pool).lower_tier(tier).fetch_threads(2).build().unwrap())
}

fn check(keys: &[u64], found: &[Option<Pinned<u64>>]) {
    assert_eq!(keys.len(), found.len());
    for (&key, found) in keys.iter().zip(found) {
        let known = (key < 100).then(|| value(key));
        assert_eq!(found.as_ref().map(|found| found.to_vec()), known, "{key}");
    }
}

fn soon() -> Instant {
    Instant::now() + Duration::from_secs(60)
}

/// Returns how often the tier read each of the keys that it read, in their order.
fn reads(below: &Below) -> Vec<u64> {
    let mut keys: Vec<u64> = below.state().reads.concat();
    keys.sort_unstable();
    keys
}

/// Makes each of the two threads in the background read one of the keys.
fn both_threads_read(below: &Below, cache: &KvCache<u64>, keys: [u64; 2]) -> Vec<Fetching<u64>> {
    let start = |(calls, key)| {
        let fetching = cache.start_fetch(&[key]);
        below.wait_for(calls);
        fetching
    };
    (1..).zip(keys).map(start).collect()
}

#[test]
fn threads_that_want_a_value_at_once_share_one_read() {
    let pool = pool(1 << 20);
    let (below, cache) = above(&pool);
    below.stop(true);
    thread::scope(|scope| {
        let first = scope.spawn(|| check(&[1, 2], &cache.get_batch(&[1, 2])));
        below.wait_for(1);
        // The others have begun to wait, or find the value afterwards.
        let others: Vec<_> = (0..4)
            .map(|_| scope.spawn(|| check(&[2, 1, 1, 3], &cache.get_batch(&[2, 1, 1, 3]))))
            .collect();
        let background = cache.start_fetch(&[1, 2]);
        thread::sleep(Duration::from_millis(30));
        assert!(!background.is_done() && !first.is_finished());
        below.stop(false);
        check(&[1, 2], &background.wait());
        others.into_iter().for_each(|thread| thread.join().unwrap());
    });
    assert_eq!(reads(&below), [1, 2, 3]);
    // All of them are in memory.
    check(&[1, 2, 3], &cache.get_batch(&[1, 2, 3]));
    assert_eq!(reads(&below), [1, 2, 3]);
}

#[test]
fn a_fetch_in_the_background_is_shared_and_its_values_are_in_memory() {
    let pool = pool(1 << 20);
    let (below, cache) = above(&pool);
    let keys: Vec<u64> = (0..90).collect();
    let fetching = cache.start_fetch(&keys);
    assert!(fetching.wait_until(soon()) && fetching.is_done());
    assert!(keys.iter().all(|key| cache.contains_in_memory(key)));
    check(&keys, &fetching.into_values());
    assert_eq!(reads(&below), keys);
    // A look-up reads itself what no thread in the background has begun to read.
    below.stop(true);
    below.state().values.extend((200..210).map(|key| (key, value(key))));
    let mut blocked = both_threads_read(&below, &cache, [200, 201]);
    blocked.extend([202, 203].map(|key| cache.start_fetch(&[key])));
    thread::scope(|scope| {
        scope.spawn(|| {
            assert!(cache.get_batch(&[203])[0].is_some());
        });
        below.wait_for(3);
        below.stop(false);
    });
    for fetching in blocked {
        assert!(fetching.wait()[0].is_some());
    }
    assert_eq!(reads(&below)[90..], [200, 201, 202, 203]);
}

#[test]
fn a_deadline_returns_what_is_there_and_the_rest_arrives_later() {
    let pool = pool(1 << 20);
    let (below, cache) = above(&pool);
    cache.insert(1, &value(1)).unwrap();
    below.stop(true);
    let begin = Instant::now();
    let found = cache.get_batch_until(&[1, 2, 500], begin + Duration::from_millis(30));
    assert!(begin.elapsed() >= Duration::from_millis(30));
    assert!(found[0].is_some() && found[1].is_none() && found[2].is_none());
    below.stop(false);
    // The read had begun.
    while !cache.contains_in_memory(&2) {
        assert!(begin.elapsed() < Duration::from_secs(60));
        thread::yield_now();
    }
    check(&[1, 2, 500], &cache.get_batch_until(&[1, 2, 500], soon()));
    assert_eq!(reads(&below), [2]);
}

#[test]
fn a_dropped_fetch_cancels_what_has_not_begun_and_a_detached_one_goes_on() {
    let pool = pool(1 << 20);
    let (below, cache) = above(&pool);
    below.stop(true);
    let busy = both_threads_read(&below, &cache, [1, 2]);
    // These wait.
    let (cancelled, shared) = (cache.start_fetch(&[3, 4]), cache.start_fetch(&[4]));
    cache.start_fetch(&[5]).detach();
    drop(cancelled);
    below.stop(false);
    assert!(shared.wait_until(soon()));
    for fetching in busy {
        assert!(fetching.wait()[0].is_some());
    }
    while !cache.contains_in_memory(&5) {
        thread::yield_now();
    }
    assert!(!cache.contains_in_memory(&3));
    assert_eq!(reads(&below), [1, 2, 4, 5]);
    drop(shared);
    // Nothing is pinned any more, once the thread in the background has let go of its value.
    let until = soon();
    while cache.evict_to(0) != 0 && Instant::now() < until {
        thread::yield_now();
    }
    assert_eq!(cache.len_in_memory(), 0);
}

/// A slow tier writes into the memory of a fetch long after the last caller has dropped it. Until
/// then no other value gets that memory, however many come.
#[test]
fn a_dropped_fetch_lends_its_memory_until_the_tier_has_written() {
    let pool = pool(1 << 20);
    let (below, cache) = above(&pool);
    below.stop(true);
    drop(both_threads_read(&below, &cache, [90, 91]));
    // Most of the memory, which is used again and again. The tier would wait with what is evicted.
    let keys = 1000..1800;
    for round in 0..3 {
        if round > 0 {
            keys.clone().for_each(|key| drop(cache.remove_in_memory(&key)));
        }
        for key in keys.clone() {
            cache.insert(key, &vec![key as u8 | 0x80; value(91).len()]).unwrap();
        }
    }
    below.stop(false);
    let until = soon();
    while reads(&below) != [90, 91] || below.state().waiting > 0 {
        assert!(Instant::now() < until, "the tier has read nothing");
        thread::yield_now();
    }
    drop(cache.start_fetch(&[92]).wait());
    for key in keys {
        let found = cache.get_in_memory(&key).expect("there was room for all");
        assert!(found.iter().all(|byte| *byte == key as u8 | 0x80), "{key} has other bytes");
    }
}

struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

#[test]
fn a_fetch_is_a_future() {
    let pool = pool(1 << 20);
    let (below, cache) = above(&pool);
    below.stop(true);
    let mut fetching = pin!(cache.start_fetch(&[1, 2, 300]));
    let waker = Waker::from(Arc::new(Unpark(thread::current())));
    let mut context = Context::from_waker(&waker);
    assert!(fetching.as_mut().poll(&mut context).is_pending());
    below.wait_for(1);
    below.stop(false);
    let found = loop {
        match fetching.as_mut().poll(&mut context) {
            Poll::Ready(found) => break found,
            Poll::Pending => thread::park(),
        }
    };
    check(&[1, 2, 300], &found);
}

struct Panics;

impl Wake for Panics {
    fn wake(self: Arc<Self>) {
        panic!("the waker panics, as the test requested");
    }
}

#[test]
fn a_waker_that_panics_leaves_no_other_fetch_unfinished() {
    let pool = pool(1 << 20);
    let (below, cache) = above(&pool);
    below.stop(true);
    let both = cache.start_fetch(&[1, 2]);
    below.wait_for(1);
    for key in [1, 2] {
        let mut joined = pin!(cache.start_fetch(&[key]));
        let waker = Waker::from(Arc::new(Panics));
        assert!(joined.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
    }
    below.stop(false);
    assert!(both.wait_until(soon()));
    assert!(cache.contains_in_memory(&1) && cache.contains(&2));
    check(&[3], &cache.start_fetch(&[3]).wait());
}

/// A look-up after a removal does not get the value of a fetch that began before it.
#[test]
fn a_look_up_does_not_share_a_read_that_began_before_a_change() {
    let pool = pool(1 << 20);
    let (below, cache) = above(&pool);
    below.stop(true);
    let early = cache.start_fetch(&[1]);
    below.wait_for(1);
    // Written behind the cache, and then removed in it.
    below.state().values.insert(1, vec![77; 9]);
    drop(cache.remove_in_memory(&1));
    thread::scope(|scope| {
        scope.spawn(|| {
            let found = cache.get_batch(&[1]);
            assert_eq!(found[0].as_ref().unwrap().bytes(), [77; 9]);
        });
        below.wait_for(2);
        below.stop(false);
    });
    let found = early.wait();
    assert!(found[0].as_ref().is_none_or(|found| found.bytes() == [77; 9]));
}

#[test]
fn a_tier_that_panics_ends_the_fetches_that_others_wait_for() {
    let pool = pool(1 << 20);
    let (below, cache) = above(&pool);
    below.state().reading = Mood::Panics;
    assert!(cache.start_fetch(&[1]).wait_until(soon()));
    below.stop(true);
    thread::scope(|scope| {
        let panics = scope.spawn(|| drop(cache.get_batch(&[1])));
        below.wait_for(1);
        let waits = scope.spawn(|| assert!(cache.get_batch(&[1]).len() == 1));
        thread::sleep(Duration::from_millis(20));
        below.stop(false);
        panics.join().unwrap_err();
        // It shared the read, or made one of its own that panicked.
        let _ = waits.join();
    });
    below.state().reading = Mood::Works;
    check(&[1], &cache.get_batch(&[1]));
    check(&[2], &cache.start_fetch(&[2]).wait());
}

#[test]
#[cfg_attr(miri, ignore = "forks")]
fn a_fetch_ends_in_a_child() {
    let pool = pool(1 << 20);
    let (below, cache) = above(&pool);
    below.stop(true);
    let fetching = cache.start_fetch(&[1]);
    below.wait_for(1);
    let wrong = forked(|| {
        let calls = [
            fetching.is_done() && fetching.wait_until(Instant::now()),
            cache.start_fetch(&[2]).wait()[0].is_none(),
            cache.get_batch_until(&[2], Instant::now())[0].is_none(),
        ];
        calls.into_iter().position(|right| !right).map_or(0, |at| at as i32 + 1)
    });
    assert_eq!(wrong, 0);
    below.stop(false);
    check(&[1], &fetching.wait());
}

/// The last handle may be that of a thread in the background.
#[test]
fn the_cache_may_end_while_it_fetches() {
    let pool = pool(1 << 20);
    let (below, cache) = above(&pool);
    below.stop(true);
    cache.start_fetch(&[1, 2, 3]).detach();
    below.wait_for(1);
    drop(cache);
    below.stop(false);
    let begin = Instant::now();
    // Values, blocks and the tier are released.
    while pool.metrics().allocated > 0 || Arc::strong_count(&below) > 1 {
        assert!(begin.elapsed() < Duration::from_secs(60));
        thread::yield_now();
    }
}

/// Threads look the same keys up in every way while others insert and evict.
#[test]
fn look_ups_in_every_way_find_what_is_there() {
    let pool = pool(64 << 10);
    let (_, cache) = above(&pool);
    thread::scope(|scope| {
        for seed in 0..4 {
            let cache = &cache;
            scope.spawn(move || {
                let mut random = Random::new(seed);
                for _ in 0..400 {
                    let keys: Vec<u64> = (0..4).map(|_| random.below(100)).collect();
                    let found = match random.below(5) {
                        0 => cache.start_fetch(&keys).wait(),
                        1 => cache.get_batch_until(&keys, soon()),
                        2 => {
                            drop(cache.start_fetch(&keys));
                            continue;
                        }
                        3 => {
                            cache.evict_to(cache.bytes() / 2);
                            continue;
                        }
                        _ => cache.get_batch(&keys),
                    };
                    for (&key, found) in keys.iter().zip(found) {
                        // A key may be in flight to the tier.
                        assert!(found.is_none_or(|found| found.to_vec() == value(key)), "{key}");
                    }
                }
            });
        }
    });
    cache.check().unwrap();
    assert_eq!(cache.evict_to(0), 0);
}
