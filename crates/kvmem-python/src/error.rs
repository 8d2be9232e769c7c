//! *Errors*: converts the library's errors to Python exceptions with the numbers as attributes.
//!
//! The classes are Python code, in `kvmem/errors.py`, which documents them and their attributes.

use std::path::Path;
use std::{fmt, io};

use kvmem::arena::{ArenaError, BumpError, Errno, Limit};
use kvmem::cache::{KvCacheError, KvCacheSetupError};
use kvmem::offset::{AllocError, SpaceError};
use kvmem::pool::PoolError;
use kvmem::register::{ChunkError, NotAvailable, RegisterError, RegistrarError};
use kvmem_tier::device::FixedBuffersError;
use kvmem_tier::{KeyringError, StoreError, TierError};
use pyo3::exceptions::{PyRuntimeError, PyTypeError};
use pyo3::prelude::*;
use pyo3::types::PyDict;

/// An exception of `kvmem.errors` under construction.
pub(crate) struct Raised<'py> {
    class: &'static str,
    message: String,
    numbers: Bound<'py, PyDict>,
    failed: Option<PyErr>,
}

impl<'py> Raised<'py> {
    pub(crate) fn new(py: Python<'py>, class: &'static str, message: impl ToString) -> Raised<'py> {
        Raised { class, message: message.to_string(), numbers: PyDict::new(py), failed: None }
    }

    /// Adds an attribute.
    pub(crate) fn with(mut self, name: &str, value: impl IntoPyObject<'py>) -> Raised<'py> {
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

    pub(crate) fn err(self) -> PyErr {
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

/// Makes an exception in a thread that holds the GIL, without a token for it.
fn here(class: &'static str, message: String) -> PyErr {
    Python::try_attach(|py| Raised::new(py, class, &message).err())
        .unwrap_or_else(|| PyRuntimeError::new_err(message))
}

/// Makes the error of a freed or closed object.
#[cold]
pub(crate) fn closed(name: &str, end: &str) -> PyErr {
    here("ClosedError", format!("the {name} has been {end}"))
}

/// Makes the error of an object that cannot be freed or moved, because views of it exist.
#[cold]
pub(crate) fn viewed(name: &str, what: &str, views: usize) -> PyErr {
    let message = format!("the {name} has {views} {what} before it is freed, closed or changed");
    Python::try_attach(|py| Raised::new(py, "ExportedError", &message).with("views", views).err())
        .unwrap_or_else(|| PyRuntimeError::new_err(message))
}

/// Makes the error of an object that was made before a fork.
#[cold]
pub(crate) fn forked(name: &str) -> PyErr {
    here(
        "ForkedError",
        format!(
            "the {name} was made before this process was forked, and its memory stays with the \
             parent: make a new one here, or share a pool by its descriptor and attach it"
        ),
    )
}

/// Makes the error of an invalid argument.
#[cold]
pub(crate) fn bad_value(py: Python<'_>, message: impl ToString) -> PyErr {
    Raised::new(py, "InvalidArgumentError", message).err()
}

/// The failure of the conversion of an argument. A `TypeError` becomes an exception to whose
/// message PyO3 adds the name of the argument.
pub(crate) struct ArgumentError(PyErr);

impl From<PyErr> for ArgumentError {
    fn from(error: PyErr) -> ArgumentError {
        ArgumentError(error)
    }
}

impl From<ArgumentError> for PyErr {
    #[cold]
    fn from(ArgumentError(error): ArgumentError) -> PyErr {
        Python::try_attach(|py| match error.get_type(py).is(py.get_type::<PyTypeError>()) {
            true => Raised::new(py, "ArgumentTypeError", error.value(py)).err(),
            false => error.clone_ref(py),
        })
        .unwrap_or(error)
    }
}

/// Makes the error of a violated invariant.
#[cold]
pub(crate) fn defect(error: &kvmem::offset::CheckError) -> PyErr {
    PyRuntimeError::new_err(error.to_string())
}

/// Converts the failure of an allocation.
#[cold]
pub(crate) fn alloc(py: Python<'_>, error: &AllocError) -> PyErr {
    let raised = |class| Raised::new(py, class, error);
    match *error {
        AllocError::TooLarge { requested, limit }
        | AllocError::AlignTooLarge { requested, limit, .. } => {
            raised("OutOfSpaceError").with("requested", requested).with("limit", limit)
        }
        AllocError::OutOfSpace { requested, free, largest_free } => raised("OutOfSpaceError")
            .with("requested", requested)
            .with("free", free)
            .with("largest_free", largest_free),
        AllocError::CannotExtend { requested, max } => {
            raised("OutOfSpaceError").with("requested", requested).with("limit", max)
        }
        AllocError::TooManyRanges { ranges } => raised("OutOfSpaceError").with("ranges", ranges),
        AllocError::ZeroSize => raised("InvalidArgumentError").with("value", 0).with("limit", 1),
        AllocError::BadAlign { align } => bad_align(py, align),
        AllocError::NoRanges { .. } => {
            raised("InvalidArgumentError").with("value", 0).with("limit", 1)
        }
        AllocError::OutOfBounds { end, allocation_start, allocation_end, .. } => {
            raised("InvalidArgumentError")
                .with("value", end - allocation_start)
                .with("limit", allocation_end - allocation_start)
        }
        _ => raised("InvalidArgumentError"),
    }
    .err()
}

fn bad_align(py: Python<'_>, align: u64) -> Raised<'_> {
    let limit: u64 = if align == 0 { 1 } else { 1 << 63 };
    let message = format!("align is {align}: give a power of two");
    Raised::new(py, "InvalidArgumentError", message).with("value", align).with("limit", limit)
}

/// The caller's request, for errors of the library that name only the part that failed.
#[derive(Clone, Copy)]
pub(crate) struct Request {
    pub(crate) nbytes: u64,
    pub(crate) align: Option<u64>,
    /// Number of ranges in a batch.
    pub(crate) n: Option<u64>,
}

impl Request {
    /// Returns the bytes of all ranges.
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
            (Some(n), _) => write!(f, "{n} × {} bytes ({} in all)", self.nbytes, self.total()),
            (None, Some(align)) => write!(f, "{} bytes at a multiple of {align}", self.nbytes),
            (None, None) => write!(f, "{} bytes", self.nbytes),
        }
    }
}

/// Converts the failure of an allocation, with the whole request.
#[cold]
pub(crate) fn request(py: Python<'_>, error: &AllocError, request: Request) -> PyErr {
    let raised =
        |message| Raised::new(py, "OutOfSpaceError", message).with("requested", request.total());
    match *error {
        _ if request.is_plain() => return alloc(py, error),
        // A single range is too long.
        AllocError::TooLarge { limit, .. } if request.nbytes > limit => {
            let message = format!(
                "cannot allocate {request}: a range can have at most {limit} bytes; request less"
            );
            Raised::new(py, "OutOfSpaceError", message)
                .with("requested", request.nbytes)
                .with("limit", limit)
        }
        AllocError::TooLarge { limit, .. } => raised(format!(
            "cannot allocate {request}: the space is smaller than that; request less"
        ))
        .with("limit", limit),
        AllocError::OutOfSpace { free, largest_free, .. } => raised(format!(
            "cannot allocate {request}: {free} bytes are free, and the longest free range has at \
             most {largest_free}; free some ranges, or request less"
        ))
        .with("free", free)
        .with("largest_free", largest_free),
        _ => return alloc(py, error),
    }
    .err()
}

/// Converts the failure of an allocation from a pool, with the whole request.
#[cold]
pub(crate) fn block_request(py: Python<'_>, error: &PoolError, requested: Request) -> PyErr {
    match error {
        PoolError::Allocate(error) => request(py, error, requested),
        error => pool(py, error),
    }
}

/// Makes the error of a full address heap: `n` ranges of `size` bytes were requested. `free`: free
/// bytes, and the maximum in one range.
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
            format!(
                "cannot allocate {what}: the metadata has its maximum of {ranges} ranges; free some"
            )
        }
        None => format!(
            "cannot allocate {what}: {free} bytes are free, at most {largest} of them in one \
             range; free some, or grow the heap (sbrk)"
        ),
    };
    Raised::new(py, "HeapFullError", message)
        .with("requested", size)
        .with("free", free)
        .with("largest_free", largest)
        .with("ranges", ranges)
        .err()
}

