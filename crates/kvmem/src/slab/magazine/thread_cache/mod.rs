//! *Thread caches*: the magazines that one thread has in one instance, and the list of all threads'.

mod block;
mod list;
mod owner_lock;

pub(crate) use block::{CacheRef, ClassSlot};
pub(crate) use list::{CacheList, Caches};
#[cfg(loom)]
pub(crate) use owner_lock::OwnerLock;
