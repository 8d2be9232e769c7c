//! Values that are compressed, encrypted, or both.

use std::collections::HashSet;
use std::fs;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::sync::{Arc, Mutex, OnceLock};

use kvmem::arena::PageSize;
use kvmem::pool::Pool;
use kvmem::tier::{DataType, StoreOutcome, Tier, TierHints, TierRead, TierValue, WriteBehind};
use kvmem_encoding::Envelope;
use kvmem_tier::device::{Device, MemoryDevice, Read, Write};
use kvmem_tier::format::{
    BLOCK, Change, Entry, MAX_NAMESPACES, Superblock, read_checkpoint, write_checkpoint,
};
use kvmem_tier::{
    Codec, Damage, DiskTier, DiskTierOptions, Fetched, Keyring, StoreError, TierSet, inspect,
    key_ids, verify, verify_with_keys,
};

use crate::simulated::{Disk, kill};

/// Returns a keyring whose keys are these bytes, 32 times each.
pub(crate) fn keyring(keys: &[u8]) -> Arc<Keyring> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("keys");
    let lines: Vec<String> = keys.iter().map(|key| format!("{key:02x}").repeat(32)).collect();
    fs::write(&path, lines.join("\n")).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
    Arc::new(Keyring::open(&path).unwrap())
}

/// Returns the options of a tier that compresses and encrypts.
pub(crate) fn both() -> DiskTierOptions {
    static KEYS: OnceLock<Arc<Keyring>> = OnceLock::new();
    let keys = Some(Arc::clone(KEYS.get_or_init(|| keyring(&[1]))));
    DiskTierOptions { codec: Codec::Auto, keys, ..DiskTierOptions::default() }
}

fn with_keys(keys: &[u8]) -> DiskTierOptions {
    let keys = (!keys.is_empty()).then(|| keyring(keys));
    DiskTierOptions { keys, ..DiskTierOptions::default() }
}

fn open(disk: &Disk, options: &DiskTierOptions) -> DiskTier<Disk> {
    DiskTier::on(disk.clone(), options).unwrap().0
}

fn value(key: u8) -> Vec<u8> {
    (0..9000_u32).map(|at| key ^ ((at * at) >> 5) as u8).collect()
}

fn put(tier: &DiskTier<impl Device>, key: u8, namespace: &[u8]) {
    let (name, bytes) = ([key], value(key));
    let stored = TierValue::new(&name, &bytes).with_namespace(namespace);
    tier.store_with(&[stored]).remove(0).unwrap();
}

fn fetch(tier: &DiskTier<impl Device>, key: u8) -> Fetched {
    let mut into = vec![0xEE; 9000];
    let found = tier.fetch(&mut [TierRead { key: &[key], into: &mut into }])[0];
    match found {
        Fetched::Hit => assert!(into == value(key), "wrong bytes"),
        Fetched::Absent => {}
        _ => assert!(into.iter().all(|&byte| byte == 0), "bytes of a miss"),
    }
    found
}

/// Returns a disk with two values of each of two namespaces, after a checkpoint.
fn four() -> Disk {
    let disk = Disk::new(256 << 10, 3);
    let options = DiskTierOptions { max_entries: Some(1), ..with_keys(&[1]) };
    let tier = open(&disk, &options);
    for (key, namespace) in [(0, b"a"), (1, b"a"), (2, b"b"), (3, b"b")] {
        put(&tier, key, namespace);
    }
    drop(tier);
    disk
}

/// Changes values and their entries as somebody would who has the file and no key: all checksums
/// are right afterwards.
fn forge(disk: &Disk, change: impl Fn(&mut [Entry], &mut [u8])) -> Disk {
    let mut bytes = disk.bytes();
    let superblock = Superblock::from_bytes(bytes.first_chunk().unwrap()).unwrap();
    let Superblock { file, epoch, layout, checkpoint, checkpoint_blocks, .. } = superblock;
    let area = layout.checkpoints[checkpoint as usize].start as usize;
    let area = area..area + checkpoint_blocks as usize * BLOCK;
    let changes = read_checkpoint(file, epoch, &bytes[area.clone()]).unwrap();
    let entry = |change: &Change| match change {
        Change::Stored(entry) => *entry,
        _ => panic!("{change:?}"),
    };
    let mut entries: Vec<Entry> = changes.iter().map(entry).collect();
    entries.sort_unstable_by_key(|entry| entry.number);
    change(&mut entries, &mut bytes[layout.data.start as usize..]);
    for entry in &mut entries {
        let at = layout.data.start as usize + entry.start() as usize * BLOCK;
        let begin = [&entry.digest.0[..], &entry.len.to_le_bytes()].concat();
        let form = &bytes[at..at + entry.len as usize];
        entry.checksum = crc32c::crc32c_append(crc32c::crc32c(&begin), form);
    }
    let entries: Vec<Change> = entries.into_iter().map(Change::Stored).collect();
    bytes[area].copy_from_slice(&write_checkpoint(file, epoch, &entries));
    Disk::holding(bytes)
}

