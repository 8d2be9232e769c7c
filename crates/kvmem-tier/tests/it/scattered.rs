//! Values in several extents: where no free range is long enough, and enough is free.

use std::ops::Range;

use kvmem::tier::TierRead;
use kvmem_testkit::random::Random;
use kvmem_tier::device::FileDevice;
use kvmem_tier::format::Extent;
use kvmem_tier::{
    Damage, DiskTier, DiskTierOptions, Fetched, StoreError, TierError, inspect, verify,
};

use crate::files::temp_path;
use crate::simulated::{Disk, kill};
use crate::store::get;
use crate::suspects::fail_alone;

const BLOCK: usize = 4096;

fn options() -> DiskTierOptions {
    DiskTierOptions { max_entries: Some(1000), ..DiskTierOptions::default() }
}

/// Returns a tier in whose space every other block is free, and the number of free ones.
fn fragmented(disk: &Disk) -> (DiskTier<Disk>, u64) {
    let (tier, _) = DiskTier::on(disk.clone(), &options()).unwrap();
    let blocks = tier.stats().capacity / BLOCK as u64;
    let keys: Vec<[u8; 8]> = (0..blocks).map(u64::to_le_bytes).collect();
    let batch: Vec<(&[u8], &[u8])> = keys.iter().map(|key| (&key[..], &key[..])).collect();
    // Less than the reserve: nothing is evicted ahead of the next store.
    let left = blocks as usize - 1;
    assert!(tier.store(&batch[..left]).iter().all(Result::is_ok));
    let odd: Vec<&[u8]> = keys[..left].iter().skip(1).step_by(2).map(|key| &key[..]).collect();
    assert_eq!(tier.remove(&odd).unwrap(), odd.len());
    tier.sync_all().unwrap();
    (tier, odd.len() as u64 + 1)
}

/// Bytes that name their positions.
fn bytes(len: usize, seed: usize) -> Vec<u8> {
    (0..len).map(|at| (at / 3 + at / BLOCK * 31 + seed) as u8).collect()
}

fn extents(disk: &Disk, len: usize) -> Vec<Extent> {
    let found = inspect(disk).unwrap().contents.unwrap();
    let entry = found.entries.iter().find(|entry| entry.len == len as u64).unwrap();
    entry.extents.to_vec()
}

#[test]
fn free_blocks_between_others_hold_a_value() {
    let disk = Disk::new(1 << 20, 1);
    let (tier, free) = fragmented(&disk);
    let before = tier.stats();
    // One that needs padding, in memory that begins anywhere, and one of whole blocks.
    let (odd, whole) = (bytes(4 * BLOCK - 777, 1), bytes(3 * BLOCK, 2));
    let stored = tier.store(&[(b"odd", &odd), (b"short", b"short"), (b"whole", &whole)]);
    assert!(stored.iter().all(Result::is_ok), "{stored:?}");
    let stats = tier.stats();
    assert_eq!((stats.scattered, stats.evictions), (2, before.evictions));
    assert_eq!(stats.used, before.used + 8 * BLOCK as u64);
    assert_eq!(stats.written_bytes - before.written_bytes, 8 * BLOCK as u64);
    assert!(free > 20);
    let check = |tier: &DiskTier<Disk>| {
        for (key, value) in [(&b"odd"[..], &odd[..]), (b"whole", &whole), (b"short", b"short")] {
            assert_eq!(get(tier, key).as_deref(), Some(value), "{key:?}");
            let mut memory = vec![0; value.len() + 8192];
            for target in [0, 3, 512] {
                let into = &mut memory[target..target + value.len()];
                assert_eq!(tier.fetch(&mut [TierRead { key, into }]), [Fetched::Hit]);
                assert_eq!(into, value);
            }
        }
    };
    check(&tier);
    // In the journal, and then in the checkpoint.
    kill(tier, &disk);
    for _ in 0..2 {
        let (tier, found) = DiskTier::on(disk.clone(), &options()).unwrap();
        assert_eq!((found.dropped, tier.stats().scattered), (0, 2));
        assert_eq!(tier.stats().used, stats.used);
        check(&tier);
    }
    assert_eq!(extents(&disk, odd.len()).len(), 4);
    assert!(verify(&disk, &inspect(&disk).unwrap().contents.unwrap(), |_| {}).is_empty());
    // All of their blocks are free again.
    let (tier, _) = DiskTier::on(disk, &options()).unwrap();
    assert_eq!(tier.remove(&[b"odd", b"whole", b"short"]).unwrap(), 3);
    tier.sync_all().unwrap();
    assert_eq!((tier.stats().used, tier.stats().scattered), (before.used, 0));
    assert_eq!(tier.stats().quarantined, 0);
}

