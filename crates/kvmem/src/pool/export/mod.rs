//! *Export*: passes the figures of pools and caches to the `metrics` facade.

mod exporter;
mod publisher;

pub use exporter::Exporter;
pub use publisher::Publisher;
