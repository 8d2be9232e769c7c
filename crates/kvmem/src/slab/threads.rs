//! *Threads*: which cache of an instance is that of the running thread.
//!
//! Every instance has a small number, which is used again after its end. Every thread has a table from such numbers to
//! its caches. The fast way reads two thread-local words and one entry. A table is changed by its thread, or when
//! an instance ends by whoever ends it, under the lock of the registry. An instance ends when nobody uses it; so no thread can
//! meet, under a number, what is left of another instance: the entry is cleared before the number is given away again,
//! and who uses the new instance has heard of it after that.
//!
//! Two thread-locals: the first has no destructor, so that reading it asks for no state and it can be read
//! until the thread is gone; the second has nothing but a destructor, which clears the table. After it, and
//! where memory lacks, there is no cache, and the depot and the source serve the thread directly.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::ptr::{self, NonNull};
use std::sync::Once;
use std::sync::atomic::{AtomicPtr, Ordering};

use crate::sync::Mutex;
use crate::sys;

/// What the registry knows of an instance.
///
/// # Safety
///
/// `retire` of a cache that the instance's `join` made, for this thread, whose table has it no more. `after_fork…` after
/// `before_fork`, in the child with the thread that is left. All under the registry's lock.
pub(super) trait Instance {
    unsafe fn retire(&self, cache: *mut ());
    fn before_fork(&self);
    unsafe fn after_fork(&self);
    unsafe fn after_fork_in_child(&self, thread: *const ());
}

/// The instances by their numbers.
struct Registry {
    instances: Vec<Option<NonNull<dyn Instance>>>,
}

// SAFETY: instances are shared between threads as the trait says.
unsafe impl Send for Registry {}

static REGISTRY: Mutex<Registry> = Mutex::new(Registry { instances: Vec::new() });
static FORKS: Once = Once::new();

/// A thread's table: of `len` entries. Under the registry's lock, but that the thread itself reads entries.
struct Thread {
    table: *mut AtomicPtr<()>,
    len: usize,
}

/// What the fast way reads.
struct Fast {
    table: Cell<*mut AtomicPtr<()>>,
    len: Cell<usize>,
    thread: Cell<*mut Thread>,
    /// No cache is to be made: one is being made, or the registry is at work.
    closed: Cell<bool>,
}

/// Its destructor is the thread's end.
struct End;

thread_local! {
    static FAST: Fast = const {
        Fast {
            table: Cell::new(ptr::null_mut()),
            len: Cell::new(0),
            thread: Cell::new(ptr::null_mut()),
            closed: Cell::new(false),
        }
    };
    static END: End = const { End };
}

/// The running thread's cache under a number; null if there is none.
#[inline(always)]
pub(super) fn cache(id: usize) -> *mut () {
    FAST.with(|fast| {
        if id >= fast.len.get() {
            return ptr::null_mut();
        }
        // SAFETY: the table has so many entries, and this thread alone replaces it.
        // Relaxed: this thread has written it, or nobody can ask for it now.
        unsafe { (*fast.table.get().add(id)).load(Ordering::Relaxed) }
    })
}

/// Runs while no cache can be made by this thread; `None` if that is so already.
fn closed<T>(run: impl FnOnce(&Fast) -> T) -> Option<T> {
    FAST.with(|fast| {
        if fast.closed.replace(true) {
            return None;
        }
        let done = run(fast);
        fast.closed.set(false);
        Some(done)
    })
}

/// Makes the running thread's cache under a number, by `join`, which is given the thread; null if it cannot have one.
pub(super) fn make_cache(id: usize, join: impl FnOnce(*const ()) -> *mut ()) -> *mut () {
    let made = closed(|fast| {
        // A thread whose end has been could not end it again.
        END.try_with(|_| ()).ok()?;
        let _registry = REGISTRY.lock();
        fast.reach(id)?;
        let cache = join(fast.thread.get().cast_const().cast());
        // SAFETY: the table reaches that far. Relaxed: for this thread.
        unsafe { (*fast.table.get().add(id)).store(cache, Ordering::Relaxed) };
        Some(cache)
    });
    made.flatten().unwrap_or(ptr::null_mut())
}

