//! [`PinnedValue`]: bytes that stay where they are.

use std::any::Any;
use std::sync::Arc;

/// A value whose bytes stay in memory while it exists, such as a [pin](crate::cache::Pinned) of a
/// cache.
pub trait PinnedValue: Any + Send + Sync {
    /// Returns the bytes.
    fn bytes(&self) -> &[u8];

    /// Returns the bytes of memory that it keeps from other use.
    fn memory_bytes(&self) -> u64 {
        self.bytes().len() as u64
    }

    /// Returns whether the key has received another value since, or was removed.
    fn is_superseded(&self) -> bool {
        false
    }

    /// Returns another pin on the same bytes.
    fn pin(&self) -> Arc<dyn PinnedValue>;
}

/// A copy of a value.
impl PinnedValue for Box<[u8]> {
    fn bytes(&self) -> &[u8] {
        self
    }

    fn pin(&self) -> Arc<dyn PinnedValue> {
        Arc::new(self.clone())
    }
}
