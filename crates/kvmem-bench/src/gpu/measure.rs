//! One measurement, and what measurements share.

use std::ffi::{OsStr, OsString};
use std::sync::Arc;

use kvmem::arena::{ArenaError, PageSize, Populate, Region};

use super::copies::{CopyFixture, CopySetting, HostBytes};
use super::driver::Gpu;
use super::registering::{self, FixedSetting, RegisterTimes};
use super::{GpuMeasureError, GpuMemory, GpuSkipped};
use crate::hugepages::Hugepages;
use crate::suite::plan::Stop;

/// A measurement.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum GpuTask {
    /// A region is registered and unregistered.
    Register { memory: GpuMemory, resident: bool, setting: RegisterSetting },
    /// The driver allocates and frees memory.
    Allocate { memory: GpuMemory },
    /// Blocks are copied.
    Copy { memory: GpuMemory, setting: CopySetting },
}

/// The way in which a region is registered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RegisterSetting {
    Fixed(FixedSetting),
    Auto,
}

impl GpuTask {
    pub(super) fn memory(&self) -> GpuMemory {
        match self {
            GpuTask::Register { memory, .. }
            | GpuTask::Allocate { memory }
            | GpuTask::Copy { memory, .. } => *memory,
        }
    }
}

/// Its result.
#[derive(Clone, Debug)]
pub(crate) enum GpuSample {
    Registered(RegisterTimes),
    /// Seconds and bytes.
    Copied(f64, u64),
    /// The driver does not allow it.
    Failed(String),
}

/// What a group of measurements shares.
#[derive(Default)]
enum RunningGpu {
    #[default]
    Nothing,
    /// A region that is resident beforehand.
    Resident(Arc<Region>),
    Copies(Box<CopyFixture>),
}

/// What measurements share.
pub(crate) struct GpuFixture {
    gpu: Option<Arc<Gpu>>,
    library: OsString,
    region_bytes: u64,
    copy_bytes: u64,
    borrow_hugepages: bool,
    running: RunningGpu,
    hugepages: Option<Hugepages>,
}

impl GpuFixture {
    pub(super) fn new(
        gpu: Option<Arc<Gpu>>,
        library: &OsStr,
        region_bytes: u64,
        copy_bytes: u64,
        borrow_hugepages: bool,
    ) -> GpuFixture {
        GpuFixture {
            gpu,
            library: library.to_owned(),
            region_bytes,
            copy_bytes,
            borrow_hugepages,
            running: RunningGpu::Nothing,
            hugepages: None,
        }
    }

    fn gpu(&self) -> &Arc<Gpu> {
        self.gpu.as_ref().expect("without a GPU nothing is planned")
    }

    /// Maps a region of this memory.
    fn region(
        memory: GpuMemory,
        bytes: u64,
        resident: bool,
    ) -> Result<Arc<Region>, GpuMeasureError> {
        let ladder = match memory {
            GpuMemory::Base => PageSize::Base,
            GpuMemory::Huge => PageSize::Huge2M,
            _ => PageSize::Thp,
        };
        let populate = if resident { Populate::Auto } else { Populate::None };
        let builder = Region::builder(bytes as usize).ladder(ladder).populate(populate);
        Ok(Arc::new(builder.map()?))
    }

    /// Prepares what the tasks of a group share.
    pub(super) fn prepare(
        &mut self,
        first: &GpuTask,
    ) -> Result<(), Stop<GpuSkipped, GpuMeasureError>> {
        self.running = RunningGpu::Nothing;
        self.hugepages = None;
        let memory = first.memory();
        let skip = |reason: String| Stop::Skip(GpuSkipped { memory: Some(memory), reason });
        let bytes = match first {
            GpuTask::Copy { .. } => self.copy_bytes,
            _ => self.region_bytes,
        };
        if memory == GpuMemory::Huge {
            let pages = Hugepages::provide(bytes, self.borrow_hugepages).map_err(skip)?;
            self.hugepages = Some(pages);
        }
        let limited = |error: GpuMeasureError| match error {
            GpuMeasureError::Memory(ref cause) if is_limit(cause) => skip(error.to_string()),
            GpuMeasureError::Driver { .. } | GpuMeasureError::Unsupported(_) => {
                skip(error.to_string())
            }
            error => Stop::Fail(error),
        };
        self.running = match first {
            GpuTask::Register { resident: true, .. } => {
                RunningGpu::Resident(Self::region(memory, bytes, true).map_err(limited)?)
            }
            GpuTask::Copy { .. } => {
                let copies = self.copies(memory, bytes).map_err(limited)?;
                RunningGpu::Copies(Box::new(copies))
            }
            _ => RunningGpu::Nothing,
        };
        Ok(())
    }

    fn copies(&self, memory: GpuMemory, bytes: u64) -> Result<CopyFixture, GpuMeasureError> {
        let (gpu, len) = (self.gpu(), bytes as usize);
        let host = match memory {
            GpuMemory::Driver => {
                let _current = gpu.enter()?;
                HostBytes::Driver(gpu.allocate(len)?)
            }
            GpuMemory::Node => HostBytes::Node(gpu.allocate_on_node(len)?),
            _ => {
                let region = Self::region(memory, bytes, true)?;
                HostBytes::region(gpu, &region, memory != GpuMemory::Pageable)?
            }
        };
        CopyFixture::new(gpu, host, len)
    }

    pub(super) fn measure(
        &mut self,
        task: &GpuTask,
        rep: u32,
    ) -> Result<GpuSample, GpuMeasureError> {
        let found = match task {
            GpuTask::Register { memory, setting, .. } => {
                let region = match &self.running {
                    RunningGpu::Resident(region) => Arc::clone(region),
                    _ => Self::region(*memory, self.region_bytes, false)?,
                };
                match setting {
                    RegisterSetting::Fixed(fixed) => {
                        registering::fixed(self.gpu(), &region, *fixed)
                    }
                    RegisterSetting::Auto => registering::automatic(&self.library, &region),
                }
                .map(GpuSample::Registered)
            }
            GpuTask::Allocate { memory } => {
                let (gpu, len) = (self.gpu(), self.region_bytes as usize);
                match memory {
                    GpuMemory::Node => registering::allocated(gpu, || gpu.allocate_on_node(len)),
                    _ => registering::allocated(gpu, || gpu.allocate(len)),
                }
                .map(GpuSample::Registered)
            }
            GpuTask::Copy { setting, .. } => match &mut self.running {
                RunningGpu::Copies(copies) => copies
                    .measure(*setting, rep)
                    .map(|(seconds, bytes)| GpuSample::Copied(seconds, bytes)),
                _ => unreachable!("a group is prepared for its tasks"),
            },
        };
        match found {
            Err(
                error @ (GpuMeasureError::Driver { .. }
                | GpuMeasureError::Unsupported(_)
                | GpuMeasureError::Library(_)),
            ) => Ok(GpuSample::Failed(error.to_string())),
            found => found,
        }
    }
}

/// Whether the machine has too little of something.
fn is_limit(error: &ArenaError) -> bool {
    matches!(
        error,
        ArenaError::NoHeadroom { .. } | ArenaError::NoPages { .. } | ArenaError::CallFailed { .. }
    )
}
