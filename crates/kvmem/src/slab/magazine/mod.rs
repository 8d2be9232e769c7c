//! *Magazines*: arrays of rounds that a thread takes from and puts back without a lock.
//!
//! ```text
//!   magazines.rs      what the layers above use: finds the running thread's cache
//!   threads.rs        from a thread and an instance to a cache
//!   thread_cache/     a thread's two magazines of each class, and the lock of their owner
//!   core/             one instance: exchange with the depot, trims, reclaims, forks
//!   depot.rs          full and empty magazines that all threads share
//!   source.rs         where rounds come from: slabs, or an offset space
//! ```
//!
//! The fast path is in `thread_cache/owner.rs`. The exchange of a magazine, as *Magazines and Vmem*
//! tells it, is in `core/exchange.rs`.

mod clock;
mod core;
mod depot;
mod holders;
#[allow(clippy::module_inception)]
mod magazine;
mod magazines;
#[cfg(all(test, loom))]
mod models;
mod settings;
mod source;
mod stats;
mod thread_cache;
mod threads;
mod topology;

#[cfg(all(test, not(loom)))]
mod tests;

pub use clock::{Clock, ManualClock, SystemClock};
pub(crate) use core::MagazineCore;
pub(crate) use magazines::Magazines;
pub(crate) use settings::MagazineSettings;
pub(crate) use source::RoundSource;
pub(crate) use stats::{ClassStats, MagazineStats};
pub(crate) use threads::with_forks_blocked;
