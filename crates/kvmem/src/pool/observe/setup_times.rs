//! *Set-up*: the durations of populating and registering, and their failures.

use crate::arena::Populated;
use crate::pool::PoolError;
use crate::register::{Phase, RegisterError, RegisterProgress};
use crate::sync::{AtomicU64, Ordering};
use crate::trace::event;

/// The time spent on setting up so far: for building the pool, and for growing it.
pub(in crate::pool) struct SetUp {
    /// Nanoseconds of populating.
    populated: AtomicU64,
    /// Nanoseconds of each registrar's calls, in order.
    registered: Box<[(String, AtomicU64)]>,
}

fn seconds(nanos: &AtomicU64) -> f64 {
    // Relaxed: a figure to report.
    nanos.load(Ordering::Relaxed) as f64 / 1e9
}

impl SetUp {
    pub(in crate::pool) fn new(registrars: impl Iterator<Item = String>) -> SetUp {
        let registered = registrars.map(|name| (name, AtomicU64::new(0))).collect();
        SetUp { populated: AtomicU64::new(0), registered }
    }

    /// Adds the time of one population.
    pub(in crate::pool) fn populated(&self, done: &Populated) {
        self.populated_in(done.seconds);
    }

    /// Adds a time of populating, in seconds.
    pub(in crate::pool) fn populated_in(&self, seconds: f64) {
        // Relaxed: a sum to report.
        self.populated.fetch_add((seconds * 1e9) as u64, Ordering::Relaxed);
    }

    /// Adds the time of one call of a registrar.
    pub(in crate::pool) fn registered(&self, progress: &RegisterProgress) {
        if progress.phase == Phase::Register
            && let Some(piece) = progress.piece
            && let Some((_, sum)) = self.registered.get(piece.worker)
        {
            let took = piece.ended.saturating_sub(piece.began);
            // Relaxed: a sum to report.
            sum.fetch_add(took.as_nanos() as u64, Ordering::Relaxed);
        }
    }

    pub(in crate::pool) fn populate_seconds(&self) -> f64 {
        seconds(&self.populated)
    }

    pub(in crate::pool) fn register_seconds(&self) -> Vec<(String, f64)> {
        self.registered.iter().map(|(name, sum)| (name.clone(), seconds(sum))).collect()
    }
}

/// The step of setting up that failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Failed<'a> {
    Populate,
    /// The registrar's name; empty: no single registrar caused the failure.
    Register(&'a str),
}

fn of(error: &PoolError) -> Option<Failed<'_>> {
    let error = match error {
        PoolError::Memory(_) => return Some(Failed::Populate),
        PoolError::Register(error) => &**error,
        _ => return None,
    };
    Some(match error {
        RegisterError::Populate(_) => Failed::Populate,
        RegisterError::Limited { device, .. } | RegisterError::SameName { device } => {
            Failed::Register(device)
        }
        RegisterError::ChunkFailed { error, .. } => Failed::Register(&error.device),
        RegisterError::DeregisterFailed { kept } => {
            Failed::Register(kept.first().map_or("", |error| &error.device))
        }
        _ => Failed::Register(""),
    })
}

/// Reports that populating or registering failed. It does so at once: a pool that could not be
/// built has no figures to read later.
pub(in crate::pool) fn failed(pool: &str, error: &PoolError) {
    match of(error) {
        Some(Failed::Populate) => {
            event!(WARN, pool, %error, "not populated");
            #[cfg(feature = "metrics")]
            super::instruments::populate_failed(pool);
        }
        Some(Failed::Register(registrar)) => {
            event!(WARN, pool, registrar, %error, "not registered");
            #[cfg(feature = "metrics")]
            super::instruments::registration_failed(pool, registrar);
            // Unused if neither feature is enabled.
            let _ = registrar;
        }
        None => {}
    }
    let _ = pool;
}