/// Each form of a value comes back, through calls of any kind, and after a restart.
#[test]
fn values_of_every_kind_come_back() {
    let numbers: Vec<u8> = (0..40_000_u16)
        .flat_map(|at| (0x3F80 | (at.wrapping_mul(37) % 0x180)).to_le_bytes())
        .collect();
    for (codec, keys, is_shorter) in [
        (Codec::None, &[][..], false),
        (Codec::Auto, &[], true),
        (Codec::None, &[1], false),
        (Codec::Auto, &[1], true),
    ] {
        let disk = Disk::new(1 << 20, 1);
        let options = DiskTierOptions { codec, ..with_keys(keys) };
        let tier = open(&disk, &options);
        let hints = TierHints { data_type: DataType::Bfloat16, ..TierHints::default() };
        let stored = TierValue::new(b"numbers", &numbers).with_hints(hints);
        let noise = value(7);
        let all = [stored, TierValue::new(b"noise", &noise), TierValue::new(b"empty", b"")];
        assert!(tier.store_with(&all).iter().all(Result::is_ok));
        let stats = tier.stats();
        assert_eq!(stats.bytes, 80_000 + 9000, "bytes of the values");
        let is_encoded = codec != Codec::None || !keys.is_empty();
        assert_eq!(stats.encoded_before_bytes > 0 && stats.encode_ns > 0, is_encoded);
        assert_eq!(stats.used < 80_000 / 4 * 3 + 16_384, is_shorter, "{codec:?}: {stats:?}");
        drop(tier);
        // A codec is only needed to write.
        let tier = open(&disk, &with_keys(keys));
        for (key, expected) in
            [(&b"numbers"[..], &numbers), (b"noise", &noise), (b"empty", &vec![])]
        {
            assert_eq!(tier.len_of(key), Some(expected.len() as u64));
            let mut into = vec![0xEE; expected.len()];
            let mut read = [TierRead { key, into: &mut into }];
            let hit = Tier::fetch(&tier, &mut read)[0].expect("it is there");
            assert_eq!(hit.checksum, Some(crc32c::crc32c(expected)), "of the value");
            assert!(&into == expected);
            let mut short = vec![0; expected.len() + 1];
            let found = tier.fetch(&mut [TierRead { key, into: &mut short }])[0];
            assert_eq!(found, Fetched::Length { len: expected.len() as u64 });
        }
        assert_eq!(tier.stats().decode_ns > 0, is_encoded);
        let version = inspect(&disk).unwrap().contents.unwrap().superblock.version;
        assert_eq!(version, if is_encoded { 3 } else { 2 });
    }
}

/// The plain bytes of a value are nowhere in the file.
#[test]
fn no_byte_of_an_encrypted_value_is_in_the_file() {
    let disk = four();
    let bytes = disk.bytes();
    for key in 0..4 {
        let value = value(key);
        for part in value.chunks_exact(16).step_by(50) {
            assert!(!bytes.windows(16).any(|window| window == part));
        }
    }
}

