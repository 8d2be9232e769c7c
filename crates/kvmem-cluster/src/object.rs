//! *Object*: a value as a cluster has it, a body and a [trailer].
//!
//! Without a codec and keys the body is the value. Otherwise the trailer has version 2, and the
//! body is:
//!
//! ```text
//! namespace (16 bytes, zeros if the value is not encrypted), encoded form, zeros
//! ```
//!
//! A look-up learns only how long an object is, and must answer how long the value is. So the
//! length of a body says both. A value whose length is a multiple of 8 KiB and that is compressed
//! to `n` sixteenths has a body of `n * (len / 16 + 1)` bytes: the remainder by 512 is `n`. Any
//! other body is [longer](Objects::overhead) than its value by a constant, and its remainder is
//! none of these if the value's length is a multiple of 16. The few other values whose bodies would
//! be taken for compressed ones are not stored.

use kvmem::tier::TierValue;
use kvmem_encoding::{Binding, DecodeError, EncodeError, Encoding, Envelope, Namespace, digest};

use crate::options::ClusterOptions;
use crate::trailer::{self, TRAILER, Trailer};

/// Bytes of a namespace.
const NAMESPACE: usize = 16;
/// The lengths of values that are compressed are multiples of it.
const COMPRESSED_UNIT: usize = 8192;
/// Bytes that a body of an encrypted value is longer than the value: namespace, header and prefix
/// of the form, and 8 zeros that make it a multiple of 16.
const ENCRYPTED_OVERHEAD: usize = 96;

/// The reason why an object is not the value of a key.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Unreadable {
    /// Its bytes are not those that were stored.
    Corrupt,
    /// It is encrypted with a key that this tier does not have.
    NoKey,
    /// Its tag is wrong.
    Tag,
    /// It is intact, and this tier reads no such objects.
    Form,
}

/// Encodes the values of one tier, and decodes those of all with the same keys.
pub(super) struct Objects {
    encoding: Encoding,
}

/// Memory for a body, and for the stream of the codec.
#[derive(Default)]
pub(super) struct Buffers {
    body: Vec<u8>,
    stream: Vec<u8>,
}

impl Objects {
    pub(super) fn new(options: &ClusterOptions) -> Result<Objects, EncodeError> {
        Ok(Objects { encoding: Encoding::new(options.codec, options.keys.clone())? })
    }

    /// Returns whether objects may have version 2.
    pub(super) fn are_encoded(&self) -> bool {
        self.encoding.is_on()
    }

    /// Returns the most bytes that a body is longer than its value.
    pub(super) fn overhead(&self) -> usize {
        if self.encoding.encrypts() { ENCRYPTED_OVERHEAD } else { 0 }
    }

    /// Returns the length of the value of a body.
    pub(super) fn value_len(&self, body: u64) -> Option<u64> {
        let sixteenths = body % 512;
        if self.are_encoded() && (2..16).contains(&sixteenths) && body.is_multiple_of(sixteenths) {
            let len = (body / sixteenths - 1) * 16;
            if len > 0 && len.is_multiple_of(COMPRESSED_UNIT as u64) {
                return Some(len);
            }
        }
        body.checked_sub(self.overhead() as u64)
    }

