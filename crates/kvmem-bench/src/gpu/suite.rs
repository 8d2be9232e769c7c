//! *Suite*: its rows, and how they are measured.

use std::ffi::OsStr;
use std::fmt::{self, Display, Formatter};

use kvmem::register::cuda::Cuda;
use serde::{Deserialize, Serialize};

use super::copies::CopySetting;
use super::driver::{Direction, Gpu};
use super::measure::{GpuFixture, GpuSample, GpuTask, RegisterSetting};
use super::registering::FixedSetting;
use super::{
    CopyOrder, GpuMeasureError, GpuMemory, GpuOptions, GpuPolicy, GpuScenario, goals, sections,
};
use crate::progress::Progress;
use crate::stats::median;
use crate::suite::plan::{Group, SMALLEST, Stop};
use crate::suite::{GoalList, Measured, Plan, Report, Section, Suite};

/// The benchmark of memory for a GPU.
#[derive(Clone, Debug, PartialEq)]
pub struct GpuSuite;

/// One setting: the medians of the repetitions.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct GpuRow {
    /// The subject of a measurement.
    pub scenario: GpuScenario,
    /// The memory of the host.
    pub memory: GpuMemory,
    /// Whether it was resident before the clock started.
    pub resident: bool,
    /// The way in which it was registered.
    pub policy: Option<GpuPolicy>,
    /// Bytes of a piece that one call registers.
    pub piece_bytes: Option<u64>,
    /// Threads that register.
    pub threads: Option<u32>,
    /// Contexts that they use.
    pub contexts: Option<u32>,
    /// Seconds until the memory can be copied, for each GiB.
    pub ready_s_per_gib: Option<f64>,
    /// Seconds until it is given back, for each GiB.
    pub back_s_per_gib: Option<f64>,
    /// Bytes of a block that is copied.
    pub block_bytes: Option<u64>,
    /// The order of the blocks.
    pub order: Option<CopyOrder>,
    /// Bytes per second, in 10^9.
    pub gb_per_s: Option<f64>,
    /// The driver's error, instead of figures.
    pub failed: Option<String>,
}

/// Rows that this machine cannot measure.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GpuSkipped {
    /// The memory of the host; all of it when `None`.
    pub memory: Option<GpuMemory>,
    /// The reason.
    pub reason: String,
}

impl Display for GpuSkipped {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self.memory {
            None => write!(f, "skipped: {}", self.reason),
            Some(memory) => write!(f, "{memory}: {}", self.reason),
        }
    }
}

/// The settings of a run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct GpuDetails {
    /// Repetitions of each measurement; figures are medians.
    pub reps: u32,
    /// The model of the GPU; empty without one.
    pub model: String,
    /// Bytes of the regions that are registered.
    pub region_bytes: u64,
    /// Bytes of the memory from and to which blocks are copied.
    pub copy_bytes: u64,
}

impl Display for GpuDetails {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let GpuDetails { reps, model, region_bytes, copy_bytes } = self;
        let model = if model.is_empty() { "no GPU" } else { model };
        let mib = |bytes: &u64| bytes >> 20;
        write!(
            f,
            "{model}, {reps} repetition(s), regions of {} MiB, copies of {} MiB",
            mib(region_bytes),
            mib(copy_bytes)
        )
    }
}

/// Memory that is registered.
const REGISTERED: [GpuMemory; 3] = [GpuMemory::Base, GpuMemory::Thp, GpuMemory::Huge];
/// Bytes of pieces. The last one is the whole of any region that is smaller.
const PIECES: [u64; 4] = [64 << 20, 1 << 30, 8 << 30, 64 << 30];
/// Bytes of the pieces of a build that is compared with nothing.
const SMALLEST_PIECES: [u64; 2] = [4 << 20, 64 << 30];
/// Threads that register.
const THREADS: [u32; 4] = [1, 2, 4, 8];
/// Threads that have a context each in a row of their own.
const WITH_CONTEXTS: u32 = 4;
/// Regions have whole pages of this size.
const HUGE_PAGE: u64 = 2 << 20;
/// Bytes of the blocks that are copied: a common one, and a block of KV cache.
const BLOCKS: [u64; 2] = [1 << 20, 3_274_752];

