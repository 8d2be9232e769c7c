//! [`Encoding`]: from a value to the form that is stored, and back.
//!
//! ```text
//! value ── compress ──► CRC of the value, stream ── encrypt in place ──► header, payload
//! ```
//!
//! The payload has eight bytes before the value or its stream: the CRC-32C of the value, and zeros.
//! A value that was decompressed is compared with it, so an error of the codec is a miss, too; and
//! a reader learns the CRC of what was stored, whatever happens to the memory that the value is
//! decoded into. Encryption hides it.

use std::sync::Arc;

use crc_fast::CrcAlgorithm::Crc32Iscsi;
use kvmem::tier::DataType;
use thiserror::Error;

use crate::codec::{compress, decompress};
use crate::encryption::{Derivation, KeyId, Keyring, Namespace, Session};
use crate::envelope::{Envelope, Seal, TAG};

/// Bytes before the value or its stream in the payload.
const PREFIX: usize = 8;

/// How values are compressed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub enum Codec {
    /// They are not.
    #[default]
    None,
    /// Without loss, those that become shorter by it.
    Auto,
}

impl Codec {
    /// Returns the codec with a name: `none` or `auto`.
    #[must_use]
    pub fn named(name: &str) -> Option<Codec> {
        match name {
            "none" => Some(Codec::None),
            "auto" => Some(Codec::Auto),
            _ => None,
        }
    }

    /// Returns the name.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Codec::None => "none",
            Codec::Auto => "auto",
        }
    }
}

/// The key and the namespace that a form belongs to. It decodes with no others.
#[derive(Clone, Copy, Debug)]
pub struct Binding {
    /// The digest of the value's key.
    pub digest: [u8; 16],
    /// The namespace of the value, if it is encrypted. A form that is not encrypted does not decode
    /// with one.
    pub namespace: Option<Namespace>,
}

/// A value cannot be encoded.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
#[non_exhaustive]
pub enum EncodeError {
    /// The system has no random numbers.
    #[error("the system has no random numbers, which encryption needs: see getrandom(2)")]
    Random,
    /// The value is too long for one nonce.
    #[error("a value of {len} bytes is too long to be encrypted: at most 64 GiB - 128 bytes")]
    TooLong {
        /// Its bytes.
        len: u64,
    },
}

/// A form cannot be decoded.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
#[non_exhaustive]
pub enum DecodeError {
    /// The keyring does not have its key.
    #[error("it is encrypted with the key {key}, which the key file does not have")]
    NoKey {
        /// The name of the key.
        key: KeyId,
    },
    /// The tag is not that of these bytes under this key, for this place.
    #[error("its tag is wrong: it was changed, or belongs to another key, namespace or place")]
    Tag,
    /// It is no form of a value of this length.
    #[error("it is no form of a value of this length")]
    Malformed,
}

/// Encodes the values of one opening of a tier, and decodes those of all.
pub struct Encoding {
    codec: Codec,
    keys: Option<(Arc<Keyring>, Session)>,
}

/// A value that is about to be encoded, and knows how long its form is.
#[derive(Clone, Copy)]
pub struct Prepared<'a> {
    value: &'a [u8],
    /// The value or its stream.
    body: &'a [u8],
    is_compressed: bool,
    is_encrypted: bool,
}

/// Decodes the stream of a value with the CRC-32C `sum` into place. Another process may write to
/// that memory meanwhile, so a stream that seems wrong is decoded once more in memory of this one.
fn expand(stream: &[u8], sum: u32, into: &mut [u8]) -> Result<(), DecodeError> {
    let decode = |into: &mut [u8]| decompress(stream, into).is_ok() && crc(into) == sum;
    if decode(into) {
        return Ok(());
    }
    let mut value = vec![0; into.len()];
    if !decode(&mut value) {
        return Err(DecodeError::Malformed);
    }
    into.copy_from_slice(&value);
    Ok(())
}

fn crc(bytes: &[u8]) -> u32 {
    crc_fast::checksum(Crc32Iscsi, bytes) as u32
}

impl Encoding {
    /// Begins to encode values.
    ///
    /// # Errors
    /// [`EncodeError::Random`].
    pub fn new(codec: Codec, keys: Option<Arc<Keyring>>) -> Result<Encoding, EncodeError> {
        let with_session = |keys| Some((keys, Session::begin()?));
        let keys = match keys {
            Some(keys) => Some(with_session(keys).ok_or(EncodeError::Random)?),
            None => None,
        };
        Ok(Encoding { codec, keys })
    }

    /// Returns whether values are encoded at all.
    #[must_use]
    pub fn is_on(&self) -> bool {
        self.codec != Codec::None || self.encrypts()
    }

    /// Returns whether values are encrypted.
    #[must_use]
    pub fn encrypts(&self) -> bool {
        self.keys.is_some()
    }

