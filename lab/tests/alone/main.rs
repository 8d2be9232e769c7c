//! What needs the pools of the machine alone.

mod hugepages;
#[path = "../../../crates/kvmem-cli/tests/alone/pool.rs"]
mod pool;
