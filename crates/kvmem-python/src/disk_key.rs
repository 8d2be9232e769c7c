//! *Disk key*: the bytes by which a disk tier knows a key.
//!
//! A file outlives the process and may be used from several languages, so the form is fixed. A
//! `bytes` key is itself, as in Rust and C. An `int` and a `str` begin with a mark that says what
//! they are, so keys of different types differ; a `bytes` key that happens to begin with the mark
//! gets a mark of its own.

use std::borrow::Cow;

use kvmem::tier::TierKey;

use crate::cache_key::{AsCacheKey, CacheKey, OwnedKey};

/// What the marks have in common. A letter for the type follows.
const MARK: &[u8] = b"\0kvmem key:";

fn marked(kind: u8, bytes: &[u8]) -> Vec<u8> {
    [MARK, &[kind], bytes].concat()
}

/// Returns the bytes of a key.
pub(crate) fn disk_key(key: CacheKey<'_>) -> Cow<'_, [u8]> {
    match key {
        CacheKey::Int(number) => Cow::Owned(marked(b'i', &number.to_le_bytes())),
        CacheKey::Text(text) => Cow::Owned(marked(b't', text.as_bytes())),
        CacheKey::Bytes(bytes) if bytes.starts_with(MARK) => Cow::Owned(marked(b'b', bytes)),
        CacheKey::Bytes(bytes) => Cow::Borrowed(bytes),
    }
}

/// Returns the key that bytes stand for. Bytes that no Python has written are a `bytes` key.
pub(crate) fn key_of_bytes(bytes: &[u8]) -> OwnedKey {
    let found = bytes.strip_prefix(MARK).and_then(|rest| rest.split_first());
    let (kind, content) = found.unwrap_or((&0, bytes));
    let key = match kind {
        b'i' => content.try_into().ok().map(|bytes| OwnedKey::Int(i128::from_le_bytes(bytes))),
        b't' => std::str::from_utf8(content).ok().map(|text| OwnedKey::Text(text.into())),
        b'b' if content.starts_with(MARK) => Some(OwnedKey::Bytes(content.into())),
        _ => None,
    };
    key.unwrap_or_else(|| OwnedKey::Bytes(bytes.into()))
}

impl TierKey for OwnedKey {
    fn key_bytes(&self) -> Cow<'_, [u8]> {
        disk_key(self.key())
    }
}
