//! *Handle*: an agent with one backend, and the calls that need both.

use std::ffi::{CStr, CString, c_void};
use std::ptr::{NonNull, null, null_mut};
use std::slice;
use std::sync::Arc;

use super::abi::{DRAM, MemList, MemType, NixlAbi, OptArgs, Params, RawAgent, RawBackend, RegList};
use super::failure::{CREATE_AGENT, NixlFailure, check, not_available};
use super::owned::OwnedObject;
use crate::register::NotAvailable;

/// The device number of host memory.
const DEVICE: u64 = 0;

/// An agent with one backend. An agent handles one call at a time, so its calls take `&mut self`.
pub(super) struct AgentHandle {
    abi: Arc<NixlAbi>,
    // Dropped in this order: NIXL requires handles to be destroyed before their agent.
    args: OwnedObject<OptArgs>,
    backend: OwnedObject<RawBackend>,
    agent: OwnedObject<RawAgent>,
}

// SAFETY: NIXL's objects belong to no thread. They must not be used concurrently, so there is no
// `Sync`.
unsafe impl Send for AgentHandle {}

/// Creates an agent.
pub(super) fn agent(abi: &NixlAbi, name: &CStr) -> Result<OwnedObject<RawAgent>, NixlFailure> {
    // SAFETY: `name` ends with a zero and lives during the call. On success the call stores an
    // agent at the output, which has its type, and `destroy_agent` destroys such an agent.
    unsafe {
        OwnedObject::create(CREATE_AGENT, abi.destroy_agent, |agent| {
            (abi.create_agent)(name.as_ptr(), agent)
        })
    }
}

/// Returns the names of the backends that NIXL has plugins for. The plugins are not loaded.
///
/// # Safety
/// The library of `abi` has created the agent.
pub(super) unsafe fn plugins(
    abi: &NixlAbi,
    agent: &OwnedObject<RawAgent>,
) -> Result<Vec<String>, NixlFailure> {
    // SAFETY: the caller promises that the agent is of this library, and `agent` owns it. On
    // success the call stores a list at the output, which has its type, and `destroy_string_list`
    // destroys such a list.
    let list = unsafe {
        OwnedObject::create("nixl_capi_get_available_plugins", abi.destroy_string_list, |list| {
            (abi.get_available_plugins)(agent.raw(), list)
        })
    }?;
    let mut count = 0;
    // SAFETY: `list` owns a list of this library. The call stores a number at `count`, which has
    // its type and is borrowed by this call alone.
    check("nixl_capi_string_list_size", unsafe { (abi.string_list_size)(list.raw(), &mut count) })?;
    let name = |at| {
        let mut name = null();
        // SAFETY: `list` owns a list of this library. The call checks the index and stores a
        // pointer at `name`, which has its type and is borrowed by this call alone.
        check("nixl_capi_string_list_get", unsafe {
            (abi.string_list_get)(list.raw(), at, &mut name)
        })?;
        if name.is_null() {
            return Err(NixlFailure::nothing("nixl_capi_string_list_get"));
        }
        // SAFETY: the name is part of the list, which `list` owns, and ends with a zero. It is
        // copied at once.
        Ok(unsafe { CStr::from_ptr(name) }.to_string_lossy().into_owned())
    };
    (0..count).map(name).collect()
}

/// Returns a backend's default settings, and the kinds of memory that it supports.
///
/// # Safety
/// The library of `abi` has created the agent.
unsafe fn settings(
    abi: &NixlAbi,
    agent: &OwnedObject<RawAgent>,
    backend: &CStr,
) -> Result<(OwnedObject<Params>, OwnedObject<MemList>), NixlFailure> {
    let call = "nixl_capi_get_plugin_params";
    let (mut kinds, mut params) = (null_mut(), null_mut());
    // SAFETY: the caller promises that the agent is of this library, and `agent` owns it. `backend`
    // ends with a zero. The call stores pointers at the outputs, which have its types and are
    // borrowed by this call alone.
    let status =
        unsafe { (abi.get_plugin_params)(agent.raw(), backend.as_ptr(), &mut kinds, &mut params) };
    check(call, status)?;
    // SAFETY: after success both are null or objects of this library that no other code owns, and
    // these are the functions that destroy such objects.
    let (params, kinds) = unsafe {
        (
            OwnedObject::from_raw(call, abi.destroy_params, params),
            OwnedObject::from_raw(call, abi.destroy_mem_list, kinds),
        )
    };
    Ok((params?, kinds?))
}

