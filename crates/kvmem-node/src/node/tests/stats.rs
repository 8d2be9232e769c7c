//! Figures of a node after a history of known calls.

use kvmem::tier::{TierHints, TierState};

use super::super::{MissReason, NamespaceStats, NodeStats};
use super::model_tier::{ModelTier, PAGE, TierNode, in_model, roomy};
use super::*;

/// Acquires a key that has no value, at a time.
fn miss(used: &mut TierNode, key: &[u8], now: u64) {
    let found = used.node.acquire(used.session, &[key], false, now).expect("the key is short");
    assert_eq!(found, [None]);
}

/// Evicts the value of a key, of which the tier has a copy or none.
fn leave(used: &mut TierNode, key: u8, is_stored: bool) {
    used.insert([key]);
    let slot = used.slot(key);
    if is_stored {
        used.node.entry(slot).set_clean();
        used.tier.add(&[key], PAGE);
    }
    used.node.evict(slot);
}

/// A key misses once for each reason, and all else that is counted happens at least once.
#[test]
fn every_figure_is_that_of_the_calls_before() {
    let options = NodeOptions { min_size: 16 * PAGE, ..roomy() };
    let mut used = TierNode::with(options, TierOptions::default(), ModelTier::default());
    // The last of 64 pages is written, and given back under pressure.
    let all = used.node.reserve(used.session, &[PAGE; 64]).expect("there is space");
    let last = all.iter().max_by_key(|it| it.offset).expect("there are 64");
    let at = used.node.memory.bytes.base().as_ptr().wrapping_add(last.offset as usize);
    // SAFETY: the block is reserved, and no other thread has the memory.
    unsafe { at.write_bytes(1, PAGE as usize) };
    let full = used.node.reserve(used.session, &[PAGE]);
    assert!(matches!(full, Err(CallError::OutOfSpace { .. })), "{full:?}");
    let handles: Vec<BlockHandle> = all.iter().map(|it| it.handle).collect();
    used.node.release(used.session, &handles).expect("its own");
    used.node.resize_for_others(48 * PAGE);
    assert_eq!(resize_to_the_end(&mut used.node, usize::MAX), ResizeStep::Done);
    // Misses, each for another reason.
    miss(&mut used, b"none", 5);
    leave(&mut used, b'v', false);
    miss(&mut used, b"v", 5);
    let handle = used.node.reserve(used.session, &[64]).expect("there is space")[0].handle;
    let item = CommitItem { key: b"e", ttl_ms: 10, ..item_of(handle) };
    used.node.commit(used.session, &[item], 5).expect("its own");
    miss(&mut used, b"e", 15);
    used.insert(*b"r");
    assert_eq!(used.node.remove(used.session, &[b"r"]), Ok(1));
    miss(&mut used, b"r", 15);
    used.insert(*b"d");
    let damaged = used.node.acquire(used.session, &[b"d"], false, 15).expect("a call")[0];
    let damaged = damaged.expect("it has a value").handle;
    assert_eq!(used.node.report_damage(used.session, &[damaged]), Ok(1));
    used.node.release(used.session, &[damaged]).expect("a pin");
    miss(&mut used, b"d", 15);
    leave(&mut used, b'l', true);
    used.tier.lose(b"l");
    miss(&mut used, b"l", 15);
    leave(&mut used, b'w', true);
    miss(&mut used, b"w", 15);
    *used.tier.state.lock().expect("no panic") = Some(TierState::Away);
    miss(&mut used, b"w", 15);
    *used.tier.state.lock().expect("no panic") = Some(TierState::ReadOnly);
    // Of three values the tier stores two, and of two it brings one.
    used.insert(*b"123");
    let slots = [b'1', b'2', b'3'].map(|key| used.slot(key));
    used.node.begin_storing(slots.map(|slot| used.node.storing(slot)).to_vec());
    let TierJob::Store(values) = used.node.take_jobs().remove(0) else { panic!("a store") };
    let stored =
        values.into_iter().zip([Offered::Stored, Offered::Stored, Offered::NotStored]).collect();
    used.node.tier_done(TierDone::Stored(stored), 15);
    used.tier.add(b"f", PAGE);
    used.tier.add(b"g", PAGE);
    assert_eq!(used.acquire(&[b"f", b"g"], false).1, [0, 1]);
    let TierJob::Fetch(values) = used.node.take_jobs().remove(0) else { panic!("a fetch") };
    let hit = |key: &[u8]| (key == in_model(b"f")).then(|| (7, TierHints::default()));
    let fetched = values.into_iter().map(|it| (it.clone(), hit(&it.key))).collect();
    used.node.tier_done(TierDone::Fetched(fetched), 15);
    // A value is verified, one has a parent that nothing has, and two are pinned.
    let (value, _) = used.node.next_to_scrub(0, 100);
    used.node.scrubbed(&value.expect("it has a checksum"), true);
    used.insert_child(b'c', Some(b'p'));
    let pins = used.node.acquire(used.session, &[b"1", b"2"], false, 15).expect("a call");
    assert_eq!(pins.iter().flatten().count(), 2);
    // Clients: one with reservations, one that is fenced, and one that has no connection.
    let [silent, gone] = [2, 3].map(|pid| begin(&mut used.node, pid));
    used.node.reserve(silent, &[PAGE, 100]).expect("there is space");
    assert_eq!(used.node.fence(silent), 2);
    used.node.reserve(used.session, &[1]).expect("there is space");
    used.node.orphan(gone);
    used.node.check().expect("the invariants hold");

    let stats = used.node.stats();
    let largest_free = used.node.space.metrics().largest_free;
    assert!((30 * PAGE..48 * PAGE).contains(&largest_free), "{largest_free}");
    // Values 1, 2, 3, `f` and `c`, and three reservations.
    let bytes = 8 * PAGE;
    assert!(MissReason::ALL.iter().all(|reason| used.node.counters.misses.of(*reason) == 1));
    let namespace = NamespaceStats {
        name: "model".to_owned(),
        bytes,
        max_bytes: u64::MAX,
        pinned: 2,
        pinned_bytes: 2 * PAGE,
        share: 1,
        hits: 3,
        misses: 8,
        never_stored_misses: 1,
        evicted_misses: 1,
        expired_misses: 1,
        removed_misses: 1,
        damaged_misses: 1,
        tier_away_misses: 1,
        tier_lost_misses: 1,
        not_fetched_misses: 1,
        evicted_unused_total: 4,
        memory: 48 * PAGE,
        keys: 11,
        hits_at_half: 3,
        // Those that were evicted: `v`, `l`, and `w` twice.
        hits_at_2: 7,
        hits_at_4: 7,
        hits_at_8: 7,
    };
    let expected = NodeStats {
        capacity: 48 * PAGE,
        wanted_capacity: 48 * PAGE,
        min_capacity: 16 * PAGE,
        max_capacity: 64 * PAGE,
        used: bytes,
        largest_free,
        values: 5,
        max_blocks: 100,
        sessions: 3,
        orphaned_sessions: 1,
        pinned: 2,
        pinned_bytes: 2 * PAGE,
        reservations: 3,
        reserved_bytes: 3 * PAGE,
        fenced_bytes: 2 * PAGE,
        dead_bytes: PAGE,
        hits: 3,
        misses: 8,
        never_stored_misses: 1,
        evicted_misses: 1,
        expired_misses: 1,
        removed_misses: 1,
        damaged_misses: 1,
        tier_away_misses: 1,
        tier_lost_misses: 1,
        not_fetched_misses: 1,
        reserved_total: 64 + 1 + 9 + 3,
        committed_total: 10,
        removed_total: 1,
        evicted_total: 3,
        evicted_unused_total: 4,
        expired_total: 1,
        fenced_total: 2,
        out_of_space_total: 1,
        pressure_total: 1,
        given_back_bytes_total: PAGE,
        scrubbed_total: 1,
        damaged_total: 1,
        tier_stored_total: 2,
        tier_not_stored_total: 1,
        tier_fetched_total: 1,
        tier_failed_total: 1,
        tier_state: TierState::ReadOnly,
        namespaces: vec![namespace],
        ..NodeStats::default()
    };
    assert_eq!(stats, expected);
}

