//! *Driver*: the part of the CUDA driver that the measurements call, loaded at run time.
//!
//! A benchmark that registers as engines do calls the driver itself: with one context or several,
//! in pieces of any size, without the checks of the library. A function that changed has a suffix
//! (`_v2`); the old one stays beside it.

use std::error::Error;
use std::ffi::{CStr, OsStr, c_char, c_int, c_uint, c_void};
use std::ptr;
use std::sync::Arc;

use anyhow::{Result, ensure};
use libloading::Library;

use super::Declined;

/// `CUcontext`.
pub(super) type Context = *mut c_void;
/// `CUstream`.
pub(super) type Stream = *mut c_void;
/// `CUdeviceptr`.
pub(super) type DevicePointer = u64;

/// `CU_MEMHOSTREGISTER_PORTABLE | CU_MEMHOSTREGISTER_DEVICEMAP`, and the same of `cuMemHostAlloc`.
const FLAGS: c_uint = 1 | 2;

/// Defines a structure of functions, and how it is loaded.
macro_rules! functions {
    (
        $(#[$attribute:meta])*
        $type:ident { $($field:ident = $name:literal ($($argument:ty),*);)+ }
    ) => {
        $(#[$attribute])*
        struct $type {
            $($field: unsafe extern "C" fn($($argument),*) -> c_int,)+
        }

        impl $type {
            /// # Safety
            /// The library's functions have the types of the driver's header, and the library stays
            /// loaded.
            unsafe fn load(library: &Library) -> std::result::Result<$type, libloading::Error> {
                Ok($type {
                    $(
                        // SAFETY: the caller promises the types, and that the library stays loaded.
                        $field: *unsafe { library.get($name) }?,
                    )+
                })
            }
        }
    };
}

functions! {
    /// What every driver has.
    Functions {
        init = "cuInit" (c_uint);
        device_get_count = "cuDeviceGetCount" (*mut c_int);
        device_get = "cuDeviceGet" (*mut c_int, c_int);
        device_get_name = "cuDeviceGetName" (*mut c_char, c_int, c_int);
        primary_retain = "cuDevicePrimaryCtxRetain" (*mut Context, c_int);
        primary_release = "cuDevicePrimaryCtxRelease_v2" (c_int);
        ctx_create = "cuCtxCreate_v2" (*mut Context, c_uint, c_int);
        ctx_destroy = "cuCtxDestroy_v2" (Context);
        ctx_push = "cuCtxPushCurrent_v2" (Context);
        ctx_pop = "cuCtxPopCurrent_v2" (*mut Context);
        host_register = "cuMemHostRegister_v2" (*mut c_void, usize, c_uint);
        host_unregister = "cuMemHostUnregister" (*mut c_void);
        host_alloc = "cuMemHostAlloc" (*mut *mut c_void, usize, c_uint);
        host_free = "cuMemFreeHost" (*mut c_void);
        device_alloc = "cuMemAlloc_v2" (*mut DevicePointer, usize);
        device_free = "cuMemFree_v2" (DevicePointer);
        copy_to_device = "cuMemcpyHtoDAsync_v2" (DevicePointer, *const c_void, usize, Stream);
        copy_from_device = "cuMemcpyDtoHAsync_v2" (*mut c_void, DevicePointer, usize, Stream);
        stream_create = "cuStreamCreate" (*mut Stream, c_uint);
        stream_synchronize = "cuStreamSynchronize" (Stream);
        stream_destroy = "cuStreamDestroy_v2" (Stream);
        error_name = "cuGetErrorName" (c_int, *mut *const c_char);
    }
}

functions! {
    /// Memory of a NUMA node of the host, since CUDA 12.
    NodeFunctions {
        granularity = "cuMemGetAllocationGranularity" (*mut usize, *const NodeProperties, c_uint);
        create = "cuMemCreate" (*mut u64, usize, *const NodeProperties, u64);
        release = "cuMemRelease" (u64);
        reserve = "cuMemAddressReserve" (*mut DevicePointer, usize, usize, DevicePointer, u64);
        free_addresses = "cuMemAddressFree" (DevicePointer, usize);
        map = "cuMemMap" (DevicePointer, usize, usize, u64, u64);
        unmap = "cuMemUnmap" (DevicePointer, usize);
        set_access = "cuMemSetAccess" (DevicePointer, usize, *const NodeAccess, usize);
    }
}

/// `CUmemLocation`.
#[repr(C)]
#[derive(Clone, Copy)]
struct Location {
    kind: c_int,
    id: c_int,
}

/// The GPU.
const DEVICE: c_int = 1;
/// A NUMA node of the host.
const HOST_NUMA: c_int = 3;

/// `CUmemAllocationProp`.
#[repr(C)]
struct NodeProperties {
    kind: c_int,
    handle_types: c_int,
    location: Location,
    handle_meta_data: *mut c_void,
    flags: [u8; 8],
}

/// `CUmemAccessDesc`.
#[repr(C)]
struct NodeAccess {
    location: Location,
    flags: c_int,
}

/// The first GPU, its primary context, and contexts of its own.
pub(super) struct Gpu {
    functions: Functions,
    node_functions: Option<NodeFunctions>,
    device: c_int,
    model: String,
    primary: Context,
}

// SAFETY: all threads may call the driver's functions concurrently, and a context may be current
// in several of them.
unsafe impl Send for Gpu {}
// SAFETY: all threads may call the driver's functions concurrently, and a context may be current
// in several of them.
unsafe impl Sync for Gpu {}

impl Gpu {
    /// Loads the library, starts the driver, and retains the primary context of the first GPU.
    ///
    /// # Safety
    /// If the file is a library with these functions, they behave like those of the CUDA driver.
    pub(super) unsafe fn open(library: &OsStr) -> std::result::Result<Arc<Gpu>, String> {
        // SAFETY: the caller's promise.
        let library = unsafe { Library::new(library) }
            .map_err(|error| format!("no library: {}", loader_error(&error)))?;
        // SAFETY: the caller's promise; the library stays loaded, see below.
        let functions =
            unsafe { Functions::load(&library) }.map_err(|error| loader_error(&error))?;
        // SAFETY: as above. Older drivers lack them.
        let node_functions = unsafe { NodeFunctions::load(&library) }.ok();
        // The driver has threads, and handlers for the end of the process.
        std::mem::forget(library);
        let mut gpu = Gpu {
            functions,
            node_functions,
            device: 0,
            model: String::new(),
            primary: ptr::null_mut(),
        };
        gpu.start().map_err(|error| format!("no GPU: {error}"))?;
        Ok(Arc::new(gpu))
    }

    fn start(&mut self) -> Result<()> {
        let (mut count, mut name) = (0, [0_u8; 256]);
        // SAFETY: 0 is the only valid argument.
        self.check("cuInit", unsafe { (self.functions.init)(0) })?;
        // SAFETY: the call stores a number at `count`.
        let result = unsafe { (self.functions.device_get_count)(&mut count) };
        self.check("cuDeviceGetCount", result)?;
        ensure!(count > 0, "the driver finds none");
        // SAFETY: the call stores a number at the device.
        let result = unsafe { (self.functions.device_get)(&mut self.device, 0) };
        self.check("cuDeviceGet", result)?;
        // SAFETY: the call writes at most as many bytes as the array has, without the last one,
        // which stays zero.
        let result = unsafe {
            (self.functions.device_get_name)(
                name.as_mut_ptr().cast(),
                name.len() as c_int - 1,
                self.device,
            )
        };
        self.check("cuDeviceGetName", result)?;
        let name = CStr::from_bytes_until_nul(&name).expect("the last byte is zero");
        self.model = name.to_string_lossy().into_owned();
        // SAFETY: the call stores a context.
        let result = unsafe { (self.functions.primary_retain)(&mut self.primary, self.device) };
        self.check("cuDevicePrimaryCtxRetain", result)
    }

    /// Returns the name of the GPU's model.
    pub(super) fn model(&self) -> &str {
        &self.model
    }

    fn check(&self, call: &'static str, code: c_int) -> Result<()> {
        if code == 0 {
            return Ok(());
        }
        let mut name = ptr::null();
        // SAFETY: the call stores a pointer to a text that is never freed, or NULL.
        let known = unsafe { (self.functions.error_name)(code, &mut name) } == 0 && !name.is_null();
        let name = if known {
            // SAFETY: the driver's text ends with a zero.
            unsafe { CStr::from_ptr(name) }.to_string_lossy().into_owned()
        } else {
            String::new()
        };
        Err(Declined::by(format_args!("{call} returned {code} {name}")))
    }

    /// Makes the primary context current in this thread until the guard is dropped.
    pub(super) fn enter(&self) -> Result<Entered<'_>> {
        self.enter_context(self.primary)
    }

    fn enter_context(&self, context: Context) -> Result<Entered<'_>> {
        // SAFETY: the context lives as long as `self`, or as the `OwnContext` that is entered.
        self.check("cuCtxPushCurrent", unsafe { (self.functions.ctx_push)(context) })?;
        Ok(Entered(self))
    }

    /// Makes a context of its own on the GPU.
    pub(super) fn own_context(self: &Arc<Self>) -> Result<OwnContext> {
        let mut context = ptr::null_mut();
        // SAFETY: the call stores a context.
        let result = unsafe { (self.functions.ctx_create)(&mut context, 0, self.device) };
        self.check("cuCtxCreate", result)?;
        let own = OwnContext { gpu: Arc::clone(self), context };
        let mut popped = ptr::null_mut();
        // SAFETY: a new context is current in the thread that makes it; this removes it.
        self.check("cuCtxPopCurrent", unsafe { (self.functions.ctx_pop)(&mut popped) })?;
        Ok(own)
    }

    /// Pins memory and registers it with the current context.
    ///
    /// # Safety
    /// The bytes stay mapped until they are unregistered.
    pub(super) unsafe fn register(&self, at: *mut u8, len: usize) -> Result<()> {
        // SAFETY: the caller's promise; the driver checks address and length.
        let result = unsafe { (self.functions.host_register)(at.cast(), len, FLAGS) };
        self.check("cuMemHostRegister", result)
    }

    /// Unregisters memory.
    ///
    /// # Safety
    /// It was registered at this address, and no copy uses it.
    pub(super) unsafe fn unregister(&self, at: *mut u8) -> Result<()> {
        // SAFETY: the caller's promise.
        let result = unsafe { (self.functions.host_unregister)(at.cast()) };
        self.check("cuMemHostUnregister", result)
    }

    /// Allocates pinned memory.
    pub(super) fn allocate(self: &Arc<Self>, len: usize) -> Result<DriverBytes> {
        let mut base = ptr::null_mut();
        // SAFETY: the call stores an address.
        let result = unsafe { (self.functions.host_alloc)(&mut base, len, FLAGS) };
        self.check("cuMemHostAlloc", result)?;
        Ok(DriverBytes { gpu: Arc::clone(self), base: base.cast() })
    }

    /// Allocates memory of the host's first NUMA node, which the GPU can access.
    pub(super) fn allocate_on_node(self: &Arc<Self>, len: usize) -> Result<NodeBytes> {
        let Some(functions) = &self.node_functions else {
            return Err(Declined::by("this driver has no cuMemCreate on a NUMA node of the host"));
        };
        let location = Location { kind: HOST_NUMA, id: 0 };
        let properties = NodeProperties {
            kind: 1,
            handle_types: 0,
            location,
            handle_meta_data: ptr::null_mut(),
            flags: [0; 8],
        };
        let mut granularity = 0;
        // SAFETY: the call reads the properties and stores a number.
        let result = unsafe { (functions.granularity)(&mut granularity, &properties, 0) };
        self.check("cuMemGetAllocationGranularity", result)?;
        let len = len.next_multiple_of(granularity.max(1));
        // From here on, dropping gives back what there is.
        let mut bytes =
            NodeBytes { gpu: Arc::clone(self), base: 0, len, handle: None, mapped: false };
        // SAFETY: the call stores an address; any is right.
        let result = unsafe { (functions.reserve)(&mut bytes.base, len, 0, 0, 0) };
        self.check("cuMemAddressReserve", result)?;
        let mut handle = 0;
        // SAFETY: the call reads the properties and stores a handle.
        let result = unsafe { (functions.create)(&mut handle, len, &properties, 0) };
        self.check("cuMemCreate", result)?;
        bytes.handle = Some(handle);
        // SAFETY: the addresses are reserved, unused, and as many as the handle has bytes.
        let result = unsafe { (functions.map)(bytes.base, len, 0, handle, 0) };
        self.check("cuMemMap", result)?;
        bytes.mapped = true;
        let device = Location { kind: DEVICE, id: self.device };
        let access = [location, device].map(|location| NodeAccess { location, flags: 3 });
        // SAFETY: the call reads two descriptions.
        let result = unsafe { (functions.set_access)(bytes.base, len, access.as_ptr(), 2) };
        self.check("cuMemSetAccess", result)?;
        Ok(bytes)
    }

    /// Allocates memory of the GPU, with a stream for copies.
    pub(super) fn device_bytes(self: &Arc<Self>, len: usize) -> Result<DeviceBytes> {
        let _current = self.enter()?;
        let mut base = 0;
        // SAFETY: the call stores an address on the GPU.
        let result = unsafe { (self.functions.device_alloc)(&mut base, len) };
        self.check("cuMemAlloc", result)?;
        let mut bytes = DeviceBytes { gpu: Arc::clone(self), base, len, stream: ptr::null_mut() };
        // SAFETY: the call stores a stream.
        let result = unsafe { (self.functions.stream_create)(&mut bytes.stream, 0) };
        self.check("cuStreamCreate", result)?;
        Ok(bytes)
    }
}