/// Five blocks would need five extents: values are evicted instead.
#[test]
fn more_than_four_extents_are_not_made() {
    let disk = Disk::new(1 << 20, 1);
    let (tier, _) = fragmented(&disk);
    let before = tier.stats();
    let value = bytes(5 * BLOCK, 3);
    tier.store(&[(b"long", &value)]).remove(0).unwrap();
    let stats = tier.stats();
    assert!(stats.evictions > before.evictions, "{stats:?}");
    assert_eq!(get(&tier, b"long").unwrap(), value);
    kill(tier, &disk);
    assert!(extents(&disk, value.len()).len() <= 4);
}

/// Returns the free ranges of a file, the longest first.
fn free_ranges(disk: &Disk) -> Vec<Range<u32>> {
    let found = inspect(disk).unwrap().contents.unwrap();
    let mut used: Vec<Extent> =
        found.entries.iter().flat_map(|entry| entry.extents.to_vec()).collect();
    used.push(Extent { start: found.superblock.layout.data.blocks() as u32, blocks: 0 });
    used.sort_by_key(|extent| extent.start);
    let mut free = Vec::new();
    let mut end = 0;
    for Extent { start, blocks } in used {
        if start > end {
            free.push(end..start);
        }
        end = start + blocks;
    }
    free.sort_by_key(|range| std::cmp::Reverse(range.len()));
    free
}

/// Random values with random holes between them. A value that is longer than the longest hole, and
/// not longer than four of them, is stored, and nothing is evicted for it: more of the file is in
/// use than values of one extent could use.
#[test]
fn a_fragmented_file_holds_more() {
    let (mut scattered, mut more) = (0, 0.0);
    for seed in 0..60 {
        let mut random = Random::new(seed);
        let disk = Disk::new(2 << 20, seed);
        let (tier, _) = DiskTier::on(disk.clone(), &options()).unwrap();
        let blocks = tier.stats().capacity / BLOCK as u64;
        let longest = 1 + random.below(12);
        let mut key = 0_u64;
        while tier.stats().used / (BLOCK as u64) + longest + blocks / 32 < blocks {
            key += 1;
            let value = bytes((1 + random.below(longest)) as usize * BLOCK, key as usize);
            tier.store(&[(&key.to_le_bytes(), &value)]).remove(0).unwrap();
        }
        assert_eq!(tier.stats().evictions, 0, "seed {seed}");
        for key in 1..=key {
            if random.once_in(3) {
                tier.remove(&[&key.to_le_bytes()]).unwrap();
            }
        }
        tier.checkpoint().unwrap();
        let holes = free_ranges(&disk);
        let of_four: usize = holes.iter().take(4).map(|hole| hole.len()).sum();
        let (one, four) = (holes[0].len() as u64, of_four as u64);
        let free: u64 = holes.iter().map(|hole| hole.len() as u64).sum();
        // What is evicted ahead is no part of this.
        if four <= one || free < four + blocks / 32 {
            continue;
        }
        let before = tier.stats();
        let wanted = one + 1 + random.below(four - one);
        let value = bytes(wanted as usize * BLOCK - random.below(4096) as usize, seed as usize);
        tier.store(&[(b"scattered", &value)]).remove(0).unwrap();
        let stats = tier.stats();
        assert_eq!((stats.evictions, stats.scattered), (0, 1), "seed {seed}");
        assert_eq!(stats.used, before.used + wanted * BLOCK as u64, "seed {seed}");
        assert_eq!(get(&tier, b"scattered").unwrap(), value, "seed {seed}");
        scattered += 1;
        more += (stats.used - before.used) as f64 / stats.capacity as f64;
    }
    assert!(scattered >= 30, "only {scattered} files were fragmented");
    assert!(more / f64::from(scattered) > 0.02, "{more} of {scattered}");
}

