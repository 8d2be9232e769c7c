//! Surroundings that a process finds: limits, filters, file systems, and forks.
//!
//! Each test runs another test of this file in a process of its own, which is prepared before it
//! begins.

use std::ffi::CString;
use std::fs;
use std::io;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use kvmem::arena::PageSize;
use kvmem::pool::Pool;
use kvmem::tier::TierRead;
use kvmem_tier::device::{Device, Engine, FileDevice};
use kvmem_tier::{DiskTier, DiskTierOptions, Fetched, StoreError, TierError};

use crate::files::{open, temp_path};
use crate::seccomp::{check, forbid_rings};

/// The file that the child uses.
const FILE: &str = "KVMEM_TEST_CHILD";

/// Runs the test `name` of this file in a child, after `prepare` has run in it.
fn child(
    name: &str,
    file: &Path,
    prepare: impl FnMut() -> io::Result<()> + Send + Sync + 'static,
) -> io::Result<Output> {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", &format!("surroundings::{name}"), "--nocapture", "--ignored"]);
    command.env(FILE, file);
    // SAFETY: the closures make system calls, and take no lock.
    unsafe { command.pre_exec(prepare) };
    command.output()
}

/// Fails with the child's output if the child has failed, or if its test did not run.
fn expect_success(output: &Output) {
    let text = String::from_utf8_lossy(&output.stdout);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && text.contains("1 passed"), "{text}{errors}");
}

fn file() -> PathBuf {
    std::env::var_os(FILE).unwrap().into()
}

fn bytes(bytes: u64) -> DiskTierOptions {
    DiskTierOptions { bytes: Some(bytes), ..DiskTierOptions::default() }
}

#[test]
fn a_process_without_rings_transfers_by_threads() {
    for errno in [libc::EPERM, libc::ENOSYS] {
        let file = temp_path("filtered");
        expect_success(&child("by_threads", &file, move || forbid_rings(errno)).unwrap());
        // The same file in this process.
        let (tier, found) = open(&file);
        assert_eq!((found.entries, tier.len_of(&[49])), (50, Some(49_000)));
    }
}

#[test]
#[ignore = "run by another test"]
fn by_threads() {
    let (tier, _) = open(&file());
    assert_eq!(tier.device().engine(), Engine::Threads);
    for key in 0..50_u8 {
        tier.store(&[(&[key], &vec![key; 1000 * usize::from(key)])]).remove(0).unwrap();
    }
    let mut into = vec![0; 49_000];
    assert_eq!(tier.fetch(&mut [TierRead { key: &[49], into: &mut into }]), [Fetched::Hit]);
    assert_eq!(into, [49; 49_000]);
    // Begun and ended without a ring, too.
    tier.device().begin_sync().unwrap();
    assert!(tier.device().end_sync(false).unwrap().is_ok());
}

/// A file longer than `RLIMIT_FSIZE` allows is an error, and not the end of the process.
#[test]
fn a_limit_of_the_length_of_files_is_an_error() {
    let file = temp_path("limit");
    let limit = || {
        let limit = libc::rlimit { rlim_cur: 4 << 20, rlim_max: 4 << 20 };
        // SAFETY: the call reads the limit.
        check(unsafe { libc::setrlimit(libc::RLIMIT_FSIZE, &raw const limit) })
    };
    expect_success(&child("limited", &file, limit).unwrap());
    assert_eq!(fs::metadata(&file).unwrap().len(), 2 << 20);
}

#[test]
#[ignore = "run by another test"]
fn limited() {
    let error = DiskTier::open(file(), &bytes(8 << 20)).err().unwrap();
    match &error {
        TierError::Device { call: "open", source, .. } => {
            assert_eq!(source.raw_os_error(), Some(libc::EFBIG), "{error}");
        }
        other => panic!("{other}"),
    }
    // It is still new.
    let (_, found) = DiskTier::open(file(), &bytes(2 << 20)).unwrap();
    assert!(found.created);
}

