//! *Thread cache*: the magazines that one thread has in one instance, a loaded and a previous one
//! for each class.
//!
//! ```text
//!       ThreadCache               slot 0                          slot 1
//!   ┌──────────────────┬──────────────────────────────┬──────────────────────────────┬─────
//!   │ owner, next, …   │ loaded ▸ n   │ previous ▸ n  │ loaded ▸ n   │ previous ▸ n  │ …
//!   └──────────────────┴──────────────────────────────┴──────────────────────────────┴─────
//! ```
//!
//! Header and slots are one memory block, so the slot of a class is found without another load. The
//! counts of rounds are atomic only because statistics read them from other threads. Everything
//! else is accessed under the owner's lock.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::{Cell, UnsafeCell};
use std::ptr::{self, NonNull};

use crate::sync::{AtomicBool, AtomicPtr, AtomicU32, Ordering, fence};

use super::super::magazine::{Magazine, MagazineHead};
use super::owner_lock::{OwnerGuard, OwnerLock};

/// Loads of the owner's state before an unfinished put counts as preempted. Few for the model
/// checker.
const CHECKS_PER_PUT: u32 = if cfg!(loom) { 1 } else { 100 };

/// The header of the block. Aligned to two cache lines, because processors fetch lines in pairs.
#[repr(C, align(128))]
pub(crate) struct ThreadCache<R> {
    pub(crate) owner: OwnerLock,
    /// Under the owner's lock: this cache is counted in `MagazineCore::holders`. If false, no slot
    /// has a magazine.
    has_magazines: AtomicBool,
    classes: usize,
    /// The next cache in the instance's list; see [list](super::list).
    pub(crate) next: AtomicPtr<ThreadCache<R>>,
    /// Under the lock of that list: the next cache whose thread has ended.
    pub(crate) next_retired: Cell<*mut ThreadCache<R>>,
    /// Under the lock of that list: another thread holds the owner's lock.
    pub(crate) stopped: Cell<bool>,
    /// The thread that this cache belongs to: an address, used as an identity only.
    pub(crate) thread: *const (),
    /// Puts by the owner, if puts are tracked; slow paths count several rounds as one put.
    puts: AtomicU32,
    /// The owner is on a slow path. A request that it makes meanwhile, such as memory for its own
    /// lists, does not enter a second one.
    pub(crate) in_slow_path: Cell<bool>,
    /// For the owner's slow paths: the memory node of its thread, and the number of visits before
    /// it is looked up again.
    pub(crate) node: Cell<usize>,
    pub(crate) node_visits_remaining: Cell<u32>,
    /// For the owner's slow paths: a buffer for rounds on their way to or from the source.
    pub(crate) scratch: UnsafeCell<Vec<R>>,
    /// Lets the model checker verify that one thread at a time holds the owner's lock.
    #[cfg(all(loom, not(shuttle)))]
    witness: loom::cell::UnsafeCell<()>,
}

/// The two magazines of a class.
pub(crate) struct ClassSlot<R> {
    pub(crate) loaded: MagazineSlot<R>,
    pub(crate) previous: MagazineSlot<R>,
}

/// A place for a magazine. If it is empty, `head` is null, and count and capacity are 0.
pub(crate) struct MagazineSlot<R> {
    head: Cell<*mut MagazineHead>,
    /// At most `capacity`; all places below it hold rounds.
    count: AtomicU32,
    capacity: Cell<u32>,
    rounds: std::marker::PhantomData<R>,
}

/// A reference to a cache by its address. Valid while the cache is in the instance's list.
pub(crate) struct CacheRef<R>(NonNull<ThreadCache<R>>);

impl<R> Clone for CacheRef<R> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<R> Copy for CacheRef<R> {}

impl<R> ThreadCache<R> {
    /// Returns the number of classes.
    pub(crate) fn classes(&self) -> usize {
        self.classes
    }

    pub(crate) fn has_magazines(&self) -> bool {
        // Relaxed: ordered by the owner's lock; in `nothing_cached_fast` the owner reads its own
        // store.
        self.has_magazines.load(Ordering::Relaxed)
    }

    /// Sets the flag and returns its previous value. Called under the owner's lock.
    pub(crate) fn set_has_magazines(&self, has_magazines: bool) -> bool {
        let before = self.has_magazines();
        // Relaxed: ordered by the owner's lock.
        self.has_magazines.store(has_magazines, Ordering::Relaxed);
        before
    }
}

