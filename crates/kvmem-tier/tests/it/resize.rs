//! Tiers that are opened with another size than their files have.

use std::collections::HashMap;
use std::os::unix::fs::MetadataExt;

use kvmem_testkit::random::Random;
use kvmem_tier::{DiskTier, DiskTierOptions, TierError, inspect};

use crate::files::temp_path;
use crate::simulated::{Disk, kill};
use crate::store::get;
use crate::suspects::fail_alone;

const BLOCK: usize = 4096;
const LEN: usize = 512 << 10;

fn options(bytes: Option<usize>) -> DiskTierOptions {
    DiskTierOptions {
        bytes: bytes.map(|bytes| bytes as u64),
        max_entries: Some(200),
        journal_bytes: Some(8 * BLOCK as u64),
        ..DiskTierOptions::default()
    }
}

fn value(key: u8, blocks: usize) -> Vec<u8> {
    let word = |at: usize| (at / 5) as u8 ^ key;
    (0..blocks * BLOCK - usize::from(key)).map(word).collect()
}

/// A tier with values, of which the test knows the order of use.
struct Filled {
    bytes: Vec<u8>,
    /// The keys with their blocks, those that are evicted first in front.
    order: Vec<(u8, usize)>,
}

/// Returns a tier whose values have up to `longest` blocks, and lie anywhere in the order of use.
fn filled(seed: u64, longest: u64) -> Filled {
    let mut random = Random::new(seed);
    let disk = Disk::new(LEN, seed);
    let (tier, _) = DiskTier::on(disk.clone(), &options(None)).unwrap();
    let mut order: Vec<(u8, usize)> = Vec::new();
    for _ in 0..150 {
        let key = random.below(60) as u8;
        let place = order.iter().position(|&(it, _)| it == key);
        let known = place.map(|place| order.remove(place));
        if let Some(known) = known.filter(|_| random.once_in(2)) {
            assert!(get(&tier, &[key]).is_some());
            order.push(known);
        } else if random.once_in(6) {
            tier.remove(&[&[key]]).unwrap();
        } else {
            let blocks = 1 + random.below(longest) as usize;
            tier.store(&[(&[key], &value(key, blocks))]).remove(0).unwrap();
            order.push((key, blocks));
        }
        order.retain(|&(key, _)| tier.len_of(&[key]).is_some());
    }
    assert!(tier.stats().evictions > 0 || longest < 3, "the tier is not full");
    if seed.is_multiple_of(2) {
        // The journal has the last uses then.
        tier.sync_all().unwrap();
        kill(tier, &disk);
    } else {
        drop(tier);
    }
    Filled { bytes: disk.bytes(), order }
}

fn open(disk: &Disk, bytes: Option<usize>) -> Result<DiskTier<Disk>, TierError> {
    DiskTier::on(disk.clone(), &options(bytes)).map(|(tier, _)| tier)
}

/// Returns the values that a tier has, each of which is right.
fn found(tier: &DiskTier<Disk>, filled: &Filled) -> Vec<(u8, usize)> {
    let blocks: HashMap<u8, usize> = filled.order.iter().copied().collect();
    let has = |key: &u8| {
        let Some(bytes) = get(tier, &[*key]) else { return false };
        assert!(bytes == value(*key, blocks[key]), "wrong bytes of {key}");
        true
    };
    filled.order.iter().copied().filter(|(key, _)| has(key)).collect()
}

/// Values of one block find a place wherever they are: just those are evicted that go first.
#[test]
fn a_shorter_tier_has_the_values_that_were_used_last() {
    for seed in 0..20 {
        let filled = filled(seed, 1);
        let disk = Disk::holding(filled.bytes.clone());
        let tier = open(&disk, Some(256 << 10)).unwrap();
        let stats = tier.stats();
        assert_eq!(disk.bytes().len(), 256 << 10);
        assert!(stats.capacity <= 256 << 10);
        let left = (stats.capacity as usize / BLOCK).min(filled.order.len());
        let (gone, expected) = filled.order.split_at(filled.order.len() - left);
        assert!(!gone.is_empty() && left > 10, "seed {seed}: {left} are left");
        assert_eq!((stats.entries, stats.evictions), (left as u64, gone.len() as u64));
        // What goes next is what was used longest ago. Reading would be a use.
        for round in 0..10_u8 {
            tier.store(&[(&[200 + round], &[7; 3 * BLOCK])]).remove(0).unwrap();
            let has = |&(key, _): &(u8, usize)| tier.len_of(&[key]).is_some();
            let first = expected.iter().position(has).unwrap_or(expected.len());
            assert!(expected[first..].iter().all(has), "seed {seed}: another order");
        }
        assert!(tier.stats().evictions > gone.len() as u64);
        kill(tier, &disk);
        let tier = open(&disk, None).unwrap();
        assert!(tier.stats().capacity <= 256 << 10);
        assert!(found(&tier, &filled).iter().all(|one| expected.contains(one)));
    }
}

