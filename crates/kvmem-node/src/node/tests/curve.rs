//! Curves of hits, compared with caches of the other sizes that see the same requests.

use std::collections::{BTreeMap, HashMap};

use kvmem_testkit::random::Random;

use crate::node::tests::{begin, begin_in, item_of, shared};
use crate::node::{
    CommitItem, Eviction, NamespaceLimits, NamespaceStats, Node, NodeOptions, SessionIndex,
};

const ALIGN: u64 = 64;
const FACTORS: [f64; 5] = [0.5, 1.0, 2.0, 4.0, 8.0];

/// Keys that a request wants, from the start of its prompt on.
type Trace = Vec<Vec<u64>>;

/// Values by their last use, in a memory of some bytes.
#[derive(Default)]
struct Lru {
    memory: u64,
    bytes: u64,
    uses: BTreeMap<u64, u64>,
    by_key: HashMap<u64, u64>,
    now: u64,
    hits: u64,
}

impl Lru {
    /// Finds the keys up to the first one without a value, stores the others, and uses all from the
    /// last to the first.
    fn request(&mut self, keys: &[u64], bytes_of: impl Fn(u64) -> u64) {
        let found = keys.iter().take_while(|key| self.by_key.contains_key(key)).count();
        self.hits += found as u64;
        for &key in keys.iter().rev() {
            self.now += 1;
            match self.by_key.insert(key, self.now) {
                Some(before) => drop(self.uses.remove(&before)),
                None => self.bytes += bytes_of(key),
            }
            self.uses.insert(self.now, key);
        }
        while self.bytes > self.memory {
            let (_, key) = self.uses.pop_first().expect("there are bytes");
            self.by_key.remove(&key);
            self.bytes -= bytes_of(key);
        }
    }
}

/// Sends requests to a node with one or more namespaces of this memory, of which one is used.
fn replayed(trace: &Trace, memory: u64, bytes_of: impl Fn(u64) -> u64) -> NamespaceStats {
    let options = NodeOptions {
        align: ALIGN,
        max_blocks: Some((memory / ALIGN) as u32 + 1),
        max_events: 0,
        eviction: Eviction::Lru,
        ..NodeOptions::default()
    };
    let mut node = Node::create(shared(memory as usize), options).expect("the options fit");
    let session = begin(&mut node, 1);
    for keys in trace {
        let names: Vec<[u8; 8]> = keys.iter().map(|key| key.to_le_bytes()).collect();
        let refs: Vec<&[u8]> = names.iter().map(|name| &name[..]).collect();
        let found = node.acquire(session, &refs, true, 1).expect("there are no limits");
        let handles: Vec<_> = found.iter().flatten().map(|it| it.handle).collect();
        // Pins of the start would keep it from being evicted for its own end, as in no cache.
        let missing = handles.len()..keys.len();
        let sizes: Vec<u64> = keys[missing.clone()].iter().map(|key| bytes_of(*key)).collect();
        node.release(session, &handles).expect("its own");
        let reserved = node.reserve(session, &sizes).expect("they fit");
        let items = missing.zip(reserved).map(|(at, block)| CommitItem {
            key: refs[at],
            parent: at.checked_sub(1).map(|before| refs[before]),
            ..item_of(block.handle)
        });
        node.commit(session, &items.collect::<Vec<_>>(), 1).expect("its own");
    }
    node.check().expect("the invariants hold");
    node.stats().namespaces.remove(0)
}

/// Returns the shares of keys with a value, by the node and by caches.
fn curves(trace: &Trace, memory: u64, bytes_of: impl Fn(u64) -> u64) -> [(f64, f64); 5] {
    let of = replayed(trace, memory, &bytes_of);
    let keys = trace.iter().map(Vec::len).sum::<usize>() as u64;
    assert_eq!((of.keys, of.memory), (keys, memory), "{of:?}");
    let found = [of.hits_at_half, of.hits, of.hits_at_2, of.hits_at_4, of.hits_at_8];
    assert!(found.is_sorted() && found[4] <= keys, "{found:?}");
    std::array::from_fn(|at| {
        let memory = (memory as f64 * FACTORS[at]) as u64;
        let mut lru = Lru { memory, ..Lru::default() };
        trace.iter().for_each(|request| lru.request(request, &bytes_of));
        (found[at] as f64 / keys as f64, lru.hits as f64 / keys as f64)
    })
}

