//! *Thread caches*: the magazines that a thread has in one instance, and the list of all threads'.

mod access;
mod block;
mod list;
#[cfg(all(test, loom))]
mod models;
mod owner;
mod owner_lock;
mod slot;
mod stop;

pub(crate) use access::CacheAccess;
pub(crate) use block::{CacheRef, ThreadCache};
pub(crate) use list::{CacheList, Caches};
pub(crate) use owner::{OwnCache, OwnerAccess, SlowPath};
