//! How kvmem's layers compare: workloads × contenders → rows.
//!
//! - [`contender`]: what is measured: the library, models of published allocators, yardsticks, and
//!   the bare loop.
//! - [`loops`]: what it is measured with: each loop drives one contender through one workload. The
//!   generators of requests are in [`kvmem_testkit::workload`].
//! - [`published`]: the figures that others published for the same workloads.
//! - [`arena`]: the benchmark of the arena layer: [`arena::run`] gives an [`arena::Report`].
//! - [`register`]: the benchmark of the register layer: [`register::run`] gives a
//!   [`register::Report`].
//! - [`slab`]: the benchmark of the slab layer, small blocks of memory: [`slab::run`] gives a
//!   [`slab::Report`].
//! - [`concurrency`]: one allocator of offsets that threads share: [`concurrency::run`] gives a
//!   [`concurrency::Report`].
//! - [`cache`]: keyed blocks that threads share: [`cache::run`] gives a [`cache::Report`].
//! - [`crowd`]: what the last two have in common.
//! - [`offset`]: the benchmark of the offset layer: [`offset::run`] gives a [`report::Report`],
//!   which is JSON through `serde` and a table through `Display`.
//! - [`hugepages`]: those that some rows need, and what a run may change on the machine for them.
//! - [`html`]: every report as a chapter of a page, with plots.
//!
//! The library takes its time and returns values; it prints nothing. [`progress::Progress`] tells a
//! caller how far it has come.
//!
//! ```no_run
//! use kvmem_bench::offset::{self, Options};
//!
//! let options = Options { quick: true, ..Options::default() };
//! let report = offset::run(&options, &mut ()).expect("every contender can serve the usual workloads");
//! print!("{report}");
//! ```

pub mod arena;
pub mod cache;
pub mod clock;
mod columns;
pub mod concurrency;
pub mod contender;
mod crew;
pub mod crowd;
pub mod html;
pub mod hugepages;
pub mod live;
pub mod loops;
pub mod machine;
mod names;
pub mod offset;
pub mod progress;
pub mod published;
pub mod register;
pub mod report;
pub mod slab;
pub mod stats;
mod table;

pub use crew::NoThread;
