//! Why keys have no values.

use super::super::MissReason;
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
