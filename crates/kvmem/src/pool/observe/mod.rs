#![doc = include_str!("../../../docs/metrics.md")]

#[cfg(feature = "metrics")]
mod exporter;
mod figures;
mod latency;
mod names;
#[cfg(feature = "metrics")]
mod publisher;
mod refusals;
mod setup;

#[cfg(feature = "metrics")]
pub use exporter::Exporter;
pub use figures::PoolFigures;
pub use latency::LatencyFigures;
pub use names::{Described, Kind, METRICS};
#[cfg(feature = "metrics")]
pub use publisher::Publisher;
pub use refusals::Failures;

pub(super) use latency::Latency;
pub(super) use refusals::Refusals;
pub(super) use setup::{SetUp, failed};
