//! *Magazines*: one instance of the magazine layer, classes × threads.

use std::ptr::{self, NonNull};

use super::core::MagazineCore;
use super::settings::MagazineSettings;
use super::source::RoundSource;
use super::stats::MagazineStats;
use super::thread_cache::OwnCache;
use super::threads::{self, InstanceId, RegisteredInstance};

/// One instance of the magazine layer: per-thread magazines and a depot for each class, above a
/// source.
///
/// Instances are independent of each other. Classes are numbered from 0; a function panics if it is
/// passed a class that does not exist. Dropping the instance drains all rounds into the source.
pub(crate) struct Magazines<R: Copy + Send + 'static, S: RoundSource<R>> {
    /// Owned by this value. A raw pointer instead of a box, because the registry of threads also
    /// holds the address.
    core: NonNull<MagazineCore<R, S>>,
    id: InstanceId,
    classes: usize,
}

// SAFETY: the core can be shared between threads, and a round that one thread puts can be taken by
// another thread.
unsafe impl<R: Copy + Send + 'static, S: RoundSource<R>> Send for Magazines<R, S> {}
// SAFETY: as for `Send`.
unsafe impl<R: Copy + Send + 'static, S: RoundSource<R>> Sync for Magazines<R, S> {}

impl<R: Copy + Send + 'static, S: RoundSource<R>> RegisteredInstance for MagazineCore<R, S> {
    unsafe fn retire(&self, cache: *mut ()) {
        // SAFETY: the trait requires that the cache was made for the calling thread, and that the
        // thread's table does not have it any more, so no other `OwnCache` of it is made.
        if let Some(own) = unsafe { OwnCache::from_raw(cache) } {
            // SAFETY: the trait requires that the cache came from this instance. The thread cannot
            // find it any more.
            unsafe { self.retire(own) };
        }
    }

    fn prefork(&self) {
        self.prefork();
    }

    unsafe fn postfork(&self) {
        // SAFETY: the trait requires a call of `prefork` before each of this one.
        unsafe { self.postfork() };
    }

    unsafe fn postfork_child(&self, thread: *const ()) {
        // SAFETY: the trait requires that the process has only this thread; it is inside the
        // registry and in no cache.
        unsafe { self.postfork_child(thread) };
    }
}

