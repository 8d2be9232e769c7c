//! *Taker*: a function of C that gets what leaves a cache for room.
//!
//! It borrows the pin: who does nothing about it leaks nothing, and who means to keep the value
//! says so, by a pin of its own. A pin that is released by the function all the same is found gone
//! afterwards, by its handle.

use std::ffi::{c_int, c_void};
use std::sync::atomic::{AtomicBool, Ordering};

use kvmem::pool::kv_cache::Pinned;

use crate::kv_cache::{Key, kvmem_kv_pin, kvmem_kv_value, value};
use crate::table::Object;

/// Is given each value that is evicted, for room or by the watermarks, to keep it elsewhere, and
/// answers 0 if it has *taken* it. What is removed, replaced or cleared is not given; but where
/// there is no room beside the value that a key has already, that one is evicted first.
///
/// `value`, its pin and `key` are good for the call only; kvmem_kv_pin_clone makes a pin that
/// stays. Until the last pin goes the bytes are in use, though not counted by the cache, which goes
/// on to evict others: whoever keeps pins must bound them to a part of the pool.
///
/// It is called by the thread that inserts, commits, reserves or calls kvmem_kv_evict_to, by
/// several at once, under no lock of the cache's, and may call the cache for what does not evict.
/// It returns (no longjmp, no C++ exception).
///
/// A lower tier must never have an older value under a key than the latest. Until this returns the
/// key is not leased. Of several values of a key that threads hand over at once the latest may come
/// first: ask kvmem_kv_pin_is_superseded under the lock under which values are taken, and do not
/// take what is. What is not taken must leave nothing older behind; then the answer is 0, too.
/// Where that cannot be seen to, answer anything else: from then on the key is not leased, until
/// kvmem_kv_clear_with succeeds.
pub type kvmem_kv_evict_fn = Option<
    unsafe extern "C" fn(
        user: *mut c_void,
        value: *const kvmem_kv_value,
        key: *const c_void,
        key_bytes: u64,
    ) -> c_int,
>;

/// A function of C with what it is to be given, which is released with the cache.
pub(crate) struct Taker {
    take: unsafe extern "C" fn(*mut c_void, *const kvmem_kv_value, *const c_void, u64) -> c_int,
    user: *mut c_void,
    release: Option<unsafe extern "C" fn(user: *mut c_void)>,
    /// There is a cache: before that what is given is still the caller's.
    owned: AtomicBool,
}

// SAFETY: the header says that both functions are called by any thread.
unsafe impl Send for Taker {}
// SAFETY: and the first by several at once.
unsafe impl Sync for Taker {}

/// It has not taken the value.
pub(crate) struct NotTaken;

impl Taker {
    pub(crate) fn new(
        take: kvmem_kv_evict_fn,
        user: *mut c_void,
        release: Option<unsafe extern "C" fn(user: *mut c_void)>,
    ) -> Option<Taker> {
        take.map(|take| Taker { take, user, release, owned: AtomicBool::new(false) })
    }

    /// From now on the user data are released when this goes.
    pub(crate) fn own(&self) {
        // Relaxed: whoever drops the last reference acquires what was done by those who had others.
        self.owned.store(true, Ordering::Relaxed);
    }

    /// Gives an evicted value to the function. What has no handle has not been taken.
    pub(crate) fn give(&self, pinned: Pinned<Key>) -> Result<(), NotTaken> {
        // The key stays as long as this, also if the function releases the pin.
        let kept = pinned.clone();
        let key = kept.key();
        let lent = value(pinned).map_err(|_| NotTaken)?;
        // SAFETY: the caller of C has promised that it can be called.
        let answer =
            unsafe { (self.take)(self.user, &lent, key.as_ptr().cast(), key.len() as u64) };
        // Gone already if the function has released it.
        drop(kvmem_kv_pin::table().take(lent.pin));
        if answer == 0 { Ok(()) } else { Err(NotTaken) }
    }
}

impl Drop for Taker {
    fn drop(&mut self) {
        // Relaxed: as in `own`.
        if let Some(release) = self.release.filter(|_| self.owned.load(Ordering::Relaxed)) {
            // SAFETY: the caller of C has promised that it can be called.
            unsafe { release(self.user) }
        }
    }
}
