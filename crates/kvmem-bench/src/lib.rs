//! kvmem-bench
