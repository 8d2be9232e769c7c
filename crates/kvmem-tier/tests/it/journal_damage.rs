//! Damaged blocks of the journal with whole ones behind them: nothing comes back, nothing that is
//! whole is quarantined, and the report says so.

use kvmem::tier::TierRead;
use kvmem_tier::format::{BLOCK, JournalBlock, Repeated, read_journal_block, write_journal_block};
use kvmem_tier::{DiskTier, DiskTierOptions, Fetched, OpenReport, TierStats, inspect};

use crate::simulated::{Disk, kill};

const LEN: usize = 5000;

fn options(journal_blocks: u64) -> DiskTierOptions {
    DiskTierOptions {
        max_entries: Some(1000),
        journal_bytes: Some(journal_blocks * BLOCK as u64),
        ..DiskTierOptions::default()
    }
}

fn store(tier: &DiskTier<Disk>, keys: std::ops::Range<u16>, seed: u8) {
    let keys: Vec<[u8; 2]> = keys.map(u16::to_le_bytes).collect();
    let values: Vec<Vec<u8>> = keys.iter().map(|key| vec![key[0] ^ seed; LEN]).collect();
    let batch: Vec<(&[u8], &[u8])> =
        keys.iter().zip(&values).map(|(key, value)| (&key[..], &value[..])).collect();
    assert!(tier.store(&batch).iter().all(Result::is_ok));
}

fn remove(tier: &DiskTier<Disk>, keys: std::ops::Range<u16>) {
    let keys: Vec<[u8; 2]> = keys.map(u16::to_le_bytes).collect();
    let keys: Vec<&[u8]> = keys.iter().map(|key| &key[..]).collect();
    assert_eq!(tier.remove(&keys).unwrap(), keys.len());
}

/// Returns the seed of the value of a key, if it has one.
fn seed_of(tier: &DiskTier<Disk>, key: u16) -> Option<u8> {
    let mut into = [0; LEN];
    let found = tier.fetch(&mut [TierRead { key: &key.to_le_bytes(), into: &mut into }])[0];
    assert!(found != Fetched::Hit || into == [into[0]; LEN]);
    (found == Fetched::Hit).then(|| into[0] ^ key.to_le_bytes()[0])
}

/// Returns where the whole blocks of the journal in use begin, with the blocks.
fn journal(disk: &Disk) -> Vec<(u64, JournalBlock)> {
    let superblock = inspect(disk).unwrap().contents.unwrap().superblock;
    let area = superblock.layout.journals[superblock.journal as usize];
    let bytes = disk.bytes();
    (0..area.blocks())
        .filter_map(|index| {
            let at = area.start + index * BLOCK as u64;
            let block = read_journal_block(&bytes[at as usize..][..BLOCK])?;
            let of = (block.file, block.epoch, u64::from(block.index));
            (of == (superblock.file, superblock.epoch, index)).then_some((at, block))
        })
        .collect()
}

fn flip(disk: &Disk, at: u64) {
    disk.falsify(at + 100..at + 101, |byte| byte[0] ^= 1);
}

/// Opens the tier on a copy of a disk, after an inspection that finds the same.
fn open(disk: &Disk) -> (DiskTier<Disk>, OpenReport) {
    let disk = Disk::holding(disk.bytes());
    let contents = inspect(&disk).unwrap().contents.unwrap();
    let (tier, report) = DiskTier::on(disk, &DiskTierOptions::default()).unwrap();
    assert_eq!(
        (contents.journal_damaged, contents.journal_unknown, contents.in_doubt),
        (report.journal_damaged, report.journal_unknown, report.in_doubt)
    );
    assert_eq!(contents.entries.len() as u64, report.entries);
    (tier, report)
}

