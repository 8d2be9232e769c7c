//! Magazines: the owner's lock keeps others out, and no round is lost or doubled where threads,
//! trims and ends meet.

use kvmem::slab::loom_face::{MagazineModel, OwnerModel, TrackedModel};
use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::sync::atomic::{AtomicBool, Ordering};
use loom::thread;

/// Many steps to an operation: all orders with so many changes of thread where none was due.
fn model(preemptions: usize, run: impl Fn() + Send + Sync + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(preemptions);
    builder.check(run);
}

/// A number that only who has the lock may touch.
struct Guarded {
    owner: OwnerModel,
    number: UnsafeCell<u32>,
}

// SAFETY: `number` is used under the lock alone; loom finds it out if not.
unsafe impl Sync for Guarded {}
// SAFETY: as above.
unsafe impl Send for Guarded {}

impl Guarded {
    fn add(&self) {
        // SAFETY: this thread has the lock.
        self.number.with_mut(|number| unsafe { *number += 1 });
    }
}

fn owner_and_stoppers(fenced: bool, reached: bool, stoppers: u32) {
    model(2, move || {
        let guarded =
            Arc::new(Guarded { owner: OwnerModel::new(fenced), number: UnsafeCell::new(0) });
        let others: Vec<_> = (0..stoppers)
            .map(|_| {
                let guarded = guarded.clone();
                thread::spawn(move || u32::from(guarded.owner.stop(reached, || guarded.add())))
            })
            .collect();
        guarded.owner.enter(|| guarded.add());
        guarded.owner.enter(|| guarded.add());
        let stopped: u32 = others.into_iter().map(|other| other.join().unwrap()).sum();
        assert!(!(fenced || reached) || stopped == stoppers);
        guarded.owner.enter(|| {
            // SAFETY: this thread has the lock.
            assert_eq!(guarded.number.with(|number| unsafe { *number }), 2 + stopped);
        });
    });
}

#[test]
fn an_owner_and_two_trimmers_keep_apart() {
    owner_and_stoppers(false, true, 2);
}

#[test]
fn they_do_where_the_owner_makes_fences() {
    owner_and_stoppers(true, false, 2);
}

#[test]
fn they_do_when_the_kernel_refuses_later() {
    owner_and_stoppers(false, false, 2);
}

/// One works with its cache while another trims: afterwards all is there once.
#[test]
fn exchange_against_trim() {
    model(2, || {
        let model = Arc::new(MagazineModel::new(4, 1));
        let cache = model.join();
        let other = {
            let model = model.clone();
            thread::spawn(move || {
                let rounds: Vec<u32> =
                    (0..3).filter_map(|_| model.get(Some(&cache), true)).collect();
                assert_eq!(rounds.len(), 3);
                rounds.into_iter().for_each(|round| model.put(Some(&cache), round));
                cache
            })
        };
        model.trim();
        let cache = other.join().unwrap();
        model.trim();
        assert_eq!(model.inside(), 4);
        assert!(!model.may_hold());
        model.retire(cache);
    });
}

