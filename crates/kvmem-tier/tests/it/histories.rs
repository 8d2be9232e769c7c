//! Random histories with every kind of end, compared with what was acknowledged.

use std::collections::HashMap;

use kvmem_testkit::random::Random;
use kvmem_tier::{DiskTier, DiskTierOptions, Fetch, Fetched};

use crate::simulated::Disk;

/// More than the smaller tiers have entries for.
const KEYS: u64 = 100;

/// What may be found under a key: the states of its history from the last certain one on.
#[derive(Clone, Default)]
struct History {
    /// The state that is certain: a version, or nothing.
    certain: Option<u64>,
    /// Changes since then, in their order, and whether each was acknowledged.
    later: Vec<(Option<u64>, bool)>,
}

impl History {
    /// What was acknowledged is certain now, and what failed has not happened.
    fn settle(&mut self) {
        for (state, acknowledged) in self.later.drain(..) {
            if acknowledged {
                self.certain = state;
            }
        }
    }

    /// Adds a change; returns its place for [`acknowledge`](Self::acknowledge).
    fn change(&mut self, state: Option<u64>) -> usize {
        self.later.push((state, false));
        self.later.len() - 1
    }

    /// The change at this place has been acknowledged. Of the changes that a batch makes to one
    /// key, some may be, and others fail.
    fn acknowledge(&mut self, place: usize) {
        self.later[place].1 = true;
    }

    fn may_be(&self, found: Option<u64>, unsynced_lost: bool) -> bool {
        // A power cut may lose the bytes of a change, and not the journal's block about it.
        unsynced_lost && found.is_none() && !self.later.is_empty()
            || self.certain == found
            || self.later.iter().any(|&(state, _)| state == found)
    }
}

/// Returns the bytes of a version of a key: each tells both, and they are of many lengths.
fn value(key: u64, version: u64, len: usize) -> Vec<u8> {
    let word = (key << 32 | version).to_le_bytes();
    word.iter().copied().cycle().take(len.max(8)).collect()
}

fn version_of(key: u64, bytes: &[u8]) -> u64 {
    let word = u64::from_le_bytes(*bytes.first_chunk().unwrap());
    assert_eq!(word >> 32, key, "bytes of another key");
    let version = word & 0xFFFF_FFFF;
    assert_eq!(bytes, value(key, version, bytes.len()), "key {key} is mixed with another value");
    version
}

fn find(tier: &DiskTier<Disk>, key: u64) -> Option<u64> {
    let name = key.to_le_bytes();
    let mut bytes = vec![0; tier.len_of(&name)? as usize];
    let found = tier.fetch(&mut [Fetch { key: &name, into: &mut bytes }]);
    (found[0] == Fetched::Hit).then(|| version_of(key, &bytes))
}

/// How a life of the process ends.
#[derive(Clone, Copy, PartialEq, Debug)]
enum End {
    Clean,
    Killed,
    PowerCut,
}

