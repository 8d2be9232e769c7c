//! *Block*: the memory of a thread's cache in one instance.
//!
//! ```text
//!       ThreadCache               slot 0                          slot 1
//!   ┌──────────────────┬──────────────────────────────┬──────────────────────────────┬─────
//!   │ owner, next, …   │ loaded ▸ n   │ previous ▸ n  │ loaded ▸ n   │ previous ▸ n  │ …
//!   └──────────────────┴──────────────────────────────┴──────────────────────────────┴─────
//! ```
//!
//! Header and slots are one memory block, so the slot of a class is found without another load.
//! Three groups of fields have different users, and a value of another type stands for each right:
//!
//! | fields | user | right |
//! |---|---|---|
//! | atomics | any thread | [`CacheRef`] |
//! | magazines | the thread that holds the owner's lock | [`CacheAccess`](super::access::CacheAccess) |
//! | [`OwnerState`] | the owner | [`OwnCache`](super::owner::OwnCache) |
//! | [`ListState`] | the thread that holds the list's lock | [`CacheRef::list_state`] |

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::{Cell, UnsafeCell};
use std::marker::PhantomData;
use std::ptr::{self, NonNull};

use super::owner_lock::OwnerLock;
use super::slot::ClassSlot;
use crate::sync::{AtomicBool, AtomicPtr, AtomicU32, MODELLED, Ordering, Witness};

/// Loads of the owner's state before an unfinished put counts as preempted. Few for the model
/// checker.
const CHECKS_PER_PUT: u32 = if MODELLED { 1 } else { 100 };

/// The header of the block. Aligned to two cache lines, because processors fetch lines in pairs.
#[repr(C, align(128))]
pub(crate) struct ThreadCache<R> {
    pub(super) owner: OwnerLock,
    /// Under the owner's lock: this cache is counted as a holder of rounds. If false, no slot has a
    /// magazine.
    pub(super) has_magazines: AtomicBool,
    classes: usize,
    /// The next cache in the instance's list; see [list](super::list).
    pub(super) next: AtomicPtr<ThreadCache<R>>,
    list_state: ListState<R>,
    /// The thread that this cache belongs to: an address, used as an identity only.
    thread: *const (),
    /// Puts by the owner, if puts are tracked; slow paths count several rounds as one put.
    pub(super) puts: AtomicU32,
    owner_state: OwnerState<R>,
    /// Lets the model checker verify that one thread at a time holds the owner's lock.
    witness: Witness,
}

/// The part of the header that changes under the lock of the instance's list.
pub(super) struct ListState<R> {
    /// The next cache whose thread has ended.
    pub(super) next_retired: Cell<*mut ThreadCache<R>>,
    /// Another thread holds the owner's lock.
    pub(super) stopped: Cell<bool>,
}

/// The part of the header that only the owner uses, on its slow paths.
pub(super) struct OwnerState<R> {
    /// The owner is on a slow path. A request that it makes meanwhile, such as memory for its own
    /// lists, does not enter a second one.
    pub(super) in_slow_path: Cell<bool>,
    /// The memory node of the thread, and the number of visits before it is looked up again.
    pub(super) node: Cell<usize>,
    pub(super) node_visits_remaining: Cell<u32>,
    /// Slow operations since the last window of them ended, and the puts counted then.
    pub(super) slow_operations: Cell<u32>,
    pub(super) puts_before: Cell<u32>,
    /// A buffer for rounds on their way to or from the source.
    pub(super) scratch: UnsafeCell<Vec<R>>,
}

/// A reference to a cache. It covers the slots behind the header, too. Any thread may use it.
pub(crate) struct CacheRef<'a, R>(NonNull<ThreadCache<R>>, PhantomData<&'a ThreadCache<R>>);

impl<R> Clone for CacheRef<'_, R> {
    #[inline(always)]
    fn clone(&self) -> Self {
        *self
    }
}

impl<R> Copy for CacheRef<'_, R> {}

fn layout<R>(classes: usize) -> Option<Layout> {
    let slots = Layout::array::<ClassSlot<R>>(classes).ok()?;
    Some(Layout::new::<ThreadCache<R>>().extend(slots).ok()?.0.pad_to_align())
}

impl<R: Copy + 'static> ThreadCache<R> {
    /// Makes an empty cache; `None` if the system has no memory.
    pub(super) fn create(
        classes: usize,
        fenced: bool,
        thread: *const (),
    ) -> Option<NonNull<ThreadCache<R>>> {
        // SAFETY: the layout is not empty: it holds at least the header.
        let block = NonNull::new(unsafe { System.alloc(layout::<R>(classes)?) })?;
        let block = block.cast::<ThreadCache<R>>();
        let cache = ThreadCache {
            owner: OwnerLock::new(fenced),
            has_magazines: AtomicBool::new(false),
            classes,
            next: AtomicPtr::new(ptr::null_mut()),
            list_state: ListState {
                next_retired: Cell::new(ptr::null_mut()),
                stopped: Cell::new(false),
            },
            thread,
            puts: AtomicU32::new(0),
            owner_state: OwnerState {
                in_slow_path: Cell::new(false),
                node: Cell::new(0),
                node_visits_remaining: Cell::new(0),
                slow_operations: Cell::new(0),
                puts_before: Cell::new(0),
                scratch: UnsafeCell::new(Vec::new()),
            },
            witness: Witness::new(),
        };
        // SAFETY: the block is new and large enough; a slot needs no stricter alignment than the
        // header, and the size of the header is a multiple of its alignment.
        unsafe {
            block.write(cache);
            let slots = block.add(1).cast::<ClassSlot<R>>();
            for class in 0..classes {
                slots.add(class).write(ClassSlot::new());
            }
        }
        Some(block)
    }

    /// Frees the memory block and discards the magazines in it. Returns the owner's buffer, which
    /// the caller must drop without holding a lock.
    ///
    /// # Safety
    ///
    /// The block came from [`create`](Self::create), and no code uses it any more.
    #[must_use]
    pub(super) unsafe fn destroy(block: NonNull<ThreadCache<R>>) -> Vec<R> {
        // SAFETY: the caller promises that no code uses the block, so the header and its slots are
        // initialized and have no other reference.
        unsafe {
            let classes = block.as_ref().classes;
            let scratch = (*block.as_ptr()).owner_state.scratch.get_mut();
            let scratch = std::mem::take(scratch);
            let slots = block.add(1).cast::<ClassSlot<R>>();
            for class in 0..classes {
                let slot = slots.add(class);
                let access = slot.as_ref().access();
                drop((access.loaded.take(), access.previous.take()));
                // Slots have nothing to drop but loom's atomics.
                slot.drop_in_place();
            }
            block.drop_in_place();
            // The layout was valid when `create` allocated the block with it.
            if let Some(layout) = layout::<R>(classes) {
                System.dealloc(block.as_ptr().cast(), layout);
            }
            scratch
        }
    }
}

