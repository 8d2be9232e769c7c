//! *Registrar*: memory that is locked while it has a key.

use std::collections::HashMap;
use std::ops::Range;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::coverage::KeyCoverage;
use crate::register::backends::memlock;
use crate::register::backends::retry::retry;
use crate::register::{Account, Key, Limits, Memlock, NotAvailable, Registrar, RegistrarError};
use crate::sys::{self, Call, Errno};

/// The number of keys over each locked page.
static LOCKED: Mutex<KeyCoverage> = Mutex::new(KeyCoverage::new());
/// The handle of the next key; no handle is issued twice.
static NEXT_KEY: AtomicU64 = AtomicU64::new(1);

/// Locks memory.
///
/// A key has only a `handle`, unique in the process. Limits: `RLIMIT_MEMLOCK`. Dropping the
/// registrar unlocks what it has locked.
///
/// A child process does not inherit the locks.
///
/// ```
/// use kvmem::register::{Mlock, Registrar};
///
/// let mlock = Mlock::new("mlock");
/// let mut bytes = vec![0u8; 4096];
/// let at = std::ptr::NonNull::from(&mut bytes[0]);
/// // SAFETY: the vector lives until the key is deregistered.
/// match unsafe { mlock.register(at, bytes.len()) } {
///     Ok(key) => mlock.deregister(key)?,
///     Err(why) => println!("{why}"),
/// }
/// # Ok::<(), kvmem::register::RegistrarError>(())
/// ```
#[derive(Debug)]
pub struct Mlock {
    name: String,
    /// The pages of each key, by its handle.
    keys: Mutex<HashMap<u64, Range<usize>>>,
}

impl Default for Mlock {
    /// Returns a registrar named `mlock`.
    fn default() -> Mlock {
        Mlock::new("mlock")
    }
}

impl Mlock {
    /// Returns a registrar of this name.
    #[must_use]
    pub fn new(name: impl Into<String>) -> Mlock {
        Mlock { name: name.into(), keys: Mutex::default() }
    }

    /// Checks that this process may lock memory.
    ///
    /// # Errors
    /// [`NotAvailable`] if the limit is less than a page.
    pub fn available() -> Result<(), NotAvailable> {
        match memlock::limit(Account::Locked) {
            Some(limit) if limit.limit_bytes < sys::page_size() as u64 => {
                let exceeded = limit.exceeded(sys::page_size() as u64);
                Err(NotAvailable::new("mlock", exceeded.to_string(), exceeded.remedy()))
            }
            _ => Ok(()),
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Nothing panics under the locks that would leave the counts inconsistent.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Returns the pages that a range touches.
fn pages_of(at: NonNull<u8>, len: usize) -> Result<Range<usize>, Errno> {
    let (page, start) = (sys::page_size(), at.as_ptr() as usize);
    let end = start.checked_add(len).and_then(|end| end.checked_next_multiple_of(page));
    // The kernel would lock nothing and return success.
    if len == 0 {
        return Err(Errno::EINVAL);
    }
    Ok(start - start % page..end.ok_or(Errno::EINVAL)?)
}

/// Makes a call for a range of pages.
fn on_pages(
    range: &Range<usize>,
    call: impl Fn(NonNull<u8>, usize) -> Result<(), Errno>,
) -> Result<(), Errno> {
    // The first page of the address space is never mapped.
    let at =
        NonNull::new(std::ptr::with_exposed_provenance_mut(range.start)).ok_or(Errno::ENOMEM)?;
    retry(|| call(at, range.len()))
}

/// Removes a key from the counts and unlocks the pages that no other key covers. After an error the
/// key is still counted.
fn unlock(coverage: &mut KeyCoverage, pages: &Range<usize>) -> Result<(), Errno> {
    for uncovered in coverage.remove(pages) {
        if let Err(errno) = on_pages(&uncovered, sys::munlock) {
            coverage.add(pages);
            return Err(errno);
        }
    }
    Ok(())
}

/// Explains a failed `mlock`. `limit` is the limit that applies; no other key locks `new_bytes` of
/// the range.
fn lock_failure(errno: Errno, limit: Option<Memlock>, new_bytes: u64) -> RegistrarError {
    let failure = |remedy: &'static str| RegistrarError::new(Call::Lock.to_string(), errno, remedy);
    let exceeds = |limit: &Memlock| limit.used_bytes.saturating_add(new_bytes) > limit.limit_bytes;
    match (errno, limit) {
        // EPERM: the limit is 0. ENOMEM has other causes, too.
        (Errno::EPERM, Some(limit)) => failure("").exceeded(limit.exceeded(new_bytes)),
        (Errno::ENOMEM, Some(limit)) if exceeds(&limit) => {
            failure("").exceeded(limit.exceeded(new_bytes))
        }
        (Errno::ENOMEM, _) => failure(
            "not all of it is mapped for reading and writing, or the process has too many \
             mappings: raise vm.max_map_count",
        ),
        (Errno::EAGAIN, _) => failure(
            "some of its pages could not be made resident: free memory of the machine or of the \
             cgroup, or register less",
        ),
        (Errno::EPERM | Errno::ENOSYS, _) => {
            failure("allow mlock and munlock in the seccomp profile of the container")
        }
        (Errno::EINVAL, _) => {
            failure("the range is empty, or longer than the address space: pass a mapped range")
        }
        _ => failure(""),
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
        let pages = pages_of(at, len).map_err(|errno| lock_failure(errno, None, 0))?;
        let new_bytes = {
            let mut coverage = lock(&LOCKED);
            let uncovered = coverage.uncovered(&pages);
            coverage.add(&pages);
            uncovered.iter().map(|part| part.len() as u64).sum()
        };
        if let Err(errno) = on_pages(&pages, sys::mlock) {
            let limit = memlock::limit(Account::Locked);
            let mut coverage = lock(&LOCKED);
            for uncovered in coverage.remove(&pages) {
                // Part of the range may have been locked. Unlocking fails for unmapped parts,
                // which are not locked either.
                let _ = on_pages(&uncovered, sys::munlock);
            }
            return Err(lock_failure(errno, limit, new_bytes));
        }
        // Relaxed: only that no two are the same matters.
        let handle = NEXT_KEY.fetch_add(1, Ordering::Relaxed);
        lock(&self.keys).insert(handle, pages);
        Ok(Key { handle, lkey: 0, rkey: None })
    }

    fn deregister(&self, key: Key) -> Result<(), RegistrarError> {
        // The key is removed first: if two threads deregister it, the second one gets an error.
        let Some(pages) = lock(&self.keys).remove(&key.handle) else {
            let remedy = "deregister a key once, and with the registrar that issued it";
            let detail =
                format!("{} has issued no live key with the handle {}", self.name, key.handle);
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
            // Locks that cannot be undone end with the mapping.
            let _ = unlock(&mut lock(&LOCKED), pages);
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn the_limit_is_reported_only_if_it_explains_the_failure() {
        let limit = Memlock { account: Account::Locked, limit_bytes: 100, used_bytes: 60 };
        let blamed = |errno, limit, bytes| lock_failure(errno, limit, bytes).exceeded.is_some();
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
