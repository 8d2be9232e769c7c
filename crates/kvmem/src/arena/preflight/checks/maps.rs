//! *Mappings*: a process has a limited number of them, and each change of advice or policy in the
//! middle of one makes two more.

use super::super::check::{Check, Value, Verdict};
use super::super::facts::Facts;
use super::super::machine::Read;
use super::known;

/// Mappings that a region may come to need: rungs, guard pages, and ranges that are given back or
/// bound apart.
const NEEDED: u64 = 1024;
/// Without so many even a region of one piece does not fit.
const LEAST: u64 = 16;

pub(super) fn checks(facts: &Facts<'_>, checks: &mut Vec<Check>) {
    checks.push(known("maps.left", Some(Value::Count(NEEDED)), left(facts)));
}

fn left(facts: &Facts<'_>) -> Read<Check> {
    let limit = facts.sysctl("vm/max_map_count")?;
    let used = facts.machine.lines("/proc/self/maps")?;
    let left = limit.saturating_sub(used);
    let check = Check::new("maps.left", Value::Count(left));
    if left >= NEEDED {
        return Ok(check.judge(Verdict::Ok, "left below vm.max_map_count"));
    }
    let verdict = if left < LEAST { Verdict::Fail } else { Verdict::Warn };
    let why = format!("vm.max_map_count is {limit}, {used} mappings are in use");
    // The kernel's own default is the least that makes sense.
    let count = used.saturating_add(NEEDED).saturating_mul(2).max(65_530);
    Ok(check.judge(verdict, why).fix(format!("sysctl vm.max_map_count={count}")))
}
