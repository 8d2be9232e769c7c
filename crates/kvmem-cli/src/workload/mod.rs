//! *Workload*: the objects that a model's KV cache consists of, their bytes, and the times of calls
//! on them.

pub mod latency;
pub mod model;
pub mod object;
pub mod payload;