fn check(name: &str, curves: [(f64, f64); 5]) {
    for (factor, (found, exact)) in FACTORS.into_iter().zip(curves) {
        println!("{name}: {factor} {:.2} {:.2}", 100.0 * found, 100.0 * exact);
    }
    for (factor, (found, exact)) in FACTORS.into_iter().zip(curves) {
        assert!((found - exact).abs() <= 0.02, "{name}: {found} and {exact} with {factor}");
    }
}

fn bytes_of(key: u64) -> u64 {
    (1 + (key.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 60)) * ALIGN
}

/// Single keys: some much more often than others, with scans of keys that come once.
fn keys_and_scans(seed: u64) -> Trace {
    let mut random = Random::new(seed);
    let keys = 2000 << random.below(4);
    let (mut scan, mut left, shift) = (1 << 40, 0, random.below(1 << 20));
    let mut trace = Trace::new();
    while trace.len() < 50_000 {
        if left > 0 {
            (scan, left) = (scan + 1, left - 1);
            trace.push(vec![scan]);
        } else if random.once_in(4000) {
            left = random.below(4000);
        } else {
            let key = if random.once_in(3) { random.below(keys) } else { random.log_below(keys) };
            trace.push(vec![key ^ shift]);
        }
    }
    trace
}

/// Conversations over a few common starts: each request has the prompt of one, some keys longer.
fn conversations(seed: u64) -> Trace {
    let mut random = Random::new(seed);
    let active = 50 << random.below(4);
    let mut prompts: Vec<Vec<u64>> = vec![Vec::new(); active];
    let mut next = 1 << 20;
    let mut trace = Trace::new();
    while trace.iter().map(Vec::len).sum::<usize>() < 80_000 {
        let prompt = &mut prompts[random.log_below(active as u64) as usize];
        if prompt.len() > 40 || prompt.is_empty() {
            let start = random.log_below(8) << 10;
            *prompt = (start..start + 4 + start % 7).collect();
        }
        let more = 1 + random.below(6);
        prompt.extend(next..next + more);
        next += more;
        trace.push(prompt.clone());
    }
    trace
}

#[test]
fn curves_are_those_of_caches_of_these_sizes() {
    for seed in 0..4 {
        let memory = [16 << 10, 64 << 10, 256 << 10, 1 << 20][seed as usize];
        check(&format!("keys {seed}"), curves(&keys_and_scans(seed), memory, bytes_of));
    }
    for seed in 0..2 {
        // Much more than a prompt: what a request stores moves the values that it wants.
        let memory = (256 << 10) << seed;
        check(&format!("prompts {seed}"), curves(&conversations(seed), memory, bytes_of));
    }
}

/// A trace in the form of Mooncake's, with lists of the hashes of blocks.
#[test]
#[ignore = "reads the trace that KVMEM_TEST_TRACE names"]
fn curves_of_a_recorded_trace() {
    let path = std::env::var_os("KVMEM_TEST_TRACE").expect("it names a trace");
    let text = std::fs::read_to_string(path).expect("a trace");
    let list = |line: &str| -> Vec<u64> {
        let list = line.split_once("\"hash_ids\": [").expect("hashes").1;
        let list = list.split_once(']').expect("an end").0;
        list.split(", ").filter(|id| !id.is_empty()).map(|id| id.parse().expect("a hash")).collect()
    };
    let trace: Trace = text.lines().map(list).collect();
    for values in [1 << 10, 1 << 12, 1 << 14, 1 << 16] {
        check(&format!("{values} values"), curves(&trace, values * ALIGN, |_| ALIGN));
    }
}

/// Values of one size have no ranges between them that nothing fits into: the node has what a cache
/// has, and knows what more memory would bring.
#[test]
fn curves_of_single_keys_of_one_size_are_exact_for_more_memory() {
    for (seed, memory) in [(0, 4 << 10), (1, 16 << 10)] {
        let mut trace = keys_and_scans(seed);
        trace.truncate(8000);
        let found = curves(&trace, memory, |_| ALIGN);
        for (factor, (found, exact)) in FACTORS.into_iter().zip(found).skip(1) {
            assert_eq!(found, exact, "with {factor}");
        }
        let (found, exact) = found[0];
        assert!((found - exact).abs() < 0.02, "{found} and {exact} with half");
    }
}

/// A few requests suffice for values of several sizes.
#[test]
fn curves_of_few_requests_are_close() {
    let mut trace = keys_and_scans(2);
    trace.truncate(8000);
    check("few keys", curves(&trace, 16 << 10, bytes_of));
}

