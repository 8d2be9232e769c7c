//! *Export*: passes the figures of pools and caches to the `metrics` facade.

mod exporter;
mod publisher;

pub use exporter::Exporter;
pub(super) use exporter::{populate_failed, registration_failed};
pub use publisher::Publisher;
