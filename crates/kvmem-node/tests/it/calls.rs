//! What each call does.

use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use kvmem_node::{
    CallError, ClientError, ConnectOptions, EventKind, Events, Interrupt, MAX_MESSAGE,
    NamespaceLimits, NewValue, Node, NodeClient, NodeOptions, NodeReservation, NodeServer,
    PinBatch, Quota, ServerOptions, ValueOptions,
};

use super::RINGS;
use crate::support::{self, Place, Running, memory, node};

fn connect(path: &Path) -> NodeClient {
    connect_with(path, &ConnectOptions::default())
}

fn connect_with(path: &Path, options: &ConnectOptions) -> NodeClient {
    support::connect_with(path, &ConnectOptions { rings: RINGS, ..options.clone() })
}

fn value(seed: u8, len: usize) -> Vec<u8> {
    (0..len).map(|at| seed ^ (at % 251) as u8).collect()
}

#[test]
fn values_are_found_by_another_client() {
    let place = Place::new();
    let _server = Running::start(node(1 << 20), &place.socket(), ServerOptions::default());
    let (writer, reader) = (connect(&place.socket()), connect(&place.socket()));
    for seed in 0..20 {
        writer.insert([seed], &value(seed, 10_000 + usize::from(seed))).expect("there is space");
    }
    let keys: Vec<[u8; 1]> = (0..22).map(|seed| [seed]).collect();
    assert_eq!(reader.lookup(&keys).expect("a call"), 20);
    let pins = reader.acquire(&keys).expect("a call");
    assert_eq!((pins.len(), pins.hits()), (22, 20));
    for (seed, found) in (0..20).zip(pins.values()) {
        let found = found.expect("it was inserted");
        assert_eq!(found.bytes(), value(seed, 10_000 + usize::from(seed)));
        assert_eq!(found.offset() % 4096, 0);
    }
    let stats = writer.stats().expect("a call");
    assert_eq!((stats.values, stats.pinned, stats.hits, stats.misses), (20, 20, 20, 2));
    drop(pins);
    assert_eq!(reader.stats().expect("a call").pinned, 0);
}

#[test]
fn a_batch_is_committed_as_one() {
    let place = Place::new();
    let _server = Running::start(node(1 << 20), &place.socket(), ServerOptions::default());
    let client = connect(&place.socket());
    let mut blocks = client.reserve(&[5, 6, 7]).expect("there is space");
    for (seed, block) in (0..).zip(&mut blocks) {
        let len = block.len();
        block.write(0, &value(seed, len)).expect("it fits");
    }
    assert_eq!(client.lookup(&["a"]).expect("a call"), 0);
    let keys = ["a", "b", "c"];
    client
        .commit(
            keys.into_iter().zip(blocks).map(|(key, block)| NewValue::new(key, block)).collect(),
        )
        .expect("they are reserved");
    let pins = client.acquire(&keys).expect("a call");
    assert_eq!(pins.value(2).expect("it was committed").bytes(), value(2, 7));

    // One key twice: none of the two is committed, and nothing stays reserved.
    let blocks = client.reserve(&[5, 6]).expect("there is space");
    let twice = ["d", "d"].into_iter().zip(blocks);
    let values = twice.map(|(key, block)| NewValue::new(key, block)).collect();
    let error = client.commit(values).expect_err("twice").error;
    assert!(matches!(error, ClientError::Call(CallError::Twice { index: 1 })), "{error}");
    assert_eq!(client.lookup(&["d"]).expect("a call"), 0);
    assert_eq!(client.stats().expect("a call").reservations, 0);
}

#[test]
fn a_batch_of_pins_can_be_divided() {
    let place = Place::new();
    let _server = Running::start(node(1 << 20), &place.socket(), ServerOptions::default());
    let (client, other) = (connect(&place.socket()), connect(&place.socket()));
    for seed in 0..3 {
        client.insert([seed], &value(seed, 100)).expect("there is space");
    }
    let pinned = || client.stats().expect("a call").pinned;
    let mut parts = client.acquire(&[[0], [1], [9], [2]]).expect("a call").split();
    assert_eq!((parts.len(), pinned()), (4, 3));
    assert!(parts[2].is_none());
    let last = parts.pop().flatten().expect("it is there");
    assert_eq!(last.value(0).expect("it is pinned").bytes(), value(2, 100));
    drop(last);
    assert_eq!(pinned(), 2);
    // Those of several clients, in one call.
    let more = other.acquire(&[[2]]).expect("a call");
    PinBatch::release_all(parts.into_iter().flatten().chain([more]));
    other.keep_alive().expect("a call");
    assert_eq!(pinned(), 0);
}

