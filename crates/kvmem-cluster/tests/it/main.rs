//! A cluster, and caches and nodes above it.

mod cluster;
#[path = "../../../kvmem-node/tests/it/support.rs"]
#[allow(dead_code, reason = "the tests of the node use the rest")]
mod support;
