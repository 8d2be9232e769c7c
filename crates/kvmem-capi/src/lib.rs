//! # kvmem for C
//!
//! `include/kvmem.h` is generated from this crate, its comments included; `docs/c.md` is the page
//! for those who use it. Here is what those who change it need.
//!
//! - `table.rs`: handles that may be anything, and the objects behind them.
//! - `call.rs`: what every function goes through: no panic leaves it, arguments are looked at,
//!   failures become numbers and texts.
//! - `fork.rs`: what a forked child has of the objects of its parent.
//! - `generation.rs`: what a fork in the middle of a call leaves to the child.
//! - `fail.rs`, `status.rs`, `last_error.rs`: how a failure travels.
//! - `options.rs`: structures that may be older or newer than the library.
//! - The rest is one file for each object of C, in the order of the layers.
//!
//! ## Safety
//!
//! Functions are `unsafe` in Rust, since C hands them pointers. What a caller in C promises is the
//! same for all of them, and stands in the head of the header:
//!
//! 1. a pointer to a structure, list, text or out-parameter is NULL, or points to what its type
//!    says, aligned, for as long as the call lasts (options and texts are copied; callbacks with
//!    their user data stay as long as the header says);
//! 2. an object is not destroyed while another thread uses it;
//! 3. blocks of a slice allocator are freed as its functions say.
//!
//! Handles are not among these promises: they may be NULL, destroyed, of another kind, or any bits
//! at all. Nor are allocations by plain data.
#![allow(non_camel_case_types, reason = "the names are those of C")]
#![allow(clippy::missing_safety_doc, reason = "the promise is the same for all: see the head")]

#[cfg(not(all(target_pointer_width = "64", unix)))]
compile_error!("kvmem's C interface is for 64-bit Unix: handles need the bits");

// In the order in which they stand in the header.
mod version;

mod status;

mod last_error;

mod call;
mod fail;
mod fork;
mod generation;
mod table;

mod options;

mod progress;

mod cancel;

mod region;

mod bump;

mod key;

mod registrars;

mod custom;

mod registration;

mod background;

mod offset;

mod slice;

mod gslice;

mod pool;

mod block;

mod attached;

mod taker;

mod kv_cache;

mod lease;

mod forget;

pub use attached::*;
pub use background::*;
pub use block::*;
pub use bump::*;
pub use call::{KVMEM_JSON, KVMEM_TEXT};
pub use cancel::*;
pub use custom::*;
pub use forget::*;
pub use gslice::*;
pub use key::*;
pub use kv_cache::*;
pub use last_error::*;
pub use lease::*;
pub use offset::*;
pub use options::{
    KVMEM_BACKING_PRIVATE, KVMEM_BACKING_SHARED, KVMEM_NUMA_ANY, KVMEM_NUMA_BIND,
    KVMEM_NUMA_INTERLEAVE, KVMEM_POPULATE_AUTO, KVMEM_POPULATE_NONE,
};
pub use pool::*;
pub use progress::*;
pub use region::*;
pub use registrars::*;
pub use registration::*;
pub use slice::*;
pub use status::*;
pub use taker::*;
pub use version::*;
