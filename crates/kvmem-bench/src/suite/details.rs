//! *Details*: the settings that several suites have in common.

use std::fmt::{self, Display, Formatter};

use serde::{Deserialize, Serialize};

/// The settings of a run whose measurements are repeated equally often.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Repetitions {
    /// Repetitions of each measurement; figures are medians.
    pub reps: u32,
}

impl Display for Repetitions {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "{} repetition(s)", self.reps)
    }
}

/// The settings of a run with random choices.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SeededRepetitions {
    /// Seed of all random choices.
    pub seed: u64,
    /// Repetitions of each timed loop; figures are medians.
    pub reps: u32,
}

impl Display for SeededRepetitions {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "seed {}, {} repetition(s)", self.seed, self.reps)
    }
}