/// Returns whether host memory is among these kinds.
///
/// # Safety
/// The library of `abi` has created the list.
unsafe fn has_dram(abi: &NixlAbi, kinds: &OwnedObject<MemList>) -> Result<bool, NixlFailure> {
    let mut count = 0;
    // SAFETY: the caller promises that the list is of this library, and `kinds` owns it. The call
    // stores a number at `count`, which has its type and is borrowed by this call alone.
    check("nixl_capi_mem_list_size", unsafe { (abi.mem_list_size)(kinds.raw(), &mut count) })?;
    for at in 0..count {
        let mut kind: MemType = MemType::MAX;
        // SAFETY: the caller promises that the list is of this library, and `kinds` owns it. The
        // call checks the index and stores a kind at `kind`, which has its type and is borrowed by
        // this call alone.
        check("nixl_capi_mem_list_get", unsafe { (abi.mem_list_get)(kinds.raw(), at, &mut kind) })?;
        if kind == DRAM {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Adds parameters to the settings of a backend, which `about` names in errors.
///
/// # Safety
/// The library of `abi` has created the settings.
unsafe fn add_parameters(
    abi: &NixlAbi,
    params: &OwnedObject<Params>,
    parameters: &[(CString, CString)],
    about: &str,
) -> Result<(), NotAvailable> {
    for (key, value) in parameters {
        let Some(params_add) = abi.params_add else {
            let reason = format!("{about}the library has no function nixl_capi_params_add");
            return Err(not_available(reason, "set no parameters, or install a newer NIXL"));
        };
        // SAFETY: the caller promises that the settings are of this library, and `params` owns
        // them. The call copies both strings, which end with a zero.
        let status = unsafe { params_add(params.raw(), key.as_ptr(), value.as_ptr()) };
        check("nixl_capi_params_add", status).map_err(|failure| failure.not_available(about))?;
    }
    Ok(())
}

impl AgentHandle {
    /// Creates an agent with this backend. On failure no agent remains.
    pub(super) fn new(
        abi: &Arc<NixlAbi>,
        name: &CStr,
        backend: &CStr,
        parameters: &[(CString, CString)],
    ) -> Result<AgentHandle, NotAvailable> {
        let shown = backend.to_string_lossy();
        let about = format!("nixl:{shown}: ");
        let failed = |failure: NixlFailure| failure.not_available(&about);
        let agent = agent(abi, name).map_err(failed)?;
        // SAFETY: this library has created the agent.
        let (params, kinds) = match unsafe { settings(abi, &agent, backend) } {
            Ok(settings) => settings,
            Err(failure) => {
                // Until NIXL 1.5 the number does not distinguish a missing backend from one that
                // cannot be loaded.
                // SAFETY: this library has created the agent.
                let have = unsafe { plugins(abi, &agent) }.map_err(failed)?;
                if have.iter().any(|name| *name == shown) {
                    return Err(failed(failure));
                }
                return Err(not_available(
                    format!("no backend is called {shown}: there are {}", have.join(", ")),
                    "name one of them; NIXL_PLUGIN_DIR adds a folder of plugins",
                ));
            }
        };
        // SAFETY: this library has created the list.
        if !unsafe { has_dram(abi, &kinds) }.map_err(failed)? {
            let reason = format!("{about}the backend does not support host memory");
            return Err(not_available(reason, "use UCX, which supports it"));
        }
        // SAFETY: this library has created the settings.
        unsafe { add_parameters(abi, &params, parameters, &about) }?;
        // SAFETY: `agent` and `params` own objects of this library, and the name ends with a zero.
        // On success the call stores a backend at the output, which has its type, and
        // `destroy_backend` destroys such a handle.
        let backend = unsafe {
            OwnedObject::create("nixl_capi_create_backend", abi.destroy_backend, |made| {
                (abi.create_backend)(agent.raw(), backend.as_ptr(), params.raw(), made)
            })
        }
        .map_err(failed)?;
        // SAFETY: on success the call stores an object at the output, which has its type, and
        // `destroy_opt_args` destroys such an object.
        let args = unsafe {
            OwnedObject::create("nixl_capi_create_opt_args", abi.destroy_opt_args, |args| {
                (abi.create_opt_args)(args)
            })
        }
        .map_err(failed)?;
        // SAFETY: `args` and `backend` own objects of this library. The backend lives until its
        // agent is destroyed, and the fields of the result are dropped in the order of their
        // declaration: the arguments first.
        let status = unsafe { (abi.opt_args_add_backend)(args.raw(), backend.raw()) };
        check("nixl_capi_opt_args_add_backend", status).map_err(failed)?;
        Ok(AgentHandle { abi: Arc::clone(abi), args, backend, agent })
    }

    /// Returns a list of one descriptor: `len` bytes of host memory at `address`.
    fn descriptor(&self, address: usize, len: usize) -> Result<OwnedObject<RegList>, NixlFailure> {
        // SAFETY: on success the call stores a list at the output, which has its type, and
        // `destroy_reg_dlist` destroys such a list.
        let list = unsafe {
            OwnedObject::create("nixl_capi_create_reg_dlist", self.abi.destroy_reg_dlist, |list| {
                (self.abi.create_reg_dlist)(DRAM, list)
            })
        }?;
        // SAFETY: `list` owns a list of this library. The call stores address and length as
        // numbers; null with the length 0 is no metadata for the backend.
        let status =
            unsafe { (self.abi.reg_dlist_add_desc)(list.raw(), address, len, DEVICE, null(), 0) };
        check("nixl_capi_reg_dlist_add_desc", status)?;
        Ok(list)
    }

    /// Registers memory.
    ///
    /// # Safety
    /// The memory is mapped, and stays mapped until it is deregistered.
    pub(super) unsafe fn register(
        &mut self,
        address: usize,
        len: usize,
    ) -> Result<(), NixlFailure> {
        let list = self.descriptor(address, len)?;
        // SAFETY: `new` has created the agent and the arguments with this library, as `descriptor`
        // has the list, and `&mut self` excludes concurrent calls. The caller promises that the
        // memory is mapped until it is deregistered.
        let status =
            unsafe { (self.abi.register_mem)(self.agent.raw(), list.raw(), self.args.raw()) };
        check("nixl_capi_register_mem", status)
    }

    /// Deregisters memory. On failure it stays registered.
    pub(super) fn deregister(&mut self, address: usize, len: usize) -> Result<(), NixlFailure> {
        let list = self.descriptor(address, len)?;
        // SAFETY: `new` has created the agent and the arguments with this library, as `descriptor`
        // has the list, and `&mut self` excludes concurrent calls. The library finds the range by
        // its numbers, and returns an error for one that is not registered.
        let status =
            unsafe { (self.abi.deregister_mem)(self.agent.raw(), list.raw(), self.args.raw()) };
        check("nixl_capi_deregister_mem", status)
    }

    /// Returns what peers need to know: how to reach the agent, and what it has registered.
    pub(super) fn metadata(&mut self) -> Result<Vec<u8>, NixlFailure> {
        let call = "nixl_capi_get_local_md";
        let (mut data, mut len) = (null_mut(), 0);
        // SAFETY: `new` has created the agent with this library, and `&mut self` excludes
        // concurrent calls. The call stores a pointer and a number at the outputs, which have its
        // types and are borrowed by this call alone.
        check(call, unsafe { (self.abi.get_local_md)(self.agent.raw(), &mut data, &mut len) })?;
        let data = NonNull::new(data).ok_or_else(|| NixlFailure::nothing(call))?;
        // SAFETY: the call has allocated and initialized `len` bytes at `data`, which no other code
        // knows. They are copied before they are freed.
        let bytes = unsafe { slice::from_raw_parts(data.as_ptr().cast::<u8>(), len) }.to_vec();
        // SAFETY: the call has allocated the bytes for `mem_free`, and they are not used any more.
        unsafe { (self.abi.mem_free)(data.as_ptr()) };
        Ok(bytes)
    }

    /// Returns the agent and its backend as pointers for C.
    pub(super) fn raw(&self) -> (NonNull<c_void>, NonNull<c_void>) {
        (self.agent.opaque(), self.backend.opaque())
    }

    /// Leaks all objects for the life of the process: some memory could not be deregistered.
    pub(super) fn leak(&mut self) {
        self.args.leak();
        self.backend.leak();
        self.agent.leak();
    }
}
