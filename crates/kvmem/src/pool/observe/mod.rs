#![doc = include_str!("../../../docs/metrics.md")]

#[cfg(feature = "metrics")]
mod exporter;
mod failures;
mod figures;
mod latency;
mod names;
#[cfg(feature = "metrics")]
mod publisher;
mod setup;

#[cfg(feature = "metrics")]
pub use exporter::Exporter;
pub use failures::Failures;
pub use figures::PoolFigures;
pub use latency::LatencyFigures;
pub use names::{Described, Kind, METRICS};
#[cfg(feature = "metrics")]
pub use publisher::Publisher;

pub(super) use failures::FailureCounts;
pub(super) use latency::Latency;
pub(super) use setup::{SetUp, failed};
