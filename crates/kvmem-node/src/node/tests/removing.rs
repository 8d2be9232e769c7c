//! Values that must not come back from the tier, and what the tier has under which name.

use super::super::events::{Change, Place};
use super::super::{EventKind, Listed};
use super::model_tier::{ModelTier, NO_KEYS, PAGE, TierNode, in_model, roomy};
use super::*;
use crate::format::TierRemovals;
use crate::tier::Offered;

fn with_events(tier: ModelTier) -> TierNode {
    let options = NodeOptions { max_events: 1000, ..roomy() };
    TierNode::with(options, TierOptions::default(), tier)
}

/// Returns the kinds of the events of a key since the start.
fn events_of(used: &TierNode, key: &[u8]) -> Vec<EventKind> {
    let events = used.node.events_since(0, 1000, |_| true).events;
    events.into_iter().filter(|it| it.key == key).map(|it| it.kind).collect()
}

/// Takes the keys of the jobs that remove values, and does them.
fn removed_next(used: &mut TierNode) -> Vec<Vec<u8>> {
    let jobs = used.node.take_jobs();
    let mut found = Vec::new();
    for job in jobs {
        let TierJob::Remove(values) = &job else { panic!("{job:?} removes nothing") };
        found.push(values.iter().map(|it| it.key[0]).collect());
        used.finish(job);
    }
    found
}

/// The tier must not have a value that was removed, or an older one than was evicted. Of a value
/// that only a look-up would find nothing is known: it is removed, and no eviction waits for it.
#[test]
fn what_goes_is_removed_from_the_tier_unless_the_tier_is_to_have_it() {
    for (far, evicted) in [(false, vec![vec![b'b']]), (true, vec![])] {
        let tier = if far { ModelTier::far(&[]) } else { ModelTier::default() };
        let mut used = TierNode::new(tier);
        used.insert(*b"abcd");
        // Of `a` the tier has the value, of `b` an older one, and of the others none.
        for key in [b"a", b"b"].into_iter().filter(|_| !far) {
            used.tier.add(key, PAGE);
        }
        used.node.entry(used.slot(b'a')).set_clean();
        assert_eq!([used.evict(), used.evict()], *b"ab");
        assert_eq!(removed_next(&mut used), evicted, "evicted");
        assert_eq!(used.node.remove(used.session, &[b"c", b"d"]), Ok(2));
        let removed = if far { vec![b"cd".to_vec()] } else { vec![] };
        assert_eq!(removed_next(&mut used), removed, "removed, in one job");
        let mut used = TierNode::new(ModelTier::with(&[b"a"]));
        used.insert(*b"a");
        used.node.entry(used.slot(b'a')).set_clean();
        assert_eq!(used.node.remove(used.session, &[b"a"]), Ok(1));
        assert_eq!(used.node.stats().used, PAGE, "the entry names the key until then");
        assert_eq!(removed_next(&mut used), [b"a"]);
        assert_eq!(used.node.stats().used, 0);
    }
}

/// A tier that failed to store a value may have an older one that it does not find, and that the
/// next server would: it is removed when the value goes, if the tier has not said since that there
/// is none.
#[test]
fn what_a_tier_failed_to_store_is_removed_there_when_it_goes() {
    let leave: [fn(&mut TierNode); 3] = [
        |used| assert_eq!(used.evict(), b'a'),
        |used| assert_eq!(used.node.remove(used.session, &[b"a"]), Ok(1)),
        |used| used.insert(*b"a"),
    ];
    let outcomes: [(&[Offered], &[&[u8]]); 3] = [
        (&[Offered::NotStored], &[]),
        (&[Offered::NotStored, Offered::Failed], &[b"a"]),
        (&[Offered::Failed, Offered::NotStored], &[]),
    ];
    for (leave, (offered, removed)) in leave.iter().flat_map(|it| outcomes.map(|one| (it, one))) {
        let mut used = TierNode::new(ModelTier::default());
        used.insert(*b"a");
        for offered in offered {
            used.node.begin_storing(vec![used.node.storing(used.slot(b'a'))]);
            let TierJob::Store(values) = used.node.take_jobs().remove(0) else { panic!("a store") };
            let stored = values.into_iter().map(|value| (value, *offered)).collect();
            used.node.tier_done(TierDone::Stored(stored), 5);
        }
        leave(&mut used);
        assert_eq!(removed_next(&mut used), removed, "{offered:?}");
    }
}

