//! Storing, fetching, removing and evicting.

use kvmem::tier::TierRead;
use kvmem_testkit::random::Random;
use kvmem_tier::{DiskTier, DiskTierOptions, EvictionOrder, Fetched, StoreError, TierError};

use crate::simulated::{Disk, kill};

fn tier(len: usize) -> DiskTier<Disk> {
    let options = DiskTierOptions { max_entries: Some(200), ..DiskTierOptions::default() };
    DiskTier::on(Disk::new(len, 1), &options).unwrap().0
}

pub(crate) fn get(tier: &DiskTier<Disk>, key: &[u8]) -> Option<Vec<u8>> {
    let mut value = vec![0; tier.len_of(key)? as usize];
    let found = tier.fetch(&mut [TierRead { key, into: &mut value }]);
    (found[0] == Fetched::Hit).then_some(value)
}

fn put(tier: &DiskTier<Disk>, key: &[u8], value: &[u8]) {
    tier.store(&[(key, value)]).remove(0).unwrap();
}

/// The reads of a fetch are in the order of the file, also those of values in several ranges, and
/// whatever the order of the keys.
#[test]
fn a_fetch_reads_in_the_order_of_the_file() {
    // Without an order of use, the journal has no uses, and the fetch is what reads last.
    let (max_entries, eviction) = (Some(200), EvictionOrder::Fifo);
    let options = DiskTierOptions { max_entries, eviction, ..DiskTierOptions::default() };
    let disk = Disk::new(1 << 20, 1);
    let tier = DiskTier::on(disk.clone(), &options).unwrap().0;
    let value = |key: u8| vec![key; 1000 + 5000 * usize::from(key % 3)];
    for key in 0..100_u8 {
        put(&tier, &[key], &value(key));
    }
    // Holes of one block: what is stored next lies between older values, or in several ranges.
    let holes: Vec<[u8; 1]> = (0..100).step_by(3).map(|key| [key]).collect();
    tier.remove(&holes.iter().map(|key| &key[..]).collect::<Vec<_>>()).unwrap();
    tier.sync_all().unwrap();
    let long = vec![7; 600 << 10];
    while tier.stats().scattered == 0 {
        let key = [200 + tier.stats().stored as u8 % 50];
        put(&tier, &key, &long[..12_000 + tier.stats().stored as usize]);
    }
    let mut random = Random::new(3);
    let mut keys: Vec<[u8; 1]> = (0..=255).map(|key| [key]).collect();
    keys.retain(|key| tier.len_of(key).is_some());
    for last in (1..keys.len()).rev() {
        keys.swap(last, random.below(last as u64 + 1) as usize);
    }
    let mut values: Vec<Vec<u8>> =
        keys.iter().map(|key| vec![0; tier.len_of(key).unwrap() as usize]).collect();
    let mut requests: Vec<TierRead<'_>> =
        keys.iter().zip(&mut values).map(|(key, into)| TierRead { key, into }).collect();
    assert!(tier.fetch(&mut requests).iter().all(|&found| found == Fetched::Hit));
    for (key, bytes) in keys.iter().zip(&values) {
        let expected = if key[0] < 100 { key[0] } else { 7 };
        assert!(bytes.iter().all(|&byte| byte == expected), "{key:?}");
    }
    let reads = disk.last_reads();
    assert!(reads.len() > keys.len(), "{} reads of {} values", reads.len(), keys.len());
    assert!(reads.is_sorted(), "{reads:?}");
}

#[test]
fn a_batch_has_a_result_for_each() {
    let tier = tier(1 << 20);
    let values: Vec<(Vec<u8>, Vec<u8>)> =
        (0..20).map(|i| (vec![i], vec![i; 1000 * i as usize])).collect();
    let borrowed: Vec<(&[u8], &[u8])> = values.iter().map(|(k, v)| (&k[..], &v[..])).collect();
    assert!(tier.store(&borrowed).iter().all(Result::is_ok));
    let mut memory: Vec<Vec<u8>> = (0..22).map(|i| vec![0; 1000 * i]).collect();
    let keys: Vec<Vec<u8>> = (0..22).map(|i| vec![i]).collect();
    let mut requests: Vec<TierRead<'_>> =
        keys.iter().zip(&mut memory).map(|(key, into)| TierRead { key, into }).collect();
    requests.truncate(21);
    // The key 20 is not there, and 5 has another length.
    let mut short = [0; 3];
    requests[5] = TierRead { key: &keys[5], into: &mut short };
    let found = tier.fetch(&mut requests);
    for (i, found) in found.iter().enumerate() {
        let expected = match i {
            5 => Fetched::Length { len: 5000 },
            20 => Fetched::Absent,
            _ => Fetched::Hit,
        };
        assert_eq!(*found, expected, "{i}");
    }
    for i in (0..20).filter(|&i| i != 5) {
        assert_eq!(memory[i], values[i].1);
    }
}