/// Returns the loader's own words.
fn loader_error(error: &libloading::Error) -> String {
    error.source().map_or_else(|| error.to_string(), ToString::to_string)
}

impl Drop for Gpu {
    fn drop(&mut self) {
        if !self.primary.is_null() {
            // SAFETY: it was retained once. An error has no remedy here.
            unsafe { (self.functions.primary_release)(self.device) };
        }
    }
}

/// A context that is current in this thread.
pub(super) struct Entered<'a>(&'a Gpu);

impl Drop for Entered<'_> {
    fn drop(&mut self) {
        let mut context = ptr::null_mut();
        // SAFETY: the call stores the context that this guard has pushed.
        unsafe { (self.0.functions.ctx_pop)(&mut context) };
    }
}

/// A context besides the primary one.
pub(super) struct OwnContext {
    gpu: Arc<Gpu>,
    context: Context,
}

// SAFETY: a context may be used by any thread, also by several at once.
unsafe impl Send for OwnContext {}
// SAFETY: a context may be used by any thread, also by several at once.
unsafe impl Sync for OwnContext {}

impl OwnContext {
    /// Makes it current in this thread until the guard is dropped.
    pub(super) fn enter(&self) -> Result<Entered<'_>> {
        self.gpu.enter_context(self.context)
    }
}