impl<R: Copy + Send + 'static, S: RoundSource<R>> Magazines<R, S> {
    /// Makes an instance that holds no rounds.
    pub(crate) fn new(source: S, settings: MagazineSettings) -> Self {
        let classes = settings.classes;
        let core = NonNull::from(Box::leak(Box::new(MagazineCore::new(source, settings))));
        // SAFETY: the core stays at its address until `drop` has unregistered it, and it is `Sync`.
        let id = unsafe { threads::register_instance(core) };
        Magazines { core, id, classes }
    }

    #[inline(always)]
    fn core(&self) -> &MagazineCore<R, S> {
        // SAFETY: `self` owns the core until `drop`.
        unsafe { self.core.as_ref() }
    }

    /// Returns the source of the rounds.
    pub(crate) fn source(&self) -> &S {
        self.core().source()
    }

    /// Returns the number of classes.
    #[inline(always)]
    pub(crate) fn classes(&self) -> usize {
        self.classes
    }

    /// Returns the calling thread's cache if its table entry is near and the class exists.
    #[inline(always)]
    fn local(&self, class: usize) -> Option<OwnCache<'_, R>> {
        if class < self.classes { self.near_local() } else { None }
    }

    /// Returns the calling thread's cache if its table entry is near.
    #[inline(always)]
    fn near_local(&self) -> Option<OwnCache<'_, R>> {
        // SAFETY: the entry is null, or a cache that `join` of this instance made for this thread.
        // It lives until the thread ends or `self` is dropped. No code of this layer uses the
        // instance under the owner's lock; see `put_each` for the code that callers pass in.
        unsafe { OwnCache::from_raw(threads::near_cache(self.id)) }
    }

    /// Returns the calling thread's cache, near or far, if it has one.
    fn any_local(&self) -> Option<OwnCache<'_, R>> {
        // SAFETY: as in `near_local`.
        unsafe { OwnCache::from_raw(threads::cache(self.id)) }
    }

    /// Returns the calling thread's cache and creates it if needed; `None` if the thread cannot
    /// have one.
    fn local_or_new(&self) -> Option<OwnCache<'_, R>> {
        self.any_local().or_else(|| {
            let join =
                |thread| self.core().join(thread).map_or(ptr::null_mut(), |it| it.as_ptr().cast());
            // SAFETY: `join` makes a cache of the core that was registered under this id. The rest
            // is as in `near_local`.
            unsafe { OwnCache::from_raw(threads::make_cache(self.id, join)) }
        })
    }

    /// Takes a round from the calling thread's loaded magazine.
    #[inline(always)]
    pub(crate) fn get_loaded(&self, class: usize) -> Option<R> {
        // SAFETY: the class exists, and a cache has all classes of its instance.
        self.local(class).and_then(|mut local| unsafe { local.get(class, S::TRACKED) })
    }

    /// Takes a round from the calling thread's magazines, from the depot, or from the source, which
    /// then also fills a magazine. Returns `None` if the source has no round.
    #[inline]
    pub(crate) fn get(&self, class: usize) -> Option<R> {
        if let Some(round) = self.get_loaded(class) {
            return Some(round);
        }
        self.get_slow(class, true)
    }

    /// Takes a round from the calling thread's magazines or from the depot.
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
        // Every operation takes this path if the cache is far or the owner has to make fences.
        if class < self.classes
            && let Some(mut local) = self.any_local()
        {
            // SAFETY: as in `get_loaded`.
            if let Some(round) = unsafe { local.get_waiting(class, S::TRACKED) } {
                return Some(round);
            }
        }
        // A thread that finds nothing cached anywhere needs no cache of its own.
        if !refill && !self.core().may_hold() {
            return None;
        }
        self.core().get(self.local_or_new().as_mut(), class, refill)
    }

    /// Puts back a round that came from `get` of this class, on any thread.
    #[inline]
    pub(crate) fn put(&self, class: usize, round: R) {
        if let Some(mut local) = self.local(class) {
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
        // The same two cases as in `get_slow`.
        if class < self.classes
            && let Some(mut local) = self.any_local()
        {
            // SAFETY: as in `get_loaded`.
            if unsafe { local.put_waiting(class, round, S::TRACKED) } {
                return;
            }
        }
        self.core().put(self.local_or_new().as_mut(), class, round);
    }

    /// Appends up to `want` rounds to `out`; fewer only if the source has no more.
    pub(crate) fn get_batch(&self, class: usize, want: usize, out: &mut Vec<R>) {
        self.core().get_batch(self.local_or_new(), class, want, out);
    }

    /// Puts back each round that `next` returns.
    ///
    /// # Safety
    ///
    /// `next` does not use this instance: it is called under the owner's lock.
    pub(crate) unsafe fn put_each(&self, class: usize, next: impl FnMut() -> Option<R>) {
        // SAFETY: the caller promises that `next` does not use this instance.
        unsafe { self.core().put_each(self.local_or_new(), class, next) };
    }

    /// Drains every round that a thread or the depot cached at the time of the call into the
    /// source.
    ///
    /// Any thread may call it. It stops all threads that use the instance for some microseconds. If
    /// the kernel started to refuse barriers after the process started, this trim skips threads
    /// that have not used the instance since.
    pub(crate) fn trim(&self) {
        self.core().trim();
    }

    /// Returns false only if no cache holds a round, as far as this thread can know. One load.
    #[inline]
    #[cfg(all(test, not(loom)))]
    pub(crate) fn may_hold(&self) -> bool {
        self.core().may_hold()
    }

    /// Returns the result of `look` if no round moved between caches, depot and source meanwhile.
    pub(crate) fn consistent_read<T>(&self, look: impl FnOnce() -> T) -> Option<T> {
        self.core().consistent_read(look)
    }

    /// See `max_free` of [`MagazineCore::bound`].
    #[inline]
    pub(crate) fn max_free(&self, free: impl Fn() -> u64) -> u64 {
        self.core().bound().max_free(free)
    }

    /// See `max_free_fast` of [`MagazineCore::bound`].
    #[inline(always)]
    pub(crate) fn max_free_fast(&self, free: impl Fn() -> u64) -> u64 {
        self.core().bound().max_free_fast(free)
    }

    /// See [`MagazineCore::nothing_cached_fast`].
    #[inline(always)]
    pub(crate) fn nothing_cached_fast(
        &self,
        classes: impl FnOnce() -> usize,
        and: impl FnOnce() -> bool,
    ) -> bool {
        let own = self.near_local().map(|own| own.shared());
        self.core().nothing_cached_fast(own, classes, and)
    }

    /// See [`MagazineCore::is_own_empty`].
    pub(crate) fn is_local_empty(&self, classes: usize) -> bool {
        MagazineCore::<R, S>::is_own_empty(self.any_local(), classes)
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

    /// See [`MagazineCore::retry`].
    #[inline]
    pub(crate) fn retry<T, E>(
        &self,
        error: E,
        classes: impl Fn() -> usize,
        attempt: impl FnMut() -> Result<T, E>,
    ) -> Result<T, E> {
        self.core().retry(error, classes, attempt)
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
    pub(crate) fn disable_caching(&self, change: impl FnOnce(&MagazineCore<R, S>)) {
        self.core().disable_caching(change);
    }

    /// See [`MagazineCore::enable_caching`].
    pub(crate) fn enable_caching(&self, max_cached_bytes: u64) {
        self.core().enable_caching(max_cached_bytes);
    }

    /// Returns false if caching has cost more than it saved for some time.
    #[inline]
    pub(crate) fn pays_off(&self) -> bool {
        self.core().pays_off()
    }

    /// Makes [`pays_off`](Self::pays_off) true. Returns the puts since the last call.
    pub(crate) fn try_again(&self) -> u32 {
        self.core().try_again()
    }

    /// Returns the number of calls of [`reclaim`](Self::reclaim).
    pub(crate) fn reclaims(&self) -> u64 {
        self.core().reclaims()
    }

    /// Returns the most bytes that may be cached; `u64::MAX` if there is no bound.
    pub(crate) fn max_cached_bytes(&self) -> u64 {
        self.core().bound().max_cached_bytes().unwrap_or(u64::MAX)
    }

    /// Sets the most bytes that may be cached. Rounds beyond a lower bound stay cached until they
    /// are taken.
    pub(crate) fn set_max_cached_bytes(&self, bytes: u64) {
        self.core().set_max_cached_bytes(bytes);
    }

    /// See `charged` of [`MagazineCore::bound`].
    #[inline]
    pub(crate) fn charged(&self) -> u64 {
        self.core().bound().charged()
    }

    /// Drains idle full magazines into the source if the interval of the working set has passed.
    /// Slow paths do it too.
    pub(crate) fn tick(&self) {
        self.core().tick();
    }

    /// Reports the cached rounds and the counters. O(threads × classes).
    pub(crate) fn stats(&self) -> MagazineStats {
        self.core().stats()
    }
}

impl<R: Copy + Send + 'static, S: RoundSource<R>> Drop for Magazines<R, S> {
    fn drop(&mut self) {
        // SAFETY: `&mut self` shows that no thread uses the instance. Its list has the caches that
        // `join` made and that are not retired.
        unsafe { threads::unregister_instance(self.id, |each| self.core().each_thread(each)) };
        // SAFETY: the core came from a box, and the registry, which also had its address, has
        // forgotten it.
        let mut core = unsafe { Box::from_raw(self.core.as_ptr()) };
        // SAFETY: the tables of all threads have forgotten the caches, and `&mut self` shows that
        // no thread uses the instance.
        unsafe { core.close() };
    }
}
