//! *ABI*: the part of `libibverbs.so.1` that registering needs, as rdma-core's `infiniband/verbs.h`
//! has it.
//!
//! The library keeps this ABI since 2006 (symbol version `IBVERBS_1.1`): structures only grow at
//! their end, and a function that changes gets a new version beside the old one. What is read here
//! is held against the layout of the header when this is compiled.

use std::ffi::{c_char, c_int, c_uint, c_void};
use std::mem::offset_of;
use std::path::Path;
use std::ptr::NonNull;

use crate::sys::Library;

/// `struct ibv_device`, seen through its functions only.
#[repr(C)]
pub(super) struct Device {
    _opaque: [u8; 0],
}

/// `struct ibv_context`, seen through its functions only.
#[repr(C)]
pub(super) struct Context {
    _opaque: [u8; 0],
}

/// `struct ibv_pd`: a protection domain.
#[repr(C)]
pub(super) struct Pd {
    pub(super) context: *mut Context,
    pub(super) handle: u32,
}

/// `struct ibv_mr`: a memory region, which is what gives the keys.
#[repr(C)]
pub(super) struct Mr {
    pub(super) context: *mut Context,
    pub(super) pd: *mut Pd,
    pub(super) addr: *mut c_void,
    pub(super) length: usize,
    pub(super) handle: u32,
    pub(super) lkey: u32,
    pub(super) rkey: u32,
}

/// `struct ibv_device_attr`: what a device can do. What is not read is named by its extent alone.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct DeviceAttr {
    _fw_ver: [u8; 64],
    _guids: [u64; 2],
    pub(super) max_mr_size: u64,
    _page_size_cap: u64,
    _vendor_id_to_hw_ver: [u32; 3],
    _max_qp_to_max_cqe: [c_int; 7],
    pub(super) max_mr: c_int,
    _max_pd_to_max_srq_sge: [c_int; 21],
    _max_pkeys: u16,
    _local_ca_ack_delay: u8,
    _phys_port_cnt: u8,
}

impl DeviceAttr {
    /// To be filled.
    pub(super) const EMPTY: DeviceAttr = DeviceAttr {
        _fw_ver: [0; 64],
        _guids: [0; 2],
        max_mr_size: 0,
        _page_size_cap: 0,
        _vendor_id_to_hw_ver: [0; 3],
        _max_qp_to_max_cqe: [0; 7],
        max_mr: 0,
        _max_pd_to_max_srq_sge: [0; 21],
        _max_pkeys: 0,
        _local_ca_ack_delay: 0,
        _phys_port_cnt: 0,
    };
}

// The header's layout on 64-bit machines.
#[cfg(target_pointer_width = "64")]
const _: () = {
    assert!(size_of::<Pd>() == 16 && offset_of!(Pd, context) == 0 && offset_of!(Pd, handle) == 8);
    assert!(size_of::<Mr>() == 48 && align_of::<Mr>() == 8);
    assert!(offset_of!(Mr, context) == 0 && offset_of!(Mr, pd) == 8);
    assert!(offset_of!(Mr, addr) == 16 && offset_of!(Mr, length) == 24);
    assert!(
        offset_of!(Mr, handle) == 32 && offset_of!(Mr, lkey) == 36 && offset_of!(Mr, rkey) == 40
    );
    assert!(size_of::<DeviceAttr>() == 232 && align_of::<DeviceAttr>() == 8);
    assert!(offset_of!(DeviceAttr, max_mr_size) == 80 && offset_of!(DeviceAttr, max_mr) == 136);
    assert!(offset_of!(DeviceAttr, _phys_port_cnt) == 227);
};

/// The functions, and the library that holds them.
pub(super) struct Abi {
    /// `NULL` and `errno`, or a list that ends with `NULL`.
    pub(super) get_device_list: unsafe extern "C" fn(*mut c_int) -> *mut *mut Device,
    pub(super) free_device_list: unsafe extern "C" fn(*mut *mut Device),
    pub(super) get_device_name: unsafe extern "C" fn(*mut Device) -> *const c_char,
    /// `NULL` and `errno`.
    pub(super) open_device: unsafe extern "C" fn(*mut Device) -> *mut Context,
    pub(super) close_device: unsafe extern "C" fn(*mut Context) -> c_int,
    /// Returns an error number.
    pub(super) query_device: unsafe extern "C" fn(*mut Context, *mut DeviceAttr) -> c_int,
    /// `NULL` and `errno`.
    pub(super) alloc_pd: unsafe extern "C" fn(*mut Context) -> *mut Pd,
    /// Returns an error number.
    pub(super) dealloc_pd: unsafe extern "C" fn(*mut Pd) -> c_int,
    /// `NULL` and `errno`.
    pub(super) reg_mr: unsafe extern "C" fn(*mut Pd, *mut c_void, usize, c_int) -> *mut Mr,
    /// The same that takes flags of the optional range, and an address by which the device is to
    /// know the memory. Since rdma-core 28 (`IBVERBS_1.8`).
    pub(super) reg_mr_iova2:
        Option<unsafe extern "C" fn(*mut Pd, *mut c_void, usize, u64, c_uint) -> *mut Mr>,
    /// Returns an error number.
    pub(super) dereg_mr: unsafe extern "C" fn(*mut Mr) -> c_int,
    // Goes last: the functions above are part of it.
    library: Library,
}

impl Abi {
    /// Loads the library and finds its functions; or says what is missing.
    ///
    /// # Safety
    /// The file has this ABI, if it is a library at all and has the functions.
    pub(super) unsafe fn load(path: &Path) -> Result<Abi, String> {
        // SAFETY: the caller's promise.
        let library =
            unsafe { Library::open(path) }.map_err(|said| format!("no library: {said}"))?;
        macro_rules! function {
            ($name:literal) => {
                // SAFETY: the header's type stands in the field that this goes into, and the
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
        Ok(Abi {
            get_device_list: function!(c"ibv_get_device_list")?,
            free_device_list: function!(c"ibv_free_device_list")?,
            get_device_name: function!(c"ibv_get_device_name")?,
            open_device: function!(c"ibv_open_device")?,
            close_device: function!(c"ibv_close_device")?,
            query_device: function!(c"ibv_query_device")?,
            alloc_pd: function!(c"ibv_alloc_pd")?,
            dealloc_pd: function!(c"ibv_dealloc_pd")?,
            reg_mr: function!(c"ibv_reg_mr")?,
            reg_mr_iova2: function!(c"ibv_reg_mr_iova2").ok(),
            dereg_mr: function!(c"ibv_dereg_mr")?,
            library,
        })
    }

    /// The memory region behind a pointer that `reg_mr` has returned.
    ///
    /// # Safety
    /// It was returned by this library and not given back.
    pub(super) unsafe fn keys(&self, mr: NonNull<Mr>) -> (u32, u32) {
        // SAFETY: the caller's promise. The fields are read one by one: the rest of the structure
        // is the driver's.
        unsafe { ((*mr.as_ptr()).lkey, (*mr.as_ptr()).rkey) }
    }
}

impl std::fmt::Debug for Abi {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.library.fmt(f)
    }
}
