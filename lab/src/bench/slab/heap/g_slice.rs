//! GLib's slice allocator, from the system's library.
//!
//! GLib had its slab allocator up to 2.74; the 2.75 series removed it. From 2.76 on, the same
//! functions call `malloc`, so a newer GLib counts as absent.

use std::ffi::c_void;

use anyhow::{Context, Result, ensure};
use libloading::Library;

use super::Heap;

const LIBRARY: &str = "libglib-2.0.so.0";
/// The last minor version of GLib 2 that has the slab allocator.
const LAST: u32 = 74;

type Alloc = unsafe extern "C" fn(usize) -> *mut c_void;
type Free = unsafe extern "C" fn(usize, *mut c_void);

/// `g_slice_alloc` and `g_slice_free1`.
pub(in crate::bench::slab) struct GSlice {
    alloc: Alloc,
    free: Free,
}

impl Heap for GSlice {
    fn create() -> Result<Self> {
        // SAFETY: GLib's initialisers set up GLib and change nothing else.
        let library = unsafe { Library::new(LIBRARY) };
        let library = library.context("on Debian 12: apt-get install libglib2.0-0")?;
        // SAFETY: GLib declares both symbols of its version as `const guint`, and the library that
        // has them is loaded.
        let number = |name: &str| unsafe { library.get::<*const u32>(name).map(|at| **at) };
        let (major, minor) = (number("glib_major_version")?, number("glib_minor_version")?);
        ensure!(
            (major, minor) <= (2, LAST),
            "the system's GLib is {major}.{minor}, whose g_slice calls malloc: install GLib up to \
             2.{LAST}"
        );
        // SAFETY: this is the signature that GLib declares: `gpointer g_slice_alloc (gsize)`.
        let alloc = *unsafe { library.get::<Alloc>("g_slice_alloc") }?;
        // SAFETY: as GLib declares it: `void g_slice_free1 (gsize, gpointer)`.
        let free = *unsafe { library.get::<Free>("g_slice_free1") }?;
        // The functions are used until the process ends, and GLib's thread-local destructors run
        // after that.
        std::mem::forget(library);
        Ok(Self { alloc, free })
    }

    #[inline]
    fn alloc(&self, size: usize) -> *mut u8 {
        // SAFETY: any size is valid; GLib ends the process if memory runs out.
        unsafe { (self.alloc)(size) }.cast()
    }

    #[inline]
    unsafe fn free(&self, block: *mut u8, size: usize) {
        // SAFETY: the caller guarantees that `g_slice_alloc` returned the block for this size.
        unsafe { (self.free)(size, block.cast()) }
    }
}
