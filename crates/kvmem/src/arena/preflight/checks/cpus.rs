//! *Processors*: the number of threads that can populate at the same time, from the affinity mask
//! and the quota of the cgroups.

use super::super::check::{Check, Value, Verdict};
use super::super::facts::Facts;
use crate::arena::machine::parse;
use crate::arena::machine::{Read, within_quota};

/// Populating in parallel needs at least two.
const NEEDED: u64 = 2;

pub(super) fn checks(facts: &Facts<'_>, checks: &mut Vec<Check>) {
    checks.push(Check::or_unknown("cpus", Some(Value::Count(NEEDED)), cpus(facts)));
}

fn cpus(facts: &Facts<'_>) -> Read<Check> {
    let list = |text: &str, key: &str| parse::list(parse::field(text, key)?);
    let mask = match facts.system.cpus {
        Some(cpus) => u64::from(cpus),
        None => facts.status("Cpus_allowed_list", list)?.len() as u64,
    };
    let quota = match facts.cpu.as_ref().map_err(Clone::clone)? {
        Some(hierarchy) => hierarchy.cpu_quota(facts.files)?,
        None => None,
    };
    let cpus = within_quota(mask, quota);
    let check = Check::new("cpus", Value::Count(cpus));
    if cpus >= NEEDED {
        return Ok(check.judge(Verdict::Ok, "several threads can populate at the same time"));
    }
    let (why, fix) = match quota {
        Some(quota) if mask >= NEEDED => (
            format!(
                "the cgroup's quota is {}.{:03} processors, so one thread populates",
                quota / 1000,
                quota % 1000
            ),
            "docker run --cpus=4; Kubernetes: resources.limits cpu: 4; systemd: CPUQuota=400%",
        ),
        _ => (
            "the affinity mask has one processor, so one thread populates".to_owned(),
            "taskset -c 0-3; docker run --cpuset-cpus=0-3",
        ),
    };
    Ok(check.judge(Verdict::Warn, why).fix(fix))
}
