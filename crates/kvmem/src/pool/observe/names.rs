//! *Names*: the table of the metrics of pools. The exporter and the documentation both follow it.

use crate::stats::Kind;

/// The description of a metric.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Described {
    /// The name.
    pub name: &'static str,
    /// The kind.
    pub kind: Kind,
    /// `bytes`, `seconds`, or the things that the metric counts.
    pub unit: &'static str,
    /// Labels in addition to `pool`.
    pub labels: &'static [&'static str],
    /// One sentence on the meaning.
    pub help: &'static str,
}

macro_rules! table {
    ($(
        $id:ident: $name:literal $kind:ident $unit:literal [$($label:literal),*] $help:literal;
    )*) => {
        /// All metrics of a pool, in the order of the [documentation](super).
        pub const METRICS: &[Described] = &[$($id),*];
        $(
            pub(crate) const $id: Described = Described {
                name: $name,
                kind: Kind::$kind,
                unit: $unit,
                labels: &[$($label),*],
                help: $help,
            };
        )*
    };
}

table! {
    CAPACITY: "kvmem_pool_capacity_bytes" Gauge "bytes" []
        "Bytes that blocks could have if all of the pool were ready and nothing in quarantine";
    READY: "kvmem_pool_ready_bytes" Gauge "bytes" []
        "Bytes that are populated, registered and not in quarantine, in use or free";
    QUARANTINED: "kvmem_pool_quarantined_bytes" Gauge "bytes" []
        "Bytes that the pool withholds from use because they failed or their user reported them";
    ALLOCATED: "kvmem_pool_allocated_bytes" Gauge "bytes" []
        "Bytes of all live blocks";
    REQUESTED: "kvmem_pool_requested_bytes" Gauge "bytes" []
        "Bytes requested for all live blocks; equals allocated, since sizes are not rounded";
    CACHED: "kvmem_pool_cached_bytes" Gauge "bytes" []
        "Bytes that threads and depots cache for requests of the same size; they count as free";
    FREE: "kvmem_pool_free_bytes" Gauge "bytes" []
        "Bytes that are ready and in no block";
    LARGEST_FREE: "kvmem_pool_largest_free_bytes" Gauge "bytes" []
        "Length of the longest free range in bytes";
    ALLOCATIONS: "kvmem_pool_allocations" Gauge "blocks" []
        "Number of live blocks";
    ALLOCATION_FAILURES: "kvmem_pool_allocation_failures_total" Counter "requests" ["reason"]
        "Number of failed requests for blocks";
    RECLAIMS: "kvmem_pool_reclaims_total" Counter "times" []
        "Number of times that cached bytes were returned because a request found no space";
    ALLOCATE_SECONDS: "kvmem_pool_allocate_seconds" Histogram "seconds" []
        "Duration of requests for blocks; one request in N is measured";
    POPULATE_SECONDS: "kvmem_pool_populate_seconds" Gauge "seconds" []
        "Total time spent on populating memory";
    REGISTER_SECONDS: "kvmem_pool_register_seconds" Gauge "seconds" ["registrar"]
        "Total time spent in calls of a registrar; concurrent calls each count in full";
    POPULATE_FAILURES: "kvmem_pool_populate_failures_total" Counter "failures" []
        "Number of failures to map or populate memory, whether or not the pool was built";
    REGISTRATION_FAILURES: "kvmem_pool_registration_failures_total" Counter "failures" ["registrar"]
        "Number of failures to register memory, whether or not the pool was built";
}
