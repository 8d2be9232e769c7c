//! Values that are stored in the tier before they are evicted, and those that count as used there.

use std::time::Duration;

use kvmem::tier::Priority;

use super::super::NamespaceLimits;
use super::model_tier::{ModelTier, NO_KEYS, PAGE, TierNode, in_model, roomy};
use super::*;

#[test]
fn values_are_stored_from_half_of_the_memory_or_of_the_entries_on() {
    // 64 pages, and as many entries as these.
    for (max_blocks, first) in [(100, 32), (48, 24)] {
        let options = NodeOptions { max_blocks: Some(max_blocks), ..options() };
        let mut used = TierNode::with(options, TierOptions::default(), ModelTier::default());
        used.insert(0..first - 1);
        assert_eq!(used.stored_next(), Vec::<Vec<u8>>::new(), "{max_blocks}");
        used.insert([first]);
        assert_eq!(used.stored_next(), [[0, 1, 2, 3], [4, 5, 6, 7]], "{max_blocks}");
    }
}

/// A job has at most a sixteenth of the memory, and there are two of them.
#[test]
fn two_jobs_store_at_a_time_and_hold_their_values() {
    let mut used = TierNode::new(ModelTier::default());
    used.insert(0..40);
    let mut jobs = used.store_jobs();
    let keys = |used: &TierNode, job: usize| -> Vec<u8> {
        jobs[job].iter().map(|it| used.node.entry(it.slot).key()[0]).collect()
    };
    assert_eq!(jobs.len(), 2);
    assert_eq!([keys(&used, 0), keys(&used, 1)], [[0, 1, 2, 3], [4, 5, 6, 7]]);
    assert!(used.node.is_storing() && !used.node.may_store());
    assert_eq!(used.evict(), 8, "the others are being stored");
    // One job is done, so another one begins.
    let first = jobs.remove(0);
    let lens: u64 = first.iter().map(|it| it.len).sum();
    assert_eq!(lens, 4 * PAGE);
    used.finish(TierJob::Store(first));
    assert_eq!((used.node.stored_in_tier(), used.node.may_store()), (4, true));
    let next = used.store_jobs();
    assert_eq!(next.len(), 1);
    assert_eq!(used.node.entry(next[0][0].slot).key()[0], 9);
    next.into_iter().chain(jobs).for_each(|job| drop(used.finish(TierJob::Store(job))));
    assert!(!used.node.is_storing());
    assert_eq!(used.node.stats().tier_stored_total, 12);
    let left = used.store_all();
    assert_eq!(left, (13..40).collect::<Vec<u8>>());
    assert_eq!((0..40).filter(|key| *key != 8 && !used.is_clean(*key)).count(), 0);
    assert_eq!(used.evict(), 0, "it was used first");
}

/// A tier whose device has failed, or that does not want the values: it has them offered again when
/// something has changed, and at times.
#[test]
fn a_tier_that_takes_no_values_is_not_offered_them_again_and_again() {
    let mut used = TierNode::new(ModelTier::default());
    used.tier.refuses.store(true, Ordering::Relaxed);
    used.insert(0..40);
    assert_eq!(used.store_all(), (0..8).collect::<Vec<u8>>());
    let stats = used.node.stats();
    assert_eq!((stats.tier_not_stored_total, stats.tier_stored_total), (8, 0));
    used.insert([40]);
    assert_eq!(used.store_all(), (0..8).collect::<Vec<u8>>());
    used.node.store_again();
    assert_eq!(used.store_all(), (0..8).collect::<Vec<u8>>());
    used.tier.refuses.store(false, Ordering::Relaxed);
    assert_eq!(used.store_all(), Vec::<u8>::new());
    used.node.store_again();
    assert_eq!(used.store_all(), (0..41).collect::<Vec<u8>>());
    used.node.store_again();
    assert_eq!(used.store_all(), Vec::<u8>::new());
    let stats = used.node.stats();
    assert_eq!((stats.tier_not_stored_total, stats.tier_stored_total), (24, 41));
}