/// Makes the error of a negative batch size.
#[cold]
pub(crate) fn bad_batch(py: Python<'_>, n: &Bound<'_, PyAny>) -> PyErr {
    let message = format!("batch_size is {n}: give 0 or more");
    Raised::new(py, "InvalidBatchError", message).with("value", n).with("limit", 0).err()
}

/// Converts an error of a bump arena.
#[cold]
pub(crate) fn bump(py: Python<'_>, error: &BumpError) -> PyErr {
    match *error {
        BumpError::Full { requested, remaining } => Raised::new(py, "OutOfSpaceError", error)
            .with("requested", requested)
            .with("free", remaining)
            .with("largest_free", remaining),
        BumpError::Zero => {
            Raised::new(py, "InvalidArgumentError", error).with("value", 0).with("limit", 1)
        }
        BumpError::BadAlign { align } => bad_align(py, align as u64),
        BumpError::Overflow { requested, align } => {
            // The greater of the two exceeds the length of every object.
            Raised::new(py, "InvalidArgumentError", error)
                .with("value", requested.max(align))
                .with("limit", isize::MAX)
        }
        _ => Raised::new(py, "InvalidArgumentError", error),
    }
    .err()
}

/// Converts an error of creating or resizing a space.
#[cold]
pub(crate) fn space(py: Python<'_>, error: &SpaceError) -> PyErr {
    let raised = |class| Raised::new(py, class, error);
    match *error {
        SpaceError::InUse { requested, end_of_last } => {
            raised("InUseError").with("requested", requested).with("end_of_last", end_of_last)
        }
        SpaceError::TooManyRanges { ranges } => raised("OutOfSpaceError").with("ranges", ranges),
        SpaceError::Capacity { requested, limit } => raised("InvalidArgumentError")
            .with("value", requested)
            .with("limit", if requested == 0 { 1 } else { limit }),
        SpaceError::ZeroBoundary => {
            raised("InvalidArgumentError").with("value", 0).with("limit", 1)
        }
        SpaceError::MaxRanges { requested, min } => {
            raised("InvalidArgumentError").with("value", requested).with("limit", min)
        }
        SpaceError::WrongDirection { capacity, requested } => {
            raised("InvalidArgumentError").with("value", requested).with("limit", capacity)
        }
        _ => raised("InvalidArgumentError"),
    }
    .err()
}

