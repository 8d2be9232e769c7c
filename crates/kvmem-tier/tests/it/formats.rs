//! Files that this version and those before it have written, and what later ones may write.
//!
//! `tests/data/README.md` says by which programs the fixtures were written.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use kvmem::tier::{DataType, Priority, TierHints, TierRead, TierValue};
use kvmem_testkit::fixture::{fixture, from_text};
use kvmem_tier::device::MemoryDevice;
use kvmem_tier::format::{
    BLOCK, Extent, Hints, Owner, Superblock, SuperblockError, UNENCODED_VERSION, VERSION,
    read_checkpoint, read_journal_block, write_checkpoint, write_journal_block,
};
use kvmem_tier::{
    Codec, DiskTier, DiskTierOptions, Fetched, TierError, TierSet, TierSetError, inspect,
};

use crate::damage::{ODD, with_holes_and};
use crate::encoded::keyring;
use crate::simulated::{Disk, kill};
use crate::store::get;

const YEARS: Duration = Duration::from_secs(70 * 365 * 86_400);

/// Bytes of the superblocks.
const HEADER: usize = 2 * BLOCK;
/// Bytes of a superblock that have a meaning of their own.
const FIELDS: usize = 416;

/// Returns whether a test changes each bit, which takes minutes.
fn is_long() -> bool {
    std::env::var_os("KVMEM_TEST_ROUNDS").is_some()
}

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data")
}

/// Returns a value that is mostly zeros, which a fixture does not have.
fn value(len: usize, seed: u8) -> Vec<u8> {
    let mut bytes = vec![0; len];
    for at in (0..len).step_by(997) {
        bytes[at] = seed.wrapping_add((at / 997) as u8);
    }
    bytes
}

/// Returns numbers that a codec makes shorter.
fn numbers() -> Vec<u8> {
    (0..3000_u16).flat_map(|at| (0x3F80 | (at.wrapping_mul(37) % 0x180)).to_le_bytes()).collect()
}

/// Returns the options with which a file of a version is opened.
fn options(version: u32) -> DiskTierOptions {
    let keys = (version > UNENCODED_VERSION).then(|| keyring(&[7]));
    DiskTierOptions { keys, take_over: true, ..DiskTierOptions::default() }
}

/// Returns what a file of the last version has after a process was killed: encrypted values, of
/// which one is compressed, too.
fn written() -> Vec<u8> {
    let (disk, tier) = with_holes_and(&options(VERSION));
    kill(tier, &disk);
    let codec = DiskTierOptions { codec: Codec::Auto, ..options(VERSION) };
    let (tier, _) = DiskTier::on(disk.clone(), &codec).unwrap();
    let packed = numbers();
    let hints = TierHints { data_type: DataType::Bfloat16, ..TierHints::default() };
    tier.store_with(&[TierValue::new(b"packed", &packed).with_hints(hints)]).remove(0).unwrap();
    assert!(tier.stats().encoded_after_bytes < 4096);
    tier.sync_all().unwrap();
    kill(tier, &disk);
    let (tier, _) = DiskTier::on(disk.clone(), &options(VERSION)).unwrap();
    let put = |key: &[u8], value: &[u8]| tier.store(&[(key, value)]).remove(0).unwrap();
    put(b"parts", &value(10_000, 0x50));
    tier.remove(&ODD).unwrap();
    tier.sync_all().unwrap();
    put(b"first", &value(5000, 0x10));
    put(b"replaced", &value(100, 0x20));
    put(b"removed", &value(100, 0x30));
    tier.checkpoint().unwrap();
    put(b"replaced", &value(60, 0x21));
    tier.remove(&[b"removed"]).unwrap();
    let hints = TierHints { ttl: Some(YEARS), priority: Priority::MAX, ..TierHints::default() };
    let value = value(300, 0x40);
    let hinted = TierValue::new(b"hinted", &value).with_hints(hints);
    tier.store_with(&[hinted]).remove(0).unwrap();
    put(b"damaged", b"damaged later");
    let contents = inspect(&disk).unwrap().contents.unwrap();
    let last = contents.entries.iter().max_by_key(|entry| entry.number).unwrap();
    let at = contents.superblock.layout.data.start + u64::from(last.start()) * BLOCK as u64 + 75;
    disk.falsify(at..at + 1, |bytes| bytes[0] ^= 1);
    let mut into = [0; 13];
    let fetched = tier.fetch(&mut [TierRead { key: b"damaged", into: &mut into }]);
    assert_eq!(fetched, [Fetched::Damaged]);
    tier.sync_all().unwrap();
    kill(tier, &disk);
    let mut bytes = disk.bytes();
    change_superblocks(&mut bytes, |superblock| {
        // Nothing of the machine on which the fixture is written.
        let mut host = [0; 64];
        host[..7].copy_from_slice(b"fixture");
        let (token, machine, boot) = ([7; 16], [8; 16], [9; 16]);
        superblock.since = 1_800_000_000;
        superblock.owner =
            Some(Owner { token, machine, boot, since: superblock.since, process: 77, host });
    });
    bytes
}

