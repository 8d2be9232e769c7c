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

use crate::sync::{AppendOnlyTable, FIRST, Mutex, hold_over_fork, release_over_fork};
use crate::sys::{ForkHooks, ForkStage, around_fork};

use super::core::Core;

static CORES: AppendOnlyTable<Core> =
    AppendOnlyTable::new([const { Core::new() }; FIRST], Core::new);
static ROLL: Mutex<Roll> = Mutex::new(Roll { free: Vec::new(), used: 0, born: 0 });

/// Which cores are in use.
struct Roll {
    /// Numbers below `used` that are free again.
    free: Vec<u32>,
    /// Numbers handed out so far.
    used: u32,
    /// Allocators made so far.
    born: u64,
}

/// The core of number `index`, which was handed out by [`enlist`].
#[inline]
pub(super) fn core(index: u32) -> &'static Core {
    CORES.get(index)
}

/// A free core for a new allocator: its number, and an identity never used before.
pub(super) fn enlist() -> (u32, u64) {
    // If the system has no memory for the hooks, a child of a fork may find locks held. Nothing
    // else depends on them.
    let _ = around_fork(ForkStage::Spaces, ForkHooks { prefork, postfork, postfork_child: || () });
    let mut roll = ROLL.lock();
    roll.born += 1;
    let index = roll.free.pop().unwrap_or_else(|| {
        roll.used += 1;
        roll.used - 1
    });
    (index, roll.born)
}

/// Takes back a core that nobody uses any more.
#[cold]
pub(super) fn discharge(index: u32) {
    ROLL.lock().free.push(index);
}

fn prefork() {
    hold_over_fork(&ROLL);
    each_core(Core::hold_over_fork);
}

fn postfork() {
    each_core(Core::release_over_fork);
    release_over_fork(&ROLL);
}

/// Runs with every core that exists. A core of a number that is not handed out is at rest: its lock
/// is free, and costs only time.
fn each_core(run: impl Fn(&Core)) {
    CORES.iter().for_each(|(_, core)| run(core));
}
