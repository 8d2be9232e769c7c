//! Why keys have no value: the reasons of misses, in counts and in the sample of the last ones.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use kvmem::tier::Priority;
use kvmem_node::{
    ConnectOptions, Miss, MissReason, NamespaceStats, NewValue, NodeClient, ServerOptions,
    ValueOptions,
};

use crate::support::{Place, Running, Tiered, connect_with, node, wait_for};
use crate::tier::{self, MapTier, fill};

fn client(place: &Place, namespace: &str) -> NodeClient {
    let options = ConnectOptions { namespace: namespace.to_owned(), ..ConnectOptions::default() };
    connect_with(&place.socket(), &options)
}

fn of_priority(priority: u8) -> ValueOptions {
    let priority = Priority::new(priority).expect("it is at most 3");
    ValueOptions { priority, ..ValueOptions::default() }
}

/// Returns the last misses of a client's namespace: the key and the reason of each.
fn last(client: &NodeClient, count: u32) -> Vec<(Vec<u8>, MissReason)> {
    let misses = client.misses(count).expect("a call");
    misses.into_iter().map(|it| (it.key, it.reason)).collect()
}

fn figures(client: &NodeClient, name: &str) -> NamespaceStats {
    let all = client.stats().expect("a call").namespaces;
    all.into_iter().find(|it| it.name == name).expect("it has values")
}

#[test]
fn each_miss_has_its_reason() {
    let place = Place::new();
    let _server = Running::start(node(1 << 20), &place.socket(), ServerOptions::default());
    let chat = client(&place, "chat");
    let ttl = Some(Duration::from_millis(1));
    chat.insert_with("short", b"value", ValueOptions { ttl, ..ValueOptions::default() })
        .expect("there is space");
    for key in ["removed", "damaged", "evicted", "read"] {
        chat.insert_with(key, b"value", of_priority(u8::from(key == "read")))
            .expect("there is space");
    }
    std::thread::sleep(Duration::from_millis(5));
    chat.remove(&["removed"]).expect("a call");
    assert_eq!(chat.acquire(&["read"]).expect("a call").hits(), 1);
    // The large value of another namespace takes all of the memory.
    let batch = client(&place, "batch");
    assert_eq!(chat.acquire(&["short"]).expect("a call").hits(), 0);
    batch.insert_with("large", &[1; 1 << 20], of_priority(2)).expect("the rest is evicted");

    let keys = ["none", "removed", "evicted", "read", "damaged"];
    for key in keys {
        assert_eq!(chat.acquire(&[key]).expect("a call").hits(), 0, "{key}");
    }
    let expected = [
        ("damaged", MissReason::Evicted),
        ("read", MissReason::Evicted),
        ("evicted", MissReason::Evicted),
        ("removed", MissReason::Removed),
        ("none", MissReason::NeverStored),
        ("short", MissReason::Expired),
    ];
    let expected = expected.map(|(key, reason)| (key.as_bytes().to_vec(), reason));
    assert_eq!(last(&chat, 10), expected);
    assert_eq!(last(&chat, 2), expected[..2]);
    let of = |key: &str| {
        let misses = chat.misses(10).expect("a call");
        misses.into_iter().find(|it| it.key == key.as_bytes()).expect("it is a miss")
    };
    let Miss { namespace, gone_s, evicted_for, priority, ago_ms, .. } = of("read");
    assert_eq!((&*namespace, evicted_for.as_deref(), priority), ("chat", Some("batch"), Some(1)));
    assert!(gone_s.is_some_and(|it| it < 60) && ago_ms < 60_000);
    let Miss { gone_s, evicted_for, priority, .. } = of("none");
    assert_eq!((gone_s, evicted_for, priority), (None, None, None));
    assert_eq!(of("short").evicted_for, None);

    let figures = figures(&chat, "chat");
    assert_eq!((figures.hits, figures.misses), (1, 6));
    assert_eq!((figures.never_stored_misses, figures.evicted_misses), (1, 3));
    assert_eq!((figures.expired_misses, figures.removed_misses), (1, 1));
    // Nobody had read the one whose time was over, and two of the three that were evicted.
    assert_eq!(figures.evicted_unused_total, 3);
    let stats = chat.stats().expect("a call");
    assert_eq!((stats.misses, stats.evicted_misses, stats.evicted_unused_total), (6, 3, 3));
}

