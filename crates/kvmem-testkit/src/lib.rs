//! kvmem-testkit

pub mod workload;