#[test]
fn a_commit_that_fails_gives_the_reservations_back() {
    let place = Place::new();
    let _server = Running::start(node(1 << 20), &place.socket(), ServerOptions::default());
    let (client, other) = (connect(&place.socket()), connect(&place.socket()));
    let values = |keys: [&'static str; 2], blocks: Vec<NodeReservation>| {
        let options = ValueOptions::default();
        let pairs = keys.into_iter().zip(blocks);
        pairs.map(|(key, reservation)| NewValue { key, reservation, options }).collect::<Vec<_>>()
    };
    let reservations = |client: &NodeClient| client.stats().expect("a call").reservations;
    let blocks = client.reserve(&[5, 6]).expect("there is space");
    let failed = client.commit(values(["a", "a"], blocks)).expect_err("one key twice");
    assert!(matches!(failed.error, ClientError::Call(CallError::Twice { index: 1 })));
    assert_eq!((failed.values.len(), reservations(&client)), (2, 2));
    let failed = other.commit(failed.values).expect_err("those of another client");
    assert!(matches!(failed.error, ClientError::ForeignReservation { index: 0 }));
    assert_eq!(reservations(&client), 2);
    let mut values = failed.values;
    values[1].key = "b";
    client.commit(values).expect("they are still reserved");
    assert_eq!((client.lookup(&["a", "b"]).expect("a call"), reservations(&client)), (2, 0));
}

#[test]
fn a_replaced_value_stays_for_those_who_have_it_pinned() {
    let place = Place::new();
    let _server = Running::start(node(1 << 20), &place.socket(), ServerOptions::default());
    let client = connect(&place.socket());
    client.insert("key", b"old").expect("there is space");
    let old = client.acquire(&["key"]).expect("a call");
    client.insert("key", b"new").expect("there is space");
    assert_eq!(old.value(0).expect("it is pinned").bytes(), b"old");
    let new = client.acquire(&["key"]).expect("a call");
    assert_eq!(new.value(0).expect("it is there").bytes(), b"new");
    assert_eq!(client.remove(&["key", "other"]).expect("a call"), 1);
    assert_eq!(new.value(0).expect("it is pinned").bytes(), b"new");
    drop((old, new));
    let stats = client.stats().expect("a call");
    assert_eq!((stats.values, stats.used, stats.pinned), (0, 0, 0));
}

#[test]
fn what_is_needed_is_evicted_and_pins_are_not() {
    let place = Place::new();
    let _server = Running::start(node(1 << 20), &place.socket(), ServerOptions::default());
    let client = connect(&place.socket());
    client.insert([0], &value(0, 200_000)).expect("there is space");
    let pinned = client.acquire(&[[0]]).expect("a call");
    for seed in 1..50 {
        client.insert([seed], &value(seed, 200_000)).expect("others are evicted");
    }
    assert_eq!(pinned.value(0).expect("it is pinned").bytes(), value(0, 200_000));
    assert_eq!(client.lookup(&[[1]]).expect("a call"), 0);
    assert_eq!(client.lookup(&[[49]]).expect("a call"), 1);

    let all = client.reserve(&[200_000; 4]).expect("the others are evicted");
    let error = client.reserve(&[200_000]).expect_err("the rest is pinned or reserved");
    assert!(
        matches!(error, ClientError::Call(CallError::OutOfSpace { requested: 200_000, .. })),
        "{error}"
    );
    drop(all);
    client.reserve(&[200_000]).expect("the reservations were released");
    let error = client.reserve(&[0]).expect_err("empty");
    assert!(matches!(error, ClientError::Call(CallError::BadLength { requested: 0, .. })));
    let error = client.reserve(&[2 << 20]).expect_err("too long");
    let limit = 1 << 20;
    let requested = 2 << 20;
    let expected = CallError::BadLength { requested, limit };
    assert!(matches!(error, ClientError::Call(error) if error == expected));
}

#[test]
fn namespaces_are_apart_and_have_limits() {
    let place = Place::new();
    let small = NamespaceLimits { max_bytes: 100_000, max_pins: 2, ..NamespaceLimits::default() };
    let options =
        NodeOptions { limits: vec![("small".to_owned(), small)], ..NodeOptions::default() };
    let node = Node::create(memory(1 << 20), options).expect("the options are possible");
    let _server = Running::start(node, &place.socket(), ServerOptions::default());
    let in_namespace = |name: &str| {
        let namespace = name.to_owned();
        connect_with(&place.socket(), &ConnectOptions { namespace, ..ConnectOptions::default() })
    };
    let (small, large) = (in_namespace("small"), in_namespace("large"));
    large.insert("key", b"large").expect("there is space");
    assert_eq!(small.lookup(&["key"]).expect("a call"), 0);
    for seed in 0..10 {
        small.insert([seed], &value(seed, 40_000)).expect("its own values are evicted");
    }
    assert_eq!(large.lookup(&["key"]).expect("a call"), 1);
    let stats = small.stats().expect("a call");
    let bytes: Vec<(&str, u64)> =
        stats.namespaces.iter().map(|it| (it.name.as_str(), it.bytes)).collect();
    assert_eq!(bytes, [("small", 81_920), ("large", 4096)]);
    let error = small.reserve(&[100_001]).expect_err("more than the namespace may use");
    let what = Quota::NamespaceBytes;
    // A value takes whole pages.
    let expected = CallError::Quota { what, value: 102_400, limit: 100_000 };
    assert!(matches!(error, ClientError::Call(error) if error == expected));

    small.as_operator().clear(Some("small")).expect("an operator");
    for seed in 0..3 {
        small.insert([seed], b"few").expect("there is space");
    }
    let error = small.acquire(&[[0], [1], [2]]).expect_err("more than the namespace may pin");
    let expected = CallError::Quota { what: Quota::NamespacePins, value: 3, limit: 2 };
    assert!(matches!(error, ClientError::Call(error) if error == expected));
    assert_eq!(small.stats().expect("a call").pinned, 0);
}