/// Values 0 to 39 in the checkpoint; then, one change a block, 0 to 19 removed, 20 to 29 replaced,
/// and 100 to 119 stored into the blocks that became free. All of it is synced.
fn removed_and_used_again() -> Disk {
    let disk = Disk::new(4 << 20, 1);
    let (tier, _) = DiskTier::on(disk.clone(), &options(128)).unwrap();
    store(&tier, 0..40, 0);
    tier.checkpoint().unwrap();
    (0..20).for_each(|key| remove(&tier, key..key + 1));
    tier.sync_all().unwrap();
    (100..120).for_each(|key| store(&tier, key..key + 1, 0));
    (20..30).for_each(|key| store(&tier, key..key + 1, 1));
    tier.sync_all().unwrap();
    store(&tier, 200..201, 0);
    kill(tier, &disk);
    disk
}

#[test]
fn what_was_removed_or_replaced_does_not_come_back() {
    let disk = removed_and_used_again();
    let blocks = journal(&disk);
    assert_eq!(blocks.len(), 51);
    let (_, report) = open(&disk);
    assert_eq!((report.journal_damaged, report.in_doubt), (0, 0));
    for first in 0..50 {
        for count in [1, 2, 7, 30] {
            let damaged = first..(first + count).min(50);
            let disk = Disk::holding(disk.bytes());
            blocks[damaged.clone()].iter().for_each(|&(at, _)| flip(&disk, at));
            let (tier, report) = open(&disk);
            assert_eq!(report.journal_damaged, damaged.len() as u64, "{damaged:?}");
            assert_eq!((report.journal_unknown, report.dropped), (0, 0), "{damaged:?}");
            // A value that was removed before has no entry to drop.
            let before = damaged.clone().filter(|place| !(20..40).contains(place)).count() as u64;
            assert_eq!(report.in_doubt, before, "{damaged:?}");
            for key in 0..20 {
                assert_eq!(seed_of(&tier, key), None, "{damaged:?}: {key} came back");
            }
            for key in 20..30_u16 {
                let expected = (!damaged.contains(&(usize::from(key) + 20))).then_some(1);
                assert_eq!(seed_of(&tier, key), expected, "{damaged:?}: {key}");
            }
            for key in 30..40 {
                assert_eq!(seed_of(&tier, key), Some(0), "{damaged:?}: {key}");
            }
            for key in 100..120_u16 {
                let expected = (!damaged.contains(&(usize::from(key) - 80))).then_some(0);
                assert_eq!(seed_of(&tier, key), expected, "{damaged:?}: {key}");
            }
            assert_eq!(seed_of(&tier, 200), Some(0));
            let TierStats { quarantined, checksum_misses, lost_misses, .. } = tier.stats();
            assert_eq!((quarantined, checksum_misses, lost_misses), (0, 0, 0), "{damaged:?}");
        }
    }
}

/// The end of the journal is where a process stopped: nothing lies behind it.
#[test]
fn a_torn_end_is_no_damage() {
    let disk = removed_and_used_again();
    let (last, _) = journal(&disk)[50];
    flip(&disk, last);
    let (tier, report) = open(&disk);
    assert_eq!((report.journal_damaged, report.in_doubt, report.replayed), (0, 0, 50));
    assert_eq!(seed_of(&tier, 200), None);
}

/// Damages the first two of many full blocks: later ones repeat the keys of the second alone.
/// Returns the changes of both.
fn full_blocks(sync: bool) -> ([u16; 2], OpenReport, DiskTier<Disk>) {
    let disk = Disk::new(16 << 20, 1);
    let (tier, _) = DiskTier::on(disk.clone(), &options(64)).unwrap();
    store(&tier, 0..600, 0);
    tier.checkpoint().unwrap();
    remove(&tier, 0..500);
    if sync {
        tier.sync_all().unwrap();
    }
    store(&tier, 700..720, 0);
    store(&tier, 800..801, 0);
    kill(tier, &disk);
    let blocks = journal(&disk);
    let changes = [&blocks[0], &blocks[1]].map(|(_, block)| block.changes.len() as u16);
    assert!(changes[0] == 63 && changes[1] >= 47 && blocks.len() > 10, "{}", blocks.len());
    blocks[..2].iter().for_each(|&(at, _)| flip(&disk, at));
    let (tier, report) = open(&disk);
    assert_eq!(report.journal_damaged, 2);
    assert!((700..720).chain([800]).all(|key| seed_of(&tier, key) == Some(0)));
    assert_eq!((tier.stats().quarantined, tier.stats().lost_misses), (0, 0));
    (changes, report, tier)
}

