//! *Host*: the machine under the registrars, as far as registering needs it: its clock, its cores,
//! its memory.
//!
//! There are two: this machine, and the simulated one (see [`simulated`](super::simulated)), where
//! time passes only in calls and memory need not be there. So the same code, threads included, runs
//! on both.

use std::any::Any;
use std::fmt;
use std::ops::Range;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use crate::arena::{self, ArenaError, Populate, Populated, ProgressOptions, Region};

/// The machine under the registrars.
pub trait Platform: fmt::Debug + Send + Sync {
    /// How many threads can run at once.
    fn cores(&self) -> usize;

    /// The time, from any beginning.
    fn now(&self) -> Duration;

    /// Bytes of a range of the region that are resident, measured or estimated from a sample.
    ///
    /// # Errors
    /// [`ArenaError`] if there is no way to know.
    fn resident_bytes(&self, region: &Region, range: Range<usize>) -> Result<u64, ArenaError>;

    /// Makes a range resident: see [`Region::populate`].
    ///
    /// # Errors
    /// As [`Region::populate`].
    fn populate(
        &self,
        region: &Region,
        range: Range<usize>,
        how: Populate,
        watch: &ProgressOptions,
    ) -> Result<Populated, ArenaError>;

    /// Refuses if so many bytes could not be made resident without getting somebody killed.
    ///
    /// # Errors
    /// [`ArenaError::NoHeadroom`].
    fn headroom(&self, bytes: u64) -> Result<(), ArenaError>;

    /// Reserves so many bytes that are about to be made resident, against others who do the same,
    /// until the result is dropped. A machine without others only checks its
    /// [`headroom`](Platform::headroom).
    ///
    /// # Errors
    /// [`ArenaError::NoHeadroom`].
    fn reserve(&self, bytes: u64) -> Result<Box<dyn Any + Send + Sync>, ArenaError> {
        self.headroom(bytes)?;
        Ok(Box::new(()))
    }

    /// The calling thread is about to work together with others, `threads` in all, itself included.
    /// Each of them then calls [`enter`](Platform::enter) and [`leave`](Platform::leave).
    fn gather(&self, _threads: usize) {}

    /// The calling thread begins to work as number `thread` of those.
    fn enter(&self, _thread: usize) {}

    /// It has done its part.
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
        static START: OnceLock<Instant> = OnceLock::new();
        START.get_or_init(Instant::now).elapsed()
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

    fn reserve(&self, bytes: u64) -> Result<Box<dyn Any + Send + Sync>, ArenaError> {
        Ok(Box::new(arena::reserve_headroom(bytes)?))
    }
}