fn change_superblocks(bytes: &mut [u8], change: impl Fn(&mut Superblock)) {
    for copy in bytes[..HEADER].as_chunks_mut::<BLOCK>().0 {
        let mut superblock = Superblock::from_bytes(copy).unwrap();
        change(&mut superblock);
        *copy = superblock.to_bytes();
    }
}

/// Sets the checksum of a superblock.
fn reseal(copy: &mut [u8]) {
    copy[12..16].fill(0);
    let sum = crc32c::crc32c(copy);
    copy[12..16].copy_from_slice(&sum.to_le_bytes());
}

/// Returns the fixture of this version.
fn current() -> Vec<u8> {
    fixture(&folder().join(format!("disk-tier-v{VERSION}.txt")), written)
}

/// Returns all fixtures, with their names and the versions that these have.
fn all() -> Vec<(String, u32, Vec<u8>)> {
    current();
    let names = fs::read_dir(folder()).unwrap().map(|file| file.unwrap().path());
    let mut all: Vec<(String, u32, Vec<u8>)> = names
        .filter_map(|path| {
            let name = path.file_stem()?.to_str()?.to_owned();
            let version = name.strip_prefix("disk-tier-v")?.split('-').next()?.parse().ok()?;
            let bytes = from_text(&fs::read_to_string(&path).unwrap());
            Some((name, version, bytes.expect("it is a fixture")))
        })
        .collect();
    all.sort();
    let mut versions: Vec<u32> = all.iter().map(|(_, version, _)| *version).collect();
    versions.dedup();
    assert_eq!(versions, (1..=VERSION).collect::<Vec<u32>>(), "each version has a fixture");
    all
}

/// Returns the values of a fixture.
fn values(version: u32) -> Vec<(&'static [u8], Vec<u8>)> {
    let mut values: Vec<(&[u8], Vec<u8>)> = vec![
        (b"first", value(5000, 0x10)),
        (b"replaced", value(60, 0x21)),
        (b"hinted", value(300, 0x40)),
    ];
    if version > 1 {
        values.push((b"parts", value(10_000, 0x50)));
    }
    if version > UNENCODED_VERSION {
        values.push((b"packed", numbers()));
    }
    values
}

/// Opens a changed fixture; returns how many values are found. None of them is wrong: each one was
/// once stored under its key.
fn open(bytes: Vec<u8>, version: u32) -> Result<usize, TierError> {
    let (tier, _) = DiskTier::on(MemoryDevice::holding(bytes), &options(version))?;
    let mut found = 0;
    for (key, expected) in values(version) {
        let Some(len) = tier.len_of(key) else { continue };
        let mut into = vec![0; len as usize];
        if tier.fetch(&mut [TierRead { key, into: &mut into }])[0] == Fetched::Hit {
            let is_older = key == b"replaced" && into == value(100, 0x20);
            assert!(into == expected || is_older, "wrong bytes under {key:?}");
            found += usize::from(!is_older);
        }
    }
    Ok(found)
}

