//! The benchmark of memory that a GPU copies from and to: how long it takes to register it, by its
//! pages, by the sizes of the pieces and by the threads, and how fast the copies are.
//!
//! 1. *Registering.* A region of base pages, transparent hugepages or hugepages of 2 MiB, resident
//!    or not, is registered with `cuMemHostRegister` and unregistered again: in pieces of one size,
//!    which 1 to 8 threads take one after the other, with the GPU's primary context or with a
//!    context for each thread. `auto` is the library, which populates and registers in the way that
//!    its calibration suggests.
//! 2. *Allocating.* The driver's own memory: `cuMemHostAlloc` (`driver`), and `cuMemCreate` on a
//!    NUMA node of the host (`numa-node`).
//! 3. *Copies.* Blocks of one size are copied between each kind of memory and the GPU,
//!    asynchronously on one stream, one behind the other or in random order. `pageable` memory is
//!    not registered: the driver copies it through a buffer of its own. After each pass from the
//!    GPU the bytes are compared, outside of the time.
//! 4. *Time* is wall time. Mapping a region, populating one that is resident beforehand, and
//!    opening contexts are not part of it.
//! 5. *Missing rows.* Without a driver or a GPU nothing is measured, and the report says why. What
//!    the driver does not allow is listed with its error.

mod copies;
mod driver;
mod registering;

use std::cell::RefCell;
use std::ffi::OsStr;
use std::fmt::{self, Display, Formatter};
use std::sync::Arc;

use anyhow::{Error, Result};
use kvmem::arena::{PageSize, Populate, Region};

use self::copies::{CopyFixture, CopySetting, HostBytes};
use self::driver::{Direction, Gpu};
use self::registering::{FixedSetting, RegisterTimes};
use super::limits;
use super::suite::{Figures, Run, SMALLEST, Turns, names};

/// Memory that is registered.
const REGISTERED: [GpuMemory; 3] = [GpuMemory::Base, GpuMemory::Thp, GpuMemory::Huge];
/// Bytes of pieces. The last one is the whole of any region that is smaller.
const PIECES: &[u64] =
    if SMALLEST { &[4 << 20, 64 << 30] } else { &[64 << 20, 1 << 30, 8 << 30, 64 << 30] };
/// Threads that register.
const THREADS: [u32; 4] = [1, 2, 4, 8];
/// Threads that have a context each in a row of their own.
const WITH_CONTEXTS: u32 = 4;
/// Regions have whole pages of this size.
const HUGE_PAGE: u64 = 2 << 20;
/// Bytes of the blocks that are copied: a common one, and a block of KV cache.
const BLOCKS: [u64; 2] = [1 << 20, 3_274_752];

/// The way in which a region is registered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum RegisterSetting {
    Fixed(FixedSetting),
    Auto,
}

impl Display for RegisterSetting {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let RegisterSetting::Fixed(FixedSetting { piece_bytes, threads, own_contexts }) = self
        else {
            return f.pad("auto");
        };
        let own = if *own_contexts { ", own contexts" } else { "" };
        write!(f, "{} MiB ×{threads}{own}", piece_bytes >> 20)
    }
}

/// Returns the ways to register a region.
fn settings(region_bytes: u64) -> Vec<RegisterSetting> {
    let mut all = Vec::new();
    // Sizes beyond the region are all the same one.
    let whole = PIECES.iter().position(|piece| *piece >= region_bytes).unwrap_or(PIECES.len() - 1);
    for piece in &PIECES[..=whole] {
        let piece_bytes = (*piece).min(region_bytes);
        let useful = region_bytes.div_ceil(piece_bytes);
        for threads in THREADS.into_iter().filter(|threads| u64::from(*threads) <= useful) {
            let own: &[bool] = if threads == WITH_CONTEXTS { &[false, true] } else { &[false] };
            all.extend(own.iter().map(|&own_contexts| {
                RegisterSetting::Fixed(FixedSetting { piece_bytes, threads, own_contexts })
            }));
        }
    }
    all.push(RegisterSetting::Auto);
    all
}

