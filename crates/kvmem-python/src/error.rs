//! *Errors*: what the library says, as exceptions of Python with the numbers as attributes.
//!
//! The classes are written in Python, in `kvmem/errors.py`, where they are told with their attributes.

use kvmem::arena::{ArenaError, BumpError, Errno, Limit};
use kvmem::offset::{AllocError, SpaceError};
use kvmem::pool::PoolError;
use kvmem::pool::kv_cache::{KvCacheError, KvCacheSetupError};
use kvmem::register::{ChunkError, NotAvailable, Refusal, RegisterError};
use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;
use pyo3::types::PyDict;

/// An exception of `kvmem.errors` that is being made.
struct Raised<'py> {
    class: &'static str,
    message: String,
    numbers: Bound<'py, PyDict>,
    failed: Option<PyErr>,
}

impl<'py> Raised<'py> {
    fn new(py: Python<'py>, class: &'static str, message: impl ToString) -> Raised<'py> {
        Raised { class, message: message.to_string(), numbers: PyDict::new(py), failed: None }
    }

    /// With an attribute.
    fn with(mut self, name: &str, value: impl IntoPyObject<'py>) -> Raised<'py> {
        if let Err(error) = self.numbers.set_item(name, value) {
            self.failed = Some(error);
        }
        self
    }

    fn with_errno(self, errno: Errno) -> Raised<'py> {
        self.with("errno", errno.number())
    }

    fn with_limit(self, limit: Option<&Limit>) -> Raised<'py> {
        match limit {
            Some(limit) => self.with("limit", limit.to_string()).with("remedy", limit.remedy()),
            None => self,
        }
    }

    fn err(self) -> PyErr {
        if let Some(error) = self.failed {
            return error;
        }
        let py = self.numbers.py();
        let make = || {
            let class = py.import("kvmem.errors")?.getattr(self.class)?;
            class.call((&self.message,), Some(&self.numbers))
        };
        make().map_or_else(|error| error, PyErr::from_value)
    }
}

/// Without the GIL in hand: the caller has it.
fn here(class: &'static str, message: String) -> PyErr {
    Python::try_attach(|py| Raised::new(py, class, &message).err())
        .unwrap_or_else(|| PyRuntimeError::new_err(message))
}

/// Something that has been freed or closed was used.
#[cold]
pub(crate) fn gone(name: &str, end: &str) -> PyErr {
    here("ClosedError", format!("the {name} has been {end}"))
}

/// Something was to be freed, or moved, that others look at.
#[cold]
pub(crate) fn viewed(name: &str, what: &str, views: usize) -> PyErr {
    let message = format!("the {name} has {views} {what} before it is freed, closed or changed");
    Python::try_attach(|py| Raised::new(py, "ExportedError", &message).with("views", views).err())
        .unwrap_or_else(|| PyRuntimeError::new_err(message))
}

/// Something was used in a forked child.
#[cold]
pub(crate) fn forked(name: &str) -> PyErr {
    here(
        "ForkedError",
        format!(
            "the {name} was made before this process was forked, and its memory stays with the parent: make a new one here, or \
             share a pool by its descriptor and attach it"
        ),
    )
}

/// A value that makes no sense.
#[cold]
pub(crate) fn bad_value(py: Python<'_>, message: impl ToString) -> PyErr {
    Raised::new(py, "BadValueError", message).err()
}

/// The library has found itself wrong.
#[cold]
pub(crate) fn defect(error: &kvmem::offset::CheckError) -> PyErr {
    PyRuntimeError::new_err(error.to_string())
}

/// A request for a range was refused.
#[cold]
pub(crate) fn alloc(py: Python<'_>, error: &AllocError) -> PyErr {
    let raised = |class| Raised::new(py, class, error);
    match *error {
        AllocError::TooLarge { asked, limit } | AllocError::AlignTooLarge { asked, limit, .. } => {
            raised("OutOfSpaceError").with("asked", asked).with("limit", limit)
        }
        AllocError::NoRoom { asked, free, largest_free } => raised("OutOfSpaceError")
            .with("asked", asked)
            .with("free", free)
            .with("largest_free", largest_free),
        AllocError::Blocked { asked, most } => {
            raised("OutOfSpaceError").with("asked", asked).with("limit", most)
        }
        AllocError::BooksFull { ranges } => raised("OutOfSpaceError").with("ranges", ranges),
        _ => raised("BadValueError"),
    }
    .err()
}

