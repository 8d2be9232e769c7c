//! *Threads*: which cache of an instance is that of the running thread.
//!
//! Every instance has a small number, which is used again after its end. Every thread has a table
//! from such numbers to its caches. The first entries are thread-local words, so that for them the
//! fast way is one load; the others are elsewhere, and on the slow way. A table is changed by its
//! thread, or when an instance ends by whoever ends it, under the lock of the registry. An instance
//! ends when nobody uses it; so no thread can meet, under a number, what is left of
//! another instance: the entry is cleared before the number is given away again, and who uses the
//! new instance has heard of it after that.
//!
//! Two thread-locals: the first has no destructor, so that reading it asks for no state and it can
//! be read until the thread is gone; the second has nothing but a destructor, which clears the
//! table. After it, and where memory lacks, there is no cache, and the depot and the source serve
//! the thread directly.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicPtr, Ordering};

use crate::sync::{Mutex, hold_over_fork, release_over_fork};
use crate::sys::{self, Hooks, Stage};

/// What the registry knows of an instance.
///
/// # Safety
///
/// `retire` of a cache that the instance's `join` made, for this thread, whose table has it no
/// more. `postfork…` after `prefork`, in the child with the thread that is left. All under
/// the registry's lock.
pub(super) trait RegisteredInstance {
    unsafe fn retire(&self, cache: *mut ());
    fn prefork(&self);
    unsafe fn postfork(&self);
    unsafe fn postfork_child(&self, thread: *const ());
}

/// The instances by their numbers.
struct Registry {
    instances: Vec<Option<NonNull<dyn RegisteredInstance>>>,
}

// SAFETY: instances are shared between threads as the trait says.
unsafe impl Send for Registry {}

static REGISTRY: Mutex<Registry> = Mutex::new(Registry { instances: Vec::new() });

/// Entries that are thread-local themselves. Neither the table's length nor its address need be
/// loaded for them: that took 0.3 of 3.6 ns from a pair of `get` and `put`. The others' pairs take
/// the slow way and 5.5 ns, where near ones take 3.2.
const NEAR: usize = 32;

/// A thread's table: the entries that are near, and those that are far. Under the registry's lock,
/// but that the thread itself reads entries.
struct ThreadTable {
    near: *const [AtomicPtr<()>; NEAR + 1],
    far: *mut AtomicPtr<()>,
}

/// What the fast way reads.
struct FastTable {
    /// The last one is of no instance.
    near: [AtomicPtr<()>; NEAR + 1],
    /// For the numbers from `NEAR` on.
    far: Cell<*mut AtomicPtr<()>>,
    len: Cell<usize>,
    thread: Cell<*mut ThreadTable>,
    /// No cache is to be made: one is being made, or the registry is at work.
    closed: Cell<bool>,
}

/// Its destructor is the thread's end.
struct ThreadEnd;

thread_local! {
    static FAST_TABLE: FastTable = const {
        FastTable {
            near: [const { AtomicPtr::new(ptr::null_mut()) }; NEAR + 1],
            far: Cell::new(ptr::null_mut()),
            len: Cell::new(0),
            thread: Cell::new(ptr::null_mut()),
            closed: Cell::new(false),
        }
    };
    static THREAD_END: ThreadEnd = const { ThreadEnd };
}

/// The number of an instance.
#[derive(Clone, Copy, Debug)]
pub(super) struct InstanceId {
    id: usize,
    /// Its entry among those that are near; that of no instance, which is always null, if it has
    /// none there. So the fast way need not ask. At most `NEAR`.
    near: usize,
}

impl InstanceId {
    fn new(id: usize) -> Self {
        InstanceId { id, near: id.min(NEAR) }
    }
}

/// The running thread's cache under a number, if the entry is near; else, or if there is none,
/// null.
#[inline(always)]
pub(super) fn near_cache(id: InstanceId) -> *mut () {
    // SAFETY: there are `NEAR + 1` entries.
    // Relaxed: this thread has written it, or nobody can ask for it now.
    FAST_TABLE.with(|fast| unsafe { fast.near.get_unchecked(id.near) }.load(Ordering::Relaxed))
}

