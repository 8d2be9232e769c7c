//! Leases, with more threads and steps than loom can check.

use shuttle::sync::Arc;
use shuttle::sync::atomic::{AtomicU64, Ordering};
use shuttle::thread;

use super::cache_model::CacheModel;
use crate::sync::models::random::check;

#[test]
fn no_thread_finds_a_value_older_than_one_that_was_put() {
    check(|| {
        let cache = Arc::new(CacheModel::new(None));
        // The last version put before a lookup began; one thread puts, so versions rise.
        let put = Arc::new(AtomicU64::new(0));
        let mut threads = Vec::new();
        {
            let (cache, put) = (cache.clone(), put.clone());
            threads.push(thread::spawn(move || {
                for version in 1..=3 {
                    cache.put(version);
                    put.store(version, Ordering::SeqCst);
                    if version == 2 {
                        cache.remove();
                    }
                }
            }));
        }
        for _ in 0..2 {
            let cache = cache.clone();
            threads.push(thread::spawn(move || {
                cache.evict();
                cache.evict();
            }));
        }
        for _ in 0..2 {
            let (cache, put) = (cache.clone(), put.clone());
            threads.push(thread::spawn(move || {
                for _ in 0..2 {
                    let known = put.load(Ordering::SeqCst);
                    let (found, _) = cache.get();
                    assert!(found.is_none_or(|found| found >= known), "{found:?} after {known}");
                }
            }));
        }
        for thread in threads {
            thread.join().unwrap();
        }
        cache.end(true);
    });
}
