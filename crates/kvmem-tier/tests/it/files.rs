//! Real files, and processes that are killed.

use std::collections::HashMap;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use kvmem::tier::TierRead;
use kvmem_testkit::random::Random;
use kvmem_tier::device::{Device, Engine, FileDevice};
use kvmem_tier::{DiskTier, DiskTierOptions, Fetched, TierError};
use tempfile::TempPath;

/// Returns a path without a file.
pub(crate) fn temp_path(name: &str) -> TempPath {
    let unmade = tempfile::Builder::new().prefix(name).make(|_| Ok(()));
    unmade.unwrap().into_temp_path()
}

/// Options of a file of `bytes` bytes.
fn sized(bytes: u64) -> DiskTierOptions {
    DiskTierOptions { bytes: Some(bytes), ..DiskTierOptions::default() }
}

pub(crate) fn open(path: &Path) -> (DiskTier, kvmem_tier::OpenReport) {
    DiskTier::open(path, &sized(8 << 20)).unwrap()
}

/// `O_DSYNC` is a property of the file as it is opened, and files are the same with it and without.
#[test]
fn a_file_is_opened_with_dsync_or_without() {
    let file = temp_path("dsync");
    let mut stored = 0_u32;
    for dsync in [true, false, true] {
        let options = DiskTierOptions { dsync, ..sized(8 << 20) };
        let (tier, found) = DiskTier::open(&file, &options).unwrap();
        assert_eq!((tier.device().writes_are_durable(), found.entries), (dsync, stored.into()));
        for _ in 0..20 {
            stored += 1;
            let value = stored.to_le_bytes().repeat(700);
            tier.store(&[(&stored.to_le_bytes(), &value)]).remove(0).unwrap();
        }
        for key in 1..=stored {
            let mut into = vec![0; 2800];
            let found = tier.fetch(&mut [TierRead { key: &key.to_le_bytes(), into: &mut into }]);
            assert_eq!(found, [Fetched::Hit], "{key}");
            assert!(into.chunks(4).all(|part| part == key.to_le_bytes()));
        }
    }
}

/// A process that may have no ring transfers by threads, with the same effect.
#[test]
fn both_engines_transfer_the_same_bytes() {
    let file = temp_path("engines");
    let values: Vec<Vec<u8>> = (0..64_u8).map(|i| vec![i; 5000 * usize::from(i)]).collect();
    let keys: Vec<[u8; 1]> = (0..64).map(|i| [i]).collect();
    let options = DiskTierOptions::default();
    for rings in [true, false] {
        let device = FileDevice::open(&file, 32 << 20, 8).unwrap();
        let device = if rings { device } else { device.without_rings() };
        if !rings {
            assert_eq!(device.engine(), Engine::Threads);
        }
        let (tier, found) = DiskTier::on(device, &options).unwrap();
        assert_eq!(found.created, rings);
        if rings {
            let batch: Vec<(&[u8], &[u8])> =
                keys.iter().zip(&values).map(|(key, value)| (&key[..], &value[..])).collect();
            assert!(tier.store(&batch).iter().all(Result::is_ok));
        }
        let mut memory: Vec<Vec<u8>> = values.iter().map(|value| vec![0; value.len()]).collect();
        let mut requests: Vec<TierRead<'_>> =
            keys.iter().zip(&mut memory).map(|(key, into)| TierRead { key, into }).collect();
        assert!(tier.fetch(&mut requests).iter().all(|&found| found == Fetched::Hit));
        assert_eq!(memory, values);
    }
}

/// A file that has its length and nothing else is a new one, as a process leaves it that was killed
/// while it made a tier. A long one is not read through.
#[test]
fn a_file_without_a_byte_is_new_and_a_foreign_one_is_not() {
    let file = temp_path("zeros");
    let long = || std::fs::File::create(&file).unwrap().set_len(1 << 40);
    if long().is_err() {
        long_file(&file, 1 << 30);
    }
    {
        let (tier, found) = DiskTier::open(&file, &small_index()).unwrap();
        assert!(found.created && tier.device().len() >= 1 << 30);
    }
    assert!(!DiskTier::open(&file, &small_index()).unwrap().1.created);
    std::fs::remove_file(&file).unwrap();
    // Zeros where a tier would read, and one byte far behind.
    long_file(&file, 1 << 30);
    let other = std::fs::OpenOptions::new().write(true).open(&file).unwrap();
    std::os::unix::fs::FileExt::write_all_at(&other, b"7", 900 << 20).unwrap();
    let error = DiskTier::open(&file, &small_index()).err().unwrap();
    assert!(error.to_string().contains("it is no disk tier"), "{error}");
}

fn long_file(path: &Path, len: u64) {
    std::fs::File::create(path).unwrap().set_len(len).unwrap();
}