impl Fast {
    /// Has the table reach a number; `None` if the system has no memory. Under the registry's lock.
    fn reach(&self, id: usize) -> Option<()> {
        if id < self.len.get() {
            return Some(());
        }
        if self.thread.get().is_null() {
            // SAFETY: a thread has a size.
            let thread = NonNull::new(unsafe { System.alloc(Layout::new::<Thread>()) })?.cast::<Thread>();
            // SAFETY: it is new.
            unsafe { thread.write(Thread { table: ptr::null_mut(), len: 0 }) };
            self.thread.set(thread.as_ptr());
        }
        let len = id.checked_add(1)?.checked_next_power_of_two()?.max(16);
        let layout = Layout::array::<AtomicPtr<()>>(len).ok()?;
        // SAFETY: it has 16 entries at least. All zeros are null entries.
        let table = NonNull::new(unsafe { System.alloc_zeroed(layout) })?.cast::<AtomicPtr<()>>().as_ptr();
        // SAFETY: the old table has so many entries, the new one more.
        unsafe { ptr::copy_nonoverlapping(self.table.get().cast_const(), table, self.len.get()) };
        free_table(self.table.replace(table), self.len.replace(len));
        // SAFETY: the thread's own, under the lock.
        unsafe { self.thread.get().write(Thread { table, len }) };
        Some(())
    }
}

fn free_table(table: *mut AtomicPtr<()>, len: usize) {
    if let (false, Ok(layout)) = (table.is_null(), Layout::array::<AtomicPtr<()>>(len)) {
        // SAFETY: it came from there with this layout.
        unsafe { System.dealloc(table.cast(), layout) };
    }
}

impl Drop for End {
    fn drop(&mut self) {
        FAST.with(|fast| {
            // For good: the thread has no cache any more.
            fast.closed.set(true);
            let registry = REGISTRY.lock();
            let (table, len) = (fast.table.replace(ptr::null_mut()), fast.len.replace(0));
            for (id, instance) in registry.instances.iter().enumerate().take(len) {
                // SAFETY: the table has so many entries. Relaxed: changed under the lock.
                let cache = unsafe { (*table.add(id)).load(Ordering::Relaxed) };
                if let (false, Some(instance)) = (cache.is_null(), instance) {
                    // SAFETY: an instance in the registry is there; its cache is this thread's, which has forgotten it.
                    unsafe { instance.as_ref().retire(cache) };
                }
            }
            free_table(table, len);
            let thread = fast.thread.replace(ptr::null_mut());
            if !thread.is_null() {
                // SAFETY: it came from there, and no cache names it any more.
                unsafe { System.dealloc(thread.cast(), Layout::new::<Thread>()) };
            }
        });
    }
}

/// Gives an instance a number.
///
/// # Safety
///
/// The instance stays where it is until `withdraw`.
pub(super) unsafe fn enroll(instance: NonNull<dyn Instance>) -> usize {
    let enroll = || {
        // Without it, forks while other threads are at work harm the child; nothing else does.
        FORKS.call_once(|| {
            let _ = sys::around_fork(before_fork, after_fork, after_fork_in_child);
        });
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
    FAST.with(|fast| {
        let before = fast.closed.replace(true);
        let id = enroll();
        fast.closed.set(before);
        id
    })
}

/// Takes a number back. `each_thread` gives the threads that have a cache of the instance; their entries are cleared.
pub(super) fn withdraw(id: usize, each_thread: impl FnOnce(&mut dyn FnMut(*const ()))) {
    let mut registry = REGISTRY.lock();
    each_thread(&mut |thread| {
        let thread: *const Thread = thread.cast();
        // SAFETY: a thread that a cache names is there as long as the cache is in the instance's list, and its table
        // reaches every number that it has a cache for. Relaxed: nobody uses the entry now; see the head.
        unsafe { (*(*thread).table.add(id)).store(ptr::null_mut(), Ordering::Relaxed) };
    });
    registry.instances[id] = None;
}

extern "C" fn before_fork() {
    let registry = REGISTRY.lock();
    for instance in registry.instances.iter().flatten() {
        // SAFETY: an instance in the registry is there.
        unsafe { instance.as_ref() }.before_fork();
    }
    std::mem::forget(registry);
}

extern "C" fn after_fork() {
    // SAFETY: `before_fork` took the lock in this thread, or in the one that it was forked from.
    unsafe {
        for instance in (*REGISTRY.data_ptr()).instances.iter().flatten() {
            instance.as_ref().after_fork();
        }
        REGISTRY.force_unlock();
    }
}

extern "C" fn after_fork_in_child() {
    after_fork();
    FAST.with(|fast| {
        let before = fast.closed.replace(true);
        let registry = REGISTRY.lock();
        for instance in registry.instances.iter().flatten() {
            // SAFETY: a forked child has one thread.
            unsafe { instance.as_ref().after_fork_in_child(fast.thread.get().cast_const().cast()) };
        }
        fast.closed.set(before);
    });
}
