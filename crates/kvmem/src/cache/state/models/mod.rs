//! Model checks of pending fetches.

#[cfg(not(shuttle))]
mod fetches;
#[cfg(shuttle)]
mod fetches_random;
mod tier_model;
