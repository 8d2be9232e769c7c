//! Histories of calls, compared with maps; and every prefix of their stores, recovered.

mod acquire;
mod chains;
mod curve;
mod drain;
mod events;
mod fetching;
mod formats;
mod misses;
mod model_tier;
mod namespaces;
mod removing;
mod resize;
mod sessions;
mod stats;
mod storing;

use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use kvmem::arena::{Backing, PageSize, Region};
use kvmem::tier::{BoxError, DataType, Lookup, StoreOutcome, Tier, TierHit, TierRead, TierValue};
use proptest::prelude::*;

use super::{
    BlockHandle, CommitItem, Eviction, NewSession, Node, NodeMemory, NodeOptions, ResizeStep,
    SessionIndex, Slice,
};
use crate::error::{BadIndex, CallError, NodeError};
use crate::format::{Committing, VERSION};
use crate::session_file::SessionFile;
use crate::test_stores;
use crate::tier::{Offered, TierDone, TierJob, TierOptions};

const BYTES: usize = 256 << 10;

pub(super) fn shared(bytes: usize) -> Region {
    let builder = Region::builder(bytes).backing(Backing::Shared).ladder(PageSize::Base);
    builder.map().expect("memory can be mapped")
}

fn options() -> NodeOptions {
    NodeOptions { max_blocks: Some(48), max_events: 0, ..NodeOptions::default() }
}

fn node() -> Node {
    Node::create(shared(BYTES), options()).expect("the options are possible")
}

pub(super) fn begin(node: &mut Node, pid: u32) -> SessionIndex {
    let namespace = node.namespace("model", 0, usize::MAX).expect("there are few");
    node.begin_session(session_of(pid, namespace)).expect("there are few").0
}

/// Returns a session of a process that writes, without limits.
fn session_of(pid: u32, namespace: u16) -> NewSession {
    NewSession { pid, uid: 0, process_id: 0, namespace, read_only: false, is_limited: false }
}

/// Returns a node recovered from a copy of the index as it was, with some stores made to it.
pub(super) fn recovered(
    node: &Node,
    before: &[u8],
    stores: &[(usize, u64)],
    alive: impl Fn(u32) -> bool,
) -> Result<(Node, super::RecoveryReport), NodeError> {
    recovered_of(node, before, copy_of(&node.memory.session_file), stores, alive)
}

/// The same with the words of the sessions as they were.
fn recovered_of(
    node: &Node,
    before: &[u8],
    sessions: SessionFile,
    stores: &[(usize, u64)],
    alive: impl Fn(u32) -> bool,
) -> Result<(Node, super::RecoveryReport), NodeError> {
    let [bytes, _, file] = node.memory.descriptors().expect("there are descriptors");
    let (index_at, sessions_at) = (node.memory.index_base(), node.memory.session_file.base());
    let copy = shared(before.len());
    // SAFETY: nothing else uses the region, which is longer than the copy.
    let words = unsafe { std::slice::from_raw_parts_mut(copy.base().as_ptr(), before.len()) };
    words.copy_from_slice(before);
    for (address, word) in stores {
        match address.checked_sub(index_at).filter(|at| *at < before.len()) {
            Some(at) => words[at..][..8].copy_from_slice(&word.to_ne_bytes()),
            None => sessions.store((address - sessions_at) / 8, *word),
        }
    }
    let index = copy.share().expect("there are descriptors").expect("it is shared");
    let mut memory = NodeMemory::attach([bytes, index, file], 0)?;
    // The header names the file of the node.
    memory.session_file = sessions;
    Node::recover_memory(memory, options(), |_, record| alive(record.pid))
}

fn copy_of(file: &SessionFile) -> SessionFile {
    let copy = SessionFile::create().expect("there are descriptors");
    copy.copy_from(file);
    copy
}

/// Recovers the memory of a node, as the next server does whose clients live or do not.
fn next_server(node: &Node, alive: bool) -> (Node, super::RecoveryReport) {
    let files = node.memory.descriptors().expect("there are descriptors");
    let memory = NodeMemory::attach(files, 0).expect("it is whole");
    Node::recover_memory(memory, options(), |_, _| alive).expect("it is whole")
}

/// Returns the addresses of the first and the last byte of a block.
fn ends_of(node: &Node, slot: u32) -> [*mut u8; 2] {
    let extent = node.entry(slot).extent();
    let base = node.memory.bytes.base().as_ptr();
    [extent.start, extent.end - 1].map(|at| base.wrapping_add(at as usize))
}

/// Makes at most `steps` steps of a change of the size, until it is done or stuck. Every other one
/// is as short as can be.
fn resize_to_the_end(node: &mut Node, steps: usize) -> ResizeStep {
    let mut last = ResizeStep::More;
    for step in 0..steps.min(10_000) {
        let slice = if step % 2 == 0 { Slice::endless() } else { Slice::of(Duration::ZERO) };
        last = node.resize_some(slice);
        if last != ResizeStep::More {
            break;
        }
        node.check().expect("the invariants hold between two steps");
    }
    assert!(steps < 10_000 || last != ResizeStep::More, "it does not end");
    last
}

/// The values that can be found: key to length.
fn found(node: &Node) -> BTreeMap<Vec<u8>, u64> {
    let values = node.list(None, 0, u32::MAX, 0).0;
    values.into_iter().map(|value| (value.key, value.len)).collect()
}

#[derive(Clone, Debug)]
enum Step {
    Reserve {
        session: usize,
        sizes: Vec<u64>,
    },
    /// Values under keys from `key` on. The first one has a parent, each other one the one before.
    Commit {
        session: usize,
        count: usize,
        key: u8,
        parent: Option<u8>,
    },
    Acquire {
        session: usize,
        keys: Vec<u8>,
    },
    Release {
        session: usize,
        which: usize,
    },
    Remove {
        session: usize,
        key: u8,
    },
    Touch {
        session: usize,
        key: u8,
    },
    Evict {
        bytes: u64,
    },
    End {
        session: usize,
    },
    Fence {
        session: usize,
    },
    /// To so many pages, with at most so many steps.
    Resize {
        pages: u64,
        steps: usize,
    },
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let session = 0..3_usize;
    let sizes = prop::collection::vec(prop_oneof![1..9000_u64, Just(40_000)], 1..4);
    let step = prop_oneof![
        4 => (session.clone(), sizes).prop_map(|(session, sizes)| Step::Reserve { session, sizes }),
        4 => (session.clone(), 1..4_usize, 0..20_u8, prop::option::of(0..24_u8)).prop_map(
            |(session, count, key, parent)| Step::Commit { session, count, key, parent }
        ),
        4 => (session.clone(), prop::collection::vec(0..24_u8, 1..4))
            .prop_map(|(session, keys)| Step::Acquire { session, keys }),
        4 => (session.clone(), any::<usize>())
            .prop_map(|(session, which)| Step::Release { session, which }),
        1 => (session.clone(), 0..20_u8).prop_map(|(session, key)| Step::Remove { session, key }),
        1 => (session.clone(), 0..20_u8).prop_map(|(session, key)| Step::Touch { session, key }),
        1 => (1..50_000_u64).prop_map(|bytes| Step::Evict { bytes }),
        1 => session.clone().prop_map(|session| Step::End { session }),
        1 => session.prop_map(|session| Step::Fence { session }),
        2 => (1..=BYTES as u64 / 4096, prop_oneof![1..8_usize, Just(usize::MAX)])
            .prop_map(|(pages, steps)| Step::Resize { pages, steps }),
    ];
    prop::collection::vec(step, 1..60)
}

