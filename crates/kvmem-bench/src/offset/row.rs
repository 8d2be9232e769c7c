//! *Row*: one contender in one workload.

use serde::{Deserialize, Serialize};

use super::WorkloadId;
use crate::contender::ContenderId;

/// One contender in one workload. Shares are in 0..=1; a figure that the workload lacks is `None`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct OffsetRow {
    /// The workload.
    pub workload: WorkloadId,
    /// The contender.
    pub contender: ContenderId,
    /// The variant of the workload, such as a distribution or a ratio of sizes.
    pub variant: Option<String>,
    /// Bytes of a request, if all have the same size.
    pub size_bytes: Option<u64>,
    /// Bytes of the pool.
    pub pool_bytes: Option<u64>,
    /// Smallest utilization sample.
    pub util_min: Option<f64>,
    /// 99 % of the samples are at least this.
    pub util_p99: Option<f64>,
    /// 90 % of the samples are at least this.
    pub util_p90: Option<f64>,
    /// Half of the samples are at least this.
    pub util_p50: Option<f64>,
    /// Largest sample.
    pub util_max: Option<f64>,
    /// Mean utilization; in `shift`, from one to two turnovers after the change.
    pub util_avg: Option<f64>,
    /// The bound for every allocator, if known.
    pub util_bound: Option<f64>,
    /// Mean utilization while the workload changes (`shift`).
    pub util_during: Option<f64>,
    /// Mean utilization ten to twenty turnovers after the change (`shift`).
    pub util_late: Option<f64>,
    /// Highest peak of live bytes over the pool at which at most one payload in 10,000 failed
    /// (`rl`).
    pub live_fraction: Option<f64>,
    /// Highest peak of live bytes over the pool at which nothing failed (`rl`).
    pub live_fraction_no_failure: Option<f64>,
    /// Share of payloads that failed where the peak of live bytes is 0.95 of the pool (`rl`).
    pub fail_rate: Option<f64>,
    /// Nanoseconds per request over the whole loop; the median of the repetitions.
    pub ns_per_op: Option<f64>,
    /// Objects alive at the end.
    pub live: Option<u64>,
    /// Number of utilization samples, if it is small.
    pub samples: Option<u64>,
    /// Bytes of metadata for each live allocation, its handle included (`metadata`).
    pub metadata_bytes_per_live: Option<f64>,
    /// Bytes that become resident when a space of `pool_bytes` is created (`metadata`).
    pub resident_bytes: Option<u64>,
    /// The published smallest sample.
    pub published_util_min: Option<f64>,
    /// The published mean.
    pub published_util_avg: Option<f64>,
    /// The published time in nanoseconds per request.
    pub published_ns: Option<f64>,
}

impl OffsetRow {
    /// Creates a row without figures.
    #[must_use]
    pub fn new(workload: WorkloadId, contender: ContenderId) -> Self {
        Self {
            workload,
            contender,
            variant: None,
            size_bytes: None,
            pool_bytes: None,
            util_min: None,
            util_p99: None,
            util_p90: None,
            util_p50: None,
            util_max: None,
            util_avg: None,
            util_bound: None,
            util_during: None,
            util_late: None,
            live_fraction: None,
            live_fraction_no_failure: None,
            fail_rate: None,
            ns_per_op: None,
            live: None,
            samples: None,
            metadata_bytes_per_live: None,
            resident_bytes: None,
            published_util_min: None,
            published_util_avg: None,
            published_ns: None,
        }
    }
}
