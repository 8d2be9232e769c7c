//! *Errors*: what a tier cannot do, and what to do about it.

use std::io;

use kvmem_encoding::EncodeError;
use thiserror::Error;

use crate::device::UnsupportedAlignment;
use crate::format::{CheckpointError, SuperblockError};

/// The error of a tier.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum TierError {
    /// The device failed.
    #[error("cannot {call} the tier's device at byte {at}: {source}")]
    Device {
        /// What failed: read, write, sync, open or cut off.
        call: &'static str,
        /// Where, in bytes; 0 for a sync.
        at: u64,
        /// The system's error.
        source: io::Error,
    },
    /// The file transfers only larger units than the block of a tier.
    #[error("cannot make a tier of this file: {0}")]
    Alignment(UnsupportedAlignment),
    /// The device is too small for its index and one value.
    #[error(
        "the device has {len} bytes, which leaves no block for values: enlarge it to {min} bytes \
         or more, or allow fewer entries than {max_entries}"
    )]
    TooSmall {
        /// Bytes of the device.
        len: u64,
        /// Bytes with which the same options leave a block; `u64::MAX` if no device is long enough.
        min: u64,
        /// The entries for which the index has room.
        max_entries: u64,
    },
    /// The device holds something else, or a tier that is damaged or of a later version. Nothing is
    /// overwritten.
    #[error(
        "the device is not a tier that can be used; its superblocks: {}. To make a new tier of it, \
         and lose what is on it, open it with `format`",
        reasons(*first, *second)
    )]
    Superblocks {
        /// The error of the first one.
        first: SuperblockError,
        /// The error of the second one.
        second: SuperblockError,
    },
    /// The device is shorter than the tier that is on it.
    #[error("the tier has {expected} bytes, its device only {len}: it was cut off")]
    CutOff {
        /// Bytes of the tier.
        expected: u64,
        /// Bytes of the device.
        len: u64,
    },
    /// The tier cannot become as short: its index needs more. Nothing has changed.
    #[error(
        "the tier cannot become {len} bytes long, since its index leaves no room for values: open \
         it with {min} bytes or more, or make a new tier of it with `format`"
    )]
    CannotShrink {
        /// The bytes that it was to have.
        len: u64,
        /// The fewest bytes that it can have.
        min: u64,
    },
    /// The index is damaged.
    #[error(
        "{source}, at byte {at}: the index is lost. To make a new tier of the device, open it with \
         `format`"
    )]
    Checkpoint {
        /// Where the checkpoint begins, in bytes.
        at: u64,
        /// The reason.
        source: CheckpointError,
    },
    /// Values cannot be encrypted.
    #[error("cannot open the tier with keys: {0}")]
    Encode(EncodeError),
    /// The tier was opened by the parent of this process. Nothing has happened.
    #[error(
        "this process is a forked child of the one that opened the tier: let the parent use it, \
         or open another file here"
    )]
    Forked,
    /// A process of another host has the tier open, or was killed while it had. Nothing is
    /// overwritten.
    #[error(
        "the tier is that of {owner}: close it there. If that process or its host has ended, open \
         the tier with `take_over`"
    )]
    Owned {
        /// The name of the host.
        host: String,
        /// The number of the process there.
        process: u32,
        /// When it opened the tier, in seconds since 1970.
        since: u64,
        /// All of that, as text.
        owner: String,
    },
    /// Another process has opened the tier while this one had it open. This one writes nothing any
    /// more.
    #[error(
        "the tier was taken over by {by}: two processes would destroy each other's values, so this \
         one stores nothing any more. Use a tier from one process at a time"
    )]
    TakenOver {
        /// The process that has the tier now.
        by: String,
    },
    /// A change could not be recorded before, and nothing is stored since. Values that were stored
    /// are still found. Calls that come later try again, after a second and then in pauses of up to
    /// a minute.
    #[error("the tier stores nothing since its journal failed: {cause}; it tries again by itself")]
    ReadOnly {
        /// The error of that time.
        cause: String,
    },
}

impl TierError {
    /// The error of opening a file.
    pub(super) fn open(error: io::Error) -> TierError {
        let alignment = error.get_ref().and_then(|inner| inner.downcast_ref());
        match alignment {
            Some(&alignment) => TierError::Alignment(alignment),
            None => TierError::device("open", 0)(error),
        }
    }

    pub(super) fn device(call: &'static str, at: u64) -> impl FnOnce(io::Error) -> TierError {
        move |source| TierError::Device { call, at, source }
    }
}

/// The reason why a value was not stored.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum StoreError {
    /// The value is longer than the tier, or as long as 2^32 blocks.
    #[error("the value has {len} bytes, the tier holds values of at most {limit}")]
    TooLarge {
        /// Bytes of the value.
        len: u64,
        /// Bytes of the longest value that an empty tier could hold.
        limit: u64,
    },
    /// There is no room, and nothing can be evicted: all of it is being written.
    #[error("{len} bytes were to be stored, and no value can be evicted: store fewer at once")]
    NoRoom {
        /// Bytes of the value.
        len: u64,
    },
    /// There are as many namespaces as the file has room for.
    #[error("the tier has {limit} namespaces, which is the most: forget one, or use fewer names")]
    TooManyNamespaces {
        /// The most that it can have.
        limit: usize,
    },
    /// The value cannot be encrypted.
    #[error(transparent)]
    Encode(#[from] EncodeError),
    /// The device failed, or the journal.
    #[error(transparent)]
    Tier(#[from] TierError),
}

/// Returns the reasons why two copies cannot be used: the same one once.
fn reasons(first: SuperblockError, second: SuperblockError) -> String {
    if first == second { first.to_string() } else { format!("{first}; {second}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_alignment_is_an_error_of_its_own() {
        let alignment = UnsupportedAlignment { memory: 512, offset: 16_384 };
        let error = TierError::open(io::Error::new(io::ErrorKind::Unsupported, alignment));
        assert!(matches!(error, TierError::Alignment(found) if found == alignment), "{error}");
        let error = TierError::open(io::ErrorKind::NotFound.into());
        assert!(matches!(error, TierError::Device { call: "open", .. }), "{error}");
    }
}