/// Options of a tier whose index takes little of a long file.
fn small_index() -> DiskTierOptions {
    DiskTierOptions {
        max_entries: Some(1000),
        journal_bytes: Some(1 << 20),
        ..DiskTierOptions::default()
    }
}

/// A file that is cut off beneath a tier loses values; what is left is found, and the process
/// lives.
#[test]
fn a_file_may_be_cut_off_beneath_a_tier() {
    let file = temp_path("cut");
    let (tier, _) = open(&file);
    let value = vec![7; 100_000];
    for key in 0..40_u8 {
        tier.store(&[(&[key], &value)]).remove(0).unwrap();
    }
    let other = std::fs::OpenOptions::new().write(true).open(&file).unwrap();
    other.set_len(2 << 20).unwrap();
    let (mut hits, mut failed) = (0, 0);
    for key in 0..40_u8 {
        let mut into = vec![0; value.len()];
        match tier.fetch(&mut [TierRead { key: &[key], into: &mut into }])[0] {
            Fetched::Hit => {
                assert_eq!(into, value);
                hits += 1;
            }
            Fetched::Failed => failed += 1,
            other => panic!("{other:?}"),
        }
    }
    assert!(hits > 0 && failed > 0, "{hits} hits, {failed} failed");
    assert_eq!((tier.stats().short_misses, tier.stats().io_misses), (failed, 0));
    drop(tier);
    // It is shorter than the superblock says.
    let device = FileDevice::open(&file, 0, 4).unwrap();
    let error = DiskTier::on(device, &DiskTierOptions::default()).err().unwrap();
    assert!(error.to_string().contains("was cut off"), "{error}");
}

/// Another file in the place of the tier's does not change the tier.
#[test]
fn a_file_may_be_replaced_beneath_a_tier() {
    let (file, other) = (temp_path("replaced"), temp_path("other"));
    let (tier, _) = open(&file);
    tier.store(&[(b"key", b"value")]).remove(0).unwrap();
    std::fs::write(&other, b"no tier").unwrap();
    std::fs::rename(&other, &file).unwrap();
    let mut into = [0; 5];
    assert_eq!(tier.fetch(&mut [TierRead { key: b"key", into: &mut into }]), [Fetched::Hit]);
    tier.store(&[(b"another", b"value")]).remove(0).unwrap();
    drop(tier);
    let error = DiskTier::open(&file, &DiskTierOptions::default()).err().unwrap();
    assert!(error.to_string().contains("it is no disk tier"), "{error}");
    assert_eq!(std::fs::read(&file).unwrap(), b"no tier");
}

#[test]
fn what_is_no_file_is_an_error() {
    let missing = Path::new("/proc/no/such/folder/tier");
    for path in [missing, Path::new("/proc"), Path::new("/dev/null")] {
        let error = DiskTier::open(path, &sized(1 << 20)).err().unwrap();
        assert!(!error.to_string().is_empty(), "{}", path.display());
    }
    let file = temp_path("small");
    let error = DiskTier::open(&file, &sized(4096)).err().unwrap();
    assert!(error.to_string().contains("leaves no block for values"), "{error}");
}

/// Threads of the program that is killed, and the keys that each changes alone.
const THREADS: u64 = 3;
const KEYS: u64 = 50;

/// Returns the bytes of a version of a key. Each names both.
fn versioned(key: u64, version: u64) -> Vec<u8> {
    (key << 32 | version).to_le_bytes().repeat(1 + (version * 37 % 1500) as usize)
}

/// The program of the test that is killed. Its threads store batches of new values, replace and
/// remove them. A line of each names the keys with their new versions, 0 for a removal, before the
/// call (`begin`) and after it (`done`).
#[test]
fn child_that_stores() {
    let Ok(path) = std::env::var("KVMEM_TEST_CHILD") else { return };
    let first: u64 = std::env::var("KVMEM_TEST_VERSION").unwrap().parse().unwrap();
    // Nothing is evicted: all values together take a tenth of it.
    let (tier, _) = DiskTier::open(&path, &sized(32 << 20)).unwrap();
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let tier = &tier;
            scope.spawn(move || {
                let mut random = Random::new(u64::from(std::process::id()) + thread);
                for version in first.. {
                    let mut keys: Vec<u64> = (0..1 + random.below(5))
                        .map(|_| thread * KEYS + random.below(KEYS))
                        .collect();
                    keys.sort_unstable();
                    keys.dedup();
                    let names: Vec<[u8; 8]> = keys.iter().map(|key| key.to_le_bytes()).collect();
                    let removes = random.once_in(4);
                    let version = if removes { 0 } else { version };
                    let line: String = keys.iter().map(|key| format!(" {key}:{version}")).collect();
                    println!("begin{line}");
                    if removes {
                        let names: Vec<&[u8]> = names.iter().map(|name| &name[..]).collect();
                        tier.remove(&names).unwrap();
                    } else {
                        let values: Vec<Vec<u8>> =
                            keys.iter().map(|&key| versioned(key, version)).collect();
                        let batch: Vec<(&[u8], &[u8])> = names
                            .iter()
                            .zip(&values)
                            .map(|(name, value)| (&name[..], &value[..]))
                            .collect();
                        assert!(tier.store(&batch).iter().all(Result::is_ok));
                    }
                    assert_eq!(tier.stats().evictions, 0);
                    println!("done{line}");
                }
            });
        }
    });
}