/// Runs some lives of a process on one disk. With `roomy` nothing is ever evicted, so all of what
/// was acknowledged must be found. With `dsync` a power cut loses no more than the end of the
/// process does. Of the transfers one in `faults` has a fault: such a tier may lose any value, and
/// still finds no other. Returns how many values lay in several extents at the end of the lives.
fn lives(seed: u64, roomy: bool, dsync: bool, faults: u64) -> u64 {
    let mut random = Random::new(seed);
    let len = if roomy { 2 << 20 } else { 256 << 10 };
    let disk = Disk::new(len, seed);
    let disk = if dsync { disk.with_dsync() } else { disk };
    // Short journals, so that checkpoints are frequent. With 16 blocks and more, changes are made
    // while a checkpoint is written.
    let journal_blocks = [4, 16, 24][seed as usize % 3];
    let options = DiskTierOptions {
        max_entries: Some(if roomy { 256 } else { 63 }),
        journal_bytes: Some(journal_blocks * 4096),
        ..DiskTierOptions::default()
    };
    let mut histories: HashMap<u64, History> = HashMap::new();
    let (mut version, mut scattered) = (0, 0);
    let (mut end, mut was_cut) = (End::Clean, false);
    for life in 0..4 {
        let (tier, _) = match DiskTier::on(disk.clone(), &options) {
            Ok(opened) => opened,
            Err(error) => panic!("seed {seed}, life {life}: {error}"),
        };
        // What a power cut took is no fault of the disk.
        assert!(faults > 0 || tier.stats().quarantined == 0, "seed {seed}, life {life}");
        // Opening has synced the disk, so each value found here is certain from now on.
        for key in 0..KEYS {
            let found = find(&tier, key);
            let history = histories.entry(key).or_default();
            assert!(
                history.may_be(found, end == End::PowerCut && !dsync)
                    || (!roomy || faults > 0) && found.is_none(),
                "seed {seed}, life {life}: key {key} has {found:?}, not {:?} or {:?}",
                history.certain,
                history.later
            );
            *history = History { certain: found, later: Vec::new() };
        }
        let stats = tier.stats();
        assert!(faults > 0 || stats.quarantined + stats.checksum_misses == 0, "seed {seed}");
        was_cut |= end == End::PowerCut;
        assert!(was_cut || stats.lost_misses == 0 || faults > 0, "seed {seed}");
        end = match random.below(3) {
            0 => End::Clean,
            1 => End::Killed,
            _ => End::PowerCut,
        };
        if end != End::Clean {
            disk.end_after(1 + random.below(120));
        }
        disk.fault_once_in(faults);
        // After a power cut, only what was synced is certain.
        let certain_at_once = end != End::PowerCut || dsync;
        for _ in 0..random.below(60) {
            let keys: Vec<u64> = (0..1 + random.below(4)).map(|_| random.below(KEYS)).collect();
            let names: Vec<[u8; 8]> = keys.iter().map(|key| key.to_le_bytes()).collect();
            let mut places = Vec::new();
            let mut change = |key: u64, state| {
                places.push(histories.entry(key).or_default().change(state));
            };
            let done: Vec<bool> = match random.below(10) {
                0..6 => {
                    let longest = if roomy { 10_000 } else { 30_000 };
                    let values: Vec<Vec<u8>> = keys
                        .iter()
                        .map(|&key| {
                            version += 1;
                            change(key, Some(version));
                            value(key, version, random.below(longest) as usize)
                        })
                        .collect();
                    let batch: Vec<(&[u8], &[u8])> = names
                        .iter()
                        .zip(&values)
                        .map(|(name, value)| (&name[..], &value[..]))
                        .collect();
                    tier.store(&batch).iter().map(Result::is_ok).collect()
                }
                6 => {
                    keys.iter().for_each(|&key| change(key, None));
                    let names: Vec<&[u8]> = names.iter().map(|name| &name[..]).collect();
                    vec![tier.remove(&names).is_ok(); keys.len()]
                }
                7 => {
                    if tier.sync_all().is_ok() {
                        histories.values_mut().for_each(History::settle);
                    }
                    continue;
                }
                8 if random.once_in(3) => {
                    if tier.checkpoint().is_ok() {
                        histories.values_mut().for_each(History::settle);
                    }
                    continue;
                }
                _ => {
                    for key in keys {
                        let _ = find(&tier, key);
                    }
                    continue;
                }
            };
            for ((key, place), done) in keys.iter().zip(places).zip(&done) {
                if *done {
                    histories.entry(*key).or_default().acknowledge(place);
                }
            }
            // What failed alone may have happened: it stays among the changes.
            for (key, done) in keys.iter().zip(done) {
                if done && certain_at_once {
                    histories.entry(*key).or_default().settle();
                }
            }
        }
        scattered += tier.stats().scattered;
        // Those that still live write a checkpoint, unless they end just before.
        if end != End::Clean && random.once_in(2) {
            disk.end();
        }
        drop(tier);
        disk.restart();
        if end == End::PowerCut {
            disk.cut_power();
        }
    }
    scattered
}

#[test]
fn what_was_acknowledged_is_found_and_nothing_else() {
    let rounds = std::env::var("KVMEM_TEST_ROUNDS").ok().and_then(|n| n.parse().ok());
    let rounds = rounds.unwrap_or(100);
    let (mut scattered, mut histories) = (0, 0);
    for seed in 0..rounds {
        histories += if seed % 3 == 0 { 6 } else { 4 };
        scattered += lives(seed, true, false, 0) + lives(seed, false, false, 0);
        scattered += lives(seed, true, false, 100) + lives(seed, false, false, 100);
        if seed % 3 == 0 {
            scattered += lives(seed, true, true, 0) + lives(seed, false, true, 0);
        }
    }
    assert!(scattered > 0, "no value lay in several extents");
    println!("{rounds} seeds, {histories} histories of 4 lives, nothing wrong, nothing missing");
}