/// Mounts a file system of 4 MiB in memory over a folder, which only the child sees. Needs no
/// privileges where users may have namespaces.
fn mount_small(folder: &Path) -> impl FnMut() -> io::Result<()> + Send + Sync + 'static {
    let folder = CString::new(folder.as_os_str().as_encoded_bytes()).unwrap();
    // SAFETY: the calls have no conditions.
    let (user, group) = unsafe { (libc::getuid(), libc::getgid()) };
    let maps = [
        (c"/proc/self/setgroups", "deny".to_owned()),
        (c"/proc/self/uid_map", format!("0 {user} 1")),
        (c"/proc/self/gid_map", format!("0 {group} 1")),
    ];
    move || {
        // SAFETY: the strings end with zeros, and live until the calls return.
        unsafe {
            if libc::unshare(libc::CLONE_NEWNS) != 0 {
                check(libc::unshare(libc::CLONE_NEWUSER | libc::CLONE_NEWNS))?;
                for (path, text) in &maps {
                    let file = libc::open(path.as_ptr(), libc::O_WRONLY);
                    let written = libc::write(file, text.as_ptr().cast(), text.len());
                    check(if written == text.len() as isize { 0 } else { -1 })?;
                    libc::close(file);
                }
            }
            let none = std::ptr::null();
            let private = libc::MS_REC | libc::MS_PRIVATE;
            check(libc::mount(none, c"/".as_ptr(), none, private, none.cast()))?;
            let (kind, options) = (c"tmpfs".as_ptr(), c"size=4m".as_ptr());
            check(libc::mount(kind, folder.as_ptr(), kind, 0, options.cast()))
        }
    }
}

#[test]
fn a_small_file_system_is_full_and_then_read_only() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("tier");
    let output = child("on_a_small_file_system", &path, mount_small(folder.path()));
    match output {
        Ok(output) => expect_success(&output),
        Err(error) => println!("skipped: no file system can be mounted here: {error}"),
    }
}

#[test]
#[ignore = "run by another test"]
fn on_a_small_file_system() {
    let error = DiskTier::open(file(), &bytes(8 << 20)).err().unwrap();
    assert!(
        matches!(&error, TierError::Device { source, .. }
            if source.raw_os_error() == Some(libc::ENOSPC)),
        "{error}"
    );
    assert_eq!(fs::metadata(file()).unwrap().len(), 0, "a failed growth leaves bytes behind");
    let (tier, found) = DiskTier::open(file(), &bytes(2 << 20)).unwrap();
    assert!(found.created);
    tier.store(&[(b"key", b"value")]).remove(0).unwrap();
    drop(tier);
    let error = DiskTier::open(file(), &bytes(8 << 20)).err().unwrap();
    assert!(error.to_string().contains("cannot open"), "{error}");
    let (tier, found) = DiskTier::open(file(), &bytes(2 << 20)).unwrap();
    assert_eq!((found.created, tier.len_of(b"key")), (false, Some(5)));
    drop(tier);
    let folder = file().parent().unwrap().as_os_str().as_encoded_bytes().to_vec();
    let folder = CString::new(folder).unwrap();
    let flags = libc::MS_REMOUNT | libc::MS_RDONLY;
    let none = std::ptr::null();
    // SAFETY: the string ends with a zero, and lives until the call returns.
    check(unsafe { libc::mount(none, folder.as_ptr(), none, flags, none.cast()) }).unwrap();
    let error = DiskTier::open(file(), &bytes(2 << 20)).err().unwrap();
    assert!(
        matches!(&error, TierError::Device { call: "open", source, .. }
            if source.kind() == io::ErrorKind::ReadOnlyFilesystem),
        "{error}"
    );
    // It can be inspected all the same.
    let device = FileDevice::open_read_only(&file(), 4).unwrap();
    let contents = kvmem_tier::inspect(&device).unwrap().contents.unwrap();
    assert_eq!(contents.entries.len(), 1);
}

/// Memory that may not be pinned is transferred as before.
#[test]
fn a_limit_of_pinned_memory_leaves_plain_transfers() {
    let file = temp_path("memlock");
    let limit = || {
        let limit = libc::rlimit { rlim_cur: 256 << 10, rlim_max: 256 << 10 };
        // SAFETY: the call reads the limit. A user without privileges cannot change the identity,
        // and has none that the limit would not apply to.
        unsafe {
            check(libc::setrlimit(libc::RLIMIT_MEMLOCK, &raw const limit))?;
            libc::setgid(65_534);
            libc::setuid(65_534);
        }
        Ok(())
    };
    expect_success(&child("without_pinning", &file, limit).unwrap());
}

