//! *Format*: a file of allocator calls.
//!
//! ```text
//! magic      8 bytes   KVMEMOPS
//! version    u16       1
//! length     u16       bytes of the name that follows
//! allocator  text      the allocator that served the calls, in UTF-8
//! threads    u32       threads that called
//! capacity   u64       bytes of the space
//! calls      …         one after the other, each a kind of one byte and then numbers:
//!   1  size, offset    served: the n-th of these made range n, counted from 0
//!   2  size            failed
//!   3  age             freed: the range that is the age-th last made, the last one being 0
//! end        0, count  kind 0, then the number of calls
//! check      u32       CRC-32 of all bytes before
//! ```
//!
//! Fixed numbers are little-endian. Those of a call are LEB128: seven bits a byte, lowest first,
//! the highest bit set on all but the last. A call of a replay takes some ten bytes when it
//! allocates, and four when it frees.
//!
//! Calls have one order. With several threads a range is freed before its bytes are served to
//! another: see [`Recorder`](super::recorder::Recorder).

use std::io;
use std::path::{Path, PathBuf};

use kvmem_trace::escape::shown;

/// The first bytes of a file of calls.
pub const MAGIC: [u8; 8] = *b"KVMEMOPS";
/// The version.
pub const VERSION: u16 = 1;
/// The largest space.
pub const CAPACITY_MAX: u64 = 1 << 63;

pub(super) const END: u8 = 0;
pub(super) const SERVED: u8 = 1;
pub(super) const FAILED: u8 = 2;
pub(super) const FREED: u8 = 3;

/// The allocator that the calls were made to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Header {
    /// The allocator's name.
    pub allocator: String,
    /// Threads that called.
    pub threads: u32,
    /// Bytes of the space.
    pub capacity: u64,
}

impl Header {
    /// Returns the first bytes of a file.
    pub(super) fn encode(&self) -> Vec<u8> {
        let mut bytes = MAGIC.to_vec();
        let name = &self.allocator.as_bytes()[..self.allocator.len().min(usize::from(u16::MAX))];
        bytes.extend(VERSION.to_le_bytes());
        bytes.extend((name.len() as u16).to_le_bytes());
        bytes.extend(name);
        bytes.extend(self.threads.to_le_bytes());
        bytes.extend(self.capacity.to_le_bytes());
        bytes
    }
}

/// One call, with the *slot* of its range. Slots are reused, so a table of all live ranges is
/// small.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Call {
    /// A range was allocated.
    Served {
        /// Its length.
        size: u64,
        /// The slot of its handle.
        place: u32,
    },
    /// The request failed.
    Failed {
        /// The requested length.
        size: u64,
    },
    /// A range was freed.
    Freed {
        /// The slot of its handle.
        place: u32,
    },
}

/// A whole file of calls.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Recording {
    /// The allocator that they were made to.
    pub header: Header,
    /// The calls, in order.
    pub calls: Vec<Call>,
    /// The offset of each served call.
    pub offsets: Vec<u64>,
    /// Maximum number of live ranges.
    pub places: u32,
}

/// A file of calls cannot be read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpsError {
    /// The file cannot be read at all.
    #[error("cannot read {}: {source}", shown(.path))]
    Read {
        /// The file.
        path: PathBuf,
        /// The error of the system.
        source: io::Error,
    },
    /// The file is of another kind.
    #[error(
        "{}: not a recording of allocator calls: it begins with {found:?}, not with \"KVMEMOPS\"; \
         `kvmem replay TRACE --record FILE` makes one", shown(.path)
    )]
    Magic {
        /// The file.
        path: PathBuf,
        /// Its first bytes.
        found: String,
    },
    /// The file has another version.
    #[error(
        "{}: a recording of version {found}; this kvmem reads version {VERSION} only: record it \
         again, or use \
         the kvmem that wrote it", shown(.path)
    )]
    Version {
        /// The file.
        path: PathBuf,
        /// Its version.
        found: u16,
    },
    /// The file ends too early.
    #[error(
        "{}: the file ends at byte {at}, in the middle of {what}: it was cut short, or the replay \
         that wrote it \
         did not end; record it again", shown(.path)
    )]
    Truncated {
        /// The file.
        path: PathBuf,
        /// Its length.
        at: u64,
        /// The part that is incomplete.
        what: String,
    },
    /// The file contains an impossible value.
    #[error("{}: byte {at}: {what}: the file is damaged; record it again", shown(.path))]
    Malformed {
        /// The file.
        path: PathBuf,
        /// The position in bytes.
        at: u64,
        /// The value, and the values that are possible.
        what: String,
    },
}

