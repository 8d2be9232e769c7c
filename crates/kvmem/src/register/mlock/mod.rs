//! *mlock*: pages that stay in memory. There is no device; it serves those that go through page
//! tables of their own, and those that only want no page to be swapped out.
//!
//! ## Locks do not add up
//!
//! In the kernel a page is locked or it is not: the first `munlock` undoes any number of `mlock`s,
//! and it works on whole pages, so two keys that meet within one page share its lock. So there are
//! books of all that this library has locked, one for the process, and when a key is given back,
//! only the pages that no other key lies over are unlocked. What others lock in the same
//! pages by themselves is not in these books: it is undone by the last key that goes.
//!
//! ## Who waits
//!
//! The kernel makes pages resident while locking them, which takes long; several threads may do
//! that side by side. A key is put into the books before its pages are locked, and pages are
//! unlocked with the books held, so nobody unlocks what another one is just locking. Unlocking is
//! one at a time in the kernel anyway: it holds the address space of the process.

mod cover;

use std::collections::HashMap;
use std::ops::Range;
use std::ptr::NonNull;
use std::sync::{Mutex, MutexGuard, PoisonError};

use self::cover::Cover;
use super::{
    Account, Key, Limits, Memlock, NotAvailable, RegisterLimit, Registrar, RegistrarError, memlock,
};
use crate::sync::{AtomicU64, Ordering};
use crate::sys::{self, Call, Errno};

/// All that is locked, by page.
static LOCKED: Mutex<Cover> = Mutex::new(Cover::new());
/// What the next key is called; the same name is never given twice.
static NEXT_KEY: AtomicU64 = AtomicU64::new(1);

/// Locks memory.
///
/// A key has only a `handle`, the same of no two keys of the process. Limits: `RLIMIT_MEMLOCK`.
/// Dropping it unlocks what it has locked.
///
/// A child after a fork has none of the locks.
///
/// ```
/// use kvmem::register::{Mlock, Registrar};
///
/// let mlock = Mlock::new("mlock");
/// let mut bytes = vec![0u8; 4096];
/// let at = std::ptr::NonNull::from(&mut bytes[0]);
/// // SAFETY: the vector stays until the key is given back.
/// match unsafe { mlock.register(at, bytes.len()) } {
///     Ok(key) => mlock.deregister(key)?,
///     Err(why) => println!("{why}"),
/// }
/// # Ok::<(), kvmem::register::RegistrarError>(())
/// ```
#[derive(Debug)]
pub struct Mlock {
    name: String,
    /// The pages of each key.
    keys: Mutex<HashMap<u64, Range<usize>>>,
}

impl Default for Mlock {
    /// Called `mlock`.
    fn default() -> Mlock {
        Mlock::new("mlock")
    }
}

impl Mlock {
    /// A registrar of this name.
    #[must_use]
    pub fn new(name: impl Into<String>) -> Mlock {
        Mlock { name: name.into(), keys: Mutex::default() }
    }

