//! Values whose bytes a power cut took: misses of their own kind, whose blocks become free.

use std::time::Duration;

use kvmem::tier::TierRead;
use kvmem_tier::{DiskTier, DiskTierOptions, Fetched, Verify, inspect};

use crate::simulated::{Disk, kill};

const LEN: usize = 10_000;

fn open(disk: &Disk) -> DiskTier<Disk> {
    DiskTier::on(disk.clone(), &DiskTierOptions::default()).unwrap().0
}

fn store(tier: &DiskTier<Disk>, keys: std::ops::Range<u8>) {
    for key in keys {
        tier.store(&[(&[key], &[key; LEN])]).remove(0).unwrap();
    }
}

fn fetch(tier: &DiskTier<Disk>, key: u8) -> Fetched {
    let mut into = [0; LEN];
    let found = tier.fetch(&mut [TierRead { key: &[key], into: &mut into }])[0];
    assert!(found != Fetched::Hit || into == [key; LEN]);
    found
}

/// Cuts the power; the values that were written since the last sync are lost, their changes not.
fn lose_values(disk: &Disk) {
    let data = inspect(disk).unwrap().contents.unwrap().superblock.layout.data;
    disk.cut_power_losing(data.start..data.start + data.len);
}

/// Returns how many values an inspection counts as unverified.
fn inspected(disk: &Disk) -> usize {
    inspect(disk).unwrap().contents.unwrap().unverified_values()
}

#[test]
fn a_tier_that_is_dropped_leaves_no_value_unverified() {
    let disk = Disk::new(4 << 20, 6);
    let tier = open(&disk);
    let before = tier.stats().checkpoints;
    assert!(tier.checkpoint_within(Duration::ZERO).unwrap(), "nothing has changed");
    assert_eq!(tier.stats().checkpoints, before);
    store(&tier, 0..4);
    assert_eq!(tier.remove(&[&[0_u8][..]]).unwrap(), 1);
    drop(tier);
    assert_eq!((inspected(&disk), disk.unsynced()), (0, 0));
    lose_values(&disk);
    let (tier, report) = DiskTier::on(disk.clone(), &DiskTierOptions::default()).unwrap();
    assert_eq!((report.entries, report.replayed), (3, 0));
    assert_eq!((tier.stats().unverified_values, tier.stats().entries), (0, 3));
    for key in 0..4 {
        let expected = if key > 0 { Fetched::Hit } else { Fetched::Absent };
        assert_eq!(fetch(&tier, key), expected, "{key}");
    }
    drop(tier);
    // Nothing was written since the checkpoint of the opening.
    let bytes = disk.bytes();
    drop(open(&disk));
    assert_ne!(disk.bytes(), bytes, "opening writes a checkpoint");
}

#[test]
fn a_last_checkpoint_that_fails_or_has_no_time_loses_nothing() {
    for operations in 1..=14 {
        let disk = Disk::new(4 << 20, 7);
        let tier = open(&disk);
        store(&tier, 0..4);
        disk.end_after(operations);
        drop(tier);
        disk.restart();
        let tier = open(&disk);
        assert_eq!(tier.stats().entries, 4, "the process ended at operation {operations}");
        assert!((0..4).all(|key| fetch(&tier, key) == Fetched::Hit));
    }
    let disk = Disk::new(4 << 20, 8);
    let tier = open(&disk);
    store(&tier, 0..4);
    assert!(!tier.checkpoint_within(Duration::ZERO).unwrap(), "there is no time");
    store(&tier, 4..6);
    kill(tier, &disk);
    assert_eq!(inspected(&disk), 6);
    let tier = open(&disk);
    assert!((0..6).all(|key| fetch(&tier, key) == Fetched::Hit));
    // The rest of a checkpoint that has begun, and a second one.
    store(&tier, 6..8);
    assert!(!tier.checkpoint_within(Duration::ZERO).unwrap());
    store(&tier, 8..9);
    assert!(tier.checkpoint_within(Duration::from_secs(60)).unwrap());
    kill(tier, &disk);
    assert_eq!(inspected(&disk), 0);
    disk.fail_syncs(true);
    let error = DiskTier::on(disk.clone(), &DiskTierOptions::default()).map(drop).unwrap_err();
    assert!(error.to_string().contains("sync"), "{error}");
    disk.fail_syncs(false);
    assert!((0..9).all(|key| fetch(&open(&disk), key) == Fetched::Hit));
}

