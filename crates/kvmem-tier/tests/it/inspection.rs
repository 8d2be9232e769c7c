//! Inspecting and verifying without a change.

use kvmem_testkit::random::Random;
use kvmem_tier::format::SuperblockError;
use kvmem_tier::{
    Contents, Damage, DiskTier, DiskTierOptions, TierError, ValueLengths, inspect, verify,
};

use crate::damage::small;
use crate::simulated::{Disk, kill};

fn contents(disk: &Disk) -> Contents {
    inspect(disk).unwrap().contents.unwrap()
}

#[test]
fn a_new_tier_is_empty() {
    let disk = Disk::new(1 << 20, 1);
    drop(DiskTier::on(disk.clone(), &DiskTierOptions::default()).unwrap());
    let before = disk.bytes();
    let found = inspect(&disk).unwrap();
    let contents = found.contents.unwrap();
    assert_eq!((found.device_len, contents.superblock.len), (1 << 20, 1 << 20));
    assert_eq!(found.superblocks, [0, 1].map(|_| Ok(contents.superblock.clone())));
    // Its owner has left it.
    assert_eq!((contents.superblock.generation, contents.superblock.epoch), (2, 1));
    assert_eq!((contents.entries.len(), contents.lengths()), (0, None));
    assert_eq!((contents.checkpoint_changes, contents.journal_changes), (0, 0));
    let blocks = contents.superblock.layout.data.blocks();
    assert_eq!((contents.free_blocks, contents.longest_free_blocks), (blocks, blocks));
    assert_eq!((contents.utilization(), contents.dropped), (0.0, 0));
    assert!(verify(&disk, &contents, |_| panic!("nothing is read")).is_empty());
    assert_eq!(disk.bytes(), before);
}

/// An inspection finds what the tier has when it is opened, after any history, and writes nothing.
#[test]
fn inspecting_finds_what_opening_finds() {
    for seed in 0..30 {
        let mut random = Random::new(seed);
        let disk = Disk::new(1 << 20, seed);
        let (tier, _) = DiskTier::on(disk.clone(), &DiskTierOptions::default()).unwrap();
        for _ in 0..random.below(300) {
            let key = (random.below(40) as u32).to_le_bytes();
            match random.below(20) {
                0 => tier.checkpoint().unwrap(),
                1..=4 => drop(tier.remove(&[&key]).unwrap()),
                _ => {
                    let value = key.repeat(1 + random.below(10_000) as usize);
                    tier.store(&[(&key, &value)]).remove(0).unwrap();
                }
            }
        }
        if random.once_in(5) {
            drop(tier);
            let found = contents(&disk);
            assert_eq!((found.journal_changes, found.unverified_values()), (0, 0), "seed {seed}");
        } else {
            kill(tier, &disk);
        }
        let before = disk.bytes();
        let found = contents(&disk);
        let mut read = 0;
        assert!(verify(&disk, &found, |bytes| read += bytes).is_empty(), "seed {seed}");
        assert_eq!(read, found.used_bytes(), "seed {seed}");
        assert!(disk.bytes() == before, "seed {seed}: something was written");

        let (tier, opened) = DiskTier::on(disk.clone(), &DiskTierOptions::default()).unwrap();
        let stats = tier.stats();
        assert_eq!(found.entries.len() as u64, stats.entries, "seed {seed}");
        assert_eq!(found.value_bytes(), stats.bytes, "seed {seed}");
        assert_eq!(found.used_bytes(), stats.used, "seed {seed}");
        assert_eq!(found.journal_changes, opened.replayed, "seed {seed}");
        assert_eq!(found.dropped, opened.dropped, "seed {seed}");
        assert_eq!(found.free_blocks * 4096 + stats.used, stats.capacity, "seed {seed}");
        assert!(found.longest_free_blocks <= found.free_blocks, "seed {seed}");
        assert!(found.entries.is_sorted_by_key(|entry| entry.start()), "seed {seed}");
        // Opening has put the journal's changes into a checkpoint.
        let after = contents(&disk);
        assert_eq!((after.journal_blocks, after.journal_changes), (0, 0), "seed {seed}");
        assert_eq!(after.checkpoint_changes, stats.entries, "seed {seed}");
        assert_eq!(after.entries, found.entries, "seed {seed}");
    }
}

#[test]
fn lengths_and_journal_are_reported() {
    let (bytes, _) = small();
    let found = contents(&Disk::holding(bytes));
    assert_eq!(found.lengths(), Some(ValueLengths { min: 100, median: 4096, max: 10_000 }));
    assert_eq!((found.value_bytes(), found.used_bytes()), (19_196, 7 * 4096));
    assert_eq!((found.checkpoint_changes, found.journal_changes, found.journal_blocks), (9, 8, 3));
    assert_eq!((found.entries.len(), found.scattered()), (4, 2));
    let of_data = 19_196.0 / found.superblock.layout.data.len as f64;
    assert!((found.utilization() - of_data).abs() < 1e-12);
}