/// A call that fails leaves no file that the next one would take for something else.
#[test]
fn a_file_that_would_be_too_short_is_not_made() {
    let file = temp_path("short");
    let options = DiskTierOptions { bytes: Some(5000), ..DiskTierOptions::default() };
    let error = DiskTier::open(&file, &options).map(drop).unwrap_err();
    let TierError::TooSmall { min, .. } = error else { panic!("{error}") };
    assert!(!file.exists());
    let options = DiskTierOptions { bytes: Some(min), ..DiskTierOptions::default() };
    assert!(DiskTier::open(&file, &options).unwrap().1.created);
}

/// Everything that a process has acknowledged is there after `kill -9`, and nothing that was
/// removed or replaced. Every other process is killed while it makes the tier, or soon after.
#[test]
fn a_killed_process_loses_nothing_that_it_acknowledged() {
    let mut random = Random::new(11);
    let mut file = temp_path("killed");
    // Of each key the version that is certain, and the one that may have come since; 0: none.
    let mut known: HashMap<u64, (u64, u64)> = HashMap::new();
    let (mut calls, mut half_made) = (0, 0);
    let kills = std::env::var("KVMEM_TEST_KILLS").ok().and_then(|kills| kills.parse().ok());
    let kills: u64 = kills.unwrap_or(10);
    for kill in 0..kills {
        let makes = kill % 2 == 1;
        let fresh = temp_path("half-made");
        let path = if makes { &fresh } else { &file };
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "files::child_that_stores", "--nocapture"])
            .env("KVMEM_TEST_CHILD", path)
            .env("KVMEM_TEST_VERSION", (1 + kill * 1_000_000).to_string())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines().map_while(Result::ok);
        let mut lines = lines.filter(|line| line.starts_with("begin") || line.starts_with("done"));
        let mut seen: Vec<String> = Vec::new();
        if makes {
            // It is killed as soon as the file is there, or some microseconds later.
            while !path.exists() && child.try_wait().unwrap().is_none() {
                std::hint::spin_loop();
            }
            std::thread::sleep(Duration::from_micros(random.below(3000)));
        } else {
            seen.extend(lines.by_ref().take(20 + random.below(800) as usize));
        }
        child.kill().unwrap();
        child.wait().unwrap();
        seen.extend(lines);
        let mut of_fresh = HashMap::new();
        let known = if makes { &mut of_fresh } else { &mut known };
        for line in &seen {
            let mut words = line.split(' ');
            let is_done = words.next() == Some("done");
            calls += u64::from(is_done);
            for word in words {
                let (key, version) = word.split_once(':').unwrap();
                let (key, version) = (key.parse().unwrap(), version.parse().unwrap());
                let versions: &mut (u64, u64) = known.entry(key).or_default();
                versions.1 = version;
                if is_done {
                    versions.0 = version;
                }
            }
        }
        let (tier, found) = DiskTier::open(path, &sized(32 << 20)).unwrap();
        half_made += u32::from(makes && found.created);
        assert!(!found.created || seen.is_empty());
        for key in 0..THREADS * KEYS {
            let versions = known.entry(key).or_default();
            let name = key.to_le_bytes();
            let mut version = 0;
            if let Some(len) = tier.len_of(&name) {
                let mut into = vec![0; len as usize];
                let got = tier.fetch(&mut [TierRead { key: &name, into: &mut into }]);
                assert_eq!(got, [Fetched::Hit], "{key}");
                version = u64::from_le_bytes(*into.first_chunk().unwrap()) & 0xFFFF_FFFF;
                assert!(into == versioned(key, version), "{key} has other bytes");
            }
            assert!(
                version == versions.0 || version == versions.1,
                "kill {kill}: {key} has {version}, not one of {versions:?}"
            );
            *versions = (version, version);
        }
        drop(tier);
        if kill % 20 == 18 {
            // The next one begins with nothing: the drop of the old one removes the file.
            file = temp_path("killed");
            known.clear();
        }
    }
    assert!(calls >= 5 * kills.div_ceil(2), "{calls} calls before {kills} kills");
    println!("{kills} kills, {calls} calls, {half_made} files that were half made");
}
