//! *Idle hugepages*: pages of hugetlb pools that these requirements leave free. They count as used
//! in `MemAvailable`, by which engines decide how much memory they may take.

use super::super::check::{Check, Value, Verdict, human_bytes};
use super::super::facts::Facts;
use super::super::requirements::Requirements;
use crate::arena::PageSize;
use crate::arena::machine::Read;
use crate::arena::machine::hugetlb::HugetlbPool;

/// Idle pages that are a smaller part of the memory matter to nobody: one twentieth.
const SPARE_PART: u64 = 20;

pub(super) fn checks(facts: &Facts<'_>, requirements: &Requirements, checks: &mut Vec<Check>) {
    checks.push(Check::or_unknown("hugepages.idle", None, idle(facts, requirements)));
}

fn idle(facts: &Facts<'_>, requirements: &Requirements) -> Read<Check> {
    let mut idle = Vec::new();
    for pool in &facts.pools {
        let free = pool.free.clone()?;
        let taken = if requirements.has(pool.page) {
            facts.coverage.pages_requested(pool.page).min(free)
        } else {
            0
        };
        idle.push((free - taken, pool));
    }
    let bytes = |pages: u64, pool: &HugetlbPool| pages.saturating_mul(pool.bytes());
    let total =
        idle.iter().fold(0u64, |sum, (pages, pool)| sum.saturating_add(bytes(*pages, pool)));
    let check = Check::new("hugepages.idle", Value::Bytes(total));
    if total <= facts.meminfo_bytes("MemTotal")? / SPARE_PART {
        return Ok(check.judge(Verdict::Ok, "few hugepages would stay idle"));
    }
    let why = format!(
        "{} of hugepages would stay free, and engines do not count them as available memory",
        human_bytes(total)
    );
    let most = idle.iter().max_by_key(|(pages, pool)| bytes(*pages, pool));
    let fix = most.map_or_else(String::new, |(pages, pool)| fix(facts, requirements, *pages, pool));
    Ok(check.judge(Verdict::Warn, why).fix(fix))
}

/// Returns the ways to use the idle pages of a pool, or to return them to the kernel.
fn fix(facts: &Facts<'_>, requirements: &Requirements, idle: u64, pool: &HugetlbPool) -> String {
    let name = if pool.page == PageSize::Huge1G { "1G" } else { "2M" };
    let use_them = match requirements.has(pool.page) {
        true => "request more memory in them".to_owned(),
        false => format!("request {name} pages first: --pages {name},thp,4k"),
    };
    let Ok(total) = &pool.total else { return use_them };
    let stay = total.saturating_sub(idle);
    let give_back = match facts.meminfo_bytes("Hugepagesize") == Ok(pool.bytes()) {
        true => format!("sysctl vm.nr_hugepages={stay}"),
        false => format!("echo {stay} > /sys/kernel/mm/hugepages/{}/nr_hugepages", pool.folder()),
    };
    format!("{use_them}; or give them back, if no other program will use them: {give_back}")
}