#[test]
fn a_later_value_replaces_an_earlier_one() {
    let tier = tier(1 << 20);
    put(&tier, b"key", b"first");
    put(&tier, b"key", b"the second");
    assert_eq!(get(&tier, b"key").unwrap(), b"the second");
    assert!(tier.store(&[(b"key", b"third"), (b"key", b"4th")]).iter().all(Result::is_ok));
    assert_eq!(get(&tier, b"key").unwrap(), b"4th");
    assert_eq!(tier.stats().entries, 1);
    assert_eq!(tier.remove(&[b"key", b"key", b"other"]).unwrap(), 1);
    assert_eq!(get(&tier, b"key"), None);
    tier.sync_all().unwrap();
    assert_eq!(tier.stats().used, 0);
}

#[test]
fn what_cannot_be_stored_has_a_reason() {
    let tier = tier(1 << 20);
    let capacity = tier.stats().capacity;
    let long = vec![0; 2 << 20];
    let error = tier.store(&[(b"long", &long)]).remove(0).unwrap_err();
    assert!(
        matches!(error, StoreError::TooLarge { len, limit } if len == 2 << 20 && limit == capacity),
        "{error}"
    );
    // All of the tier in one value, and then another one in its place.
    put(&tier, b"whole", &long[..capacity as usize]);
    put(&tier, b"small", b"small");
    assert_eq!(get(&tier, b"whole"), None);
    // Two values of one call that do not fit together: the first one stays.
    let results = tier.store(&[(b"a", &long[..capacity as usize]), (b"b", b"b")]);
    assert!(results[0].is_ok() && matches!(results[1], Err(StoreError::NoRoom { len: 1 })));
}

/// On a device whose writes are durable, nothing that was acknowledged can be lost, and a full tier
/// needs no sync.
#[test]
fn durable_writes_need_no_sync() {
    let disk = Disk::new(2 << 20, 1).with_dsync();
    let options = DiskTierOptions {
        max_entries: Some(200),
        journal_bytes: Some(640 << 10),
        ..DiskTierOptions::default()
    };
    let (tier, _) = DiskTier::on(disk.clone(), &options).unwrap();
    disk.fail_syncs(true);
    let value = vec![1; 20_000];
    for i in 0..100_u32 {
        put(&tier, &i.to_le_bytes(), &value);
        assert_eq!(disk.unsynced(), 0, "after {i}");
    }
    let stats = tier.stats();
    assert!(stats.evictions > 50 && stats.used <= stats.capacity, "{stats:?}");
    tier.sync_all().unwrap();
    tier.remove(&[&99_u32.to_le_bytes()]).unwrap();
    let held: Vec<bool> = (0..100_u32).map(|i| tier.len_of(&i.to_le_bytes()).is_some()).collect();
    kill(tier, &disk);
    disk.fail_syncs(false);
    disk.cut_power();
    let (tier, _) = DiskTier::on(disk, &options).unwrap();
    for (i, held) in (0..100_u32).zip(held) {
        let expected = held.then_some(&value[..]);
        assert_eq!(get(&tier, &i.to_le_bytes()).as_deref(), expected, "{i}");
    }
}

#[test]
fn a_cleared_tier_is_empty_after_a_restart_too() {
    let disk = Disk::new(1 << 20, 1);
    let (tier, _) = DiskTier::on(disk.clone(), &DiskTierOptions::default()).unwrap();
    put(&tier, b"key", b"value");
    tier.clear().unwrap();
    assert_eq!((get(&tier, b"key"), tier.stats().used), (None, 0));
    kill(tier, &disk);
    disk.cut_power();
    let (tier, found) = DiskTier::on(disk, &DiskTierOptions::default()).unwrap();
    assert_eq!((get(&tier, b"key"), found.entries), (None, 0));
}

/// The error names the length with which the same options work.
#[test]
fn a_file_that_is_too_short_says_how_long_it_must_be() {
    for options in [
        DiskTierOptions::default(),
        DiskTierOptions { max_entries: Some(10_000), ..DiskTierOptions::default() },
        DiskTierOptions { journal_bytes: Some(1 << 20), ..DiskTierOptions::default() },
    ] {
        let tier = |len: u64| DiskTier::on(Disk::new(len as usize, 1), &options).map(drop);
        let Err(TierError::TooSmall { len: 5000, min, .. }) = tier(5000) else {
            panic!("5000 bytes are enough with {options:?}");
        };
        assert!(tier(min).is_ok() && tier(min - 1).is_err(), "{min} with {options:?}");
    }
    let options = DiskTierOptions { max_entries: Some(u64::MAX), ..DiskTierOptions::default() };
    let error = DiskTier::on(Disk::new(1 << 20, 1), &options).map(drop).unwrap_err();
    assert!(matches!(error, TierError::TooSmall { min: u64::MAX, .. }), "{error}");
}
