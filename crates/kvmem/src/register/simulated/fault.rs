//! *Fault*: a call that is refused because a test says so.

use serde::{Deserialize, Serialize};

use crate::arena::Errno;

/// Calls of one NIC that are to fail. See [`Nic::inject`](super::Nic::inject).
///
/// ```
/// use kvmem::arena::Errno;
/// use kvmem::register::simulated::Fault;
///
/// // The third key that is requested for is refused, and so is the next.
/// let fault = Fault::register(2).times(2).errno(Errno::EIO);
/// # let _ = fault;
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[must_use = "nothing fails before it is injected"]
pub struct Fault {
    pub(super) register: bool,
    /// Calls that go well before.
    skip: u64,
    /// Calls that then fail.
    times: u64,
    errno: Errno,
}

impl Fault {
    /// The `nth` call from now on that asks for a key is refused, counted from 0: with `ENOMEM`,
    /// and once.
    pub fn register(nth: u64) -> Fault {
        Fault { register: true, skip: nth, times: 1, errno: Errno::ENOMEM }
    }

    /// The `nth` call from now on that gives a key back is refused, counted from 0: with `EBUSY`,
    /// and once. The key stands then.
    pub fn deregister(nth: u64) -> Fault {
        Fault { register: false, skip: nth, times: 1, errno: Errno::EBUSY }
    }

    /// Refused with this number.
    pub fn errno(self, errno: Errno) -> Fault {
        Fault { errno, ..self }
    }

    /// This and the next calls are refused, so many in all.
    pub fn times(self, times: u64) -> Fault {
        Fault { times, ..self }
    }

    /// All calls from that one on are refused.
    pub fn for_ever(self) -> Fault {
        self.times(u64::MAX)
    }

    /// Another call comes: whether it fails.
    pub(super) fn strikes(&mut self) -> Option<Errno> {
        if self.skip > 0 {
            self.skip -= 1;
            return None;
        }
        let strikes = self.times > 0;
        if self.times != u64::MAX {
            self.times = self.times.saturating_sub(1);
        }
        strikes.then_some(self.errno)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn five(mut fault: Fault) -> [bool; 5] {
        std::array::from_fn(|_| fault.strikes().is_some())
    }

    #[test]
    fn the_nth_so_many_times() {
        assert_eq!(five(Fault::register(0)), [true, false, false, false, false]);
        assert_eq!(five(Fault::register(1).times(2)), [false, true, true, false, false]);
        assert_eq!(five(Fault::deregister(3).for_ever()), [false, false, false, true, true]);
        assert_eq!(five(Fault::deregister(0).times(0)), [false; 5]);
        assert_eq!(Fault::register(0).errno(Errno::EIO).strikes(), Some(Errno::EIO));
    }
}
