//! *Plan*: ranges to populate, chunks to register, and the order of both.

use std::ops::Range;

use serde::{Deserialize, Serialize};

use super::policy::Policy;

/// The work of registering one region. Ranges are offsets into it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Plan {
    /// Bytes of the region.
    pub len_bytes: u64,
    /// Bytes of it that are resident.
    pub resident_bytes: u64,
    /// How registrars are called.
    pub policy: Policy,
    /// The ranges that are populated before they are registered.
    pub populate: Vec<Range<usize>>,
    /// The largest number of threads that populate, each with an even share on page boundaries. 0:
    /// nothing is populated.
    pub populate_threads: usize,
    /// The steps: each is populated and then registered before the next begins. One step: the
    /// whole region.
    pub steps: Vec<Range<usize>>,
    /// Each registrar's chunks, in the order in which they are registered.
    pub devices: Vec<DevicePlan>,
    /// The largest number of registrars called concurrently. The registrar that has done the
    /// fewest chunks is called next.
    pub threads: usize,
    /// How concurrent calls are compared with sequential ones; `None`: they are not compared.
    pub calibration: Option<CalibrationPlan>,
    /// The boundary for an allocator: a range that does not straddle a multiple of it has one key
    /// with each registrar. `None`: there is one chunk.
    pub boundary_bytes: Option<u64>,
    /// The estimated time.
    pub estimate: Estimate,
}

/// One registrar's chunks.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DevicePlan {
    /// The registrar's name.
    pub device: String,
    /// The chunks in order, without a gap or overlap, from 0 to the end.
    pub chunks: Vec<Range<usize>>,
}

/// How two ways of calling are compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum CalibrationPlan {
    /// On the first chunks: real work, and nothing is registered twice.
    Chunks {
        /// The number of rounds.
        rounds: usize,
    },
    /// On slices that are registered, timed and deregistered, if chunks are few and long.
    Slices {
        /// The number of rounds.
        rounds: usize,
        /// Bytes of a slice.
        slice_bytes: u64,
    },
}

/// Estimated times in seconds, on a machine like the one on which the costs were measured.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Estimate {
    /// Populating.
    pub populate_seconds: f64,
    /// Registering with one call after another.
    pub sequential_seconds: f64,
    /// Registering with concurrent calls that do not slow each other down.
    pub parallel_seconds: f64,
}

impl Plan {
    /// Returns the number of keys that the plan needs.
    #[must_use]
    pub fn keys(&self) -> usize {
        self.devices.iter().map(|device| device.chunks.len()).sum()
    }
}
