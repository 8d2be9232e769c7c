//! *Owner*: what a thread does with its own cache. The fast path of the magazines is here.

use std::ops::Deref;
use std::ptr::NonNull;

use super::access::CacheAccess;
use super::block::{CacheRef, ThreadCache};
use super::owner_lock::OwnerGuard;
use crate::sync::{Ordering, fence};

/// The calling thread's own cache.
pub(crate) struct OwnCache<'a, R>(CacheRef<'a, R>);

/// The owner's access to its cache; dropping it releases the owner's lock.
pub(crate) struct OwnerAccess<'a, R> {
    access: CacheAccess<'a, R>,
    cache: CacheRef<'a, R>,
    _guard: OwnerGuard<'a>,
}

/// The owner on a slow path; dropping it ends that.
pub(crate) struct SlowPath<'s, 'a, R: Copy + 'static>(&'s mut OwnCache<'a, R>);

impl<'a, R: Copy + 'static> OwnCache<'a, R> {
    /// Returns the calling thread's cache at an address; `None` if that is null.
    ///
    /// # Safety
    ///
    /// The address is null, or it is that of a cache of the calling thread that is not destroyed
    /// within `'a`. (If its thread has ended, another thread may take its place.) While an access
    /// of this value lives, the thread uses no other `OwnCache` of the same cache: no code that
    /// runs under the lock uses the instance.
    #[inline(always)]
    pub(crate) unsafe fn from_raw(at: *mut ()) -> Option<Self> {
        // SAFETY: the caller promises that the cache lives within `'a`.
        unsafe { CacheRef::from_raw(at.cast::<ThreadCache<R>>()) }.map(OwnCache)
    }

    /// Returns the cache as any thread may use it.
    #[inline(always)]
    pub(crate) fn shared(&self) -> CacheRef<'a, R> {
        self.0
    }

    pub(crate) fn as_ptr(&self) -> NonNull<ThreadCache<R>> {
        self.0.as_ptr()
    }

    /// Takes the owner's lock.
    #[inline(always)]
    pub(crate) fn enter(&mut self) -> OwnerAccess<'_, R> {
        // SAFETY: `from_raw` required that this thread is the owner and that no other `OwnCache` of
        // it is entered; the borrow of `self` excludes a second access of this one.
        let guard = unsafe { self.0.header().owner.enter() };
        // SAFETY: the guard holds the owner's lock as long as the access lives.
        OwnerAccess { access: unsafe { CacheAccess::new(self.0) }, cache: self.0, _guard: guard }
    }

    /// Takes the owner's lock if that takes no more than one load; see [`enter`](Self::enter). It
    /// does not wait itself: with a call that returns here, the caller's loop ran out of registers
    /// and a pair of operations took 0.1 ns of 3.3 ns more.
    #[inline(always)]
    fn try_enter(&mut self) -> Option<OwnerAccess<'_, R>> {
        // SAFETY: as in `enter`.
        let guard = unsafe { self.0.header().owner.try_enter() }?;
        // SAFETY: as in `enter`.
        let access = unsafe { CacheAccess::new(self.0) };
        Some(OwnerAccess { access, cache: self.0, _guard: guard })
    }

    /// Takes a round from the loaded magazine, if it has one and no thread wants the owner's lock.
    ///
    /// # Safety
    ///
    /// The cache has this class.
    #[inline(always)]
    pub(crate) unsafe fn get(&mut self, class: usize, tracked: bool) -> Option<R> {
        let access = self.try_enter()?;
        // SAFETY: the caller promises that the cache has this class.
        unsafe { access.pop(class, tracked) }
    }

    /// Takes a round from the loaded magazine, if it has one; waits for the owner's lock.
    ///
    /// # Safety
    ///
    /// The cache has this class.
    pub(crate) unsafe fn get_waiting(&mut self, class: usize, tracked: bool) -> Option<R> {
        // SAFETY: the caller promises that the cache has this class.
        unsafe { self.enter().pop(class, tracked) }
    }

    /// Puts a round into the loaded magazine, if it has room and no thread wants the owner's lock.
    ///
    /// # Safety
    ///
    /// The cache has this class.
    #[inline(always)]
    pub(crate) unsafe fn put(&mut self, class: usize, round: R, tracked: bool) -> bool {
        let Some(access) = self.try_enter() else { return false };
        // SAFETY: the caller promises that the cache has this class.
        unsafe { access.push(class, round, tracked) }
    }

    /// Puts a round into the loaded magazine, if it has room; waits for the owner's lock.
    ///
    /// # Safety
    ///
    /// The cache has this class.
    pub(crate) unsafe fn put_waiting(&mut self, class: usize, round: R, tracked: bool) -> bool {
        // SAFETY: the caller promises that the cache has this class.
        unsafe { self.enter().push(class, round, tracked) }
    }

    /// Enters a slow path, unless the thread is on one already.
    pub(crate) fn enter_slow_path(&mut self) -> Option<SlowPath<'_, 'a, R>> {
        // SAFETY: this thread is the owner, as `from_raw` required.
        let in_slow_path = unsafe { &self.0.owner_state().in_slow_path };
        (!in_slow_path.replace(true)).then_some(SlowPath(self))
    }

    /// Counts a slow operation. The last one of a window of them returns the puts in the window.
    #[inline]
    pub(crate) fn count_slow(&mut self, window: u32) -> Option<u32> {
        // SAFETY: this thread is the owner, as `from_raw` required.
        let state = unsafe { self.0.owner_state() };
        let count = state.slow_operations.get() + 1;
        state.slow_operations.set(count % window);
        (count == window).then(|| {
            // Relaxed: only the owner changes it.
            let puts = self.0.header().puts.load(Ordering::Relaxed);
            puts.wrapping_sub(state.puts_before.replace(puts))
        })
    }

    /// Returns the memory node that was looked up last.
    pub(crate) fn node(&self) -> usize {
        // SAFETY: this thread is the owner, as `from_raw` required.
        unsafe { self.0.owner_state() }.node.get()
    }

    /// Returns the memory node of the thread, which `look_up` finds once every `visits` calls.
    pub(crate) fn node_or(&mut self, visits: u32, look_up: impl FnOnce() -> usize) -> usize {
        // SAFETY: this thread is the owner, as `from_raw` required.
        let state = unsafe { self.0.owner_state() };
        match state.node_visits_remaining.get().checked_sub(1) {
            Some(remaining) => state.node_visits_remaining.set(remaining),
            None => self.set_node(look_up(), visits - 1),
        }
        state.node.get()
    }

    /// Sets the memory node, and the number of visits before it is looked up.
    pub(crate) fn set_node(&mut self, node: usize, visits: u32) {
        // SAFETY: this thread is the owner, as `from_raw` required.
        let state = unsafe { self.0.owner_state() };
        state.node.set(node);
        state.node_visits_remaining.set(visits);
    }
}

