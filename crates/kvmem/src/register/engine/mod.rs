//! *Engine*: carries out a plan, all of it or nothing.
//!
//! ```text
//!  for each step:   populate missing pages                                     (engine.rs)
//!                   the first time: measure which strategy is faster           (calibration.rs)
//!                   threads take turns at the registrars                       (chunk_work.rs)
//!                   and meanwhile, if a core is free, one populates the next step
//!  on any failure:  all threads stop, every key is deregistered, the first failure is returned
//! ```
//!
//! The pages are held from before the first key is issued until after the last one is deregistered.

mod calibration;
mod chunk_work;
#[allow(clippy::module_inception)]
mod engine;
mod lanes;
#[cfg(all(test, loom, not(shuttle)))]
mod models;
mod outcome;
mod probe_slice;
mod progress;
mod release;
mod schedule;
mod team;

pub(super) use engine::{Engine, EngineResult};
pub(super) use progress::{RegisterListener, RunOptions};
pub(super) use release::{IssuedKeys, leak, release};

pub use outcome::{Calibration, Deregistered, Outcome};
pub use progress::{Phase, RegisterProgress};
