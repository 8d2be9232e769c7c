//! *Report*: what was asked for, what was got, what was chosen, and why.

use std::fmt;
use std::ops::Range;

use serde::{Deserialize, Serialize};

use crate::arena::{HumanBytes, Populated, Receipt};
use crate::register::Outcome;

/// What a pool is made of, and how it came to be. That of [`build`](super::PoolBuilder::build) says
/// what was so when it returned; [`Pool::report`](super::Pool::report) what is so now.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct PoolReport {
    /// Bytes that were asked for.
    pub requested_bytes: u64,
    /// Bytes that blocks can have, when all of it is ready and nothing is quarantined.
    pub capacity_bytes: u64,
    /// Bytes up to which the pool can grow.
    pub max_bytes: u64,
    /// Bytes that are ready.
    pub ready_bytes: u64,
    /// Bytes of each part but the last.
    pub part_bytes: u64,
    /// What no block straddles.
    pub boundary_bytes: Option<u64>,
    /// The registrars, in order.
    pub devices: Vec<String>,
    /// What the memory is made of, as it was when it was mapped.
    pub receipt: Receipt,
    /// What was populated after mapping, before it was registered; `None`: nothing (the receipt
    /// says what mapping populated).
    pub populated: Option<Populated>,
    /// What registering did; `None`: nothing was registered (yet).
    pub registered: Option<Outcome>,
    /// Sizes that are hot from the beginning, in bytes.
    pub hot_sizes: Vec<u64>,
    /// What was decided, and on what grounds.
    pub choices: Vec<ReportedChoice>,
    /// What was done, in order.
    pub steps: Vec<Step>,
    /// What is kept from use.
    pub quarantined: Vec<Quarantined>,
    /// Why no more is made ready, although not all of it is; `None`: all is, or it goes on.
    pub stopped: Option<String>,
}

/// Something that was decided.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct ReportedChoice {
    /// About what.
    pub what: String,
    /// What was chosen.
    pub chosen: String,
    /// On what grounds.
    pub why: String,
}

/// Something that was done.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Step {
    /// What: `map`, `populate`, `register`, `offsets`.
    pub what: String,
    /// How long it took, in seconds.
    pub seconds: f64,
}

/// A range that is handed out to nobody.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Quarantined {
    /// The range, in bytes of the pool.
    pub range: Range<u64>,
    /// At what it failed.
    pub cause: Cause,
    /// What was said.
    pub why: String,
}

/// Why a range is in quarantine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Cause {
    /// It could not be made resident.
    Populate,
    /// It could not be registered.
    Register,
    /// Its user has found it bad ([`Pool::quarantine_block`](super::Pool::quarantine_block)).
    Condemned,
}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Cause::Populate => "not populated",
            Cause::Register => "not registered",
            Cause::Condemned => "condemned",
        })
    }
}

impl PoolReport {
    /// Bytes in quarantine.
    #[must_use]
    pub fn quarantined_bytes(&self) -> u64 {
        self.quarantined.iter().map(|bad| bad.range.end - bad.range.start).sum()
    }
}

impl fmt::Display for PoolReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "pool of {}, asked {}; {} ready",
            HumanBytes(self.capacity_bytes),
            HumanBytes(self.requested_bytes),
            HumanBytes(self.ready_bytes)
        )?;
        if self.max_bytes > self.capacity_bytes {
            write!(f, ", may grow to {}", HumanBytes(self.max_bytes))?;
        }
        writeln!(f)?;
        for ReportedChoice { what, chosen, why } in &self.choices {
            writeln!(f, "  {what:<9} {chosen}: {why}")?;
        }
        for Step { what, seconds } in &self.steps {
            writeln!(f, "  {what:<9} {seconds:.3} s")?;
        }
        write!(f, "{}", self.receipt)?;
        if let Some(populated) = &self.populated {
            let Populated { seconds, threads, bytes, .. } = populated;
            writeln!(
                f,
                "{} populated in {seconds:.3} s by {threads} thread(s)",
                HumanBytes(*bytes)
            )?;
        }
        if let Some(registered) = &self.registered {
            write!(f, "{registered}")?;
        }
        for Quarantined { range, cause, why } in &self.quarantined {
            writeln!(f, "  {:#x}..{:#x} in quarantine, {cause}: {why}", range.start, range.end)?;
        }
        if let Some(why) = &self.stopped {
            writeln!(f, "  no more is made ready: {why}")?;
        }
        Ok(())
    }
}
