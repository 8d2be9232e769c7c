//! *Access*: exclusive access to the magazines of a cache.
//!
//! A value of this type proves that the calling thread holds the owner's lock of the cache, that it
//! has stopped the owner, or that no other thread uses the cache.

use super::block::CacheRef;
use super::slot::ClassAccess;
use crate::sync::Ordering;

/// Exclusive access to the magazines of a cache.
pub(crate) struct CacheAccess<'a, R> {
    cache: CacheRef<'a, R>,
}

impl<'a, R: Copy + 'static> CacheAccess<'a, R> {
    /// Makes the access.
    ///
    /// # Safety
    ///
    /// While the value lives, no other thread has an access to this cache: the calling thread holds
    /// the owner's lock, as the owner or by a stop, or no other thread uses the cache.
    #[inline(always)]
    pub(crate) unsafe fn new(cache: CacheRef<'a, R>) -> Self {
        cache.touch();
        CacheAccess { cache }
    }

    /// Returns the access to the magazines of a class.
    ///
    /// # Safety
    ///
    /// The cache has this class.
    #[inline(always)]
    pub(super) unsafe fn class_unchecked(&self, class: usize) -> ClassAccess<'_, R> {
        // SAFETY: the caller promises that the class exists. `new` required that no other thread
        // has an access while `self` lives, and the result borrows `self`.
        unsafe { self.cache.slot(class).access() }
    }

    /// Returns the access to the magazines of a class. Panics if the cache does not have it.
    pub(crate) fn class(&self, class: usize) -> ClassAccess<'_, R> {
        assert!(class < self.cache.classes());
        // SAFETY: checked above.
        unsafe { self.class_unchecked(class) }
    }

    /// Iterates over all classes.
    pub(crate) fn classes(&self) -> impl Iterator<Item = ClassAccess<'_, R>> {
        // SAFETY: the range covers exactly the cache's classes.
        (0..self.cache.classes()).map(|class| unsafe { self.class_unchecked(class) })
    }

    /// Returns whether the cache is counted as a holder of rounds.
    pub(crate) fn has_magazines(&self) -> bool {
        self.cache.has_magazines()
    }

    /// Sets whether the cache is counted as a holder of rounds. Returns the previous value.
    pub(crate) fn set_has_magazines(&self, has_magazines: bool) -> bool {
        let before = self.cache.has_magazines();
        // Relaxed: ordered by the owner's lock.
        self.cache.header().has_magazines.store(has_magazines, Ordering::Relaxed);
        before
    }
}
