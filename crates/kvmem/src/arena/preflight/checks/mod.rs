//! *Checks*: what each limit means for a wish. One file for each kind of limit; each reads
//! [`Facts`] and adds [`Check`]s.

mod cgroups;
mod cpus;
mod hugepages;
mod kernel;
mod maps;
mod memory;
mod numa;
mod rlimits;
mod shm;
mod thp;

use super::check::{Check, Value};
use super::facts::Facts;
use super::machine::Read;
use super::wish::Requirements;

/// All checks, those first that decide which pages there are.
pub(super) fn all(facts: &Facts<'_>, requirements: &Requirements, checks: &mut Vec<Check>) {
    hugepages::checks(facts, requirements, checks);
    thp::checks(facts, requirements, checks);
    memory::checks(facts, requirements, checks);
    cgroups::checks(facts, requirements, checks);
    rlimits::checks(facts, requirements, checks);
    shm::checks(facts, requirements, checks);
    maps::checks(facts, checks);
    numa::checks(facts, requirements, checks);
    cpus::checks(facts, checks);
    kernel::checks(facts, checks);
}

/// A check that was made, or the check that says why it could not be.
fn known(name: impl Into<String>, need: Option<Value>, check: Read<Check>) -> Check {
    match check {
        Ok(check) => Check { need: check.need.or(need), ..check },
        Err(unread) => Check::unknown(name.into(), need, &unread),
    }
}