#[test]
fn a_stored_value_has_the_hints_and_the_checksum_of_its_commit() {
    let mut used = TierNode::new(ModelTier::default());
    used.insert(0..32);
    let types = [DataType::Bfloat16, DataType::Float8E4m3];
    for (at, (data_type, ttl_ms)) in types.into_iter().zip([100_000, 0]).enumerate() {
        let (priority, key) = (at as u8 + 2, [100 + at as u8]);
        let handle = used.node.reserve(used.session, &[100]).expect("there is space")[0].handle;
        let item = CommitItem { key: &key, priority, data_type, ttl_ms, ..item_of(handle) };
        let now = crate::socket::now_ms();
        used.node.commit(used.session, &[item], now).expect("its own");
    }
    for (key, priority, data_type, expires) in
        [(100, 2, DataType::Bfloat16, true), (101, 3, DataType::Float8E4m3, false)]
    {
        let slot = used.slot(key);
        let value = used.node.storing(slot);
        assert_eq!((value.slot, value.len, value.checksum), (slot, 100, None));
        assert_eq!((value.key, value.offset), (in_model(&[key]), used.node.granted(slot).offset));
        assert_eq!(value.hints.priority, Priority::new(priority).expect("it is low"));
        assert_eq!(value.hints.data_type, data_type);
        let seconds = Duration::from_secs(1)..=Duration::from_secs(100);
        assert_eq!(value.hints.ttl.is_some_and(|ttl| seconds.contains(&ttl)), expires);
        assert_eq!(value.hints.ttl.is_some(), expires);
    }
    assert_eq!(used.node.storing(used.slot(3)).checksum, Some(1));
}

/// A namespace stores the half of its limit that it evicts next, and only when that is near.
#[test]
fn a_limited_namespace_stores_what_it_evicts_next() {
    for (limit, before) in [(8, 3), (32, 15)] {
        let small = NamespaceLimits { max_bytes: limit * PAGE, ..NamespaceLimits::default() };
        let options = NodeOptions { limits: vec![("model".to_owned(), small)], ..roomy() };
        let used = TierOptions { store_above: 0.5, ahead_bytes: 1 << 30 };
        let mut used = TierNode::with(options, used, ModelTier::default());
        used.insert(0..before);
        assert_eq!(used.store_all(), NO_KEYS);
        used.insert(before..limit as u8 - 1);
        assert_eq!(used.store_all(), (0..limit as u8 / 2).collect::<Vec<u8>>());
    }
}

/// Each value is behind its ancestors, and a start that many share is stored and counted once.
#[test]
fn a_common_start_is_stored_once_and_first() {
    let ahead = TierOptions { ahead_bytes: 14 * PAGE, ..TierOptions::default() };
    let mut used = TierNode::with(roomy(), ahead, ModelTier::default());
    let trunk: Vec<u8> = (0..10).collect();
    used.insert_chain(&trunk);
    (10..40).for_each(|key| used.insert_child(key, Some(9)));
    assert_eq!(used.store_all(), (0..14).collect::<Vec<u8>>());
}

/// One job looks at a limited number of values, and the others wait until some have gone.
#[test]
fn a_job_looks_at_a_limited_number_of_values() {
    let options = NodeOptions { max_blocks: Some(2200), align: 64, ..options() };
    let mut used = TierNode::with(options, TierOptions::default(), ModelTier::default());
    let keys: Vec<[u8; 2]> = (0..2200_u16).map(u16::to_be_bytes).collect();
    for key in &keys {
        insert(&mut used.node, used.session, key, 64);
    }
    assert_eq!(used.store_all().len(), 2048);
    (0..10).for_each(|_| _ = used.evict());
    // A change lets it look again.
    insert(&mut used.node, used.session, b"new", 64);
    assert_eq!(used.store_all().len(), 10);
}