impl Recording {
    /// Reads a file. The calls stay in memory, some 24 bytes each.
    ///
    /// # Errors
    /// [`OpsError`] names the first wrong byte.
    pub fn read(path: &Path) -> Result<Recording, OpsError> {
        let bytes = std::fs::read(path)
            .map_err(|source| OpsError::Read { path: path.to_owned(), source })?;
        Recording::decode(&bytes, path)
    }

    /// Reads the bytes of a file; `path` names it in errors.
    ///
    /// # Errors
    /// [`OpsError`] names the first wrong byte.
    pub fn decode(bytes: &[u8], path: &Path) -> Result<Recording, OpsError> {
        let mut reader = Reader { bytes, at: 0, path };
        let start = &bytes[..bytes.len().min(MAGIC.len())];
        if start != &MAGIC[..start.len()] || start.is_empty() {
            let found = String::from_utf8_lossy(start).into_owned();
            return Err(OpsError::Magic { path: path.to_owned(), found });
        }
        let header = reader.header()?;
        let mut slots = Slots::default();
        let mut calls = Vec::new();
        loop {
            let number = calls.len() + 1;
            let (at, what) = (reader.at, format_args!("call {number}"));
            let [kind] = reader.take(what)?;
            let wrong = |what: String| reader.malformed(at, format!("call {number}: {what}"));
            let limit = header.capacity;
            let sized = |size: u64| match size {
                size if (1..=limit).contains(&size) => Ok(size),
                size => Err(wrong(format!("{size} bytes of a space of {limit}"))),
            };
            let mut numbers = Reader { bytes, at: reader.at, path };
            calls.push(match kind {
                SERVED => {
                    let size = sized(numbers.varint(what)?)?;
                    let offset = numbers.varint(what)?;
                    if offset.checked_add(size).is_none_or(|end| end > limit) {
                        return Err(wrong(format!(
                            "{size} bytes from {offset} on in a space of {limit}"
                        )));
                    }
                    match slots.serve(offset) {
                        Some(place) => Call::Served { size, place },
                        None => return Err(wrong("more than 2^32 ranges".to_owned())),
                    }
                }
                FAILED => Call::Failed { size: sized(numbers.varint(what)?)? },
                FREED => {
                    let age = numbers.varint(what)?;
                    match slots.free(age) {
                        Some(place) => Call::Freed { place },
                        None => {
                            let made = slots.offsets.len();
                            return Err(wrong(format!(
                                "the {age}-th last of {made} ranges is freed, but it is not live"
                            )));
                        }
                    }
                }
                END => {
                    let count = numbers.varint(format_args!("the end"))?;
                    if count != calls.len() as u64 {
                        let there = calls.len();
                        return Err(reader.malformed(
                            at,
                            format!("{count} calls are announced, {there} are there"),
                        ));
                    }
                    let (sum, there) = (crc32fast::hash(&bytes[..numbers.at]), numbers.at);
                    let found = u32::from_le_bytes(numbers.take(format_args!("the checksum"))?);
                    if found != sum {
                        let what = format!(
                            "the checksum is {found:#010x}, of these bytes it is {sum:#010x}"
                        );
                        return Err(reader.malformed(there, what));
                    }
                    if let Some(more) = bytes.len().checked_sub(numbers.at).filter(|more| *more > 0)
                    {
                        return Err(
                            reader.malformed(numbers.at, format!("{more} bytes follow the end"))
                        );
                    }
                    break;
                }
                other => return Err(wrong(format!("there is no kind {other}, but 0 to 3"))),
            });
            reader.at = numbers.at;
        }
        let places = slots.places.map_or(0, |place| place.saturating_add(1));
        Ok(Recording { header, calls, offsets: slots.offsets, places })
    }
}