/// The running thread's cache under a number; null if there is none.
pub(super) fn cache(id: InstanceId) -> *mut () {
    // Relaxed: as in `near_cache`.
    FAST_TABLE.with(|fast| {
        fast.entry(id.id).map_or(ptr::null_mut(), |entry| entry.load(Ordering::Relaxed))
    })
}

/// Runs while no cache can be made by this thread; `None` if that is so already.
fn closed<T>(run: impl FnOnce(&FastTable) -> T) -> Option<T> {
    FAST_TABLE.with(|fast| {
        if fast.closed.replace(true) {
            return None;
        }
        let done = run(fast);
        fast.closed.set(false);
        Some(done)
    })
}

/// Makes the running thread's cache under a number, by `join`, which is given the thread; null if
/// it cannot have one.
pub(super) fn make_cache(
    InstanceId { id, .. }: InstanceId,
    join: impl FnOnce(*const ()) -> *mut (),
) -> *mut () {
    let made = closed(|fast| {
        // A thread whose end has been could not end it again.
        THREAD_END.try_with(|_| ()).ok()?;
        let _registry = REGISTRY.lock();
        fast.reach(id)?;
        let cache = join(fast.thread.get().cast_const().cast());
        // Relaxed: for this thread.
        fast.entry(id)?.store(cache, Ordering::Relaxed);
        Some(cache)
    });
    made.flatten().unwrap_or(ptr::null_mut())
}

impl FastTable {
    /// The entry of a number, if the table reaches it.
    fn entry(&self, id: usize) -> Option<&AtomicPtr<()>> {
        match id.checked_sub(NEAR) {
            None => self.near.get(id),
            // SAFETY: so many entries are there, and this thread alone replaces them.
            Some(far) => (far < self.len.get()).then(|| unsafe { &*self.far.get().add(far) }),
        }
    }

