//! *Report*: what was asked for, what was got, and why.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::arena::{Receipt, Size};

/// What a pool is made of.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct PoolReport {
    /// Bytes that were asked for.
    pub asked_bytes: u64,
    /// Bytes that blocks can have.
    pub capacity_bytes: u64,
    /// What the memory is made of.
    pub receipt: Receipt,
}

impl fmt::Display for PoolReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "pool of {}, asked {}", Size(self.capacity_bytes), Size(self.asked_bytes))?;
        write!(f, "{}", self.receipt)
    }
}
