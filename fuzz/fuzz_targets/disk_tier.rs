//! Disk tier: a file whose superblocks, checkpoint, journal and values are changed, with checksums
//! that are right again. Opening it is an error or not, and no value is ever wrong.
#![cfg_attr(fuzzing, no_main)]

use std::time::Duration;

use anyhow::{Result, ensure};
use kvmem::tier::{Priority, TierHints, TierRead, TierValue};
use kvmem_tier::device::{Device, MemoryDevice};
use kvmem_tier::format::BLOCK;
use kvmem_tier::{DiskTier, DiskTierOptions, Fetched};

const KEYS: u8 = 12;
/// Bytes of a change of the file: block, place in it, value.
const CHANGE: usize = 5;

fn value(key: u8) -> Vec<u8> {
    vec![key; 1 + usize::from(key) * 700]
}

/// Returns the bytes of a tier with values in its checkpoint, and changes in its journal.
fn original() -> Result<Vec<u8>> {
    let options = DiskTierOptions {
        max_entries: Some(1),
        journal_bytes: Some(8 * BLOCK as u64),
        ..DiskTierOptions::default()
    };
    let (tier, _) = DiskTier::on(MemoryDevice::new(56 * BLOCK), &options)?;
    // Every other block becomes free, so that longer values lie in several ranges.
    let fillers: Vec<[u8; 2]> = (0..35).map(|filler| [0xFF, filler]).collect();
    let batch: Vec<(&[u8], &[u8])> = fillers.iter().map(|key| (&key[..], &key[..])).collect();
    ensure!(tier.store(&batch).iter().all(Result::is_ok), "the fillers are stored");
    let odd: Vec<&[u8]> = fillers.iter().skip(1).step_by(2).map(|key| &key[..]).collect();
    tier.remove(&odd)?;
    tier.sync_all()?;
    let keys: Vec<[u8; 1]> = (0..KEYS).map(|key| [key]).collect();
    let values: Vec<Vec<u8>> = (0..KEYS).map(value).collect();
    let stored = |index: usize| {
        TierValue::new(&keys[index], &values[index]).with_hints(TierHints {
            ttl: index.is_multiple_of(3).then_some(Duration::from_secs(1 << 20)),
            priority: Priority::nearest(index as i8 % 4),
            ..TierHints::default()
        })
    };
    let all: Vec<TierValue<'_>> = (0..keys.len()).map(stored).collect();
    let (in_checkpoint, in_journal) = all.split_at(8);
    ensure!(tier.store_with(in_checkpoint).iter().all(Result::is_ok), "the checkpoint's values");
    tier.checkpoint()?;
    ensure!(tier.store_with(in_journal).iter().all(Result::is_ok), "the journal's values");
    tier.remove(&[&[1]])?;
    ensure!(tier.stats().scattered > 1, "no value lies in several ranges");
    Ok(tier.device().bytes())
}

/// Puts the right checksum into a block that has one.
fn seal(block: &mut [u8]) {
    let field = match &block[..4] {
        b"Kvme" => 12,
        b"KvJ1" | b"KvC1" => 4,
        _ => return,
    };
    block[field..field + 4].fill(0);
    let sum = crc32c::crc32c(block);
    block[field..field + 4].copy_from_slice(&sum.to_le_bytes());
}

/// Applies the changes that the bytes encode to a file, opens it, and looks for all values.
fn target(bytes: &[u8]) -> Result<()> {
    let mut file = original()?;
    let blocks = file.len() / BLOCK;
    for change in bytes.chunks_exact(CHANGE) {
        let block = usize::from(change[0]) % blocks * BLOCK;
        let place = usize::from(u16::from_le_bytes([change[1], change[2]])) % (BLOCK - 2);
        file[block + place..block + place + 2].copy_from_slice(&change[3..5]);
        seal(&mut file[block..block + BLOCK]);
    }
    let (tier, _) = match DiskTier::on(MemoryDevice::holding(file), &DiskTierOptions::default()) {
        Ok(opened) => opened,
        Err(error) => {
            ensure!(!error.to_string().is_empty(), "an error without a text");
            return Ok(());
        }
    };
    for key in 0..KEYS {
        let Some(len) = tier.len_of(&[key]) else { continue };
        // An entry may claim any length.
        let mut into = vec![0; (len as usize).min(1 << 20)];
        if tier.fetch(&mut [TierRead { key: &[key], into: &mut into }])[0] == Fetched::Hit {
            ensure!(into == value(key), "wrong bytes under {key}");
        }
    }
    // It is a tier as any other.
    tier.store(&[(b"new", b"value")]).remove(0)?;
    let mut into = [0; 5];
    let found = tier.fetch(&mut [TierRead { key: b"new", into: &mut into }])[0];
    ensure!(found == Fetched::Hit && into == *b"value", "{found:?}");
    let len = tier.device().len();
    ensure!(len == (blocks * BLOCK) as u64, "the device has {len} bytes");
    Ok(())
}

/// Returns inputs that change each kind of block.
fn corpus() -> Vec<(String, Vec<u8>)> {
    let change = |block: u8, place: u16, value: u16| {
        let ([a, b], [c, d]) = (place.to_le_bytes(), value.to_le_bytes());
        vec![block, a, b, c, d]
    };
    let named = |name: &str, changes: &[Vec<u8>]| (name.to_owned(), changes.concat());
    vec![
        named("unchanged", &[]),
        // Both superblocks: epoch, layout, length.
        named("epoch", &[change(0, 56, 9), change(1, 56, 9)]),
        named("layout", &[change(0, 128, 9), change(1, 136, 9)]),
        named("length", &[change(0, 88, 1), change(1, 90, 7)]),
        // An owner, and a file that one copy of the superblock gives another identity.
        named("owner", &[change(0, 256, 9), change(1, 256, 9), change(0, 312, 7)]),
        named("identity", &[change(1, 16, 9)]),
        // Keys that a block of the journal repeats: blocks, their counts, and what was durable; and
        // a block that is not whole before it.
        named("repeated", &[change(10, 40, 200), change(11, 4094, 0xFFFF), change(9, 44, 7)]),
        named("gap", &[change(2, 0, 0), change(10, 0, 0), change(11, 44, 9)]),
        // A journal's blocks: epoch, place, number of records, and fields of their changes.
        named("journal", &[change(2, 24, 1), change(2, 32, 1), change(3, 36, 70)]),
        named("change", &[change(2, 64, 3), change(3, 64 + 32, 40), change(3, 64 + 40, 0xFFFF)]),
        // The second record of a value in several ranges: kind, number, a range, its blocks. And
        // the blocks of the first range.
        named("extents", &[change(2, 256, 1), change(2, 384 + 8, 9)]),
        named(
            "ranges",
            &[change(2, 256 + 16, 3), change(18, 1600 + 16, 0), change(2, 512 + 20, 2)],
        ),
        named(
            "blocks",
            &[change(2, 192 + 36, 0), change(18, 1600 + 20, 0), change(2, 640 + 24, 5)],
        ),
        // A checkpoint's block, and a value.
        named("checkpoint", &[change(18, 64 + 32, 1), change(19, 64 + 16, 1)]),
        named("value", &[change(22, 100, 7), change(28, 0, 1)]),
    ]
}

kvmem_fuzz::run!(target, corpus);
