//! *Hugetlb pools*: hugepages that an administrator has reserved, and how many of them this process
//! can get.
//!
//! A mapping of such pages is a promise: the kernel reserves them when it maps them, and a later
//! touch finds them. In two cases the promise does not hold and a touch would kill the process
//! (SIGBUS): a hugetlb cgroup counts pages when they are touched, and a NUMA policy picks nodes
//! when they are touched. kvmem therefore checks both before it maps.

use super::cgroup_level::{CgroupLevel, LimitFiles};
use super::cgroups::{CgroupLimits, Cgroups, Hierarchy};
use super::files::MachineFiles;
use super::files::Read;
use super::parse;
use crate::arena::{Fallback, Nodes, PageSize};

/// Returns the size of a page.
pub(crate) fn bytes_of(page: PageSize) -> u64 {
    page.bytes() as u64
}

fn folder(page: PageSize) -> String {
    format!("hugepages-{}kB", bytes_of(page) >> 10)
}

fn cgroup_name(page: PageSize) -> &'static str {
    if page == PageSize::Huge1G { "1GB" } else { "2MB" }
}

/// Reads a number of the pool of one page size.
fn number(files: &MachineFiles, page: PageSize, file: &str) -> Read<u64> {
    let path = format!("/sys/kernel/mm/hugepages/{}/{file}", folder(page));
    files.value(&path, parse::number)
}

/// Returns the pages that are neither used nor promised.
fn free_pages(files: &MachineFiles, page: PageSize) -> Read<u64> {
    let free = number(files, page, "free_hugepages")?;
    Ok(free.saturating_sub(number(files, page, "resv_hugepages")?))
}

/// Returns the pages beyond the pool's size that the kernel would try to make on demand.
fn surplus_pages(files: &MachineFiles, page: PageSize) -> Read<u64> {
    let allowed = number(files, page, "nr_overcommit_hugepages")?;
    Ok(allowed.saturating_sub(number(files, page, "surplus_hugepages")?))
}

/// Returns the free pages of a node.
fn free_on_node(files: &MachineFiles, page: PageSize, node: u32) -> Read<u64> {
    let folder = folder(page);
    let path = format!("/sys/devices/system/node/node{node}/hugepages/{folder}/free_hugepages");
    files.value(&path, parse::number)
}

/// The names of the files by which a cgroup limits the pages of one size.
struct PageLimit {
    limit: String,
    usage: String,
}

/// Returns both limits of a size. The limit of reservations is checked when memory is mapped, the
/// other one when it is touched; either may be set.
fn page_limits(page: PageSize, unified: bool) -> [PageLimit; 2] {
    let name = cgroup_name(page);
    let (limit, usage) = match unified {
        true => ("max", "current"),
        false => ("limit_in_bytes", "usage_in_bytes"),
    };
    ["", "rsvd."].map(|infix| PageLimit {
        limit: format!("hugetlb.{name}.{infix}{limit}"),
        usage: format!("hugetlb.{name}.{infix}{usage}"),
    })
}

impl PageLimit {
    fn files(&self) -> LimitFiles<'_> {
        LimitFiles { limit: &self.limit, usage: &self.usage, reclaimable: None }
    }
}

/// Returns the pages that are neither used nor promised, plus those that the pool may add on
/// demand; `None` without a pool.
pub(crate) fn free(page: PageSize) -> Option<u64> {
    free_in(&MachineFiles::here(), page)
}

fn free_in(files: &MachineFiles, page: PageSize) -> Option<u64> {
    let free = free_pages(files, page).ok()?;
    Some(free.saturating_add(surplus_pages(files, page).unwrap_or(0)))
}