/// A tier may have a value that it does not find for a while: a disk that failed to read it tries
/// again later. It is removed like one that is found, and no removal counts it.
#[test]
fn what_a_tier_does_not_find_for_a_while_is_removed_there() {
    let leave: [fn(&mut TierNode); 5] = [
        |used| assert_eq!(used.evict(), b'a'),
        |used| assert_eq!(used.node.remove(used.session, &[b"a"]), Ok(1)),
        |used| used.insert(*b"a"),
        |used| {
            used.node.entry(used.slot(b'a')).set_clean();
            assert_eq!(used.node.remove(used.session, &[b"a"]), Ok(1));
        },
        |used| {
            let keys: [&[u8]; 2] = [b"a", b"none"];
            assert_eq!(used.node.remove_only_in_tier(used.session, &keys, Some(1)), (0, 1));
        },
    ];
    for leave in leave {
        let tier = ModelTier { hidden: Mutex::new(vec![in_model(b"a")]), ..ModelTier::default() };
        let mut used = TierNode::new(tier);
        used.insert(*b"a");
        leave(&mut used);
        assert_eq!(removed_next(&mut used), [b"a"]);
        assert!(used.tier.hidden.lock().expect("no panic").is_empty());
    }
}

/// The values that are evicted next are stored already, up to a limit. When one goes, the next one
/// is stored.
#[test]
fn a_removal_lets_the_next_value_be_stored() {
    let ahead = TierOptions { ahead_bytes: 4 * PAGE, ..TierOptions::default() };
    let mut used = TierNode::with(roomy(), ahead, ModelTier::default());
    used.insert(0..40);
    assert_eq!(used.store_all(), [0, 1, 2, 3]);
    assert_eq!(used.store_all(), NO_KEYS);
    assert_eq!(used.node.remove(used.session, &[&[0]]), Ok(1));
    assert_eq!(removed_next(&mut used), [[0]]);
    assert_eq!(used.store_all(), [4]);
}

/// A call waits for the removal that is under way, which is counted once and is one event.
#[test]
fn a_key_is_removed_once_at_a_time() {
    let mut used = with_events(ModelTier::with(&[b"x", b"y"]));
    let remove = |used: &mut TierNode, keys: &[&[u8]], waiting| {
        used.node.remove_only_in_tier(used.session, keys, Some(waiting))
    };
    assert_eq!(remove(&mut used, &[b"x", b"none"], 1), (1, 1));
    assert_eq!(used.node.lookup(used.session, &[b"x"], 5), 0, "it must not come back");
    assert_eq!(remove(&mut used, &[b"x", b"y"], 2), (1, 2));
    assert_eq!([events_of(&used, b"x"), events_of(&used, b"y")], [[EventKind::Removed]; 2]);
    let jobs = used.node.take_jobs();
    assert_eq!(jobs.len(), 1);
    let ended: Vec<u64> = jobs.into_iter().flat_map(|job| used.finish(job)).collect();
    assert_eq!(ended, [1, 2, 2]);
    assert_eq!(remove(&mut used, &[b"x"], 3), (0, 0));
    // Two values of a key that went one after the other: the last removal ends the waits.
    for _ in 0..2 {
        used.insert(*b"x");
        used.tier.add(b"x", PAGE);
        assert_eq!(used.node.remove(used.session, &[b"x"]), Ok(1));
        used.node.take_jobs().into_iter().for_each(|job| {
            let TierJob::Remove(values) = job else { panic!("{job:?} removes nothing") };
            assert_eq!(remove(&mut used, &[b"x"], 4), (0, 1));
            // The next one is begun before this one is done.
            used.insert(*b"x");
            assert_eq!(used.node.remove(used.session, &[b"x"]), Ok(1));
            assert_eq!(used.node.tier_done(TierDone::Removed(values, true), 5), Vec::<u64>::new());
            used.node.check().expect("the invariants hold");
        });
        let jobs = used.node.take_jobs();
        let ended: Vec<u64> = jobs.into_iter().flat_map(|job| used.finish(job)).collect();
        assert_eq!(ended, [4]);
    }
    assert_eq!((used.node.stats().used, used.node.stats().tier_failed_total), (0, 0));
}