#[test]
fn a_changed_byte_of_the_file_is_a_miss_and_never_wrong_bytes() {
    let disk = four();
    let whole = disk.bytes();
    let data = inspect(&disk).unwrap().contents.unwrap().superblock.layout.data;
    let of_values = data.start as usize..(data.start as usize + 12 * BLOCK);
    let is_long = std::env::var_os("KVMEM_TEST_ROUNDS").is_some();
    let (mut misses, mut errors) = (0, 0);
    for at in (0..of_values.end).filter(|at| is_long || at % BLOCK < 200 || at % 97 == 0) {
        let mut bytes = whole.clone();
        bytes[at] ^= 1 << (at % 8);
        let Ok((tier, _)) = DiskTier::on(MemoryDevice::holding(bytes), &both()) else {
            errors += 1;
            continue;
        };
        let found: Vec<Fetched> = (0..4).map(|key| fetch(&tier, key)).collect();
        let lost = found.iter().filter(|&&found| found != Fetched::Hit).count();
        // Of a value that does not fill its last block, the padding is not covered.
        let is_padding = at >= of_values.start && (at - of_values.start) % (3 * BLOCK) >= 9072;
        assert_eq!(lost, usize::from(of_values.contains(&at) && !is_padding), "byte {at}");
        assert_eq!(tier.stats().checksum_misses, lost as u64, "{found:?}");
        misses += lost;
    }
    assert!(misses > 500 && errors > 50, "{misses} misses, {errors} errors");
}

#[test]
fn forged_bytes_under_right_checksums_are_misses_whose_blocks_are_free() {
    let disk = four();
    let block = |entry: &Entry| entry.start() as usize * BLOCK;
    let forged: [(&str, Disk, &[u8]); 6] = [
        ("nothing", forge(&disk, |_, _| {}), &[]),
        ("a bit of the body", forge(&disk, |all, data| data[block(&all[0]) + 5000] ^= 4), &[0]),
        ("a bit of the tag", forge(&disk, |all, data| data[block(&all[2]) + 50] ^= 4), &[2]),
        (
            "the values of two keys",
            forge(&disk, |all, _| {
                let first = all[0].extents;
                all[0].extents = all[1].extents;
                all[1].extents = first;
            }),
            &[0, 1],
        ),
        (
            "another namespace",
            forge(&disk, |all, _| {
                let namespace = all[2].encoded;
                all[0].encoded = namespace;
            }),
            &[0],
        ),
        (
            "a form without encryption",
            forge(&disk, |all, data| {
                let at = block(&all[3]);
                let form = [&b"KvE1\x01\0\0\0"[..], &9000_u64.to_le_bytes()].concat();
                data[at..at + 16].copy_from_slice(&form);
            }),
            &[3],
        ),
    ];
    for (what, disk, bad) in forged {
        let contents = inspect(&disk).unwrap().contents.unwrap();
        assert!(verify(&disk, &contents, |_| {}).is_empty(), "{what}: the checksums are right");
        let keys = keyring(&[1]);
        let damaged = verify_with_keys(&disk, &contents, &keys, |_| {}).unwrap();
        assert_eq!(damaged.len(), bad.len(), "{what}");
        assert!(damaged.iter().all(|one| matches!(one.damage, Damage::Encoding(_))), "{what}");
        let tier = open(&disk, &with_keys(&[1]));
        let used = tier.stats().used;
        for key in 0..4 {
            let expected = if bad.contains(&key) { Fetched::BadTag } else { Fetched::Hit };
            assert_eq!(fetch(&tier, key), expected, "{what}: {key}");
        }
        let stats = tier.stats();
        assert_eq!((stats.tag_misses, stats.entries), (bad.len() as u64, 4 - bad.len() as u64));
        tier.sync_all().unwrap();
        let stats = tier.stats();
        assert_eq!((stats.quarantined, used - stats.used), (0, bad.len() as u64 * 3 * 4096));
    }
    // An entry that says that its value is not encrypted is none for a tier with keys.
    let plain = forge(&disk, |all, _| all[1].encoded = None);
    let (tier, report) = DiskTier::on(plain, &with_keys(&[1])).unwrap();
    assert_eq!((report.unencrypted, fetch(&tier, 1)), (1, Fetched::Absent));
}

#[test]
fn an_older_value_in_the_place_of_a_newer_one_is_a_miss() {
    let disk = Disk::new(1 << 20, 4);
    let options = with_keys(&[1]);
    let tier = open(&disk, &options);
    put(&tier, 1, b"");
    drop(tier);
    let older = disk.bytes();
    let start = |disk: &Disk| {
        let contents = inspect(disk).unwrap().contents.unwrap();
        let at = contents.superblock.layout.data.start as usize;
        at + contents.entries[0].start() as usize * BLOCK
    };
    let from = start(&disk);
    let tier = open(&disk, &options);
    put(&tier, 1, b"");
    drop(tier);
    let to = start(&disk);
    let form = older[from..from + 3 * BLOCK].to_vec();
    disk.falsify(to as u64..(to + 3 * BLOCK) as u64, |bytes| bytes.copy_from_slice(&form));
    let tier = open(&disk, &options);
    assert_eq!((fetch(&tier, 1), tier.stats().checksum_misses), (Fetched::Damaged, 1));
}

