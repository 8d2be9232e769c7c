//! Values that the device fails to read for a while, or for ever.

use std::time::Duration;

use kvmem::tier::{Tier, TierRead, TierValue};
use kvmem_tier::{DiskTier, DiskTierOptions, Fetched, inspect};

use crate::simulated::{Disk, kill};
use crate::store::get;

const VALUES: u8 = 20;

/// Returns a disk with a tier that has some values.
fn with_values() -> (Disk, DiskTier<Disk>) {
    let disk = Disk::new(1 << 20, 1);
    let (tier, _) = DiskTier::on(disk.clone(), &DiskTierOptions::default()).unwrap();
    for key in 0..VALUES {
        tier.store(&[(&[key], &[key; 3000])]).remove(0).unwrap();
    }
    (disk, tier)
}

fn fetch(tier: &DiskTier<Disk>, key: u8) -> Fetched {
    tier.fetch(&mut [TierRead { key: &[key], into: &mut [0; 3000] }])[0]
}

/// Makes all reads of the value of a key fail, and no others.
fn spoil(disk: &Disk, key: u8) {
    let data = inspect(disk).unwrap().contents.unwrap().superblock.layout.data.start;
    let bytes = &disk.bytes()[data as usize..];
    let at = bytes.chunks(4096).position(|block| block[..3000] == [key; 3000]).unwrap() as u64;
    disk.fail_at(data + at * 4096..data + at * 4096 + 1, libc::EIO);
}

/// Reads a value that fails, and another one that does not, until the first one is quarantined.
/// Returns the number of failures.
pub(crate) fn fail_alone(tier: &DiskTier<Disk>, disk: &Disk, key: &[u8], other: &[u8]) -> u64 {
    let before = tier.stats();
    for _ in 0..100 {
        assert!(get(tier, other).is_some());
        assert!(get(tier, key).is_none());
        if tier.stats().entries < before.entries {
            return tier.stats().io_misses - before.io_misses;
        }
        disk.pass(Duration::from_millis(100));
    }
    panic!("the value is still there");
}

/// A drive that resets: all reads fail for a minute, and callers try all the time.
#[test]
fn reads_that_fail_for_a_while_lose_nothing() {
    let (disk, tier) = with_values();
    assert!((0..VALUES).all(|key| fetch(&tier, key) == Fetched::Hit));
    disk.fail_reads_once_in(1);
    for _ in 0..600 {
        assert!((0..VALUES).all(|key| get(&tier, &[key]).is_none()));
        disk.pass(Duration::from_millis(100));
    }
    let stats = tier.stats();
    assert_eq!((stats.entries, stats.quarantined, stats.suspects), (20, 0, 20));
    // After 0, 0.1, 1.1, 3.1, 7.1, 15.1 and 31.1 seconds.
    assert_eq!(stats.io_misses, 7 * u64::from(VALUES));
    disk.fail_reads_once_in(0);
    disk.pass(Duration::from_secs(60));
    assert!((0..VALUES).all(|key| get(&tier, &[key]).as_deref() == Some(&[key; 3000][..])));
    assert_eq!(tier.stats().suspects, 0);
}

