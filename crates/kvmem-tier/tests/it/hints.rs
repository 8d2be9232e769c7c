//! Hints: which values a full tier evicts first, and which ones expire.

use std::time::Duration;

use kvmem::tier::{Priority, TierHints, TierRead, TierValue};
use kvmem_tier::format::{BLOCK, Change, Hints, read_journal_block};
use kvmem_tier::{DiskTier, DiskTierOptions, EvictionOrder, Fetched, inspect};

use crate::simulated::{Disk, kill};
use crate::store::get;

/// Returns the keys of `0..keys` that the tier has. It does not count as use.
fn held(tier: &DiskTier<Disk>, keys: u32) -> Vec<u32> {
    (0..keys).filter(|key| tier.len_of(&key.to_le_bytes()).is_some()).collect()
}

fn options(eviction: EvictionOrder) -> DiskTierOptions {
    DiskTierOptions { max_entries: Some(1000), eviction, ..DiskTierOptions::default() }
}

#[test]
fn a_use_keeps_a_value_unless_the_order_is_that_of_the_stores() {
    for eviction in [EvictionOrder::Lru, EvictionOrder::Fifo] {
        let (tier, _) = DiskTier::on(Disk::new(2 << 20, 1), &options(eviction)).unwrap();
        let value = vec![1; 8 * BLOCK];
        for key in 0..200_u32 {
            tier.store(&[(&key.to_le_bytes(), &value)]).remove(0).unwrap();
            // The first one is used all the time.
            let mut into = vec![0; value.len()];
            let first = 0_u32.to_le_bytes();
            let found = tier.fetch(&mut [TierRead { key: &first, into: &mut into }])[0];
            assert!(found == Fetched::Hit || eviction == EvictionOrder::Fifo);
        }
        let held = held(&tier, 200);
        assert!(held.len() < 100, "{held:?}");
        assert_eq!(held[0] == 0, eviction == EvictionOrder::Lru, "{held:?}");
    }
}

/// A killed process leaves the order of use, but for the last uses: fewer than a block of the
/// journal has, of less than 4 MiB.
#[test]
fn the_order_of_use_survives_a_killed_process() {
    let disk = Disk::new(4 << 20, 1);
    let (tier, _) = DiskTier::on(disk.clone(), &options(EvictionOrder::Lru)).unwrap();
    let value = vec![1; BLOCK];
    let (used, all) = (200, 400);
    for key in 0..all {
        tier.store(&[(&u32::to_le_bytes(key), &value)]).remove(0).unwrap();
    }
    for key in 0..used {
        let mut into = vec![0; value.len()];
        let found = tier.fetch(&mut [TierRead { key: &u32::to_le_bytes(key), into: &mut into }]);
        assert_eq!(found, [Fetched::Hit]);
    }
    kill(tier, &disk);
    disk.restart();
    let (tier, _) = DiskTier::on(disk, &options(EvictionOrder::Lru)).unwrap();
    assert_eq!(held(&tier, all).len() as u32, all, "a use is no store");
    for key in 1000.. {
        tier.store(&[(&u32::to_le_bytes(key), &value)]).remove(0).unwrap();
        if held(&tier, all).len() as u32 <= used {
            break;
        }
    }
    let held = held(&tier, all);
    let of_used = held.iter().filter(|&&key| key < used).count() as u32;
    assert!(of_used + 64 >= used, "{of_used} of {used} used ones are left: {held:?}");
}

#[test]
fn values_of_low_priority_make_room_for_others_also_after_a_restart() {
    let disk = Disk::new(2 << 20, 1);
    let value = vec![1; 4 * BLOCK];
    let priority = |key: u32| [1, 3, 0, 1][key as usize % 4];
    let store = |tier: &DiskTier<Disk>, keys: std::ops::Range<u32>| {
        for key in keys {
            let name = key.to_le_bytes();
            let one = TierValue::new(&name, &value).with_hints(TierHints {
                ttl: None,
                priority: Priority::new(priority(key)).unwrap(),
                ..TierHints::default()
            });
            assert!(tier.store_with(&[one])[0].is_ok());
        }
    };
    let (tier, _) = DiskTier::on(disk.clone(), &options(EvictionOrder::Lru)).unwrap();
    store(&tier, 0..60);
    kill(tier, &disk);
    for restart in 0..2 {
        disk.restart();
        let (tier, _) = DiskTier::on(disk.clone(), &options(EvictionOrder::Lru)).unwrap();
        store(&tier, 60 + restart * 60..120 + restart * 60);
        let held = held(&tier, 180);
        let share = |of: u8| {
            let of = |key: &&u32| priority(**key) == of;
            let all: Vec<u32> = (0..120 + restart * 60).collect();
            held.iter().filter(of).count() as f64 / all.iter().filter(of).count() as f64
        };
        assert_eq!(share(3), 1.0, "{held:?}");
        assert!(share(0) <= share(1), "{held:?}");
        if restart == 1 {
            assert!(share(0) < 0.1 && share(1) > 0.5, "{held:?}");
        }
        tier.checkpoint().unwrap();
    }
}

