//! *Tree*: the files of a simulated machine, in a folder that is removed when the tree is dropped.

use std::fs;
use std::path::Path;

use kvmem::arena::preflight::{FileSystemSpace, Machine, Rlimit, System};
use tempfile::TempDir;

pub(super) struct Tree {
    root: TempDir,
    pub(super) system: System,
}

impl Tree {
    /// Makes a machine without files, whose system calls report nothing.
    pub(super) fn empty() -> Tree {
        let root =
            tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a folder for the test");
        Tree { root, system: System::unknown() }
    }

    /// Makes a machine with one node, 128 GiB and no cgroup limits, which allows 64 GiB of
    /// hugepages.
    pub(super) fn roomy() -> Tree {
        let mut tree = Tree::empty();
        tree.file("proc/meminfo", MEMINFO)
            .file("proc/self/status", STATUS)
            .file("proc/self/uid_map", "         0          0 4294967295\n")
            .file("proc/self/maps", "a\nb\nc\n")
            .file("proc/sys/kernel/osrelease", "6.8.0-31-generic\n")
            .file("proc/sys/kernel/io_uring_disabled", "0\n")
            .file("proc/sys/vm/max_map_count", "65530\n")
            .file("proc/sys/vm/overcommit_memory", "0\n")
            .file("sys/kernel/mm/transparent_hugepage/enabled", "always [madvise] never\n")
            .file(
                "sys/kernel/mm/transparent_hugepage/defrag",
                "always defer defer+madvise [madvise] never\n",
            )
            .file(
                "sys/kernel/mm/transparent_hugepage/shmem_enabled",
                "always within_size [advise] never deny force\n",
            )
            .file("sys/devices/system/node/online", "0\n")
            .file("sys/module/zswap/parameters/enabled", "N\n")
            .folder("sys/bus/pci/devices")
            .folder("dev/shm")
            .pool("sys/kernel/mm/hugepages", 1 << 30, 0, 0)
            .pool("sys/kernel/mm/hugepages", 2 << 20, 32_768, 32_768)
            .pool("sys/devices/system/node/node0/hugepages", 1 << 30, 0, 0)
            .pool("sys/devices/system/node/node0/hugepages", 2 << 20, 32_768, 32_768)
            .unified("/", "/", &[("/", &[("cgroup.controllers", "cpu memory hugetlb")])]);
        tree.system.memlock = Some(Rlimit::default());
        tree.system.address_space = Some(Rlimit::default());
        tree.system.data = Some(Rlimit::default());
        tree.system.shm = Some(FileSystemSpace { total_bytes: 64 << 30, free_bytes: 64 << 30 });
        tree.system.cpus = Some(8);
        tree.system.io_uring = Some(Ok(()));
        tree.system.collapse = Some(Ok(()));
        tree
    }

    pub(super) fn machine(&self) -> Machine {
        Machine::new(self.root.path(), self.system.clone())
    }

    /// Writes a file, replacing any previous one.
    pub(super) fn file(&mut self, path: &str, text: impl AsRef<[u8]>) -> &mut Tree {
        let place = self.root.path().join(path);
        self.without(path);
        fs::create_dir_all(place.parent().expect("a folder above")).expect("a folder");
        fs::write(place, text).expect("a file");
        self
    }

    /// Makes a folder.
    pub(super) fn folder(&mut self, path: &str) -> &mut Tree {
        fs::create_dir_all(self.root.path().join(path)).expect("a folder");
        self
    }

    /// Makes a symbolic link.
    pub(super) fn link(&mut self, path: &str, target: &str) -> &mut Tree {
        let place = self.root.path().join(path);
        fs::create_dir_all(place.parent().expect("a folder above")).expect("a folder");
        std::os::unix::fs::symlink(target, place).expect("a link");
        self
    }

    /// Adds a device on the PCI bus, in an IOMMU group of this type, if any.
    pub(super) fn pci(
        &mut self,
        name: &str,
        [vendor, class, node]: [&str; 3],
        iommu: Option<&str>,
    ) -> &mut Tree {
        let folder = format!("sys/bus/pci/devices/{name}");
        self.file(&format!("{folder}/vendor"), format!("{vendor}\n"))
            .file(&format!("{folder}/class"), format!("{class}\n"))
            .file(&format!("{folder}/numa_node"), format!("{node}\n"));
        if let Some(kind) = iommu {
            self.file(&format!("{folder}/iommu_group/type"), format!("{kind}\n"));
        }
        self
    }

    /// Returns the folder of the files.
    pub(super) fn root(&self) -> &Path {
        self.root.path()
    }