/// The grants of the sessions, by a model without an index file.
#[derive(Clone, Debug, Default)]
struct Had {
    reservations: Vec<BlockHandle>,
    fenced: bool,
    pins: Vec<BlockHandle>,
}

struct CallHistory {
    node: Node,
    sessions: Vec<SessionIndex>,
    had: Vec<Had>,
    /// The length under each key, or more than one while it may have been evicted.
    committed: HashMap<Vec<u8>, u64>,
    /// The first and last byte under each key.
    bytes: HashMap<Vec<u8>, u8>,
    next_byte: u8,
}

impl CallHistory {
    fn new() -> CallHistory {
        CallHistory::of(node())
    }

    fn of(mut node: Node) -> CallHistory {
        let sessions = (0..3).map(|pid| begin(&mut node, 100 + pid)).collect();
        let had = vec![Had::default(); 3];
        let (committed, bytes) = (HashMap::new(), HashMap::new());
        CallHistory { node, sessions, had, committed, bytes, next_byte: 0 }
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
            Step::Commit { session, count, key, parent } => {
                let had = &mut self.had[*session];
                let count = (*count).min(had.reservations.len());
                let handles: Vec<BlockHandle> = had.reservations.drain(..count).collect();
                let keys: Vec<Vec<u8>> = (0..count as u8).map(|at| vec![key + at; 3]).collect();
                // Chains, trees and cycles.
                let parent = parent.map(|parent| vec![parent; 3]);
                let parents = std::iter::once(parent.as_ref()).chain(keys.iter().map(Some));
                let items: Vec<CommitItem<'_>> = handles
                    .iter()
                    .zip(&keys)
                    .zip(parents)
                    .map(|((handle, key), parent)| CommitItem {
                        key,
                        parent: parent.map(Vec::as_slice),
                        priority: key[0] % 2,
                        ..item_of(*handle)
                    })
                    .collect();
                let lens: Vec<u64> =
                    handles.iter().map(|handle| self.node.len_of(handle.slot)).collect();
                let mut bytes = Vec::new();
                for handle in &handles {
                    self.next_byte = self.next_byte.wrapping_add(1);
                    bytes.push(self.next_byte);
                    for at in ends_of(&self.node, handle.slot) {
                        // SAFETY: the block is reserved, and no other thread has the memory.
                        unsafe { at.write(self.next_byte) };
                    }
                }
                match self.node.commit(self.sessions[*session], &items, 1) {
                    Ok(()) => {
                        // A client repeats what it does not know to be done.
                        self.node.commit(self.sessions[*session], &items, 1).expect("again");
                        self.bytes.extend(keys.iter().cloned().zip(bytes));
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
            Step::Resize { pages, steps } => {
                self.node.resize(pages * 4096);
                resize_to_the_end(&mut self.node, *steps);
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
        for slot in self.node.committed_slots() {
            let key = &self.node.entry(slot).key()[..3];
            for at in ends_of(&self.node, slot) {
                // SAFETY: the value is committed, and no other thread has the memory.
                assert_eq!(unsafe { at.read() }, self.bytes[key], "{key:?}");
            }
        }
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
        for eviction in [Eviction::Lru, Eviction::ScanResistant] {
            let node = Node::create(shared(BYTES), NodeOptions { eviction, ..options() });
            let mut history = CallHistory::of(node.expect("the options are possible"));
            for step in &steps {
                history.step(step);
            }
        }
    }

    /// Wherever the server ends, a recovery finds the values of before or after the call, and all
    /// that the living sessions have.
    #[test]
    fn every_prefix_of_the_stores_is_a_valid_state(steps in steps()) {
        let mut history = CallHistory::new();
        for (number, step) in steps.iter().enumerate() {
            // These make the most stores; of the other calls, the last one is cut off.
            let is_long = matches!(step, Step::Commit { .. } | Step::Resize { .. });
            if is_long || number + 1 == steps.len() {
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
        let mut history = CallHistory::new();
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

/// Random histories in which a value moved to an entry with a stale record of the same place: its
/// own, and that of a child.
#[test]
fn a_value_that_moves_has_one_record() {
    let histories = [
        vec![
            Step::Reserve { session: 0, sizes: vec![1, 40_000] },
            Step::Reserve { session: 0, sizes: vec![40_000, 40_000] },
            Step::Resize { pages: 1, steps: 1 },
            Step::End { session: 0 },
            Step::Resize { pages: 26, steps: 1 },
            Step::Resize { pages: 5, steps: 2 },
            Step::Reserve { session: 0, sizes: vec![1] },
            Step::Commit { session: 0, count: 1, key: 0, parent: None },
            Step::Resize { pages: 5, steps: 2 },
        ],
        vec![
            Step::Reserve { session: 1, sizes: vec![40_000] },
            Step::Reserve { session: 0, sizes: vec![40_000, 4097] },
            Step::Commit { session: 0, count: 2, key: 6, parent: None },
            Step::Commit { session: 1, count: 1, key: 0, parent: Some(7) },
            Step::Evict { bytes: 40_961 },
            Step::Reserve { session: 2, sizes: vec![1] },
            Step::Release { session: 0, which: 0 },
            Step::Release { session: 0, which: 0 },
            Step::Release { session: 2, which: 10_285_634_054_489_339_487 },
            Step::Resize { pages: 19, steps: usize::MAX },
        ],
    ];
    for eviction in [Eviction::Lru, Eviction::ScanResistant] {
        for steps in &histories {
            let node = Node::create(shared(BYTES), NodeOptions { eviction, ..options() });
            let mut history = CallHistory::of(node.expect("the options are possible"));
            steps.iter().for_each(|step| history.step(step));
        }
    }
}

/// The same for a short history with a batch, one that replaces values, and all that ends them.
#[test]
fn every_prefix_of_a_short_history_is_a_valid_state() {
    let mut history = CallHistory::new();
    let completed = [
        Step::Reserve { session: 0, sizes: vec![100, 5000, 4096] },
        Step::Commit { session: 0, count: 3, key: 1, parent: Some(9) },
        Step::Acquire { session: 2, keys: vec![1, 2] },
        Step::Reserve { session: 1, sizes: vec![64, 64] },
        Step::Commit { session: 1, count: 2, key: 2, parent: None },
        Step::Remove { session: 0, key: 1 },
        Step::End { session: 2 },
    ]
    .map(|step| cut_off(&mut history, &step));
    assert_eq!(completed, [0, 3, 0, 0, 2, 0, 0]);
}

/// Makes a call, and recovers every prefix of its stores. Returns the most values whose commit a
/// recovery has completed.
fn cut_off(history: &mut CallHistory, step: &Step) -> u64 {
    let index = history.node.memory.index_bytes();
    let words = copy_of(&history.node.memory.session_file);
    let before = found(&history.node);
    let had = history.had.clone();
    let stores = test_stores::record(|| history.step(step));
    let after = found(&history.node);
    let held: Vec<BlockHandle> = had
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
    let mut completed = 0;
    for end in 0..=stores.len() {
        let some = &stores[..end];
        let next = |alive| {
            recovered_of(&history.node, &index, copy_of(&words), some, |_| alive).expect("valid")
        };
        let (node, report) = next(true);
        node.check().unwrap_or_else(|error| panic!("after {end} stores: {error}"));
        assert_eq!(report.damaged, 0);
        completed = report.completed.max(completed);
        let values = found(&node);
        for (key, len) in &values {
            let either = before.get(key) == Some(len) || after.get(key) == Some(len);
            assert!(either, "{key:?} after {end} stores");
        }
        if matches!(step, Step::Resize { .. }) {
            let lost = after.keys().filter(|key| !values.contains_key(*key));
            assert_eq!(lost.count(), 0, "a value that moves is lost after {end} stores");
        }
        let visible = came.iter().filter(|key| values.get(**key) == after.get(**key)).count();
        assert!(visible == 0 || visible == came.len(), "a part of a batch, after {end} stores");
        if matches!(step, Step::Commit { .. }) {
            let lost = before.keys().filter(|key| !values.contains_key(*key));
            assert_eq!(lost.count(), 0, "a value is lost after {end} stores");
        }
        for handle in &held {
            assert!(node.live(*handle).is_ok(), "{handle:?} is lost after {end} stores");
        }
        // With all clients gone, nothing is in use but the values.
        let (node, _) = next(false);
        node.check().unwrap_or_else(|error| panic!("after {end} stores: {error}"));
        let space = |len: &u64| len.next_multiple_of(options().align);
        assert_eq!(node.stats().used, found(&node).values().map(space).sum::<u64>());
    }
    completed
}

#[test]
fn a_foreign_index_is_reported() {
    let mut node = node();
    let session = begin(&mut node, 1);
    node.reserve(session, &[100, 100]).expect("there is space");
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
    let (next, known) = (VERSION + 1, VERSION);
    let later = error(&|index| index[8..12].copy_from_slice(&next.to_le_bytes()));
    assert_eq!(later, BadIndex::Version { version: next, known });
    let order = error(&|index| index[12..16].reverse());
    assert_eq!(order, BadIndex::ByteOrder { order: 0x0403_0201 });
    assert_eq!(error(&|index| index[16] ^= 1), BadIndex::HeaderChecksum);
    assert_eq!(error(&|index| index[96 + 2] ^= 1), BadIndex::HeaderChecksum);
    // One entry less, and its value would be lost without an error.
    let used = |word: u64| error(&|index| index[80..88].copy_from_slice(&word.to_le_bytes()));
    for word in [0, 1, u64::MAX, u64::from_le_bytes(whole[80..88].try_into().unwrap()) ^ 1] {
        assert_eq!(used(word), BadIndex::EntriesUsed { word, entries: 48 });
    }
    let short = error(&|index| index.truncate(65_536));
    assert!(matches!(short, BadIndex::Length { got: 65_536, .. }), "{short}");
    let other = self::node();
    let error = recovered(&other, &whole, &[], |_| true).expect_err("other memory");
    assert!(matches!(error, NodeError::BadIndex(BadIndex::OtherMemory { .. })), "{error}");
}

/// Found by the fuzz target of the index: the value was in the index and under no key.
#[test]
fn a_key_with_bytes_behind_its_end_is_damaged() {
    let mut node = node();
    let session = begin(&mut node, 1);
    let granted = node.reserve(session, &[100]).expect("there is space").remove(0);
    let item = CommitItem { key: b"key", ..item_of(granted.handle) };
    node.commit(session, &[item], 0).expect("it is reserved");
    let mut index = node.memory.index_bytes();
    let entry = &mut index[crate::format::ENTRIES_AT..][..crate::format::ENTRY_BYTES];
    entry[64 + 5] = 1;
    // The checksum is right again.
    let word = |at: usize| u64::from_le_bytes(entry[at..at + 8].try_into().expect("eight bytes"));
    let mut words = vec![3 << 32 | word(0) >> 32];
    words.extend([8, 16, 32, 40, 48].map(word));
    words.extend((0..8).map(|at| word(64 + 8 * at)));
    let sum = u64::from(crate::crc::of_words(&words));
    entry[56..64].copy_from_slice(&sum.to_le_bytes());
    let (node, report) = recovered(&node, &index, &[], |_| true).expect("one entry is damaged");
    assert_eq!((report.damaged, report.values), (1, 0));
    node.check().expect("the invariants hold");
}

/// A tier of keys without bytes, which counts its clears.
#[derive(Default)]
struct KeyTier {
    keys: Mutex<Vec<Vec<u8>>>,
    cleared: AtomicUsize,
    /// It says that it stores values, and has no key for them.
    stores: bool,
    /// It removes nothing.
    fails: AtomicBool,
}

impl KeyTier {
    fn with(key: &[u8]) -> Arc<KeyTier> {
        let tier = KeyTier::default();
        // The tier's keys begin with the namespace.
        tier.keys.lock().expect("no panic").push([b"\x05model", key].concat());
        Arc::new(tier)
    }

    fn storing() -> Arc<KeyTier> {
        Arc::new(KeyTier { stores: true, ..KeyTier::default() })
    }

    fn is_empty(&self) -> bool {
        self.keys.lock().expect("no panic").is_empty()
    }

    fn change(&self, change: impl FnOnce(&mut Vec<Vec<u8>>)) -> Result<(), BoxError> {
        if self.fails.load(Ordering::Relaxed) {
            return Err("it fails".into());
        }
        change(&mut self.keys.lock().expect("no panic"));
        Ok(())
    }
}

impl Tier for KeyTier {
    fn store(&self, values: &[TierValue<'_>]) -> Vec<Result<StoreOutcome, BoxError>> {
        let outcome = if self.stores { StoreOutcome::Stored } else { StoreOutcome::NotStored };
        values.iter().map(|_| Ok(outcome)).collect()
    }

    fn look_up(&self, keys: &[&[u8]]) -> Vec<Lookup> {
        keys.iter().map(|key| self.len_of(key)).collect()
    }

    fn len_of(&self, key: &[u8]) -> Lookup {
        let has = self.keys.lock().expect("no panic").iter().any(|it| it == key);
        if has { Lookup::Found(100) } else { Lookup::Missing }
    }

    fn fetch(&self, reads: &mut [TierRead<'_>]) -> Vec<Option<TierHit>> {
        vec![None; reads.len()]
    }

    fn remove(&self, keys: &[&[u8]]) -> Result<(), BoxError> {
        self.change(|held| held.retain(|it| !keys.contains(&it.as_slice())))
    }

    fn clear(&self) -> Result<(), BoxError> {
        self.cleared.fetch_add(1, Ordering::Relaxed);
        self.change(Vec::clear)
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
        let item = CommitItem { key, ..item_of(handle) };
        node.commit(session, &[item], 5).expect("its own");
        let tier = KeyTier::with(b"key");
        assert_eq!(node.attach_tier(Arc::clone(&tier) as _, TierOptions::default()), Some(false));
        assert_eq!(node.remove(session, &[b"key"]), Ok(1));
        (node, tier)
    };
    let next = |node: &Node| next_server(node, false).0;
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
            let item = CommitItem { key, ..item_of(handle) };
            node.commit(session, &[item], 5).expect("its own");
        }
    };
    let changes: [(&str, Change, bool); 6] = [
        ("nothing", |_, _| {}, false),
        ("a look-up", |node, session| assert_eq!(node.lookup(session, &[b"a"], 6), 1), false),
        ("a removal", |node, session| assert_eq!(node.remove(session, &[b"a"]), Ok(1)), true),
        (
            "a removal in the tier",
            |node, session| assert_eq!(node.remove(session, &[b"x"]), Ok(0)),
            true,
        ),
        ("an eviction", |node, _| assert_eq!(node.evict_bytes(None, 1).0, 4096), true),
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

/// A reader may name a namespace before anyone writes to it.
#[test]
fn a_reader_of_no_namespace_finds_nothing_in_the_tier() {
    let mut node = node();
    node.attach_tier(KeyTier::with(b"x") as _, TierOptions::default()).expect("it is new");
    let new = NewSession { read_only: true, ..session_of(1, 0) };
    let (session, _) = node.begin_reading(new, "later").expect("there are few");
    assert_eq!(node.lookup(session, &[b"key"], 0), 0);
    assert!(!node.has_all(session, &[b"key"], 0));
    let (found, pending) =
        node.try_acquire(session, &[b"key"], false, 0).expect("the key is short");
    assert_eq!((found, pending), (vec![None], Vec::new()));
}

/// Does what the threads of a tier would do with all jobs, until there are no more.
fn run_jobs(node: &mut Node, tier: &KeyTier) {
    loop {
        node.store_ahead();
        let jobs = node.take_jobs();
        if jobs.is_empty() {
            return;
        }
        for job in jobs {
            let done = match job {
                TierJob::Store(values) => {
                    let mut keys = tier.keys.lock().expect("no panic");
                    keys.extend(values.iter().map(|value| value.key.clone()));
                    TierDone::Stored(
                        values.into_iter().map(|value| (value, Offered::Stored)).collect(),
                    )
                }
                TierJob::Fetch(_) | TierJob::FetchFar(_) => panic!("nothing is fetched"),
                TierJob::LookUp(_) => panic!("the tier knows all"),
                TierJob::Remove(values) => {
                    let keys: Vec<&[u8]> = values.iter().map(|it| &*it.tier_key).collect();
                    let removed = tier.remove(&keys);
                    TierDone::Removed(values, removed.is_ok())
                }
                TierJob::Clear(_) => TierDone::Cleared(tier.clear().is_ok()),
            };
            node.tier_done(done, 1);
        }
    }
}

fn begin_in(node: &mut Node, name: &str) -> SessionIndex {
    let namespace = node.namespace(name, 0, usize::MAX).expect("there are few");
    node.begin_session(session_of(7, namespace)).expect("there are few").0
}

/// A value without a key, a parent and hints.
pub(super) fn item_of(handle: BlockHandle) -> CommitItem<'static> {
    CommitItem {
        handle,
        key: b"",
        parent: None,
        checksum: None,
        priority: 0,
        data_type: DataType::Unknown,
        ttl_ms: 0,
    }
}

fn insert(node: &mut Node, session: SessionIndex, key: &[u8], len: u64) {
    let handle = node.reserve(session, &[len]).expect("there is space")[0].handle;
    let item = CommitItem { key, checksum: Some(1), ..item_of(handle) };
    node.commit(session, &[item], 5).expect("its own");
}

/// A full namespace does not delay the values of others, also if it was made first.
#[test]
fn the_values_that_are_evicted_next_are_stored_first_in_all_namespaces() {
    let tier = KeyTier::storing();
    let mut node = node();
    let options = TierOptions { ahead_bytes: 64 << 10, ..TierOptions::default() };
    assert_eq!(node.attach_tier(Arc::clone(&tier) as _, options), Some(false));
    // The second one exceeds its share more, and the third one is as large as the first.
    for (name, count) in [("first", 12), ("second", 20), ("third", 12)] {
        let session = begin_in(&mut node, name);
        for key in 0..count {
            insert(&mut node, session, &[key], 4096);
        }
    }
    run_jobs(&mut node, &tier);
    // Sixteen values of 4 KiB are stored ahead: the next sixteen evictions lose nothing.
    for number in 0..16 {
        let victim = node.victim(None).expect("there are 44 values");
        assert!(node.entry(victim).is_clean(), "eviction {number} loses a value");
        node.evict(victim);
    }
    node.check().expect("the invariants hold");
    // Each namespace that gives up values has stored them, while new ones come.
    for key in 100..200 {
        let session = begin_in(&mut node, ["first", "second", "third"][usize::from(key) % 3]);
        insert(&mut node, session, &[key], 4096);
        run_jobs(&mut node, &tier);
        node.end_session(session);
    }
    let of = |name: &str| {
        let prefix = [&[name.len() as u8], name.as_bytes()].concat();
        tier.keys.lock().expect("no panic").iter().filter(|it| it.starts_with(&prefix)).count()
    };
    assert!(["first", "second", "third"].into_iter().all(|name| of(name) >= 12));
}

/// A namespace at its own limit evicts while the memory has space: its values are stored, too.
/// A chain is longer than what is stored ahead, and its end goes first.
#[test]
fn the_end_of_a_long_chain_is_stored_before_it_is_evicted() {
    let mut node = node();
    let tier = KeyTier::storing();
    let options = TierOptions { ahead_bytes: 32 << 10, ..TierOptions::default() };
    assert_eq!(node.attach_tier(Arc::clone(&tier) as _, options), Some(false));
    let session = begin(&mut node, 7);
    let keys: Vec<[u8; 1]> = (0..40).map(|key| [key]).collect();
    for (at, key) in keys.iter().enumerate() {
        let block = node.reserve(session, &[4096]).expect("there is space")[0].handle;
        let parent = at.checked_sub(1).map(|at| &keys[at][..]);
        let item = CommitItem { key, parent, ..item_of(block) };
        node.commit(session, &[item], 1).expect("it is reserved");
    }
    while let Some(victim) = {
        run_jobs(&mut node, &tier);
        node.victim(None)
    } {
        let key = node.entry(victim).key()[0];
        assert!(node.entry(victim).is_clean(), "value {key} of the chain is lost");
        node.evict(victim);
        node.check().expect("the invariants hold");
    }
    assert!(node.is_empty());
}

/// Entries may run out before bytes do.
#[test]
fn small_values_are_stored_before_they_are_evicted() {
    let mut node = node();
    let tier = KeyTier::storing();
    assert_eq!(node.attach_tier(Arc::clone(&tier) as _, TierOptions::default()), Some(false));
    let session = begin(&mut node, 7);
    for key in 0..200_u8 {
        insert(&mut node, session, &[key], 1);
        run_jobs(&mut node, &tier);
    }
    let stored = tier.keys.lock().expect("no panic").len();
    assert!(stored + node.len() >= 200, "{stored} of 200 values are stored");
}

#[test]
fn a_namespace_at_its_limit_stores_what_it_evicts() {
    let tier = KeyTier::storing();
    let small = super::NamespaceLimits { max_bytes: 32 << 10, ..Default::default() };
    let options = NodeOptions { limits: vec![("small".to_owned(), small)], ..options() };
    let mut node = Node::create(shared(BYTES), options).expect("the options are possible");
    assert_eq!(node.attach_tier(Arc::clone(&tier) as _, TierOptions::default()), Some(false));
    let session = begin_in(&mut node, "small");
    for key in 0..40_u8 {
        insert(&mut node, session, &[key], 4096);
        run_jobs(&mut node, &tier);
    }
    let stats = node.stats();
    assert_eq!((stats.values, stats.evicted_total), (8, 32));
    assert!(stats.tier_stored_total >= 32, "{stats:?}");
}

/// A removal that a server did not finish, of a value that a living client has pinned.
#[test]
fn a_removed_value_that_is_pinned_across_a_restart_does_not_come_back() {
    let begun = || {
        let mut node = node();
        let session = begin(&mut node, 7);
        insert(&mut node, session, b"key", 100);
        node.acquire(session, &[b"key"], false, 6).expect("no limit");
        let tier = KeyTier::with(b"key");
        assert_eq!(node.attach_tier(Arc::clone(&tier) as _, TierOptions::default()), Some(false));
        assert_eq!(node.remove(session, &[b"key"]), Ok(1));
        (node, tier)
    };
    let next = |node: &Node| next_server(node, true).0;
    // The next server has the tier, and then the client ends.
    let (node, tier) = begun();
    let mut node = next(&node);
    assert_eq!(node.stats().pinned, 1);
    assert_eq!(node.attach_tier(Arc::clone(&tier) as _, TierOptions::default()), Some(false));
    assert!(tier.is_empty(), "the tier has the value that was removed");
    // The removal is made: the server after it does not make it again, of a newer value.
    tier.keys.lock().expect("no panic").push(b"\x05modelkey".to_vec());
    let mut node = next(&node);
    assert_eq!(node.attach_tier(Arc::clone(&tier) as _, TierOptions::default()), Some(false));
    assert!(!tier.is_empty());
    node.check().expect("the invariants hold");
    // The client ends before a server with the tier comes.
    let (node, tier) = begun();
    let mut node = next(&node);
    let session = node.all_sessions()[0];
    node.end_session(session);
    let mut node = next(&node);
    assert_eq!(node.attach_tier(Arc::clone(&tier) as _, TierOptions::default()), Some(true));
    assert!(tier.is_empty());
}

/// A removal that the tier failed to make is made again by the next one of the key, which waits for
/// that and no longer.
#[test]
fn a_removal_that_has_failed_is_made_again() {
    let mut node = node();
    let tier = KeyTier::with(b"key");
    node.attach_tier(Arc::clone(&tier) as _, TierOptions::default()).expect("it is new");
    let session = begin(&mut node, 1);
    for (waiting, fails) in [(1, true), (2, true), (3, false)] {
        tier.fails.store(fails, Ordering::Relaxed);
        let (_, waits) = node.remove_only_in_tier(session, &[b"key"], Some(waiting));
        let jobs = node.take_jobs();
        assert_eq!((waits, jobs.len()), (1, 1), "removal {waiting}");
        let Some(TierJob::Remove(values)) = jobs.into_iter().next() else { panic!("a removal") };
        let removed = tier.remove(&[&values[0].tier_key]).is_ok();
        assert_eq!(node.tier_done(TierDone::Removed(values, removed), 1), [waiting]);
    }
    assert_eq!(node.remove_only_in_tier(session, &[b"key"], Some(4)), (0, 0));
    assert!(tier.is_empty() && node.take_jobs().is_empty());
}

/// A removal that the tier failed to make is remembered: the next server clears the tier.
#[test]
fn a_removal_that_fails_is_made_by_the_next_server() {
    let failing: [fn(&mut Node, SessionIndex); 3] = [
        |node, session| assert_eq!(node.remove(session, &[b"key"]), Ok(1)),
        |node, session| {
            assert_eq!(node.remove_only_in_tier(session, &[b"in tier"], Some(0)), (1, 1))
        },
        |node, _| node.clear_tier(None),
    ];
    for remove in failing {
        let mut node = node();
        let session = begin(&mut node, 7);
        insert(&mut node, session, b"key", 100);
        let tier = KeyTier::storing();
        let keys = [b"\x05modelkey".to_vec(), b"\x05modelin tier".to_vec()];
        tier.keys.lock().expect("no panic").extend(keys);
        assert_eq!(node.attach_tier(Arc::clone(&tier) as _, TierOptions::default()), Some(false));
        tier.fails.store(true, Ordering::Relaxed);
        remove(&mut node, session);
        run_jobs(&mut node, &tier);
        node.check().expect("the invariants hold");
        tier.fails.store(false, Ordering::Relaxed);
        let (mut node, _) = next_server(&node, false);
        assert_eq!(node.attach_tier(Arc::clone(&tier) as _, TierOptions::default()), Some(true));
        assert!(tier.keys.lock().expect("no panic").is_empty());
    }
}

/// A value that the tier cannot read while it is cleared is none that it has still to remove.
#[test]
fn a_failed_fetch_does_not_clear_the_tier_again() {
    let mut node = node();
    let session = begin(&mut node, 7);
    let tier = KeyTier::with(b"key");
    node.attach_tier(Arc::clone(&tier) as _, TierOptions::default()).expect("it is new");
    let (_, pending) = node.try_acquire(session, &[b"key"], false, 5).expect("the key is short");
    assert_eq!(pending, [0]);
    node.clear_tier(None);
    let jobs = node.take_jobs();
    let [TierJob::Fetch(fetches), TierJob::Clear(None)] = jobs.as_slice() else {
        panic!("{jobs:?}")
    };
    let failed = fetches.iter().map(|value| (value.clone(), None)).collect();
    node.tier_done(TierDone::Fetched(failed), 6);
    assert_eq!(node.stats().tier_failed_total, 1);
    node.tier_done(TierDone::Cleared(tier.clear().is_ok()), 6);
    let (mut node, _) = next_server(&node, false);
    assert_eq!(node.attach_tier(tier, TierOptions::default()), Some(false));
}

/// Scrubbing is no use: the order of eviction stays as it was.
#[test]
fn scrubbing_does_not_change_the_order_of_eviction() {
    let mut node = node();
    let session = begin(&mut node, 7);
    for key in [b"a", b"b", b"c"] {
        insert(&mut node, session, key, 4096);
    }
    let (mut from, mut round) = (0, Vec::new());
    loop {
        let (value, next) = node.next_to_scrub(from, 16);
        let Some(value) = value else { break };
        let victim = node.victim(None).expect("two others are evictable");
        assert_ne!(victim, value.slot, "a value is evicted while it is verified");
        node.check().expect("the invariants hold");
        node.scrubbed(&value, true);
        node.check().expect("the invariants hold");
        (from, round) = (next, [round, vec![value.slot]].concat());
        if round.len() == 2 {
            break;
        }
    }
    let mut order = Vec::new();
    while let Some(victim) = node.victim(None) {
        order.push(node.entry(victim).key()[0]);
        node.evict(victim);
    }
    assert_eq!((round.len(), order.as_slice()), (2, b"abc".as_slice()));
    // The bytes of a value that is removed meanwhile stay until it is verified.
    insert(&mut node, session, b"d", 4096);
    let (value, _) = node.next_to_scrub(0, 16);
    let value = value.expect("it has a checksum");
    assert_eq!(node.remove(session, &[b"d"]), Ok(1));
    assert_eq!(node.stats().used, 4096);
    node.check().expect("the invariants hold");
    node.scrubbed(&value, false);
    assert_eq!((node.stats().used, node.stats().damaged_total), (0, 0));
    node.check().expect("the invariants hold");
}

/// A call looks at some entries, and the next one goes on behind them.
#[test]
fn values_with_checksums_are_scrubbed_in_rounds() {
    let mut node = node();
    let session = begin(&mut node, 7);
    for key in 0..10 {
        let handle = node.reserve(session, &[64]).expect("there is space")[0].handle;
        let checksum = (key == 7 || key == 8).then_some(1);
        let item = CommitItem { key: &[key], checksum, ..item_of(handle) };
        node.commit(session, &[item], 5).expect("its own");
    }
    let mut from = 0;
    for (found, next) in [(None, 4), (Some(7), 8), (Some(8), 9), (None, 0), (None, 4)] {
        let (value, then) = node.next_to_scrub(from, 4);
        assert_eq!((value.map(|it| it.slot), then), (found, next), "from {from}");
        value.iter().for_each(|it| node.scrubbed(it, true));
        from = then;
    }
    assert_eq!((node.stats().scrubbed_total, node.len(), node.is_empty()), (2, 10, false));
}

#[test]
fn a_client_reports_damage_of_what_it_has_pinned() {
    let mut node = node();
    let [session, other] = [7, 8].map(|pid| begin(&mut node, pid));
    [b"a", b"b", b"c", b"d"].iter().for_each(|key| insert(&mut node, session, *key, 64));
    let mut pins = |session, keys: &[&[u8]]| -> Vec<BlockHandle> {
        let found = node.acquire(session, keys, false, 5).expect("a call");
        found.into_iter().map(|it| it.expect("it has a value").handle).collect()
    };
    let (own, others) = (pins(session, &[b"a", b"c", b"d"]), pins(other, &[b"b"]));
    for (handles, withdrawn, damaged) in
        [(&own[..1], 1, 1), (&own[..1], 0, 1), (&others, 0, 1), (&own, 2, 3)]
    {
        assert_eq!(node.report_damage(session, handles), Ok(withdrawn));
        assert_eq!(node.stats().damaged_total, damaged);
        node.check().expect("the invariants hold");
    }
    assert_eq!(node.lookup(session, &[b"b"], 5), 1);
    let new = NewSession { read_only: true, ..session_of(1, 0) };
    let (reader, _) = node.begin_reading(new, "model").expect("there are few");
    assert_eq!(node.report_damage(reader, &others), Err(CallError::ReadOnly));
}

/// An eviction of many values stores those that the tier lacks, a job at a time.
#[test]
fn an_eviction_of_all_values_waits_for_the_tier() {
    let mut node = node();
    let tier = KeyTier::storing();
    node.attach_tier(Arc::clone(&tier) as _, TierOptions::default()).expect("it is new");
    let session = begin(&mut node, 7);
    (0..10).for_each(|key| insert(&mut node, session, &[key], 4096));
    let mut stored = Vec::new();
    let mut last = super::Evicted::WhenStored;
    while last == super::Evicted::WhenStored {
        last = node.evict_bytes(None, u64::MAX).1;
        for job in node.take_jobs() {
            let TierJob::Store(values) = job else { panic!("{job:?} stores nothing") };
            stored.push(values.len());
            let done = values.into_iter().map(|value| {
                tier.keys.lock().expect("no panic").push(value.key.clone());
                (value, Offered::Stored)
            });
            node.tier_done(TierDone::Stored(done.collect()), 5);
        }
    }
    assert_eq!((stored, last), (vec![4, 4, 2], super::Evicted::Enough));
    assert_eq!((node.len(), node.stats().evicted_total), (0, 10));
}

/// A block counts for the namespace of its session, whatever the entry was before.
#[test]
fn a_reservation_counts_for_the_namespace_of_its_session() {
    let mut node = node();
    let [first, second] = ["first", "second"].map(|name| begin_in(&mut node, name));
    insert(&mut node, first, b"a", 64);
    insert(&mut node, second, b"b", 64);
    assert_eq!(node.remove(first, &[b"a"]), Ok(1));
    let reserved = node.reserve(second, &[64]).expect("there is space")[0].handle;
    let bytes = |node: &Node| [0, 1].map(|at| node.stats().namespaces[at].bytes);
    assert_eq!(bytes(&node), [0, 2 * 4096]);
    node.release(second, &[reserved]).expect("its own");
    assert_eq!(bytes(&node), [0, 4096]);
    node.check().expect("the invariants hold");
}

/// Wherever the server ends while a namespace gets another name, the index is whole.
#[test]
fn an_empty_namespace_is_used_again_when_there_are_no_others() {
    let mut node = node();
    let session = begin(&mut node, 7);
    insert(&mut node, session, b"key", 100);
    for number in 1..crate::format::MAX_NAMESPACES {
        node.namespace(&format!("long enough to be many words {number}"), 0, usize::MAX)
            .expect("there is place");
    }
    let index = node.memory.index_bytes();
    let mut number = 0;
    let stores = test_stores::record(|| {
        number = node.namespace("another", 0, usize::MAX).expect("the others are empty");
    });
    assert_ne!(node.find_namespace("model"), Some(number));
    for end in 0..=stores.len() {
        let (again, report) =
            recovered(&node, &index, &stores[..end], |_| true).expect("it is whole");
        again.check().expect("the invariants hold");
        assert_eq!((report.damaged, again.len()), (0, 1));
    }
    // Each name is in use now, by a session or a value.
    let mut made = 0;
    let error = loop {
        let name = format!("used {made}");
        let namespace = match node.namespace(&name, 0, usize::MAX) {
            Ok(namespace) => namespace,
            Err(error) => break error,
        };
        if node.begin_session(session_of(7, namespace)).is_err() {
            break node.namespace("one more", 0, 0).expect_err("no user may have one");
        }
        made += 1;
    };
    assert!(matches!(error, CallError::TooMany { .. }), "{error}");
    assert!(made >= 250 && node.find_namespace("model").is_some(), "{made}");
    node.check().expect("the invariants hold");
}

/// A restart changes nothing in which value is evicted next: within a batch the last key goes
/// first, also if all were used in the same millisecond.
#[test]
fn the_order_of_use_is_the_same_after_a_recovery() {
    let evicted_first = |node: &mut Node| -> Vec<u8> {
        let before = found(node);
        assert!(node.evict_bytes(None, 1).0 > 0);
        let after = found(node);
        let mut gone = before.into_keys().filter(|key| !after.contains_key(key));
        gone.next().expect("one is evicted")
    };
    let mut node = node();
    let session = begin(&mut node, 1);
    let commit = |node: &mut Node, keys: &[&[u8]], now: u64| {
        let blocks = node.reserve(session, &vec![100; keys.len()]).expect("there is space");
        let items: Vec<CommitItem<'_>> = blocks
            .iter()
            .zip(keys)
            .map(|(block, key)| CommitItem { key, ..item_of(block.handle) })
            .collect();
        node.commit(session, &items, now).expect("they are reserved");
    };
    commit(&mut node, &[b"removed", b"a", b"b", b"c"], 5);
    node.remove(session, &[b"removed"]).expect("it may");
    // The clock does not move, and one entry is used again.
    commit(&mut node, &[b"d", b"e"], 5);
    assert_eq!(node.touch(session, &[b"a", b"b"], 5), 2);
    let pins = node.acquire(session, &[b"c"], false, 5).expect("a call");
    let pins: Vec<BlockHandle> = pins.into_iter().flatten().map(|it| it.handle).collect();
    node.release(session, &pins).expect("it is pinned");
    let still = node.acquire(session, &[b"d"], false, 5).expect("a call");
    assert!(still[0].is_some());
    // Its client is gone after the restart: it was used last.
    let expected: [&[u8]; 5] = [b"e", b"b", b"a", b"c", b"d"];
    for alive in [false, true] {
        let index = node.memory.index_bytes();
        let (mut again, _) = recovered(&node, &index, &[], |_| alive).expect("valid");
        again.check().expect("the invariants hold");
        for expected in &expected[..if alive { 4 } else { 5 }] {
            assert_eq!(evicted_first(&mut again), *expected);
        }
        again.check().expect("the invariants hold");
    }
}

/// An extent that no server wrote may end behind all numbers, in whole units of the alignment.
#[test]
fn an_extent_at_the_end_of_all_numbers_is_damage() {
    let mut node = node();
    let session = begin(&mut node, 7);
    insert(&mut node, session, b"key", 100);
    let BlockHandle { slot, generation } =
        node.reserve(session, &[64]).expect("there is space")[0].handle;
    let extent = u64::MAX - 100..u64::MAX - 50;
    node.entry(slot).reserve(generation, extent, Some(session.number()));
    let index = node.memory.index_bytes();
    let (node, report) = recovered(&node, &index, &[], |_| true).expect("valid");
    assert_eq!((report.damaged, report.values), (1, 1));
    node.check().expect("the invariants hold");
}

/// The server was killed while its tier read into the memory: the device may not be done yet.
#[test]
fn blocks_of_unfinished_reads_stay_reserved() {
    let mut node = node();
    let session = begin(&mut node, 1);
    node.attach_tier(KeyTier::with(b"a"), TierOptions::default()).expect("nothing is removed");
    assert_eq!(node.fetch_from_tier(session, &[b"a"], false, Some(1), 0), (vec![0], None));
    let len = node.stats().used;
    let (mut next, report) = next_server(&node, false);
    assert_eq!((report.unfinished_reads, report.freed_reservations), (1, 0));
    assert_eq!((next.stats().used, next.stats().fenced_bytes), (len, len));
    next.end_unfinished_reads();
    next.check().expect("the invariants hold");
    let session = begin(&mut next, 2);
    let all = BYTES as u64;
    assert!(next.reserve(session, &[all]).is_err(), "the block is not free");
    // The last transfer is over when no process has the file open.
    drop(node);
    next.end_unfinished_reads();
    assert_eq!((next.stats().used, next.stats().fenced_bytes), (0, 0));
    next.reserve(session, &[all]).expect("the block is free");
    next.check().expect("the invariants hold");
}

#[test]
fn a_batch_names_each_key_and_each_block_once() {
    let mut node = node();
    let session = begin(&mut node, 1);
    let blocks = node.reserve(session, &[100, 100]).expect("there is space");
    let [one, other] = [0, 1].map(|index| item_of(blocks[index].handle));
    let with = |item: &CommitItem<'static>, key| CommitItem { key, ..*item };
    for twice in [[with(&one, b"a"), with(&other, b"a")], [with(&one, b"a"), with(&one, b"b")]] {
        let failed = node.commit(session, &twice, 5);
        assert_eq!(failed, Err(CallError::Twice { index: 1 }));
        assert!(found(&node).is_empty());
    }
    let items = [with(&one, b"a"), with(&other, b"b")];
    for _ in 0..2 {
        // A client repeats a call whose answer it has not received.
        node.commit(session, &items, 5).expect("each is named once");
    }
    let others = [with(&one, b"b"), CommitItem { checksum: Some(7), ..with(&one, b"a") }];
    for other in others {
        assert!(node.commit(session, &[other], 5).is_err(), "it was committed as another");
    }
    assert_eq!(found(&node).len(), 2);
    node.check().expect("the invariants hold");
}

/// A client may be of a version that has more priorities.
#[test]
fn a_higher_priority_than_any_is_the_highest() {
    let mut node = node();
    let session = begin(&mut node, 1);
    for (key, priority) in [(b"a", u8::MAX), (b"b", 0)] {
        let block = node.reserve(session, &[100]).expect("there is space")[0].handle;
        let item = CommitItem { key, priority, ..item_of(block) };
        node.commit(session, &[item], 5).expect("it is reserved");
    }
    node.check().expect("the invariants hold");
    assert!(node.evict_bytes(None, 1).0 > 0);
    assert!(found(&node).contains_key(&b"a"[..]));
}

/// Nothing says whose block a damaged entry was, so it may be granted again while it is pinned.
#[test]
fn pins_outlive_a_restart_unless_the_index_is_damaged() {
    let mut node = node();
    let session = begin(&mut node, 7);
    insert(&mut node, session, b"pinned", 100);
    assert!(node.acquire(session, &[b"pinned"], false, 5).expect("a call")[0].is_some());
    let word = node.pin_word_of(session);
    let (next, report) =
        recovered(&node, &node.memory.index_bytes(), &[], |_| true).expect("valid");
    assert_eq!((report.damaged, report.orphaned_sessions), (0, 1));
    assert_eq!(next.pin_word_of(session), word);
    let BlockHandle { slot, generation } =
        node.reserve(session, &[64]).expect("there is space")[0].handle;
    node.entry(slot).reserve(generation, u64::MAX - 100..u64::MAX - 50, Some(session.number()));
    let (next, report) =
        recovered(&node, &node.memory.index_bytes(), &[], |_| true).expect("valid");
    assert_eq!((report.damaged, report.orphaned_sessions), (1, 1));
    assert!(next.pin_word_of(session) > word);
}

/// The server ends before it withdraws the value before, whose order says that it was used last.
#[test]
fn of_two_values_of_a_key_the_later_commit_stays() {
    for is_pinned in [false, true] {
        let mut node = node();
        let session = begin(&mut node, 100);
        insert(&mut node, session, b"key", 100);
        let found_old = node.acquire(session, &[b"key"], false, 5).expect("a call");
        let old = found_old[0].expect("it has a value").handle;
        if !is_pinned {
            node.release(session, &[old]).expect("a pin");
        }
        node.entry(old.slot).set_order(1 << 30);
        let handle = node.reserve(session, &[200]).expect("there is space")[0].handle;
        let index = node.memory.index_bytes();
        let item = CommitItem { key: b"key", ..item_of(handle) };
        let stores = test_stores::record(|| {
            node.commit(session, &[item], 6).expect("its own");
        });
        let mut is_replaced = false;
        for end in 0..=stores.len() {
            let (next, report) =
                recovered(&node, &index, &stores[..end], |_| true).expect("it is valid");
            next.check().expect("the invariants hold");
            assert_eq!((report.values, report.damaged), (1, 0));
            let len = found(&next)[&b"key"[..]];
            assert!([100, 200].contains(&len) && (len == 200 || !is_replaced), "{end}: {len}");
            is_replaced = len == 200;
            assert_eq!(next.live(old).is_ok(), is_pinned || !is_replaced);
            let blocks = if is_replaced && !is_pinned { 1 } else { 2 };
            assert_eq!(next.stats().used, blocks * options().align);
        }
        assert!(is_replaced);
    }
}

/// Wherever the server ends while it commits a batch, the next one has all of it or nothing.
#[test]
fn a_batch_is_completed_or_undone() {
    let mut node = node();
    let session = begin(&mut node, 100);
    insert(&mut node, session, b"before", 64);
    let blocks = node.reserve(session, &[100, 200, 300]).expect("there is space");
    let index = node.memory.index_bytes();
    let keys: [&[u8]; 2] = [b"a", b"b"];
    let items = [0, 1].map(|at| CommitItem { key: keys[at], ..item_of(blocks[at].handle) });
    let stores = test_stores::record(|| node.commit(session, &items, 6).expect("its own"));
    let mut outcomes = Vec::new();
    for end in 0..=stores.len() {
        let (next, report) = recovered(&node, &index, &stores[..end], |_| true).expect("valid");
        next.check().expect("the invariants hold");
        let (_, reservations) = next.handles_of(session);
        assert_eq!((report.damaged, next.len() + reservations), (0, 4), "after {end} stores");
        outcomes.push((next.len(), report.completed));
    }
    outcomes.dedup();
    assert_eq!(outcomes, [(1, 0), (3, 2), (3, 1), (3, 0)]);
}

/// No server writes such entries: the next one frees them.
#[test]
fn a_value_without_a_key_or_a_namespace_is_damaged() {
    for (key, namespace, damaged) in [(&b"a"[..], 0, 0), (b"a", 1, 1), (b"", 0, 1), (b"", 1, 1)] {
        let mut node = node();
        let session = begin(&mut node, 7);
        let handle = node.reserve(session, &[64]).expect("there is space")[0].handle;
        let what = Committing {
            key,
            namespace,
            priority: 0,
            data_type: DataType::Unknown,
            checksum: None,
            batch: node.next_batch(),
            expires_at: 0,
            parent: 0,
        };
        let entry = node.entry(handle.slot);
        entry.prepare(handle.generation, &what);
        entry.commit(node.word(handle.slot));
        entry.remove_user(session.number());
        let (next, report) = next_server(&node, false);
        assert_eq!((report.damaged, report.values), (damaged, 1 - damaged), "{key:?} {namespace}");
        next.check().expect("the invariants hold");
    }
}

#[test]
fn a_client_ends_some_reservations_at_a_time() {
    let options = NodeOptions { max_blocks: Some(400), align: 64, ..options() };
    let mut node = Node::create(shared(BYTES), options).expect("the options are possible");
    let session = begin(&mut node, 1);
    node.reserve(session, &[64; 300]).expect("there is space");
    assert!(!node.is_ending());
    node.end_session(session);
    assert!(node.is_ending() && node.stats().used > 0);
    node.release_ended(300);
    assert!(!node.is_ending());
    assert_eq!((node.stats().used, node.sessions_left()), (0, 0));
    node.check().expect("the invariants hold");
}

/// The server was killed after it had ended the words of an idle session, and before it cleared the
/// record. A client that got such a session back could use none of it.
#[test]
fn a_recovery_ends_the_sessions_whose_words_have_ended() {
    let mut node = node();
    let [session, other] = [7, 8].map(|pid| begin(&mut node, pid));
    node.reserve(session, &[100]).expect("there is space");
    let [token, others] = [session, other].map(|it| node.sessions.get(it).token);
    node.memory.session_file.end(session.number());
    let (next, report) = next_server(&node, true);
    assert_eq!((report.ended_sessions, report.orphaned_sessions), (1, 1));
    assert_eq!((report.freed_reservations, next.stats().reservations), (1, 0));
    assert_eq!(next.find_resumable(token, 0), None);
    assert!(next.find_resumable(others, 0).is_some());
    next.check().expect("the invariants hold");
}

/// A client lives as long as a process has its lock.
#[test]
fn a_recovery_ends_the_clients_that_are_gone() {
    let mut node = node();
    let sessions = [7, 8].map(|pid| begin(&mut node, pid));
    for session in sessions {
        node.reserve(session, &[100]).expect("there is space");
    }
    let lock = node.open_session_file(sessions[1]).expect("there are descriptors");
    let files = node.memory.descriptors().expect("there are descriptors");
    let (next, report) = Node::recover(files, options()).expect("it is whole");
    assert_eq!((report.ended_sessions, report.orphaned_sessions), (1, 1));
    assert_eq!((report.freed_reservations, next.stats().reservations), (1, 1));
    next.check().expect("the invariants hold");
    drop(lock);
}
