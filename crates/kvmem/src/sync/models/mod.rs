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

/// Starts a thread of a model, which has a reference to it.
#[cfg(not(shuttle))]
pub(crate) fn spawn<M: 'static, T: 'static>(
    model: &Arc<M>,
    run: impl FnOnce(&M) -> T + 'static,
) -> loom::thread::JoinHandle<T> {
    let model = model.clone();
    loom::thread::spawn(move || run(&model))
}
