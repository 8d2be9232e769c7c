//! Model checks of the queue between threads that evict, writers, invalidations and the end.

#[cfg(not(shuttle))]
mod orders;
mod queue_model;
#[cfg(shuttle)]
mod random;
