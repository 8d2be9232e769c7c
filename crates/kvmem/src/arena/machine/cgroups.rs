//! *Hierarchy*: the cgroups of a process for one controller, innermost first.
//!
//! The limit of each level applies to everything below it, so every level up to the top is read.
//! `/proc/self/cgroup` names the cgroup for each v1 controller, and for v2 in the line that begins
//! with `0::`; a controller belongs to one of the two versions. `mountinfo` names the folder of the
//! cgroup. In a container that folder may show only a part of the hierarchy: the levels above it
//! apply too, but cannot be read.
//!
//! There are two ways to ask. [`hierarchy`](Cgroups::hierarchy) is strict: if the levels of this
//! process are not certain, it says why. Preflight uses it, because a report must not promise
//! anything on a guess. [`visible`](Cgroups::visible) returns the levels that probably apply.
//! Populating uses it: a limit that may apply is better than none.

use super::cgroup_level::{CgroupLevel, CgroupLimit, LimitFiles};
use super::files::MachineFiles;
use super::files::{Read, Unread};
use super::parse::{self, Membership, Mount};

/// The levels of one controller.
#[derive(Clone, Debug)]
pub(crate) struct Hierarchy {
    /// Whether it is the hierarchy of v2.
    pub(crate) unified: bool,
    /// The levels, innermost first; never empty.
    pub(crate) levels: Vec<CgroupLevel>,
    /// Whether there are invisible levels above the last one.
    hidden: bool,
    /// Whether hugepages count as memory, which is an option of v2.
    pub(crate) counts_hugepages: bool,
}

/// The limits of all levels together.
#[derive(Clone, Debug, Default)]
pub(crate) struct CgroupLimits {
    /// The level with the fewest remaining bytes; `None` if none has a limit.
    pub(crate) tightest: Option<CgroupLimit>,
    /// A level that could not be read.
    pub(crate) unread: Option<Unread>,
    /// Whether there are invisible levels.
    pub(crate) hidden: bool,
}

