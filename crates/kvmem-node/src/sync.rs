//! Atomics of the [rings](crate::ring) and the [words of sessions](crate::session_file): the
//! standard ones, in unit tests ones that note each store, or those of a model checker, which are
//! loom's under `--cfg loom` and shuttle's under `--cfg loom --cfg shuttle`.
//!
//! The whole crate is compiled in every case. No other part of it shares memory with another thread
//! without a lock, so all others take the standard library's.
//!
//! ```text
//! RUSTFLAGS="--cfg loom" cargo test --profile checks -p kvmem-node --lib models::
//! RUSTFLAGS="--cfg loom --cfg shuttle" cargo test --profile checks -p kvmem-node --lib models::
//! ```

#[cfg(all(loom, not(shuttle)))]
use loom::sync::atomic;
#[cfg(shuttle)]
use shuttle::sync::atomic;
#[cfg(not(loom))]
use std::sync::atomic;

#[cfg(not(all(test, not(loom))))]
pub(crate) use atomic::{AtomicU32, AtomicU64};
pub(crate) use atomic::{Ordering, fence};

#[cfg(all(test, not(loom)))]
pub(crate) use crate::test_stores::{AtomicU32, AtomicU64};
