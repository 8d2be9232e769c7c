//! The memory of a server becomes smaller and larger while clients use it.

use std::fs;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use kvmem::arena::{Backing, PageSize, Region};
use kvmem_node::{
    CallError, ClientError, ConnectOptions, Node, NodeClient, NodeOptions, ServerOptions,
};
use kvmem_testkit::random::Random;
use rustix::fs::fstat;

use crate::support::{Place, Running, connect_with, wait_for};

const MIB: u64 = 1 << 20;

/// Starts a server of `size` bytes of 16 MiB.
fn start(place: &Place, options: NodeOptions, server: ServerOptions) -> Running {
    let memory = Region::builder(16 << 20).backing(Backing::Shared).ladder(PageSize::Base);
    let memory = memory.map().expect("memory can be mapped");
    let node = Node::create(memory, options).expect("the options are possible");
    Running::start(node, &place.socket(), server)
}

fn client(place: &Place) -> NodeClient {
    connect_with(&place.socket(), &ConnectOptions::default())
}

/// The bytes under a key.
fn bytes_of(key: u64) -> Vec<u8> {
    let mut bytes = vec![key as u8; 8 + (key as usize * 7919) % 70_000];
    let last = bytes.len() - 8;
    bytes[last..].copy_from_slice(&key.to_le_bytes());
    bytes
}

/// Stores and reads values, some of which stay pinned for a while, until `over`. Returns the
/// longest time that a call took, and how many values were found.
fn use_values(place: &Place, seed: u64, over: &AtomicBool) -> (Duration, u64) {
    let options = ConnectOptions { rings: seed.is_multiple_of(2), ..ConnectOptions::default() };
    let client = connect_with(&place.socket(), &options);
    let mut random = Random::new(seed);
    let (mut longest, mut found, mut pinned) = (Duration::ZERO, 0, Vec::new());
    while !over.load(Ordering::Relaxed) {
        // More than the memory has space for, most of them seldom.
        let key = random.log_below(1000);
        let began = Instant::now();
        let value = client.get(key.to_le_bytes()).expect("a call");
        longest = longest.max(began.elapsed());
        match value {
            Some(value) => {
                assert_eq!(value.bytes().expect("it is pinned"), bytes_of(key));
                found += 1;
                pinned.push((key, value));
            }
            None => {
                let began = Instant::now();
                match client.insert(key.to_le_bytes(), &bytes_of(key)) {
                    Ok(_) => {}
                    // What is pinned fills what is left.
                    Err(ClientError::Call(CallError::OutOfSpace { .. })) => pinned.clear(),
                    Err(error) => panic!("{error}"),
                }
                longest = longest.max(began.elapsed());
            }
        }
        if pinned.len() > 20 {
            let (key, value) = pinned.swap_remove(random.below(20) as usize);
            assert!(value.is_valid(), "a pin is lost");
            assert_eq!(value.bytes().expect("it is pinned"), bytes_of(key));
        }
    }
    (longest, found)
}

#[test]
fn values_and_pins_stay_right_while_the_memory_changes_its_size() {
    let rounds = std::env::var("KVMEM_TEST_ROUNDS").ok().and_then(|n| n.parse().ok()).unwrap_or(30);
    let place = Place::new();
    let options = NodeOptions { size: 16 * MIB, ..NodeOptions::default() };
    let running = start(&place, options, ServerOptions::default());
    let operator = client(&place);
    let over = AtomicBool::new(false);
    thread::scope(|scope| {
        let (place, over) = (&place, &over);
        let user = |seed| scope.spawn(move || use_values(place, seed, over));
        let users: Vec<_> = (0..2).map(user).collect();
        let mut reached = 0;
        for _ in 0..rounds {
            for size in [4 * MIB, 16 * MIB] {
                let resized = operator.as_operator().resize(size).expect("an operator");
                assert_eq!((resized.wanted, resized.registered_clients), (size, 0));
                reached += u64::from(resized.size == size);
            }
            thread::sleep(Duration::from_millis(20));
        }
        over.store(true, Ordering::Relaxed);
        for user in users {
            let (longest, found) = user.join().expect("it sees the right bytes");
            eprintln!("{found} values, the longest call took {longest:?}");
            assert!(found > 0);
        }
        assert!(reached >= rounds, "growing always ends");
    });
    let stats = operator.stats().expect("a call");
    assert!(stats.given_back_bytes_total > 4 * MIB, "{stats:?}");
    assert_eq!((stats.capacity, stats.max_capacity), (16 * MIB, 16 * MIB));
    drop(operator);
    running.stop().check().expect("the invariants hold");
}