#[test]
fn keys_rotate_and_a_missing_key_is_a_miss_until_it_comes_back() {
    let disk = Disk::new(1 << 20, 5);
    let tier = open(&disk, &with_keys(&[1]));
    put(&tier, 1, b"tenant");
    kill(tier, &disk);
    let tier = open(&disk, &with_keys(&[2, 1]));
    put(&tier, 2, b"tenant");
    assert_eq!([1, 2].map(|key| fetch(&tier, key)), [Fetched::Hit; 2]);
    drop(tier);
    let contents = inspect(&disk).unwrap().contents.unwrap();
    assert_eq!(contents.encoded(), (2, 2));
    assert_eq!((contents.value_bytes(), contents.stored_bytes()), (18_000, 18_144));
    let expected = [1, 2].map(|key| (keyring(&[key]).writes_with(), 1));
    assert_eq!(key_ids(&disk, &contents), expected.into_iter().collect());
    let damaged = verify_with_keys(&disk, &contents, &keyring(&[2]), |_| {}).unwrap();
    assert_eq!(damaged.len(), 1);
    assert!(damaged[0].damage.to_string().contains(&expected[0].0.to_string()));
    use Fetched::{Hit, NoKey};
    for (keys, found) in [(&[2][..], [NoKey, Hit]), (&[], [NoKey; 2]), (&[3], [NoKey; 2])] {
        let tier = open(&disk, &with_keys(keys));
        for _ in 0..2 {
            assert_eq!([1, 2].map(|key| fetch(&tier, key)), found, "{keys:?}");
        }
        let missed = found.iter().filter(|&&found| found == NoKey).count() as u64;
        let stats = tier.stats();
        assert_eq!((stats.key_misses, stats.tag_misses), (2 * missed, 0));
        assert_eq!((stats.entries, stats.quarantined), (2, 0), "the key may come later");
    }
    assert_eq!([1, 2].map(|key| fetch(&open(&disk, &with_keys(&[1, 2])), key)), [Hit; 2]);
}

#[test]
fn a_file_has_the_new_version_only_with_encoded_values() {
    let disk = Disk::new(1 << 20, 6);
    let version = |disk: &Disk| inspect(disk).unwrap().contents.unwrap().superblock.version;
    let plain = DiskTierOptions::default();
    put(&open(&disk, &plain), 1, b"ignored");
    assert_eq!(version(&disk), 2);
    let codec = DiskTierOptions { codec: Codec::Auto, ..plain.clone() };
    assert_eq!(fetch(&open(&disk, &codec), 1), Fetched::Hit);
    assert_eq!(version(&disk), 3);
    assert_eq!(fetch(&open(&disk, &plain), 1), Fetched::Hit);
    assert_eq!(version(&disk), 3, "values may be encoded");
    // With keys, values that anybody could have written are no values.
    let (tier, report) = DiskTier::on(disk.clone(), &with_keys(&[1])).unwrap();
    assert_eq!((report.unencrypted, report.entries), (1, 0));
    assert_eq!(fetch(&tier, 1), Fetched::Absent);
}