/// Converts an error of mapping or populating memory.
#[cold]
pub(crate) fn arena(py: Python<'_>, error: &ArenaError) -> PyErr {
    let raised = |class| Raised::new(py, class, error);
    match error {
        ArenaError::NoPages { range, limit, .. } => {
            raised("MappingError").with("requested", range.len()).with_limit(limit.as_ref())
        }
        ArenaError::CallFailed { bytes, errno, limit, .. } => raised("MappingError")
            .with("requested", *bytes)
            .with_errno(*errno)
            .with_limit(limit.as_ref()),
        ArenaError::Populate { range, errno, limit, .. } => raised("MappingError")
            .with("requested", range.len())
            .with("start", range.start)
            .with("stop", range.end)
            .with_errno(*errno)
            .with_limit(limit.as_ref()),
        ArenaError::NoHeadroom { need, limit } => {
            raised("MappingError").with("requested", *need).with_limit(Some(limit))
        }
        ArenaError::PolicyFailed { errno, .. } => raised("MappingError").with_errno(*errno),
        ArenaError::Misplaced { range, .. } => {
            raised("MappingError").with("start", range.start).with("stop", range.end)
        }
        ArenaError::Cancelled { done, total } => {
            raised("CancelledError").with("done", *done).with("total", *total)
        }
        ArenaError::OverBudget { budget, done, total } => raised("TimeBudgetError")
            .with("done", *done)
            .with("total", *total)
            .with("seconds", budget.as_secs_f64()),
        ArenaError::Pooled { .. } | ArenaError::Registered { .. } => raised("InUseError"),
        ArenaError::ZeroSize => raised("InvalidArgumentError").with("value", 0).with("limit", 1),
        ArenaError::TooLarge { requested, max: most } => {
            raised("InvalidArgumentError").with("value", *requested).with("limit", *most)
        }
        ArenaError::EmptyLadder => {
            let message = "pages is empty: give at least one of 1G, 2M, thp and 4k";
            Raised::new(py, "InvalidArgumentError", message)
        }
        ArenaError::OutOfBounds { start, end, len } => {
            raised("InvalidArgumentError").with("value", *start.max(end)).with("limit", *len)
        }
        ArenaError::Misaligned { start, end, page } => {
            let value = if start % page == 0 { *end } else { *start };
            raised("InvalidArgumentError").with("value", value).with("limit", *page)
        }
        ArenaError::WrongSize { found, expected } => {
            raised("InvalidArgumentError").with("value", *expected).with("limit", *found)
        }
        ArenaError::NoSuchNode { node, .. } => raised("InvalidArgumentError").with("value", *node),
        ArenaError::NotMemory => {
            let message = "the descriptor is no memory file: give one that Region.fileno or \
                           Pool.share of another process returned";
            Raised::new(py, "InvalidArgumentError", message)
        }
        _ => raised("InvalidArgumentError"),
    }
    .err()
}