#[test]
fn the_pages_behind_the_end_go_back_to_the_kernel_and_addresses_stay() {
    let place = Place::new();
    let options = NodeOptions { size: 8 * MIB, ..NodeOptions::default() };
    let _running = start(&place, options, ServerOptions::default());
    let client = client(&place);
    let stats = client.stats().expect("a call");
    assert_eq!((stats.capacity, stats.max_capacity), (8 * MIB, 16 * MIB));
    let operator = client.as_operator();
    for key in 0..300_u64 {
        client.insert(key.to_le_bytes(), &bytes_of(key)).expect("others are evicted");
    }
    assert_eq!(operator.resize(16 * MIB).expect("an operator").size, 16 * MIB);
    for key in 300..700_u64 {
        client.insert(key.to_le_bytes(), &bytes_of(key)).expect("others are evicted");
    }
    let pins = client.acquire(&[650_u64.to_le_bytes()]).expect("a call");
    let first = pins.value(0).expect("it was stored").bytes().as_ptr();
    let resized = operator.resize(2 * MIB).expect("an operator");
    assert!(resized.size < 3 * MIB, "the pinned value is in the way: {resized:?}");
    assert_eq!(pins.value(0).expect("it is pinned").bytes().as_ptr(), first);
    assert_eq!(pins.value(0).expect("it is pinned").bytes(), bytes_of(650));
    drop(pins);
    assert_eq!(operator.resize(2 * MIB).expect("an operator").size, 2 * MIB);
    let (last, first) = (699_u64.to_le_bytes(), 600_u64.to_le_bytes());
    assert_eq!(client.lookup(&[last]).expect("a call"), 1);
    assert_eq!(client.lookup(&[first]).expect("a call"), 0);

    let error = operator.resize(17 * MIB).expect_err("it is longer than the file");
    let ClientError::Call(CallError::BadSize { requested, max, .. }) = error else {
        panic!("{error}")
    };
    assert_eq!((requested, max), (17 * MIB, 16 * MIB));

    // A program that registers the memory by itself asks for its address.
    let (base, len) = client.memory();
    assert_eq!((base.is_null(), len as u64), (false, 16 * MIB));
    let resized = operator.resize(MIB).expect("an operator");
    assert_eq!((resized.size, resized.registered_clients), (2 * MIB, 1));
    assert_eq!(operator.resize(4 * MIB).expect("an operator").size, 4 * MIB);
    let file = client.region().expect("it writes").fd().expect("it is shared");
    let resident = fstat(file).expect("a file").st_blocks as u64 * 512;
    assert!(resident <= 4 * MIB, "{resident}");
}

#[test]
fn a_client_that_registers_the_memory_holds_it_across_a_restart() {
    let place = Place::new();
    let options = NodeOptions { size: 8 * MIB, ..NodeOptions::default() };
    let running = start(&place, options.clone(), ServerOptions::default());
    let (one, other) = (client(&place), client(&place));
    one.insert("key", b"value").expect("there is space");
    assert_eq!(one.memory().1 as u64, 16 * MIB);
    assert_eq!(one.as_operator().resize(4 * MIB).expect("an operator").registered_clients, 1);
    let node = running.stop();
    let _running = Running::start(node, &place.socket(), ServerOptions::default());
    // Both may have registered it before they say so.
    other.keep_alive().expect("a call");
    let resized = other.as_operator().resize(4 * MIB).expect("an operator");
    assert_eq!((resized.size, resized.registered_clients), (8 * MIB, 1));
    one.keep_alive().expect("a call");
    assert_eq!(other.as_operator().resize(4 * MIB).expect("an operator").registered_clients, 1);
    drop(one);
    wait_for("the memory goes on to become smaller", || {
        other.stats().expect("a call").capacity == 4 * MIB
    });
}

/// A folder that stands for that of a cgroup.
fn write_usage(folder: &Path, current: u64) {
    // A reader sees one of the two contents.
    let new = folder.join("new");
    fs::write(&new, format!("{current}\n")).expect("a file can be written");
    fs::rename(new, folder.join("memory.current")).expect("it is there");
}

#[test]
fn memory_goes_back_under_pressure_and_comes_again() {
    let place = Place::new();
    let folder = tempfile::tempdir().expect("a folder can be made");
    fs::write(folder.path().join("memory.high"), format!("{}\n", 64 * MIB)).expect("a file");
    fs::write(folder.path().join("memory.max"), "max\n").expect("a file");
    write_usage(folder.path(), 32 * MIB);
    let options = NodeOptions { min_size: 6 * MIB, ..NodeOptions::default() };
    let pressure_folder = Some(folder.path().to_path_buf());
    let server = ServerOptions { pressure_folder, ..ServerOptions::default() };
    let _running = start(&place, options, server);
    let client = client(&place);
    let stats = || client.stats().expect("a call");
    for key in 0..600_u64 {
        client.insert(key.to_le_bytes(), &bytes_of(key)).expect("others are evicted");
    }
    assert_eq!((stats().capacity, stats().pressure_total), (16 * MIB, 0));
    // Of a reserve of four MiB one is left, so seven are missing.
    write_usage(folder.path(), 63 * MIB);
    wait_for("seven MiB are given back", || stats().capacity <= 9 * MIB);
    wait_for("not more than down to the least", || stats().capacity == 6 * MIB);
    assert!(stats().pressure_total >= 1 && stats().min_capacity == 6 * MIB);
    assert!(stats().given_back_bytes_total >= 7 * MIB);
    thread::sleep(Duration::from_millis(300));
    assert_eq!(stats().capacity, 6 * MIB);
    write_usage(folder.path(), 32 * MIB);
    let began = Instant::now();
    wait_for("all of it is taken again", || stats().capacity == 16 * MIB);
    assert!(began.elapsed() < Duration::from_secs(5), "{:?}", began.elapsed());
    for key in 0..600_u64 {
        if let Some(value) = client.get(key.to_le_bytes()).expect("a call") {
            assert_eq!(value.bytes().expect("it is pinned"), bytes_of(key));
        }
    }
}
