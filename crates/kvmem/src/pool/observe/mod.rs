#![doc = include_str!("../../../docs/metrics.md")]

mod failures;
#[cfg(feature = "metrics")]
pub(crate) mod instruments;
mod latency;
pub(crate) mod names;
mod setup_times;
pub(crate) mod stats;

#[cfg(feature = "metrics")]
pub use super::export::{Exporter, Publisher};
pub use super::figures::PoolFigures;
pub use failures::Failures;
pub use latency::LatencyFigures;
pub use names::{Described, Kind, METRICS};
#[cfg(feature = "metrics")]
pub use stats::publish;
pub use stats::{Field, Metric, Stats, rows};
#[doc(hidden)]
pub use stats::{FieldType, MetricOfField};

pub(super) use failures::FailureCounts;
pub(super) use latency::Latency;
pub(super) use setup_times::{SetUp, failed};
