//! *All checks*: makes them in the order of the report.

use super::super::check::Check;
use super::super::facts::Facts;
use super::super::requirements::Requirements;
use super::{cgroups, cpus, hugepages, kernel, maps, memory, numa, rlimits, shm, thp};

/// Makes all checks; those that decide the kinds of pages come first.
pub(in crate::arena::preflight) fn all(
    facts: &Facts<'_>,
    requirements: &Requirements,
    checks: &mut Vec<Check>,
) {
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
