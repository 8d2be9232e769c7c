//! Model checks of the magazines.

mod magazine_model;
#[cfg(not(shuttle))]
mod magazines;
#[cfg(shuttle)]
mod magazines_random;
