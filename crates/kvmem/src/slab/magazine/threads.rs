//! *Threads*: finds the running thread's cache of an instance.
//!
//! Every instance has a small id, which is used again after the instance ends. Every thread has a
//! table from ids to its caches. The first entries are thread-local words, so the fast path needs
//! one load for them; the other entries are in a separate table, which only the slow path reads. A
//! thread changes its own table; a thread that ends an instance changes the tables of all threads,
//! under the lock of the registry. An instance ends only when no thread uses it. So a thread never
//! finds a cache of an earlier instance under an id: the entry is cleared before the id is assigned
//! again, and a thread that uses the new instance synchronizes with its creation first.
//!
//! There are two thread-locals. The first has no destructor, so reading it checks no state, and it
//! can be read until the thread is gone. The second has nothing but a destructor, which clears the
//! table. After that, and if memory is exhausted, the thread has no cache, and the depot and the
//! source serve it directly.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicPtr, Ordering};

use crate::sync::{Mutex, hold_over_fork, per_process, per_thread, release_over_fork};
use crate::sys::{self, ForkHooks, ForkStage};

/// The functions of an instance that the registry calls, all under the registry's lock.
pub(crate) trait RegisteredInstance {
    /// Ends a cache of the calling thread.
    ///
    /// # Safety
    ///
    /// [`make_cache`] stored the cache for this instance and the calling thread, whose table does
    /// not have it any more.
    unsafe fn retire(&self, cache: *mut ());

    /// Takes every lock that a fork must not find held.
    fn prefork(&self);

    /// Releases these locks, in the parent and in the child.
    ///
    /// # Safety
    ///
    /// This thread, or the thread that forked it, has called `prefork`, and `postfork` was not
    /// called since.
    unsafe fn postfork(&self);

    /// Repairs the instance in the child, after `postfork`.
    ///
    /// # Safety
    ///
    /// The process has only this thread, whose identity is `thread`, and it uses no cache now.
    unsafe fn postfork_child(&self, thread: *const ());
}

/// The instances by their ids.
struct Registry {
    instances: Vec<Option<NonNull<dyn RegisteredInstance>>>,
}

// SAFETY: an instance stays at its address until it is unregistered (see `register_instance`). All
// threads call the trait's functions under the registry's lock, and instances are `Sync`.
unsafe impl Send for Registry {}

per_process! {
    static REGISTRY: Mutex<Registry> = Mutex::new(Registry { instances: Vec::new() });
}

/// The number of entries that are thread-local themselves. Neither the table's length nor its
/// address is loaded for them: that saved 0.3 of 3.6 ns for a pair of `get` and `put`. A pair takes
/// 3.2 ns with a near entry, and 5.5 ns with a far one, which takes the slow path.
const NEAR: usize = 32;

/// A thread's table: its near and its far entries. Accessed under the registry's lock, except that
/// the thread itself reads entries without it.
struct ThreadTable {
    near: *const [AtomicPtr<()>; NEAR + 1],
    far: *mut AtomicPtr<()>,
}

/// The part of a thread's table that the fast path reads.
struct FastTable {
    /// The last entry belongs to no instance and is always null.
    near: [AtomicPtr<()>; NEAR + 1],
    /// The entries for ids from `NEAR` on.
    far: Cell<*mut AtomicPtr<()>>,
    len: Cell<usize>,
    thread: Cell<*mut ThreadTable>,
    /// The thread must not create a cache: it is creating one, or it is inside the registry.
    no_new_caches: Cell<bool>,
}

/// A value whose destructor marks the end of the thread.
struct ThreadEnd;

per_thread! {
    static FAST_TABLE: FastTable = const {
        FastTable {
            near: [const { AtomicPtr::new(ptr::null_mut()) }; NEAR + 1],
            far: Cell::new(ptr::null_mut()),
            len: Cell::new(0),
            thread: Cell::new(ptr::null_mut()),
            no_new_caches: Cell::new(false),
        }
    };
    static THREAD_END: ThreadEnd = const { ThreadEnd };
}

