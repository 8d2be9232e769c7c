//! *Report*: the statistics of an instance.

use super::super::source::RoundSource;
use super::super::stats::{ClassStats, MagazineStats};
use super::state::MagazineCore;
use crate::sync::Ordering;

impl<R: Copy + Send + 'static, S: RoundSource<R>> MagazineCore<R, S> {
    /// Reads the counters without a lock, so no thread ever waits for statistics.
    pub(crate) fn stats(&self) -> MagazineStats {
        let mut classes = vec![ClassStats::default(); self.classes()];
        let threads = self.list.read_unlocked(|caches| {
            let mut threads = 0;
            for cache in caches {
                threads += 1;
                for (slot, stats) in cache.slots().zip(&mut classes) {
                    stats.in_threads += slot.count();
                }
            }
            threads
        });
        for (depot, stats) in self.depots.iter().zip(&mut classes) {
            let counts = depot.counts();
            *stats = ClassStats {
                in_threads: stats.in_threads,
                in_depot: counts.rounds,
                capacity: depot.capacity(),
                round_bytes: depot.round_bytes() as usize,
                exchanges: counts.exchanges,
                remote: depot.remote(),
                // Relaxed: a statistic.
                refills: depot.refills.load(Ordering::Relaxed),
                contention: depot.contention(),
            };
        }
        let cached_bytes_of =
            |stats: &ClassStats| ((stats.in_threads + stats.in_depot) * stats.round_bytes) as u64;
        let max_cached_bytes = self.bound.max_cached_bytes();
        MagazineStats {
            cached_bytes: classes.iter().map(cached_bytes_of).sum(),
            classes,
            charged_bytes: max_cached_bytes.map(|_| self.bound.charged()),
            max_cached_bytes,
            threads,
            trims: self.transfers.trims(),
        }
    }
}