/// Runs the benchmark on the first GPU that `library`, the driver's, finds. A machine without one
/// has a report without rows.
///
/// # Safety
/// If it is a library with the functions of the CUDA driver, it behaves like it.
pub unsafe fn run(run: &mut Run, library: &OsStr, region_bytes: Option<u64>) -> Result<()> {
    let reps = run.reps(5, run.length(5, 3, 1));
    let region_bytes = region_bytes.unwrap_or(run.length(8 << 30, 1 << 30, 16 << 20));
    let region_bytes = region_bytes.max(1).next_multiple_of(HUGE_PAGE);
    let copy_bytes = run.length(1 << 30, 256 << 20, 8 << 20);
    // SAFETY: the caller's promise.
    let opened = unsafe { Gpu::open(library) };
    let Some(gpu) = run.or_skip("skipped", opened) else {
        run.settings("no GPU");
        return Ok(());
    };
    run.settings(format_args!(
        "{}, {reps} repetition(s), regions of {} MiB, copies of {} MiB",
        gpu.model(),
        region_bytes >> 20,
        copy_bytes >> 20
    ));
    run.about("register", "ms for each GiB until it can be copied, and until it is given back");
    run.about("allocate", "the same with memory of the driver's own");
    run.about("copy", "GB/s");
    let gib = region_bytes as f64 / f64::from(1 << 30);
    let figures = |times: RegisterTimes| {
        Figures::of("ready", times.ready_s * 1e3 / gib).with("back", times.back_s * 1e3 / gib)
    };
    let declined = RefCell::new(Vec::new());
    // An option that the driver or the library rejects has no row; the other options have one each.
    let allowed = |what: &dyn Display, found: Result<Figures>| match found {
        Err(error) if error.is::<Declined>() => {
            declined.borrow_mut().push((what.to_string(), error.to_string()));
            Ok(Figures::default())
        }
        found => found,
    };
    for memory in REGISTERED {
        for resident in [true, false] {
            let line = format!("{memory}, {}", if resident { "resident" } else { "untouched" });
            let there = memory.check(region_bytes);
            let made = there.and_then(|()| region(memory, region_bytes, resident));
            let Some(kept) = run.or_skip(&line, made) else { continue };
            let kept = resident.then_some(kept);
            let at = ("register", line.as_str());
            run.turns(at, &settings(region_bytes), Turns::of(reps), |setting, _| {
                let region = match &kept {
                    Some(region) => Arc::clone(region),
                    None => region(memory, region_bytes, false)?,
                };
                let times = match setting {
                    RegisterSetting::Fixed(fixed) => registering::fixed(&gpu, &region, fixed),
                    RegisterSetting::Auto => registering::automatic(library, &region),
                };
                allowed(&format_args!("{line}, {setting}"), times.map(figures))
            })?;
        }
    }
    let driver = [GpuMemory::Driver, GpuMemory::Node];
    run.turns(("allocate", "whole"), &driver, Turns::of(reps), |memory, _| {
        let len = region_bytes as usize;
        let times = match memory {
            GpuMemory::Node => registering::allocated(&gpu, || gpu.allocate_on_node(len)),
            _ => registering::allocated(&gpu, || gpu.allocate(len)),
        };
        allowed(&memory, times.map(figures))
    })?;
    copies(run, &gpu, copy_bytes, reps)?;
    for (what, why) in declined.into_inner() {
        run.skip(&what, why);
    }
    goals(run);
    Ok(())
}

/// Measures copies from and to each kind of memory.
fn copies(run: &mut Run, gpu: &Arc<Gpu>, bytes: u64, reps: u32) -> Result<()> {
    let mut fixtures = Vec::new();
    for memory in run.chosen(&GpuMemory::ALL) {
        let made = memory.check(bytes).and_then(|()| copy_fixture(gpu, memory, bytes));
        let made = run.or_skip(&format!("copy, {memory}"), made);
        fixtures.extend(made.map(|made| (memory, made)));
    }
    let present: Vec<GpuMemory> = fixtures.iter().map(|(memory, _)| *memory).collect();
    for direction in [Direction::ToDevice, Direction::FromDevice] {
        for block_bytes in BLOCKS {
            for scattered in [false, true] {
                let way = if direction == Direction::ToDevice { "to" } else { "from" };
                let order = if scattered { "scattered" } else { "contiguous" };
                let line = format!("{way} the GPU, {block_bytes} bytes, {order}");
                let setting = CopySetting { block_bytes, scattered, direction };
                run.turns(("copy", &line), &present, Turns::of(reps), |memory, rep| {
                    let at = present.iter().position(|of| *of == memory).unwrap_or_default();
                    let (seconds, bytes) = fixtures[at].1.measure(setting, rep)?;
                    Ok(Figures::of("GB/s", bytes as f64 / 1e9 / seconds))
                })?;
            }
        }
    }
    Ok(())
}

fn copy_fixture(gpu: &Arc<Gpu>, memory: GpuMemory, bytes: u64) -> Result<CopyFixture> {
    let len = bytes as usize;
    let host = match memory {
        GpuMemory::Driver => {
            let _current = gpu.enter()?;
            HostBytes::Driver(gpu.allocate(len)?)
        }
        GpuMemory::Node => HostBytes::Node(gpu.allocate_on_node(len)?),
        _ => {
            let region = region(memory, bytes, true)?;
            HostBytes::region(gpu, &region, memory != GpuMemory::Pageable)?
        }
    };
    CopyFixture::new(gpu, host, len)
}

