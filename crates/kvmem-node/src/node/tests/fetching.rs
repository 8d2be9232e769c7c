//! Values that come back from the tier, and keys that it must look up first.

use std::time::Duration;

use kvmem::tier::{Priority, TierHints};

use super::model_tier::{ModelTier, NO_KEYS, PAGE, TierNode, roomy};
use super::*;

/// Returns keys of one byte.
fn keys(keys: std::ops::Range<u8>) -> Vec<[u8; 1]> {
    keys.map(|key| [key]).collect()
}

fn refs(keys: &[[u8; 1]]) -> Vec<&[u8]> {
    keys.iter().map(<[u8; 1]>::as_slice).collect()
}

/// An acquisition that does not wait begins to fetch a quarter of the memory, sixteen values in a
/// job, and the next one goes on. The end of a prefix is fetched before its start within a job.
#[test]
fn an_acquisition_fetches_a_part_and_the_next_one_goes_on() {
    let all = keys(0..60);
    let all = refs(&all);
    let options = NodeOptions { align: 64, ..roomy() };
    for (len, first) in [(PAGE, 16_usize), (64, 60)] {
        let options = options.clone();
        let mut used = TierNode::with(options, TierOptions::default(), ModelTier::default());
        (0..60).for_each(|key| used.tier.add(&[key], len));
        let (found, pending) = used.acquire(&all, true);
        assert!(found.iter().all(|found| !found));
        assert_eq!(pending, (0..first as u16).collect::<Vec<u16>>());
        // The same call again waits for the same values, and begins no more of them.
        assert_eq!(used.acquire(&all, true).1, pending);
        let jobs = used.fetched_next();
        let expected: Vec<Vec<u8>> =
            (0..first as u8).collect::<Vec<u8>>().chunks(16).map(|it| it.to_vec()).collect();
        let reversed = |job: Vec<u8>| job.into_iter().rev().collect::<Vec<u8>>();
        assert_eq!(jobs.into_iter().map(reversed).collect::<Vec<_>>(), expected);
        let (found, pending) = used.acquire(&all, true);
        assert_eq!(found.iter().filter(|found| **found).count(), first);
        assert_eq!(pending.first().copied(), (first < 60).then_some(first as u16));
        assert_eq!(used.node.stats().tier_fetched_total, first as u64);
    }
}

/// What others fetch has taken the room: the call waits for its first value alone.
#[test]
fn an_acquisition_waits_for_room_that_others_have_taken() {
    let mut used = TierNode::new(ModelTier::default());
    let all = keys(0..30);
    (0..30).for_each(|key| used.tier.add(&[key], PAGE));
    assert_eq!(used.acquire(&refs(&all[..20]), false).1.len(), 16);
    assert_eq!(used.acquire(&refs(&all[20..]), false), (vec![false; 10], vec![0]));
    // Neither a key without a value nor one behind it waits.
    assert!(used.acquire(&[b"none", &[20]], false).1.is_empty());
    // A call that waits for all of them is not limited.
    let (waits, goes_on) =
        used.node.fetch_from_tier(used.session, &refs(&all[20..]), false, Some(1), 0);
    assert_eq!((waits, goes_on), ((0..10).collect(), None));
    assert_eq!(used.fetched_next().iter().map(Vec::len).collect::<Vec<_>>(), [16, 10]);
}

#[test]
fn an_acquisition_without_a_call_that_waits_has_a_limited_number_of_keys() {
    let options = NodeOptions { max_blocks: Some(400), align: 64, ..options() };
    let mut used = TierNode::with(options, TierOptions::default(), ModelTier::default());
    let all: Vec<[u8; 2]> = (0..300_u16).map(u16::to_be_bytes).collect();
    all.iter().for_each(|key| used.tier.add(key, 64));
    let all: Vec<&[u8]> = all.iter().map(<[u8; 2]>::as_slice).collect();
    assert_eq!(used.acquire(&all, true).1.len(), 256);
    let (waits, _) = used.node.fetch_from_tier(used.session, &all, true, Some(1), 0);
    assert_eq!(waits.len(), 300);
}

/// Behind the first key of a prefix that nothing has, nothing is fetched; of other keys each is.
#[test]
fn a_prefix_ends_at_the_first_key_that_nothing_has() {
    for (prefix_only, pending) in [(true, vec![1]), (false, vec![1, 3])] {
        let mut used = TierNode::new(ModelTier::with(&[b"b", b"d"]));
        insert(&mut used.node, used.session, b"a", 64);
        assert_eq!(used.acquire(&[b"a", b"b", b"c", b"d"], prefix_only).1, pending);
        // The value is longer than all of the memory.
        used.tier.add(b"e", 2 * BYTES as u64);
        let (waits, goes_on) =
            used.node.fetch_from_tier(used.session, &[b"b", b"e", b"d"], prefix_only, Some(9), 0);
        assert_eq!(goes_on, None);
        assert_eq!(waits, if prefix_only { vec![0] } else { vec![0, 2] });
    }
}