fn stored(node: &mut Node, session: SessionIndex, key: &[u8]) {
    let block = node.reserve(session, &[ALIGN]).expect("there is space")[0].handle;
    node.commit(session, &[CommitItem { key, ..item_of(block) }], 1).expect("its own");
}

/// Returns whether a miss of a key in a namespace counts as a hit with twice the memory.
fn counts(node: &mut Node, session: SessionIndex, key: &[u8]) -> bool {
    let of = usize::from(node.namespace_number(session));
    let hits = |node: &Node| node.stats().namespaces[of].hits_at_2;
    let before = hits(node);
    assert_eq!(node.acquire(session, &[key], false, 1).expect("a call"), [None]);
    hits(node) > before
}

/// Memory that a value was removed from would not have it, however large it is.
#[test]
fn removed_values_are_no_hits_with_more_memory() {
    type Change = fn(&mut Node, SessionIndex);
    let changes: [(&str, Change, [bool; 2]); 4] = [
        ("nothing", |_, _| {}, [true, true]),
        ("a removal", |node, own| _ = node.remove(own, &[b"key"]), [false, true]),
        (
            "a namespace",
            |node, own| _ = node.clear(Some(node.namespace_number(own))),
            [false, true],
        ),
        ("all", |node, _| _ = node.clear(None), [false, false]),
    ];
    for (what, change, expected) in changes {
        let options = NodeOptions { align: ALIGN, max_blocks: Some(48), ..NodeOptions::default() };
        let mut node = Node::create(shared(4096), options).expect("the options fit");
        let sessions = ["first", "second"].map(|name| begin_in(&mut node, name));
        sessions.iter().for_each(|session| stored(&mut node, *session, b"key"));
        node.evict_bytes(None, u64::MAX);
        change(&mut node, sessions[0]);
        assert_eq!(sessions.map(|it| counts(&mut node, it, b"key")), expected, "{what}");
    }
}

/// A stack takes memory of the server, so namespaces of higher numbers have none.
#[test]
fn the_first_64_namespaces_have_curves() {
    let options = NodeOptions { align: ALIGN, max_blocks: Some(100), ..NodeOptions::default() };
    let mut node = Node::create(shared(16 << 10), options).expect("the options fit");
    for number in 0..66 {
        let session = begin_in(&mut node, &format!("namespace {number}"));
        stored(&mut node, session, b"key");
        node.evict_bytes(None, u64::MAX);
        assert_eq!(counts(&mut node, session, b"key"), number < 64, "{number}");
        node.end_session(session);
    }
}

/// A namespace has what is free, up to its limit. Without a free entry it has what it has.
#[test]
fn the_memory_of_a_namespace_is_its_own_and_what_is_free() {
    let small = NamespaceLimits { max_bytes: 10 * ALIGN, ..NamespaceLimits::default() };
    let options = NodeOptions {
        align: ALIGN,
        max_blocks: Some(20),
        limits: vec![("small".to_owned(), small)],
        ..NodeOptions::default()
    };
    let mut node = Node::create(shared(4096), options).expect("the options fit");
    let sessions = ["small", "large"].map(|name| begin_in(&mut node, name));
    let memory = |node: &Node| [0, 1].map(|at| node.stats().namespaces[at].memory / ALIGN);
    assert_eq!(memory(&node), [10, 64]);
    stored(&mut node, sessions[0], b"key");
    (0..3).for_each(|key| stored(&mut node, sessions[1], &[key]));
    assert_eq!(memory(&node), [10, 63]);
    (3..19).for_each(|key| stored(&mut node, sessions[1], &[key]));
    assert_eq!(memory(&node), [1, 19], "all entries are in use");
}

/// A correction looks at some values, and takes longer the more there are: it becomes rarer.
#[test]
fn curves_are_corrected_every_1024_uses_or_more() {
    for (entries, uses) in [(1000, 1024), (8192, 2048)] {
        let options =
            NodeOptions { align: ALIGN, max_blocks: Some(8192), ..NodeOptions::default() };
        let mut node = Node::create(shared(1 << 20), options).expect("the options fit");
        let session = begin(&mut node, 1);
        let reserved = node.reserve(session, &vec![ALIGN; entries - 1]).expect("there is space");
        assert_eq!(reserved.len(), entries - 1);
        stored(&mut node, session, b"key");
        let first = node.next_order + uses;
        node.correct_curves();
        assert_eq!(node.curves_due, first);
        node.next_order = first - 1;
        node.correct_curves();
        assert_eq!(node.curves_due, first, "it is not due");
        node.next_order = first;
        node.correct_curves();
        assert_eq!(node.curves_due, first + uses);
    }
}
