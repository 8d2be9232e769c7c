//! *Diagnosis*: the limits of this machine and its registrars, as `kvmem doctor` prints them.

use std::fmt;

use serde::Serialize;

use super::{DetectedDevice, discover};
use crate::arena::preflight::{Machine, Report, Requirements};

/// The limits that affect some memory on this machine, and the registrars available for it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Diagnosis {
    /// Every limit, compared with the requirements.
    #[serde(flatten)]
    pub report: Report,
    /// The registrars of every kind, or why there are none. Having none is not an error.
    pub registrars: Vec<DetectedDevice>,
}

/// Compares the limits of this machine with the requirements and detects registrars; see
/// [`Machine::preflight`] and [`discover`].
#[must_use]
pub fn diagnose(requirements: &Requirements) -> Diagnosis {
    Diagnosis { report: Machine::here().preflight(requirements), registrars: discover() }
}

/// Writes the report, and a line for each registrar.
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

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::arena::PageSize;

    #[test]
    fn limits_and_registrars_are_shown_together() {
        let requirements = Requirements::new(1 << 20, PageSize::Base).unwrap();
        let diagnosis = diagnose(&requirements);
        let text = diagnosis.to_string();
        assert!(
            text.starts_with("1 MiB of 4k pages") && text.contains("\nregistrars\n  "),
            "{text}"
        );
        let json = serde_json::to_value(&diagnosis).unwrap();
        assert_eq!(json["requirements"]["size_bytes"], 1 << 20);
        assert_eq!(json["registrars"][0]["backend"], "io_uring");
    }
}
