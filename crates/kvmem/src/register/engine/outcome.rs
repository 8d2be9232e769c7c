//! *Outcome*: the result of registering, its duration, and the measurements behind its choices.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::arena::{HumanBytes, Populated};
use crate::register::Policy;

/// The result of registering one region or a batch of regions.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Outcome {
    /// Bytes of the region, or of all regions of the batch.
    pub len_bytes: u64,
    /// Bytes that were resident before.
    pub resident_bytes: u64,
    /// The number of registrars.
    pub devices: usize,
    /// The requested policy.
    pub policy: Policy,
    /// Populating before registering: bytes, seconds and threads; all 0 if nothing was populated.
    pub populated: Populated,
    /// The number of registrars called concurrently; 1: one call after another.
    pub threads: usize,
    /// The measurements behind that number; `None` if there was nothing to decide or too little
    /// work to measure.
    pub calibration: Option<Calibration>,
    /// Seconds spent registering, calibration included. They overlap with those of populating where
    /// chunks were registered while later ones were populated.
    pub register_seconds: f64,
    /// Seconds of populating and registering together, from the beginning to the end.
    #[serde(default)]
    pub seconds: f64,
    /// The number of keys issued.
    pub keys: usize,
}

/// Both ways of calling, measured on this memory with these registrars.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Calibration {
    /// GiB registered per second with one call after another, counted once for each registrar.
    pub sequential_gib_per_s: f64,
    /// GiB registered per second with concurrent calls, at the fastest number of registrars tried.
    pub parallel_gib_per_s: f64,
    /// That number of registrars.
    pub threads: usize,
    /// Seconds spent measuring.
    pub seconds: f64,
}

impl Outcome {
    /// Returns the chosen way of calling: `sequential` or `parallel`.
    #[must_use]
    pub fn chosen(&self) -> &'static str {
        if self.threads > 1 { "parallel" } else { "sequential" }
    }

    /// Returns the GiB registered per second, counted once for each registrar.
    #[must_use]
    pub fn gib_per_s(&self) -> f64 {
        let gib = self.len_bytes as f64 * self.devices as f64 / f64::from(1 << 30);
        if self.register_seconds > 0.0 { gib / self.register_seconds } else { 0.0 }
    }
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Outcome { devices, policy, populated, threads, keys, register_seconds, .. } = self;
        let (len, resident) = (HumanBytes(self.len_bytes), HumanBytes(self.resident_bytes));
        writeln!(
            f,
            "{len} registered with {devices} registrar(s), {keys} key(s); {resident} of it was \
             resident before"
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
        if populated.threads > 0 {
            writeln!(f, "  both together in {:.3} s", self.seconds)?;
        }
        if let Some(measured) = &self.calibration {
            writeln!(
                f,
                "  measured {:.2} GiB/s one after another, {:.2} GiB/s with {} side by side, \
                 in {:.1} ms",
                measured.sequential_gib_per_s,
                measured.parallel_gib_per_s,
                measured.threads,
                measured.seconds * 1e3
            )?;
        }
        Ok(())
    }
}

/// The result of deregistering keys.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Deregistered {
    /// The number of keys deregistered.
    pub keys: usize,
    /// Seconds spent.
    pub seconds: f64,
    /// The number of registrars called concurrently; 1: one call after another; 0: there were no
    /// keys.
    pub threads: usize,
}
