//! *Registration set*: one region with several registrars.

use std::ops::RangeBounds;
use std::sync::Arc;
use std::time::Duration;

use super::release::{Given, release};
use super::watching::Listener;
use super::{
    Deregistered, Key, Outcome, Phase, Platform, RegisterError, RegisterProgress, Registration,
    RegistrationBuilder,
};
use crate::arena::{Region, WorkUnit};

/// One region, registered with several registrars: all of it with all of them.
///
/// ```text
///  RegistrationSet ──┬── Registration io_uring:0 ── keys ──┐
///                    ├── Registration io_uring:1 ── keys ──┼──▶ Region
///                    └── Registration mlx5_0 ────── keys ──┘
/// ```
///
/// Dropping it gives all keys back, by several threads where that took long to get; then the region
/// goes, if nobody else has it. The memory cannot go before:
///
/// ```compile_fail,E0505
/// # use kvmem::{arena::Region, register::{RegistrationSet, simulated::Machine}};
/// let set = RegistrationSet::builder().register(Region::builder(1 << 20).map()?)?;
/// let region = set.region();
/// drop(set);
/// println!("{}", region.len()); // it went with the set
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// and a region that has been handed over is not there to be dropped:
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
    /// How many threads give keys back.
    threads: usize,
    listener: Option<Listener>,
}

impl RegistrationSet {
    /// Says with whom, and in which way.
    pub fn builder() -> RegistrationBuilder {
        RegistrationBuilder::new()
    }

    pub(super) fn new(
        host: &Arc<dyn Platform>,
        region: &Arc<Region>,
        registrations: Vec<Registration>,
        outcome: Outcome,
        boundary_bytes: Option<u64>,
        threads: usize,
        listener: Option<Listener>,
    ) -> RegistrationSet {
        RegistrationSet {
            host: Arc::clone(host),
            registrations,
            region: Arc::clone(region),
            outcome,
            boundary_bytes,
            threads,
            listener,
        }
    }

    /// The memory.
    #[must_use]
    pub fn region(&self) -> &Region {
        &self.region
    }

    /// What registering did, how long it took, and what was chosen on what grounds. Of a batch: all
    /// of it.
    #[must_use]
    pub fn outcome(&self) -> &Outcome {
        &self.outcome
    }

    /// The names of the registrars.
    pub fn devices(&self) -> impl ExactSizeIterator<Item = &str> {
        self.registrations.iter().map(Registration::device)
    }

    /// The registrations, one for each registrar.
    #[must_use]
    pub fn registrations(&self) -> &[Registration] {
        &self.registrations
    }

    /// The registration with one registrar.
    ///
    /// # Errors
    /// [`NoSuchDevice`](RegisterError::NoSuchDevice).
    pub fn registration(&self, device: &str) -> Result<&Registration, RegisterError> {
        let found = self.registrations.iter().find(|registration| registration.device() == device);
        found.ok_or_else(|| no_such_device(device, self.devices()))
    }

    /// The key with which this registrar can reach all of a range.
    ///
    /// # Errors
    /// [`NoSuchDevice`](RegisterError::NoSuchDevice), and as for [`Registration::key_for`].
    pub fn key_for(
        &self,
        device: &str,
        range: impl RangeBounds<usize>,
    ) -> Result<Key, RegisterError> {
        self.registration(device)?.key_for(range)
    }

    /// A boundary that an allocator of offsets may be told: what does not straddle a multiple of it
    /// has one key with each registrar. `None`: each registrar has one key for all.
    #[must_use]
    pub fn boundary_bytes(&self) -> Option<u64> {
        self.boundary_bytes
    }

    /// Gives all keys back, by several threads if registering took long enough for that to pay. A
    /// second time does nothing. The listener that registering had is told how far it has come.
    ///
    /// # Errors
    /// [`DeregisterFailed`](RegisterError::DeregisterFailed), as for [`Registration::deregister`]. All others have been
    /// given back then.
    pub fn deregister(&mut self) -> Result<Deregistered, RegisterError> {
        let total: u64 = self
            .registrations
            .iter()
            .flat_map(Registration::chunks)
            .map(|(range, _)| range.len() as u64)
            .sum();
        let start = self.host.now();
        let done = std::sync::Mutex::new(0);
        let listener = self.listener.clone();
        let host = Arc::clone(&self.host);
        self.release(&|piece, bytes| {
            let Some(listener) = &listener else { return };
            let since = |at: Duration| at.saturating_sub(start);
            // Reports are made under the lock, so that they come in order.
            let mut done = done.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
            *done += bytes;
            listener(RegisterProgress {
                phase: Phase::Deregister,
                done_bytes: *done,
                total_bytes: total,
                ready_bytes: 0,
                elapsed: since(host.now()),
                piece: Some(WorkUnit::new(piece.worker, since(piece.began), since(piece.ended))),
            });
        })
    }

    /// The registrations apart: each can go by itself, and the memory goes with the last.
    #[must_use]
    pub fn into_registrations(mut self) -> Vec<Registration> {
        std::mem::take(&mut self.registrations)
    }

    fn release(
        &mut self,
        report: &(dyn Fn(WorkUnit, u64) + Sync),
    ) -> Result<Deregistered, RegisterError> {
        let given: Vec<Given> = self.registrations.iter().map(Registration::given).collect();
        let (back, kept) = release(&*self.host, &given, self.threads, report);
        for (lane, registration) in self.registrations.iter_mut().enumerate() {
            registration
                .keep(kept.iter().filter(|kept| kept.0 == lane).map(|kept| kept.1.chunk).collect());
        }
        let kept: Vec<_> = kept.into_iter().map(|(_, error)| error).collect();
        if kept.is_empty() { Ok(back) } else { Err(RegisterError::DeregisterFailed { kept }) }
    }
}

impl Drop for RegistrationSet {
    fn drop(&mut self) {
        // What is not taken back each registration tries once more, and then keeps mapped.
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
