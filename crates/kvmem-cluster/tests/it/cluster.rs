//! A cluster, alone and below a node, through helpers that work, die, hang and lie.

use std::fs;
use std::io::{IoSliceMut, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::thread::sleep;
use std::time::{Duration, Instant};

use kvmem::arena::{Backing, PageSize, Region};
use kvmem::tier::{Chain, StoreOutcome, Tier, TierRead, TierState, TierValue};
use kvmem_cluster::{ClusterOptions, ClusterTier, Codec, Keyring};
use kvmem_node::{Node, NodeOptions};
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendFlags};
use tempfile::TempDir;

use crate::support::{Place, Tiered, wait_for};

/// A folder that stands in for a cluster.
struct Cluster(TempDir);

impl Cluster {
    fn new() -> Cluster {
        Cluster(tempfile::tempdir().expect("a folder can be made"))
    }

    /// Returns the options of a helper that behaves as `mode` says.
    fn options(&self, mode: &str) -> ClusterOptions {
        let program = std::env::current_exe().expect("it runs");
        let own = [
            "env".into(),
            format!("KVMEM_TEST_HELPER={mode}").into(),
            format!("KVMEM_TEST_CLUSTER={}", self.0.path().display()).into(),
            program.into_os_string(),
            "cluster::helper".into(),
        ];
        let command = own.into_iter().chain(["--exact", "--ignored"].map(Into::into)).collect();
        ClusterOptions {
            staging_bytes: 1 << 20,
            call_timeout: Duration::from_millis(1500),
            first_pause: Duration::from_millis(20),
            max_pause: Duration::from_millis(200),
            ..ClusterOptions::new(command)
        }
    }

    /// Returns a tier that works.
    fn working(&self, mode: &str) -> ClusterTier {
        self.encoding(mode, Codec::None, &[])
    }

    /// Returns a tier that works, and encodes values.
    fn encoding(&self, mode: &str, codec: Codec, keys: &[u8]) -> ClusterTier {
        let keys = (!keys.is_empty()).then(|| keyring(keys));
        let options = ClusterOptions { codec, keys, ..self.options(mode) };
        let tier = ClusterTier::start(options, |_| {}).expect("a thread can be started");
        wait_for("the helper is ready", || tier.state() == TierState::Working);
        tier
    }

    /// Returns the file of the object of a key of one byte.
    fn object(&self, key: u8) -> PathBuf {
        self.0.path().join(format!("{key:02x}"))
    }

    fn objects(&self) -> usize {
        fs::read_dir(self.0.path()).expect("a folder").filter(|it| is_object(it.as_ref())).count()
    }
}

/// Returns keys of one byte each, repeated.
fn keyring(keys: &[u8]) -> Arc<Keyring> {
    let folder = tempfile::tempdir().expect("a folder can be made");
    let path = folder.path().join("keys");
    let lines: Vec<String> = keys.iter().map(|key| format!("{key:02x}").repeat(32)).collect();
    fs::write(&path, lines.join("\n")).expect("it can be written");
    fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).expect("it is there");
    Arc::new(Keyring::open(&path).expect("it has keys"))
}

/// Returns numbers that a codec makes shorter.
fn numbers(seed: usize, len: usize) -> Vec<u8> {
    let number = |at: usize| (0x3F80 | ((at + seed) * 37 % 0x180) as u16).to_le_bytes();
    (0..len).flat_map(number).take(len).collect()
}

fn is_object(entry: Result<&fs::DirEntry, &std::io::Error>) -> bool {
    entry.is_ok_and(|it| it.path().extension().is_none())
}

fn value(seed: usize, len: usize) -> Vec<u8> {
    (0..len).map(|at| (at * 7 + seed * 13) as u8).collect()
}

fn store(tier: &dyn Tier, key: &[u8], value: &[u8]) -> bool {
    let outcome = tier.store(&[TierValue::new(key, value)]).remove(0);
    outcome.expect("keys name their contents") == StoreOutcome::Stored
}

/// Looks a key up, and reads what was found.
fn get(tier: &dyn Tier, key: &[u8]) -> Option<Vec<u8>> {
    let len = tier.ask(&[key])[0]?;
    let mut bytes = vec![0; len as usize];
    tier.fetch(&mut [TierRead { key, into: &mut bytes }])[0].map(|_| bytes)
}

