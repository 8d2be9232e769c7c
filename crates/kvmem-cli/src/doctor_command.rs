//! `kvmem doctor`: from the options to a preflight of this machine, and its report out again, with the registrars there are.

use std::fmt;

use kvmem::arena::preflight::{Machine, Report, Verdict};
use kvmem::register::{Found, discover};
use serde::Serialize;

use crate::args::DoctorArgs;
use crate::output::{Failure, JsonSink};

/// Prints the report; a check that fails is a failure of the command. A registrar that is not there is none.
pub(crate) fn run(args: &DoctorArgs) -> Result<(), Failure> {
    let wish = args.wish().map_err(Failure::usage)?;
    let json = JsonSink::open(args.json.as_deref())?;
    let diagnosis = Diagnosis { report: Machine::here().preflight(&wish), registrars: discover() };
    json.write(&diagnosis, &diagnosis)?;
    if diagnosis.report.passes() {
        return Ok(());
    }
    let failed: Vec<&str> = diagnosis.report.with(Verdict::Fail).map(|check| &*check.name).collect();
    Err(Failure::new(format_args!("this machine cannot give {wish}: {}", failed.join(", ")), 1))
}

/// The limits of the machine, and what memory can be registered with.
#[derive(Serialize)]
struct Diagnosis {
    #[serde(flatten)]
    report: Report,
    registrars: Vec<Found>,
}

impl fmt::Display for Diagnosis {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}\nregistrars\n", self.report)?;
        for found in &self.registrars {
            for line in found.to_string().lines() {
                writeln!(f, "  {line}")?;
            }
        }
        Ok(())
    }
}