impl<R: Copy + 'static> CacheRef<R> {
    fn layout(classes: usize) -> Option<Layout> {
        let slots = Layout::array::<ClassSlot<R>>(classes).ok()?;
        Some(Layout::new::<ThreadCache<R>>().extend(slots).ok()?.0.pad_to_align())
    }

    /// Makes an empty cache; `None` if the system has no memory.
    pub(crate) fn create(classes: usize, fenced: bool, thread: *const ()) -> Option<Self> {
        // SAFETY: the layout is not empty: it holds at least the header.
        let block =
            NonNull::new(unsafe { System.alloc(Self::layout(classes)?) })?.cast::<ThreadCache<R>>();
        let cache = ThreadCache {
            owner: OwnerLock::new(fenced),
            has_magazines: AtomicBool::new(false),
            classes,
            next: AtomicPtr::new(ptr::null_mut()),
            next_retired: Cell::new(ptr::null_mut()),
            thread,
            in_slow_path: Cell::new(false),
            puts: AtomicU32::new(0),
            stopped: Cell::new(false),
            node: Cell::new(0),
            node_visits_remaining: Cell::new(0),
            scratch: UnsafeCell::new(Vec::new()),
            #[cfg(all(loom, not(shuttle)))]
            witness: loom::cell::UnsafeCell::new(()),
        };
        // SAFETY: the block is new and large enough; a slot needs no stricter alignment than the
        // header.
        unsafe {
            block.write(cache);
            let slots = block.add(1).cast::<ClassSlot<R>>();
            for class in 0..classes {
                slots.add(class).write(ClassSlot {
                    loaded: MagazineSlot::new(),
                    previous: MagazineSlot::new(),
                });
            }
        }
        Some(CacheRef(block))
    }

    /// Frees the memory block and discards the magazines in it. Returns the owner's buffer, which
    /// the caller must drop without holding a lock.
    ///
    /// # Safety
    ///
    /// No thread uses the cache any more.
    #[must_use]
    pub(crate) unsafe fn destroy(self) -> Vec<R> {
        let classes = self.cache().classes;
        for class in 0..classes {
            // SAFETY: `class` is one of the cache's classes.
            let slot = unsafe { self.slot(class) };
            drop((slot.loaded.take(), slot.previous.take()));
        }
        // SAFETY: no other thread uses the cache.
        let scratch = std::mem::take(unsafe { &mut *self.cache().scratch.get() });
        // SAFETY: the caller's promise; slots have nothing to drop but loom's atomics.
        unsafe {
            let slots = self.0.add(1).cast::<ClassSlot<R>>();
            for class in 0..classes {
                slots.add(class).drop_in_place();
            }
            self.0.drop_in_place();
            if let Some(layout) = Self::layout(classes) {
                System.dealloc(self.0.as_ptr().cast(), layout);
            }
        }
        scratch
    }

    pub(crate) fn from_raw(at: *mut ()) -> Option<Self> {
        NonNull::new(at.cast()).map(CacheRef)
    }

    pub(crate) fn as_ptr(self) -> *mut ThreadCache<R> {
        self.0.as_ptr()
    }

    #[inline(always)]
    pub(crate) fn cache<'a>(self) -> &'a ThreadCache<R> {
        // SAFETY: a cache lives while it is in its instance's list; the holder of a `CacheRef`
        // ensures that.
        unsafe { self.0.as_ref() }
    }

    /// # Safety
    ///
    /// The cache has this class.
    #[inline(always)]
    pub(crate) unsafe fn slot<'a>(self, class: usize) -> &'a ClassSlot<R> {
        debug_assert!(class < self.cache().classes);
        // SAFETY: the slots follow the header in the same block.
        unsafe { self.0.add(1).cast::<ClassSlot<R>>().add(class).as_ref() }
    }

    /// Iterates over all slots.
    pub(crate) fn slots<'a>(self) -> impl Iterator<Item = &'a ClassSlot<R>> + use<'a, R> {
        // SAFETY: the range covers exactly the cache's classes.
        (0..self.cache().classes).map(move |class| unsafe { self.slot(class) })
    }

    /// Takes the owner's lock.
    #[inline(always)]
    pub(crate) fn enter<'a>(self) -> OwnerGuard<'a> {
        let guard = self.cache().owner.enter();
        self.touch();
        guard
    }

    /// Tells the model checker that this thread holds the owner's lock.
    #[inline(always)]
    pub(crate) fn touch(self) {
        #[cfg(all(loom, not(shuttle)))]
        self.cache().witness.with_mut(|_| ());
    }

    /// Takes the owner's lock if that takes no more than one load; see [`enter`](Self::enter). It
    /// does not wait itself: with a call that returns here, the caller's loop ran out of registers
    /// and a pair of operations took 0.1 ns of 3.3 ns more.
    #[inline(always)]
    pub(crate) fn try_enter<'a>(self) -> Option<OwnerGuard<'a>> {
        let guard = self.cache().owner.try_enter()?;
        self.touch();
        Some(guard)
    }

    /// Returns the number of puts so far. Callable from any thread.
    pub(crate) fn puts(self) -> u32 {
        // Acquire pairs with the Release in `count_put`. A second load is ordered by the fences
        // there and in `Moves::consistent_read`.
        self.cache().puts.load(Ordering::Acquire)
    }

    /// Returns the number of puts once all counted puts are complete; `None` if the last one does
    /// not complete soon.
    pub(crate) fn finished_puts(self) -> Option<u32> {
        let puts = self.puts();
        // The owner holds its lock from counting to storing. If it is out now, or was at any time
        // since, the put is complete.
        let done = (0..CHECKS_PER_PUT).any(|_| {
            let out = !self.cache().owner.is_inside();
            if !out {
                std::hint::spin_loop();
            }
            out
        });
        done.then_some(puts)
    }

    /// Counts a put before the round is stored. Called under the owner's lock.
    #[inline(always)]
    pub(crate) fn count_put(self) {
        let puts = &self.cache().puts;
        // Relaxed: only the owner changes it. Release pairs with the Acquire in `puts`: a thread
        // that sees the put counted sees that the owner holds its lock.
        puts.store(puts.load(Ordering::Relaxed).wrapping_add(1), Ordering::Release);
        // Release pairs with the Acquire fence in `Moves::consistent_read`: a reader that finds the
        // round taken again sees that it was put.
        fence(Ordering::Release);
    }

    /// Takes a round from the loaded magazine, if it has one and no thread wants the owner's lock.
    /// For the owner only.
    ///
    /// # Safety
    ///
    /// The cache has this class, and the calling thread is its owner.
    #[inline(always)]
    pub(crate) unsafe fn get(self, class: usize, tracked: bool) -> Option<R> {
        let guard = self.try_enter()?;
        // SAFETY: the caller's promise.
        unsafe { self.pop(&guard, class, tracked) }
    }

    /// Takes a round from the loaded magazine, if it has one; waits for the owner's lock. For the
    /// owner only.
    ///
    /// # Safety
    ///
    /// The cache has this class, and the calling thread is its owner.
    pub(crate) unsafe fn get_waiting(self, class: usize, tracked: bool) -> Option<R> {
        let guard = self.enter();
        // SAFETY: the caller's promise.
        unsafe { self.pop(&guard, class, tracked) }
    }

    /// # Safety
    ///
    /// The cache has this class.
    #[inline(always)]
    unsafe fn pop(self, _guard: &OwnerGuard<'_>, class: usize, tracked: bool) -> Option<R> {
        if tracked {
            // Release pairs with the Acquire fence in `Moves::consistent_read`: a reader that finds
            // the round taken sees what was put before.
            fence(Ordering::Release);
        }
        // SAFETY: the caller's promise.
        unsafe { self.slot(class) }.loaded.pop()
    }

    /// Puts a round into the loaded magazine, if it has room and no thread wants the owner's lock.
    /// For the owner only.
    ///
    /// # Safety
    ///
    /// The cache has this class, and the calling thread is its owner.
    #[inline(always)]
    pub(crate) unsafe fn put(self, class: usize, round: R, tracked: bool) -> bool {
        let Some(guard) = self.try_enter() else { return false };
        // SAFETY: the caller's promise.
        unsafe { self.push(&guard, class, round, tracked) }
    }

    /// Puts a round into the loaded magazine, if it has room; waits for the owner's lock. For the
    /// owner only.
    ///
    /// # Safety
    ///
    /// The cache has this class, and the calling thread is its owner.
    pub(crate) unsafe fn put_waiting(self, class: usize, round: R, tracked: bool) -> bool {
        let guard = self.enter();
        // SAFETY: the caller's promise.
        unsafe { self.push(&guard, class, round, tracked) }
    }

    /// # Safety
    ///
    /// The cache has this class.
    #[inline(always)]
    unsafe fn push(self, _guard: &OwnerGuard<'_>, class: usize, round: R, tracked: bool) -> bool {
        if tracked {
            self.count_put();
        }
        // SAFETY: the caller's promise.
        unsafe { self.slot(class) }.loaded.push(round)
    }
}

