//! *Failures*: what the driver's error numbers mean.

use std::ffi::{CStr, c_char, c_int};
use std::fmt;
use std::ptr;

use super::abi::{CuResult, CudaAbi, SUCCESS};
use crate::arena::Errno;
use crate::register::{NotAvailable, RegistrarError};

/// A failed call of the driver.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct CudaFailure {
    call: &'static str,
    result: CuResult,
    /// The driver's name for the error, if it has one.
    name: Option<String>,
}

// Values of `CUresult`.
const INVALID_VALUE: CuResult = 1;
const OUT_OF_MEMORY: CuResult = 2;
const NOT_INITIALIZED: CuResult = 3;
const DEINITIALIZED: CuResult = 4;
const STUB_LIBRARY: CuResult = 34;
const DEVICE_UNAVAILABLE: CuResult = 46;
const NO_DEVICE: CuResult = 100;
const INVALID_DEVICE: CuResult = 101;
const INVALID_CONTEXT: CuResult = 201;
const OPERATING_SYSTEM: CuResult = 304;
const ALREADY_REGISTERED: CuResult = 712;
const NOT_REGISTERED: CuResult = 713;
const NOT_PERMITTED: CuResult = 800;
const NOT_SUPPORTED: CuResult = 801;
const SYSTEM_NOT_READY: CuResult = 802;
const SYSTEM_DRIVER_MISMATCH: CuResult = 803;
const COMPAT_NOT_SUPPORTED_ON_DEVICE: CuResult = 804;

/// Converts a result; an error gets the driver's name for it.
pub(super) fn check(
    abi: &CudaAbi,
    call: &'static str,
    result: CuResult,
) -> Result<(), CudaFailure> {
    if result == SUCCESS {
        return Ok(());
    }
    let mut name: *const c_char = ptr::null();
    if let Some(get_error_name) = abi.get_error_name {
        // SAFETY: the call accepts any number, and stores a pointer at `name`, which has its type
        // and is borrowed by this call alone.
        let known = unsafe { get_error_name(result, &mut name) };
        if known != SUCCESS {
            name = ptr::null();
        }
    }
    // SAFETY: a name that is not null is a string constant of the library, which ends with a zero
    // and stays loaded while `abi` exists. It is copied at once.
    let name =
        (!name.is_null()).then(|| unsafe { CStr::from_ptr(name) }.to_string_lossy().into_owned());
    Err(CudaFailure { call, result, name })
}

impl fmt::Display for CudaFailure {
    /// `cuInit: CUDA_ERROR_NO_DEVICE (100)`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.call, self.detail())
    }
}

impl CudaFailure {
    /// Returns the error's name and number.
    fn detail(&self) -> String {
        format!("{} ({})", self.name.as_deref().unwrap_or("an error without a name"), self.result)
    }

    /// Returns whether the driver is present, but has no GPU that this process can use.
    pub(super) fn no_gpu(&self) -> bool {
        self.result == NO_DEVICE
    }

    /// Returns the nearest errno.
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

    /// Explains why memory could not be registered or unregistered.
    pub(super) fn to_error(&self) -> RegistrarError {
        let remedy = match self.result {
            INVALID_VALUE => "pass a range that is mapped, and that CUDA has not allocated itself",
            OUT_OF_MEMORY => {
                "the driver could not pin so much, or map it for the GPU: register less, or in \
                 smaller chunks"
            }
            NOT_INITIALIZED | DEINITIALIZED => {
                "the driver is shut down, or this process is a child of the one that started it: \
                 load it in this process"
            }
            ALREADY_REGISTERED => {
                "CUDA registers a range once in a process: register it with one GPU only (with \
                 the flag portable, the default, the others can use it too), or undo the earlier \
                 registration (cudaHostRegister, pinned memory of a framework)"
            }
            NOT_REGISTERED => {
                "other code has unregistered it: leave that to the registrar of the key"
            }
            NOT_PERMITTED => "run the process with privileges to use the flag io_memory",
            NOT_SUPPORTED => {
                "this GPU or system does not support one of the flags: omit read_only and \
                 io_memory"
            }
            OPERATING_SYSTEM => "the kernel did not pin the pages: see its log (dmesg)",
            _ => "see the driver's messages in the kernel's log (dmesg), and nvidia-smi",
        };
        RegistrarError::new(self.call, self.errno(), remedy).detail(self.detail())
    }

    /// Returns what to do if the driver or a GPU cannot be used.
    pub(super) fn start_remedy(&self) -> &'static str {
        match self.result {
            STUB_LIBRARY => {
                "this libcuda is a stub for linking: remove the folder `stubs` from \
                 LD_LIBRARY_PATH, and install the driver"
            }
            NO_DEVICE => {
                "provide a GPU that CUDA_VISIBLE_DEVICES does not hide; in a container --gpus \
                 all, or the devices /dev/nvidia*"
            }
            OUT_OF_MEMORY => "the GPU's memory is used up by other processes: see nvidia-smi",
            DEVICE_UNAVAILABLE => {
                "another process has exclusive use of the GPU (compute mode): see nvidia-smi"
            }
            SYSTEM_NOT_READY => {
                "wait for the fabric manager (nvidia-fabricmanager), which starts the GPUs"
            }
            SYSTEM_DRIVER_MISMATCH | COMPAT_NOT_SUPPORTED_ON_DEVICE => {
                "library and kernel module have different versions: install both from one driver, \
                 restart, and remove compatibility libraries"
            }
            INVALID_DEVICE => "name a GPU that exists",
            _ => {
                "load the kernel module in the library's version (nvidia-smi shows it); in a \
                 container --gpus all; a child process cannot use the driver that its parent \
                 started"
            }
        }
    }
}

/// Returns the error for a library, a driver or a GPU that is missing.
pub(super) fn not_available(reason: String, remedy: &'static str) -> NotAvailable {
    NotAvailable::new("cuda", reason, remedy)
}

/// Returns the error for a GPU that exists and cannot be used.
pub(super) fn not_usable(ordinal: c_int, failure: &CudaFailure) -> NotAvailable {
    not_available(format!("cuda:{ordinal}: {failure}"), failure.start_remedy())
}
