//! # kvmem-testkit — common parts of kvmem's tests
//!
//! Models, generators and runners that several tests, fuzz targets or benchmarks use.

pub mod codec;
pub mod corpus;
pub mod driver;
pub mod modular;
pub mod op;
pub mod oracle;
pub mod random;
pub mod simulated;
pub mod slabs;
pub mod soak;
#[cfg(any(test, feature = "proptest"))]
pub mod strategy;
pub mod workload;
