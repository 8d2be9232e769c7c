//! Why keys have no values.

use super::super::MissReason;
use super::model_tier::{ModelTier, TierNode};
use super::*;

#[test]
fn a_miss_says_why_the_key_has_no_value() {
    let mut node = node();
    let [first, second] = ["first", "second"].map(|name| begin_in(&mut node, name));
    for key in 0..48 {
        insert(&mut node, first, &[key], 4096);
    }
    for key in [0, 1] {
        let pin = node.acquire(first, &[&[key]], false, 5).expect("a call")[0];
        node.release(first, &[pin.expect("it has a value").handle]).expect("a pin");
    }
    assert_eq!(node.remove(first, &[&[9]]), Ok(1));
    insert(&mut node, second, b"mine", 4096);
    // All blocks are in use: a value of the other namespace goes, that nobody has read.
    let handle = node.reserve(second, &[4096]).expect("a value is evicted")[0].handle;
    let item = CommitItem { key: b"late", ttl_ms: 10, ..item_of(handle) };
    node.commit(second, &[item], 5).expect("its own");
    let of_second = Some("second".to_owned());
    for (session, name, key, reason, evicted_for) in [
        (first, "first", &[100][..], MissReason::NeverStored, None),
        (first, "first", &[2], MissReason::Evicted, of_second),
        (first, "first", &[9], MissReason::Removed, None),
        (second, "second", b"late", MissReason::Expired, None),
    ] {
        let before = node.counters.misses.of(reason);
        assert_eq!(node.acquire(session, &[key], false, 20).expect("a call"), [None]);
        assert_eq!(node.counters.misses.of(reason), before + 1);
        let miss = node.misses(None, 1, 25).remove(0);
        assert_eq!((&*miss.namespace, &*miss.key, miss.reason), (name, key, reason));
        assert_eq!((miss.ago_ms, miss.evicted_for), (5, evicted_for));
    }
    assert_eq!((node.counters.evicted_unused, node.counters.hits), (2, 2), "2, and the late one");
    // Of a prefix one key is a miss, and keys that nobody looked up are none.
    let all = |node: &Node| node.stats().namespaces[1].clone();
    let before = all(&node);
    let keys: [&[u8]; 3] = [b"mine", b"x", b"y"];
    let found = node.acquire(second, &keys, true, 30).expect("a call");
    assert_eq!(found.iter().flatten().count(), 1);
    let after = all(&node);
    assert_eq!((after.keys - before.keys, after.hits - before.hits), (3, 1));
    let number = |node: &Node, session| node.sessions.get(session).namespace;
    let of = |node: &Node, session| {
        let misses = node.misses(Some(number(node, session)), 10, 30);
        misses.into_iter().map(|it| it.key).collect::<Vec<_>>()
    };
    assert_eq!(of(&node, first), [&[9][..], &[2], &[100]]);
    assert_eq!(of(&node, second), [&b"x"[..], b"late"]);
    assert_eq!(node.misses(None, 4, 30).len(), 4);
    // A number of a namespace that is used again has no misses, and nobody knows any reason.
    node.forget_namespace(number(&node, first));
    assert_eq!((of(&node, first).len(), of(&node, second).len()), (0, 2));
    assert_eq!(node.acquire(first, &[&[9]], false, 40).expect("a call"), [None]);
    assert_eq!(node.misses(None, 1, 40)[0].reason, MissReason::NeverStored);
}

/// The tier has let the value go, or only cannot be asked now.
#[test]
fn a_value_that_the_tier_lost_is_away_while_the_tier_is() {
    use kvmem::tier::TierState;
    for (state, is_there, reason) in [
        (TierState::Working, false, MissReason::TierLost),
        (TierState::ReadOnly, false, MissReason::TierLost),
        (TierState::Away, false, MissReason::TierAway),
        (TierState::Away, true, MissReason::TierAway),
        (TierState::ReadOnly, true, MissReason::NotFetched),
    ] {
        let mut used = TierNode::new(ModelTier::default());
        used.insert(*b"a");
        used.node.entry(used.slot(b'a')).set_clean();
        used.tier.add(b"a", 4096);
        assert_eq!(used.evict(), b'a');
        if !is_there {
            used.tier.lose(b"a");
        }
        *used.tier.state.lock().expect("no panic") = Some(state);
        assert_eq!(used.node.acquire(used.session, &[b"a"], false, 5).expect("a call"), [None]);
        assert_eq!(used.node.misses(None, 1, 5)[0].reason, reason, "{state:?} {is_there}");
        // One that was evicted without being stored is gone in any case.
        used.insert(*b"b");
        assert_eq!(used.evict(), b'b');
        assert_eq!(used.node.acquire(used.session, &[b"b"], false, 5).expect("a call"), [None]);
        assert_eq!(used.node.misses(None, 1, 5)[0].reason, MissReason::Evicted);
    }
}

/// A miss knows how long its value has been gone. The first one of each call is remembered.
#[test]
fn the_last_256_misses_are_remembered() {
    let mut node = node();
    let session = begin(&mut node, 7);
    insert(&mut node, session, b"gone", 64);
    assert_eq!(node.remove(session, &[b"gone"]), Ok(1));
    // It has left by the clock of the machine.
    let now = crate::socket::now_ms() + 100_000;
    let keys: [&[u8]; 2] = [b"gone", b"none"];
    for _ in 0..300 {
        assert_eq!(node.acquire(session, &keys, false, now).expect("a call"), [None, None]);
    }
    let misses = node.misses(None, 1000, now + 7);
    assert_eq!((misses.len(), node.stats().misses), (256, 600));
    assert!(misses.iter().all(|it| (&*it.key, it.ago_ms) == (b"gone", 7)));
    assert!(misses[0].gone_s.is_some_and(|it| (99..=101).contains(&it)), "{:?}", misses[0]);
    // A value whose time is over is one miss, also if a call names it twice.
    let handle = node.reserve(session, &[64]).expect("there is space")[0].handle;
    let item = CommitItem { key: b"late", ttl_ms: 10, ..item_of(handle) };
    node.commit(session, &[item], 5).expect("its own");
    let found = node.acquire(session, &[b"late", b"late"], false, 15).expect("a call");
    assert_eq!((found, node.stats().expired_total), (vec![None, None], 1));
    node.check().expect("the invariants hold");
}