impl Suite for GpuSuite {
    const NAME: &'static str = "gpu";
    type Row = GpuRow;
    type Skipped = GpuSkipped;
    type Details = GpuDetails;

    fn goals(report: &Report<Self>, goals: &mut GoalList) {
        goals::add(&report.rows, goals);
    }

    fn sections(report: &Report<Self>) -> Vec<Section> {
        sections::of(&report.rows)
    }
}

/// Returns the ways to register a region.
fn settings(region_bytes: u64) -> Vec<RegisterSetting> {
    let pieces: &[u64] = if SMALLEST { &SMALLEST_PIECES } else { &PIECES };
    let mut all = Vec::new();
    // Sizes beyond the region are all the same one.
    let whole = pieces.iter().position(|piece| *piece >= region_bytes).unwrap_or(pieces.len() - 1);
    for piece in &pieces[..=whole] {
        let piece_bytes = (*piece).min(region_bytes);
        let useful = region_bytes.div_ceil(piece_bytes);
        for threads in THREADS.into_iter().filter(|threads| u64::from(*threads) <= useful) {
            let fixed = |own_contexts| {
                RegisterSetting::Fixed(FixedSetting { piece_bytes, threads, own_contexts })
            };
            all.push(fixed(false));
            if threads == WITH_CONTEXTS {
                all.push(fixed(true));
            }
        }
    }
    all.push(RegisterSetting::Auto);
    all
}

/// Returns the groups of tasks.
fn groups(region_bytes: u64, reps: u32) -> Vec<Group<GpuTask>> {
    // A guess: a second for each GiB, and more for pages that are not resident.
    let units = 1 + (region_bytes >> 20);
    let mut groups = Vec::new();
    for memory in REGISTERED {
        for resident in [true, false] {
            let task = |setting| GpuTask::Register { memory, resident, setting };
            groups.push(Group::rotated(settings(region_bytes).into_iter().map(task), reps, units));
        }
    }
    for memory in [GpuMemory::Driver, GpuMemory::Node] {
        groups.push(Group::rotated([GpuTask::Allocate { memory }], reps, units));
    }
    for memory in GpuMemory::ALL {
        let mut tasks = Vec::new();
        for direction in [Direction::ToDevice, Direction::FromDevice] {
            for block_bytes in BLOCKS {
                for order in CopyOrder::ALL {
                    let setting = CopySetting { block_bytes, order, direction };
                    tasks.push(GpuTask::Copy { memory, setting });
                }
            }
        }
        groups.push(Group::rotated(tasks, reps, 500));
    }
    groups
}

impl Measured for GpuSuite {
    type Options = GpuOptions;
    type Task = GpuTask;
    type Sample = GpuSample;
    type Fixture = GpuFixture;
    type Error = GpuMeasureError;

    fn plan(options: &GpuOptions) -> Plan<Self> {
        let (region_bytes, copy_bytes, reps) = match options.quick {
            false => (8 << 30, 1 << 30, 5),
            true if SMALLEST => (16 << 20, 8 << 20, 1),
            true => (1 << 30, 256 << 20, 3),
        };
        let reps = options.reps.unwrap_or(reps);
        let region_bytes = options.region_bytes.unwrap_or(region_bytes);
        let region_bytes = region_bytes.max(1).next_multiple_of(HUGE_PAGE);
        let library = options.library.as_deref().unwrap_or(OsStr::new(Cuda::LIBRARY));
        // SAFETY: the caller of the suite promises that the library behaves like the driver.
        let (gpu, skipped) = match unsafe { Gpu::open(library) } {
            Ok(gpu) => (Some(gpu), Vec::new()),
            Err(reason) => (None, vec![GpuSkipped { memory: None, reason }]),
        };
        let model = gpu.as_ref().map_or_else(String::new, |gpu| gpu.model().to_owned());
        Plan {
            quick: options.quick,
            groups: if gpu.is_some() { groups(region_bytes, reps) } else { Vec::new() },
            skipped,
            fixture: GpuFixture::new(
                gpu,
                library,
                region_bytes,
                copy_bytes,
                options.borrow_hugepages,
            ),
            details: GpuDetails { reps, model, region_bytes, copy_bytes },
        }
    }

