//! *Tier inspection*: what the file of a disk tier holds, and whether its values are those that
//! were stored.

use std::fmt::Write;
use std::fs::Metadata;
use std::ops::ControlFlow;
use std::path::Path;
use std::time::{Instant, UNIX_EPOCH};

use kvmem::arena::CancelToken;
use kvmem_tier::device::{Engine, FileDevice};
use kvmem_tier::format::BLOCK;
use kvmem_tier::{Contents, Damage, DamagedValue, TierError, inspect, verify_until};
use pyo3::IntoPyObjectExt;
use pyo3::prelude::*;
use pyo3::types::PyTuple;

use crate::error;
use crate::long;
use crate::number::Callback;
use crate::progress::{self, Listener};
use crate::report;

/// What was read of a file: its device, its length, the valid copies of its superblock, and what
/// the tier holds.
struct Inspected {
    device: FileDevice,
    file_bytes: u64,
    superblocks: usize,
    contents: Contents,
}

/// Opens a file to read it, and reads its index.
fn inspected(py: Python<'_>, path: &Path, depth: u32) -> PyResult<Inspected> {
    let read = || {
        let device = FileDevice::open_read_only(path, depth)
            .map_err(|source| TierError::Device { call: "open", at: 0, source })?;
        let inspection = inspect(&device)?;
        Ok(Inspected {
            device,
            file_bytes: inspection.device_len,
            superblocks: inspection.superblocks.iter().flatten().count(),
            contents: inspection.contents?,
        })
    };
    py.detach(read).map_err(|error| error::tier_inspect(py, path, &error))
}

/// Returns the digits of a digest or an identity.
fn hex(bytes: [u8; 16]) -> String {
    bytes.iter().fold(String::new(), |mut digits, byte| {
        let _ = write!(digits, "{byte:02x}");
        digits
    })
}

/// Returns when a file was last written to, in seconds since 1970; `None` for a block device.
fn modified(path: &Path) -> Option<f64> {
    let metadata = std::fs::metadata(path).ok().filter(Metadata::is_file)?;
    let since = metadata.modified().ok()?.duration_since(UNIX_EPOCH).ok()?;
    Some(since.as_secs_f64())
}

/// Collects values of several types for the constructor of a class.
macro_rules! values {
    ($py:ident, $($value:expr,)*) => {
        PyTuple::new($py, [$($value.into_bound_py_any($py)?),*])?
    };
}

/// Inspects a file; see the method of the class.
pub(crate) fn inspection<'py>(py: Python<'py>, path: &Path) -> PyResult<Bound<'py, PyAny>> {
    // Superblocks, checkpoint and journal are read one after the other.
    let Inspected { device, file_bytes, superblocks, contents } = inspected(py, path, 1)?;
    let block = BLOCK as u64;
    let superblock = contents.superblock;
    let layout = superblock.layout;
    let lengths = contents.lengths();
    let values = values!(
        py,
        file_bytes,
        modified(path),
        superblock.since,
        superblock.lifetime_bytes,
        superblocks,
        hex(superblock.file),
        superblock.generation,
        superblock.epoch,
        superblock.len,
        layout.data.len,
        contents.entries.len(),
        layout.max_entries(),
        contents.scattered(),
        contents.unverified_values(),
        contents.value_bytes(),
        contents.used_bytes(),
        lengths.map(|lengths| lengths.min),
        lengths.map(|lengths| lengths.median),
        lengths.map(|lengths| lengths.max),
        contents.free_blocks * block,
        contents.longest_free_blocks * block,
        contents.quarantined.len(),
        contents.quarantined_bytes(),
        contents.dropped,
        contents.checkpoint_changes,
        contents.journal_changes,
        contents.journal_blocks,
        layout.journals[0].blocks(),
        contents.journal_damaged,
        contents.journal_unknown,
        contents.in_doubt,
        superblock.version,
        device.is_direct(),
        engine_of(&device),
    );
    report::named(py, "DiskTierInspection", values)
}

/// Verifies a file; see the method of the class.
pub(crate) fn verification<'py>(
    py: Python<'py>,
    path: &Path,
    depth: u32,
    max_damaged_values: usize,
    progress: Option<Callback>,
) -> PyResult<Bound<'py, PyAny>> {
    let Inspected { device, contents, .. } = inspected(py, path, depth)?;
    let (entries, bytes, dropped) =
        (contents.entries.len(), contents.used_bytes(), contents.dropped);
    let data = contents.superblock.layout.data.start;
    let cancel = CancelToken::new();
    let listener =
        progress.map(|Callback(callback)| Listener::new(callback, cancel.clone(), bytes, 0));
    let start = Instant::now();
    let verified = long::run(py, &cancel, || {
        verify_until(&device, contents, |done| {
            if let Some(listener) = &listener {
                listener.done(done);
            }
            if cancel.is_cancelled() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        })
    });
    let seconds = start.elapsed().as_secs_f64();
    // Only an exception of the callable or of a signal cancels it, and that is raised.
    let verified = progress::end(py, listener.as_ref(), verified)?.unwrap_or_default();
    let named = verified
        .iter()
        .take(max_damaged_values)
        .map(|value| damaged_value(py, data, value))
        .collect::<PyResult<Vec<_>>>()?;
    let damaged = verified.len();
    let values = values!(py, entries, bytes, seconds, damaged, dropped, PyTuple::new(py, named)?,);
    report::named(py, "DiskTierVerification", values)
}

/// Converts a damaged value. `data` is where the data area begins.
fn damaged_value<'py>(
    py: Python<'py>,
    data: u64,
    value: &DamagedValue,
) -> PyResult<Bound<'py, PyAny>> {
    let entry = &value.entry;
    let (damage, errno) = match &value.damage {
        Damage::Device(error) => ("device", error.raw_os_error()),
        _ => ("checksum", None),
    };
    let offset = data + u64::from(entry.start()) * BLOCK as u64;
    let ranges = entry.extents.len();
    let digest = hex(entry.digest.0);
    report::named(
        py,
        "DamagedValue",
        (digest, offset, entry.len, ranges, damage, errno, entry.unverified),
    )
}

/// Returns how bytes are transferred.
pub(crate) fn engine_of(device: &FileDevice) -> &'static str {
    match device.engine() {
        Engine::IoUring => "io_uring",
        Engine::Threads => "threads",
    }
}
