//! Model checks of the locks, and runners for the models of all layers.

#[cfg(not(shuttle))]
mod combining;
#[cfg(not(shuttle))]
mod lock;
#[cfg(not(shuttle))]
pub(crate) mod preemptions;
#[cfg(shuttle)]
pub(crate) mod random;
#[cfg(not(shuttle))]
mod striped;
#[cfg(shuttle)]
mod striped_random;

/// A model's shared pointer: the checker knows its counts.
pub(crate) use super::checker::sync::Arc;