/// The first failure is followed by another try at once. The device is not called during a pause,
/// and for look-ups there is no value then.
#[test]
fn a_suspect_is_no_value_until_it_is_read_again() {
    let (disk, tier) = with_values();
    disk.fail_reads_once_in(1);
    assert_eq!(fetch(&tier, 3), Fetched::Failed);
    assert!(tier.len_of(&[3]).is_some() && tier.touch(&[3]));
    disk.fail_reads_once_in(0);
    assert_eq!((fetch(&tier, 3), tier.stats().suspects), (Fetched::Hit, 0));

    disk.fail_reads_once_in(1);
    assert_eq!(
        [(); 3].map(|()| fetch(&tier, 3)),
        [Fetched::Failed, Fetched::Failed, Fetched::Suspect]
    );
    disk.fail_reads_once_in(0);
    assert_eq!(fetch(&tier, 3), Fetched::Suspect);
    assert!(tier.len_of(&[3]).is_none() && !tier.touch(&[3]));
    assert_eq!([3, VALUES].map(|key| tier.may_have(&[key])), [true, false]);
    assert_eq!(fetch(&tier, 4), Fetched::Hit);
    let stats = tier.stats();
    assert_eq!((stats.io_misses, stats.suspect_misses, stats.suspects), (3, 2, 1));
    assert_eq!(stats.entries, u64::from(VALUES));
    disk.pass(Duration::from_secs(1));
    assert!(tier.len_of(&[3]).is_some());
    assert_eq!((fetch(&tier, 3), tier.stats().suspects), (Fetched::Hit, 0));

    // A program that knows that the cause is gone waits for nothing.
    disk.fail_reads_once_in(1);
    assert_eq!([(); 2].map(|()| fetch(&tier, 5)), [Fetched::Failed; 2]);
    disk.fail_reads_once_in(0);
    assert_eq!(fetch(&tier, 5), Fetched::Suspect);
    tier.retry_now();
    assert_eq!(fetch(&tier, 5), Fetched::Hit);
}

/// A worn sector: only one value fails, for ever.
#[test]
fn a_value_that_fails_alone_is_quarantined() {
    let (disk, tier) = with_values();
    spoil(&disk, 7);
    let used = tier.stats().used;
    assert_eq!(fail_alone(&tier, &disk, &[7], &[8]), 4);
    let stats = tier.stats();
    assert_eq!((stats.quarantined, stats.used, stats.suspects), (4096, used - 4096, 0));
    assert_eq!(fetch(&tier, 7), Fetched::Absent);
    // Of one that is read alone, nothing says whether it is the value or the device.
    spoil(&disk, 9);
    for _ in 0..100 {
        assert_ne!(fetch(&tier, 9), Fetched::Hit);
        disk.pass(Duration::from_secs(10));
    }
    assert_eq!((tier.stats().quarantined, tier.stats().suspects), (4096, 1));
    // The next process reads it at once.
    disk.fail_at(0..0, 0);
    kill(tier, &disk);
    let (tier, _) = DiskTier::on(disk, &DiskTierOptions::default()).unwrap();
    assert_eq!(get(&tier, &[9]).as_deref(), Some(&[9; 3000][..]));
}

/// What replaces or removes a suspect ends the suspicion.
#[test]
fn a_suspect_may_be_replaced_and_removed() {
    let (disk, tier) = with_values();
    // Fetched before, as a cache does that evicts the value later.
    let mut into = [0; 3000];
    let hit = Tier::fetch(&tier, &mut [TierRead { key: &[2], into: &mut into }])[0];
    let origin = hit.expect("it is there").origin;
    disk.fail_reads_once_in(1);
    for key in 0..4 {
        assert_eq!([(); 2].map(|()| fetch(&tier, key)), [Fetched::Failed; 2]);
    }
    disk.fail_reads_once_in(0);
    assert_eq!(tier.stats().suspects, 4);
    tier.store(&[(&[0], &[100; 3000])]).remove(0).unwrap();
    assert_eq!(tier.remove(&[&[1]]).unwrap(), 1);
    // The drive may have lost it, so a value that is unchanged is written all the same.
    let unchanged = TierValue::new(&[2], &into).with_origin(origin);
    assert!(Tier::store(&tier, &[unchanged])[0].is_ok());
    assert_eq!((tier.stats().suspects, tier.stats().unchanged), (1, 0));
    assert_eq!(get(&tier, &[0]).as_deref(), Some(&[100; 3000][..]));
    assert_eq!(get(&tier, &[2]).as_deref(), Some(&into[..]));
    assert_eq!([1, 3].map(|key| fetch(&tier, key)), [Fetched::Absent, Fetched::Suspect]);
    tier.clear().unwrap();
    assert_eq!(tier.stats().suspects, 0);
}
