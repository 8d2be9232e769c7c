//! Two processes with one tier: the kernel distinguishes those of one host, the superblocks all.

use std::path::{Path, PathBuf};
use std::process::Command;

use kvmem_tier::device::FileDevice;
use kvmem_tier::format::{BLOCK, Owner, Superblock};
use kvmem_tier::{DiskTier, DiskTierOptions, StoreError, TierError, inspect};
use tempfile::TempDir;

use crate::simulated::{Disk, kill};
use crate::store::get;

fn open(disk: &Disk) -> Result<DiskTier<Disk>, TierError> {
    Ok(DiskTier::on(disk.clone(), &DiskTierOptions::default())?.0)
}

fn superblock(disk: &Disk) -> Superblock {
    inspect(disk).unwrap().contents.unwrap().superblock
}

/// Writes both superblocks anew.
fn write(disk: &Disk, change: impl Fn(&mut Superblock)) {
    let mut superblock = superblock(disk);
    change(&mut superblock);
    disk.falsify(0..2 * BLOCK as u64, |bytes| {
        bytes.chunks_exact_mut(BLOCK).for_each(|copy| copy.copy_from_slice(&superblock.to_bytes()));
    });
}

/// Makes the owner one of another host.
fn of_another_host(owner: &mut Owner) {
    (owner.machine, owner.boot, owner.token) = ([1; 16], [2; 16], [3; 16]);
    (owner.process, owner.since) = (77, 1_000_000_007);
    owner.host = [0; 64];
    owner.host[..5].copy_from_slice(b"other");
}

#[test]
fn a_tier_names_its_owner_while_it_is_open() {
    let disk = Disk::new(1 << 20, 1).shared();
    let tier = open(&disk).unwrap();
    let owner = superblock(&disk).owner.unwrap();
    assert_eq!(owner.process, std::process::id());
    assert!(owner.to_string().contains(&owner.host()), "{owner}");
    tier.store(&[(b"key", b"value")]).remove(0).unwrap();
    tier.checkpoint().unwrap();
    assert_eq!(superblock(&disk).owner, Some(owner));
    drop(tier);
    assert_eq!(superblock(&disk).owner, None);
    // It names another one each time, and one that has changed nothing leaves none, either.
    let tier = open(&disk).unwrap();
    assert_ne!(superblock(&disk).owner.unwrap().token, owner.token);
    drop(tier);
    assert_eq!(superblock(&disk).owner, None);
}

/// A process that was killed locks nobody out: neither on this host, nor after the machine was
/// started again, nor where a kernel's lock says that it has ended.
#[test]
fn a_killed_owner_of_this_host_has_ended() {
    for change in
        [(|_| {}) as fn(&mut Owner), |owner| owner.boot = [2; 16], |owner| owner.machine = [1; 16]]
    {
        let disk = Disk::new(1 << 20, 1).shared();
        let tier = open(&disk).unwrap();
        tier.store(&[(b"key", b"value")]).remove(0).unwrap();
        kill(tier, &disk);
        write(&disk, |superblock| change(superblock.owner.as_mut().unwrap()));
        assert_eq!(get(&open(&disk).unwrap(), b"key").unwrap(), b"value");
    }
    let disk = Disk::new(1 << 20, 1);
    kill(open(&disk).unwrap(), &disk);
    write(&disk, |superblock| of_another_host(superblock.owner.as_mut().unwrap()));
    drop(open(&disk).unwrap());
}

#[test]
fn the_tier_of_another_host_is_opened_only_on_request() {
    let disk = Disk::new(1 << 20, 1).shared();
    let tier = open(&disk).unwrap();
    tier.store(&[(b"key", b"value")]).remove(0).unwrap();
    kill(tier, &disk);
    write(&disk, |superblock| of_another_host(superblock.owner.as_mut().unwrap()));
    let before = disk.bytes();
    for format in [false, true] {
        let options = DiskTierOptions { format, ..DiskTierOptions::default() };
        let error = DiskTier::on(disk.clone(), &options).err().unwrap();
        let TierError::Owned { host, process, since, .. } = &error else { panic!("{error}") };
        assert_eq!((&**host, *process, *since), ("other", 77, 1_000_000_007));
        let text = error.to_string();
        let named = "process 77 of host other, since 2001-09-09 01:46:47 UTC";
        assert!(text.contains(named) && text.contains("`take_over`"), "{text}");
        assert!(disk.bytes() == before, "something was written");
    }
    let options = DiskTierOptions { take_over: true, ..DiskTierOptions::default() };
    let (tier, report) = DiskTier::on(disk.clone(), &options).unwrap();
    assert_eq!(report.entries, 1);
    drop(tier);
    assert_eq!(superblock(&disk).owner, None);
}

