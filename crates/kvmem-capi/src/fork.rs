//! *Fork*: what a forked child has of the objects of its parent.
//!
//! A child has a copy of all plain memory, so a space of offsets or an allocator of slices goes on
//! there, as a copy. It has no pages where a region keeps them from children, and the keys, rings
//! and descriptors that it inherits are its parent's. An object that needs those is *forked* in the
//! child: every call on it returns KVMEM_FORKED, until the child destroys the handle. That forgets
//! the child's copy, and gives nothing back that is the parent's.
//!
//! Nothing of this costs a call anything: the child marks the slots of such objects before `fork`
//! returns to the program. `vfork`, `_Fork` and `clone` run no handlers, and mark nothing.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use crate::table::Object;

/// What a forked child has of an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Home {
    /// All of it: a copy.
    Heap,
    /// A copy, if the child has the page of this address; else nothing.
    Page(usize),
    /// Nothing: it is the process's that made it.
    Process,
}

impl Home {
    /// As a word: 0, an address, or 1, which is no address of a page.
    pub(crate) fn to_word(self) -> usize {
        match self {
            Home::Heap => 0,
            Home::Process => 1,
            Home::Page(at) => at.max(2),
        }
    }

    /// Whether a child has it. For the child, right after the fork. Calls only what a child of
    /// several threads may call.
    pub(crate) fn is_here(word: usize) -> bool {
        match word {
            0 => true,
            1 => false,
            at => is_mapped(at),
        }
    }
}

/// Whether there is a mapping at an address.
fn is_mapped(at: usize) -> bool {
    // SAFETY: the call takes no pointers.
    let page = usize::try_from(unsafe { libc::sysconf(libc::_SC_PAGESIZE) }).unwrap_or(4096);
    let mut resident = 0;
    // SAFETY: the kernel looks at its own tables of the address, and writes one byte for one page.
    unsafe {
        libc::mincore(std::ptr::without_provenance_mut(at & !(page - 1)), 1, &mut resident) == 0
    }
}

/// How many forks lie between this process and the one that used the library first; some may count
/// twice.
static GENERATION: AtomicU32 = AtomicU32::new(0);
/// Whether forks are watched.
static WATCHED: AtomicBool = AtomicBool::new(false);

/// The number of this process among its forked ancestors.
pub(crate) fn generation() -> u32 {
    // Relaxed: it changes in the child, before that has a second thread.
    GENERATION.load(Ordering::Relaxed)
}

/// Has forks watched from now on. Two threads that come first at once both see to it; a fork then
/// counts twice, which does no harm. Where the system refuses, for want of memory, the next object
/// that is made tries again.
pub(crate) fn watch() {
    // Relaxed, both: see above.
    if !WATCHED.load(Ordering::Relaxed) {
        // SAFETY: the function lives as long as the library, and does nothing that a child of
        // several threads may not do.
        if unsafe { libc::pthread_atfork(None, None, Some(in_child)) } == 0 {
            WATCHED.store(true, Ordering::Relaxed);
        }
    }
}

extern "C" fn in_child() {
    // Relaxed: the child has one thread.
    GENERATION.fetch_add(1, Ordering::Relaxed);
    crate::region::kvmem_region::table().mark_forked();
    crate::bump::kvmem_bump_arena::table().mark_forked();
    crate::registrars::kvmem_registrars::table().mark_forked();
    crate::registration::kvmem_registration::table().mark_forked();
    crate::background::kvmem_background::table().mark_forked();
    crate::slice::kvmem_slice_allocator::table().mark_forked();
    crate::pool::kvmem_pool::table().mark_forked();
    crate::attached::kvmem_attached_pool::table().mark_forked();
    crate::kv_cache::kvmem_kv_cache::table().mark_forked();
    crate::kv_cache::kvmem_kv_pin::table().mark_forked();
    crate::kv_cache::kvmem_kv_reservation::table().mark_forked();
    crate::lease::kvmem_kv_lease::table().mark_forked();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mapping_is_found_by_any_of_its_addresses() {
        let here = Box::new(7u64);
        let at = std::ptr::from_ref(&*here).addr();
        assert!(is_mapped(at) && is_mapped(at + 1));
        assert!(!is_mapped(4096) && !is_mapped(usize::MAX - 1));
        assert!(Home::is_here(Home::Heap.to_word()) && !Home::is_here(Home::Process.to_word()));
        assert!(Home::is_here(Home::Page(at).to_word()));
    }
}
