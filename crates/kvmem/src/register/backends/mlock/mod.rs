//! *mlock*: pages that stay in memory. There is no device. This registrar serves consumers that
//! read the process's page tables, and users who only want to prevent swapping.
//!
//! ## Locks do not nest
//!
//! In the kernel a page is locked or not: the first `munlock` undoes any number of `mlock`s. It
//! also works on whole pages: two keys that meet within a page share its lock. This module
//! therefore counts the keys over each page, once for the process, and deregistering a key unlocks
//! only the pages that no other key covers. Locks that other code takes on the same pages are not
//! counted; the last key that covers such a page undoes them.
//!
//! ## Concurrency
//!
//! The kernel makes pages resident while it locks them, which takes long; several threads can do
//! that at once. A key is counted before its pages are locked, and pages are unlocked while the
//! counts are locked. No thread can therefore unlock pages that another thread is locking.
//! Unlocking is serial in the kernel anyway: it locks the address space of the process.

mod coverage;
mod registrar;

pub use registrar::Mlock;