    /// Whether this process may lock anything.
    ///
    /// # Errors
    /// [`NotAvailable`] if the limit is less than a page.
    pub fn available() -> Result<(), NotAvailable> {
        match memlock::limit(Account::Locked) {
            Some(limit) if limit.limit_bytes < sys::page_size() as u64 => {
                let exceeded = exceeded(limit, sys::page_size() as u64);
                Err(NotAvailable::new("mlock", exceeded.to_string(), exceeded.remedy()))
            }
            _ => Ok(()),
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Nothing panics under the locks that leaves the books half written.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The pages that a range touches.
fn pages_of(at: NonNull<u8>, len: usize) -> Result<Range<usize>, Errno> {
    let (page, start) = (sys::page_size(), at.as_ptr() as usize);
    let end = start.checked_add(len).and_then(|end| end.checked_next_multiple_of(page));
    // The kernel would lock nothing and be content.
    if len == 0 {
        return Err(Errno::EINVAL);
    }
    Ok(start - start % page..end.ok_or(Errno::EINVAL)?)
}

/// Makes a call for a range, again as long as it is interrupted.
fn retry(
    range: &Range<usize>,
    call: impl Fn(NonNull<u8>, usize) -> Result<(), Errno>,
) -> Result<(), Errno> {
    // The first page belongs to nobody, and is never in a range that is mapped.
    let at =
        NonNull::new(std::ptr::with_exposed_provenance_mut(range.start)).ok_or(Errno::ENOMEM)?;
    loop {
        match call(at, range.len()) {
            Err(Errno::EINTR) => {}
            done => return done,
        }
    }
}

/// Takes a key out of the books and unlocks the pages that are in no other. After an error it is in
/// the books still.
fn unlock(cover: &mut Cover, pages: &Range<usize>) -> Result<(), Errno> {
    for bare in cover.remove(pages) {
        if let Err(errno) = retry(&bare, sys::munlock) {
            cover.add(pages);
            return Err(errno);
        }
    }
    Ok(())
}

fn exceeded(limit: Memlock, need_bytes: u64) -> RegisterLimit {
    let Memlock { account, limit_bytes, used_bytes } = limit;
    RegisterLimit::Memlock { account, limit_bytes, used_bytes, need_bytes }
}

/// What a refused `mlock` means; `limit` is the one that holds, and `new_bytes` of the range are
/// locked by no other key.
fn refused(errno: Errno, limit: Option<Memlock>, new_bytes: u64) -> RegistrarError {
    let refusal = |remedy: &'static str| RegistrarError::new(Call::Lock.to_string(), errno, remedy);
    let exceeds = |limit: &Memlock| limit.used_bytes.saturating_add(new_bytes) > limit.limit_bytes;
    match (errno, limit) {
        // EPERM: the limit is 0. ENOMEM has other causes too.
        (Errno::EPERM, Some(limit)) => refusal("").exceeded(exceeded(limit, new_bytes)),
        (Errno::ENOMEM, Some(limit)) if exceeds(&limit) => {
            refusal("").exceeded(exceeded(limit, new_bytes))
        }
        (Errno::ENOMEM, _) => refusal(
            "not all of it is mapped for reading and writing, or the process has too many mappings: raise vm.max_map_count",
        ),
        (Errno::EAGAIN, _) => refusal(
            "some of its pages could not be made resident: free memory of the machine or of the cgroup, or ask for less",
        ),
        (Errno::EPERM | Errno::ENOSYS, _) => {
            refusal("allow mlock and munlock in the seccomp profile of the container")
        }
        (Errno::EINVAL, _) => {
            refusal("there are no bytes to lock, or more than there are addresses")
        }
        _ => refusal(""),
    }
}

impl Registrar for Mlock {
    fn name(&self) -> &str {
        &self.name
    }

    fn limits(&self) -> Limits {
        Limits { memlock: memlock::limit(Account::Locked), ..Limits::none(self.name.clone()) }
    }

    unsafe fn register(&self, at: NonNull<u8>, len: usize) -> Result<Key, RegistrarError> {
        let pages = pages_of(at, len).map_err(|errno| refused(errno, None, 0))?;
        let new_bytes = {
            let mut cover = lock(&LOCKED);
            let bare = cover.bare(&pages);
            cover.add(&pages);
            bare.iter().map(|part| part.len() as u64).sum()
        };
        if let Err(errno) = retry(&pages, sys::mlock) {
            let limit = memlock::limit(Account::Locked);
            let mut cover = lock(&LOCKED);
            for bare in cover.remove(&pages) {
                // A part of it may have been locked. What is not mapped is refused, and is not
                // locked either.
                let _ = retry(&bare, sys::munlock);
            }
            return Err(refused(errno, limit, new_bytes));
        }
        // Relaxed: only that no two are the same matters.
        let handle = NEXT_KEY.fetch_add(1, Ordering::Relaxed);
        lock(&self.keys).insert(handle, pages);
        Ok(Key { handle, lkey: 0, rkey: None })
    }

    fn deregister(&self, key: Key) -> Result<(), RegistrarError> {
        // Out of the books first, so that of two who give the same key back one is refused.
        let Some(pages) = lock(&self.keys).remove(&key.handle) else {
            let remedy = "it was given back before, or another registrar gave it";
            let detail = format!(
                "{} has given out no key with the handle {} that stands",
                self.name, key.handle
            );
            return Err(
                RegistrarError::new(Call::Unlock.to_string(), Errno::ENOENT, remedy).detail(detail)
            );
        };
        unlock(&mut lock(&LOCKED), &pages).map_err(|errno| {
            lock(&self.keys).insert(key.handle, pages);
            let remedy = match errno {
                Errno::ENOMEM => {
                    "it was unmapped, or the process has too many mappings: raise vm.max_map_count"
                }
                _ => "",
            };
            RegistrarError::new(Call::Unlock.to_string(), errno, remedy)
        })
    }
}

impl Drop for Mlock {
    fn drop(&mut self) {
        for pages in lock(&self.keys).values() {
            // Locks that cannot be undone go with the mapping.
            let _ = unlock(&mut lock(&LOCKED), pages);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_the_limit_explains_is_blamed_on_it() {
        let limit = Memlock { account: Account::Locked, limit_bytes: 100, used_bytes: 60 };
        let blamed = |errno, limit, bytes| refused(errno, limit, bytes).exceeded.is_some();
        assert!(blamed(Errno::ENOMEM, Some(limit), 41));
        assert!(!blamed(Errno::ENOMEM, Some(limit), 40));
        assert!(blamed(Errno::EPERM, Some(limit), 1));
        assert!(!blamed(Errno::EPERM, None, 1) && !blamed(Errno::ENOMEM, None, 1 << 40));
        assert!(!blamed(Errno::EAGAIN, Some(limit), 1 << 40));
    }

    #[test]
    fn pages_are_whole() {
        let page = sys::page_size();
        let at = |address: usize| {
            NonNull::new(std::ptr::without_provenance_mut(address)).expect("not null")
        };
        assert_eq!(pages_of(at(page), 1), Ok(page..2 * page));
        assert_eq!(pages_of(at(2 * page - 1), 2), Ok(page..3 * page));
        assert_eq!(pages_of(at(page), 2 * page), Ok(page..3 * page));
        assert_eq!(pages_of(at(page), 0), Err(Errno::EINVAL));
        for len in [usize::MAX, usize::MAX - page] {
            assert_eq!(pages_of(at(page), len), Err(Errno::EINVAL));
        }
    }
}
