//! # kvmem-testkit — what the tests of kvmem stand on
//!
//! Models, generators and runners that more than one test, fuzz target or benchmark uses.

pub mod codec;
pub mod corpus;
pub mod driver;
pub mod modular;
pub mod op;
pub mod oracle;
pub mod random;
pub mod slices;
pub mod soak;
#[cfg(any(test, feature = "proptest"))]
pub mod strategy;
pub mod workload;
