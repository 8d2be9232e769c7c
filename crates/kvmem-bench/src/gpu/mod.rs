//! The benchmark of memory that a GPU copies from and to: how long it takes to register it, by its
//! pages, by the sizes of the pieces and by the threads, and how fast the copies are.
//!
//! 1. *Registering.* A region of base pages, transparent hugepages or hugepages of 2 MiB, resident
//!    or not, is registered with `cuMemHostRegister` and unregistered again.
//!    [`Fixed`](GpuPolicy::Fixed) does so in pieces of one size, which 1 to 8 threads take one
//!    after the other, with the GPU's primary context or with a context for each thread.
//!    [`Auto`](GpuPolicy::Auto) is the library, which populates and registers in the way that its
//!    calibration suggests.
//! 2. *Allocating.* The driver's own memory: `cuMemHostAlloc`
//!    ([`Driver`](GpuMemory::Driver)), and `cuMemCreate` on a NUMA node of the host
//!    ([`Node`](GpuMemory::Node)).
//! 3. *Copies.* Blocks of one size are copied between each kind of memory and the GPU,
//!    asynchronously on one stream, one behind the other or in random order. `pageable` memory is
//!    not registered: the driver copies it through a buffer of its own. After each pass from the
//!    GPU the bytes are compared, outside of the time.
//! 4. *Time* is wall time. Mapping a region, populating one that is resident beforehand, and
//!    opening contexts are not part of it. The settings of one kind of memory take turns, and the
//!    medians count.
//! 5. *Missing rows.* Without a driver or a GPU nothing is measured, and the report says why. A
//!    setting that the driver does not allow has a row with the driver's error instead of figures.

mod copies;
mod driver;
mod goals;
mod measure;
mod registering;
mod sections;
mod suite;

use std::ffi::OsString;

use kvmem::arena::ArenaError;

pub use self::suite::{GpuDetails, GpuRow, GpuSkipped, GpuSuite};
use crate::progress::Progress;
use crate::suite::{BenchError, Report, names};

/// The options of a run.
#[derive(Clone, Debug, Default)]
pub struct GpuOptions {
    /// Whether to use less memory and fewer repetitions: a minute instead of several.
    pub quick: bool,
    /// The exact number of repetitions of each measurement, instead of 5, or 3 when quick.
    pub reps: Option<u32>,
    /// Bytes of the regions that are registered, rounded up to pages of 2 MiB, instead of 8 GiB, or
    /// 1 GiB when quick.
    pub region_bytes: Option<u64>,
    /// Whether missing hugepages may be added to the machine's pool while they are measured; see
    /// [`hugepages`](crate::hugepages). Otherwise rows that lack them are skipped.
    pub borrow_hugepages: bool,
    /// The driver's library, instead of `libcuda.so.1`.
    pub library: Option<OsString>,
}

/// The result of a run.
pub type GpuReport = Report<GpuSuite>;
/// The error that ended a run early.
pub type GpuBenchError = BenchError<GpuMeasureError>;

/// Runs the benchmark that `options` select, on the first GPU. A machine without one has a report
/// without rows.
///
/// # Errors
/// [`GpuBenchError`] when a copy returns other bytes than were copied, or memory cannot be given
/// back.
///
/// # Safety
/// If `options.library` is a library with the functions of the CUDA driver, it behaves like it.
pub unsafe fn run(
    options: &GpuOptions,
    progress: &mut dyn Progress<GpuRow>,
) -> Result<GpuReport, GpuBenchError> {
    crate::suite::run(options, progress)
}

/// The error of one measurement.
#[derive(Debug, thiserror::Error)]
pub enum GpuMeasureError {
    /// A call of the driver failed.
    #[error("{call} returned {code} {name}")]
    Driver {
        /// The function.
        call: &'static str,
        /// Its result.
        code: i32,
        /// The driver's name for it; empty if it has none.
        name: String,
    },
    /// The driver finds no GPU.
    #[error("the driver finds none")]
    NoDevice,
    /// The driver has no such function.
    #[error("this driver has no {0}")]
    Unsupported(&'static str),
    /// Memory could not be mapped.
    #[error(transparent)]
    Memory(Box<ArenaError>),
    /// The library could not register the region, or not give it back.
    #[error("{0}")]
    Library(String),
    /// Other bytes came back from the GPU than were copied to it.
    #[error("block {0} came back with other bytes than were copied")]
    Wrong(usize),
}

impl From<ArenaError> for GpuMeasureError {
    fn from(error: ArenaError) -> GpuMeasureError {
        GpuMeasureError::Memory(Box::new(error))
    }
}

names! {
    /// The subject of a measurement.
    pub enum GpuScenario ("scenario", UnknownGpuScenarioError) {
        /// Memory becomes one that the GPU copies from and to, and is given back.
        Register = "register",
        /// Blocks are copied to the GPU.
        ToDevice = "to-device",
        /// Blocks are copied from the GPU.
        FromDevice = "from-device",
    }
}

names! {
    /// Memory of the host.
    pub enum GpuMemory ("kind of memory", UnknownGpuMemoryError) {
        /// The machine's smallest pages.
        Base = "base",
        /// Transparent hugepages.
        Thp = "thp",
        /// Hugepages of 2 MiB from the system's pool.
        Huge = "2m",
        /// The driver's own, from `cuMemHostAlloc`.
        Driver = "driver",
        /// The driver's own on a NUMA node, from `cuMemCreate`.
        Node = "numa-node",
        /// Transparent hugepages that are not registered.
        Pageable = "pageable",
    }
}

names! {
    /// The way in which a region is registered.
    pub enum GpuPolicy ("policy", UnknownGpuPolicyError) {
        /// Pieces of one size, a fixed number of threads.
        Fixed = "fixed",
        /// The library's automatic policy.
        Auto = "auto",
        /// Nothing is registered: the driver has allocated the memory.
        Allocated = "allocated",
    }
}

names! {
    /// The order of the blocks of the host that are copied.
    pub enum CopyOrder ("order", UnknownCopyOrderError) {
        /// One behind the other.
        Contiguous = "contiguous",
        /// Random.
        Scattered = "scattered",
    }
}
