//! *Registry*: where the cores live, for as long as the process.
//!
//! An allocation has to be safe after its allocator is gone. A counted reference in each would cost
//! two atomic read-modify-writes an allocation on a line that all threads share, and eight bytes.
//! Instead cores are *type-stable*: they stand in a [table that only grows](Stable), and are used
//! again once they are free; an allocation names its core by a number. The books inside (all that
//! grows) come and go with the allocator; a core at rest is a few hundred bytes. What counts an
//! allocation is `Heap::live`, under the lock that a free takes anyway.
//!
//! **Fork.** The forking thread takes the lock of the registry and those of all cores, so a child
//! finds every space whole and every lock free. It costs one atomic read-modify-write for each core
//! that was ever in use.

use crate::sync::{FIRST, Mutex, Stable, hold_over_fork, release_over_fork};
use crate::sys::{Hooks, Stage, around_fork};

use super::core::SpaceCore;

static CORES: Stable<SpaceCore> = Stable::new([const { SpaceCore::new() }; FIRST], SpaceCore::new);
static CORE_SLOTS: Mutex<CoreSlots> =
    Mutex::new(CoreSlots { free: Vec::new(), used: 0, created: 0 });

/// Which cores are in use.
struct CoreSlots {
    /// Numbers below `used` that are free again.
    free: Vec<u32>,
    /// Numbers handed out so far.
    used: u32,
    /// Allocators made so far.
    created: u64,
}

/// The core of number `index`, which was handed out by [`acquire_slot`].
#[inline]
pub(super) fn core(index: u32) -> &'static SpaceCore {
    CORES.get(index)
}

/// A free core for a new allocator: its number, and an identity never used before.
pub(super) fn acquire_slot() -> (u32, u64) {
    // If the system has no memory for the hooks, a child of a fork may find locks held. Nothing
    // else depends on them.
    let _ = around_fork(Stage::Spaces, Hooks { prefork, postfork, postfork_child: || () });
    let mut slots = CORE_SLOTS.lock();
    slots.created += 1;
    let index = slots.free.pop().unwrap_or_else(|| {
        slots.used += 1;
        slots.used - 1
    });
    (index, slots.created)
}

/// Takes back a core that nobody uses any more.
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

/// Runs with every core that exists. A core of a number that is not handed out is at rest: its lock
/// is free, and costs only time.
fn each_core(run: impl Fn(&SpaceCore)) {
    CORES.iter().for_each(|(_, core)| run(core));
}
