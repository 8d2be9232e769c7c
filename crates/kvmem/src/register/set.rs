//! *Registration set*: one region with several registrars.

use std::ops::RangeBounds;
use std::sync::Arc;
use std::time::Duration;

use super::engine::{Engine, EngineResult, IssuedKeys, RegisterListener, release};
use super::{
    Deregistered, Key, Outcome, Phase, Platform, RegisterError, RegisterProgress, Registration,
};
use crate::arena::Region;
use crate::threads::{WorkBudget, WorkTracker, WorkUnit};

/// One region, registered with several registrars: all of it with all of them.
///
/// ```text
///  RegistrationSet ──┬── Registration io_uring:0 ── keys ──┐
///                    ├── Registration io_uring:1 ── keys ──┼──▶ Region
///                    └── Registration mlx5_0 ────── keys ──┘
/// ```
///
/// Dropping the set deregisters all keys, by several threads if registering took long. Then the
/// region is unmapped, unless something else holds it. The memory cannot be unmapped earlier:
///
/// ```compile_fail,E0505
/// # use kvmem::{arena::Region, register::RegistrationSet};
/// let set = RegistrationSet::builder().register(Region::builder(1 << 20).map()?)?;
/// let region = set.region();
/// drop(set);
/// println!("{}", region.len()); // unmapped with the set
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// A region that was moved into the set can no longer be dropped:
///
/// ```compile_fail,E0382
/// # use kvmem::{arena::Region, register::RegistrationSet};
/// let region = Region::builder(1 << 20).map()?;
/// let set = RegistrationSet::builder().register(region)?;
/// drop(region);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct RegistrationSet {
    host: Arc<dyn Platform>,
    registrations: Vec<Registration>,
    region: Arc<Region>,
    outcome: Outcome,
    boundary_bytes: Option<u64>,
    /// The number of threads that deregister keys.
    threads: usize,
    listener: Option<RegisterListener>,
}

impl RegistrationSet {
    /// Runs an engine. Returns a set for each of its regions, in their order.
    pub(super) fn run(engine: &Engine) -> Result<Vec<RegistrationSet>, RegisterError> {
        let host = engine.host();
        let finish = |result: EngineResult| {
            let sets = result.keys.into_iter().zip(engine.jobs()).map(|(issued, job)| {
                let registrations =
                    issued.into_iter().map(|issued| Registration::new(host, job.region(), issued));
                RegistrationSet {
                    host: Arc::clone(host),
                    registrations: registrations.collect(),
                    region: Arc::clone(job.region()),
                    outcome: result.outcome.clone(),
                    boundary_bytes: job.plan().boundary_bytes,
                    threads: result.release_threads,
                    listener: engine.listener().cloned(),
                }
            });
            sets.collect()
        };
        // SAFETY: `finish` passes the keys of each region to registrations, which hold the region.
        unsafe { engine.run(finish) }
    }

    /// Returns the region.
    #[must_use]
    pub fn region(&self) -> &Region {
        &self.region
    }

    /// Returns the result of registering: how long it took, how registrars were called, and the
    /// measurements behind that choice. For a batch it covers all regions.
    #[must_use]
    pub fn outcome(&self) -> &Outcome {
        &self.outcome
    }

    /// Returns the names of the registrars.
    pub fn devices(&self) -> impl ExactSizeIterator<Item = &str> {
        self.registrations.iter().map(Registration::device)
    }

    /// Returns the registrations, one for each registrar.
    #[must_use]
    pub fn registrations(&self) -> &[Registration] {
        &self.registrations
    }

    /// Returns the registration with the registrar of this name.
    ///
    /// # Errors
    /// [`NoSuchDevice`](RegisterError::NoSuchDevice) if the set has no such registrar.
    pub fn registration(&self, device: &str) -> Result<&Registration, RegisterError> {
        let found = self.registrations.iter().find(|registration| registration.device() == device);
        found.ok_or_else(|| no_such_device(device, self.devices()))
    }

