//! Chains: ends go before starts, however values are stored, used and released.

use std::collections::BTreeSet;

use crate::node::tests::{begin, item_of, recovered, shared};
use crate::node::{CommitItem, Eviction, Granted, Node, NodeOptions, SessionIndex};

/// Bytes of a value.
const LEN: u64 = 1000;
/// Bytes that each takes.
const SPACE: u64 = 4096;

/// Values of a chain.
const CHAIN: u32 = 16;

type ChainKey = [u8; 5];

/// The key of the value at a place of a chain.
fn key(chain: u8, at: u32) -> ChainKey {
    let [a, b, c, d] = at.to_be_bytes();
    [chain, a, b, c, d]
}

fn parent_of(key: &ChainKey) -> Option<ChainKey> {
    let [chain, place @ ..] = *key;
    Some(self::key(chain, u32::from_be_bytes(place).checked_sub(1)?))
}

/// A node with one session.
struct ChainNode {
    node: Node,
    session: SessionIndex,
    /// Values name their parents.
    linked: bool,
}

impl ChainNode {
    fn new(values: u32, linked: bool) -> ChainNode {
        ChainNode::with(values, linked, Eviction::Lru)
    }

    fn with(values: u32, linked: bool, eviction: Eviction) -> ChainNode {
        let options = NodeOptions {
            eviction,
            max_blocks: Some(values),
            max_events: 0,
            max_handles_per_session: usize::MAX,
            ..NodeOptions::default()
        };
        let node = Node::create(shared(values as usize * 4096), options);
        let mut node = node.expect("the options are possible");
        let session = begin(&mut node, 1);
        ChainNode { node, session, linked }
    }

    /// Stores values in one call.
    fn store(&mut self, keys: &[ChainKey]) {
        let parents: Vec<Option<ChainKey>> =
            keys.iter().map(|it| parent_of(it).filter(|_| self.linked)).collect();
        let pairs = keys.iter().zip(&parents);
        let pairs: Vec<(&[u8], Option<&[u8]>)> =
            pairs.map(|(key, parent)| (&key[..], parent.as_ref().map(|it| &it[..]))).collect();
        self.store_pairs(&pairs);
    }

    fn store_pairs(&mut self, pairs: &[(&[u8], Option<&[u8]>)]) {
        let blocks = self.node.reserve(self.session, &vec![LEN; pairs.len()]).expect("a call");
        let items = blocks.iter().zip(pairs).map(|(block, (key, parent))| CommitItem {
            key,
            parent: *parent,
            ..item_of(block.handle)
        });
        self.node.commit(self.session, &items.collect::<Vec<_>>(), 5).expect("they are reserved");
    }

    fn store_chain(&mut self, chain: u8, step: usize) {
        let keys: Vec<ChainKey> = (0..CHAIN).map(|at| key(chain, at)).collect();
        keys.chunks(step).for_each(|keys| self.store(keys));
    }

    fn acquire(&mut self, keys: &[ChainKey]) -> Vec<Option<Granted>> {
        let keys: Vec<&[u8]> = keys.iter().map(|it| &it[..]).collect();
        self.node.acquire(self.session, &keys, false, 6).expect("no limit")
    }

    fn release(&mut self, pins: &[Option<Granted>]) {
        let handles: Vec<_> = pins.iter().flatten().map(|it| it.handle).collect();
        self.node.release(self.session, &handles).expect("they are pinned");
    }

    fn touch(&mut self, keys: &[ChainKey]) {
        let keys: Vec<&[u8]> = keys.iter().map(|it| &it[..]).collect();
        self.node.touch(self.session, &keys, 6);
    }

    /// Returns the places of a chain that have values.
    fn left(&self, chain: u8) -> Vec<u32> {
        let namespace = self.node.sessions.get(self.session).namespace;
        (0..CHAIN).filter(|at| self.node.find(namespace, &key(chain, *at)).is_some()).collect()
    }

    fn keys_left(&self) -> BTreeSet<Vec<u8>> {
        self.node.list(None, 0, u32::MAX, 0).0.into_iter().map(|it| it.key).collect()
    }

    fn evict(&mut self) -> Vec<u8> {
        let before = self.keys_left();
        assert_eq!(self.node.evict_bytes(None, 1).0, SPACE);
        self.node.check().expect("the invariants hold");
        let after = self.keys_left();
        before.difference(&after).next().expect("one is evicted").clone()
    }
}

/// The number of patterns in which engines use a chain.
const PATTERNS: usize = 10;