impl<'a, R: Copy + 'static> CacheRef<'a, R> {
    /// Returns the cache at an address; `None` if that is null.
    ///
    /// # Safety
    ///
    /// The address is null, or it came from [`ThreadCache::create`] and the block is not destroyed
    /// within `'a`.
    #[inline(always)]
    pub(crate) unsafe fn from_raw(at: *mut ThreadCache<R>) -> Option<Self> {
        NonNull::new(at).map(|at| CacheRef(at, PhantomData))
    }

    #[inline(always)]
    pub(crate) fn as_ptr(self) -> NonNull<ThreadCache<R>> {
        self.0
    }

    #[inline(always)]
    pub(super) fn header(self) -> &'a ThreadCache<R> {
        // SAFETY: `from_raw` required that the block lives within `'a`. Its header is initialized
        // and never borrowed mutably; `create`, `destroy` and cells change it.
        unsafe { self.0.as_ref() }
    }

    /// Returns the slot of a class.
    ///
    /// # Safety
    ///
    /// The cache has this class.
    #[inline(always)]
    pub(super) unsafe fn slot(self, class: usize) -> &'a ClassSlot<R> {
        debug_assert!(class < self.classes());
        // SAFETY: the slots follow the header in the same block, and the pointer to the header has
        // the provenance of the whole block. The caller promises that the slot is one of them.
        unsafe { self.0.add(1).cast::<ClassSlot<R>>().add(class).as_ref() }
    }

    /// Iterates over all slots.
    pub(crate) fn slots(self) -> impl Iterator<Item = &'a ClassSlot<R>> + use<'a, R> {
        // SAFETY: the range covers exactly the cache's classes.
        (0..self.classes()).map(move |class| unsafe { self.slot(class) })
    }

    /// Returns the number of classes.
    #[inline(always)]
    pub(crate) fn classes(self) -> usize {
        self.header().classes
    }

    /// Returns the thread that the cache belongs to: an identity.
    pub(crate) fn thread(self) -> *const () {
        self.header().thread
    }

    #[inline(always)]
    pub(crate) fn has_magazines(self) -> bool {
        // Relaxed: ordered by the owner's lock; in `nothing_cached_fast` the owner reads its own
        // store.
        self.header().has_magazines.load(Ordering::Relaxed)
    }

    /// Returns whether the first `classes` slots hold no round. Callable from any thread.
    #[inline(always)]
    pub(crate) fn is_empty(self, classes: usize) -> bool {
        let mut remaining = classes.min(self.classes());
        while remaining > 0 {
            remaining -= 1;
            // SAFETY: the cache has this class.
            if unsafe { self.slot(remaining) }.count() > 0 {
                return false;
            }
        }
        true
    }

    /// Returns the number of puts so far. Callable from any thread.
    pub(crate) fn puts(self) -> u32 {
        // Acquire pairs with the Release in `count_put`. A second load is ordered by the fences
        // there and in `Moves::consistent_read`.
        self.header().puts.load(Ordering::Acquire)
    }

    /// Returns the number of puts once all counted puts are complete; `None` if the last one does
    /// not complete soon.
    pub(crate) fn finished_puts(self) -> Option<u32> {
        let puts = self.puts();
        // The owner holds its lock from counting to storing. If it is out now, or was at any time
        // since, the put is complete.
        let done = (0..CHECKS_PER_PUT).any(|_| {
            let out = !self.header().owner.is_inside();
            if !out {
                std::hint::spin_loop();
            }
            out
        });
        done.then_some(puts)
    }

    /// Returns the part that changes under the lock of the instance's list.
    ///
    /// # Safety
    ///
    /// While the result is used, the calling thread holds the lock of the list that the cache is
    /// in, or no other thread can reach the list.
    pub(super) unsafe fn list_state(self) -> &'a ListState<R> {
        &self.header().list_state
    }

    /// Returns the part that only the owner uses.
    ///
    /// # Safety
    ///
    /// While the result is used, the calling thread is the owner, or the owner has ended.
    pub(super) unsafe fn owner_state(self) -> &'a OwnerState<R> {
        &self.header().owner_state
    }

    /// Tells the model checker that this thread holds the owner's lock.
    #[inline(always)]
    pub(super) fn touch(self) {
        self.header().witness.touch();
    }
}