/// A call that may evict no more goes on later from the key that needs it; one that does not wait
/// has to be made again.
#[test]
fn a_fetch_that_needs_more_evictions_goes_on_later() {
    let mut used = TierNode::new(ModelTier::with(&[b"x", b"y", b"z"]));
    let all: [&[u8]; 3] = [b"x", b"y", b"z"];
    used.insert(0..64);
    used.node.evictions_left = 1;
    let fetch = |used: &mut TierNode, from| {
        used.node.fetch_from_tier(used.session, &all, true, Some(1), from)
    };
    assert_eq!(fetch(&mut used, 0), (vec![0], Some(1)));
    assert_eq!(fetch(&mut used, 1), (vec![], Some(1)));
    // One that does not wait has a place to wait for, and then needs no other one.
    assert_eq!(used.acquire(&all, true).1, [0]);
    assert_eq!(used.acquire(&all[1..], true).1, [0]);
    assert_eq!(used.acquire(&all[1..], false).1, [0]);
    used.node.evictions_left = u32::MAX;
    assert_eq!(fetch(&mut used, 1), (vec![1, 2], None));
    // All is pinned, and nothing can be evicted for it.
    let mut full = TierNode::new(ModelTier::with(&[b"x", b"y"]));
    full.node.reserve(full.session, &[PAGE; 63]).expect("there is space");
    full.tier.add(b"long", 2 * PAGE);
    let keys: [&[u8]; 2] = [b"long", b"x"];
    for (prefix_only, waits) in [(true, vec![]), (false, vec![1])] {
        assert_eq!(full.acquire(&keys, prefix_only).1, waits);
        let (found, goes_on) =
            full.node.fetch_from_tier(full.session, &keys, prefix_only, Some(2), 0);
        assert_eq!((found, goes_on), (waits, None));
    }
}

/// Space comes when the tier has stored what it is storing: the next call fetches.
#[test]
fn an_acquisition_waits_for_space_that_comes() {
    let mut used = TierNode::new(ModelTier::with(&[b"x", b"y"]));
    used.insert(0..4);
    used.node.reserve(used.session, &[PAGE; 60]).expect("there is space");
    assert_eq!(used.store_jobs().len(), 1);
    assert_eq!(used.acquire(&[b"x", b"y"], false).1, [0], "all values are being stored");
    let (waits, goes_on) = used.node.fetch_from_tier(used.session, &[b"x"], false, Some(2), 0);
    assert_eq!((waits, goes_on), (vec![], None), "the caller waits for space");
}

#[test]
fn at_most_1024_calls_wait_for_a_key() {
    let mut used = TierNode::new(ModelTier::with(&[b"x", b"y"]));
    let fetch = |used: &mut TierNode, prefix_only, waiting| {
        used.node.fetch_from_tier(used.session, &[b"x", b"y"], prefix_only, Some(waiting), 0).0
    };
    (0..1024).for_each(|waiting| assert_eq!(fetch(&mut used, true, waiting), [0, 1]));
    assert!(fetch(&mut used, true, 1024).is_empty());
    assert!(fetch(&mut used, false, 1024).is_empty());
    // One that does not wait is no call too many.
    assert_eq!(used.acquire(&[b"x"], true).1, [0]);
    let job = used.node.take_jobs().remove(0);
    let mut ended = used.finish(job);
    ended.sort_unstable();
    let twice: Vec<u64> = (0..1024).flat_map(|waiting| [waiting, waiting]).collect();
    assert_eq!(ended, twice, "once for each key");
}

