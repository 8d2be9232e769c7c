//! *System calls*: all system calls of the library, one function for each kind of call; and the
//! loader of shared libraries.
//!
//! No other code in the crate calls the kernel. A function here checks nothing and decides nothing:
//! it makes its call and turns a failure into an [`Errno`]. Its caller interprets the error.
//!
//! ## The seam for tests
//!
//! Each function calls [`gate`](gate::gate) first. In ordinary builds that is an empty inlined
//! function. With the feature `fault-injection` it looks up a plan that a test has made, and the
//! call may fail without having been made. Tests can therefore reach every error path, not only
//! those that a healthy machine shows.

mod barrier;
mod call;
#[cfg(all(test, not(loom)))]
mod child;
mod errno;
#[cfg(feature = "fault-injection")]
pub mod fault;
mod file;
mod fork;
mod gate;
mod generation;
mod library;
mod lock;
mod made_in;
mod memory;
mod placement;
mod process;
mod ring;

pub use call::Call;
pub use errno::Errno;

pub(crate) use barrier::{barrier, register_barrier};
#[cfg(all(test, not(loom)))]
pub(crate) use child::forked;
pub(crate) use errno::Result;
pub(crate) use file::{FileId, file_id, file_number, mode, reopen_read_only};
pub(crate) use file::{
    PageRegion, StoredFile, duplicate, file_size, file_system, folder_names, get_seals, is_folder,
    link_target, memfd_create, open_pagemap, open_text, pagemap_scan, pread, read_text, set_mode,
    set_seals, space_at, stored_file, truncate,
};
pub(crate) use fork::{ForkHooks, ForkStage, around_fork};
pub(crate) use generation::{count_forks, generation};
pub(crate) use library::Library;
pub(crate) use lock::{
    LOCK_END, find_lock, lock_range, open_to_lock, try_lock, unlock, unlock_range,
};
pub(crate) use made_in::Process;
pub(crate) use memory::{
    has_populate_write, madvise, map_anonymous, map_file, map_huge, map_shared, mincore, mlock,
    munlock, munmap, page_size, populate_write, protect, refill, reserve, touch,
};
pub(crate) use placement::{bind, cpu_here, node_here, nodes_of, policy_at};
pub(crate) use process::{
    Resource, affinity, process_id, resource_limit, resource_limits, spawn, spawn_scoped, user_id,
};
pub(crate) use process::{add_to_environment, at_exit, has_more_rights_than_its_user};
pub(crate) use ring::{
    io_uring_allowed, ring_clone, ring_empty, ring_fill, ring_setup, ring_table,
};
