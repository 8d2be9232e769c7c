//! No round is lost or duplicated when threads, trims and ends meet.

use loom::sync::Arc;
use loom::sync::atomic::{AtomicBool, Ordering};
use loom::thread;

use super::magazine_model::{MagazineModel, TrackedModel};
use crate::sync::models::preemptions::check;
use crate::sync::models::spawn;

/// One thread works with its cache while another one trims: afterwards every round exists once.
#[test]
fn exchange_against_trim() {
    check(2, || {
        let model = Arc::new(MagazineModel::new(4, 1));
        let cache = model.join();
        let other = spawn(&model, move |model| {
            let rounds: Vec<u32> = (0..3).filter_map(|_| model.get(Some(&cache), true)).collect();
            assert_eq!(rounds.len(), 3);
            rounds.into_iter().for_each(|round| model.put(Some(&cache), round));
            cache
        });
        model.trim();
        let cache = other.join().unwrap();
        model.trim();
        assert_eq!(model.inside(), 4);
        assert!(!model.may_hold());
        model.retire(cache);
    });
}

/// Two threads exchange magazines through the depot, one of them only cached rounds, while the
/// working set is trimmed.
#[test]
fn exchange_against_exchange() {
    check(2, || {
        let model = Arc::new(MagazineModel::new(4, 1));
        let (mine, theirs) = (model.join(), model.join());
        let rounds: Vec<u32> = (0..4).filter_map(|_| model.get(Some(&mine), true)).collect();
        rounds.into_iter().for_each(|round| model.put(Some(&mine), round));
        let other = spawn(&model, move |model| {
            if let Some(got) = model.get(Some(&theirs), false) {
                model.put(Some(&theirs), got);
            }
            theirs
        });
        let got = model.get(Some(&mine), false).expect("cached");
        model.tick();
        model.put(Some(&mine), got);
        let theirs = other.join().unwrap();
        model.retire(theirs);
        model.trim();
        assert_eq!(model.inside(), 4);
        assert!(!model.may_hold());
        model.retire(mine);
    });
}

/// Two memory nodes: a thread takes rounds that the other one put, from the other node's lists,
/// while the working set is trimmed.
#[test]
fn exchange_across_nodes() {
    check(2, || {
        let model = Arc::new(MagazineModel::on_nodes(3, 1, 2));
        let (mine, theirs) = (model.join_on(0), model.join_on(1));
        let rounds: Vec<u32> = (0..3).filter_map(|_| model.get(Some(&mine), true)).collect();
        let said = Arc::new(AtomicBool::new(false));
        let other = {
            let (model, said) = (model.clone(), said.clone());
            thread::spawn(move || {
                let known = said.load(Ordering::Acquire);
                let got = model.get(Some(&theirs), false);
                // One of the three is in the depot by then, because the thread's own magazines hold
                // two.
                assert!(!known || got.is_some());
                if let Some(got) = got {
                    model.put(Some(&theirs), got);
                }
                model.retire(theirs);
            })
        };
        rounds.into_iter().for_each(|round| model.put(Some(&mine), round));
        said.store(true, Ordering::Release);
        model.retire(mine);
        other.join().unwrap();
        assert!(model.may_hold());
        model.tick();
        model.trim();
        assert_eq!(model.inside(), 3);
        assert!(!model.may_hold());
    });
}

#[test]
fn the_end_of_a_thread_against_trim() {
    check(3, || {
        let model = Arc::new(MagazineModel::new(2, 2));
        let cache = model.join();
        let other = spawn(&model, move |model| {
            let round = model.get(Some(&cache), true).expect("no other thread has any");
            model.put(Some(&cache), round);
            model.retire(cache);
        });
        model.trim();
        other.join().unwrap();
        assert_eq!(model.may_hold(), model.inside() < 2);
        model.trim();
        assert_eq!(model.inside(), 2);
        assert!(!model.may_hold());
    });
}

/// Another thread puts a round and announces it. A thread that has seen the announcement finds the
/// round in a cache or, after a trim, in the source. The trim waits for all other rounds that the
/// first thread has in flight.
#[test]
fn reclaim_on_failure_misses_nothing() {
    check(2, || {
        let model = Arc::new(MagazineModel::new(2, 2));
        let said = Arc::new(AtomicBool::new(false));
        let cache = model.join();
        let round = model.get(Some(&cache), true).expect("there are two");
        let rest = model.get(Some(&cache), true).expect("there are two");
        let other = {
            let (model, said) = (model.clone(), said.clone());
            thread::spawn(move || {
                model.put(Some(&cache), round);
                said.store(true, Ordering::Release);
                model.put(Some(&cache), rest);
                model.retire(cache);
            })
        };
        if said.load(Ordering::Acquire) {
            assert!(model.inside() > 0 || model.may_hold());
            model.trim();
            assert!(model.get(None, true).is_some_and(|got| {
                model.put(None, got);
                true
            }));
        }
        other.join().unwrap();
        model.trim();
        assert_eq!(model.inside(), 2);
    });
}

/// A refill takes more rounds than were requested. A concurrent trim returns the surplus to the
/// source.
#[test]
fn a_trim_waits_for_rounds_in_flight() {
    check(3, || {
        let model = Arc::new(MagazineModel::new(2, 2));
        let cache = model.join();
        let other = spawn(&model, move |model| {
            (model.get(Some(&cache), true).expect("at most one is out"), cache)
        });
        let mut got = model.get(None, true);
        if got.is_none() {
            assert!(model.may_hold());
            model.trim();
            got = model.get(None, true);
        }
        model.put(None, got.expect("one is free"));
        let (round, cache) = other.join().unwrap();
        model.put(Some(&cache), round);
        model.retire(cache);
        model.trim();
        assert_eq!(model.inside(), 2);
    });
}

