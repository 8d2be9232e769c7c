//! *Verification*: every value is read, and compared with its checksum.
//!
//! Values are read in the order of their first extents, in pieces, so that memory is bounded for
//! values of any length.
//! The pieces of many values make one batch, of which the device has as many in flight as its depth
//! allows. The checksum of a piece is computed as soon as it is read, and those of the pieces of a
//! value are combined in their order.

use std::collections::HashSet;
use std::io;
use std::sync::Arc;

use kvmem_encoding::{Codec, DecodeError, EncodeError, Encoding, Keyring};
use thiserror::Error;

use super::checksum::checksum_begin;
use super::encoded::{Undecoded, decode, namespace_of};
use super::fetch::split_off;
use super::inspection::Contents;
use super::state::BadExtents;
use crate::crc;
use crate::device::{AlignedBuffer, Device, Read};
use crate::format::{Area, BLOCK, Digest, Entry, Extent};

/// Blocks of a batch: enough for a fast device while it is busy, and little memory.
const BATCH: usize = (32 << 20) / BLOCK;
/// Bytes of a piece, at most.
const PIECE: usize = 1 << 20;

/// The reason why a value counts as damaged.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum Damage {
    /// The bytes on the device are not those that were stored.
    #[error("its checksum is wrong")]
    Checksum,
    /// The device failed to read them.
    #[error("it cannot be read: {0}")]
    Device(io::Error),
    /// The bytes are those that the index names, and the keys do not decode them.
    #[error("{0}")]
    Encoding(DecodeError),
}

/// A value that is not what was stored.
#[derive(Debug)]
pub struct DamagedValue {
    /// The value, as the index has it.
    pub entry: Entry,
    /// The reason.
    pub damage: Damage,
    /// The extents that could not be read, or all of them.
    pub(super) bad: BadExtents,
}

/// Reads every value and compares it with its checksum; returns those that are damaged, in the
/// order of their first extents. Writes nothing. `progress` gets the bytes read after each batch.
/// Takes up to 32 MiB of memory.
pub fn verify(
    device: &impl Device,
    contents: &Contents,
    progress: impl FnMut(u64),
) -> Vec<DamagedValue> {
    verify_entries(device, contents.superblock.layout.data, &contents.entries, progress)
}

/// Verifies every value as [`verify`] does, and then decodes those that are encoded: a person can
/// change bytes and checksum, and not the tag. Values whose key `keys` does not have are damaged,
/// too. Takes the memory of the longest value in addition.
pub fn verify_with_keys(
    device: &impl Device,
    contents: &Contents,
    keys: &Arc<Keyring>,
    mut progress: impl FnMut(u64),
) -> Result<Vec<DamagedValue>, EncodeError> {
    let encoding = Encoding::new(Codec::None, Some(Arc::clone(keys)))?;
    let mut damaged = verify(device, contents, &mut progress);
    let known: HashSet<Digest> = damaged.iter().map(|one| one.entry.digest).collect();
    let data = contents.superblock.layout.data;
    let encoded = contents.entries.iter().filter(|entry| entry.encoded.is_some());
    for entry in encoded.filter(|entry| !known.contains(&entry.digest)) {
        let mut form = AlignedBuffer::new(entry.extents.blocks() as usize);
        let (mut rest, mut read) = (&mut *form, Ok(()));
        for extent in entry.extents.iter() {
            let part = split_off(&mut rest, extent.blocks as usize * BLOCK);
            read = read.and_then(|()| device.read_at(data.block(extent.start), part));
        }
        progress(form.len() as u64);
        let damage = match read {
            Err(error) => Some(Damage::Device(error)),
            Ok(()) => {
                let form = &mut form[..entry.len as usize];
                let mut value = vec![0; entry.value_len() as usize];
                let namespace = namespace_of(&contents.superblock.namespaces, entry);
                match namespace.and_then(|it| decode(&encoding, it, entry, form, &mut value)) {
                    Err(Undecoded::Encoding(error)) => Some(Damage::Encoding(error)),
                    // No entry of a forgotten namespace is read from the index.
                    Err(Undecoded::Forgotten) | Ok(_) => None,
                }
            }
        };
        let bad = BadExtents::default();
        damaged.extend(damage.map(|damage| DamagedValue { entry: *entry, damage, bad }));
    }
    Ok(damaged)
}

