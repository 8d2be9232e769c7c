//! *Global allocator*: slabs for everything that a program allocates.
//!
//! It differs from a slab allocator in three ways. The first request makes the allocator, because
//! the initializer of a static cannot run code. Memory for this layer's own metadata, while that is
//! changing, comes from the system (see `reentrancy.rs`). A small block can therefore come from a
//! slab or from the system, and its address shows which: all slabs are in one range of addresses
//! that is reserved once, so the test is one comparison.

use std::alloc::{GlobalAlloc, Layout, System};
use std::fmt;
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicPtr, Ordering};

use super::slab_allocator::SlabAllocator;
use super::slab_settings::SlabSettings;
use crate::slab::slabs::Chunk;
use crate::slab::slabs::reentrancy;
use crate::slab::slabs::{ALIGN, MAX_ALIGN, MAX_SIZE, class_aligned, class_of};
use crate::slab::slabs::{Origin, Reserve};

/// Bytes of addresses to reserve: more than the memory of any target machine. Reserving takes no
/// memory.
const RESERVED: usize = 1 << 40;

/// A global allocator that serves a program from slabs.
///
/// ```
/// use kvmem::slab::SlabGlobal;
///
/// #[global_allocator]
/// static HEAP: SlabGlobal = SlabGlobal::new();
///
/// fn main() {
///     let words: Vec<String> = (0..1000).map(|word| word.to_string()).collect();
///     assert_eq!(words.concat().len(), 2890);
///     assert!(HEAP.allocator().is_some_and(|slabs| slabs.stats().slab_bytes > 0));
/// }
/// ```
///
/// Blocks up to 8 KiB with an alignment up to 64 come from slabs. All others come from the system's
/// allocator. So do requests that slabs cannot serve because no addresses or no memory are
/// available, and this library's own metadata.
///
/// The variable `KVMEM_SLAB` is observed ([`SlabSettings`]): `always-malloc` leaves everything to
/// the system, and `debug-blocks` detects misuse, which safe Rust cannot commit. An unknown word is
/// reported on standard error and otherwise ignored. Leaks are not reported, because every program
/// has blocks in use when it exits.
pub struct SlabGlobal {
    state: AtomicPtr<GlobalState>,
}

struct GlobalState {
    allocator: SlabAllocator,
    /// The addresses of the slabs.
    start: usize,
    len: usize,
}

impl SlabGlobal {
    /// Makes an allocator that holds nothing until the first request.
    #[must_use]
    pub const fn new() -> SlabGlobal {
        SlabGlobal { state: AtomicPtr::new(ptr::null_mut()) }
    }

    /// Returns the slab allocator, for statistics and trimming; `None` before the first request. A
    /// block that is allocated from it directly must be freed directly.
    #[must_use]
    pub fn allocator(&self) -> Option<&SlabAllocator> {
        self.state().map(|state| &state.allocator)
    }

    #[inline(always)]
    fn state(&self) -> Option<&GlobalState> {
        // Acquire pairs with the Release in `make`: the whole state is visible.
        let state = self.state.load(Ordering::Acquire);
        // SAFETY: a stored state is never freed or changed.
        unsafe { state.as_ref() }
    }

    /// Makes the state, unless another thread has made it.
    #[cold]
    fn make(&self) -> &GlobalState {
        let _guard = reentrancy::enter();
        let settings = SlabSettings::from_env().unwrap_or_else(|error| {
            eprintln!("kvmem: {error}; ignored");
            SlabSettings::default()
        });
        let mut range = 0..0;
        let mut builder = SlabAllocator::builder().settings(settings);
        match Reserve::new(RESERVED) {
            Some(reserve) => {
                range = reserve.range();
                builder = builder.origin(Origin::Reserved(reserve));
            }
            // Without reserved addresses there are no slabs.
            None => builder = builder.limit(0),
        }
        let allocator = match builder.build() {
            Ok(allocator) => allocator,
            // The limit is one of the two above and the settings are passed, so no error is
            // possible.
            Err(_) => std::process::abort(),
        };
        let made = Box::into_raw(Box::new(GlobalState {
            allocator,
            start: range.start,
            len: range.len(),
        }));
        // Release pairs with the Acquire in `state`; Acquire pairs with the Release of another
        // thread here.
        match self.state.compare_exchange(
            ptr::null_mut(),
            made,
            Ordering::Release,
            Ordering::Acquire,
        ) {
            // SAFETY: the state is new, and it is never freed from here on.
            Ok(_) => unsafe { &*made },
            Err(other) => {
                // SAFETY: no other thread knows the address.
                drop(unsafe { Box::from_raw(made) });
                // SAFETY: a stored state is never freed or changed.
                unsafe { &*other }
            }
        }
    }

    #[inline(always)]
    fn class(layout: Layout) -> Option<usize> {
        if layout.size().wrapping_sub(1) < MAX_SIZE && layout.align() <= ALIGN {
            return Some(class_of(layout.size()));
        }
        if layout.align() <= MAX_ALIGN {
            class_aligned(layout.size(), layout.align())
        } else {
            None
        }
    }
}

