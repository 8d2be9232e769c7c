//! *Devices*: how far the memory is from the GPUs and NICs, and whether an IOMMU translates their
//! accesses.

use super::super::check::{Check, Value, Verdict};
use super::super::facts::Facts;
use super::super::requirements::Requirements;
use crate::arena::machine::devices::{DmaDevice, distance, dma_devices};
use crate::arena::machine::{Read, parse};

/// The distance of a node to itself.
const LOCAL: u64 = 10;

pub(super) fn checks(facts: &Facts<'_>, requirements: &Requirements, checks: &mut Vec<Check>) {
    let devices = dma_devices(facts.files);
    checks.push(Check::or_unknown("iommu", None, iommu(&devices, requirements)));
    // On a machine with one node, all memory is next to all devices.
    if !facts.has_several_nodes() {
        return;
    }
    match devices {
        Ok(devices) => checks.extend(devices.iter().map(|device| {
            let name = format!("numa.{}", device.name);
            let need = Some(Value::Count(LOCAL));
            Check::or_unknown(name.clone(), need, near(facts, requirements, device, name))
        })),
        Err(unread) => checks.push(Check::unknown("numa.devices", None, &unread)),
    }
}

fn near(
    facts: &Facts<'_>,
    requirements: &Requirements,
    device: &DmaDevice,
    name: String,
) -> Read<Check> {
    let Some(node) = device.node.clone()? else {
        let check = Check::new(name, Value::Unknown);
        let why = format!("the firmware does not report the node of this {}", device.kind);
        return Ok(check.judge(Verdict::Unknown, why));
    };
    let wanted = requirements.required_nodes();
    let mut targets = facts.nodes.clone()?;
    targets.retain(|node| wanted.is_empty() || wanted.contains(node));
    let mut farthest = LOCAL;
    for target in &targets {
        farthest = farthest.max(distance(facts.files, node, *target)?);
    }
    let check = Check::new(name, Value::Count(farthest));
    let kind = device.kind;
    if targets.iter().all(|target| *target == node) {
        return Ok(
            check.judge(Verdict::Ok, format!("the memory is on node {node}, as this {kind}"))
        );
    }
    if wanted.is_empty() && targets.contains(&node) {
        let why = format!(
            "this {kind} is on node {node}; memory of other nodes is at a distance of up to \
             {farthest}, and --nodes {node} avoids it"
        );
        return Ok(check.judge(Verdict::Ok, why));
    }
    let why = format!(
        "this {kind} is on node {node} and memory is on node {}: transfers cross the link between \
         processors",
        parse::span(&targets)
    );
    let fix = format!(
        "request memory of node {node}: --nodes {node}; docker run --cpuset-mems={node}; run the \
         program with numactl -m {node}"
    );
    Ok(check.judge(Verdict::Warn, why).fix(fix))
}

fn iommu(devices: &Read<Vec<DmaDevice>>, requirements: &Requirements) -> Read<Check> {
    let devices = devices.as_ref().map_err(Clone::clone)?;
    let check = |word: &str| Check::new("iommu", Value::Text(word.to_owned()));
    if devices.is_empty() {
        return Ok(check("no use").judge(Verdict::Ok, "the machine shows no GPU and no RDMA NIC"));
    }
    let mut translated: Vec<(&str, String)> = Vec::new();
    let mut mode = "off".to_owned();
    for device in devices {
        match device.iommu.clone()? {
            Some(word) if word.starts_with("DMA") => translated.push((&device.name, word)),
            Some(word) => mode = word,
            None => {}
        }
    }
    let Some((_, word)) = translated.first() else {
        return Ok(check(&mode).judge(Verdict::Ok, "devices reach memory without translation"));
    };
    let check = check(word);
    if !requirements.is_pinned() {
        return Ok(check.judge(Verdict::Ok, "devices are translated, and none gets this memory"));
    }
    let names: Vec<&str> = translated.iter().map(|(name, _)| *name).collect();
    let why = format!(
        "the IOMMU translates {}: registering takes longer, and GPUs and NICs reach each other \
         only through the processor",
        names.join(", ")
    );
    Ok(check.judge(Verdict::Warn, why).fix(
        "at boot: iommu=pt on the kernel's command line, with intel_iommu=on or amd_iommu=on in a \
         machine that gives devices to guests",
    ))
}