/// Converts an error of registering memory, or of a missing key.
#[cold]
pub(crate) fn register(py: Python<'_>, error: &RegisterError) -> PyErr {
    let raised = |class| Raised::new(py, class, error);
    match error {
        RegisterError::Populate(error) => return arena(py, error),
        RegisterError::ChunkFailed { error: chunk, .. } => {
            with_chunk(raised("RegistrationError"), chunk)
        }
        RegisterError::DeregisterFailed { kept } => {
            let raised = raised("RegistrationError").with("still_registered", kept.len());
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
        RegisterError::OverBudget { budget, done, total } => raised("TimeBudgetError")
            .with("done", *done)
            .with("total", *total)
            .with("seconds", budget.as_secs_f64()),
        RegisterError::Straddles { device, edge, .. } => {
            raised("RegistrationError").with("device", device).with("boundary", *edge)
        }
        RegisterError::Deregistered { device } => {
            raised("RegistrationError").with("device", device)
        }
        RegisterError::NoRegistrars => Raised::new(
            py,
            "InvalidArgumentError",
            "devices is empty: give at least one, such as mlock",
        ),
        RegisterError::SameName { device } => Raised::new(
            py,
            "InvalidArgumentError",
            format!("devices names {device} twice: name each device once"),
        )
        .with("value", device),
        RegisterError::NoSuchDevice { device, have } => {
            let have = match &**have {
                [] => "no device; pass `devices` when you make it".to_owned(),
                have => have.join(", "),
            };
            let message =
                format!("cannot get a key of {device:?}: the memory is registered with {have}");
            Raised::new(py, "InvalidArgumentError", message).with("value", device)
        }
        RegisterError::OutOfBounds { start, end, len } => {
            raised("InvalidArgumentError").with("value", *start.max(end)).with("limit", *len)
        }
        _ => raised("InvalidArgumentError"),
    }
    .err()
}

fn with_chunk<'py>(raised: Raised<'py>, chunk: &ChunkError) -> Raised<'py> {
    let RegistrarError { call, errno, remedy, exceeded, .. } = &chunk.cause;
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

/// Converts the error of a missing device.
#[cold]
pub(crate) fn not_available(py: Python<'_>, error: &NotAvailable) -> PyErr {
    Raised::new(py, "NotAvailableError", error)
        .with("device", error.backend.as_ref())
        .with("remedy", error.remedy.as_ref())
        .err()
}

/// Converts an error of a pool.
#[cold]
pub(crate) fn pool(py: Python<'_>, error: &PoolError) -> PyErr {
    let raised = |class| Raised::new(py, class, error);
    match error {
        PoolError::Allocate(error) => return alloc(py, error),
        PoolError::Memory(error) => return arena(py, error),
        PoolError::Register(error) => return register(py, error),
        PoolError::Space(error) => return space(py, error),
        PoolError::NotReady { requested, ready, capacity } => raised("NotReadyError")
            .with("requested", *requested)
            .with("ready", *ready)
            .with("capacity", *capacity),
        PoolError::Limit { requested, max } => {
            raised("OutOfSpaceError").with("requested", *requested).with("limit", *max)
        }
        PoolError::Initializing => raised("InUseError"),
        PoolError::NoThread { errno } => raised("KvmemError").with_errno(*errno),
        PoolError::Size { text, .. } => raised("InvalidArgumentError").with("value", text.as_ref()),
        PoolError::Boundary { requested, min } => {
            raised("InvalidArgumentError").with("value", *requested).with("limit", *min)
        }
        PoolError::OutOfBounds { range, len } => raised("InvalidArgumentError")
            .with("value", range.end.max(range.start))
            .with("limit", *len),
        PoolError::Foreign { of, here } => {
            raised("InvalidArgumentError").with("value", *of).with("limit", *here)
        }
        PoolError::Private => {
            let message = "the pool's memory is private: make it with shared=True to let other \
                           processes attach it";
            Raised::new(py, "InvalidArgumentError", message)
        }
        PoolError::ReadOnly => {
            let message = "the pool was attached for reading: attach it with writable=True, by a \
                           writable descriptor";
            Raised::new(py, "InvalidArgumentError", message)
        }
        _ => raised("InvalidArgumentError"),
    }
    .err()
}

