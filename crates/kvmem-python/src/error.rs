//! *Errors*: what the library says, as exceptions of Python with the numbers as attributes.
//!
//! The classes are written in Python, in `kvmem/errors.py`, where they are told with their
//! attributes.

use std::fmt;

use kvmem::arena::{ArenaError, BumpError, Errno, Limit};
use kvmem::offset::{AllocError, SpaceError};
use kvmem::pool::PoolError;
use kvmem::pool::kv_cache::{KvCacheError, KvCacheSetupError};
use kvmem::register::{ChunkError, NotAvailable, RegisterError, RegistrarError};
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
        AllocError::TooLarge { requested, limit }
        | AllocError::AlignTooLarge { requested, limit, .. } => {
            raised("OutOfSpaceError").with("asked", requested).with("limit", limit)
        }
        AllocError::OutOfSpace { requested, free, largest_free } => raised("OutOfSpaceError")
            .with("asked", requested)
            .with("free", free)
            .with("largest_free", largest_free),
        AllocError::Blocked { requested, most } => {
            raised("OutOfSpaceError").with("asked", requested).with("limit", most)
        }
        AllocError::TooManyRanges { ranges } => raised("OutOfSpaceError").with("ranges", ranges),
        AllocError::ZeroSize => raised("BadValueError").with("value", 0).with("limit", 1),
        AllocError::BadAlign { align } => bad_align(py, align),
        AllocError::NoRanges { .. } => raised("BadValueError").with("value", 0).with("limit", 1),
        AllocError::OutOfBounds { end, allocation_start, allocation_end, .. } => {
            raised("BadValueError")
                .with("value", end - allocation_start)
                .with("limit", allocation_end - allocation_start)
        }
        _ => raised("BadValueError"),
    }
    .err()
}

fn bad_align(py: Python<'_>, align: u64) -> Raised<'_> {
    let limit: u64 = if align == 0 { 1 } else { 1 << 63 };
    let message = format!("align is {align}: give a power of two");
    Raised::new(py, "BadValueError", message).with("value", align).with("limit", limit)
}

/// What the caller asked for, where the library names the part of it that failed.
#[derive(Clone, Copy)]
pub(crate) struct Request {
    pub(crate) nbytes: u64,
    pub(crate) align: Option<u64>,
    /// How many, in a batch.
    pub(crate) n: Option<u64>,
}

impl Request {
    /// All bytes.
    fn total(&self) -> u128 {
        u128::from(self.nbytes) * u128::from(self.n.unwrap_or(1))
    }

    fn is_plain(&self) -> bool {
        self.align.is_none() && self.n.is_none()
    }
}

impl fmt::Display for Request {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.n, self.align) {
            (Some(n), _) => write!(f, "{n} × {} bytes, {} in all,", self.nbytes, self.total()),
            (None, Some(align)) => write!(f, "{} bytes at a multiple of {align}", self.nbytes),
            (None, None) => write!(f, "{} bytes", self.nbytes),
        }
    }
}

/// A request for one or several ranges was refused: says all that was asked for.
#[cold]
pub(crate) fn request(py: Python<'_>, error: &AllocError, request: Request) -> PyErr {
    let raised =
        |message| Raised::new(py, "OutOfSpaceError", message).with("asked", request.total());
    match *error {
        _ if request.is_plain() => return alloc(py, error),
        // One of them is too long already.
        AllocError::TooLarge { limit, .. } if request.nbytes > limit => {
            let message = format!("{request} were asked for, but no range here can be longer than {limit} bytes");
            Raised::new(py, "OutOfSpaceError", message).with("asked", request.nbytes).with("limit", limit)
        }
        AllocError::TooLarge { limit, .. } => {
            raised(format!("{request} were asked for, but there can never be room for that: ask for less"))
                .with("limit", limit)
        }
        AllocError::OutOfSpace { free, largest_free, .. } => raised(format!(
            "{request} were asked for; {free} bytes are free, the longest free range is at most {largest_free}: \
             free something, or ask for less"
        ))
        .with("free", free)
        .with("largest_free", largest_free),
        _ => return alloc(py, error),
    }
    .err()
}

/// The same for blocks of a pool.
#[cold]
pub(crate) fn block_request(py: Python<'_>, error: &PoolError, requested: Request) -> PyErr {
    match error {
        PoolError::Refused(error) => request(py, error, requested),
        error => pool(py, error),
    }
}

