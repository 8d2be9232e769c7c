//! `kvmem-lab tier`: a tier beside plain transfers of the same file.
//!
//! The file has two halves. The first one is a tier, the second one is for *plain* transfers: the
//! same reads and writes of the same device, without index, checksum, journal and eviction. Both
//! are written once before anything is measured, since the first write to the blocks of a new file
//! takes longer.
//!
//! The tier is full when it is measured, so each store evicts what was used least recently, and
//! syncs the device when the evicted ranges are used again. A *pass* stores or fetches a fixed
//! number of values in batches; passes of the tier and plain ones take turns, and each begins every
//! second turn. The medians of the passes count, and the medians of the ratios of each turn.

mod report;
mod turns;

use std::fs::{self, OpenOptions};
use std::time::Duration;
use std::{fmt, io};

use indicatif::ProgressBar;
use kvmem_bench::machine::Machine;
use kvmem_bench::tier::{Halves, HalvesError, padded};
use kvmem_tier::device::{Device, FileDevice};
use kvmem_tier::format::BLOCK;

use self::report::{TierBenchReport, TierBenchRow, page};
use crate::args::TierBenchArgs;
use crate::html::HtmlSink;
use kvmem_cli::output::{Failure, JsonSink, progress_bar};
use kvmem_cli::output_file::OutputFiles;
use kvmem_cli::tier_command::access;
use kvmem_trace::escape::shown;

/// Bytes of the values of one call, at most: there are two buffers of that size.
const MAX_BATCH: u64 = 2 << 30;

/// Measures all sizes, prints the table and draws the page.
pub(crate) fn run(args: &TierBenchArgs) -> Result<(), Failure> {
    let mut files = OutputFiles::new().protect("the file of the benchmark", &args.file);
    let json = JsonSink::open(&mut files, args.json.as_deref())?;
    let html = HtmlSink::open(&mut files, args.html.as_deref())?;
    let half = args.size / 2 / BLOCK as u64 * BLOCK as u64;
    for &len in &args.value_bytes {
        check(len, args, half)?;
    }
    let device = open(args)?;
    if device.len() < 2 * half {
        return Err(Failure::usage(format_args!(
            "{} has {} bytes: lower --size",
            shown(&args.file),
            device.len()
        )));
    }
    let milliseconds = args.seconds.saturating_mul(1000);
    let bar = progress_bar(
        Some(milliseconds.saturating_mul(args.value_bytes.len() as u64)),
        "{elapsed_precise} {wide_bar} {percent:>3} % {msg}",
    );
    let measured = measure(args, &device, half, &bar);
    bar.finish_and_clear();
    let rows = measured?;
    let report = TierBenchReport {
        suite: "tier-file",
        version: env!("CARGO_PKG_VERSION"),
        machine: Machine::here(),
        file: args.file.display().to_string(),
        access: if args.dsync { access(&device) + ", O_DSYNC" } else { access(&device) },
        tier_bytes: half,
        depth: args.depth,
        rows,
    };
    html.write(|| page(&report))?;
    json.write(&report, &report)
}

/// Measures one size of values after the other.
fn measure(
    args: &TierBenchArgs,
    device: &FileDevice,
    half: u64,
    bar: &ProgressBar,
) -> Result<Vec<TierBenchRow>, Failure> {
    let mut rows = Vec::new();
    for (number, &len) in (0..).zip(&args.value_bytes) {
        bar.set_message(format!("values of {len} bytes"));
        let halves =
            Halves::new(device, half, len, args.depth.into()).map_err(|error| match error {
                HalvesError::Measure(error) => failed(error),
                too_small => Failure::usage(format_args!(
                    "{too_small}; see --size, --depth and --value-bytes"
                )),
            })?;
        let before = Duration::from_secs(args.seconds.saturating_mul(number));
        rows.extend(turns::measure(halves, len, Duration::from_secs(args.seconds), bar, before)?);
    }
    Ok(rows)
}

/// Fails if values of `len` bytes cannot be measured.
fn check(len: u64, args: &TierBenchArgs, half: u64) -> Result<(), Failure> {
    let batch = padded(len).saturating_mul(args.depth.into());
    if batch > MAX_BATCH {
        return Err(Failure::usage(format_args!(
            "{} values of {len} bytes at once take more than {MAX_BATCH} bytes: lower --depth or \
             --value-bytes",
            args.depth
        )));
    }
    // The tier keeps what the last pass has stored, while it evicts something else.
    if batch > half / 4 {
        return Err(Failure::usage(format_args!(
            "{} values of {len} bytes at once need --size {} or more: raise it, or lower --depth \
             or --value-bytes",
            args.depth,
            8 * batch
        )));
    }
    Ok(())
}

/// Opens the file. A new one has no name from then on, so nothing is left of it, however the
/// command ends.
fn open(args: &TierBenchArgs) -> Result<FileDevice, Failure> {
    let path = &args.file;
    let cannot =
        |error: io::Error| Failure::usage(format_args!("cannot open {}: {error}", shown(path)));
    let device = if args.dsync { FileDevice::open_dsync } else { FileDevice::open };
    match OpenOptions::new().write(true).create_new(true).open(path) {
        Ok(_) => {
            let opened = device(path, args.size, args.depth);
            let removed = fs::remove_file(path);
            let device = opened.map_err(cannot)?;
            removed.map_err(cannot)?;
            Ok(device)
        }
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists && args.format => {
            device(path, args.size, args.depth).map_err(cannot)
        }
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
            Err(Failure::usage(format_args!(
                "{} exists: name a new file, or lose what is in it with --format",
                shown(path)
            )))
        }
        Err(error) => Err(cannot(error)),
    }
}

/// The benchmark has begun and went wrong.
fn failed(error: impl fmt::Display) -> Failure {
    Failure::new(error, 1)
}