/// One of two numbers is in use, and another thread puts the other one into its cache: a later
/// request gets it.
#[test]
fn a_failed_request_reclaims_what_others_cache() {
    check(2, || {
        let model = Arc::new(TrackedModel::new(2, 1));
        let (mine, theirs) = (model.join(), model.join());
        let out = model.get(Some(&mine), true).expect("there are two");
        let cached = model.get(Some(&theirs), true).expect("there are two");
        let other = spawn(&model, move |model| {
            model.put(Some(&theirs), cached);
            theirs
        });
        let got = model.request(Some(&mine));
        let theirs = other.join().unwrap();
        let got =
            got.or_else(|| model.request(Some(&mine))).expect("it is in a cache and not in use");
        assert!(!model.nothing_cached_fast(Some(&mine)) || model.cached().is_empty());
        [got, out].into_iter().for_each(|round| model.put(Some(&mine), round));
        [mine, theirs].into_iter().for_each(|cache| model.retire(cache));
        model.trim();
        assert_eq!(model.inside(), 2);
    });
}

/// Of two numbers, one is free at every moment: a thread puts its number before another thread
/// takes the one that it has cached. So no request fails, whichever cache it reads first. Two
/// preemptions find the failure of a search that does not compare the counts of puts.
#[test]
fn no_request_fails_while_one_of_two_is_free() {
    for putter_first in [false, true] {
        check(2, move || {
            let model = Arc::new(TrackedModel::new(2, 1));
            let (first, second) = (model.join(), model.join());
            let (putter, requester) = if putter_first { (first, second) } else { (second, first) };
            let (given, cached) = (
                model.get(Some(&putter), true).unwrap(),
                model.get(Some(&requester), true).unwrap(),
            );
            model.put(Some(&requester), cached);
            let said = Arc::new(AtomicBool::new(false));
            let puts = {
                let (model, said) = (model.clone(), said.clone());
                thread::spawn(move || {
                    model.put(Some(&putter), given);
                    said.store(true, Ordering::Release);
                    putter
                })
            };
            let requests = {
                let (model, said) = (model.clone(), said.clone());
                thread::spawn(move || {
                    let taken =
                        said.load(Ordering::Acquire).then(|| model.request(Some(&requester)));
                    (taken, requester)
                })
            };
            let got = model.request(None).expect("one of two is free");
            let putter = puts.join().unwrap();
            let (taken, requester) = requests.join().unwrap();
            let rest: Vec<u32> =
                taken.map(|taken| taken.expect("one of two is free")).into_iter().collect();
            rest.into_iter().chain([got]).for_each(|round| model.put(None, round));
            [putter, requester].into_iter().for_each(|cache| model.retire(cache));
            model.trim();
            assert_eq!(model.inside(), 2);
        });
    }
}

/// The same with one thread that puts one number and takes the other one, while the requesting
/// thread has a cache.
#[test]
fn no_request_fails_while_another_puts_and_gets() {
    check(2, || {
        let model = Arc::new(TrackedModel::new(2, 2));
        let (mine, theirs) = (model.join(), model.join());
        let round = model.get(Some(&theirs), true).expect("there are two");
        let other = spawn(&model, move |model| {
            model.put(Some(&theirs), round);
            let got = model.request(Some(&theirs)).expect("each thread has at most one");
            model.put(Some(&theirs), got);
            theirs
        });
        let got = model.request(Some(&mine)).expect("each thread has at most one");
        model.put(Some(&mine), got);
        let theirs = other.join().unwrap();
        [mine, theirs].into_iter().for_each(|cache| model.retire(cache));
        model.trim();
        assert_eq!(model.inside(), 2);
    });
}

/// After caching is disabled nothing is cached, even if threads put meanwhile.
#[test]
fn nothing_stays_cached_after_caching_is_disabled() {
    check(3, || {
        let model = Arc::new(TrackedModel::new(2, 1));
        let cache = model.join();
        let rounds: Vec<u32> = (0..2).filter_map(|_| model.get(Some(&cache), true)).collect();
        let other = spawn(&model, move |model| {
            rounds.into_iter().for_each(|round| model.put(Some(&cache), round));
            cache
        });
        model.disable_caching();
        let cache = other.join().unwrap();
        assert_eq!(model.inside(), 2);
        assert!(!model.may_hold());
        assert!(model.cached().is_empty());
        model.retire(cache);
    });
}

/// A class is rebound to other numbers while numbers of the old kind are put and fetched: none of
/// these stays cached under the class.
#[test]
fn no_round_stays_under_a_rebound_class() {
    check(3, || {
        let model = Arc::new(TrackedModel::new(3, 1));
        let cache = model.join();
        let old: Vec<u32> = (0..3).filter_map(|_| model.get(Some(&cache), true)).collect();
        let other = spawn(&model, move |model| {
            old.into_iter().for_each(|round| model.put(Some(&cache), round));
            cache
        });
        model.rebind(2);
        let seen = model.cached();
        assert!(seen.iter().all(|round| *round >= 2), "{seen:?}");
        let cache = other.join().unwrap();
        let seen = model.cached();
        assert!(seen.iter().all(|round| *round >= 2), "{seen:?}");
        model.retire(cache);
        model.trim();
        assert_eq!(model.inside(), 3);
    });
}
