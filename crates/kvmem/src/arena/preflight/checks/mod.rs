//! *Checks*: compares each limit with the requirements. There is one file for each kind of limit;
//! each uses [`Facts`] and adds [`Check`]s.

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
use super::requirements::Requirements;

/// Makes all checks; those that decide the kinds of pages come first.
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

/// Returns a check, or a check that says why it could not be made.
fn checked(name: impl Into<String>, need: Option<Value>, check: Read<Check>) -> Check {
    match check {
        Ok(check) => Check { need: check.need.or(need), ..check },
        Err(unread) => Check::unknown(name.into(), need, &unread),
    }
}
