//! *Setting up*: maps, populates and registers the pool of the tour, as far as this machine allows.
//!
//! If rings may not pin the whole pool, it stays unregistered, and a small pool is registered
//! beside it as a demonstration. If memory turns out to be short, the pool is halved until it fits.

use std::sync::{Arc, Mutex, PoisonError};

use kvmem::pool::{Pool, PoolBuilder, PoolError, PoolReport};
use kvmem::register::{Limits, NotAvailable, Registrar};

use super::sizing::{Pin, Sizing, enough};
use super::telling::{Going, Missing, bytes};
use crate::args::TourArgs;

/// The result.
pub(super) struct SetUp {
    pub(super) pool: Pool,
    pub(super) report: PoolReport,
    pub(super) sizing: Sizing,
    /// The report of a small registered pool, if the large one could not be registered.
    pub(super) shown: Option<PoolReport>,
    /// What the machine lacks.
    pub(super) missing: Vec<Missing>,
}

/// Returns the rings that pin the pool, or why there are none.
pub(super) fn rings(
    opened: Result<Vec<Arc<dyn Registrar>>, NotAvailable>,
) -> (Vec<Arc<dyn Registrar>>, Option<Missing>) {
    match opened {
        Ok(rings) => (rings, None),
        Err(NotAvailable { backend, reason, remedy, .. }) => {
            let missing = Missing {
                what: backend.into_owned(),
                why: format!(
                    "{reason}; without rings the pool is not registered, and nothing can DMA into \
                     it"
                ),
                remedies: vec![remedy.into_owned()],
            };
            (Vec::new(), Some(missing))
        }
    }
}

/// Builds the pool. `hot` gives the sizes that will be allocated.
///
/// # Errors
/// The machine has no memory for the smallest pool.
pub(super) fn set_up(
    args: &TourArgs,
    mut sizing: Sizing,
    rings: Vec<Arc<dyn Registrar>>,
    hot: impl Fn(u64) -> Vec<u64>,
) -> Result<SetUp, Missing> {
    let mut missing = Vec::new();
    let limits: Vec<Limits> = rings.iter().map(|ring| ring.limits()).collect();
    let pin = sizing.pinned(&limits, args.pool.is_none());
    let mut with = match pin {
        Pin::All => rings.clone(),
        _ => Vec::new(),
    };
    if pin != Pin::All {
        missing.push(too_little_locked(&sizing, &limits));
    }
    let pool = loop {
        let builder = Pool::builder(addressable(sizing.bytes)).hot_sizes(hot(sizing.bytes));
        match build(builder, &with) {
            Ok(pool) => break pool,
            Err(error @ PoolError::Register(_)) if !with.is_empty() => {
                missing.push(not_registered(
                    &error,
                    "the pool stays unregistered, and nothing can DMA into it",
                ));
                with.clear();
            }
            Err(error) if args.pool.is_none() && sizing.bytes / 2 >= TourArgs::LEAST_POOL => {
                let why = format!(
                    "{} is not available ({error}), so the tour tries half of it",
                    bytes(sizing.bytes)
                );
                missing.push(Missing { what: "memory".to_owned(), why, remedies: Vec::new() });
                sizing =
                    Sizing { bytes: sizing.bytes / 2, why: "as much as is available".to_owned() };
            }
            Err(error) => {
                return Err(Missing {
                    what: "memory for a pool".to_owned(),
                    why: error.to_string(),
                    remedies: Vec::new(),
                });
            }
        }
    };
    let report = pool.report();
    let shown = match pin {
        Pin::Some(bytes) => match build(Pool::builder(addressable(bytes)), &rings) {
            Ok(pool) => Some(pool.report()),
            Err(error) => {
                missing.push(not_registered(
                    &error,
                    "not even a small pool can be registered to show how that is done",
                ));
                None
            }
        },
        _ => None,
    };
    Ok(SetUp { pool, report, sizing, shown, missing })
}

fn build(builder: PoolBuilder, rings: &[Arc<dyn Registrar>]) -> Result<Pool, PoolError> {
    let bars = Arc::new(SetUpBars::default());
    let (populating, registering) = (Arc::clone(&bars), Arc::clone(&bars));
    let built = builder
        .registrars(rings.iter().cloned())
        .on_populate(move |progress| {
            let speed = format!("{:.1} GiB/s", progress.gib_per_s());
            populating.show("populating", progress.done_bytes, progress.total_bytes, speed);
        })
        .on_register(move |progress| {
            let (done, total) = (progress.done_bytes, progress.total_bytes);
            registering.show("registering", done, total, String::new());
        })
        .build();
    // The listeners live as long as the pool.
    bars.end();
    built
}

/// The bar of the present step.
#[derive(Default)]
struct SetUpBars(Mutex<Option<(&'static str, Going)>>);

impl SetUpBars {
    /// Shows the progress of a step.
    fn show(&self, step: &'static str, done: u64, total: u64, message: String) {
        let mut bar = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if bar.as_ref().is_none_or(|(now, _)| *now != step) {
            *bar = Some((step, Going::new(step, Some(total))));
        }
        if let Some((_, going)) = &*bar {
            going.of(total);
            going.at(done, message);
        }
    }

    fn end(&self) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).take();
    }
}

/// Converts to `usize`; a size that cannot be addressed becomes the maximum, which fails later.
fn addressable(bytes: u64) -> usize {
    usize::try_from(bytes).unwrap_or(usize::MAX)
}

/// `RLIMIT_MEMLOCK` is too small.
fn too_little_locked(sizing: &Sizing, rings: &[Limits]) -> Missing {
    let memlock =
        rings.iter().filter_map(|ring| ring.memlock).min_by_key(|memlock| memlock.limit_bytes);
    let limit = memlock.map_or(0, |memlock| memlock.limit_bytes);
    let wanted = sizing.bytes.saturating_mul(rings.len() as u64);
    let kib = enough(sizing.bytes, rings.len()).div_ceil(1024);
    Missing {
        what: "locked memory".to_owned(),
        why: format!(
            "RLIMIT_MEMLOCK is {}, and {} rings pin {} of a pool of {}; so this pool stays \
             unregistered, and nothing can DMA into it",
            bytes(limit),
            rings.len(),
            bytes(wanted),
            bytes(sizing.bytes)
        ),
        remedies: vec![
            format!("ulimit -l {kib} in the shell, or memlock in /etc/security/limits.conf"),
            "a container: --ulimit memlock=-1; a systemd unit: LimitMEMLOCK=infinity".to_owned(),
        ],
    }
}

fn not_registered(error: &PoolError, so: &str) -> Missing {
    Missing {
        what: "registration".to_owned(),
        why: format!("{error}; so {so}"),
        remedies: Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rings_that_cannot_be_had_are_told_with_the_remedy() {
        let reason = NotAvailable::new(
            "io_uring",
            "io_uring_setup: EPERM",
            "allow io_uring_setup in the seccomp profile",
        );
        let (rings, missing) = rings(Err(reason));
        let missing = missing.expect("something is missing");
        assert!(rings.is_empty());
        assert_eq!(missing.what, "io_uring");
        assert!(missing.why.starts_with("io_uring_setup: EPERM; without rings"), "{missing:?}");
        assert_eq!(missing.remedies, ["allow io_uring_setup in the seccomp profile"]);
    }
}
