//! *Cgroups*: the memory and hugepages that all levels above this process allow.
//!
//! At `memory.max` the kernel kills a process; above `memory.high` it slows allocations down
//! extremely.

use super::super::check::{Check, Value, Verdict, human_bytes, setting_ceil};
use super::super::facts::Facts;
use super::super::requirements::Requirements;
use crate::arena::machine::{CgroupLimits, LimitFiles};

pub(super) fn checks(facts: &Facts<'_>, requirements: &Requirements, checks: &mut Vec<Check>) {
    memory(facts, checks);
    hugepages(facts, requirements, checks);
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
    let limits = |of| hierarchy.map(|hierarchy| hierarchy.limits(facts.files, of));
    let unified = hierarchy.is_none_or(|hierarchy| hierarchy.unified);
    let max = LimitFiles::memory_max(unified);
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
    checks.push(judge(names[0], limits(max).as_ref(), need, Verdict::Fail, "memory", fix));
    let high = LimitFiles::memory_high(unified).and_then(limits);
    let fix = |folder: &str, file: &str, limit: u64| {
        format!(
            "echo {limit} > {folder}/{file}; systemd: MemoryHigh={}",
            setting_ceil(limit, "G", "M")
        )
    };
    checks.push(judge(names[1], high.as_ref(), need, Verdict::Warn, "memory", fix));
}

/// Checks the limits of cgroups on hugepages, for each size on the ladder.
fn hugepages(facts: &Facts<'_>, requirements: &Requirements, checks: &mut Vec<Check>) {
    for pool in facts.pools.iter().filter(|pool| requirements.has(pool.page)) {
        let pages = facts.coverage.pages_requested(pool.page);
        // A cgroup cannot deny pages that the pool does not have, unless the last rung needs them.
        let usable = pool.usable().unwrap_or(pages);
        let reach = if requirements.is_last(pool.page) { pages } else { pages.min(usable) };
        let need = reach.saturating_mul(pool.bytes());
        let name = format!("cgroup.hugetlb.{}", pool.page);
        let limits = match &pool.limits {
            Ok(limits) => limits.as_ref(),
            Err(unread) => {
                checks.push(Check::unknown(name, Some(Value::Bytes(need)), unread));
                continue;
            }
        };
        let if_short = if requirements.is_last(pool.page) { Verdict::Fail } else { Verdict::Warn };
        let resource = pool.cgroup_name().replace('B', "i");
        let fix = |folder: &str, file: &str, limit: u64| {
            let amount = setting_ceil(need, "Gi", "Mi");
            format!(
                "echo {limit} > {folder}/{file}; Kubernetes: resources.limits \
                 hugepages-{resource}: {amount}"
            )
        };
        checks.push(judge(name, limits, need, if_short, "hugepages", fix));
    }
}

/// Compares the limits of all levels with `need`; `if_short` is the verdict if they are too low.
/// `limits` is `None` if the kernel has no such controller. `fix` receives the folder and the file
/// of the tightest level, and a sufficient limit.
fn judge(
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
            // A semicolon separates alternatives, and a group may be named by any user.
            let folder = tightest.folder.replace(';', "\\073");
            check.judge(if_short, why).fix(fix(&folder, &tightest.file, limit))
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
