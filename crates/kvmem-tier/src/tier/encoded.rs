//! *Encoded values*: the form of a value that lies in its blocks instead of the value.
//!
//! A value is encoded before it has blocks, since the form says how many it needs, in the thread
//! that stores it. A form is decoded as soon as its last byte is read and its checksum is right,
//! while other values are still being read. The checksum covers the form, and not the value:
//! without a key, a program that verifies, repairs or resizes a tier finds what the drive has
//! changed. The tag finds what a person has.

use std::sync::atomic::Ordering;
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use kvmem::tier::TierValue;
use kvmem_encoding::{Binding, DecodeError, Encoding, Namespace};

use super::bounce::Bounce;
use super::error::StoreError;
use super::tier::DiskTier;
use crate::device::Device;
use crate::format::{BLOCK, Encoded, Entry, Namespaces};

/// The most buffers, and the most bytes of one, that are retained for the streams of the codec.
const MAX_BUFFERS: usize = 8;
const MAX_BUFFER: usize = 16 << 20;

/// Memory for the streams of the codec.
#[derive(Default)]
pub(super) struct StreamBuffers(Mutex<Vec<Vec<u8>>>);

impl StreamBuffers {
    fn with<R>(&self, work: impl FnOnce(&mut Vec<u8>) -> R) -> R {
        let lock = || self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let mut buffer = lock().pop().unwrap_or_default();
        let result = work(&mut buffer);
        let mut spare = lock();
        if spare.len() < MAX_BUFFERS && buffer.capacity() <= MAX_BUFFER {
            spare.push(buffer);
        }
        result
    }
}

/// A form that is to be stored.
pub(super) struct Form<'a> {
    /// The form, padded.
    pub(super) bounce: Bounce<'a>,
    /// Its bytes.
    pub(super) len: u64,
    pub(super) encoded: Option<Encoded>,
}

/// The reason why the form of a value did not become the value.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Undecoded {
    /// Its namespace was forgotten.
    Forgotten,
    /// The encoding has no key for it, or cannot open it.
    Encoding(DecodeError),
}

/// The result of decoding: the CRC-32C of the value.
pub(super) type Decoded = Result<u32, Undecoded>;

impl<D: Device> DiskTier<D> {
    /// Encodes the values of a call; returns the form of each that does not stay as it is. None at
    /// all if the tier does not encode.
    pub(super) fn encode<'a>(
        &'a self,
        values: &[TierValue<'_>],
    ) -> Vec<Result<Option<Form<'a>>, StoreError>> {
        if !self.encoding.is_on() {
            return Vec::new();
        }
        let begin = Instant::now();
        let encode_all = |stream: &mut Vec<u8>| {
            values.iter().map(|value| self.encode_one(value, stream)).collect()
        };
        let forms = self.streams.with(encode_all);
        self.state().stats.encode_ns += begin.elapsed().as_nanos() as u64;
        forms
    }

    fn encode_one(
        &self,
        value: &TierValue<'_>,
        stream: &mut Vec<u8>,
    ) -> Result<Option<Form<'_>>, StoreError> {
        let prepared = self.encoding.prepare(value.bytes, value.hints.data_type, BLOCK, stream);
        let Some(prepared) = prepared else { return Ok(None) };
        let (number, namespace) = match self.encoding.encrypts() {
            true => self.namespace(value.namespace).map(|(number, it)| (number, Some(it)))?,
            false => (0, None),
        };
        let len = prepared.form_len();
        let mut bounce = self.bounce.take(len.div_ceil(BLOCK));
        let (form, padding) = bounce.split_at_mut(len);
        let binding = Binding { digest: self.digest(value.key).0, namespace };
        prepared.write(&self.encoding, &binding, form)?;
        padding.fill(0);
        let encoded = Encoded::new(value.bytes.len() as u64, number);
        Ok(Some(Form { bounce, len: len as u64, encoded }))
    }

    /// Decodes the form of a value, which is overwritten, into place.
    pub(super) fn decode(&self, entry: &Entry, form: &mut [u8], into: &mut [u8]) -> Decoded {
        let begin = Instant::now();
        let namespace = namespace_of(&self.namespaces(), entry)?;
        let decoded = decode(&self.encoding, namespace, entry, form, into);
        // Relaxed: a count.
        self.decode_ns.fetch_add(begin.elapsed().as_nanos() as u64, Ordering::Relaxed);
        decoded
    }
}

/// Returns the namespace of a value, if it is encrypted. Fails if it was forgotten.
pub(super) fn namespace_of(
    namespaces: &Namespaces,
    entry: &Entry,
) -> Result<Option<Namespace>, Undecoded> {
    match entry.encoded.map_or(0, Encoded::namespace) {
        0 => Ok(None),
        number => namespaces.get(number).map(Some).ok_or(Undecoded::Forgotten),
    }
}

/// Decodes the form of a value of a [namespace](namespace_of), which is overwritten, into place.
pub(super) fn decode(
    encoding: &Encoding,
    namespace: Option<Namespace>,
    entry: &Entry,
    form: &mut [u8],
    into: &mut [u8],
) -> Decoded {
    let binding = Binding { digest: entry.digest.0, namespace };
    encoding.decode(form, &binding, into).map_err(Undecoded::Encoding)
}
