//! *Ways* to share one space of offsets.

use super::space::LockKind;
use crate::suite::names;

names! {
    /// The ways by name.
    pub enum WayId ("way", UnknownWayError) {
        /// One lock, passed on to the thread that waits longest.
        QueueLock = "queue-lock",
        /// One lock, taken by the thread that is first.
        SpinLock = "spin-lock",
        /// The combining mutex of the library.
        Combining = "combining",
        /// The same with 64 slots instead of 16.
        Combining64 = "combining-64",
        /// Two spaces.
        Shards2 = "shards-2",
        /// Eight spaces.
        Shards8 = "shards-8",
        /// 32 spaces.
        Shards32 = "shards-32",
        /// Magazines of each thread above one space.
        Magazines = "magazines",
    }
}

/// What cores share.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Way {
    pub(super) lock: LockKind,
    pub(super) spaces: usize,
    pub(super) has_magazines: bool,
}

/// Slots of the library's mutex.
const SLOTS: usize = 16;

impl WayId {
    /// Returns what it stands for.
    pub(super) fn way(self) -> Way {
        let way = |lock, spaces| Way { lock, spaces, has_magazines: false };
        let combining = LockKind::Combining(SLOTS);
        match self {
            Self::QueueLock => way(LockKind::Queue, 1),
            Self::SpinLock => way(LockKind::Spin, 1),
            Self::Combining => way(combining, 1),
            Self::Combining64 => way(LockKind::Combining(64), 1),
            Self::Shards2 => way(combining, 2),
            Self::Shards8 => way(combining, 8),
            Self::Shards32 => way(combining, 32),
            Self::Magazines => Way { has_magazines: true, ..way(combining, 1) },
        }
    }
}