fn use_chain(chains: &mut ChainNode, path: usize, chain: u8) {
    let all: Vec<ChainKey> = (0..CHAIN).map(|at| key(chain, at)).collect();
    let one_by_one = |chains: &mut ChainNode| -> Vec<Vec<Option<Granted>>> {
        all.iter().map(|key| chains.acquire(&[*key])).collect()
    };
    match path {
        0..3 => {}
        3 => {
            let pins = one_by_one(chains);
            pins.iter().for_each(|pin| chains.release(pin));
        }
        4 => {
            let pins = one_by_one(chains);
            // Coprime to the length: an order like that of a set.
            (0..pins.len()).for_each(|at| chains.release(&pins[at * 7 % pins.len()]));
        }
        5 => {
            let pins = one_by_one(chains);
            pins.iter().rev().for_each(|pin| chains.release(pin));
        }
        6 => chains.touch(&all),
        7 => {
            let pins = chains.acquire(&all);
            chains.release(&pins);
        }
        8 => all.iter().for_each(|key| chains.touch(&[*key])),
        _ => {
            let pins = one_by_one(chains);
            pins.iter().for_each(|pin| chains.release(pin));
            chains.touch(&all);
        }
    }
}

#[test]
fn ends_go_before_starts_in_every_pattern_of_use() {
    let policies = [Eviction::Lru, Eviction::ScanResistant];
    for (path, eviction) in (0..PATTERNS).flat_map(|path| policies.map(|policy| (path, policy))) {
        let mut chains = ChainNode::with(48, true, eviction);
        let step = [16, 4, 1][path.min(2)];
        chains.store_chain(b'a', step);
        chains.store_chain(b'b', step);
        use_chain(&mut chains, path, b'a');
        let mut others = 0;
        while chains.left(b'a').len() > 4 {
            chains.store(&[key(b'z' - others / 100, (u32::from(others) % 100) * 2)]);
            others += 1;
            chains.node.check().expect("the invariants hold");
            for chain in [b'a', b'b'] {
                let left = chains.left(chain);
                assert_eq!(left, (0..left.len() as u32).collect::<Vec<_>>(), "pattern {path}");
            }
        }
    }
}

/// Values that are used again and again stay while others come once and are never used.
#[test]
fn a_scan_evicts_everything_under_lru_and_little_under_scan_resistant() {
    let left = [Eviction::Lru, Eviction::ScanResistant].map(|eviction| {
        let mut chains = ChainNode::with(160, true, eviction);
        let used = |round: u32| (b'a'..=b'e').map(move |chain| (chain, round));
        for (chain, round) in (0..100).flat_map(used) {
            let keys: Vec<ChainKey> = (0..CHAIN).map(|at| key(chain, at)).collect();
            let found = chains.acquire(&keys);
            let missing = found.iter().position(Option::is_none).unwrap_or(keys.len());
            chains.release(&found);
            chains.store(&keys[missing..]);
            let scan = key(b'x', 100 * round + u32::from(chain));
            chains.store(&[scan, key(b'y', 100 * round + u32::from(chain))]);
        }
        for at in 0..100 {
            chains.store(&(0..8).map(|of| key(b'z', 1000 * of + 2 * at)).collect::<Vec<_>>());
        }
        chains.node.check().expect("the invariants hold");
        (b'a'..=b'e').map(|chain| chains.left(chain).len()).sum::<usize>()
    });
    assert_eq!(left[0], 0, "with LRU none of 80 are left");
    assert!(left[1] >= 48, "{} of 80 outlive a scan of five times the memory", left[1]);
}

/// A value without a parent goes by its own last use, in which the order of releases has no part.
#[test]
fn releases_do_not_change_the_order_of_use() {
    for order in [[0, 1, 2, 3], [3, 2, 1, 0], [2, 0, 3, 1]] {
        let mut chains = ChainNode::new(48, false);
        chains.store_chain(b'a', 16);
        let pins = chains.acquire(&[key(b'a', 0), key(b'a', 1), key(b'a', 2), key(b'a', 3)]);
        order.iter().for_each(|at| chains.release(&pins[*at..=*at]));
        let evicted: Vec<Vec<u8>> = (0..CHAIN).map(|_| chains.evict()).collect();
        let expected: Vec<Vec<u8>> = (0..CHAIN).rev().map(|at| key(b'a', at).to_vec()).collect();
        assert_eq!(evicted, expected, "released in the order {order:?}");
    }
}

