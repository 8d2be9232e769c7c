//! *All checks*: makes them in the order of the report.

use std::borrow::Cow;

use super::super::check::Check;
use super::super::facts::Facts;
use super::super::requirements::Requirements;
use super::sources::source;
use super::{
    cgroups, cpus, dma_devices, hugepages, idle_hugepages, kernel, maps, memory, numa, pins,
    rlimits, shm, shm_files, thp,
};

/// Makes all checks; those that decide the kinds of pages come first.
pub(in crate::arena::preflight) fn all(
    facts: &Facts<'_>,
    requirements: &Requirements,
    checks: &mut Vec<Check>,
) {
    hugepages::checks(facts, requirements, checks);
    idle_hugepages::checks(facts, requirements, checks);
    thp::checks(facts, requirements, checks);
    memory::checks(facts, requirements, checks);
    cgroups::checks(facts, requirements, checks);
    rlimits::checks(facts, requirements, checks);
    pins::checks(facts, requirements, checks);
    shm::checks(facts, requirements, checks);
    shm_files::checks(facts, checks);
    maps::checks(facts, checks);
    numa::checks(facts, requirements, checks);
    dma_devices::checks(facts, requirements, checks);
    cpus::checks(facts, checks);
    kernel::checks(facts, requirements, checks);
    for check in checks {
        check.source = source(&check.name).map(Cow::Borrowed);
    }
}
