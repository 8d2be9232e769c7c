//! *Hierarchy*: the cgroups a process is in, innermost first, for one controller.
//!
//! A limit of any level binds all below it, so each is read on the way up. `/proc/self/cgroup`
//! names the cgroup for each v1 controller and, on the line that begins with `0::`, for v2; a
//! controller is in one of the two. `mountinfo` says which folder shows it. In a container that
//! folder may show only a part: levels above it bind too, but cannot be seen. A level without the
//! file of a limit has no such limit: the root never has one, others not while their controller is
//! off.

use super::machine::{Machine, Read, Unread};
use super::parse::{self, Membership, Mount};

/// The levels of one controller.
#[derive(Clone, Debug)]
pub(super) struct Hierarchy {
    /// v2.
    pub(super) unified: bool,
    /// Folders, innermost first; never empty.
    levels: Vec<String>,
    /// Whether there are levels above the last that cannot be seen.
    hidden: bool,
    /// Hugepages count as memory: an option of v2.
    pub(super) counts_hugepages: bool,
}

/// What one level leaves.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Room {
    /// Folder of the level.
    pub(super) folder: String,
    /// File of the limit.
    pub(super) file: String,
    /// Bytes allowed.
    pub(super) limit: u64,
    /// Bytes that are in use and would not be given up.
    pub(super) used: u64,
}

impl Room {
    pub(super) fn left(&self) -> u64 {
        self.limit.saturating_sub(self.used)
    }
}

/// What all levels leave together.
#[derive(Clone, Debug, Default)]
pub(super) struct Rooms {
    /// The level that leaves least; `None` if none has a limit.
    pub(super) tightest: Option<Room>,
    /// A level that could not be read.
    pub(super) unread: Option<Unread>,
    /// Whether there are levels that cannot be seen.
    pub(super) hidden: bool,
}

/// A limit of memory or hugepages: the file of the limit and that of the use.
#[derive(Clone, Copy, Debug)]
pub(super) struct Gauge<'a> {
    pub(super) limit: &'a str,
    pub(super) usage: &'a str,
    /// What the kernel gives up by itself when room is needed: a file and a key in it.
    pub(super) reclaimable: Option<(&'a str, &'a str)>,
}

/// The hierarchies of a process.
#[derive(Clone, Debug)]
pub(super) struct Cgroups {
    memberships: Vec<Membership>,
    mounts: Vec<Mount>,
}

impl Cgroups {
    /// `None` where the kernel has no cgroups.
    pub(super) fn read(machine: &Machine) -> Read<Option<Self>> {
        let Some(memberships) = machine.value_if_there("/proc/self/cgroup", parse::memberships)?
        else {
            // Without a /proc the absence of one file says nothing.
            machine.text("/proc/self/status")?;
            return Ok(None);
        };
        let mounts = parse::mounts(&machine.text("/proc/self/mountinfo")?);
        Ok(Some(Cgroups { memberships, mounts }))
    }

    /// The levels that bind for `controller`; `None` if the kernel has no such controller.
    pub(super) fn hierarchy(&self, machine: &Machine, controller: &str) -> Read<Option<Hierarchy>> {
        let has =
            |membership: &&Membership| membership.controllers.iter().any(|name| name == controller);
        let v1 = self.memberships.iter().find(has);
        let Some(membership) =
            v1.or_else(|| self.memberships.iter().find(|membership| membership.unified))
        else {
            return Ok(None);
        };
        let fits = |mount: &&Mount| match membership.unified {
            true => mount.kind == "cgroup2",
            false => {
                mount.kind == "cgroup" && mount.options.iter().any(|option| option == controller)
            }
        };
        let path = &membership.path;
        if path.split('/').any(|part| part == "..") {
            return Err(Unread::new(format!(
                "the cgroup {path} is outside of what this namespace shows"
            )));
        }
        let mut mounts = self.mounts.iter().filter(fits).peekable();
        if mounts.peek().is_none() {
            return Err(Unread::new(format!(
                "no file system of cgroups with `{controller}` is mounted, so the limits of {path} cannot be read"
            )));
        }
        // A later mount hides an earlier one at the same place, and the whole hierarchy tells more
        // than a part of it.
        let shown = mounts.filter_map(|mount| Some((mount, below(path, &mount.root)?)));
        let Some((mount, inner)) = shown.min_by_key(|(mount, _)| mount.root.len()) else {
            return Err(Unread::new(format!(
                "the mounted part of the cgroups does not show {path}"
            )));
        };
        let point = mount.point.trim_end_matches('/');
        let mut levels = vec![format!("{point}{inner}")];
        let mut inner = inner;
        while let Some((outer, _)) = inner.rsplit_once('/') {
            levels.push(format!("{point}{outer}"));
            inner = outer;
        }
        if !machine.is_folder(&levels[0])? {
            return Err(Unread::new(format!("there is no folder {}", levels[0])));
        }
        let top = levels.last().map_or(point, String::as_str);
        // Only the true root of a hierarchy has the one file, or lacks the other.
        let hidden = match membership.unified {
            true => machine.is_file(&format!("{top}/cgroup.type"))?,
            false => !machine.is_file(&format!("{top}/release_agent"))?,
        };
        let counts_hugepages = membership.unified
            && mount.options.iter().any(|option| option == "memory_hugetlb_accounting");
        Ok(Some(Hierarchy { unified: membership.unified, levels, hidden, counts_hugepages }))
    }
}