#[test]
#[ignore = "run by another test"]
fn without_pinning() {
    let (tier, _) = open(&file());
    let pool = Pool::builder("4 MiB").ladder(PageSize::Base).build().unwrap();
    if tier.device().engine() == Engine::IoUring {
        let error = tier.register_memory(&pool).unwrap_err();
        let text = error.to_string();
        assert!(text.contains("RLIMIT_MEMLOCK") || text.contains("6.12"), "{text}");
    }
    let mut block = pool.allocate_aligned(65_536, 4096).unwrap();
    block.bytes_mut().fill(7);
    tier.store(&[(b"key", block.bytes())]).remove(0).unwrap();
    block.bytes_mut().fill(0);
    let request = TierRead { key: b"key", into: block.bytes_mut() };
    assert_eq!(tier.fetch(&mut [request]), [Fetched::Hit]);
    assert!(block.bytes().iter().all(|&byte| byte == 7));
    assert_eq!(tier.device().fixed_buffers(), kvmem_tier::device::FixedBufferStats::default());
}

/// A forked child finds nothing, changes nothing and waits for no lock; its end leaves the tier of
/// the parent as it was.
#[test]
fn a_forked_child_cannot_use_the_tier_of_its_parent() {
    let file = temp_path("forked");
    let output = child("parent_and_child", &file, || Ok(())).unwrap();
    expect_success(&output);
}

#[test]
#[ignore = "run by another test"]
fn parent_and_child() {
    let (tier, _) = open(&file());
    tier.store(&[(b"key", b"value")]).remove(0).unwrap();
    let pool = Pool::builder("1 MiB").ladder(PageSize::Base).build().unwrap();
    let is_registered = tier.register_memory(&pool).is_ok();
    // SAFETY: the child calls only what it may, and ends.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let ok = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| in_the_child(&tier)));
        drop(tier);
        // SAFETY: no code of this process runs after it.
        unsafe { libc::_exit(if ok.is_ok() { 0 } else { 1 }) };
    }
    assert!(child > 0);
    let mut status = 0;
    // SAFETY: the call writes the status.
    assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
    assert_eq!(status, 0);
    assert!(!tier.is_forked());
    let mut into = [0; 5];
    assert_eq!(tier.fetch(&mut [TierRead { key: b"key", into: &mut into }]), [Fetched::Hit]);
    tier.store(&[(b"later", b"value")]).remove(0).unwrap();
    tier.checkpoint().unwrap();
    // The child has left the registered memory as it was.
    let mut block = pool.allocate_aligned(65_536, 4096).unwrap();
    block.bytes_mut().fill(7);
    tier.store(&[(b"block", block.bytes())]).remove(0).unwrap();
    assert_eq!(tier.device().fixed_buffers().transfers, u64::from(is_registered));
}

fn in_the_child(tier: &DiskTier) {
    assert!(tier.is_forked());
    let mut into = [0; 5];
    assert_eq!(tier.fetch(&mut [TierRead { key: b"key", into: &mut into }]), [Fetched::Absent]);
    assert_eq!(tier.len_of(b"key"), None);
    let error = tier.store(&[(b"key", b"other")]).remove(0).unwrap_err();
    assert!(matches!(error, StoreError::Tier(TierError::Forked)));
    assert!(matches!(tier.remove(&[b"key"]), Err(TierError::Forked)));
    assert!(matches!(tier.clear(), Err(TierError::Forked)));
    assert!(matches!(tier.sync_all(), Err(TierError::Forked)));
    assert!(matches!(tier.checkpoint(), Err(TierError::Forked)));
    assert_eq!(tier.stats(), kvmem_tier::TierStats::default());
    let device = tier.device();
    let mut block = kvmem_tier::device::AlignedBuffer::new(1);
    assert!(device.read_at(0, &mut block).is_err() && device.write_at(0, &block).is_err());
    assert!(device.sync().is_err() && device.begin_sync().is_err());
}

/// The file is not locked after a process has closed the tier, although a forked child lives on.
#[test]
fn a_forked_child_does_not_keep_the_file() {
    let file = temp_path("kept");
    expect_success(&child("child_that_stays", &file, || Ok(())).unwrap());
}

#[test]
#[ignore = "run by another test"]
fn child_that_stays() {
    let (tier, _) = open(&file());
    // SAFETY: the child only waits to be killed.
    let child = unsafe { libc::fork() };
    if child == 0 {
        loop {
            // SAFETY: the call only waits.
            unsafe { libc::pause() };
        }
    }
    drop(tier);
    let opened = DiskTier::open(file(), &bytes(8 << 20));
    // SAFETY: the calls end the child, which this process has made.
    unsafe {
        libc::kill(child, libc::SIGKILL);
        libc::waitpid(child, std::ptr::null_mut(), 0);
    }
    assert!(opened.is_ok());
}
