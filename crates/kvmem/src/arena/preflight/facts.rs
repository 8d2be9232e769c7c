//! *Facts*: all files that the checks use, each read once.

use super::cgroup::{CgroupLimits, Cgroups, Hierarchy, LimitFiles};
use super::coverage::Coverage;
use super::machine::{Machine, Read, Unread};
use super::parse;
use super::requirements::Requirements;
use super::system::System;
use crate::arena::PageSize;

/// The folder of the settings of transparent hugepages.
const THP: &str = "/sys/kernel/mm/transparent_hugepage";

/// All facts.
pub(super) struct Facts<'a> {
    pub(super) machine: &'a Machine,
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

/// The hugetlb pool of one page size.
pub(super) struct HugetlbPool {
    pub(super) page: PageSize,
    /// All pages of the pool, used or not, without surplus pages.
    pub(super) total: Read<u64>,
    /// Free pages that are not reserved.
    pub(super) free: Read<u64>,
    /// Pages beyond the pool's size that the kernel would try to make.
    pub(super) surplus: Read<u64>,
    /// Free pages of each relevant node: the allowed ones, or those of them that are required.
    pub(super) nodes: Read<Vec<(u32, u64)>>,
    /// The limits of cgroups; `None` if the kernel has no such controller.
    pub(super) limits: Read<Option<CgroupLimits>>,
}

/// Returns the size of a page.
pub(super) fn bytes_of(page: PageSize) -> u64 {
    page.bytes() as u64
}

impl HugetlbPool {
    /// Returns the size of one of its pages.
    pub(super) fn bytes(&self) -> u64 {
        bytes_of(self.page)
    }

    /// Returns the pages that are certainly available: free, and on a node that may be used.
    pub(super) fn usable(&self) -> Read<u64> {
        let mut usable = self.free.clone()?;
        match &self.nodes {
            Ok(nodes) => {
                usable =
                    usable.min(nodes.iter().map(|(_, free)| *free).fold(0, u64::saturating_add))
            }
            // A kernel without NUMA has no node files.
            Err(unread) if unread.absent => {}
            Err(unread) => return Err(unread.clone()),
        }
        Ok(usable)
    }

    /// Returns the usable pages that the cgroups also allow.
    pub(super) fn usable_in_cgroup(&self) -> Read<u64> {
        let usable = self.usable()?;
        let tightest = self.limits.clone()?.and_then(|limits| limits.tightest);
        Ok(tightest.map_or(usable, |tightest| usable.min(tightest.remaining() / self.bytes())))
    }

    /// Returns the name of the page size in `/sys/kernel/mm/hugepages`.
    pub(super) fn folder(&self) -> String {
        folder(self.page)
    }

    /// Returns the name of the page size in the files of cgroups.
    pub(super) fn cgroup_name(&self) -> &'static str {
        cgroup_name(self.page)
    }

    fn read(
        machine: &Machine,
        page: PageSize,
        nodes: &Read<Vec<u32>>,
        hugetlb: &Read<Option<Hierarchy>>,
    ) -> Self {
        let folder = format!("/sys/kernel/mm/hugepages/{}", folder(page));
        let number = |file: &str| machine.value(&format!("{folder}/{file}"), parse::number);
        let less = |more: Read<u64>, less: Read<u64>| Ok(more?.saturating_sub(less?));
        let surplus = number("surplus_hugepages");
        let on_node = |node: &u32| {
            let path = format!(
                "/sys/devices/system/node/node{node}/hugepages/{}/free_hugepages",
                self::folder(page)
            );
            Ok((*node, machine.value(&path, parse::number)?))
        };
        let limits = |hierarchy: &Hierarchy| {
            let name = cgroup_name(page);
            // The limit of reservations is checked when memory is mapped, the other one when it is
            // touched; either may be set.
            let (limit, usage) = match hierarchy.unified {
                true => ("max", "current"),
                false => ("limit_in_bytes", "usage_in_bytes"),
            };
            let limits = |infix: &str| {
                let (limit, usage) = (
                    format!("hugetlb.{name}.{infix}{limit}"),
                    format!("hugetlb.{name}.{infix}{usage}"),
                );
                hierarchy
                    .limits(machine, LimitFiles { limit: &limit, usage: &usage, reclaimable: None })
            };
            limits("").tighter(limits("rsvd."))
        };
        HugetlbPool {
            page,
            total: less(number("nr_hugepages"), surplus.clone()),
            free: less(number("free_hugepages"), number("resv_hugepages")),
            surplus: less(number("nr_overcommit_hugepages"), surplus),
            nodes: nodes.clone().and_then(|nodes| nodes.iter().map(on_node).collect()),
            limits: hugetlb.clone().map(|hierarchy| hierarchy.as_ref().map(limits)),
        }
    }
}

