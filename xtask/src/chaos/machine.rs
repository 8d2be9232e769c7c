//! *Machine*: what every run must leave as it was, and cgroups of our own.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// The longest to wait for others that have borrowed pages.
const TURN_MAX: Duration = Duration::from_secs(30);

/// Settings and files of the machine that no run may change.
pub(super) struct Settings {
    /// Files of settings with what stands in them.
    texts: BTreeMap<PathBuf, String>,
    shared_memory: BTreeSet<PathBuf>,
}

impl Settings {
    pub(super) fn now() -> Settings {
        let mut paths = vec![PathBuf::from("/proc/sys/vm/nr_overcommit_hugepages")];
        for pool in entries("/sys/kernel/mm/hugepages") {
            paths.push(pool.join("nr_hugepages"));
        }
        let texts = paths.into_iter().filter_map(|path| {
            let _turn = turn(&path);
            Some((path.clone(), fs::read_to_string(&path).ok()?))
        });
        Settings { texts: texts.collect(), shared_memory: entries("/dev/shm") }
    }

    /// Says what has changed, and puts settings back.
    pub(super) fn restore(&self) -> Vec<String> {
        let mut changed = Vec::new();
        let differs = |path: &Path, before: &str| {
            fs::read_to_string(path).ok().filter(|now| now.trim() != before.trim())
        };
        for (path, before) in
            self.texts.iter().filter(|(path, before)| differs(path, before).is_some())
        {
            // Another program may have borrowed pages and return them soon.
            let Some(_turn) = turn(path) else { continue };
            let Some(after) = differs(path, before) else { continue };
            let (before, after) = (before.trim(), after.trim());
            changed.push(format!("{} was {before} and is {after}", path.display()));
            if let Err(error) = fs::write(path, before) {
                changed.push(format!("{} could not be put back: {error}", path.display()));
            }
        }
        for path in entries("/dev/shm")
            .difference(&self.shared_memory)
            .filter(|path| is_ours(path) && !is_mapped(path))
        {
            // Files of another program may be about to go.
            thread::sleep(Duration::from_millis(200));
            if path.exists() {
                changed.push(format!("{} was left", path.display()));
            }
        }
        changed
    }
}

/// Whether kvmem or a test of it made a file of shared memory: those have its name. Other programs
/// of the machine make and leave files meanwhile.
fn is_ours(file: &Path) -> bool {
    file.file_name().is_some_and(|name| name.to_string_lossy().contains("kvmem"))
}

/// Whether a process has a file mapped: then the file is in use, not left behind.
fn is_mapped(file: &Path) -> bool {
    let name = file.display().to_string();
    let maps = |process: &PathBuf| {
        fs::read_to_string(process.join("maps")).is_ok_and(|maps| maps.contains(&name))
    };
    entries("/proc").iter().any(maps)
}

/// The right to change a setting: a test that borrows pages locks the kernel's file
/// meanwhile. `None` if it does not come in time.
fn turn(path: &Path) -> Option<File> {
    let file = File::open(path).ok()?;
    let start = Instant::now();
    while file.try_lock().is_err() {
        if start.elapsed() > TURN_MAX {
            return None;
        }
        thread::sleep(Duration::from_millis(20));
    }
    Some(file)
}

fn entries(folder: &str) -> BTreeSet<PathBuf> {
    fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path()).collect()
}

/// Processes of a group that have not ended.
pub(super) fn processes_of_group(group: u32) -> Vec<u32> {
    let of_group = |path: &Path| {
        let id: u32 = path.file_name()?.to_str()?.parse().ok()?;
        let stat = fs::read_to_string(path.join("stat")).ok()?;
        // The name may have spaces and brackets: state, parent and group stand behind the last one.
        let mut words = stat.rsplit_once(')')?.1.split_whitespace();
        let (state, its_group) = (words.next()?, words.nth(1)?);
        (state != "Z" && its_group == group.to_string()).then_some(id)
    };
    entries("/proc").iter().filter_map(|path| of_group(path)).collect()
}

/// A cgroup of our own with a limit, in either version.
pub(crate) struct Cgroup {
    path: PathBuf,
    /// The version that its files are named by.
    unified: bool,
}

