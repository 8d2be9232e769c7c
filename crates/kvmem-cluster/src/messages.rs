//! *Messages* between a server and its helper: packets of little-endian numbers.
//!
//! The first packet of the server is the [magic](MAGIC) and the length of the staging file, and
//! carries its descriptor. A call is its number (8 bytes), its [kind](CallKind) (4), the number of
//! its items (4), and the items: offset (8), length (8), length of the key (2), key. An answer is
//! the number of the call (8), the number of results (4), and a result (8, signed) for each item.
//! Call 0 is none: such an answer says whether the helper has the store (1) or not (0), and the
//! first one says that it has begun.

/// The first bytes of the server. The version is a part of them.
pub(super) const MAGIC: &[u8; 8] = b"kvmem-c2";

/// Items of a call, at most: the answer to it is no longer than [`MAX_ANSWER`].
pub(super) const MAX_ITEMS: usize = 64;
/// Bytes of an answer, at most.
pub(super) const MAX_ANSWER: usize = 12 + 8 * MAX_ITEMS;

/// A result that says that there is nothing, or that the store failed.
pub(super) const NO_VALUE: i64 = -1;

/// A request to a helper.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CallKind {
    /// Return the lengths of the objects of keys.
    LookUp = 1,
    /// Store bytes under keys.
    Store = 2,
    /// Read objects that have at most these lengths, and return their lengths.
    Fetch = 3,
    /// Remove the objects of keys.
    Remove = 4,
    /// Remove all objects of the node's prefix. It has one item without a key.
    Clear = 5,
    /// Store bytes under keys, after the objects of the keys were removed.
    Replace = 6,
}

impl CallKind {
    /// Returns whether the call stores.
    pub(super) fn is_store(self) -> bool {
        matches!(self, CallKind::Store | CallKind::Replace)
    }
}

/// An item of a call.
#[derive(Clone, Debug)]
pub(super) struct CallItem {
    pub(super) key: Vec<u8>,
    pub(super) offset: u64,
    pub(super) len: u64,
}

impl CallItem {
    /// Returns an item without bytes.
    pub(super) fn of_key(key: &[u8]) -> CallItem {
        CallItem { key: key.to_vec(), offset: 0, len: 0 }
    }
}

/// Returns the packet of a call.
pub(super) fn call(id: u64, kind: CallKind, items: &[CallItem]) -> Vec<u8> {
    let mut packet = Vec::with_capacity(16 + items.len() * 64);
    packet.extend(id.to_le_bytes());
    packet.extend((kind as u32).to_le_bytes());
    packet.extend((items.len() as u32).to_le_bytes());
    for CallItem { key, offset, len } in items {
        packet.extend(offset.to_le_bytes());
        packet.extend(len.to_le_bytes());
        packet.extend((key.len() as u16).to_le_bytes());
        packet.extend(key);
    }
    packet
}

/// Parses an answer: the number of the call, and the results.
pub(super) fn answer(packet: &[u8]) -> Option<(u64, Vec<i64>)> {
    let (id, rest) = packet.split_first_chunk::<8>()?;
    let (count, rest) = rest.split_first_chunk::<4>()?;
    let (results, rest) = rest.as_chunks::<8>();
    let count = u32::from_le_bytes(*count) as usize;
    let whole = rest.is_empty() && results.len() == count;
    let results = results.iter().map(|bytes| i64::from_le_bytes(*bytes)).collect();
    whole.then_some((u64::from_le_bytes(*id), results))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_are_whole_or_none() {
        let packet = |count: u32, results: &[i64]| {
            let mut packet = 7_u64.to_le_bytes().to_vec();
            packet.extend(count.to_le_bytes());
            packet.extend(results.iter().flat_map(|it| it.to_le_bytes()));
            packet
        };
        assert_eq!(answer(&packet(2, &[-1, 5])), Some((7, vec![-1, 5])));
        assert_eq!(answer(&packet(0, &[])), Some((7, Vec::new())));
        assert_eq!(answer(&packet(1, &[1, 2])), None);
        assert_eq!(answer(&packet(u32::MAX, &[1])), None);
        for len in 0..12 {
            assert_eq!(answer(&packet(0, &[])[..len]), None);
        }
        assert_eq!(answer(&packet(1, &[1])[..19]), None);
    }

    #[test]
    fn a_call_has_the_bytes_of_the_description() {
        let items = [CallItem { key: b"ab".to_vec(), offset: 1, len: 2 }];
        let bytes = call(3, CallKind::Fetch, &items);
        let expected = [
            3, 0, 0, 0, 0, 0, 0, 0, 3, 0, 0, 0, 1, 0, 0, 0, // number, kind, items
            1, 0, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0, 2, 0, b'a', b'b',
        ];
        assert_eq!(bytes, expected);
    }
}