#[test]
fn a_namespace_is_forgotten_durably() {
    let disk = four();
    let options = with_keys(&[1]);
    let namespaces =
        |disk: &Disk| inspect(disk).unwrap().superblocks.map(|copy| copy.unwrap().namespaces);
    let before = disk.bytes();
    let seed = namespaces(&disk)[0].get(1).unwrap().seed;
    let has_seed = |bytes: &[u8]| bytes.windows(16).any(|window| window == seed);
    assert!(has_seed(&before[..2 * BLOCK]));
    let tier = open(&disk, &options);
    assert_eq!(tier.forget_namespace(b"never used").unwrap(), 0);
    assert_eq!(tier.forget_namespace(b"a").unwrap(), 2);
    let found = |tier: &DiskTier<Disk>| [0, 1, 2, 3].map(|key| fetch(tier, key));
    use Fetched::{Absent, Hit};
    assert_eq!(found(&tier), [Absent, Absent, Hit, Hit]);
    assert_eq!(tier.forget_namespace(b"a").unwrap(), 0);
    // Whatever happens now, it is forgotten: also if the journal is lost.
    kill(tier, &disk);
    disk.cut_power();
    assert!(!has_seed(&disk.bytes()), "no part of the file has the seed");
    assert_eq!(namespaces(&disk).map(|all| all.count()), [1, 1]);
    // The blocks of before do not help.
    let data = inspect(&disk).unwrap().contents.unwrap().superblock.layout.data;
    disk.falsify(data.start..data.start + data.len, |bytes| {
        bytes.copy_from_slice(&before[data.start as usize..]);
    });
    let tier = open(&disk, &options);
    assert_eq!(found(&tier), [Absent, Absent, Hit, Hit]);
    // The name has other keys now.
    put(&tier, 0, b"a");
    assert_eq!(found(&tier), [Hit, Absent, Hit, Hit]);
    drop(tier);
    assert!(!has_seed(&disk.bytes()));
    // Entries of a namespace that the superblock does not have.
    let mut bytes = disk.bytes();
    for copy in 0..2 {
        let copy = bytes[copy * BLOCK..][..BLOCK].first_chunk_mut().unwrap();
        let mut superblock = Superblock::from_bytes(copy).unwrap();
        superblock.namespaces = Default::default();
        *copy = superblock.to_bytes();
    }
    let (tier, report) = DiskTier::on(Disk::holding(bytes), &options).unwrap();
    assert_eq!((report.entries, found(&tier)), (0, [Absent; 4]));
}

#[test]
fn a_seed_that_may_be_left_in_a_copy_is_an_error() {
    for copy in 0..2_u64 {
        let disk = four();
        let tier = open(&disk, &with_keys(&[1]));
        disk.fail_at(copy * BLOCK as u64..(copy + 1) * BLOCK as u64, 5);
        tier.forget_namespace(b"a").unwrap_err();
        disk.fail_at(0..0, 0);
        assert_eq!(fetch(&tier, 0), Fetched::Absent, "this process has forgotten it");
        // The journal begins anew, with superblocks that do not have it.
        tier.retry_now();
        put(&tier, 9, b"c");
        assert_eq!([2, 9].map(|key| fetch(&tier, key)), [Fetched::Hit; 2]);
        kill(tier, &disk);
        let found = inspect(&disk).unwrap();
        for copy in found.superblocks {
            assert_eq!(copy.unwrap().namespaces.count(), 2, "of b and c");
        }
    }
}

#[test]
fn namespaces_are_limited_and_come_and_go_during_checkpoints() {
    let disk = Disk::new(8 << 20, 7);
    let options = DiskTierOptions { journal_bytes: Some(16 * 4096), ..both() };
    let tier = open(&disk, &options);
    for number in 0..MAX_NAMESPACES as u8 {
        put(&tier, number, &[number]);
    }
    let store = |tier: &DiskTier<Disk>| {
        tier.store_with(&[TierValue::new(b"key", b"value").with_namespace(b"more")]).remove(0)
    };
    let error = store(&tier).unwrap_err();
    assert!(matches!(error, StoreError::TooManyNamespaces { limit: 112 }), "{error}");
    assert!(error.to_string().contains("forget one"), "{error}");
    // A cache above has no value then, and the tier the reason.
    let value = |key: &'static [u8]| TierValue::new(key, b"value").with_namespace(b"more");
    assert!(tier.take_store_errors().is_none());
    for outcome in Tier::store(&tier, &[value(b"key"), value(b"other")]) {
        assert_eq!(outcome.unwrap(), StoreOutcome::NotStored);
    }
    let errors = tier.take_store_errors();
    assert!(matches!(errors, Some((2, StoreError::TooManyNamespaces { .. }))), "{errors:?}");
    assert!(tier.take_store_errors().is_none());
    assert_eq!(tier.stats().encode_failures, 3);
    assert_eq!(tier.forget_namespace(&[50]).unwrap(), 1);
    store(&tier).unwrap();
    // Many changes, so that checkpoints begin and end meanwhile.
    for round in 0..200_u8 {
        for key in 0..30 {
            put(&tier, key, &[key]);
        }
        if round % 3 == 0 {
            tier.forget_namespace(&[60 + round % 40]).unwrap();
        }
        put(&tier, 60 + round % 40, &[60 + round % 40]);
    }
    assert!(tier.stats().checkpoints > 5, "{:?}", tier.stats());
    kill(tier, &disk);
    let tier = open(&disk, &options);
    assert!((60..100).all(|key| fetch(&tier, key) == Fetched::Hit));
    assert!((0..30).all(|key| fetch(&tier, key) == Fetched::Hit));
}