#[test]
fn values_are_stored_found_and_removed() {
    let cluster = Cluster::new();
    let tier = cluster.working("works");
    let values: Vec<Vec<u8>> = (0..150).map(|seed| value(seed, 1 + seed * 97)).collect();
    let keys: Vec<[u8; 2]> = (0..150_u16).map(u16::to_le_bytes).collect();
    let batch: Vec<TierValue<'_>> =
        keys.iter().zip(&values).map(|(key, value)| TierValue::new(key, value)).collect();
    let stored = |it: &Result<_, _>| matches!(it, Ok(StoreOutcome::Stored));
    assert!(tier.store(&batch).iter().all(stored), "as many at a time as have room");
    let other = cluster.working("works");
    let names: Vec<&[u8]> = keys.iter().map(|key| &key[..]).collect();
    let lengths: Vec<u64> = other.ask(&names).into_iter().flatten().collect();
    assert_eq!(lengths, values.iter().map(|it| it.len() as u64).collect::<Vec<_>>());
    let mut read: Vec<Vec<u8>> = values.iter().map(|it| vec![0; it.len()]).collect();
    let mut reads: Vec<TierRead<'_>> =
        names.iter().zip(&mut read).map(|(key, into)| TierRead { key, into }).collect();
    assert!(other.fetch(&mut reads).iter().all(Option::is_some));
    assert_eq!(read, values);
    assert_eq!(get(&other, b"absent"), None);
    other.remove(&names[..3]).expect("it is noted");
    assert_eq!(get(&other, names[0]), None, "at once");
    wait_for("the cluster has removed them", || cluster.objects() == 147);
    wait_for("nothing is stale", || other.stats().stale == 0);
    assert!(store(&other, names[0], b"again"));
    assert_eq!(get(&tier, names[0]).as_deref(), Some(&b"again"[..]));
    let (stats, others) = (tier.stats(), other.stats());
    assert_eq!((stats.stored, stats.failed, stats.dropped, stats.starts), (150, 0, 0, 1));
    assert_eq!((others.fetched, others.corrupt), (150, 0));
    // A key that was removed counts if the cluster has removed it already.
    assert!((1..=2).contains(&others.absent), "{others:?}");
    let bytes: usize = values.iter().map(Vec::len).sum();
    assert_eq!((stats.stored_bytes, others.fetched_bytes), (bytes as u64, bytes as u64));
    assert!(other.clear().is_ok() && cluster.objects() == 0);
    // A value that has no room is dropped.
    assert!(!store(&tier, b"long", &vec![1; 600_000]) && !store(&tier, b"empty", b""));
    assert_eq!(tier.stats().dropped, 2);
    tier.close();
    assert!(!store(&tier, b"late", b"value") && get(&tier, names[0]).is_none());
}

#[test]
fn values_that_are_offered_wait_within_bounds_and_are_stored_at_the_end() {
    let cluster = Cluster::new();
    let tier = cluster.working("late");
    let values: Vec<Vec<u8>> = (0..100).map(|seed| value(seed, 20_000)).collect();
    let started = Instant::now();
    for (key, value) in values.iter().enumerate() {
        tier.offer(&[TierValue::new(&key.to_le_bytes(), value)]);
    }
    assert!(started.elapsed() < Duration::from_millis(250), "it does not wait");
    let stats = tier.stats();
    // Half of the memory is for stores.
    assert!((1..=(512 << 10)).contains(&stats.queued_bytes), "{stats:?}");
    assert!(stats.dropped >= 60, "{stats:?}");
    tier.close();
    let stats = tier.stats();
    assert_eq!((stats.stored + stats.dropped, stats.queued_bytes), (100, 0), "{stats:?}");
    assert_eq!(cluster.objects() as u64, stats.stored);
}