#[test]
fn each_part_that_is_damaged_is_named() {
    let (bytes, _) = small();
    let layout = contents(&Disk::holding(bytes.clone())).superblock.layout;
    let checkpoint = {
        let found = contents(&Disk::holding(bytes.clone()));
        layout.checkpoints[found.superblock.checkpoint as usize].start as usize
    };
    let inspected = |flipped: &[usize]| {
        let mut bytes = bytes.clone();
        flipped.iter().for_each(|&at| bytes[at] ^= 1);
        inspect(&Disk::holding(bytes)).unwrap()
    };
    let first = inspected(&[100]);
    assert_eq!(first.superblocks[0], Err(SuperblockError::Damaged));
    assert!(first.superblocks[1].is_ok() && first.contents.unwrap().entries.len() == 4);
    let both = inspected(&[0, 4096 + 100]);
    assert!(matches!(
        both.contents,
        Err(TierError::Superblocks {
            first: SuperblockError::Foreign,
            second: SuperblockError::Damaged
        })
    ));
    let index = inspected(&[checkpoint + 70]);
    assert!(index.superblocks.iter().all(Result::is_ok));
    let error = index.contents.unwrap_err().to_string();
    assert!(error.contains(&format!("at byte {checkpoint}")), "{error}");
    let cut = inspect(&Disk::holding(bytes[..bytes.len() - 4096].to_vec())).unwrap();
    assert!(matches!(cut.contents, Err(TierError::CutOff { .. })), "{cut:?}");
    assert!(inspect(&Disk::holding(Vec::new())).unwrap().contents.is_err());
}

/// A flipped byte of a value is found, and named by its value; one of the padding changes nothing.
#[test]
fn verifying_finds_every_flipped_byte() {
    let (bytes, _) = small();
    let found = contents(&Disk::holding(bytes.clone()));
    let data = found.superblock.layout.data.start;
    for entry in &found.entries {
        // Where each byte of its blocks is, in their order.
        let blocks: Vec<u32> = entry
            .extents
            .iter()
            .flat_map(|extent| extent.start..extent.start + extent.blocks)
            .collect();
        let place = |at: usize| data as usize + blocks[at / 4096] as usize * 4096 + at % 4096;
        let padding = (entry.len as usize..blocks.len() * 4096).step_by(100).map(|at| (at, false));
        for (at, is_value) in (0..entry.len as usize).map(|at| (at, true)).chain(padding) {
            let mut bytes = bytes.clone();
            bytes[place(at)] ^= 1 << (at % 8);
            let damaged = verify(&Disk::holding(bytes), &found, |_| {});
            assert_eq!(damaged.len(), usize::from(is_value), "byte {at} of {entry:?}");
            if let Some(damaged) = damaged.first() {
                assert_eq!(damaged.entry, *entry);
                assert!(matches!(damaged.damage, Damage::Checksum));
            }
        }
    }
}

/// Values that are longer than a piece, and together longer than a batch.
#[test]
fn long_values_are_verified_piece_by_piece() {
    const LEN: usize = (5 << 19) + 5;
    let disk = Disk::new(44 << 20, 1);
    let (tier, _) = DiskTier::on(disk.clone(), &DiskTierOptions::default()).unwrap();
    for i in 0..16_u8 {
        let value: Vec<u8> = (0..LEN).map(|at| (at / 4096) as u8 ^ i).collect();
        tier.store(&[(&[i], &value)]).remove(0).unwrap();
    }
    tier.store(&[(b"none", b"")]).remove(0).unwrap();
    drop(tier);
    let mut bytes = disk.bytes();
    let found = contents(&disk);
    let mut reads = Vec::new();
    assert!(verify(&disk, &found, |bytes| reads.push(bytes)).is_empty());
    assert!(reads.len() > 1 && reads.iter().sum::<u64>() == found.used_bytes(), "{reads:?}");
    let at = |value: usize| {
        let block = u64::from(found.entries[value].start());
        (found.superblock.layout.data.start + block * 4096) as usize
    };
    // The first byte, one in the middle, and the last.
    let long: Vec<usize> = (0..17).filter(|&value| found.entries[value].len > 0).collect();
    bytes[at(long[2])] ^= 1;
    bytes[at(long[7]) + (3 << 19)] ^= 1;
    bytes[at(long[15]) + LEN - 1] ^= 1;
    let damaged = verify(&Disk::holding(bytes), &found, |_| {});
    let named: Vec<u32> = damaged.iter().map(|damaged| damaged.entry.start()).collect();
    assert_eq!(named, [2, 7, 15].map(|value: usize| found.entries[long[value]].start()));
}