/// Calls that must not hold up others look at a limited number of entries.
#[test]
fn long_calls_are_made_in_steps() {
    let options = NodeOptions { max_blocks: Some(34_000), align: 64, ..options() };
    let mut node = Node::create(shared(4 << 20), options).expect("the options are possible");
    let session = begin(&mut node, 1);
    let of = node.namespace_number(session);
    node.reserve(session, &vec![64; 33_000]).expect("there is space");
    let mut at = Vec::new();
    let mut next = Some(0);
    while let Some(from) = next {
        next = node.list(Some(of), from, 10, 5).1;
        at.extend(next);
    }
    assert_eq!(at, [1 << 15]);
    assert_eq!(node.list(None, 0, 10, 5).1, None);
    let mut clearing = node.begin_clearing(Some(of));
    let steps = (1..).find(|_| node.clear_some(&mut clearing, Slice::endless()));
    assert_eq!((steps, clearing.removed), (Some(3), 0));
    assert_eq!(node.expire(0, 100, 5), 100);
}

/// Values that came after the clearing began, and those of another namespace, stay.
#[test]
fn a_clearing_removes_what_there_was_in_steps() {
    let options = NodeOptions { max_blocks: Some(1000), align: 64, ..options() };
    let mut node = Node::create(shared(BYTES), options).expect("the options are possible");
    let [own, other] = ["first", "second"].map(|name| begin_in(&mut node, name));
    for key in 0..600_u16 {
        insert(&mut node, own, &key.to_be_bytes(), 64);
        if key < 3 {
            insert(&mut node, other, &key.to_be_bytes(), 64);
        }
    }
    let mut clearing = node.begin_clearing(Some(node.namespace_number(own)));
    assert!(!node.clear_some(&mut clearing, Slice::endless()));
    assert_eq!((clearing.removed, node.len()), (512, 91));
    insert(&mut node, own, b"new", 64);
    assert!(node.clear_some(&mut clearing, Slice::endless()));
    assert_eq!((clearing.removed, node.len(), node.stats().removed_total), (600, 4, 600));
    assert_eq!(node.lookup(own, &[b"new"], 5), 1);
    node.check().expect("the invariants hold");
}
