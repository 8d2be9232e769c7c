//! Events, announcements of all values, and values that outlive their time.

use super::super::events::{Change, Place};
use super::super::{EventKind, Events};
use super::*;

fn with_events(max_events: usize) -> Node {
    let options = NodeOptions { max_events, ..options() };
    Node::create(shared(BYTES), options).expect("the options are possible")
}

#[test]
fn all_values_in_memory_are_announced_some_entries_at_a_time() {
    let mut node = node();
    let sessions = ["first", "second"].map(|name| begin_in(&mut node, name));
    for key in 0..6 {
        insert(&mut node, sessions[usize::from(key) % 2], &[key], 64);
    }
    assert_eq!(node.remove(sessions[0], &[&[2]]), Ok(1));
    let (mut placed, mut next, mut calls) = (Vec::new(), Some(0), 0);
    while let Some(from) = next {
        calls += 1;
        next = node.placed_in_memory(from, 4, |change| {
            let Change::Placed(namespace, key, Place::Memory) = change else {
                panic!("{change:?} is not in memory");
            };
            placed.push((node.name_of_namespace(namespace).to_owned(), key[0]));
        });
    }
    placed.sort();
    let expected = [("first", 0), ("first", 4), ("second", 1), ("second", 3), ("second", 5)];
    assert_eq!(placed, expected.map(|(name, key)| (name.to_owned(), key)));
    assert_eq!(calls, 2, "six entries were ever used");
    let of = |key| node.extent_in_memory(node.sessions.get(sessions[0]).namespace, &[key]);
    assert_eq!((of(0).map(|it| it.end - it.start), of(2), of(1)), (Some(64), None, None));
}

/// The publisher learns where the values are now: what was stored and has gone is nowhere, unless
/// the tier has it.
#[test]
fn changes_say_where_values_are_now() {
    for has_tier in [false, true] {
        let mut node = with_events(100);
        let session = begin_in(&mut node, "model");
        let tier = KeyTier::with(b"b");
        if has_tier {
            node.attach_tier(Arc::clone(&tier) as _, TierOptions::default()).expect("it is new");
        }
        let start = node.next_event();
        insert(&mut node, session, b"a", 64);
        insert(&mut node, session, b"a", 128);
        insert(&mut node, session, b"c", 64);
        tier.keys.lock().expect("no panic").push(b"\x05modela".to_vec());
        node.committed_slots().for_each(|slot| node.entry(slot).set_clean());
        node.evict_bytes(None, 4096);
        let changes = |from, max| {
            let mut found = Vec::new();
            let next = node.changes_since(from, max, |change| match change {
                Change::Placed(_, key, place) => found.push((key[0], place)),
                Change::TierEvicted => panic!("the tier has evicted nothing"),
            });
            (found, next)
        };
        let (found, next) = changes(start, 100);
        assert_eq!(next, Some(node.next_event()));
        // The value that was replaced is no change of its own.
        let stored = [(b'a', Place::Memory), (b'a', Place::Memory), (b'c', Place::Memory)];
        assert_eq!(found[..3], stored);
        let last = if has_tier { Place::Tier } else { Place::Nowhere };
        assert_eq!(found[3..], [(b'a', last)]);
        assert_eq!(changes(start, 2).1, Some(start + 2));
        assert_eq!(changes(start - 1, 2), (Vec::new(), None), "events were lost");
    }
}

#[test]
fn values_are_listed_some_at_a_time() {
    let mut node = node();
    let sessions = ["first", "second"].map(|name| begin_in(&mut node, name));
    for key in 0..7 {
        insert(&mut node, sessions[usize::from(key) % 2], &[key], 64);
    }
    let number = node.sessions.get(sessions[1]).namespace;
    for (namespace, max, lists) in [
        (None, 3, vec![vec![0, 1, 2], vec![3, 4, 5], vec![6]]),
        (Some(number), 2, vec![vec![1, 3], vec![5]]),
        (Some(number), 3, vec![vec![1, 3, 5]]),
    ] {
        let (mut found, mut next) = (Vec::new(), Some(0));
        while let Some(from) = next {
            let (listed, then) = node.list(namespace, from, max, u64::MAX);
            let idle =
                |it: &super::super::Listed| (it.idle_ms, it.len, it.pins) == (u64::MAX - 5, 64, 0);
            assert!(listed.iter().all(idle));
            found.push(listed.iter().map(|it| it.key[0]).collect::<Vec<u8>>());
            next = then;
        }
        assert_eq!(found, lists);
    }
}

