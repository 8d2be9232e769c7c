//! *Failures*: what the driver's numbers mean.

use std::ffi::{CStr, c_char};
use std::fmt;
use std::ptr;

use super::super::RegistrarError;
use super::abi::{self, Abi, SUCCESS};
use crate::arena::Errno;

/// A call of the driver that failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Failure {
    call: &'static str,
    result: abi::Result,
    /// As the driver calls it, if it does.
    name: Option<String>,
}

// Of `CUresult`.
const INVALID_VALUE: abi::Result = 1;
const OUT_OF_MEMORY: abi::Result = 2;
const NOT_INITIALIZED: abi::Result = 3;
const DEINITIALIZED: abi::Result = 4;
const STUB_LIBRARY: abi::Result = 34;
const DEVICE_UNAVAILABLE: abi::Result = 46;
const NO_DEVICE: abi::Result = 100;
const INVALID_DEVICE: abi::Result = 101;
const INVALID_CONTEXT: abi::Result = 201;
const OPERATING_SYSTEM: abi::Result = 304;
const ALREADY_REGISTERED: abi::Result = 712;
const NOT_REGISTERED: abi::Result = 713;
const NOT_PERMITTED: abi::Result = 800;
const NOT_SUPPORTED: abi::Result = 801;
const SYSTEM_NOT_READY: abi::Result = 802;
const SYSTEM_DRIVER_MISMATCH: abi::Result = 803;
const COMPAT_NOT_SUPPORTED_ON_DEVICE: abi::Result = 804;

/// A result, with its name if it is an error.
pub(super) fn check(abi: &Abi, call: &'static str, result: abi::Result) -> Result<(), Failure> {
    if result == SUCCESS {
        return Ok(());
    }
    let mut name: *const c_char = ptr::null();
    if let Some(get_error_name) = abi.get_error_name {
        // SAFETY: the output has the type that the call fills; it takes any number.
        let known = unsafe { get_error_name(result, &mut name) };
        if known != SUCCESS {
            name = ptr::null();
        }
    }
    // SAFETY: names are strings of the library, which is loaded.
    let name =
        (!name.is_null()).then(|| unsafe { CStr::from_ptr(name) }.to_string_lossy().into_owned());
    Err(Failure { call, result, name })
}

impl fmt::Display for Failure {
    /// `cuInit: CUDA_ERROR_NO_DEVICE (100)`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.call, self.detail())
    }
}

impl Failure {
    /// The error by name and number.
    fn detail(&self) -> String {
        format!("{} ({})", self.name.as_deref().unwrap_or("an error without a name"), self.result)
    }

    /// Whether there is a driver, but no GPU for it or none that this process may see.
    pub(super) fn no_gpu(&self) -> bool {
        self.result == NO_DEVICE
    }

    /// The nearest there is.
    fn errno(&self) -> Errno {
        match self.result {
            INVALID_VALUE | INVALID_CONTEXT => Errno::EINVAL,
            OUT_OF_MEMORY => Errno::ENOMEM,
            NOT_INITIALIZED | DEINITIALIZED | STUB_LIBRARY | NO_DEVICE | INVALID_DEVICE => {
                Errno::ENODEV
            }
            DEVICE_UNAVAILABLE => Errno::EBUSY,
            ALREADY_REGISTERED => Errno::EEXIST,
            NOT_REGISTERED => Errno::ENOENT,
            NOT_PERMITTED => Errno::EPERM,
            NOT_SUPPORTED | SYSTEM_DRIVER_MISMATCH | COMPAT_NOT_SUPPORTED_ON_DEVICE => {
                Errno::EOPNOTSUPP
            }
            SYSTEM_NOT_READY => Errno::EAGAIN,
            _ => Errno::EIO,
        }
    }

    /// What can be done if memory was not registered, or a key not taken back.
    pub(super) fn refusal(&self) -> RegistrarError {
        let remedy = match self.result {
            INVALID_VALUE => {
                "the range must be mapped, and not be memory that CUDA has given out itself"
            }
            OUT_OF_MEMORY => {
                "the driver could not pin so much, or map it for the GPU: register less, or in smaller chunks"
            }
            NOT_INITIALIZED | DEINITIALIZED => {
                "the driver is shut down, or this process is the child of one that had started it: load it anew"
            }
            ALREADY_REGISTERED => {
                "CUDA takes a range once in a process: register it with one GPU only (with the flag portable, as by default, the \
                 others can use it too), or undo what registered it before (cudaHostRegister, pinned memory of a framework)"
            }
            NOT_REGISTERED => "somebody else has given it back: leave that to its registrar",
            NOT_PERMITTED => "the flag io_memory is for privileged processes",
            NOT_SUPPORTED => {
                "this GPU or system does not know one of the flags: leave out read_only and io_memory"
            }
            OPERATING_SYSTEM => "the kernel did not pin the pages: see what it says (dmesg)",
            _ => "see what the kernel says of the driver (dmesg), and nvidia-smi",
        };
        RegistrarError::new(self.call, self.errno(), remedy).detail(self.detail())
    }

    /// What can be done if the driver or a GPU cannot be used.
    pub(super) fn start_remedy(&self) -> &'static str {
        match self.result {
            STUB_LIBRARY => {
                "this libcuda is a stub for linking: take the folder `stubs` out of LD_LIBRARY_PATH, and install the driver"
            }
            NO_DEVICE => {
                "a GPU is needed that CUDA_VISIBLE_DEVICES does not hide; in a container --gpus all, or the devices /dev/nvidia*"
            }
            OUT_OF_MEMORY => "the GPU's memory is used up by other processes: see nvidia-smi",
            DEVICE_UNAVAILABLE => {
                "another process has the GPU for itself (compute mode): see nvidia-smi"
            }
            SYSTEM_NOT_READY => {
                "wait for the fabric manager (nvidia-fabricmanager), which brings the GPUs up"
            }
            SYSTEM_DRIVER_MISMATCH | COMPAT_NOT_SUPPORTED_ON_DEVICE => {
                "library and kernel module are of different versions: install those of one driver, restart, and leave out \
                 compatibility libraries"
            }
            INVALID_DEVICE => "ask for a GPU that is there",
            _ => {
                "the kernel module must be loaded and of the library's version (nvidia-smi tells); in a container --gpus all; \
                 and a child process cannot use what its parent has started"
            }
        }
    }
}