#[test]
fn nothing_older_is_found_if_durable_changes_are_not_known() {
    let (_, report, tier) = full_blocks(true);
    assert_eq!((report.journal_unknown, report.in_doubt, report.entries), (0, 600, 21));
    assert!((0..600).all(|key| seed_of(&tier, key).is_none()));
}

#[test]
fn unknown_changes_that_were_not_durable_are_reported() {
    let ([first, second], report, tier) = full_blocks(false);
    // The changes of the first block are as if they had not been made.
    assert_eq!((report.journal_unknown, report.in_doubt), (1, second.into()));
    assert!((first..500).all(|key| seed_of(&tier, key).is_none()));
    assert!((0..first).chain(500..600).all(|key| seed_of(&tier, key) == Some(0)));
}

/// Blocks of the changes while a checkpoint was written are durable when the superblock names them,
/// also if nothing lies behind them.
#[test]
fn blocks_that_the_superblock_counts_are_not_a_torn_end() {
    let disk = Disk::new(8 << 20, 1);
    let (tier, _) = DiskTier::on(disk.clone(), &options(32)).unwrap();
    store(&tier, 0..900, 0);
    tier.checkpoint().unwrap();
    let mut keys = 0..;
    let before = tier.stats().checkpoints;
    while tier.stats().checkpoints == before {
        let key = keys.next().unwrap();
        remove(&tier, key..key + 1);
    }
    kill(tier, &disk);
    let counted = inspect(&disk).unwrap().contents.unwrap().superblock.counted_blocks;
    let blocks = journal(&disk);
    assert!(counted > 0 && blocks.len() == counted as usize, "{counted}, {}", blocks.len());
    blocks.iter().for_each(|&(at, _)| flip(&disk, at));
    let (_, report) = open(&disk);
    assert_eq!((report.journal_damaged, report.journal_unknown), (counted.into(), 0));
    assert_eq!(report.entries, 0);
    assert!(report.in_doubt > 0);
}

/// Programs of before repeat no keys and say nothing about what is durable. The changes behind a
/// damaged block are made, and values whose blocks other values may have got are not quarantined.
#[test]
fn a_journal_of_before_is_read_behind_a_damaged_block() {
    let disk = removed_and_used_again();
    let blocks = journal(&disk);
    for (at, block) in &blocks {
        let block =
            JournalBlock { repeated: Repeated::default(), durable_blocks: 0, ..block.clone() };
        disk.falsify(*at..*at + BLOCK as u64, |bytes| write_journal_block(&block, bytes));
    }
    let (_, report) = open(&disk);
    assert_eq!((report.journal_damaged, report.entries), (0, 41));
    // The removal of 5, whose blocks another value has.
    flip(&disk, blocks[5].0);
    let (tier, report) = open(&disk);
    assert_eq!((report.journal_damaged, report.journal_unknown, report.in_doubt), (1, 1, 0));
    for key in (0..20).filter(|&key| key != 5) {
        assert_eq!(seed_of(&tier, key), None, "{key} came back");
    }
    assert_eq!(report.dropped, 1, "a later record has the blocks of 5");
    assert!((100..120).all(|key| seed_of(&tier, key) == Some(0)));
    // The removal of 5, and the value that took its blocks: they hold other bytes now.
    let taken = blocks[20..40].iter().find(|(at, _)| {
        let disk = Disk::holding(disk.bytes());
        flip(&disk, *at);
        open(&disk).1.dropped == 0
    });
    flip(&disk, taken.expect("a value took the blocks of 5").0);
    let (tier, report) = open(&disk);
    assert_eq!((report.journal_damaged, report.journal_unknown, report.dropped), (2, 2, 0));
    assert_eq!(seed_of(&tier, 5), None);
    let TierStats { quarantined, checksum_misses, lost_misses, .. } = tier.stats();
    assert_eq!((quarantined, checksum_misses, lost_misses), (0, 0, 1));
}