/// A removal that fails ends the waits, and is counted.
#[test]
fn a_removal_that_fails_is_counted_and_ends_the_waits() {
    let mut used = TierNode::new(ModelTier::with(&[b"x", b"y"]));
    let keys: [&[u8]; 2] = [b"x", b"y"];
    for (waiting, failed) in [(6, 2), (7, 4)] {
        assert_eq!(used.node.remove_only_in_tier(used.session, &keys, Some(waiting)).1, 2);
        let TierJob::Remove(values) = used.node.take_jobs().remove(0) else { panic!("a removal") };
        let ended = used.node.tier_done(TierDone::Removed(values, false), 5);
        assert_eq!(ended, [waiting, waiting]);
        assert_eq!(used.node.stats().tier_failed_total, failed);
        assert_eq!(used.node.lookup(used.session, &keys, 5), 0, "they never come back");
    }
    assert_eq!(used.node.memory.header_cell().tier_removals(), TierRemovals::Unknown);
}

/// The scrubber and the tier both read the entry: it stays until both are done.
#[test]
fn a_value_that_is_verified_and_removed_stays_until_both_are_done() {
    for is_verified_first in [true, false] {
        let mut used = TierNode::new(ModelTier::with(&[b"a"]));
        used.insert(*b"a");
        let value = used.node.next_to_scrub(0, 10).0.expect("it has a checksum");
        assert_eq!(used.node.remove(used.session, &[b"a"]), Ok(1));
        for is_verified in [is_verified_first, !is_verified_first] {
            assert_eq!(used.node.stats().used, PAGE);
            if is_verified {
                used.node.scrubbed(&value, true);
            } else {
                assert_eq!(removed_next(&mut used), [b"a"]);
            }
            used.node.check().expect("the invariants hold");
        }
        assert_eq!(used.node.stats().used, 0);
    }
}

