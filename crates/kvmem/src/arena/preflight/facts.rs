//! *Facts*: everything the checks look at, read once.

use super::super::pages::PageSize;
use super::cgroup::{Cgroups, Gauge, Hierarchy, Rooms};
use super::cover::Cover;
use super::machine::{Machine, Read, Unread};
use super::parse;
use super::system::System;
use super::wish::Requirements;

/// Where the settings of transparent hugepages stand.
const THP: &str = "/sys/kernel/mm/transparent_hugepage";

/// Everything that was read.
pub(super) struct Facts<'a> {
    pub(super) machine: &'a Machine,
    pub(super) status: Read<String>,
    pub(super) meminfo: Read<String>,
    /// Nodes that this process may use.
    pub(super) nodes: Read<Vec<u32>>,
    /// Nodes of the machine.
    pub(super) nodes_online: Read<Vec<u32>>,
    pub(super) pools: [Pool; 2],
    pub(super) memory: Read<Option<Hierarchy>>,
    pub(super) cpu: Read<Option<Hierarchy>>,
    /// What of the wish comes from where.
    pub(super) cover: Cover,
}

/// The hugepages of one size.
pub(super) struct Pool {
    pub(super) page: PageSize,
    /// Pages the pool has, used or not, without surplus.
    pub(super) total: Read<u64>,
    /// Free pages that nobody has reserved.
    pub(super) free: Read<u64>,
    /// Pages beyond the pool that the kernel would try to make.
    pub(super) surplus: Read<u64>,
    /// Free pages of each node that matters: allowed, and wished for if any are.
    pub(super) nodes: Read<Vec<(u32, u64)>>,
    /// What cgroups leave; `None` if there is no such controller.
    pub(super) rooms: Read<Option<Rooms>>,
}

/// The size of a page.
pub(super) fn bytes_of(page: PageSize) -> u64 {
    page.bytes() as u64
}

impl Pool {
    /// The size of a page of it.
    pub(super) fn bytes(&self) -> u64 {
        bytes_of(self.page)
    }

    /// Pages that are certain to be had: free, on a node that may be used, and within the cgroup.
    pub(super) fn usable(&self) -> Read<u64> {
        let mut usable = self.free.clone()?;
        match &self.nodes {
            Ok(nodes) => {
                usable =
                    usable.min(nodes.iter().map(|(_, free)| *free).fold(0, u64::saturating_add))
            }
            // A kernel without NUMA has no files of nodes.
            Err(unread) if unread.absent => {}
            Err(unread) => return Err(unread.clone()),
        }
        Ok(usable)
    }

    /// As [`usable`](Self::usable), within what cgroups leave.
    pub(super) fn usable_in_cgroup(&self) -> Read<u64> {
        let usable = self.usable()?;
        let room = self.rooms.clone()?.and_then(|rooms| rooms.tightest);
        Ok(room.map_or(usable, |room| usable.min(room.left() / self.bytes())))
    }

    /// Name of the size in `/sys/kernel/mm/hugepages`.
    pub(super) fn folder(&self) -> String {
        folder(self.page)
    }

    /// Name of the size in the files of cgroups.
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
        let rooms = |hierarchy: &Hierarchy| {
            let name = cgroup_name(page);
            // The limit of reservations is checked when memory is mapped, the other when it is
            // touched; either may be set.
            let (limit, usage) = match hierarchy.unified {
                true => ("max", "current"),
                false => ("limit_in_bytes", "usage_in_bytes"),
            };
            let rooms = |infix: &str| {
                let (limit, usage) = (
                    format!("hugetlb.{name}.{infix}{limit}"),
                    format!("hugetlb.{name}.{infix}{usage}"),
                );
                hierarchy.rooms(machine, Gauge { limit: &limit, usage: &usage, reclaimable: None })
            };
            rooms("").tighter(rooms("rsvd."))
        };
        Pool {
            page,
            total: less(number("nr_hugepages"), surplus.clone()),
            free: less(number("free_hugepages"), number("resv_hugepages")),
            surplus: less(number("nr_overcommit_hugepages"), surplus),
            nodes: nodes.clone().and_then(|nodes| nodes.iter().map(on_node).collect()),
            rooms: hugetlb.clone().map(|hierarchy| hierarchy.as_ref().map(rooms)),
        }
    }
}

