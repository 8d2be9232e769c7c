//! [`Slice`]: the time that a step of long work has.

use std::time::{Duration, Instant};

use crate::socket::instant;

/// The time that a step of long work has before others are served.
///
/// A step has limits of bytes and values, too, but they do not bound its time: while the host of a
/// virtual machine has to find each page that is touched, the same bytes take twenty times as long.
/// Work therefore looks at the clock after each *piece*, and does at least one in each step.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Slice {
    ends: Instant,
}

impl Slice {
    /// Returns a slice that begins now.
    pub(crate) fn of(time: Duration) -> Slice {
        Slice { ends: instant() + time }
    }

    /// Returns whether the time is over.
    pub(crate) fn is_over(self) -> bool {
        instant() >= self.ends
    }
}

#[cfg(test)]
impl Slice {
    /// Returns a slice that a test does not see the end of.
    pub(crate) fn endless() -> Slice {
        Slice::of(Duration::from_secs(1 << 20))
    }
}