    /// Returns the key with which this registrar can reach all of a range.
    ///
    /// # Errors
    /// [`NoSuchDevice`](RegisterError::NoSuchDevice) if the set has no such registrar, and the
    /// errors of [`Registration::key_for`].
    pub fn key_for(
        &self,
        device: &str,
        range: impl RangeBounds<usize>,
    ) -> Result<Key, RegisterError> {
        self.registration(device)?.key_for(range)
    }

    /// Returns a boundary for an offset allocator: a range that does not straddle a multiple of it
    /// has one key with each registrar. `None`: each registrar has one key for the whole region.
    #[must_use]
    pub fn boundary_bytes(&self) -> Option<u64> {
        self.boundary_bytes
    }

    /// Deregisters all keys, by several threads if registering took at least 50 ms. A second call
    /// does nothing. The progress listener of the builder is called here too.
    ///
    /// # Errors
    /// [`DeregisterFailed`](RegisterError::DeregisterFailed) names the keys that could not be
    /// deregistered in three attempts. They stay registered, the memory stays mapped, and the
    /// call can be repeated. All other keys are deregistered.
    pub fn deregister(&mut self) -> Result<Deregistered, RegisterError> {
        let total: u64 = self
            .registrations
            .iter()
            .flat_map(Registration::chunks)
            .map(|(range, _)| range.len() as u64)
            .sum();
        let (host, start) = (Arc::clone(&self.host), self.host.now());
        let since = move |at: Duration| at.saturating_sub(start);
        let work = WorkTracker::begin(WorkBudget::default(), 0, move || since(host.now()));
        let listener = self.listener.clone();
        self.release(&|piece, bytes| {
            let Some(listener) = &listener else { return };
            let mut done = work.counts();
            *done += bytes;
            listener(RegisterProgress {
                phase: Phase::Deregister,
                done_bytes: *done,
                total_bytes: total,
                ready_bytes: 0,
                elapsed: work.elapsed(),
                piece: Some(WorkUnit::new(piece.worker, since(piece.began), since(piece.ended))),
            });
        })
    }

    /// Splits the set: each registration can be dropped separately; the last one unmaps the region.
    #[must_use]
    pub fn into_registrations(mut self) -> Vec<Registration> {
        std::mem::take(&mut self.registrations)
    }

    fn release(
        &mut self,
        report: &(dyn Fn(WorkUnit, u64) + Sync),
    ) -> Result<Deregistered, RegisterError> {
        let issued: Vec<IssuedKeys> =
            self.registrations.iter().map(Registration::issued_keys).collect();
        let (back, kept) = release(&*self.host, &issued, self.threads, report);
        for (lane, registration) in self.registrations.iter_mut().enumerate() {
            registration.retain_chunks(
                kept.iter().filter(|kept| kept.0 == lane).map(|kept| kept.1.chunk).collect(),
            );
        }
        let kept: Vec<_> = kept.into_iter().map(|(_, error)| error).collect();
        if kept.is_empty() { Ok(back) } else { Err(RegisterError::DeregisterFailed { kept }) }
    }
}

impl Drop for RegistrationSet {
    fn drop(&mut self) {
        // Each registration retries the keys that fail here, and keeps them mapped if that fails.
        let _ = self.release(&|_, _| ());
    }
}

impl std::fmt::Debug for RegistrationSet {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RegistrationSet")
            .field("registrations", &self.registrations)
            .field("region", &self.region)
            .field("outcome", &self.outcome)
            .finish_non_exhaustive()
    }
}

pub(super) fn no_such_device<'a>(
    device: &str,
    have: impl Iterator<Item = &'a str>,
) -> RegisterError {
    RegisterError::NoSuchDevice {
        device: device.to_owned(),
        have: have.map(str::to_owned).collect(),
    }
}
