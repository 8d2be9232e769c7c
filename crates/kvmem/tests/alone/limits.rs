//! Limits return errors and kill no process. Each test runs in a child under the limit; the parent
//! asserts its exit status.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};

use super::child::{self, again, role};
use super::{MIB, alone};
use kvmem::arena::{
    ArenaError, Backing, Call, Ladder, Limit, PageSize, Populate, ProgressOptions, Region,
    RegionBuilder,
};

fn ordinary(size: usize) -> RegionBuilder {
    Region::builder(size).ladder(Ladder::new([PageSize::Thp, PageSize::Base]))
}

fn backing(shared: bool) -> Backing {
    if shared { Backing::Shared } else { Backing::Private }
}

/// Sets the limit of this process, up to its hard limit.
pub(super) fn set_limit(resource: libc::__rlimit_resource_t, most: u64) {
    // SAFETY: a structure of plain numbers.
    let mut limit = unsafe { std::mem::zeroed::<libc::rlimit>() };
    // SAFETY: the output has the type that the call fills.
    assert_eq!(unsafe { libc::getrlimit(resource, &mut limit) }, 0);
    limit.rlim_cur = most;
    // SAFETY: the call reads a structure.
    assert_eq!(unsafe { libc::setrlimit(resource, &limit) }, 0);
}

fn passes(test: &str, role: &str) {
    child::passes(&mut again(&format!("limits::{test}"), role));
}

#[test]
fn too_few_addresses() {
    let _alone = alone();
    if role().is_none() {
        return passes("too_few_addresses", "child");
    }
    set_limit(libc::RLIMIT_AS, 512 << 20);
    let error = ordinary(1 << 30).map().expect_err("more than the limit");
    assert!(
        matches!(&error, ArenaError::CallFailed { call: Call::Reserve, limit, .. }
            if *limit == Some(Limit::AddressSpace(512 << 20))),
        "{error}"
    );
    assert!(error.to_string().contains("RLIMIT_AS"), "{error}");
    // Below the limit everything works, including threads.
    let region = ordinary(128 * MIB).populate(Populate::threads(2)).map().expect("below the limit");
    assert_eq!(region.receipt().resident_bytes(), 128 << 20);
}

#[test]
fn sizes_beyond_the_address_space() {
    let _alone = alone();
    for shared in [false, true] {
        let error = ordinary(1 << 50).backing(backing(shared)).map().expect_err("1 PiB");
        let ArenaError::CallFailed {
            call: Call::Reserve, limit: Some(Limit::Addresses(free)), ..
        } = &error
        else {
            panic!("{error}")
        };
        assert!((1 << 40..1 << 50).contains(free), "{error}");
        let text = error.to_string();
        assert!(text.contains(&format!("{free} bytes: request less than {free} bytes")), "{text}");
        // The reported range is free, except for the part that alignment takes.
        drop(
            Region::builder(*free as usize - (4 << 30))
                .ladder(PageSize::Base)
                .map()
                .expect("addresses"),
        );
    }
}

#[test]
fn too_little_private_memory() {
    let _alone = alone();
    if role().is_none() {
        return passes("too_little_private_memory", "child");
    }
    set_limit(libc::RLIMIT_DATA, 256 << 20);
    let error = ordinary(1 << 30).map().expect_err("more than the limit");
    assert!(matches!(error, ArenaError::CallFailed { limit: Some(Limit::Data(_)), .. }), "{error}");
    ordinary(64 * MIB).populate(Populate::threads(1)).map().expect("below the limit");
}

#[test]
fn too_little_locked_memory() {
    let _alone = alone();
    if role().is_none() {
        return passes("too_little_locked_memory", "child");
    }
    set_limit(libc::RLIMIT_MEMLOCK, 64 << 10);
    // Mapping and populating lock nothing.
    ordinary(64 * MIB).populate(Populate::Auto).map().expect("no limit for this");
}

#[test]
fn too_small_files() {
    let _alone = alone();
    if role().is_none() {
        return passes("too_small_files", "child");
    }
    // The kernel kills a process that exceeds this file size.
    set_limit(libc::RLIMIT_FSIZE, 1 << 20);
    let error = ordinary(4 * MIB).backing(Backing::Shared).map().expect_err("more than the limit");
    assert!(
        matches!(error, ArenaError::CallFailed { limit: Some(Limit::FileSize(_)), .. }),
        "{error}"
    );
    ordinary(MIB).ladder(PageSize::Base).backing(Backing::Shared).map().expect("below the limit");
}

/// A memory cgroup with a limit, below this process's own.
pub(super) struct Group(pub(super) PathBuf);