    /// Returns the body and the trailer of a value; `None` if it cannot be stored.
    pub(super) fn encode<'a>(
        &self,
        value: &TierValue<'a>,
        buffers: &'a mut Buffers,
    ) -> Option<(&'a [u8], [u8; TRAILER])> {
        let TierValue { key, bytes, .. } = *value;
        let may_compress = bytes.len().is_multiple_of(COMPRESSED_UNIT);
        let sixteenth = bytes.len() / 16;
        // No value is shorter by a unit that is longer than it.
        let unit = if may_compress { sixteenth.max(1) } else { usize::MAX };
        let Buffers { body, stream } = buffers;
        let prepared = match self.are_encoded() {
            true => self.encoding.prepare(bytes, value.hints.data_type, unit, stream),
            false => None,
        };
        let Some(prepared) = prepared else {
            let is_found = self.value_len(bytes.len() as u64) == Some(bytes.len() as u64);
            return is_found.then(|| (bytes, trailer::of(key, bytes)));
        };
        let len = NAMESPACE + prepared.form_len();
        let sixteenths = len.div_ceil(sixteenth + 1).max(2);
        let body_len = match may_compress && sixteenths < 16 {
            true => sixteenths * (sixteenth + 1),
            false => bytes.len() + self.overhead(),
        };
        if len > body_len || self.value_len(body_len as u64) != Some(bytes.len() as u64) {
            return None;
        }
        let namespace = self.encoding.encrypts().then(|| namespace(digest(value.namespace)));
        body.clear();
        body.resize(body_len, 0);
        body[..NAMESPACE].copy_from_slice(&namespace.unwrap_or_default().id);
        let binding = Binding { digest: digest(key), namespace };
        prepared.write(&self.encoding, &binding, &mut body[NAMESPACE..len]).ok()?;
        let trailer = Trailer::of(key, &body[..len], bytes.len() as u64);
        Some((body, trailer.write()))
    }

    /// Decodes a body, which is overwritten, into memory for the value of a key.
    pub(super) fn decode(
        &self,
        key: &[u8],
        body: &mut [u8],
        trailer: &[u8; TRAILER],
        into: &mut [u8],
    ) -> Result<(), Unreadable> {
        let Some(trailer) = Trailer::read(trailer) else {
            if *trailer != trailer::of(key, body) {
                return Err(Unreadable::Corrupt);
            }
            // Any program that can write to the cluster can store such a value.
            if self.encoding.encrypts() || into.len() != body.len() {
                return Err(Unreadable::Form);
            }
            into.copy_from_slice(body);
            return Ok(());
        };
        let body = usize::try_from(trailer.len).ok().and_then(|len| body.get_mut(..len));
        let body = body.filter(|body| trailer == Trailer::of(key, body, trailer.value_len));
        let parts = body.and_then(|body| body.split_first_chunk_mut::<NAMESPACE>());
        let (&mut id, form) = parts.ok_or(Unreadable::Corrupt)?;
        let envelope = Envelope::read(form).filter(|it| it.value_len == trailer.value_len);
        let envelope = envelope.ok_or(Unreadable::Corrupt)?;
        match (envelope.seal.is_some(), self.encoding.encrypts()) {
            (true, false) => return Err(Unreadable::NoKey),
            (false, true) => return Err(Unreadable::Form),
            _ if !self.are_encoded() || envelope.value_len != into.len() as u64 => {
                return Err(Unreadable::Form);
            }
            _ => {}
        }
        let namespace = envelope.seal.is_some().then(|| namespace(id));
        let binding = Binding { digest: digest(key), namespace };
        match self.encoding.decode(form, &binding, into) {
            Ok(_) => Ok(()),
            Err(DecodeError::NoKey { .. }) => Err(Unreadable::NoKey),
            Err(DecodeError::Tag) => Err(Unreadable::Tag),
            Err(_) => Err(Unreadable::Corrupt),
        }
    }
}

/// Returns a namespace of a cluster: there is no file that could have a random seed.
fn namespace(id: [u8; 16]) -> Namespace {
    Namespace { id, seed: id }
}

#[cfg(test)]
mod tests {
    use kvmem_encoding::Codec;

    use super::*;

    fn objects(codec: Codec) -> Objects {
        Objects { encoding: Encoding::new(codec, None).unwrap() }
    }

    #[test]
    fn the_length_of_a_body_says_that_of_the_value() {
        let objects = objects(Codec::Auto);
        for unit in [1, 2, 3, 64, 85, 4096, 1 << 24] {
            let len = unit * COMPRESSED_UNIT as u64;
            for sixteenths in 2..16 {
                assert_eq!(objects.value_len(sixteenths * (len / 16 + 1)), Some(len));
            }
        }
        // Lengths of other values.
        for len in (0..1 << 20).step_by(16) {
            assert_eq!(objects.value_len(len), Some(len));
        }
        let taken = (1..1 << 20).filter(|len| objects.value_len(*len) != Some(*len)).count();
        assert!((1000..6000).contains(&taken), "{taken}");
    }

    #[test]
    fn a_value_whose_length_would_be_another_is_not_stored() {
        let objects = objects(Codec::Auto);
        let mut buffers = Buffers::default();
        let bytes = vec![1; 2 * (512 + 1)];
        assert_eq!(objects.encode(&TierValue::new(b"key", &bytes), &mut buffers), None);
        let stored = objects.encode(&TierValue::new(b"key", &bytes[1..]), &mut buffers);
        assert_eq!(stored, Some((&bytes[1..], trailer::of(b"key", &bytes[1..]))));
    }

    #[test]
    fn any_changed_byte_is_a_miss() {
        let objects = objects(Codec::Auto);
        let mut buffers = Buffers::default();
        let bytes: Vec<u8> = (0..8192_u16)
            .flat_map(|at| (0x3F80 | (at.wrapping_mul(37) % 0x180)).to_le_bytes())
            .collect();
        let (body, trailer) =
            objects.encode(&TierValue::new(b"key", &bytes), &mut buffers).expect("it fits");
        assert!(body.len() < bytes.len() * 7 / 8, "{}", body.len());
        assert_eq!(objects.value_len(body.len() as u64), Some(bytes.len() as u64));
        let len = Trailer::read(&trailer).expect("version 2").len as usize;
        for at in 0..body.len() + TRAILER {
            let (mut body, mut trailer) = (body.to_vec(), trailer);
            match at.checked_sub(body.len()) {
                Some(at) => trailer[at] ^= 1,
                None => body[at] ^= 1,
            }
            let mut into = vec![0; bytes.len()];
            let decoded = objects.decode(b"key", &mut body, &trailer, &mut into);
            // The zeros behind the form are no part of the value.
            let is_padding = (len..body.len()).contains(&at);
            let expected = if is_padding { Ok(()) } else { Err(Unreadable::Corrupt) };
            assert_eq!(decoded, expected, "{at}");
        }
    }
}