impl<R: Copy> ClassSlot<R> {
    /// Exchanges the loaded and the previous magazine.
    pub(crate) fn swap(&self) {
        let (loaded, previous) = (self.loaded.take(), self.previous.take());
        self.loaded.set(previous);
        self.previous.set(loaded);
    }

    /// Returns the number of rounds in both magazines. Callable from any thread.
    pub(crate) fn count(&self) -> usize {
        self.loaded.count() + self.previous.count()
    }
}

impl<R: Copy> MagazineSlot<R> {
    fn new() -> Self {
        MagazineSlot {
            head: Cell::new(ptr::null_mut()),
            count: AtomicU32::new(0),
            capacity: Cell::new(0),
            rounds: std::marker::PhantomData,
        }
    }

    /// Takes the round that was put last. The caller holds the owner's lock, as for all functions
    /// below.
    #[inline(always)]
    pub(crate) fn pop(&self) -> Option<R> {
        // Relaxed, here and below: ordered by the owner's lock; the statistics need no order.
        let count = self.count.load(Ordering::Relaxed).checked_sub(1)?;
        // SAFETY: all places below the count hold rounds.
        let round = unsafe { Magazine::<R>::rounds(self.head.get()).add(count as usize).read() };
        self.count.store(count, Ordering::Relaxed);
        Some(round)
    }

