//! A node through its sockets and its rings.

mod access;
mod by_rings;
mod by_socket;
mod chains;
#[path = "../../../kvmem/tests/it/register/fixed.rs"]
#[allow(dead_code, reason = "the tests of the library use the rest")]
mod fixed;
mod histories;
mod liveness;
mod memory_holder;
mod misses;
mod registrars;
mod reported;
mod resize;
#[path = "../../../kvmem-tier/tests/it/simulated.rs"]
#[allow(dead_code, reason = "the tests of the tier use the rest")]
mod simulated;
#[path = "../../../kvmem/tests/standin/mod.rs"]
mod standin;
mod support;
mod tier;
