//! [`TierState`]: whether a tier works.

use serde::{Deserialize, Serialize};

use crate::pool::observe::FieldType;

/// Whether a tier works.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum TierState {
    /// There is none.
    #[default]
    None,
    /// It stores and finds values.
    Working,
    /// It finds what it has and stores nothing, because its device failed.
    ReadOnly,
    /// It does neither now, and may do both later. Of a cluster below a disk: the disk works.
    Away,
}

impl TierState {
    /// Returns the name: `none`, `working`, `read_only` or `away`.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            TierState::None => "none",
            TierState::Working => "working",
            TierState::ReadOnly => "read_only",
            TierState::Away => "away",
        }
    }
}

impl FieldType for TierState {
    fn number(&self) -> u64 {
        *self as u64
    }
}
