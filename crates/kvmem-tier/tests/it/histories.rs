//! Random histories with every kind of end, compared with what was acknowledged. After some ends,
//! blocks in the middle of the journal are damaged: values may be lost then, and none comes back.

use std::collections::HashMap;
use std::time::Duration;

use kvmem::tier::{TierRead, TierValue};
use kvmem_testkit::random::Random;
use kvmem_tier::format::{BLOCK, read_journal_block};
use kvmem_tier::{DiskTier, DiskTierOptions, Fetched, inspect};

use crate::encoded::both;
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
    /// Acknowledged changes are certain now, and failed ones have not happened.
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

/// Returns the bytes of a version of a key: each names both, and they are of many lengths.
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
    let found = tier.fetch(&mut [TierRead { key: &name, into: &mut bytes }]);
    (found[0] == Fetched::Hit).then(|| version_of(key, &bytes))
}

/// What some lives had.
#[derive(Default)]
struct Outcome {
    /// Values in several extents.
    scattered: u64,
    /// Journals that were damaged, and values that were dropped for that.
    damaged: u64,
    in_doubt: u64,
    /// Reads that the disk failed in outages.
    failed: u64,
}

/// What of a disk fails while it is used.
#[derive(Clone, Copy, PartialEq)]
enum Faults {
    None,
    /// One in a number of transfers has a fault of any kind.
    OneIn(u64),
    /// All reads fail for a while, and then none.
    Outages,
}

/// How a life of the process ends.
#[derive(Clone, Copy, PartialEq, Debug)]
enum End {
    Clean,
    Killed,
    PowerCut,
}

/// Damages some blocks of the journal that have a whole one behind them. Returns false if there are
/// none.
pub(crate) fn damage_journal(disk: &Disk, random: &mut Random) -> bool {
    let Ok(contents) = inspect(disk).unwrap().contents else { return false };
    let superblock = contents.superblock;
    let journal = superblock.layout.journals[superblock.journal as usize];
    let bytes = disk.bytes();
    let at = |index: u64| journal.start + index * BLOCK as u64;
    let whole: Vec<u64> = (0..journal.blocks())
        .filter(|&index| {
            let block = read_journal_block(&bytes[at(index) as usize..][..BLOCK]);
            block.is_some_and(|block| {
                let of = (superblock.file, superblock.epoch, index);
                (block.file, block.epoch, u64::from(block.index)) == of
            })
        })
        .collect();
    let count = 1 + random.below(2) as usize;
    if whole.len() <= count {
        return false;
    }
    let first = random.below((whole.len() - count) as u64) as usize;
    for &index in &whole[first..first + count] {
        let (kind, place) = (random.below(3), random.below(BLOCK as u64 * 8) as usize);
        disk.falsify(at(index)..at(index + 1), |block| match kind {
            0 => block[place / 8] ^= 1 << (place % 8),
            1 => block.fill(0),
            _ => block[512..].fill(0xA5),
        });
    }
    true
}

