//! *Exporter*: publishes figures through the `metrics` facade, on request.
//!
//! Allocations publish nothing. A scrape or a timer reads the figures, which takes no lock that a
//! request waits for ([`Pool::figures`]), and passes them to the recorder that
//! the program has installed. Threads that allocate never take the recorder's locks.

use std::fmt;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use metrics::{Label, Unit, histogram};

use crate::pool::Pool;
use crate::pool::observe::instruments::{pool_label, the_counter, the_gauge, with_label};
use crate::pool::observe::{Described, Kind, METRICS, PoolFigures, names};

/// Publishes figures of pools and caches. See the [module](crate::pool::observe).
///
/// It owns a clone of each, which keeps the pools and caches alive until the exporter is dropped.
///
/// ```
/// use kvmem::arena::PageSize;
/// use kvmem::pool::observe::Exporter;
/// use kvmem::cache::KvCache;
/// use kvmem::pool::Pool;
///
/// let pool = Pool::builder("1 MiB").ladder(PageSize::Base).name("kv").build()?;
/// let cache: KvCache<u64> = KvCache::new(&pool);
/// let exporter = Exporter::new().pool(&pool).cache(&cache);
///
/// // On each scrape:
/// exporter.publish();
/// # Ok::<(), kvmem::pool::PoolError>(())
/// ```
#[derive(Default)]
#[must_use = "it publishes on request"]
pub struct Exporter {
    pools: Vec<Observed>,
    others: Vec<Box<dyn Fn() + Send + Sync>>,
}

struct Observed {
    pool: Pool,
    labels: Vec<Label>,
    /// The latencies recorded so far. Only publishing threads use it.
    recorded: Mutex<Vec<(Duration, u64)>>,
}

impl Exporter {
    /// Makes an exporter without pools and caches.
    pub fn new() -> Exporter {
        Exporter::default()
    }

    /// Adds a pool, under its [name](crate::pool::PoolBuilder::name).
    pub fn pool(mut self, pool: &Pool) -> Exporter {
        let labels = vec![pool_label(pool.name())];
        self.pools.push(Observed { pool: pool.clone(), labels, recorded: Mutex::default() });
        self
    }

    /// Adds a function that publishes the figures of something else, such as a disk tier below a
    /// cache. It runs with each [`publish`](Self::publish), after the pools and caches.
    ///
    /// ```
    /// use kvmem::pool::observe::Exporter;
    ///
    /// let exporter = Exporter::new().also(|| metrics::gauge!("my_queue_length").set(7.0));
    /// exporter.publish();
    /// ```
    pub fn also(mut self, publish: impl Fn() + Send + Sync + 'static) -> Exporter {
        self.others.push(Box::new(publish));
        self
    }

    /// Publishes all figures to the current recorder: the local one of this thread if it has one,
    /// otherwise the global one. Blocks no request for memory, and waits for none. O(pools ×
    /// threads × classes + caches × shards).
    pub fn publish(&self) {
        METRICS.iter().for_each(describe);
        for observed in &self.pools {
            publish_pool(&observed.pool.figures(), &observed.labels);
            observed.publish_latency();
        }
        self.others.iter().for_each(|publish| publish());
    }
}

fn describe(what: &Described) {
    let unit = match what.unit {
        "bytes" => Unit::Bytes,
        "seconds" => Unit::Seconds,
        _ => Unit::Count,
    };
    match what.kind {
        Kind::Gauge => metrics::describe_gauge!(what.name, unit, what.help),
        Kind::Counter => metrics::describe_counter!(what.name, unit, what.help),
        Kind::Histogram => metrics::describe_histogram!(what.name, unit, what.help),
    }
}

fn publish_pool(figures: &PoolFigures, labels: &[Label]) {
    let bytes = [
        (names::CAPACITY, figures.capacity),
        (names::READY, figures.ready),
        (names::QUARANTINED, figures.quarantined),
        (names::ALLOCATED, figures.allocated),
        (names::REQUESTED, figures.requested),
        (names::CACHED, figures.cached),
        (names::FREE, figures.free),
        (names::LARGEST_FREE, figures.largest_free),
        (names::ALLOCATIONS, figures.allocations),
    ];
    for (what, value) in bytes {
        the_gauge(what, labels).set(value as f64);
    }
    for (reason, count) in figures.failures.by_reason() {
        the_counter(names::ALLOCATION_FAILURES, &with_label(labels, "reason", reason))
            .absolute(count);
    }
    the_counter(names::RECLAIMS, labels).absolute(figures.reclaims);
    the_gauge(names::POPULATE_SECONDS, labels).set(figures.populate_seconds);
    the_counter(names::POPULATE_FAILURES, labels).increment(0);
    for (registrar, seconds) in &figures.register_seconds {
        let labels = with_label(labels, "registrar", registrar);
        the_gauge(names::REGISTER_SECONDS, &labels).set(*seconds);
        // There from the beginning, so that the first failure is seen as a change.
        the_counter(names::REGISTRATION_FAILURES, &labels).increment(0);
    }
}

impl Observed {
    /// Publishes the measurements since the previous call.
    fn publish_latency(&self) {
        let mut recorded = self.recorded.lock().unwrap_or_else(PoisonError::into_inner);
        // Read under the lock: the counts are never below those that were recorded.
        let Some(latency) = self.pool.latency() else { return };
        let histogram = histogram!(names::ALLOCATE_SECONDS.name, self.labels.iter());
        for &(time, count) in &latency.times {
            let before =
                recorded.iter().find(|(other, _)| *other == time).map_or(0, |(_, count)| *count);
            if count > before {
                histogram.record_many(time.as_secs_f64(), (count - before) as usize);
            }
        }
        *recorded = latency.times;
    }
}

impl fmt::Debug for Exporter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let pools: Vec<_> = self.pools.iter().map(|observed| observed.pool.name()).collect();
        f.debug_struct("Exporter")
            .field("pools", &pools)
            .field("others", &self.others.len())
            .finish()
    }
}
