//! kvmem for Python: the compiled half of `import kvmem`.
//!
//! A class here holds a value of the library and adds only what Python needs: a lock and a count of
//! views ([`holder`]), `with` ([`context`]), the buffer protocol and DLPack ([`buffer`],
//! [`dlpack`]), exceptions ([`error`]), and the treatment of threads, forks and the end of the
//! interpreter ([`long`], [`progress`], [`process`]). `python/kvmem/_kvmem.pyi` documents names,
//! shapes and types, and `docs/python.md` the conventions. The macro `doc!` returns a docstring of
//! the stub, for `help()`: the build script makes it.

#![allow(
    unsafe_op_in_unsafe_fn,
    reason = "`#[pymethods]` expands `__getbuffer__` to one; own blocks are marked"
)]

include!(concat!(env!("OUT_DIR"), "/docs.rs"));

mod address_manager;
mod admit;
mod attached;
mod batch;
mod below;
mod block;
mod buffer;
mod bump;
mod cache_key;
mod chain;
mod cluster_tier;
mod collect;
mod context;
mod data_type;
mod disk_key;
mod disk_memory;
mod disk_tier;
mod dlpack;
mod doctor;
mod elements;
mod error;
mod fetching;
mod history;
mod hold;
mod holder;
mod interrupt;
mod keeper;
mod keywords;
mod kv_cache;
mod long;
mod memory_methods;
mod memory_options;
mod node_cache;
mod node_call;
mod node_error;
mod node_operator;
mod node_pins;
mod node_report;
mod node_reservation;
mod node_values;
mod number;
mod offsets;
mod options;
mod pinned;
mod pool;
mod prefix;
mod process;
mod progress;
mod python_tier;
mod ranges;
mod region;
mod registration;
mod report;
mod size;
mod tier_inspection;
mod tier_set;
mod tier_values;

use pyo3::prelude::*;

#[pymodule]
fn _kvmem(module: &Bound<'_, PyModule>) -> PyResult<()> {
    process::watch(module)?;
    module.add("__version__", env!("CARGO_PKG_VERSION"))?;
    collect::add::<region::PyRegion>(module)?;
    collect::add::<bump::PyBumpArena>(module)?;
    collect::add::<bump::PyPiece>(module)?;
    collect::add::<registration::PyRegistration>(module)?;
    collect::add::<offsets::PyOffsetAllocator>(module)?;
    collect::add::<offsets::PyAllocation>(module)?;
    collect::add::<offsets::PyAllocationBatch>(module)?;
    collect::add::<address_manager::PyAddressManager>(module)?;
    collect::add::<history::PyHistory>(module)?;
    collect::add::<pool::PyPool>(module)?;
    collect::add::<block::PyBlock>(module)?;
    collect::add::<block::PyBlockBatch>(module)?;
    collect::add::<hold::PyHold>(module)?;
    collect::add::<attached::PyAttachedPool>(module)?;
    collect::add::<attached::PyAttachedBlock>(module)?;
    collect::add::<disk_tier::PyDiskTier>(module)?;
    collect::add::<tier_set::PyTierSet>(module)?;
    collect::add::<cluster_tier::PyClusterTier>(module)?;
    collect::add::<chain::PyChain>(module)?;
    collect::add::<kv_cache::PyKvCache>(module)?;
    collect::add::<fetching::PyFetching>(module)?;
    collect::add::<pinned::PyPinned>(module)?;
    collect::add::<kv_cache::PyReservation>(module)?;
    collect::add::<node_cache::PyNodeCache>(module)?;
    collect::add::<node_operator::PyNodeOperator>(module)?;
    collect::add::<node_pins::PyPinBatch>(module)?;
    collect::add::<node_pins::PyPinnedValue>(module)?;
    collect::add::<node_reservation::PyNodeReservation>(module)?;
    module.add_function(wrap_pyfunction!(node_cache::connect, module)?)?;
    module.add_function(wrap_pyfunction!(doctor::doctor, module)?)?;
    module.add_function(wrap_pyfunction!(doctor::mount_report, module)?)?;
    module.add_function(wrap_pyfunction!(prefix::prefix_keys, module)?)?;
    module.add_function(wrap_pyfunction!(size::parse_size, module)?)
}