/// A heap of addresses has no room for `n` ranges of `size` bytes. `free`: bytes free, and the most in one piece.
#[cold]
pub(crate) fn heap_full(
    py: Python<'_>,
    n: usize,
    size: &Bound<'_, PyAny>,
    (free, largest): (u64, u64),
    ranges: Option<u64>,
) -> PyErr {
    let what = if n == 1 { format!("{size} bytes") } else { format!("{n} × {size} bytes") };
    let message = match ranges {
        Some(ranges) => format!("no room for {what}: the books are full with {ranges} ranges; free some"),
        None => format!(
            "no room for {what}: {free} bytes are free, at most {largest} of them in one piece; free some, or let the heap grow (sbrk)"
        ),
    };
    Raised::new(py, "HeapFullError", message)
        .with("asked", size)
        .with("free", free)
        .with("largest_free", largest)
        .with("ranges", ranges)
        .err()
}

/// A batch of less than nothing.
#[cold]
pub(crate) fn bad_batch(py: Python<'_>, n: &Bound<'_, PyAny>) -> PyErr {
    Raised::new(py, "BadBatchError", format!("batch_size is {n}: say 0 or more")).err()
}

/// An arena refused.
#[cold]
pub(crate) fn bump(py: Python<'_>, error: &BumpError) -> PyErr {
    match *error {
        BumpError::Full { asked, left } => Raised::new(py, "OutOfSpaceError", error)
            .with("asked", asked)
            .with("free", left)
            .with("largest_free", left),
        _ => Raised::new(py, "BadValueError", error),
    }
    .err()
}

/// A space could not be made or changed.
#[cold]
pub(crate) fn space(py: Python<'_>, error: &SpaceError) -> PyErr {
    let raised = |class| Raised::new(py, class, error);
    match *error {
        SpaceError::InUse { asked, end_of_last } => {
            raised("InUseError").with("asked", asked).with("end_of_last", end_of_last)
        }
        SpaceError::BooksFull { ranges } => raised("OutOfSpaceError").with("ranges", ranges),
        _ => raised("BadValueError"),
    }
    .err()
}

/// Memory could not be had, or something not be done with it.
#[cold]
pub(crate) fn arena(py: Python<'_>, error: &ArenaError) -> PyErr {
    let raised = |class| Raised::new(py, class, error);
    match error {
        ArenaError::NoPages { range, limit, .. } => {
            raised("MappingError").with("asked", range.len()).with_limit(limit.as_ref())
        }
        ArenaError::Refused { bytes, errno, limit, .. } => {
            raised("MappingError").with("asked", *bytes).with_errno(*errno).with_limit(limit.as_ref())
        }
        ArenaError::Populate { range, errno, limit, .. } => raised("MappingError")
            .with("asked", range.len())
            .with("start", range.start)
            .with("stop", range.end)
            .with_errno(*errno)
            .with_limit(limit.as_ref()),
        ArenaError::NoHeadroom { need, limit } => {
            raised("MappingError").with("asked", *need).with_limit(Some(limit))
        }
        ArenaError::PolicyRefused { errno, .. } => raised("MappingError").with_errno(*errno),
        ArenaError::Misplaced { range, .. } => {
            raised("MappingError").with("start", range.start).with("stop", range.end)
        }
        ArenaError::Cancelled { done, total } => {
            raised("CancelledError").with("done", *done).with("total", *total)
        }
        ArenaError::OverBudget { budget, done, total } => raised("TimeLimitError")
            .with("done", *done)
            .with("total", *total)
            .with("seconds", budget.as_secs_f64()),
        ArenaError::Pooled { .. } | ArenaError::Registered { .. } => raised("InUseError"),
        _ => raised("BadValueError"),
    }
    .err()
}

