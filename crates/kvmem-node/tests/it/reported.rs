//! Faults of other systems that their users reported: what a node does instead.
//!
//! `docs/faults.md` lists the reports.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Barrier};
use std::time::Duration;

use kvmem_node::{
    ConnectOptions, Event, EventKind, Located, NewValue, Node, NodeClient, NodeOptions, ParentKey,
    ServerOptions, ValueOptions,
};
use kvmem_tier::{DiskTier, DiskTierOptions};
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

use crate::simulated::Disk;
use crate::support::{Place, Running, Tiered, connect_with, memory, node, wait_for};
use crate::tier::MapTier;

/// Bytes of a value: a block.
const LEN: usize = 4096;

fn key(at: u32) -> [u8; 4] {
    at.to_be_bytes()
}

fn value(at: u32) -> Vec<u8> {
    at.to_le_bytes().repeat(LEN / 4)
}

/// Stores values, and evicts them all when the tier has them.
fn store_below(client: &NodeClient, tier: &MapTier, values: u32) {
    for at in 0..values {
        client.insert(key(at), &value(at)).expect("there is space");
    }
    client.evict(u64::MAX).expect("a call");
    wait_for("the tier has all values", || {
        let stats = client.stats().expect("a call");
        (tier.len(), stats.used) == (values as usize, 0)
    });
}

/// Many threads of several clients want one prefix that only the tier has: it is read once.
#[test]
fn a_prefix_that_many_requests_want_is_read_once() {
    const VALUES: u32 = 256;
    const CLIENTS: usize = 8;
    const THREADS: usize = 8;
    let tier = Arc::new(MapTier::default());
    let tiered = Tiered::start(Place::new(), node(8 << 20), Arc::clone(&tier) as _);
    let client = tiered.client();
    store_below(&client, &tier, VALUES);
    let keys: Vec<[u8; 4]> = (0..VALUES).map(key).collect();
    tier.hangs.store(true, Ordering::Relaxed);
    let clients: Vec<NodeClient> = (0..CLIENTS).map(|_| tiered.client()).collect();
    let started = Barrier::new(CLIENTS * THREADS + 1);
    std::thread::scope(|scope| {
        for client in &clients {
            for _ in 0..THREADS {
                scope.spawn(|| {
                    started.wait();
                    let pins = client.acquire_prefix(&keys).expect("a call");
                    assert_eq!(pins.hits(), keys.len());
                    for (at, found) in (0..).zip(pins.values()) {
                        assert_eq!(found.expect("it is a hit").bytes(), value(at));
                    }
                });
            }
        }
        started.wait();
        // Some requests wait for a read, and others come while the values arrive.
        std::thread::sleep(Duration::from_millis(20));
        tier.hangs.store(false, Ordering::Relaxed);
    });
    assert_eq!(tier.reads.load(Ordering::Relaxed), VALUES as usize);
}

/// Look-ups of a long prefix that only the tier has wait for no read, and the reads are few calls
/// of many values each.
#[test]
fn look_ups_that_only_the_tier_can_serve_wait_for_no_read() {
    const VALUES: u32 = 512;
    let tier = Arc::new(MapTier::default());
    let tiered = Tiered::start(Place::new(), node(16 << 20), Arc::clone(&tier) as _);
    let client = tiered.client();
    store_below(&client, &tier, VALUES);
    let keys: Vec<[u8; 4]> = (0..VALUES).map(key).collect();
    tier.hangs.store(true, Ordering::Relaxed);
    // The tier answers no call: a look-up that waited for it would never end.
    for _ in 0..3 {
        let found = client.try_acquire_prefix(&keys).expect("a call");
        assert_eq!((found.hits(), found.pending().is_empty()), (0, false));
        for at in (0..VALUES).step_by(37) {
            assert_eq!(client.lookup(&[key(at)]).expect("a call"), 1);
        }
    }
    tier.hangs.store(false, Ordering::Relaxed);
    wait_for("all values come", || {
        client.try_acquire_prefix(&keys).expect("a call").hits() == keys.len()
    });
    let fetches = tier.fetches.load(Ordering::Relaxed);
    assert_eq!(tier.reads.load(Ordering::Relaxed), VALUES as usize);
    assert!(fetches <= VALUES as usize / 16, "{fetches} calls read {VALUES} values");
}

