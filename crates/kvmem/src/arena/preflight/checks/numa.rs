//! *NUMA*: the nodes that this process may use, and their free memory.

use super::super::check::{Check, Value, Verdict, human_bytes};
use super::super::facts::Facts;
use super::super::requirements::Requirements;
use crate::arena::machine::Read;
use crate::arena::machine::parse;

pub(super) fn checks(facts: &Facts<'_>, requirements: &Requirements, checks: &mut Vec<Check>) {
    let wanted = requirements.required_nodes();
    let need = (!wanted.is_empty()).then(|| Value::Text(parse::span(wanted)));
    checks.push(Check::or_unknown("numa.nodes", need, nodes(facts, wanted)));
    let Ok(allowed) = &facts.nodes else { return };
    // The memory of a single node is that of the machine.
    if !facts.has_several_nodes() {
        return;
    }
    let targets: Vec<u32> =
        allowed.iter().copied().filter(|node| wanted.is_empty() || wanted.contains(node)).collect();
    let share = facts.coverage.ordinary_bytes.div_ceil((targets.len() as u64).max(1));
    for node in targets {
        let name = format!("memory.node{node}");
        checks.push(Check::or_unknown(
            name.clone(),
            Some(Value::Bytes(share)),
            on_node(facts, name, node, share),
        ));
    }
}

fn nodes(facts: &Facts<'_>, wanted: &[u32]) -> Read<Check> {
    let allowed = facts.nodes.clone()?;
    let online = facts.nodes_online.clone()?;
    let check = Check::new("numa.nodes", Value::Text(parse::span(&allowed)));
    let forbidden: Vec<u32> =
        wanted.iter().copied().filter(|node| !allowed.contains(node)).collect();
    if forbidden.is_empty() {
        return Ok(check.judge(
            Verdict::Ok,
            format!("this process may use these of the nodes {}", parse::span(&online)),
        ));
    }
    let absent: Vec<u32> =
        forbidden.iter().copied().filter(|node| !online.contains(node)).collect();
    if !absent.is_empty() {
        let why = format!("this machine has no node {}", parse::span(&absent));
        return Ok(check
            .judge(Verdict::Fail, why)
            .fix(format!("choose among the nodes {}", parse::span(&allowed))));
    }
    let list = parse::span(wanted);
    let why = format!("the cpuset does not allow node {}", parse::span(&forbidden));
    let fix = format!(
        "docker run --cpuset-mems={list}; systemd: AllowedMemoryNodes={list}; echo {list} > \
         cpuset.mems of the cgroup"
    );
    Ok(check.judge(Verdict::Fail, why).fix(fix))
}

fn on_node(facts: &Facts<'_>, name: String, node: u32, share: u64) -> Read<Check> {
    let path = format!("/sys/devices/system/node/node{node}/meminfo");
    let free = |text: &str| {
        let free = parse::node_field_bytes(text, "MemFree")?;
        // The kernel reclaims file caches that were not used lately.
        Some(free.saturating_add(parse::node_field_bytes(text, "Inactive(file)")?))
    };
    let free = facts.files.value(&path, free)?;
    let check = Check::new(name, Value::Bytes(free));
    if free >= share {
        return Ok(check.judge(Verdict::Ok, "enough for an even share"));
    }
    let why = "less than an even share of the nodes that may be used: bound memory fails, \
        interleaved memory is not even";
    let fix = format!("free {} on node {node}; choose other nodes", human_bytes(share - free));
    Ok(check.judge(Verdict::Warn, why).fix(fix))
}
