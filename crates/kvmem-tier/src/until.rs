//! *Until*: verification that its caller can end.

use std::mem;
use std::ops::ControlFlow;
use std::sync::Arc;

use kvmem_encoding::{EncodeError, Keyring};

use crate::device::Device;
use crate::format::BLOCK;
use crate::{Contents, DamagedValue, verify, verify_with_keys};

/// Bytes that are read between two calls of `go_on`: a fraction of a second of a fast
/// drive, and many batches.
const PART: u64 = 128 << 20;

/// Verifies all values as [`verify`] does, or as [`verify_with_keys`] with keys, until `go_on` ends
/// it. `go_on` gets the bytes that have been read in all, with padding: at the begin, and then each
/// time that 128 MiB or one longer value have been read. Returns `None` if it has ended the
/// verification.
///
/// `contents` loses its entries.
///
/// # Errors
/// As [`verify_with_keys`].
pub fn verify_until(
    device: &impl Device,
    mut contents: Contents,
    keys: Option<&Arc<Keyring>>,
    mut go_on: impl FnMut(u64) -> ControlFlow<()>,
) -> Result<Option<Vec<DamagedValue>>, EncodeError> {
    let entries = mem::take(&mut contents.entries);
    let (mut damaged, mut done, mut first) = (Vec::new(), 0, 0);
    while first < entries.len() {
        if go_on(done).is_break() {
            return Ok(None);
        }
        let mut bytes = 0;
        let full = entries[first..].iter().position(|entry| {
            bytes += entry.extents.blocks() * BLOCK as u64;
            bytes >= PART
        });
        let next = full.map_or(entries.len(), |last| first + last + 1);
        contents.entries = entries[first..next].to_vec();
        damaged.extend(match keys {
            None => verify(device, &contents, |_| ()),
            Some(keys) => verify_with_keys(device, &contents, keys, |_| ())?,
        });
        done += contents.used_bytes();
        first = next;
    }
    Ok(go_on(done).is_continue().then_some(damaged))
}
