//! A device that fails in one place, and one that is full.

use std::io;

use kvmem_tier::format::SuperblockError;
use kvmem_tier::{DiskTier, DiskTierOptions, Fetch, Fetched, StoreError, TierError, inspect};

use crate::simulated::Disk;
use crate::store::get;

const BLOCK: u64 = 4096;

fn tier(disk: &Disk) -> DiskTier<Disk> {
    DiskTier::on(disk.clone(), &DiskTierOptions::default()).unwrap().0
}

/// Returns a disk with a tier that has one value.
fn disk_with_a_value() -> Disk {
    let disk = Disk::new(1 << 20, 1);
    tier(&disk).store(&[(b"key", b"value")]).remove(0).unwrap();
    disk
}

/// One copy of the superblock suffices, if the other one can be neither read nor written.
#[test]
fn one_copy_of_the_superblock_may_fail() {
    for copy in [0, 1] {
        let disk = disk_with_a_value();
        disk.fail_at(copy * BLOCK..(copy + 1) * BLOCK, libc::EIO);
        let found = inspect(&disk).unwrap();
        let unreadable =
            SuperblockError::Unreadable(io::Error::from_raw_os_error(libc::EIO).kind());
        assert_eq!(found.superblocks[copy as usize], Err(unreadable), "copy {copy}");
        assert_eq!(found.contents.unwrap().entries.len(), 1);
        {
            let tier = tier(&disk);
            assert_eq!(get(&tier, b"key").unwrap(), b"value");
            assert_eq!(tier.stats().superblock_failures, 1);
            tier.store(&[(b"later", b"another")]).remove(0).unwrap();
            tier.checkpoint().unwrap();
            assert_eq!(tier.stats().superblock_failures, 2);
        }
        // Once the copy can be read again, it is an older one.
        disk.fail_at(0..0, 0);
        disk.cut_power();
        let tier = tier(&disk);
        assert_eq!(get(&tier, b"later").unwrap(), b"another");
        assert_eq!(tier.stats().superblock_failures, 0);
    }
}

#[test]
fn two_copies_of_the_superblock_that_fail_are_an_error() {
    let disk = disk_with_a_value();
    disk.fail_at(0..2 * BLOCK, libc::EIO);
    let error = DiskTier::on(disk.clone(), &DiskTierOptions::default()).err().unwrap();
    assert!(matches!(error, TierError::Device { call: "read", at: 0, .. }), "{error}");
    assert!(inspect(&disk).is_err());
    disk.fail_at(0..0, 0);
    let tier = tier(&disk);
    // They can be read, and fail when the next checkpoint is written.
    disk.fail_at(0..2 * BLOCK, libc::EIO);
    let error = tier.checkpoint().unwrap_err();
    assert!(matches!(error, TierError::Device { call: "write", at: 0, .. }), "{error}");
    assert!(matches!(tier.checkpoint(), Err(TierError::ReadOnly { .. })));
    assert_eq!(get(&tier, b"key").unwrap(), b"value");
}

/// A file system without space for a value fails its write: the caller learns why, what was stored
/// stays, and space that comes back is used.
#[test]
fn a_full_file_system_fails_single_values() {
    for errno in [libc::ENOSPC, libc::EDQUOT] {
        let disk = disk_with_a_value();
        let tier = tier(&disk);
        let data = inspect(&disk).unwrap().contents.unwrap().superblock.layout.data;
        disk.fail_at(data.start..data.start + data.len, errno);
        let error = tier.store(&[(b"more", b"bytes")]).remove(0).unwrap_err();
        match &error {
            StoreError::Tier(TierError::Device { call: "write", at, source }) => {
                assert_eq!(source.raw_os_error(), Some(errno));
                assert!((data.start..data.start + data.len).contains(at), "{error}");
            }
            other => panic!("{other}"),
        }
        assert_eq!((tier.len_of(b"more"), tier.len_of(b"key")), (None, Some(5)));
        let used = tier.stats().used;
        disk.fail_at(0..0, 0);
        assert_eq!(get(&tier, b"key").unwrap(), b"value");
        tier.store(&[(b"more", b"bytes")]).remove(0).unwrap();
        assert_eq!(tier.stats().used, used + BLOCK, "the range of the failed value is lost");
    }
}

/// A value that cannot be written does not take its neighbours in the call with it.
#[test]
fn a_value_that_fails_leaves_the_others_of_the_call() {
    let disk = disk_with_a_value();
    let tier = tier(&disk);
    let data = inspect(&disk).unwrap().contents.unwrap().superblock.layout.data;
    let values: Vec<Vec<u8>> = (0..10).map(|i| vec![i; 4096]).collect();
    let keys: Vec<[u8; 1]> = (0..10).map(|i| [i]).collect();
    let batch: Vec<(&[u8], &[u8])> =
        keys.iter().zip(&values).map(|(key, value)| (&key[..], &value[..])).collect();
    // Somewhere in the middle of where they go.
    disk.fail_at(data.start + 4 * BLOCK..data.start + 6 * BLOCK, libc::EIO);
    let stored = tier.store(&batch);
    disk.fail_at(0..0, 0);
    let failed = stored.iter().filter(|stored| stored.is_err()).count();
    assert!((1..=2).contains(&failed), "{failed} failed");
    for ((key, value), stored) in batch.iter().zip(&stored) {
        assert_eq!(get(&tier, key).as_deref(), stored.is_ok().then_some(*value));
    }
}

/// A sync that was begun and fails ends the journal, as one that a call waits for.
#[test]
fn a_failed_sync_ends_the_journal() {
    let disk = Disk::new(4 << 20, 3);
    let options = DiskTierOptions { max_entries: Some(500), ..DiskTierOptions::default() };
    let tier = DiskTier::on(disk.clone(), &options).unwrap().0;
    let value = vec![7; 8192];
    let mut key = 0_u32;
    let mut store = || {
        key += 1;
        tier.store(&[(&key.to_le_bytes(), &value)]).remove(0)
    };
    while tier.stats().evictions == 0 {
        store().unwrap();
    }
    disk.fail_syncs(true);
    let error = (0..1000).find_map(|_| store().err()).unwrap();
    assert!(error.to_string().contains("sync"), "{error}");
    disk.fail_syncs(false);
    let later = store().unwrap_err();
    assert!(matches!(later, StoreError::Tier(TierError::ReadOnly { .. })), "{later}");
    let newest = (0..key).rev().find(|key| tier.len_of(&key.to_le_bytes()).is_some()).unwrap();
    let mut into = vec![0; value.len()];
    let found = tier.fetch(&mut [Fetch { key: &newest.to_le_bytes(), into: &mut into }]);
    assert!(found == [Fetched::Hit] && into == value);
}
