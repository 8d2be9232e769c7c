//! Faults of other systems that their users reported: what a tier does instead.
//!
//! `docs/faults.md` lists the reports.

use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use kvmem::tier::TierRead;
use kvmem_tier::device::{Engine, FileDevice};
use kvmem_tier::{DiskTier, DiskTierOptions, Fetched};

use crate::failing_calls::FailingCalls;
use crate::files::temp_path;
use crate::seccomp::check;

/// The file that a child uses.
const FILE: &str = "KVMEM_TEST_CHILD";
/// Bytes of a value that a child stores.
const LEN: usize = 1 << 20;

/// Runs a program, and returns what it wrote; `None` if it failed.
fn run(program: &str, arguments: &[&str]) -> Option<String> {
    let output = Command::new(program).args(arguments).output().ok()?;
    output.status.success().then(|| String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

/// A block device of a file, until it is dropped.
struct Loop {
    device: PathBuf,
    _file: tempfile::NamedTempFile,
}

impl Loop {
    fn new(bytes: u64, sector: u32) -> Option<Loop> {
        let file = tempfile::NamedTempFile::new().ok()?;
        file.as_file().set_len(bytes).ok()?;
        let sector = sector.to_string();
        let path = file.path().to_str()?;
        let device = run("losetup", &["--find", "--show", "--sector-size", &sector, path])?;
        Some(Loop { device: device.into(), _file: file })
    }

    /// The numbers of the device, as cgroups spell them.
    fn numbers(&self) -> String {
        use std::os::unix::fs::MetadataExt;
        let number = fs::metadata(&self.device).unwrap().rdev();
        format!("{}:{}", libc::major(number), libc::minor(number))
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        run("losetup", &["--detach", self.device.to_str().unwrap()]);
    }
}

/// A cgroup whose processes write slowly to a device, until it is dropped.
struct Slow(PathBuf);

impl Slow {
    fn new(device: &str, bytes_per_second: u64) -> Option<Slow> {
        let name = format!("kvmem-test-{}", std::process::id());
        let group = Slow(Path::new("/sys/fs/cgroup/blkio").join(name));
        fs::create_dir(&group.0).ok()?;
        let limit = format!("{device} {bytes_per_second}");
        fs::write(group.0.join("blkio.throttle.write_bps_device"), limit).ok()?;
        Some(group)
    }

    /// Returns how many bytes have been written, also by processes that have ended.
    fn written(&self) -> u64 {
        let text = fs::read_to_string(self.0.join("blkio.throttle.io_service_bytes")).unwrap();
        let written = |line: &str| line.split_once(" Write ")?.1.parse::<u64>().ok();
        text.lines().filter_map(written).sum()
    }
}

impl Drop for Slow {
    fn drop(&mut self) {
        let _ = fs::remove_dir(&self.0);
    }
}

/// Stores values under the keys 0, 1 and so on, each of one byte that is repeated.
fn store(tier: &DiskTier, values: u8, len: usize, first: u8) {
    let values: Vec<Vec<u8>> = (0..values).map(|key| vec![key ^ first; len]).collect();
    let keys: Vec<[u8; 1]> = (0..values.len() as u8).map(|key| [key]).collect();
    let batch: Vec<(&[u8], &[u8])> =
        keys.iter().zip(&values).map(|(key, value)| (&key[..], &value[..])).collect();
    let stored = tier.store(&batch);
    assert!(stored.iter().all(Result::is_ok), "{stored:?}");
}

/// Fetches these values in one call, into memory that held others, and checks all their bytes.
fn fetch(tier: &DiskTier, values: u8, len: usize, first: u8) {
    let keys: Vec<[u8; 1]> = (0..values).map(|key| [key]).collect();
    let mut memory = vec![vec![0xEE; len]; values.into()];
    let mut reads: Vec<TierRead<'_>> =
        keys.iter().zip(&mut memory).map(|(key, into)| TierRead { key, into }).collect();
    let found = tier.fetch(&mut reads);
    assert!(found.iter().all(|it| *it == Fetched::Hit), "{found:?}");
    for (key, value) in (0..).zip(&memory) {
        assert!(value.iter().all(|byte| *byte == key ^ first), "other bytes under {key}");
    }
}

#[test]
#[ignore = "run by another test"]
fn child_that_stores_much() {
    let file: PathBuf = std::env::var_os(FILE).unwrap().into();
    let (tier, _) = DiskTier::open(file, &DiskTierOptions::default()).unwrap();
    println!("\nstoring");
    loop {
        store(&tier, 64, LEN, 0);
    }
}

/// The kernel completes the writes of a killed process after its end, and the file stays locked
/// meanwhile. The next process waits for that, and finds a tier whose bytes nothing changes any
/// more. The device writes so slowly that what is in flight takes a second.
#[test]
fn a_tier_is_opened_while_the_writes_of_a_killed_process_end() {
    let Some(disk) = Loop::new(256 << 20, 512) else {
        return println!("skipped: it takes root and a loop device");
    };
    let Some(slow) = Slow::new(&disk.numbers(), 4 << 20) else {
        return println!("skipped: it takes root and the `blkio` controller of cgroups");
    };
    drop(DiskTier::open(&disk.device, &DiskTierOptions::default()).unwrap());
    let kills = std::env::var("KVMEM_TEST_KILLS").ok().and_then(|kills| kills.parse().ok());
    for kill in 0..kills.unwrap_or(1) {
        let enter = "echo $$ > \"$0\"/cgroup.procs && exec \"$@\"";
        let mut child = Command::new("sh")
            .args(["-c", enter, slow.0.to_str().unwrap()])
            .arg(std::env::current_exe().unwrap())
            .args(["--exact", "reported::child_that_stores_much", "--nocapture", "--ignored"])
            .env(FILE, &disk.device)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        assert!(lines.map_while(Result::ok).any(|line| line == "storing"));
        // A part of the first values is written, and the next ones are in flight.
        let before = slow.written();
        while slow.written() < before + (1 << 20) {
            assert!(child.try_wait().unwrap().is_none(), "the child has ended");
            std::thread::yield_now();
        }
        child.kill().unwrap();
        // At once: the process may not even have ended.
        let (tier, found) = DiskTier::open(&disk.device, &DiskTierOptions::default()).unwrap();
        assert_eq!((found.damaged, found.journal_damaged), (0, 0), "{found:?}");
        store(&tier, 16, LEN, 0x40 + kill);
        let written = slow.written();
        child.wait().unwrap();
        fetch(&tier, 16, LEN, 0x40 + kill);
        assert_eq!(slow.written(), written, "the killed process still writes");
    }
}

/// A ring that does not take what is submitted leaves transfers as they were: they are submitted
/// again, and no call returns before the kernel has ended those that it has.
#[test]
fn submissions_that_fail_are_repeated_and_lend_no_memory_for_longer() {
    let file = temp_path("submissions");
    let device = FileDevice::open(&file, 64 << 20, 8).unwrap();
    if device.engine() == Engine::Threads {
        return println!("skipped: this process may have no ring");
    }
    let (tier, _) = DiskTier::on(device, &DiskTierOptions::default()).unwrap();
    for errno in [libc::EAGAIN, libc::EBUSY, libc::EINTR, libc::ENOMEM] {
        for nth in [2, 3, 7] {
            let first = (errno as u8) ^ nth as u8;
            let failing = FailingCalls::new(libc::SYS_io_uring_enter, nth, errno);
            let run = failing.during(|| {
                store(&tier, 40, 70_001, first);
                fetch(&tier, 40, 70_001, first);
            });
            match run {
                Ok(failed) => assert!(failed > 0, "no call failed"),
                Err(error) => return println!("skipped: no call can be made to fail: {error}"),
            }
            fetch(&tier, 40, 70_001, first);
        }
    }
}

/// A new mount namespace, in which nothing that is mounted reaches the machine.
fn own_mounts() -> std::io::Result<()> {
    let none = std::ptr::null();
    // SAFETY: the strings end with zeros.
    unsafe {
        check(libc::unshare(libc::CLONE_NEWNS))?;
        check(libc::mount(none, c"/".as_ptr(), none, libc::MS_REC | libc::MS_PRIVATE, none.cast()))
    }
}

#[test]
fn file_systems_without_whole_direct_transfers_have_tiers_all_the_same() {
    let mut child = Command::new(std::env::current_exe().unwrap());
    child.args(["--exact", "reported::on_file_systems", "--nocapture", "--ignored"]);
    // SAFETY: the function makes system calls, and takes no lock.
    unsafe { child.pre_exec(own_mounts) };
    match child.output() {
        Ok(output) => {
            let text = String::from_utf8_lossy(&output.stdout);
            let errors = String::from_utf8_lossy(&output.stderr);
            assert!(output.status.success() && text.contains("1 passed"), "{text}{errors}");
            println!("{text}");
        }
        Err(error) => println!("skipped: it takes root: {error}"),
    }
}

#[test]
#[ignore = "run by another test"]
fn on_file_systems() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| {
        let path = folder.path().join(name);
        fs::create_dir_all(&path).unwrap();
        path.to_str().unwrap().to_owned()
    };
    let (tmpfs, overlay) = (at("tmpfs"), at("overlay"));
    run("mount", &["-t", "tmpfs", "-o", "size=64m", "tmpfs", &tmpfs]).unwrap();
    let [lower, upper, work] = ["lower", "upper", "work"].map(|it| at(&format!("tmpfs/{it}")));
    let layers = format!("lowerdir={lower},upperdir={upper},workdir={work}");
    let mut kinds = vec![("tmpfs", tmpfs)];
    if run("mount", &["-t", "overlay", "-o", &layers, "overlay", &overlay]).is_some() {
        kinds.push(("overlay", overlay));
    }
    let mut loops = Vec::new();
    for (name, sector, options) in [
        ("ext4 with a journal of data", 512, "data=journal"),
        ("ext4 on sectors of 4096 bytes", 4096, "data=ordered"),
    ] {
        let Some(disk) = Loop::new(64 << 20, sector) else { continue };
        let (device, path) = (disk.device.to_str().unwrap(), at(name));
        let mounted = run("mkfs.ext4", &["-q", "-b", "4096", device])
            .and_then(|_| run("mount", &["-t", "ext4", "-o", options, device, &path]));
        if mounted.is_some() {
            kinds.push((name, path));
        } else {
            println!("skipped: {name}");
        }
        loops.push(disk);
    }
    let options = DiskTierOptions { bytes: Some(16 << 20), ..DiskTierOptions::default() };
    for (name, path) in &kinds {
        let path = Path::new(path).join("tier");
        for rings in [true, false] {
            // The one opens what the other has left.
            let device = FileDevice::open(&path, 16 << 20, 8).unwrap();
            let device = if rings { device } else { device.without_rings() };
            let (tier, found) = DiskTier::on(device, &options).unwrap();
            let is_direct = tier.device().is_direct();
            println!("{name}: {:?}, direct {is_direct}", tier.device().engine());
            // The kernel opens the file for direct transfers, and makes none.
            assert!(!is_direct || !name.contains("journal"));
            assert_eq!(found.entries, if rings { 0 } else { 40 });
            if rings {
                store(&tier, 40, 70_001, 7);
            }
            fetch(&tier, 40, 70_001, 7);
        }
    }
    for (_, path) in kinds.iter().rev() {
        run("umount", &[path]).unwrap();
    }
}