/// The id of an instance.
#[derive(Clone, Copy, Debug)]
pub(crate) struct InstanceId {
    id: usize,
    /// The index of its near entry, at most `NEAR`. An instance without a near entry has the last
    /// one, which is always null, so the fast path need not test for it.
    near: usize,
}

impl InstanceId {
    fn new(id: usize) -> Self {
        InstanceId { id, near: id.min(NEAR) }
    }
}

/// Returns the running thread's cache of an instance; null if it has none or its entry is far.
#[inline(always)]
pub(crate) fn near_cache(id: InstanceId) -> *mut () {
    // SAFETY: there are `NEAR + 1` entries. Relaxed: this thread wrote the entry, or the instance
    // that cleared it is no longer used.
    FAST_TABLE.with(|fast| unsafe { fast.near.get_unchecked(id.near) }.load(Ordering::Relaxed))
}

/// Returns the running thread's cache of an instance; null if it has none.
pub(crate) fn cache(id: InstanceId) -> *mut () {
    // Relaxed: as in `near_cache`.
    FAST_TABLE.with(|fast| {
        fast.entry(id.id).map_or(ptr::null_mut(), |entry| entry.load(Ordering::Relaxed))
    })
}

/// Runs `run` while this thread cannot create caches; returns `None` if it could not before.
fn without_new_caches<T>(run: impl FnOnce(&FastTable) -> T) -> Option<T> {
    FAST_TABLE.with(|fast| {
        if fast.no_new_caches.replace(true) {
            return None;
        }
        let done = run(fast);
        fast.no_new_caches.set(false);
        Some(done)
    })
}

/// Creates the running thread's cache of an instance. `join` makes it and receives the thread.
/// Returns null if the thread cannot have a cache.
///
/// # Safety
///
/// The id is that of a registered instance, and `join` returns null or a cache of it that
/// [`RegisteredInstance::retire`] accepts.
pub(crate) unsafe fn make_cache(
    InstanceId { id, .. }: InstanceId,
    join: impl FnOnce(*const ()) -> *mut (),
) -> *mut () {
    let made = without_new_caches(|fast| {
        // A thread that has run its end could not end another cache.
        THREAD_END.try_with(|_| ()).ok()?;
        let _registry = REGISTRY.lock();
        fast.reach(id)?;
        let cache = join(fast.thread.get().cast_const().cast());
        // Relaxed: only this thread reads it.
        fast.entry(id)?.store(cache, Ordering::Relaxed);
        Some(cache)
    });
    made.flatten().unwrap_or(ptr::null_mut())
}

impl FastTable {
    /// Returns the entry of an id, if the table is long enough.
    fn entry(&self, id: usize) -> Option<&AtomicPtr<()>> {
        match id.checked_sub(NEAR) {
            None => self.near.get(id),
            // SAFETY: the table has `len` entries, and only this thread replaces it.
            Some(far) => (far < self.len.get()).then(|| unsafe { &*self.far.get().add(far) }),
        }
    }

    /// Extends the table to an id; `None` if the system has no memory. Called under the registry's
    /// lock.
    fn reach(&self, id: usize) -> Option<()> {
        if self.thread.get().is_null() {
            // SAFETY: the layout is not empty.
            let thread = NonNull::new(unsafe { System.alloc(Layout::new::<ThreadTable>()) })?
                .cast::<ThreadTable>();
            // SAFETY: the block is new and has the layout of a table.
            unsafe {
                thread.write(ThreadTable { near: &raw const self.near, far: ptr::null_mut() })
            };
            self.thread.set(thread.as_ptr());
        }
        if self.entry(id).is_some() {
            return Some(());
        }
        let len = (id - NEAR).checked_add(1)?.checked_next_power_of_two()?.max(16);
        let layout = Layout::array::<AtomicPtr<()>>(len).ok()?;
        // SAFETY: the layout has at least 16 entries. Zero bytes are null entries.
        let far =
            NonNull::new(unsafe { System.alloc_zeroed(layout) })?.cast::<AtomicPtr<()>>().as_ptr();
        // SAFETY: the old table has `len` entries, the new one more, and the two are different
        // blocks. Other threads change entries under the registry's lock only, which this thread
        // holds.
        unsafe { ptr::copy_nonoverlapping(self.far.get().cast_const(), far, self.len.get()) };
        // SAFETY: an earlier call allocated the old table with this length. The thread has replaced
        // it just now, and other threads read its address under the registry's lock only; the
        // next statement corrects it there.
        unsafe { free_table(self.far.replace(far), self.len.replace(len)) };
        // SAFETY: the block was made above or by an earlier call and lives as long as the thread.
        // Other threads use it under the registry's lock only, which this thread holds.
        unsafe { self.thread.get().write(ThreadTable { near: &raw const self.near, far }) };
        Some(())
    }
}

