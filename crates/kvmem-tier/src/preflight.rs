//! *Preflight*: whether a path can be a disk tier, and how fast it could be, before one is made.
//!
//! Each check has a verdict, a reason and a fix, like those of [memory](kvmem::arena::preflight),
//! whose report they can [join](kvmem::arena::preflight::Report::add). Nothing of the machine is
//! changed: what only an attempt can show is tried in a file without a name.
//!
//! | name | value | fails or warns if |
//! |---|---|---|
//! | `tier.path` | what is there | it is neither a file nor a block device, or may not be written |
//! | `tier.lock` | free or in use | a tier or a program that reads one has it open |
//! | `tier.filesystem` | its type | its files do not survive, or are not local |
//! | `tier.direct_io` | alignment in bytes | transfers cannot bypass the page cache |
//! | `tier.fallocate` | possible or not | a full disk would be noticed only by a write |
//! | `tier.space` | bytes that this user may still allocate | it is less than the tier needs |
//! | `tier.io_uring` | allowed or not | threads would transfer the bytes instead |
//! | `tier.fixed_buffers` | bytes that can be locked | memory is mapped anew for each transfer |

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use io_uring::IoUring;
use kvmem::arena::preflight::{Check, Value, Verdict};
use rustix::fs::{
    AtFlags, CWD, FallocateFlags, FlockOperation, Mode, OFlags, SeekFrom, StatxFlags,
};
use rustix::io::Errno;

use crate::device::AlignedBuffer;
use crate::format::BLOCK;

/// Compares what a tier of `len` bytes in `path` needs with what is there. Takes milliseconds, and
/// never fails: what cannot be found out has the verdict
/// [`Unknown`](kvmem::arena::preflight::Verdict::Unknown).
#[must_use]
pub fn checks(path: &Path, len: u64) -> Vec<Check> {
    let place = Place::of(path);
    let probe = place.probe();
    vec![
        place.check(path),
        lock(&place),
        file_system(&place),
        direct_io(&place, &probe),
        fallocate(&place, &probe),
        space(&place, len),
        rings(),
        fixed_buffers(),
    ]
}

/// Kind of the path.
enum Place {
    /// A file, with its allocated bytes.
    File(PathBuf, u64),
    /// A block device.
    Device(PathBuf),
    /// A file that does not exist, in a folder that does.
    New(PathBuf),
    /// Nothing that could be a tier: the reason, and what to do.
    Unusable(String, &'static str),
}

const OTHER_PATH: &str = "give the path of a file or block device";

impl Place {
    fn of(path: &Path) -> Place {
        match std::fs::metadata(path) {
            Ok(found) if found.is_file() => Place::File(path.to_owned(), found.blocks() * 512),
            Ok(found) if found.file_type().is_block_device() => Place::Device(path.to_owned()),
            Ok(found) if found.is_dir() => Place::Unusable("it is a folder".into(), OTHER_PATH),
            Ok(_) => Place::Unusable("it is neither a file nor a block device".into(), OTHER_PATH),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                let folder = match path.parent() {
                    Some(folder) if !folder.as_os_str().is_empty() => folder,
                    _ => Path::new("."),
                };
                if path.file_name().is_some() && folder.is_dir() {
                    Place::New(folder.to_owned())
                } else {
                    let fix = "make its folder, or give another path";
                    Place::Unusable("its folder does not exist".into(), fix)
                }
            }
            Err(error) => Place::Unusable(format!("it cannot be examined: {error}"), OTHER_PATH),
        }
    }

    /// Returns a path on the same file system.
    fn near(&self) -> Option<&Path> {
        match self {
            Place::File(path, _) | Place::Device(path) | Place::New(path) => Some(path),
            Place::Unusable(..) => None,
        }
    }

