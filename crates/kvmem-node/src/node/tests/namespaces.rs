//! Namespaces: their names, their shares, and which of them gives up its place.

use super::super::{Evicted, NamespaceLimits};
use super::*;
use crate::error::TooMany;
use crate::format::{Committing, MAX_NAMESPACE_NAME};

/// Returns the namespaces that have values, and how many.
fn values(node: &Node) -> BTreeMap<String, usize> {
    let mut values = BTreeMap::new();
    for value in node.list(None, 0, u32::MAX, 0).0 {
        *values.entry(value.namespace).or_default() += 1;
    }
    values
}

/// Stores a value in a namespace, whose session ends then.
fn store_and_leave(node: &mut Node, name: &str) {
    let session = begin_in(node, name);
    insert(node, session, b"key", 64);
    node.end_session(session);
}

/// A user may make some namespaces. The one that was left first is emptied for the next one, unless
/// a client comes back to it.
#[test]
fn the_namespace_that_was_left_first_gives_up_its_place() {
    let mut node = node();
    assert_eq!(node.empty_namespace(Slice::endless()), Evicted::Enough, "none is being emptied");
    ["a", "b", "c"].iter().for_each(|name| store_and_leave(&mut node, name));
    // The first one is used again.
    let session = begin_in(&mut node, "a");
    node.end_session(session);
    let make = |node: &mut Node, name: &str| node.namespace(name, 0, 3);
    let full = Err(CallError::TooMany { what: TooMany::Namespaces, limit: 3 });
    assert_eq!(make(&mut node, "d"), full);
    // Its client comes back, so it stays; then another client wants the place.
    assert_eq!(make(&mut node, "b"), Ok(1));
    assert_eq!((node.empty_namespace(Slice::endless()), values(&node).len()), (Evicted::Enough, 3));
    let session = begin_in(&mut node, "b");
    assert_eq!(make(&mut node, "d"), full);
    // The client of another namespace changes nothing when it comes back.
    assert_eq!(make(&mut node, "a"), Ok(0));
    assert_eq!((node.empty_namespace(Slice::endless()), values(&node).len()), (Evicted::Enough, 2));
    assert_eq!(make(&mut node, "d"), Ok(2));
    assert_eq!((node.find_namespace("c"), node.find_namespace("d")), (None, Some(2)));
    node.end_session(session);
    // Another user has a limit of its own.
    assert_eq!(node.namespace("of another", 1, 1), Ok(3));
    let full = Err(CallError::TooMany { what: TooMany::Namespaces, limit: 1 });
    node.begin_session(session_of(1, 3)).expect("there are few");
    assert_eq!(node.namespace("one more", 1, 1), full);
    // Two are left, of which the first one was left first. It is emptied value by value.
    assert_eq!(make(&mut node, "e"), Ok(2), "it has no value");
    node.begin_session(session_of(1, 2)).expect("there are few");
    assert_eq!(
        make(&mut node, "f"),
        Err(CallError::TooMany { what: TooMany::Namespaces, limit: 3 })
    );
    node.evictions_left = 0;
    assert_eq!((node.empty_namespace(Slice::endless()), values(&node).len()), (Evicted::More, 2));
    node.evictions_left = u32::MAX;
    assert_eq!(node.empty_namespace(Slice::endless()), Evicted::Enough);
    assert_eq!(values(&node).into_keys().collect::<Vec<_>>(), ["b"]);
    assert_eq!(make(&mut node, "f"), Ok(0));
    node.check().expect("the invariants hold");
}

#[test]
fn a_name_has_a_limited_length() {
    let mut node = node();
    let longest = "n".repeat(MAX_NAMESPACE_NAME);
    assert_eq!(node.namespace(&longest, 0, 9), Ok(0));
    let (len, limit) = (MAX_NAMESPACE_NAME + 1, MAX_NAMESPACE_NAME);
    assert_eq!(node.namespace(&"n".repeat(len), 0, 9), Err(CallError::BadNamespace { len, limit }));
}

