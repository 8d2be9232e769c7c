//! Tests that need the process, its limits, or the machine's hugepage pools to themselves.
//!
//! Every test takes [`alone`] first, so the tests run one after the other, whatever the harness
//! does.

use std::sync::{Mutex, MutexGuard, PoisonError};

#[path = "../it/child.rs"]
mod child;
mod concurrent_population;
mod contention;
mod faults;
#[path = "../it/register/fixed.rs"]
mod fixed;
mod libraries;
mod limits;
mod nixl;
mod pools;
mod process;
mod register;
mod slab_allocator;
#[path = "../standin/mod.rs"]
mod standin;
mod whole_pools;

const MIB: usize = 1 << 20;

/// The lock that each test holds from its beginning to its end.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Returns the mappings of this process, except those that change by themselves: heap, stacks, and
/// the used part of a thread's heap.
fn maps() -> Vec<String> {
    let text = std::fs::read_to_string("/proc/self/maps").expect("our own maps");
    let kept = text.lines().filter(|line| !line.contains("[heap]") && !line.contains("[stack]"));
    let mut maps: Vec<String> = Vec::new();
    for line in kept {
        // The C library reserves 64 MiB for a thread's heap, at a multiple of that, and makes it
        // accessible from its beginning.
        if let Some(last) = maps.last_mut()
            && let (Some((start, middle)), Some((from, end))) = (range(last), range(line))
            && (start.is_multiple_of(64 << 20) && from == middle && end == start + (64 << 20))
            && (last.contains(" rw-p ") && line.contains(" ---p "))
        {
            *last = format!("{start:x}-{end:x} a thread's heap");
        } else {
            maps.push(line.to_owned());
        }
    }
    maps
}

/// Returns the addresses in a line of `/proc/self/maps`.
fn range(line: &str) -> Option<(usize, usize)> {
    let (from, to) = line.split(' ').next()?.split_once('-')?;
    Some((usize::from_str_radix(from, 16).ok()?, usize::from_str_radix(to, 16).ok()?))
}

/// Returns the number of open descriptors of this process.
fn descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").expect("our own descriptors").count()
}