    /// Compresses a value into `scratch` if that pays. Returns `None` if the value is to be stored
    /// as it is: it is not encrypted, and would not become shorter by a `unit` of the storage.
    #[must_use]
    pub fn prepare<'a>(
        &self,
        value: &'a [u8],
        data_type: DataType,
        unit: usize,
        scratch: &'a mut Vec<u8>,
    ) -> Option<Prepared<'a>> {
        let is_encrypted = self.encrypts();
        scratch.clear();
        let units = |len: usize| (Envelope::len(is_encrypted) + PREFIX + len).div_ceil(unit);
        let plain_units = match is_encrypted {
            true => units(value.len()),
            false => value.len().div_ceil(unit),
        };
        let is_compressed = self.codec == Codec::Auto
            && compress(value, data_type, scratch)
            && units(scratch.len()) < plain_units;
        if !is_compressed && !is_encrypted {
            return None;
        }
        let body = if is_compressed { &scratch[..] } else { value };
        Some(Prepared { value, body, is_compressed, is_encrypted })
    }

    /// Decodes a form, which is overwritten, into memory that is as long as the value. Returns the
    /// CRC-32C of the value.
    ///
    /// # Errors
    /// [`DecodeError`]: the memory has any bytes then.
    pub fn decode(
        &self,
        form: &mut [u8],
        binding: &Binding,
        into: &mut [u8],
    ) -> Result<u32, DecodeError> {
        let Some(envelope) = Envelope::read(form) else { return Err(DecodeError::Malformed) };
        if envelope.value_len != into.len() as u64
            || envelope.seal.is_some() != binding.namespace.is_some()
        {
            return Err(DecodeError::Malformed);
        }
        let (header, payload) = form.split_at_mut(Envelope::len(envelope.seal.is_some()));
        if let Some((seal, namespace)) = envelope.seal.zip(binding.namespace) {
            let Seal { key, counter, session, tag } = seal;
            let no_key = DecodeError::NoKey { key };
            let (keys, open) = self.keys.as_ref().ok_or(no_key)?;
            let master = keys.key(key).ok_or(no_key)?;
            let of = Derivation { key, seed: namespace.seed, session };
            let bound = bound(&header[..TAG], binding.digest, &namespace);
            open.open(master, &of, counter, &bound, payload, tag).ok_or(DecodeError::Tag)?;
        }
        let Some((&prefix, body)) = payload.split_first_chunk::<PREFIX>() else {
            return Err(DecodeError::Malformed);
        };
        let [sum, 0] =
            [0, 4].map(|at| u32::from_le_bytes(prefix[at..at + 4].try_into().expect("4")))
        else {
            return Err(DecodeError::Malformed);
        };
        if envelope.is_compressed {
            expand(body, sum, into)?;
        } else if body.len() == into.len() {
            into.copy_from_slice(body);
        } else {
            return Err(DecodeError::Malformed);
        }
        Ok(sum)
    }

    /// Forgets the keys of a namespace.
    pub fn forget(&self, namespace: &Namespace) {
        if let Some((_, session)) = &self.keys {
            session.forget(&namespace.seed);
        }
    }
}

impl Prepared<'_> {
    /// Returns the bytes of the form.
    #[must_use]
    pub fn form_len(&self) -> usize {
        Envelope::len(self.is_encrypted) + PREFIX + self.body.len()
    }

    /// Writes the form into memory that is as long as it.
    ///
    /// # Errors
    /// [`EncodeError::TooLong`].
    pub fn write(
        &self,
        encoding: &Encoding,
        binding: &Binding,
        form: &mut [u8],
    ) -> Result<(), EncodeError> {
        let value_len = self.value.len() as u64;
        let (is_compressed, sum) = (self.is_compressed, crc(self.value));
        let keys = encoding.keys.as_ref().zip(binding.namespace);
        let keys = keys.map(|((keys, session), namespace)| (keys, session, namespace));
        debug_assert_eq!(keys.is_some(), self.is_encrypted);
        let seal = keys.map(|(keys, session, _)| {
            let (id, counter) = session.next();
            Seal { key: keys.writes_with(), counter, session: id, tag: [0; 16] }
        });
        let payload = Envelope { is_compressed, value_len, seal }.write(form);
        let (prefix, body) = payload.split_at_mut(PREFIX);
        prefix[..4].copy_from_slice(&sum.to_le_bytes());
        prefix[4..].fill(0);
        body.copy_from_slice(self.body);
        let Some(((keys, session, namespace), seal)) = keys.zip(seal) else { return Ok(()) };
        let (header, payload) = form.split_at_mut(Envelope::len(true));
        let bound = bound(&header[..TAG], binding.digest, &namespace);
        let Seal { key, counter, session: id, .. } = seal;
        let of = Derivation { key, seed: namespace.seed, session: id };
        let master = keys.key(key).expect("it is the first one");
        let tag = session.seal(master, &of, counter, &bound, payload);
        header[TAG..].copy_from_slice(&tag.ok_or(EncodeError::TooLong { len: value_len })?);
        Ok(())
    }
}

