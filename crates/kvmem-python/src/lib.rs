//! kvmem for Python: the compiled half of `import kvmem`.
//!
//! A class here holds a value of the library and adds nothing to it but what Python needs: a lock and a count of views ([`holder`]), `with` ([`context`]), the
//! buffer protocol and DLPack ([`buffer`], [`dlpack`]), exceptions ([`error`]), and what becomes of threads, forks and the end of the interpreter
//! ([`long`], [`progress`], [`process`]). Names, shapes and types are told in `python/kvmem/_kvmem.pyi`, conventions in `docs/python.md`.

#![allow(
    unsafe_op_in_unsafe_fn,
    reason = "what `#[pymethods]` makes of `__getbuffer__`; our own blocks are marked"
)]

mod address_manager;
mod attached;
mod batch;
mod block;
mod buffer;
mod bump;
mod context;
mod dlpack;
mod doctor;
mod error;
mod hold;
mod holder;
mod kv_cache;
mod long;
mod offsets;
mod options;
mod pool;
mod process;
mod progress;
mod ranges;
mod region;
mod registration;
mod report;
mod size;

use pyo3::prelude::*;

#[pymodule]
fn _kvmem(module: &Bound<'_, PyModule>) -> PyResult<()> {
    process::watch(module)?;
    module.add("__version__", env!("CARGO_PKG_VERSION"))?;
    module.add_class::<region::PyRegion>()?;
    module.add_class::<bump::PyBumpArena>()?;
    module.add_class::<bump::PyPiece>()?;
    module.add_class::<registration::PyRegistration>()?;
    module.add_class::<offsets::PyOffsetAllocator>()?;
    module.add_class::<offsets::PyAllocation>()?;
    module.add_class::<offsets::PyAllocationBatch>()?;
    module.add_class::<address_manager::PyAddressManager>()?;
    module.add_class::<pool::PyPool>()?;
    module.add_class::<block::PyBlock>()?;
    module.add_class::<block::PyBlockBatch>()?;
    module.add_class::<hold::PyHold>()?;
    module.add_class::<attached::PyAttachedPool>()?;
    module.add_class::<attached::PyAttachedBlock>()?;
    module.add_class::<kv_cache::PyKvCache>()?;
    module.add_class::<kv_cache::PyLease>()?;
    module.add_class::<kv_cache::PyPinned>()?;
    module.add_class::<kv_cache::PyReservation>()?;
    module.add_function(wrap_pyfunction!(doctor::doctor, module)?)?;
    module.add_function(wrap_pyfunction!(doctor::mount_report, module)?)?;
    module.add_function(wrap_pyfunction!(size::parse_size, module)?)
}
