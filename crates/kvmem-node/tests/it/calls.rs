//! What each call does.

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use kvmem::tier::Priority;
use kvmem_node::{
    CallError, ClientError, ConnectOptions, EventKind, Events, Interrupt, MAX_MESSAGE, NewValue,
    Node, NodeClient, NodeOptions, NodeReservation, NodeServer, ServerOptions, ValueOptions,
};

use super::RINGS;
use crate::support::{self, Place, Running, node, wait_for};

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
    for (key, priority) in [(0, 3), (1, 1)] {
        let priority = Priority::new(priority).expect("at most 3");
        insert(key, ValueOptions { priority, ..ValueOptions::default() });
    }
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
    wait_for("it is evicted without a call", || client.stats().expect("a call").expired_total > 0);
}

#[test]
fn events_report_what_came_and_went() {
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
fn revoked_pins_are_reported_without_a_call() {
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
fn the_pins_of_an_idle_client_that_runs_stay() {
    let place = Place::new();
    let lease = Duration::from_millis(600);
    let options = ServerOptions { lease, reclaim_pins: true, ..ServerOptions::default() };
    let _server = Running::start(node(1 << 20), &place.socket(), options);
    let (client, other) = (connect(&place.socket()), connect(&place.socket()));
    client.insert("key", b"value").expect("there is space");
    let pins = client.acquire(&["key"]).expect("a call");
    let block = client.reserve(&[1]).expect("there is space").remove(0);
    // Several leases pass when the reservation is fenced.
    wait_for("it is fenced", || other.stats().expect("a call").fenced_total > 0);
    std::thread::sleep(2 * lease);
    assert_eq!(other.stats().expect("a call").pinned, 1);
    let again = client.acquire(&["key"]).expect("a call");
    assert!(pins.is_valid() && again.is_valid());
    drop((pins, again, block));
    assert_eq!(client.stats().expect("a call").pinned, 0);
}

#[test]
fn the_checksum_shows_damage() {
    let place = Place::new();
    let _server = Running::start(node(1 << 20), &place.socket(), ServerOptions::default());
    let options = ConnectOptions { checksums: true, ..ConnectOptions::default() };
    let client = connect_with(&place.socket(), &options);
    client.insert("key", &value(1, 5000)).expect("there is space");
    let pins = client.acquire(&["key"]).expect("a call");
    pins.value(0).expect("it is there").verify().expect("it is whole");
    damage(&client, "key");
    let error = pins.value(0).expect("it is there").verify().expect_err("it is damaged");
    assert!(matches!(error, ClientError::Damaged { .. }), "{error}");
}

/// Writes to a value, as a process that violates the protocol.
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
    // A release is not waited for, and another client's call may come before it.
    wait_for("its pins end", || other.stats().expect("a call").pinned == 0);
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
    let stats = || client.stats().expect("a call");
    wait_for("it verifies all", || stats().scrubbed_total >= 6);
    assert_eq!(stats().damaged_total, 0);
    damage(&client, "b");
    wait_for("it finds the damage", || stats().damaged_total == 1);
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

    for requested in [0, 2 << 20] {
        let length = error(client.reserve(&[requested]).map(drop).expect_err("empty, or too long"));
        assert_eq!(length, CallError::BadLength { requested, limit: 1 << 20 });
    }

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

#[test]
fn the_answers_of_calls_are_taken_in_any_order() {
    let place = Place::new();
    let _server = Running::start(node(1 << 20), &place.socket(), ServerOptions::default());
    let client = connect(&place.socket());
    let (sizes, keys) = ([100, 200], ["a", "b"]);
    let counts = || {
        let stats = client.stats().expect("a call");
        (stats.reservations, stats.values, stats.pinned)
    };
    let (first, second) = (client.begin_reserve(&sizes), client.begin_reserve(&sizes));
    let second = second.wait().expect("there is space");
    let first = first.wait().expect("there is space");
    assert_eq!((counts(), first.len(), second[1].len()), ((4, 0, 0), 2, 200));
    let values = |mut blocks: Vec<NodeReservation>| {
        blocks.iter_mut().for_each(|it| it.write(0, b"value").expect("it is long enough"));
        keys.into_iter().zip(blocks).map(|(key, it)| NewValue::new(key, it)).collect::<Vec<_>>()
    };
    let commit = client.begin_commit(values(first));
    let acquire = client.begin_acquire(&keys);
    let pins = acquire.wait().expect("a call");
    commit.wait().expect("they are reserved");
    assert_eq!((pins.hits(), counts()), (2, (2, 2, 2)));
    assert_eq!(&pins.value(0).expect("it is pinned").bytes()[..5], b"value");
    drop(pins);
    // A commit that fails gives up its reservations, and says why when its answer is taken.
    let twice = second.into_iter().map(|it| NewValue::new("twice", it)).collect();
    let failed = client.begin_commit(twice).wait().expect_err("one key twice");
    assert!(matches!(failed, ClientError::Call(CallError::Twice { index: 1 })), "{failed}");
    assert_eq!(counts(), (0, 2, 0));
}

#[test]
fn calls_whose_answers_nobody_takes_leave_nothing_behind() {
    let place = Place::new();
    let _server = Running::start(node(1 << 20), &place.socket(), ServerOptions::default());
    let client = connect(&place.socket());
    client.insert("a", b"value").expect("there is space");
    let counts = || {
        let stats = client.stats().expect("a call");
        (stats.reservations, stats.values, stats.pinned)
    };
    for _ in 0..100 {
        drop((client.begin_acquire(&["a", "b"]), client.begin_reserve(&[64; 9])));
    }
    // The next call takes their answers, and those after it are served behind the releases.
    assert_eq!(client.lookup(&["a"]).expect("a call"), 1);
    assert_eq!(counts(), (0, 1, 0));
    let reserved = client.reserve(&[64]).expect("there is space");
    drop(client.begin_commit(vec![NewValue::new("b", reserved.into_iter().next().expect("one"))]));
    assert_eq!((client.lookup(&["b"]).expect("a call"), counts()), (1, (0, 2, 0)));
}

#[test]
fn an_exchange_at_the_limit_of_pins_releases_first() {
    let place = Place::new();
    let options = NodeOptions { max_handles_per_session: 3, ..NodeOptions::default() };
    let node = Node::create(support::memory(1 << 20), options).expect("the options are possible");
    let _server = Running::start(node, &place.socket(), ServerOptions::default());
    let client = connect(&place.socket());
    for key in ["a", "b", "c", "d"] {
        client.insert(key, b"value").expect("there is space");
    }
    let pins = client.acquire(&["a", "b"]).expect("within the limit");
    let pins = client.exchange(pins, &["c", "d"]).expect("within the limit after the release");
    let stats = client.stats().expect("a call");
    assert_eq!((pins.hits(), stats.pinned, stats.hits, stats.misses), (2, 2, 4, 0));
    // One more is too many, and the earlier pins are released nevertheless.
    let failed = client.exchange(pins, &["a", "b", "c", "d"]).expect_err("four pins");
    assert!(matches!(failed, ClientError::Call(CallError::Quota { .. })), "{failed}");
    let stats = client.stats().expect("a call");
    assert_eq!((stats.pinned, stats.hits, stats.misses), (0, 4, 0));
}
