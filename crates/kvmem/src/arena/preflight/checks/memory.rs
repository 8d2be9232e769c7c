//! *Memory*: what the machine has free, what it lets processes promise themselves, and whether it
//! swaps.

use super::super::check::{Check, Value, Verdict, human_bytes};
use super::super::facts::Facts;
use super::super::machine::Read;
use super::super::wish::Requirements;
use super::known;

/// Of what is available, the part that should stay so: one twentieth.
const SPARE_PART: u64 = 20;

pub(super) fn checks(facts: &Facts<'_>, requirements: &Requirements, checks: &mut Vec<Check>) {
    let need = Some(Value::Bytes(facts.cover.ordinary_bytes));
    checks.push(known("memory.available", need.clone(), available(facts)));
    checks.push(known("memory.overcommit", need, overcommit(facts)));
    checks.push(known("memory.swap", None, swap(facts, requirements)));
}

fn available(facts: &Facts<'_>) -> Read<Check> {
    let available = facts.meminfo_bytes("MemAvailable")?;
    let need = facts.cover.ordinary_bytes;
    let check = Check::new("memory.available", Value::Bytes(available));
    if need > available {
        let missing = need - available;
        let why =
            "more ordinary memory than is available: to touch it all gets some process killed";
        let fix = format!(
            "free {} by ending what uses it, or by giving back hugepages that nobody uses; ask for at most {}",
            human_bytes(missing),
            human_bytes(wish_at_most(facts, available))
        );
        return Ok(check.judge(Verdict::Fail, why).fix(fix));
    }
    if available - need < available / SPARE_PART {
        let why = format!("only {} would stay available", human_bytes(available - need));
        let fix = format!("ask for at most {}", human_bytes(wish_at_most(facts, available)));
        return Ok(check.judge(Verdict::Warn, why).fix(fix));
    }
    Ok(check.judge(Verdict::Ok, "enough is free, or held by caches that give way"))
}

/// The largest wish that leaves the spare part, in whole MiB.
fn wish_at_most(facts: &Facts<'_>, available: u64) -> u64 {
    let ordinary = available - available / SPARE_PART;
    ordinary.saturating_add(facts.cover.hugetlb_bytes) >> 20 << 20
}

fn overcommit(facts: &Facts<'_>) -> Read<Check> {
    let mode = facts.sysctl("vm/overcommit_memory")?;
    let need = facts.cover.ordinary_bytes;
    let name = "memory.overcommit";
    match mode {
        1 => Ok(Check::new(name, Value::Unlimited)
            .judge(Verdict::Ok, "vm.overcommit_memory=1: nothing is refused")),
        2 => {
            let limit = facts.meminfo_bytes("CommitLimit")?;
            let promised = facts.meminfo_bytes("Committed_AS")?;
            let left = limit.saturating_sub(promised);
            let check = Check::new(name, Value::Bytes(left));
            if left >= need {
                return Ok(check.judge(Verdict::Ok, "left below CommitLimit"));
            }
            let why = format!(
                "vm.overcommit_memory=2: of CommitLimit {} already {} are promised",
                human_bytes(limit),
                human_bytes(promised)
            );
            let kib = promised.saturating_add(need).div_ceil(1024);
            let fix = format!("sysctl vm.overcommit_memory=0; sysctl vm.overcommit_kbytes={kib}");
            Ok(check.judge(Verdict::Fail, why).fix(fix))
        }
        0 => {
            let all =
                facts.meminfo_bytes("MemTotal")?.saturating_add(facts.meminfo_bytes("SwapTotal")?);
            let check = Check::new(name, Value::Bytes(all));
            if all >= need {
                return Ok(check.judge(
                    Verdict::Ok,
                    "vm.overcommit_memory=0: no more than memory and swap at once",
                ));
            }
            let why = "vm.overcommit_memory=0 refuses a mapping that is larger than memory and swap, but for one with MAP_NORESERVE; \
                       it cannot be touched whole";
            let fix = format!(
                "ask for at most {}; sysctl vm.overcommit_memory=1",
                human_bytes(all >> 20 << 20)
            );
            Ok(check.judge(Verdict::Warn, why).fix(fix))
        }
        other => {
            let check = Check::new(name, Value::Text(format!("mode {other}")));
            Ok(check.judge(
                Verdict::Unknown,
                "vm.overcommit_memory has a mode that this version does not know",
            ))
        }
    }
}

fn swap(facts: &Facts<'_>, requirements: &Requirements) -> Read<Check> {
    let total = facts.meminfo_bytes("SwapTotal")?;
    let check = Check::new("memory.swap", Value::Bytes(total));
    if total == 0 {
        return Ok(check.judge(Verdict::Ok, "there is none: resident pages stay resident"));
    }
    if facts.cover.ordinary_bytes == 0 {
        return Ok(check.judge(Verdict::Ok, "hugepages of a pool are never swapped"));
    }
    if requirements.is_pinned() {
        return Ok(check.judge(Verdict::Ok, "pinned pages are never swapped"));
    }
    let forbidden = match facts.memory.as_ref().map_err(Clone::clone)? {
        Some(hierarchy) if hierarchy.unified => hierarchy.forbids_swap(facts.machine)?,
        _ => false,
    };
    if forbidden {
        return Ok(check.judge(Verdict::Ok, "the cgroup may not use it"));
    }
    let why = "pages that are not pinned may be swapped out, and are then read back one by one";
    Ok(check
        .judge(Verdict::Warn, why)
        .fix("swapoff -a; sysctl vm.swappiness=0; memory.swap.max=0 in the cgroup"))
}
