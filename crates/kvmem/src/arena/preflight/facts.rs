//! *Facts*: all files that the checks use, each read once.

use super::coverage::Coverage;
use super::requirements::Requirements;
use crate::arena::PageSize;
use crate::arena::machine::hugetlb::HugetlbPool;
use crate::arena::machine::{Cgroups, Hierarchy, MachineFiles, Read, System, Unread, parse};

/// All facts.
pub(super) struct Facts<'a> {
    pub(super) files: &'a MachineFiles,
    pub(super) system: &'a System,
    pub(super) status: Read<String>,
    pub(super) meminfo: Read<String>,
    /// The nodes that this process may use.
    pub(super) nodes: Read<Vec<u32>>,
    /// The nodes of the machine.
    pub(super) nodes_online: Read<Vec<u32>>,
    pub(super) pools: [HugetlbPool; 2],
    pub(super) memory: Read<Option<Hierarchy>>,
    pub(super) cpu: Read<Option<Hierarchy>>,
    /// Which rung provides which part of the requirements.
    pub(super) coverage: Coverage,
}

impl<'a> Facts<'a> {
    pub(super) fn read(
        files: &'a MachineFiles,
        system: &'a System,
        requirements: &Requirements,
    ) -> Self {
        let status = files.text("/proc/self/status");
        let nodes_online = files.value("/sys/devices/system/node/online", parse::list);
        let nodes = allowed_nodes(&status, &nodes_online);
        let wanted = nodes.clone().map(|mut nodes| {
            nodes.retain(|node| {
                requirements.required_nodes().is_empty()
                    || requirements.required_nodes().contains(node)
            });
            nodes
        });
        let cgroups = Cgroups::read(files);
        let hierarchy = |controller| match &cgroups {
            Ok(Some(cgroups)) => cgroups.hierarchy(files, controller),
            Ok(None) => Ok(None),
            Err(unread) => Err(unread.clone()),
        };
        let hugetlb = hierarchy("hugetlb");
        let pools = [PageSize::Huge1G, PageSize::Huge2M]
            .map(|page| HugetlbPool::read(files, page, &wanted, &hugetlb));
        let coverage = Coverage::of(requirements, &pools, system.page_bytes);
        Facts {
            files,
            system,
            meminfo: files.text("/proc/meminfo"),
            memory: hierarchy("memory"),
            cpu: hierarchy("cpu"),
            status,
            nodes,
            nodes_online,
            pools,
            coverage,
        }
    }

    /// Returns whether the machine has more than one node.
    pub(super) fn has_several_nodes(&self) -> bool {
        self.nodes_online.as_ref().is_ok_and(|nodes| nodes.len() > 1)
    }

    /// Returns the major and minor number of the kernel's release.
    pub(super) fn kernel(&self) -> Read<(u32, u32)> {
        self.files.value("/proc/sys/kernel/osrelease", parse::release)
    }

    /// Returns a field of `/proc/self/status`.
    pub(super) fn status<T>(
        &self,
        key: &str,
        parse: impl FnOnce(&str, &str) -> Option<T>,
    ) -> Read<T> {
        field(&self.status, "/proc/self/status", key, parse)
    }

    /// Returns a field of `/proc/meminfo`, in bytes.
    pub(super) fn meminfo_bytes(&self, key: &str) -> Read<u64> {
        field(&self.meminfo, "/proc/meminfo", key, parse::field_bytes)
    }

    /// Returns a number in `/proc/sys`.
    pub(super) fn sysctl(&self, file: &str) -> Read<u64> {
        self.files.value(&format!("/proc/sys/{file}"), parse::number)
    }
}

fn field<T>(
    text: &Read<String>,
    path: &str,
    key: &str,
    parse: impl FnOnce(&str, &str) -> Option<T>,
) -> Read<T> {
    let text = text.as_ref().map_err(Clone::clone)?;
    parse(text, key).ok_or_else(|| Unread::new(format!("{path} has no valid line `{key}`")))
}

/// Returns the online nodes that `Mems_allowed` lets this process use.
fn allowed_nodes(status: &Read<String>, online: &Read<Vec<u32>>) -> Read<Vec<u32>> {
    let list = |text: &str, key: &str| parse::list(parse::field(text, key)?);
    let mut allowed: Vec<u32> = field(status, "/proc/self/status", "Mems_allowed_list", list)?;
    match online {
        Ok(online) => allowed.retain(|node| online.contains(node)),
        Err(unread) => return Err(unread.clone()),
    }
    Ok(allowed)
}