    /// Opens a file without a name on the same file system, which vanishes when it is closed.
    fn probe(&self) -> io::Result<File> {
        let folder = match self {
            Place::File(path, _) => match path.parent() {
                Some(folder) if !folder.as_os_str().is_empty() => folder,
                _ => Path::new("."),
            },
            Place::New(folder) => folder,
            Place::Device(_) | Place::Unusable(..) => {
                return Err(io::Error::other("there is no folder to try it in"));
            }
        };
        let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
        Ok(rustix::fs::open(folder, flags, Mode::RUSR | Mode::WUSR)?.into())
    }

    fn check(&self, path: &Path) -> Check {
        let check = |what: &str| Check::new("tier.path", Value::Text(what.to_owned()));
        let writable = |path: &Path| rustix::fs::access(path, rustix::fs::Access::WRITE_OK);
        let (what, near) = match self {
            Place::File(path, _) => ("file", path),
            Place::Device(path) => ("block device", path),
            Place::New(folder) => ("new file", folder),
            Place::Unusable(why, fix) => {
                return check("unusable").judge(Verdict::Fail, &**why).fix(*fix);
            }
        };
        match writable(near) {
            Ok(()) => check(what).judge(Verdict::Ok, "it may be written"),
            Err(error) => check(what)
                .judge(Verdict::Fail, format!("this user may not write there: {error}"))
                .fix(format!("chown $USER {}; give another path", path.display())),
        }
    }
}

/// Makes a check that could not be made.
fn unknown(name: &'static str, why: impl Into<String>) -> Check {
    Check::new(name, Value::Unknown).judge(Verdict::Unknown, why)
}

const NO_PLACE: &str = "the path cannot be a tier";

fn lock(place: &Place) -> Check {
    let name = "tier.lock";
    let path = match place {
        Place::New(_) => {
            return Check::new(name, Value::Text("free".into()))
                .judge(Verdict::Ok, "the file does not exist yet");
        }
        Place::Unusable(..) => return unknown(name, NO_PLACE),
        Place::File(path, _) | Place::Device(path) => path,
    };
    let file = match File::open(path) {
        Ok(file) => file,
        Err(error) => return unknown(name, format!("it cannot be opened: {error}")),
    };
    match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Check::new(name, Value::Text("free".into()))
            .judge(Verdict::Ok, "no process has it open as a tier"),
        Err(Errno::WOULDBLOCK) => Check::new(name, Value::Text("in use".into()))
            .judge(Verdict::Fail, "a process has it open, as a tier or to read one")
            .fix(format!("end that process: fuser -v {}; give another path", path.display())),
        Err(error) => unknown(name, format!("it cannot be locked: {error}")),
    }
}

/// A type of file systems: its magic number, its name, and why it is no good place for a tier.
type FileSystem = (u64, &'static str, Option<(Verdict, &'static str)>);

const FILE_SYSTEMS: [FileSystem; 13] = [
    (0xEF53, "ext4", None),
    (0x5846_5342, "xfs", None),
    (0x9123_683E, "btrfs", Some((Verdict::Warn, COPIES))),
    (0x2FC1_2FC1, "zfs", Some((Verdict::Warn, COPIES))),
    (0xF2F5_2010, "f2fs", None),
    (0x0102_1994, "tmpfs", Some((Verdict::Fail, MEMORY))),
    (0x8584_58F6, "ramfs", Some((Verdict::Fail, MEMORY))),
    (0x794C_7630, "overlay", Some((Verdict::Warn, LAYERS))),
    (0x6969, "nfs", Some((Verdict::Warn, REMOTE))),
    (0xFF53_4D42, "cifs", Some((Verdict::Warn, REMOTE))),
    (0xFE53_4D42, "smb2", Some((Verdict::Warn, REMOTE))),
    (0x6573_5546, "fuse", Some((Verdict::Warn, REMOTE))),
    (0x0102_1997, "9p", Some((Verdict::Warn, REMOTE))),
];
const COPIES: &str = "it writes a new copy of each changed block, so the drive wears out faster";
const MEMORY: &str = "its files are in memory: they take what the cache could use, and do not \
                      survive a restart of the machine";