#[test]
fn values_that_name_each_other_are_evicted() {
    let mut chains = ChainNode::new(200, true);
    let cycles: [&[u8]; 4] = [b"1", b"2", b"3", b"4"];
    for length in 1..=4 {
        for reversed in [false, true] {
            let cycle = &cycles[..length];
            let mut pairs: Vec<(&[u8], Option<&[u8]>)> =
                (0..length).map(|at| (cycle[at], Some(cycle[(at + 1) % length]))).collect();
            if reversed {
                pairs.reverse();
            }
            // In one call, and each in its own.
            chains.store_pairs(&pairs);
            chains.node.check().expect("the invariants hold");
            pairs.iter().for_each(|pair| chains.store_pairs(&[*pair]));
            chains.node.check().expect("the invariants hold");
            let index = chains.node.memory.index_bytes();
            let (mut again, _) = recovered(&chains.node, &index, &[], |_| true).expect("valid");
            again.check().expect("the invariants hold");
            assert_eq!(again.evict_bytes(None, u64::MAX).0, length as u64 * SPACE);
            (0..length).for_each(|_| drop(chains.evict()));
            assert_eq!((chains.node.len(), chains.node.stats().dead_bytes), (0, 0));
        }
    }
    // A cycle with a tree at it.
    let tree: [(&[u8], Option<&[u8]>); 5] = [
        (b"1", Some(b"2")),
        (b"2", Some(b"1")),
        (b"a", Some(b"1")),
        (b"b", Some(b"a")),
        (b"c", Some(b"2")),
    ];
    chains.store_pairs(&tree);
    assert_eq!(chains.node.evict_bytes(None, u64::MAX).0, 5 * SPACE);
    chains.node.check().expect("the invariants hold");
}

#[test]
fn parents_and_children_come_and_go_in_any_order() {
    let mut chains = ChainNode::new(48, true);
    let dead = |chains: &ChainNode| {
        chains.node.check().expect("the invariants hold");
        chains.node.stats().dead_bytes / LEN
    };
    // Children first: two of one parent, and one of a child.
    let pair = |key: &'static [u8], parent: &'static [u8]| (key, Some(parent));
    chains.store_pairs(&[pair(b"b", b"a")]);
    chains.store_pairs(&[pair(b"c", b"a"), pair(b"d", b"c")]);
    assert_eq!(dead(&chains), 2);
    chains.store_pairs(&[(b"a", None)]);
    assert_eq!(dead(&chains), 0);
    // Another value of the parent holds the children, and is held by them.
    chains.store_pairs(&[(b"a", None)]);
    assert_eq!(dead(&chains), 0);
    assert_eq!(chains.evict(), b"b");
    chains.node.remove(chains.session, &[b"a"]).expect("it may");
    assert_eq!(dead(&chains), 1, "d has its parent");
    assert_eq!(chains.evict(), b"d");
    chains.store_pairs(&[(b"a", None)]);
    assert_eq!(dead(&chains), 0);
    // Another namespace has other keys.
    let other = chains.node.namespace("other", 0, usize::MAX).expect("there are few");
    chains.node.sessions.get_mut(chains.session).namespace = other;
    chains.store_pairs(&[pair(b"x", b"a")]);
    assert_eq!(dead(&chains), 1);
}

#[test]
fn a_parent_of_a_lower_priority_stays_until_its_children_go() {
    let mut chains = ChainNode::new(48, true);
    let blocks = chains.node.reserve(chains.session, &[LEN; 3]).expect("there is space");
    let [a, b, c] = [0, 1, 2].map(|at| item_of(blocks[at].handle));
    let items = [
        CommitItem { key: b"a", ..a },
        CommitItem { key: b"b", parent: Some(b"a"), priority: 3, ..b },
        CommitItem { key: b"c", priority: 1, ..c },
    ];
    chains.node.commit(chains.session, &items, 5).expect("they are reserved");
    assert_eq!([chains.evict(), chains.evict(), chains.evict()], [b"c", b"b", b"a"]);
}

/// A client that has pinned the end of a chain has pinned one value.
#[test]
fn a_pinned_end_does_not_hold_its_chain() {
    let mut chains = ChainNode::new(48, true);
    chains.store_chain(b'a', 16);
    chains.store_chain(b'b', 16);
    let pins = chains.acquire(&[key(b'a', 15)]);
    assert_eq!(chains.node.evict_bytes(None, 15 * SPACE).0, 15 * SPACE);
    assert_eq!((chains.left(b'a').len(), chains.left(b'b').len()), (16, 1), "it counts as used");
    assert_eq!(chains.node.evict_bytes(None, u64::MAX).0, 16 * SPACE);
    assert_eq!(chains.left(b'a'), [15]);
    assert_eq!(chains.node.stats().dead_bytes, LEN);
    chains.release(&pins);
    assert_eq!(chains.evict(), key(b'a', 15));
}