/// Of a value that the device fails to read, only that part is lost; of one whose bytes have
/// changed all, since its checksum does not say where.
#[test]
fn extents_are_quarantined_one_by_one() {
    for (flip, lost) in [(false, 1), (true, 3)] {
        let disk = Disk::new(1 << 20, 1);
        let (tier, _) = fragmented(&disk);
        let before = tier.stats().used;
        let value = bytes(3 * BLOCK, 5);
        tier.store(&[(b"key", &value)]).remove(0).unwrap();
        tier.checkpoint().unwrap();
        kill(tier, &disk);
        let found = inspect(&disk).unwrap().contents.unwrap();
        let at = found.superblock.layout.data.start
            + u64::from(extents(&disk, value.len())[1].start) * BLOCK as u64;
        let disk = if flip {
            let mut bytes = disk.bytes();
            bytes[at as usize + 9] ^= 1;
            Disk::holding(bytes)
        } else {
            disk.fail_at(at..at + 1, libc::EIO);
            disk
        };
        let damaged = verify(&disk, &found, |_| {});
        assert_eq!(damaged.len(), 1);
        assert_eq!(matches!(damaged[0].damage, Damage::Checksum), flip);
        let (tier, _) = DiskTier::on(disk.clone(), &options()).unwrap();
        if flip {
            let mut into = vec![0; value.len()];
            let fetched = tier.fetch(&mut [TierRead { key: b"key", into: &mut into }]);
            assert_eq!(fetched, [Fetched::Damaged]);
        } else {
            fail_alone(&tier, &disk, b"key", &0_u64.to_le_bytes());
        }
        tier.sync_all().unwrap();
        let stats = tier.stats();
        assert_eq!((stats.quarantined, stats.used), (lost * BLOCK as u64, before));
        kill(tier, &disk);
        disk.fail_at(0..0, 0);
        let (tier, _) = DiskTier::on(disk, &options()).unwrap();
        assert_eq!(tier.stats().quarantined, lost * BLOCK as u64);
    }
}

/// The same when everything is verified while the file is opened.
#[test]
fn verifying_everything_quarantines_extents_one_by_one() {
    let disk = Disk::new(1 << 20, 1);
    let (tier, _) = fragmented(&disk);
    tier.store(&[(b"key", &bytes(3 * BLOCK, 5))]).remove(0).unwrap();
    kill(tier, &disk);
    let found = inspect(&disk).unwrap().contents.unwrap();
    let last = extents(&disk, 3 * BLOCK)[2];
    let at = found.superblock.layout.data.start + u64::from(last.start) * BLOCK as u64;
    disk.fail_at(at..at + 1, libc::EIO);
    let options = DiskTierOptions { verify: kvmem_tier::Verify::All, ..options() };
    let (tier, found) = DiskTier::on(disk, &options).unwrap();
    assert_eq!((found.damaged, tier.stats().quarantined), (1, BLOCK as u64));
}

/// A value of which one extent cannot be written is not stored, and uses nothing.
#[test]
fn a_value_is_stored_whole_or_not_at_all() {
    let disk = Disk::new(1 << 20, 1);
    let (tier, _) = fragmented(&disk);
    let before = tier.stats().used;
    let data = inspect(&disk).unwrap().contents.unwrap().superblock.layout.data;
    // Each free block fails once.
    for block in (1..21).step_by(2) {
        let at = data.start + block * BLOCK as u64;
        disk.fail_at(at..at + 1, libc::ENOSPC);
        let value = bytes(4 * BLOCK, block as usize);
        let stored = tier.store(&[(b"a", &b"alone"[..]), (b"key", &value)]);
        disk.fail_at(0..0, 0);
        let expected = stored[1].is_ok().then_some(value);
        if let Err(error) = &stored[1] {
            let StoreError::Tier(TierError::Device { call: "write", at: named, .. }) = error else {
                panic!("{error}");
            };
            assert_eq!(*named, at);
        }
        assert_eq!(get(&tier, b"key"), expected);
        tier.remove(&[b"a", b"key"]).unwrap();
        tier.sync_all().unwrap();
        assert_eq!((tier.stats().used, tier.stats().scattered), (before, 0));
    }
}

