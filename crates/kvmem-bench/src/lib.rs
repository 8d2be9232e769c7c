//! kvmem-bench: workloads × contenders.

pub mod contender;
pub mod live;
pub mod loops;
pub mod stats;
