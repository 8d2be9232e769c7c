//! *Local*: what one thread has of one instance: for every class a loaded and a previous magazine.
//!
//! ```text
//!          Cache                 slot 0                          slot 1
//!   ┌──────────────────┬──────────────────────────────┬──────────────────────────────┬─────
//!   │ owner, armed, …  │ loaded ▸ n   │ previous ▸ n  │ loaded ▸ n   │ previous ▸ n  │ …
//!   └──────────────────┴──────────────────────────────┴──────────────────────────────┴─────
//! ```
//!
//! Head and slots are one block, so that a class is found without another load. Numbers of rounds
//! are atomic for the statistics alone, which look from other threads; everything else is touched
//! by who has the owner's lock.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::{Cell, UnsafeCell};
use std::ptr::{self, NonNull};

use crate::sync::{AtomicBool, AtomicPtr, AtomicU32, Ordering, fence};

use super::magazine::{Magazine, MagazineHead};
use super::owner_lock::{OwnerGuard, OwnerLock};

/// Looks at an owner who puts something before he is taken for one who does not come to it. Few for
/// the model.
const CHECKS_PER_PUT: u32 = if cfg!(loom) { 1 } else { 100 };

/// The head of the block. A line of its own, with its neighbour, which processors fetch together.
#[repr(C, align(128))]
pub(crate) struct ThreadCache<R> {
    pub(crate) owner: OwnerLock,
    /// Under the owner's lock: counted among the caches that may hold rounds. Where it is not, no
    /// slot has a magazine.
    has_magazines: AtomicBool,
    classes: usize,
    /// The next of the instance's list; see [caches](super::caches).
    pub(crate) next: AtomicPtr<ThreadCache<R>>,
    /// Under the lock of that list: the next of those whose threads have ended.
    pub(crate) next_retired: Cell<*mut ThreadCache<R>>,
    /// Under the same lock: somebody else has the owner's lock.
    pub(crate) stopped: Cell<bool>,
    /// Whose it is: an address that says nothing else here.
    pub(crate) thread: *const (),
    /// Rounds put by the owner, where that is tracked: on slow ways one for many.
    puts: AtomicU32,
    /// The owner is on a slow way. What it asks for meanwhile, memory for its own lists say, takes
    /// no second one.
    pub(crate) in_slow_path: Cell<bool>,
    /// For the owner's slow ways: the memory node of its thread, and how often it may be used
    /// before it is looked up again.
    pub(crate) node: Cell<usize>,
    pub(crate) node_visits_left: Cell<u32>,
    /// For the owner's slow ways.
    pub(crate) scratch: UnsafeCell<Vec<R>>,
    /// Lets the model see who is in at a time.
    #[cfg(all(loom, not(shuttle)))]
    witness: loom::cell::UnsafeCell<()>,
}

/// The magazines of a class.
pub(crate) struct ClassSlot<R> {
    pub(crate) loaded: MagazineSlot<R>,
    pub(crate) previous: MagazineSlot<R>,
}

/// A place for a magazine. Without one: no head, and count and capacity are 0.
pub(crate) struct MagazineSlot<R> {
    head: Cell<*mut MagazineHead>,
    /// At most `capacity`; all places below it hold rounds.
    count: AtomicU32,
    capacity: Cell<u32>,
    rounds: std::marker::PhantomData<R>,
}

/// A cache, by its address. Valid as long as the instance's list has it.
pub(crate) struct CacheRef<R>(NonNull<ThreadCache<R>>);

impl<R> Clone for CacheRef<R> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<R> Copy for CacheRef<R> {}

impl<R> ThreadCache<R> {
    /// How many classes there are.
    pub(crate) fn classes(&self) -> usize {
        self.classes
    }

    pub(crate) fn has_magazines(&self) -> bool {
        // Relaxed: ordered by the owner's lock; or by the owner's asking, while nothing moves.
        self.has_magazines.load(Ordering::Relaxed)
    }

    /// Returns what it was before. Under the owner's lock.
    pub(crate) fn set_has_magazines(&self, has_magazines: bool) -> bool {
        let before = self.has_magazines();
        // Relaxed: as above.
        self.has_magazines.store(has_magazines, Ordering::Relaxed);
        before
    }
}