/// Nothing of the namespace comes back, and what is under way of another one does.
#[test]
fn a_namespace_is_cleared_and_the_others_are_not() {
    let mut used = with_events(ModelTier::default());
    let other = begin_in(&mut used.node, "other");
    let of_other = |key: &[u8]| [b"\x05other", key].concat();
    let [model_number, other_number] =
        [used.session, other].map(|session| used.node.namespace_number(session));
    for key in [b"x", b"y"] {
        used.tier.add(key, PAGE);
        used.tier.near.lock().expect("no panic").insert(of_other(key), PAGE);
        used.node.name_in_tier(model_number, key.to_vec());
        used.node.name_in_tier(other_number, key.to_vec());
    }
    assert_eq!(used.node.tier_names(), 4);
    let fetch = |node: &mut Node, session| node.fetch_from_tier(session, &[b"x"], false, None, 0).0;
    assert_eq!([used.session, other].map(|it| fetch(&mut used.node, it)), [[0], [0]]);
    let fetches = used.node.take_jobs();
    assert!(!used.node.is_clearing_tier());
    used.node.clear_tier(Some(model_number));
    assert!(used.node.is_clearing_tier());
    assert_eq!(used.node.memory.header_cell().tier_removals(), TierRemovals::Unknown);
    assert_eq!(used.node.tier_names(), 2);
    let lookups = [used.session, other].map(|it| used.node.lookup(it, &[b"x", b"y"], 5));
    assert_eq!(lookups, [0, 2]);
    // A value that goes meanwhile needs no removal of its own; one of the other namespace does.
    insert(&mut used.node, used.session, b"y", 64);
    insert(&mut used.node, other, b"y", 64);
    assert_eq!(used.node.remove(used.session, &[b"y"]), Ok(1));
    assert_eq!(used.node.remove(other, &[b"y"]), Ok(1));
    for job in fetches {
        used.finish(job);
    }
    assert_eq!(used.node.find(model_number, b"x"), None);
    assert!(used.node.find(other_number, b"x").is_some());
    let mut jobs = used.node.take_jobs().into_iter();
    let (clear, removal) = (jobs.next(), jobs.next());
    assert!(matches!(&clear, Some(TierJob::Clear(Some(name))) if name == "model"), "{clear:?}");
    let Some(TierJob::Remove(removal)) = removal else { panic!("{removal:?} removes nothing") };
    let removed: Vec<(u16, &[u8])> = removal.iter().map(|it| (it.namespace, &*it.key)).collect();
    assert_eq!((removed, jobs.len()), (vec![(other_number, &b"y"[..])], 0));
    let before = used.node.next_event();
    assert!(used.node.tier_done(TierDone::Cleared(true), 5).is_empty());
    assert!(!used.node.is_clearing_tier());
    let events = used.node.events_since(before, 10, |_| true).events;
    assert_eq!(events.iter().map(|it| it.kind).collect::<Vec<_>>(), [EventKind::TierEvicted]);
    used.node.tier_done(TierDone::Removed(removal, true), 5);
    assert_eq!(used.node.memory.header_cell().tier_removals(), TierRemovals::None);
    // All of them: nothing is left.
    used.node.clear_tier(None);
    assert_eq!((used.node.tier_names(), used.node.lookup(other, &[b"y"], 5)), (0, 0));
    assert!(matches!(used.node.take_jobs()[..], [TierJob::Clear(None)]));
    used.node.tier_done(TierDone::Cleared(false), 5);
    assert_eq!(used.node.memory.header_cell().tier_removals(), TierRemovals::Unknown);
    assert_eq!(used.node.stats().tier_failed_total, 1);
    assert!(!used.node.tier_forgets_namespaces());
}

/// A namespace that is cleared takes along the lengths that look-ups have found of its values.
#[test]
fn what_was_found_of_a_cleared_namespace_is_not_known_any_more() {
    for is_own in [true, false] {
        let mut used = TierNode::new(ModelTier::far(&[b"x"]));
        let other = begin_in(&mut used.node, "other");
        assert_eq!(used.node.look_up_in_tier(used.session, &[b"x"], 1), 1);
        used.node.take_jobs().into_iter().for_each(|job| _ = used.finish(job));
        let session = if is_own { used.session } else { other };
        used.node.clear_tier(Some(used.node.namespace_number(session)));
        used.node.tier_done(TierDone::Cleared(true), 5);
        assert_eq!(used.node.lookup(used.session, &[b"x"], 5), usize::from(!is_own));
    }
}

/// A value whose parent was only in the tier is dead when the tier has lost it.
#[test]
fn a_parent_that_the_tier_removes_is_missed_by_its_children() {
    type Remove = fn(&mut TierNode);
    let removals: [Remove; 2] = [
        |used| _ = used.node.remove_only_in_tier(used.session, &[b"a"], None),
        |used| used.node.clear_tier(None),
    ];
    for remove in removals {
        let mut used = TierNode::new(ModelTier::with(&[b"a"]));
        used.insert_child(b'b', Some(b'a'));
        used.insert_child(b'd', Some(b'c'));
        assert_eq!(used.node.stats().dead_bytes, PAGE);
        remove(&mut used);
        assert_eq!(used.node.stats().dead_bytes, 2 * PAGE);
        used.node.check().expect("the invariants hold");
    }
}

