//! *ABI*: the part of `libnixl_capi.so` that registering needs, as NIXL's `wrapper.h` has it (1.5;
//! later called `nixl_capi.h`).
//!
//! NIXL calls its C ABI experimental. What is used here are pointers, numbers and strings only: the
//! one structure that agents can be configured by has changed its layout between releases, and is
//! left alone. Libraries from before NIXL 1.0, whose lists of descriptors took an argument more,
//! are told by a function that they have and later ones have not.

use std::ffi::{c_char, c_int, c_uint, c_void};
use std::path::Path;

use crate::sys::Library;

/// `nixl_capi_status_t`.
pub(super) type Status = c_int;
/// `nixl_capi_mem_type_t`.
pub(super) type MemType = c_uint;

pub(super) const SUCCESS: Status = 0;
/// Memory of the host.
pub(super) const DRAM: MemType = 0;

/// Objects of the library, seen through its functions only.
macro_rules! opaque {
    ($($(#[$doc:meta])* $name:ident;)*) => {
        $(
            $(#[$doc])*
            #[repr(C)]
            pub(super) struct $name {
                _opaque: [u8; 0],
            }
        )*
    };
}

opaque! {
    /// `struct nixl_capi_agent_s`.
    RawAgent;
    /// `struct nixl_capi_backend_s`.
    RawBackend;
    /// `struct nixl_capi_opt_args_s`: which backend a call is for.
    OptArgs;
    /// `struct nixl_capi_params_s`: settings of a backend.
    Params;
    /// `struct nixl_capi_mem_list_s`: kinds of memory.
    MemList;
    /// `struct nixl_capi_string_list_s`.
    StringList;
    /// `struct nixl_capi_reg_dlist_s`: descriptors of memory to be registered.
    RegList;
}

/// A function that ends an object.
pub(super) type Destroy<T> = unsafe extern "C" fn(*mut T) -> Status;

/// The functions, and the library that holds them.
pub(super) struct Abi {
    pub(super) create_agent: unsafe extern "C" fn(*const c_char, *mut *mut RawAgent) -> Status,
    pub(super) destroy_agent: Destroy<RawAgent>,
    pub(super) get_available_plugins:
        unsafe extern "C" fn(*mut RawAgent, *mut *mut StringList) -> Status,
    pub(super) string_list_size: unsafe extern "C" fn(*mut StringList, *mut usize) -> Status,
    pub(super) string_list_get:
        unsafe extern "C" fn(*mut StringList, usize, *mut *const c_char) -> Status,
    pub(super) destroy_string_list: Destroy<StringList>,
    pub(super) get_plugin_params: unsafe extern "C" fn(
        *mut RawAgent,
        *const c_char,
        *mut *mut MemList,
        *mut *mut Params,
    ) -> Status,
    pub(super) mem_list_size: unsafe extern "C" fn(*mut MemList, *mut usize) -> Status,
    pub(super) mem_list_get: unsafe extern "C" fn(*mut MemList, usize, *mut MemType) -> Status,
    pub(super) destroy_mem_list: Destroy<MemList>,
    /// Since NIXL 1.1 or so.
    pub(super) params_add:
        Option<unsafe extern "C" fn(*mut Params, *const c_char, *const c_char) -> Status>,
    pub(super) destroy_params: Destroy<Params>,
    pub(super) create_backend: unsafe extern "C" fn(
        *mut RawAgent,
        *const c_char,
        *mut Params,
        *mut *mut RawBackend,
    ) -> Status,
    /// Ends the handle. The backend itself goes with its agent.
    pub(super) destroy_backend: Destroy<RawBackend>,
    pub(super) create_opt_args: unsafe extern "C" fn(*mut *mut OptArgs) -> Status,
    pub(super) opt_args_add_backend: unsafe extern "C" fn(*mut OptArgs, *mut RawBackend) -> Status,
    pub(super) destroy_opt_args: Destroy<OptArgs>,
    pub(super) create_reg_dlist: unsafe extern "C" fn(MemType, *mut *mut RegList) -> Status,
    /// List, address, bytes, device, and bytes that mean something to the backend.
    pub(super) reg_dlist_add_desc:
        unsafe extern "C" fn(*mut RegList, usize, usize, u64, *const c_void, usize) -> Status,
    pub(super) destroy_reg_dlist: Destroy<RegList>,
    pub(super) register_mem:
        unsafe extern "C" fn(*mut RawAgent, *mut RegList, *mut OptArgs) -> Status,
    pub(super) deregister_mem:
        unsafe extern "C" fn(*mut RawAgent, *mut RegList, *mut OptArgs) -> Status,
    pub(super) get_local_md:
        unsafe extern "C" fn(*mut RawAgent, *mut *mut c_void, *mut usize) -> Status,
    /// Frees what `get_local_md` has given. Libraries without it give what `free` takes.
    pub(super) mem_free: unsafe extern "C" fn(*mut c_void),
    // Goes last: the functions above are part of it.
    library: Option<Library>,
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
        // SAFETY: it is not called.
        let sorted =
            unsafe { library.symbol::<unsafe extern "C" fn()>(c"nixl_capi_reg_dlist_is_sorted") };
        if sorted.is_ok() {
            return Err(format!(
                "{} is of a NIXL before 1.0, which has another ABI",
                path.display()
            ));
        }
        Ok(Abi {
            create_agent: function!(c"nixl_capi_create_agent")?,
            destroy_agent: function!(c"nixl_capi_destroy_agent")?,
            get_available_plugins: function!(c"nixl_capi_get_available_plugins")?,
            string_list_size: function!(c"nixl_capi_string_list_size")?,
            string_list_get: function!(c"nixl_capi_string_list_get")?,
            destroy_string_list: function!(c"nixl_capi_destroy_string_list")?,
            get_plugin_params: function!(c"nixl_capi_get_plugin_params")?,
            mem_list_size: function!(c"nixl_capi_mem_list_size")?,
            mem_list_get: function!(c"nixl_capi_mem_list_get")?,
            destroy_mem_list: function!(c"nixl_capi_destroy_mem_list")?,
            params_add: function!(c"nixl_capi_params_add").ok(),
            destroy_params: function!(c"nixl_capi_destroy_params")?,
            create_backend: function!(c"nixl_capi_create_backend")?,
            destroy_backend: function!(c"nixl_capi_destroy_backend")?,
            create_opt_args: function!(c"nixl_capi_create_opt_args")?,
            opt_args_add_backend: function!(c"nixl_capi_opt_args_add_backend")?,
            destroy_opt_args: function!(c"nixl_capi_destroy_opt_args")?,
            create_reg_dlist: function!(c"nixl_capi_create_reg_dlist")?,
            reg_dlist_add_desc: function!(c"nixl_capi_reg_dlist_add_desc")?,
            destroy_reg_dlist: function!(c"nixl_capi_destroy_reg_dlist")?,
            register_mem: function!(c"nixl_capi_register_mem")?,
            deregister_mem: function!(c"nixl_capi_deregister_mem")?,
            get_local_md: function!(c"nixl_capi_get_local_md")?,
            mem_free: function!(c"nixl_capi_mem_free").unwrap_or(libc::free),
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
            .field("takes_parameters", &self.params_add.is_some())
            .finish_non_exhaustive()
    }
}
