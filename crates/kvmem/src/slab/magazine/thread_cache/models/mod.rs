//! Model checks of the owner lock.

mod guarded_owner;
#[cfg(not(shuttle))]
mod owner_lock;
#[cfg(shuttle)]
mod owner_lock_random;