#[test]
fn a_tier_that_cannot_remove_what_it_must_is_not_attached() {
    for (fails_to_sync, attached) in [(true, None), (false, Some(false))] {
        let mut used = TierNode::new(ModelTier::with(&[b"a"]));
        used.insert(*b"a");
        used.node.remove(used.session, &[b"a"]).expect("it may");
        let (mut next, _) = next_server(&used.node, false);
        let tier = Arc::new(ModelTier { fails_to_sync, ..ModelTier::with(&[b"a"]) });
        assert_eq!(next.attach_tier(Arc::clone(&tier) as _, TierOptions::default()), attached);
        assert!(tier.near.lock().expect("no panic").is_empty());
        assert_eq!(next.has_tier(), attached.is_some());
    }
}

/// Values that the tier has stay so when a server ends, unless the tier is cleared.
#[test]
fn values_are_in_the_tier_after_a_restart_unless_it_is_cleared() {
    type Change = fn(&mut Node, SessionIndex);
    let changes: [(Change, Option<bool>); 3] = [
        (|_, _| {}, Some(false)),
        (|node, session| _ = node.remove(session, &[&[0]]), Some(false)),
        (|node, _| node.clear_tier(Some(0)), Some(true)),
    ];
    for (at, (change, cleared)) in changes.into_iter().enumerate() {
        let mut used = TierNode::new(ModelTier::default());
        used.insert(0..40);
        used.store_all();
        change(&mut used.node, used.session);
        let (mut next, _) = next_server(&used.node, false);
        let tier: Arc<dyn Tier> = Arc::clone(&used.tier) as _;
        assert_eq!(next.attach_tier(tier, TierOptions::default()), cleared, "change {at}");
        let clean = next.committed_slots().filter(|slot| next.entry(*slot).is_clean()).count();
        let all = next.len();
        assert_eq!((clean, all), if at == 0 { (40, 40) } else { [(39, 39), (0, 40)][at - 1] });
        next.check().expect("the invariants hold");
    }
}

/// A value is in the tier if its newest value is there.
#[test]
fn a_value_in_memory_is_in_the_tier_if_that_has_the_same() {
    let mut used = TierNode::new(ModelTier::with(&[b"a", b"b"]));
    used.insert(*b"abc");
    [b'a', b'c'].into_iter().for_each(|key| used.node.entry(used.slot(key)).set_clean());
    let keys: [&[u8]; 3] = [b"a", b"b", b"c"];
    let located = used.node.locate(used.session, &keys, 5).expect("the keys are short");
    let in_tier: Vec<bool> = located.iter().map(|it| it.in_tier).collect();
    // Of `b` it has an older one, and `c` it has lost.
    assert_eq!(in_tier, [true, false, false]);
    // A value that is longer than the memory cannot be fetched.
    used.tier.add(b"long", 2 * BYTES as u64);
    used.tier.add(b"all", BYTES as u64);
    assert_eq!(
        [b"long".as_slice(), b"all"].map(|it| used.node.lookup(used.session, &[it], 5)),
        [0, 1]
    );
}

/// The tier does not say what it evicts: an event says that it has, and names of values that are
/// gone are forgotten.
#[test]
fn evictions_of_the_tier_are_an_event() {
    let mut used = with_events(ModelTier::default());
    used.insert(0..40);
    used.store_all();
    assert_eq!(used.node.tier_names(), 40);
    let evicted = |used: &TierNode| {
        let events = used.node.events_since(0, 1000, |_| true).events;
        events.iter().filter(|it| it.kind == EventKind::TierEvicted).count()
    };
    assert_eq!(evicted(&used), 0);
    (0..5).for_each(|key| used.tier.lose(&[key]));
    used.tier.evictions.fetch_add(5, Ordering::Relaxed);
    used.node.tier_done(TierDone::Stored(Vec::new()), 5);
    used.node.tier_done(TierDone::Stored(Vec::new()), 5);
    assert_eq!((evicted(&used), used.node.tier_names()), (1, 35));
}