#[test]
fn a_helper_that_dies_is_started_again() {
    let cluster = Cluster::new();
    let said = Arc::new(Mutex::new(Vec::new()));
    let saying = Arc::clone(&said);
    let report = move |line: &str| saying.lock().expect("no panic").push(line.to_owned());
    let tier = ClusterTier::start(cluster.options("dies-once"), report).expect("a thread");
    wait_for("the helper is ready", || tier.state() == TierState::Working);
    assert!(!store(&tier, b"key", b"lost with the helper"));
    wait_for("another one is ready", || tier.state() == TierState::Working);
    assert!(store(&tier, b"key", b"value"));
    assert_eq!(get(&tier, b"key").as_deref(), Some(&b"value"[..]));
    assert_eq!((tier.stats().starts, tier.stats().failed), (2, 1));
    let said = said.lock().expect("no panic");
    assert!(said[1].contains("has ended; the next attempt is in 0.0 s"), "{said:?}");
    assert_eq!((&*said[0], &*said[2]), ("the cluster works", "the cluster works"));
}

#[test]
fn a_helper_that_hangs_is_killed_and_its_memory_is_not_used_again() {
    let cluster = Cluster::new();
    let tier = cluster.working("hangs-once");
    let started = Instant::now();
    assert!(!store(&tier, b"key", b"value"), "it has no answer");
    assert!(started.elapsed() < Duration::from_secs(6));
    wait_for("another one is ready", || tier.state() == TierState::Working);
    assert!(store(&tier, b"key", b"value") && get(&tier, b"key").is_some());
    let stats = tier.stats();
    assert_eq!((stats.hangs, stats.starts, stats.failed), (1, 2, 1));
    // The one that hung was killed.
    let pid = fs::read_to_string(cluster.0.path().join("hung.pid")).expect("it hung");
    assert!(!Path::new("/proc").join(pid).exists());
}

#[test]
fn a_helper_that_is_never_ready_is_killed_and_nothing_waits_for_it() {
    let cluster = Cluster::new();
    let options = ClusterOptions {
        start_timeout: Duration::from_millis(300),
        ..cluster.options("never-ready")
    };
    let tier = ClusterTier::start(options, |_| {}).expect("a thread can be started");
    let started = Instant::now();
    assert!(!store(&tier, b"key", b"value") && tier.ask(&[b"key"]) == [None]);
    assert!(started.elapsed() < Duration::from_millis(200), "{:?}", started.elapsed());
    wait_for("several are killed", || tier.stats().hangs >= 2);
    assert_eq!((tier.state(), tier.stats().dropped), (TierState::Away, 1));
    assert_eq!(tier.stats().skipped, 1);
    // A program that cannot be started.
    let options = ClusterOptions::new(vec!["/no/such/program".into()]);
    let said = Arc::new(Mutex::new(String::new()));
    let saying = Arc::clone(&said);
    let tier = ClusterTier::start(options, move |line| saying.lock().unwrap().push_str(line));
    let tier = tier.expect("a thread can be started");
    wait_for("it is reported", || {
        said.lock().unwrap().contains("/no/such/program cannot be started")
    });
    assert_eq!((tier.state(), tier.clear().is_ok()), (TierState::Away, false));
}

#[test]
fn nothing_that_a_helper_says_is_believed() {
    let cluster = Cluster::new();
    let tier = cluster.working("works");
    for key in 0..8_u8 {
        assert!(store(&tier, &[key], &value(key.into(), 5000)));
    }
    // Other bytes, a byte less, a length beyond all memory, and the bytes of another key.
    for mode in ["flips", "short", "huge", "swaps"] {
        let tier = cluster.working(mode);
        let found = get(&tier, &[1]);
        assert_eq!(found, None, "{mode}");
        let stats = tier.stats();
        let is_read = mode == "flips" || mode == "swaps";
        assert_eq!(stats.corrupt, u64::from(is_read), "{mode}: {stats:?}");
        assert_eq!((stats.fetched, stats.starts), (0, 1), "{mode}");
        tier.close();
        if is_read {
            // What was damaged is removed from the cluster.
            assert!(store(&cluster.working("works"), &[1], &value(1, 5000)));
        }
    }
    // Answers that are none end the helper.
    for mode in ["garbage", "too-many", "unknown-call", "long-packet"] {
        let tier = cluster.working(mode);
        assert_eq!(get(&tier, &[2]), None, "{mode}");
        wait_for("it is noticed", || tier.stats().violations > 0);
    }
    assert_eq!(get(&tier, &[2]), Some(value(2, 5000)), "others go on");
}

