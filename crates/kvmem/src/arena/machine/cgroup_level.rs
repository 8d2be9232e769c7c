//! *Cgroup level*: the limits in one folder of a hierarchy of cgroups.
//!
//! A level without a limit file has no such limit: the root never has one, and other levels lack
//! it while their controller is off.

use super::files::MachineFiles;
use super::files::Read;
use super::parse;

/// One folder of a hierarchy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct CgroupLevel {
    pub(crate) folder: String,
    /// Whether its files have the names of v2.
    pub(crate) unified: bool,
}

/// The limit of one level.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct CgroupLimit {
    /// The folder of the level.
    pub(crate) folder: String,
    /// The file of the limit.
    pub(crate) file: String,
    /// The allowed bytes.
    pub(crate) limit: u64,
    /// The used bytes that the kernel would not reclaim.
    pub(crate) used: u64,
}

impl CgroupLimit {
    pub(crate) fn remaining(&self) -> u64 {
        self.limit.saturating_sub(self.used)
    }
}

/// The files of a limit of memory or hugepages, and of its usage.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LimitFiles<'a> {
    pub(crate) limit: &'a str,
    pub(crate) usage: &'a str,
    /// The file and the key of the bytes that the kernel reclaims by itself: page cache that was
    /// not used recently.
    pub(crate) reclaimable: Option<(&'a str, &'a str)>,
}

impl LimitFiles<'static> {
    /// Returns the files of the limit at which the kernel kills a process.
    pub(crate) fn memory_max(unified: bool) -> LimitFiles<'static> {
        match unified {
            true => LimitFiles { limit: "memory.max", ..LimitFiles::memory_v2() },
            false => LimitFiles {
                limit: "memory.limit_in_bytes",
                usage: "memory.usage_in_bytes",
                reclaimable: Some(("memory.stat", "total_inactive_file")),
            },
        }
    }

    /// Returns the files of the limit above which the kernel throttles processes until they seem
    /// to hang. v1 has none: its soft limit only decides which group the kernel reclaims from
    /// first.
    pub(crate) fn memory_high(unified: bool) -> Option<LimitFiles<'static>> {
        unified.then(|| LimitFiles { limit: "memory.high", ..LimitFiles::memory_v2() })
    }

    fn memory_v2() -> LimitFiles<'static> {
        let reclaimable = Some(("memory.stat", "inactive_file"));
        LimitFiles { limit: "", usage: "memory.current", reclaimable }
    }
}

impl CgroupLevel {
    /// Reads a limit and its usage; returns `None` if the level does not limit this.
    pub(crate) fn limit(
        &self,
        files: &MachineFiles,
        of: LimitFiles<'_>,
    ) -> Read<Option<CgroupLimit>> {
        let folder = &self.folder;
        let limit = files.value_if_exists(&format!("{folder}/{}", of.limit), parse::limit)?;
        let Some(Some(limit)) = limit else { return Ok(None) };
        let usage = files.value(&format!("{folder}/{}", of.usage), parse::number)?;
        // If the kernel does not report reclaimable bytes, none are assumed.
        let reclaimable = of.reclaimable.and_then(|(file, key)| {
            files.value(&format!("{folder}/{file}"), |text| parse::stat(text, key)).ok()
        });
        let used = usage.saturating_sub(reclaimable.unwrap_or(0));
        Ok(Some(CgroupLimit { folder: folder.clone(), file: of.limit.to_owned(), limit, used }))
    }

    /// Returns the limit of memory with the fewest remaining bytes, whether the kernel kills or
    /// throttles at it. A limit that cannot be read counts as none.
    pub(crate) fn memory_limit(&self, files: &MachineFiles) -> Option<CgroupLimit> {
        [Some(LimitFiles::memory_max(self.unified)), LimitFiles::memory_high(self.unified)]
            .into_iter()
            .flatten()
            .filter_map(|of| self.limit(files, of).ok().flatten())
            .min_by_key(CgroupLimit::remaining)
    }

    /// Returns the CPU quota in thousandths of a processor; `None` if there is no quota.
    pub(crate) fn cpu_quota(&self, files: &MachineFiles) -> Read<Option<u64>> {
        let folder = &self.folder;
        if self.unified {
            let quota = files.value_if_exists(&format!("{folder}/cpu.max"), parse::cpu_max);
            return quota.map(Option::flatten);
        }
        let quota = files.value_if_exists(&format!("{folder}/cpu.cfs_quota_us"), parse::limit)?;
        let Some(Some(quota)) = quota else { return Ok(None) };
        let period = |text: &str| parse::cpu_quota(Some(quota), parse::number(text)?)?;
        files.value(&format!("{folder}/cpu.cfs_period_us"), period).map(Some)
    }

    /// Returns whether the level forbids swap.
    pub(crate) fn forbids_swap(&self, files: &MachineFiles) -> Read<bool> {
        let path = format!("{}/memory.swap.max", self.folder);
        Ok(files.value_if_exists(&path, parse::limit)? == Some(Some(0)))
    }
}
