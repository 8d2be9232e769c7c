//! *Magazines*: one instance of the magazine layer: classes × threads.

use std::ptr::NonNull;

use super::core::Core;
use super::local::Local;
use super::settings::Settings;
use super::source::Source;
use super::stats::MagazineStats;
use super::threads::{self, Instance, Number};

/// One instance: for each class magazines of threads and a depot, above a source. Independent of all others.
///
/// Classes are numbered from 0; functions that are given another panic. Dropping it drains everything into the source.
pub(crate) struct Magazines<R: Copy + Send + 'static, S: Source<R>> {
    /// Owned. Not a box: the registry has the address too.
    core: NonNull<Core<R, S>>,
    number: Number,
    classes: usize,
}

// SAFETY: the core may be shared between threads, and a round that one has put may be got by another.
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
            let join =
                |thread| self.core().join(thread).map_or(std::ptr::null_mut(), |local| local.as_ptr().cast());
            Local::from_raw(threads::make_cache(self.number, join))
        })
    }

    /// A round: from this thread's magazines, the depot, or the source, which then fills a magazine. `None` if the source has
    /// none.
    #[inline]
    pub(crate) fn get(&self, class: usize) -> Option<R> {
        if let Some(local) = self.local(class) {
            // SAFETY: the cache is this thread's, and has the classes of its instance.
            if let Some(round) = unsafe { local.get(class) } {
                return Some(round);
            }
        }
        self.get_slowly(class, true)
    }

    /// A round from this thread's magazines or the depot.
    #[inline]
    pub(crate) fn get_cached(&self, class: usize) -> Option<R> {
        if let Some(local) = self.local(class) {
            // SAFETY: as in `get`.
            if let Some(round) = unsafe { local.get(class) } {
                return Some(round);
            }
        }
        self.get_slowly(class, false)
    }

    #[cold]
    #[inline(never)]
    fn get_slowly(&self, class: usize, refill: bool) -> Option<R> {
        // Every operation comes here where the cache is not near or the owner makes fences.
        if let Some(local) = self.any_local(class) {
            // SAFETY: as in `get`.
            if let Some(round) = unsafe { local.get_patiently(class) } {
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
            // SAFETY: as in `get`.
            if unsafe { local.put(class, round) } {
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
            // SAFETY: as in `get`.
            if unsafe { local.put_patiently(class, round) } {
                return;
            }
        }
        self.core().put(self.local_or_new(), class, round);
    }

    /// Appends up to `want` rounds: fewer only if there are no more.
    pub(crate) fn get_batch(&self, class: usize, want: usize, out: &mut Vec<R>) {
        self.core().get_batch(self.local_or_new(), class, want, out);
    }

    /// Takes all rounds that are there.
    pub(crate) fn put_batch(&self, class: usize, rounds: &mut Vec<R>) {
        self.core().put_batch(self.local_or_new(), class, rounds);
    }

    /// Gives the source back all that any thread or the depot had when it was called. From any thread. Stops all
    /// threads that use the instance for some microseconds. Where the kernel has begun to refuse barriers since the
    /// process started, threads that have not used the instance since are left out this time.
    pub(crate) fn trim(&self) {
        self.core().trim();
    }

    /// Whether any cache may hold a round. Never false when one does, as far as this thread can know. One load.
    #[inline]
    pub(crate) fn may_hold(&self) -> bool {
        self.core().may_hold()
    }

    /// When the working set's time is over, gives the source back what nobody came for. Slow ways do it too.
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