    fn name(task: &GpuTask) -> String {
        match task {
            GpuTask::Register { memory, resident, setting } => {
                let state = if *resident { "resident" } else { "untouched" };
                match setting {
                    RegisterSetting::Auto => format!("register: {memory}, {state}, auto"),
                    RegisterSetting::Fixed(FixedSetting { piece_bytes, threads, .. }) => {
                        format!("register: {memory}, {state}, {} MiB ×{threads}", piece_bytes >> 20)
                    }
                }
            }
            GpuTask::Allocate { memory } => format!("allocate: {memory}"),
            GpuTask::Copy { memory, setting } => {
                format!("copy: {memory}, {} bytes, {}", setting.block_bytes, setting.order)
            }
        }
    }

    fn prepare(
        fixture: &mut GpuFixture,
        first: &GpuTask,
        _: &mut dyn Progress<GpuRow>,
    ) -> Result<(), Stop<GpuSkipped, GpuMeasureError>> {
        fixture.prepare(first)
    }

    fn measure(
        fixture: &mut GpuFixture,
        task: &GpuTask,
        rep: u32,
    ) -> Result<GpuSample, Stop<GpuSkipped, GpuMeasureError>> {
        Ok(fixture.measure(task, rep)?)
    }

    fn row(details: &mut GpuDetails, task: &GpuTask, samples: &[GpuSample]) -> Option<GpuRow> {
        let (mut ready, mut back, mut speed, mut failed) = (vec![], vec![], vec![], None);
        let gib = details.region_bytes as f64 / f64::from(1 << 30);
        for sample in samples {
            match sample {
                GpuSample::Registered(times) => {
                    ready.push(times.ready_s / gib);
                    back.push(times.back_s / gib);
                }
                GpuSample::Copied(seconds, bytes) => speed.push(*bytes as f64 / 1e9 / seconds),
                GpuSample::Failed(reason) => failed = Some(reason.clone()),
            }
        }
        if failed.is_some() {
            (ready, back, speed) = (vec![], vec![], vec![]);
        }
        let row = GpuRow {
            scenario: GpuScenario::Register,
            memory: task.memory(),
            resident: true,
            policy: None,
            piece_bytes: None,
            threads: None,
            contexts: None,
            ready_s_per_gib: median(ready),
            back_s_per_gib: median(back),
            block_bytes: None,
            order: None,
            gb_per_s: median(speed),
            failed,
        };
        Some(match *task {
            GpuTask::Register { resident, setting: RegisterSetting::Auto, .. } => {
                GpuRow { resident, policy: Some(GpuPolicy::Auto), ..row }
            }
            GpuTask::Register { resident, setting: RegisterSetting::Fixed(fixed), .. } => GpuRow {
                resident,
                policy: Some(GpuPolicy::Fixed),
                piece_bytes: Some(fixed.piece_bytes),
                threads: Some(fixed.threads),
                contexts: Some(if fixed.own_contexts { fixed.threads } else { 1 }),
                ..row
            },
            GpuTask::Allocate { .. } => {
                GpuRow { resident: false, policy: Some(GpuPolicy::Allocated), ..row }
            }
            GpuTask::Copy { setting, .. } => GpuRow {
                scenario: match setting.direction {
                    Direction::ToDevice => GpuScenario::ToDevice,
                    Direction::FromDevice => GpuScenario::FromDevice,
                },
                block_bytes: Some(setting.block_bytes),
                order: Some(setting.order),
                ..row
            },
        })
    }
}
