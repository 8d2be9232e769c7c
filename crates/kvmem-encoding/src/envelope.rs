//! [`Envelope`]: the header of an encoded value.

use crate::encryption::{KeyId, SessionId};

const MAGIC: [u8; 4] = *b"KvE1";
const COMPRESSED: u8 = 1;
const ENCRYPTED: u8 = 2;
/// Bytes of the header of a value that is not encrypted.
const SHORT: usize = 16;
/// Bytes of the header of an encrypted value.
const LONG: usize = 64;
/// Where the tag begins. It covers the bytes before it.
pub(crate) const TAG: usize = 48;

/// The header of an encoded value: 16 bytes, or 64 if it is encrypted. Numbers are little-endian.
///
/// | offset | bytes | field |
/// |---|---|---|
/// | 0 | 4 | `KvE1` |
/// | 4 | 1 | flags; bit 0: compressed, bit 1: encrypted |
/// | 5 | 3 | zeros |
/// | 8 | 8 | bytes of the value |
/// | 16 | 8 | encrypted: the name of the key |
/// | 24 | 8 | encrypted: the counter of the nonce |
/// | 32 | 16 | encrypted: the session |
/// | 48 | 16 | encrypted: the tag |
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Envelope {
    /// Whether the value is compressed.
    pub is_compressed: bool,
    /// Bytes of the value.
    pub value_len: u64,
    /// How it is encrypted, if it is.
    pub seal: Option<Seal>,
}

/// How a value is encrypted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Seal {
    /// The name of the key.
    pub key: KeyId,
    /// The counter of the nonce.
    pub counter: u64,
    /// The session: the opening of the tier that has stored the value.
    pub session: SessionId,
    /// The tag.
    pub tag: [u8; 16],
}

impl Envelope {
    /// Returns the bytes of the header of a value that is encrypted or not.
    #[must_use]
    pub const fn len(is_encrypted: bool) -> usize {
        if is_encrypted { LONG } else { SHORT }
    }

    /// Writes the header to the beginning of a form that has room for it; returns the rest.
    pub(crate) fn write<'a>(&self, form: &'a mut [u8]) -> &'a mut [u8] {
        let (header, rest) = form.split_at_mut(Envelope::len(self.seal.is_some()));
        let flags = if self.is_compressed { COMPRESSED } else { 0 }
            | if self.seal.is_some() { ENCRYPTED } else { 0 };
        header[..4].copy_from_slice(&MAGIC);
        header[4..8].copy_from_slice(&[flags, 0, 0, 0]);
        header[8..16].copy_from_slice(&self.value_len.to_le_bytes());
        if let Some(Seal { key, counter, session, tag }) = &self.seal {
            header[16..24].copy_from_slice(&key.0);
            header[24..32].copy_from_slice(&counter.to_le_bytes());
            header[32..TAG].copy_from_slice(session);
            header[TAG..].copy_from_slice(tag);
        }
        rest
    }

    /// Reads the header at the beginning of a form; `None` if there is none.
    #[must_use]
    pub fn read(form: &[u8]) -> Option<Envelope> {
        let (magic, rest) = form.split_first_chunk()?;
        let (&[flags, zeros @ ..], rest) = rest.split_first_chunk::<4>()?;
        let (&value_len, rest) = rest.split_first_chunk()?;
        let is_sound = *magic == MAGIC
            && zeros == [0; 3]
            && flags & !(COMPRESSED | ENCRYPTED) == 0
            && flags > 0;
        let seal = || {
            let (&key, rest) = rest.split_first_chunk()?;
            let (&counter, rest) = rest.split_first_chunk()?;
            let (&session, rest) = rest.split_first_chunk()?;
            let &tag = rest.first_chunk()?;
            Some(Seal { key: KeyId(key), counter: u64::from_le_bytes(counter), session, tag })
        };
        let seal = if flags & ENCRYPTED == 0 { None } else { Some(seal()?) };
        let is_compressed = flags & COMPRESSED != 0;
        let value_len = u64::from_le_bytes(value_len);
        is_sound.then_some(Envelope { is_compressed, value_len, seal })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn envelopes() -> Vec<Envelope> {
        let (key, counter, session, tag) = (KeyId([5; 8]), 0x0102_0304, [6; 16], [7; 16]);
        let seal = Some(Seal { key, counter, session, tag });
        let one = |is_compressed, seal| Envelope { is_compressed, value_len: 0x0506_0708, seal };
        vec![one(true, None), one(false, seal), one(true, seal)]
    }

    #[test]
    fn a_header_is_read_as_it_was_written() {
        for envelope in envelopes() {
            let mut form = [0xEE; 100];
            let len = Envelope::len(envelope.seal.is_some());
            assert_eq!(envelope.write(&mut form).len(), 100 - len);
            assert_eq!(Envelope::read(&form), Some(envelope));
            assert_eq!(Envelope::read(&form[..len]), Some(envelope));
            for short in 0..len {
                assert_eq!(Envelope::read(&form[..short]), None, "{short}");
            }
        }
    }

    #[test]
    fn a_form_of_another_version_has_no_header() {
        for envelope in envelopes() {
            let mut form = [0; 64];
            envelope.write(&mut form);
            for at in (0..4).chain(5..8) {
                let mut other = form;
                other[at] ^= 1;
                assert_eq!(Envelope::read(&other), None, "{at}");
            }
            for flags in (4..=255).chain([0]) {
                let mut other = form;
                other[4] = flags;
                assert_eq!(Envelope::read(&other), None, "{flags}");
            }
        }
    }
}
