//! *Hints*: what a program says about the worth of a value.

use std::time::Duration;

use kvmem::tier::{Priority, TierHints};

use crate::error::CallError;

/// Hints about the worth of a value of a cache. All 0: none.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct kvmem_value_hints {
    /// After this many milliseconds the value is a miss, also in the lower tier. 0: it stays until
    /// it is evicted.
    pub ttl_ms: u64,
    /// 0 to 3: the lower tier evicts values of a lower priority first. The cache's own policy
    /// ignores it.
    pub priority: u32,
    /// Number of blocks of the prefix that come before the value. Blocks at the end of a prefix are
    /// evicted before those at its start, in whatever order they are inserted and looked up.
    pub depth: u32,
}

/// Converts a priority.
pub(crate) fn priority(level: u32) -> Result<Priority, CallError> {
    u8::try_from(level).ok().and_then(Priority::new).ok_or_else(|| {
        CallError::invalid(format_args!("priority is {level}: use 0 to {}", Priority::MAX.get()))
    })
}

/// Converts a time to live; 0: none.
pub(crate) fn ttl(ttl_ms: u64) -> Option<Duration> {
    (ttl_ms != 0).then(|| Duration::from_millis(ttl_ms))
}

impl From<TierHints> for kvmem_value_hints {
    /// A time to live that has passed is 1 ms, since 0 is none.
    fn from(hints: TierHints) -> kvmem_value_hints {
        let ttl_ms = hints.ttl.map_or(0, |ttl| (ttl.as_millis() as u64).max(1));
        kvmem_value_hints { ttl_ms, priority: hints.priority.get().into(), depth: hints.depth }
    }
}

impl kvmem_value_hints {
    pub(crate) fn read(&self) -> Result<TierHints, CallError> {
        let (priority, ttl) = (priority(self.priority)?, ttl(self.ttl_ms));
        Ok(TierHints { priority, ttl, depth: self.depth, ..TierHints::default() })
    }
}