/// Runs some lives of a process on one disk. With `roomy` nothing is ever evicted, so all of what
/// was acknowledged must be found. With `dsync` a power cut loses no more than the end of the
/// process does. Of the transfers one in `faults` has a fault: such a tier may lose any value, and
/// still finds no other. Returns how many values lay in several extents at the end of the lives.
fn lives(seed: u64, roomy: bool, dsync: bool, faults: Faults, damages: bool) -> Outcome {
    let has_outages = faults == Faults::Outages;
    let faults = if let Faults::OneIn(n) = faults { n } else { 0 };
    let mut random = Random::new(seed);
    let len = if roomy { 2 << 20 } else { 256 << 10 };
    let encodes = seed % 2 == 1;
    let disk = Disk::new(len, seed);
    let disk = if dsync { disk.with_dsync() } else { disk };
    // Short journals, so that checkpoints are frequent. With 16 blocks and more, changes are made
    // while a checkpoint is written.
    let journal_blocks = [4, 16, 24][seed as usize % 3];
    let options = DiskTierOptions {
        max_entries: Some(if roomy { 256 } else { 63 }),
        journal_bytes: Some(journal_blocks * 4096),
        ..if encodes { both() } else { DiskTierOptions::default() }
    };
    let mut histories: HashMap<u64, History> = HashMap::new();
    let (mut version, mut outcome) = (0, Outcome::default());
    let (mut end, mut was_cut, mut is_damaged) = (End::Clean, false, false);
    for life in 0..4 {
        let (tier, report) = match DiskTier::on(disk.clone(), &options) {
            Ok(opened) => opened,
            Err(error) => panic!("seed {seed}, life {life}: {error}"),
        };
        assert!(!is_damaged || report.journal_damaged > 0, "seed {seed}, life {life}: {report:?}");
        assert!(end == End::PowerCut || is_damaged || report.journal_damaged == 0, "seed {seed}");
        outcome.damaged += u64::from(is_damaged);
        outcome.in_doubt += report.in_doubt;
        // What a power cut took is no fault of the disk.
        assert!(faults > 0 || tier.stats().quarantined == 0, "seed {seed}, life {life}");
        // Opening has synced the disk, so each value found here is certain from now on.
        for key in 0..KEYS {
            let found = find(&tier, key);
            let history = histories.entry(key).or_default();
            assert!(
                history.may_be(found, end == End::PowerCut && !dsync)
                    || (!roomy || faults > 0 || is_damaged) && found.is_none(),
                "seed {seed}, life {life}, {report:?}: key {key} has {found:?}, not {:?} or {:?}",
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
            if has_outages {
                disk.pass(Duration::from_millis(random.below(3000)));
                if random.once_in(6) {
                    disk.fail_reads_once_in(random.below(2));
                }
            }
            let keys: Vec<u64> = (0..1 + random.below(4)).map(|_| random.below(KEYS)).collect();
            let names: Vec<[u8; 8]> = keys.iter().map(|key| key.to_le_bytes()).collect();
            let mut positions = Vec::new();
            let mut change = |key: u64, state| {
                positions.push(histories.entry(key).or_default().change(state));
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
                    let batch: Vec<TierValue<'_>> = names
                        .iter()
                        .zip(&values)
                        .map(|(name, value)| TierValue::new(name, value))
                        .map(|value| value.with_namespace(&value.key[..1]))
                        .collect();
                    tier.store_with(&batch).iter().map(Result::is_ok).collect()
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
                8 if encodes && random.once_in(4) => {
                    let of_namespace = keys[0];
                    change(of_namespace, None);
                    if tier.forget_namespace(&names[0][..1]).is_ok() {
                        let history = histories.entry(of_namespace).or_default();
                        history.acknowledge(positions[0]);
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
            for ((key, place), done) in keys.iter().zip(positions).zip(&done) {
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
        outcome.scattered += tier.stats().scattered;
        outcome.failed += tier.stats().io_misses;
        // Those that still live write a checkpoint, unless they end just before.
        if end != End::Clean && random.once_in(2) {
            disk.end();
        }
        drop(tier);
        disk.restart();
        if end == End::PowerCut {
            disk.cut_power();
        }
        is_damaged = damages && damage_journal(&disk, &mut random);
    }
    outcome
}

#[test]
fn what_was_acknowledged_is_found_and_nothing_else() {
    let number = |name| std::env::var(name).ok().and_then(|n| n.parse().ok());
    let rounds = number("KVMEM_TEST_ROUNDS").unwrap_or(40);
    let first = number("KVMEM_TEST_SEED").unwrap_or(0);
    let (mut sum, mut histories) = (Outcome::default(), 0);
    let mut add = |one: Outcome| {
        histories += 1;
        sum.scattered += one.scattered;
        sum.damaged += one.damaged;
        sum.in_doubt += one.in_doubt;
        sum.failed += one.failed;
    };
    for seed in first..first + rounds {
        for roomy in [true, false] {
            add(lives(seed, roomy, false, Faults::None, false));
            add(lives(seed, roomy, false, Faults::OneIn(100), false));
            add(lives(seed, roomy, false, Faults::Outages, false));
            add(lives(seed, roomy, false, Faults::None, true));
            if seed % 3 == 0 {
                add(lives(seed, roomy, true, Faults::None, false));
                add(lives(seed, roomy, true, Faults::None, true));
            }
        }
    }
    assert!(sum.scattered > 0, "no value lay in several extents");
    assert!(sum.failed > 100, "{} reads failed", sum.failed);
    let Outcome { damaged, in_doubt, .. } = sum;
    assert!(damaged > 20 && in_doubt > 20, "{damaged} journals damaged, {in_doubt} in doubt");
    println!(
        "{rounds} seeds, {histories} histories of 4 lives, {damaged} journals damaged, {in_doubt} \
         values dropped for that: nothing wrong, nothing else missing"
    );
}
