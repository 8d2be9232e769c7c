//! *Names*: all metrics there are, once: what is published and what is documented come from here.

use std::fmt;

/// What a metric does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    /// It goes up and down.
    Gauge,
    /// It goes up.
    Counter,
    /// It is how often which value was seen.
    Histogram,
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Kind::Gauge => "gauge",
            Kind::Counter => "counter",
            Kind::Histogram => "histogram",
        })
    }
}

/// A metric.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Described {
    /// Its name.
    pub name: &'static str,
    /// What it does.
    pub kind: Kind,
    /// `bytes`, `seconds`, or what is counted.
    pub unit: &'static str,
    /// Labels beside `pool`.
    pub labels: &'static [&'static str],
    /// What it is.
    pub help: &'static str,
}

macro_rules! table {
    ($($id:ident: $name:literal $kind:ident $unit:literal [$($label:literal),*] $help:literal;)*) => {
        /// All metrics, in the order of the [documentation](super).
        pub const METRICS: &[Described] = &[$($id),*];
        $(
            pub(super) const $id: Described =
                Described { name: $name, kind: Kind::$kind, unit: $unit, labels: &[$($label),*], help: $help };
        )*
    };
}

table! {
    CAPACITY: "kvmem_pool_capacity_bytes" Gauge "bytes" []
        "What blocks could have, if all of it were ready and nothing in quarantine";
    READY: "kvmem_pool_ready_bytes" Gauge "bytes" []
        "What is populated, registered, and not in quarantine, in use or not";
    QUARANTINED: "kvmem_pool_quarantined_bytes" Gauge "bytes" []
        "What is kept from use because it has failed, or its user has found it bad";
    ALLOCATED: "kvmem_pool_allocated_bytes" Gauge "bytes" []
        "What blocks have that are alive";
    REQUESTED: "kvmem_pool_requested_bytes" Gauge "bytes" []
        "What was asked for them: as much as they have, since sizes are not rounded";
    CACHED: "kvmem_pool_cached_bytes" Gauge "bytes" []
        "What threads and depots keep for the next request of its size; it counts as free";
    FREE: "kvmem_pool_free_bytes" Gauge "bytes" []
        "What is ready and in no block";
    LARGEST_FREE: "kvmem_pool_largest_free_bytes" Gauge "bytes" []
        "The longest free range";
    ALLOCATIONS: "kvmem_pool_allocations" Gauge "blocks" []
        "Blocks alive";
    ALLOCATION_FAILURES: "kvmem_pool_allocation_failures_total" Counter "requests" ["reason"]
        "Requests that were refused";
    RECLAIMS: "kvmem_pool_reclaims_total" Counter "times" []
        "Times that what was cached was taken back because a request found no room";
    ALLOCATE_SECONDS: "kvmem_pool_allocate_seconds" Histogram "seconds" []
        "How long a request for a block took, of one in so many";
    POPULATE_SECONDS: "kvmem_pool_populate_seconds" Gauge "seconds" []
        "How long populating has taken so far";
    REGISTER_SECONDS: "kvmem_pool_register_seconds" Gauge "seconds" ["registrar"]
        "How long calls of a registrar have taken so far, each by itself";
    POPULATE_FAILURES: "kvmem_pool_populate_failures_total" Counter "failures" []
        "Times that memory could not be mapped or populated, whether or not there was a pool afterwards";
    REGISTRATION_FAILURES: "kvmem_pool_registration_failures_total" Counter "failures" ["registrar"]
        "Times that memory could not be registered, whether or not there was a pool afterwards";
    BLOCKS: "kvmem_cache_blocks" Gauge "blocks" ["cache"]
        "Blocks held, those being written included";
    BYTES: "kvmem_cache_bytes" Gauge "bytes" ["cache"]
        "Bytes of those blocks";
    HITS: "kvmem_cache_hits_total" Counter "look-ups" ["cache"]
        "Look-ups that found their key";
    MISSES: "kvmem_cache_misses_total" Counter "look-ups" ["cache"]
        "Look-ups that did not";
    INSERTIONS: "kvmem_cache_insertions_total" Counter "blocks" ["cache"]
        "Values committed";
    REPLACEMENTS: "kvmem_cache_replacements_total" Counter "blocks" ["cache"]
        "Of those, values that took the place of another under the same key";
    EVICTIONS: "kvmem_cache_evictions_total" Counter "blocks" ["cache"]
        "Blocks evicted, for room or by the watermarks";
    REMOVALS: "kvmem_cache_removals_total" Counter "blocks" ["cache"]
        "Blocks removed by their key";
    REFUSALS: "kvmem_cache_insertion_failures_total" Counter "requests" ["cache"]
        "Values refused because there was nothing to evict";
    SINK_FAILURES: "kvmem_cache_sink_failures_total" Counter "blocks" ["cache"]
        "Evicted values that a lower tier failed to take";
    SUPERSEDED: "kvmem_cache_superseded_total" Counter "blocks" ["cache"]
        "Values fetched and not put in, because their lease was broken";
}