impl<R: Copy + 'static> OwnerAccess<'_, R> {
    /// Counts a put before the round is stored.
    #[inline(always)]
    pub(crate) fn count_put(&self) {
        let puts = &self.cache.header().puts;
        // Relaxed: only the owner changes it. Release pairs with the Acquire in `puts`: a thread
        // that sees the put counted sees that the owner holds its lock.
        puts.store(puts.load(Ordering::Relaxed).wrapping_add(1), Ordering::Release);
        // Release pairs with the Acquire fence in `Moves::consistent_read`: a reader that finds the
        // round taken again sees that it was put.
        fence(Ordering::Release);
    }

    /// # Safety
    ///
    /// The cache has this class.
    #[inline(always)]
    unsafe fn pop(&self, class: usize, tracked: bool) -> Option<R> {
        if tracked {
            // Release pairs with the Acquire fence in `Moves::consistent_read`: a reader that finds
            // the round taken sees what was put before.
            fence(Ordering::Release);
        }
        // SAFETY: the caller promises that the cache has this class.
        unsafe { self.class_unchecked(class) }.loaded.pop()
    }

    /// # Safety
    ///
    /// The cache has this class.
    #[inline(always)]
    unsafe fn push(&self, class: usize, round: R, tracked: bool) -> bool {
        if tracked {
            self.count_put();
        }
        // SAFETY: the caller promises that the cache has this class.
        unsafe { self.class_unchecked(class) }.loaded.push(round)
    }
}

impl<'a, R> Deref for OwnerAccess<'a, R> {
    type Target = CacheAccess<'a, R>;

    #[inline(always)]
    fn deref(&self) -> &CacheAccess<'a, R> {
        &self.access
    }
}

impl<'a, R: Copy + 'static> SlowPath<'_, 'a, R> {
    /// Returns the cache.
    pub(crate) fn cache(&mut self) -> &mut OwnCache<'a, R> {
        self.0
    }

    /// Returns the cache, and the owner's buffer, emptied.
    pub(crate) fn cache_and_buffer(&mut self) -> (&mut OwnCache<'a, R>, &mut Vec<R>) {
        // SAFETY: this thread is the owner, and only its slow paths use the buffer. They do not
        // nest, and the borrow of `self` excludes a second reference.
        let buffer = unsafe { &mut *self.0.0.owner_state().scratch.get() };
        buffer.clear();
        (self.0, buffer)
    }
}

impl<R: Copy + 'static> Drop for SlowPath<'_, '_, R> {
    fn drop(&mut self) {
        // SAFETY: this thread is the owner.
        unsafe { self.0.0.owner_state() }.in_slow_path.set(false);
    }
}