/// What was committed, removed or cleared while an older value came stays as it is.
#[test]
fn a_value_that_comes_too_late_is_dropped() {
    type Change = fn(&mut TierNode);
    let changes: [(Change, bool); 4] = [
        (|used| insert(&mut used.node, used.session, b"x", 64), true),
        (|used| _ = used.node.remove_only_in_tier(used.session, &[b"x"], None), false),
        (|used| used.node.clear_tier(None), false),
        (|used| used.node.clear_tier(Some(used.node.namespace_number(used.session))), false),
    ];
    for (at, (change, is_there)) in changes.into_iter().enumerate() {
        let mut used = TierNode::new(ModelTier::with(&[b"x"]));
        assert_eq!(used.acquire(&[b"x"], false).1, [0]);
        let fetch = used.node.take_jobs().remove(0);
        let other = begin_in(&mut used.node, "other");
        change(&mut used);
        let found = used.node.lookup(used.session, &[b"x"], 5);
        assert_eq!(found, usize::from(is_there), "change {at}");
        assert_eq!(used.node.lookup(other, &[b"x"], 5), 0);
        used.finish(fetch);
        assert_eq!(used.node.find(0, b"x").is_some(), is_there, "change {at}");
        let stats = used.node.stats();
        assert_eq!((stats.tier_fetched_total, stats.tier_failed_total), (0, 0));
        assert_eq!(stats.used, if is_there { PAGE } else { 0 });
    }
}

/// The tier keeps the priority, the type and the time that is left.
#[test]
fn a_fetched_value_has_what_the_tier_says_of_it() {
    let mut used = TierNode::new(ModelTier::with(&[b"x", b"y", b"late", b"lost"]));
    let keys: [&[u8]; 4] = [b"x", b"y", b"late", b"lost"];
    let (waits, _) = used.node.fetch_from_tier(used.session, &keys, false, Some(3), 0);
    assert_eq!(waits.len(), 4);
    let TierJob::Fetch(values) = used.node.take_jobs().remove(0) else { panic!("a fetch") };
    let hints = TierHints {
        priority: Priority::MAX,
        data_type: DataType::Float16,
        ttl: Some(Duration::from_millis(20)),
        ..TierHints::default()
    };
    let over = TierHints { ttl: Some(Duration::ZERO), ..hints };
    let hits = values.into_iter().map(|value| {
        let hit = match value.key.last().expect("a key") {
            b'x' => Some((11, hints)),
            b'y' => Some((12, TierHints::default())),
            // The last byte of the key that is over.
            b'e' => Some((13, over)),
            _ => None,
        };
        (value, hit)
    });
    let ended = used.node.tier_done(TierDone::Fetched(hits.collect()), 100);
    assert_eq!(ended, [3; 4]);
    used.node.check().expect("the invariants hold");
    let stats = used.node.stats();
    assert_eq!((stats.tier_fetched_total, stats.tier_failed_total, stats.values), (2, 1, 2));
    let found = used.node.acquire(used.session, &[b"x", b"y"], false, 119).expect("a call");
    assert_eq!([0, 1].map(|at| found[at].and_then(|it| it.checksum)), [Some(11), Some(12)]);
    let entry = used.node.entry(found[0].expect("it is there").handle.slot);
    let (priority, data_type) = (entry.priority(), entry.data_type());
    assert_eq!((priority, data_type, entry.expires_at()), (3, DataType::Float16, 120));
    assert!(entry.is_clean() && entry.used_at() == 119);
    let other = used.node.entry(found[1].expect("it is there").handle.slot);
    assert_eq!((other.priority(), other.expires_at()), (0, 0));
    // What was fetched into is no reservation any more: the room is there again.
    let all = used.node.reserve(used.session, &[PAGE; 62]).expect("two values are pinned");
    assert_eq!(all.len(), 62);
}

/// The tier stores no parents. The node knows those of the values that left its memory, and takes
/// the key before it in a prefix for the parent of any other.
#[test]
fn a_fetched_value_has_the_parent_that_it_had() {
    let mut used = TierNode::new(ModelTier::with(&[&[1], &[2], &[3], &[4], &[5], &[6]]));
    used.insert_chain(&[1, 2, 3]);
    (1..=3).for_each(|key| used.node.entry(used.slot(key)).set_clean());
    let evicted: Vec<u8> = (0..3).map(|_| used.evict()).collect();
    assert_eq!(evicted, [3, 2, 1]);
    for key in [3, 2, 1] {
        assert_eq!(used.acquire(&[&[key]], false).1, [0]);
        used.fetched_next();
    }
    let parent = |used: &TierNode, key| used.node.parent_of(used.slot(key));
    assert_eq!(parent(&used, 3), Some(used.slot(2)));
    assert_eq!(parent(&used, 2), Some(used.slot(1)));
    assert_eq!(parent(&used, 1), None);
    // The others were stored by an earlier server.
    assert_eq!(used.acquire(&[&[4], &[5]], true).1, [0, 1]);
    assert_eq!(used.acquire(&[&[4], &[6]], false).1, [0, 1]);
    used.fetched_next();
    assert_eq!(parent(&used, 5), Some(used.slot(4)));
    assert_eq!([parent(&used, 4), parent(&used, 6)], [None, None]);
}