/// Another process opens the tier all the same: the first one writes nothing any more, and what the
/// other one stores is whole.
#[test]
fn a_tier_that_was_taken_over_stores_nothing() {
    for checkpoint in [true, false] {
        let disk = Disk::new(1 << 20, 1).shared();
        let first = open(&disk).unwrap();
        first.store(&[(b"first", b"1")]).remove(0).unwrap();
        let second = open(&disk).unwrap();
        second.store(&[(b"second", b"2")]).remove(0).unwrap();
        let before = disk.bytes();
        if checkpoint {
            let error = first.checkpoint().unwrap_err();
            assert!(matches!(error, TierError::TakenOver { .. }), "{error}");
            assert!(error.to_string().contains(&std::process::id().to_string()), "{error}");
        } else {
            // A second after the last look, the journal is not written, either.
            std::thread::sleep(std::time::Duration::from_millis(1100));
            let error = first.store(&[(b"first", b"3")]).remove(0).unwrap_err();
            let StoreError::Tier(TierError::ReadOnly { cause }) = &error else { panic!("{error}") };
            assert!(cause.contains("taken over"), "{error}");
        }
        assert!(first.failure().unwrap().contains("taken over") && first.stats().read_only);
        let metadata = superblock(&disk).layout.data.start as usize;
        assert!(disk.bytes()[..metadata] == before[..metadata], "the index was written");
        let error = first.store(&[(b"first", b"3")]).remove(0).unwrap_err();
        assert!(error.to_string().contains("taken over"), "{error}");
        drop(first);
        assert!(disk.bytes()[..metadata] == before[..metadata], "the index was written");
        assert_eq!(get(&second, b"second").unwrap(), b"2");
        drop(second);
        assert_eq!(get(&open(&disk).unwrap(), b"second").unwrap(), b"2");
    }
}

/// A file of a program that names no owner: one that has the tier open notices that it wrote.
#[test]
fn a_program_of_before_takes_a_tier_over() {
    let disk = Disk::new(1 << 20, 1);
    let tier = open(&disk).unwrap();
    write(&disk, |superblock| {
        superblock.owner = None;
        superblock.generation += 1;
    });
    let error = tier.checkpoint().unwrap_err().to_string();
    assert!(error.contains("a program that leaves no name"), "{error}");
    let disk = Disk::new(1 << 20, 1);
    let tier = open(&disk).unwrap();
    write(&disk, |superblock| superblock.file = [9; 16]);
    assert!(matches!(tier.checkpoint().unwrap_err(), TierError::TakenOver { .. }));
}

/// A loop device with two device nodes, both removed at the end.
struct LoopDevice {
    _folder: TempDir,
    nodes: [PathBuf; 2],
}

impl LoopDevice {
    /// Returns `None` where this process may make none.
    fn new() -> Option<LoopDevice> {
        let folder = tempfile::tempdir().ok()?;
        let file = folder.path().join("file");
        std::fs::File::create(&file).ok()?.set_len(16 << 20).ok()?;
        let run = |program: &str, args: &[&Path]| {
            let output = Command::new(program).args(args).output().ok()?;
            let text = String::from_utf8(output.stdout).ok()?;
            output.status.success().then(|| text.trim().to_owned())
        };
        let first = run("losetup", &["--find".as_ref(), "--show".as_ref(), &file]);
        let nodes = [PathBuf::from(first?), folder.path().join("node")];
        let device = LoopDevice { _folder: folder, nodes };
        let [first, second] = &device.nodes;
        let number = std::os::unix::fs::MetadataExt::rdev(&std::fs::metadata(first).ok()?);
        let [major, minor] = [libc::major(number), libc::minor(number)].map(|it| it.to_string());
        run("mknod", &[second, "b".as_ref(), major.as_ref(), minor.as_ref()])?;
        // A folder may be mounted so that its device nodes are none.
        std::fs::File::open(second).ok()?;
        Some(device)
    }
}

impl Drop for LoopDevice {
    fn drop(&mut self) {
        let _ = Command::new("losetup").arg("--detach").arg(&self.nodes[0]).status();
    }
}

#[test]
fn a_block_device_has_one_owner_through_all_its_nodes() {
    let Some(device) = LoopDevice::new() else {
        println!("skipped: this process may make no loop device");
        return;
    };
    let [first, second] = &device.nodes;
    let options = DiskTierOptions::default();
    // A device of zeros becomes a tier, as a file of zeros does. One with another byte does not.
    let write_last = |byte: u8| {
        let file = std::fs::OpenOptions::new().write(true).open(first).unwrap();
        std::os::unix::fs::FileExt::write_at(&file, &[byte], (16 << 20) - 1).unwrap();
        file.sync_all().unwrap();
    };
    write_last(7);
    let error = DiskTier::open(first, &options).err().unwrap();
    assert!(matches!(error, TierError::Superblocks { .. }), "{error}");
    write_last(0);
    let (tier, report) = DiskTier::open(first, &options).unwrap();
    assert!(report.created);
    tier.store(&[(b"key", b"value")]).remove(0).unwrap();
    for node in [first, second] {
        let error = DiskTier::open(node, &options).err().unwrap().to_string();
        assert!(error.contains("it is in use"), "{error}");
        let error = FileDevice::open_read_only(node, 1).err().unwrap().to_string();
        assert!(error.contains("open as a tier") || error.contains("it is in use"), "{error}");
    }
    drop(tier);
    let readers = [first, second].map(|node| FileDevice::open_read_only(node, 1).unwrap());
    drop(readers);
    let (tier, report) = DiskTier::open(second, &options).unwrap();
    assert_eq!(report.entries, 1);
    drop(tier);
}
