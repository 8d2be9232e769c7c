//! *Encoded values*: the form of a value that lies in its blocks instead of the value.
//!
//! A value is encoded before it has blocks, since the form says how many it needs, in the thread
//! that stores it. The values of a call are stored and fetched in *groups*: while the device writes
//! one, the thread encodes the next, and while the device reads one, the thread decodes the
//! previous. A processor encodes more slowly than a fast drive writes, so several threads share the
//! values of a long call, each with groups of its own.
//!
//! The checksum covers the form, and not the value: without a key, a program that verifies, repairs
//! or resizes a tier finds what the drive has changed. The tag finds what a person has.

use std::sync::atomic::Ordering;
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use kvmem::tier::TierValue;
use kvmem_encoding::{Binding, DecodeError, Encoding, Namespace};

use super::bounce::Bounce;
use super::checksum::checksum;
use super::error::StoreError;
use super::tier::DiskTier;
use crate::device::Device;
use crate::format::{BLOCK, Encoded, Entry, Namespaces};

/// The most bytes of values of a group, if it has several. The forms of two groups are in memory at
/// a time, and then those of the next ones in the same buffers, which the caches of a processor
/// hold: groups of 16 MiB are read a quarter slower.
pub(super) const GROUP: usize = 4 << 20;

/// The most threads that encode or decode the values of a call, and the fewest bytes of values for
/// which a thread is started: its two groups in memory.
const THREADS: usize = 4;
const BYTES_OF_THREAD: usize = 2 * GROUP;

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
    /// Its bytes, and their checksum, which is computed while a cache of the processor has them.
    pub(super) len: u64,
    pub(super) checksum: u32,
    pub(super) encoded: Option<Encoded>,
}

/// The form of a value; `None` if it is stored as it is.
pub(super) type MaybeForm<'a> = Result<Option<Form<'a>>, StoreError>;

/// The reason why the form of a value did not become the value.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Undecoded {
    /// Its namespace was forgotten.
    Forgotten,
    /// The encoding has no key for it, or cannot open it.
    Encoding(DecodeError),
}

/// Returns the number of values in the first group of those with these lengths: as many as have
/// `most` bytes together, but one if the first is longer. 0 without values.
pub(super) fn group_len(lens: impl Iterator<Item = usize> + Clone, most: usize) -> usize {
    let mut bytes = 0;
    let fits = |len: &usize| {
        bytes += len;
        bytes <= most
    };
    let has_any = usize::from(lens.clone().next().is_some());
    lens.take_while(fits).count().max(has_any)
}

/// Returns how many of the values with these lengths each thread has, in order: about as many bytes
/// as another one. One thread has all of a short call.
fn shares(mut lens: impl Iterator<Item = usize> + Clone, threads: usize) -> Vec<usize> {
    let mut bytes: usize = lens.clone().sum();
    let threads = (bytes / BYTES_OF_THREAD).min(THREADS).min(threads).max(1);
    let mut shares = Vec::with_capacity(threads);
    for left in (1..=threads).rev() {
        let share = group_len(lens.clone(), bytes.div_ceil(left));
        if share > 0 {
            bytes -= lens.by_ref().take(share).sum::<usize>();
            shares.push(share);
        }
    }
    shares
}

/// The result of decoding: the CRC-32C of the value.
pub(super) type Decoded = Result<u32, Undecoded>;

impl<D: Device> DiskTier<D> {
    /// Returns how many of the values with these lengths each thread encodes or decodes.
    pub(super) fn shares(&self, lens: impl Iterator<Item = usize> + Clone) -> Vec<usize> {
        // A thread waits for the device half of the time.
        shares(lens, 2 * self.processors)
    }

    /// Returns the namespace of each value, if the tier encrypts. Makes those that there are not.
    pub(super) fn namespaces_of(
        &self,
        values: &[TierValue<'_>],
    ) -> Vec<Result<Option<(u16, Namespace)>, StoreError>> {
        let namespace = |value: &TierValue<'_>| self.namespace(value.namespace).map(Some);
        match self.encoding.encrypts() {
            true => values.iter().map(namespace).collect(),
            false => values.iter().map(|_| Ok(None)).collect(),
        }
    }

    /// Encodes a value of a namespace; returns no form if it stays as it is.
    pub(super) fn encode(
        &self,
        value: &TierValue<'_>,
        namespace: Result<Option<(u16, Namespace)>, StoreError>,
    ) -> MaybeForm<'_> {
        let namespace = namespace?;
        let begin = Instant::now();
        let (data_type, bytes) = (value.hints.data_type, value.bytes);
        let form = self.streams.with(|stream| {
            let prepared = self.encoding.prepare(bytes, data_type, BLOCK, stream);
            let Some(prepared) = prepared else { return Ok(None) };
            let len = prepared.form_len();
            let mut bounce = self.bounce.take_for_form(len.div_ceil(BLOCK));
            let (form, padding) = bounce.split_at_mut(len);
            let digest = self.digest(value.key);
            let namespace_of = namespace.map(|(_, it)| it);
            let binding = Binding { digest: digest.0, namespace: namespace_of };
            prepared.write(&self.encoding, &binding, form)?;
            let checksum = checksum(&digest, form);
            padding.fill(0);
            let number = namespace.map_or(0, |(number, _)| number);
            let encoded = Encoded::new(bytes.len() as u64, number);
            Ok(Some(Form { bounce, len: len as u64, checksum, encoded }))
        });
        // Relaxed: a count.
        self.encode_ns.fetch_add(begin.elapsed().as_nanos() as u64, Ordering::Relaxed);
        form
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

#[cfg(test)]
mod tests {
    use std::iter::repeat_n;

    use super::*;

    #[test]
    fn a_group_has_as_many_values_as_have_the_bytes() {
        let len = |lens: &[usize]| group_len(lens.iter().copied(), 10);
        assert_eq!(len(&[]), 0);
        assert_eq!(len(&[11, 1]), 1);
        assert_eq!(len(&[4, 6, 1]), 2);
        assert_eq!(len(&[4, 7, 1]), 1);
        assert_eq!(len(&[0, 0, 0]), 3);
    }

    #[test]
    fn threads_share_the_bytes_of_long_calls() {
        let of = |count: usize, len: usize, threads| shares(repeat_n(len, count), threads);
        let of_each = |lens: &[usize]| shares(lens.iter().copied(), 4);
        let mib = 1 << 20;
        assert!(of(0, mib, 8).is_empty());
        assert_eq!(of(15, mib, 8), [15]);
        assert_eq!(of(16, mib, 8), [8, 8]);
        assert_eq!(of(33, mib, 8), [8, 8, 8, 9]);
        assert_eq!(of(100, mib, 8), [25; 4]);
        assert_eq!(of(100, mib, 3), [33, 33, 34]);
        assert_eq!(of(100, mib, 1), [100]);
        // Values that are longer than the share of a thread, and one that is most of all bytes.
        assert_eq!(of(3, 20 * mib, 8), [1; 3]);
        assert_eq!(of_each(&[mib, 100 * mib, mib, mib]), [1; 4]);
        assert_eq!(of_each(&[100 * mib, mib]), [1; 2]);
    }
}