const LAYERS: &str = "files in a container's layer are deleted with the container";
const REMOTE: &str = "its files may be on another machine, and its locks may not hold there";

fn file_system(place: &Place) -> Check {
    let name = "tier.filesystem";
    let near = match place {
        Place::Device(_) => {
            return Check::new(name, Value::Text("none".into()))
                .judge(Verdict::Ok, "a block device has none");
        }
        place => match place.near() {
            Some(near) => near,
            None => return unknown(name, NO_PLACE),
        },
    };
    let magic = match rustix::fs::statfs(near) {
        // Some systems have a signed type.
        Ok(found) => found.f_type as u64 & 0xFFFF_FFFF,
        Err(error) => return unknown(name, format!("it cannot be examined: {error}")),
    };
    let Some((_, kind, fault)) = FILE_SYSTEMS.iter().find(|(number, ..)| *number == magic) else {
        return Check::new(name, Value::Text(format!("{magic:#x}")))
            .judge(Verdict::Ok, "a type that is not known to lose files");
    };
    let check = Check::new(name, Value::Text((*kind).to_owned()));
    match fault {
        None => check.judge(Verdict::Ok, "a local file system whose files survive"),
        Some((verdict, why)) => check
            .judge(*verdict, *why)
            .fix("give a path on a local NVMe drive with ext4 or xfs; give a block device"),
    }
}

fn direct_io(place: &Place, probe: &io::Result<File>) -> Check {
    let name = "tier.direct_io";
    let aligns = |found: rustix::fs::Statx| {
        let has_them = StatxFlags::from_bits_retain(found.stx_mask).contains(StatxFlags::DIOALIGN);
        has_them.then_some((found.stx_dio_mem_align, found.stx_dio_offset_align))
    };
    let stated = match (place, probe) {
        (Place::File(path, _) | Place::Device(path), _) => {
            rustix::fs::statx(CWD, path, AtFlags::empty(), StatxFlags::DIOALIGN).map(aligns)
        }
        (Place::New(_), Ok(file)) => {
            rustix::fs::statx(file, "", AtFlags::EMPTY_PATH, StatxFlags::DIOALIGN).map(aligns)
        }
        (Place::New(_), Err(_)) => Ok(None),
        (Place::Unusable(..), _) => return unknown(name, NO_PLACE),
    };
    let without = |why: &str| {
        Check::new(name, Value::Text("no".into()))
            .judge(Verdict::Warn, format!("{why}: bytes go through the page cache, twice"))
            .fix("give a path on a local drive with ext4 or xfs; give a block device")
    };
    match stated {
        Ok(Some((0, _) | (_, 0))) => without("the file system has no direct I/O"),
        Ok(Some((memory, offset))) => {
            let align = memory.max(offset);
            let check =
                Check::new(name, Value::Bytes(u64::from(align))).need(Value::Bytes(BLOCK as u64));
            if align as usize <= BLOCK {
                check.judge(Verdict::Ok, "a block of the tier is aligned well enough")
            } else {
                check
                    .judge(Verdict::Fail, "transfers need more alignment than a block of the tier")
                    .fix("give a drive with blocks of at most 4096 bytes")
            }
        }
        // A kernel before 6.1 does not state it: an attempt shows it.
        Ok(None) | Err(_) => match (place, probe) {
            (Place::File(path, _) | Place::Device(path), _) => {
                let direct = OFlags::DIRECT.bits() as i32;
                match OpenOptions::new().read(true).custom_flags(direct).open(path) {
                    Ok(_) => Check::new(name, Value::Text("yes".into()))
                        .judge(Verdict::Ok, "the file can be opened for it"),
                    Err(error) if Errno::from_io_error(&error) == Some(Errno::INVAL) => {
                        without("the file cannot be opened for direct I/O")
                    }
                    Err(error) => unknown(name, format!("the file cannot be opened: {error}")),
                }
            }
            (_, Ok(file)) => match rustix::fs::fcntl_setfl(file, OFlags::DIRECT) {
                Ok(()) => Check::new(name, Value::Text("yes".into()))
                    .judge(Verdict::Ok, "a file can be opened for it"),
                Err(_) => without("a file cannot be opened for direct I/O"),
            },
            (_, Err(error)) => unknown(name, format!("no file can be tried there: {error}")),
        },
    }
}

