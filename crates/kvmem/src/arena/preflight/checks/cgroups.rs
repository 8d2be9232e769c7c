//! *Cgroups*: the memory and hugepages that all levels above this process allow.
//!
//! At `memory.max` the kernel kills a process; above `memory.high` it slows allocations down
//! extremely.

use super::super::cgroup::{CgroupLimits, LimitFiles};
use super::super::check::{Check, Value, Verdict, human_bytes, setting_ceil};
use super::super::facts::Facts;
use super::super::requirements::Requirements;

pub(super) fn checks(facts: &Facts<'_>, requirements: &Requirements, checks: &mut Vec<Check>) {
    memory(facts, checks);
    super::hugepages::in_cgroups(facts, requirements, checks);
}

fn memory(facts: &Facts<'_>, checks: &mut Vec<Check>) {
    let names = ["cgroup.memory.max", "cgroup.memory.high"];
    let hierarchy = match &facts.memory {
        Ok(hierarchy) => hierarchy.as_ref(),
        Err(unread) => {
            let need = Some(Value::Bytes(facts.coverage.ordinary_bytes));
            checks.extend(names.map(|name| Check::unknown(name, need.clone(), unread)));
            return;
        }
    };
    let mut need = facts.coverage.ordinary_bytes;
    if hierarchy.is_some_and(|hierarchy| hierarchy.counts_hugepages) {
        need = need.saturating_add(facts.coverage.hugetlb_bytes);
    }
    let limits = |files| hierarchy.map(|hierarchy| hierarchy.limits(facts.machine, files));
    let unified = hierarchy.is_none_or(|hierarchy| hierarchy.unified);
    let (usage, reclaimable) = match unified {
        true => ("memory.current", ("memory.stat", "inactive_file")),
        false => ("memory.usage_in_bytes", ("memory.stat", "total_inactive_file")),
    };
    let files = |limit| LimitFiles { limit, usage, reclaimable: Some(reclaimable) };
    let max = if unified { "memory.max" } else { "memory.limit_in_bytes" };
    let fix = |folder: &str, file: &str, limit: u64| {
        let container = format!(
            "docker run --memory={}; Kubernetes: resources.limits memory: {}",
            setting_ceil(limit, "g", "m"),
            setting_ceil(limit, "Gi", "Mi")
        );
        format!(
            "echo {limit} > {folder}/{file}; {container}; systemd: MemoryMax={}",
            setting_ceil(limit, "G", "M")
        )
    };
    checks.push(judge(names[0], limits(files(max)).as_ref(), need, Verdict::Fail, "memory", fix));
    // v1 has no limit that throttles; its soft limit only decides which group the kernel reclaims
    // from first.
    let high = if unified { limits(files("memory.high")) } else { None };
    let fix = |folder: &str, file: &str, limit: u64| {
        format!(
            "echo {limit} > {folder}/{file}; systemd: MemoryHigh={}",
            setting_ceil(limit, "G", "M")
        )
    };
    checks.push(judge(names[1], high.as_ref(), need, Verdict::Warn, "memory", fix));
}

/// Compares the limits of all levels with `need`; `if_short` is the verdict if they are too low.
/// `limits` is `None` if the kernel has no such controller. `fix` receives the folder and the file
/// of the tightest level, and a sufficient limit.
pub(super) fn judge(
    name: impl Into<String>,
    limits: Option<&CgroupLimits>,
    need: u64,
    if_short: Verdict,
    what: &str,
    fix: impl FnOnce(&str, &str, u64) -> String,
) -> Check {
    let name = name.into();
    let Some(limits) = limits else {
        let why = format!("no cgroup limits {what} in this way");
        return Check::new(name, Value::Unlimited).need(Value::Bytes(need)).judge(Verdict::Ok, why);
    };
    let hidden = if limits.hidden {
        "; levels above what this container sees may have limits of their own"
    } else {
        ""
    };
    match (&limits.tightest, &limits.unread) {
        (Some(tightest), _) if tightest.remaining() < need => {
            let check =
                Check::new(name, Value::Bytes(tightest.remaining())).need(Value::Bytes(need));
            let why = format!(
                "{}/{} is {}, of which {} are in use",
                tightest.folder,
                tightest.file,
                human_bytes(tightest.limit),
                human_bytes(tightest.used)
            );
            let limit = tightest.used.saturating_add(need);
            check.judge(if_short, why).fix(fix(&tightest.folder, &tightest.file, limit))
        }
        (_, Some(unread)) => Check::unknown(name, Some(Value::Bytes(need)), unread),
        (Some(tightest), None) => {
            let check =
                Check::new(name, Value::Bytes(tightest.remaining())).need(Value::Bytes(need));
            check.judge(
                Verdict::Ok,
                format!("remaining below {}/{}{hidden}", tightest.folder, tightest.file),
            )
        }
        (None, None) => {
            let check = Check::new(name, Value::Unlimited).need(Value::Bytes(need));
            // A container that sees only its own levels cannot know whether there is a limit.
            match limits.hidden {
                true => Check {
                    value: Value::Unknown,
                    ..check
                        .judge(Verdict::Unknown, format!("no visible level limits {what}{hidden}"))
                },
                false => check.judge(Verdict::Ok, format!("no level limits {what}")),
            }
        }
    }
}
