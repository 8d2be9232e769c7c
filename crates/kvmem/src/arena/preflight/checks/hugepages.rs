//! *Hugepages*: the hugetlb pools. Waiting does not add pages to a pool.

use crate::arena::PageSize;
use crate::arena::machine::hugetlb::HugetlbPool;

use super::super::check::{Check, Value, Verdict, human_bytes, setting_ceil};
use super::super::facts::Facts;
use super::super::requirements::Requirements;
use crate::arena::machine::Read;
use crate::arena::machine::parse;

pub(super) fn checks(facts: &Facts<'_>, requirements: &Requirements, checks: &mut Vec<Check>) {
    for pool in &facts.pools {
        let pages = facts.coverage.pages_requested(pool.page);
        let need = requirements.has(pool.page).then_some(Value::Count(pages));
        let name = format!("hugepages.{}", pool.page);
        checks.push(Check::or_unknown(name.clone(), need, free(facts, requirements, pool, pages)));
        // On a machine with one node, the node's pool is the whole pool.
        let nodes = pool.nodes.as_deref().unwrap_or_default();
        if facts.has_several_nodes() && requirements.has(pool.page) {
            let share = pages.div_ceil((nodes.len() as u64).max(1));
            let on_node = |&(node, free): &_| on_node(facts, pool, node, free, share);
            checks.extend(nodes.iter().map(on_node));
        }
    }
}

fn free(
    facts: &Facts<'_>,
    requirements: &Requirements,
    pool: &HugetlbPool,
    pages: u64,
) -> Read<Check> {
    let usable = pool.usable()?;
    let check = Check::new(format!("hugepages.{}", pool.page), Value::Count(usable));
    if !requirements.has(pool.page) {
        return Ok(check.judge(Verdict::Ok, "not on the ladder"));
    }
    let size = human_bytes(pool.bytes());
    if usable >= pages {
        return Ok(
            check.judge(Verdict::Ok, format!("enough pages of {size} are free and may be used"))
        );
    }
    let missing = pages - usable;
    let missing_bytes = human_bytes(missing.saturating_mul(pool.bytes()));
    let last = requirements.is_last(pool.page);
    // Surplus pages matter only if no other rung follows.
    let surplus = if last { pool.surplus.clone()? } else { 0 };
    let (verdict, why) = if last && surplus >= missing {
        let why = format!(
            "{usable} pages of {size} are free; the other {missing} are surplus, which the kernel \
             makes only if it finds contiguous memory"
        );
        (Verdict::Warn, why)
    } else if last {
        (Verdict::Fail, format!("{missing_bytes} are missing, and the ladder has no further rung"))
    } else if usable == 0 {
        (
            Verdict::Warn,
            format!("no page of {size} is free: all of it falls one step down the ladder"),
        )
    } else {
        (Verdict::Warn, format!("{missing_bytes} of it fall one step down the ladder"))
    };
    let check = check.judge(verdict, why);
    // Pages that other processes use must stay in the pool.
    let total = pool.total.as_ref().map_or(pages, |total| total.saturating_add(missing));
    Ok(check.fix(fix(facts, pool, total, pages)))
}

/// Returns the ways to get a pool of `total` pages, and `pages` of them in a container.
fn fix(facts: &Facts<'_>, pool: &HugetlbPool, total: u64, pages: u64) -> String {
    let default = facts.meminfo_bytes("Hugepagesize") == Ok(pool.bytes());
    let nodes: Vec<u32> = pool.nodes.iter().flatten().map(|(node, _)| *node).collect();
    let other_nodes =
        facts.nodes_online.as_ref().is_ok_and(|online| !nodes.is_empty() && *online != nodes);
    let now = if other_nodes {
        // The plain setting would spread the pages over all nodes.
        let file = format!("/sys/kernel/mm/hugepages/{}/nr_hugepages_mempolicy", pool.folder());
        format!("numactl -m {} sh -c 'echo {total} > {file}'", parse::span(&nodes))
    } else if default {
        format!("sysctl vm.nr_hugepages={total}")
    } else {
        format!("echo {total} > /sys/kernel/mm/hugepages/{}/nr_hugepages", pool.folder())
    };
    let name = if pool.page == PageSize::Huge1G { "1G" } else { "2M" };
    let boot = format!("at boot, before memory is broken up: hugepagesz={name} hugepages={total}");
    let amount = setting_ceil(pages.saturating_mul(pool.bytes()), "Gi", "Mi");
    let resource = if pool.page == PageSize::Huge1G { "hugepages-1Gi" } else { "hugepages-2Mi" };
    format!(
        "{now}; {boot}; Kubernetes, once the node has them: resources.limits {resource}: {amount}"
    )
}

fn on_node(facts: &Facts<'_>, pool: &HugetlbPool, node: u32, free: u64, share: u64) -> Check {
    let check = Check::new(format!("hugepages.{}.node{node}", pool.page), Value::Count(free));
    let check = check.need(Value::Count(share));
    if free >= share {
        return check.judge(Verdict::Ok, "enough for an even share of the nodes that may be used");
    }
    let why = "fewer than an even share of the nodes that may be used: interleaved memory is not \
        even, bound memory falls short";
    let folder = pool.folder();
    let path = format!("/sys/devices/system/node/node{node}/hugepages/{folder}/nr_hugepages");
    let more = share - free;
    let total = facts.files.value(&path, parse::number);
    let total = total.map_or_else(
        |_| format!("$(($(cat {path}) + {more}))"),
        |total| total.saturating_add(more).to_string(),
    );
    check.judge(Verdict::Warn, why).fix(format!("echo {total} > {path}"))
}
