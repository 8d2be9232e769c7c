//! Model checks of the leases.

mod cache_model;
#[cfg(not(shuttle))]
mod leases;
#[cfg(shuttle)]
mod leases_random;
