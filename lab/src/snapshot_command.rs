//! `kvmem snapshot`: checks a snapshot of Mooncake's offset allocator.

use crate::args::SnapshotArgs;
use crate::snapshot::SnapshotReport;
use kvmem_cli::output::{Failure, JsonSink};
use kvmem_cli::output_file::OutputFiles;
use kvmem_trace::escape::shown;

/// Carries out the subcommand. The status is 1 if something is wrong with the snapshot.
pub(crate) fn run(args: &SnapshotArgs) -> Result<(), Failure> {
    let mut files = OutputFiles::new().protect("the snapshot that is read", &args.file);
    let json = JsonSink::open(&mut files, args.json.as_deref())?;
    let report = SnapshotReport::of(&args.file)
        .map_err(|error| Failure::usage(format_args!("{}: {error}", shown(&args.file))))?;
    json.write(&report, &report)?;
    match report.faults.len() {
        0 => Ok(()),
        count => {
            let what = if count == 1 { "one thing is" } else { "several things are" };
            Err(Failure::new(
                format_args!(
                    "{}: {what} wrong, {count} in all: do not restore it; start with an empty \
                     allocator, or with an older snapshot",
                    shown(&args.file)
                ),
                1,
            ))
        }
    }
}
