//! `kvmem doctor`: from the options to a preflight of this machine, and its report out again, with
//! the registrars there are.

use kvmem::arena::preflight::Verdict;
use kvmem::register::diagnose;

use crate::args::DoctorArgs;
use crate::output::{Failure, JsonSink};
use crate::output_file::OutputFiles;

/// Prints the report; a check that fails is a failure of the command. A registrar that is not there
/// is none.
pub(crate) fn run(args: &DoctorArgs) -> Result<(), Failure> {
    let requirements = args.requirements().map_err(Failure::usage)?;
    let json = JsonSink::open(&mut OutputFiles::new(), args.json.as_deref())?;
    let diagnosis = diagnose(&requirements);
    json.write(&diagnosis, &diagnosis)?;
    if diagnosis.report.passes() {
        return Ok(());
    }
    let failed: Vec<&str> =
        diagnosis.report.with(Verdict::Fail).map(|check| &*check.name).collect();
    Err(Failure::new(format_args!("this machine cannot give {wish}: {}", failed.join(", ")), 1))
}
