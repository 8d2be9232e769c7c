//! A device that fails in one place, and one that is full.

use std::collections::{HashMap, HashSet};
use std::io;
use std::ops::Range;

use kvmem::tier::{StoreOutcome, Tier, TierValue};
use kvmem_testkit::random::Random;
use kvmem_tier::format::SuperblockError;
use kvmem_tier::{DiskTier, DiskTierOptions, StoreError, TierError, inspect};

use crate::simulated::{Disk, kill};
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
        let error = tier.store(&[(b"long", &vec![0; 1 << 20])]).remove(0).unwrap_err();
        assert!(matches!(error, StoreError::TooLarge { .. }), "{error}");
        let stats = tier.stats();
        assert_eq!((stats.device_failures, stats.space_failures, stats.encode_failures), (1, 1, 0));
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

/// A value that a tier cannot store has an error if an older one may come back, because the journal
/// does not have its removal: the layer above removes it again. Other values have no older one.
#[test]
fn a_value_that_is_not_stored_fails_if_an_older_one_may_come_back() {
    for removes in [false, true] {
        let disk = disk_with_a_value();
        let tier = tier(&disk);
        let data = inspect(&disk).unwrap().contents.unwrap().superblock.layout.data;
        disk.fail_at(2 * BLOCK..data.start, libc::EIO);
        let values = [TierValue::new(b"key", b"newer"), TierValue::new(b"none", b"another")];
        assert!(Tier::store(&tier, &values[..1])[0].is_err());
        let outcomes = Tier::store(&tier, &values);
        assert!(matches!(outcomes[..], [Err(_), Ok(StoreOutcome::NotStored)]), "{outcomes:?}");
        assert_eq!((tier.len_of(b"key"), tier.len_of(b"none")), (None, None));
        assert_eq!((tier.may_have(b"key"), tier.may_have(b"none")), (true, false));
        disk.fail_at(0..0, 0);
        if removes {
            tier.retry_now();
            Tier::remove(&tier, &[b"key"]).unwrap();
            assert!(!tier.may_have(b"key"));
        }
        kill(tier, &disk);
        let found = get(&self::tier(&disk), b"key");
        assert_eq!(found.as_deref(), (!removes).then_some(b"value".as_slice()));
    }
}

/// What of a disk fails for a while.
#[derive(Clone, Debug)]
enum Failing {
    /// These blocks.
    Blocks(Range<u64>),
    Syncs,
    /// One in six operations, syncs among them.
    Some,
}

impl Failing {
    fn begin(&self, disk: &Disk) {
        match self {
            Failing::Blocks(blocks) => {
                disk.fail_at(blocks.start * BLOCK..blocks.end * BLOCK, libc::EIO);
            }
            Failing::Syncs => disk.fail_syncs(true),
            Failing::Some => disk.fail_once_in(6),
        }
    }

    fn end(disk: &Disk) {
        disk.fail_at(0..0, 0);
        disk.fail_syncs(false);
        disk.fail_once_in(0);
    }
}

/// A device that fails for a while, anywhere, ends the journal for a while: what the tier has is
/// found meanwhile, and afterwards all is stored again, and all is durable that was changed.
#[test]
fn a_journal_that_failed_is_begun_anew() {
    // The superblocks, one of them, journals and checkpoints, and all.
    let blocks = [0..2, 0..1, 2..40, 0..1 << 20].map(Failing::Blocks);
    for failing in blocks.into_iter().chain([Failing::Syncs, Failing::Some]) {
        let mut failures = 0;
        for seed in 0..12 {
            let mut random = Random::new(seed);
            let disk = Disk::new(1 << 20, seed);
            let options = DiskTierOptions {
                max_entries: Some(200),
                journal_bytes: Some(8 * BLOCK),
                ..DiskTierOptions::default()
            };
            let tier = DiskTier::on(disk.clone(), &options).unwrap().0;
            let found = |tier: &DiskTier<Disk>| -> HashMap<u64, Vec<u8>> {
                let of = |key: u64| Some((key, get(tier, &key.to_le_bytes())?));
                (0..60).filter_map(of).collect()
            };
            let mut versions: HashMap<u64, HashSet<Vec<u8>>> = HashMap::new();
            for version in 0..600_u64 {
                if random.once_in(30) {
                    failing.begin(&disk);
                } else if random.once_in(10) {
                    Failing::end(&disk);
                    tier.retry_now();
                }
                let key = random.below(60);
                let (name, value) = (key.to_le_bytes(), version.to_le_bytes());
                let done = match random.below(8) {
                    0 => tier.remove(&[&name]).map(drop).map_err(StoreError::from),
                    1 => tier.checkpoint().map_err(StoreError::from),
                    _ => tier.store(&[(&name, &value)]).remove(0),
                };
                versions.entry(key).or_default().insert(value.to_vec());
                failures += u32::from(done.is_err());
            }
            Failing::end(&disk);
            tier.retry_now();
            tier.store(&[(b"last", b"value")]).remove(0).unwrap();
            assert!(tier.failure().is_none() && !tier.stats().read_only);
            let before = found(&tier);
            assert!(before.iter().all(|(key, value)| versions[key].contains(value)));
            if seed % 2 == 0 {
                kill(tier, &disk);
            } else {
                tier.sync_all().unwrap();
                kill(tier, &disk);
                disk.cut_power();
            }
            let tier = DiskTier::on(disk, &options).unwrap().0;
            assert_eq!(found(&tier), before, "{failing:?}, seed {seed}");
            assert_eq!(get(&tier, b"last").as_deref(), Some(&b"value"[..]));
        }
        // One copy of the superblock suffices.
        assert!(failures > 0 || matches!(failing, Failing::Blocks(Range { end: 1, .. })));
    }
}
