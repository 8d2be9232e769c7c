//! `kvmem doctor`: runs the preflight of this machine and prints its report and the registrars, or
//! the remedies as a script.

use kvmem::arena::preflight::Verdict;
use kvmem::register::diagnose;
use kvmem_tier::preflight;

use crate::args::DoctorArgs;
use crate::output::{Failure, JsonSink, print};
use crate::output_file::OutputFiles;
use kvmem_trace::escape::shown;

/// The schema of the JSON.
const SCHEMA: &str = include_str!("doctor_command/schema.json");

/// Prints the report. A check that fails makes the command fail; a missing registrar does not. A
/// script or the schema is printed whatever the checks say.
pub(crate) fn run(args: &DoctorArgs) -> Result<(), Failure> {
    if args.schema {
        return print(SCHEMA);
    }
    let requirements = args.requirements().map_err(Failure::usage)?;
    let json = JsonSink::open(&mut OutputFiles::new(), args.json.as_deref())?;
    let mut diagnosis = diagnose(&requirements);
    if let Some(path) = &args.tier {
        diagnosis.report.add(preflight::checks(path, args.tier_size));
    }
    if args.fix {
        return print(diagnosis.report.fix_script());
    }
    json.write(&diagnosis, &diagnosis)?;
    if diagnosis.report.passes() {
        return Ok(());
    }
    let failed: Vec<&str> =
        diagnosis.report.with(Verdict::Fail).map(|check| &*check.name).collect();
    let what = match &args.tier {
        Some(path) => format!("{requirements}, or a disk tier in {}", shown(path)),
        None => requirements.to_string(),
    };
    Err(Failure::new(format_args!("this machine cannot give {what}: {}", failed.join(", ")), 1))
}
