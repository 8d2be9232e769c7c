//! *ABI*: the part of the CUDA driver API that registering needs.
//!
//! A function that changed has a suffix (`_v2`) and stands beside the old one for good. Handles are
//! pointers that only the driver reads; a device is its number, an address on a device has 64 bits.

use std::ffi::{c_char, c_int, c_uint, c_void};
use std::path::Path;

use crate::sys::Library;

/// `CUresult`: 0, or an error.
pub(super) type Result = c_int;
/// `CUdevice`.
pub(super) type Device = c_int;
/// `CUcontext`.
pub(super) type Context = *mut c_void;
/// `CUdeviceptr`.
pub(super) type DevicePointer = u64;

/// `CUDA_SUCCESS`.
pub(super) const SUCCESS: Result = 0;

/// The functions, and the library that holds them.
pub(super) struct Abi {
    pub(super) init: unsafe extern "C" fn(c_uint) -> Result,
    pub(super) device_get_count: unsafe extern "C" fn(*mut c_int) -> Result,
    pub(super) device_get: unsafe extern "C" fn(*mut Device, c_int) -> Result,
    pub(super) device_get_name: unsafe extern "C" fn(*mut c_char, c_int, Device) -> Result,
    pub(super) primary_ctx_retain: unsafe extern "C" fn(*mut Context, Device) -> Result,
    pub(super) primary_ctx_release: unsafe extern "C" fn(Device) -> Result,
    pub(super) ctx_push_current: unsafe extern "C" fn(Context) -> Result,
    pub(super) ctx_pop_current: unsafe extern "C" fn(*mut Context) -> Result,
    pub(super) mem_host_register: unsafe extern "C" fn(*mut c_void, usize, c_uint) -> Result,
    pub(super) mem_host_unregister: unsafe extern "C" fn(*mut c_void) -> Result,
    pub(super) mem_host_get_device_pointer:
        unsafe extern "C" fn(*mut DevicePointer, *mut c_void, c_uint) -> Result,
    /// Since CUDA 6.0.
    pub(super) get_error_name: Option<unsafe extern "C" fn(Result, *mut *const c_char) -> Result>,
    /// The name under which registering was found.
    pub(super) mem_host_register_name: &'static str,
    // Goes last: the functions above are part of it.
    library: Option<Library>,
}

impl Abi {
    /// Loads the library and finds its functions; or says what is missing.
    ///
    /// # Safety
    /// The file has this ABI, if it is a library at all and has the functions.
    pub(super) unsafe fn load(path: &Path) -> std::result::Result<Abi, String> {
        // SAFETY: the caller's promise.
        let library =
            unsafe { Library::open(path) }.map_err(|said| format!("no library: {said}"))?;
        macro_rules! function {
            ($name:literal) => {
                // SAFETY: the driver's type stands in the field that this goes into, and the
                // library goes beside it.
                unsafe { library.symbol($name) }.map_err(|said| {
                    format!(
                        "{} has no function {}: {said}",
                        path.display(),
                        $name.to_string_lossy()
                    )
                })
            };
        }
        let (mem_host_register, mem_host_register_name) = match function!(c"cuMemHostRegister_v2") {
            Ok(function) => (function, "cuMemHostRegister_v2"),
            // Before CUDA 6.5. The same but for the context in which the memory is known, which
            // flags say as well.
            Err(_) => (function!(c"cuMemHostRegister")?, "cuMemHostRegister"),
        };
        Ok(Abi {
            init: function!(c"cuInit")?,
            device_get_count: function!(c"cuDeviceGetCount")?,
            device_get: function!(c"cuDeviceGet")?,
            device_get_name: function!(c"cuDeviceGetName")?,
            primary_ctx_retain: function!(c"cuDevicePrimaryCtxRetain")?,
            primary_ctx_release: function!(c"cuDevicePrimaryCtxRelease_v2")
                .or_else(|_| function!(c"cuDevicePrimaryCtxRelease"))?,
            ctx_push_current: function!(c"cuCtxPushCurrent_v2")?,
            ctx_pop_current: function!(c"cuCtxPopCurrent_v2")?,
            mem_host_register,
            mem_host_unregister: function!(c"cuMemHostUnregister")?,
            mem_host_get_device_pointer: function!(c"cuMemHostGetDevicePointer_v2")?,
            get_error_name: function!(c"cuGetErrorName").ok(),
            mem_host_register_name,
            library: Some(library),
        })
    }

    /// The library stays for the life of the process.
    pub(super) fn keep(&mut self) {
        if let Some(library) = self.library.take() {
            library.keep();
        }
    }
}

impl std::fmt::Debug for Abi {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Abi")
            .field("register", &self.mem_host_register_name)
            .finish_non_exhaustive()
    }
}