#[test]
fn what_a_power_cut_took_is_a_miss_of_its_own_kind_and_its_blocks_are_free_again() {
    let disk = Disk::new(4 << 20, 1);
    let tier = open(&disk);
    store(&tier, 0..4);
    tier.checkpoint().unwrap();
    store(&tier, 4..10);
    assert_eq!(tier.stats().unverified_values, 0, "the process that wrote them finds them");
    kill(tier, &disk);
    lose_values(&disk);
    assert_eq!(inspected(&disk), 6);
    // The marks outlive a process that reads nothing, and the checkpoint that it writes.
    drop(open(&disk));
    assert_eq!(inspected(&disk), 6);
    let tier = open(&disk);
    assert_eq!((tier.stats().entries, tier.stats().unverified_values), (10, 6));
    for key in 0..10 {
        let expected = if key < 4 { Fetched::Hit } else { Fetched::Lost };
        assert_eq!(fetch(&tier, key), expected, "{key}");
    }
    assert_eq!(fetch(&tier, 9), Fetched::Absent);
    let stats = tier.stats();
    assert_eq!((stats.lost_misses, stats.checksum_misses, stats.misses), (6, 0, 1));
    assert_eq!((stats.entries, stats.unverified_values, stats.quarantined), (4, 0, 0));
    tier.sync_all().unwrap();
    assert_eq!(tier.stats().used, 4 * 3 * 4096);
    kill(tier, &disk);
    let tier = open(&disk);
    assert_eq!((tier.stats().entries, tier.stats().used), (4, 4 * 3 * 4096));
}

#[test]
fn a_value_that_was_read_since_is_verified_and_damage_of_it_is_quarantined() {
    let disk = Disk::new(4 << 20, 2);
    let tier = open(&disk);
    store(&tier, 1..3);
    kill(tier, &disk);
    // The process was killed; the drive has all bytes.
    disk.restart();
    let tier = open(&disk);
    assert_eq!(tier.stats().unverified_values, 2);
    assert_eq!(fetch(&tier, 1), Fetched::Hit);
    assert_eq!(tier.stats().unverified_values, 1);
    tier.checkpoint().unwrap();
    kill(tier, &disk);
    let mut bytes = disk.bytes();
    for key in 1..3 {
        let at = bytes.windows(4096).position(|block| block == [key; 4096]).unwrap();
        bytes[at] ^= 1;
    }
    let disk = Disk::holding(bytes);
    assert_eq!(inspected(&disk), 1);
    let tier = open(&disk);
    assert_eq!((fetch(&tier, 1), fetch(&tier, 2)), (Fetched::Damaged, Fetched::Lost));
    let stats = tier.stats();
    assert_eq!((stats.checksum_misses, stats.lost_misses), (1, 1));
    assert_eq!(stats.quarantined, 3 * 4096);
}

#[test]
fn a_value_that_replaces_a_lost_one_is_not_lost() {
    let disk = Disk::new(4 << 20, 3);
    let tier = open(&disk);
    store(&tier, 0..2);
    kill(tier, &disk);
    lose_values(&disk);
    let tier = open(&disk);
    store(&tier, 0..1);
    assert_eq!(tier.stats().unverified_values, 1);
    assert_eq!(fetch(&tier, 0), Fetched::Hit);
    assert_eq!(tier.remove(&[&[1_u8][..]]).unwrap(), 1);
    assert_eq!(tier.stats().unverified_values, 0);
}

#[test]
fn verifying_all_values_removes_the_lost_ones_and_leaves_none_unverified() {
    let disk = Disk::new(4 << 20, 5);
    let tier = open(&disk);
    store(&tier, 1..4);
    kill(tier, &disk);
    lose_values(&disk);
    let options = DiskTierOptions { verify: Verify::All, ..DiskTierOptions::default() };
    let tier = open(&disk);
    // Of these the drive has the bytes.
    store(&tier, 4..6);
    kill(tier, &disk);
    let (tier, found) = DiskTier::on(disk, &options).unwrap();
    assert_eq!((found.damaged, found.entries), (3, 2));
    let stats = tier.stats();
    assert_eq!((stats.lost_misses, stats.checksum_misses), (3, 0));
    assert_eq!((stats.unverified_values, stats.quarantined), (0, 0));
}