impl<R: Copy + 'static> CacheRef<R> {
    fn layout(classes: usize) -> Option<Layout> {
        let slots = Layout::array::<ClassSlot<R>>(classes).ok()?;
        Some(Layout::new::<ThreadCache<R>>().extend(slots).ok()?.0.pad_to_align())
    }

    /// An empty cache; `None` if the system has no memory.
    pub(crate) fn create(classes: usize, fenced: bool, thread: *const ()) -> Option<Self> {
        // SAFETY: the layout has the size of a head at least.
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
            node_visits_left: Cell::new(0),
            scratch: UnsafeCell::new(Vec::new()),
            #[cfg(all(loom, not(shuttle)))]
            witness: loom::cell::UnsafeCell::new(()),
        };
        // SAFETY: the block is new and large enough; a slot's alignment is at most that of the
        // head.
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

    /// Frees the block. Magazines that are in it are lost. What comes back is the owner's list, to
    /// be dropped under no lock.
    ///
    /// # Safety
    ///
    /// Nobody uses it any more.
    #[must_use]
    pub(crate) unsafe fn destroy(self) -> Vec<R> {
        let classes = self.cache().classes;
        for class in 0..classes {
            // SAFETY: the class is one of the cache's.
            let slot = unsafe { self.slot(class) };
            drop((slot.loaded.take(), slot.previous.take()));
        }
        // SAFETY: nobody else uses it.
        let scratch = std::mem::take(unsafe { &mut *self.cache().scratch.get() });
        // SAFETY: as the caller promises; slots have nothing to drop but loom's atomics.
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
        // SAFETY: a cache lives as long as its instance has it in its list; who holds a `CacheRef`
        // sees to that.
        unsafe { self.0.as_ref() }
    }

    /// # Safety
    ///
    /// The cache has this class.
    #[inline(always)]
    pub(crate) unsafe fn slot<'a>(self, class: usize) -> &'a ClassSlot<R> {
        debug_assert!(class < self.cache().classes);
        // SAFETY: the slots stand behind the head in the same block.
        unsafe { self.0.add(1).cast::<ClassSlot<R>>().add(class).as_ref() }
    }

    /// All slots.
    pub(crate) fn slots<'a>(self) -> impl Iterator<Item = &'a ClassSlot<R>> + use<'a, R> {
        // SAFETY: these are the classes of the cache.
        (0..self.cache().classes).map(move |class| unsafe { self.slot(class) })
    }

    /// Takes the owner's lock.
    #[inline(always)]
    pub(crate) fn enter<'a>(self) -> OwnerGuard<'a> {
        let guard = self.cache().owner.enter();
        self.touch();
        guard
    }

    /// Tells the model that this thread is in.
    #[inline(always)]
    pub(crate) fn touch(self) {
        #[cfg(all(loom, not(shuttle)))]
        self.cache().witness.with_mut(|_| ());
    }

    /// As [`enter`](Self::enter), unless that takes more than a look. It does not wait until it may
    /// go in: with a call that comes back here the caller's loop had too few registers, and a
    /// pair took 0.1 of 3.3 ns more.
    #[inline(always)]
    pub(crate) fn try_enter<'a>(self) -> Option<OwnerGuard<'a>> {
        let guard = self.cache().owner.try_enter()?;
        self.touch();
        Some(guard)
    }

    /// How often rounds were put, seen from any thread.
    pub(crate) fn puts(self) -> u32 {
        // Acquire pairs with the Release in `count_put`. For a second look, the fences there and in
        // `Moves::consistent_read`.
        self.cache().puts.load(Ordering::Acquire)
    }

    /// The same, when all that are counted have been done; `None` if the last one takes its time.
    pub(crate) fn finished_puts(self) -> Option<u32> {
        let puts = self.puts();
        // Who counts is in; if he is out now, or was at any time since, he has done it.
        let done = (0..CHECKS_PER_PUT).any(|_| {
            let out = !self.cache().owner.is_inside();
            if !out {
                std::hint::spin_loop();
            }
            out
        });
        done.then_some(puts)
    }

    /// Under the owner's lock, before a round is put.
    #[inline(always)]
    pub(crate) fn count_put(self) {
        let puts = &self.cache().puts;
        // Relaxed: the owner alone changes it. Release pairs with the Acquire in `puts`: who sees
        // it counted sees the owner in.
        puts.store(puts.load(Ordering::Relaxed).wrapping_add(1), Ordering::Release);
        // Release pairs with the Acquire fence in `Moves::consistent_read`: who sees the round gone again
        // sees that one was put.
        fence(Ordering::Release);
    }

    /// A round from the loaded magazine, if there is one and nobody wants the owner out. For the
    /// owner.
    ///
    /// # Safety
    ///
    /// The cache has this class, and this thread is its owner.
    #[inline(always)]
    pub(crate) unsafe fn get(self, class: usize, tracked: bool) -> Option<R> {
        let guard = self.try_enter()?;
        // SAFETY: the caller's promise.
        unsafe { self.pop(&guard, class, tracked) }
    }

    /// As above, but that it waits until it may go in.
    ///
    /// # Safety
    ///
    /// As for `get`.
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
            // Release pairs with the Acquire fence in `Moves::consistent_read`: who sees the round gone sees
            // what was put before.
            fence(Ordering::Release);
        }
        // SAFETY: the caller's promise.
        unsafe { self.slot(class) }.loaded.pop()
    }

    /// A round into the loaded magazine, if it has room and nobody wants the owner out. For the
    /// owner.
    ///
    /// # Safety
    ///
    /// As for `get`.
    #[inline(always)]
    pub(crate) unsafe fn put(self, class: usize, round: R, tracked: bool) -> bool {
        let Some(guard) = self.try_enter() else { return false };
        // SAFETY: the caller's promise.
        unsafe { self.push(&guard, class, round, tracked) }
    }

    /// As above, but that it waits until it may go in.
    ///
    /// # Safety
    ///
    /// As for `get`.
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
    /// Lets the magazines change places.
    pub(crate) fn swap(&self) {
        let (loaded, previous) = (self.loaded.take(), self.previous.take());
        self.loaded.set(previous);
        self.previous.set(loaded);
    }

    /// Rounds in both, seen from any thread.
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

    /// The caller has the owner's lock, as for all that follow.
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

    /// The rounds, onto `out`.
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

    /// The magazine, if there is one; then there is none.
    pub(crate) fn take(&self) -> Option<Magazine<R>> {
        let head = NonNull::new(self.head.replace(ptr::null_mut()))?;
        let count = self.count.load(Ordering::Relaxed);
        self.count.store(0, Ordering::Relaxed);
        self.capacity.set(0);
        // SAFETY: `set` took it, and all places below the count hold rounds.
        Some(unsafe { Magazine::from_raw(head, count) })
    }

    /// Puts a magazine where none is.
    pub(crate) fn set(&self, magazine: Option<Magazine<R>>) {
        debug_assert!(self.head.get().is_null());
        if let Some(magazine) = magazine {
            self.count.store(magazine.count() as u32, Ordering::Relaxed);
            self.capacity.set(magazine.capacity() as u32);
            self.head.set(magazine.into_raw().as_ptr());
        }
    }
}
