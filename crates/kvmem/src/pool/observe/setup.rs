//! *Set-up*: how long populating and registering have taken, and what failed of it.

use crate::arena::Populated;
use crate::pool::PoolError;
use crate::register::{Phase, RegisterError, RegisterProgress};
use crate::sync::{AtomicU64, Ordering};
use crate::trace::event;

/// Seconds so far, of all that was made ready and all that a pool has grown by.
pub(in crate::pool) struct SetUp {
    /// In nanoseconds, as all here.
    populated: AtomicU64,
    /// Of each registrar, in order.
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

    /// Something was populated.
    pub(in crate::pool) fn populated(&self, done: &Populated) {
        self.populated_in(done.seconds);
    }

    /// As above, in so many seconds.
    pub(in crate::pool) fn populated_in(&self, seconds: f64) {
        // Relaxed: a sum to report.
        self.populated.fetch_add((seconds * 1e9) as u64, Ordering::Relaxed);
    }

    /// A registrar was called.
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

/// What of setting up a pool has failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Failed<'a> {
    Populate,
    /// With this registrar; empty: none of them by itself.
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

/// Says that populating or registering has failed: now, for there may be no pool to ask later.
pub(in crate::pool) fn failed(pool: &str, error: &PoolError) {
    match of(error) {
        Some(Failed::Populate) => {
            event!(WARN, pool, %error, "not populated");
            #[cfg(feature = "metrics")]
            super::exporter::populate_failed(pool);
        }
        Some(Failed::Register(registrar)) => {
            event!(WARN, pool, registrar, %error, "not registered");
            #[cfg(feature = "metrics")]
            super::exporter::registration_failed(pool, registrar);
            // Without these features the failure is not reported here.
            let _ = registrar;
        }
        None => {}
    }
    let _ = pool;
}