/// Requests that are aborted at any point pin nothing, reserve nothing, and leave all of the memory
/// to others.
#[test]
fn requests_that_are_aborted_leave_no_pin() {
    let rounds = std::env::var("KVMEM_TEST_ROUNDS").ok().and_then(|rounds| rounds.parse().ok());
    let requests: u32 = rounds.map_or(1500, |rounds: u32| rounds.max(10_000));
    let tier = Arc::new(MapTier::default());
    let tiered = Tiered::start(Place::new(), node(1 << 20), Arc::clone(&tier) as _);
    let client = tiered.client();
    let mut random = ChaCha8Rng::seed_from_u64(6);
    let (mut running, mut aborted) = (Vec::new(), 0);
    for _ in 0..requests {
        let first = random.random_range(0..400);
        let keys: Vec<[u8; 4]> = (first..first + random.random_range(1..20)).map(key).collect();
        // Some of the values are in memory, some come from the tier, and some are not there.
        let found = client.try_acquire_prefix(&keys).expect("a call");
        if random.random_ratio(1, 3) {
            aborted += 1;
            match random.random_range(0..3) {
                0 => drop(found),
                // In the middle of its transfer.
                1 => drop((client.try_reserve(&[LEN as u64; 3]), found)),
                // The values that it waits for come, and no request takes them.
                _ => drop(client.try_acquire(&keys).map(|more| (more, found))),
            }
            continue;
        }
        let missing = keys[found.hits()..].iter().take(3);
        if let Ok(blocks) = client.try_reserve(&vec![LEN as u64; missing.len()]) {
            let values = missing.zip(blocks).map(|(key, block)| NewValue::new(*key, block));
            client.commit(values.collect()).expect("they are reserved");
        }
        running.push(found);
        if running.len() > 8 {
            drop(running.swap_remove(random.random_range(0..8)));
        }
    }
    assert!(aborted > requests / 4);
    drop(running);
    wait_for("nothing is pinned", || {
        client.evict(u64::MAX).expect("a call");
        let stats = client.stats().expect("a call");
        (stats.pinned, stats.reservations, stats.reserved_bytes, stats.used) == (0, 0, 0, 0)
    });
}

/// A key is not taken by a reservation, so nothing waits for a client that never commits. What it
/// commits in the end replaces the value of the other, as any later value does.
#[test]
fn an_open_reservation_blocks_no_key() {
    let place = Place::new();
    let _server = Running::start(node(1 << 20), &place.socket(), ServerOptions::default());
    let connect = || connect_with(&place.socket(), &ConnectOptions::default());
    let (slow, other) = (connect(), connect());
    let bytes = |client: &NodeClient| {
        let found = client.get("key").expect("a call").expect("it is there");
        found.bytes().expect("it is valid").to_vec()
    };
    let mut block = slow.reserve(&[LEN as u64]).expect("there is space").remove(0);
    block.bytes_mut().expect("it is reserved").fill(1);
    assert_eq!(other.lookup(&["key"]).expect("a call"), 0);
    other.insert("key", &[2; LEN]).expect("nothing is in the way");
    assert_eq!(bytes(&other), [2; LEN]);
    slow.commit(vec![NewValue::new("key", block)]).expect("it is reserved");
    assert_eq!(bytes(&other), [1; LEN]);
    let stats = other.stats().expect("a call");
    assert_eq!((stats.values, stats.reservations, stats.used), (1, 0, LEN as u64));
}

/// Where a value is found: in memory, or else in the tier.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Medium {
    Memory,
    Tier,
}

fn medium(it: Located) -> Option<Medium> {
    // Nothing is announced when the tier stores what memory has.
    it.in_memory.then_some(Medium::Memory).or_else(|| it.in_tier.then_some(Medium::Tier))
}

/// A value that is damaged on a disk after a look-up has found it is read once, and one that the
/// disk fails to read twice. From then on the prefix ends there, so an engine computes the rest,
/// and what it stores is found.
#[test]
fn a_load_that_fails_is_not_repeated_for_ever() {
    failing_load(1, |disk, at| disk.falsify(at + 5..at + 6, |bytes| bytes[0] ^= 1));
    failing_load(2, |disk, at| disk.fail_at(at..at + 1, libc::EIO));
}

