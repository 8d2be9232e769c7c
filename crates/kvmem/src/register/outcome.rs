//! *Outcome*: what registering did, how long it took, and what was chosen on what grounds.

use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::Policy;
use crate::arena::{Populated, Size, WorkUnit};

/// What registering one region, or a batch of them, did.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Outcome {
    /// Bytes of the region, or of all of a batch.
    pub len_bytes: u64,
    /// Bytes of them that were resident before.
    pub resident_bytes: u64,
    /// Registrars.
    pub devices: usize,
    /// The policy that was asked for.
    pub policy: Policy,
    /// What was populated before it was registered: its bytes, seconds and threads; all 0 where
    /// nothing was.
    pub populated: Populated,
    /// How many registrars were called side by side; 1: one call after another.
    pub threads: usize,
    /// The figures on which that was decided; `None` where there was nothing to decide, or too
    /// little work to find out.
    pub trial: Option<Calibration>,
    /// Seconds that registering took, trial included.
    pub register_seconds: f64,
    /// Keys given.
    pub keys: usize,
}

/// Both ways of calling, measured on this memory with these registrars.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Calibration {
    /// Bytes registered in a second, one call after another, counted for each registrar, in GiB.
    pub sequential_gib_per_s: f64,
    /// The same side by side: of all that were tried, the fastest.
    pub parallel_gib_per_s: f64,
    /// How many registrars that was.
    pub threads: usize,
    /// How long finding out took in seconds.
    pub seconds: f64,
}

impl Outcome {
    /// What was chosen: `sequential` or `parallel`.
    #[must_use]
    pub fn chosen(&self) -> &'static str {
        if self.threads > 1 { "parallel" } else { "sequential" }
    }

    /// Bytes registered in a second, counted for each registrar, in GiB.
    #[must_use]
    pub fn gib_per_s(&self) -> f64 {
        let gib = self.len_bytes as f64 * self.devices as f64 / f64::from(1 << 30);
        if self.register_seconds > 0.0 { gib / self.register_seconds } else { 0.0 }
    }
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Outcome { devices, policy, populated, threads, keys, register_seconds, .. } = self;
        let (len, resident) = (Size(self.len_bytes), Size(self.resident_bytes));
        writeln!(
            f,
            "{len} registered with {devices} registrar(s), {keys} key(s); {resident} of it was resident before"
        )?;
        if populated.threads > 0 {
            let Populated { seconds, threads, .. } = populated;
            writeln!(
                f,
                "  populated in {seconds:.3} s by {threads} thread(s), {:.2} GiB/s",
                populated.gib_per_s()
            )?;
        }
        let how = match threads {
            1 => "one call after another".to_owned(),
            threads => format!("{threads} side by side"),
        };
        writeln!(
            f,
            "  registered in {register_seconds:.3} s, {how} ({policy}), {:.2} GiB/s",
            self.gib_per_s()
        )?;
        if let Some(trial) = &self.trial {
            writeln!(
                f,
                "  measured {:.2} GiB/s one after another, {:.2} GiB/s with {} side by side, in {:.1} ms",
                trial.sequential_gib_per_s,
                trial.parallel_gib_per_s,
                trial.threads,
                trial.seconds * 1e3
            )?;
        }
        Ok(())
    }
}

/// What giving keys back did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Deregistered {
    /// Keys given back.
    pub keys: usize,
    /// Seconds that it took.
    pub seconds: f64,
    /// Registrars that were called side by side; 1: one call after another; 0: there was nothing
    /// to give back.
    pub threads: usize,
}

/// What is being done.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Phase {
    /// Memory is made resident.
    Populate,
    /// Keys are got.
    Register,
    /// Keys are given back.
    Deregister,
}

impl fmt::Display for Phase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Phase::Populate => "populate",
            Phase::Register => "register",
            Phase::Deregister => "deregister",
        })
    }
}

/// How far it has come.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub struct RegisterProgress {
    /// What is being done.
    pub phase: Phase,
    /// Bytes done in this phase. Registering counts each byte once for each registrar.
    pub done_bytes: u64,
    /// Bytes that are to be done in it.
    pub total_bytes: u64,
    /// Bytes, from the beginning of the first region, for which all registrars have given their
    /// keys.
    pub ready_bytes: u64,
    /// Time since the beginning of all; of giving back, since its own.
    pub elapsed: Duration,
    /// What was done last, and is reported by this; `None` where it was asked for and not
    /// reported.
    pub piece: Option<WorkUnit>,
}
