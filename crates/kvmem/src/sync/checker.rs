//! *Checker*: the primitives of this build, which are the standard library's, a model checker's, or
//! those of simulated cores.

#[cfg(kvmem_simulated)]
pub(super) use super::simulated::{hint, sync, thread};
#[cfg(all(loom, not(shuttle)))]
pub(super) use loom::{hint, sync, thread};
#[cfg(shuttle)]
pub(super) use shuttle::{hint, sync, thread};
#[cfg(not(any(loom, kvmem_simulated)))]
pub(super) use std::{hint, sync, thread};

/// The clock of this build.
#[cfg(kvmem_simulated)]
pub(crate) use super::simulated::Instant;
#[cfg(not(kvmem_simulated))]
pub(crate) use std::time::Instant;

#[cfg(kvmem_simulated)]
pub(super) use super::simulated::sleep;
#[cfg(not(kvmem_simulated))]
pub(super) use std::thread::sleep;

pub(crate) use self::sync::atomic::{
    AtomicBool, AtomicPtr, AtomicU32, AtomicU64, AtomicUsize, Ordering, fence,
};

/// Whether a model checker runs this build. It tries all orders of the steps, so a model has fewer
/// spins, stripes and entries.
pub(crate) const MODELLED: bool = cfg!(loom);
