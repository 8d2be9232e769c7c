//! kvmem-testkit
