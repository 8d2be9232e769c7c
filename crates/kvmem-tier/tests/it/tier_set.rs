//! Values on several devices.

use std::collections::HashMap;
use std::io;
use std::sync::{Arc, Barrier};
use std::time::Duration;

use kvmem::arena::PageSize;
use kvmem::cache::KvCache;
use kvmem::pool::Pool;
use kvmem::tier::{Priority, Tier, TierHints, TierRead, TierValue, WriteBehind};
use kvmem_testkit::random::Random;
use kvmem_tier::device::{Device, Read, Write};
use kvmem_tier::{DiskTier, DiskTierOptions, Fetched, TierSet, TierSetError};

use crate::files::temp_path;
use crate::simulated::Disk;

fn open(disk: &Disk) -> DiskTier<Disk> {
    DiskTier::on(disk.clone(), &DiskTierOptions::default()).unwrap().0
}

fn disks(count: u64) -> Vec<Disk> {
    (0..count).map(|seed| Disk::new(4 << 20, seed)).collect()
}

fn set(disks: &[Disk]) -> TierSet<Disk> {
    TierSet::new(disks.iter().map(open).collect()).unwrap()
}

fn value(key: u32) -> Vec<u8> {
    vec![key as u8; 100 + key as usize * 37]
}

fn store(set: &TierSet<Disk>, keys: std::ops::Range<u32>) {
    let pairs: Vec<([u8; 4], Vec<u8>)> = keys.map(|key| (key.to_le_bytes(), value(key))).collect();
    let batch: Vec<(&[u8], &[u8])> =
        pairs.iter().map(|(key, value)| (&key[..], &value[..])).collect();
    assert!(set.store(&batch).iter().all(Result::is_ok));
}

/// Returns the keys that are found, each with the right value.
fn found(set: &TierSet<Disk>, keys: std::ops::Range<u32>) -> Vec<u32> {
    let names: Vec<[u8; 4]> = keys.clone().map(u32::to_le_bytes).collect();
    let mut values: Vec<Vec<u8>> = keys.clone().map(|key| vec![0; value(key).len()]).collect();
    let mut requests: Vec<TierRead<'_>> =
        names.iter().zip(&mut values).map(|(key, into)| TierRead { key, into }).collect();
    let results = set.fetch(&mut requests);
    let mut found = Vec::new();
    for ((key, bytes), result) in keys.zip(values).zip(results) {
        match result {
            Fetched::Hit => {
                assert_eq!(bytes, value(key));
                found.push(key);
            }
            other => assert_eq!(other, Fetched::Absent, "{key}"),
        }
    }
    found
}

#[test]
fn hints_go_with_the_values_to_their_devices() {
    let disks = disks(3);
    let passed: Vec<DiskTier<Disk>> = disks.iter().map(open).collect();
    let identities: Vec<[u8; 16]> = passed.iter().map(DiskTier::identity).collect();
    let set = TierSet::new(passed).unwrap();
    let in_order: Vec<[u8; 16]> = set.in_path_order().map(DiskTier::identity).collect();
    assert_eq!(in_order, identities);
    let keys: Vec<[u8; 4]> = (0..60_u32).map(u32::to_le_bytes).collect();
    let values: Vec<Vec<u8>> = (0..60).map(value).collect();
    let stored: Vec<TierValue<'_>> = keys
        .iter()
        .zip(&values)
        .map(|(key, value)| {
            TierValue::new(key, value).with_hints(TierHints {
                ttl: Some(Duration::MAX),
                priority: Priority::MAX,
                ..TierHints::default()
            })
        })
        .collect();
    assert!(set.store_with(&stored).iter().all(Result::is_ok));
    assert_eq!(found(&set, 0..60).len(), 60);
    set.checkpoint().unwrap();
    let written = set.stats();
    assert_eq!((written.entries, written.stored), (60, 60));
    assert!(set.tiers().iter().all(|tier| tier.stats().checkpoints >= 1));
    // Each device found its own values in the index that was written.
    drop(set);
    let set = self::set(&disks);
    assert_eq!(found(&set, 0..60).len(), 60);
}

