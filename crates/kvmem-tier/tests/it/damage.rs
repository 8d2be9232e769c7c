//! Damaged files: every byte flipped, every length cut off.

use kvmem::tier::{Priority, Tier, TierHints, TierRead, TierValue};
use kvmem_tier::device::MemoryDevice;
use kvmem_tier::format::BLOCK;
use kvmem_tier::{DiskTier, DiskTierOptions, Fetched, TierError, inspect};

use crate::simulated::{Disk, kill};
use crate::store::get;

/// The values that each key has had.
pub(crate) type Histories = Vec<(&'static [u8], Vec<Vec<u8>>)>;

/// The values that [`with_holes`] leaves.
pub(crate) const ODD: [&[u8]; 6] = [&[1], &[3], &[5], &[7], &[9], &[11]];

/// Returns a small tier that had a value in each of its 12 blocks, and its disk. Every other value
/// is removed, so a long one gets several ranges.
pub(crate) fn with_holes() -> (Disk, DiskTier<Disk>) {
    with_holes_and(&DiskTierOptions::default())
}

/// Returns the same, opened with these options.
pub(crate) fn with_holes_and(options: &DiskTierOptions) -> (Disk, DiskTier<Disk>) {
    let options =
        DiskTierOptions { max_entries: Some(1), journal_bytes: Some(8 * 4096), ..options.clone() };
    let disk = Disk::new(128 << 10, 1);
    let (tier, _) = DiskTier::on(disk.clone(), &options).unwrap();
    let fillers: Vec<[u8; 1]> = (0..12).map(|i| [i]).collect();
    let batch: Vec<(&[u8], &[u8])> = fillers.iter().map(|key| (&key[..], &key[..])).collect();
    assert!(tier.store(&batch).iter().all(Result::is_ok));
    let even: Vec<&[u8]> = fillers.iter().step_by(2).map(|key| &key[..]).collect();
    assert_eq!(tier.remove(&even).unwrap(), 6);
    tier.sync_all().unwrap();
    (disk, tier)
}

/// Returns the bytes of a small tier with four values, one of them changed after the checkpoint.
/// Two lie in several extents: one in the checkpoint, one in the journal.
pub(crate) fn small() -> (Vec<u8>, Histories) {
    let (disk, tier) = with_holes();
    let put = |key: &[u8], value: &[u8]| tier.store(&[(key, value)]).remove(0).unwrap();
    let bytes = |len: u32, seed: u32| (0..len).map(|i| (i * 7 / 3 + seed) as u8).collect();
    let (old, new, parts, last): (Vec<u8>, _, Vec<u8>, Vec<u8>) =
        (bytes(5000, 1), vec![2; 100], bytes(10_000, 50), bytes(5000, 99));
    put(b"parts", &parts);
    put(b"changed", &old);
    put(b"kept", &[3; 4096]);
    tier.checkpoint().unwrap();
    assert_eq!((tier.stats().scattered, tier.stats().evictions), (2, 0));
    assert_eq!(tier.remove(&ODD).unwrap(), 6);
    tier.sync_all().unwrap();
    put(b"changed", &new);
    let hour = std::time::Duration::from_secs(3600);
    let of_last = TierValue::new(b"last", &last).with_hints(TierHints {
        ttl: Some(hour),
        priority: Priority::MAX,
        ..TierHints::default()
    });
    tier.store_with(&[of_last]).remove(0).unwrap();
    assert_eq!((tier.stats().scattered, tier.stats().evictions), (2, 0));
    kill(tier, &disk);
    let values: Histories = vec![
        (b"changed", vec![old, new]),
        (b"kept", vec![vec![3; 4096]]),
        (b"last", vec![last]),
        (b"parts", vec![parts]),
    ];
    (disk.bytes(), values)
}

/// Opens a damaged file; returns how many values are found. None of them is wrong.
fn open(bytes: Vec<u8>, values: &Histories) -> Result<usize, TierError> {
    let disk = Disk::holding(bytes);
    let (tier, _) = DiskTier::on(disk, &DiskTierOptions::default())?;
    let mut found = 0;
    for (key, values) in values {
        let Some(len) = tier.len_of(key) else { continue };
        let mut bytes = vec![0; len as usize];
        if tier.fetch(&mut [TierRead { key, into: &mut bytes }])[0] == Fetched::Hit {
            assert!(values.contains(&bytes), "wrong bytes under {key:?}");
            found += 1;
        }
    }
    Ok(found)
}

#[test]
fn a_flipped_byte_is_a_miss_or_an_error_and_never_wrong_bytes() {
    let (bytes, values) = small();
    assert_eq!(open(bytes.clone(), &values).unwrap(), 4);
    let (mut failed, mut missed, mut whole) = (0, 0, 0);
    // All that has a meaning of its own stands in the first bytes of a block. Behind them a block
    // has values, or zeros under its checksum, of which each byte is like the next.
    let all = std::env::var_os("KVMEM_TEST_ROUNDS").is_some();
    let is_flipped = |at: &usize| all || at % BLOCK < 512 || at.is_multiple_of(13);
    let of_a_block = (0..BLOCK).filter(is_flipped).count() - 1;
    for at in (0..bytes.len()).filter(is_flipped) {
        let mut bytes = bytes.clone();
        bytes[at] ^= 1 << (at % 8);
        match open(bytes, &values) {
            Ok(4) => whole += 1,
            Ok(_) => missed += 1,
            Err(error) => {
                assert!(!error.to_string().is_empty());
                failed += 1;
            }
        }
    }
    // One checkpoint block; blocks of values and of the journal; unused blocks and one superblock.
    assert!(failed >= of_a_block && missed > of_a_block, "{failed} {missed} {whole}");
    assert!(whole > 2 * of_a_block, "{failed} {missed} {whole}");
}

/// Every length of the file.
#[test]
fn a_file_that_was_cut_off_is_an_error() {
    let (bytes, _) = small();
    for len in 0..bytes.len() {
        let device = MemoryDevice::holding(bytes[..len].to_vec());
        let error = DiskTier::on(device, &DiskTierOptions::default()).err().unwrap();
        match error {
            TierError::CutOff { expected, len: found } => {
                assert_eq!((expected, found), (bytes.len() as u64, len as u64));
            }
            TierError::Superblocks { .. } => assert!(len < 8192, "{len}: {error}"),
            other => panic!("{len}: {other}"),
        }
    }
}

#[test]
fn what_is_no_tier_is_not_overwritten() {
    let foreign = vec![7; 1 << 20];
    let disk = Disk::holding(foreign.clone());
    let error = DiskTier::on(disk.clone(), &DiskTierOptions::default()).err().unwrap();
    assert!(error.to_string().contains("it is no disk tier"), "{error}");
    assert_eq!(disk.bytes(), foreign);
    let options = DiskTierOptions { format: true, ..DiskTierOptions::default() };
    let (tier, found) = DiskTier::on(disk, &options).unwrap();
    assert!(found.created);
    tier.store(&[(b"key", b"value")]).remove(0).unwrap();
    assert_eq!(get(&tier, b"key").unwrap(), b"value");
}

/// A process that is killed at any moment of making a tier leaves a device of which the next one
/// makes it, also with other options. One that is killed later leaves a tier.
#[test]
fn a_tier_that_was_half_made_is_made() {
    let options = |max_entries| DiskTierOptions {
        max_entries: Some(max_entries),
        journal_bytes: Some(4 * 4096),
        ..DiskTierOptions::default()
    };
    let (mut made, mut found) = (0, 0);
    for (operations, cut) in
        (1..30).flat_map(|operations| [(operations, false), (operations, true)])
    {
        let disk = Disk::new(1 << 20, operations);
        disk.end_after(operations);
        let first = DiskTier::on(disk.clone(), &options(1000));
        assert!(first.is_ok() || operations < 10, "{operations}");
        drop(first);
        disk.restart();
        if cut {
            disk.cut_power();
        }
        let disk = Disk::holding(disk.bytes());
        for max_entries in [1000, 5000] {
            let (tier, report) = DiskTier::on(disk.clone(), &options(max_entries)).unwrap();
            made += u32::from(report.created);
            found += u32::from(!report.created);
            tier.store(&[(b"key", b"other")]).remove(0).unwrap();
            assert_eq!(get(&tier, b"key").unwrap(), b"other");
        }
    }
    assert!(made >= 4 && found >= 60, "{made} {found}");
}

/// A device that was lengthened and never written is a new one; a single byte anywhere makes it
/// something else.
#[test]
fn zeros_are_a_new_device_and_one_byte_is_not() {
    let zeros = vec![0; 1 << 20];
    let (_, report) =
        DiskTier::on(Disk::holding(zeros.clone()), &DiskTierOptions::default()).unwrap();
    assert!(report.created);
    for at in [0, 5000, 8192, 40_000, 500_000, (1 << 20) - 1] {
        let mut foreign = zeros.clone();
        foreign[at] = 1;
        let disk = Disk::holding(foreign.clone());
        let error = DiskTier::on(disk.clone(), &DiskTierOptions::default()).err().unwrap();
        assert!(matches!(error, TierError::Superblocks { .. }), "{at}: {error}");
        assert_eq!(disk.bytes(), foreign);
    }
}

/// Sets the version of a superblock, and the checksum for it.
fn set_version(block: &mut [u8], version: u8) {
    block[8] = version;
    block[12..16].fill(0);
    let sum = crc32c::crc32c(block);
    block[12..16].copy_from_slice(&sum.to_le_bytes());
}

/// One copy of a later version shows that a newer program has written: the other copy may lead to
/// an index from before.
#[test]
fn a_later_version_is_an_error_in_one_copy_as_in_both() {
    let (bytes, values) = small();
    for copies in [&[0][..], &[4096], &[0, 4096]] {
        let mut bytes = bytes.clone();
        copies.iter().for_each(|&copy| set_version(&mut bytes[copy..copy + 4096], 4));
        let error = open(bytes, &values).unwrap_err();
        assert!(matches!(error, TierError::Superblocks { .. }), "{error}");
        let expected = "version 4, and this program reads versions 1 to 3";
        assert!(error.to_string().contains(expected), "{error}");
    }
}

/// A value whose bytes have changed is removed, and its blocks are not used again, after a restart
/// either.
#[test]
fn a_damaged_value_is_quarantined() {
    let disk = Disk::new(1 << 20, 1);
    let (tier, _) = DiskTier::on(disk.clone(), &DiskTierOptions::default()).unwrap();
    let value = [9; 3 * 4096];
    tier.store(&[(b"key", &value)]).remove(0).unwrap();
    tier.checkpoint().unwrap();
    drop(tier);
    let mut bytes = disk.bytes();
    let at = bytes.windows(4096).position(|block| block == [9; 4096]).unwrap();
    bytes[at + 5000] ^= 1;
    let disk = Disk::holding(bytes);
    let (tier, _) = DiskTier::on(disk.clone(), &DiskTierOptions::default()).unwrap();
    let mut into = [0; 3 * 4096];
    let mut fetch = || tier.fetch(&mut [TierRead { key: b"key", into: &mut into }])[0];
    assert_eq!((fetch(), fetch()), (Fetched::Damaged, Fetched::Absent));
    let stats = tier.stats();
    assert_eq!((stats.checksum_misses, stats.quarantined, stats.used), (1, 3 * 4096, 0));
    tier.sync_all().unwrap();
    kill(tier, &disk);
    let (tier, _) = DiskTier::on(disk.clone(), &DiskTierOptions::default()).unwrap();
    assert_eq!((tier.stats().quarantined, tier.stats().entries), (3 * 4096, 0));
    drop(tier);
    let (tier, _) = DiskTier::on(disk, &DiskTierOptions::default()).unwrap();
    assert_eq!(tier.stats().quarantined, 3 * 4096);
}

/// Another process may write to the memory into which a value is read. The disk is whole then, and
/// a second read, into memory of the tier, finds the value.
#[test]
fn memory_that_changes_under_a_read_is_no_damage() {
    for extents in [1, 2] {
        let disk = Disk::new(256 << 10, 1);
        let options = DiskTierOptions { max_entries: Some(63), ..DiskTierOptions::default() };
        let (tier, _) = DiskTier::on(disk.clone(), &options).unwrap();
        let blocks = (tier.stats().capacity / 4096) as u32;
        if extents > 1 {
            let fillers: Vec<[u8; 4]> = (0..blocks).map(u32::to_le_bytes).collect();
            let batch: Vec<(&[u8], &[u8])> = fillers.iter().map(|it| (&it[..], &it[..])).collect();
            assert!(tier.store(&batch).iter().all(Result::is_ok));
            let (first, third): (&[u8], &[u8]) = (&fillers[5], &fillers[9]);
            assert_eq!(tier.remove(&[first, third]).unwrap(), 2);
            tier.sync_all().unwrap();
        }
        let value: Vec<u8> = (0..8000_u32).map(|at| (at / 7) as u8).collect();
        tier.store(&[(b"key", &value)]).remove(0).unwrap();
        assert_eq!(tier.stats().scattered, extents - 1);
        let mut into = vec![7; 8000];
        disk.flip_reads(extents);
        let found = Tier::fetch(&tier, &mut [TierRead { key: b"key", into: &mut into }]);
        assert_eq!(found[0].expect("a hit").checksum, Some(crc32c::crc32c(&value)));
        assert!(into == value);
        let stats = tier.stats();
        assert_eq!((stats.hits, stats.checksum_misses, stats.quarantined), (1, 0, 0));
        // If the second read is wrong as well, it is the disk.
        disk.flip_reads(2 * extents);
        let found = Tier::fetch(&tier, &mut [TierRead { key: b"key", into: &mut into }]);
        assert!(found[0].is_none());
        assert!(into.iter().all(|&byte| byte == 0), "damaged bytes are left");
        let stats = tier.stats();
        assert_eq!((stats.checksum_misses, stats.quarantined), (1, 2 * 4096));
    }
}

/// Memory of a fetch that failed has no bytes that were not verified.
#[test]
fn a_failed_fetch_leaves_zeros() {
    let zeros_after = |change: &dyn Fn(&Disk, u64), key: &[u8], expected: Fetched| {
        let disk = Disk::new(1 << 20, 1);
        let (tier, _) = DiskTier::on(disk.clone(), &DiskTierOptions::default()).unwrap();
        tier.store(&[(b"key", &[9; 3 * 4096 + 5])]).remove(0).unwrap();
        tier.checkpoint().unwrap();
        tier.store(&[(b"unsynced", &[8; 4096 + 5])]).remove(0).unwrap();
        kill(tier, &disk);
        let data = inspect(&disk).unwrap().contents.unwrap().superblock.layout.data.start;
        change(&disk, data);
        let (tier, _) = DiskTier::on(disk, &DiskTierOptions::default()).unwrap();
        let mut into = vec![7; tier.len_of(key).unwrap() as usize];
        assert_eq!(tier.fetch(&mut [TierRead { key, into: &mut into }]), [expected]);
        assert!(into.iter().all(|&byte| byte == 0), "{expected:?}");
    };
    let flip = |disk: &Disk, at: u64| disk.falsify(at..at + 1, |byte| byte[0] ^= 1);
    zeros_after(&|disk, data| flip(disk, data + 2 * 4096), b"key", Fetched::Damaged);
    zeros_after(&|disk, data| flip(disk, data + 4 * 4096), b"unsynced", Fetched::Lost);
    zeros_after(&|disk, data| disk.fail_at(data..data + 1, 5), b"key", Fetched::Failed);
}

/// Quarantined parts that hold what is written to them are used again, also after a restart; those
/// that fail or falsify it are not. Values stay as they are.
#[test]
fn parts_that_are_sound_are_given_back() {
    let disk = Disk::new(1 << 20, 1);
    let (tier, _) = DiskTier::on(disk.clone(), &DiskTierOptions::default()).unwrap();
    for key in 0..4_u8 {
        tier.store(&[(&[key], &[key + 1; 3 * 4096])]).remove(0).unwrap();
    }
    tier.checkpoint().unwrap();
    let data = inspect(&disk).unwrap().contents.unwrap().superblock.layout.data.start;
    let mut into = [0; 3 * 4096];
    for key in 0..3_u8 {
        let bytes = disk.bytes();
        let is_value = |block: &[u8]| block == [key + 1; 4096];
        let at = bytes.chunks(4096).position(is_value).unwrap() as u64 * 4096;
        disk.falsify(at..at + 1, |byte| byte[0] ^= 1);
        let found = tier.fetch(&mut [TierRead { key: &[key], into: &mut into }]);
        assert_eq!(found, [Fetched::Damaged]);
    }
    assert_eq!(tier.stats().quarantined, 9 * 4096);
    // One of them cannot be written.
    tier.sync_all().unwrap();
    let bad = inspect(&disk).unwrap().contents.unwrap().quarantined[1];
    let at = data + u64::from(bad.start) * 4096;
    disk.fail_at(at + 4096..at + 4097, 5);
    let report = tier.repair().unwrap();
    assert_eq!((report.returned.len(), &report.left[..]), (2, &[bad][..]));
    assert_eq!((report.returned_bytes(), report.left_bytes()), (6 * 4096, 3 * 4096));
    let stats = tier.stats();
    assert_eq!((stats.quarantined, stats.used, stats.entries), (3 * 4096, 3 * 4096, 1));
    kill(tier, &disk);
    let (tier, _) = DiskTier::on(disk.clone(), &DiskTierOptions::default()).unwrap();
    assert_eq!(tier.stats().quarantined, 3 * 4096);
    assert_eq!(get(&tier, &[3]).unwrap(), [4; 3 * 4096]);
    // A drive that falsifies what it reads.
    disk.fail_at(0..0, 5);
    disk.flip_reads(1);
    assert_eq!(tier.repair().unwrap().left, [bad]);
    assert_eq!(tier.repair().unwrap().returned, [bad]);
    assert_eq!(tier.stats().quarantined, 0);
    assert_eq!(tier.repair().unwrap(), tier.repair().unwrap());
    // A value that needs nearly all of the space.
    let all = tier.stats().capacity as usize - 3 * 4096;
    tier.store(&[(b"long", &vec![7; all])]).remove(0).unwrap();
    assert_eq!(get(&tier, b"long").unwrap(), vec![7; all]);
}