/// A heap of addresses has no room for `n` ranges of `size` bytes. `free`: bytes free, and the most
/// in one piece.
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
        Some(ranges) => {
            format!("no room for {what}: the books are full with {ranges} ranges; free some")
        }
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
    let message = format!("batch_size is {n}: say 0 or more");
    Raised::new(py, "BadBatchError", message).with("value", n).with("limit", 0).err()
}

/// An arena refused.
#[cold]
pub(crate) fn bump(py: Python<'_>, error: &BumpError) -> PyErr {
    match *error {
        BumpError::Full { requested, left } => Raised::new(py, "OutOfSpaceError", error)
            .with("asked", requested)
            .with("free", left)
            .with("largest_free", left),
        BumpError::Zero => {
            Raised::new(py, "BadValueError", error).with("value", 0).with("limit", 1)
        }
        BumpError::BadAlign { align } => bad_align(py, align as u64),
        BumpError::Overflow { requested, align } => {
            // The greater of the two is what no object can have.
            Raised::new(py, "BadValueError", error)
                .with("value", requested.max(align))
                .with("limit", isize::MAX)
        }
        _ => Raised::new(py, "BadValueError", error),
    }
    .err()
}

/// A space could not be made or changed.
#[cold]
pub(crate) fn space(py: Python<'_>, error: &SpaceError) -> PyErr {
    let raised = |class| Raised::new(py, class, error);
    match *error {
        SpaceError::InUse { requested, end_of_last } => {
            raised("InUseError").with("asked", requested).with("end_of_last", end_of_last)
        }
        SpaceError::TooManyRanges { ranges } => raised("OutOfSpaceError").with("ranges", ranges),
        SpaceError::Capacity { requested, limit } => raised("BadValueError")
            .with("value", requested)
            .with("limit", if requested == 0 { 1 } else { limit }),
        SpaceError::ZeroBoundary => raised("BadValueError").with("value", 0).with("limit", 1),
        SpaceError::MaxRanges { requested, least } => {
            raised("BadValueError").with("value", requested).with("limit", least)
        }
        SpaceError::WrongDirection { capacity, requested } => {
            raised("BadValueError").with("value", requested).with("limit", capacity)
        }
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
        ArenaError::ZeroSize => raised("BadValueError").with("value", 0).with("limit", 1),
        ArenaError::TooLarge { requested, most } => {
            raised("BadValueError").with("value", *requested).with("limit", *most)
        }
        ArenaError::EmptyLadder => {
            let message = "pages is empty: name at least one kind of page, of 1G, 2M, thp and 4k";
            Raised::new(py, "BadValueError", message)
        }
        ArenaError::OutOfBounds { start, end, len } => {
            raised("BadValueError").with("value", *start.max(end)).with("limit", *len)
        }
        ArenaError::Misaligned { start, end, page } => {
            let value = if start % page == 0 { *end } else { *start };
            raised("BadValueError").with("value", value).with("limit", *page)
        }
        ArenaError::WrongSize { found, expected } => {
            raised("BadValueError").with("value", *expected).with("limit", *found)
        }
        ArenaError::NoSuchNode { node, .. } => raised("BadValueError").with("value", *node),
        ArenaError::NotMemory => {
            let message = "the descriptor is no memory file: give one that Region.fileno or Pool.share of another process gave";
            Raised::new(py, "BadValueError", message)
        }
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
        RegisterError::Refused { error: chunk, .. } => {
            with_chunk(raised("RegistrationError"), chunk)
        }
        RegisterError::DeregisterFailed { kept } => {
            let raised = raised("RegistrationError").with("kept", kept.len());
            match kept.first() {
                Some(first) => with_chunk(raised, first),
                None => raised,
            }
        }
        RegisterError::Limited { device, exceeded } => raised("RegistrationError")
            .with("device", device)
            .with("limit", exceeded.to_string())
            .with("remedy", exceeded.remedy()),
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
        RegisterError::NoRegistrars => {
            Raised::new(py, "BadValueError", "devices is empty: name at least one, such as mlock")
        }
        RegisterError::SameName { device } => Raised::new(
            py,
            "BadValueError",
            format!("devices names {device} twice: name each device once"),
        )
        .with("value", device),
        RegisterError::NoSuchDevice { device, have } => {
            let have = match &**have {
                [] => "no device; name some in `devices` when it is made".to_owned(),
                have => have.join(", "),
            };
            let message =
                format!("there is no key of {device:?}: the memory is registered with {have}");
            Raised::new(py, "BadValueError", message).with("value", device)
        }
        RegisterError::OutOfBounds { start, end, len } => {
            raised("BadValueError").with("value", *start.max(end)).with("limit", *len)
        }
        _ => raised("BadValueError"),
    }
    .err()
}

