//! *Magazines*: one instance of the magazine layer: classes × threads.

use std::ptr::NonNull;

use super::core::MagazineCore;
use super::magazine_settings::MagazineSettings;
use super::magazine_stats::MagazineStats;
use super::source::RoundSource;
use super::thread_cache::CacheRef;
use super::threads::{self, InstanceId, RegisteredInstance};

/// One instance: for each class magazines of threads and a depot, above a source. Independent of
/// all others.
///
/// Classes are numbered from 0; functions that are given another panic. Dropping it drains
/// everything into the source.
pub(crate) struct Magazines<R: Copy + Send + 'static, S: RoundSource<R>> {
    /// Owned. Not a box: the registry has the address too.
    core: NonNull<MagazineCore<R, S>>,
    id: InstanceId,
    classes: usize,
}

// SAFETY: the core may be shared between threads, and a round that one has put may be got by
// another.
unsafe impl<R: Copy + Send + 'static, S: RoundSource<R>> Send for Magazines<R, S> {}
// SAFETY: as above.
unsafe impl<R: Copy + Send + 'static, S: RoundSource<R>> Sync for Magazines<R, S> {}

impl<R: Copy + Send + 'static, S: RoundSource<R>> RegisteredInstance for MagazineCore<R, S> {
    unsafe fn retire(&self, cache: *mut ()) {
        if let Some(local) = CacheRef::from_raw(cache) {
            // SAFETY: the caller's promise.
            unsafe { self.retire(local) };
        }
    }

    fn prefork(&self) {
        self.prefork();
    }

    unsafe fn postfork(&self) {
        // SAFETY: the caller's promise.
        unsafe { self.postfork() };
    }

    unsafe fn postfork_child(&self, thread: *const ()) {
        // SAFETY: the caller's promise.
        unsafe { self.postfork_child(thread) };
    }
}