#[test]
fn the_start_of_a_used_end_counts_as_used() {
    let mut chains = ChainNode::new(48, true);
    chains.store_chain(b'a', 16);
    chains.store_chain(b'b', 16);
    chains.touch(&[key(b'a', 15)]);
    for at in (0..CHAIN).rev() {
        assert_eq!(chains.evict(), key(b'b', at));
    }
    for at in (0..CHAIN).rev() {
        assert_eq!(chains.evict(), key(b'a', at));
    }
}

/// A prefix that is used by itself stays when its continuations go.
#[test]
fn a_parent_goes_at_the_place_of_its_own_last_use() {
    let mut chains = ChainNode::new(48, true);
    chains.store_pairs(&[(b"system", None)]);
    chains.store_pairs(&[(b"old", Some(b"system"))]);
    chains.store_pairs(&[(b"other", None)]);
    chains.node.touch(chains.session, &[b"system"], 6);
    assert_eq!(
        [chains.evict(), chains.evict(), chains.evict()],
        [b"old".to_vec(), b"other".to_vec(), b"system".to_vec()]
    );
}

#[test]
fn parents_survive_a_restart() {
    let mut chains = ChainNode::new(48, true);
    chains.store_chain(b'a', 4);
    chains.store_chain(b'b', 1);
    use_chain(&mut chains, 3, b'a');
    chains.node.remove(chains.session, &[&key(b'b', 3)]).expect("it may");
    let index = chains.node.memory.index_bytes();
    let (node, report) = recovered(&chains.node, &index, &[], |_| false).expect("valid");
    assert_eq!((report.values, report.damaged), (31, 0));
    node.check().expect("the invariants hold");
    assert_eq!(node.stats().dead_bytes, LEN);
    let mut again = ChainNode { node, session: chains.session, linked: true };
    again.session = begin(&mut again.node, 2);
    for left in (0..CHAIN as usize).rev() {
        while again.left(b'a').len() > left {
            again.evict();
        }
        assert_eq!(again.left(b'a'), (0..left as u32).collect::<Vec<_>>());
    }
}

/// Long chains take no stack, and no time for each use of theirs.
#[test]
fn a_long_chain_is_used_and_evicted_one_by_one() {
    const LONG: u32 = 20_000;
    let mut chains = ChainNode::new(LONG, true);
    // The second half first: the value between both searches its ancestors for a cycle.
    for at in (LONG / 2..LONG).rev() {
        chains.store(&[key(b'a', at)]);
    }
    for at in 0..LONG / 2 {
        chains.store(&[key(b'a', at)]);
    }
    for at in 0..LONG {
        let pins = chains.acquire(&[key(b'a', at)]);
        chains.release(&pins);
    }
    assert_eq!(chains.node.stats().dead_bytes, 0);
    for at in (0..LONG).rev() {
        assert_eq!(chains.node.evict_bytes(None, 1).0, SPACE);
        assert_eq!(chains.node.find(0, &key(b'a', at)), None);
        assert_eq!(chains.node.stats().dead_bytes, 0);
    }
    chains.node.check().expect("the invariants hold");
}

/// Values come in any order: each is linked with its parent, unless that makes a cycle.
#[test]
fn a_value_between_others_is_linked_with_both() {
    let mut chains = ChainNode::new(10, true);
    chains.store_pairs(&[(b"c", Some(b"b"))]);
    chains.store_pairs(&[(b"a", None)]);
    chains.store_pairs(&[(b"b", Some(b"a"))]);
    let slot = |chains: &ChainNode, key: &[u8]| chains.node.find(0, key).expect("it has a value");
    let parent = |chains: &ChainNode, key: &[u8]| chains.node.parent_of(slot(chains, key));
    assert_eq!(parent(&chains, b"c"), Some(slot(&chains, b"b")));
    assert_eq!(parent(&chains, b"b"), Some(slot(&chains, b"a")));
    // The last value of a cycle has no parent.
    chains.store_pairs(&[(b"e", Some(b"d"))]);
    chains.store_pairs(&[(b"d", Some(b"e"))]);
    assert_eq!(parent(&chains, b"e"), Some(slot(&chains, b"d")));
    assert_eq!(parent(&chains, b"d"), None);
    chains.node.check().expect("the invariants hold");
    // One that is pinned does not hold its parent, and its end changes nothing there.
    let found = chains.node.acquire(chains.session, &[b"c"], false, 6).expect("no limit");
    assert_eq!(chains.node.remove(chains.session, &[b"c"]), Ok(1));
    chains.node.check().expect("the invariants hold");
    chains.release(&found);
    assert_eq!(chains.node.len(), 4);
    chains.node.check().expect("the invariants hold");
}
