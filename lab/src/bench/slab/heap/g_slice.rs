//! GLib's slice allocator, from the system's library.
//!
//! GLib had its slab allocator up to 2.74; the 2.75 series removed it. From 2.76 on, the same
//! functions call `malloc`, so a newer GLib counts as absent.

use std::ffi::c_void;

use libloading::Library;

use super::Heap;

const LIBRARY: &str = "libglib-2.0.so.0";
/// The last minor version of GLib 2 that has the slab allocator.
const LAST: u32 = 74;

type Alloc = unsafe extern "C" fn(usize) -> *mut c_void;
type Free = unsafe extern "C" fn(usize, *mut c_void);

/// `g_slice_alloc` and `g_slice_free1`.
pub(super) struct GSlice {
    alloc: Alloc,
    free: Free,
}

impl Heap for GSlice {
    fn create() -> Result<Self, String> {
        // SAFETY: GLib's initialisers set up GLib and change nothing else.
        let library = unsafe { Library::new(LIBRARY) };
        let library = library
            .map_err(|error| format!("{error}; on Debian 12: apt-get install libglib2.0-0"))?;
        let number = |name: &str| {
            // SAFETY: GLib declares both of its version's symbols as `const guint`.
            let found = unsafe { library.get::<*const u32>(name) };
            // SAFETY: the symbol belongs to the library, which is loaded.
            found.map(|at| unsafe { **at }).map_err(|error| error.to_string())
        };
        let version = (number("glib_major_version")?, number("glib_minor_version")?);
        check(version)?;
        // SAFETY: these are the signatures that GLib declares: `gpointer g_slice_alloc (gsize)` and
        // `void g_slice_free1 (gsize, gpointer)`.
        let found = unsafe {
            (library.get::<Alloc>("g_slice_alloc"), library.get::<Free>("g_slice_free1"))
        };
        let (alloc, free) = match found {
            (Ok(alloc), Ok(free)) => (*alloc, *free),
            (Err(error), _) | (_, Err(error)) => return Err(error.to_string()),
        };
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

/// Checks that this version of GLib has its slab allocator.
fn check((major, minor): (u32, u32)) -> Result<(), String> {
    if (major, minor) <= (2, LAST) {
        return Ok(());
    }
    Err(format!(
        "the system's GLib is {major}.{minor}, whose g_slice calls malloc: install GLib up to \
         2.{LAST}"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn newer_versions_have_no_slabs() {
        for version in [(2, 10), (2, 72), (2, 74)] {
            assert_eq!(check(version), Ok(()));
        }
        for version in [(2, 76), (2, 84), (3, 0)] {
            let reason = check(version).unwrap_err();
            assert!(reason.contains(&format!("{}.{}", version.0, version.1)), "{reason}");
        }
    }
}