    /// Has the table reach a number; `None` if the system has no memory. Under the registry's lock.
    fn reach(&self, id: usize) -> Option<()> {
        if self.thread.get().is_null() {
            // SAFETY: a thread has a size.
            let thread = NonNull::new(unsafe { System.alloc(Layout::new::<ThreadTable>()) })?
                .cast::<ThreadTable>();
            // SAFETY: it is new.
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
        // SAFETY: it has 16 entries at least. All zeros are null entries.
        let far =
            NonNull::new(unsafe { System.alloc_zeroed(layout) })?.cast::<AtomicPtr<()>>().as_ptr();
        // SAFETY: the old table has so many entries, the new one more.
        unsafe { ptr::copy_nonoverlapping(self.far.get().cast_const(), far, self.len.get()) };
        free_table(self.far.replace(far), self.len.replace(len));
        // SAFETY: the thread's own, under the lock.
        unsafe { self.thread.get().write(ThreadTable { near: &raw const self.near, far }) };
        Some(())
    }
}

impl ThreadTable {
    /// The entry of a number that the table reaches. Under the registry's lock, as long as the
    /// thread is there.
    ///
    /// # Safety
    ///
    /// The table reaches the number.
    unsafe fn entry(&self, id: usize) -> *const AtomicPtr<()> {
        match id.checked_sub(NEAR) {
            None => self.near.cast::<AtomicPtr<()>>().wrapping_add(id),
            Some(far) => self.far.wrapping_add(far).cast_const(),
        }
    }
}

fn free_table(table: *mut AtomicPtr<()>, len: usize) {
    if let (false, Ok(layout)) = (table.is_null(), Layout::array::<AtomicPtr<()>>(len)) {
        // SAFETY: it came from there with this layout.
        unsafe { System.dealloc(table.cast(), layout) };
    }
}

impl Drop for ThreadEnd {
    fn drop(&mut self) {
        FAST_TABLE.with(|fast| {
            // For good: the thread has no cache any more.
            fast.closed.set(true);
            let registry = REGISTRY.lock();
            // At once, so that what instances free at their threads' ends finds no cache that is
            // about to end. Relaxed: under the lock.
            let near = fast
                .near
                .each_ref()
                .map(|entry| AtomicPtr::new(entry.swap(ptr::null_mut(), Ordering::Relaxed)));
            let (far, len) = (fast.far.replace(ptr::null_mut()), fast.len.replace(0));
            let table = ThreadTable { near: &raw const near, far };
            for (id, instance) in registry.instances.iter().enumerate().take(NEAR + len) {
                // SAFETY: the table reaches so far. Relaxed: changed under the lock.
                let cache = unsafe { (*table.entry(id)).load(Ordering::Relaxed) };
                if let (false, Some(instance)) = (cache.is_null(), instance) {
                    // SAFETY: an instance in the registry is there; its cache is this thread's,
                    // which has forgotten it.
                    unsafe { instance.as_ref().retire(cache) };
                }
            }
            free_table(far, len);
            let thread = fast.thread.replace(ptr::null_mut());
            if !thread.is_null() {
                // SAFETY: it came from there, and no cache names it any more.
                unsafe { System.dealloc(thread.cast(), Layout::new::<ThreadTable>()) };
            }
        });
    }
}

/// Gives an instance a number.
///
/// # Safety
///
/// The instance stays where it is until `unregister_instance`.
pub(super) unsafe fn register_instance(instance: NonNull<dyn RegisteredInstance>) -> InstanceId {
    let register_instance = || {
        // Without it, forks while other threads are at work harm the child; nothing else does.
        let _ = sys::around_fork(Stage::Threads, THREADS)
            .and_then(|()| sys::around_fork(Stage::Caches, CACHES));
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
    // What the list asks of a global allocator that is built on this layer must not come back here.
    FAST_TABLE.with(|fast| {
        let before = fast.closed.replace(true);
        let id = register_instance();
        fast.closed.set(before);
        InstanceId::new(id)
    })
}

/// Takes a number back. `each_thread` gives the threads that have a cache of the instance; their
/// entries are cleared.
pub(super) fn unregister_instance(
    InstanceId { id, .. }: InstanceId,
    each_thread: impl FnOnce(&mut dyn FnMut(*const ())),
) {
    let mut registry = REGISTRY.lock();
    each_thread(&mut |thread| {
        let thread: *const ThreadTable = thread.cast();
        // SAFETY: a thread that a cache names is there as long as the cache is in the instance's
        // list, and its table reaches every number that it has a cache for. Relaxed: nobody
        // uses the entry now; see the head.
        unsafe { (*(*thread).entry(id)).store(ptr::null_mut(), Ordering::Relaxed) };
    });
    registry.instances[id] = None;
}

/// Runs while nobody forks and no cache is made: what `run` asks for under an instance's locks may
/// come from another instance, and who forks would wait for the first with the second in his hands.
pub(super) fn with_forks_blocked<T>(run: impl FnOnce() -> T) -> T {
    FAST_TABLE.with(|fast| {
        let before = fast.closed.replace(true);
        let registry = REGISTRY.lock();
        let done = run();
        drop(registry);
        fast.closed.set(before);
        done
    })
}

/// The registry's lock comes before those of spaces: a thread that ends gives ranges back under it.
const THREADS: Hooks = Hooks {
    prefork: || hold_over_fork(&REGISTRY),
    postfork: || release_over_fork(&REGISTRY),
    postfork_child: postfork_child_instances,
};

const CACHES: Hooks =
    Hooks { prefork: prefork_instances, postfork: postfork_instances, postfork_child: || () };

/// The instances that are in the registry.
///
/// # Safety
///
/// This thread has the registry's lock, or is the copy of the one that has it.
unsafe fn instances() -> impl Iterator<Item = NonNull<dyn RegisteredInstance>> {
    // SAFETY: the caller's promise.
    unsafe { &*REGISTRY.data_ptr() }.instances.iter().flatten().copied()
}

fn prefork_instances() {
    // SAFETY: the stage before took the lock. An instance in the registry is there.
    unsafe { instances().for_each(|instance| instance.as_ref().prefork()) };
}

fn postfork_instances() {
    // SAFETY: as above, in this thread or in the one that it was forked from.
    unsafe { instances().for_each(|instance| instance.as_ref().postfork()) };
}

fn postfork_child_instances() {
    FAST_TABLE.with(|fast| {
        let before = fast.closed.replace(true);
        let registry = REGISTRY.lock();
        for instance in registry.instances.iter().flatten() {
            // SAFETY: a forked child has one thread.
            unsafe { instance.as_ref().postfork_child(fast.thread.get().cast_const().cast()) };
        }
        fast.closed.set(before);
    });
}