#[test]
fn a_store_that_does_not_answer_is_away_until_it_does() {
    let cluster = Cluster::new();
    let tier = cluster.working("away-after-a-store");
    assert!(store(&tier, b"key", b"value"));
    wait_for("the helper says so", || tier.state() == TierState::Away);
    assert!(!store(&tier, b"other", b"value") && get(&tier, b"key").is_none());
    wait_for("the helper says so", || tier.state() == TierState::Working);
    assert_eq!(get(&tier, b"key").as_deref(), Some(&b"value"[..]));
    assert_eq!((tier.stats().starts, tier.stats().dropped), (1, 1));
}

/// Options of a tier whose values replace others.
fn replacing(cluster: &Cluster, mode: &str) -> ClusterOptions {
    ClusterOptions { replaces: true, max_stale: 50, ..cluster.options(mode) }
}

#[test]
fn values_replace_others_if_they_are_to() {
    let cluster = Cluster::new();
    let tier = ClusterTier::start(replacing(&cluster, "works"), |_| {}).expect("a thread");
    assert!(tier.wait_ready(Instant::now() + Duration::from_secs(30)));
    for version in 0..5 {
        assert!(store(&tier, b"key", &value(version, 1000)));
        assert_eq!(get(&tier, b"key"), Some(value(version, 1000)));
    }
    // Several threads store one key; the last one counts.
    std::thread::scope(|scope| {
        for seed in 0..8 {
            let tier = &tier;
            scope.spawn(move || {
                for _ in 0..20 {
                    assert!(
                        store(tier, b"busy", &value(seed, 900)),
                        "each waits for the one before"
                    );
                }
            });
        }
    });
    let found = get(&tier, b"busy").expect("one of them");
    assert!((0..8).any(|seed| found == value(seed, 900)));
    // A value that is dropped leaves no older one behind.
    assert!(!store(&tier, b"key", &vec![1; 600_000]));
    assert_eq!(get(&tier, b"key"), None);
    assert!(tier.flush_until(Instant::now() + Duration::from_secs(30)));
    assert_eq!((cluster.objects(), tier.stats().stale, tier.stats().corrupt), (1, 0, 0));
    assert!(store(&tier, b"key", b"again") && get(&tier, b"key").is_some());
}

#[test]
fn no_older_value_comes_back_when_many_could_not_be_replaced() {
    let cluster = Cluster::new();
    let tier = ClusterTier::start(replacing(&cluster, "hangs-once"), |_| {}).expect("a thread");
    let keys: Vec<[u8; 1]> = (0..100_u8).map(|key| [key]).collect();
    // The cluster has an older value of each.
    let other = cluster.working("works");
    assert!(keys.iter().all(|key| store(&other, key, b"older")));
    assert!(tier.wait_ready(Instant::now() + Duration::from_secs(30)));
    for key in &keys {
        // The first one hangs; the others come while there is no helper.
        assert!(!store(&tier, key, b"newer") || tier.stats().hangs > 0);
    }
    assert!(keys.iter().all(|key| get(&tier, key) != Some(b"older".to_vec())));
    assert_eq!(tier.stats().stale, 50, "all of the prefix");
    assert!(tier.flush_until(Instant::now() + Duration::from_secs(30)));
    assert_eq!((tier.stats().stale, cluster.objects()), (0, 0));
    assert!(store(&tier, b"key", b"value") && get(&tier, b"key").is_some());
    // The end waits for removals.
    tier.remove(&[b"key"]).expect("it is noted");
    tier.close();
    assert_eq!(cluster.objects(), 0);
}