impl Drop for OwnContext {
    fn drop(&mut self) {
        // SAFETY: it is current in no thread: a guard borrows `self`.
        unsafe { (self.gpu.functions.ctx_destroy)(self.context) };
    }
}

/// Pinned memory of the driver.
pub(super) struct DriverBytes {
    gpu: Arc<Gpu>,
    base: *mut u8,
}

impl DriverBytes {
    pub(super) fn base(&self) -> *mut u8 {
        self.base
    }
}

impl Drop for DriverBytes {
    fn drop(&mut self) {
        let Ok(_current) = self.gpu.enter() else { return };
        // SAFETY: it was allocated by `cuMemHostAlloc`, and no copy uses it.
        unsafe { (self.gpu.functions.host_free)(self.base.cast()) };
    }
}

/// Memory of a NUMA node.
pub(super) struct NodeBytes {
    gpu: Arc<Gpu>,
    base: DevicePointer,
    len: usize,
    handle: Option<u64>,
    mapped: bool,
}

impl NodeBytes {
    pub(super) fn base(&self) -> *mut u8 {
        // The address is the same for the host and for the GPU.
        ptr::with_exposed_provenance_mut(self.base as usize)
    }
}

impl Drop for NodeBytes {
    fn drop(&mut self) {
        let Some(functions) = &self.gpu.node_functions else { return };
        // SAFETY: each step undoes one that has succeeded, in reverse order, and no copy uses the
        // memory.
        unsafe {
            if self.mapped {
                (functions.unmap)(self.base, self.len);
            }
            if let Some(handle) = self.handle {
                (functions.release)(handle);
            }
            if self.base != 0 {
                (functions.free_addresses)(self.base, self.len);
            }
        }
    }
}