fn fallocate(place: &Place, probe: &io::Result<File>) -> Check {
    let name = "tier.fallocate";
    let yes = |why: &str| Check::new(name, Value::Text("yes".into())).judge(Verdict::Ok, why);
    let file = match (place, probe) {
        (Place::Device(_), _) => return yes("a block device has its space"),
        (Place::Unusable(..), _) => return unknown(name, NO_PLACE),
        (_, Err(error)) => return unknown(name, format!("no file can be tried there: {error}")),
        (_, Ok(file)) => file,
    };
    match rustix::fs::fallocate(file, FallocateFlags::empty(), 0, BLOCK as u64) {
        Ok(()) => yes("the space of a file is allocated when the tier is made"),
        Err(Errno::OPNOTSUPP) => Check::new(name, Value::Text("no".into()))
            .judge(Verdict::Warn, "a full file system is noticed only when a value is written")
            .fix("name a path on ext4 or xfs with enough free space"),
        Err(error) => Check::new(name, Value::Text("no".into()))
            .judge(Verdict::Fail, format!("no block can be allocated: {error}"))
            .fix("make space on the file system; raise the user's quota"),
    }
}

fn space(place: &Place, len: u64) -> Check {
    let name = "tier.space";
    let (there, near) = match place {
        Place::Device(path) => {
            let size = File::open(path).map_err(|error| error.to_string()).and_then(|file| {
                rustix::fs::seek(&file, SeekFrom::End(0)).map_err(|e| e.to_string())
            });
            let check = match size {
                Ok(size) => Check::new(name, Value::Bytes(size)).need(Value::Bytes(len)),
                Err(error) => return unknown(name, format!("it cannot be opened: {error}")),
            };
            return match &check.value {
                Value::Bytes(size) if *size < len => check
                    .judge(Verdict::Warn, "the device is shorter: the tier has its length")
                    .fix("give a longer device; ask for a smaller tier"),
                _ => check.judge(Verdict::Ok, "the device is long enough"),
            };
        }
        Place::File(path, allocated) => (*allocated, path),
        Place::New(folder) => (0, folder),
        Place::Unusable(..) => return unknown(name, NO_PLACE),
    };
    let limit = rustix::process::getrlimit(rustix::process::Resource::Fsize).current;
    if let Some(limit) = limit.filter(|&limit| limit < len) {
        return Check::new(name, Value::Bytes(limit))
            .need(Value::Bytes(len))
            .judge(Verdict::Fail, "RLIMIT_FSIZE forbids a file of this length")
            .fix("ulimit -f unlimited; systemd: LimitFSIZE=infinity");
    }
    let free = match rustix::fs::statvfs(near) {
        Ok(found) => found.f_bavail.saturating_mul(found.f_frsize),
        Err(error) => return unknown(name, format!("it cannot be examined: {error}")),
    };
    let need = len.saturating_sub(there);
    let check = Check::new(name, Value::Bytes(free)).need(Value::Bytes(need));
    if free >= need {
        check.judge(Verdict::Ok, "enough is free")
    } else {
        check
            .judge(Verdict::Fail, "the file system has less space than the tier needs")
            .fix("make space on it; ask for a smaller tier; give another path")
    }
}