fn failing_load(reads: u64, fail: impl Fn(&Disk, u64)) {
    const VALUES: u32 = 8;
    const DAMAGED: u32 = 3;
    let disk = Disk::new(64 << 20, 7);
    let (tier, _) = DiskTier::on(disk.clone(), &DiskTierOptions::default()).expect("a new one");
    let tiered = Tiered::start(Place::new(), node(1 << 20), Arc::new(tier));
    let client = tiered.client();
    for at in 0..VALUES {
        client.insert(key(at), &value(at)).expect("there is space");
    }
    client.evict(u64::MAX).expect("a call");
    wait_for("the tier has all values", || client.stats().expect("a call").used == 0);
    let keys: Vec<[u8; 4]> = (0..VALUES).map(key).collect();
    assert_eq!(client.lookup(&keys).expect("a call"), VALUES as usize);
    let bytes = disk.bytes();
    let at = bytes.windows(LEN).position(|it| it == value(DAMAGED)).expect("it is stored") as u64;
    fail(&disk, at);

    // Steps of an engine: it waits while values are to come, and computes what is missing.
    let mut computed = 0;
    for step in 1.. {
        assert!(step <= 3, "the load is repeated for ever");
        let mut found = client.try_acquire_prefix(&keys).expect("a call");
        wait_for("what is to come has come", || {
            found = client.try_acquire_prefix(&keys).expect("a call");
            found.pending().is_empty()
        });
        for (at, value) in (0..).zip(found.values()).take(found.hits()) {
            assert_eq!(value.expect("it is a hit").bytes(), self::value(at));
        }
        if found.hits() == keys.len() {
            break;
        }
        assert_eq!(found.hits(), DAMAGED as usize);
        computed += 1;
        for at in DAMAGED..VALUES {
            client.insert(key(at), &value(at)).expect("there is space");
        }
    }
    assert_eq!(computed, 1);
    assert_eq!(client.stats().expect("a call").tier_failed_total, reads);
}

/// A router's index of the keys that a node holds.
#[derive(Default)]
struct Index {
    next: u64,
    known: BTreeMap<Vec<u8>, Medium>,
    /// How often events were lost, or did not say which values went.
    rebuilt: usize,
}

impl Index {
    /// Takes in the events that have come since.
    fn follow(&mut self, client: &NodeClient) {
        loop {
            let found = client.events(self.next, 64, Duration::ZERO).expect("a call");
            if self.next == found.next && !found.lost {
                return;
            }
            self.next = found.next;
            let unknown = |it: &Event| it.kind == EventKind::TierEvicted;
            if found.lost || found.events.iter().any(unknown) {
                self.rebuild(client);
                continue;
            }
            for event in found.events {
                // An event says that a place may have changed; the node says how it is now.
                let located = client.locate(&[&event.key]).expect("a call")[0];
                match medium(located) {
                    Some(medium) => drop(self.known.insert(event.key, medium)),
                    None => drop(self.known.remove(&event.key)),
                }
            }
        }
    }

    fn rebuild(&mut self, client: &NodeClient) {
        self.rebuilt += 1;
        self.known = held(client);
    }
}

/// Returns what a node has.
fn held(client: &NodeClient) -> BTreeMap<Vec<u8>, Medium> {
    let keys: Vec<[u8; 1]> = (0..=u8::MAX).map(|key| [key]).collect();
    let located = client.locate(&keys).expect("a call");
    keys.iter().zip(located).filter_map(|(key, it)| Some((key.to_vec(), medium(it)?))).collect()
}

/// An index from events has what the node has and nothing that is gone, after evictions to the tier
/// and out of it, removals, gaps in the log, and servers that were replaced.
#[test]
fn an_index_from_events_has_what_the_node_has() {
    let tier = Arc::new(MapTier::default());
    let options = || NodeOptions { max_events: 200, ..NodeOptions::default() };
    let mut random = ChaCha8Rng::seed_from_u64(14);
    let mut index = Index::default();
    let mut node = Node::create(memory(1 << 20), options()).expect("possible");
    for life in 0..4 {
        let files = node.descriptors().expect("there are descriptors");
        let tiered = Tiered::start(Place::new(), node, Arc::clone(&tier) as _);
        let client = tiered.client();
        for step in 0..600 {
            let key = random.random_range(0..120_u8);
            match random.random_range(0..20) {
                0..12 => {
                    let len = random.random_range(1..60_000);
                    client.insert([key], &vec![key; len]).expect("there is space");
                }
                12..15 => drop(client.acquire(&[[key]]).expect("a call")),
                15..17 => drop(client.remove(&[[key]]).expect("a call")),
                17..19 => drop(client.evict(100_000).expect("a call")),
                _ if step < 300 => tier.evict(&[key, key + 1]),
                _ => drop(client.remove(&[[key]]).expect("a call")),
            }
            // The second half is so long that the log does not have all of it in the end.
            if step < 300 && random.random_ratio(1, 20) {
                index.follow(&client);
            }
        }
        wait_for("the index has what the node has", || {
            // The next event of the tier reports what it has let go.
            client.insert([200 + life], b"last").expect("there is space");
            index.follow(&client);
            index.known == held(&client)
        });
        assert!(index.known.len() > 20 && index.rebuilt > 0);
        drop(client);
        // The next server has the memory, and a log of its own.
        drop(tiered);
        node = Node::recover(files, options()).expect("the index is whole").0;
    }
}

