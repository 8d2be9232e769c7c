//! *Hierarchy*: the cgroups of a process for one controller, innermost first.
//!
//! The limit of each level applies to everything below it, so every level up to the top is read.
//! `/proc/self/cgroup` names the cgroup for each v1 controller, and for v2 in the line that begins
//! with `0::`; a controller belongs to one of the two versions. `mountinfo` names the folder of the
//! cgroup. In a container that folder may show only a part of the hierarchy: the levels above it
//! apply too, but cannot be read. A level without a limit file has no such limit: the root never
//! has one, and other levels lack it while their controller is off.

use super::machine::{Machine, Read, Unread};
use super::parse::{self, Membership, Mount};

/// The levels of one controller.
#[derive(Clone, Debug)]
pub(super) struct Hierarchy {
    /// Whether it is the hierarchy of v2.
    pub(super) unified: bool,
    /// The folders, innermost first; never empty.
    levels: Vec<String>,
    /// Whether there are invisible levels above the last one.
    hidden: bool,
    /// Whether hugepages count as memory, which is an option of v2.
    pub(super) counts_hugepages: bool,
}

/// The limit of one level.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct CgroupLimit {
    /// The folder of the level.
    pub(super) folder: String,
    /// The file of the limit.
    pub(super) file: String,
    /// The allowed bytes.
    pub(super) limit: u64,
    /// The used bytes that the kernel would not reclaim.
    pub(super) used: u64,
}

impl CgroupLimit {
    pub(super) fn remaining(&self) -> u64 {
        self.limit.saturating_sub(self.used)
    }
}

/// The limits of all levels together.
#[derive(Clone, Debug, Default)]
pub(super) struct CgroupLimits {
    /// The level with the fewest remaining bytes; `None` if none has a limit.
    pub(super) tightest: Option<CgroupLimit>,
    /// A level that could not be read.
    pub(super) unread: Option<Unread>,
    /// Whether there are invisible levels.
    pub(super) hidden: bool,
}

/// The files of a limit of memory or hugepages, and of its usage.
#[derive(Clone, Copy, Debug)]
pub(super) struct LimitFiles<'a> {
    pub(super) limit: &'a str,
    pub(super) usage: &'a str,
    /// The file and the key of the bytes that the kernel reclaims by itself.
    pub(super) reclaimable: Option<(&'a str, &'a str)>,
}

/// The hierarchies of a process.
#[derive(Clone, Debug)]
pub(super) struct Cgroups {
    memberships: Vec<Membership>,
    mounts: Vec<Mount>,
}

impl Cgroups {
    /// Reads the hierarchies; returns `None` if the kernel has no cgroups.
    pub(super) fn read(machine: &Machine) -> Read<Option<Self>> {
        let Some(memberships) = machine.value_if_exists("/proc/self/cgroup", parse::memberships)?
        else {
            // Without `/proc`, the absence of one file means nothing.
            machine.text("/proc/self/status")?;
            return Ok(None);
        };
        let mounts = parse::mounts(&machine.text("/proc/self/mountinfo")?);
        Ok(Some(Cgroups { memberships, mounts }))
    }

    /// Returns the levels that apply for `controller`; `None` if the kernel has no such controller.
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
                "the cgroup {path} is outside of the part that this namespace shows"
            )));
        }
        let mut mounts = self.mounts.iter().filter(fits).peekable();
        if mounts.peek().is_none() {
            return Err(Unread::new(format!(
                "no file system of cgroups with `{controller}` is mounted, so the limits of {path} \
                 cannot be read"
            )));
        }
        // A later mount hides an earlier one at the same place, and the whole hierarchy shows more
        // than a part of it.
        let shown = mounts.filter_map(|mount| Some((mount, strip_root(path, &mount.root)?)));
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
        // Only the true root of a v2 hierarchy lacks `cgroup.type`; only that of v1 has
        // `release_agent`.
        let hidden = match membership.unified {
            true => machine.is_file(&format!("{top}/cgroup.type"))?,
            false => !machine.is_file(&format!("{top}/release_agent"))?,
        };
        let counts_hugepages = membership.unified
            && mount.options.iter().any(|option| option == "memory_hugetlb_accounting");
        Ok(Some(Hierarchy { unified: membership.unified, levels, hidden, counts_hugepages }))
    }
}

/// Returns the rest of `path` below `root`: empty, or beginning with a slash.
fn strip_root<'a>(path: &'a str, root: &str) -> Option<&'a str> {
    let rest = path.strip_prefix(root.trim_end_matches('/'))?;
    (rest.is_empty() || rest.starts_with('/')).then(|| rest.trim_end_matches('/'))
}

impl Hierarchy {
    /// Reads the limits of all levels.
    pub(super) fn limits(&self, machine: &Machine, files: LimitFiles<'_>) -> CgroupLimits {
        let mut limits = CgroupLimits { hidden: self.hidden, ..CgroupLimits::default() };
        for folder in &self.levels {
            match read_limit(machine, folder, files) {
                Ok(Some(level)) => {
                    if limits
                        .tightest
                        .as_ref()
                        .is_none_or(|tightest| level.remaining() < tightest.remaining())
                    {
                        limits.tightest = Some(level);
                    }
                }
                Ok(None) => {}
                Err(unread) => limits.unread = Some(unread),
            }
        }
        limits
    }

    /// Returns the smallest CPU quota of all levels in thousandths of a processor; `None` if there
    /// is no quota.
    pub(super) fn cpu_quota(&self, machine: &Machine) -> Read<Option<u64>> {
        let quota = |folder: &String| match self.unified {
            true => machine
                .value_if_exists(&format!("{folder}/cpu.max"), parse::cpu_max)
                .map(Option::flatten),
            false => {
                let quota =
                    machine.value_if_exists(&format!("{folder}/cpu.cfs_quota_us"), parse::limit)?;
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

    /// Returns whether a level forbids swap.
    pub(super) fn forbids_swap(&self, machine: &Machine) -> Read<bool> {
        let forbids = |folder: &String| {
            let limit =
                machine.value_if_exists(&format!("{folder}/memory.swap.max"), parse::limit)?;
            Ok(limit == Some(Some(0)))
        };
        self.levels.iter().map(forbids).try_fold(false, |any, forbids| Ok(any | forbids?))
    }
}

fn read_limit(machine: &Machine, folder: &str, files: LimitFiles<'_>) -> Read<Option<CgroupLimit>> {
    let limit = machine.value_if_exists(&format!("{folder}/{}", files.limit), parse::limit)?;
    let Some(Some(limit)) = limit else { return Ok(None) };
    let usage = machine.value(&format!("{folder}/{}", files.usage), parse::number)?;
    // If the kernel does not report reclaimable bytes, none are assumed.
    let reclaimable = files.reclaimable.and_then(|(file, key)| {
        machine.value(&format!("{folder}/{file}"), |text| parse::stat(text, key)).ok()
    });
    let used = usage.saturating_sub(reclaimable.unwrap_or(0));
    Ok(Some(CgroupLimit { folder: folder.to_owned(), file: files.limit.to_owned(), limit, used }))
}
