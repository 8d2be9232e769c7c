//! The ends of threads, instances and processes, and kernels whose barriers fail.

use std::cell::RefCell;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Barrier, Mutex};

use super::{TestMagazines, instance, without_kernel_faults};
use crate::sys::forked;

fn get_and_put(magazines: &TestMagazines) {
    let round = magazines.get(0).expect("the source has more");
    magazines.put(0, round);
}

/// Fewer turns under Miri, which is slow.
const TURNS: usize = if cfg!(miri) { 4 } else { 50 };

#[test]
fn any_number_of_instances_have_caches() {
    // More instances than a thread has near entries.
    let all: Vec<_> = (0..70).map(|_| instance(1, 1000)).collect();
    let use_all = || {
        for (magazines, source) in &all {
            let round = magazines.get(0).expect("a thousand");
            let out = source.out();
            magazines.put(0, round);
            assert_eq!((magazines.get_cached(0), source.out()), (Some(round), out));
            magazines.put(0, round);
        }
    };
    use_all();
    std::thread::scope(|scope| {
        let other = scope.spawn(|| {
            use_all();
            assert!(all.iter().all(|(magazines, _)| magazines.stats().threads == 2));
        });
        other.join().expect("no panic");
        use_all();
    });
    for (magazines, source) in all {
        drop(magazines);
        assert_eq!(source.out(), 0);
    }
}

#[test]
fn an_instance_may_end_before_its_threads() {
    let turn = Barrier::new(2);
    let slot: Mutex<Option<Arc<TestMagazines>>> = Mutex::new(None);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for _ in 0..TURNS {
                turn.wait();
                let magazines = slot.lock().unwrap().take().expect("an instance a turn");
                let round = magazines.get(0).expect("a thousand");
                magazines.put(0, round);
                drop(magazines);
                turn.wait();
            }
            // Lives until the last instance is gone.
            turn.wait();
        });
        for _ in 0..TURNS {
            // Each instance has the id of the one before it, unless a concurrent test took that id.
            let (magazines, source) = instance(1, 1000);
            let magazines = Arc::new(magazines);
            *slot.lock().unwrap() = Some(magazines.clone());
            turn.wait();
            turn.wait();
            assert_eq!(magazines.stats().threads, 1);
            drop(magazines);
            assert_eq!(source.out(), 0, "and the thread lives");
        }
        turn.wait();
    });
}

#[test]
fn many_instances_at_once() {
    let all: Vec<_> = (0..2 * TURNS).map(|_| instance(2, 10)).collect();
    for (magazines, source) in &all {
        let round = magazines.get(1).expect("ten");
        assert_eq!(round, 0, "each has its own");
        magazines.put(1, round);
        assert_eq!(source.out(), 10, "a magazine has more");
    }
    let sources: Vec<_> = all.iter().map(|(_, source)| source.clone()).collect();
    drop(all);
    assert!(sources.iter().all(|source| source.out() == 0));
}

/// Uses an instance when its thread ends.
struct AtEnd(Arc<TestMagazines>, Arc<AtomicUsize>);

impl Drop for AtEnd {
    fn drop(&mut self) {
        let mut rounds: Vec<usize> = (0..300).filter_map(|_| self.0.get(0)).collect();
        self.1.fetch_add(rounds.len(), Ordering::Relaxed);
        self.0.put(0, rounds.pop().expect("many"));
        // SAFETY: taking from a list does not use the instance.
        unsafe { self.0.put_each(0, || rounds.pop()) };
        self.0.get_batch(0, 10, &mut rounds);
        // SAFETY: taking from a list does not use the instance.
        unsafe { self.0.put_each(0, || rounds.pop()) };
        assert_eq!(
            self.0.get_cached(0).map(|round| self.0.put(0, round)).is_some(),
            self.0.may_hold()
        );
    }
}

thread_local! {
    static AT_END: RefCell<Vec<AtEnd>> = const { RefCell::new(Vec::new()) };
}