/// Part of a value, in one of its extents: whole blocks.
struct Piece {
    /// The place of the value among the entries.
    value: usize,
    /// The place of the extent in the value.
    extent: usize,
    /// Where it begins, in bytes of the value, and in the data area.
    at: u64,
    at_in_area: u64,
    /// Bytes, with those behind the end of the value.
    len: usize,
    /// Bytes of the value among them.
    of_value: usize,
}

/// Returns all pieces of all values, in their order.
fn pieces(entries: &[Entry]) -> impl Iterator<Item = Piece> {
    let bytes = |blocks: u32| u64::from(blocks) * BLOCK as u64;
    entries.iter().enumerate().flat_map(move |(value, entry)| {
        let mut begin = 0;
        let extents = entry.extents.iter().copied().enumerate();
        extents.flat_map(move |(extent, Extent { start, blocks })| {
            let of_extent = begin;
            begin += bytes(blocks);
            (0..bytes(blocks)).step_by(PIECE).map(move |behind| {
                let (at, at_in_area) = (of_extent + behind, bytes(start) + behind);
                let len = (bytes(blocks) - behind).min(PIECE as u64) as usize;
                let of_value = entry.len.saturating_sub(at).min(len as u64) as usize;
                Piece { value, extent, at, at_in_area, len, of_value }
            })
        })
    })
}

/// Returns the bytes of the blocks of a value.
fn padded(entry: &Entry) -> u64 {
    entry.extents.blocks() * BLOCK as u64
}

/// Verifies `entries`, whose blocks lie in the area `data`.
pub(super) fn verify_entries(
    device: &impl Device,
    data: Area,
    entries: &[Entry],
    mut progress: impl FnMut(u64),
) -> Vec<DamagedValue> {
    let mut damaged = Vec::new();
    let blocks: u64 = entries.iter().map(|entry| entry.extents.blocks()).sum();
    let mut buffer = AlignedBuffer::new(blocks.min(BATCH as u64) as usize);
    let mut left = pieces(entries).peekable();
    // Of the value to which the pieces belong.
    let (mut sum, mut failed, mut bad) = (0, None, BadExtents::default());
    while left.peek().is_some() {
        let (mut batch, mut filled) = (Vec::new(), 0);
        while let Some(piece) = left.next_if(|piece| filled + piece.len <= buffer.len()) {
            filled += piece.len;
            batch.push(piece);
        }
        let mut memory = &mut buffer[..filled];
        let mut reads = Vec::with_capacity(batch.len());
        for piece in &batch {
            let (part, behind) = memory.split_at_mut(piece.len);
            memory = behind;
            let at = data.start + piece.at_in_area;
            reads.push(Read { at, parts: [part, &mut []] });
        }
        let mut sums: Vec<io::Result<u32>> = batch.iter().map(|_| Ok(0)).collect();
        device.read(&mut reads, &mut |index, read, result| {
            let bytes = &read.parts[0][..batch[index].of_value];
            sums[index] = result.map(|()| crc::append(0, bytes));
        });
        for (piece, piece_sum) in batch.iter().zip(sums) {
            let entry = entries[piece.value];
            if piece.at == 0 {
                sum = checksum_begin(&entry.digest, entry.len);
                (failed, bad) = (None, BadExtents::default());
            }
            match piece_sum {
                Ok(behind) => sum = crc::combine(sum, behind, piece.of_value as u64),
                Err(error) => {
                    failed = failed.or(Some(error));
                    bad.add(piece.extent);
                }
            }
            if piece.at + (piece.len as u64) < padded(&entry) {
                continue;
            }
            match failed.take() {
                Some(error) => {
                    damaged.push(DamagedValue { entry, damage: Damage::Device(error), bad });
                }
                None if sum != entry.checksum => {
                    let (damage, bad) = (Damage::Checksum, BadExtents::ALL);
                    damaged.push(DamagedValue { entry, damage, bad });
                }
                None => {}
            }
        }
        progress(filled as u64);
    }
    damaged
}
