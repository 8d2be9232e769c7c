//! *Link*: an agent with one backend, and the calls that need both.

use std::ffi::{CStr, CString, c_void};
use std::ptr::{NonNull, null, null_mut};
use std::slice;
use std::sync::Arc;

use super::super::NotAvailable;
use super::abi::{Abi, DRAM, MemList, MemType, OptArgs, Params, RawAgent, RawBackend, RegList};
use super::failure::{CREATE_AGENT, Failure, check};
use super::not_available;
use super::owned::Owned;

/// An agent with one backend. Whoever has it alone may call it; an agent takes one call at a time.
pub(super) struct Link {
    abi: Arc<Abi>,
    // What was made later goes first: NIXL wants handles gone before their agent.
    args: Owned<OptArgs>,
    backend: Owned<RawBackend>,
    agent: Owned<RawAgent>,
}

// SAFETY: objects of NIXL belong to no thread. They are not for several at once, so there is no
// `Sync`.
unsafe impl Send for Link {}

/// Makes an agent.
pub(super) fn agent(abi: &Abi, name: &CStr) -> Result<Owned<RawAgent>, Failure> {
    // SAFETY: the name is a string, and the output has the type that the call fills, with an agent
    // that the other function ends.
    unsafe {
        Owned::made(CREATE_AGENT, abi.destroy_agent, |agent| {
            (abi.create_agent)(name.as_ptr(), agent)
        })
    }
}

/// The names of the backends that an agent could have. Each is a plugin, not loaded yet.
pub(super) fn plugins(abi: &Abi, agent: &Owned<RawAgent>) -> Result<Vec<String>, Failure> {
    // SAFETY: the agent lives, and the output has the type that the call fills, with a list that
    // the other function ends.
    let list = unsafe {
        Owned::made("nixl_capi_get_available_plugins", abi.destroy_string_list, |list| {
            (abi.get_available_plugins)(agent.raw(), list)
        })
    }?;
    let mut count = 0;
    // SAFETY: the list lives, and the output has the type that the call fills.
    check("nixl_capi_string_list_size", unsafe { (abi.string_list_size)(list.raw(), &mut count) })?;
    let name = |at| {
        let mut name = null();
        // SAFETY: as above.
        check("nixl_capi_string_list_get", unsafe {
            (abi.string_list_get)(list.raw(), at, &mut name)
        })?;
        if name.is_null() {
            return Err(Failure::nothing("nixl_capi_string_list_get"));
        }
        // SAFETY: a string of the list, which lives.
        Ok(unsafe { CStr::from_ptr(name) }.to_string_lossy().into_owned())
    };
    (0..count).map(name).collect()
}

/// What a backend can be told, as it comes, and the kinds of memory that it takes.
fn settings(
    abi: &Abi,
    agent: &Owned<RawAgent>,
    backend: &CStr,
) -> Result<(Owned<Params>, Owned<MemList>), Failure> {
    let call = "nixl_capi_get_plugin_params";
    let (mut mems, mut params) = (null_mut(), null_mut());
    // SAFETY: the agent lives, the name is a string, and the outputs have the types that the call
    // fills.
    let status =
        unsafe { (abi.get_plugin_params)(agent.raw(), backend.as_ptr(), &mut mems, &mut params) };
    check(call, status)?;
    // SAFETY: the call has filled both, and these functions end them.
    let (params, mems) = unsafe {
        (Owned::of(call, abi.destroy_params, params), Owned::of(call, abi.destroy_mem_list, mems))
    };
    Ok((params?, mems?))
}

/// Whether memory of the host is among these kinds.
fn has_dram(abi: &Abi, mems: &Owned<MemList>) -> Result<bool, Failure> {
    let mut count = 0;
    // SAFETY: the list lives, and the output has the type that the call fills.
    check("nixl_capi_mem_list_size", unsafe { (abi.mem_list_size)(mems.raw(), &mut count) })?;
    for at in 0..count {
        let mut kind: MemType = MemType::MAX;
        // SAFETY: as above.
        check("nixl_capi_mem_list_get", unsafe { (abi.mem_list_get)(mems.raw(), at, &mut kind) })?;
        if kind == DRAM {
            return Ok(true);
        }
    }
    Ok(false)
}

