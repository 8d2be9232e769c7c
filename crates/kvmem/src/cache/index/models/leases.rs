//! Leases: under concurrent insertions, evictions, removals and fetches no thread finds a value
//! that is not the latest, and values that were handed over are found.

use loom::sync::Arc;
use loom::thread;

use super::cache_model::CacheModel;

/// Runs these threads in every order, over a tier that has a value.
fn side_by_side(removed: bool, runs: &'static [fn(&CacheModel)]) {
    let mut builder = loom::model::Builder::new();
    // Three threads have too many orders to check all; errors that need more preemptions than this
    // are rare.
    builder.preemption_bound = (runs.len() > 2).then_some(3);
    builder.check(move || {
        let cache = Arc::new(CacheModel::new(Some(1)));
        let threads: Vec<_> = runs[1..]
            .iter()
            .map(|&run| {
                let cache = cache.clone();
                thread::spawn(move || run(&cache))
            })
            .collect();
        runs[0](&cache);
        for thread in threads {
            thread.join().unwrap();
        }
        cache.end(removed);
    });
}

fn put_and_evict(cache: &CacheModel) {
    cache.put(2);
    cache.evict();
}

fn put_and_evict_another(cache: &CacheModel) {
    cache.put(3);
    cache.evict();
}

fn look(cache: &CacheModel) {
    let (found, _) = cache.get();
    assert!(found.is_none_or(|found| found <= 3));
}

#[test]
fn a_fetch_beside_what_is_put_and_evicted() {
    side_by_side(false, &[put_and_evict, look]);
}

#[test]
fn a_fetch_beside_a_removal() {
    side_by_side(true, &[CacheModel::remove, look]);
}

#[test]
fn two_that_are_handed_over_at_once() {
    side_by_side(false, &[put_and_evict, put_and_evict_another]);
}

#[test]
fn what_is_handed_over_beside_a_removal() {
    side_by_side(true, &[put_and_evict, CacheModel::remove]);
}

#[test]
fn two_fetches_beside_what_is_put() {
    side_by_side(false, &[put_and_evict, look, look]);
}

#[test]
fn all_of_it_at_once() {
    side_by_side(true, &[put_and_evict, CacheModel::remove, look]);
}