/// The slots of live ranges, while calls are read.
#[derive(Default)]
struct Slots {
    offsets: Vec<u64>,
    /// The slot of each range ever allocated; `None` once it is freed.
    live: Vec<Option<u32>>,
    free: Vec<u32>,
    /// The number of slots in use or free.
    places: Option<u32>,
}

impl Slots {
    fn serve(&mut self, offset: u64) -> Option<u32> {
        let place = match self.free.pop() {
            Some(place) => place,
            None => {
                let next = self.places.map_or(Some(0), |last| last.checked_add(1))?;
                self.places = Some(next);
                next
            }
        };
        self.offsets.push(offset);
        self.live.push(Some(place));
        Some(place)
    }

    fn free(&mut self, age: u64) -> Option<u32> {
        let number = self.live.len().checked_sub(1)?.checked_sub(usize::try_from(age).ok()?)?;
        let place = self.live[number].take()?;
        self.free.push(place);
        Some(place)
    }
}

struct Reader<'a> {
    bytes: &'a [u8],
    at: usize,
    path: &'a Path,
}

impl Reader<'_> {
    fn header(&mut self) -> Result<Header, OpsError> {
        let what = format_args!("the header");
        self.take::<8>(what)?;
        let version = u16::from_le_bytes(self.take(what)?);
        if version != VERSION {
            return Err(OpsError::Version { path: self.path.to_owned(), found: version });
        }
        let len = usize::from(u16::from_le_bytes(self.take(what)?));
        let name = self.bytes.get(self.at..self.at + len).ok_or_else(|| self.truncated(what))?;
        let allocator = String::from_utf8_lossy(name).into_owned();
        self.at += len;
        let threads = u32::from_le_bytes(self.take(what)?);
        let at = self.at;
        let capacity = u64::from_le_bytes(self.take(what)?);
        if !(1..=CAPACITY_MAX).contains(&capacity) {
            return Err(self.malformed(
                at,
                format!("a space of {capacity} bytes; the limits are 1 and {CAPACITY_MAX}"),
            ));
        }
        Ok(Header { allocator, threads, capacity })
    }

    fn take<const N: usize>(&mut self, what: std::fmt::Arguments<'_>) -> Result<[u8; N], OpsError> {
        let taken = self.bytes.get(self.at..).and_then(|rest| rest.first_chunk());
        let taken = *taken.ok_or_else(|| self.truncated(what))?;
        self.at += N;
        Ok(taken)
    }

    fn varint(&mut self, what: std::fmt::Arguments<'_>) -> Result<u64, OpsError> {
        let (at, mut value) = (self.at, 0);
        for shift in (0..u64::BITS).step_by(7) {
            let [byte] = self.take(what)?;
            let bits = u64::from(byte & 0x7f);
            if bits << shift >> shift != bits {
                break;
            }
            value |= bits << shift;
            if byte < 0x80 {
                return Ok(value);
            }
        }
        Err(self.malformed(at, format!("{what}: a number above 2^64 - 1")))
    }

    fn truncated(&self, what: std::fmt::Arguments<'_>) -> OpsError {
        let (path, at) = (self.path.to_owned(), self.bytes.len() as u64);
        OpsError::Truncated { path, at, what: what.to_string() }
    }

    fn malformed(&self, at: usize, what: String) -> OpsError {
        OpsError::Malformed { path: self.path.to_owned(), at: at as u64, what }
    }
}

/// Appends a number to `bytes`.
pub(super) fn put_varint(bytes: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        bytes.push(value as u8 | 0x80);
        value >>= 7;
    }
    bytes.push(value as u8);
}

#[cfg(test)]
mod tests;
