//! *ABI*: the part of the CUDA driver API that registering needs.
//!
//! A function that changed has a suffix (`_v2`); the old one stays. Handles are pointers
//! that only the driver reads. A device is a number, and an address on a device has 64 bits.

use std::ffi::{c_char, c_int, c_uint, c_void};
use std::path::Path;

use crate::sys::Library;

/// `CUresult`: 0, or an error.
pub(super) type CuResult = c_int;
/// `CUdevice`.
pub(super) type CuDevice = c_int;
/// `CUcontext`.
pub(super) type CuContext = *mut c_void;
/// `CUdeviceptr`.
pub(super) type DevicePointer = u64;

/// `CUDA_SUCCESS`.
pub(super) const SUCCESS: CuResult = 0;

/// The functions, and the library that contains them.
pub(super) struct CudaAbi {
    pub(super) init: unsafe extern "C" fn(c_uint) -> CuResult,
    pub(super) device_get_count: unsafe extern "C" fn(*mut c_int) -> CuResult,
    pub(super) device_get: unsafe extern "C" fn(*mut CuDevice, c_int) -> CuResult,
    pub(super) device_get_name: unsafe extern "C" fn(*mut c_char, c_int, CuDevice) -> CuResult,
    pub(super) primary_ctx_retain: unsafe extern "C" fn(*mut CuContext, CuDevice) -> CuResult,
    pub(super) primary_ctx_release: unsafe extern "C" fn(CuDevice) -> CuResult,
    pub(super) ctx_push_current: unsafe extern "C" fn(CuContext) -> CuResult,
    pub(super) ctx_pop_current: unsafe extern "C" fn(*mut CuContext) -> CuResult,
    pub(super) mem_host_register: unsafe extern "C" fn(*mut c_void, usize, c_uint) -> CuResult,
    pub(super) mem_host_unregister: unsafe extern "C" fn(*mut c_void) -> CuResult,
    pub(super) mem_host_get_device_pointer:
        unsafe extern "C" fn(*mut DevicePointer, *mut c_void, c_uint) -> CuResult,
    /// Since CUDA 6.0.
    pub(super) get_error_name:
        Option<unsafe extern "C" fn(CuResult, *mut *const c_char) -> CuResult>,
    /// The name of the function behind `mem_host_register`.
    pub(super) mem_host_register_name: &'static str,
    // Dropped last: the functions above are part of it.
    library: Option<Library>,
}

impl CudaAbi {
    /// Loads the library and finds its functions, or says what is missing.
    ///
    /// # Safety
    /// If the file is a library with these functions, it has this ABI. The code that runs when it
    /// is loaded and unloaded is sound.
    pub(super) unsafe fn load(path: &Path) -> Result<CudaAbi, String> {
        // SAFETY: the caller promises that the code that runs when the library is loaded and
        // unloaded is sound.
        let library = unsafe { Library::open(path) }?;
        macro_rules! function {
            ($name:literal) => {
                // SAFETY: the field that receives the function has the type of the driver's header,
                // which the caller promises for this library. The library is stored with it, or
                // never unloaded.
                unsafe { library.symbol($name) }
            };
        }
        let (mem_host_register, mem_host_register_name) = match function!(c"cuMemHostRegister_v2") {
            Ok(function) => (function, "cuMemHostRegister_v2"),
            // Before CUDA 6.5. It differs only in the contexts that know the memory by default,
            // which flags set as well.
            Err(_) => (function!(c"cuMemHostRegister")?, "cuMemHostRegister"),
        };
        Ok(CudaAbi {
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

    /// Keeps the library loaded for the life of the process.
    pub(super) fn keep(&mut self) {
        if let Some(library) = self.library.take() {
            library.keep();
        }
    }
}

impl std::fmt::Debug for CudaAbi {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("CudaAbi")
            .field("register", &self.mem_host_register_name)
            .finish_non_exhaustive()
    }
}
