//! *Checker*: the primitives of this build, which are the standard library's or a model checker's.

#[cfg(all(loom, not(shuttle)))]
pub(super) use loom::{hint, sync, thread};
#[cfg(shuttle)]
pub(super) use shuttle::{hint, sync, thread};
#[cfg(not(loom))]
pub(super) use std::{hint, sync, thread};

pub(crate) use self::sync::atomic::{
    AtomicBool, AtomicPtr, AtomicU32, AtomicU64, AtomicUsize, Ordering, fence,
};

/// Whether a model checker runs this build. It tries all orders of the steps, so a model has fewer
/// spins, stripes and entries.
pub(crate) const MODELLED: bool = cfg!(loom);