#[test]
fn a_file_of_each_version_has_what_was_written() {
    for (name, version, bytes) in all() {
        let inspection = inspect(&MemoryDevice::holding(bytes.clone())).unwrap();
        let contents = inspection.contents.unwrap();
        assert_eq!(contents.superblock.version, version, "{name}");
        let values = values(version);
        assert_eq!(contents.entries.len(), values.len(), "{name}");
        assert_eq!((contents.dropped, contents.journal_damaged), (0, 0), "{name}");
        let mut hints: Vec<Hints> = contents.entries.iter().map(|entry| entry.hints).collect();
        hints.retain(|hints| *hints != Hints::default());
        let [Hints { expires: 3_900_000_000.., priority: -3 | 3 }] = hints[..] else {
            panic!("{name}: {hints:?}");
        };
        assert_eq!(contents.scattered(), usize::from(version > 1), "{name}");
        let disk = Disk::holding(bytes);
        // The second opening finds what the first one has written.
        for _ in 0..2 {
            let (tier, report) = DiskTier::on(disk.clone(), &options(version)).unwrap();
            assert_eq!((report.entries, report.dropped), (values.len() as u64, 0), "{name}");
            for (key, expected) in &values {
                assert_eq!(get(&tier, key).as_ref(), Some(expected), "{name}: {key:?}");
            }
            for key in [&b"removed"[..], b"damaged", &[0], &[11]] {
                assert_eq!(get(&tier, key), None, "{name}: {key:?}");
            }
            drop(tier);
            let now = inspect(&disk).unwrap().contents.unwrap().superblock;
            let expected = version.max(UNENCODED_VERSION);
            assert_eq!(now.version, expected, "{name}: only a codec or keys make it a later one");
        }
    }
}

/// A change of what is written, under the same number, would reach users whose program reads
/// something else under it.
#[test]
fn this_version_is_written_byte_for_byte() {
    for (name, _, bytes) in all() {
        if name == format!("disk-tier-v{UNENCODED_VERSION}")
            || name == format!("disk-tier-v{VERSION}")
        {
            is_written_byte_for_byte(&bytes);
        }
    }
}

fn is_written_byte_for_byte(bytes: &[u8]) {
    let copies = bytes[..HEADER].as_chunks::<BLOCK>().0;
    let superblock = Superblock::from_bytes(&copies[0]).unwrap();
    for copy in copies {
        assert!(superblock.to_bytes() == *copy, "raise the version of the format");
    }
    let Superblock { file, epoch, layout, checkpoint, checkpoint_blocks, .. } = superblock;
    let start = layout.checkpoints[checkpoint as usize].start as usize;
    let expected = &bytes[start..][..checkpoint_blocks as usize * BLOCK];
    let entries = read_checkpoint(file, epoch, expected).unwrap();
    assert!(entries.len() >= 5);
    let written = write_checkpoint(file, epoch, &entries);
    assert!(written == expected, "raise the version of the format");
    let journal = layout.journals[superblock.journal as usize];
    let blocks = bytes[journal.start as usize..][..journal.len as usize].chunks_exact(BLOCK);
    let (mut changes, mut quarantined) = (0, None);
    for (index, block) in blocks.enumerate() {
        let read = read_journal_block(block);
        let Some(read) = read.filter(|it| (it.epoch, it.index) == (epoch, index as u32)) else {
            break;
        };
        let mut written = [0xFF; BLOCK];
        write_journal_block(&read, &mut written);
        assert!(written == block, "raise the version of the format");
        changes += read.changes.len();
        quarantined = read.changes.into_iter().fold(quarantined, |found, change| match change {
            kvmem_tier::format::Change::Quarantined(extent, _) => Some(extent),
            _ => found,
        });
    }
    assert!(changes >= 4, "{changes}");
    assert!(matches!(quarantined, Some(Extent { blocks: 1, .. })), "{quarantined:?}");
}

#[test]
fn a_file_of_a_later_or_an_unknown_version_says_so_and_is_not_changed() {
    for (found, remedy) in [
        (VERSION + 1, "use a newer kvmem"),
        (u32::MAX, "use a newer kvmem"),
        (0, "use the kvmem that made it"),
    ] {
        let mut bytes = current();
        for copy in bytes[..HEADER].chunks_exact_mut(BLOCK) {
            copy[8..12].copy_from_slice(&found.to_le_bytes());
            reseal(copy);
        }
        let disk = Disk::holding(bytes.clone());
        let error = DiskTier::on(disk.clone(), &DiskTierOptions::default()).err().unwrap();
        let version = SuperblockError::Version { found };
        assert!(
            matches!(error, TierError::Superblocks { first, second }
                if (first, second) == (version, version)),
            "{error}"
        );
        let numbers = format!("version {found}, and this program reads versions 1 to {VERSION}");
        let text = error.to_string();
        assert!(text.contains(&numbers) && text.contains(remedy), "{text}");
        assert_eq!(text.matches("version").count(), 2, "both copies say the same: {text}");
        assert!(inspect(&disk).unwrap().contents.is_err());
        assert!(disk.bytes() == bytes, "it was changed");
    }
}

