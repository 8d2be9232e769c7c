//! *Cgroups*: what the levels above this process leave of memory and of hugepages.
//!
//! At `memory.max` the kernel kills, at `memory.high` it slows allocation down to a crawl.

use super::super::cgroup::{Gauge, Rooms};
use super::super::check::{Check, Value, Verdict, human_bytes, setting_ceil};
use super::super::facts::Facts;
use super::super::wish::Requirements;

pub(super) fn checks(facts: &Facts<'_>, requirements: &Requirements, checks: &mut Vec<Check>) {
    memory(facts, checks);
    super::hugepages::in_cgroups(facts, requirements, checks);
}

fn memory(facts: &Facts<'_>, checks: &mut Vec<Check>) {
    let names = ["cgroup.memory.max", "cgroup.memory.high"];
    let hierarchy = match &facts.memory {
        Ok(hierarchy) => hierarchy.as_ref(),
        Err(unread) => {
            let need = Some(Value::Bytes(facts.cover.ordinary_bytes));
            checks.extend(names.map(|name| Check::unknown(name, need.clone(), unread)));
            return;
        }
    };
    let mut need = facts.cover.ordinary_bytes;
    if hierarchy.is_some_and(|hierarchy| hierarchy.counts_hugepages) {
        need = need.saturating_add(facts.cover.hugetlb_bytes);
    }
    let rooms = |gauge| hierarchy.map(|hierarchy| hierarchy.rooms(facts.machine, gauge));
    let unified = hierarchy.is_none_or(|hierarchy| hierarchy.unified);
    let (usage, reclaimable) = match unified {
        true => ("memory.current", ("memory.stat", "inactive_file")),
        false => ("memory.usage_in_bytes", ("memory.stat", "total_inactive_file")),
    };
    let gauge = |limit| Gauge { limit, usage, reclaimable: Some(reclaimable) };
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
    checks.push(judge(names[0], rooms(gauge(max)).as_ref(), need, Verdict::Fail, "memory", fix));
    // v1 has no limit that slows down; its soft limit only says whom to take from first.
    let high = if unified { rooms(gauge("memory.high")) } else { None };
    let fix = |folder: &str, file: &str, limit: u64| {
        format!(
            "echo {limit} > {folder}/{file}; systemd: MemoryHigh={}",
            setting_ceil(limit, "G", "M")
        )
    };
    checks.push(judge(names[1], high.as_ref(), need, Verdict::Warn, "memory", fix));
}

/// Holds what all levels leave against `need`; `below` is the verdict when it is too little.
/// `rooms` is `None` where there is no such controller. `fix` gets the folder and the file of the
/// tightest level, and the limit that would do.
pub(super) fn judge(
    name: impl Into<String>,
    rooms: Option<&Rooms>,
    need: u64,
    below: Verdict,
    what: &str,
    fix: impl FnOnce(&str, &str, u64) -> String,
) -> Check {
    let name = name.into();
    let Some(rooms) = rooms else {
        let why = format!("no cgroup limits {what} in this way");
        return Check::new(name, Value::Unlimited).need(Value::Bytes(need)).judge(Verdict::Ok, why);
    };
    let hidden = if rooms.hidden {
        "; levels above what this container sees may have limits of their own"
    } else {
        ""
    };
    match (&rooms.tightest, &rooms.unread) {
        (Some(room), _) if room.left() < need => {
            let check = Check::new(name, Value::Bytes(room.left())).need(Value::Bytes(need));
            let why = format!(
                "{}/{} is {}, of which {} are in use",
                room.folder,
                room.file,
                human_bytes(room.limit),
                human_bytes(room.used)
            );
            let limit = room.used.saturating_add(need);
            check.judge(below, why).fix(fix(&room.folder, &room.file, limit))
        }
        (_, Some(unread)) => Check::unknown(name, Some(Value::Bytes(need)), unread),
        (Some(room), None) => {
            let check = Check::new(name, Value::Bytes(room.left())).need(Value::Bytes(need));
            check.judge(Verdict::Ok, format!("left below {}/{}{hidden}", room.folder, room.file))
        }
        (None, None) => {
            let check = Check::new(name, Value::Unlimited).need(Value::Bytes(need));
            // A container that sees only itself cannot say that there is no limit.
            match rooms.hidden {
                true => Check {
                    value: Value::Unknown,
                    ..check.judge(
                        Verdict::Unknown,
                        format!("no level that can be seen limits {what}{hidden}"),
                    )
                },
                false => check.judge(Verdict::Ok, format!("no level limits {what}")),
            }
        }
    }
}
