//! *Pool*: hugepages that an administrator has reserved, and how many of them this process can
//! have.
//!
//! A mapping of such pages is a promise: the kernel takes them out of the pool when they are
//! mapped, so that a later touch finds them. It promises less than it seems in two cases, and there
//! a touch would kill (SIGBUS): a hugetlb cgroup counts pages when they are touched, and a NUMA
//! policy picks nodes when they are touched. So both are asked here, before.

use super::cgroup::groups;
use super::numa::Nodes;
use super::{Fallback, PageSize};
use crate::sys;

fn number(path: &str) -> Option<u64> {
    sys::read_text(path).ok()?.trim().parse().ok()
}

/// Pages that are free and promised to nobody, with those that the pool may grow by on demand;
/// `None` without a pool.
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

/// How many of `wanted` pages can be had, and why not all. `bound` names the nodes they must come
/// from.
pub(crate) fn offer(page: PageSize, wanted: u64, bound: Option<&Nodes>) -> (u64, Option<Fallback>) {
    let Some(free) = free(page) else { return (0, Some(Fallback::NoPool { page })) };
    let mut offered = (wanted, None);
    let mut at_most = |most: u64, reason: Fallback| {
        if most < offered.0 {
            offered = (most, Some(reason));
        }
    };
    at_most(free, Fallback::PoolShort { page, wanted, free });
    if let Some(nodes) = bound {
        let on_node = |node: &u32| {
            let kib = page.bytes() >> 10;
            number(&format!(
                "/sys/devices/system/node/node{node}/hugepages/hugepages-{kib}kB/free_hugepages"
            ))
        };
        let free = nodes.0.iter().filter_map(on_node).sum();
        at_most(free, Fallback::NodesShort { page, wanted, free });
    }
    if let Some(left) = left_in_cgroups(page) {
        at_most(left, Fallback::CgroupShort { page, wanted, left });
    }
    offered
}

/// Pages left under the tightest hugetlb cgroup; `None` where none has a limit.
fn left_in_cgroups(page: PageSize) -> Option<u64> {
    let name = match page {
        PageSize::Huge1G => "1GB",
        _ => "2MB",
    };
    let mut least = None;
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
            least = Some(least.unwrap_or(left).min(left));
        }
    }
    least
}
