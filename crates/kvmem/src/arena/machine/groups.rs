//! *Cgroups*: finds the directories whose limits apply to this process, in both versions of the
//! hierarchy.
//!
//! A group's limit applies to all groups below it, so every directory from the process's own up to
//! the top is read. In a container, the path that the kernel reports can lie outside the mounted
//! part; then the top of the mount is read.

use crate::sys;

/// A directory with limit files.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Group {
    pub(crate) directory: String,
    /// Whether its files have the names of version 2.
    pub(crate) unified: bool,
}

impl Group {
    /// Reads one of its files as text.
    pub(crate) fn text(&self, file: &str) -> Option<String> {
        sys::read_text(&format!("{}/{file}", self.directory)).ok()
    }

    /// Reads a number from one of its files. Returns `None` for `max`, and for the huge numbers by
    /// which version 1 says the same.
    pub(crate) fn number(&self, file: &str) -> Option<u64> {
        self.text(file)?.trim().parse().ok().filter(|number| *number < 1 << 60)
    }
}

/// Returns the groups of a controller that apply to this process, the innermost first.
pub(crate) fn groups(controller: &str) -> Vec<Group> {
    match (sys::read_text("/proc/self/mountinfo"), sys::read_text("/proc/self/cgroup")) {
        (Ok(mounts), Ok(paths)) => find(&mounts, &paths, controller),
        _ => Vec::new(),
    }
}

fn find(mounts: &str, paths: &str, controller: &str) -> Vec<Group> {
    let mut groups = Vec::new();
    for line in mounts.lines() {
        // "36 35 98:0 /root /mount/point options - type source super,options"
        let Some((before, after)) = line.split_once(" - ") else { continue };
        let (mut before, mut after) = (before.split(' ').skip(3), after.split(' '));
        let (Some(root), Some(point)) = (before.next(), before.next()) else { continue };
        let (kind, options) = (after.next(), after.nth(1).unwrap_or(""));
        let unified = match kind {
            Some("cgroup2") => true,
            Some("cgroup") if options.split(',').any(|option| option == controller) => false,
            _ => continue,
        };
        let point = point.replace("\\040", " ");
        let own = paths.lines().find_map(|line| {
            let mut parts = line.splitn(3, ':');
            let (_, controllers, path) = (parts.next()?, parts.next()?, parts.next()?);
            let mine = if unified {
                controllers.is_empty()
            } else {
                controllers.split(',').any(|name| name == controller)
            };
            mine.then_some(path)
        });
        // Relative to the mounted directory; empty if the path lies outside it.
        let own = own.unwrap_or("/");
        let within = if root == "/" { Some(own) } else { own.strip_prefix(root) };
        let mut below =
            within.filter(|path| !path.contains("..")).unwrap_or("").trim_matches('/').to_owned();
        while !below.is_empty() {
            groups.push(Group { directory: format!("{point}/{below}"), unified });
            below.truncate(below.rfind('/').unwrap_or(0));
        }
        groups.push(Group { directory: point, unified });
    }
    groups
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(mounts: &str, paths: &str, controller: &str) -> Vec<String> {
        find(mounts, paths, controller).into_iter().map(|group| group.directory).collect()
    }

    #[test]
    fn version_2_up_to_the_top() {
        let mounts = "25 24 0:22 / /proc rw - proc proc rw\n\
                      30 25 0:26 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw,nsdelegate";
        assert_eq!(
            found(mounts, "0::/a.slice/b.scope\n", "memory"),
            ["/sys/fs/cgroup/a.slice/b.scope", "/sys/fs/cgroup/a.slice", "/sys/fs/cgroup"]
        );
        // A container that sees only its own group.
        assert_eq!(found(mounts, "0::/\n", "memory"), ["/sys/fs/cgroup"]);
        assert_eq!(found(mounts, "0::/../other\n", "memory"), ["/sys/fs/cgroup"]);
    }

    #[test]
    fn version_1_by_controller() {
        let mounts = "32 31 0:29 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu,cpuacct\n\
                      33 31 0:30 /docker/x /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n\
                      34 31 0:31 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw";
        let paths = "5:cpu,cpuacct:/y\n4:memory:/docker/x/inner\n0::/\n";
        assert_eq!(
            found(mounts, paths, "memory"),
            ["/sys/fs/cgroup/memory/inner", "/sys/fs/cgroup/memory", "/sys/fs/cgroup/unified"]
        );
        assert_eq!(
            found(mounts, paths, "cpu"),
            ["/sys/fs/cgroup/cpu/y", "/sys/fs/cgroup/cpu", "/sys/fs/cgroup/unified"]
        );
        assert_eq!(
            found(mounts, "4:memory:/elsewhere\n", "memory").first().unwrap(),
            "/sys/fs/cgroup/memory"
        );
    }
}