impl GlobalState {
    #[inline(always)]
    fn owns(&self, block: *mut u8) -> bool {
        block.addr().wrapping_sub(self.start) < self.len
    }
}

impl Default for SlabGlobal {
    fn default() -> Self {
        Self::new()
    }
}

// SAFETY: a block is either a slab's object of the class of its layout, which is large enough and,
// by `class_aligned`, aligned strictly enough; or it came from the system. `dealloc` finds out
// which by the address. Nothing unwinds: the only foreign code called is the fault hook, which
// aborts. Any thread may use state, magazines and slabs.
unsafe impl GlobalAlloc for SlabGlobal {
    #[inline]
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        if let Some(class) = SlabGlobal::class(layout)
            && !reentrancy::is_inside()
        {
            let shared = &*self.state().unwrap_or_else(|| self.make()).allocator.shared;
            let _guard = reentrancy::enter();
            if shared.fast_limit != 0 {
                if let Some(chunk) = shared.magazines.get(class) {
                    return chunk.at().as_ptr();
                }
            } else if shared.slab_limit != 0 && layout.align() <= ALIGN {
                // Debugging: with tracking.
                if let Ok(block) = shared.allocate(layout.size()) {
                    return block.as_ptr();
                }
            }
        }
        // SAFETY: `GlobalAlloc::alloc` requires that the layout is not empty.
        unsafe { System.alloc(layout) }
    }

    #[inline]
    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        if let Some(state) = self.state()
            && state.owns(block)
            && let Some(class) = SlabGlobal::class(layout)
            && let Some(at) = NonNull::new(block)
        {
            let shared = &*state.allocator.shared;
            // SAFETY: the block lies in the range of the slabs, and `GlobalAlloc::dealloc` requires
            // that `alloc` returned it for this layout: it is an object of this class that no code
            // uses any more.
            let chunk = || unsafe { Chunk::new(at) };
            if reentrancy::is_inside() {
                // Bypasses the magazines, which this thread is changing. It is not changing a ring
                // of slabs: nothing is freed under a ring's lock.
                return shared.magazines.source().give_one(class, chunk());
            }
            let _guard = reentrancy::enter();
            if shared.fast_limit != 0 {
                return shared.magazines.put(class, chunk());
            }
            // SAFETY: with debug tracking, `alloc` took the block from `shared.allocate` with this
            // size. `GlobalAlloc::dealloc` requires that no code uses it any more.
            return unsafe { shared.free(at, layout.size()) };
        }
        // SAFETY: not in the range of the slabs, so it came from the system with this layout.
        unsafe { System.dealloc(block, layout) }
    }

    #[inline]
    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        if SlabGlobal::class(layout).is_none() {
            // The system's allocator knows which of its pages are zero.
            // SAFETY: `GlobalAlloc::alloc_zeroed` requires that the layout is not empty.
            return unsafe { System.alloc_zeroed(layout) };
        }
        // SAFETY: `GlobalAlloc::alloc_zeroed` requires that the layout is not empty.
        let block = unsafe { self.alloc(layout) };
        if !block.is_null() {
            // SAFETY: a new block of this size.
            unsafe { block.write_bytes(0, layout.size()) };
        }
        block
    }

    #[inline]
    unsafe fn realloc(&self, block: *mut u8, layout: Layout, new_size: usize) -> *mut u8 {
        // SAFETY: `GlobalAlloc::realloc` requires that the new size, rounded up to the alignment,
        // does not exceed `isize::MAX`; the alignment is that of a layout.
        let new = unsafe { Layout::from_size_align_unchecked(new_size, layout.align()) };
        match self.state() {
            Some(state) if state.owns(block) => {
                let same = SlabGlobal::class(new) == SlabGlobal::class(layout);
                if same && state.allocator.shared.fast_limit != 0 {
                    return block;
                }
            }
            // A large block of the system stays with the system, which can move pages instead of
            // bytes.
            _ if SlabGlobal::class(new).is_none() => {
                // SAFETY: not in the range of the slabs, so it came from the system with this
                // layout.
                return unsafe { System.realloc(block, layout, new_size) };
            }
            _ => {}
        }
        // SAFETY: `GlobalAlloc::realloc` requires that the new size is not 0.
        let to = unsafe { self.alloc(new) };
        if !to.is_null() {
            // SAFETY: both blocks have at least this many bytes, and the new one is no part of the
            // old one, which is in use until here. `GlobalAlloc::realloc` requires that the old one
            // came from `alloc` with this layout and is not used afterwards.
            unsafe {
                to.copy_from_nonoverlapping(block, layout.size().min(new_size));
                self.dealloc(block, layout);
            }
        }
        to
    }
}

impl fmt::Debug for SlabGlobal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SlabGlobal").field("allocator", &self.allocator()).finish()
    }
}
