//! Sequences of operations of several threads, against a naive model: each round is in use, cached,
//! or in the source.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;

use proptest::prelude::*;

use super::{
    CountingSource, FakeTopology, HERE, MagazineSettings, Magazines, ManualClock, TestMagazines,
    without_kernel_faults,
};

const CLASSES: usize = 3;
const THREADS: usize = 3;

type WorkerJob = Box<dyn FnOnce() + Send>;

/// A thread that runs one job after the other.
pub(super) struct Worker {
    jobs: Option<Sender<WorkerJob>>,
    thread: Option<JoinHandle<()>>,
}

impl Worker {
    /// Starts a worker on this memory node.
    pub(super) fn start_on(node: usize) -> Self {
        let (jobs, todo): (Sender<WorkerJob>, Receiver<WorkerJob>) = channel();
        let thread = std::thread::spawn(move || {
            HERE.set(node);
            todo.into_iter().for_each(|job| job());
        });
        Worker { jobs: Some(jobs), thread: Some(thread) }
    }

    pub(super) fn run<T: Send + 'static>(&self, run: impl FnOnce() -> T + Send + 'static) -> T {
        let (answer, answered) = channel();
        let job = move || answer.send(run()).expect("the test waits");
        self.jobs
            .as_ref()
            .expect("open until the end")
            .send(Box::new(job))
            .expect("the thread is there");
        answered.recv().expect("the thread has not failed")
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        self.jobs = None;
        // A joined thread has dropped its thread-local values.
        let joined = self.thread.take().expect("joined once").join();
        assert!(joined.is_ok() || std::thread::panicking());
    }
}

#[derive(Clone, Debug)]
enum Op {
    Get {
        class: usize,
    },
    GetCached {
        class: usize,
    },
    Put {
        index: usize,
    },
    GetBatch {
        class: usize,
        want: usize,
    },
    PutBatch {
        class: usize,
    },
    Trim,
    Tick {
        seconds: u64,
    },
    /// The thread ends and another one takes its place, on the next memory node.
    Die,
}

fn ops() -> impl Strategy<Value = Vec<(usize, Op)>> {
    let class = 0..CLASSES;
    let op = prop_oneof![
        6 => class.clone().prop_map(|class| Op::Get { class }),
        2 => class.clone().prop_map(|class| Op::GetCached { class }),
        6 => any::<usize>().prop_map(|index| Op::Put { index }),
        2 => (class.clone(), 0..600usize).prop_map(|(class, want)| Op::GetBatch { class, want }),
        2 => class.prop_map(|class| Op::PutBatch { class }),
        1 => Just(Op::Trim),
        1 => (0..20u64).prop_map(|seconds| Op::Tick { seconds }),
        1 => Just(Op::Die),
    ];
    prop::collection::vec((0..THREADS, op), 1..80)
}

fn check(ops: Vec<(usize, Op)>, limit: usize, bound: Option<u64>, nodes: usize) {
    let _plan = without_kernel_faults();
    let clock = Arc::new(ManualClock::default());
    let source = CountingSource::new(CLASSES, limit);
    let (settings, topology) = (MagazineSettings::new(CLASSES), FakeTopology::new(nodes));
    let settings =
        MagazineSettings { clock: clock.clone(), max_cached_bytes: bound, topology, ..settings };
    let magazines: Arc<TestMagazines> = Arc::new(Magazines::new(source.clone(), settings));
    let mut workers: Vec<Worker> =
        (0..THREADS).map(|thread| Worker::start_on(thread % nodes)).collect();
    let mut held: Vec<(usize, usize)> = Vec::new();
    for (thread, op) in ops {
        let on = magazines.clone();
        let before = magazines.stats();
        match op {
            Op::Get { class } => match workers[thread].run(move || on.get(class)) {
                Some(round) => held.push((class, round)),
                None => {
                    assert_eq!(source.out_of(class), limit, "nothing is left");
                    assert_eq!(before.classes[class].in_depot, 0);
                }
            },
            Op::GetCached { class } => match workers[thread].run(move || on.get_cached(class)) {
                Some(round) => held.push((class, round)),
                None => assert_eq!(before.classes[class].in_depot, 0),
            },
            Op::Put { index } if !held.is_empty() => {
                let (class, round) = held.swap_remove(index % held.len());
                workers[thread].run(move || on.put(class, round));
            }
            Op::Put { .. } => {}
            Op::GetBatch { class, want } => {
                let got = workers[thread].run(move || {
                    let mut got = Vec::new();
                    on.get_batch(class, want, &mut got);
                    got
                });
                assert!(got.len() <= want);
                assert!(got.len() == want || source.out_of(class) == limit);
                held.extend(got.into_iter().map(|round| (class, round)));
            }
            Op::PutBatch { class } => {
                let mut back: Vec<usize> =
                    held.extract_if(.., |(of, _)| *of == class).map(|(_, round)| round).collect();
                workers[thread].run(move || {
                    // SAFETY: taking from a list does not use the instance.
                    unsafe { on.put_each(class, || back.pop()) };
                    assert!(back.is_empty());
                });
            }
            Op::Trim => {
                workers[thread].run(move || on.trim());
                assert_eq!(source.out(), held.len());
                assert!(!magazines.may_hold());
            }
            Op::Tick { seconds } => {
                clock.advance(Duration::from_secs(seconds));
                workers[thread].run(move || on.tick());
            }
            Op::Die => {
                let node = workers[thread].run(|| HERE.get());
                workers[thread] = Worker::start_on((node + 1) % nodes);
            }
        }
        let stats = magazines.stats();
        let cached: usize =
            stats.classes.iter().map(|class| class.in_threads + class.in_depot).sum();
        assert_eq!(source.out(), held.len() + cached);
        assert!(cached == 0 || magazines.may_hold());
        assert!(stats.threads <= THREADS);
        if let Some(bound) = bound {
            let charged = stats.charged_bytes.expect("kept where there is a bound");
            assert!(stats.cached_bytes <= charged && charged <= bound, "{stats:?}");
        }
    }
    // In half of the cases threads still have caches.
    if held.len().is_multiple_of(2) {
        workers.clear();
    }
    drop(magazines);
    assert_eq!(source.out(), held.len());
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    #[test]
    #[cfg_attr(miri, ignore = "long")]
    fn agrees_with_the_model(ops in ops(), limit in 1..3000usize) {
        check(ops, limit, None, 1);
    }

    #[test]
    #[cfg_attr(miri, ignore = "long")]
    fn agrees_with_the_model_under_a_bound(
        ops in ops(),
        limit in 1..3000usize,
        bound in 0..200_000u64,
    ) {
        check(ops, limit, Some(bound), 1);
    }

    #[test]
    fn agrees_with_the_model_on_several_nodes(
        ops in ops(),
        limit in 1..3000usize,
        bound in prop::option::of(0..200_000u64),
        nodes in 2..4usize,
    ) {
        check(ops, limit, bound, nodes);
    }
}