/// Returns how many of `wanted` pages are available, and the reason if not all are. With `bound`,
/// the pages must come from those nodes. Whatever cannot be read counts as no limit.
pub(crate) fn available(
    page: PageSize,
    wanted: u64,
    bound: Option<&Nodes>,
) -> (u64, Option<Fallback>) {
    let files = MachineFiles::here();
    let Some(free) = free_in(&files, page) else { return (0, Some(Fallback::NoPool { page })) };
    let mut result = (wanted, None);
    let mut limit_to = |max: u64, reason: Fallback| {
        if max < result.0 {
            result = (max, Some(reason));
        }
    };
    limit_to(free, Fallback::PoolShort { page, wanted, free });
    if let Some(nodes) = bound {
        let free = nodes.0.iter().filter_map(|node| free_on_node(&files, page, *node).ok()).sum();
        limit_to(free, Fallback::NodesShort { page, wanted, free });
    }
    if let Some(remaining) = remaining_in_cgroups(&files, page) {
        limit_to(remaining, Fallback::CgroupShort { page, wanted, remaining });
    }
    result
}

/// Returns the pages that the tightest hugetlb cgroup still allows; `None` if no cgroup has a
/// limit.
fn remaining_in_cgroups(files: &MachineFiles, page: PageSize) -> Option<u64> {
    let limit = |level: &CgroupLevel| {
        let limits = page_limits(page, level.unified);
        let limits = limits.iter().filter_map(|of| level.limit(files, of.files()).ok().flatten());
        limits.map(|limit| limit.remaining()).min()
    };
    let tightest = Cgroups::visible(files, "hugetlb").iter().filter_map(limit).min();
    tightest.map(|remaining| remaining / bytes_of(page))
}

/// The hugetlb pool of one page size.
pub(crate) struct HugetlbPool {
    pub(crate) page: PageSize,
    /// All pages of the pool, used or not, without surplus pages.
    pub(crate) total: Read<u64>,
    /// Free pages that are not reserved.
    pub(crate) free: Read<u64>,
    /// Pages beyond the pool's size that the kernel would try to make.
    pub(crate) surplus: Read<u64>,
    /// Free pages of each relevant node: the allowed ones, or those of them that are required.
    pub(crate) nodes: Read<Vec<(u32, u64)>>,
    /// The limits of cgroups; `None` if the kernel has no such controller.
    pub(crate) limits: Read<Option<CgroupLimits>>,
}

impl HugetlbPool {
    /// Returns the size of one of its pages.
    pub(crate) fn bytes(&self) -> u64 {
        bytes_of(self.page)
    }

    /// Returns the pages that are certainly available: free, and on a node that may be used.
    pub(crate) fn usable(&self) -> Read<u64> {
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
    pub(crate) fn usable_in_cgroup(&self) -> Read<u64> {
        let usable = self.usable()?;
        let tightest = self.limits.clone()?.and_then(|limits| limits.tightest);
        Ok(tightest.map_or(usable, |tightest| usable.min(tightest.remaining() / self.bytes())))
    }

    /// Returns the name of the page size in `/sys/kernel/mm/hugepages`.
    pub(crate) fn folder(&self) -> String {
        folder(self.page)
    }

    /// Returns the name of the page size in the files of cgroups.
    pub(crate) fn cgroup_name(&self) -> &'static str {
        cgroup_name(self.page)
    }

    /// Reads the pool of one page size. `nodes` are the relevant nodes, `hugetlb` the cgroups that
    /// may limit it.
    pub(crate) fn read(
        files: &MachineFiles,
        page: PageSize,
        nodes: &Read<Vec<u32>>,
        hugetlb: &Read<Option<Hierarchy>>,
    ) -> Self {
        let total = || {
            let all = number(files, page, "nr_hugepages")?;
            Ok(all.saturating_sub(number(files, page, "surplus_hugepages")?))
        };
        let on_node = |node: &u32| Ok((*node, free_on_node(files, page, *node)?));
        let limits = |hierarchy: &Hierarchy| {
            let [touched, reserved] = page_limits(page, hierarchy.unified);
            let touched = hierarchy.limits(files, touched.files());
            touched.tighter(hierarchy.limits(files, reserved.files()))
        };
        HugetlbPool {
            page,
            total: total(),
            free: free_pages(files, page),
            surplus: surplus_pages(files, page),
            nodes: nodes.clone().and_then(|nodes| nodes.iter().map(on_node).collect()),
            limits: hugetlb.clone().map(|hierarchy| hierarchy.as_ref().map(limits)),
        }
    }
}
