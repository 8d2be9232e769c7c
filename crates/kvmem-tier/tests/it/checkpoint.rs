//! Checkpoints that are written while threads change values, and that a process does not finish.

use std::collections::HashMap;

use kvmem::tier::TierRead;
use kvmem_testkit::random::Random;
use kvmem_tier::{DiskTier, DiskTierOptions, Fetched};

use crate::simulated::Disk;

/// A process that is killed while it writes a checkpoint leaves changes in the other journal. The
/// next process uses that journal, and nothing of them comes back.
#[test]
fn what_an_unfinished_checkpoint_left_is_never_replayed() {
    let options = DiskTierOptions {
        max_entries: Some(2000),
        journal_bytes: Some(64 * 4096),
        ..DiskTierOptions::default()
    };
    let mut unfinished = 0;
    for seed in 0..30 {
        let disk = Disk::new(16 << 20, seed);
        let mut random = Random::new(seed);
        // Of each key the version that it has, and the one that was being stored at the end.
        let mut latest: HashMap<u64, (u64, u64)> = HashMap::new();
        let mut version = 0;
        for (batches, operations) in [(80, 2000 + random.below(500)), (3, u64::MAX), (1, u64::MAX)]
        {
            let (tier, _) = DiskTier::on(disk.clone(), &options).unwrap();
            for (key, versions) in &mut latest {
                let mut into = [0; 8];
                let key = key.to_le_bytes();
                let found = tier.fetch(&mut [TierRead { key: &key, into: &mut into }]);
                let found_version = u64::from_le_bytes(into);
                assert!(
                    (found == [Fetched::Hit] || versions.0 == 0)
                        && (versions.0..=versions.1).contains(&found_version),
                    "seed {seed}: {found:?}, {found_version} of {versions:?}"
                );
                *versions = (found_version, found_version);
            }
            let checkpoints = tier.stats().checkpoints;
            disk.end_after(operations);
            for _ in 0..batches {
                version += 1;
                let bytes = u64::to_le_bytes(version);
                let keys: Vec<u64> = (0..40).map(|_| random.below(400)).collect();
                let names: Vec<[u8; 8]> = keys.iter().map(|key| key.to_le_bytes()).collect();
                let batch: Vec<(&[u8], &[u8])> =
                    names.iter().map(|name| (&name[..], &bytes[..])).collect();
                let stored = tier.store(&batch);
                for (key, stored) in keys.iter().zip(&stored) {
                    let versions = latest.entry(*key).or_default();
                    versions.1 = version;
                    if stored.is_ok() {
                        versions.0 = version;
                    }
                }
                if stored.iter().any(Result::is_err) {
                    unfinished += u32::from(tier.stats().checkpoints == checkpoints);
                    break;
                }
            }
            drop(tier);
            disk.restart();
        }
    }
    assert!(unfinished > 5, "{unfinished} processes ended while they wrote a checkpoint");
}

/// Threads store, fetch and remove while checkpoints are written; the process ends at any moment.
#[test]
fn threads_go_on_while_a_checkpoint_is_written() {
    const KEYS: u64 = 150;
    for seed in 0..12 {
        let disk = Disk::new(16 << 20, seed);
        let options = DiskTierOptions {
            max_entries: Some(1000),
            journal_bytes: Some(32 * 4096),
            ..DiskTierOptions::default()
        };
        let (tier, _) = DiskTier::on(disk.clone(), &options).unwrap();
        disk.end_after(1500 + 100 * seed);
        // The version that each key certainly has, and the one that may have come since; 0: none.
        let known: Vec<Vec<(u64, u64)>> = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..3)
                .map(|thread| {
                    let tier = &tier;
                    scope.spawn(move || {
                        let mut random = Random::new(seed * 10 + thread);
                        let mut known = vec![(0, 0); KEYS as usize];
                        for version in 1.. {
                            let key = random.below(KEYS);
                            let name = (thread * KEYS + key).to_le_bytes();
                            let known = &mut known[key as usize];
                            let (next, done) = if random.once_in(5) {
                                (0, tier.remove(&[&name]).is_ok())
                            } else {
                                let value = u64::to_le_bytes(version);
                                (version, tier.store(&[(&name, &value)]).remove(0).is_ok())
                            };
                            known.1 = next;
                            if !done {
                                break;
                            }
                            known.0 = next;
                        }
                        known
                    })
                })
                .collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        assert!(tier.stats().checkpoints > 3 && tier.stats().evictions == 0);
        drop(tier);
        disk.restart();
        let (tier, _) = DiskTier::on(disk, &options).unwrap();
        for (thread, known) in (0..).zip(&known) {
            for (key, &(certain, last)) in (0..).zip(known) {
                let name = u64::to_le_bytes(thread * KEYS + key);
                let mut into = [0; 8];
                let found = tier.fetch(&mut [TierRead { key: &name, into: &mut into }]);
                assert!(matches!(found[0], Fetched::Hit | Fetched::Absent), "{found:?}");
                let version = u64::from_le_bytes(into);
                assert!(
                    version == certain || version == last,
                    "seed {seed}: {version}, not {certain} or {last}"
                );
            }
        }
    }
}