/// Maps a region of this memory.
fn region(memory: GpuMemory, bytes: u64, resident: bool) -> Result<Arc<Region>> {
    let ladder = match memory {
        GpuMemory::Base => PageSize::Base,
        GpuMemory::Huge => PageSize::Huge2M,
        _ => PageSize::Thp,
    };
    let populate = if resident { Populate::Auto } else { Populate::None };
    let builder = Region::builder(bytes as usize).ladder(ladder).populate(populate);
    Ok(Arc::new(builder.map()?))
}

fn goals(run: &mut Run) {
    let mut over_best = Vec::new();
    for line in run.lines("register") {
        let total = |setting: &str| {
            let of = |figure| run.values("register", setting, figure, |of| of == line);
            Some(of("ready").first()?.0 + of("back").first()?.0)
        };
        let fixed = run.contenders("register", &line).into_iter().filter(|of| *of != "auto");
        let best = fixed.filter_map(|setting| total(&setting)).min_by(f64::total_cmp);
        over_best.extend(total("auto").zip(best).map(|(auto, best)| (auto / best, line.clone())));
    }
    run.at_most("auto: time of both ways over that of the best fixed setting", 1.1, over_best);
    let registered = GpuMemory::ALL.into_iter().filter(|memory| *memory != GpuMemory::Pageable);
    let over = registered
        .flat_map(|memory| run.over("copy", (memory, GpuMemory::Pageable), "GB/s", |_| true));
    let over = over.collect();
    run.at_least("registered memory: bytes per second over those of pageable memory", 1.0, over);
}

/// A call that the driver or the library declined.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct Declined(String);

impl Declined {
    fn by(error: impl Display) -> Error {
        Declined(error.to_string()).into()
    }
}

names! {
    /// Memory of the host.
    pub enum GpuMemory ("kind of memory") {
        Base = "base",
        Thp = "thp",
        Huge = "2m",
        Driver = "driver",
        Node = "numa-node",
        Pageable = "pageable",
    }
}

impl GpuMemory {
    /// Returns an error if the machine lacks `bytes` of this memory.
    fn check(self, bytes: u64) -> Result<()> {
        let missing = if self == GpuMemory::Huge { limits::hugepages_missing(bytes) } else { None };
        missing.map_or(Ok(()), |reason| Err(Declined::by(reason)))
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::process::Command;

    use super::*;
    use crate::bench::suite::Report;
    use crate::bench::suite::SuiteArgs;

    /// Runs the suite on a compiled stand-in for the driver, which behaves like one.
    fn on_stand_in(name: &str, macros: &[&str]) -> Result<Report> {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(name);
        let code = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/gpu_driver.c");
        let mut cc = Command::new(std::env::var_os("CC").unwrap_or_else(|| "cc".into()));
        cc.args(["-std=gnu11", "-O1", "-Wall", "-fPIC", "-shared", "-pthread"]);
        cc.args(["-fvisibility=hidden", "-o"]).arg(&path).arg(&code);
        cc.args(macros.iter().map(|name| format!("-D{name}")));
        let output = cc.output().expect("a C compiler: Rust has it for a linker");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let args = SuiteArgs { quick: true, reps: Some(1), ..SuiteArgs::default() };
        let mut run = Run::new("gpu", &args);
        // SAFETY: the stand-in behaves like the driver.
        unsafe { super::run(&mut run, path.as_os_str(), None) }?;
        run.finish()
    }

    #[test]
    fn each_kind_of_memory_is_registered_and_copied() {
        let report = on_stand_in("all.so", &[]).unwrap();
        // Hugepages of the pool may be missing, and nothing else.
        assert!(report.skipped.iter().all(|skipped| skipped.contains("2m")), "{report}");
        for part in ["thp, resident", "auto", "pageable GB/s", "numa-node ready"] {
            assert!(report.to_string().contains(part), "{part} in\n{report}");
        }
        assert!(report.goals.len() == 2, "{report}");
    }

    #[test]
    fn an_old_driver_lacks_a_row_and_a_broken_one_ends_the_run() {
        let report = on_stand_in("old.so", &["cuMemCreate=another_function"]).unwrap();
        assert!(report.to_string().contains("this driver has no cuMemCreate"), "{report}");
        let error = on_stand_in("broken.so", &["BROKEN"]).unwrap_err();
        assert!(format!("{error:#}").contains("other bytes"), "{error:?}");
    }
}
