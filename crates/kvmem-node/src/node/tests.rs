//! Histories of calls, compared with maps; and every prefix of their stores, recovered.

use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use kvmem::arena::{Backing, PageSize, Region};
use proptest::prelude::*;

use super::{BlockHandle, CommitItem, NewSession, Node, NodeMemory, NodeOptions, SessionIndex};
use crate::error::{BadIndex, CallError, NodeError};
use crate::prefix;
use crate::tier::{NodeTier, TierOptions, TierRead};

const BYTES: usize = 256 << 10;

fn shared(bytes: usize) -> Region {
    let builder = Region::builder(bytes).backing(Backing::Shared).ladder(PageSize::Base);
    builder.map().expect("memory can be mapped")
}

fn options() -> NodeOptions {
    NodeOptions { max_blocks: Some(48), max_events: 0, ..NodeOptions::default() }
}

fn node() -> Node {
    Node::create(shared(BYTES), options()).expect("the options are possible")
}

fn begin(node: &mut Node, pid: u32) -> SessionIndex {
    let namespace = node.namespace("model").expect("there are few");
    let new = NewSession { pid, uid: 0, started: 1, namespace, read_only: false };
    node.begin_session(new).expect("there are few").0
}

/// Returns a node recovered from a copy of the index as it was, with some stores made to it.
fn recovered(
    node: &Node,
    before: &[u8],
    stores: &[(usize, u64)],
    alive: impl Fn(u32) -> bool,
) -> Result<(Node, super::RecoveryReport), NodeError> {
    let [bytes, index] = node.memory.descriptors().expect("there are descriptors");
    let first = node.memory.index_base();
    let copy = shared(before.len());
    // SAFETY: nothing else uses the region, which is longer than the copy.
    let words = unsafe { std::slice::from_raw_parts_mut(copy.base().as_ptr(), before.len()) };
    words.copy_from_slice(before);
    for (address, word) in stores {
        words[address - first..][..8].copy_from_slice(&word.to_ne_bytes());
    }
    drop(index);
    let index = copy.share().expect("there are descriptors").expect("it is shared");
    let memory = NodeMemory::attach(bytes, index)?;
    Node::recover_memory(memory, options(), |pid, _| alive(pid))
}

/// The values that can be found: key to length.
fn found(node: &Node) -> BTreeMap<Vec<u8>, u64> {
    let values = node.list(0, u32::MAX, 0).0;
    values.into_iter().map(|value| (value.key, value.len)).collect()
}

#[derive(Clone, Debug)]
enum Step {
    Reserve { session: usize, sizes: Vec<u64> },
    Commit { session: usize, count: usize, key: u8 },
    Acquire { session: usize, keys: Vec<u8> },
    Release { session: usize, which: usize },
    Remove { session: usize, key: u8 },
    Touch { session: usize, key: u8 },
    Evict { bytes: u64 },
    End { session: usize },
    Fence { session: usize },
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let session = 0..3_usize;
    let sizes = prop::collection::vec(prop_oneof![1..9000_u64, Just(40_000)], 1..4);
    let step = prop_oneof![
        4 => (session.clone(), sizes).prop_map(|(session, sizes)| Step::Reserve { session, sizes }),
        4 => (session.clone(), 1..4_usize, 0..20_u8)
            .prop_map(|(session, count, key)| Step::Commit { session, count, key }),
        4 => (session.clone(), prop::collection::vec(0..24_u8, 1..4))
            .prop_map(|(session, keys)| Step::Acquire { session, keys }),
        4 => (session.clone(), any::<usize>())
            .prop_map(|(session, which)| Step::Release { session, which }),
        1 => (session.clone(), 0..20_u8).prop_map(|(session, key)| Step::Remove { session, key }),
        1 => (session.clone(), 0..20_u8).prop_map(|(session, key)| Step::Touch { session, key }),
        1 => (1..50_000_u64).prop_map(|bytes| Step::Evict { bytes }),
        1 => session.clone().prop_map(|session| Step::End { session }),
        1 => session.prop_map(|session| Step::Fence { session }),
    ];
    prop::collection::vec(step, 1..60)
}