impl CgroupLimits {
    /// Combines two limits of the same pages; the tighter one counts.
    pub(crate) fn tighter(self, other: CgroupLimits) -> CgroupLimits {
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

/// The hierarchies of a process.
#[derive(Clone, Debug)]
pub(crate) struct Cgroups {
    memberships: Vec<Membership>,
    mounts: Vec<Mount>,
}

impl Cgroups {
    /// Reads the hierarchies; returns `None` if the kernel has no cgroups.
    pub(crate) fn read(files: &MachineFiles) -> Read<Option<Self>> {
        let Some(memberships) = files.value_if_exists("/proc/self/cgroup", parse::memberships)?
        else {
            // Without `/proc`, the absence of one file means nothing.
            files.text("/proc/self/status")?;
            return Ok(None);
        };
        let mounts = parse::mounts(&files.text("/proc/self/mountinfo")?);
        Ok(Some(Cgroups { memberships, mounts }))
    }

    /// Returns the levels that apply for `controller`; `None` if the kernel has no such controller.
    pub(crate) fn hierarchy(
        &self,
        files: &MachineFiles,
        controller: &str,
    ) -> Read<Option<Hierarchy>> {
        let Some(membership) = self.membership(controller) else { return Ok(None) };
        let path = &membership.path;
        if leaves_namespace(path) {
            return Err(Unread::new(format!(
                "the cgroup {path} is outside of the part that this namespace shows"
            )));
        }
        let mut mounts = self.mounts_of(membership, controller).peekable();
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
        let levels = levels(mount, inner, membership.unified);
        if !files.is_folder(&levels[0].folder)? {
            return Err(Unread::new(format!("there is no folder {}", levels[0].folder)));
        }
        let top = &levels[levels.len() - 1].folder;
        // Only the true root of a v2 hierarchy lacks `cgroup.type`; only that of v1 has
        // `release_agent`.
        let hidden = match membership.unified {
            true => files.is_file(&format!("{top}/cgroup.type"))?,
            false => !files.is_file(&format!("{top}/release_agent"))?,
        };
        let counts_hugepages = membership.unified
            && mount.options.iter().any(|option| option == "memory_hugetlb_accounting");
        Ok(Some(Hierarchy { unified: membership.unified, levels, hidden, counts_hugepages }))
    }

    /// Returns the visible levels that probably apply for `controller`, innermost first. Where the
    /// mounted part does not show the cgroup of this process, that is the top of this part.
    pub(crate) fn visible(files: &MachineFiles, controller: &str) -> Vec<CgroupLevel> {
        let Ok(Some(cgroups)) = Cgroups::read(files) else { return Vec::new() };
        let Some(membership) = cgroups.membership(controller) else { return Vec::new() };
        let path = Some(&*membership.path).filter(|path| !leaves_namespace(path));
        cgroups
            .mounts_of(membership, controller)
            .min_by_key(|mount| {
                let shows = path.and_then(|path| strip_root(path, &mount.root)).is_some();
                (!shows, mount.root.len())
            })
            .map_or(Vec::new(), |mount| {
                let inner = path.and_then(|path| strip_root(path, &mount.root)).unwrap_or("");
                levels(mount, inner, membership.unified)
            })
    }

    /// Returns the cgroup of this process for a controller, which belongs to v1 or to v2.
    fn membership(&self, controller: &str) -> Option<&Membership> {
        let has =
            |membership: &&Membership| membership.controllers.iter().any(|name| name == controller);
        let v1 = self.memberships.iter().find(has);
        v1.or_else(|| self.memberships.iter().find(|membership| membership.unified))
    }

    /// Returns the mounts of the hierarchy of `membership`.
    fn mounts_of(&self, membership: &Membership, controller: &str) -> impl Iterator<Item = &Mount> {
        let unified = membership.unified;
        self.mounts.iter().filter(move |mount| match unified {
            true => mount.kind == "cgroup2",
            false => {
                mount.kind == "cgroup" && mount.options.iter().any(|option| option == controller)
            }
        })
    }
}

/// Returns whether a path leads out of the part that the namespace shows.
fn leaves_namespace(path: &str) -> bool {
    path.split('/').any(|part| part == "..")
}

/// Returns the levels from `inner`, a path below the mount, up to the mount itself.
fn levels(mount: &Mount, inner: &str, unified: bool) -> Vec<CgroupLevel> {
    let point = mount.point.trim_end_matches('/');
    let level = |inner: &str| CgroupLevel { folder: format!("{point}{inner}"), unified };
    let mut levels = vec![level(inner)];
    let mut inner = inner;
    while let Some((outer, _)) = inner.rsplit_once('/') {
        levels.push(level(outer));
        inner = outer;
    }
    levels
}

/// Returns the rest of `path` below `root`: empty, or beginning with a slash.
fn strip_root<'a>(path: &'a str, root: &str) -> Option<&'a str> {
    let rest = path.strip_prefix(root.trim_end_matches('/'))?;
    (rest.is_empty() || rest.starts_with('/')).then(|| rest.trim_end_matches('/'))
}

impl Hierarchy {
    /// Reads the limits of all levels.
    pub(crate) fn limits(&self, files: &MachineFiles, of: LimitFiles<'_>) -> CgroupLimits {
        let mut limits = CgroupLimits { hidden: self.hidden, ..CgroupLimits::default() };
        for level in &self.levels {
            match level.limit(files, of) {
                Ok(Some(limit)) => {
                    if limits
                        .tightest
                        .as_ref()
                        .is_none_or(|tightest| limit.remaining() < tightest.remaining())
                    {
                        limits.tightest = Some(limit);
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
    pub(crate) fn cpu_quota(&self, files: &MachineFiles) -> Read<Option<u64>> {
        let quotas: Vec<Option<u64>> =
            self.levels.iter().map(|level| level.cpu_quota(files)).collect::<Read<_>>()?;
        Ok(quotas.into_iter().flatten().min())
    }

    /// Returns whether a level forbids swap.
    pub(crate) fn forbids_swap(&self, files: &MachineFiles) -> Read<bool> {
        let mut levels = self.levels.iter().map(|level| level.forbids_swap(files));
        levels.try_fold(false, |any, forbids| Ok(any | forbids?))
    }
}
