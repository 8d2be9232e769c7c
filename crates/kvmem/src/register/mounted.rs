//! *Mounted*: what came of memory that was mapped, registered and given back, with the time of each
//! step: what `kvmem mount` prints.
//!
//! Times are told as they have been published for this: populating is counted to *allocate*,
//! whoever asked for it.

use std::fmt;

use serde::Serialize;

use super::{Deregistered, Outcome};
use crate::arena::Receipt;

/// What was done.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[non_exhaustive]
pub struct MountReport {
    /// What the memory is made of.
    pub receipt: Receipt,
    /// What registering did.
    pub outcome: Outcome,
    /// In which way registrars were called: `sequential` or `parallel`.
    pub chosen: &'static str,
    /// What giving back did.
    pub deregistered: Deregistered,
    /// How long each step took.
    pub seconds: MountTimings,
}

impl MountReport {
    /// From what the steps gave. `map`, `plan`, `register` and `deregister` are the seconds that
    /// each call took; populating was part of the third.
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

/// How long each step took.
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
    /// Registering, trial included, populating not.
    pub register: f64,
    /// Giving back.
    pub unregister: f64,
    /// Of allocate, register and unregister.
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
