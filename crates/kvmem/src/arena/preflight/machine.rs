//! *Machine*: what the checks are made of, and the checks of all of it.

use std::path::PathBuf;

use super::check::Check;
use super::checks;
use super::facts::Facts;
use super::report::Report;
use super::requirements::Requirements;
use crate::arena::machine::{MachineFiles, System};
use crate::trace::span;

/// A machine: a folder with its `/proc` and `/sys`, and the kernel's answers.
#[derive(Clone, Debug)]
pub struct Machine {
    files: MachineFiles,
    system: System,
}

impl Machine {
    /// Returns the machine of this process, as this process sees it.
    #[must_use]
    pub fn here() -> Self {
        Machine::new("/", System::here())
    }

    /// Returns a machine whose files are under `root`: `<root>/proc/meminfo` and so on. For tests,
    /// and for files copied from another machine.
    #[must_use]
    pub fn new(root: impl Into<PathBuf>, system: System) -> Self {
        Machine { files: MachineFiles::under(root), system }
    }

    /// Compares every limit of the machine with the requirements. Maps nothing, changes nothing,
    /// and needs no privilege. Takes a few milliseconds, in proportion to the mappings of the
    /// process and the depth of its cgroup.
    ///
    /// A limit that cannot be read gets [`Verdict::Unknown`](super::Verdict::Unknown), so this
    /// never fails.
    #[must_use]
    pub fn preflight(&self, requirements: &Requirements) -> Report {
        span!(INFO, "preflight");
        let facts = Facts::read(&self.files, &self.system, requirements);
        let mut checks: Vec<Check> = Vec::new();
        checks::all(&facts, requirements, &mut checks);
        Report::new(requirements.clone(), checks)
    }
}