/// A tier over a network is asked first: what it has is fetched then, and known for a while.
#[test]
fn keys_are_looked_up_before_they_are_fetched() {
    let mut used = TierNode::new(ModelTier::far(&[b"x", b"y"]));
    used.tier.add(b"near", PAGE);
    insert(&mut used.node, used.session, b"mine", 64);
    let keys: [&[u8]; 4] = [b"mine", b"near", b"x", b"none"];
    assert_eq!(used.node.lookup(used.session, &keys, 5), 2);
    let mut waits = |waiting| used.node.look_up_in_tier(used.session, &keys, waiting);
    assert_eq!([waits(1), waits(2)], [2, 2]);
    let mut jobs = used.node.take_jobs();
    let Some(TierJob::LookUp(values)) = jobs.first() else { panic!("{jobs:?}") };
    assert_eq!((jobs.len(), values.len()), (1, 2), "the second call waits for the same");
    let job = jobs.remove(0);
    assert_eq!(used.finish(job), [1, 2, 1, 2]);
    assert!(!used.node.has_found(), "no call wants the values");
    assert_eq!(used.node.lookup(used.session, &keys, 5), 3, "it is known now");
    assert_eq!(used.node.look_up_in_tier(used.session, &keys, 3), 1, "of the last key it is not");
    used.node.take_jobs().into_iter().for_each(|job| drop(used.finish(job)));
    // Values whose lengths are known are fetched at once, by the thread for the network.
    assert_eq!(used.acquire(&keys, true), (vec![true, false, false, false], vec![1, 2, 3]));
    let kinds: Vec<&str> = used
        .node
        .take_jobs()
        .into_iter()
        .map(|job| {
            let kind = match &job {
                TierJob::Fetch(values) if values.len() == 1 => "near",
                TierJob::FetchFar(values) if values.len() == 1 => "far",
                TierJob::LookUp(values) if values.len() == 1 => "look-up",
                _ => "other",
            };
            used.finish(job);
            kind
        })
        .collect();
    assert_eq!(kinds, ["near", "far", "look-up"]);
    assert!(!used.node.has_found());
    assert_eq!(used.acquire(&keys[..3], true), (vec![true; 3], vec![]));
}

/// An acquisition wants the value: it is fetched when a look-up has found it.
#[test]
fn a_value_that_a_look_up_has_found_is_fetched_for_the_calls_that_want_it() {
    let mut used = TierNode::new(ModelTier::far(&[b"x", b"y"]));
    let keys: [&[u8]; 3] = [b"x", b"none", b"y"];
    let (waits, _) = used.node.fetch_from_tier(used.session, &keys, false, Some(7), 0);
    assert_eq!(waits, [0, 1, 2]);
    assert_eq!(used.node.look_up_in_tier(used.session, &keys, 8), 3);
    let job = used.node.take_jobs().remove(0);
    // The look-up has ended for all; the acquisition for the key that nobody has.
    assert_eq!(used.finish(job), [8, 8, 7, 8]);
    assert!(used.node.has_found());
    // No eviction is allowed, and the memory is full.
    used.insert(0..64);
    used.node.evictions_left = 0;
    assert_eq!((used.node.fetch_found(), used.node.has_found()), (vec![], true));
    used.node.evictions_left = 1;
    assert_eq!((used.node.fetch_found(), used.node.has_found()), (vec![], true));
    used.node.evictions_left = 1;
    assert_eq!((used.node.fetch_found(), used.node.has_found()), (vec![], false));
    let jobs = used.node.take_jobs();
    assert_eq!(jobs.len(), 2);
    let ended: Vec<u64> = jobs.into_iter().flat_map(|job| used.finish(job)).collect();
    assert_eq!(ended, [7, 7]);
    assert_eq!(used.node.lookup(used.session, &[b"x", b"y"], 5), 2);
    // An acquisition that does not wait has it fetched all the same.
    let mut used = TierNode::new(ModelTier::far(&[b"x"]));
    assert_eq!(used.acquire(&[b"x"], false).1, [0]);
    used.node.take_jobs().into_iter().for_each(|job| drop(used.finish(job)));
    assert_eq!((used.node.fetch_found(), used.fetched_next()), (vec![], vec![b"x".to_vec()]));
}