/// A tier below a queue, a set of tiers: each forgets.
#[test]
fn queues_and_sets_forget_namespaces() {
    let tiers = (0..3).map(|seed| open(&Disk::new(1 << 20, seed), &both())).collect();
    let set = Arc::new(TierSet::new(tiers).unwrap());
    let pool = Pool::builder("1 MiB").ladder(PageSize::Base).build().unwrap();
    let below: Arc<dyn Tier> = Arc::clone(&set) as Arc<dyn Tier>;
    let behind = WriteBehind::builder(&pool, below).build().unwrap();
    let values: Vec<([u8; 1], Vec<u8>)> = (0..40).map(|key| ([key], value(key))).collect();
    let all: Vec<TierValue<'_>> = values
        .iter()
        .map(|(key, bytes)| {
            TierValue::new(key, bytes).with_namespace(if key[0] % 2 == 0 { b"a" } else { b"b" })
        })
        .collect();
    assert!(behind.store(&all).iter().all(Result::is_ok));
    behind.forget_namespace(b"a").unwrap();
    behind.flush();
    let contents: Vec<Option<u64>> = (0..40_u8).map(|key| set.len_of(&[key])).collect();
    let expected: Vec<Option<u64>> = (0..40_u8).map(|key| (key % 2 == 1).then_some(9000)).collect();
    assert_eq!(contents, expected);
    assert_eq!(set.forget_namespace(b"b").unwrap(), 20);
}

/// Sessions and counters of forms.
type Nonces = HashSet<([u8; 16], u64)>;

/// Threads share such a call, and each has several groups.
#[test]
fn a_call_for_many_bytes_brings_each_value_with_its_checksum() {
    let (tier, _) = DiskTier::on(MemoryDevice::new(128 << 20), &with_keys(b"a")).unwrap();
    let keys = Vec::from_iter(0..42_u8);
    let values: Vec<Vec<u8>> = (0..40_u8).map(|key| vec![key + 1; 1 << 20]).collect();
    let call: Vec<(&[u8], &[u8])> =
        keys.chunks(1).zip(&values).map(|(key, value)| (key, &value[..])).collect();
    // The first value of a namespace has its seed written.
    assert!(tier.store(&[(b"first", b"")])[0].is_ok());
    let journal = tier.stats().metadata_bytes;
    assert!(tier.store(&call).iter().all(Result::is_ok));
    // Groups have no commit of their own: there are twelve of them.
    let commits = (tier.stats().metadata_bytes - journal) / BLOCK as u64;
    assert!((1..=4).contains(&commits), "{commits} commits");
    let mut into = vec![vec![0; 1 << 20]; 42];
    let mut reads: Vec<TierRead<'_>> =
        keys.chunks(1).zip(&mut into).map(|(key, into)| TierRead { key, into }).collect();
    let hits = Tier::fetch(&tier, &mut reads);
    let sums: Vec<Option<u32>> = hits.iter().map(|hit| hit.and_then(|hit| hit.checksum)).collect();
    let mut expected: Vec<Option<u32>> =
        values.iter().map(|value| Some(crc32c::crc32c(value))).collect();
    expected.resize(42, None);
    assert_eq!(sums, expected);
    assert!(into[..40] == values[..], "another value");
}

#[test]
fn of_two_values_with_one_key_in_a_call_for_many_bytes_the_later_one_counts() {
    let (tier, _) = DiskTier::on(MemoryDevice::new(64 << 20), &with_keys(b"a")).unwrap();
    for round in 0..5_u8 {
        let values: Vec<Vec<u8>> = (0..20).map(|at| vec![20 * round + at; 1 << 20]).collect();
        let keys = Vec::from_iter((0..20_u8).map(|at| at % 15));
        let call: Vec<(&[u8], &[u8])> =
            keys.chunks(1).zip(&values).map(|(key, value)| (key, &value[..])).collect();
        assert!(tier.store(&call).iter().all(Result::is_ok));
        for key in 0..15 {
            let mut into = vec![0; 1 << 20];
            let hit = tier.fetch(&mut [TierRead { key: &[key], into: &mut into }])[0];
            let last = if key < 5 { 15 + key } else { key };
            assert!(hit == Fetched::Hit && into[0] == 20 * round + last, "{key}: {}", into[0]);
        }
    }
}