/// Lists and announcements go through memory first, and then through the names of what is in the
/// tier alone, some at a time.
#[test]
fn values_in_the_tier_are_listed_and_announced_after_those_in_memory() {
    let mut used = TierNode::new(ModelTier::with(&[b"x", b"y"]));
    let (other, model) =
        (begin_in(&mut used.node, "other"), used.node.namespace_number(used.session));
    used.insert(0..40);
    assert_eq!(used.store_all(), (0..40).collect::<Vec<u8>>());
    assert_eq!([used.evict(), used.evict()], [0, 1]);
    // An earlier server has stored one of these, and the tier has lost the other one since.
    used.node.name_in_tier(model, b"x".to_vec());
    used.node.name_in_tier(model, b"lost".to_vec());
    // One of another namespace.
    used.node.name_in_tier(used.node.namespace_number(other), b"y".to_vec());
    let listed = |session, max| {
        let namespace = used.node.namespace_number(session);
        let (mut found, mut next) = (Vec::new(), Some(0));
        while let Some(from) = next {
            let (values, then) = used.node.list(Some(namespace), from, max, 5);
            found.push(values);
            next = then;
        }
        found
    };
    let keys = |values: &Vec<Listed>| values.iter().map(|it| it.key[0]).collect::<Vec<u8>>();
    let calls = listed(used.session, 20);
    let found: Vec<Vec<u8>> = calls.iter().map(keys).collect();
    let in_memory = |keys: std::ops::Range<u8>| keys.collect::<Vec<u8>>();
    assert_eq!(found, [in_memory(2..22), in_memory(22..40), vec![b'x', 1, 0]]);
    let in_tier = &calls[2][0];
    assert_eq!((&*in_tier.namespace, in_tier.len, in_tier.pins), ("model", PAGE, 0));
    let found: Vec<Vec<u8>> = listed(used.session, 2).iter().map(keys).skip(19).collect();
    assert_eq!(found, [vec![b'x', 1], vec![0]]);
    assert_eq!(listed(other, 20), [vec![], vec![]]);
    assert_eq!(used.node.list(None, 0, 100, 5).1, None, "of all namespaces those in memory");
    // The same for the publisher of events.
    let (mut placed, mut next) = (Vec::new(), Some(u32::MAX));
    let mut left = Vec::new();
    while let Some(names) = next {
        next = used.node.placed_in_tier(names, 20, |change| match change {
            Change::Placed(namespace, key, Place::Tier) => placed.push((namespace, key[0])),
            other => panic!("{other:?} is not in the tier"),
        });
        left.push(next);
    }
    assert_eq!(placed, [(model, b'x'), (model, 1), (model, 0)]);
    assert_eq!(left, [Some(23), Some(3), None], "of 43 names");
    assert_eq!(used.node.placed_in_tier(20, 20, |_| {}), None);
    // Without a tier there is nothing behind the values in memory.
    assert_eq!(plain_list(), None);
}

/// Returns how a list of a namespace goes on for a node without a tier.
fn plain_list() -> Option<u32> {
    let mut plain = node();
    let session = begin(&mut plain, 1);
    insert(&mut plain, session, b"a", 64);
    assert!(!plain.has_tier());
    plain.list(Some(0), 0, 10, 5).1
}

/// Names of values that are not there are looked at, too: a call looks at a limited number.
#[test]
fn a_list_looks_at_a_limited_number_of_names() {
    let mut used = TierNode::new(ModelTier::with(&[b"a"]));
    let model = used.node.namespace_number(used.session);
    used.node.name_in_tier(model, b"a".to_vec());
    (0..3000_u16).for_each(|key| used.node.name_in_tier(model, key.to_be_bytes().to_vec()));
    let (values, next) = used.node.list(Some(model), 0, 10, 5);
    assert!(values.is_empty());
    let (values, next) = used.node.list(Some(model), next.expect("there are names"), 10, 5);
    assert!(values.is_empty());
    let (values, next) = used.node.list(Some(model), next.expect("953 are left"), 10, 5);
    assert_eq!((values.len(), next), (1, None));
}
