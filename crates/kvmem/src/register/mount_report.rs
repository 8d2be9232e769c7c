//! *Mount report*: the result of mapping, registering and deregistering memory, with the time of
//! each step. `kvmem mount` prints it.
//!
//! The times are grouped as in published measurements: populating counts as *allocate*, even if
//! registering triggered it.

use std::fmt;

use serde::Serialize;

use super::{Deregistered, Outcome};
use crate::arena::Receipt;

/// The result of a mount.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[non_exhaustive]
pub struct MountReport {
    /// The pages of the memory.
    pub receipt: Receipt,
    /// The result of registering.
    pub outcome: Outcome,
    /// How registrars were called: `sequential` or `parallel`.
    pub chosen: &'static str,
    /// The result of deregistering.
    pub deregistered: Deregistered,
    /// The time of each step.
    pub seconds: MountTimings,
}

impl MountReport {
    /// Assembles a report from the results of the steps. `map`, `plan`, `register` and `deregister`
    /// are the seconds of each call; `register` includes populating.
    #[must_use]
    pub fn new(
        receipt: Receipt,
        outcome: Outcome,
        deregistered: Deregistered,
        [map, plan, register, deregister]: [f64; 4],
    ) -> MountReport {
        let seconds = MountTimings::new(map, plan, register, deregister, &outcome);
        MountReport { receipt, chosen: outcome.chosen(), outcome, deregistered, seconds }
    }
}

impl fmt::Display for MountReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", self.receipt, self.outcome)?;
        writeln!(f, "  chosen: {}\n\n{}", self.chosen, self.seconds)
    }
}

/// The time of each step, in seconds.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[non_exhaustive]
pub struct MountTimings {
    /// Mapping.
    pub map: f64,
    /// Planning.
    pub plan: f64,
    /// Populating.
    pub populate: f64,
    /// Mapping and populating.
    pub allocate: f64,
    /// Registering, calibration included, populating excluded.
    pub register: f64,
    /// Deregistering.
    pub unregister: f64,
    /// The sum of allocate, register and unregister.
    pub total: f64,
}

impl MountTimings {
    fn new(
        map: f64,
        plan: f64,
        registered: f64,
        unregister: f64,
        outcome: &Outcome,
    ) -> MountTimings {
        let populate = outcome.populated.seconds.min(registered);
        let (allocate, register) = (map + populate, registered - populate);
        let total = allocate + register + unregister;
        MountTimings { map, plan, populate, allocate, register, unregister, total }
    }
}

impl fmt::Display for MountTimings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{:<10}  {:>9}", "", "seconds")?;
        writeln!(
            f,
            "{:<10}  {:>9.3}  mapped in {:.3}, populated in {:.3}",
            "allocate", self.allocate, self.map, self.populate
        )?;
        writeln!(f, "{:<10}  {:>9.3}  planned in {:.3}", "register", self.register, self.plan)?;
        writeln!(f, "{:<10}  {:>9.3}", "unregister", self.unregister)?;
        write!(f, "{:<10}  {:>9.3}", "total", self.total)
    }
}