fn folder(page: PageSize) -> String {
    format!("hugepages-{}kB", bytes_of(page) >> 10)
}

fn cgroup_name(page: PageSize) -> &'static str {
    if page == PageSize::Huge1G { "1GB" } else { "2MB" }
}

impl CgroupLimits {
    /// Combines two limits of the same pages; the tighter one counts.
    fn tighter(self, other: CgroupLimits) -> CgroupLimits {
        CgroupLimits {
            tightest: [self.tightest, other.tightest]
                .into_iter()
                .flatten()
                .min_by_key(|level| level.remaining()),
            unread: self.unread.or(other.unread),
            hidden: self.hidden,
        }
    }
}

impl<'a> Facts<'a> {
    pub(super) fn read(machine: &'a Machine, requirements: &Requirements) -> Self {
        let status = machine.text("/proc/self/status");
        let nodes_online = machine.value("/sys/devices/system/node/online", parse::list);
        let nodes = allowed_nodes(&status, &nodes_online);
        let wanted = nodes.clone().map(|mut nodes| {
            nodes.retain(|node| {
                requirements.required_nodes().is_empty()
                    || requirements.required_nodes().contains(node)
            });
            nodes
        });
        let cgroups = Cgroups::read(machine);
        let hierarchy = |controller| match &cgroups {
            Ok(Some(cgroups)) => cgroups.hierarchy(machine, controller),
            Ok(None) => Ok(None),
            Err(unread) => Err(unread.clone()),
        };
        let hugetlb = hierarchy("hugetlb");
        let pools = [PageSize::Huge1G, PageSize::Huge2M]
            .map(|page| HugetlbPool::read(machine, page, &wanted, &hugetlb));
        let coverage = Coverage::of(requirements, &pools, machine.system().page_bytes);
        Facts {
            machine,
            meminfo: machine.text("/proc/meminfo"),
            memory: hierarchy("memory"),
            cpu: hierarchy("cpu"),
            status,
            nodes,
            nodes_online,
            pools,
            coverage,
        }
    }

    pub(super) fn system(&self) -> &System {
        self.machine.system()
    }

    /// Returns whether the machine has more than one node.
    pub(super) fn has_several_nodes(&self) -> bool {
        self.nodes_online.as_ref().is_ok_and(|nodes| nodes.len() > 1)
    }

    /// Returns the major and minor number of the kernel's release.
    pub(super) fn kernel(&self) -> Read<(u32, u32)> {
        self.machine.value("/proc/sys/kernel/osrelease", parse::release)
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

    /// Returns the selected word of a setting of transparent hugepages.
    pub(super) fn thp(&self, file: &str) -> Read<String> {
        self.machine.value(&format!("{THP}/{file}"), parse::selected)
    }

    /// Returns the selected word of a setting like [`thp`](Self::thp), and its file. A setting for
    /// pages of 2 MiB takes precedence over the common one.
    pub(super) fn thp_2m(&self, file: &str) -> Read<(String, String)> {
        let own = format!("hugepages-2048kB/{file}");
        match self.machine.value_if_exists(&format!("{THP}/{own}"), parse::selected)? {
            Some(word) if word != "inherit" => Ok((word, format!("{THP}/{own}"))),
            _ => Ok((self.thp(file)?, format!("{THP}/{file}"))),
        }
    }

    /// Returns a number in `/proc/sys`.
    pub(super) fn sysctl(&self, file: &str) -> Read<u64> {
        self.machine.value(&format!("/proc/sys/{file}"), parse::number)
    }

    /// Returns whether this process has a capability in the initial user namespace, where it
    /// counts.
    pub(super) fn has_capability(&self, bit: u32) -> Read<bool> {
        let has =
            self.status("CapEff", |text, key| parse::mask_bit(parse::field(text, key)?, bit))?;
        if !has {
            return Ok(false);
        }
        // The initial namespace maps every user to itself.
        let whole = |text: &str| text.split_whitespace().eq(["0", "0", "4294967295"]);
        self.machine.value("/proc/self/uid_map", |text| Some(whole(text)))
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