impl Link {
    /// Makes an agent with this backend. Nothing is left of it where that fails.
    pub(super) fn new(
        abi: &Arc<Abi>,
        name: &CStr,
        backend: &CStr,
        parameters: &[(CString, CString)],
    ) -> Result<Link, NotAvailable> {
        let shown = backend.to_string_lossy();
        let about = format!("nixl:{shown}: ");
        let failed = |failure: Failure| failure.not_available(&about);
        let agent = agent(abi, name).map_err(failed)?;
        let (params, mems) = match settings(abi, &agent, backend) {
            Ok(settings) => settings,
            Err(failure) => {
                // Until NIXL 1.5 the number does not tell a backend that is not there from one that
                // cannot be loaded.
                let have = plugins(abi, &agent).map_err(failed)?;
                if have.iter().any(|name| *name == shown) {
                    return Err(failed(failure));
                }
                return Err(not_available(
                    format!("no backend is called {shown}: there are {}", have.join(", ")),
                    "name one of those; NIXL_PLUGIN_DIR says where NIXL looks for others",
                ));
            }
        };
        if !has_dram(abi, &mems).map_err(failed)? {
            let reason = format!("{about}the backend does not take memory of the host");
            return Err(not_available(reason, "use UCX, which does"));
        }
        for (key, value) in parameters {
            let Some(params_add) = abi.params_add else {
                let reason = format!("{about}the library has no function nixl_capi_params_add");
                return Err(not_available(reason, "name no parameters, or install a newer NIXL"));
            };
            // SAFETY: the parameters live, and the others are strings, which are copied.
            let status = unsafe { params_add(params.raw(), key.as_ptr(), value.as_ptr()) };
            check("nixl_capi_params_add", status).map_err(failed)?;
        }
        // SAFETY: agent and parameters live, the name is a string, and the output has the type that
        // the call fills.
        let backend = unsafe {
            Owned::made("nixl_capi_create_backend", abi.destroy_backend, |made| {
                (abi.create_backend)(agent.raw(), backend.as_ptr(), params.raw(), made)
            })
        }
        .map_err(failed)?;
        // SAFETY: the output has the type that the call fills.
        let args = unsafe {
            Owned::made("nixl_capi_create_opt_args", abi.destroy_opt_args, |args| {
                (abi.create_opt_args)(args)
            })
        }
        .map_err(failed)?;
        // SAFETY: both live; the backend does as long as its agent, which goes after the arguments.
        let status = unsafe { (abi.opt_args_add_backend)(args.raw(), backend.raw()) };
        check("nixl_capi_opt_args_add_backend", status).map_err(failed)?;
        Ok(Link { abi: Arc::clone(abi), args, backend, agent })
    }

    /// A list of one descriptor: so many bytes of the host's memory, from there.
    fn descriptor(&self, address: usize, len: usize) -> Result<Owned<RegList>, Failure> {
        // SAFETY: the output has the type that the call fills.
        let list = unsafe {
            Owned::made("nixl_capi_create_reg_dlist", self.abi.destroy_reg_dlist, |list| {
                (self.abi.create_reg_dlist)(DRAM, list)
            })
        }?;
        // SAFETY: the list lives. The memory is not touched, and of bytes for the backend there are
        // none.
        let status = unsafe {
            (self.abi.reg_dlist_add_desc)(list.raw(), address, len, super::DEVICE, null(), 0)
        };
        check("nixl_capi_reg_dlist_add_desc", status)?;
        Ok(list)
    }

    /// Registers memory.
    ///
    /// # Safety
    /// It is mapped, and stays so until it was given back.
    pub(super) unsafe fn register(&mut self, address: usize, len: usize) -> Result<(), Failure> {
        let list = self.descriptor(address, len)?;
        // SAFETY: all three live; the caller's promise.
        let status =
            unsafe { (self.abi.register_mem)(self.agent.raw(), list.raw(), self.args.raw()) };
        check("nixl_capi_register_mem", status)
    }

    /// Gives memory back. If that fails it counts as registered.
    pub(super) fn deregister(&mut self, address: usize, len: usize) -> Result<(), Failure> {
        let list = self.descriptor(address, len)?;
        // SAFETY: all three live. What is not registered is not found.
        let status =
            unsafe { (self.abi.deregister_mem)(self.agent.raw(), list.raw(), self.args.raw()) };
        check("nixl_capi_deregister_mem", status)
    }

    /// What peers have to know of the agent: how to reach it, and what it has registered.
    pub(super) fn metadata(&mut self) -> Result<Vec<u8>, Failure> {
        let call = "nixl_capi_get_local_md";
        let (mut data, mut len) = (null_mut(), 0);
        // SAFETY: the agent lives, and the outputs have the types that the call fills.
        check(call, unsafe { (self.abi.get_local_md)(self.agent.raw(), &mut data, &mut len) })?;
        let data = NonNull::new(data).ok_or_else(|| Failure::nothing(call))?;
        // SAFETY: the call has given so many bytes there.
        let bytes = unsafe { slice::from_raw_parts(data.as_ptr().cast::<u8>(), len) }.to_vec();
        // SAFETY: given by the call, and not used any more.
        unsafe { (self.abi.mem_free)(data.as_ptr()) };
        Ok(bytes)
    }

    /// The agent and its backend, as C has them.
    pub(super) fn raw(&self) -> (NonNull<c_void>, NonNull<c_void>) {
        (self.agent.opaque(), self.backend.opaque())
    }

    /// Lets all of it be, for the life of the process: something that it has registered could not
    /// be given back.
    pub(super) fn abandon(&mut self) {
        self.args.abandon();
        self.backend.abandon();
        self.agent.abandon();
    }
}
