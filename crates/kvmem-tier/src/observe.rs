#![doc = include_str!("../docs/metrics.md")]

#[cfg(feature = "metrics")]
mod publish;

#[cfg(feature = "metrics")]
pub use self::publish::{publisher, queue_publisher, set_publisher};
