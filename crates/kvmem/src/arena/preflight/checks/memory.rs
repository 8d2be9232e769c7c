//! *Memory*: the machine's available memory, the memory that processes may commit, swap, and zswap
//! in front of it.

use super::super::check::{Check, Value, Verdict, human_bytes};
use super::super::facts::Facts;
use super::super::requirements::Requirements;
use crate::arena::machine::Read;

/// The part of the available memory that should stay available: one twentieth.
const SPARE_PART: u64 = 20;

pub(super) fn checks(facts: &Facts<'_>, requirements: &Requirements, checks: &mut Vec<Check>) {
    let need = Some(Value::Bytes(facts.coverage.ordinary_bytes));
    checks.push(Check::or_unknown("memory.available", need.clone(), available(facts)));
    checks.push(Check::or_unknown("memory.overcommit", need, overcommit(facts)));
    checks.push(Check::or_unknown("memory.swap", None, swap(facts, requirements)));
    checks.push(Check::or_unknown("memory.zswap", None, zswap(facts, requirements)));
}

fn available(facts: &Facts<'_>) -> Read<Check> {
    let available = facts.meminfo_bytes("MemAvailable")?;
    let need = facts.coverage.ordinary_bytes;
    let check = Check::new("memory.available", Value::Bytes(available));
    if need > available {
        let missing = need - available;
        let why =
            "more ordinary memory than is available: touching all of it gets a process killed";
        let fix = format!(
            "free {} by ending processes, or by giving back unused hugepages; request at most {}",
            human_bytes(missing),
            human_bytes(max_request(facts, available))
        );
        return Ok(check.judge(Verdict::Fail, why).fix(fix));
    }
    if available - need < available / SPARE_PART {
        let why = format!("only {} would stay available", human_bytes(available - need));
        let fix = format!("request at most {}", human_bytes(max_request(facts, available)));
        return Ok(check.judge(Verdict::Warn, why).fix(fix));
    }
    Ok(check.judge(Verdict::Ok, "enough is free, or used by caches that can be reclaimed"))
}

/// Returns the largest size in whole MiB that leaves the spare part available.
fn max_request(facts: &Facts<'_>, available: u64) -> u64 {
    let ordinary = available - available / SPARE_PART;
    ordinary.saturating_add(facts.coverage.hugetlb_bytes) >> 20 << 20
}

fn overcommit(facts: &Facts<'_>) -> Read<Check> {
    let mode = facts.sysctl("vm/overcommit_memory")?;
    let need = facts.coverage.ordinary_bytes;
    let name = "memory.overcommit";
    match mode {
        1 => Ok(Check::new(name, Value::Unlimited)
            .judge(Verdict::Ok, "vm.overcommit_memory=1: the kernel accepts every mapping")),
        2 => {
            let limit = facts.meminfo_bytes("CommitLimit")?;
            let promised = facts.meminfo_bytes("Committed_AS")?;
            let remaining = limit.saturating_sub(promised);
            let check = Check::new(name, Value::Bytes(remaining));
            if remaining >= need {
                return Ok(check.judge(Verdict::Ok, "remaining below CommitLimit"));
            }
            let why = format!(
                "vm.overcommit_memory=2: {1} of CommitLimit {0} are committed already",
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
                    "vm.overcommit_memory=0: one mapping may have as much as memory and swap \
                     together",
                ));
            }
            let why = "vm.overcommit_memory=0 denies a mapping larger than memory and swap, \
                except with MAP_NORESERVE; \
                       the whole of it cannot be touched";
            let fix = format!(
                "request at most {}; sysctl vm.overcommit_memory=1",
                human_bytes(all >> 20 << 20)
            );
            Ok(check.judge(Verdict::Warn, why).fix(fix))
        }
        other => {
            let check = Check::new(name, Value::Text(format!("mode {other}")));
            Ok(check.judge(
                Verdict::Unknown,
                "vm.overcommit_memory has a mode that this version of kvmem does not know",
            ))
        }
    }
}

/// Returns the reason why none of the memory can be swapped out, if there is one.
fn never_swapped(
    facts: &Facts<'_>,
    requirements: &Requirements,
    total: u64,
) -> Read<Option<&'static str>> {
    if total == 0 {
        return Ok(Some("there is no swap: resident pages stay resident"));
    }
    if facts.coverage.ordinary_bytes == 0 {
        return Ok(Some("hugetlb pages are never swapped"));
    }
    if requirements.is_pinned() {
        return Ok(Some("pinned pages are never swapped"));
    }
    let forbidden = match facts.memory.as_ref().map_err(Clone::clone)? {
        Some(hierarchy) if hierarchy.unified => hierarchy.forbids_swap(facts.files)?,
        _ => false,
    };
    Ok(forbidden.then_some("the cgroup forbids swap"))
}

fn swap(facts: &Facts<'_>, requirements: &Requirements) -> Read<Check> {
    let total = facts.meminfo_bytes("SwapTotal")?;
    let check = Check::new("memory.swap", Value::Bytes(total));
    if let Some(why) = never_swapped(facts, requirements, total)? {
        return Ok(check.judge(Verdict::Ok, why));
    }
    let why = "pages that are not pinned may be swapped out, and are read back one by one";
    Ok(check
        .judge(Verdict::Warn, why)
        .fix("swapoff -a; sysctl vm.swappiness=0; memory.swap.max=0 in the cgroup"))
}

/// zswap compresses pages before they reach the swap device, in the memory and in the time of the
/// machine.
fn zswap(facts: &Facts<'_>, requirements: &Requirements) -> Read<Check> {
    let path = "/sys/module/zswap/parameters/enabled";
    let enabled = |text: &str| match text.trim() {
        "Y" | "1" => Some(true),
        "N" | "0" => Some(false),
        _ => None,
    };
    let Some(enabled) = facts.files.value_if_exists(path, enabled)? else {
        // Without the folder above, a missing file says nothing.
        facts.files.names("/sys/module")?;
        return Ok(Check::new("memory.zswap", Value::Text("none".into()))
            .judge(Verdict::Ok, "the kernel has no zswap"));
    };
    let word = if enabled { "on" } else { "off" };
    let check = Check::new("memory.zswap", Value::Text(word.into()));
    if !enabled {
        return Ok(check.judge(Verdict::Ok, "pages are not compressed"));
    }
    let total = facts.meminfo_bytes("SwapTotal")?;
    if let Some(why) = never_swapped(facts, requirements, total)? {
        return Ok(check.judge(Verdict::Ok, why));
    }
    let why = "pages that are not pinned may be compressed, and KV caches hardly shrink: processor \
        time and memory are spent for nothing";
    Ok(check.judge(Verdict::Warn, why).fix(format!("echo N > {path}; zswap.enabled=0 at boot")))
}