#[test]
fn destructors_of_thread_locals_may_use_it() {
    let _plan = without_kernel_faults();
    let (magazines, source) = instance(1, 1000);
    let (magazines, done) = (Arc::new(magazines), Arc::new(AtomicUsize::new(0)));
    for used_first in [false, true] {
        let (magazines, done) = (magazines.clone(), done.clone());
        let thread = std::thread::spawn(move || {
            let at_end = || {
                let at_end = AtEnd(magazines.clone(), done.clone());
                AT_END.with(|list| list.borrow_mut().push(at_end));
            };
            // The destructor of the thread-local that is used first runs last.
            if used_first {
                get_and_put(&magazines);
                at_end();
            } else {
                at_end();
                get_and_put(&magazines);
            }
        });
        thread.join().unwrap();
    }
    assert_eq!(done.load(Ordering::Relaxed), 600);
    assert_eq!(magazines.stats().threads, 0);
    magazines.trim();
    assert_eq!(source.out(), 0);
}

#[test]
#[cfg_attr(miri, ignore = "forks")]
fn a_child_finds_every_round_and_every_lock_free() {
    let _plan = without_kernel_faults();
    let (magazines, source) = instance(1, 100_000);
    // Enough rounds that no thread needs the source: its lock is not tested here.
    let mut rounds = Vec::new();
    magazines.get_batch(0, 20_000, &mut rounds);
    // SAFETY: taking from a list does not use the instance.
    unsafe { magazines.put_each(0, || rounds.pop()) };
    drop(rounds);
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                let mut held = Vec::with_capacity(600);
                while !stop.load(Ordering::Relaxed) {
                    held.extend((0..500).filter_map(|_| magazines.get_cached(0)));
                    held.drain(..).for_each(|round| magazines.put(0, round));
                }
            });
        }
        for _ in 0..20 {
            let status = forked(|| {
                let stats = magazines.stats();
                if stats.threads > 1 {
                    return 1;
                }
                // Each of the threads that do not exist in the child had taken at most 500.
                let class = stats.classes[0];
                if class.in_threads + class.in_depot < source.out() - 1000 {
                    return 2;
                }
                for _ in 0..1000 {
                    let Some(round) = magazines.get_cached(0) else { return 3 };
                    magazines.put(0, round);
                }
                magazines.trim();
                i32::from(magazines.may_hold() || source.out() > 1000) * 4
            });
            if status != 0 {
                stop.store(true, Ordering::Relaxed);
            }
            assert_eq!(status, 0);
        }
        stop.store(true, Ordering::Relaxed);
    });
    magazines.trim();
    assert_eq!(source.out(), 0);
}

#[cfg(feature = "fault-injection")]
#[test]
#[cfg_attr(miri, ignore = "long")]
fn without_the_kernels_barrier_owners_make_fences() {
    use crate::sys::{Call, Errno, fault};
    for call in [Call::RegisterMembarrier, Call::Membarrier] {
        let plan = fault::fail_all(call, Errno::EPERM);
        let (magazines, source) = instance(1, 10_000);
        let stop = AtomicBool::new(false);
        let round = magazines.get(0).expect("many");
        magazines.put(0, round);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    get_and_put(&magazines);
                }
                // Once more after the last trim, however rarely this thread ran.
                get_and_put(&magazines);
            });
            (0..1000).for_each(|_| magazines.trim());
            stop.store(true, Ordering::Relaxed);
        });
        // Each owner has seen by now that it has to make fences.
        get_and_put(&magazines);
        magazines.trim();
        assert!(!magazines.may_hold(), "{call}");
        assert_eq!(source.out(), 0);
        drop(plan);
    }
}

#[test]
#[cfg_attr(miri, ignore = "forks")]
fn a_fork_takes_and_releases_the_locks_of_the_source_on_both_sides() {
    let _plan = without_kernel_faults();
    let (magazines, source) = instance(1, 1000);
    get_and_put(&magazines);
    let forks = || source.forks.each_ref().map(|it| it.load(Ordering::Relaxed));
    // Concurrent tests may fork, too.
    let before = forks()[0];
    let status = forked(|| i32::from(forks()[0] == before || forks()[0] != forks()[1]));
    assert_eq!(status, 0);
    assert!(forks()[0] > before);
    get_and_put(&magazines);
}