/// Returns the associated data of the tag: the header before it, and what the form is bound to.
fn bound(header: &[u8], digest: [u8; 16], namespace: &Namespace) -> [u8; TAG + 32] {
    let mut bound = [0; TAG + 32];
    bound[..TAG].copy_from_slice(header);
    bound[TAG..TAG + 16].copy_from_slice(&digest);
    bound[TAG + 16..].copy_from_slice(&namespace.id);
    bound
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt;

    use proptest::prelude::*;

    use super::*;

    /// Returns a keyring of keys of one byte each, repeated.
    fn keyring(keys: &[u8]) -> Arc<Keyring> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("keys");
        let lines: Vec<String> = keys.iter().map(|key| format!("{key:02x}").repeat(32)).collect();
        fs::write(&path, lines.join("\n")).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
        Arc::new(Keyring::open(&path).unwrap())
    }

    fn encoding(codec: Codec, keys: &[u8]) -> Encoding {
        Encoding::new(codec, (!keys.is_empty()).then(|| keyring(keys))).unwrap()
    }

    fn binding_of(encoding: &Encoding) -> Binding {
        let namespace = Namespace { id: [2; 16], seed: [3; 16] };
        Binding { digest: [1; 16], namespace: encoding.encrypts().then_some(namespace) }
    }

    fn encode(encoding: &Encoding, value: &[u8]) -> Option<Vec<u8>> {
        let mut stream = Vec::new();
        let prepared = encoding.prepare(value, DataType::Bfloat16, 4096, &mut stream)?;
        let mut form = vec![0xEE; prepared.form_len()];
        prepared.write(encoding, &binding_of(encoding), &mut form).unwrap();
        Some(form)
    }

    fn decode(encoding: &Encoding, form: &[u8], len: usize) -> Result<(Vec<u8>, u32), DecodeError> {
        let is_sealed = Envelope::read(form).is_some_and(|envelope| envelope.seal.is_some());
        let mut binding = binding_of(encoding);
        binding.namespace = binding.namespace.or(is_sealed.then(Namespace::default));
        let mut into = vec![0; len];
        let sum = encoding.decode(&mut form.to_vec(), &binding, &mut into)?;
        Ok((into, sum))
    }

    /// Returns numbers that a codec makes shorter.
    fn numbers(len: u16) -> Vec<u8> {
        (0..len).flat_map(|at| (0x3F80 | (at.wrapping_mul(37) % 0x180)).to_le_bytes()).collect()
    }

    #[test]
    fn a_value_is_decoded_as_it_was_encoded() {
        for (codec, keys) in [
            (Codec::Auto, &[][..]),
            (Codec::None, &[1]),
            (Codec::Auto, &[1]),
            (Codec::Auto, &[1, 2]),
        ] {
            let encoding = encoding(codec, keys);
            for value in [numbers(0), numbers(1), numbers(5000), vec![0; 100_000], vec![7; 4096]] {
                let Some(form) = encode(&encoding, &value) else {
                    assert!(keys.is_empty() && value.len() <= 4096);
                    continue;
                };
                let envelope = Envelope::read(&form).unwrap();
                assert_eq!(envelope.value_len, value.len() as u64);
                assert_eq!(envelope.seal.is_some(), !keys.is_empty());
                assert_eq!(envelope.is_compressed, codec == Codec::Auto && value.len() >= 4096);
                let expected = crc(&value);
                let decoded = decode(&encoding, &form, value.len());
                assert!(decoded == Ok((value.clone(), expected)), "{codec:?} {keys:?}");
                let other = decode(&encoding, &form, value.len() + 1);
                assert_eq!(other, Err(DecodeError::Malformed));
            }
        }
        // What does not become shorter by a block stays as it is.
        assert_eq!(encode(&encoding(Codec::Auto, &[]), &numbers(100)), None);
        assert!(!encoding(Codec::None, &[]).is_on());
    }

    /// A form of a value of zeros, each of whose bits is changed, and whose end is cut off.
    #[test]
    fn a_changed_form_is_an_error() {
        let value = numbers(4000);
        for codec in [Codec::None, Codec::Auto] {
            let encoding = encoding(codec, &[1]);
            let form = encode(&encoding, &value).unwrap();
            for bit in (0..form.len() * 8).filter(|bit| bit % 8 == bit / 8 % 8 || *bit < 64 * 8) {
                let mut other = form.clone();
                other[bit / 8] ^= 1 << (bit % 8);
                let error = decode(&encoding, &other, value.len()).unwrap_err();
                let expected = match bit / 8 {
                    0..4 | 5..16 => DecodeError::Malformed,
                    // A form without a seal has no key, and its checksum is at another place.
                    4 => error,
                    16..24 => DecodeError::NoKey {
                        key: Envelope::read(&other).unwrap().seal.unwrap().key,
                    },
                    _ => DecodeError::Tag,
                };
                assert_eq!(error, expected, "bit {bit}");
            }
            for len in 0..form.len() {
                let error = decode(&encoding, &form[..len], value.len()).unwrap_err();
                assert!(matches!(error, DecodeError::Malformed | DecodeError::Tag), "{len}");
            }
        }
    }

    #[test]
    fn a_form_is_opened_only_with_its_key_and_at_its_place() {
        let value = numbers(3000);
        let writer = encoding(Codec::Auto, &[1]);
        let form = encode(&writer, &value).unwrap();
        let key = keyring(&[1]).writes_with();
        let opened = |keys: &[u8]| decode(&encoding(Codec::None, keys), &form, value.len());
        // Another opening of the file reads it, and after a rotation, too.
        for keys in [&[1][..], &[2, 1], &[1, 2]] {
            assert_eq!(opened(keys).unwrap().0, value);
        }
        for keys in [&[][..], &[2]] {
            assert_eq!(opened(keys), Err(DecodeError::NoKey { key }));
        }
        let rotated = encode(&encoding(Codec::None, &[2, 1]), &value).unwrap();
        let seal = Envelope::read(&rotated).unwrap().seal.unwrap();
        assert_eq!(seal.key, keyring(&[2]).writes_with());
        let binding = binding_of(&writer);
        let namespace = binding.namespace.unwrap();
        for (other, expected) in [
            (Binding { digest: [9; 16], ..binding }, DecodeError::Tag),
            (
                Binding { namespace: Some(Namespace { id: [9; 16], ..namespace }), ..binding },
                DecodeError::Tag,
            ),
            (
                Binding { namespace: Some(Namespace { seed: [9; 16], ..namespace }), ..binding },
                DecodeError::Tag,
            ),
            (Binding { namespace: None, ..binding }, DecodeError::Malformed),
        ] {
            let mut into = vec![0; value.len()];
            let decoded = writer.decode(&mut form.clone(), &other, &mut into);
            assert_eq!(decoded, Err(expected));
        }
        // A form that is not encrypted is none of a value that is.
        let plain = encode(&encoding(Codec::Auto, &[]), &value).unwrap();
        assert_eq!(decode(&writer, &plain, value.len()), Err(DecodeError::Malformed));
        writer.forget(&namespace);
        assert_eq!(decode(&writer, &form, value.len()).unwrap().0, value, "derived once more");
    }

    #[test]
    fn derived_keys_are_bounded_and_derived_again() {
        let (reader, value) = (encoding(Codec::None, &[1]), numbers(10));
        let forms: Vec<Vec<u8>> =
            (0..100).map(|_| encode(&encoding(Codec::None, &[1]), &value).unwrap()).collect();
        for form in forms.iter().chain(&forms) {
            assert_eq!(decode(&reader, form, value.len()).unwrap().0, value);
        }
    }

    /// Pairs of session and counter, which make a nonce of a key.
    #[test]
    fn no_nonce_is_used_twice() {
        let keys = keyring(&[1]);
        let mut used = std::collections::HashSet::new();
        for _ in 0..100 {
            let encoding = Encoding::new(Codec::None, Some(Arc::clone(&keys))).unwrap();
            for _ in 0..100 {
                let form = encode(&encoding, b"the same value").unwrap();
                let seal = Envelope::read(&form).unwrap().seal.unwrap();
                assert!(used.insert((seal.session, seal.counter)));
            }
        }
    }

    proptest! {
        #[test]
        fn any_value_comes_back(value in prop::collection::vec(any::<u8>(), 0..9000), is_on: bool) {
            let codec = if is_on { Codec::Auto } else { Codec::None };
            let encoding = encoding(codec, &[1]);
            let form = encode(&encoding, &value).unwrap();
            prop_assert_eq!(decode(&encoding, &form, value.len()).unwrap().0, value);
        }

        #[test]
        fn any_bytes_are_no_value(
            mut form in prop::collection::vec(any::<u8>(), 0..300),
            len in 0..600_usize,
            has_header: bool,
        ) {
            if has_header && form.len() >= 16 {
                form[..5].copy_from_slice(b"KvE1\x01");
                form[5..8].fill(0);
                form[8..16].copy_from_slice(&(len as u64).to_le_bytes());
            }
            // The checksum of a value is wrong with a probability of 1 - 2^-32.
            prop_assert!(decode(&encoding(Codec::None, &[1]), &form, len).is_err());
        }
    }
}