/// Chunks of a request, and requests.
const CHUNKS: u32 = 16;
const REQUESTS: u32 = 40;

fn chunk(group: u8, request: u32, at: u32) -> [u8; 9] {
    let mut key = [group; 9];
    key[..4].copy_from_slice(&request.to_be_bytes());
    key[4..8].copy_from_slice(&at.to_be_bytes());
    key
}

/// A model with two groups of layers has two values for each chunk, and each group is a chain. Few
/// values of one group outlive those of the other one that they are of use with.
#[test]
fn two_groups_of_layers_are_evicted_together() {
    let place = Place::new();
    let _server = Running::start(node(2 << 20), &place.socket(), ServerOptions::default());
    let client = connect_with(&place.socket(), &ConnectOptions::default());
    let mut random = ChaCha8Rng::seed_from_u64(8);
    let has = |group: u8, request: u32| -> Vec<bool> {
        let keys: Vec<[u8; 9]> = (0..CHUNKS).map(|at| chunk(group, request, at)).collect();
        client.locate(&keys).expect("a call").iter().map(|it| it.in_memory).collect()
    };
    let (mut values, mut dead) = (0, 0);
    for _ in 0..80 {
        // Some requests run at a time. Each is looked up key by key from its start, group by group,
        // as a scheduler does, and what it lacks is stored chunk by chunk.
        let running: Vec<u32> = (0..4).map(|_| random.random_range(0..REQUESTS)).collect();
        let lens: Vec<u32> = running.iter().map(|request| 5 + request * 7 % (CHUNKS - 4)).collect();
        let mut found = lens.clone();
        let mut pins = Vec::new();
        for group in [0, 1] {
            for at in 0..CHUNKS {
                for (request, found) in running.iter().zip(&mut found) {
                    if at < *found {
                        let pin = client.acquire(&[chunk(group, *request, at)]).expect("a call");
                        *found = if pin.hits() > 0 { *found } else { at };
                        pins.push(pin);
                    }
                }
            }
        }
        for at in 0..CHUNKS {
            for ((&request, &found), len) in running.iter().zip(&found).zip(&lens) {
                if !(found..*len).contains(&at) {
                    continue;
                }
                let Ok(blocks) = client.reserve(&[4096; 2]) else { continue };
                let values = [0, 1].into_iter().zip(blocks).map(|(group, block)| {
                    // As the connector names them: the chunk before, and for the first one of a
                    // later group that of the first group.
                    let parent = match at.checked_sub(1) {
                        Some(before) => Some(chunk(group, request, before)),
                        None => (group > 0).then(|| chunk(0, request, 0)),
                    };
                    let parent = parent.map(|key| ParentKey::new(key).expect("it is short"));
                    let options = ValueOptions { parent, ..ValueOptions::default() };
                    NewValue { options, ..NewValue::new(chunk(group, request, at), block) }
                });
                client.commit(values.collect()).expect("they are reserved");
            }
        }
        for request in 0..REQUESTS {
            let [one, other] = [0, 1].map(|group| has(group, request));
            let there = one.iter().chain(&other).filter(|it| **it).count();
            let usable = one.iter().zip(&other).take_while(|(one, other)| **one && **other).count();
            (values, dead) = (values + there, dead + there - 2 * usable);
        }
    }
    println!("{dead} of {values} values are dead");
    assert!(values > 20_000 && dead * 100 <= values * 2, "{dead} of {values} values are dead");
}