#[test]
fn the_memory_of_a_pool_is_registered_with_every_file() {
    let files = [temp_path("set-fixed-0"), temp_path("set-fixed-1")];
    let paths: Vec<&std::path::Path> = files.iter().map(|file| &**file).collect();
    let options = DiskTierOptions { bytes: Some(1 << 20), ..DiskTierOptions::default() };
    let (set, reports) = TierSet::open(&paths, &options).unwrap();
    assert!(reports.iter().all(|report| report.created));
    let pool = Pool::builder("1 MiB").ladder(PageSize::Base).build().unwrap();
    let registered =
        |bytes| set.tiers().iter().all(|tier| tier.device().fixed_buffers().bytes == bytes);
    match set.register_memory(&pool) {
        Ok(()) => assert!(registered(pool.capacity())),
        Err(error) => println!("without fixed buffers: {error}"),
    }
    set.deregister_memory(&pool);
    set.deregister_memory(&pool);
    assert!(registered(0));
}

#[test]
fn keys_spread_over_the_devices_and_are_found_in_any_order_of_them() {
    let mut disks = disks(4);
    let first = set(&disks);
    store(&first, 0..200);
    let all: Vec<u32> = (0..200).collect();
    assert_eq!(found(&first, 0..200), all);
    for tier in first.tiers() {
        assert!((25..80).contains(&tier.stats().entries), "{:?}", tier.stats());
    }
    let stats = first.stats();
    assert_eq!((stats.entries, stats.stored, stats.hits), (200, 200, 200));
    assert_eq!(first.len_of(&7_u32.to_le_bytes()), Some(value(7).len() as u64));
    assert_eq!([7_u32, 200].map(|key| first.may_have(&key.to_le_bytes())), [true, false]);
    let names: Vec<[u8; 4]> = (0..250_u32).map(u32::to_le_bytes).collect();
    let names: Vec<&[u8]> = names.iter().map(|name| &name[..]).collect();
    assert_eq!(first.remove(&names[190..]).unwrap(), 10);
    first.sync_all().unwrap();
    drop(first);
    disks.reverse();
    let second = set(&disks);
    assert_eq!(found(&second, 0..200), &all[..190]);
    second.clear().unwrap();
    assert_eq!((found(&second, 0..200).len(), second.stats().entries), (0, 0));
}

#[test]
fn a_missing_device_loses_its_own_keys_alone() {
    let disks = disks(5);
    let all = set(&disks);
    store(&all, 0..300);
    let missing = all.tiers()[2].identity();
    let lost: Vec<u32> = (0..300)
        .filter(|key: &u32| all.tier_of(&key.to_le_bytes()).identity() == missing)
        .collect();
    drop(all);
    let rest: Vec<DiskTier<Disk>> =
        disks.iter().map(open).filter(|tier| tier.identity() != missing).collect();
    let rest = TierSet::new(rest).unwrap();
    let held: Vec<u32> = (0..300).filter(|key| !lost.contains(key)).collect();
    assert_eq!(found(&rest, 0..300), held);
    assert!((30..100).contains(&lost.len()), "{}", lost.len());
    // They spread over all of the others.
    let positions: HashMap<[u8; 16], usize> =
        lost.iter().fold(HashMap::new(), |mut positions, key| {
            *positions.entry(rest.tier_of(&key.to_le_bytes()).identity()).or_default() += 1;
            positions
        });
    assert_eq!(positions.len(), 4, "{positions:?}");
}

#[test]
fn sets_that_make_no_sense_are_errors() {
    let error = TierSet::<Disk>::new(Vec::new()).unwrap_err();
    assert!(matches!(error, TierSetError::NoTier), "{error}");
    let disk = Disk::new(1 << 20, 1);
    drop(open(&disk));
    let copy = Disk::holding(disk.bytes());
    let error = TierSet::new(vec![open(&disk), open(&copy)]).unwrap_err();
    assert!(matches!(error, TierSetError::SameIdentity), "{error}");
    let folder = tempfile::tempdir().unwrap();
    let paths = ["foreign", "new"].map(|name| folder.path().join(name));
    std::fs::write(&paths[0], vec![7; 1 << 20]).unwrap();
    let options = DiskTierOptions { bytes: Some(1 << 20), ..DiskTierOptions::default() };
    let error = TierSet::open(&paths, &options).unwrap_err();
    assert!(error.to_string().contains("foreign"), "{error}");
    let (set, opened) = TierSet::open_available(&paths, &options).unwrap();
    assert!(opened[0].is_err() && opened[1].is_ok() && set.tiers().len() == 1);
}

