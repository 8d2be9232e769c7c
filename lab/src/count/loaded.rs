//! *Loaded*: contenders of a library that was built from `contenders.cpp`.
//!
//! The loops are those of all contenders, so the requests are the same. Each operation goes through
//! a function of the library, and handles are moved as bytes. The library's contender `null` shows
//! what that costs.

use std::ffi::c_void;
use std::sync::OnceLock;

use anyhow::{Result, anyhow, ensure};
use libloading::Library;

use crate::bench::contender::{Contender, RangeHandle, Space};

/// The functions of a contender. As `struct contender` in `contenders.cpp`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct Functions {
    /// Returns NULL if the contender cannot manage the space.
    pub(crate) create: unsafe extern "C" fn(capacity: u64, max_live: u64) -> *mut c_void,
    pub(crate) destroy: unsafe extern "C" fn(space: *mut c_void),
    /// Writes a handle to `handle`, or returns false.
    pub(crate) allocate:
        unsafe extern "C" fn(space: *mut c_void, size: u64, handle: *mut LoadedHandle) -> bool,
    pub(crate) free: unsafe extern "C" fn(handle: *mut LoadedHandle),
    pub(crate) size: unsafe extern "C" fn(handle: *const LoadedHandle) -> u64,
}

static FUNCTIONS: OnceLock<Functions> = OnceLock::new();

fn functions() -> &'static Functions {
    FUNCTIONS.get().expect("`load` is called first")
}

/// Makes these functions those of the loaded contender, once in a process.
pub(crate) fn load(functions: Functions) -> Result<()> {
    FUNCTIONS.set(functions).map_err(|_| anyhow!("a contender is loaded already"))
}

/// Returns the contender `name` of a library.
pub(crate) fn find(library: &str, name: &str) -> Result<Functions> {
    // SAFETY: the library is the one that `cargo xtask` built. Its initializers are those of
    // the C++ runtime and of kvmem.
    let library = unsafe { Library::new(library) }?;
    // SAFETY: `contenders.cpp` defines each contender with the type of `Functions`.
    let functions = unsafe { *library.get::<*const Functions>(name.as_bytes())? };
    // SAFETY: the symbol is the address of a constant of that type.
    let functions = unsafe { *functions };
    // The functions are used until the process ends.
    std::mem::forget(library);
    Ok(functions)
}

/// The loaded contender.
pub(crate) struct Loaded(*mut c_void);

// SAFETY: threads may share each of the loaded allocators. The contender that places nothing is
// measured on one thread.
unsafe impl Sync for Loaded {}

/// A handle of the loaded contender: an object of C++ that may be moved as bytes.
#[repr(C)]
pub(crate) struct LoadedHandle([u64; HANDLE_WORDS]);

/// The words of a handle, as in `contenders.cpp`.
pub(crate) const HANDLE_WORDS: usize = 5;

impl RangeHandle for LoadedHandle {
    #[inline]
    fn size(&self) -> u64 {
        // SAFETY: `allocate` wrote the handle, and only `drop` frees it.
        unsafe { (functions().size)(self) }
    }
}

impl Drop for LoadedHandle {
    #[inline]
    fn drop(&mut self) {
        // SAFETY: `allocate` wrote the handle, and it is freed once.
        unsafe { (functions().free)(self) }
    }
}

impl Contender for Loaded {
    type Handle = LoadedHandle;

    fn create(space: Space) -> Result<Self> {
        // SAFETY: any numbers are valid.
        let created = unsafe { (functions().create)(space.capacity, space.max_live as u64) };
        ensure!(!created.is_null(), "the loaded contender cannot manage {} bytes", space.capacity);
        Ok(Loaded(created))
    }

    #[inline]
    fn allocate(&self, size: u64) -> Option<LoadedHandle> {
        let mut handle = std::mem::MaybeUninit::uninit();
        // SAFETY: the space exists until `self` is dropped, and there is room for a handle, which
        // is written if the result is true.
        unsafe {
            (functions().allocate)(self.0, size, handle.as_mut_ptr()).then(|| handle.assume_init())
        }
    }
}

impl Drop for Loaded {
    fn drop(&mut self) {
        // SAFETY: `create` made the space, and no call on it runs.
        unsafe { (functions().destroy)(self.0) }
    }
}