#[test]
fn encoded_values_are_found_by_others_with_the_same_keys() {
    for (codec, keys) in [(Codec::Auto, &[][..]), (Codec::None, &[1]), (Codec::Auto, &[1])] {
        let cluster = Cluster::new();
        let tier = cluster.encoding("works", codec, keys);
        // Values of lengths that are compressed, and of others.
        let lengths = [8192, 5, 65_536, 4001, 204_800, 1, 16_384, 31_000];
        let values: Vec<Vec<u8>> = (0..).zip(lengths).map(|(at, len)| numbers(at, len)).collect();
        let names: Vec<[u8; 1]> = (0..values.len() as u8).map(|name| [name]).collect();
        let batch: Vec<TierValue<'_>> = names
            .iter()
            .zip(&values)
            .map(|(name, value)| TierValue::new(name, value).with_namespace(b"tenant"))
            .collect();
        assert!(tier.store(&batch).iter().all(|it| matches!(it, Ok(StoreOutcome::Stored))));
        // After a rotation, too; and which of them compresses does not matter.
        let readers: &[&[u8]] = if keys.is_empty() { &[&[]] } else { &[&[1], &[2, 1]] };
        for keys in readers {
            let other = if keys.is_empty() { Codec::Auto } else { Codec::None };
            let reader = cluster.encoding("works", other, keys);
            for (name, value) in names.iter().zip(&values) {
                assert_eq!(get(&reader, name).as_ref(), Some(value), "{codec:?} {keys:?}");
            }
            assert_eq!(get(&reader, b"absent"), None);
            assert_eq!((reader.stats().corrupt, reader.stats().failed), (0, 0));
        }
        let stats = tier.stats();
        let of_object = |key: u8| fs::metadata(cluster.object(key)).expect("it is there").len();
        if codec == Codec::Auto {
            assert!(of_object(2) < 50_000, "{}", of_object(2));
            assert!(stats.encoded_after_bytes < stats.encoded_before_bytes * 4 / 5, "{stats:?}");
        } else {
            assert_eq!(of_object(2), 65_536 + 96 + 32);
        }
        let bytes = fs::read(cluster.object(6)).expect("it is there");
        assert_eq!(bytes[bytes.len() - 32..][..8], *b"kvmem-n2");
        let is_plain = bytes.windows(64).any(|part| part == &values[6][..64]);
        assert!(!is_plain);
    }
}

#[test]
fn values_of_other_keys_and_forms_are_misses_of_their_kinds() {
    let cluster = Cluster::new();
    let value = numbers(0, 16_384);
    assert!(store(&cluster.encoding("works", Codec::Auto, &[1]), &[1], &value));
    let object = fs::read(cluster.object(1)).expect("it is there");
    let misses = |tier: &ClusterTier, key: u8| {
        assert_eq!(get(tier, &[key]), None);
        let stats = tier.stats();
        assert_eq!((stats.fetched, stats.failed, stats.starts), (0, 0, 1), "{stats:?}");
        (stats.key_misses, stats.tag_misses, stats.form_misses, stats.corrupt)
    };
    // Another key, no key, and neither key nor codec.
    assert_eq!(misses(&cluster.encoding("works", Codec::Auto, &[2]), 1), (1, 0, 0, 0));
    assert_eq!(misses(&cluster.encoding("works", Codec::Auto, &[]), 1), (1, 0, 0, 0));
    assert_eq!(misses(&cluster.working("works"), 1), (1, 0, 0, 0));
    assert!(cluster.object(1).exists(), "others may have the key");
    // A value that is not encrypted, as it is and compressed.
    for (key, codec) in [(2, Codec::None), (3, Codec::Auto)] {
        let tier = cluster.encoding("works", codec, &[]);
        assert!(store(&tier, &[key], &value));
        assert_eq!(get(&tier, &[key]).as_ref(), Some(&value));
        let reader = cluster.encoding("works", Codec::Auto, &[1]);
        // One as it is has another length with keys.
        assert_eq!(misses(&reader, key), (0, 0, 1, 0));
    }
    assert_eq!(misses(&cluster.working("works"), 3), (0, 0, 1, 0));
    // A bit that is flipped on the way.
    assert_eq!(misses(&cluster.encoding("flips", Codec::Auto, &[1]), 1), (0, 0, 0, 1));
    // An object in the place of another one, and a bit of each part of the form, with the right
    // checksums.
    let crc = |bytes: &[u8]| crc_fast::checksum(crc_fast::CrcAlgorithm::Crc32Iscsi, bytes) as u32;
    let trailer = object.len() - 32;
    let len = u64::from_le_bytes(object[trailer + 8..][..8].try_into().expect("8")) as usize;
    let misses_of = |flipped: Option<usize>, key: u8| {
        let mut other = object.clone();
        flipped.into_iter().for_each(|at| other[at] ^= 1);
        let sums = [crc(&other[..len]), crc(&[key])];
        other[trailer + 24..].copy_from_slice(&sums.map(u32::to_le_bytes).concat());
        fs::write(cluster.object(key), &other).expect("the folder can be written");
        misses(&cluster.encoding("works", Codec::None, &[1]), key)
    };
    assert_eq!(misses_of(None, 4), (0, 1, 0, 0));
    for at in [3, 16 + 30, 16 + 40, 16 + 50, len - 1] {
        assert_eq!(misses_of(Some(at), 1), (0, 1, 0, 0), "{at}");
    }
}