/// What the sessions have, by a model without an index file.
#[derive(Clone, Debug, Default)]
struct Had {
    reservations: Vec<BlockHandle>,
    fenced: bool,
    pins: Vec<BlockHandle>,
}

struct History {
    node: Node,
    sessions: Vec<SessionIndex>,
    had: Vec<Had>,
    /// The length under each key, or more than one while it may have been evicted.
    committed: HashMap<Vec<u8>, u64>,
}

impl History {
    fn new() -> History {
        let mut node = node();
        let sessions = (0..3).map(|pid| begin(&mut node, 100 + pid)).collect();
        History { node, sessions, had: vec![Had::default(); 3], committed: HashMap::new() }
    }

    fn step(&mut self, step: &Step) {
        match step {
            Step::Reserve { session, sizes } => {
                if let Ok(blocks) = self.node.reserve(self.sessions[*session], sizes) {
                    let lens: Vec<u64> = blocks.iter().map(|it| it.len).collect();
                    assert_eq!(&lens, sizes);
                    self.had[*session].reservations.extend(blocks.iter().map(|it| it.handle));
                }
            }
            Step::Commit { session, count, key } => {
                let had = &mut self.had[*session];
                let count = (*count).min(had.reservations.len());
                let handles: Vec<BlockHandle> = had.reservations.drain(..count).collect();
                let keys: Vec<Vec<u8>> = (0..count as u8).map(|at| vec![key + at; 3]).collect();
                let items: Vec<CommitItem<'_>> = handles
                    .iter()
                    .zip(&keys)
                    .map(|(handle, key)| CommitItem {
                        handle: *handle,
                        key,
                        checksum: None,
                        priority: 0,
                        ttl_ms: 0,
                    })
                    .collect();
                let lens: Vec<u64> =
                    handles.iter().map(|handle| self.node.len_of(handle.slot)).collect();
                match self.node.commit(self.sessions[*session], &items, 1) {
                    Ok(()) => {
                        // A client repeats what it does not know to be done.
                        self.node.commit(self.sessions[*session], &items, 1).expect("again");
                        self.committed.extend(keys.into_iter().zip(lens));
                    }
                    Err(error) => {
                        assert_eq!(error, CallError::Fenced);
                        self.node.release(self.sessions[*session], &handles).expect("its own");
                    }
                }
            }
            Step::Acquire { session, keys } => {
                let keys: Vec<Vec<u8>> = keys.iter().map(|key| vec![*key; 3]).collect();
                let refs: Vec<&[u8]> = keys.iter().map(Vec::as_slice).collect();
                let pinned = self.node.acquire(self.sessions[*session], &refs, false, 2);
                for (key, block) in keys.iter().zip(pinned.expect("no limit")) {
                    let Some(block) = block else { continue };
                    assert_eq!(self.committed.get(key), Some(&block.len), "{key:?}");
                    self.had[*session].pins.push(block.handle);
                }
            }
            Step::Release { session, which } => {
                let had = &mut self.had[*session];
                if which % 2 == 0 && !had.pins.is_empty() {
                    let pin = had.pins.swap_remove(which / 2 % had.pins.len());
                    self.node.release(self.sessions[*session], &[pin]).expect("its own");
                } else if !had.reservations.is_empty() {
                    let which = which / 2 % had.reservations.len();
                    let handle = had.reservations.remove(which);
                    self.node.release(self.sessions[*session], &[handle]).expect("its own");
                    let again = self.node.release(self.sessions[*session], &[handle]);
                    assert!(matches!(again, Err(CallError::Stale { .. })));
                }
            }
            Step::Remove { session, key } => {
                let key = vec![*key; 3];
                self.node.remove(self.sessions[*session], &[&key]).expect("it may write");
                assert!(!found(&self.node).contains_key(&key));
                self.committed.remove(&key);
            }
            Step::Touch { session, key } => {
                self.node.touch(self.sessions[*session], &[&[*key; 3]], 3);
            }
            Step::Evict { bytes } => {
                self.node.evict_bytes(None, *bytes);
            }
            Step::End { session } => {
                self.node.end_session(self.sessions[*session]);
                self.sessions[*session] = begin(&mut self.node, 100 + *session as u32);
                self.had[*session] = Had::default();
            }
            Step::Fence { session } => {
                let fenced = self.node.fence(self.sessions[*session]);
                self.had[*session].fenced |= fenced > 0;
            }
        }
        self.node.check().expect("the invariants hold");
        let found = found(&self.node);
        for (key, len) in &found {
            assert_eq!(self.committed.get(key), Some(len), "{key:?}");
        }
        self.committed.retain(|key, _| found.contains_key(key));
        for had in &self.had {
            for pin in &had.pins {
                self.node.live(*pin).expect("a pinned block is not used again");
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 64,
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn a_node_is_a_map_with_pins(steps in steps()) {
        let mut history = History::new();
        for step in &steps {
            history.step(step);
        }
    }

    /// Wherever the server ends, a recovery finds the values of before or after the call, and all
    /// that the living sessions have.
    #[test]
    fn every_prefix_of_the_stores_is_a_valid_state(steps in steps()) {
        let mut history = History::new();
        for (number, step) in steps.iter().enumerate() {
            // Commits make the most stores; of the other calls, the last one is cut off.
            if matches!(step, Step::Commit { .. }) || number + 1 == steps.len() {
                cut_off(&mut history, step);
            } else {
                history.step(step);
            }
        }
    }

    /// Whatever an index has become, the server says so or leaves out what is damaged.
    #[test]
    fn flipped_bits_lose_entries_and_nothing_else(
        steps in steps(),
        flips in prop::collection::vec((any::<prop::sample::Index>(), 0..64_u32), 1..8),
    ) {
        let mut history = History::new();
        for step in &steps {
            history.step(step);
        }
        let mut index = history.node.memory.index_bytes();
        let before = found(&history.node);
        for (at, bit) in flips {
            let at = at.index(index.len() * 8);
            index[at / 8] ^= 1 << (at % 8);
            // Most of the file is empty, so a second bit goes into the entries in use.
            let used = crate::format::ENTRIES_AT * 8 + at % (8 * 192 * 8);
            index[used / 8] ^= 1 << (bit % 8);
        }
        match recovered(&history.node, &index, &[], |_| true) {
            Err(error) => prop_assert!(matches!(error, NodeError::BadIndex(_)), "{error}"),
            Ok((node, _)) => {
                node.check().expect("the invariants hold");
                for (key, len) in found(&node) {
                    prop_assert_eq!(before.get(&key), Some(&len), "{:?}", key);
                }
            }
        }
    }
}

/// Makes a call, and recovers every prefix of its stores.
fn cut_off(history: &mut History, step: &Step) {
    let index = history.node.memory.index_bytes();
    let before = found(&history.node);
    let had = history.had.clone();
    let stores = prefix::record(|| history.step(step));
    let after = found(&history.node);
    let kept: Vec<BlockHandle> = had
        .iter()
        .zip(&history.had)
        .flat_map(|(before, after)| {
            let pins = before.pins.iter().filter(|pin| after.pins.contains(pin));
            let reservations = before.reservations.iter();
            pins.chain(reservations.filter(|it| after.reservations.contains(it))).copied()
        })
        .collect();
    let came: Vec<&Vec<u8>> =
        after.keys().filter(|key| before.get(*key) != after.get(*key)).collect();
    for end in 0..=stores.len() {
        let some = &stores[..end];
        let (node, report) = recovered(&history.node, &index, some, |_| true).expect("valid");
        node.check().unwrap_or_else(|error| panic!("after {end} stores: {error}"));
        assert_eq!(report.damaged, 0);
        let values = found(&node);
        for (key, len) in &values {
            let either = before.get(key) == Some(len) || after.get(key) == Some(len);
            assert!(either, "{key:?} after {end} stores");
        }
        let visible = came.iter().filter(|key| values.get(**key) == after.get(**key)).count();
        assert!(visible == 0 || visible == came.len(), "a part of a batch, after {end} stores");
        if matches!(step, Step::Commit { .. }) {
            let lost = before.keys().filter(|key| !values.contains_key(*key));
            assert_eq!(lost.count(), 0, "a value is lost after {end} stores");
        }
        for handle in &kept {
            assert!(node.live(*handle).is_ok(), "{handle:?} is lost after {end} stores");
        }
        // With all clients gone, nothing is in use but the values.
        let (node, _) = recovered(&history.node, &index, some, |_| false).expect("valid");
        node.check().unwrap_or_else(|error| panic!("after {end} stores: {error}"));
        assert_eq!(node.stats().used, found(&node).values().sum::<u64>());
    }
}

#[test]
fn a_foreign_index_is_told() {
    let node = node();
    let whole = node.memory.index_bytes();
    let error = |change: &dyn Fn(&mut Vec<u8>)| {
        let mut index = whole.clone();
        change(&mut index);
        match recovered(&node, &index, &[], |_| true) {
            Err(NodeError::BadIndex(error)) => error,
            Err(other) => panic!("{other}"),
            Ok(_) => panic!("it was recovered"),
        }
    };
    let magic = error(&|index| index[..8].copy_from_slice(b"GARBAGE!"));
    assert_eq!(magic, BadIndex::Foreign { magic: u64::from_le_bytes(*b"GARBAGE!") });
    assert_eq!(error(&|index| index[8] = 2), BadIndex::Version { version: 2, known: 1 });
    let order = error(&|index| index[12..16].reverse());
    assert_eq!(order, BadIndex::ByteOrder { order: 0x0403_0201 });
    assert_eq!(error(&|index| index[16] ^= 1), BadIndex::HeaderChecksum);
    let short = error(&|index| index.truncate(65_536));
    assert!(matches!(short, BadIndex::Length { got: 65_536, .. }), "{short}");
    let other = self::node();
    let error = recovered(&other, &whole, &[], |_| true).expect_err("other memory");
    assert!(matches!(error, NodeError::BadIndex(BadIndex::OtherMemory { .. })), "{error}");
}

#[test]
fn a_returning_client_goes_on() {
    let mut node = node();
    let session = begin(&mut node, 7);
    let token = node.memory.sessions()[session.number()].read().expect("it began").token;
    let blocks = node.reserve(session, &[100, 200, 300]).expect("there is space");
    let commit = |at: usize, key: &'static [u8]| {
        let handle = blocks[at].handle;
        CommitItem { handle, key, checksum: Some(9), priority: 1, ttl_ms: 0 }
    };
    node.commit(session, &[commit(0, b"a"), commit(1, b"b")], 5).expect("its own");
    node.acquire(session, &[b"a", b"a", b"b"], false, 6).expect("no limit");
    let index = node.memory.index_bytes();
    let (mut node, report) = recovered(&node, &index, &[], |pid| pid == 7).expect("valid");
    assert_eq!((report.values, report.orphaned_sessions), (2, 1));
    assert_eq!(node.stats().pinned, 2);
    assert_eq!(node.find_orphan(token, 8), None, "another process");
    assert_eq!(node.find_orphan(token + 1, 7), None, "another session");
    let session = node.find_orphan(token, 7).expect("it lives");
    // It still has two pins of `a`; it dropped that of `b` while there was no server.
    node.resume(session, &[(blocks[0].handle, 2)], &[blocks[2].handle]);
    node.check().expect("the invariants hold");
    assert_eq!(node.stats().pinned, 1);
    node.commit(session, &[commit(2, b"c")], 7).expect("its own");
    node.release(session, &[blocks[0].handle, blocks[0].handle]).expect("its own");
    assert_eq!((node.stats().pinned, node.len()), (0, 3));
    node.check().expect("the invariants hold");
}

/// A tier of keys without bytes, which counts its calls.
#[derive(Default)]
struct KeyTier {
    keys: Mutex<Vec<Vec<u8>>>,
    cleared: AtomicUsize,
}

impl KeyTier {
    fn with(key: &[u8]) -> Arc<KeyTier> {
        let tier = KeyTier::default();
        // The tier's keys begin with the namespace.
        tier.keys.lock().expect("no panic").push([b"\x05model", key].concat());
        Arc::new(tier)
    }

    fn is_empty(&self) -> bool {
        self.keys.lock().expect("no panic").is_empty()
    }
}

impl NodeTier for KeyTier {
    fn store(&self, values: &[(&[u8], &[u8])]) -> Vec<bool> {
        vec![false; values.len()]
    }

    fn len_of(&self, key: &[u8]) -> Option<u64> {
        self.keys.lock().expect("no panic").iter().any(|it| it == key).then_some(100)
    }

    fn fetch(&self, reads: &mut [TierRead<'_>]) -> Vec<bool> {
        vec![false; reads.len()]
    }

    fn remove(&self, keys: &[&[u8]]) -> bool {
        self.keys.lock().expect("no panic").retain(|it| !keys.contains(&it.as_slice()));
        true
    }

    fn clear(&self) -> bool {
        self.cleared.fetch_add(1, Ordering::Relaxed);
        self.keys.lock().expect("no panic").clear();
        true
    }
}

/// The server ends before the tier has removed a key, and servers with and without a tier follow.
#[test]
fn a_removal_that_is_under_way_is_made_by_the_next_server_with_a_tier() {
    let begun = || {
        let mut node = node();
        let session = begin(&mut node, 7);
        let blocks = node.reserve(session, &[100]).expect("there is space");
        let (handle, key) = (blocks[0].handle, b"key".as_slice());
        let item = CommitItem { handle, key, checksum: None, priority: 0, ttl_ms: 0 };
        node.commit(session, &[item], 5).expect("its own");
        let tier = KeyTier::with(b"key");
        assert_eq!(node.attach_tier(Arc::clone(&tier) as _, TierOptions::default()), Some(false));
        assert_eq!(node.remove(session, &[b"key"]), Ok(1));
        (node, tier)
    };
    let next = |node: &Node| {
        let [bytes, index] = node.memory.descriptors().expect("there are descriptors");
        let memory = NodeMemory::attach(bytes, index).expect("it is whole");
        Node::recover_memory(memory, options(), |_, _| false).expect("it is whole").0
    };
    // The next server has the tier: it removes the key alone.
    let (node, tier) = begun();
    let mut node = next(&node);
    tier.keys.lock().expect("no panic").push(b"\x05modelother".to_vec());
    assert_eq!(node.attach_tier(Arc::clone(&tier) as _, TierOptions::default()), Some(false));
    assert_eq!(tier.keys.lock().expect("no panic").as_slice(), [b"\x05modelother"]);
    assert_eq!(next(&node).attach_tier(tier, TierOptions::default()), Some(false));
    // The next one has none, so the one after it does not know the key.
    let (node, tier) = begun();
    let mut node = next(&next(&node));
    assert_eq!(node.attach_tier(Arc::clone(&tier) as _, TierOptions::default()), Some(true));
    assert!(tier.is_empty() && tier.cleared.load(Ordering::Relaxed) == 1);
    assert_eq!(next(&node).attach_tier(tier, TierOptions::default()), Some(false));
}

/// Without a tier, what goes and what stays decides whether a later tier is cleared.
#[test]
fn a_tier_that_comes_later_is_cleared_if_it_may_have_old_values() {
    type Change = fn(&mut Node, SessionIndex);
    let insert = |node: &mut Node, session, keys: &[&[u8]]| {
        for &key in keys {
            let handle = node.reserve(session, &[4096]).expect("there is space")[0].handle;
            let item = CommitItem { handle, key, checksum: None, priority: 0, ttl_ms: 0 };
            node.commit(session, &[item], 5).expect("its own");
        }
    };
    let changes: [(&str, Change, bool); 6] = [
        ("nothing", |_, _| {}, false),
        ("a look-up", |node, session| assert_eq!(node.lookup(session, &[b"a"], 6), 1), false),
        ("a removal", |node, session| assert_eq!(node.remove(session, &[b"a"]), Ok(1)), true),
        ("a removal below", |node, session| assert_eq!(node.remove(session, &[b"x"]), Ok(0)), true),
        ("an eviction", |node, _| assert_eq!(node.evict_bytes(None, 1), 4096), true),
        ("a clearing", |node, _| assert_eq!(node.clear(None), 2), true),
    ];
    for (what, change, clears) in changes {
        let mut node = node();
        let session = begin(&mut node, 7);
        insert(&mut node, session, &[b"a", b"b", b"b"]);
        change(&mut node, session);
        let tier = KeyTier::with(b"x");
        let cleared = node.attach_tier(Arc::clone(&tier) as _, TierOptions::default());
        assert_eq!((cleared, tier.is_empty()), (Some(clears), clears), "{what}");
    }
}