#[test]
fn a_value_that_has_expired_is_a_miss_and_goes_first() {
    let disk = Disk::new(2 << 20, 1);
    let (tier, _) = DiskTier::on(disk.clone(), &options(EvictionOrder::Lru)).unwrap();
    let value = vec![1; 4 * BLOCK];
    let store = |tier: &DiskTier<Disk>, key: u32, ttl| {
        let name = key.to_le_bytes();
        // Even if it has a high priority.
        let one = TierValue::new(&name, &value).with_hints(TierHints {
            ttl,
            priority: Priority::MAX,
            ..TierHints::default()
        });
        assert!(tier.store_with(&[one])[0].is_ok());
    };
    for key in 0..60 {
        let ttl = Duration::from_secs(if key % 2 == 0 { 1 } else { 3600 });
        store(&tier, key, Some(ttl));
    }
    assert_eq!(held(&tier, 60).len(), 60);
    std::thread::sleep(Duration::from_millis(2100));
    let odd: Vec<u32> = (1..60).step_by(2).collect();
    assert_eq!(held(&tier, 60), odd);
    assert_eq!(get(&tier, &0_u32.to_le_bytes()), None);
    drop(tier);
    // They are there, and are not found, after a restart either.
    let (tier, found) = DiskTier::on(disk, &options(EvictionOrder::Lru)).unwrap();
    assert_eq!((found.entries, held(&tier, 60)), (60, odd.clone()));
    for key in 60..130 {
        store(&tier, key, None);
    }
    let stats = tier.stats();
    assert_eq!(stats.expired, stats.evictions, "{stats:?}");
    assert!((15..=30).contains(&stats.expired), "{stats:?}");
    assert_eq!(held(&tier, 60), odd);
}

/// The hints have their place in the file, which is zero without hints, if writes are durable:
/// files of versions of this library that had none are read as before, and are the same bytes now.
#[test]
fn hints_have_their_bytes_in_the_file() {
    let disk = Disk::new(1 << 20, 1).with_dsync();
    let (tier, _) = DiskTier::on(disk.clone(), &DiskTierOptions::default()).unwrap();
    tier.store(&[(b"plain", b"value")]).remove(0).unwrap();
    let hinted = TierValue::new(b"hinted", b"v").with_hints(TierHints {
        ttl: Some(Duration::from_secs(1000)),
        priority: Priority::MAX,
        ..TierHints::default()
    });
    assert!(tier.store_with(&[hinted])[0].is_ok());
    kill(tier, &disk);
    let bytes = disk.bytes();
    let superblock = inspect(&disk).unwrap().superblocks[0].clone().unwrap();
    let journal = superblock.layout.journals[superblock.journal as usize];
    let changes: Vec<(Change, &[u8])> = (0..2)
        .map(|index| {
            let start = journal.start as usize + index * BLOCK;
            let block = &bytes[start..start + BLOCK];
            (read_journal_block(block).unwrap().changes[0], &block[64..128])
        })
        .collect();
    let hints = |change: &Change| match change {
        Change::Stored(entry) => entry.hints,
        other => panic!("{other:?}"),
    };
    assert_eq!(hints(&changes[0].0), Hints::default());
    assert_eq!(changes[0].1[48..], [0; 16]);
    let Hints { expires, priority } = hints(&changes[1].0);
    assert_eq!(changes[1].1[48..52], expires.to_le_bytes());
    assert_eq!((changes[1].1[52], priority, &changes[1].1[53..]), (3, 3, &[0; 11][..]));
    let now = std::time::UNIX_EPOCH.elapsed().unwrap().as_secs();
    assert!((now + 990..=now + 1001).contains(&u64::from(expires)), "{expires} at {now}");
}
