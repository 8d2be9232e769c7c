//! *Progress*: how far long work has come, told to a function of C.

use std::ffi::c_void;
use std::time::Duration;

use kvmem::arena::Progress;
use kvmem::register::{Phase, RegisterProgress};

/// Memory is made resident.
pub const KVMEM_PHASE_POPULATE: u32 = 0;
/// Keys are got.
pub const KVMEM_PHASE_REGISTER: u32 = 1;
/// Keys are given back.
pub const KVMEM_PHASE_DEREGISTER: u32 = 2;

/// How far it has come.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct kvmem_progress {
    /// KVMEM_PHASE_POPULATE, KVMEM_PHASE_REGISTER or KVMEM_PHASE_DEREGISTER.
    pub phase: u32,
    /// The thread (of populating) or the registrar (of registering) that did the last piece, from
    /// 0.
    pub worker: u32,
    /// Bytes done in this phase. From one report to the next it never falls. Registering counts a
    /// byte once for each registrar.
    pub done_bytes: u64,
    /// Bytes that are to be done in it.
    pub total_bytes: u64,
    /// Bytes, from the beginning, that can be used with all registrars.
    pub ready_bytes: u64,
    /// Time since the beginning, in nanoseconds.
    pub elapsed_ns: u64,
}

/// Is told of progress: after each piece of some ten milliseconds of work, by the threads that
/// work, one call at a time. `progress` is good for the call only. It must return (no longjmp, no
/// C++ exception), and must not destroy what is being worked on.
pub type kvmem_progress_fn =
    Option<unsafe extern "C" fn(user: *mut c_void, progress: *const kvmem_progress)>;

/// A function of C with what it is to be given.
#[derive(Clone, Copy)]
pub(crate) struct Listener {
    tell: unsafe extern "C" fn(*mut c_void, *const kvmem_progress),
    user: *mut c_void,
}

// SAFETY: the header says that it is called by the threads that work.
unsafe impl Send for Listener {}
// SAFETY: and one call at a time.
unsafe impl Sync for Listener {}

impl Listener {
    pub(crate) fn new(tell: kvmem_progress_fn, user: *mut c_void) -> Option<Listener> {
        tell.map(|tell| Listener { tell, user })
    }

    fn tell(&self, progress: kvmem_progress) {
        // SAFETY: the caller of C has promised that it can be called.
        unsafe { (self.tell)(self.user, &progress) }
    }

    pub(crate) fn populated(&self, progress: Progress) {
        self.tell(kvmem_progress {
            phase: KVMEM_PHASE_POPULATE,
            worker: progress.piece.worker as u32,
            done_bytes: progress.done_bytes,
            total_bytes: progress.total_bytes,
            ready_bytes: 0,
            elapsed_ns: nanoseconds(progress.elapsed),
        });
    }

    pub(crate) fn registered(&self, progress: RegisterProgress) {
        self.tell(of_registering(&progress));
    }
}

pub(crate) fn of_registering(progress: &RegisterProgress) -> kvmem_progress {
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
