//! What needs the pools of the machine alone.

mod pool;
mod serve_hugepages;
#[path = "../it/serving.rs"]
#[expect(dead_code, reason = "the other test program uses all of it")]
mod serving;
