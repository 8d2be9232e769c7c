//! Atomics and locks. They are the standard ones, or those of a model checker: loom's under `--cfg
//! loom`, shuttle's under `--cfg loom --cfg shuttle`. The whole crate is compiled in every case, so
//! the checks run the modules themselves. Under `--cfg kvmem_simulated` threads run on simulated
//! cores in [virtual time](simulated).
//!
//! A checker's types exist only inside one of its runs, and cannot be made in constants. Code that
//! a model runs takes its atomics and locks from here. Counters that are statics take those of
//! `std`. Larger statics are declared with [`per_process`], and the constructors that their
//! initial values need with [`const_new`].
//!
//! Each layer with concurrent code has its model checks in a module `models`, which sees the
//! private types. loom tries every order in which threads can meet, and every value that a relaxed
//! load may return. shuttle tries random orders of more threads and steps. Other unit tests are not
//! compiled under a checker: most of them would fail.
//!
//! ```text
//! RUSTFLAGS="--cfg loom" cargo test --profile checks -p kvmem --lib models::
//! RUSTFLAGS="--cfg loom --cfg shuttle" cargo test --profile checks -p kvmem --lib models::
//! ```

mod append_only;
mod asymmetric_fence;
mod backoff;
#[cfg(loom)]
mod checked_mutex;
mod checker;
mod combining;
mod lock;
#[cfg(all(test, loom))]
pub(crate) mod models;
#[cfg(not(loom))]
mod mutex;
mod prefetch;
mod processors;
mod seq_counter;
#[cfg(kvmem_simulated)]
pub(crate) mod simulated;
mod statics;
mod striped;
mod witness;

pub use self::append_only::{AppendOnlyTable, FIRST};
pub(crate) use self::asymmetric_fence::{heavy_fence, heavy_fence_fails, light_fence};
pub(crate) use self::backoff::Backoff;
#[cfg(loom)]
pub(crate) use self::checked_mutex::{
    CheckedMutex as Mutex, CheckedMutexGuard as MutexGuard, hold_over_fork, release_over_fork,
};
pub(crate) use self::checker::hint::spin_loop;
/// A mutex whose waiters sleep at once, and a condition to wait for under it: for long waits.
pub(crate) use self::checker::sync::{
    Condvar, Mutex as SleepingMutex, MutexGuard as SleepingMutexGuard,
};
pub(crate) use self::checker::{
    AtomicBool, AtomicPtr, AtomicU32, AtomicU64, AtomicUsize, Instant, MODELLED, Ordering, fence,
};
pub(crate) use self::combining::{Combined, CombiningGuard, CombiningMutex, Words};
#[cfg(not(loom))]
pub(crate) use self::mutex::{Mutex, MutexGuard, hold_over_fork, release_over_fork};
pub(crate) use self::prefetch::prefetch;
pub(crate) use self::processors::processors;
#[cfg(all(test, not(loom), not(kvmem_simulated)))]
pub(crate) use self::processors::set_processors;
pub(crate) use self::seq_counter::SeqCounter;
pub(crate) use self::statics::{const_new, filled, per_process, per_thread};
pub(crate) use self::striped::{Striped, StripedWriteGuard, thread_number};
pub(crate) use self::witness::Witness;
