//! *Magazines*: one instance of the magazine layer: classes × threads.

use std::ptr::NonNull;

use super::core::Core;
use super::local::Local;
use super::settings::Settings;
use super::source::Source;
use super::stats::MagazineStats;
use super::threads::{self, Instance, Number};

/// One instance: for each class magazines of threads and a depot, above a source. Independent of
/// all others.
///
/// Classes are numbered from 0; functions that are given another panic. Dropping it drains
/// everything into the source.
pub(crate) struct Magazines<R: Copy + Send + 'static, S: Source<R>> {
    /// Owned. Not a box: the registry has the address too.
    core: NonNull<Core<R, S>>,
    number: Number,
    classes: usize,
}

// SAFETY: the core may be shared between threads, and a round that one has put may be got by
// another.
unsafe impl<R: Copy + Send + 'static, S: Source<R>> Send for Magazines<R, S> {}
// SAFETY: as above.
unsafe impl<R: Copy + Send + 'static, S: Source<R>> Sync for Magazines<R, S> {}

impl<R: Copy + Send + 'static, S: Source<R>> Instance for Core<R, S> {
    unsafe fn retire(&self, cache: *mut ()) {
        if let Some(local) = Local::from_raw(cache) {
            // SAFETY: the caller's promise.
            unsafe { self.retire(local) };
        }
    }

    fn before_fork(&self) {
        self.before_fork();
    }

    unsafe fn after_fork(&self) {
        // SAFETY: the caller's promise.
        unsafe { self.after_fork() };
    }

    unsafe fn after_fork_in_child(&self, thread: *const ()) {
        // SAFETY: the caller's promise.
        unsafe { self.after_fork_in_child(thread) };
    }
}

impl<R: Copy + Send + 'static, S: Source<R>> Magazines<R, S> {
    /// An instance that holds nothing yet.
    pub(crate) fn new(source: S, settings: Settings) -> Self {
        let classes = settings.classes;
        let core = NonNull::from(Box::leak(Box::new(Core::new(source, settings))));
        // SAFETY: the core stays where it is until `drop` has withdrawn it.
        let number = unsafe { threads::enroll(core) };
        Magazines { core, number, classes }
    }

    #[inline(always)]
    fn core(&self) -> &Core<R, S> {
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
    fn local(&self, class: usize) -> Option<Local<R>> {
        if class < self.classes { Local::from_raw(threads::near_cache(self.number)) } else { None }
    }

    /// This thread's cache, near or not, if it has one and the class is one of ours.
    fn any_local(&self, class: usize) -> Option<Local<R>> {
        if class < self.classes { Local::from_raw(threads::cache(self.number)) } else { None }
    }

    /// This thread's cache, made if it must; `None` if it cannot have one.
    fn local_or_new(&self) -> Option<Local<R>> {
        Local::from_raw(threads::cache(self.number)).or_else(|| {
            let join = |thread| {
                self.core().join(thread).map_or(std::ptr::null_mut(), |local| local.as_ptr().cast())
            };
            Local::from_raw(threads::make_cache(self.number, join))
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
        self.get_slowly(class, true)
    }

    /// A round from this thread's magazines or the depot.
    #[inline]
    pub(crate) fn get_cached(&self, class: usize) -> Option<R> {
        if let Some(round) = self.get_loaded(class) {
            return Some(round);
        }
        self.get_slowly(class, false)
    }

    #[cold]
    #[inline(never)]
    fn get_slowly(&self, class: usize, refill: bool) -> Option<R> {
        // Every operation comes here where the cache is not near or the owner makes fences.
        if let Some(local) = self.any_local(class) {
            // SAFETY: as in `get_loaded`.
            if let Some(round) = unsafe { local.get_patiently(class, S::TRACKED) } {
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
        self.put_slowly(class, round);
    }

    #[cold]
    #[inline(never)]
    fn put_slowly(&self, class: usize, round: R) {
        // As in `get_slowly`.
        if let Some(local) = self.any_local(class) {
            // SAFETY: as in `get_loaded`.
            if unsafe { local.put_patiently(class, round, S::TRACKED) } {
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
    pub(crate) fn still<T>(&self, look: impl FnOnce() -> T) -> Option<T> {
        self.core().still(look)
    }

    /// See [`Core::free_at_most`].
    #[inline]
    pub(crate) fn free_at_most(&self, free: impl Fn() -> u64) -> Option<u64> {
        self.core().free_at_most(free)
    }

    /// See [`Core::nothing_cached_alone`].
    #[inline(always)]
    pub(crate) fn nothing_cached_alone(
        &self,
        classes: impl FnOnce() -> usize,
        and: impl FnOnce() -> bool,
    ) -> bool {
        self.core().nothing_cached_alone(
            Local::from_raw(threads::near_cache(self.number)),
            classes,
            and,
        )
    }

    /// See [`Core::is_empty_handed`].
    pub(crate) fn is_empty_handed(&self, classes: usize) -> bool {
        Core::<R, S>::is_empty_handed(Local::from_raw(threads::cache(self.number)), classes)
    }

    /// See [`Core::nothing_cached`].
    pub(crate) fn nothing_cached(
        &self,
        classes: impl Fn() -> usize,
        and: impl FnMut() -> bool,
    ) -> bool {
        self.core().nothing_cached(classes, and)
    }

    /// See [`Core::reap`].
    pub(crate) fn reap<T>(&self, retry: impl FnOnce() -> T) -> T {
        self.core().reap(retry)
    }

    /// See [`Core::rebind`].
    pub(crate) fn rebind(&self, change: impl FnOnce(&Core<R, S>)) {
        self.core().rebind(change);
    }

    /// See [`Core::frozen`].
    pub(crate) fn frozen<T>(&self, look: impl FnOnce(&[R]) -> T) -> T {
        threads::while_nobody_forks(|| self.core().frozen(look))
    }

    /// See [`Core::shut`].
    pub(crate) fn shut(&self, change: impl FnOnce()) {
        self.core().shut(change);
    }

    /// See [`Core::open`].
    pub(crate) fn open(&self, stranded_bytes: u64) {
        self.core().open(stranded_bytes);
    }

    /// How often [`reap`](Self::reap) was called.
    pub(crate) fn reclaims(&self) -> u64 {
        self.core().reclaims()
    }

    /// The most bytes that may be stranded; `u64::MAX` where there is no bound.
    pub(crate) fn max_cached_bytes(&self) -> u64 {
        self.core().max_cached_bytes()
    }

    /// Another bound from now on. What is stranded beyond it stays until it is taken.
    pub(crate) fn set_stranded_bound(&self, bytes: u64) {
        self.core().set_stranded_bound(bytes);
    }

    /// See [`Core::charged`].
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

impl<R: Copy + Send + 'static, S: Source<R>> Drop for Magazines<R, S> {
    fn drop(&mut self) {
        threads::withdraw(self.number, |each| self.core().each_thread(each));
        // SAFETY: the registry knows it no more, and it came from a box.
        unsafe { Box::from_raw(self.core.as_ptr()) }.close();
    }
}