/// What is left of `path` below `root`: empty, or with a slash before it.
fn below<'a>(path: &'a str, root: &str) -> Option<&'a str> {
    let rest = path.strip_prefix(root.trim_end_matches('/'))?;
    (rest.is_empty() || rest.starts_with('/')).then(|| rest.trim_end_matches('/'))
}

impl Hierarchy {
    /// What the levels leave of what `gauge` measures.
    pub(super) fn rooms(&self, machine: &Machine, gauge: Gauge<'_>) -> Rooms {
        let mut rooms = Rooms { hidden: self.hidden, ..Rooms::default() };
        for folder in &self.levels {
            match room(machine, folder, gauge) {
                Ok(Some(room)) => {
                    if rooms.tightest.as_ref().is_none_or(|tightest| room.left() < tightest.left())
                    {
                        rooms.tightest = Some(room);
                    }
                }
                Ok(None) => {}
                Err(unread) => rooms.unread = Some(unread),
            }
        }
        rooms
    }

    /// The fewest processors that a quota of any level is worth, in thousandths; `None` is no
    /// quota.
    pub(super) fn cpu_quota(&self, machine: &Machine) -> Read<Option<u64>> {
        let quota = |folder: &String| match self.unified {
            true => machine
                .value_if_there(&format!("{folder}/cpu.max"), parse::cpu_max)
                .map(Option::flatten),
            false => {
                let quota =
                    machine.value_if_there(&format!("{folder}/cpu.cfs_quota_us"), parse::limit)?;
                let Some(Some(quota)) = quota else { return Ok(None) };
                let path = format!("{folder}/cpu.cfs_period_us");
                machine
                    .value(&path, |text| parse::cpu_quota(Some(quota), parse::number(text)?)?)
                    .map(Some)
            }
        };
        let quotas: Vec<Option<u64>> = self.levels.iter().map(quota).collect::<Read<_>>()?;
        Ok(quotas.into_iter().flatten().min())
    }

    /// Whether some level forbids swap.
    pub(super) fn forbids_swap(&self, machine: &Machine) -> Read<bool> {
        let forbids = |folder: &String| {
            let limit =
                machine.value_if_there(&format!("{folder}/memory.swap.max"), parse::limit)?;
            Ok(limit == Some(Some(0)))
        };
        self.levels.iter().map(forbids).try_fold(false, |any, forbids| Ok(any | forbids?))
    }
}

fn room(machine: &Machine, folder: &str, gauge: Gauge<'_>) -> Read<Option<Room>> {
    let limit = machine.value_if_there(&format!("{folder}/{}", gauge.limit), parse::limit)?;
    let Some(Some(limit)) = limit else { return Ok(None) };
    let usage = machine.value(&format!("{folder}/{}", gauge.usage), parse::number)?;
    // Where the kernel does not say what it would give up, nothing is.
    let given_up = gauge.reclaimable.and_then(|(file, key)| {
        machine.value(&format!("{folder}/{file}"), |text| parse::stat(text, key)).ok()
    });
    let used = usage.saturating_sub(given_up.unwrap_or(0));
    Ok(Some(Room { folder: folder.to_owned(), file: gauge.limit.to_owned(), limit, used }))
}