/// A checkpoint has room for fewer values in several extents. When the index is full, values are
/// evicted instead, and no checkpoint is too long, not even when all values are quarantined.
#[test]
fn a_full_index_has_no_room_for_several_extents() {
    let options = DiskTierOptions {
        max_entries: Some(63),
        journal_bytes: Some(4 * BLOCK as u64),
        ..DiskTierOptions::default()
    };
    for seed in 0..20 {
        let mut random = Random::new(seed);
        let disk = Disk::new(1 << 20, seed);
        let (tier, _) = DiskTier::on(disk.clone(), &options).unwrap();
        for step in 0..300 {
            let key = random.below(90).to_le_bytes();
            if random.once_in(3) {
                tier.remove(&[&key]).unwrap();
            }
            let value = bytes(random.below(40_000) as usize, step);
            tier.store(&[(&key, &value)]).remove(0).unwrap();
        }
        tier.checkpoint().unwrap();
        let stats = tier.stats();
        assert!(stats.entries + 3 * stats.scattered <= 63, "seed {seed}: {stats:?}");
        // Every value is read wrong.
        let data = inspect(&disk).unwrap().contents.unwrap().superblock.layout.data;
        disk.falsify(data.start..data.start + data.len, |bytes| {
            bytes.iter_mut().for_each(|byte| *byte ^= 1);
        });
        for key in 0..90_u64 {
            assert_eq!(get(&tier, &key.to_le_bytes()), None);
        }
        tier.checkpoint().unwrap();
        assert_eq!(tier.stats().entries, 0, "seed {seed}");
    }
}

/// On a real file, by both engines and with more transfers than fit at once.
#[test]
fn real_files_have_several_extents_too() {
    for rings in [true, false] {
        let file = temp_path("scattered");
        let device = FileDevice::open(&file, 4 << 20, 4).unwrap();
        let device = if rings { device } else { device.without_rings() };
        let (tier, _) = DiskTier::on(device, &options()).unwrap();
        let free = tier.stats().capacity / BLOCK as u64;
        let keys: Vec<[u8; 8]> = (0..free - 20).map(u64::to_le_bytes).collect();
        let batch: Vec<(&[u8], &[u8])> = keys.iter().map(|key| (&key[..], &key[..])).collect();
        assert!(tier.store(&batch).iter().all(Result::is_ok));
        let odd: Vec<&[u8]> = keys.iter().skip(1).step_by(2).map(|key| &key[..]).collect();
        tier.remove(&odd).unwrap();
        // What is free at the end.
        tier.store(&[(b"rest", &bytes(20 * BLOCK, 0))]).remove(0).unwrap();
        tier.sync_all().unwrap();
        let values: Vec<(Vec<u8>, Vec<u8>)> =
            (0..40).map(|i| (vec![i], bytes(3 * BLOCK + 100 * usize::from(i), i.into()))).collect();
        let batch: Vec<(&[u8], &[u8])> =
            values.iter().map(|(key, value)| (&key[..], &value[..])).collect();
        assert!(tier.store(&batch).iter().all(Result::is_ok));
        let stats = tier.stats();
        assert!(stats.scattered >= 39, "{stats:?}");
        let mut memory: Vec<Vec<u8>> =
            values.iter().map(|(_, value)| vec![0; value.len()]).collect();
        let mut requests: Vec<TierRead<'_>> =
            values.iter().zip(&mut memory).map(|((key, _), into)| TierRead { key, into }).collect();
        assert!(tier.fetch(&mut requests).iter().all(|&found| found == Fetched::Hit));
        assert!(values.iter().zip(&memory).all(|((_, value), found)| value == found));
    }
}
