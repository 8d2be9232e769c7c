//! *Fault*: a call that fails because a test injected a fault.

use kvmem::arena::Errno;

/// A fault in some calls of one NIC. See [`SimulatedNic::inject`](super::SimulatedNic::inject).
///
/// ```
/// use kvmem::arena::Errno;
/// use kvmem_testkit::simulated::Fault;
///
/// // The third registering call fails, and so does the next one.
/// let fault = Fault::register(2).times(2).errno(Errno::EIO);
/// # let _ = fault;
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "nothing fails before it is injected"]
pub struct Fault {
    pub(super) register: bool,
    /// Calls that succeed first.
    skip: u64,
    /// Calls that then fail.
    times: u64,
    errno: Errno,
}

impl Fault {
    /// Makes the `nth` registering call from now on fail, counted from 0: with `ENOMEM`, once.
    pub fn register(nth: u64) -> Fault {
        Fault { register: true, skip: nth, times: 1, errno: Errno::ENOMEM }
    }

    /// Makes the `nth` deregistering call from now on fail, counted from 0: with `EBUSY`, once. The
    /// key stays valid.
    pub fn deregister(nth: u64) -> Fault {
        Fault { register: false, skip: nth, times: 1, errno: Errno::EBUSY }
    }

    /// Sets the error number.
    pub fn errno(self, errno: Errno) -> Fault {
        Fault { errno, ..self }
    }

    /// Sets the number of consecutive calls that fail.
    pub fn times(self, times: u64) -> Fault {
        Fault { times, ..self }
    }

    /// Makes all further calls fail.
    pub fn forever(self) -> Fault {
        self.times(u64::MAX)
    }

    /// Counts a call and returns its error if it fails.
    pub(super) fn count_call(&mut self) -> Option<Errno> {
        if self.skip > 0 {
            self.skip -= 1;
            return None;
        }
        let count_call = self.times > 0;
        if self.times != u64::MAX {
            self.times = self.times.saturating_sub(1);
        }
        count_call.then_some(self.errno)
    }
}
