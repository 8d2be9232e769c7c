//! *ABI*: the part of `libibverbs.so.1` that registering needs, as declared in rdma-core's
//! `infiniband/verbs.h`.
//!
//! The library has kept this ABI since 2006 (symbol version `IBVERBS_1.1`): structures only grow at
//! their end, and a changed function gets a new version in addition to the old one. The structures
//! read here are compared with the header's layout at compile time.

use std::ffi::{c_char, c_int, c_uint, c_void};
use std::mem::offset_of;
use std::path::Path;
use std::ptr::NonNull;

use crate::sys::Library;

/// `struct ibv_device`, an opaque type.
#[repr(C)]
pub(super) struct IbvDevice {
    _opaque: [u8; 0],
}

/// `struct ibv_context`, an opaque type.
#[repr(C)]
pub(super) struct IbvContext {
    _opaque: [u8; 0],
}

/// `struct ibv_pd`: a protection domain.
#[repr(C)]
pub(super) struct IbvPd {
    pub(super) context: *mut IbvContext,
    pub(super) handle: u32,
}

/// `struct ibv_mr`: a memory region, which has the keys.
#[repr(C)]
pub(super) struct IbvMr {
    pub(super) context: *mut IbvContext,
    pub(super) pd: *mut IbvPd,
    pub(super) addr: *mut c_void,
    pub(super) length: usize,
    pub(super) handle: u32,
    pub(super) lkey: u32,
    pub(super) rkey: u32,
}

/// `struct ibv_device_attr`: a device's limits. Fields that are not read only keep their place.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct IbvDeviceAttr {
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

impl IbvDeviceAttr {
    /// A structure for the library to fill.
    pub(super) const EMPTY: IbvDeviceAttr = IbvDeviceAttr {
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
    assert!(
        size_of::<IbvPd>() == 16
            && offset_of!(IbvPd, context) == 0
            && offset_of!(IbvPd, handle) == 8
    );
    assert!(size_of::<IbvMr>() == 48 && align_of::<IbvMr>() == 8);
    assert!(offset_of!(IbvMr, context) == 0 && offset_of!(IbvMr, pd) == 8);
    assert!(offset_of!(IbvMr, addr) == 16 && offset_of!(IbvMr, length) == 24);
    assert!(
        offset_of!(IbvMr, handle) == 32
            && offset_of!(IbvMr, lkey) == 36
            && offset_of!(IbvMr, rkey) == 40
    );
    assert!(size_of::<IbvDeviceAttr>() == 232 && align_of::<IbvDeviceAttr>() == 8);
    assert!(
        offset_of!(IbvDeviceAttr, max_mr_size) == 80 && offset_of!(IbvDeviceAttr, max_mr) == 136
    );
    assert!(offset_of!(IbvDeviceAttr, _phys_port_cnt) == 227);
};

/// The functions, and the library that contains them.
pub(super) struct VerbsAbi {
    /// Returns a list that ends with `NULL`, or `NULL` and `errno`.
    pub(super) get_device_list: unsafe extern "C" fn(*mut c_int) -> *mut *mut IbvDevice,
    pub(super) free_device_list: unsafe extern "C" fn(*mut *mut IbvDevice),
    pub(super) get_device_name: unsafe extern "C" fn(*mut IbvDevice) -> *const c_char,
    /// Returns `NULL` and sets `errno` on failure.
    pub(super) open_device: unsafe extern "C" fn(*mut IbvDevice) -> *mut IbvContext,
    pub(super) close_device: unsafe extern "C" fn(*mut IbvContext) -> c_int,
    /// Returns an error number.
    pub(super) query_device: unsafe extern "C" fn(*mut IbvContext, *mut IbvDeviceAttr) -> c_int,
    /// Returns `NULL` and sets `errno` on failure.
    pub(super) alloc_pd: unsafe extern "C" fn(*mut IbvContext) -> *mut IbvPd,
    /// Returns an error number.
    pub(super) dealloc_pd: unsafe extern "C" fn(*mut IbvPd) -> c_int,
    /// Returns `NULL` and sets `errno` on failure.
    pub(super) reg_mr: unsafe extern "C" fn(*mut IbvPd, *mut c_void, usize, c_int) -> *mut IbvMr,
    /// Like `reg_mr`, with flags of the optional range, and with the address by which the device
    /// knows the memory. Since rdma-core 28 (`IBVERBS_1.8`).
    pub(super) reg_mr_iova2:
        Option<unsafe extern "C" fn(*mut IbvPd, *mut c_void, usize, u64, c_uint) -> *mut IbvMr>,
    /// Returns an error number.
    pub(super) dereg_mr: unsafe extern "C" fn(*mut IbvMr) -> c_int,
    // Dropped last: the functions above are part of it.
    library: Library,
}

impl VerbsAbi {
    /// Loads the library and finds its functions, or says what is missing.
    ///
    /// # Safety
    /// If the file is a library with these functions, it has this ABI. The code that runs when it
    /// is loaded and unloaded is sound.
    pub(super) unsafe fn load(path: &Path) -> Result<VerbsAbi, String> {
        // SAFETY: the caller promises that the code that runs when the library is loaded and
        // unloaded is sound.
        let library = unsafe { Library::open(path) }?;
        macro_rules! function {
            ($name:literal) => {
                // SAFETY: the field that receives the function has the type of the header, which
                // the caller promises for this library. The library is stored with it, and is
                // unloaded only when both are dropped.
                unsafe { library.symbol($name) }
            };
        }
        Ok(VerbsAbi {
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

    /// Returns the lkey and rkey of a memory region.
    ///
    /// # Safety
    /// `mr` was returned by `reg_mr` of this library and is not deregistered.
    pub(super) unsafe fn keys(&self, mr: NonNull<IbvMr>) -> (u32, u32) {
        // SAFETY: the caller promises that `mr` is a live memory region of this library, so it
        // points to a structure that begins with `IbvMr`, whose keys are initialized and do not
        // change. The fields are read one by one, without a reference: the rest belongs to the
        // driver.
        unsafe { ((*mr.as_ptr()).lkey, (*mr.as_ptr()).rkey) }
    }
}

impl std::fmt::Debug for VerbsAbi {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.library.fmt(f)
    }
}
