//! The tier of a node: values that memory has no room for come back, and old ones never do.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use kvmem::tier::{
    BoxError, DataType, Lookup, Priority, StoreOutcome, Tier, TierHints, TierHit, TierRead,
    TierState, TierValue,
};
use kvmem_node::{
    CallError, ClientError, ConnectOptions, EventKind, Located, NO_NAMESPACE, Node, NodeClient,
    NodeOptions, NodeServer, ServerOptions, ValueOptions,
};
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

use crate::simulated::Disk;
use crate::support::{Place, Running, Tiered, connect_with, memory, wait_for};

/// A value, and the type of its elements.
type TypedBytes = (Vec<u8>, DataType);

/// A tier in memory, as slow as a test wants it to be.
#[derive(Default)]
pub(crate) struct MapTier {
    values: Mutex<HashMap<Vec<u8>, TypedBytes>>,
    pub(crate) reads: AtomicUsize,
    /// Calls that read values.
    pub(crate) fetches: AtomicUsize,
    /// While it is set, no call ends.
    pub(crate) hangs: AtomicBool,
    pub(crate) fails: AtomicBool,
    /// It is away: nothing is found.
    pub(crate) is_away: AtomicBool,
    /// Whether it encrypts, so that it can forget a namespace, and the names of those.
    forgets: AtomicBool,
    forgotten: Mutex<Vec<Vec<u8>>>,
    /// Values that the tier has let go.
    evictions: AtomicU64,
}

impl MapTier {
    fn pass(&self) {
        while self.hangs.load(Ordering::Relaxed) {
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.values.lock().expect("no panic").len()
    }

    /// Lets values go, as a full tier does.
    pub(crate) fn evict(&self, keys: &[u8]) {
        let mut held = self.values.lock().expect("no panic");
        let before = held.len();
        held.retain(|key, _| !keys.contains(key.last().expect("a key has bytes")));
        self.evictions.fetch_add((before - held.len()) as u64, Ordering::Relaxed);
    }
}

impl Tier for MapTier {
    fn store(&self, values: &[TierValue<'_>]) -> Vec<Result<StoreOutcome, BoxError>> {
        self.pass();
        let fails = self.fails.load(Ordering::Relaxed);
        let mut held = self.values.lock().expect("no panic");
        let store = |&TierValue { key, bytes, hints, namespace, .. }: &TierValue<'_>| {
            assert!(key[1..].starts_with(namespace) && usize::from(key[0]) == namespace.len());
            if fails {
                held.remove(key);
                return Ok(StoreOutcome::NotStored);
            }
            held.insert(key.to_vec(), (bytes.to_vec(), hints.data_type));
            Ok(StoreOutcome::Stored)
        };
        values.iter().map(store).collect()
    }

    fn look_up(&self, keys: &[&[u8]]) -> Vec<Lookup> {
        keys.iter().map(|key| self.len_of(key)).collect()
    }

    fn len_of(&self, key: &[u8]) -> Lookup {
        if self.is_away.load(Ordering::Relaxed) {
            return Lookup::Missing;
        }
        self.values
            .lock()
            .expect("no panic")
            .get(key)
            .map_or(Lookup::Missing, |(value, _)| Lookup::Found(value.len() as u64))
    }

    fn fetch(&self, reads: &mut [TierRead<'_>]) -> Vec<Option<TierHit>> {
        self.pass();
        self.reads.fetch_add(reads.len(), Ordering::Relaxed);
        self.fetches.fetch_add(1, Ordering::Relaxed);
        let held = self.values.lock().expect("no panic");
        let fails = self.fails.load(Ordering::Relaxed);
        let read = |it: &mut TierRead<'_>| match held.get(it.key).filter(|_| !fails) {
            Some((value, data_type)) if value.len() == it.into.len() => {
                it.into.copy_from_slice(value);
                let hints = TierHints { data_type: *data_type, ..TierHints::default() };
                Some(TierHit { hints, ..TierHit::default() })
            }
            _ => {
                // What a failed transfer leaves must not be seen.
                it.into.fill(0xEE);
                None
            }
        };
        reads.iter_mut().map(read).collect()
    }

    fn remove(&self, keys: &[&[u8]]) -> Result<(), BoxError> {
        self.pass();
        let mut held = self.values.lock().expect("no panic");
        keys.iter().for_each(|key| drop(held.remove(*key)));
        Ok(())
    }

    fn clear(&self) -> Result<(), BoxError> {
        self.values.lock().expect("no panic").clear();
        Ok(())
    }

    fn evictions(&self) -> u64 {
        self.evictions.load(Ordering::Relaxed)
    }

