//! *Engine*: carries out a plan.

mod calibration;
#[allow(clippy::module_inception)]
mod engine;
mod lanes;
mod outcome;
mod progress;
mod release;
mod team;

pub(super) use engine::{Engine, RegionJob, leak};
pub(super) use progress::{RegisterListener, RunOptions};
pub(super) use release::{IssuedKeys, release};

pub use outcome::{Calibration, Deregistered, Outcome, Phase, RegisterProgress};