/// The namespace that exceeds its share most gives up the next value.
#[test]
fn namespaces_share_the_memory_as_their_shares_say() {
    let limits = |share| NamespaceLimits { share, ..NamespaceLimits::default() };
    let limits = [("one", 1), ("three", 3)].map(|(name, share)| (name.to_owned(), limits(share)));
    let options = NodeOptions { max_blocks: Some(100), limits: limits.to_vec(), ..options() };
    let mut node = Node::create(shared(BYTES), options).expect("the options are possible");
    for key in 0..200 {
        for name in ["one", "three"] {
            let session = begin_in(&mut node, name);
            insert(&mut node, session, &[key], 4096);
            node.end_session(session);
        }
    }
    let order = {
        let space_of = |_| 4096;
        let order = node.namespaces.eviction_order(&node.locals, node.history.as_deref(), space_of);
        order.map(|slot| node.entry(slot).namespace()).collect::<Vec<u16>>()
    };
    let values = values(&node);
    assert_eq!([values["one"], values["three"]], [16, 48]);
    // Of four values that go, one is of the first.
    for four in order.chunks(4) {
        assert_eq!(four.iter().filter(|namespace| **namespace == 0).count(), 1, "{order:?}");
    }
}

/// A file of a later version may have a priority that this one lacks: it is the highest one.
#[test]
fn a_recovered_value_of_an_unknown_priority_goes_last() {
    let mut node = node();
    let session = begin(&mut node, 7);
    for (key, priority) in [(b"a", 200), (b"b", 3), (b"c", 0)] {
        let handle = node.reserve(session, &[64]).expect("there is space")[0].handle;
        let what = Committing {
            key,
            namespace: 0,
            priority,
            data_type: DataType::Unknown,
            checksum: None,
            batch: node.next_batch(),
            expires_at: 0,
            parent: 0,
        };
        node.set_order(handle.slot);
        let entry = node.entry(handle.slot);
        entry.prepare(handle.generation, &what);
        entry.commit(node.word(handle.slot));
        entry.remove_user(session.number());
    }
    let (mut next, report) = next_server(&node, false);
    assert_eq!((report.values, report.damaged), (3, 0));
    let mut order = Vec::new();
    while let Some(victim) = next.victim(None) {
        order.push(next.entry(victim).key()[0]);
        next.evict(victim);
        next.check().expect("the invariants hold");
    }
    assert_eq!(order, *b"cab", "by use, if the priority is the highest");
}

#[test]
fn a_session_reserves_as_much_as_its_limit_says() {
    let options = NodeOptions { max_reserved_per_session: 3 * 4096, ..options() };
    let mut node = Node::create(shared(BYTES), options).expect("the options are possible");
    let session = begin(&mut node, 7);
    let error = |value| CallError::Quota {
        what: crate::error::Quota::SessionReserved,
        value,
        limit: 3 * 4096,
    };
    assert_eq!(node.reserve(session, &[4096; 4]), Err(error(4 * 4096)));
    assert_eq!(node.reserve(session, &[4096; 3]).map(|it| it.len()), Ok(3));
    assert_eq!(node.reserve(session, &[1]), Err(error(4 * 4096)));
    let other = begin(&mut node, 8);
    for len in [0, BYTES as u64 + 1] {
        let error = match len {
            0 => CallError::BadLength { requested: 0, limit: BYTES as u64 },
            len => CallError::BadLength { requested: len, limit: BYTES as u64 },
        };
        let unlimited = NodeOptions { max_reserved_per_session: u64::MAX, ..node.options.clone() };
        node.options = unlimited;
        assert_eq!(node.reserve(other, &[len]), Err(error));
    }
    // An entry that had a value with a checksum has none of it.
    insert(&mut node, other, b"key", 64);
    let slot = node.find(0, b"key").expect("it has a value");
    assert_eq!(node.remove(other, &[b"key"]), Ok(1));
    let granted = node.reserve(other, &[64]).expect("there is space")[0];
    assert_eq!((granted.handle.slot, granted.checksum), (slot, None));
}

/// A namespace at its limit evicts as many values as a call may, and the next call goes on.
#[test]
fn a_namespace_at_its_limit_evicts_no_more_than_a_call_may() {
    let small = NamespaceLimits { max_bytes: 4 * 4096, ..NamespaceLimits::default() };
    let options = NodeOptions { default_limits: small, ..options() };
    let mut node = Node::create(shared(BYTES), options).expect("the options are possible");
    let session = begin(&mut node, 7);
    (0..4).for_each(|key| insert(&mut node, session, &[key], 4096));
    node.evictions_left = 1;
    assert!(matches!(node.reserve(session, &[2 * 4096]), Err(CallError::Quota { .. })));
    assert_eq!((node.evictions_left, node.len()), (0, 3));
    assert!(matches!(node.reserve(session, &[2 * 4096]), Err(CallError::Quota { .. })));
    node.evictions_left = 1;
    assert_eq!(node.reserve(session, &[2 * 4096]).map(|it| it.len()), Ok(1));
}