/// Returns the reason why a ring could not be made, and what to do.
fn why_no_ring(error: &io::Error, disabled: Option<&str>) -> (String, &'static str) {
    const SECCOMP: &str = "allow io_uring_setup, io_uring_enter and io_uring_register in the \
                           seccomp profile of the container (docker run --security-opt \
                           seccomp=PROFILE)";
    match (error.raw_os_error(), disabled) {
        (Some(libc::EPERM), Some("2")) => (
            "kernel.io_uring_disabled is 2, which forbids rings for all users".into(),
            "sysctl kernel.io_uring_disabled=0",
        ),
        (Some(libc::EPERM), Some("1")) => (
            "kernel.io_uring_disabled is 1, which allows rings only for one group".into(),
            "sysctl kernel.io_uring_disabled=0; sysctl kernel.io_uring_group=$(id -g)",
        ),
        (Some(libc::EPERM | libc::EACCES), _) => {
            ("a seccomp profile or a security module forbids rings".into(), SECCOMP)
        }
        (Some(libc::ENOSYS), _) => {
            ("the kernel does not have io_uring, or a seccomp profile hides it".into(), SECCOMP)
        }
        (Some(libc::EMFILE | libc::ENFILE), _) => {
            ("no descriptor is left".into(), "ulimit -n 65536")
        }
        (Some(libc::ENOMEM), _) => (
            "the memory of a ring exceeds RLIMIT_MEMLOCK or the cgroup's limit".into(),
            "ulimit -l unlimited; docker run --ulimit memlock=-1; systemd: LimitMEMLOCK=infinity",
        ),
        _ => (format!("a ring cannot be made: {error}"), SECCOMP),
    }
}

/// Makes a ring like those of a tier.
fn ring() -> io::Result<IoUring> {
    IoUring::builder().setup_clamp().build(32)
}

fn rings() -> Check {
    let name = "tier.io_uring";
    match ring() {
        Ok(_) => Check::new(name, Value::Text("allowed".into()))
            .judge(Verdict::Ok, "one thread has many transfers in flight"),
        Err(error) => {
            let setting = std::fs::read_to_string("/proc/sys/kernel/io_uring_disabled").ok();
            let (why, fix) = why_no_ring(&error, setting.as_deref().map(str::trim));
            Check::new(name, Value::Text("not allowed".into()))
                .judge(Verdict::Warn, format!("{why}: threads transfer the bytes, which is slower"))
                .fix(fix)
        }
    }
}