    pub(super) fn without(&mut self, path: &str) -> &mut Tree {
        let place = self.root.path().join(path);
        if place.is_dir() {
            fs::remove_dir_all(place).expect("a removable folder");
        } else if place.exists() {
            fs::remove_file(place).expect("a removable file");
        }
        self
    }

    /// Replaces a file with a folder, which not even root can read.
    pub(super) fn unreadable(&mut self, path: &str) -> &mut Tree {
        self.without(path);
        fs::create_dir_all(self.root.path().join(path)).expect("a folder");
        self
    }

    /// Writes a hugetlb pool below `folder`.
    pub(super) fn pool(
        &mut self,
        folder: &str,
        page_bytes: u64,
        total: u64,
        free: u64,
    ) -> &mut Tree {
        let folder = format!("{folder}/hugepages-{}kB", page_bytes >> 10);
        for (file, value) in [
            ("nr_hugepages", total),
            ("free_hugepages", free),
            ("resv_hugepages", 0),
            ("surplus_hugepages", 0),
            ("nr_overcommit_hugepages", 0),
        ] {
            self.file(&format!("{folder}/{file}"), format!("{value}\n"));
        }
        self
    }

    /// Writes cgroups of v2, with `root` mounted and the process in `path`. `folders` lists folders
    /// below the mount with their files.
    pub(super) fn unified(
        &mut self,
        path: &str,
        root: &str,
        folders: &[(&str, &[(&str, &str)])],
    ) -> &mut Tree {
        self.without("sys/fs/cgroup");
        self.file("proc/self/cgroup", format!("0::{path}\n"));
        self.file(
            "proc/self/mountinfo",
            format!(
                "22 1 0:21 / /proc rw - proc proc rw\n\
                 30 23 0:26 {root} /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 \
                 rw,nsdelegate\n"
            ),
        );
        self.folders("sys/fs/cgroup", folders)
    }

    /// Writes cgroups of v1, with memory, hugetlb and cpu in separate hierarchies; the arguments
    /// are those of [`unified`](Tree::unified).
    pub(super) fn legacy(
        &mut self,
        path: &str,
        root: &str,
        folders: &[(&str, &[(&str, &str)])],
    ) -> &mut Tree {
        self.without("sys/fs/cgroup");
        let mut cgroup = "12:name=systemd:/\n".to_owned();
        let mut mountinfo = String::new();
        for (n, controllers) in ["memory", "hugetlb", "cpu,cpuacct"].iter().enumerate() {
            cgroup += &format!("{}:{controllers}:{path}\n", n + 2);
            mountinfo += &format!(
                "3{n} 23 0:3{n} {root} /sys/fs/cgroup/{controllers} rw,relatime - cgroup cgroup \
                 rw,{controllers}\n"
            );
            self.folders(&format!("sys/fs/cgroup/{controllers}"), folders);
        }
        self.file("proc/self/cgroup", cgroup + "0::/\n").file("proc/self/mountinfo", mountinfo)
    }

    fn folders(&mut self, mount: &str, folders: &[(&str, &[(&str, &str)])]) -> &mut Tree {
        for (folder, files) in folders {
            let folder = format!("{mount}{}", folder.trim_end_matches('/'));
            fs::create_dir_all(self.root.path().join(&folder)).expect("a folder");
            for (file, text) in *files {
                self.file(&format!("{folder}/{file}"), format!("{text}\n"));
            }
        }
        self
    }

    /// Replaces the line of a file that begins with `key`.
    pub(super) fn line(&mut self, path: &str, key: &str, line: &str) -> &mut Tree {
        let text = fs::read_to_string(self.root.path().join(path)).expect("a file");
        assert!(text.lines().any(|line| line.starts_with(key)), "no {key} in {path}");
        let lines = text.lines().map(|old| if old.starts_with(key) { line } else { old });
        let text = lines.collect::<Vec<_>>().join("\n") + "\n";
        self.file(path, text)
    }
}

const MEMINFO: &str = "\
MemTotal:       134217728 kB
MemFree:        100663296 kB
MemAvailable:   104857600 kB
SwapTotal:              0 kB
CommitLimit:     67108864 kB
Committed_AS:     1048576 kB
Hugepagesize:       2048 kB
";

const STATUS: &str = "\
Name:	server
VmSize:	  1048576 kB
VmLck:	        0 kB
VmPin:	        0 kB
VmData:	   524288 kB
CapEff:	0000000000000000
THP_enabled:	1
Cpus_allowed_list:	0-7
Mems_allowed_list:	0
";
