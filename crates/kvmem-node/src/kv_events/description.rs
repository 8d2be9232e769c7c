//! [`Description`]: the tokens behind the hash in a key, as an engine has stored them.
//!
//! Engines with `kvmem.vllm` commit a description with each chunk, as a value of its own under the
//! chunk's key and [`SUFFIX`]. `python/kvmem/vllm/_description.py` has the format.

use serde_json::Value;

/// Follows the key of a chunk in the key of its description.
pub(crate) const SUFFIX: &[u8] = b"\0about";
/// The most bytes of a description. A longer one is not read.
pub(crate) const MAX_DESCRIPTION: u64 = 64 << 10;

const VERSION: u8 = 1;
/// The length of a field that is missing.
const MISSING: u32 = u32::MAX;
/// The most blocks of a chunk.
const MAX_BLOCKS: u32 = 4096;

/// The fields of the events of a stored chunk.
#[derive(Debug, PartialEq)]
pub(super) struct Description<'a> {
    /// The hashes of its blocks. There is one at least.
    pub(super) block_hashes: Vec<&'a [u8]>,
    /// The hash of the block before the chunk.
    pub(super) parent: Option<&'a [u8]>,
    /// Tokens, in four bytes each.
    tokens: &'a [u8],
    pub(super) block_size: u32,
    pub(super) lora_id: Option<u64>,
    pub(super) lora_name: Option<&'a str>,
    /// Further keys of the hashes: an array.
    pub(super) extra_keys: Option<Value>,
    pub(super) group: u32,
    pub(super) kind: Option<&'a str>,
    pub(super) sliding_window: Option<u64>,
}

impl<'a> Description<'a> {
    /// Reads a description; `None`: the bytes are none of this version.
    pub(super) fn read(bytes: &'a [u8]) -> Option<Description<'a>> {
        let mut rest = bytes;
        if take(&mut rest)? != [VERSION] {
            return None;
        }
        let group = u32::from_le_bytes(take(&mut rest)?);
        let block_size = u32::from_le_bytes(take(&mut rest)?);
        let sliding_window = i64::from_le_bytes(take(&mut rest)?);
        let lora_id = i64::from_le_bytes(take(&mut rest)?);
        let tokens = field(&mut rest)?.unwrap_or_default();
        let parent = field(&mut rest)?;
        let count = u32::from_le_bytes(field(&mut rest)??.try_into().ok()?);
        if count == 0 || count > MAX_BLOCKS || !tokens.len().is_multiple_of(4) {
            return None;
        }
        let hash = |_| field(&mut rest)?.filter(|hash| !hash.is_empty());
        let block_hashes = (0..count).map(hash).collect::<Option<Vec<_>>>()?;
        let mut text = || field(&mut rest)?.map(std::str::from_utf8).transpose().ok();
        let (lora_name, kind) = (text()?, text()?);
        let extra_keys = field(&mut rest)?.map(serde_json::from_slice).transpose().ok()?;
        let is_whole = rest.is_empty() && extra_keys.as_ref().is_none_or(Value::is_array);
        is_whole.then_some(Description {
            block_hashes,
            parent,
            tokens,
            block_size,
            lora_id: lora_id.try_into().ok(),
            lora_name,
            extra_keys,
            group,
            kind,
            sliding_window: sliding_window.try_into().ok(),
        })
    }

    /// Returns the tokens.
    pub(super) fn tokens(&self) -> impl ExactSizeIterator<Item = u32> {
        let (tokens, _) = self.tokens.as_chunks();
        tokens.iter().map(|bytes| u32::from_le_bytes(*bytes))
    }
}

/// Takes a number of bytes.
fn take<const N: usize>(rest: &mut &[u8]) -> Option<[u8; N]> {
    let (bytes, more) = rest.split_first_chunk()?;
    *rest = more;
    Some(*bytes)
}

/// Takes a field behind its length.
fn field<'a>(rest: &mut &'a [u8]) -> Option<Option<&'a [u8]>> {
    let len = u32::from_le_bytes(take(rest)?);
    if len == MISSING {
        return Some(None);
    }
    let (bytes, more) = rest.split_at_checked(len as usize)?;
    *rest = more;
    Some(Some(bytes))
}

#[cfg(all(test, not(loom)))]
pub(super) mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Returns a description of a chunk of one block with these tokens.
    pub(in super::super) fn of_block(
        hash: &[u8],
        parent: Option<&[u8]>,
        tokens: &[u32],
    ) -> Vec<u8> {
        let mut bytes = vec![VERSION];
        bytes.extend([0, tokens.len() as u32].map(u32::to_le_bytes).as_flattened());
        bytes.extend([u8::MAX; 16]);
        let tokens: Vec<u8> = tokens.iter().flat_map(|it| it.to_le_bytes()).collect();
        let extra = Some(&b"[[\"salt\", 3], null]"[..]);
        let count = Some(&[1, 0, 0, 0][..]);
        for value in [Some(&tokens[..]), parent, count, Some(hash), None, Some(b"full"), extra] {
            bytes.extend(value.map_or(MISSING, |it| it.len() as u32).to_le_bytes());
            bytes.extend(value.unwrap_or_default());
        }
        bytes
    }

    #[test]
    fn a_description_is_read() {
        let bytes = of_block(b"hash", Some(b"parent"), &[1, 70_000]);
        let it = Description::read(&bytes).expect("it is one");
        assert_eq!((&it.block_hashes[..], it.parent), (&[&b"hash"[..]][..], Some(&b"parent"[..])));
        assert_eq!(it.tokens().collect::<Vec<u32>>(), [1, 70_000]);
        assert_eq!(
            (it.block_size, it.kind, it.lora_id, it.sliding_window),
            (2, Some("full"), None, None)
        );
        assert_eq!(it.extra_keys, Some(serde_json::json!([["salt", 3], null])));
        for end in 0..bytes.len() {
            assert_eq!(Description::read(&bytes[..end]), None, "{end}");
        }
    }

    proptest! {
        #[test]
        fn any_bytes_can_be_read(
            change in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..6),
            noise in proptest::collection::vec(any::<u8>(), 0..200),
        ) {
            let _ = Description::read(&noise);
            let mut bytes = of_block(b"hash", None, &[5; 16]);
            for (at, byte) in change {
                let at = at.index(bytes.len());
                bytes[at] = byte;
            }
            if let Some(it) = Description::read(&bytes) {
                prop_assert!(!it.block_hashes.is_empty());
            }
        }
    }
}