#[test]
fn damaged_values_are_misses_of_their_own() {
    let place = Place::new();
    let _server = Running::start(node(1 << 20), &place.socket(), ServerOptions::default());
    let options = ConnectOptions { checksums: true, verify: true, ..ConnectOptions::default() };
    let client = connect_with(&place.socket(), &options);
    let mut blocks = client.reserve(&[100]).expect("there is space");
    let bytes = blocks[0].bytes_mut().expect("it is reserved").as_mut_ptr();
    let block = blocks.pop().expect("one was reserved");
    client.commit(vec![NewValue::new("key", block)]).expect("it is reserved");
    // SAFETY: the test alone uses the memory, which the client has mapped for writing.
    unsafe { bytes.write(7) };
    assert_eq!(client.acquire(&["key"]).expect("a call").hits(), 0, "it is damaged");
    assert_eq!(client.acquire(&["key"]).expect("a call").hits(), 0, "it is gone");
    assert_eq!(last(&client, 9), [(b"key".to_vec(), MissReason::Damaged)]);
    assert_eq!(client.stats().expect("a call").damaged_misses, 1);
}

/// A call for a prefix ends at its first miss, and other calls look at all keys; of both the sample
/// has the first miss.
#[test]
fn a_prefix_has_one_miss() {
    let place = Place::new();
    let _server = Running::start(node(1 << 20), &place.socket(), ServerOptions::default());
    let client = client(&place, "chat");
    client.insert("a", b"value").expect("there is space");
    assert_eq!(client.acquire_prefix(&["a", "b", "c"]).expect("a call").hits(), 1);
    assert_eq!(client.stats().expect("a call").misses, 1);
    assert_eq!(client.acquire(&["a", "c", "d"]).expect("a call").hits(), 1);
    assert_eq!(client.stats().expect("a call").misses, 3);
    let never = |key: &[u8]| (key.to_vec(), MissReason::NeverStored);
    assert_eq!(last(&client, 9), [never(b"c"), never(b"b")]);
    for key in 0..300_u32 {
        assert_eq!(client.acquire(&[key.to_le_bytes()]).expect("a call").hits(), 0);
    }
    assert_eq!(client.misses(u32::MAX).expect("a call").len(), 256);
}

#[test]
fn clients_see_the_misses_of_their_namespace_alone() {
    let place = Place::new();
    let _server = Running::start(node(1 << 20), &place.socket(), ServerOptions::default());
    let (chat, batch) = (client(&place, "chat"), client(&place, "batch"));
    assert_eq!(chat.acquire(&["secret"]).expect("a call").hits(), 0);
    assert_eq!(batch.acquire(&["other"]).expect("a call").hits(), 0);
    assert_eq!(last(&chat, 9), [(b"secret".to_vec(), MissReason::NeverStored)]);
    assert_eq!(last(&batch, 9), [(b"other".to_vec(), MissReason::NeverStored)]);
    let all = batch.as_operator().misses(9).expect("the server's own user");
    let names: Vec<&str> = all.iter().map(|it| &*it.namespace).collect();
    assert_eq!(names, ["batch", "chat"]);
}

#[test]
fn what_a_tier_had_is_a_miss_of_the_tier() {
    let map = Arc::new(MapTier::default());
    let tiered = Tiered::start(Place::new(), tier::node(), Arc::clone(&map) as _);
    let client = tiered.client();
    fill(&client, &map, 0..40);
    // What was evicted without being stored first, and what is in memory, is of no use here.
    let located = |key: u8| client.locate(&[[key]]).expect("a call")[0];
    let only_in_tier: Vec<u8> =
        (0..40).filter(|key| located(*key).in_tier && !located(*key).in_memory).collect();
    let &[lost, fails, away, ..] = &only_in_tier[..] else { panic!("{only_in_tier:?}") };
    let acquire = |key: u8| client.acquire(&[[key]]).expect("a call").hits();
    let reason = |key: u8| {
        assert_eq!(acquire(key), 0, "{key}");
        last(&client, 1).remove(0)
    };
    map.evict(&[lost]);
    assert_eq!(reason(lost), (vec![lost], MissReason::TierLost));
    map.fails.store(true, Ordering::Relaxed);
    assert_eq!(reason(fails), (vec![fails], MissReason::NotFetched));
    map.fails.store(false, Ordering::Relaxed);
    map.is_away.store(true, Ordering::Relaxed);
    assert_eq!(reason(away), (vec![away], MissReason::TierAway));
    assert_eq!(reason(99), (vec![99], MissReason::NeverStored));
    map.is_away.store(false, Ordering::Relaxed);
    let stats = client.stats().expect("a call");
    assert_eq!((stats.tier_lost_misses, stats.not_fetched_misses), (1, 1));
    assert_eq!((stats.tier_away_misses, stats.never_stored_misses), (1, 1));
    // A value that comes is no miss.
    let before = client.stats().expect("a call").misses;
    wait_for("the value comes", || {
        let pins = client.try_acquire(&[[away]]).expect("a call");
        pins.hits() == 1
    });
    assert_eq!(client.stats().expect("a call").misses, before);
    tiered.end();
}
