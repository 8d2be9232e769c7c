//! *Hugetlb pools*: hugepages that an administrator has reserved, and how many of them this process
//! can get.
//!
//! A mapping of such pages is a promise: the kernel reserves them when it maps them, and a later
//! touch finds them. In two cases the promise does not hold and a touch would kill the process
//! (SIGBUS): a hugetlb cgroup counts pages when they are touched, and a NUMA policy picks nodes
//! when they are touched. kvmem therefore checks both before it maps.

use super::groups::groups;
use crate::arena::{Fallback, Nodes, PageSize};
use crate::sys;

fn number(path: &str) -> Option<u64> {
    sys::read_text(path).ok()?.trim().parse().ok()
}

/// Returns the pages that are neither used nor promised, plus those that the pool may add on
/// demand; `None` without a pool.
pub(crate) fn free(page: PageSize) -> Option<u64> {
    let read = |file| {
        number(&format!("/sys/kernel/mm/hugepages/hugepages-{}kB/{file}", page.bytes() >> 10))
    };
    let free = read("free_hugepages")?.saturating_sub(read("resv_hugepages")?);
    let grow = read("nr_overcommit_hugepages")
        .unwrap_or(0)
        .saturating_sub(read("surplus_hugepages").unwrap_or(0));
    Some(free + grow)
}

/// Returns how many of `wanted` pages are available, and the reason if not all are. With `bound`,
/// the pages must come from those nodes.
pub(crate) fn available(
    page: PageSize,
    wanted: u64,
    bound: Option<&Nodes>,
) -> (u64, Option<Fallback>) {
    let Some(free) = free(page) else { return (0, Some(Fallback::NoPool { page })) };
    let mut result = (wanted, None);
    let mut limit_to = |max: u64, reason: Fallback| {
        if max < result.0 {
            result = (max, Some(reason));
        }
    };
    limit_to(free, Fallback::PoolShort { page, wanted, free });
    if let Some(nodes) = bound {
        let on_node = |node: &u32| {
            let kib = page.bytes() >> 10;
            number(&format!(
                "/sys/devices/system/node/node{node}/hugepages/hugepages-{kib}kB/free_hugepages"
            ))
        };
        let free = nodes.0.iter().filter_map(on_node).sum();
        limit_to(free, Fallback::NodesShort { page, wanted, free });
    }
    if let Some(left) = remaining_in_cgroups(page) {
        limit_to(left, Fallback::CgroupShort { page, wanted, left });
    }
    result
}

/// Returns the pages that the tightest hugetlb cgroup still allows; `None` if no cgroup has a
/// limit.
fn remaining_in_cgroups(page: PageSize) -> Option<u64> {
    let name = match page {
        PageSize::Huge1G => "1GB",
        _ => "2MB",
    };
    let mut tightest = None;
    for group in groups("hugetlb") {
        for kind in ["", ".rsvd"] {
            let (limit, used) = if group.unified {
                (format!("hugetlb.{name}{kind}.max"), format!("hugetlb.{name}{kind}.current"))
            } else {
                (
                    format!("hugetlb.{name}{kind}.limit_in_bytes"),
                    format!("hugetlb.{name}{kind}.usage_in_bytes"),
                )
            };
            let Some(limit) = group.number(&limit) else { continue };
            let left = limit.saturating_sub(group.number(&used).unwrap_or(0)) / page.bytes() as u64;
            tightest = Some(tightest.unwrap_or(left).min(left));
        }
    }
    tightest
}
