//! kvmem
