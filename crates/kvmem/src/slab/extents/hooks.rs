//! *Range hooks*: functions that run when a range becomes used, and before it becomes free.
//!
//! A space hands out numbers and knows of no bytes. The owner of the bytes behind it may have to
//! change them at these two moments, for every way in which a range is allocated, grows, shrinks or
//! is freed. The hooks are in the extent layer because it alone sees all of these ways; ranges that
//! move between the caches of threads stay free and pass no hook.

use std::ops::Range;
use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering};

/// A function that gets the number of a space and a range of it, in bytes.
///
/// # Safety
/// The range belongs to an extent of the space, or to a raw handle, and nothing else uses it while
/// the function runs.
pub(crate) type RangeHook = unsafe fn(space: u32, range: Range<u64>);

/// The hooks of a space.
#[derive(Debug)]
pub(crate) struct RangeHooks {
    /// Runs for a range that was free until now, before the caller gets it.
    pub(crate) allocated: Option<RangeHook>,
    /// Runs for a range before other callers can get it.
    pub(crate) freed: Option<RangeHook>,
}

/// Stands for the hooks of a space that has none and in which no size is hot: one load shows a
/// request that it goes to the space.
static COLD: RangeHooks = RangeHooks { allocated: None, freed: None };

impl RangeHooks {
    /// Returns whether no size is hot, and there are no hooks.
    #[inline(always)]
    pub(super) fn are_cold(&self) -> bool {
        ptr::eq(self, &COLD)
    }
}

/// The place of the hooks of a space. It has a cache line of its own, because every request reads
/// it and neighbours might be written.
#[repr(align(64))]
pub(super) struct HooksSlot(AtomicPtr<RangeHooks>);

impl HooksSlot {
    pub(super) const fn new() -> Self {
        HooksSlot(AtomicPtr::new(ptr::null_mut()))
    }

    /// Replaces the hooks.
    pub(super) fn set(&self, hooks: Option<&'static RangeHooks>) {
        let hooks = hooks.map_or(ptr::null_mut(), |hooks| ptr::from_ref(hooks).cast_mut());
        // Relaxed: stored before any extent exists that is meant to see it. A thread that got an
        // extent, or the cache, from another thread has synchronized with that thread.
        self.0.store(hooks, Ordering::Relaxed);
    }

    /// Sets whether no size is hot, if there are no hooks.
    pub(super) fn set_cold(&self, cold: bool) {
        let (none, cold_hooks) = (ptr::null_mut(), ptr::from_ref(&COLD).cast_mut());
        let (from, to) = if cold { (none, cold_hooks) } else { (cold_hooks, none) };
        // Relaxed: a hint.
        let _ = self.0.compare_exchange(from, to, Ordering::Relaxed, Ordering::Relaxed);
    }

    /// Returns the hooks, if the space has any.
    #[inline]
    pub(super) fn get(&self) -> Option<&'static RangeHooks> {
        self.get_or_cold().filter(|hooks| !hooks.are_cold())
    }

    /// Returns the hooks, if the space has any, or those that [are cold](RangeHooks::are_cold).
    #[inline(always)]
    pub(super) fn get_or_cold(&self) -> Option<&'static RangeHooks> {
        // SAFETY: the pointer is null or that of a static. Relaxed: see `set`.
        unsafe { self.0.load(Ordering::Relaxed).as_ref() }
    }
}
