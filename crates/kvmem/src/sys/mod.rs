//! *The kernel*: every system call of the library, one function for each; and the loader of shared
//! libraries.
//!
//! Nothing else in the crate speaks to the kernel. A function here checks nothing and decides
//! nothing: it makes its call and turns a refusal into an [`Errno`]. What the refusal means is
//! decided above.
//!
//! ## The seam
//!
//! Each function asks [`gate`] first. In ordinary builds that is an empty inlined function. With
//! the feature `fault-injection` it looks into a plan that a test has made, and the call may fail
//! without having been made; so each way out of the code above can be walked, not only those that a
//! healthy machine shows.

mod barrier;
mod call;
mod errno;
#[cfg(feature = "fault-injection")]
pub mod fault;
mod file;
mod fork;
#[cfg(not(loom))]
mod generation;
#[cfg(not(loom))]
mod library;
mod lock;
mod memory;
mod placement;
mod process;
mod ring;

pub use call::Call;
pub use errno::Errno;

pub(crate) use barrier::{barrier, register_barrier};
#[cfg(not(loom))]
pub(crate) use file::{FileId, file_id, file_number, mode, reopen_read_only};
pub(crate) use file::{
    PageRegion, duplicate, file_size, file_system, get_seals, is_folder, memfd_create,
    open_pagemap, open_text, pagemap_scan, pread, read_text, set_mode, set_seals, space_at,
    truncate,
};
pub(crate) use fork::{Hooks, Stage, around_fork};
#[cfg(not(loom))]
pub(crate) use generation::{count_forks, generation};
#[cfg(not(loom))]
pub(crate) use library::Library;
pub(crate) use lock::{
    LOCK_END, find_lock, lock_range, open_to_lock, try_lock, unlock, unlock_range,
};
pub(crate) use memory::{
    madvise, map_anonymous, map_file, map_huge, mincore, mlock, munlock, munmap, page_size,
    populate_is_known, populate_write, protect, refill, reserve, touch,
};
pub(crate) use placement::{bind, node_here, nodes_of, policy_at};
pub(crate) use process::{
    Resource, affinity, process_id, resource_limit, resource_limits, spawn, spawn_scoped,
};
#[cfg(not(loom))]
pub(crate) use process::{add_to_environment, at_exit};
pub(crate) use ring::{
    io_uring_allowed, ring_clone, ring_empty, ring_fill, ring_setup, ring_table,
};

/// What a call of this module gives.
pub(crate) type Result<T> = std::result::Result<T, Errno>;

/// Says whether the call is to be made at all.
#[cfg(feature = "fault-injection")]
fn gate(call: Call) -> Result<()> {
    fault::check(call)
}

/// Says whether the call is to be made at all: yes.
#[cfg(not(feature = "fault-injection"))]
#[inline(always)]
fn gate(_: Call) -> Result<()> {
    Ok(())
}

/// The result of a C function that returns −1 and sets `errno`.
fn check(returned: libc::c_long) -> Result<usize> {
    usize::try_from(returned).map_err(|_| Errno::last())
}
