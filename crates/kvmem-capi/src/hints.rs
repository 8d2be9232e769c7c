//! *Hints*: what a program says about the worth of a value.

use std::time::Duration;

use kvmem::tier::{DataType, Priority, TierHints};

use crate::error::CallError;
use crate::options::{check_reserved, choice};

/// Type of a value's elements: it is not known. The default.
pub const KVMEM_DATA_UNKNOWN: u32 = 0;
/// Type of a value's elements: 8 bits of exponent, 7 of mantissa.
pub const KVMEM_DATA_BFLOAT16: u32 = 1;
/// Type of a value's elements: IEEE 754 binary16.
pub const KVMEM_DATA_FLOAT16: u32 = 2;
/// Type of a value's elements: 4 bits of exponent, 3 of mantissa, without infinities.
pub const KVMEM_DATA_FLOAT8_E4M3FN: u32 = 3;
/// Type of a value's elements: 5 bits of exponent, 2 of mantissa.
pub const KVMEM_DATA_FLOAT8_E5M2: u32 = 4;

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
    /// The type of the value's elements: KVMEM_DATA_UNKNOWN, KVMEM_DATA_BFLOAT16,
    /// KVMEM_DATA_FLOAT16, KVMEM_DATA_FLOAT8_E4M3FN or KVMEM_DATA_FLOAT8_E5M2. A tier that
    /// compresses values tries it first.
    pub data_type: u32,
    /// Always 0.
    pub reserved: u32,
}

/// Converts the type of a value's elements.
pub(crate) fn data_type(data_type: u32) -> Result<DataType, CallError> {
    choice!(data_type:
        KVMEM_DATA_UNKNOWN => DataType::Unknown,
        KVMEM_DATA_BFLOAT16 => DataType::Bfloat16,
        KVMEM_DATA_FLOAT16 => DataType::Float16,
        KVMEM_DATA_FLOAT8_E4M3FN => DataType::Float8E4m3,
        KVMEM_DATA_FLOAT8_E5M2 => DataType::Float8E5m2,
    )
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
        let TierHints { priority, depth, data_type, .. } = hints;
        let (priority, data_type) = (priority.get().into(), data_type as u32);
        kvmem_value_hints { ttl_ms, priority, depth, data_type, reserved: 0 }
    }
}

impl kvmem_value_hints {
    pub(crate) fn read(&self) -> Result<TierHints, CallError> {
        check_reserved(self.reserved, "reserved of hints")?;
        let (priority, ttl) = (priority(self.priority)?, ttl(self.ttl_ms));
        let data_type = data_type(self.data_type)?;
        Ok(TierHints { priority, ttl, depth: self.depth, data_type })
    }
}
