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

/// What a form is bound to: it decodes only there.
#[derive(Clone, Copy, Debug)]
pub struct Binding {
    /// The digest of the value's key.
    pub digest: [u8; 16],
    /// The namespace of the value, if it is encrypted.
    pub namespace: Namespace,
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

/// Appends the stream of a value, and returns true if that pays.
fn compress(_: &[u8], _: DataType, _: &mut Vec<u8>) -> bool {
    false
}

/// Decodes a stream into place. The value has the CRC-32C `sum`.
fn expand(_: &[u8], _: u32, _: &mut [u8]) -> Result<(), DecodeError> {
    Err(DecodeError::Malformed)
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
        if envelope.value_len != into.len() as u64 {
            return Err(DecodeError::Malformed);
        }
        let (header, payload) = form.split_at_mut(Envelope::len(envelope.seal.is_some()));
        if let Some(Seal { key, counter, session, tag }) = envelope.seal {
            let no_key = DecodeError::NoKey { key };
            let (keys, open) = self.keys.as_ref().ok_or(no_key)?;
            let master = keys.key(key).ok_or(no_key)?;
            let of = Derivation { key, seed: binding.namespace.seed, session };
            let bound = bound(&header[..TAG], binding);
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
        let keys = encoding.keys.as_ref();
        let seal = keys.map(|(keys, session)| {
            let (id, counter) = session.next();
            Seal { key: keys.writes_with(), counter, session: id, tag: [0; 16] }
        });
        let payload = Envelope { is_compressed, value_len, seal }.write(form);
        let (prefix, body) = payload.split_at_mut(PREFIX);
        prefix[..4].copy_from_slice(&sum.to_le_bytes());
        prefix[4..].fill(0);
        body.copy_from_slice(self.body);
        let Some(((keys, session), seal)) = keys.zip(seal) else { return Ok(()) };
        let (header, payload) = form.split_at_mut(Envelope::len(true));
        let bound = bound(&header[..TAG], binding);
        let Seal { key, counter, session: id, .. } = seal;
        let of = Derivation { key, seed: binding.namespace.seed, session: id };
        let master = keys.key(key).expect("it is the first one");
        let tag = session.seal(master, &of, counter, &bound, payload);
        header[TAG..].copy_from_slice(&tag.ok_or(EncodeError::TooLong { len: value_len })?);
        Ok(())
    }
}

/// Returns the associated data of the tag: the header before it, and what the form is bound to.
fn bound(header: &[u8], binding: &Binding) -> [u8; TAG + 32] {
    let mut bound = [0; TAG + 32];
    bound[..TAG].copy_from_slice(header);
    bound[TAG..TAG + 16].copy_from_slice(&binding.digest);
    bound[TAG + 16..].copy_from_slice(&binding.namespace.id);
    bound
}