impl ThreadTable {
    /// Returns the entry of an id. Called under the registry's lock while the thread exists.
    ///
    /// # Safety
    ///
    /// The table is long enough for the id.
    unsafe fn entry(&self, id: usize) -> *const AtomicPtr<()> {
        match id.checked_sub(NEAR) {
            None => self.near.cast::<AtomicPtr<()>>().wrapping_add(id),
            Some(far) => self.far.wrapping_add(far).cast_const(),
        }
    }
}

/// Frees a table of far entries.
///
/// # Safety
///
/// The table is null, or `FastTable::reach` allocated it with `len` entries and no code uses it any
/// more.
unsafe fn free_table(table: *mut AtomicPtr<()>, len: usize) {
    if let (false, Ok(layout)) = (table.is_null(), Layout::array::<AtomicPtr<()>>(len)) {
        // SAFETY: the caller promises that `reach` allocated the table, with the layout of `len`
        // entries, and that it is not used any more.
        unsafe { System.dealloc(table.cast(), layout) };
    }
}

impl Drop for ThreadEnd {
    fn drop(&mut self) {
        FAST_TABLE.with(|fast| {
            // For good: this thread creates no more caches.
            fast.no_new_caches.set(true);
            let registry = REGISTRY.lock();
            // Clears all entries first, so objects that instances free at their threads' ends do
            // not find a cache that is about to end. Relaxed: under the lock.
            let near = fast
                .near
                .each_ref()
                .map(|entry| AtomicPtr::new(entry.swap(ptr::null_mut(), Ordering::Relaxed)));
            let (far, len) = (fast.far.replace(ptr::null_mut()), fast.len.replace(0));
            let table = ThreadTable { near: &raw const near, far };
            for (id, instance) in registry.instances.iter().enumerate().take(NEAR + len) {
                // SAFETY: the loop covers only ids that the table has. Relaxed: changed under the
                // lock.
                let cache = unsafe { (*table.entry(id)).load(Ordering::Relaxed) };
                if let (false, Some(instance)) = (cache.is_null(), instance) {
                    // SAFETY: a registered instance exists; the cache belongs to this thread, whose
                    // table no longer has it.
                    unsafe { instance.as_ref().retire(cache) };
                }
            }
            // SAFETY: `reach` allocated the table with this length. The thread does not have it any
            // more, and the caches by which other threads find it are retired.
            unsafe { free_table(far, len) };
            let thread = fast.thread.replace(ptr::null_mut());
            if !thread.is_null() {
                // SAFETY: `reach` allocated it with this layout, and no cache refers to it any
                // more.
                unsafe { System.dealloc(thread.cast(), Layout::new::<ThreadTable>()) };
            }
        });
    }
}