/// Memory could not be registered, or there is no key.
#[cold]
pub(crate) fn register(py: Python<'_>, error: &RegisterError) -> PyErr {
    let raised = |class| Raised::new(py, class, error);
    match error {
        RegisterError::Populate(error) => return arena(py, error),
        RegisterError::Refused { error: chunk, .. } => with_chunk(raised("RegistrationError"), chunk),
        RegisterError::Kept { kept } => {
            let raised = raised("RegistrationError").with("kept", kept.len());
            match kept.first() {
                Some(first) => with_chunk(raised, first),
                None => raised,
            }
        }
        RegisterError::Limited { device, barrier } => raised("RegistrationError")
            .with("device", device)
            .with("limit", barrier.to_string())
            .with("remedy", barrier.remedy()),
        RegisterError::NoThread { errno } => raised("RegistrationError").with_errno(*errno),
        RegisterError::Cancelled { done, total } => {
            raised("CancelledError").with("done", *done).with("total", *total)
        }
        RegisterError::OverBudget { budget, done, total } => raised("TimeLimitError")
            .with("done", *done)
            .with("total", *total)
            .with("seconds", budget.as_secs_f64()),
        RegisterError::Straddles { device, edge, .. } => {
            raised("RegistrationError").with("device", device).with("edge", *edge)
        }
        RegisterError::Ended { device } => raised("RegistrationError").with("device", device),
        _ => raised("BadValueError"),
    }
    .err()
}

fn with_chunk<'py>(raised: Raised<'py>, chunk: &ChunkError) -> Raised<'py> {
    let Refusal { call, errno, remedy, barrier, .. } = &chunk.refusal;
    let raised = raised
        .with("device", &chunk.device)
        .with("start", chunk.range.start)
        .with("stop", chunk.range.end)
        .with("call", call.as_ref())
        .with_errno(*errno);
    match barrier {
        Some(barrier) => raised.with("limit", barrier.to_string()).with("remedy", barrier.remedy()),
        None => raised.with("remedy", remedy.as_ref()),
    }
}

/// A device is not there.
#[cold]
pub(crate) fn not_available(py: Python<'_>, error: &NotAvailable) -> PyErr {
    Raised::new(py, "NotAvailableError", error)
        .with("device", error.backend.as_ref())
        .with("remedy", error.remedy.as_ref())
        .err()
}

/// A pool could not be made or changed, or a block not be had.
#[cold]
pub(crate) fn pool(py: Python<'_>, error: &PoolError) -> PyErr {
    let raised = |class| Raised::new(py, class, error);
    match error {
        PoolError::Refused(error) => return alloc(py, error),
        PoolError::Memory(error) => return arena(py, error),
        PoolError::Register(error) => return register(py, error),
        PoolError::Space(error) => return space(py, error),
        PoolError::NotReady { asked, ready, capacity } => {
            raised("NotReadyError").with("asked", *asked).with("ready", *ready).with("capacity", *capacity)
        }
        PoolError::Limit { asked, most } => {
            raised("OutOfSpaceError").with("asked", *asked).with("limit", *most)
        }
        PoolError::Underway => raised("InUseError"),
        PoolError::NoThread { errno } => raised("KvmemError").with_errno(*errno),
        _ => raised("BadValueError"),
    }
    .err()
}

/// A value could not be put into a cache.
#[cold]
pub(crate) fn cache(py: Python<'_>, error: &KvCacheError) -> PyErr {
    let raised = |class| Raised::new(py, class, error);
    match error {
        KvCacheError::Pool(error) => return pool(py, error),
        KvCacheError::TooLarge { asked, limit } => {
            raised("OutOfSpaceError").with("asked", *asked).with("limit", *limit)
        }
        KvCacheError::NothingToEvict { asked, blocks, bytes } => {
            raised("OutOfSpaceError").with("asked", *asked).with("blocks", *blocks).with("held", *bytes)
        }
        _ => raised("BadValueError"),
    }
    .err()
}

/// A cache could not be made.
#[cold]
pub(crate) fn cache_setup(py: Python<'_>, error: &KvCacheSetupError) -> PyErr {
    bad_value(py, error)
}