/// Longer values may lie in several ranges afterwards, and most that fit are found.
#[test]
fn a_shorter_tier_has_most_of_what_fits() {
    let (mut fit, mut has, mut scattered) = (0, 0, 0);
    for seed in 0..20 {
        let filled = filled(seed, 6);
        let disk = Disk::holding(filled.bytes.clone());
        let tier = open(&disk, Some(300 << 10)).unwrap();
        let stats = tier.stats();
        let mut room = stats.capacity as usize / BLOCK;
        let fits = |one: &&(u8, usize)| {
            room = room.saturating_sub(one.1);
            room > 0
        };
        fit += filled.order.iter().rev().take_while(fits).count();
        let found = found(&tier, &filled);
        assert_eq!((found.len() as u64, stats.used), (stats.entries, blocks(&found)));
        has += found.len();
        scattered += stats.scattered;
    }
    assert!(has * 100 >= fit * 88 && scattered > 0, "{has} of {fit}, {scattered} scattered");
}

fn blocks(values: &[(u8, usize)]) -> u64 {
    values.iter().map(|&(_, blocks)| (blocks * BLOCK) as u64).sum()
}

/// The process is killed, or the power is cut, at any moment of a change of length. The file is a
/// tier of the old or the new length with all values that the change leaves, and the change can be
/// made again.
#[test]
fn a_tier_is_whole_at_every_moment_of_a_change_of_length() {
    let (mut ends, mut old, mut new) = (0, 0, 0);
    for (seed, bytes) in [(2, 256 << 10), (4, 1 << 20)] {
        let mut filled = filled(seed, 4);
        filled.bytes.resize(filled.bytes.len().max(bytes), 0);
        let before = open(&Disk::holding(filled.bytes.clone()), None).unwrap();
        let (all, capacity) = (found(&before, &filled), before.stats().capacity);
        let after = open(&Disk::holding(filled.bytes.clone()), Some(bytes)).unwrap();
        let left = found(&after, &filled);
        assert!(left.len() > 5 && (left.len() < all.len() || bytes > LEN));
        assert!(after.stats().capacity != capacity);
        for operations in 1.. {
            let is_cut = operations % 2 == 0;
            let disk = Disk::holding(filled.bytes.clone());
            disk.end_after(operations / 2 + 1);
            let opened = open(&disk, Some(bytes));
            let is_whole = opened.is_ok() && disk.bytes().len() == bytes;
            disk.end();
            drop(opened);
            disk.restart();
            if is_cut {
                disk.cut_power();
            }
            let again = Disk::holding(disk.bytes());
            let tier = open(&disk, None).unwrap();
            let found_now = found(&tier, &filled);
            assert!(left.iter().all(|one| found_now.contains(one)), "{seed}, {operations}");
            assert_eq!(tier.stats().checksum_misses + tier.stats().io_misses, 0);
            if tier.stats().capacity == capacity {
                old += 1;
            } else {
                assert_eq!(tier.stats().capacity, after.stats().capacity);
                new += 1;
            }
            let tier = open(&again, Some(bytes)).unwrap();
            assert_eq!(found(&tier, &filled), left, "{seed}, {operations}");
            assert_eq!((again.bytes().len(), tier.stats().quarantined), (bytes, 0));
            ends += 1;
            if is_whole && is_cut {
                break;
            }
        }
    }
    assert!(ends > 100 && old > 20 && new > 10, "{ends} ends: {old} old, {new} new");
}

/// A longer tier uses what it got.
#[test]
fn a_longer_tier_has_room_for_more() {
    let filled = filled(5, 4);
    let mut bytes = filled.bytes.clone();
    bytes.resize(1 << 20, 0);
    let disk = Disk::holding(bytes);
    let before = open(&disk, None).unwrap().stats();
    let tier = open(&disk, Some(1 << 20)).unwrap();
    assert_eq!(tier.stats().capacity - before.capacity, 512 << 10);
    assert_eq!(found(&tier, &filled), filled.order);
    for key in 100..125 {
        tier.store(&[(&[key], &value(key, 4))]).remove(0).unwrap();
    }
    assert_eq!(tier.stats().evictions, 0);
    assert_eq!(found(&tier, &filled), filled.order);
    kill(tier, &disk);
    let tier = open(&disk, None).unwrap();
    assert!((100..125).all(|key| get(&tier, &[key]) == Some(value(key, 4))));
}