impl<R: Copy + Send + 'static, S: RoundSource<R>> Magazines<R, S> {
    /// An instance that holds nothing yet.
    pub(crate) fn new(source: S, settings: MagazineSettings) -> Self {
        let classes = settings.classes;
        let core = NonNull::from(Box::leak(Box::new(MagazineCore::new(source, settings))));
        // SAFETY: the core stays where it is until `drop` has withdrawn it.
        let id = unsafe { threads::register_instance(core) };
        Magazines { core, id, classes }
    }

    #[inline(always)]
    fn core(&self) -> &MagazineCore<R, S> {
        // SAFETY: ours until `drop`.
        unsafe { self.core.as_ref() }
    }

    /// Where rounds come from.
    pub(crate) fn source(&self) -> &S {
        self.core().source()
    }

    /// How many classes there are.
    #[inline(always)]
    pub(crate) fn classes(&self) -> usize {
        self.classes
    }

    /// This thread's cache, if it has one that is near and the class is one of ours.
    #[inline(always)]
    fn local(&self, class: usize) -> Option<CacheRef<R>> {
        if class < self.classes { CacheRef::from_raw(threads::near_cache(self.id)) } else { None }
    }

    /// This thread's cache, near or not, if it has one and the class is one of ours.
    fn any_local(&self, class: usize) -> Option<CacheRef<R>> {
        if class < self.classes { CacheRef::from_raw(threads::cache(self.id)) } else { None }
    }

    /// This thread's cache, made if it must; `None` if it cannot have one.
    fn local_or_new(&self) -> Option<CacheRef<R>> {
        CacheRef::from_raw(threads::cache(self.id)).or_else(|| {
            let join = |thread| {
                self.core().join(thread).map_or(std::ptr::null_mut(), |local| local.as_ptr().cast())
            };
            CacheRef::from_raw(threads::make_cache(self.id, join))
        })
    }

    /// A round from this thread's loaded magazine.
    #[inline(always)]
    pub(crate) fn get_loaded(&self, class: usize) -> Option<R> {
        // SAFETY: the cache is this thread's, and has the classes of its instance.
        self.local(class).and_then(|local| unsafe { local.get(class, S::TRACKED) })
    }

    /// A round: from this thread's magazines, the depot, or the source, which then fills a
    /// magazine. `None` if the source has none.
    #[inline]
    pub(crate) fn get(&self, class: usize) -> Option<R> {
        if let Some(round) = self.get_loaded(class) {
            return Some(round);
        }
        self.get_slow(class, true)
    }

    /// A round from this thread's magazines or the depot.
    #[inline]
    pub(crate) fn get_cached(&self, class: usize) -> Option<R> {
        if let Some(round) = self.get_loaded(class) {
            return Some(round);
        }
        self.get_slow(class, false)
    }

    #[cold]
    #[inline(never)]
    fn get_slow(&self, class: usize, refill: bool) -> Option<R> {
        // Every operation comes here where the cache is not near or the owner makes fences.
        if let Some(local) = self.any_local(class) {
            // SAFETY: as in `get_loaded`.
            if let Some(round) = unsafe { local.get_waiting(class, S::TRACKED) } {
                return Some(round);
            }
        }
        // Who finds nothing cached anywhere needs no cache of his own to know it.
        if !refill && !self.core().may_hold() {
            return None;
        }
        self.core().get(self.local_or_new(), class, refill)
    }

    /// Takes a round, which came from `get` of this class on any thread.
    #[inline]
    pub(crate) fn put(&self, class: usize, round: R) {
        if let Some(local) = self.local(class) {
            // SAFETY: as in `get_loaded`.
            if unsafe { local.put(class, round, S::TRACKED) } {
                return;
            }
        }
        self.put_slow(class, round);
    }

    #[cold]
    #[inline(never)]
    fn put_slow(&self, class: usize, round: R) {
        // As in `get_slow`.
        if let Some(local) = self.any_local(class) {
            // SAFETY: as in `get_loaded`.
            if unsafe { local.put_waiting(class, round, S::TRACKED) } {
                return;
            }
        }
        self.core().put(self.local_or_new(), class, round);
    }

    /// Appends up to `want` rounds: fewer only if there are no more.
    pub(crate) fn get_batch(&self, class: usize, want: usize, out: &mut Vec<R>) {
        self.core().get_batch(self.local_or_new(), class, want, out);
    }

    /// Takes what `next` gives, which does not use this instance.
    pub(crate) fn put_each(&self, class: usize, next: impl FnMut() -> Option<R>) {
        self.core().put_each(self.local_or_new(), class, next);
    }

    /// Gives the source back all that any thread or the depot had when it was called. From any
    /// thread. Stops all threads that use the instance for some microseconds. Where the kernel
    /// has begun to refuse barriers since the process started, threads that have not used the
    /// instance since are left out this time.
    pub(crate) fn trim(&self) {
        self.core().trim();
    }

    /// Whether any cache may hold a round. Never false when one does, as far as this thread can
    /// know. One load.
    #[inline]
    #[cfg(test)]
    pub(crate) fn may_hold(&self) -> bool {
        self.core().may_hold()
    }

    /// What `look` found, if no round went from place to place meanwhile.
    pub(crate) fn consistent_read<T>(&self, look: impl FnOnce() -> T) -> Option<T> {
        self.core().consistent_read(look)
    }

    /// See [`MagazineCore::max_free`].
    #[inline]
    pub(crate) fn max_free(&self, free: impl Fn() -> u64) -> Option<u64> {
        self.core().max_free(free)
    }

    /// See [`MagazineCore::nothing_cached_fast`].
    #[inline(always)]
    pub(crate) fn nothing_cached_fast(
        &self,
        classes: impl FnOnce() -> usize,
        and: impl FnOnce() -> bool,
    ) -> bool {
        self.core().nothing_cached_fast(
            CacheRef::from_raw(threads::near_cache(self.id)),
            classes,
            and,
        )
    }

    /// See [`MagazineCore::is_local_empty`].
    pub(crate) fn is_local_empty(&self, classes: usize) -> bool {
        MagazineCore::<R, S>::is_local_empty(CacheRef::from_raw(threads::cache(self.id)), classes)
    }

    /// See [`MagazineCore::nothing_cached`].
    pub(crate) fn nothing_cached(
        &self,
        classes: impl Fn() -> usize,
        and: impl FnMut() -> bool,
    ) -> bool {
        self.core().nothing_cached(classes, and)
    }

    /// See [`MagazineCore::reclaim`].
    pub(crate) fn reclaim<T>(&self, retry: impl FnOnce() -> T) -> T {
        self.core().reclaim(retry)
    }

    /// See [`MagazineCore::rebind`].
    pub(crate) fn rebind(&self, change: impl FnOnce(&MagazineCore<R, S>)) {
        self.core().rebind(change);
    }

    /// See [`MagazineCore::with_all_stopped`].
    pub(crate) fn with_all_stopped<T>(&self, look: impl FnOnce(&[R]) -> T) -> T {
        threads::with_forks_blocked(|| self.core().with_all_stopped(look))
    }

    /// See [`MagazineCore::disable_caching`].
    pub(crate) fn disable_caching(&self, change: impl FnOnce()) {
        self.core().disable_caching(change);
    }

    /// See [`MagazineCore::enable_caching`].
    pub(crate) fn enable_caching(&self, max_cached_bytes: u64) {
        self.core().enable_caching(max_cached_bytes);
    }

    /// How often [`reclaim`](Self::reclaim) was called.
    pub(crate) fn reclaims(&self) -> u64 {
        self.core().reclaims()
    }

    /// The most bytes that may be stranded; `u64::MAX` where there is no bound.
    pub(crate) fn max_cached_bytes(&self) -> u64 {
        self.core().max_cached_bytes()
    }

    /// Another bound from now on. What is stranded beyond it stays until it is taken.
    pub(crate) fn set_max_cached_bytes(&self, bytes: u64) {
        self.core().set_max_cached_bytes(bytes);
    }

    /// See [`MagazineCore::charged`].
    #[inline]
    pub(crate) fn charged(&self) -> u64 {
        self.core().charged()
    }

    /// When the working set's time is over, gives the source back what nobody came for. Slow ways
    /// do it too.
    pub(crate) fn tick(&self) {
        self.core().tick();
    }

    /// What is held, and what has been done. Takes time in proportion to threads × classes.
    pub(crate) fn stats(&self) -> MagazineStats {
        self.core().stats()
    }
}

impl<R: Copy + Send + 'static, S: RoundSource<R>> Drop for Magazines<R, S> {
    fn drop(&mut self) {
        threads::unregister_instance(self.id, |each| self.core().each_thread(each));
        // SAFETY: the registry knows it no more, and it came from a box.
        unsafe { Box::from_raw(self.core.as_ptr()) }.close();
    }
}