#[test]
fn pinned_bytes_have_limits() {
    let place = Place::new();
    let small = NamespaceLimits { max_pinned_bytes: 5000, ..NamespaceLimits::default() };
    let options = NodeOptions {
        limits: vec![("small".to_owned(), small)],
        max_pinned_bytes_per_session: 9000,
        ..NodeOptions::default()
    };
    let node = Node::create(memory(1 << 20), options).expect("the options are possible");
    let _server = Running::start(node, &place.socket(), ServerOptions::default());
    let in_namespace = |name: &str| {
        let namespace = name.to_owned();
        connect_with(&place.socket(), &ConnectOptions { namespace, ..ConnectOptions::default() })
    };
    for (name, what, limit) in
        [("small", Quota::NamespacePinnedBytes, 5000), ("large", Quota::SessionPinnedBytes, 9000)]
    {
        let (client, other) = (in_namespace(name), in_namespace(name));
        for seed in 0..3 {
            client.insert([seed], &value(seed, 3000)).expect("there is space");
        }
        // Several pins of one value count once, for a session as for a namespace.
        let pins: Vec<_> = (0..5).map(|_| client.acquire(&[[0]]).expect("a call")).collect();
        let again = other.acquire(&[[0]]).expect("it is pinned already");
        let error = client.acquire(&[[1], [2]]).expect_err("more than may be pinned");
        let value = if name == "small" { 8192 } else { 12_288 };
        let expected = CallError::Quota { what, value, limit };
        assert!(matches!(&error, ClientError::Call(error) if *error == expected), "{error}");
        let text = error.to_string();
        let parts = [value.to_string(), limit.to_string(), "release pins".to_owned()];
        assert!(parts.iter().all(|part| text.contains(part)), "{text}");
        let stats = client.stats().expect("a call");
        let of = |it: &&kvmem_node::NamespaceStats| it.name == name;
        assert_eq!(stats.namespaces.iter().find(of).expect("it is there").pinned_bytes, 4096);
        assert_eq!((stats.pinned, stats.pinned_bytes), (1, 4096));
        drop(pins);
        drop(again);
        // A release is a message without an answer; this one comes after it.
        other.keep_alive().expect("a call");
        assert_eq!(client.acquire(&[[1]]).expect("nothing is pinned").hits(), 1);
        assert_eq!(client.stats().expect("a call").pinned_bytes, 0);
    }
}

#[test]
fn the_namespace_that_exceeds_its_share_gives_up_values() {
    let place = Place::new();
    let _server = Running::start(node(1 << 20), &place.socket(), ServerOptions::default());
    let in_namespace = |name: &str| {
        let namespace = name.to_owned();
        connect_with(&place.socket(), &ConnectOptions { namespace, ..ConnectOptions::default() })
    };
    let (early, late) = (in_namespace("early"), in_namespace("late"));
    for seed in 0..10 {
        early.insert([seed], &value(seed, 100_000)).expect("there is space");
    }
    for seed in 0..50 {
        late.insert([seed], &value(seed, 100_000)).expect("values of both are evicted");
    }
    let stats = early.stats().expect("a call");
    let bytes: Vec<u64> = stats.namespaces.iter().map(|it| it.bytes).collect();
    assert!(bytes.iter().all(|bytes| *bytes >= 400_000), "{bytes:?}");
}

