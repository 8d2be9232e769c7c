//! *ABI*: the part of `libnixl_capi.so` that registering needs, as declared in NIXL's `wrapper.h`
//! (1.5; later called `nixl_capi.h`).
//!
//! NIXL calls its C ABI experimental. Only pointers, numbers and strings are used here: the one
//! structure that configures agents has changed its layout between releases, and is not used.
//! Libraries before NIXL 1.0, whose lists of descriptors took one more argument, are recognized by
//! a function that later ones do not have.

use std::ffi::{c_char, c_int, c_uint, c_void};
use std::path::Path;

use crate::sys::Library;

/// `nixl_capi_status_t`.
pub(super) type Status = c_int;
/// `nixl_capi_mem_type_t`.
pub(super) type MemType = c_uint;

pub(super) const SUCCESS: Status = 0;
/// Host memory.
pub(super) const DRAM: MemType = 0;

/// Defines opaque types of the library.
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
    /// `struct nixl_capi_opt_args_s`: the backend of a call.
    OptArgs;
    /// `struct nixl_capi_params_s`: the settings of a backend.
    Params;
    /// `struct nixl_capi_mem_list_s`: kinds of memory.
    MemList;
    /// `struct nixl_capi_string_list_s`.
    StringList;
    /// `struct nixl_capi_reg_dlist_s`: descriptors of memory to register.
    RegList;
}

/// A function that destroys an object.
pub(super) type Destroy<T> = unsafe extern "C" fn(*mut T) -> Status;

/// The functions, and the library that contains them.
pub(super) struct NixlAbi {
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
    /// Since about NIXL 1.1.
    pub(super) params_add:
        Option<unsafe extern "C" fn(*mut Params, *const c_char, *const c_char) -> Status>,
    pub(super) destroy_params: Destroy<Params>,
    pub(super) create_backend: unsafe extern "C" fn(
        *mut RawAgent,
        *const c_char,
        *mut Params,
        *mut *mut RawBackend,
    ) -> Status,
    /// Destroys the handle. The backend itself is destroyed with its agent.
    pub(super) destroy_backend: Destroy<RawBackend>,
    pub(super) create_opt_args: unsafe extern "C" fn(*mut *mut OptArgs) -> Status,
    pub(super) opt_args_add_backend: unsafe extern "C" fn(*mut OptArgs, *mut RawBackend) -> Status,
    pub(super) destroy_opt_args: Destroy<OptArgs>,
    pub(super) create_reg_dlist: unsafe extern "C" fn(MemType, *mut *mut RegList) -> Status,
    /// Takes the list, address, bytes, device, and metadata for the backend with its length.
    pub(super) reg_dlist_add_desc:
        unsafe extern "C" fn(*mut RegList, usize, usize, u64, *const c_void, usize) -> Status,
    pub(super) destroy_reg_dlist: Destroy<RegList>,
    pub(super) register_mem:
        unsafe extern "C" fn(*mut RawAgent, *mut RegList, *mut OptArgs) -> Status,
    pub(super) deregister_mem:
        unsafe extern "C" fn(*mut RawAgent, *mut RegList, *mut OptArgs) -> Status,
    pub(super) get_local_md:
        unsafe extern "C" fn(*mut RawAgent, *mut *mut c_void, *mut usize) -> Status,
    /// Frees the result of `get_local_md`. Libraries without this function allocate it with
    /// `malloc`.
    pub(super) mem_free: unsafe extern "C" fn(*mut c_void),
    // Dropped last: the functions above are part of it.
    library: Option<Library>,
}

impl NixlAbi {
    /// Loads the library and finds its functions, or says what is missing.
    ///
    /// # Safety
    /// If the file is a library with these functions, it has this ABI. The code that runs when it
    /// is loaded and unloaded is sound.
    pub(super) unsafe fn load(path: &Path) -> Result<NixlAbi, String> {
        // SAFETY: the caller promises that the code that runs when the library is loaded and
        // unloaded is sound.
        let library = unsafe { Library::open(path) }?;
        macro_rules! function {
            ($name:literal) => {
                // SAFETY: the field that receives the function has the type of the header, which
                // the caller promises for this library. The library is stored with it, or never
                // unloaded.
                unsafe { library.symbol($name) }
            };
        }
        // SAFETY: the function is not called, so its type does not matter.
        let sorted =
            unsafe { library.symbol::<unsafe extern "C" fn()>(c"nixl_capi_reg_dlist_is_sorted") };
        if sorted.is_ok() {
            return Err(format!(
                "{} is from a NIXL before 1.0, which has another ABI: install 1.0 or later",
                path.display()
            ));
        }
        Ok(NixlAbi {
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

    /// Keeps the library loaded for the life of the process.
    pub(super) fn keep(&mut self) {
        if let Some(library) = self.library.take() {
            library.keep();
        }
    }
}

impl std::fmt::Debug for NixlAbi {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("NixlAbi")
            .field("takes_parameters", &self.params_add.is_some())
            .finish_non_exhaustive()
    }
}