fn small_node() -> Node {
    let memory = Region::builder(1 << 20).backing(Backing::Shared).ladder(PageSize::Base).map();
    Node::create(memory.expect("memory can be mapped"), NodeOptions::default()).expect("possible")
}

/// Inserts values of which memory has room for a third, and returns when the cluster has most.
fn fill(tiered: &Tiered, tier: &ClusterTier) {
    let client = tiered.client();
    for key in 0..60_u8 {
        client.insert([key], &value(key.into(), 50_000)).expect("there is space");
        wait_for("values are stored ahead", || {
            let stats = tier.stats();
            stats.stored + stats.dropped + 12 > u64::from(key)
        });
    }
}

/// Returns how many of the values a client gets, and checks their bytes.
fn found(tiered: &Tiered) -> usize {
    let client = tiered.client();
    let get = |key: &u8| {
        let pins = client.get([*key]).expect("a call");
        let check = |pin: kvmem_node::NodePin| {
            assert_eq!(pin.bytes().expect("it is valid"), value((*key).into(), 50_000));
        };
        pins.map(check).is_some()
    };
    (0..60).filter(get).count()
}

#[test]
fn another_server_finds_what_one_has_evicted() {
    let cluster = Cluster::new();
    let tier = Arc::new(cluster.working("works"));
    let lower = Arc::clone(&tier) as Arc<dyn Tier>;
    let first = Tiered::start(Place::new(), small_node(), lower);
    fill(&first, &tier);
    let all = found(&first);
    assert!(all >= 45, "{all}: {:?}", tier.stats());
    assert!(tier.stats().fetched > 20, "{:?}", tier.stats());
    // A look-up asks the cluster, too; the last values are in memory alone.
    let other_tier = Arc::new(cluster.working("works"));
    let lower = Arc::clone(&other_tier) as Arc<dyn Tier>;
    let second = Tiered::start(Place::new(), small_node(), lower);
    let client = second.client();
    let stored = cluster.objects();
    let keys: Vec<[u8; 1]> = (0..60_u8).map(|key| [key]).collect();
    let there: Vec<[u8; 1]> =
        keys.iter().copied().filter(|key| client.lookup(&[*key]).expect("a call") == 1).collect();
    assert_eq!(there.len(), stored);
    assert_eq!(client.lookup(&there).expect("a call"), there.len());
    assert_eq!(found(&second), stored);
    // A value that is removed is found by neither.
    client.remove(&there[..1]).expect("a call");
    wait_for("the cluster has removed it", || other_tier.stats().stale == 0);
    assert!(client.get(there[0]).expect("a call").is_none());
    drop(client);
    second.end();
    first.end();
}

#[test]
fn a_server_goes_on_without_its_cluster() {
    let cluster = Cluster::new();
    let tier = Arc::new(cluster.working("hangs"));
    let lower = Arc::clone(&tier) as Arc<dyn Tier>;
    let tiered = Tiered::start(Place::new(), small_node(), lower);
    let client = tiered.client();
    let mut longest = Duration::ZERO;
    for key in 0..60_u8 {
        let started = Instant::now();
        client.insert([key], &value(key.into(), 50_000)).expect("there is space");
        client.get([key]).expect("a call").expect("it was just stored");
        longest = longest.max(started.elapsed());
    }
    // Space that only a store would free is waited for until the helper is killed.
    assert!(longest < Duration::from_secs(8), "{longest:?}");
    assert!(client.stats().expect("a call").values > 10);
    drop(client);
    tiered.end();
}

