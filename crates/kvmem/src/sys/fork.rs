//! *Forks*: runs each layer's hooks around a fork.
//!
//! A forked child has one thread. A lock that another thread of the parent holds at the fork stays
//! held in the child, and no thread releases it there. Each layer therefore takes its locks before
//! the fork, and releases them after it in the parent and in the child. The child finds every lock
//! free and the protected data consistent.
//!
//! **Order.** A thread that holds a lock of one layer may take a lock of another. The forking
//! thread takes the locks in the same order as all other threads; otherwise two threads could wait
//! for each other. `pthread_atfork` runs handlers in the order in which they were registered, which
//! depends on the layer that is used first. There is therefore one handler for all layers, and it
//! runs them by [`ForkStage`].
//!
//! **Late layers.** A layer may be used for the first time while another thread forks. It waits
//! until that fork is over, so a stage that did not run before the fork does not run after it.
//!
//! Children of `vfork`, `_Fork` and `clone` run no handlers. They must not use the library.

use std::cell::UnsafeCell;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::thread;

use super::call::Call;
use super::errno::Errno;
use super::errno::Result;
use super::gate::gate;

/// The position of a layer's hooks. Before a fork the stages run in this order, after it in
/// reverse.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ForkStage {
    /// The list of threads with caches: an exiting thread locks it and frees ranges.
    Threads,
    /// Spaces of offsets: a thread that locks one may allocate heap memory, which may come from
    /// slabs.
    Spaces,
    /// Caches and slabs.
    Caches,
}

const STAGES: usize = 3;

/// The hooks of a layer. They run in the forking thread, or in its copy in the child.
#[derive(Clone, Copy)]
pub(crate) struct ForkHooks {
    /// Takes the locks.
    pub(crate) prefork: fn(),
    /// Releases the locks, in the parent and in the child.
    pub(crate) postfork: fn(),
    /// Repairs, in the child, the data that missing threads left unfinished. Runs after all stages
    /// have released their locks.
    pub(crate) postfork_child: fn(),
}

/// The registered hooks. One lock protects them and excludes forks: it is held from before a fork
/// until after it.
struct Forks {
    held: AtomicBool,
    hooks: UnsafeCell<ForkState>,
}

struct ForkState {
    hooks: [Option<ForkHooks>; STAGES],
    /// Whether `pthread_atfork` has registered the handlers.
    registered: bool,
}

// SAFETY: only the thread that holds `held`, or its copy in a forked child, uses `hooks`.
unsafe impl Sync for Forks {}

static FORKS: Forks = Forks {
    held: AtomicBool::new(false),
    hooks: UnsafeCell::new(ForkState { hooks: [None; STAGES], registered: false }),
};

/// Bit `1 << stage`: the stage's hooks are registered. Read without the lock.
static REGISTERED: AtomicU32 = AtomicU32::new(0);

impl Forks {
    fn lock(&self) {
        // Acquire pairs with the Release in `unlock`. A holder forks or adds hooks, and both are
        // rare, so waiting threads only yield.
        while self.held.swap(true, Ordering::Acquire) {
            thread::yield_now();
        }
    }

    fn unlock(&self) {
        // Release pairs with the Acquire in `lock`.
        self.held.store(false, Ordering::Release);
    }
}

/// Registers the hooks of a stage for all future forks. A second call does nothing. The caller
/// holds no lock that a hook takes, because this call waits for a fork in progress.
pub(crate) fn around_fork(stage: ForkStage, hooks: ForkHooks) -> Result<()> {
    // Relaxed: a thread that misses the bit takes the lock below.
    if REGISTERED.load(Ordering::Relaxed) & 1 << stage as u32 != 0 {
        return Ok(());
    }
    gate(Call::AtFork)?;
    FORKS.lock();
    // SAFETY: this thread holds the lock until the end of the function, so no other reference to
    // the hooks exists.
    let state = unsafe { &mut *FORKS.hooks.get() };
    let mut errno = 0;
    if !state.registered {
        // SAFETY: the functions exist until the process ends, and any thread may call them.
        errno = unsafe {
            libc::pthread_atfork(Some(prefork), Some(postfork_parent), Some(postfork_child))
        };
        state.registered = errno == 0;
    }
    if errno == 0 {
        state.hooks[stage as usize] = Some(hooks);
        // Relaxed: a thread that misses the bit takes the lock.
        REGISTERED.fetch_or(1 << stage as u32, Ordering::Relaxed);
    }
    FORKS.unlock();
    if errno == 0 { Ok(()) } else { Err(Errno::new(errno)) }
}

/// Returns the registered hooks.
///
/// # Safety
/// The caller holds the lock of `FORKS`, or is the copy of a thread that holds it.
unsafe fn hooks() -> impl DoubleEndedIterator<Item = ForkHooks> {
    // SAFETY: this function's condition: the lock is held by this thread, so no other thread has a
    // reference to the hooks; the forked copy of a holder is the only thread of its process.
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
    // SAFETY: `prefork` took the lock in the thread that this one is a copy of.
    unsafe { hooks() }.rev().for_each(|hooks| (hooks.postfork)());
    // SAFETY: this thread still holds the lock.
    unsafe { hooks() }.for_each(|hooks| (hooks.postfork_child)());
    FORKS.unlock();
}