/// Two exchange magazines through the depot, one of them only what is cached, while what nobody
/// wants goes back.
#[test]
fn exchange_against_exchange() {
    model(2, || {
        let model = Arc::new(MagazineModel::new(4, 1));
        let (mine, theirs) = (model.join(), model.join());
        let rounds: Vec<u32> = (0..4).filter_map(|_| model.get(Some(&mine), true)).collect();
        rounds.into_iter().for_each(|round| model.put(Some(&mine), round));
        let other = {
            let model = model.clone();
            thread::spawn(move || {
                if let Some(got) = model.get(Some(&theirs), false) {
                    model.put(Some(&theirs), got);
                }
                theirs
            })
        };
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

/// Two memory nodes: one takes what the other has put, out of the other's lists, while what nobody
/// wants goes back.
#[test]
fn exchange_across_nodes() {
    model(2, || {
        let model = Arc::new(MagazineModel::on_nodes(3, 1, 2));
        let (mine, theirs) = (model.join_on(0), model.join_on(1));
        let rounds: Vec<u32> = (0..3).filter_map(|_| model.get(Some(&mine), true)).collect();
        let said = Arc::new(AtomicBool::new(false));
        let other = {
            let (model, said) = (model.clone(), said.clone());
            thread::spawn(move || {
                let told = said.load(Ordering::Acquire);
                let got = model.get(Some(&theirs), false);
                // One of the three is in the depot by then: two fill what the thread itself has.
                assert!(!told || got.is_some());
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
    model(3, || {
        let model = Arc::new(MagazineModel::new(2, 2));
        let cache = model.join();
        let other = {
            let model = model.clone();
            thread::spawn(move || {
                let round = model.get(Some(&cache), true).expect("nobody else has any");
                model.put(Some(&cache), round);
                model.retire(cache);
            })
        };
        model.trim();
        other.join().unwrap();
        assert_eq!(model.may_hold(), model.inside() < 2);
        model.trim();
        assert_eq!(model.inside(), 2);
        assert!(!model.may_hold());
    });
}

/// Another thread puts a round and says so. Who has heard it finds it: in a cache, after a trim in
/// the source. Whatever else that thread then has on the way, the trim waits for it.
#[test]
fn reap_on_failure_misses_nothing() {
    model(2, || {
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

/// A refill takes more than it was asked for. A trim that comes meanwhile finds the rest in the
/// source.
#[test]
fn a_trim_waits_for_what_is_on_the_way() {
    model(3, || {
        let model = Arc::new(MagazineModel::new(2, 2));
        let cache = model.join();
        let other = {
            let model = model.clone();
            thread::spawn(move || {
                (model.get(Some(&cache), true).expect("at most one is out"), cache)
            })
        };
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

/// One of two numbers is out, the other is put into its cache by another thread: who asks
/// afterwards gets it.
#[test]
fn a_request_that_fails_reaps_what_others_cache() {
    model(2, || {
        let model = Arc::new(TrackedModel::new(2, 1));
        let (mine, theirs) = (model.join(), model.join());
        let out = model.get(Some(&mine), true).expect("there are two");
        let cached = model.get(Some(&theirs), true).expect("there are two");
        let other = {
            let model = model.clone();
            thread::spawn(move || {
                model.put(Some(&theirs), cached);
                theirs
            })
        };
        let got = model.request(Some(&mine));
        let theirs = other.join().unwrap();
        let got = got
            .or_else(|| model.request(Some(&mine)))
            .expect("it is in a cache, and nobody has it");
        assert!(!model.nothing_cached_fast(Some(&mine)) || model.cached().is_empty());
        [got, out].into_iter().for_each(|round| model.put(Some(&mine), round));
        [mine, theirs].into_iter().for_each(|cache| model.retire(cache));
        model.trim();
        assert_eq!(model.inside(), 2);
    });
}

/// Of two numbers one is free at every moment: one thread puts the one it has before another takes
/// the one that it has cached. So a request is never refused, whichever cache it looks at first.
#[test]
fn nothing_is_refused_while_one_of_two_is_free() {
    for giver_first in [false, true] {
        model(3, move || {
            let model = Arc::new(TrackedModel::new(2, 1));
            let (first, second) = (model.join(), model.join());
            let (giver, sink) = if giver_first { (first, second) } else { (second, first) };
            let (given, cached) =
                (model.get(Some(&giver), true).unwrap(), model.get(Some(&sink), true).unwrap());
            model.put(Some(&sink), cached);
            let said = Arc::new(AtomicBool::new(false));
            let gives = {
                let (model, said) = (model.clone(), said.clone());
                thread::spawn(move || {
                    model.put(Some(&giver), given);
                    said.store(true, Ordering::Release);
                    giver
                })
            };
            let takes = {
                let (model, said) = (model.clone(), said.clone());
                thread::spawn(move || {
                    let taken = said.load(Ordering::Acquire).then(|| model.request(Some(&sink)));
                    (taken, sink)
                })
            };
            let got = model.request(None).expect("one of two is free");
            let giver = gives.join().unwrap();
            let (taken, sink) = takes.join().unwrap();
            let rest: Vec<u32> =
                taken.map(|taken| taken.expect("one of two is free")).into_iter().collect();
            rest.into_iter().chain([got]).for_each(|round| model.put(None, round));
            [giver, sink].into_iter().for_each(|cache| model.retire(cache));
            model.trim();
            assert_eq!(model.inside(), 2);
        });
    }
}

/// The same with one thread that puts one and takes the other, and the one that looks has a cache.
#[test]
fn nothing_is_refused_while_another_puts_and_gets() {
    model(2, || {
        let model = Arc::new(TrackedModel::new(2, 2));
        let (mine, theirs) = (model.join(), model.join());
        let round = model.get(Some(&theirs), true).expect("there are two");
        let other = {
            let model = model.clone();
            thread::spawn(move || {
                model.put(Some(&theirs), round);
                let got = model.request(Some(&theirs)).expect("nobody has more than one");
                model.put(Some(&theirs), got);
                theirs
            })
        };
        let got = model.request(Some(&mine)).expect("nobody has more than one");
        model.put(Some(&mine), got);
        let theirs = other.join().unwrap();
        [mine, theirs].into_iter().for_each(|cache| model.retire(cache));
        model.trim();
        assert_eq!(model.inside(), 2);
    });
}

/// After the end nothing is cached, whoever puts meanwhile.
#[test]
fn nothing_stays_cached_after_the_end() {
    model(3, || {
        let model = Arc::new(TrackedModel::new(2, 1));
        let cache = model.join();
        let rounds: Vec<u32> = (0..2).filter_map(|_| model.get(Some(&cache), true)).collect();
        let other = {
            let model = model.clone();
            thread::spawn(move || {
                rounds.into_iter().for_each(|round| model.put(Some(&cache), round));
                cache
            })
        };
        model.disable_caching();
        let cache = other.join().unwrap();
        assert_eq!(model.inside(), 2);
        assert!(!model.may_hold());
        assert!(model.cached().is_empty());
        model.retire(cache);
    });
}

/// A class comes to stand for other numbers while one of the old kind is put and one of them is
/// fetched: none stays under it.
#[test]
fn no_round_of_the_old_kind_stays_under_a_class() {
    model(3, || {
        let model = Arc::new(TrackedModel::new(3, 1));
        let cache = model.join();
        let old: Vec<u32> = (0..3).filter_map(|_| model.get(Some(&cache), true)).collect();
        let other = {
            let model = model.clone();
            thread::spawn(move || {
                old.into_iter().for_each(|round| model.put(Some(&cache), round));
                cache
            })
        };
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