/// Registers an instance and assigns an id.
///
/// # Safety
///
/// The instance stays at its address until `unregister_instance`. It is `Sync`.
pub(crate) unsafe fn register_instance(instance: NonNull<dyn RegisteredInstance>) -> InstanceId {
    let register_instance = || {
        // If this fails, a fork while other threads are at work harms the child, and nothing else.
        let _ = sys::around_fork(ForkStage::Threads, THREADS)
            .and_then(|()| sys::around_fork(ForkStage::Caches, CACHES));
        let mut registry = REGISTRY.lock();
        match registry.instances.iter().position(Option::is_none) {
            Some(id) => {
                registry.instances[id] = Some(instance);
                id
            }
            None => {
                registry.instances.push(Some(instance));
                registry.instances.len() - 1
            }
        }
    };
    // The list may allocate from a global allocator that is built on this layer; that request must
    // not create a cache.
    FAST_TABLE.with(|fast| {
        let before = fast.no_new_caches.replace(true);
        let id = register_instance();
        fast.no_new_caches.set(before);
        InstanceId::new(id)
    })
}

/// Withdraws an id. `each_thread` calls its argument with each thread that has a cache of the
/// instance; their entries are cleared.
///
/// # Safety
///
/// The id is that of a registered instance that no thread uses any more. The threads are those that
/// `make_cache` passed to `join`, and their caches are not retired.
pub(crate) unsafe fn unregister_instance(
    InstanceId { id, .. }: InstanceId,
    each_thread: impl FnOnce(&mut dyn FnMut(*const ())),
) {
    let mut registry = REGISTRY.lock();
    each_thread(&mut |thread| {
        let thread: *const ThreadTable = thread.cast();
        // SAFETY: the caller promises that the thread has a cache that is not retired. So the
        // thread has not ended, its table is alive, and `reach` has made it long enough for the id.
        // Relaxed: no thread uses the entry now; see the head of the module.
        unsafe { (*(*thread).entry(id)).store(ptr::null_mut(), Ordering::Relaxed) };
    });
    registry.instances[id] = None;
}

/// Runs `run` while no thread can fork or create a cache. Under an instance's locks, `run` may
/// allocate from another instance; a forking thread that holds the second one's locks would wait
/// for the first one's.
pub(crate) fn with_forks_blocked<T>(run: impl FnOnce() -> T) -> T {
    FAST_TABLE.with(|fast| {
        let before = fast.no_new_caches.replace(true);
        let registry = REGISTRY.lock();
        let done = run();
        drop(registry);
        fast.no_new_caches.set(before);
        done
    })
}

/// The registry's lock comes before the locks of spaces: a thread that ends returns ranges under
/// it.
const THREADS: ForkHooks = ForkHooks {
    prefork: || hold_over_fork(&REGISTRY),
    postfork: || release_over_fork(&REGISTRY),
    postfork_child: postfork_child_instances,
};

const CACHES: ForkHooks =
    ForkHooks { prefork: prefork_instances, postfork: postfork_instances, postfork_child: || () };

/// Iterates over the registered instances.
///
/// # Safety
///
/// The calling thread holds the registry's lock, or is the copy of a thread that holds it.
unsafe fn instances() -> impl Iterator<Item = NonNull<dyn RegisteredInstance>> {
    // SAFETY: the caller promises that its thread holds the lock, or is the copy of a thread that
    // does, so no other thread changes the list.
    unsafe { &*REGISTRY.data_ptr() }.instances.iter().flatten().copied()
}

fn prefork_instances() {
    // SAFETY: the stage before took the lock. A registered instance exists.
    unsafe { instances().for_each(|instance| instance.as_ref().prefork()) };
}

fn postfork_instances() {
    // SAFETY: the first stage took the lock, in this thread or in the one that it was forked from.
    // A registered instance exists.
    unsafe { instances().for_each(|instance| instance.as_ref().postfork()) };
}

fn postfork_child_instances() {
    FAST_TABLE.with(|fast| {
        let before = fast.no_new_caches.replace(true);
        let registry = REGISTRY.lock();
        for instance in registry.instances.iter().flatten() {
            // SAFETY: a forked child has one thread.
            unsafe { instance.as_ref().postfork_child(fast.thread.get().cast_const().cast()) };
        }
        fast.no_new_caches.set(before);
    });
}