#[test]
fn a_cluster_below_a_disk_has_the_values_of_both() {
    let cluster = Cluster::new();
    // Room for all values: none is dropped.
    let options = ClusterOptions { staging_bytes: 16 << 20, ..cluster.options("works") };
    let tier = Arc::new(ClusterTier::start(options, |_| {}).expect("a thread"));
    wait_for("the helper is ready", || tier.state() == TierState::Working);
    let disk = kvmem_tier::DiskTier::on(
        kvmem_tier::device::MemoryDevice::new(16 << 20),
        &kvmem_tier::DiskTierOptions::default(),
    );
    let disk = Arc::new(disk.expect("it is new").0);
    let upper = Arc::clone(&disk) as Arc<dyn Tier>;
    let chain = Chain::new(upper, Arc::clone(&tier) as Arc<dyn Tier>);
    let first = Tiered::start(Place::new(), small_node(), Arc::new(chain));
    fill(&first, &tier);
    assert!(found(&first) >= 45 && disk.stats().hits > 20, "{:?}", disk.stats());
    assert_eq!(tier.stats().fetched, 0, "the disk has them");
    wait_for("nothing is queued", || tier.stats().queued_bytes == 0);
    assert_eq!(tier.stats().dropped, 0);
    first.end();
    // Without the disk.
    let lower = Arc::clone(&tier) as Arc<dyn Tier>;
    let second = Tiered::start(Place::new(), small_node(), lower);
    assert_eq!(found(&second), cluster.objects());
    assert!(cluster.objects() >= 40);
    second.end();
}

/// A helper: another process of this test binary, whose cluster is a folder.
#[test]
#[ignore = "a helper for other tests, which start it"]
fn helper() {
    let Ok(mode) = std::env::var("KVMEM_TEST_HELPER") else { return };
    let folder = PathBuf::from(std::env::var("KVMEM_TEST_CLUSTER").expect("the test sets it"));
    Helper::start(mode, folder).run();
    std::process::exit(0);
}

struct Helper {
    mode: String,
    folder: PathBuf,
    memory: Region,
    socket: OwnedFd,
}

impl Helper {
    fn start(mode: String, folder: PathBuf) -> Helper {
        let socket = std::io::stdin().as_fd().try_clone_to_owned().expect("a socket");
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut ancillary = RecvAncillaryBuffer::new(&mut space);
        let mut hello = [0; 16];
        let mut slices = [IoSliceMut::new(&mut hello)];
        let received =
            rustix::net::recvmsg(&socket, &mut slices, &mut ancillary, RecvFlags::empty());
        assert_eq!(received.expect("the server is there").bytes, 16);
        let mut files: Vec<OwnedFd> = Vec::new();
        for message in ancillary.drain() {
            if let RecvAncillaryMessage::ScmRights(rights) = message {
                files.extend(rights);
            }
        }
        assert_eq!(&hello[..8], b"kvmem-c2");
        let len = u64::from_le_bytes(hello[8..].try_into().expect("8 bytes"));
        let file = files.pop().expect("the memory");
        // The file cannot be cut short: the server need not fear SIGBUS.
        let grown = rustix::fs::ftruncate(file.as_fd(), 0);
        assert!(grown.is_err(), "its size is sealed");
        let memory = Region::attach(file, Some(len as usize)).expect("it is sealed");
        Helper { mode, folder, memory, socket }
    }

    fn is(&self, mode: &str) -> bool {
        self.mode == mode
    }

    /// Returns whether this is the first of the helpers that does something.
    fn is_first(&self, what: &str) -> bool {
        fs::File::create_new(self.folder.join(format!("{what}.pid")))
            .and_then(|mut file| write!(file, "{}", std::process::id()))
            .is_ok()
    }

    fn send(&self, id: u64, results: &[i64]) {
        let mut packet = id.to_le_bytes().to_vec();
        packet.extend((results.len() as u32).to_le_bytes());
        packet.extend(results.iter().flat_map(|it| it.to_le_bytes()));
        let _ = rustix::net::send(&self.socket, &packet, SendFlags::NOSIGNAL);
    }

