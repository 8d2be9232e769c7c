//! *Machine*: a simulated platform with its NICs.

use std::ops::{Range, RangeBounds};
use std::sync::Arc;
use std::time::Duration;

use super::costs::GIB;
use super::scheduler::Scheduler;
use super::world::{CallRequest, SimulatedCall};
use super::{CallCounts, LoggedCall, SimulatedNic};
use kvmem::arena::{
    ArenaError, Limit, Populate, Populated, ProgressOptions, ProgressTracker, Region,
};
use kvmem::register::{Platform, Registrar};

/// The fewest bytes populated between two checks of the options.
const CHUNK: usize = (GIB / 4) as usize;
/// The largest number of such checks.
const MAX_CHECKS: usize = 64;

/// A simulated machine. Clones share the same machine.
#[derive(Clone, Debug)]
pub struct SimulatedMachine {
    pub(super) scheduler: Arc<Scheduler>,
    pub(super) nics: Arc<[Arc<SimulatedNic>]>,
    pub(super) cores: usize,
}

impl SimulatedMachine {
    /// Returns a NIC by its number, from 0; `None` if there is no such NIC.
    #[must_use]
    pub fn nic(&self, number: usize) -> Option<Arc<SimulatedNic>> {
        self.nics.get(number).cloned()
    }

    /// Returns all NICs as registrars, named `simulated:0` and so on.
    #[must_use]
    pub fn nics(&self) -> Vec<Arc<dyn Registrar>> {
        self.nics.iter().map(|nic| Arc::clone(nic) as Arc<dyn Registrar>).collect()
    }

    /// Returns this machine as a platform to register on.
    #[must_use]
    pub fn platform(&self) -> Arc<dyn Platform> {
        Arc::new(self.clone())
    }

    /// Returns the number of valid keys of all NICs.
    #[must_use]
    pub fn live_keys(&self) -> u64 {
        self.counts().live_keys
    }

    /// Returns the counts of all NICs together.
    #[must_use]
    pub fn counts(&self) -> CallCounts {
        self.scheduler.with_state(|state| state.world.counts())
    }

    /// Returns all calls in the log, in the order in which they ended, and clears the log.
    #[must_use]
    pub fn take_log(&self) -> Vec<LoggedCall> {
        self.scheduler.with_state(|state| std::mem::take(&mut state.world.log))
    }
}

/// Returns the addresses of a range of a region, if the range lies within the region.
fn addresses(region: &Region, range: impl RangeBounds<usize>) -> Result<Range<usize>, ArenaError> {
    let slice = region.slice(range)?;
    let start = slice.as_ptr().addr();
    Ok(start..start + slice.len())
}

impl Platform for SimulatedMachine {
    fn cores(&self) -> usize {
        self.cores
    }

    /// Returns the virtual clock of the calling thread.
    fn now(&self) -> Duration {
        Duration::from_nanos(self.scheduler.now())
    }

    /// Returns the exact number.
    fn resident_bytes(&self, region: &Region, range: Range<usize>) -> Result<u64, ArenaError> {
        let addresses = addresses(region, range)?;
        let untouched = self.scheduler.with_state(|state| state.world.memory.untouched(&addresses));
        Ok(addresses.len() as u64 - untouched)
    }

    /// Takes virtual time for bytes that are not resident, and none for the rest.
    /// [`Populate::Auto`] uses as many threads as gain anything. The time budget of the options and
    /// the reported times are virtual.
    fn populate(
        &self,
        region: &Region,
        range: Range<usize>,
        how: Populate,
        watch: &ProgressOptions,
    ) -> Result<Populated, ArenaError> {
        let addresses = addresses(region, range)?;
        let enough = self
            .scheduler
            .with_state(|state| state.world.costs.populate.useful_threads(self.cores));
        let threads = match how {
            Populate::None => return Ok(Populated::default()),
            Populate::Threads(threads) => threads.get().min(self.cores),
            Populate::Auto => enough,
        };
        let bytes = addresses.len() as u64;
        let untouched = self.scheduler.with_state(|state| state.world.memory.untouched(&addresses));
        self.headroom(untouched)?;
        let start = self.scheduler.now();
        let elapsed = || Duration::from_nanos(self.scheduler.now().saturating_sub(start));
        let watched = ProgressTracker::timed(watch, bytes, elapsed);
        watched.go_on()?;
        let chunk = addresses.len().div_ceil(MAX_CHECKS).max(CHUNK);
        for from in addresses.clone().step_by(chunk) {
            let part = from..addresses.end.min(from.saturating_add(chunk));
            let (len, end) = (part.len(), part.end);
            let began = watched.now();
            let request = CallRequest::Populate { range: part, threads };
            self.scheduler.call(SimulatedCall::new(request));
            watched.add(len, 0, began);
            if end < addresses.end {
                watched.go_on()?;
            }
        }
        let mut populated = Populated::default();
        populated.bytes = bytes;
        populated.seconds = elapsed().as_secs_f64();
        populated.threads = threads;
        Ok(populated)
    }

    fn headroom(&self, bytes: u64) -> Result<(), ArenaError> {
        let remaining = self.scheduler.with_state(|state| state.world.memory.remaining_bytes());
        match bytes > remaining {
            true => Err(ArenaError::NoHeadroom { need: bytes, limit: Limit::Machine(remaining) }),
            false => Ok(()),
        }
    }

    fn gather(&self, threads: usize) {
        self.scheduler.gather(threads);
    }

    fn enter(&self, thread: usize) {
        self.scheduler.enter(thread);
    }

    fn leave(&self) {
        self.scheduler.leave();
    }
}
