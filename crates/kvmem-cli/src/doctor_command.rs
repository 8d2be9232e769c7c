//! `kvmem doctor`: from the options to a preflight of this machine, and its report out again.

use kvmem::arena::preflight::{Machine, Verdict};

use crate::args::DoctorArgs;
use crate::output::{Failure, JsonSink};

/// Prints the report; a check that fails is a failure of the command.
pub(crate) fn run(args: &DoctorArgs) -> Result<(), Failure> {
    let wish = args.wish().map_err(Failure::usage)?;
    let json = JsonSink::open(args.json.as_deref())?;
    let report = Machine::here().preflight(&wish);
    json.write(&report, &report)?;
    if report.passes() {
        return Ok(());
    }
    let failed: Vec<&str> = report.with(Verdict::Fail).map(|check| &*check.name).collect();
    Err(Failure::new(format_args!("this machine cannot give {wish}: {}", failed.join(", ")), 1))
}
