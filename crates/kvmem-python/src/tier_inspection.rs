//! *Tier inspection*: what the file of a disk tier holds, and whether its values are those that
//! were stored.

use std::fmt::Write;
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use kvmem::arena::CancelToken;
use kvmem_tier::device::{Engine, FileDevice};
use kvmem_tier::format::BLOCK;
use kvmem_tier::{
    Damage, DamagedValue, DiskTierInspection, Inspection, Keyring, TierError, inspect, verify_until,
};
use pyo3::IntoPyObjectExt;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple};

use crate::error;
use crate::long;
use crate::number::Callback;
use crate::progress::{self, Listener};
use crate::report;

/// Transfers in flight.
const VERIFY_DEPTH: u32 = 32;

/// Opens a file to read it, and reads its index.
fn inspected<T: Send>(
    py: Python<'_>,
    path: &Path,
    then: impl FnOnce(FileDevice, Inspection) -> Result<T, TierError> + Send,
) -> PyResult<T> {
    let read = || {
        let device = FileDevice::open_read_only(path, VERIFY_DEPTH)
            .map_err(|source| TierError::Device { call: "open", at: 0, source })?;
        let inspection = inspect(&device)?;
        then(device, inspection)
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

/// Collects values of several types for the constructor of a class.
macro_rules! values {
    ($py:ident, $($value:expr,)*) => {
        PyTuple::new($py, [$($value.into_bound_py_any($py)?),*])?
    };
}

/// Inspects a file; see the method of the class.
pub(crate) fn inspection<'py>(py: Python<'py>, path: &Path) -> PyResult<Bound<'py, PyAny>> {
    // Superblocks, checkpoint and journal are read one after the other.
    let found = inspected(py, path, |device, inspection| {
        DiskTierInspection::new(path, &device, inspection)
    })?;
    let others = PyDict::new(py);
    others.set_item("identity", hex(found.identity))?;
    report::statistics(py, "DiskTierInspection", &found, &others)
}

/// Verifies a file; see the method of the class.
pub(crate) fn verification<'py>(
    py: Python<'py>,
    path: &Path,
    keys: Option<Arc<Keyring>>,
    max_damaged_values: usize,
    progress: Option<Callback>,
) -> PyResult<Bound<'py, PyAny>> {
    let (device, contents) =
        inspected(py, path, |device, inspection| Ok((device, inspection.contents?)))?;
    let (entries, bytes, dropped) =
        (contents.entries.len(), contents.used_bytes(), contents.dropped);
    let data = contents.superblock.layout.data.start;
    let cancel = CancelToken::new();
    let listener =
        progress.map(|Callback(callback)| Listener::new(callback, cancel.clone(), bytes, 0));
    let start = Instant::now();
    let verified = long::run(py, &cancel, || {
        verify_until(&device, contents, keys.as_ref(), |done| {
            if let Some(listener) = &listener {
                listener.done(done);
            }
            if cancel.is_cancelled() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        })
    });
    let seconds = start.elapsed().as_secs_f64();
    // Only an exception of the callable or of a signal cancels it, and that is raised.
    let verified = progress::end(py, listener.as_ref(), verified)?;
    let verified = verified.map_err(|error| error::encode(py, &error))?.unwrap_or_default();
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
        Damage::Encoding(_) => ("encoding", None),
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
