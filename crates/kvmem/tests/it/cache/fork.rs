//! Forked children, made while other threads use a cache.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;

use kvmem::cache::KvCache;
use kvmem::cache::KvCacheError;

use super::pool;
use crate::child::{forked, while_threads};

const VALUE: usize = 256;
const KEYS: u64 = 400;

/// Runs `parent` while three threads insert, look up and remove in `cache`.
fn beside_threads(cache: &KvCache<u64>, parent: impl FnOnce()) {
    let rounds = AtomicU64::new(0);
    let work = |thread: u64, call: u64| {
        let bits = (thread << 32 | call).wrapping_mul(0x5851_f42d_4c95_7f2d);
        let key = (bits >> 40) % KEYS;
        match (bits >> 33) % 8 {
            0..3 => drop(cache.get(&key)),
            3 | 4 => drop(cache.remove(&key)),
            _ => cache.insert(key, &[1; VALUE]).unwrap(),
        }
        rounds.fetch_add(1, Ordering::Relaxed);
    };
    while_threads(3, work, || {
        while rounds.load(Ordering::Relaxed) < 1000 {
            thread::yield_now();
        }
        parent();
    });
}

/// Returns the number of the first failed check, for the exit status of a child; 0 if all hold.
fn first_wrong(checks: impl IntoIterator<Item = bool>) -> i32 {
    checks.into_iter().position(|right| !right).map_or(0, |at| at as i32 + 1)
}

#[test]
#[cfg_attr(miri, ignore = "forks")]
fn calls_in_a_child_return_whatever_the_threads_of_its_parent_did() {
    for shards in [1, 4] {
        let pool = pool(1 << 20);
        let cache = KvCache::<u64>::builder(&pool)
            .max_blocks(KEYS / 2)
            .shards(shards)
            .on_evict(|_| ())
            .build()
            .unwrap();
        beside_threads(&cache, || {
            for round in 0..60 {
                let reservation = cache.reserve(u64::MAX, VALUE).unwrap();
                let found = (0..KEYS).find_map(|key| cache.get(&key));
                let status = forked(|| {
                    let key = round % KEYS;
                    let all = first_wrong([
                        cache.is_forked() && reservation.is_forked(),
                        (0..KEYS).all(|key| !cache.contains(&key)),
                        (0..KEYS).all(|key| cache.get(&key).is_none()),
                        cache.insert(key, &[1; VALUE]) == Err(KvCacheError::Forked),
                        cache.insert_filled(key, VALUE, |_| ()) == Err(KvCacheError::Forked),
                        cache.reserve(key, VALUE).is_err_and(|error| error == KvCacheError::Forked),
                        cache.remove_in_memory(&key).is_none(),
                        matches!(cache.remove(&key), Ok(None)),
                        cache.clear().is_ok(),
                        cache.check().is_ok(),
                        cache.evict_to(0) == cache.bytes(),
                        cache.len() == cache.stats().blocks,
                        *reservation.commit().key() == u64::MAX,
                        found.is_none_or(|pinned| {
                            !pinned.clone().is_superseded() || pinned.block().len() == VALUE
                        }),
                        cache.shards() == shards,
                        format!("{cache:?}").contains("lru"),
                    ]);
                    cache.clear_in_memory();
                    drop(cache.clone());
                    all
                });
                assert_eq!(status, 0, "round {round}");
            }
        });
        cache.check().unwrap();
    }
}

#[test]
#[cfg_attr(miri, ignore = "forks")]
fn a_child_may_drop_what_it_inherits_and_make_a_cache_of_its_own() {
    for round in 0..15 {
        let pool = pool(1 << 20);
        let cache = KvCache::<u64>::builder(&pool).max_blocks(KEYS / 2).build().unwrap();
        let mut status = None;
        let mine = cache.clone();
        beside_threads(&cache, || {
            status = Some(forked(|| {
                drop(mine);
                let own = super::pool(1 << 20);
                let fresh = KvCache::new(&own);
                for key in 0..100u64 {
                    fresh.insert(key, &[key as u8; VALUE]).unwrap();
                }
                // A child of the child is a forked process too.
                let deeper = forked(|| {
                    first_wrong([fresh.is_forked(), fresh.get(&1).is_none(), cache.is_forked()])
                });
                let right = fresh.get(&7).is_some_and(|pinned| pinned.bytes() == [7; VALUE]);
                first_wrong([
                    deeper == 0,
                    right,
                    !fresh.is_forked(),
                    cache.is_forked(),
                    fresh.check().is_ok(),
                ])
            }));
        });
        assert_eq!(status, Some(0), "round {round}");
    }
}

/// Forks; returns whether this process is the child.
fn fork_here() -> bool {
    // SAFETY: the child ends with _exit.
    unsafe { libc::fork() == 0 }
}

#[test]
#[cfg_attr(miri, ignore = "forks")]
fn a_callback_may_fork() {
    let status = forked(|| {
        let pool = pool(1 << 20);
        let evictions = AtomicU64::new(0);
        // Only the innermost child sets this; that makes the exit below sound.
        let child = std::sync::Arc::new(AtomicBool::new(false));
        let forks = std::sync::Arc::clone(&child);
        let cache = super::one_shard(&pool, |builder| {
            builder.max_blocks(4).on_evict(move |_| forks.store(fork_here(), Ordering::Relaxed))
        });
        for key in 0..5u64 {
            let put = cache.insert(key, &[1; VALUE]);
            if child.load(Ordering::Relaxed) {
                let right =
                    put == Err(KvCacheError::Forked) && cache.is_forked() && !cache.contains(&key);
                // SAFETY: ends the child at once.
                unsafe { libc::_exit(i32::from(!right)) };
            }
            if put.is_err() {
                return 1;
            }
            evictions.fetch_add(1, Ordering::Relaxed);
        }
        let mut status = 0;
        // SAFETY: waits for our own child.
        unsafe { libc::wait(&mut status) };
        first_wrong([
            libc::WIFEXITED(status),
            libc::WEXITSTATUS(status) == 0,
            cache.check().is_ok(),
        ])
    });
    assert_eq!(status, 0);
}
