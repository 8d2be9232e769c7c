//! *Platform*: the clock, the cores and the memory of the machine under the registrars.
//!
//! [`SystemPlatform`] is the machine of this process. A test can bring another one, in which time
//! passes only in calls and memory need not exist. The same code, threads included, runs on both.

use std::fmt;
use std::ops::Range;
use std::time::Duration;

use crate::arena::{self, ArenaError, Populate, Populated, ProgressOptions, Region};
use crate::threads;

/// A reservation of memory: see [`Platform::reserve`].
pub type HeldHeadroom = Box<dyn Fn(u64) + Send + Sync>;

/// The machine under the registrars.
pub trait Platform: fmt::Debug + Send + Sync {
    /// Returns the number of threads that can run at once.
    fn cores(&self) -> usize;

    /// Returns the time since an arbitrary start.
    fn now(&self) -> Duration;

    /// Returns the resident bytes of a range, measured or estimated from a sample.
    ///
    /// # Errors
    /// [`ArenaError`] if the kernel does not report residency.
    fn resident_bytes(&self, region: &Region, range: Range<usize>) -> Result<u64, ArenaError>;

    /// Makes a range resident: see [`Region::populate`].
    ///
    /// # Errors
    /// The errors of [`Region::populate`].
    fn populate(
        &self,
        region: &Region,
        range: Range<usize>,
        how: Populate,
        watch: &ProgressOptions,
    ) -> Result<Populated, ArenaError>;

    /// Checks that `bytes` bytes can be made resident without triggering the OOM killer.
    ///
    /// # Errors
    /// [`ArenaError::NoHeadroom`] if they cannot.
    fn headroom(&self, bytes: u64) -> Result<(), ArenaError>;

    /// Reserves `bytes` bytes that are about to be made resident, until the result is dropped.
    /// Other threads that reserve see less headroom meanwhile. Calling the result lowers the
    /// reservation to the bytes that it receives. The default implementation, for a machine without
    /// such threads, only checks the [`headroom`](Platform::headroom).
    ///
    /// # Errors
    /// [`ArenaError::NoHeadroom`] if there is not enough.
    fn reserve(&self, bytes: u64) -> Result<HeldHeadroom, ArenaError> {
        self.headroom(bytes)?;
        Ok(Box::new(|_| ()))
    }

    /// Announces that the calling thread will work in a team of `threads` threads, itself included.
    /// Each of them then calls [`enter`](Platform::enter) and [`leave`](Platform::leave).
    fn gather(&self, _threads: usize) {}

    /// Starts the work of the calling thread, which has the index `thread` in its team.
    fn enter(&self, _thread: usize) {}

    /// Ends the work of the calling thread.
    fn leave(&self) {}
}

/// The machine this process runs on.
#[derive(Clone, Copy, Debug, Default)]
pub struct SystemPlatform;

impl Platform for SystemPlatform {
    fn cores(&self) -> usize {
        arena::usable_cores()
    }

    fn now(&self) -> Duration {
        threads::now()
    }

    fn resident_bytes(&self, region: &Region, range: Range<usize>) -> Result<u64, ArenaError> {
        region.glance(range)
    }

    fn populate(
        &self,
        region: &Region,
        range: Range<usize>,
        how: Populate,
        watch: &ProgressOptions,
    ) -> Result<Populated, ArenaError> {
        region.populate(range, how, watch)
    }

    fn headroom(&self, bytes: u64) -> Result<(), ArenaError> {
        arena::headroom(bytes)
    }

    fn reserve(&self, bytes: u64) -> Result<HeldHeadroom, ArenaError> {
        let headroom = arena::reserve_headroom(bytes)?;
        Ok(Box::new(move |bytes| headroom.lower_to(bytes)))
    }
}
