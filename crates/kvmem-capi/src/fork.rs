//! *Fork*: which objects of its parent a forked child can use.
//!
//! A child gets a copy of all plain memory. A space of offsets or a slab allocator therefore works
//! there, as a copy. Pages of a region that are kept from children do not exist there, and the
//! inherited keys, rings and descriptors belong to the parent. An object that needs them is
//! *forked* in the child: every call on it returns KVMEM_ERR_FORKED until the child destroys the
//! handle. Destroying it drops only the handle; the parent's resources are not touched.
//!
//! Calls do not pay for this: the child marks the slots of such objects before `fork` returns to
//! the program. `vfork`, `_Fork` and `clone` run no handlers and mark nothing.

use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, Ordering};

/// What a forked child inherits of an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ForkScope {
    /// A full copy.
    Copied,
    /// A copy, if the page at this address is mapped in the child; otherwise nothing.
    IfMapped(usize),
    /// Nothing: the object belongs to the process that made it.
    ParentOnly,
}

impl ForkScope {
    /// Encodes the scope as a word: 0 (copied), 1 (parent only; no page has address 1), or the
    /// address.
    pub(crate) fn to_word(self) -> usize {
        match self {
            ForkScope::Copied => 0,
            ForkScope::ParentOnly => 1,
            ForkScope::IfMapped(at) => at.max(2),
        }
    }

    /// Returns whether the child has the object. Called in the child right after the fork; calls
    /// only functions that are allowed in the child of a process with several threads.
    pub(crate) fn is_present(word: usize) -> bool {
        match word {
            0 => true,
            1 => false,
            at => is_mapped(at),
        }
    }
}

/// Returns whether a page is mapped at an address.
fn is_mapped(at: usize) -> bool {
    // SAFETY: the call takes no pointers.
    let page = usize::try_from(unsafe { libc::sysconf(libc::_SC_PAGESIZE) }).unwrap_or(4096);
    let mut resident = 0;
    // SAFETY: the kernel looks the address up in its own tables and does not read or write there.
    // It writes one byte for one page to `resident`, a local.
    unsafe {
        libc::mincore(std::ptr::without_provenance_mut(at & !(page - 1)), 1, &mut resident) == 0
    }
}

/// The number of forks between this process and the first one that used the library. A fork may
/// count twice.
static GENERATION: AtomicU32 = AtomicU32::new(0);
/// Whether the fork handler is installed.
static INSTALLED: AtomicBool = AtomicBool::new(false);

/// Marks the objects of one type that a forked child does not have. It only loads and stores
/// atomics, and calls `mincore`.
pub(crate) struct Mark(pub(crate) fn());

/// The types that have had objects. Places are filled in their order.
static MARKS: [AtomicPtr<Mark>; 32] = [const { AtomicPtr::new(std::ptr::null_mut()) }; 32];

/// Lets children mark the objects of one type, from the next fork on. Returns false if the system
/// has no memory for the fork handler.
pub(crate) fn mark_in_children(mark: &'static Mark) -> bool {
    let at = std::ptr::from_ref(mark).cast_mut();
    let is_placed = MARKS.iter().any(|place| {
        // Relaxed, both: a child sees all stores of the process before its fork.
        let placed =
            place.compare_exchange(std::ptr::null_mut(), at, Ordering::Relaxed, Ordering::Relaxed);
        placed.is_ok() || placed == Err(at)
    });
    assert!(is_placed, "there are more than {} types of objects", MARKS.len());
    install_handler();
    INSTALLED.load(Ordering::Relaxed)
}

/// Returns the number of this process in the chain of its forked ancestors.
pub(crate) fn generation() -> u32 {
    // Relaxed: it changes in the child before the child has a second thread.
    GENERATION.load(Ordering::Relaxed)
}

/// Installs the fork handler. If two threads do so at the same time, both succeed; a fork then
/// counts twice, which is harmless. If the system has no memory for the handler, the next object
/// that is made tries again.
pub(crate) fn install_handler() {
    // Relaxed, both: installing the handler twice is harmless.
    if !INSTALLED.load(Ordering::Relaxed) {
        // SAFETY: the function has the C ABI, does not unwind, and lives as long as the library. In
        // the child it only loads and stores atomics, and calls `mincore`: it takes no lock that
        // another thread may have held during the fork.
        if unsafe { libc::pthread_atfork(None, None, Some(in_child)) } == 0 {
            INSTALLED.store(true, Ordering::Relaxed);
        }
    }
}

extern "C" fn in_child() {
    // Relaxed: the child has one thread.
    GENERATION.fetch_add(1, Ordering::Relaxed);
    for place in &MARKS {
        // SAFETY: `mark_in_children` stores references that live as long as the library.
        let Some(Mark(mark)) = (unsafe { place.load(Ordering::Relaxed).as_ref() }) else { break };
        mark();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn is_mapped_finds_any_address_of_a_mapping() {
        let here = Box::new(7u64);
        let at = std::ptr::from_ref(&*here).addr();
        assert!(is_mapped(at) && is_mapped(at + 1));
        assert!(!is_mapped(4096) && !is_mapped(usize::MAX - 1));
        assert!(
            ForkScope::is_present(ForkScope::Copied.to_word())
                && !ForkScope::is_present(ForkScope::ParentOnly.to_word())
        );
        assert!(ForkScope::is_present(ForkScope::IfMapped(at).to_word()));
    }
}
