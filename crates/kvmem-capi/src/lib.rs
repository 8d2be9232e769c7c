//! # kvmem for C
//!
//! `include/kvmem.h` and `include/kvmem/testing.h` are generated from this crate, comments
//! included. `docs/c.md` is the page for users. This page is for contributors.
//!
//! - `handle.rs`: the bits of a handle. `table.rs`: the objects behind handles, which may be any
//!   bits. `slots.rs`: their places.
//! - `promise.rs`: the token for promise 2 below.
//! - `argument.rs`: the types of parameters, which carry the promises 1 and 2.
//! - `call.rs`: the frame of every function. It catches panics, checks arguments, and turns errors
//!   into a status and a text.
//! - `fork.rs`: which objects of the parent a forked child can use.
//! - `fork_lock.rs`: a lock that is free in a child even if the parent held it during the fork.
//! - `error.rs`, `node_error.rs`, `status.rs`, `last_error.rs`: the path of an error.
//! - `options.rs`: structures that may be older or newer than the library, made of tables.
//! - `user_data.rs`: what a program passes with its functions.
//! - `testing.rs`: functions for tests, built with the feature `testing` and declared in a header
//!   of their own.
//! - The other files define one C object each, in the order of the layers.
//!
//! ## Safety
//!
//! All functions are `unsafe` in Rust because C passes pointers. The promise of a C caller is the
//! same for all functions; the head of the header states it:
//!
//! 1. *Pointers.* A pointer to a structure, list, text or out-parameter is NULL, or is aligned and
//!    points to that many objects of its type, which live for the duration of the call. Inputs are
//!    initialized, and no thread writes to them meanwhile; results are writable, and no thread
//!    accesses them meanwhile. Results do not overlap inputs, unless one parameter is both.
//!    Options and texts are copied.
//! 2. *Objects.* No object is destroyed, taken over or changed exclusively while a call on it runs,
//!    neither by another thread nor by a callback that runs in the call.
//! 3. *Callbacks.* A function pointer has the declared type. It and its user data are valid until
//!    the header says otherwise, on every thread that the header names. It returns, and does not
//!    unwind.
//! 4. *Blocks.* Blocks of a slab allocator are freed as its functions require, and bytes that a
//!    program lends to the library stay valid until it gets them back.
//!
//! Handles and allocations by plain data need no promise: they may be NULL, destroyed, of another
//! type, or any bits. A comment `SAFETY` that names a promise by its number means these.
//!
//! Promise 2 has a token: `promise::ObjectPromise`. A handle makes one for the call that it runs;
//! functions that look several objects up, or take one, make their own.
#![allow(non_camel_case_types, reason = "the names are those of C")]
#![allow(clippy::missing_safety_doc, reason = "the promise is the same for all: see the head")]

#[cfg(not(all(target_pointer_width = "64", unix)))]
compile_error!("kvmem's C interface is for 64-bit Unix: handles need the bits");

// In the order of their declarations in the header.
mod version;

mod status;

mod last_error;

mod argument;
mod call;
mod error;
mod fork;
mod fork_lock;
mod handle;
mod promise;
mod slots;
mod table;

mod options;
mod stats;
mod user_data;

mod progress;

mod cancel;

mod region;

mod bump;

mod key;

mod registrars;

mod custom;
mod custom_tier;

mod registration;

mod background;

mod offset;

mod slab;

mod gslice;

mod pool;

mod block;

mod attached;

mod evict_callback;

mod hints;

mod admit_callback;
mod disk_tier;

mod tier_inspection;

mod lower_tier;

mod kv_value;

mod queued_cache;

mod kv_cache;

mod write_behind;

mod cache_values;

mod fetching;

mod node_error;
mod node_keys;
mod node_operator;

mod node_client;

mod node_pins;

mod node_reservation;

mod node_stats;

mod prefix;

#[cfg(feature = "testing")]
mod testing;

pub use admit_callback::*;
pub use argument::{Handle, In, Out, Owned};
pub use attached::*;
pub use background::*;
pub use block::*;
pub use bump::*;
pub use cache_values::*;
pub use call::{KVMEM_JSON, KVMEM_TEXT};
pub use cancel::*;
pub use custom::*;
pub use custom_tier::*;
pub use disk_tier::*;
pub use evict_callback::*;
pub use fetching::*;
pub use gslice::*;
pub use hints::*;
pub use key::*;
pub use kv_cache::*;
pub use kv_value::*;
pub use last_error::*;
pub use lower_tier::*;
pub use node_client::*;
pub use node_keys::*;
pub use node_operator::*;
pub use node_pins::*;
pub use node_reservation::*;
pub use node_stats::*;
pub use offset::*;
pub use options::{
    KVMEM_BACKING_PRIVATE, KVMEM_BACKING_SHARED, KVMEM_INIT_ON_ALLOC, KVMEM_INIT_ON_FREE,
    KVMEM_INIT_ON_NEVER, KVMEM_NUMA_ANY, KVMEM_NUMA_BIND, KVMEM_NUMA_INTERLEAVE,
    KVMEM_POPULATE_AUTO, KVMEM_POPULATE_NONE,
};
pub use pool::*;
pub use prefix::*;
pub use progress::*;
pub use queued_cache::*;
pub use region::*;
pub use registrars::*;
pub use registration::*;
pub use slab::*;
pub use stats::*;
pub use status::*;
#[cfg(feature = "testing")]
pub use testing::*;
pub use tier_inspection::*;
pub use version::*;
pub use write_behind::*;