/// Quarantined parts before the new end stay so, and those behind it are no more. A value that
/// cannot be read is left out.
#[test]
fn bad_parts_stay_bad_in_a_shorter_tier() {
    let disk = Disk::new(LEN, 1);
    let tier = open(&disk, None).unwrap();
    let keys: Vec<u8> = (0..(tier.stats().capacity as usize / BLOCK - 8) as u8).collect();
    for &key in &keys {
        tier.store(&[(&[key], &value(key, 1))]).remove(0).unwrap();
    }
    let data = inspect(&disk).unwrap().contents.unwrap().superblock.layout.data.start;
    let block = |number: usize| data + (number * BLOCK) as u64..data + (number * BLOCK) as u64 + 1;
    let key_in = |number: usize| {
        let bytes = disk.bytes()[block(number).start as usize..].to_vec();
        *keys.iter().find(|&&key| bytes.starts_with(&value(key, 1))).expect("a value")
    };
    let (first, other, last) = (3, 20, keys.len() - 3);
    // 36 values behind the new end, after an old one before it: two more are used later.
    let old = 6;
    for number in std::iter::once(old).chain(50..86) {
        assert!(get(&tier, &[key_in(number)]).is_some());
    }
    for number in [first, last] {
        let key = key_in(number);
        disk.fail_at(block(number), libc::EIO);
        fail_alone(&tier, &disk, &[key], &[key_in(other)]);
    }
    // What is used now stays, and moves.
    let moved = key_in(last - 1);
    assert!(get(&tier, &[moved]).is_some());
    assert_eq!(tier.stats().quarantined, 2 * BLOCK as u64);
    drop(tier);
    let before = disk.bytes();
    for is_readable in [true, false] {
        let disk = Disk::holding(before.clone());
        if !is_readable {
            disk.fail_at(block(last - 1), libc::EIO);
        }
        let tier = open(&disk, Some(256 << 10)).unwrap();
        assert_eq!(get(&tier, &[moved]).is_some(), is_readable);
        let stats = tier.stats();
        assert_eq!((stats.quarantined, stats.scattered), (BLOCK as u64, 0));
        // The bad part takes the place of a value, and the old one goes first.
        assert_eq!(stats.entries + u64::from(!is_readable), stats.capacity / BLOCK as u64 - 1);
        assert!(get(&tier, &[key_in(old)]).is_none() && get(&tier, &[key_in(51)]).is_some());
        drop(tier);
        let found = inspect(&disk).unwrap().contents.unwrap().quarantined;
        assert_eq!(found.iter().map(|it| (it.start, it.blocks)).collect::<Vec<_>>(), [(3, 1)]);
    }
}

/// The index stays as long as it is.
#[test]
fn a_tier_cannot_become_shorter_than_its_index() {
    let filled = filled(1, 1);
    let disk = Disk::holding(filled.bytes.clone());
    let layout = inspect(&disk).unwrap().contents.unwrap().superblock.layout;
    let least = layout.data.start as usize + BLOCK;
    for bytes in [1, BLOCK, least - 1] {
        let error = open(&disk, Some(bytes)).err().unwrap();
        match error {
            TierError::CannotShrink { len, min } => {
                assert_eq!((len, min), (bytes as u64, least as u64));
            }
            other => panic!("{other}"),
        }
        assert!(error.to_string().contains(&format!("{least} bytes or more")), "{error}");
    }
    assert!(disk.bytes() == filled.bytes, "something was written");
    let tier = open(&disk, Some(least)).unwrap();
    assert_eq!((tier.stats().capacity, tier.stats().entries), (BLOCK as u64, 1));
    let last = *filled.order.last().unwrap();
    assert_eq!(found(&tier, &filled), [last]);
}

/// A file gives its space back to the file system.
#[test]
fn a_file_becomes_as_long_as_it_is_to_be() {
    let file = temp_path("resize");
    let of = |mib: u64| DiskTierOptions { bytes: Some(mib << 20), ..DiskTierOptions::default() };
    let (tier, _) = DiskTier::open(&file, &of(32)).unwrap();
    for key in 0..28_u8 {
        tier.store(&[(&[key], &vec![key; 1 << 20])]).remove(0).unwrap();
    }
    drop(tier);
    let len = || std::fs::metadata(&file).unwrap();
    for (mib, fewest) in [(8, 6), (8, 6), (16, 6)] {
        let (tier, report) = DiskTier::open(&file, &of(mib)).unwrap();
        assert_eq!(len().len(), mib << 20);
        assert!(len().blocks() * 512 <= (mib << 20) + (64 << 10), "{} blocks", len().blocks());
        assert!(report.entries >= fewest && !report.created && report.dropped == 0);
        assert_eq!(tier.len_of(&[27]), Some(1 << 20));
    }
    let error = DiskTier::open(&file, &DiskTierOptions { bytes: Some(1), ..of(0) }).err().unwrap();
    assert!(matches!(error, TierError::CannotShrink { .. }), "{error}");
    // A new tier in its place has its length, too.
    let (tier, report) = DiskTier::open(&file, &DiskTierOptions { format: true, ..of(4) }).unwrap();
    assert!(report.created && tier.stats().capacity < 4 << 20 && len().len() == 4 << 20);
}