#[test]
fn a_value_whose_copy_the_tier_has_lost_is_stored_again_before_it_is_evicted() {
    let mut used = TierNode::new(ModelTier::default());
    used.insert(0..40);
    used.store_all();
    used.insert(40..60);
    // Twice as many as are stored ahead are stored at the last moment, and the others go.
    (0..20).for_each(|key| used.tier.lose(&[key]));
    assert_eq!(used.evict(), 16);
    let stored: Vec<u8> = used.stored_now();
    assert_eq!(stored, (0..16).collect::<Vec<u8>>());
    assert!((0..16).all(|key| used.is_clean(key)));
    let again: Vec<u8> = (0..16).map(|_| used.evict()).collect();
    assert_eq!(again, (0..16).collect::<Vec<u8>>());
    assert_eq!(used.stored_now(), NO_KEYS);
}

/// The start of a chain is worth something to the tier as long as that has its end. A value without
/// descendants there is evicted at once.
#[test]
fn the_start_of_a_stored_end_is_stored_before_it_is_evicted() {
    let mut used = TierNode::new(ModelTier::default());
    used.insert_chain(&[0, 1]);
    used.insert_chain(&[2, 3]);
    for key in [1, 3] {
        used.node.entry(used.slot(key)).set_clean();
    }
    used.tier.add(&[1], PAGE);
    used.tier.add(&[3], PAGE);
    assert_eq!([used.evict(), used.evict()], [1, 3]);
    // Their starts are stored now.
    assert_eq!(used.node.victim(None), None);
    assert_eq!(used.stored_now(), [0, 2]);
    assert_eq!([used.evict(), used.evict()], [0, 2]);
    used.insert_chain(&[4, 5]);
    assert_eq!([used.evict(), used.evict()], [5, 4]);
    assert_eq!(used.stored_now(), NO_KEYS);
}

/// A reservation waited without an end for a tier that took nothing: whenever it came to the start
/// of a chain, the tier was offered that once more.
#[test]
fn the_start_of_a_stored_end_is_evicted_if_the_tier_does_not_take_it() {
    let mut used = TierNode::new(ModelTier::default());
    used.insert_chain(&[0, 1]);
    used.node.entry(used.slot(1)).set_clean();
    used.tier.add(&[1], PAGE);
    assert_eq!(used.evict(), 1);
    used.tier.refuses.store(true, Ordering::Relaxed);
    assert_eq!(used.node.victim(None), None);
    assert_eq!(used.stored_now(), [0]);
    assert_eq!(used.evict(), 0);
}

/// A value that is being stored, verified or removed becomes space later, as do grants that are
/// being released. A pinned value does not.
#[test]
fn space_comes_while_something_is_under_way() {
    let mut plain = node();
    let session = begin(&mut plain, 1);
    insert(&mut plain, session, b"a", 64);
    assert!(!plain.space_will_come() && !plain.namespace_space_will_come(session));
    let options = NodeOptions { max_blocks: Some(400), align: 64, ..options() };
    let mut used = TierNode::with(options, TierOptions::default(), ModelTier::default());
    let other = begin_in(&mut used.node, "other");
    let will_come = |used: &TierNode| {
        let node = &used.node;
        let of = |session| node.namespace_space_will_come(session);
        (node.space_will_come(), of(used.session), of(other))
    };
    assert_eq!(will_come(&used), (false, false, false));
    used.insert([0]);
    assert_eq!(will_come(&used), (true, true, false), "a value of the first namespace");
    let pin = used.node.acquire(used.session, &[&[0]], false, 5).expect("a call")[0];
    assert_eq!(will_come(&used), (false, false, false), "it is pinned");
    used.node.release(used.session, &[pin.expect("it has a value").handle]).expect("a pin");
    used.tier.add(&[0], PAGE);
    assert_eq!(used.node.remove(used.session, &[&[0]]), Ok(1));
    assert_eq!(will_come(&used), (true, true, false), "it is being removed");
    used.node.take_jobs().into_iter().for_each(|job| drop(used.finish(job)));
    assert_eq!(will_come(&used), (false, false, false));
    let third = begin(&mut used.node, 2);
    used.node.reserve(third, &[64; 300]).expect("there is space");
    used.node.end_session(third);
    assert_eq!(will_come(&used), (true, true, true), "reservations are being released");
    used.node.release_ended(300);
    assert_eq!(will_come(&used), (false, false, false));
}

