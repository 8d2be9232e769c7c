//! The leases of a cache alone, for the model check in `tests/loom`: the rest of the layer stands
//! on the kernel, of which loom has no model.

#[path = "kv_cache/leases.rs"]
mod leases;

pub use leases::{Leases, Lost};