fn folder(page: PageSize) -> String {
    format!("hugepages-{}kB", bytes_of(page) >> 10)
}

fn cgroup_name(page: PageSize) -> &'static str {
    if page == PageSize::Huge1G { "1GB" } else { "2MB" }
}

impl Rooms {
    /// The tighter of two limits of the same thing.
    fn tighter(self, other: Rooms) -> Rooms {
        Rooms {
            tightest: [self.tightest, other.tightest]
                .into_iter()
                .flatten()
                .min_by_key(|room| room.left()),
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
                requirements.wanted_nodes().is_empty() || requirements.wanted_nodes().contains(node)
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
            .map(|page| Pool::read(machine, page, &wanted, &hugetlb));
        let cover = Cover::of(requirements, &pools, machine.system().page_bytes);
        Facts {
            machine,
            meminfo: machine.text("/proc/meminfo"),
            memory: hierarchy("memory"),
            cpu: hierarchy("cpu"),
            status,
            nodes,
            nodes_online,
            pools,
            cover,
        }
    }

    pub(super) fn system(&self) -> &System {
        self.machine.system()
    }

    /// Whether the machine has more than one node.
    pub(super) fn has_several_nodes(&self) -> bool {
        self.nodes_online.as_ref().is_ok_and(|nodes| nodes.len() > 1)
    }

    /// Major and minor number of the kernel's release.
    pub(super) fn kernel(&self) -> Read<(u32, u32)> {
        self.machine.value("/proc/sys/kernel/osrelease", parse::release)
    }

    /// A field of `/proc/self/status`.
    pub(super) fn status<T>(
        &self,
        key: &str,
        parse: impl FnOnce(&str, &str) -> Option<T>,
    ) -> Read<T> {
        field(&self.status, "/proc/self/status", key, parse)
    }

    /// A field of `/proc/meminfo`, in bytes.
    pub(super) fn meminfo_bytes(&self, key: &str) -> Read<u64> {
        field(&self.meminfo, "/proc/meminfo", key, parse::field_bytes)
    }

    /// The chosen word of a setting of transparent hugepages.
    pub(super) fn thp(&self, file: &str) -> Read<String> {
        self.machine.value(&format!("{THP}/{file}"), parse::chosen)
    }

    /// As [`thp`](Self::thp), where a setting for pages of 2 MiB goes before the one for all.
    pub(super) fn thp_2m(&self, file: &str) -> Read<(String, String)> {
        let own = format!("hugepages-2048kB/{file}");
        match self.machine.value_if_there(&format!("{THP}/{own}"), parse::chosen)? {
            Some(word) if word != "inherit" => Ok((word, format!("{THP}/{own}"))),
            _ => Ok((self.thp(file)?, format!("{THP}/{file}"))),
        }
    }

    /// A number in `/proc/sys`.
    pub(super) fn sysctl(&self, file: &str) -> Read<u64> {
        self.machine.value(&format!("/proc/sys/{file}"), parse::number)
    }

    /// Whether this process has a capability where it counts: in the first namespace of users.
    pub(super) fn has_capability(&self, bit: u32) -> Read<bool> {
        let has =
            self.status("CapEff", |text, key| parse::mask_bit(parse::field(text, key)?, bit))?;
        if !has {
            return Ok(false);
        }
        // The first namespace maps every user to itself.
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
    parse(text, key).ok_or_else(|| Unread::new(format!("{path} has no good line `{key}`")))
}

/// The online nodes that `Mems_allowed` lets this process use.
fn allowed_nodes(status: &Read<String>, online: &Read<Vec<u32>>) -> Read<Vec<u32>> {
    let list = |text: &str, key: &str| parse::list(parse::field(text, key)?);
    let mut allowed: Vec<u32> = field(status, "/proc/self/status", "Mems_allowed_list", list)?;
    match online {
        Ok(online) => allowed.retain(|node| online.contains(node)),
        Err(unread) => return Err(unread.clone()),
    }
    Ok(allowed)
}
