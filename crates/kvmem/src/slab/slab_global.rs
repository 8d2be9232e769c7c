//! *Slice global*: slabs under everything that a program allocates.
//!
//! Three things are different here. The allocator is made by the first request, wherever that comes
//! from, since a static cannot be made by code. What this layer needs for its own books, while it
//! changes them, is the system's (see `nested.rs`). And so a block of a small size may be a slab's
//! or the system's; which it is, its address says: all slabs are in one range of addresses that is
//! reserved once, and asking costs one comparison.

use std::alloc::{GlobalAlloc, Layout, System};
use std::fmt;
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicPtr, Ordering};

use super::SlabAllocator;
use super::class::{ALIGN, MAX_ALIGN, MAX_SIZE, class_aligned, class_of};
use super::page_source::{Origin, Reserve};
use super::reentrancy;
use super::slab::Chunk;
use super::slab_settings::SlabSettings;

/// Addresses to reserve: more than the memory of any machine that this is for; none of it is
/// memory.
const RESERVED: usize = 1 << 40;

/// Slabs as the allocator of a whole program.
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
///     assert!(HEAP.slices().is_some_and(|slices| slices.stats().slab_bytes > 0));
/// }
/// ```
///
/// Blocks of up to 8 KiB, aligned to 64 or less, come from slabs. All others, all that is asked for
/// when no addresses or no memory can be had, and what this library needs for its own books, come
/// from the system's allocator.
///
/// `KVMEM_SLICE` is heeded ([`SlabSettings`]): `always-malloc` leaves everything to the system,
/// and `debug-blocks` finds misuse, which safe Rust does not commit. A value that is wrong is told
/// on the standard error stream and otherwise ignored. Leaks are not reported: a program has blocks
/// in use when it ends.
pub struct SlabGlobal {
    state: AtomicPtr<GlobalState>,
}

struct GlobalState {
    slices: SlabAllocator,
    /// Where slabs are.
    start: usize,
    len: usize,
}

impl SlabGlobal {
    /// Nothing yet.
    pub const fn new() -> SlabGlobal {
        SlabGlobal { state: AtomicPtr::new(ptr::null_mut()) }
    }

    /// The allocator behind it, for statistics and trimming; `None` before the first request. What
    /// it has been asked for directly is freed directly.
    pub fn slices(&self) -> Option<&SlabAllocator> {
        self.state().map(|state| &state.slices)
    }

    #[inline(always)]
    fn state(&self) -> Option<&GlobalState> {
        // Acquire pairs with the Release in `make`: the state is seen as it was made.
        let state = self.state.load(Ordering::Acquire);
        // SAFETY: what is stored there is never freed or changed.
        unsafe { state.as_ref() }
    }

    /// Makes the state, unless another thread has.
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
            // Without addresses there are no slabs.
            None => builder = builder.limit(0),
        }
        let slices = match builder.build() {
            Ok(slices) => slices,
            // The limit is one of the two above, and settings were given: there is nothing that it
            // could fail with.
            Err(_) => std::process::abort(),
        };
        let made =
            Box::into_raw(Box::new(GlobalState { slices, start: range.start, len: range.len() }));
        // Release pairs with the Acquire in `state`; Acquire here, with the Release of another's.
        match self.state.compare_exchange(
            ptr::null_mut(),
            made,
            Ordering::Release,
            Ordering::Acquire,
        ) {
            // SAFETY: made just now, and never freed from here on.
            Ok(_) => unsafe { &*made },
            Err(other) => {
                // SAFETY: nobody else has been told of it.
                drop(unsafe { Box::from_raw(made) });
                // SAFETY: as in `state`.
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

// SAFETY: a block is a slab's object of the class of its layout, which is as large as the layout
// says and, by `class_aligned`, as aligned; or it is the system's. Which of the two it is,
// `dealloc` finds by the address. Nothing unwinds: the only foreign code called is the fault hook,
// which aborts. State, magazines and slabs are for any thread.
unsafe impl GlobalAlloc for SlabGlobal {
    #[inline]
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        if let Some(class) = SlabGlobal::class(layout)
            && !reentrancy::is_inside()
        {
            let shared = &*self.state().unwrap_or_else(|| self.make()).slices.shared;
            let _guard = reentrancy::enter();
            if shared.fast_limit != 0 {
                if let Some(chunk) = shared.magazines.get(class) {
                    return chunk.0.as_ptr();
                }
            } else if shared.slab_limit != 0 && layout.align() <= ALIGN {
                // Debugging: with all the books.
                if let Ok(block) = shared.alloc(layout.size()) {
                    return block.as_ptr();
                }
            }
        }
        // SAFETY: the caller's promise.
        unsafe { System.alloc(layout) }
    }

    #[inline]
    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        if let Some(state) = self.state()
            && state.owns(block)
            && let Some(class) = SlabGlobal::class(layout)
            && let Some(at) = NonNull::new(block)
        {
            let shared = &*state.slices.shared;
            if reentrancy::is_inside() {
                // Past the magazines, which this thread is just changing. No ring of slabs is:
                // nothing is freed under its lock.
                return shared.magazines.source().give_one(class, Chunk(at));
            }
            let _guard = reentrancy::enter();
            if shared.fast_limit != 0 {
                return shared.magazines.put(class, Chunk(at));
            }
            // SAFETY: the caller's promise.
            return unsafe { shared.free(at, layout.size()) };
        }
        // SAFETY: no slab's, so it came from the system with this layout.
        unsafe { System.dealloc(block, layout) }
    }

    #[inline]
    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        if SlabGlobal::class(layout).is_none() {
            // The system knows which of its pages are zero.
            // SAFETY: the caller's promise.
            return unsafe { System.alloc_zeroed(layout) };
        }
        // SAFETY: the caller's promise.
        let block = unsafe { self.alloc(layout) };
        if !block.is_null() {
            // SAFETY: a new block of this size.
            unsafe { block.write_bytes(0, layout.size()) };
        }
        block
    }

    #[inline]
    unsafe fn realloc(&self, block: *mut u8, layout: Layout, new_size: usize) -> *mut u8 {
        // SAFETY: the caller's promise: the new size is not 0 and does not overflow at this
        // alignment.
        let new = unsafe { Layout::from_size_align_unchecked(new_size, layout.align()) };
        match self.state() {
            Some(state) if state.owns(block) => {
                let same = SlabGlobal::class(new) == SlabGlobal::class(layout);
                if same && state.slices.shared.fast_limit != 0 {
                    return block;
                }
            }
            // The system's stays the system's if it is large: it can move pages instead of bytes.
            _ if SlabGlobal::class(new).is_none() => {
                // SAFETY: no slab's, so it came from the system with this layout.
                return unsafe { System.realloc(block, layout, new_size) };
            }
            _ => {}
        }
        // SAFETY: the caller's promise.
        let to = unsafe { self.alloc(new) };
        if !to.is_null() {
            // SAFETY: both are blocks of at least so many bytes, and different ones; the old one is
            // done with.
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
        f.debug_struct("SliceGlobal").field("slices", &self.slices()).finish()
    }
}
