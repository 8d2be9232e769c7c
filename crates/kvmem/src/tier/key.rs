//! [`TierKey`]: keys that have the form of bytes.

use std::borrow::Cow;

/// A key of a cache that a tier can store values under: bytes that distinguish it from all others,
/// in every process.
pub trait TierKey {
    /// Returns the bytes of the key.
    fn key_bytes(&self) -> Cow<'_, [u8]>;
}

impl TierKey for u64 {
    fn key_bytes(&self) -> Cow<'_, [u8]> {
        Cow::Owned(self.to_le_bytes().to_vec())
    }
}

impl TierKey for u128 {
    fn key_bytes(&self) -> Cow<'_, [u8]> {
        Cow::Owned(self.to_le_bytes().to_vec())
    }
}

impl<const N: usize> TierKey for [u8; N] {
    fn key_bytes(&self) -> Cow<'_, [u8]> {
        Cow::Borrowed(self)
    }
}

impl TierKey for Vec<u8> {
    fn key_bytes(&self) -> Cow<'_, [u8]> {
        Cow::Borrowed(self)
    }
}

impl TierKey for Box<[u8]> {
    fn key_bytes(&self) -> Cow<'_, [u8]> {
        Cow::Borrowed(self)
    }
}

impl TierKey for String {
    fn key_bytes(&self) -> Cow<'_, [u8]> {
        Cow::Borrowed(self.as_bytes())
    }
}