/// Memory of the GPU.
pub(super) struct DeviceBytes {
    gpu: Arc<Gpu>,
    base: DevicePointer,
    len: usize,
    stream: Stream,
}

/// The direction of a copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Direction {
    ToDevice,
    FromDevice,
}

impl DeviceBytes {
    /// Starts copies of `len` bytes each, between the places of the host and as many places one
    /// behind the other on the GPU, and waits for all.
    ///
    /// # Safety
    /// Each place has `len` bytes, which nobody else uses meanwhile.
    pub(super) unsafe fn copy(
        &self,
        direction: Direction,
        places: &[*mut u8],
        len: usize,
    ) -> Result<()> {
        assert!(places.len() * len <= self.len, "the GPU's memory has room for all");
        let functions = &self.gpu.functions;
        let mut outcome = Ok(());
        for (number, place) in places.iter().enumerate() {
            let at = self.base + (number * len) as u64;
            let started = match direction {
                Direction::ToDevice => {
                    // SAFETY: both have `len` bytes, and live until the stream is synchronized.
                    let result =
                        unsafe { (functions.copy_to_device)(at, place.cast(), len, self.stream) };
                    self.gpu.check("cuMemcpyHtoDAsync", result)
                }
                Direction::FromDevice => {
                    // SAFETY: as above; nobody else reads or writes the bytes.
                    let result =
                        unsafe { (functions.copy_from_device)(place.cast(), at, len, self.stream) };
                    self.gpu.check("cuMemcpyDtoHAsync", result)
                }
            };
            if started.is_err() {
                outcome = started;
                break;
            }
        }
        // Also after a failure: copies that were started use the memory.
        // SAFETY: the stream lives as long as `self`.
        let result = unsafe { (functions.stream_synchronize)(self.stream) };
        outcome.and(self.gpu.check("cuStreamSynchronize", result))
    }
}

impl Drop for DeviceBytes {
    fn drop(&mut self) {
        let Ok(_current) = self.gpu.enter() else { return };
        // SAFETY: `copy` waits for all copies, so nothing uses the stream or the memory.
        unsafe {
            if !self.stream.is_null() {
                (self.gpu.functions.stream_destroy)(self.stream);
            }
            (self.gpu.functions.device_free)(self.base);
        }
    }
}
