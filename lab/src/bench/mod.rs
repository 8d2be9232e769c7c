//! Benchmarks of kvmem's layers: suites × contenders → rows.
//!
//! | suite | measures |
//! |---|---|
//! | [`arena`] | bump allocation; mapping and populating memory |
//! | [`register`] | registering a region with several devices |
//! | [`offset`] | one allocator of offsets, one thread: placement and time |
//! | [`concurrency`] | one allocator of offsets shared by threads |
//! | [`simulate`] | the loops of `concurrency` and others, on simulated cores |
//! | [`slab`] | small memory blocks of several threads |
//! | [`cache`] | keyed blocks shared by threads; hit rates on a trace |
//! | [`tier`] | values stored on a disk and fetched again |
//! | [`codec`] | values compressed and decompressed |
//! | [`node`] | one pool for several processes: calls, values, a restart |
//! | [`gpu`] | memory that a GPU copies from and to: registering, copies |
//!
//! The other modules serve the suites:
//!
//! - [`suite`]: the framework: turns, rows, tables, goals.
//! - [`contender`]: the allocators of offsets under measurement: the library, models of published
//!   allocators, baselines, and the loop alone.
//! - [`loops`]: each loop drives one contender through one workload. The generators of requests are
//!   in [`kvmem_testkit::workload`].
//! - [`published`]: figures that others published for the same workloads.
//! - [`beside`]: contenders that are programs of other people's code.

pub mod arena;
pub mod args;
pub mod beside;
pub mod cache;
pub mod clock;
pub mod codec;
pub mod command;
pub mod concurrency;
pub mod contender;
pub mod gpu;
pub mod limits;
pub mod live_set;
mod lock;
pub mod loops;
pub mod machine;
pub mod node;
pub mod offset;
mod pauses;
pub mod published;
pub mod register;
pub mod simulate;
pub mod slab;
pub mod stats;
pub mod suite;
pub mod team;
pub mod tier;
pub mod values;
