//! Curves of hits, compared with caches of the other sizes that see the same requests.

use std::collections::{BTreeMap, HashMap};

use kvmem_testkit::random::Random;

use crate::node::tests::{begin, item_of, shared};
use crate::node::{CommitItem, Eviction, NamespaceStats, Node, NodeOptions};

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
