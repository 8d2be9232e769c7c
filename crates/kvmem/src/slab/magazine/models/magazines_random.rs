//! Magazines of three or four threads: exchanges through the depot during trims, working sets, and
//! ends of threads.

use std::sync::atomic::{AtomicBool, Ordering};

use shuttle::sync::{Arc, Mutex};
use shuttle::thread;

use super::magazine_model::{MagazineModel, ModelCache};
use crate::sync::models::random::check;

/// A model that checks that each round has at most one user.
struct Counted {
    model: MagazineModel,
    total: u32,
    // The standard atomics: they cause no change of thread.
    out: Vec<AtomicBool>,
}

impl Counted {
    fn new(total: u32, capacity: usize, bound: Option<u64>) -> Arc<Self> {
        let out = (0..total).map(|_| AtomicBool::new(false)).collect();
        Arc::new(Counted { model: MagazineModel::bounded(total, capacity, bound), total, out })
    }

    fn get(&self, cache: Option<&ModelCache>, refill: bool) -> Option<u32> {
        let round = self.model.get(cache, refill)?;
        assert!(!self.out[round as usize].swap(true, Ordering::Relaxed), "{round} is in two hands");
        Some(round)
    }

    fn put(&self, cache: Option<&ModelCache>, round: u32) {
        assert!(self.out[round as usize].swap(false, Ordering::Relaxed), "{round} is in no hand");
        self.model.put(cache, round);
    }

    fn get_some(&self, cache: &ModelCache, n: usize, refill: bool) -> Vec<u32> {
        (0..n).filter_map(|_| self.get(Some(cache), refill)).collect()
    }

    fn put_all(&self, cache: &ModelCache, rounds: Vec<u32>) {
        rounds.into_iter().for_each(|round| self.put(Some(cache), round));
    }

    /// Asserts that nothing is cached and nothing is charged.
    fn is_back(&self) {
        assert_eq!(self.model.inside(), self.total as usize);
        assert!(!self.model.may_hold());
        assert_eq!(self.model.charged_bytes(), 0);
    }
}

type Thread<T> = thread::JoinHandle<T>;

fn spawn<T: Send + 'static>(
    counted: &Arc<Counted>,
    run: impl FnOnce(&Counted) -> T + Send + 'static,
) -> Thread<T> {
    let counted = counted.clone();
    thread::spawn(move || run(&counted))
}

fn ends(threads: impl IntoIterator<Item = Thread<()>>) {
    threads.into_iter().for_each(|thread| thread.join().unwrap());
}

/// A bound that allows all magazines, one that allows a few, and one that allows none.
const BOUNDS: [Option<u64>; 4] = [None, Some(1000), Some(5), Some(0)];

/// Three threads exchange whole magazines while a fourth one trims and the working set is trimmed.
#[test]
fn exchanges_against_trims_and_working_sets() {
    for bound in BOUNDS {
        check(move || {
            let counted = Counted::new(18, 2, bound);
            let workers: Vec<_> = (0..3)
                .map(|_| {
                    let cache = counted.model.join();
                    spawn(&counted, move |counted| {
                        let rounds = counted.get_some(&cache, 5, true);
                        counted.put_all(&cache, rounds);
                        let cached = counted.get_some(&cache, 3, false);
                        counted.put_all(&cache, cached);
                        counted.model.retire(cache);
                    })
                })
                .collect();
            let trimmer = spawn(&counted, |counted| {
                counted.model.trim();
                counted.model.tick();
                counted.model.trim();
            });
            ends(workers.into_iter().chain([trimmer]));
            counted.model.trim();
            counted.is_back();
        });
    }
}

