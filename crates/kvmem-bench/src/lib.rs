//! Benchmarks of kvmem's layers: workloads × contenders → rows.
//!
//! One module per suite; each has a function `run` that returns a report. A report converts to JSON
//! (`serde`), to tables (`Display`) and to a chapter of a page ([`suite::Draw`]).
//!
//! | suite | measures | report |
//! |---|---|---|
//! | [`arena`] | bump allocation; mapping and populating memory | [`arena::ArenaReport`] |
//! | [`register`] | registering a region with several devices | [`register::RegisterReport`] |
//! | [`offset`] | one allocator of offsets, one thread: placement and time | [`offset::OffsetReport`] |
//! | [`concurrency`] | one allocator of offsets shared by threads | [`concurrency::ConcurrencyReport`] |
//! | [`simulate`] | the same in virtual time: ways to share it, on up to 64 cores | [`simulate::SimulateReport`] |
//! | [`slab`] | small memory blocks of several threads | [`slab::SlabReport`] |
//! | [`cache`] | keyed blocks shared by threads; hit rates on a trace | [`cache::CacheReport`] |
//! | [`tier`] | values stored on a disk and fetched again | [`tier::TierReport`] |
//! | [`node`] | one pool for several processes: calls, values, a restart | [`node::NodeReport`] |
//! | [`gpu`] | memory that a GPU copies from and to: registering, copies | [`gpu::GpuReport`] |
//!
//! The other modules serve the suites:
//!
//! - [`contender`]: the allocators of offsets under measurement: the library, models of published
//!   allocators, baselines, and the loop alone.
//! - [`loops`]: each loop drives one contender through one workload. The generators of requests are
//!   in [`kvmem_testkit::workload`].
//! - [`published`]: figures that others published for the same workloads.
//! - [`suite`]: the framework: names, the run, reports, their text and pages, goals.
//! - [`concurrent_suite`]: the common part of [`concurrency`] and [`cache`].
//! - [`beside`]: contenders that are programs of other people's code.
//! - [`hugepages`]: hugepages for the rows that need them, and how a run borrows them.
//!
//! The library prints nothing. [`progress::Progress`] reports to the caller how far a run has come.
//!
//! ```no_run
//! use kvmem_bench::offset::{self, OffsetOptions};
//!
//! let options = OffsetOptions { quick: true, ..OffsetOptions::default() };
//! let report = offset::run(&options, &mut ()).expect("every contender serves them");
//! print!("{report}");
//! ```

pub mod arena;
pub mod beside;
pub mod cache;
pub mod clock;
pub mod concurrency;
pub mod concurrent_suite;
pub mod contender;
pub mod gpu;
pub mod hugepages;
pub mod limits;
pub mod live_set;
pub mod loops;
pub mod machine;
pub mod neighbour;
pub mod node;
pub mod offset;
pub mod progress;
pub mod published;
pub mod register;
pub mod simulate;
pub mod slab;
pub mod stats;
pub mod suite;
mod team;
pub mod tier;
mod values;

pub use team::{SpawnError, TeamError};
