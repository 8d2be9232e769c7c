//! *Forks*: what each layer does around a fork.
//!
//! A forked child has one thread. A lock that another thread of the parent holds at the fork stays
//! held in the child, and no thread releases it there. So each layer takes its locks before the
//! fork, and releases them after it in the parent and in the child: the child finds every lock
//! free, and what the locks protect is whole.
//!
//! **Order.** A thread that holds a lock of one layer may ask for one of another. The forking
//! thread takes them in the order in which all threads do, or two threads wait for each other.
//! `pthread_atfork` runs handlers in the order in which they were registered, which depends on the
//! layer that is used first. So there is one handler for all layers, and it runs by [`Stage`].
//!
//! **Late layers.** A layer may come into use while another thread forks. It waits until that fork
//! is over; so a stage that did not run before the fork does not run after it.
//!
//! Three ways to make a child run no handlers: `vfork`, `_Fork` and `clone`. Their children must
//! not use the library.

use std::cell::UnsafeCell;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::thread;

use super::{Call, Errno, Result, gate};

/// When a layer's hooks run. Before the fork in this order, after it in the opposite one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stage {
    /// The list of threads with caches: a thread that ends holds it and gives ranges back.
    Threads,
    /// Spaces of offsets: a thread that holds one may ask for heap memory, which may come from
    /// slabs.
    Spaces,
    /// Caches and slabs.
    Caches,
}

const STAGES: usize = 3;

/// What a layer does around a fork, all of it in the forking thread or its copy in the child.
#[derive(Clone, Copy)]
pub(crate) struct Hooks {
    /// Takes the locks.
    pub(crate) prefork: fn(),
    /// Releases them, in the parent and in the child.
    pub(crate) postfork: fn(),
    /// Mends what the threads that the child does not have left undone. In the child, when all
    /// stages have released their locks.
    pub(crate) postfork_child: fn(),
}

/// What is to run, and whether it is running. One lock for both: held from before a fork until
/// after it.
struct Forks {
    held: AtomicBool,
    hooks: UnsafeCell<State>,
}

struct State {
    hooks: [Option<Hooks>; STAGES],
    /// Whether `pthread_atfork` knows of this.
    registered: bool,
}

// SAFETY: `hooks` is used only by the thread that holds `held`, or by its copy in a forked child.
unsafe impl Sync for Forks {}

static FORKS: Forks = Forks {
    held: AtomicBool::new(false),
    hooks: UnsafeCell::new(State { hooks: [None; STAGES], registered: false }),
};

/// Bit `1 << stage`: the stage's hooks are in place. Read without the lock.
static IN_PLACE: AtomicU32 = AtomicU32::new(0);

impl Forks {
    fn lock(&self) {
        // Acquire pairs with the Release in `unlock`. A holder forks, or adds hooks: both are rare,
        // so waiters only yield.
        while self.held.swap(true, Ordering::Acquire) {
            thread::yield_now();
        }
    }

    fn unlock(&self) {
        // Release pairs with the Acquire in `lock`.
        self.held.store(false, Ordering::Release);
    }
}

/// Has the hooks of a stage run around each fork from now on. A second time does nothing. The
/// caller holds no lock that a hook takes: the call waits for a fork that is under way.
pub(crate) fn around_fork(stage: Stage, hooks: Hooks) -> Result<()> {
    // Relaxed: a thread that misses the bit takes the lock below.
    if IN_PLACE.load(Ordering::Relaxed) & 1 << stage as u32 != 0 {
        return Ok(());
    }
    gate(Call::AtFork)?;
    if cfg!(miri) {
        return Err(Errno::new(libc::ENOSYS));
    }
    FORKS.lock();
    // SAFETY: this thread holds the lock.
    let state = unsafe { &mut *FORKS.hooks.get() };
    let mut refused = 0;
    if !state.registered {
        // SAFETY: the functions live as long as the process, and may be called from any thread.
        refused = unsafe {
            libc::pthread_atfork(Some(prefork), Some(postfork_parent), Some(postfork_child))
        };
        state.registered = refused == 0;
    }
    if refused == 0 {
        state.hooks[stage as usize] = Some(hooks);
        // Relaxed: as above.
        IN_PLACE.fetch_or(1 << stage as u32, Ordering::Relaxed);
    }
    FORKS.unlock();
    if refused == 0 { Ok(()) } else { Err(Errno::new(refused)) }
}

/// The hooks that are in place.
///
/// # Safety
/// The caller holds the lock of `FORKS`, or is the copy of the thread that does.
unsafe fn hooks() -> impl DoubleEndedIterator<Item = Hooks> {
    // SAFETY: the caller's promise.
    let state = unsafe { &*FORKS.hooks.get() };
    state.hooks.iter().copied().flatten()
}

extern "C" fn prefork() {
    FORKS.lock();
    // SAFETY: the lock was just taken.
    unsafe { hooks() }.for_each(|hooks| (hooks.prefork)());
}

extern "C" fn postfork_parent() {
    // SAFETY: `prefork` took the lock in this thread.
    unsafe { hooks() }.rev().for_each(|hooks| (hooks.postfork)());
    FORKS.unlock();
}

extern "C" fn postfork_child() {
    // SAFETY: `prefork` took the lock in the thread of which this is the copy.
    unsafe { hooks() }.rev().for_each(|hooks| (hooks.postfork)());
    // SAFETY: as above.
    unsafe { hooks() }.for_each(|hooks| (hooks.postfork_child)());
    FORKS.unlock();
}