/// Converts an error of a cache.
#[cold]
pub(crate) fn cache(py: Python<'_>, error: &KvCacheError) -> PyErr {
    let raised = |class| Raised::new(py, class, error);
    match error {
        KvCacheError::Pool(error) => return pool(py, error),
        KvCacheError::Forked => return forked("cache"),
        KvCacheError::TooLarge { requested, limit } => {
            raised("OutOfSpaceError").with("requested", *requested).with("limit", *limit)
        }
        KvCacheError::NothingToEvict { requested, blocks, bytes } => raised("OutOfSpaceError")
            .with("requested", *requested)
            .with("blocks", *blocks)
            .with("held", *bytes),
        KvCacheError::Empty => raised("InvalidArgumentError").with("value", 0).with("limit", 1),
        _ => raised("InvalidArgumentError"),
    }
    .err()
}

/// Converts an error of making a cache.
#[cold]
pub(crate) fn cache_setup(py: Python<'_>, error: &KvCacheSetupError) -> PyErr {
    let raised = Raised::new(py, "InvalidArgumentError", error);
    match *error {
        KvCacheSetupError::ZeroLimit { .. } => raised.with("value", 0).with("limit", 1),
        KvCacheSetupError::TooManyBlocks { requested, limit } => {
            raised.with("value", requested).with("limit", limit)
        }
        _ => raised,
    }
    .err()
}

/// Converts an error of opening a disk tier.
#[cold]
pub(crate) fn tier_open(
    py: Python<'_>,
    path: &Path,
    bytes: Option<u64>,
    error: &TierError,
) -> PyErr {
    let shown = path.display();
    let raised = match error {
        TierError::TooSmall { len, min, .. } => {
            return bad_number(py, format!("{shown}: {error}"), *len, *min);
        }
        TierError::Device { call: "open", source, .. } => {
            let remedy = open_remedy(source, bytes);
            let message = format!("cannot open the disk tier {shown}: {source}; {remedy}");
            Raised::new(py, "DiskTierError", message)
                .with("errno", source.raw_os_error())
                .with("remedy", remedy)
        }
        error => with_tier(Raised::new(py, "DiskTierError", format!("{shown}: {error}")), error),
    };
    raised.with("path", path).with("requested", bytes).err()
}

/// Converts an error of a key file.
#[cold]
pub(crate) fn key_file(py: Python<'_>, path: &Path, error: &KeyringError) -> PyErr {
    let raised = match error {
        KeyringError::Read { source, .. } => Raised::new(py, "DiskTierError", error)
            .with("errno", source.raw_os_error())
            .with("remedy", "give the path of a key file that this user may read"),
        KeyringError::Lock { source } => {
            Raised::new(py, "DiskTierError", error).with("errno", source.raw_os_error())
        }
        _ => return Raised::new(py, "InvalidArgumentError", error).err(),
    };
    raised.with("path", path).err()
}

/// Converts an error of encryption.
#[cold]
pub(crate) fn encode(py: Python<'_>, error: &impl ToString) -> PyErr {
    Raised::new(py, "DiskTierError", error.to_string()).err()
}

/// Converts an error of looking into the file of a disk tier.
#[cold]
pub(crate) fn tier_inspect(py: Python<'_>, path: &Path, error: &TierError) -> PyErr {
    let shown = path.display();
    let raised = match error {
        TierError::Device { call: "open", source, .. } => {
            let remedy = match source.kind() {
                io::ErrorKind::NotFound => "give the path of a file that exists",
                io::ErrorKind::PermissionDenied => "give a path that this user may read",
                io::ErrorKind::WouldBlock => "close it there, or give another path",
                _ => "give the path of a file or block device on a local file system",
            };
            let message = format!("cannot look into the disk tier {shown}: {source}; {remedy}");
            Raised::new(py, "DiskTierError", message)
                .with("errno", source.raw_os_error())
                .with("remedy", remedy)
        }
        error => with_tier(Raised::new(py, "DiskTierError", format!("{shown}: {error}")), error),
    };
    raised.with("path", path).err()
}

