//! *Mappings*: their number is limited per process. Each change of advice or policy in the middle
//! of a mapping adds two.

use super::super::check::{Check, Value, Verdict};
use super::super::facts::Facts;
use crate::arena::machine::{Read, mappings};

/// The mappings that a region may need: for rungs, guard pages, and ranges that are discarded or
/// bound separately.
const NEEDED: u64 = 1024;
/// With fewer, even a region of one segment fails.
const MINIMUM: u64 = 16;

pub(super) fn checks(facts: &Facts<'_>, checks: &mut Vec<Check>) {
    checks.push(Check::or_unknown("maps.left", Some(Value::Count(NEEDED)), remaining(facts)));
}

fn remaining(facts: &Facts<'_>) -> Read<Check> {
    let (limit, used) = mappings(facts.files)?;
    let remaining = limit.saturating_sub(used);
    let check = Check::new("maps.left", Value::Count(remaining));
    if remaining >= NEEDED {
        return Ok(check.judge(Verdict::Ok, "remaining below vm.max_map_count"));
    }
    let verdict = if remaining < MINIMUM { Verdict::Fail } else { Verdict::Warn };
    let why = format!("vm.max_map_count is {limit}, {used} mappings are in use");
    // The kernel's default is the smallest sensible value.
    let count = used.saturating_add(NEEDED).saturating_mul(2).max(65_530);
    Ok(check.judge(verdict, why).fix(format!("sysctl vm.max_map_count={count}")))
}