impl Group {
    pub(super) fn new(limit: usize) -> Result<Group, String> {
        let own = fs::read_to_string("/proc/self/cgroup").map_err(|error| error.to_string())?;
        let mut reasons = String::from("no memory cgroup is mounted");
        for line in own.lines() {
            let mut parts = line.splitn(3, ':').skip(1);
            let (controllers, path) = (parts.next().unwrap_or(""), parts.next().unwrap_or("/"));
            let (top, file) = match controllers {
                "memory" => ("/sys/fs/cgroup/memory", "memory.limit_in_bytes"),
                "" => ("/sys/fs/cgroup", "memory.max"),
                _ => continue,
            };
            // In a container the path may be outside the mounted part.
            for parent in [format!("{top}{path}"), top.to_owned()] {
                let group =
                    Group(Path::new(&parent).join(format!("kvmem-test-{}", std::process::id())));
                // Only a file made by the kernel is a limit.
                let limited = || {
                    let mut file = fs::OpenOptions::new().write(true).open(group.0.join(file))?;
                    file.write_all(limit.to_string().as_bytes())
                };
                match fs::create_dir(&group.0).and_then(|()| limited()) {
                    Ok(()) => return Ok(group),
                    Err(error) => reasons = format!("{}: {error}", group.0.display()),
                }
            }
        }
        Err(reasons)
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        // Processes of a failed test may take a moment to end. A group that could not be made need
        // not be removed.
        for _ in 0..3000 {
            match fs::remove_dir(&self.0) {
                Err(error) if error.raw_os_error() == Some(libc::EBUSY) => {
                    std::thread::sleep(std::time::Duration::from_millis(20));
                }
                _ => return,
            }
        }
    }
}

/// Moves this process into a group.
pub(super) fn join(group: &str) {
    fs::write(Path::new(group).join("cgroup.procs"), "0").expect("the parent could make the group");
}

#[test]
fn a_small_memory_cgroup() {
    let _alone = alone();
    let test = "a_small_memory_cgroup";
    match role() {
        None => {
            let group = match Group::new(96 * MIB) {
                Ok(group) => group,
                Err(reason) => return println!("skipped: {reason}"),
            };
            let path = group.0.to_str().expect("a plain path");
            passes(test, path);
            // Without the arena the kernel kills the process, so the limit is effective.
            let killed = again(&format!("limits::{test}"), &format!("touch {path}"))
                .output()
                .expect("a child");
            use std::os::unix::process::ExitStatusExt;
            assert_eq!(killed.status.signal(), Some(libc::SIGKILL), "{killed:?}");
        }
        Some(role) => {
            if let Some(path) = role.strip_prefix("touch ") {
                join(path);
                let mut bytes = vec![0u8; 256 * MIB];
                for at in (0..bytes.len()).step_by(4096) {
                    bytes[at] = 1;
                }
                std::hint::black_box(&bytes);
                return;
            }
            join(&role);
            for shared in [false, true] {
                for populate in [Populate::threads(1), Populate::threads(2), Populate::Auto] {
                    let builder = ordinary(256 * MIB).backing(backing(shared));
                    let error = builder.populate(populate).map().expect_err("more than the limit");
                    let ArenaError::NoHeadroom {
                        need,
                        limit: Limit::Cgroup { group, limit, remaining: left },
                    } = &error
                    else {
                        panic!("{error}")
                    };
                    assert!(role.ends_with(group.rsplit('/').next().expect("a name")), "{group}");
                    assert_eq!(*limit, 96 << 20);
                    assert!(*left < *limit && *need > 256 << 20);
                }
            }
            // Sizes below the limit work repeatedly, and resident pages need no more memory.
            for _ in 0..3 {
                let region =
                    ordinary(64 * MIB).populate(Populate::Auto).map().expect("below the limit");
                region
                    .populate(.., Populate::threads(2), &ProgressOptions::new())
                    .expect("it is there");
            }
            // The limit is reached in the middle, because other code uses the rest meanwhile.
            let region = ordinary(60 * MIB).map().expect("addresses");
            let taken = std::sync::Mutex::new(Vec::new());
            let watch = ProgressOptions::new().progress(move |_| {
                let mut taken = taken.lock().expect("one at a time");
                if taken.is_empty() {
                    *taken = vec![1u8; 50 * MIB];
                }
            });
            let error =
                region.populate(.., Populate::threads(1), &watch).expect_err("taken meanwhile");
            assert!(
                matches!(error, ArenaError::NoHeadroom { limit: Limit::Cgroup { .. }, .. }),
                "{error}"
            );
        }
    }
}

#[test]
fn more_than_the_machine_has() {
    let _alone = alone();
    let region = ordinary(1 << 44).map().expect("enough addresses");
    let error = region.populate(.., Populate::Auto, &ProgressOptions::new()).expect_err("16 TiB");
    assert!(matches!(error, ArenaError::NoHeadroom { .. }), "{error}");
    assert_eq!(region.residency(..).expect("measured").resident_bytes, 0);
}
