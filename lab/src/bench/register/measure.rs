//! One contender in one cell, measured once.

use std::sync::Arc;

use anyhow::{Error, Result};
use kvmem::arena::Region;
use kvmem::register::{Policy, RegisterError, RegistrationSet};

use super::RegisterContenderId;
use super::fixture::{RunFixture, skip_limits};
use super::strategies::StrategyRun;

/// The result of one run, in seconds of the platform's clock.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct RegisterSample {
    pub(super) populate_s: f64,
    pub(super) register_s: f64,
    pub(super) unregister_s: f64,
    /// `sequential` or `parallel`.
    pub(super) chosen: &'static str,
}

impl RegisterSample {
    pub(super) fn total_s(&self) -> f64 {
        self.populate_s + self.register_s + self.unregister_s
    }
}

/// Registers the region with the registrars of `fixture` and deregisters it.
pub(super) fn measure(
    contender: RegisterContenderId,
    fixture: &RunFixture,
    region: &Arc<Region>,
) -> Result<RegisterSample> {
    match contender {
        RegisterContenderId::Sequential => as_published(fixture, region, false),
        RegisterContenderId::Parallel => as_published(fixture, region, true),
        RegisterContenderId::KvmemSequential => library(fixture, region, Policy::Sequential),
        RegisterContenderId::KvmemParallel => library(fixture, region, Policy::all_at_once()),
        RegisterContenderId::Auto => library(fixture, region, Policy::Auto),
    }
}

fn as_published(
    fixture: &RunFixture,
    region: &Arc<Region>,
    parallel: bool,
) -> Result<RegisterSample> {
    let start = fixture.host.now();
    let registered = StrategyRun::register(&fixture.plain, &*fixture.host, region, parallel)?;
    let between = fixture.host.now();
    registered.give_back()?;
    let end = fixture.host.now();
    Ok(RegisterSample {
        populate_s: 0.0,
        register_s: (between - start).as_secs_f64(),
        unregister_s: (end - between).as_secs_f64(),
        chosen: if parallel { "parallel" } else { "sequential" },
    })
}

fn library(fixture: &RunFixture, region: &Arc<Region>, policy: Policy) -> Result<RegisterSample> {
    let builder = RegistrationSet::builder()
        .registrars(fixture.registrars.iter().cloned())
        .policy(policy)
        .platform(Arc::clone(&fixture.host));
    let start = fixture.host.now();
    let mut set = builder.register(Arc::clone(region)).map_err(failed)?;
    let between = fixture.host.now();
    set.deregister().map_err(failed)?;
    let end = fixture.host.now();
    let populate_s = set.outcome().populated.seconds;
    Ok(RegisterSample {
        populate_s,
        // All time that was not spent populating, including planning and calibration.
        register_s: ((between - start).as_secs_f64() - populate_s).max(0.0),
        unregister_s: (end - between).as_secs_f64(),
        chosen: set.outcome().chosen(),
    })
}

fn failed(error: RegisterError) -> Error {
    let exceeded = match &error {
        RegisterError::Limited { exceeded, .. } => Some(exceeded.clone()),
        RegisterError::ChunkFailed { error, .. } => error.cause.exceeded.clone(),
        _ => None,
    };
    skip_limits(error, exceeded.as_ref())
}