/// Rounds are put by other threads than took them; these threads end and have successors.
#[test]
fn threads_end_and_restart() {
    for bound in BOUNDS {
        check(move || {
            let counted = Counted::new(12, 2, bound);
            let pile = Arc::new(Mutex::new(Vec::new()));
            let workers: Vec<_> = (0..3)
                .map(|_| {
                    let pile = pile.clone();
                    spawn(&counted, move |counted| {
                        for _ in 0..3 {
                            let cache = counted.model.join();
                            let mut rounds = counted.get_some(&cache, 3, true);
                            let given = rounds.pop();
                            let taken = {
                                let mut pile = pile.lock().unwrap();
                                let taken = pile.pop();
                                pile.extend(given);
                                taken
                            };
                            rounds.extend(taken);
                            counted.put_all(&cache, rounds);
                            counted.model.retire(cache);
                        }
                    })
                })
                .collect();
            let trimmer = spawn(&counted, |counted| {
                counted.model.trim();
                counted.model.trim();
            });
            ends(workers.into_iter().chain([trimmer]));
            // By a thread without a cache.
            std::mem::take(&mut *pile.lock().unwrap())
                .into_iter()
                .for_each(|round| counted.put(None, round));
            // No trim: all threads have ended, so two intervals return everything.
            counted.model.tick();
            counted.is_back();
        });
    }
}

/// A thread that knows of a put finds the round in a cache or, after a trim, in the source,
/// whatever other threads do meanwhile: put, end, or trim too.
#[test]
fn reclaim_on_failure_misses_nothing() {
    for bound in BOUNDS {
        check(move || {
            let counted = Counted::new(6, 2, bound);
            let said = Arc::new(Mutex::new(0));
            let caches: Vec<_> = (0..3)
                .map(|_| {
                    let cache = counted.model.join();
                    let rounds = counted.get_some(&cache, 2, true);
                    assert_eq!(rounds.len(), 2, "three have two each");
                    (cache, rounds)
                })
                .collect();
            let putters: Vec<_> = caches
                .into_iter()
                .map(|(cache, rounds)| {
                    let said = said.clone();
                    spawn(&counted, move |counted| {
                        for round in rounds {
                            counted.put(Some(&cache), round);
                            *said.lock().unwrap() += 1;
                        }
                        counted.model.retire(cache);
                    })
                })
                .collect();
            let trimmer = spawn(&counted, |counted| counted.model.trim());
            for _ in 0..3 {
                let heard = *said.lock().unwrap();
                if heard > 0 {
                    assert!(counted.model.may_hold() || counted.model.inside() > 0);
                    counted.model.trim();
                    assert!(counted.model.inside() >= heard);
                    let round = counted.get(None, true).expect("it was freed before");
                    counted.put(None, round);
                }
            }
            ends(putters.into_iter().chain([trimmer]));
            counted.model.trim();
            counted.is_back();
        });
    }
}

/// After a trim without concurrent work nothing is cached, and requests for cached rounds return
/// nothing. That includes caches whose owners continue after the trim.
#[test]
fn trimmed_caches_continue() {
    check(|| {
        let counted = Counted::new(12, 2, None);
        let caches: Vec<_> = (0..3).map(|_| counted.model.join()).collect();
        let mut workers: Vec<Thread<ModelCache>> = Vec::new();
        for cache in caches {
            workers.push(spawn(&counted, move |counted| {
                let rounds = counted.get_some(&cache, 4, true);
                counted.put_all(&cache, rounds);
                cache
            }));
        }
        let trimmer = spawn(&counted, |counted| counted.model.trim());
        let caches: Vec<_> = workers.into_iter().map(|worker| worker.join().unwrap()).collect();
        ends([trimmer]);
        counted.model.trim();
        counted.is_back();
        assert!(caches.iter().all(|cache| counted.get(Some(cache), false).is_none()));
        let again = caches.into_iter().map(|cache| {
            spawn(&counted, move |counted| {
                let rounds = counted.get_some(&cache, 2, true);
                assert!(rounds.is_empty() || counted.model.may_hold());
                counted.put_all(&cache, rounds);
                counted.model.retire(cache);
            })
        });
        ends(again.collect::<Vec<_>>());
        counted.model.trim();
        counted.is_back();
    });
}