fn with_chunk<'py>(raised: Raised<'py>, chunk: &ChunkError) -> Raised<'py> {
    let RegistrarError { call, errno, remedy, exceeded, .. } = &chunk.refusal;
    let raised = raised
        .with("device", &chunk.device)
        .with("start", chunk.range.start)
        .with("stop", chunk.range.end)
        .with("call", call.as_ref())
        .with_errno(*errno);
    match exceeded {
        Some(exceeded) => {
            raised.with("limit", exceeded.to_string()).with("remedy", exceeded.remedy())
        }
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
        PoolError::NotReady { requested, ready, capacity } => {
            raised("NotReadyError").with("asked", *requested).with("ready", *ready).with("capacity", *capacity)
        }
        PoolError::Limit { requested, most } => {
            raised("OutOfSpaceError").with("asked", *requested).with("limit", *most)
        }
        PoolError::Initializing => raised("InUseError"),
        PoolError::NoThread { errno } => raised("KvmemError").with_errno(*errno),
        PoolError::Size { text, .. } => raised("BadValueError").with("value", text.as_ref()),
        PoolError::Boundary { requested, least } => {
            raised("BadValueError").with("value", *requested).with("limit", *least)
        }
        PoolError::OutOfBounds { range, len } => {
            raised("BadValueError").with("value", range.end.max(range.start)).with("limit", *len)
        }
        PoolError::Foreign { of, here } => raised("BadValueError").with("value", *of).with("limit", *here),
        PoolError::Private => {
            let message = "the pool's memory is private: make it with shared=True to let other processes attach it";
            Raised::new(py, "BadValueError", message)
        }
        PoolError::ReadOnly => {
            let message = "the pool was attached to be read: attach it with writable=True, by a descriptor that allows it";
            Raised::new(py, "BadValueError", message)
        }
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
        KvCacheError::Forked => return forked("cache"),
        KvCacheError::TooLarge { requested, limit } => {
            raised("OutOfSpaceError").with("asked", *requested).with("limit", *limit)
        }
        KvCacheError::NothingToEvict { requested, blocks, bytes } => raised("OutOfSpaceError")
            .with("asked", *requested)
            .with("blocks", *blocks)
            .with("held", *bytes),
        KvCacheError::Empty => raised("BadValueError").with("value", 0).with("limit", 1),
        _ => raised("BadValueError"),
    }
    .err()
}

/// A cache could not be made.
#[cold]
pub(crate) fn cache_setup(py: Python<'_>, error: &KvCacheSetupError) -> PyErr {
    let raised = Raised::new(py, "BadValueError", error);
    match *error {
        KvCacheSetupError::ZeroLimit { .. } => raised.with("value", 0).with("limit", 1),
        KvCacheSetupError::TooManyBlocks { requested, limit } => {
            raised.with("value", requested).with("limit", limit)
        }
        KvCacheSetupError::Watermarks { low, high, limit } => {
            raised.with("value", low.max(high)).with("limit", if low > high { high } else { limit })
        }
        KvCacheSetupError::Shards { requested, limit } => {
            raised.with("value", requested).with("limit", if requested == 0 { 1 } else { limit })
        }
        _ => raised,
    }
    .err()
}

/// A number that is beyond a bound.
#[cold]
pub(crate) fn bad_number<'py>(
    py: Python<'py>,
    message: impl ToString,
    value: impl IntoPyObject<'py>,
    limit: impl IntoPyObject<'py>,
) -> PyErr {
    Raised::new(py, "BadValueError", message).with("value", value).with("limit", limit).err()
}

/// A descriptor is none, or cannot be used.
#[cold]
pub(crate) fn bad_descriptor<'py>(
    py: Python<'py>,
    message: impl ToString,
    value: impl IntoPyObject<'py>,
    limit: Option<i32>,
    errno: Option<i32>,
) -> PyErr {
    Raised::new(py, "BadDescriptorError", message)
        .with("value", value)
        .with("limit", limit)
        .with("errno", errno)
        .err()
}

/// A buffer that cannot be used as it is.
#[cold]
pub(crate) fn bad_buffer(py: Python<'_>, message: impl ToString) -> PyErr {
    Raised::new(py, "BadBufferError", message).err()
}
