//! *Replay metrics*: the progress of a replay for Prometheus.

use metrics::{Counter, Unit, counter, describe_counter};

use crate::replay::Progress;

/// The progress of a replay as metrics, if the process has a recorder when this is made.
pub(crate) struct ReplayMetrics {
    requests: Counter,
    bytes: Counter,
}

impl ReplayMetrics {
    pub(crate) fn new() -> ReplayMetrics {
        const REQUESTS: &str = "kvmem_replay_requests_total";
        const BYTES: &str = "kvmem_replay_trace_bytes_total";
        describe_counter!(REQUESTS, Unit::Count, "Requests of the trace that have been served");
        describe_counter!(BYTES, Unit::Bytes, "Bytes of the trace that have been read");
        ReplayMetrics { requests: counter!(REQUESTS), bytes: counter!(BYTES) }
    }

    /// Publishes the progress: two stores.
    pub(crate) fn publish(&self, progress: &Progress) {
        self.requests.absolute(progress.requests);
        self.bytes.absolute(progress.bytes_read);
    }
}