/// Between a look-up and its fetch the value may come, go, or be fetched for others.
#[test]
fn a_value_that_was_found_is_not_fetched_twice_or_in_vain() {
    type Change = fn(&mut TierNode);
    let changes: [(Change, Vec<u64>, usize); 6] = [
        (|_| {}, vec![], 1),
        (|used| insert(&mut used.node, used.session, b"x", 64), vec![7], 0),
        (|used| _ = used.node.remove_only_in_tier(used.session, &[b"x"], None), vec![7], 0),
        (|used| used.node.clear_tier(None), vec![7], 0),
        (|used| assert_eq!(used.acquire(&[b"x"], false).1, [0]), vec![], 1),
        (
            // A fetch that is superseded is under way.
            |used| {
                assert_eq!(used.acquire(&[b"x"], false).1, [0]);
                insert(&mut used.node, used.session, b"x", 64);
                used.node.evict_bytes(None, 1);
            },
            vec![7],
            1,
        ),
    ];
    for (at, (change, ended, fetches)) in changes.into_iter().enumerate() {
        let mut used = TierNode::new(ModelTier::far(&[b"x"]));
        used.node.fetch_from_tier(used.session, &[b"x"], false, Some(7), 0);
        let job = used.node.take_jobs().remove(0);
        assert!(used.finish(job).is_empty(), "change {at}");
        change(&mut used);
        assert_eq!(used.node.fetch_found(), ended, "change {at}");
        let jobs = used.node.take_jobs();
        let far: Vec<TierJob> =
            jobs.into_iter().filter(|job| matches!(job, TierJob::FetchFar(_))).collect();
        assert_eq!(far.len(), fetches, "change {at}");
        let waited: Vec<u64> = far.into_iter().flat_map(|job| used.finish(job)).collect();
        assert_eq!(waited, if ended.is_empty() { vec![7] } else { vec![] }, "change {at}");
    }
}

/// A value that a look-up finds while it is removed must not come back; one of another key may.
#[test]
fn a_look_up_that_was_overtaken_finds_nothing() {
    type Change = fn(&mut TierNode);
    let changes: [(Change, bool); 5] = [
        (|_| {}, true),
        (|used| _ = used.node.remove_only_in_tier(used.session, &[b"x"], None), false),
        (|used| _ = used.node.remove_only_in_tier(used.session, &[b"y"], None), true),
        (|used| used.node.clear_tier(None), false),
        (
            |used| {
                used.tier.add(b"x", PAGE);
                assert_eq!(used.acquire(&[b"x"], false).1, [0]);
            },
            false,
        ),
    ];
    for (at, (change, finds)) in changes.into_iter().enumerate() {
        let mut used = TierNode::new(ModelTier::far(&[b"x", b"y"]));
        used.node.fetch_from_tier(used.session, &[b"x"], false, Some(7), 0);
        let job = used.node.take_jobs().remove(0);
        change(&mut used);
        assert_eq!(used.finish(job), if finds { vec![] } else { vec![7] }, "change {at}");
        assert_eq!(used.node.has_found(), finds, "change {at}");
    }
}

/// Where nothing can be looked up, a call waits for nothing.
#[test]
fn keys_are_not_looked_up_in_vain() {
    let keys: [&[u8]; 2] = [b"x", b"y"];
    let mut plain = node();
    let session = begin(&mut plain, 1);
    assert_eq!(plain.look_up_in_tier(session, &keys, 1), 0);
    let mut knowing = TierNode::new(ModelTier::default());
    assert_eq!(knowing.node.look_up_in_tier(knowing.session, &keys, 1), 0);
    let mut used = TierNode::new(ModelTier::far(&keys));
    let new = NewSession { read_only: true, ..session_of(1, 0) };
    let (nowhere, _) = used.node.begin_reading(new, "later").expect("there are few");
    assert_eq!(used.node.look_up_in_tier(nowhere, &keys, 1), 0);
    used.node.remove_only_in_tier(used.session, &[b"x"], None);
    assert_eq!(used.node.look_up_in_tier(used.session, &keys, 1), 0, "it is being removed");
    used.node.take_jobs().into_iter().for_each(|job| drop(used.finish(job)));
    assert_eq!(used.node.look_up_in_tier(used.session, &keys, 1), 2);
    (2..1025).for_each(|it| _ = used.node.look_up_in_tier(used.session, &keys[..1], it));
    assert_eq!(used.node.look_up_in_tier(used.session, &keys[..1], 1025), 0, "too many wait");
    assert_eq!(used.node.take_jobs().len(), 1);
    used.node.clear_tier(None);
    assert_eq!(used.node.look_up_in_tier(used.session, &keys[1..], 1), 0, "it is being cleared");
    assert_eq!(used.node.take_jobs().len(), 1, "nothing is looked up");
    let found = used.acquire(&[b"z"], false);
    assert_eq!((found.1, used.stored_now()), (vec![], NO_KEYS.to_vec()));
}
