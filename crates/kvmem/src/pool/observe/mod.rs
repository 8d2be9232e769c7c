#![doc = include_str!("../../../docs/metrics.md")]

mod failures;
#[cfg(feature = "metrics")]
pub(crate) mod instruments;
mod latency;
pub(crate) mod names;
mod setup_times;

#[cfg(feature = "metrics")]
pub use super::export::{Exporter, Publisher};
pub use super::figures::PoolFigures;
#[cfg(feature = "metrics")]
pub use crate::stats::publish;
pub use crate::stats::{Field, Kind, Metric, Stats, rows};
pub use failures::Failures;
pub use latency::LatencyFigures;
pub use names::{Described, METRICS};

pub(super) use failures::FailureCounts;
pub(super) use latency::Latency;
pub(super) use setup_times::{SetUp, failed};
