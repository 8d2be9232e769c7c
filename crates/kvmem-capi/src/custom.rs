//! *Custom registrar*: a consumer of memory that the program implements.

use std::ffi::{c_char, c_int, c_void};
use std::fmt;
use std::ptr::NonNull;
use std::sync::Arc;

use kvmem::arena::Errno;
use kvmem::register::{Key, Limits, Registrar, RegistrarError};

use crate::argument::{In, Out};
use crate::call::guard;
use crate::error::CallError;
use crate::key::kvmem_key;
use crate::options::check_struct_size;
use crate::registrars::{Registrars, kvmem_registrars};
use crate::status::kvmem_status;
use crate::user_data::UserData;

/// A registrar that the program implements: a NIC's protection domain, a transfer engine.
///
/// Any thread calls the functions, one call at a time for each registrar. They must return (no
/// longjmp, no C++ exception). `register_bytes` and `deregister` return 0, or an errno. On an
/// errno, nothing is pinned, or the key stays valid.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct kvmem_registrar_callbacks {
    /// Size of this structure in bytes, as the program knows it.
    pub struct_size: u64,
    /// Name of the registrar. Two registrars of one region must have different names. Copied.
    pub name: In<c_char>,
    /// Largest number of bytes that one key covers; 0: no limit.
    pub max_key_bytes: u64,
    /// Number of keys that the registrar can give; 0: no limit.
    pub max_keys: u64,
    /// Passed to the functions.
    pub user: *mut c_void,
    /// Pins `bytes` bytes at `data` and writes the key to `out_key`.
    pub register_bytes: Option<
        unsafe extern "C" fn(
            user: *mut c_void,
            data: *mut c_void,
            bytes: u64,
            out_key: *mut kvmem_key,
        ) -> c_int,
    >,
    /// Takes a key back.
    pub deregister: Option<unsafe extern "C" fn(user: *mut c_void, key: *const kvmem_key) -> c_int>,
    /// Called once, when nothing is registered with the registrar any more and no object uses it;
    /// may be NULL.
    pub release: Option<unsafe extern "C" fn(user: *mut c_void)>,
}

/// The program's functions, both of them present.
struct CustomRegistrar {
    name: String,
    limits: Limits,
    register: unsafe extern "C" fn(*mut c_void, *mut c_void, u64, *mut kvmem_key) -> c_int,
    deregister: unsafe extern "C" fn(*mut c_void, *const kvmem_key) -> c_int,
    user_data: UserData,
}

impl fmt::Debug for CustomRegistrar {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CustomRegistrar").field("name", &self.name).finish_non_exhaustive()
    }
}

fn callback_error(call: &'static str, errno: c_int) -> RegistrarError {
    RegistrarError::new(call, Errno::new(errno), "ask the program that implements the registrar")
}

impl Registrar for CustomRegistrar {
    fn name(&self) -> &str {
        &self.name
    }

    fn limits(&self) -> Limits {
        self.limits.clone()
    }

    unsafe fn register(&self, at: NonNull<u8>, len: usize) -> Result<Key, RegistrarError> {
        let mut key = kvmem_key { handle: 0, lkey: 0, rkey: 0, has_rkey: 0 };
        let (user, data) = (self.user_data.pointer(), at.as_ptr().cast());
        // SAFETY: promise 3 of the C caller: the function has this type, and may be called with its
        // user data until `release`; the engine calls those of one registrar one at a time, as the
        // header promises. `key` is a local place for the result. The caller of this function
        // promises that the bytes are mapped.
        match unsafe { (self.register)(user, data, len as u64, &mut key) } {
            0 => Ok(key.into()),
            errno => Err(callback_error("register_bytes", errno)),
        }
    }

    fn deregister(&self, key: Key) -> Result<(), RegistrarError> {
        // SAFETY: as in `register`. The key is a local that lives until the function returns.
        match unsafe { (self.deregister)(self.user_data.pointer(), &key.into()) } {
            0 => Ok(()),
            errno => Err(callback_error("deregister", errno)),
        }
    }
}

/// Makes a list of one registrar that the program implements. The structure is copied. If the call
/// fails, `release` is not called.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvmem_registrars_custom(
    callbacks: In<kvmem_registrar_callbacks>,
    out_registrars: Out<*mut kvmem_registrars>,
) -> kvmem_status {
    guard(|| {
        let made = out_registrars.get("out_registrars")?;
        let callbacks = callbacks.get("callbacks")?;
        check_struct_size::<kvmem_registrar_callbacks>(callbacks.struct_size)?;
        let name = callbacks.name.some_text("name")?.to_owned();
        if name.is_empty() {
            return Err(CallError::invalid(
                "the name is empty: give the registrar a name; keys are requested by it",
            ));
        }
        let limit = |limit: u64| if limit == 0 { u64::MAX } else { limit };
        let custom = Arc::new(CustomRegistrar {
            limits: Limits {
                max_bytes: limit(callbacks.max_key_bytes),
                max_keys: limit(callbacks.max_keys),
                ..Limits::none(&*name)
            },
            name,
            register: callbacks.register_bytes.ok_or(CallError::Null("register_bytes"))?,
            deregister: callbacks.deregister.ok_or(CallError::Null("deregister"))?,
            user_data: UserData::new(callbacks.user, callbacks.release),
        });
        made.insert(Registrars::of(vec![Arc::clone(&custom) as _]))?;
        custom.user_data.own();
        Ok(())
    })
}
