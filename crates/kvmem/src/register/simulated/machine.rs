//! *Machine*: a host that is not there, with its NICs.

use std::ops::{Range, RangeBounds};
use std::sync::Arc;
use std::time::Duration;

use super::costs::GIB;
use super::stage::Stage;
use super::world::{Call, Request};
use super::{Builder, Counts, Entry, Nic};
use crate::arena::{ArenaError, Limit, Populate, Populated, ProgressOptions, Region, Watched};
use crate::register::{Platform, Registrar};

/// The least that is populated between two looks at the watch.
const CHUNK: usize = (GIB / 4) as usize;
/// The most looks.
const LOOKS: usize = 64;

/// A simulated machine. Clones are the same machine.
#[derive(Clone, Debug)]
pub struct Machine {
    pub(super) stage: Arc<Stage>,
    pub(super) nics: Arc<[Arc<Nic>]>,
    pub(super) cores: usize,
}

impl Machine {
    /// A machine to be described further and then built.
    pub fn builder() -> Builder {
        Builder::new()
    }

    /// A NIC, by its number from 0; `None` if there are not so many.
    #[must_use]
    pub fn nic(&self, number: usize) -> Option<Arc<Nic>> {
        self.nics.get(number).cloned()
    }

    /// All NICs, as registrars: `simulated:0` and so on.
    #[must_use]
    pub fn nics(&self) -> Vec<Arc<dyn Registrar>> {
        self.nics.iter().map(|nic| Arc::clone(nic) as Arc<dyn Registrar>).collect()
    }

    /// This machine as a host to register on.
    #[must_use]
    pub fn host(&self) -> Arc<dyn Platform> {
        Arc::new(self.clone())
    }

    /// Keys that stand, of all NICs.
    #[must_use]
    pub fn live_keys(&self) -> u64 {
        self.counts().live_keys
    }

    /// What has been called on all NICs together.
    #[must_use]
    pub fn counts(&self) -> Counts {
        self.stage.look(|state| state.world.counts())
    }

    /// All calls so far, in the order in which they ended.
    #[must_use]
    pub fn log(&self) -> Vec<Entry> {
        self.stage.look(|state| state.world.log.clone())
    }

    /// All calls since the log was last taken, and takes them out of it.
    #[must_use]
    pub fn take_log(&self) -> Vec<Entry> {
        self.stage.look(|state| std::mem::take(&mut state.world.log))
    }

    /// The pages of a range are not resident any more, as if they had been given back. Costs no
    /// time.
    ///
    /// # Errors
    /// [`OutOfBounds`](ArenaError::OutOfBounds).
    pub fn discard(
        &self,
        region: &Region,
        range: impl RangeBounds<usize>,
    ) -> Result<(), ArenaError> {
        let addresses = addresses(region, region.resolve(range)?);
        self.stage.look(|state| state.world.memory.discard(addresses));
        Ok(())
    }

    /// The pages of a range are resident from now on. Costs no time.
    ///
    /// # Errors
    /// [`OutOfBounds`](ArenaError::OutOfBounds).
    pub fn touch(&self, region: &Region, range: impl RangeBounds<usize>) -> Result<(), ArenaError> {
        let addresses = addresses(region, region.resolve(range)?);
        self.stage.look(|state| state.world.memory.touch(addresses));
        Ok(())
    }

    /// How often the threads of a gathering have lost patience with one that did not come. Unless
    /// it is 0 the results depend on the scheduler.
    #[must_use]
    pub fn impatient(&self) -> u64 {
        self.stage.look(|state| state.impatient)
    }
}

/// The addresses of a range of a region.
fn addresses(region: &Region, range: Range<usize>) -> Range<usize> {
    let base = region.base().addr().get();
    base + range.start..base + range.end
}

impl Platform for Machine {
    fn cores(&self) -> usize {
        self.cores
    }

    /// The virtual clock of the calling thread.
    fn now(&self) -> Duration {
        Duration::from_nanos(self.stage.now())
    }

    /// Exact.
    fn resident_bytes(&self, region: &Region, range: Range<usize>) -> Result<u64, ArenaError> {
        let addresses = addresses(region, region.resolve(range)?);
        let untouched = self.stage.look(|state| state.world.memory.untouched(&addresses));
        Ok(addresses.len() as u64 - untouched)
    }

    /// Takes virtual time for what is not resident, none for the rest. [`Populate::Auto`] knows how
    /// many threads are enough. The watch's budget and the times it is told are virtual.
    fn populate(
        &self,
        region: &Region,
        range: Range<usize>,
        how: Populate,
        watch: &ProgressOptions,
    ) -> Result<Populated, ArenaError> {
        let range = region.resolve(range)?;
        let enough = self.stage.look(|state| state.world.costs.populate.enough_threads(self.cores));
        let threads = match how {
            Populate::None => return Ok(Populated::default()),
            Populate::Threads(threads) => threads.get().min(self.cores),
            Populate::Auto => enough,
        };
        let bytes = range.len() as u64;
        self.headroom(bytes - self.resident_bytes(region, range.clone())?)?;
        let start = self.stage.now();
        let elapsed = || Duration::from_nanos(self.stage.now().saturating_sub(start));
        let watched = Watched::timed(watch, bytes, elapsed);
        watched.go_on()?;
        let chunk = range.len().div_ceil(LOOKS).max(CHUNK);
        for from in range.clone().step_by(chunk) {
            let part = from..(from + chunk).min(range.end);
            let began = watched.now();
            let request = Request::Populate { range: addresses(region, part.clone()), threads };
            self.stage.call(Call::new(request));
            watched.add(part.len(), 0, began);
            if part.end < range.end {
                watched.go_on()?;
            }
        }
        Ok(Populated { bytes, seconds: elapsed().as_secs_f64(), threads })
    }

    fn headroom(&self, bytes: u64) -> Result<(), ArenaError> {
        let left = self.stage.look(|state| state.world.memory.left());
        match bytes > left {
            true => Err(ArenaError::NoHeadroom { need: bytes, limit: Limit::Machine(left) }),
            false => Ok(()),
        }
    }

    fn gather(&self, threads: usize) {
        self.stage.gather(threads);
    }

    fn enter(&self, thread: usize) {
        self.stage.enter(thread);
    }

    fn leave(&self) {
        self.stage.leave();
    }
}