#[test]
fn a_client_sees_the_events_of_its_namespaces() {
    let mut node = with_events(100);
    let sessions = ["first", "second"].map(|name| begin_in(&mut node, name));
    let start = node.next_event();
    for key in 0..4 {
        insert(&mut node, sessions[usize::from(key) % 2], &[key], 64);
    }
    node.remove(sessions[0], &[&[2]]).expect("it may");
    let mine = |name: Option<&str>| name == Some("first");
    let found = node.events_since(start, 10, mine);
    let events: Vec<(u64, EventKind, u8)> =
        found.events.iter().map(|it| (it.number - start, it.kind, it.key[0])).collect();
    let stored = EventKind::Stored;
    assert_eq!(events, [(0, stored, 0), (2, stored, 2), (4, EventKind::Removed, 2)]);
    assert_eq!((found.next, node.next_event(), found.lost), (start + 5, start + 5, false));
    assert!(!node.is_waited_for(&found));
    // A call with nothing to see looks at all, and waits for more.
    let none = node.events_since(start, 10, |_| false);
    assert_eq!(none, Events { next: start + 5, ..Events::default() });
    assert!(node.is_waited_for(&none));
    let some_left = Events { next: start + 4, ..none.clone() };
    let lost = Events { lost: true, ..none };
    assert!(!node.is_waited_for(&some_left) && !node.is_waited_for(&lost));
    // The number of a namespace had another name before, for which the caller is asked once.
    let number = node.sessions.get(sessions[1]).namespace;
    node.namespaces.at(number).events_from = start + 3;
    let names = std::cell::RefCell::new(Vec::new());
    let found = node.events_since(start, 10, |name| {
        names.borrow_mut().push(name.map(str::to_owned));
        name.is_none()
    });
    let keys: Vec<u8> = found.events.iter().map(|it| it.key[0]).collect();
    assert_eq!(keys, [1], "the event of the earlier name");
    let named = |name: &str| Some(name.to_owned());
    assert_eq!(names.into_inner(), [named("first"), None, named("second")]);
}

#[test]
fn the_log_becomes_longer_and_never_shorter() {
    let mut node = with_events(2);
    let session = begin_in(&mut node, "first");
    for (at_least, events) in [(0, 2), (4, 4), (3, 4)] {
        node.log_at_least(at_least);
        for key in 0..9 {
            insert(&mut node, session, &[key], 64);
        }
        assert_eq!(node.events_since(0, 100, |_| true).events.len(), events);
    }
}

#[test]
fn values_expire_some_entries_at_a_time() {
    let mut node = node();
    let session = begin(&mut node, 1);
    for key in 0..5 {
        let handle = node.reserve(session, &[64]).expect("there is space")[0].handle;
        let item = CommitItem {
            key: &[key],
            ttl_ms: if key % 2 == 0 { 10 } else { 0 },
            ..item_of(handle)
        };
        node.commit(session, &[item], 5).expect("its own");
    }
    let left = |node: &Node| node.list(None, 0, u32::MAX, 0).0.len();
    assert_eq!((node.expire(0, 100, 14), left(&node)), (0, 5));
    let mut at = 0;
    for (next, values) in [(2, 4), (4, 3), (0, 2)] {
        at = node.expire(at, 2, 15);
        assert_eq!((at, left(&node)), (next, values));
    }
    assert_eq!(node.stats().expired_total, 3);
    // One that is acquired too late counts as expired, too.
    let handle = node.reserve(session, &[64]).expect("there is space")[0].handle;
    let item = CommitItem { key: b"late", ttl_ms: 10, ..item_of(handle) };
    node.commit(session, &[item], 5).expect("its own");
    assert_eq!(node.acquire(session, &[b"late"], false, 15).map(|it| it[0].is_some()), Ok(false));
    assert_eq!((node.stats().expired_total, left(&node)), (4, 2));
}
