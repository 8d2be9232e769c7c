//! Metrics are read while threads allocate, and no thread waits.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use kvmem::cache::KvCache;
use kvmem::pool::observe::Exporter;

use super::{MemoryRecorder, published, small};
use crate::pool::MIB;

#[test]
fn figures_are_read_while_threads_allocate() {
    let built = small(4 * MIB).hot_sizes([4096]).measure_latency(10).build();
    let pool = built.expect("little memory");
    let report = pool.report();
    let cache: KvCache<u64> =
        KvCache::builder(&pool).max_bytes(1 << 20).build().expect("good settings");
    let exporter = Exporter::new().pool(&pool).cache(&cache);
    let (end, rounds) = (AtomicBool::new(false), AtomicU64::new(0));
    let mut scrapes = 0;
    thread::scope(|scope| {
        let work = |number: u64| {
            let (pool, cache, end, rounds) = (&pool, &cache, &end, &rounds);
            move || {
                let mut held = Vec::new();
                let mut round = number;
                while !end.load(Ordering::Relaxed) {
                    round += 2;
                    held.extend(pool.allocate(4096));
                    held.extend(pool.allocate((round % 50_000) as usize));
                    if held.len() > 40 {
                        held.drain(..(round % 40) as usize);
                    }
                    let _ = cache.insert(round % 64, &[0; 3000]);
                    drop(cache.get(&(round % 7)));
                    rounds.fetch_add(1, Ordering::Relaxed);
                    if round % 1024 < 2 {
                        // Short-lived threads with their own caches.
                        thread::scope(|scope| {
                            drop(scope.spawn(|| pool.allocate(4096).map(drop)).join())
                        });
                    }
                }
            }
        };
        let threads = [scope.spawn(work(0)), scope.spawn(work(1))];
        while scrapes < 50 || rounds.load(Ordering::Relaxed) < 2000 {
            let recorded = published(&exporter);
            let bytes =
                |name: &str| recorded.value(&format!("kvmem_pool_{name}_bytes"), &[]) as u64;
            assert_eq!(bytes("capacity"), report.capacity_bytes);
            assert_eq!(bytes("allocated") + bytes("free"), bytes("ready"));
            assert!(bytes("largest_free") <= report.capacity_bytes);
            scrapes += 1;
        }
        end.store(true, Ordering::Relaxed);
        // Joins the threads one by one: at the end of a scope a thread may still be returning its
        // cached blocks.
        threads.into_iter().for_each(|thread| thread.join().expect("no panic"));
    });
    let (figures, metrics) = (pool.figures(), pool.metrics());
    assert_eq!((figures.allocated, figures.allocations), (metrics.allocated, metrics.live));
    assert_eq!((figures.free, figures.cached), (metrics.free, pool.stats().cached_bytes));
    assert_eq!(figures.allocated, cache.bytes());
    pool.check().expect("sound");
}

#[test]
fn latencies_are_published_once_each() {
    let pool = small(MIB).measure_latency(1).build().expect("little memory");
    let exporter = Exporter::new().pool(&pool);
    let recorded = MemoryRecorder::default();
    for expected in [100, 200] {
        (0..100).for_each(|_| drop(pool.allocate(4096)));
        metrics::with_local_recorder(&recorded, || exporter.publish());
        metrics::with_local_recorder(&recorded, || exporter.publish());
        let values = recorded.values("kvmem_pool_allocate_seconds");
        assert_eq!(values.len(), expected);
        assert!(values.iter().all(|seconds| (0.0..60.0).contains(seconds)), "{values:?}");
    }
    let latency = pool.latency().expect("it is measured");
    assert_eq!((latency.one_in, latency.measured()), (1, 200));
    assert!(latency.quantile(0.5) <= latency.quantile(0.99));
    let other = small(MIB).build().expect("little memory");
    assert_eq!(other.latency(), None);
}

/// The only test here that publishes to the recorder of the process.
#[test]
fn a_publisher_publishes_until_it_is_dropped() {
    let recorded = MemoryRecorder::default();
    metrics::set_global_recorder(recorded.clone()).expect("no other test sets one");
    let pool = small(MIB).name("timed").build().expect("little memory");
    let labels = [("pool", "timed")];
    let publisher =
        Exporter::new().pool(&pool).publish_every(Duration::from_millis(5)).expect("a thread");
    let block = pool.allocate(5000).expect("room");
    let start = Instant::now();
    let allocated = || recorded.value("kvmem_pool_allocated_bytes", &labels);
    let known = || recorded.names().contains("kvmem_pool_allocated_bytes");
    while !(known() && allocated() == 5000.0) {
        assert!(start.elapsed() < Duration::from_secs(60), "nothing was published");
        thread::sleep(Duration::from_millis(1));
    }
    // The publisher publishes a last time when it ends, and nothing afterwards.
    drop(block);
    drop(publisher);
    assert_eq!(allocated(), 0.0);
    let _block = pool.allocate(7000).expect("room");
    thread::sleep(Duration::from_millis(20));
    assert_eq!(allocated(), 0.0);
}

#[test]
fn nothing_is_published_before_a_call() {
    let recorded = MemoryRecorder::default();
    metrics::with_local_recorder(&recorded, || {
        let pool = small(MIB).measure_latency(1).build().expect("little memory");
        (0..100).for_each(|_| drop(pool.allocate(4096)));
        assert!(pool.allocate(0).is_err());
        let _exporter = Exporter::new().pool(&pool);
    });
    assert!(recorded.is_empty(), "{:?}", recorded.names());
}