/// A device of which transfers end only when those of all devices have begun.
struct Meeting(Disk, Arc<Barrier>, std::sync::atomic::AtomicBool);

impl Device for Meeting {
    fn len(&self) -> u64 {
        self.0.len()
    }
    fn is_new(&self) -> bool {
        self.0.is_new()
    }
    fn memory_align(&self) -> usize {
        self.0.memory_align()
    }
    fn write(&self, batch: &[Write<'_>], meanwhile: &mut dyn FnMut(usize)) -> Vec<io::Result<()>> {
        self.0.write(batch, meanwhile)
    }
    fn read(
        &self,
        batch: &mut [Read<'_>],
        done: &mut dyn FnMut(usize, &mut Read<'_>, io::Result<()>),
    ) {
        if self.2.load(std::sync::atomic::Ordering::Relaxed) {
            self.1.wait();
        }
        self.0.read(batch, done)
    }
    fn sync(&self) -> io::Result<()> {
        self.0.sync()
    }
}

#[test]
fn transfers_on_different_devices_run_side_by_side() {
    let barrier = Arc::new(Barrier::new(3));
    let make = |disk: Disk| Meeting(disk, Arc::clone(&barrier), false.into());
    let tiers = disks(3)
        .into_iter()
        .map(|disk| DiskTier::on(make(disk), &DiskTierOptions::default()).unwrap().0);
    let set = TierSet::new(tiers.collect()).unwrap();
    let names: Vec<[u8; 4]> = (0..60_u32).map(u32::to_le_bytes).collect();
    let batch: Vec<(&[u8], &[u8])> = names.iter().map(|name| (&name[..], &name[..])).collect();
    assert!(set.store(&batch).iter().all(Result::is_ok));
    for tier in set.tiers() {
        tier.device().2.store(true, std::sync::atomic::Ordering::Relaxed);
    }
    let mut values = [[0; 4]; 60];
    let mut requests: Vec<TierRead<'_>> =
        names.iter().zip(&mut values).map(|(key, into)| TierRead { key, into }).collect();
    // Would wait forever otherwise.
    assert!(set.fetch(&mut requests).iter().all(|fetched| *fetched == Fetched::Hit));
    assert_eq!(values[..], names[..]);
    // A tier that is dropped reads its superblocks, one after the other.
    for tier in set.tiers() {
        tier.device().2.store(false, std::sync::atomic::Ordering::Relaxed);
    }
}

/// A set below a queue below a cache, with failing devices at times.
#[test]
fn a_set_below_a_cache_finds_the_latest_value_or_nothing() {
    for seed in 0..3 {
        let disks = disks(3);
        let set = Arc::new(set(&disks));
        let pool = Pool::builder("1 MiB").ladder(PageSize::Base).build().unwrap();
        let behind = WriteBehind::builder(&pool, set).writers(2).build().unwrap();
        let tier: Arc<dyn Tier> = Arc::new(behind);
        let cache: KvCache<u64> = KvCache::builder(&pool).lower_tier(tier).build().unwrap();
        let mut random = Random::new(seed);
        let mut latest: HashMap<u64, u64> = HashMap::new();
        let bytes = |key: u64, version: u64| {
            let len = 3000 + key as usize * 100;
            (key << 32 | version).to_le_bytes().into_iter().cycle().take(len).collect::<Vec<u8>>()
        };
        let (mut hits, mut failing) = (0, false);
        for version in 0..3000 {
            let key = random.below(300);
            match random.below(8) {
                0 => {
                    assert!(cache.remove(&key).is_ok() || failing);
                    latest.remove(&key);
                }
                1..4 => {
                    cache.insert(key, &bytes(key, version)).unwrap();
                    latest.insert(key, version);
                }
                _ => {
                    if let Some(found) = &cache.get_batch(&[key])[0] {
                        assert_eq!(found.bytes(), bytes(key, latest[&key]), "{key}");
                        hits += 1;
                    } else {
                        assert!(failing || !latest.contains_key(&key), "{key} is lost");
                    }
                }
            }
            if version == 2000 {
                disks[seed as usize].fail_once_in(5);
                failing = true;
            }
        }
        assert!(hits > 500, "{hits}");
    }
}
