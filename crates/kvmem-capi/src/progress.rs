//! *Progress*: reports of long work to a C callback.

use std::ffi::c_void;
use std::time::Duration;

use kvmem::arena::Progress;
use kvmem::register::{Phase, RegisterProgress};

/// Memory is being made resident.
pub const KVMEM_PHASE_POPULATE: u32 = 0;
/// Keys are being acquired.
pub const KVMEM_PHASE_REGISTER: u32 = 1;
/// Keys are being given back.
pub const KVMEM_PHASE_DEREGISTER: u32 = 2;
/// The values of a disk tier are being read and compared with their checksums.
pub const KVMEM_PHASE_VERIFY: u32 = 3;

/// The progress of long work.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct kvmem_progress {
    /// KVMEM_PHASE_POPULATE, KVMEM_PHASE_REGISTER, KVMEM_PHASE_DEREGISTER or KVMEM_PHASE_VERIFY.
    pub phase: u32,
    /// The thread (populating) or the registrar (registering) that finished the last unit of work,
    /// counted from 0.
    pub worker: u32,
    /// Bytes done in this phase. Never decreases between reports. Registering counts a byte once
    /// for each registrar.
    pub done_bytes: u64,
    /// Total bytes of this phase.
    pub total_bytes: u64,
    /// Bytes from the start of the memory that can be used with all registrars.
    pub ready_bytes: u64,
    /// Nanoseconds since the work began.
    pub elapsed_ns: u64,
}

/// Receives progress after each unit of work, about ten milliseconds. Worker threads call it, one
/// call at a time, unless a function says otherwise. `progress` is valid only during the call. The
/// function must return (no longjmp, no C++ exception), and must not destroy the object that is
/// being worked on.
pub type kvmem_progress_fn =
    Option<unsafe extern "C" fn(user: *mut c_void, progress: *const kvmem_progress)>;

/// A C callback and its user data.
#[derive(Clone, Copy)]
pub(crate) struct ProgressCallback {
    function: unsafe extern "C" fn(*mut c_void, *const kvmem_progress),
    user: *mut c_void,
}

// SAFETY: promise 3 of the C caller: the function may run, with its user data, on worker threads.
unsafe impl Send for ProgressCallback {}
// SAFETY: a shared reference only calls the function, and the library makes the calls of one piece
// of work one at a time, as the header promises to the program.
unsafe impl Sync for ProgressCallback {}

impl ProgressCallback {
    pub(crate) fn new(function: kvmem_progress_fn, user: *mut c_void) -> Option<ProgressCallback> {
        function.map(|function| ProgressCallback { function, user })
    }

    pub(crate) fn call(&self, progress: kvmem_progress) {
        // SAFETY: promise 3 of the C caller: the function has this type, and may be called with its
        // user data while the work runs. `progress` lives until it returns.
        unsafe { (self.function)(self.user, &progress) }
    }

    pub(crate) fn populated(&self, progress: Progress) {
        self.call(kvmem_progress {
            phase: KVMEM_PHASE_POPULATE,
            worker: progress.piece.worker as u32,
            done_bytes: progress.done_bytes,
            total_bytes: progress.total_bytes,
            ready_bytes: 0,
            elapsed_ns: nanoseconds(progress.elapsed),
        });
    }

    pub(crate) fn registered(&self, progress: RegisterProgress) {
        self.call(register_progress(&progress));
    }
}

pub(crate) fn register_progress(progress: &RegisterProgress) -> kvmem_progress {
    kvmem_progress {
        phase: match progress.phase {
            Phase::Populate => KVMEM_PHASE_POPULATE,
            Phase::Register => KVMEM_PHASE_REGISTER,
            Phase::Deregister => KVMEM_PHASE_DEREGISTER,
        },
        worker: progress.piece.map_or(0, |piece| piece.worker as u32),
        done_bytes: progress.done_bytes,
        total_bytes: progress.total_bytes,
        ready_bytes: progress.ready_bytes,
        elapsed_ns: nanoseconds(progress.elapsed),
    }
}

pub(crate) fn nanoseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}