#[test]
fn values_of_a_low_priority_go_first_and_others_after_their_time() {
    let place = Place::new();
    let options = ServerOptions { lease: Duration::from_secs(2), ..ServerOptions::default() };
    let _server = Running::start(node(1 << 20), &place.socket(), options);
    let client = connect(&place.socket());
    let insert = |key: u8, options: ValueOptions| {
        let block = client.reserve(&[100_000]).expect("there is space").remove(0);
        let value = NewValue { options, ..NewValue::new([key], block) };
        client.commit(vec![value]).expect("it is reserved");
    };
    insert(0, ValueOptions { priority: 3, ..ValueOptions::default() });
    insert(1, ValueOptions { priority: 1, ..ValueOptions::default() });
    for key in 2..30 {
        insert(key, ValueOptions::default());
    }
    assert_eq!(client.lookup(&[[0], [1]]).expect("a call"), 2);
    let ttl = Duration::from_millis(300);
    let started = std::time::Instant::now();
    insert(40, ValueOptions { ttl: Some(ttl), ..ValueOptions::default() });
    let found = client.lookup(&[[40]]).expect("a call");
    assert!(found == 1 || started.elapsed() >= ttl);
    std::thread::sleep(ttl + Duration::from_millis(10));
    assert_eq!(client.lookup(&[[40]]).expect("a call"), 0);
    let deadline = std::time::Instant::now() + Duration::from_secs(10);
    while client.stats().expect("a call").expired_total == 0 {
        assert!(std::time::Instant::now() < deadline, "it is evicted without a call");
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn events_tell_what_came_and_went() {
    let place = Place::new();
    let _server = Running::start(node(1 << 20), &place.socket(), ServerOptions::default());
    let client = connect(&place.socket());
    let other = connect(&place.socket());
    let waiting = std::thread::spawn(move || other.events(0, 1, Duration::from_secs(20)));
    std::thread::sleep(Duration::from_millis(20));
    client.insert("a", b"1").expect("there is space");
    let first = waiting.join().expect("no panic").expect("a call");
    assert_eq!(
        (first.events.len(), first.next, first.lost),
        (1, first.events[0].number + 1, false)
    );
    client.insert("a", b"2").expect("there is space");
    client.remove(&["a"]).expect("a call");
    let Events { events, next, lost } =
        client.events(first.next, 100, Duration::ZERO).expect("a call");
    assert!(!lost && next == first.next + 3);
    let kinds: Vec<EventKind> = events.iter().map(|it| it.kind).collect();
    assert_eq!(kinds, [EventKind::Replaced, EventKind::Stored, EventKind::Removed]);
    assert!(events.iter().all(|it| it.key == b"a"));
    let started = std::time::Instant::now();
    let wait = Duration::from_millis(50);
    let none = Events { next, ..Events::default() };
    assert_eq!(client.events(next, 100, wait).expect("a call"), none);
    assert!(started.elapsed() >= wait);
}

#[test]
fn a_restarted_server_tells_that_events_were_lost() {
    let place = Place::new();
    let server = Running::start(node(1 << 20), &place.socket(), ServerOptions::default());
    let client = connect(&place.socket());
    (0..3).for_each(|key| client.insert([key], b"value").expect("there is space"));
    let before = client.events(0, 100, Duration::ZERO).expect("a call").next;
    let node = server.stop();
    let _server = Running::start(node_again(node), &place.socket(), ServerOptions::default());
    // More events than the client has seen.
    (0..9).for_each(|key| client.insert([100 + key], b"value").expect("there is space"));
    let found = client.events(before, 100, Duration::from_secs(60)).expect("a call");
    assert!(found.lost && found.events.len() == 9);
    let none = client.events(found.next, 100, Duration::ZERO).expect("a call");
    assert_eq!(none, Events { next: found.next, ..Events::default() });
}

/// Recovers the memory of a node, as the next process of the server does.
fn node_again(node: Node) -> Node {
    let server = NodeServer::on(node, idle_listener(), ServerOptions::default());
    let files = server.expect("epoll works").descriptors().expect("there are descriptors");
    Node::recover(files, NodeOptions::default()).expect("the index is whole").0
}

/// A descriptor that no client connects to.
fn idle_listener() -> OwnedFd {
    let (one, _) = std::os::unix::net::UnixStream::pair().expect("a pair");
    one.into()
}

#[test]
fn several_threads_of_a_client_wait_for_events() {
    let place = Place::new();
    let _server = Running::start(node(1 << 20), &place.socket(), ServerOptions::default());
    let client = connect(&place.socket());
    let wait = || {
        let client = client.clone();
        std::thread::spawn(move || client.events(0, 10, Duration::from_secs(60)))
    };
    let (first, second) = (wait(), wait());
    std::thread::sleep(Duration::from_millis(30));
    client.insert("key", b"value").expect("there is space");
    for thread in [first, second] {
        let found = thread.join().expect("no panic").expect("a call");
        assert_eq!(found.events.len(), 1);
    }
}

#[test]
fn waiting_calls_can_be_interrupted() {
    static OVER: AtomicBool = AtomicBool::new(false);
    // Relaxed: the flag publishes nothing.
    let interrupt = Some(Interrupt(|| OVER.load(Ordering::Relaxed)));
    let place = Place::new();
    let options = ConnectOptions { interrupt, ..ConnectOptions::default() };
    let in_thread = |wait: fn(&NodeClient) -> Result<(), ClientError>, client: &NodeClient| {
        let client = client.clone();
        std::thread::spawn(move || wait(&client))
    };
    let events = |client: &NodeClient| client.events(0, 1, Duration::from_secs(600)).map(drop);
    let server = Running::start(node(1 << 20), &place.socket(), ServerOptions::default());
    let client = connect_with(&place.socket(), &options);
    // One of them reads the socket, and the other one waits for it.
    let waiting = [in_thread(events, &client), in_thread(events, &client)];
    std::thread::sleep(Duration::from_millis(150));
    OVER.store(true, Ordering::Relaxed);
    for thread in waiting {
        let ended = thread.join().expect("no panic");
        assert!(matches!(ended, Err(ClientError::Interrupted)), "{ended:?}");
    }
    OVER.store(false, Ordering::Relaxed);
    // The answers to both come now, and belong to no call.
    client.insert("key", b"value").expect("there is space");
    assert_eq!(client.lookup(&["key"]).expect("a call"), 1);

    // A call that waits for a server that has ended.
    drop(server);
    let lookup = |client: &NodeClient| client.lookup(&["key"]).map(drop);
    let waiting = in_thread(lookup, &client);
    std::thread::sleep(Duration::from_millis(100));
    OVER.store(true, Ordering::Relaxed);
    let ended = waiting.join().expect("no panic");
    assert!(matches!(ended, Err(ClientError::Interrupted)), "{ended:?}");
    // And one that connects to a server that listens and does not answer.
    let idle = NodeServer::bind(node(1 << 20), &place.socket(), ServerOptions::default());
    let _idle = idle.expect("the socket is free");
    // SAFETY: it does not connect.
    let ended = unsafe { NodeClient::connect(place.socket(), &options) };
    assert!(matches!(ended, Err(ClientError::Interrupted)), "{ended:?}");
}

#[test]
fn operators_list_evict_and_clear() {
    let place = Place::new();
    let _server = Running::start(node(8 << 20), &place.socket(), ServerOptions::default());
    let client = connect(&place.socket());
    for number in 0..1000_u32 {
        client.insert(number.to_le_bytes(), &number.to_le_bytes()).expect("there is space");
    }
    let (mut seen, mut from) = (0, Some(0));
    while let Some(at) = from {
        let (values, next) = client.as_operator().list(at, 100).expect("an operator");
        seen += values.len();
        from = next;
    }
    assert_eq!(seen, 1000);
    // Each takes a page.
    assert_eq!(client.as_operator().evict(None, 10 * 4096).expect("an operator"), 10 * 4096);
    assert_eq!(client.as_operator().clear(Some("no such namespace")).expect("an operator"), 0);
    let pins = client.acquire(&[999_u32.to_le_bytes()]).expect("a call");
    let sessions = client.as_operator().sessions().expect("an operator");
    assert_eq!((sessions.len(), sessions[0].pins), (1, 1));
    assert_eq!(sessions[0].pid, std::process::id());
    assert_eq!(client.as_operator().clear(None).expect("an operator"), 990);
    assert_eq!(client.as_operator().reclaim_pins(std::process::id()).expect("an operator"), 1);
    assert_eq!(client.stats().expect("a call").used, 0);
    drop(pins);
}

#[test]
fn a_release_of_reclaimed_pins_leaves_newer_ones() {
    let place = Place::new();
    let _server = Running::start(node(1 << 20), &place.socket(), ServerOptions::default());
    let (client, operator) = (connect(&place.socket()), connect(&place.socket()));
    client.insert("key", &value(1, 1000)).expect("there is space");
    let old = client.acquire(&["key"]).expect("a call");
    let unreported = client.acquire(&["key"]).expect("a call");
    assert_eq!(operator.as_operator().reclaim_pins(std::process::id()).expect("an operator"), 1);
    // Released before the client knows of its loss, and after.
    drop(unreported);
    let new = client.acquire(&["key"]).expect("a call");
    assert!(!old.is_valid() && old.value(0).is_none() && new.is_valid());
    drop(old);
    client.keep_alive().expect("a call");
    assert_eq!(client.stats().expect("a call").pinned, 1);
    // Nothing takes its place while it is read.
    for seed in 0..50 {
        client.insert([seed], &value(seed, 200_000)).expect("others are evicted");
    }
    assert_eq!(new.value(0).expect("it is pinned").bytes(), value(1, 1000));
    drop(new);
    assert_eq!(client.stats().expect("a call").pinned, 0);
}

#[test]
fn lost_pins_are_told_without_a_call() {
    let place = Place::new();
    let _server = Running::start(node(1 << 20), &place.socket(), ServerOptions::default());
    let (client, operator) = (connect(&place.socket()), connect(&place.socket()));
    client.insert("key", &value(1, 1000)).expect("there is space");
    let old = client.acquire(&["key"]).expect("a call");
    assert!(old.is_valid());
    assert_eq!(operator.as_operator().reclaim_pins(std::process::id()).expect("an operator"), 1);
    // The client has made no call since.
    assert!(!old.is_valid() && old.value(0).is_none());
    let new = client.acquire(&["key"]).expect("a call");
    assert!(new.is_valid() && !old.is_valid());
    assert_eq!(operator.as_operator().reclaim_pins(std::process::id()).expect("an operator"), 1);
    assert!(!new.is_valid() && new.value(0).is_none());
    drop((old, new));
    assert_eq!(operator.stats().expect("a call").pinned, 0);
}

#[test]
fn bytes_of_other_values_are_never_valid() {
    let place = Place::new();
    let _server = Running::start(node(64 << 10), &place.socket(), ServerOptions::default());
    let (client, operator) = (connect(&place.socket()), connect(&place.socket()));
    let ended = std::sync::atomic::AtomicBool::new(false);
    let is_over = || ended.load(std::sync::atomic::Ordering::Relaxed);
    let reclaims = std::sync::atomic::AtomicU64::new(0);
    let reclaimed = || reclaims.load(std::sync::atomic::Ordering::Relaxed);
    std::thread::scope(|scope| {
        // It takes all the memory again and again, also the blocks of pins that were lost.
        scope.spawn(|| {
            let writer = connect(&place.socket());
            for seed in (2..=u8::MAX).cycle() {
                if is_over() {
                    break;
                }
                let _ = writer.insert("other", &vec![seed; 40 << 10]);
            }
        });
        scope.spawn(|| {
            while !is_over() {
                operator.as_operator().reclaim_pins(std::process::id()).expect("an operator");
                reclaims.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
                std::thread::yield_now();
            }
        });
        let (mut lost, mut read) = (0, 0);
        let until = std::time::Instant::now() + Duration::from_secs(30);
        while (lost < 50 || read < 50) && std::time::Instant::now() < until {
            let _ = client.insert("key", &[1; 40 << 10]);
            let Ok(pins) = client.acquire(&["key"]) else { continue };
            let Some(value) = pins.value(0) else { continue };
            // Both outcomes come soon, however the threads are scheduled: two further reclaims, of
            // which the second began after the pin, end it.
            let before = reclaimed();
            while lost < read && reclaimed() < before + 2 {
                std::thread::yield_now();
            }
            let whole = value.bytes().iter().all(|byte| *byte == 1);
            if pins.is_valid() {
                read += 1;
                assert!(whole, "bytes of another value in a valid pin");
            } else {
                lost += 1;
            }
        }
        ended.store(true, std::sync::atomic::Ordering::Relaxed);
        assert!(lost >= 50 && read >= 50, "{lost} lost, {read} read");
    });
}

#[test]
fn an_idle_client_that_runs_keeps_its_pins() {
    let place = Place::new();
    let lease = Duration::from_millis(600);
    let options = ServerOptions { lease, reclaim_pins: true, ..ServerOptions::default() };
    let _server = Running::start(node(1 << 20), &place.socket(), options);
    let (client, other) = (connect(&place.socket()), connect(&place.socket()));
    client.insert("key", b"value").expect("there is space");
    let pins = client.acquire(&["key"]).expect("a call");
    let block = client.reserve(&[1]).expect("there is space").remove(0);
    // Several leases pass. The reservation tells when.
    let deadline = std::time::Instant::now() + Duration::from_secs(60);
    while other.stats().expect("a call").fenced_total == 0 {
        assert!(std::time::Instant::now() < deadline, "it is fenced");
        std::thread::sleep(Duration::from_millis(20));
    }
    std::thread::sleep(2 * lease);
    assert_eq!(other.stats().expect("a call").pinned, 1);
    let again = client.acquire(&["key"]).expect("a call");
    assert!(pins.is_valid() && again.is_valid());
    drop((pins, again, block));
    assert_eq!(client.stats().expect("a call").pinned, 0);
}

#[test]
fn a_reader_cannot_write() {
    let place = Place::new();
    let _server = Running::start(node(1 << 20), &place.socket(), ServerOptions::default());
    let writer = connect(&place.socket());
    writer.insert("key", b"value").expect("there is space");
    let options = ConnectOptions { read_only: true, ..ConnectOptions::default() };
    let reader = connect_with(&place.socket(), &options);
    let pins = reader.acquire(&["key"]).expect("a call");
    assert_eq!(pins.value(0).expect("it is there").bytes(), b"value");
    for error in [
        reader.reserve(&[1]).map(drop).expect_err("read-only"),
        reader.remove(&["key"]).map(drop).expect_err("read-only"),
    ] {
        assert!(matches!(error, ClientError::Call(CallError::ReadOnly)), "{error}");
    }
}

#[test]
fn damage_is_told_by_the_checksum() {
    let place = Place::new();
    let _server = Running::start(node(1 << 20), &place.socket(), ServerOptions::default());
    let options = ConnectOptions { checksums: true, ..ConnectOptions::default() };
    let client = connect_with(&place.socket(), &options);
    client.insert("key", &value(1, 5000)).expect("there is space");
    let pins = client.acquire(&["key"]).expect("a call");
    let found = pins.value(0).expect("it is there");
    found.verify().expect("it is whole");
    // A process that does not keep to the protocol.
    let (base, _) = client.memory();
    // SAFETY: no slice of the byte is used while it is written.
    unsafe { base.cast_mut().add(found.offset() as usize + 77).write_volatile(0xEE) };
    let error = pins.value(0).expect("it is there").verify().expect_err("it is damaged");
    assert!(matches!(error, ClientError::Damaged { .. }), "{error}");
}

/// Writes to a value, as a process that does not keep to the protocol.
fn damage(client: &NodeClient, key: &str) {
    let pins = client.acquire(&[key]).expect("a call");
    let offset = pins.value(0).expect("it is there").offset() as usize;
    let (base, _) = client.memory();
    // SAFETY: no slice of the byte is used while it is written.
    unsafe { base.cast_mut().add(offset + 77).write_volatile(0xEE) };
}

#[test]
fn a_damaged_value_is_a_miss_for_clients_that_verify() {
    let place = Place::new();
    let _server = Running::start(node(1 << 20), &place.socket(), ServerOptions::default());
    let options = ConnectOptions { checksums: true, verify: true, ..ConnectOptions::default() };
    let client = connect_with(&place.socket(), &options);
    for key in ["good", "bad"] {
        client.insert(key, &value(1, 5000)).expect("there is space");
    }
    damage(&connect(&place.socket()), "bad");
    let pins = client.acquire(&["good", "bad"]).expect("a call");
    assert!(pins.value(0).is_some() && pins.value(1).is_none());
    assert_eq!(client.lookup(&["bad"]).expect("a call"), 0, "the server has removed it");
    drop(pins);
    let stats = client.stats().expect("a call");
    assert_eq!((stats.damaged_total, stats.pinned, stats.values), (1, 0, 1));
}

#[test]
fn a_value_without_a_checksum_is_a_miss_for_clients_that_verify() {
    let place = Place::new();
    let _server = Running::start(node(1 << 20), &place.socket(), ServerOptions::default());
    let options = ConnectOptions { verify: true, ..ConnectOptions::default() };
    let (careful, other) = (connect_with(&place.socket(), &options), connect(&place.socket()));
    careful.insert("sum", &value(1, 5000)).expect("there is space");
    other.insert("none", &value(2, 5000)).expect("there is space");
    damage(&other, "none");
    assert_eq!(careful.unverified(), 0);
    let pins = careful.acquire(&["sum", "none"]).expect("a call");
    assert!(pins.value(0).is_some() && pins.value(1).is_none(), "its bytes were not compared");
    drop(pins);
    assert_eq!((careful.unverified(), careful.clone().unverified(), other.unverified()), (1, 1, 0));
    // It is no damage that the server knows of, and it stays for others.
    let pins = other.acquire(&["none"]).expect("a call");
    let error = pins.value(0).expect("it is there").verify().expect_err("there is no checksum");
    assert!(matches!(error, ClientError::Unverified), "{error}");
    drop(pins);
    let stats = other.stats().expect("a call");
    assert_eq!((stats.damaged_total, stats.pinned, stats.values), (0, 0, 2));
    // The next store has a checksum.
    careful.insert("none", &value(2, 5000)).expect("there is space");
    assert_eq!(careful.acquire(&["none"]).expect("a call").hits(), 1);
    assert_eq!(careful.unverified(), 1);
}

#[test]
fn a_verified_prefix_ends_before_the_first_value_that_is_taken_out() {
    let place = Place::new();
    let _server = Running::start(node(1 << 20), &place.socket(), ServerOptions::default());
    let options = ConnectOptions { verify: true, ..ConnectOptions::default() };
    let (careful, other) = (connect_with(&place.socket(), &options), connect(&place.socket()));
    let keys = ["a", "b", "c", "d"];
    for key in keys {
        let writer = if key == "c" { &other } else { &careful };
        writer.insert(key, &value(1, 100)).expect("there is space");
    }
    let pins = careful.acquire_prefix(&keys).expect("a call");
    let found: Vec<bool> = pins.values().map(|it| it.is_some()).collect();
    assert_eq!(found, [true, true, false, false]);
    drop(pins);
    damage(&other, "b");
    assert_eq!(careful.acquire_prefix(&keys).expect("a call").hits(), 1);
    assert_eq!(other.stats().expect("a call").pinned, 0);
}

#[test]
fn the_scrubber_removes_what_is_damaged() {
    let place = Place::new();
    let options = ServerOptions { scrub_bytes_per_s: Some(50 << 20), ..ServerOptions::default() };
    let _server = Running::start(node(1 << 20), &place.socket(), options);
    let options = ConnectOptions { checksums: true, ..ConnectOptions::default() };
    let client = connect_with(&place.socket(), &options);
    for key in ["a", "b", "c"] {
        client.insert(key, &value(1, 5000)).expect("there is space");
    }
    let wait_for = |what: &str, done: &dyn Fn() -> bool| {
        let deadline = std::time::Instant::now() + Duration::from_secs(30);
        while !done() {
            assert!(std::time::Instant::now() < deadline, "{what}");
            std::thread::sleep(Duration::from_millis(5));
        }
    };
    let stats = || client.stats().expect("a call");
    wait_for("it verifies all", &|| stats().scrubbed_total >= 6);
    assert_eq!(stats().damaged_total, 0);
    damage(&client, "b");
    wait_for("it finds the damage", &|| stats().damaged_total == 1);
    assert_eq!(client.acquire(&["a", "b", "c"]).expect("a call").hits(), 2);
}

#[test]
fn bad_arguments_are_errors() {
    let place = Place::new();
    let _server = Running::start(node(1 << 20), &place.socket(), ServerOptions::default());
    let client = connect(&place.socket());
    let error = |error: ClientError| match error {
        ClientError::Call(error) => error,
        other => panic!("{other}"),
    };
    let too_long = error(client.acquire(&[vec![0; 65]]).map(drop).expect_err("too long"));
    assert_eq!(too_long, CallError::BadKey { len: 65, limit: 64 });
    let empty = error(client.insert("", b"value").expect_err("empty"));
    assert_eq!(empty, CallError::BadKey { len: 0, limit: 64 });
    let keys: Vec<[u8; 2]> = (0..1025_u16).map(u16::to_le_bytes).collect();
    let many = error(client.acquire(&keys).map(drop).expect_err("too many"));
    assert_eq!(many, CallError::BatchTooLong { len: 1025, limit: 1024 });
    let keys = vec![[0_u8; 64]; 10_000];
    let many = error(client.lookup(&keys).map(drop).expect_err("longer than a message"));
    assert!(matches!(many, CallError::BatchTooLong { limit: MAX_MESSAGE, .. }), "{many}");
    assert_eq!(client.stats().expect("the connection is whole").reservations, 0);

    let namespace = "n".repeat(57);
    let options = ConnectOptions { namespace, ..ConnectOptions::default() };
    // SAFETY: it does not connect.
    let rejected = unsafe { NodeClient::connect(place.socket(), &options) };
    let rejected = error(rejected.map(drop).expect_err("the name is too long"));
    assert_eq!(rejected, CallError::BadNamespace { len: 57, limit: 56 });

    let options = ConnectOptions { retry_for: Duration::from_millis(20), ..Default::default() };
    let nowhere = place.socket().with_extension("none");
    // SAFETY: it does not connect.
    let missing = unsafe { NodeClient::connect(nowhere, &options) };
    assert!(matches!(missing, Err(ClientError::Disconnected { .. })));
}

/// Threads share one connection: one reads the answers of all.
#[test]
fn calls_of_many_threads_overlap() {
    const THREADS: u8 = 8;
    let place = Place::new();
    let _server = Running::start(node(4 << 20), &place.socket(), ServerOptions::default());
    let client = connect(&place.socket());
    for seed in 0..THREADS {
        client.insert([seed], &value(seed, 3000)).expect("there is space");
    }
    let waiting = {
        let client = client.clone();
        let next = client.events(0, 100, Duration::ZERO).expect("a call").next;
        std::thread::spawn(move || client.events(next, 1, Duration::from_secs(60)))
    };
    let threads = (0..THREADS).map(|seed| {
        let client = client.clone();
        std::thread::spawn(move || {
            let mut pins = client.acquire(&[[seed]]).expect("a call");
            for call in 0..400 {
                assert_eq!(pins.value(0).expect("it is pinned").bytes(), value(seed, 3000));
                pins = match call % 4 {
                    // The end of a batch is a message without an answer.
                    0 => client.acquire(&[[seed]]).expect("a call"),
                    _ => client.exchange(pins, &[[seed]]).expect("a call"),
                };
                let keys: Vec<[u8; 1]> = (0..=seed).map(|seed| [seed]).collect();
                assert_eq!(client.lookup(&keys).expect("a call"), keys.len());
            }
        })
    });
    let threads: Vec<_> = threads.collect();
    threads.into_iter().for_each(|thread| thread.join().expect("no panic"));
    let stats = client.stats().expect("a call");
    assert_eq!((stats.pinned, stats.hits), (0, 401 * u64::from(THREADS)));
    client.insert("last", b"value").expect("there is space");
    assert_eq!(waiting.join().expect("no panic").expect("a call").events.len(), 1);
}
