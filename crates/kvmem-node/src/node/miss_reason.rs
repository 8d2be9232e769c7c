//! [`MissReason`]: why a key had no value, and counts by reason.

use std::fmt;

use serde::{Deserialize, Serialize};

/// Why a key that was acquired had no value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum MissReason {
    /// The server does not know a value of the key: none was committed since it started, or the
    /// value left so long ago that the server has forgotten it. It remembers two values for each
    /// block that there can be, and at most 2^20.
    NeverStored,
    /// The value was evicted for others.
    Evicted,
    /// Its time was over.
    Expired,
    /// A client or an operator removed it.
    Removed,
    /// Its bytes did not have their checksum.
    Damaged,
    /// It is in the tier, or was when it was evicted, and the tier is away or detached.
    TierAway,
    /// It was in the tier when it was evicted, and the tier has let it go since, or has failed to
    /// read it a moment ago.
    TierLost,
    /// The tier has it and did not bring it: reading failed, too many calls waited, or there was no
    /// space.
    NotFetched,
}

impl MissReason {
    /// All reasons.
    pub const ALL: [MissReason; 8] = [
        MissReason::NeverStored,
        MissReason::Evicted,
        MissReason::Expired,
        MissReason::Removed,
        MissReason::Damaged,
        MissReason::TierAway,
        MissReason::TierLost,
        MissReason::NotFetched,
    ];

    /// Returns the name, as labels of metrics have it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            MissReason::NeverStored => "never-stored",
            MissReason::Evicted => "evicted",
            MissReason::Expired => "expired",
            MissReason::Removed => "removed",
            MissReason::Damaged => "damaged",
            MissReason::TierAway => "tier-away",
            MissReason::TierLost => "tier-lost",
            MissReason::NotFetched => "not-fetched",
        }
    }
}

impl fmt::Display for MissReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// Misses of each reason.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct MissCounts([u64; MissReason::ALL.len()]);

impl MissCounts {
    pub(super) fn of(&self, reason: MissReason) -> u64 {
        self.0[reason as usize]
    }

    pub(super) fn all(&self) -> u64 {
        self.0.iter().sum()
    }

    pub(super) fn add(&mut self, reason: MissReason) {
        self.0[reason as usize] += 1;
    }
}
