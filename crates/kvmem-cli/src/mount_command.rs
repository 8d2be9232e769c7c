//! `kvmem mount`: maps and populates a region under a progress bar and prints its receipt; or
//! registers it with devices, see [`registering`].

mod registering;

use std::time::Duration;

use indicatif::ProgressBar;
use kvmem::arena::{ArenaError, Progress, Region, RegionBuilder};

use crate::args::MountArgs;
use crate::output::{Failure, JsonSink, progress_bar};
use crate::output_file::OutputFiles;

/// Maps, populates, and prints the receipt. The memory is unmapped when the command ends.
pub(crate) fn run(args: &MountArgs) -> Result<(), Failure> {
    let size = usize::try_from(args.size).map_err(|_| {
        Failure::usage(format_args!("--size {} is more than this machine can address", args.size))
    })?;
    let builder = Region::builder(size)
        .ladder(args.pages.clone())
        .strict(args.strict)
        .numa(args.numa.clone());
    match &args.devices {
        Some(devices) => registering::run(args, &builder, devices),
        None => map(args, builder),
    }
}

fn map(args: &MountArgs, builder: RegionBuilder) -> Result<(), Failure> {
    let mut files = OutputFiles::new();
    let json = JsonSink::open(&mut files, args.json.as_deref())?;
    let bar = progress_bar(None, "{elapsed_precise} {wide_bar} {bytes}/{total_bytes} {msg}");
    let watched = bar.clone();
    let mut builder =
        builder.populate(args.populate).progress(move |progress| show(&watched, progress));
    if let Some(seconds) = args.time_budget {
        builder = builder.time_budget(Duration::from_secs(seconds));
    }
    let region = builder.map();
    bar.finish_and_clear();
    let region = region.map_err(failure)?;
    let receipt = region.receipt();
    json.write(receipt, receipt)
}

pub(crate) fn show(bar: &ProgressBar, progress: Progress) {
    bar.set_length(progress.total_bytes);
    bar.set_position(progress.done_bytes);
    let left = progress
        .left()
        .map_or_else(String::new, |left| format!(", {:.0} s left", left.as_secs_f64()));
    bar.set_message(format!("{:.2} GiB/s{left}", progress.gib_per_s()));
}

/// Status 2 for a request that was impossible from the start, 1 for one that went wrong.
pub(crate) fn failure(error: ArenaError) -> Failure {
    match error {
        ArenaError::ZeroSize
        | ArenaError::TooLarge { .. }
        | ArenaError::EmptyLadder
        | ArenaError::NoNodes { .. }
        | ArenaError::NoSuchNode { .. } => Failure::usage(error),
        _ => Failure::new(error, 1),
    }
}
