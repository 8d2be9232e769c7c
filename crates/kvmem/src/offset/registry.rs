//! *Registry*: where the cores live, for as long as the process.
//!
//! An allocation has to be safe after its allocator is gone. A counted reference in each would cost two
//! atomic read-modify-writes an allocation on a line that all threads share, and eight bytes. Instead cores are
//! *type-stable*: they stand in a table that only grows, and are used again once they are free; an allocation
//! names its core by a number. The books inside (all that grows) come and go with the allocator; a core at rest
//! is a few hundred bytes. What counts an allocation is `Heap::live`, under the lock that a free takes anyway.
//!
//! The first cores stand in a static, so that finding them takes no load; the rest in segments that double.

use std::sync::OnceLock;

use crate::sync::Mutex;

use super::core::Core;

const FIRST_LOG2: u32 = 5;
const FIRST: usize = 1 << FIRST_LOG2;
/// Together with the first, 2^31 cores.
const SEGMENTS: usize = 31 - FIRST_LOG2 as usize;

static FIRST_CORES: [Core; FIRST] = [const { Core::new() }; FIRST];
static MORE_CORES: [OnceLock<Box<[Core]>>; SEGMENTS] = [const { OnceLock::new() }; SEGMENTS];
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
    match FIRST_CORES.get(index as usize) {
        Some(core) => core,
        None => further_core(index),
    }
}

fn further_core(index: u32) -> &'static Core {
    // Segment k holds the numbers 2^(FIRST_LOG2 + k) up to twice that.
    let log2 = index.ilog2();
    let len = 1usize << log2;
    let segment =
        MORE_CORES[(log2 - FIRST_LOG2) as usize].get_or_init(|| (0..len).map(|_| Core::new()).collect());
    &segment[index as usize - len]
}

/// A free core for a new allocator: its number, and an identity never used before.
pub(super) fn enlist() -> (u32, u64) {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_number_has_its_own_core() {
        let mut seen = std::collections::HashSet::new();
        for index in 0..1000 {
            assert!(seen.insert(std::ptr::from_ref(core(index))), "core {index} is another's");
            assert!(std::ptr::eq(core(index), core(index)));
        }
    }
}