/// A set says which of its files is of a later version, or goes on without that one.
#[test]
fn a_set_names_the_file_of_a_later_version() {
    let place = tempfile::tempdir().unwrap();
    let mut paths = Vec::new();
    for (name, version, mut bytes) in all() {
        for (name, found) in [(name.clone(), version), (format!("{name}-later"), VERSION + 1)] {
            let path = place.path().join(&name);
            for copy in bytes[..HEADER].chunks_exact_mut(BLOCK) {
                copy[8..12].copy_from_slice(&found.to_le_bytes());
                reseal(copy);
            }
            fs::write(&path, &bytes).unwrap();
            paths.push((path, version, found));
        }
    }
    let all: Vec<&PathBuf> = paths.iter().map(|(path, ..)| path).collect();
    // Values of which no key is known are values, too.
    let options = DiskTierOptions { take_over: true, ..DiskTierOptions::default() };
    let error = TierSet::open(&all, &options).err().unwrap();
    let TierSetError::Open { path, source } = &error else { panic!("{error}") };
    assert!(path.to_str().unwrap().ends_with("-later"), "{error}");
    assert!(matches!(source, TierError::Superblocks { .. }), "{error}");
    let (set, reports) = TierSet::open_available(&all, &options).unwrap();
    for ((path, version, found), report) in paths.iter().zip(reports) {
        match report {
            Ok(report) => assert_eq!(report.entries, values(*version).len() as u64, "{path:?}"),
            Err(error) => assert_eq!(*found, VERSION + 1, "{error}"),
        }
    }
    assert_eq!(set.tiers().len() * 2, paths.len());
}

/// A change in one copy leaves the other one; the same change in both is an error.
#[test]
fn a_changed_byte_of_the_superblocks_is_an_error_or_leaves_all_values() {
    let whole = current();
    let count = values(VERSION).len();
    // Behind the fields a superblock has zeros under its checksum, of which each is like the next.
    let is_changed = |at: &usize| is_long() || at % BLOCK < FIELDS || at.is_multiple_of(61);
    for at in (0..HEADER).filter(is_changed) {
        let mut bytes = whole.clone();
        bytes[at] ^= 1 << (at % 8);
        assert_eq!(open(bytes, VERSION).unwrap(), count, "byte {at}");
    }
    for at in (0..BLOCK).filter(is_changed) {
        let mut bytes = whole.clone();
        for copy in bytes[..HEADER].chunks_exact_mut(BLOCK) {
            copy[at] ^= 1 << (at % 8);
        }
        let error = open(bytes, VERSION).unwrap_err();
        assert!(matches!(error, TierError::Superblocks { .. }), "byte {at}: {error}");
    }
}

/// A program that writes nonsense with the right checksum: each field is checked, or leads to
/// values that are verified.
#[test]
fn a_changed_bit_under_the_right_checksum_never_leads_to_wrong_bytes() {
    for (name, version, whole) in all() {
        let (mut failed, mut missed, mut found_all) = (0, 0, 0);
        // One bit of each byte, or all.
        let is_changed = |bit: &usize| is_long() || bit % 8 == bit / 8 % 8;
        for bit in (0..FIELDS * 8).filter(is_changed) {
            let mut bytes = whole.clone();
            for copy in bytes[..HEADER].chunks_exact_mut(BLOCK) {
                copy[bit / 8] ^= 1 << (bit % 8);
                reseal(copy);
            }
            match open(bytes, version) {
                Ok(found) if found == values(version).len() => found_all += 1,
                Ok(_) => missed += 1,
                Err(error) => {
                    assert!(!error.to_string().is_empty());
                    failed += 1;
                }
            }
        }
        // Magic number, version, identity, epoch and layout; the key of the digests; the counts.
        assert!(failed > 8 + 4 + 16 + 40, "{name}: {failed}");
        assert!(missed >= 16 && found_all > 16, "{name}: {missed} {found_all}");
    }
}
