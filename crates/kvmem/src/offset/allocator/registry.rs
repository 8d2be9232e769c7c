//! *Registry*: stores the cores for the lifetime of the process.
//!
//! An allocation must be safe after its allocator is gone. A counted reference in each would cost
//! two atomic read-modify-writes per allocation on a line that all threads share, and eight bytes.
//! Instead cores are *type-stable*: they are in a [table that only grows](Stable) and are reused
//! once they are free. An allocation identifies its core by a number. The state inside (everything
//! that grows) is created and dropped with the allocator; an unused core takes a few hundred bytes.
//! `Heap::live` counts the allocations, under the lock that a free takes anyway.
//!
//! **Fork.** The forking thread takes the lock of the registry and those of all cores. A child
//! therefore finds every space consistent and every lock free. This costs one atomic
//! read-modify-write for each core that was ever in use.

use crate::sync::{
    AppendOnlyTable, FIRST, Mutex, filled, hold_over_fork, per_process, release_over_fork,
};
use crate::sys::{ForkHooks, ForkStage, around_fork};

use super::space_core::SpaceCore;

per_process! {
    static CORES: AppendOnlyTable<SpaceCore> =
        AppendOnlyTable::new(filled![SpaceCore::new(); FIRST], SpaceCore::new);
}
per_process! {
    static CORE_SLOTS: Mutex<CoreSlots> =
        Mutex::new(CoreSlots { free: Vec::new(), used: 0, created: 0 });
}

/// The cores in use.
struct CoreSlots {
    /// Numbers below `used` that are free again.
    free: Vec<u32>,
    /// Number of numbers assigned so far.
    used: u32,
    /// Number of allocators created so far.
    created: u64,
}

/// Returns the core of number `index`, which [`acquire_slot`] returned.
#[inline]
pub(super) fn core(index: u32) -> &'static SpaceCore {
    CORES.get(index)
}

/// Returns the core of a number, if it exists. The number may be any.
#[inline]
pub(super) fn find_core(index: u32) -> Option<&'static SpaceCore> {
    CORES.find(index)
}

/// Assigns a free core to a new allocator; returns its number, and an identity never used before.
pub(super) fn acquire_slot() -> (u32, u64) {
    // If the system has no memory for the hooks, a child of a fork may find locks held. Nothing
    // else depends on them.
    let _ = around_fork(ForkStage::Spaces, ForkHooks { prefork, postfork, postfork_child });
    let mut slots = CORE_SLOTS.lock();
    slots.created += 1;
    let index = slots.free.pop().unwrap_or_else(|| {
        slots.used += 1;
        slots.used - 1
    });
    (index, slots.created)
}

/// Takes back a core that nothing uses any more.
#[cold]
pub(super) fn release_slot(index: u32) {
    CORE_SLOTS.lock().free.push(index);
}

fn prefork() {
    hold_over_fork(&CORE_SLOTS);
    each_core(SpaceCore::hold_over_fork);
}

fn postfork() {
    each_core(SpaceCore::release_over_fork);
    release_over_fork(&CORE_SLOTS);
}

fn postfork_child() {
    each_core(SpaceCore::forget_waiters);
}

/// Runs with every core that exists. A core without an assigned number is unused: its lock is free,
/// and costs only time.
fn each_core(run: impl Fn(&SpaceCore)) {
    CORES.iter().for_each(|(_, core)| run(core));
}