    fn run(&self) {
        if self.is("never-ready") {
            sleep(Duration::from_secs(600));
        }
        self.send(0, &[1]);
        let mut buffer = vec![0; 1 << 16];
        loop {
            let received = rustix::net::recv(&self.socket, &mut buffer[..], RecvFlags::empty());
            let Ok((len @ 1.., _)) = received else { return };
            self.serve(&buffer[..len]);
        }
    }

    fn serve(&self, packet: &[u8]) {
        let number = |at: usize| u64::from_le_bytes(packet[at..at + 8].try_into().expect("8"));
        let half = |at: usize| u32::from_le_bytes(packet[at..at + 4].try_into().expect("4"));
        let (id, kind, count) = (number(0), half(8), half(12));
        let (mut at, mut results) = (16, Vec::new());
        for _ in 0..count {
            let (offset, len) = (number(at) as usize, number(at + 8) as usize);
            let key_len = usize::from(u16::from_le_bytes([packet[at + 16], packet[at + 17]]));
            let key = &packet[at + 18..at + 18 + key_len];
            at += 18 + key_len;
            results.push(self.item(kind, key, offset, len));
        }
        assert_eq!(at, packet.len());
        match &*self.mode {
            "late" => sleep(Duration::from_millis(30)),
            "garbage" => drop(rustix::net::send(&self.socket, b"?", SendFlags::NOSIGNAL)),
            "too-many" => results.push(1),
            "unknown-call" => return self.send(id + 7, &results),
            "long-packet" => results.resize(4000, 1),
            _ => {}
        }
        self.send(id, &results);
        if self.is("away-after-a-store") && kind == 2 {
            self.send(0, &[0]);
            sleep(Duration::from_millis(500));
            self.send(0, &[1]);
        }
    }

    fn read(&self, offset: usize, len: usize) -> Vec<u8> {
        assert!(offset + len <= self.memory.len());
        // SAFETY: the range lies in the mapping. The server leaves it alone until it has the
        // answer, and this process has one thread that uses it.
        let bytes =
            unsafe { std::slice::from_raw_parts(self.memory.base().as_ptr().add(offset), len) };
        bytes.to_vec()
    }

    fn write(&self, offset: usize, bytes: &[u8]) {
        assert!(offset + bytes.len() <= self.memory.len());
        // SAFETY: as for reading.
        unsafe {
            let to = self.memory.base().as_ptr().add(offset);
            to.copy_from_nonoverlapping(bytes.as_ptr(), bytes.len());
        }
    }

    fn item(&self, kind: u32, key: &[u8], offset: usize, len: usize) -> i64 {
        let name: String = key.iter().map(|byte| format!("{byte:02x}")).collect();
        let file = self.folder.join(&name);
        match kind {
            1 => {
                let len = fs::metadata(file).map_or(-1, |file| file.len() as i64);
                if self.is("huge") { i64::MAX } else { len }
            }
            2 | 6 => {
                if self.is("dies-once") && self.is_first("died") {
                    std::process::exit(3);
                }
                if self.is("hangs") || self.is("hangs-once") && self.is_first("hung") {
                    sleep(Duration::from_secs(600));
                }
                let part = self.folder.join(format!("{name}.part"));
                fs::write(&part, self.read(offset, len)).expect("the folder can be written");
                i64::from(fs::rename(part, file).is_ok())
            }
            3 => {
                let file = if self.is("swaps") { self.folder.join("03") } else { file };
                let Ok(mut bytes) = fs::read(file) else { return -1 };
                if bytes.len() > len {
                    return -1;
                }
                let middle = bytes.len() / 2;
                if self.is("flips") {
                    bytes[middle] ^= 1;
                }
                self.write(offset, &bytes);
                bytes.len() as i64 - i64::from(self.is("short"))
            }
            4 => {
                let _ = fs::remove_file(file);
                1
            }
            _ => {
                for entry in fs::read_dir(&self.folder).expect("a folder").flatten() {
                    if is_object(Ok(&entry)) {
                        let _ = fs::remove_file(entry.path());
                    }
                }
                1
            }
        }
    }
}