    #[inline(always)]
    pub(crate) fn push(&self, round: R) -> bool {
        let count = self.count.load(Ordering::Relaxed);
        if count >= self.capacity.get() {
            return false;
        }
        // SAFETY: the place is below the capacity.
        unsafe { Magazine::<R>::rounds(self.head.get()).add(count as usize).write(round) };
        self.count.store(count + 1, Ordering::Relaxed);
        true
    }

    /// Moves up to `want` rounds to the end of `out`, which has room for them; returns how many.
    pub(crate) fn pop_many(&self, want: usize, out: &mut Vec<R>) -> usize {
        let count = self.count();
        let some = want.min(count);
        if some > 0 {
            let first = Magazine::<R>::rounds(self.head.get()).wrapping_add(count - some);
            // SAFETY: all places below the count hold rounds.
            out.extend_from_slice(unsafe { std::slice::from_raw_parts(first, some) });
            self.count.store((count - some) as u32, Ordering::Relaxed);
        }
        some
    }

    /// Appends a copy of the rounds to `out`.
    pub(crate) fn copy_into(&self, out: &mut Vec<R>) {
        if self.count() > 0 {
            let first = Magazine::<R>::rounds(self.head.get());
            // SAFETY: all places below the count hold rounds.
            out.extend_from_slice(unsafe { std::slice::from_raw_parts(first, self.count()) });
        }
    }

    #[inline(always)]
    pub(crate) fn count(&self) -> usize {
        self.count.load(Ordering::Relaxed) as usize
    }

    pub(crate) fn capacity(&self) -> usize {
        self.capacity.get() as usize
    }

    pub(crate) fn has_room(&self) -> bool {
        self.count() < self.capacity()
    }

    /// Takes the magazine out, if there is one.
    pub(crate) fn take(&self) -> Option<Magazine<R>> {
        let head = NonNull::new(self.head.replace(ptr::null_mut()))?;
        let count = self.count.load(Ordering::Relaxed);
        self.count.store(0, Ordering::Relaxed);
        self.capacity.set(0);
        // SAFETY: `set` stored the magazine, and all places below the count hold rounds.
        Some(unsafe { Magazine::from_raw(head, count) })
    }

    /// Stores a magazine. The slot must be empty.
    pub(crate) fn set(&self, magazine: Option<Magazine<R>>) {
        debug_assert!(self.head.get().is_null());
        if let Some(magazine) = magazine {
            self.count.store(magazine.count() as u32, Ordering::Relaxed);
            self.capacity.set(magazine.capacity() as u32);
            self.head.set(magazine.into_raw().as_ptr());
        }
    }
}