/// Returns what to do about a file that cannot be opened as a tier.
fn open_remedy(error: &io::Error, bytes: Option<u64>) -> &'static str {
    match error.kind() {
        io::ErrorKind::NotFound if bytes.is_none() => {
            "give `bytes`, the length of a new file, or the path of one that exists"
        }
        io::ErrorKind::NotFound => "make its folder, or give another path",
        io::ErrorKind::PermissionDenied => "give a path that this user may write to",
        io::ErrorKind::WouldBlock => "close it there, or give another path",
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
            "give fewer `bytes`, or make space on the file system"
        }
        io::ErrorKind::FileTooLarge | io::ErrorKind::InvalidInput => {
            "give fewer `bytes`, or a file system with longer files"
        }
        _ => "give the path of a file or block device on a local file system",
    }
}

fn with_tier<'py>(raised: Raised<'py>, error: &TierError) -> Raised<'py> {
    match error {
        TierError::Device { source, .. } => raised
            .with("errno", source.raw_os_error())
            .with("remedy", "look at the kernel's log, and replace the drive if it fails"),
        TierError::Superblocks { .. } | TierError::Checkpoint { .. } => {
            raised.with("remedy", "give another path, or format=True to lose what is there")
        }
        TierError::CutOff { .. } => raised.with(
            "remedy",
            "restore the file from a copy, or give format=True to lose what is there",
        ),
        TierError::ReadOnly { .. } => raised.with("remedy", "open the tier again"),
        TierError::Owned { .. } => raised.with(
            "remedy",
            "close the tier there, or give take_over=True if that process or its host has ended",
        ),
        TierError::TakenOver { .. } => {
            raised.with("remedy", "use a tier from one process at a time")
        }
        _ => raised,
    }
}

/// Converts an error of a disk tier.
#[cold]
pub(crate) fn tier(py: Python<'_>, error: &TierError) -> PyErr {
    with_tier(Raised::new(py, "DiskTierError", error), error).err()
}

/// Converts the error of memory that a tier cannot register.
#[cold]
pub(crate) fn fixed_buffers(py: Python<'_>, error: &FixedBuffersError) -> PyErr {
    match error {
        FixedBuffersError::Pool(error) => pool(py, error),
        FixedBuffersError::Region(error) => register(py, error),
        FixedBuffersError::NotAvailable(error) => not_available(py, error),
        error => Raised::new(py, "NotAvailableError", error).with("device", "io_uring").err(),
    }
}

/// Converts the error of a value that was not stored. `failed` has the keys of all such values.
#[cold]
pub(crate) fn tier_store<'py>(
    py: Python<'py>,
    error: &StoreError,
    failed: impl IntoPyObject<'py>,
) -> PyErr {
    let raised = |class| Raised::new(py, class, error);
    match error {
        StoreError::TooLarge { len, limit } => {
            raised("OutOfSpaceError").with("requested", *len).with("limit", *limit)
        }
        StoreError::NoRoom { len } => raised("OutOfSpaceError").with("requested", *len),
        StoreError::Tier(error) => with_tier(Raised::new(py, "DiskTierError", error), error),
        _ => raised("DiskTierError"),
    }
    .with("failed", failed)
    .err()
}

/// Makes the error of a buffer that is too short for a value.
#[cold]
pub(crate) fn short_buffer(py: Python<'_>, message: String, len: usize, needed: usize) -> PyErr {
    Raised::new(py, "InvalidBufferError", message).with("value", len).with("limit", needed).err()
}

/// Makes the error of a number that exceeds a bound.
#[cold]
pub(crate) fn bad_number<'py>(
    py: Python<'py>,
    message: impl ToString,
    value: impl IntoPyObject<'py>,
    limit: impl IntoPyObject<'py>,
) -> PyErr {
    Raised::new(py, "InvalidArgumentError", message).with("value", value).with("limit", limit).err()
}

/// Makes the error of an unusable descriptor.
#[cold]
pub(crate) fn bad_descriptor<'py>(
    py: Python<'py>,
    message: impl ToString,
    value: impl IntoPyObject<'py>,
    limit: Option<i32>,
    errno: Option<i32>,
) -> PyErr {
    Raised::new(py, "InvalidDescriptorError", message)
        .with("value", value)
        .with("limit", limit)
        .with("errno", errno)
        .err()
}

/// Makes the error of an unusable buffer.
#[cold]
pub(crate) fn bad_buffer(py: Python<'_>, message: impl ToString) -> PyErr {
    Raised::new(py, "InvalidBufferError", message).err()
}
