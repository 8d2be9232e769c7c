//! *Measure*: one contender in one cell, timed once.

use std::sync::Arc;

use kvmem::arena::Region;
use kvmem::register::{Outcome, Policy, RegisterError, RegisterLimit, RegistrationSet};

use super::bed::Bed;
use super::published::Published;
use super::{ContenderId, MeasureError};

/// What one run saw, in seconds of the host.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Seen {
    pub(super) populate_s: f64,
    pub(super) register_s: f64,
    pub(super) unregister_s: f64,
    /// `sequential` or `parallel`.
    pub(super) chosen: &'static str,
    /// GiB/s that were tried, one registrar after another and side by side.
    pub(super) trial: Option<(f64, f64)>,
}

impl Seen {
    pub(super) fn total_s(&self) -> f64 {
        self.populate_s + self.register_s + self.unregister_s
    }
}

/// Registers the region with the registrars of `bed`, and gives the keys back.
pub(super) fn measure(
    contender: ContenderId,
    bed: &Bed,
    region: &Arc<Region>,
) -> Result<Seen, MeasureError> {
    match contender {
        ContenderId::Sequential => published(bed, region, false),
        ContenderId::Parallel => published(bed, region, true),
        ContenderId::KvmemSequential => library(bed, region, Policy::Sequential),
        ContenderId::KvmemParallel => library(bed, region, Policy::all_at_once()),
        ContenderId::Auto => library(bed, region, Policy::Auto),
    }
}

fn published(bed: &Bed, region: &Arc<Region>, side_by_side: bool) -> Result<Seen, MeasureError> {
    let start = bed.host.now();
    let registered = Published::register(&bed.plain, &*bed.host, region, side_by_side)?;
    let between = bed.host.now();
    registered.give_back()?;
    let end = bed.host.now();
    Ok(Seen {
        populate_s: 0.0,
        register_s: (between - start).as_secs_f64(),
        unregister_s: (end - between).as_secs_f64(),
        chosen: if side_by_side { "parallel" } else { "sequential" },
        trial: None,
    })
}

fn library(bed: &Bed, region: &Arc<Region>, policy: Policy) -> Result<Seen, MeasureError> {
    let builder = RegistrationSet::builder()
        .registrars(bed.registrars.iter().cloned())
        .policy(policy)
        .host(Arc::clone(&bed.host));
    let start = bed.host.now();
    let mut set = builder.register(Arc::clone(region)).map_err(failed)?;
    let between = bed.host.now();
    set.deregister().map_err(failed)?;
    let end = bed.host.now();
    let outcome: &Outcome = set.outcome();
    let populate_s = outcome.populated.seconds;
    Ok(Seen {
        populate_s,
        // Whatever was not populating: planning, trials and books too.
        register_s: ((between - start).as_secs_f64() - populate_s).max(0.0),
        unregister_s: (end - between).as_secs_f64(),
        chosen: outcome.chosen(),
        trial: outcome
            .trial
            .as_ref()
            .map(|trial| (trial.sequential_gib_per_s, trial.parallel_gib_per_s)),
    })
}

fn failed(error: RegisterError) -> MeasureError {
    let exceeded = match &error {
        RegisterError::Limited { exceeded, .. } => Some(exceeded),
        RegisterError::Refused { error, .. } => error.refusal.exceeded.as_ref(),
        _ => None,
    };
    match exceeded {
        Some(RegisterLimit::Memlock { .. } | RegisterLimit::Descriptors) => {
            MeasureError::Limited(error.to_string())
        }
        _ => MeasureError::Library(error.to_string()),
    }
}