impl Cgroup {
    /// A group of a controller with a limit of so much; `file` is the limit's file in both
    /// versions.
    fn new(controller: &str, limit: &str, file: [&str; 2]) -> Result<Cgroup, String> {
        static NUMBER: AtomicU64 = AtomicU64::new(0);
        // Relaxed: only a number that no other group of this process has.
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let name = format!("kvmem-chaos-{}-{number}", std::process::id());
        let own = fs::read_to_string("/proc/self/cgroup").map_err(|error| error.to_string())?;
        let mut reason = format!("no cgroup with the controller {controller} can be made");
        for line in own.lines() {
            let mut parts = line.splitn(3, ':').skip(1);
            let (controllers, path) = (parts.next().unwrap_or(""), parts.next().unwrap_or("/"));
            let unified = controllers.is_empty();
            let top = match unified {
                true => "/sys/fs/cgroup".to_owned(),
                false if controllers.split(',').any(|name| name == controller) => {
                    format!("/sys/fs/cgroup/{controller}")
                }
                false => continue,
            };
            for parent in [format!("{top}{path}"), top.clone()] {
                let group = Cgroup { path: Path::new(&parent).join(&name), unified };
                let limit_file = group.path.join(file[usize::from(unified)]);
                // Only a file that the kernel has put there is a limit.
                let made = fs::create_dir(&group.path).and_then(|()| {
                    let mut file = fs::OpenOptions::new().write(true).open(limit_file)?;
                    std::io::Write::write_all(&mut file, limit.as_bytes())
                });
                match made {
                    Ok(()) => return Ok(group),
                    Err(error) => reason = format!("{}: {error}", group.path.display()),
                }
            }
        }
        Err(reason)
    }

    /// Sets the limit of memory in bytes.
    pub(crate) fn memory(bytes: u64) -> Result<Cgroup, String> {
        Cgroup::new("memory", &bytes.to_string(), ["memory.limit_in_bytes", "memory.max"])
    }

    /// Sets the limit of processes and threads.
    pub(super) fn pids(count: u64) -> Result<Cgroup, String> {
        Cgroup::new("pids", &count.to_string(), ["pids.max", "pids.max"])
    }

    /// What a shell says to join it.
    pub(crate) fn join(&self) -> String {
        format!("echo $$ > {}/cgroup.procs", self.path.display())
    }

    /// How many processes the kernel has killed for want of memory.
    pub(super) fn killed(&self) -> u64 {
        let file =
            self.path.join(if self.unified { "memory.events" } else { "memory.oom_control" });
        let text = fs::read_to_string(file).unwrap_or_default();
        let line = text.lines().find_map(|line| line.strip_prefix("oom_kill "));
        line.and_then(|count| count.trim().parse().ok()).unwrap_or(0)
    }
}

impl Drop for Cgroup {
    fn drop(&mut self) {
        // A group that could not be made is not there to be removed.
        let _ = fs::remove_dir(&self.path);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processes_are_found_by_their_group() {
        let mut child = std::process::Command::new("sleep");
        let mut child = std::os::unix::process::CommandExt::process_group(&mut child, 0)
            .arg("30")
            .spawn()
            .unwrap();
        assert_eq!(processes_of_group(child.id()), [child.id()]);
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(processes_of_group(child.id()).is_empty());
    }

    #[test]
    fn files_of_other_programs_are_no_complaint() {
        let settings = Settings::now();
        let id = std::process::id();
        let [ours, others] = ["kvmem-left", "psm"].map(|name| format!("/dev/shm/{name}-{id}"));
        [&ours, &others].iter().for_each(|path| fs::write(path, "left").unwrap());
        let complaints = settings.restore();
        [&ours, &others].iter().for_each(|path| fs::remove_file(path).unwrap());
        assert!(complaints.contains(&format!("{ours} was left")), "{complaints:?}");
        assert!(!complaints.iter().any(|line| line.contains(&others)), "{complaints:?}");
    }

    #[test]
    fn what_has_not_changed_is_no_complaint() {
        let settings = Settings::now();
        assert!(settings.texts.values().all(|text| !text.is_empty()));
        assert_eq!(settings.restore().into_iter().filter(|line| line.contains("nr_")).count(), 0);
    }
}