/// The tier evicts what was used least recently: the start of a chain counts as used after its end.
#[test]
fn a_chain_that_leaves_the_memory_is_touched_up_to_its_start() {
    let mut used = TierNode::new(ModelTier::default());
    used.insert_chain(&[1, 2, 3]);
    // The last value is not in the tier.
    for key in [1, 2] {
        used.node.entry(used.slot(key)).set_clean();
        used.tier.add(&[key], PAGE);
    }
    used.insert_child(4, Some(2));
    used.node.entry(used.slot(4)).set_clean();
    used.tier.add(&[4], PAGE);
    used.node.remove(used.session, &[&[3]]).expect("it may");
    assert_eq!(used.evict(), 4);
    assert_eq!(used.tier.take_touched(), [4, 2, 1]);
    // Those that were touched lately stay as they are, while 1024 values leave.
    used.insert([9]);
    used.node.touch_chain(used.slot(2));
    (0..1022).for_each(|_| used.node.touch_chain(used.slot(9)));
    used.node.touch_chain(used.slot(2));
    assert_eq!(used.tier.take_touched(), NO_KEYS, "1024 values have left since");
    used.node.touch_chain(used.slot(2));
    assert_eq!(used.tier.take_touched(), [2, 1]);
}

/// Before the server ends, the tier has the order of the memory.
#[test]
fn all_values_are_touched_in_the_order_in_which_they_would_be_evicted() {
    let mut used = TierNode::new(ModelTier::default());
    used.insert_chain(&[1, 2, 3]);
    used.insert([4, 5, 6]);
    (1..=5).for_each(|key| used.tier.add(&[key], PAGE));
    (1..=5).for_each(|key| used.node.entry(used.slot(key)).set_clean());
    assert_eq!(used.node.touch(used.session, &[&[4]], 9), 1);
    used.node.touch_all();
    assert_eq!(used.tier.take_touched(), [3, 2, 1, 5, 4], "the tier lacks the last one");
    let mut plain = node();
    let session = begin(&mut plain, 1);
    insert(&mut plain, session, b"a", 64);
    plain.touch_all();
}

/// Values of a chain that are stored later are used before its start.
#[test]
fn the_start_of_a_chain_is_touched_when_more_of_it_is_stored() {
    let mut used = TierNode::new(ModelTier::default());
    used.insert_chain(&[1, 2, 3]);
    used.insert([4]);
    let job = |used: &TierNode, keys: &[u8]| {
        TierJob::Store(keys.iter().map(|key| used.node.storing(used.slot(*key))).collect())
    };
    let store = |used: &mut TierNode, keys: &[u8]| {
        let TierJob::Store(values) = job(used, keys) else { unreachable!() };
        used.node.begin_storing(values);
        used.node.take_jobs().into_iter().for_each(|job| drop(used.finish(job)));
        used.tier.take_touched()
    };
    assert_eq!(store(&mut used, &[1, 4]), NO_KEYS, "they have no ancestors");
    assert_eq!(store(&mut used, &[2]), [1]);
    assert_eq!(store(&mut used, &[3]), [2, 1]);
    used.insert_child(5, Some(4));
    used.insert_child(6, Some(5));
    // The end first: the start of the chain is touched once, and last.
    assert_eq!(store(&mut used, &[6, 5]), [5, 4]);
    used.tier.refuses.store(true, Ordering::Relaxed);
    used.insert_child(7, Some(3));
    assert_eq!(store(&mut used, &[7]), NO_KEYS, "it was not stored");
}