fn fixed_buffers() -> Check {
    let name = "tier.fixed_buffers";
    let limit = rustix::process::getrlimit(rustix::process::Resource::Memlock).current;
    let check = Check::new(name, limit.map_or(Value::Unlimited, Value::Bytes));
    let ring = match ring() {
        Ok(ring) => ring,
        Err(_) => return unknown(name, "they need io_uring, which is not allowed"),
    };
    let mut buffer = AlignedBuffer::new((1 << 20) / BLOCK);
    let part = libc::iovec { iov_base: buffer.as_mut_ptr().cast(), iov_len: buffer.len() };
    // SAFETY: the buffer stays where it is until the ring, and with it the registration, is closed:
    // it is dropped after the ring. Nothing is submitted.
    let registered = unsafe { ring.submitter().register_buffers(&[part]) };
    drop(ring);
    drop(buffer);
    match registered {
        Ok(()) => check.judge(Verdict::Ok, "memory can be registered with a ring"),
        Err(error) => check
            .judge(
                Verdict::Warn,
                format!("1 MiB cannot be registered with a ring: {error}; transfers cost more"),
            )
            .fix(
                "ulimit -l unlimited; docker run --ulimit memlock=-1; systemd: \
                 LimitMEMLOCK=infinity",
            ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn named<'a>(checks: &'a [Check], name: &str) -> &'a Check {
        checks.iter().find(|check| check.name == name).expect("each row is there")
    }

    /// Every row that is not `ok` says why, and all but the unknown ones what to do.
    fn check_rows(checks: &[Check]) {
        assert_eq!(checks.len(), 8);
        for check in checks {
            assert!(!check.why.is_empty(), "{check:?}");
            if matches!(check.verdict, Verdict::Warn | Verdict::Fail) {
                assert!(check.fix.is_some(), "{check:?}");
            }
        }
    }

    #[test]
    fn a_new_file_is_examined_without_making_it() {
        let folder = tempfile::tempdir().expect("the folder can be made");
        let rows = checks(&folder.path().join("tier"), 1 << 20);
        check_rows(&rows);
        assert_eq!(named(&rows, "tier.path").value, Value::Text("new file".into()));
        for name in ["tier.path", "tier.lock", "tier.space"] {
            assert_eq!(named(&rows, name).verdict, Verdict::Ok, "{rows:?}");
        }
        let found = std::fs::read_dir(folder.path()).expect("it is there").count();
        assert_eq!(found, 0, "nothing was made");
        let rows = checks(&folder.path().join("tier"), u64::MAX);
        assert_eq!(named(&rows, "tier.space").verdict, Verdict::Fail);
    }

    #[test]
    fn a_tier_that_is_open_is_in_use() {
        let folder = tempfile::tempdir().expect("the folder can be made");
        let path = folder.path().join("tier");
        let options =
            crate::DiskTierOptions { bytes: Some(1 << 20), ..crate::DiskTierOptions::default() };
        let tier = crate::DiskTier::open(&path, &options).expect("there is room");
        let rows = checks(&path, 1 << 20);
        check_rows(&rows);
        let lock = named(&rows, "tier.lock");
        assert!(lock.verdict == Verdict::Fail && lock.why.contains("has it open"), "{lock:?}");
        drop(tier);
        let rows = checks(&path, 1 << 20);
        assert_eq!(named(&rows, "tier.lock").verdict, Verdict::Ok);
        assert_eq!(named(&rows, "tier.path").value, Value::Text("file".into()));
        // The lock is released again, and its space is there already.
        crate::DiskTier::open(&path, &options).expect("it is free");
        assert_eq!(named(&rows, "tier.space").verdict, Verdict::Ok);
    }

    #[test]
    fn what_cannot_be_a_tier_says_why() {
        let folder = tempfile::tempdir().expect("the folder can be made");
        for (path, why) in [
            (folder.path().to_owned(), "a folder"),
            (PathBuf::from("/dev/null"), "neither a file nor a block device"),
            (folder.path().join("none/tier"), "folder does not exist"),
            (PathBuf::new(), "folder does not exist"),
        ] {
            let rows = checks(&path, 1 << 20);
            check_rows(&rows);
            let row = named(&rows, "tier.path");
            assert!(row.verdict == Verdict::Fail && row.why.contains(why), "{row:?}");
            assert_eq!(named(&rows, "tier.space").verdict, Verdict::Unknown);
        }
    }

    #[test]
    fn memory_is_no_disk() {
        let shm = Path::new("/dev/shm");
        if !shm.is_dir() {
            return;
        }
        let rows = checks(&shm.join("kvmem-tier-preflight"), 4096);
        let row = named(&rows, "tier.filesystem");
        assert!(row.verdict == Verdict::Fail && row.why.contains("in memory"), "{row:?}");
    }

    #[test]
    fn each_reason_against_rings_has_its_own_fix() {
        let why = |errno, setting| why_no_ring(&io::Error::from_raw_os_error(errno), setting);
        assert!(why(libc::EPERM, Some("2")).1.contains("io_uring_disabled=0"));
        assert!(why(libc::EPERM, Some("1")).1.contains("io_uring_group"));
        assert!(why(libc::EPERM, Some("0")).0.contains("seccomp"));
        assert!(why(libc::ENOSYS, None).1.contains("io_uring_setup"));
        assert!(why(libc::ENOMEM, None).1.contains("memlock"));
        assert!(why(libc::EMFILE, None).1.contains("ulimit -n"));
        assert!(why(libc::EINVAL, None).0.contains("Invalid argument"));
    }
}
