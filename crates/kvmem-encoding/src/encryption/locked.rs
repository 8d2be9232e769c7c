//! *Locked memory* for secrets: pages that are never swapped out, are left out of core dumps, and
//! are wiped before they are unmapped.

use std::ffi::c_void;
use std::io;
use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;
use std::slice;

use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mlock, mmap_anonymous, munmap};
use zeroize::Zeroize;

/// A value in pages of its own.
pub(super) struct Locked<T> {
    at: NonNull<T>,
    owns: PhantomData<T>,
}

// SAFETY: the value is owned as that of a box is, and moves to another thread with it.
unsafe impl<T: Send> Send for Locked<T> {}
// SAFETY: a shared reference to the owner yields no more than a shared reference to the value.
unsafe impl<T: Sync> Sync for Locked<T> {}

impl<T> Locked<T> {
    /// Moves a value into locked pages. Copies that the compiler has made of it on the stack are
    /// not wiped.
    ///
    /// # Errors
    /// The system's error; that of `mlock` if this process may lock no more memory.
    pub(super) fn new(value: T) -> io::Result<Self> {
        const { assert!(align_of::<T>() <= 4096 && size_of::<T>() > 0) };
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: an anonymous mapping at an address of the kernel's choice overlaps no other.
        let at = unsafe {
            mmap_anonymous(std::ptr::null_mut(), size_of::<T>(), protection, MapFlags::PRIVATE)
        }?;
        let at = NonNull::new(at.cast::<T>()).ok_or(io::ErrorKind::OutOfMemory)?;
        // SAFETY: the mapping is new, writable, aligned to a page, and has room for the value.
        unsafe { at.write(value) };
        let locked = Locked { at, owns: PhantomData };
        // SAFETY: the range is the mapping. Neither call changes its bytes.
        unsafe {
            madvise(locked.pages(), size_of::<T>(), Advice::LinuxDontDump)?;
            mlock(locked.pages(), size_of::<T>())?;
        }
        Ok(locked)
    }

    fn pages(&self) -> *mut c_void {
        self.at.as_ptr().cast()
    }
}

impl<T> Deref for Locked<T> {
    type Target = T;

    fn deref(&self) -> &T {
        // SAFETY: the value was written when the mapping was made, which lives as long as `self`.
        unsafe { self.at.as_ref() }
    }
}

impl<T> DerefMut for Locked<T> {
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: as for the shared reference; `self` is borrowed exclusively.
        unsafe { self.at.as_mut() }
    }
}

impl<T> Drop for Locked<T> {
    fn drop(&mut self) {
        // SAFETY: the value is dropped once, and its bytes are only overwritten afterwards. The
        // mapping was made with this length, and nothing refers to it any more.
        unsafe {
            self.at.drop_in_place();
            slice::from_raw_parts_mut(self.at.as_ptr().cast::<u8>(), size_of::<T>()).zeroize();
            let _ = munmap(self.pages(), size_of::<T>());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the line of `/proc/self/smaps` that begins with `field`, of the mapping with `at`.
    fn smaps(at: usize, field: &str) -> String {
        let maps = std::fs::read_to_string("/proc/self/smaps").unwrap();
        let mut is_of_mapping = false;
        for line in maps.lines() {
            let first = line.split(' ').next().unwrap();
            if let Some((start, end)) = first.split_once('-')
                && let (Ok(start), Ok(end)) =
                    (usize::from_str_radix(start, 16), usize::from_str_radix(end, 16))
            {
                is_of_mapping = (start..end).contains(&at);
            }
            if is_of_mapping && line.starts_with(field) {
                return line.to_owned();
            }
        }
        panic!("no mapping has {at:x}");
    }

    #[test]
    fn pages_are_locked_and_not_dumped() {
        let mut locked = Locked::new([7_u8; 100]).unwrap();
        locked[3] = 9;
        assert_eq!((locked[3], locked[4]), (9, 7));
        let flags = smaps(locked.at.as_ptr().addr(), "VmFlags:");
        let has = |flag: &str| flags.split_whitespace().any(|one| one == flag);
        assert!(has("lo") && has("dd"), "{flags}");
    }

    #[test]
    fn the_value_is_dropped_once() {
        let counter = std::sync::Arc::new(());
        drop(Locked::new(std::sync::Arc::clone(&counter)).unwrap());
        assert_eq!(std::sync::Arc::strong_count(&counter), 1);
    }
}