/// The file ends before the values do, so some have no room: each result is that of its value.
#[test]
fn each_result_of_a_call_for_many_bytes_is_that_of_its_value() {
    let (tier, _) = DiskTier::on(MemoryDevice::new(48 << 20), &with_keys(b"a")).unwrap();
    // The fifth and the last one are longer than the tier.
    let lens = |key: u8| if key % 15 == 4 { 60 << 20 } else { (1 << 20) + usize::from(key) };
    let keys = Vec::from_iter(0..20_u8);
    let values: Vec<Vec<u8>> = keys.iter().map(|key| vec![*key; lens(*key)]).collect();
    let call: Vec<(&[u8], &[u8])> =
        keys.chunks(1).zip(&values).map(|(key, value)| (key, &value[..])).collect();
    let results = tier.store(&call);
    for (key, result) in (0..).zip(results) {
        match result {
            Err(StoreError::TooLarge { .. }) => assert_eq!(key % 15, 4),
            other => assert!(other.is_ok() && key % 15 != 4, "{key}: {other:?}"),
        }
        assert_eq!(tier.len_of(&[key]), (key % 15 != 4).then_some(lens(key) as u64));
    }
}

/// A device that sees each form that is written.
struct Watched {
    device: MemoryDevice,
    nonces: Arc<Mutex<Nonces>>,
}

impl Device for Watched {
    fn len(&self) -> u64 {
        self.device.len()
    }

    fn is_new(&self) -> bool {
        self.device.is_new()
    }

    fn memory_align(&self) -> usize {
        self.device.memory_align()
    }

    fn write(&self, batch: &[Write<'_>], meanwhile: &mut dyn FnMut(usize)) -> Vec<io::Result<()>> {
        let mut nonces = self.nonces.lock().unwrap();
        for write in batch {
            if let Some(seal) = Envelope::read(write.parts[1]).and_then(|envelope| envelope.seal) {
                assert!(nonces.insert((seal.session, seal.counter)), "{seal:?} is used twice");
            }
        }
        self.device.write(batch, meanwhile)
    }

    fn read(
        &self,
        batch: &mut [Read<'_>],
        done: &mut dyn FnMut(usize, &mut Read<'_>, io::Result<()>),
    ) {
        self.device.read(batch, done);
    }

    fn sync(&self) -> io::Result<()> {
        self.device.sync()
    }
}

/// Values of openings after an end, after a kill, and of older copies of the file: a million in a
/// long test.
#[test]
fn no_nonce_is_used_twice_whatever_happens_to_the_file() {
    let nonces = Arc::new(Mutex::new(Nonces::new()));
    let options = DiskTierOptions { codec: Codec::None, ..both() };
    let open = |device: MemoryDevice| {
        DiskTier::on(Watched { device, nonces: Arc::clone(&nonces) }, &options).unwrap().0
    };
    let mut copies = Vec::new();
    let mut tier = open(MemoryDevice::new(8 << 20));
    let mut stored = 0_u32;
    let lives = if std::env::var_os("KVMEM_TEST_ROUNDS").is_some() { 1000 } else { 50 };
    for life in 0..lives {
        let keys: Vec<[u8; 4]> = (0..200).map(|key| (stored + key).to_le_bytes()).collect();
        let batch: Vec<(&[u8], &[u8])> = keys.iter().map(|key| (&key[..], &key[..])).collect();
        for _ in 0..5 {
            assert!(tier.store(&batch).iter().all(Result::is_ok));
            stored += 200;
        }
        // The file as it is when the process is killed now, and as it was some lives ago.
        let now = tier.device().device.bytes();
        if life % 100 == 0 {
            copies.push(now.clone());
        }
        let next = match life % 3 {
            0 => now,
            1 => copies[life % copies.len()].clone(),
            _ => {
                tier.checkpoint().unwrap();
                tier.device().device.bytes()
            }
        };
        tier = open(MemoryDevice::holding(next));
    }
    assert_eq!(nonces.lock().unwrap().len(), lives * 1000);
}
