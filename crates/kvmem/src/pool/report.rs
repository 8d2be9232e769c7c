//! *Report*: the requested pool, the resulting pool, and each choice with its reason.

use std::fmt;
use std::ops::Range;

use serde::{Deserialize, Serialize};

use crate::arena::{HumanBytes, Populated, Receipt};
use crate::register::Outcome;

/// The composition of a pool and the steps that built it. [`Pool::report`](super::Pool::report)
/// returns the current state.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct PoolReport {
    /// Bytes requested.
    pub requested_bytes: u64,
    /// Bytes that blocks can have if all of the pool is ready and nothing is in quarantine.
    pub capacity_bytes: u64,
    /// Bytes up to which the pool can grow.
    pub max_bytes: u64,
    /// Bytes that are ready.
    pub ready_bytes: u64,
    /// Bytes of each part but the last.
    pub part_bytes: u64,
    /// The boundary in bytes, which no block straddles.
    pub boundary_bytes: Option<u64>,
    /// The names of the registrars, in order.
    pub devices: Vec<String>,
    /// The kinds of memory. If all of the pool was ready when building returned: as found then;
    /// otherwise at the time of mapping.
    pub receipt: Receipt,
    /// The memory of a pool without registrars that was populated after mapping; `None`: none. The
    /// receipt has the memory that was populated while mapping, and the outcome of registering the
    /// memory that was populated meanwhile.
    pub populated: Option<Populated>,
    /// The outcome of populating and registering; `None`: nothing is registered, or not yet.
    pub registered: Option<Outcome>,
    /// Sizes that are hot from the beginning, in bytes.
    pub hot_sizes: Vec<u64>,
    /// The choices that the pool made, with their reasons.
    pub choices: Vec<ReportedChoice>,
    /// The steps of building, in order.
    pub steps: Vec<Step>,
    /// The ranges that the pool withholds from use.
    pub quarantined: Vec<Quarantined>,
    /// The reason why provisioning stopped before all of the pool was ready; `None`: all is ready,
    /// or provisioning goes on.
    pub stopped: Option<String>,
}

/// A choice that the pool made.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct ReportedChoice {
    /// The subject: `boundary`, `pages`, `ready`, `init on`.
    pub what: String,
    /// The choice.
    pub chosen: String,
    /// The reason.
    pub why: String,
}

/// A step of building.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Step {
    /// The name: `map`; `populate`, after mapping and without registrars; `register`, which
    /// populates chunks and registers earlier ones at the same time.
    pub what: String,
    /// Its duration in seconds.
    pub seconds: f64,
}

/// A range that the pool allocates to no caller.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Quarantined {
    /// The range, in bytes of the pool.
    pub range: Range<u64>,
    /// The kind of failure.
    pub cause: Cause,
    /// The text of the error, or the reason that the caller gave.
    pub why: String,
}

/// The reason why a range is in quarantine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Cause {
    /// Populating the range failed.
    Populate,
    /// Registering the range failed.
    Register,
    /// The caller reported the block as bad
    /// ([`Pool::quarantine_block`](super::Pool::quarantine_block)).
    Quarantined,
}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Cause::Populate => "not populated",
            Cause::Register => "not registered",
            Cause::Quarantined => "quarantined by the caller",
        })
    }
}

impl PoolReport {
    /// Returns the number of bytes in quarantine.
    #[must_use]
    pub fn quarantined_bytes(&self) -> u64 {
        self.quarantined.iter().map(|bad| bad.range.end - bad.range.start).sum()
    }
}

impl fmt::Display for PoolReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "pool of {}, requested {}; {} ready",
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