    fn forget_namespace(&self, namespace: &[u8]) -> Result<(), BoxError> {
        self.pass();
        if self.fails.load(Ordering::Relaxed) {
            return Err("the disk fails".into());
        }
        let prefix = [&[namespace.len() as u8], namespace].concat();
        self.values.lock().expect("no panic").retain(|key, _| !key.starts_with(&prefix));
        self.forgotten.lock().expect("no panic").push(namespace.to_vec());
        Ok(())
    }

    fn forgets_namespaces(&self) -> bool {
        self.forgets.load(Ordering::Relaxed)
    }

    fn state(&self) -> TierState {
        match self.is_away.load(Ordering::Relaxed) {
            true => TierState::Away,
            false => TierState::Working,
        }
    }
}

pub(crate) fn node() -> Node {
    Node::create(memory(1 << 20), NodeOptions::default()).expect("possible")
}

pub(crate) fn value(key: u8) -> Vec<u8> {
    vec![key ^ 0x5A; 60_000 + usize::from(key)]
}

/// Stores more than fits, slowly enough for the tier to take all of it.
pub(crate) fn fill(client: &NodeClient, tier: &MapTier, keys: std::ops::Range<u8>) {
    for key in keys {
        client.insert([key], &value(key)).expect("there is space");
        let full = client.stats().expect("a call").used > 700_000;
        let stored = |client: &NodeClient| {
            let stats = client.stats().expect("a call");
            tier.len() as u64 >= stats.committed_total.saturating_sub(8)
        };
        if full {
            wait_for("values are stored ahead", || stored(client));
        }
    }
}

#[test]
fn what_was_evicted_comes_back() {
    let tier = Arc::new(MapTier::default());
    let tiered = Tiered::start(Place::new(), node(), Arc::clone(&tier) as _);
    let client = tiered.client();
    fill(&client, &tier, 0..60);
    let all: Vec<[u8; 1]> = (0..60).map(|key| [key]).collect();
    let in_memory = client.stats().expect("a call").values;
    assert!(in_memory < 20, "{in_memory} values are in memory");
    assert_eq!(client.lookup(&all).expect("a call"), 60, "an acquisition finds them all");
    assert_eq!(tier.reads.load(Ordering::Relaxed), 0, "a look-up reads nothing");
    for first in (0..60_u8).step_by(5) {
        let keys: Vec<[u8; 1]> = (first..first + 5).map(|key| [key]).collect();
        let pins = client.acquire(&keys).expect("a call");
        for (key, found) in (first..).zip(pins.values()) {
            let found = found.expect("it is in memory or in the tier");
            assert_eq!(found.bytes(), value(key));
            found.verify().expect("it is whole");
        }
    }
    let stats = client.stats().expect("a call");
    assert!(stats.tier_fetched_total >= 44 && stats.tier_failed_total == 0, "{stats:?}");
}

/// A disk counts in seconds, and returns what is left rounded down: a value never lives longer for
/// having been there.
#[test]
fn a_value_keeps_its_priority_and_its_time_to_live_on_a_disk() {
    let disk = Disk::new(64 << 20, 1);
    let options = kvmem_tier::DiskTierOptions::default();
    let (tier, _) = kvmem_tier::DiskTier::on(disk, &options).expect("an empty disk");
    let tiered = Tiered::start(Place::new(), node(), Arc::new(tier));
    let client = tiered.client();
    let (short, started) = (Duration::from_secs(5), Instant::now());
    let of = |priority, ttl| {
        let priority = Priority::new(priority).expect("at most 3");
        ValueOptions { priority, ttl, ..ValueOptions::default() }
    };
    client.insert_with([1], &value(1), of(2, Some(short))).expect("there is space");
    let hour = Some(Duration::from_secs(3600));
    client.insert_with([2], &value(2), of(0, hour)).expect("there is space");
    // Values of a higher priority push them out.
    for key in 3..40_u8 {
        client.insert_with([key], &value(key), of(3, None)).expect("there is space");
        let seen = || client.stats().expect("a call").tier_stored_total;
        wait_for("values are stored ahead", || seen() + 12 >= key.into());
    }
    let located = client.locate(&[[1], [2]]).expect("a call");
    assert!(located.iter().all(|it| it.in_tier && !it.in_memory), "{located:?}");
    let pins = client.acquire(&[[1], [2]]).expect("a call");
    let found: Vec<bool> = pins.values().map(|it| it.is_some()).collect();
    assert!(found == [true, true] || started.elapsed() >= short - Duration::from_secs(2));
    drop(pins);
    let (listed, _) = client.list_namespace(0, 512).expect("a call");
    let priority = |key: u8| listed.iter().find(|it| it.key == [key]).map(|it| it.priority);
    assert!(priority(1).is_none_or(|it| it == 2) && priority(2) == Some(0), "{listed:?}");
    std::thread::sleep(short.saturating_sub(started.elapsed()) + Duration::from_millis(50));
    assert!(client.get([1]).expect("a call").is_none(), "its time is over");
    assert!(client.get([2]).expect("a call").is_some());
}

/// The type is the tier's to use, through commits, restarts and fetches.
#[test]
fn a_tier_learns_the_data_type_of_each_value() {
    let tier = Arc::new(MapTier::default());
    let tiered = Tiered::start(Place::new(), node(), Arc::clone(&tier) as _);
    let client = tiered.client();
    let type_of = |key: u8| DataType::ALL[usize::from(key) % DataType::ALL.len()];
    let insert = |keys: Range<u8>| {
        for key in keys {
            let options = ValueOptions { data_type: type_of(key), ..ValueOptions::default() };
            client.insert_with([key], &value(key), options).expect("there is space");
            let seen = || tier.len();
            wait_for("values are stored ahead", || seen() + 12 >= key.into());
        }
    };
    insert(0..40);
    let check = |tier: &MapTier| {
        let held = tier.values.lock().expect("no panic");
        let of = |key: &[u8]| type_of(*key.last().expect("a key has bytes"));
        assert!(held.len() > 20);
        assert!(held.iter().all(|(key, (_, data_type))| *data_type == of(key)));
    };
    check(&tier);
    // Values that come back from the tier have their types, and are stored again with them.
    assert!(client.get([0]).expect("a call").is_some());
    tier.evict(&[0]);
    insert(40..80);
    check(&tier);
    assert!(tier.values.lock().expect("no panic").keys().any(|key| key.last() == Some(&0)));
}

/// Returns the keys of a client's namespace, listed `max` at a time.
fn names_of(client: &NodeClient, max: u32) -> Vec<Vec<u8>> {
    let (mut listed, mut from) = (Vec::new(), Some(0));
    while let Some(at) = from {
        let (values, next) = client.list_namespace(at, max).expect("a call");
        assert!(values.len() <= max as usize);
        listed.extend(values.into_iter().map(|it| it.key));
        from = next;
    }
    listed
}

#[test]
fn values_are_located_in_memory_and_in_the_tier_without_being_used() {
    let tier = Arc::new(MapTier::default());
    let tiered = Tiered::start(Place::new(), node(), Arc::clone(&tier) as _);
    let client = tiered.client();
    fill(&client, &tier, 0..40);
    let all: Vec<[u8; 1]> = (0..41).map(|key| [key]).collect();
    let (hits, misses) = {
        let stats = client.stats().expect("a call");
        (stats.hits, stats.misses)
    };
    let located = client.locate(&all).expect("a call");
    let in_memory = located.iter().filter(|it| it.in_memory).count() as u64;
    let stats = client.stats().expect("a call");
    assert_eq!(in_memory, stats.values);
    assert_eq!((stats.hits, stats.misses), (hits, misses));
    assert_eq!(tier.reads.load(Ordering::Relaxed), 0);
    assert!(located[..40].iter().all(|it| it.in_memory || it.in_tier));
    assert_eq!(located[40], Located::default());
    assert!(located[0].in_tier && !located[0].in_memory && located[39].in_memory);

    for max in [1, 3, 512] {
        let mut listed = names_of(&client, max);
        listed.sort();
        assert_eq!(listed, (0..40_u8).map(|key| vec![key]).collect::<Vec<_>>());
    }

    // A client of another namespace sees none of them.
    let options = ConnectOptions { namespace: "other".to_owned(), ..ConnectOptions::default() };
    let other = connect_with(&tiered.place.socket(), &options);
    assert_eq!(names_of(&other, 512), Vec::<Vec<u8>>::new());
    assert_eq!(other.locate(&[[0]]).expect("a call"), [Located::default()]);
    let empty = other.locate(&[""]).expect_err("no value has an empty key");
    assert!(matches!(empty, ClientError::Call(CallError::BadKey { .. })), "{empty}");
}

#[test]
fn events_report_that_the_tier_has_let_values_go() {
    let tier = Arc::new(MapTier::default());
    let tiered = Tiered::start(Place::new(), node(), Arc::clone(&tier) as _);
    let client = tiered.client();
    fill(&client, &tier, 0..40);
    let end = client.events(u64::MAX, 0, Duration::ZERO).expect("a call").next;
    // A value that only the tier has is removed: the event names it.
    assert_eq!(client.remove(&[[5_u8]]).expect("a call"), 1);
    let found = client.events(end, 512, Duration::ZERO).expect("a call");
    let named: Vec<_> = found.events.iter().map(|it| (it.kind, it.key.clone())).collect();
    assert_eq!(named, [(EventKind::Removed, vec![5])]);
    assert_eq!(client.locate(&[[5_u8]]).expect("a call"), [Located::default()]);

    tier.evict(&[0, 1, 2]);
    fill(&client, &tier, 40..60);
    let mut from = found.next;
    let reported = loop {
        let more = client.events(from, 512, Duration::from_secs(30)).expect("a call");
        assert!(more.next > from, "no event reports it");
        from = more.next;
        if let Some(event) = more.events.iter().find(|it| it.kind == EventKind::TierEvicted) {
            break event.clone();
        }
    };
    assert_eq!((reported.namespace, reported.key), (NO_NAMESPACE, Vec::new()));
    let located = client.locate(&[[0_u8], [1], [2], [3]]).expect("a call");
    assert_eq!(
        located.iter().map(|it| it.in_tier).collect::<Vec<_>>(),
        [false, false, false, true]
    );

    let error = client.as_operator().clear(Some("")).expect_err("the tier has no namespaces");
    assert!(matches!(error, ClientError::Call(CallError::NamespaceInTier)), "{error}");
    // So does a tier that an operator has cleared.
    let end = client.events(u64::MAX, 0, Duration::ZERO).expect("a call").next;
    client.as_operator().clear(None).expect("a call");
    let cleared = client.events(end, 512, Duration::ZERO).expect("a call").events;
    assert!(cleared.iter().any(|it| it.kind == EventKind::TierEvicted));
    assert_eq!(client.locate(&[[3_u8]]).expect("a call"), [Located::default()]);
}

/// A tier that encrypts forgets the key of a namespace, and nothing of it comes back.
#[test]
fn a_namespace_is_dropped_with_its_values_in_the_tier() {
    let tier = Arc::new(MapTier::default());
    tier.forgets.store(true, Ordering::Relaxed);
    let tiered = Tiered::start(Place::new(), node(), Arc::clone(&tier) as _);
    let of = |name: &str| {
        let options = ConnectOptions { namespace: name.to_owned(), ..ConnectOptions::default() };
        connect_with(&tiered.place.socket(), &options)
    };
    let (dropped, stays) = (of("dropped"), of("stays"));
    fill(&dropped, &tier, 0..40);
    fill(&stays, &tier, 40..80);
    let in_tier = |client: &NodeClient, keys: Range<u8>| {
        let keys: Vec<[u8; 1]> = keys.map(|key| [key]).collect();
        client.locate(&keys).expect("a call").iter().filter(|it| it.in_tier).count()
    };
    let before = in_tier(&stays, 40..80);
    assert!(in_tier(&dropped, 0..40) > 20 && before > 20);
    // A client may drop its own.
    dropped.clear().expect("a call");
    assert_eq!(*tier.forgotten.lock().expect("no panic"), [b"dropped".to_vec()]);
    for key in 0..40_u8 {
        assert!(dropped.get([key]).expect("a call").is_none(), "{key}");
    }
    // Evicted values may still have been on their way before.
    assert!(in_tier(&stays, 40..80) >= before);
    assert!((40..80_u8).all(|key| stays.get([key]).expect("a call").is_some()));
    // Values that come later are found.
    dropped.insert([1], &value(1)).expect("there is space");
    assert!(dropped.get([1]).expect("a call").is_some());
    // A tier that could not forget is cleared before the next server uses it.
    tier.fails.store(true, Ordering::Relaxed);
    stays.as_operator().clear(Some("stays")).expect("a call");
    tier.fails.store(false, Ordering::Relaxed);
    drop((dropped, stays));
    let Tiered { place, running } = tiered;
    let node = running.stop();
    let _again = Tiered::start(place, node, Arc::clone(&tier) as _);
    assert_eq!(tier.len(), 0);
}

#[test]
fn others_are_served_while_a_call_waits_and_one_read_serves_all() {
    let tier = Arc::new(MapTier::default());
    let tiered = Tiered::start(Place::new(), node(), Arc::clone(&tier) as _);
    let client = tiered.client();
    fill(&client, &tier, 0..40);
    tier.hangs.store(true, Ordering::Relaxed);
    let reads = tier.reads.load(Ordering::Relaxed);
    let waiting: Vec<_> = (0..4)
        .map(|_| {
            let client = tiered.client();
            std::thread::spawn(move || {
                let pins = client.acquire(&[[3_u8]]).expect("a call");
                pins.value(0).map(|found| found.bytes().to_vec())
            })
        })
        .collect();
    std::thread::sleep(Duration::from_millis(50));
    assert_eq!(client.lookup(&[[39_u8]]).expect("a call"), 1);
    assert!(waiting.iter().all(|thread| !thread.is_finished()));
    tier.hangs.store(false, Ordering::Relaxed);
    for thread in waiting {
        assert_eq!(thread.join().expect("no panic"), Some(value(3)));
    }
    assert_eq!(tier.reads.load(Ordering::Relaxed), reads + 1);
}

/// Calls that do not wait say what is to come, and each value is read once however often they ask.
#[test]
fn calls_that_do_not_wait_find_values_when_they_have_come() {
    let tier = Arc::new(MapTier::default());
    let tiered = Tiered::start(Place::new(), node(), Arc::clone(&tier) as _);
    let client = tiered.client();
    fill(&client, &tier, 0..60);
    let all: Vec<[u8; 1]> = (0..60).map(|key| [key]).collect();
    let other: Vec<[u8; 1]> = (100..104).map(|key| [key]).collect();
    let misses = client.stats().expect("a call").misses;
    let reads = tier.reads.load(Ordering::Relaxed);
    tier.hangs.store(true, Ordering::Relaxed);
    let found = client.try_acquire_prefix(&all).expect("a call");
    let pending = found.pending().to_vec();
    // A quarter of the memory has room for five of them.
    assert_eq!((found.hits(), &pending[..]), (0, &[0, 1, 2, 3, 4][..]));
    for _ in 0..50 {
        let again = client.try_acquire_prefix(&all).expect("a call");
        assert_eq!((again.hits(), again.pending()), (0, &pending[..]));
        let one = client.try_acquire(&[all[3]]).expect("a call");
        assert_eq!((one.hits(), one.pending()), (0, &[0][..]));
    }
    let has = |keys: &[[u8; 1]]| -> Vec<bool> {
        let located = client.locate(keys).expect("a call").into_iter();
        located.map(|it| it.in_memory || it.in_tier).collect()
    };
    assert_eq!((has(&all), has(&other)), (vec![true; 60], vec![false; 4]));
    assert_eq!(client.stats().expect("a call").misses, misses, "what comes is no miss");
    tier.hangs.store(false, Ordering::Relaxed);
    wait_for("the first values come", || {
        client.try_acquire(&all[..5]).expect("a call").hits() == 5
    });
    assert_eq!(tier.reads.load(Ordering::Relaxed), reads + 5, "each was read once");
    // Pinned values stay, so a prefix grows with each call, up to what memory has room for.
    let (mut held, mut start) = (Vec::new(), 0);
    wait_for("the values come", || {
        let found = client.try_acquire_prefix(&all[start..]).expect("a call");
        for (key, pinned) in (start as u8..).zip(found.values()).take(found.hits()) {
            assert_eq!(pinned.expect("it is a hit").bytes(), value(key));
        }
        start += found.hits();
        held.push(found);
        start >= 12
    });
    // Nothing is read for keys without a value, and of those in memory nothing is pending.
    let found = client.try_acquire(&other).expect("a call");
    assert_eq!((found.hits(), found.pending().len()), (0, 0));
    drop(held);
}

#[test]
fn a_reservation_that_does_not_wait_fails_while_the_tier_keeps_values() {
    let tier = Arc::new(MapTier::default());
    let tiered = Tiered::start(Place::new(), node(), Arc::clone(&tier) as _);
    let client = tiered.client();
    tier.hangs.store(true, Ordering::Relaxed);
    for key in 0..17 {
        client.insert([key], &value(key)).expect("there is space");
    }
    let size = [value(0).len() as u64];
    // All values but one are pinned. That one cannot be evicted while it is stored.
    let stored = (0..17_u8).find(|free| {
        let others: Vec<[u8; 1]> = (0..17).filter(|key| key != free).map(|key| [key]).collect();
        let _pins = client.acquire(&others).expect("a call");
        match client.try_reserve(&size) {
            Err(ClientError::Call(CallError::OutOfSpace { .. })) => true,
            Err(error) => panic!("{error}"),
            Ok(_) => false,
        }
    });
    let free = stored.expect("a value is being stored");
    let others: Vec<[u8; 1]> = (0..17).filter(|key| *key != free).map(|key| [key]).collect();
    let pins = client.acquire(&others).expect("a call");
    let waiting = {
        let client = client.clone();
        std::thread::spawn(move || client.reserve(&size).map(|made| made.len()))
    };
    std::thread::sleep(Duration::from_millis(50));
    assert!(!waiting.is_finished(), "a reservation that may wait waits");
    let failed = client.try_reserve(&size).expect_err("there is no space, and another waits");
    assert!(matches!(failed, ClientError::Call(CallError::OutOfSpace { .. })), "{failed}");
    tier.hangs.store(false, Ordering::Relaxed);
    assert_eq!(waiting.join().expect("no panic").expect("space came"), 1);
    drop(pins);
}

#[test]
fn a_removed_or_replaced_value_does_not_come_back() {
    let tier = Arc::new(MapTier::default());
    let tiered = Tiered::start(Place::new(), node(), Arc::clone(&tier) as _);
    let client = tiered.client();
    fill(&client, &tier, 0..40);
    // In the tier alone, and in both.
    assert_eq!(client.remove(&[[0_u8], [39]]).expect("a call"), 2);
    assert_eq!(client.lookup(&[[0_u8]]).expect("a call"), 0);
    assert_eq!(client.lookup(&[[39_u8]]).expect("a call"), 0);
    let pins = client.acquire(&[[0_u8], [39]]).expect("a call");
    assert_eq!(pins.hits(), 0);
    // While it is being fetched.
    tier.hangs.store(true, Ordering::Relaxed);
    let fetching = {
        let client = tiered.client();
        std::thread::spawn(move || client.acquire(&[[1_u8], [2]]).expect("a call").hits())
    };
    std::thread::sleep(Duration::from_millis(30));
    client.insert([2], b"newer").expect("there is space");
    let removing = {
        let client = tiered.client();
        std::thread::spawn(move || client.remove(&[[1_u8]]).expect("a call"))
    };
    std::thread::sleep(Duration::from_millis(30));
    tier.hangs.store(false, Ordering::Relaxed);
    assert_eq!(removing.join().expect("no panic"), 1);
    assert!(fetching.join().expect("no panic") <= 2);
    let pins = client.acquire(&[[1_u8], [2]]).expect("a call");
    assert!(pins.value(0).is_none());
    assert_eq!(pins.value(1).expect("it was inserted").bytes(), b"newer");
    drop(pins);
    // The newer value is evicted before it is stored: the older one is gone, too.
    tier.fails.store(true, Ordering::Relaxed);
    for key in 100..140 {
        client.insert([key], &value(key)).expect("there is space");
    }
    tier.fails.store(false, Ordering::Relaxed);
    let pins = client.acquire(&[[2_u8]]).expect("a call");
    assert!(pins.value(0).is_none_or(|found| found.bytes() == b"newer"));
}

#[test]
fn a_tier_that_fails_is_a_miss() {
    let tier = Arc::new(MapTier::default());
    let tiered = Tiered::start(Place::new(), node(), Arc::clone(&tier) as _);
    let client = tiered.client();
    fill(&client, &tier, 0..40);
    tier.fails.store(true, Ordering::Relaxed);
    let pins = client.acquire(&[[0_u8], [1]]).expect("a call");
    assert_eq!(pins.hits(), 0);
    let stats = client.stats().expect("a call");
    assert_eq!((stats.tier_failed_total, stats.reservations), (2, 0));
}

/// Whatever is stored, evicted, fetched, replaced and removed, a key has its latest value or none,
/// also after the server was killed.
#[test]
fn a_key_has_its_latest_value_or_none() {
    let tier = Arc::new(MapTier::default());
    let mut random = ChaCha8Rng::seed_from_u64(3);
    let mut latest: HashMap<u8, Vec<u8>> = HashMap::new();
    let mut node = Some(node());
    let (mut fetched, mut version) = (0, 0_u32);
    for _ in 0..4 {
        let place = Place::new();
        let socket = place.socket();
        let mut server =
            NodeServer::bind(node.take().expect("it came back"), &socket, ServerOptions::default())
                .expect("free");
        server.attach_tier(Arc::clone(&tier) as _).expect("it works");
        let files = server.descriptors().expect("there are descriptors");
        let stopper = server.stopper();
        let thread = std::thread::spawn(move || server.run().expect("epoll works"));
        let client = connect_with(&socket, &ConnectOptions::default());
        for _ in 0..1000 {
            let key = random.random_range(0..60_u8);
            match random.random_range(0..10) {
                0..4 => {
                    version += 1;
                    let len = random.random_range(20_000..60_000_usize);
                    let value: Vec<u8> =
                        version.to_le_bytes().into_iter().cycle().take(len).collect();
                    client.insert([key], &value).expect("there is space");
                    latest.insert(key, value);
                }
                4 => {
                    client.remove(&[[key]]).expect("a call");
                    latest.remove(&key);
                }
                _ => {
                    let keys = [[key], [(key + 1) % 60]];
                    let pins = client.acquire(&keys).expect("a call");
                    for ([key], found) in keys.iter().zip(pins.values()) {
                        let Some(found) = found else { continue };
                        let expected = latest.get(key).expect("it was removed, and came back");
                        assert_eq!(found.bytes()[..8], expected[..8], "an old value of {key}");
                        assert!(found.bytes() == expected);
                    }
                }
            }
        }
        let stats = client.stats().expect("a call");
        fetched += stats.tier_fetched_total;
        drop(client);
        // The tier's threads end their jobs; what they have done is lost, as with a server that is
        // killed.
        stopper.stop();
        drop(thread.join().expect("no panic"));
        let (next, report) =
            Node::recover(files, NodeOptions::default()).expect("the index is whole");
        assert_eq!(report.damaged, 0);
        next.check().expect("the invariants hold");
        node = Some(next);
    }
    assert!(fetched > 100, "only {fetched} values came back from the tier");
}

/// A tier has values of other memory, which had no boundary or a longer one.
#[test]
fn a_value_that_is_longer_than_the_boundary_is_a_miss() {
    let tier = Arc::new(MapTier::default());
    let drain = Duration::from_secs(60);
    let before = Tiered::draining(Place::new(), node(), tier.clone(), drain);
    let client = before.client();
    client.insert("short", &[1; 65_536]).expect("there is space");
    client.insert("long", &[2; 65_537]).expect("there is space");
    drop(client);
    before.end();
    assert_eq!(tier.len(), 2);
    let options = NodeOptions { boundary: 64 << 10, ..NodeOptions::default() };
    let node = Node::create(memory(1 << 20), options).expect("possible");
    let after = Tiered::start(Place::new(), node, tier);
    let client = after.client();
    assert_eq!(client.lookup(&["long"]).expect("a call"), 0);
    assert_eq!(client.lookup(&["short", "long", "short"]).expect("a call"), 1);
    let pins = client.acquire(&["short", "long"]).expect("a call");
    assert_eq!(pins.value(0).map(|value| value.bytes().len()), Some(65_536));
    assert!(pins.value(1).is_none());
}

/// A removal is durable when the call that made it returns: a power cut does not bring back what
/// the disk had.
#[test]
fn what_was_removed_does_not_come_back_after_a_power_cut() {
    use kvmem_tier::device::Device;

    let disk = Disk::new(8 << 20, 1);
    let options = kvmem_tier::DiskTierOptions::default();
    let open = || kvmem_tier::DiskTier::on(disk.clone(), &options).expect("a sound disk").0;
    let tiered = Tiered::start(Place::new(), node(), Arc::new(open()));
    let client = tiered.client();
    for key in 0..40 {
        client.insert([key], &value(key)).expect("there is space");
        wait_for("values are stored ahead", || {
            let stats = client.stats().expect("a call");
            stats.tier_stored_total + 10 >= stats.committed_total
        });
    }
    // Of values in memory, and of those that only the disk has.
    let keys: Vec<[u8; 1]> = (0..20).chain(35..40).map(|key| [key]).collect();
    disk.sync().expect("a sound disk");
    assert!(client.remove(&keys).expect("a call") >= 20);
    disk.end();
    drop((client, tiered));
    disk.restart();
    disk.cut_power_losing(0..u64::MAX);
    let tiered = Tiered::start(Place::new(), node(), Arc::new(open()));
    let client = tiered.client();
    let found: Vec<u8> = (0..40)
        .filter(|&key| client.acquire(&[[key]]).expect("a call").value(0).is_some())
        .collect();
    assert!(found.iter().all(|key| !keys.contains(&[*key])), "{found:?} came back");
    assert!(found.len() > 5, "{found:?}");
}

/// A planned end: what was never stored ahead is in the tier, and other memory has it.
#[test]
fn a_server_that_is_stopped_stores_what_the_tier_lacks() {
    let tier = Arc::new(MapTier::default());
    let minute = Duration::from_secs(60);
    let tiered = Tiered::draining(Place::new(), node(), Arc::clone(&tier) as _, minute);
    let client = tiered.client();
    let keys: Vec<[u8; 1]> = (0..6).map(|key| [key]).collect();
    for key in 0..6 {
        client.insert([key], &value(key)).expect("there is space");
    }
    assert_eq!(tier.len(), 0, "the memory has space");
    // Pinned values, too.
    let pins = client.acquire(&[[2_u8]]).expect("a call");
    tiered.end();
    assert_eq!((tier.len(), pins.value(0).map(|it| it.bytes().len())), (6, Some(60_002)));
    let tiered = Tiered::start(Place::new(), node(), Arc::clone(&tier) as _);
    let found = tiered.client().acquire(&keys).expect("a call");
    for (key, found) in (0..).zip(found.values()) {
        assert_eq!(found.expect("it was stored").bytes(), value(key));
    }
    // Without time, nothing is stored.
    let tier = Arc::new(MapTier::default());
    let tiered = Tiered::start(Place::new(), node(), Arc::clone(&tier) as _);
    tiered.client().insert("key", b"value").expect("there is space");
    tiered.end();
    assert_eq!(tier.len(), 0);
}

/// A tier that hangs: clients are served until the time is over, or the second request comes.
#[test]
fn a_server_that_is_stopped_stores_for_a_limited_time_and_serves_meanwhile() {
    for limit in [Duration::from_millis(300), Duration::from_secs(3600)] {
        let tier = Arc::new(MapTier::default());
        let tiered = Tiered::draining(Place::new(), node(), Arc::clone(&tier) as _, limit);
        let retry_for = Duration::ZERO;
        let options = ConnectOptions { retry_for, ..ConnectOptions::default() };
        let client = connect_with(&tiered.place.socket(), &options);
        for key in 0..8 {
            client.insert([key], &value(key)).expect("there is space");
        }
        tier.hangs.store(true, Ordering::Relaxed);
        tiered.running.stopper.stop();
        let socket = tiered.place.socket();
        // SAFETY: it does not connect.
        wait_for("no client is accepted", || unsafe {
            NodeClient::connect(&socket, &options).is_err()
        });
        if limit > Duration::from_secs(60) {
            assert_eq!(client.lookup(&[[7_u8]]).expect("it is served"), 1);
            tiered.running.stopper.stop();
        }
        wait_for("it serves no more", || client.lookup(&[[7_u8]]).is_err());
        tier.hangs.store(false, Ordering::Relaxed);
        tiered.end();
        // Two jobs of two values.
        assert!((1..=4).contains(&tier.len()), "{} values", tier.len());
    }
}

/// Calls that wait for the tier when the server is stopped are answered.
#[test]
fn calls_that_wait_are_answered_before_the_end() {
    let tier = Arc::new(MapTier::default());
    let tiered = Tiered::start(Place::new(), node(), Arc::clone(&tier) as _);
    let client = tiered.client();
    fill(&client, &tier, 0..40);
    tier.hangs.store(true, Ordering::Relaxed);
    let fetching = {
        let client = tiered.client();
        std::thread::spawn(move || {
            let pins = client.acquire(&[[3_u8]]).expect("a call");
            pins.value(0).map(|found| found.bytes().to_vec())
        })
    };
    let events = {
        let client = tiered.client();
        let next = client.events(u64::MAX, 1, Duration::ZERO).expect("a call").next;
        std::thread::spawn(move || {
            client.events(next, 1, Duration::from_secs(3600)).map(|it| it.events)
        })
    };
    // Both have come: a call by the same thread of the server follows them.
    std::thread::sleep(Duration::from_millis(50));
    assert_eq!(client.lookup(&[[39_u8]]).expect("a call"), 1);
    tiered.running.stopper.stop();
    tier.hangs.store(false, Ordering::Relaxed);
    assert_eq!(fetching.join().expect("no panic"), Some(value(3)));
    let events = events.join().expect("no panic").expect("it is answered");
    assert!(events.len() <= 1, "{events:?}");
    tiered.end();
}

/// Operators see the state of the tier in the statistics: without one, with one that works, and
/// when its disk has failed. The node goes on, and no value is wrong.
#[test]
fn the_state_of_the_tier_is_reported() {
    let place = Place::new();
    let plain = Running::start(node(), &place.socket(), ServerOptions::default());
    let client = connect_with(&place.socket(), &ConnectOptions::default());
    assert_eq!(client.stats().expect("a call").tier_state, TierState::None);
    drop((client, plain));

    let disk = Disk::new(4 << 20, 1);
    let options = kvmem_tier::DiskTierOptions::default();
    let (tier, _) = kvmem_tier::DiskTier::on(disk.clone(), &options).expect("an empty disk");
    let tiered = Tiered::start(Place::new(), node(), Arc::new(tier));
    let client = tiered.client();
    let stats = || client.stats().expect("a call");
    assert_eq!(stats().tier_state, TierState::Working);
    for key in 0..40 {
        client.insert([key], &value(key)).expect("there is space");
        wait_for("values are stored ahead", || {
            stats().tier_stored_total + 10 >= stats().committed_total
        });
    }
    assert_eq!(stats().tier_state, TierState::Working);
    disk.fail_at(0..u64::MAX, libc::EIO);
    // The journal notes removals.
    let removed = client.remove(&[[0], [39]]).expect("a call");
    wait_for("the journal fails", || stats().tier_state == TierState::ReadOnly);
    for key in 40..80 {
        client.insert([key], &value(key)).expect("values are evicted without being stored");
    }
    assert_eq!(stats().tier_state, TierState::ReadOnly);
    // The disk answers again, and the tier may begin its journal anew. What the tier has is found,
    // or is a miss.
    disk.fail_at(0..0, libc::EIO);
    let mut found = 0;
    for key in 0..80 {
        let pins = client.acquire(&[[key]]).expect("a call");
        if let Some(value_found) = pins.value(0) {
            assert!(value_found.bytes() == value(key) && ![0, 39].contains(&key), "{key}");
            found += 1;
        }
    }
    assert!(found > 0 && stats().tier_fetched_total > 0 && removed > 0);
}
