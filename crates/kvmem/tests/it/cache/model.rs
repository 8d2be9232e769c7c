//! Random sequences against a list in order of use. Between two changes the first use of a value
//! counts; with exact recency every use counts.

use std::collections::HashSet;

use kvmem::cache::KvCache;
use kvmem::cache::{KvCacheError, Pinned, Reservation};
use proptest::collection::vec;
use proptest::prelude::*;

use super::{one_shard, pool};
use crate::random::cases;

/// A step. Indices into lists are taken modulo their lengths.
#[derive(Clone, Debug)]
enum Step {
    Insert(u64, usize),
    Reserve(u64, usize),
    Commit(usize, bool),
    Abort(usize),
    Get(u64, bool),
    Unpin(usize),
    Remove(u64, bool),
    EvictTo(u64),
    Clear,
}

const KEYS: u64 = 24;

fn step() -> impl Strategy<Value = Step> {
    let len = || prop_oneof![4 => 1..2_000usize, 1 => 1..10_000usize];
    prop_oneof![
        8 => (0..KEYS, len()).prop_map(|(key, len)| Step::Insert(key, len)),
        3 => (0..KEYS, len()).prop_map(|(key, len)| Step::Reserve(key, len)),
        3 => (any::<usize>(), any::<bool>()).prop_map(|(at, pin)| Step::Commit(at, pin)),
        1 => any::<usize>().prop_map(Step::Abort),
        8 => (0..KEYS, prop::bool::weighted(0.4)).prop_map(|(key, pin)| Step::Get(key, pin)),
        3 => any::<usize>().prop_map(Step::Unpin),
        2 => (0..KEYS, any::<bool>()).prop_map(|(key, pin)| Step::Remove(key, pin)),
        1 => (0..12_000u64).prop_map(Step::EvictTo),
        1 => Just(Step::Clear),
    ]
}

/// A value in the model; `number` distinguishes values of the same key.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Value {
    key: u64,
    len: usize,
    number: u64,
}

impl Value {
    fn fill(&self, bytes: &mut [u8]) {
        bytes.iter_mut().enumerate().for_each(|(at, byte)| *byte = self.byte(at));
    }

    fn byte(&self, at: usize) -> u8 {
        (self.number.wrapping_mul(0x9e37_79b9).wrapping_add(at as u64 * 7) >> 3) as u8
    }

    fn check(&self, bytes: &[u8]) {
        assert_eq!(bytes.len(), self.len);
        assert!(
            bytes.iter().enumerate().all(|(at, &byte)| byte == self.byte(at)),
            "bytes of {self:?}"
        );
    }
}

#[derive(Clone, Copy, Debug)]
struct Limits {
    bytes: u64,
    blocks: u64,
}

/// A naive cache.
struct Model {
    limits: Limits,
    exact: bool,
    /// Oldest first.
    held: Vec<Value>,
    /// The numbers of the values used since the last change.
    used: HashSet<u64>,
    pins: Vec<(Value, Pinned<u64>)>,
    writing: Vec<(Value, Reservation<u64>)>,
    evictions: u64,
    numbers: u64,
}

impl Model {
    fn pinned(&self, value: &Value) -> bool {
        self.pins.iter().any(|(pinned, _)| pinned == value)
    }

    fn charged(&self) -> (u64, u64) {
        let all = self.held.iter().chain(self.writing.iter().map(|(value, _)| value));
        all.fold((0, 0), |(blocks, bytes), value| (blocks + 1, bytes + value.len as u64))
    }

    /// Evicts the oldest value that is not pinned. Pinned values met on the way become the newest.
    fn evict(&mut self) -> bool {
        self.used.clear();
        for _ in 0..self.held.len() {
            let oldest = self.held.remove(0);
            if !self.pinned(&oldest) {
                self.evictions += 1;
                return true;
            }
            self.held.push(oldest);
        }
        false
    }

    /// Evicts until a value of `len` bytes fits; returns whether it does.
    fn room(&mut self, key: u64, len: usize) -> bool {
        let mut own = true;
        loop {
            let (blocks, bytes) = self.charged();
            if blocks < self.limits.blocks && bytes + len as u64 <= self.limits.bytes {
                return true;
            }
            let at = self.held.iter().position(|value| value.key == key).filter(|_| own);
            own = false;
            match at.filter(|&at| !self.pinned(&self.held[at])) {
                Some(at) => {
                    self.held.remove(at);
                    self.evictions += 1;
                    self.used.clear();
                }
                None if self.evict() => {}
                None => return false,
            }
        }
    }

    fn commit(&mut self, value: Value) {
        self.used.clear();
        self.held.retain(|old| old.key != value.key);
        self.held.push(value);
    }

    fn value(&mut self, key: u64, len: usize) -> Value {
        self.numbers += 1;
        Value { key, len, number: self.numbers }
    }

    fn take(&mut self, cache: &KvCache<u64>, step: &Step) {
        match *step {
            Step::Insert(key, len) => {
                let value = self.value(key, len);
                let fits = self.room(key, len);
                let done = cache.insert_filled(key, len, |bytes| value.fill(bytes));
                self.check_insertion(fits, len, done.err());
                if fits {
                    self.commit(value);
                }
            }
            Step::Reserve(key, len) => {
                let value = self.value(key, len);
                let fits = self.room(key, len);
                match cache.reserve(key, len) {
                    Ok(mut room) => {
                        assert!(fits);
                        value.fill(room.bytes_mut());
                        self.writing.push((value, room));
                    }
                    Err(error) => self.check_insertion(fits, len, Some(error)),
                }
            }
            Step::Commit(at, pin) if !self.writing.is_empty() => {
                let (value, room) = self.writing.swap_remove(at % self.writing.len());
                let pinned = room.commit();
                value.check(pinned.bytes());
                self.commit(value);
                // The value is pinned during the commit.
                self.pins.push((value, pinned));
                if !pin {
                    self.pins.pop();
                }
            }
            Step::Abort(at) if !self.writing.is_empty() => {
                drop(self.writing.swap_remove(at % self.writing.len()));
            }
            Step::Get(key, pin) => {
                let at = self.held.iter().position(|value| value.key == key);
                let got = cache.get(&key);
                assert_eq!(got.is_some(), at.is_some(), "key {key}");
                if let (Some(at), Some(pinned)) = (at, got) {
                    let value = self.held[at];
                    value.check(&pinned);
                    if self.used.insert(value.number) || self.exact {
                        self.held.remove(at);
                        self.held.push(value);
                    }
                    if pin {
                        self.pins.push((value, pinned));
                    }
                }
            }
            Step::Unpin(at) if !self.pins.is_empty() => {
                let (value, pinned) = self.pins.swap_remove(at % self.pins.len());
                value.check(&pinned);
            }
            Step::Remove(key, pin) => {
                let at = self.held.iter().position(|value| value.key == key);
                let removed = cache.remove_in_memory(&key);
                assert_eq!(removed.is_some(), at.is_some());
                if let (Some(at), Some(pinned)) = (at, removed) {
                    let value = self.held.remove(at);
                    self.used.clear();
                    value.check(&pinned);
                    if pin {
                        self.pins.push((value, pinned));
                    }
                }
            }
            Step::EvictTo(bytes) => {
                while self.charged().1 > bytes && self.evict() {}
                assert_eq!(cache.evict_to(bytes), self.charged().1);
            }
            Step::Clear => {
                self.held.clear();
                self.used.clear();
                cache.clear_in_memory();
            }
            Step::Commit(..) | Step::Abort(_) | Step::Unpin(_) => {}
        }
    }

    /// Checks the result of an insertion.
    fn check_insertion(&self, fits: bool, len: usize, error: Option<KvCacheError>) {
        match error {
            None => assert!(fits, "the model has no room"),
            Some(KvCacheError::NothingToEvict { requested, blocks, bytes }) => {
                assert!(!fits, "the model has room");
                assert_eq!((requested, (blocks, bytes)), (len as u64, self.charged()));
            }
            Some(error) => panic!("{error}"),
        }
    }

    fn compare(&self, cache: &KvCache<u64>) {
        cache.check().unwrap();
        assert_eq!((cache.len(), cache.bytes()), self.charged());
        let there: Vec<bool> = (0..KEYS).map(|key| cache.contains(&key)).collect();
        let expected: Vec<bool> =
            (0..KEYS).map(|key| self.held.iter().any(|value| value.key == key)).collect();
        assert_eq!(there, expected);
        assert_eq!(cache.stats().evictions, self.evictions);
        self.pins.iter().for_each(|(value, pinned)| value.check(pinned));
    }
}

fn run(limits: Limits, exact: bool, steps: &[Step]) {
    // The pool is much larger than the limit and never fails; other tests cover its failures.
    let pool = pool(1 << 20);
    let cache = one_shard(&pool, |builder| {
        builder.max_bytes(limits.bytes).max_blocks(limits.blocks).exact_recency(exact)
    });
    let (held, pins, writing) = (Vec::new(), Vec::new(), Vec::new());
    let mut model = Model {
        limits,
        exact,
        held,
        used: HashSet::new(),
        pins,
        writing,
        evictions: 0,
        numbers: 0,
    };
    for step in steps {
        // Pins of removed values hold bytes beyond the limit, so their number is bounded.
        if model.pins.len() > 30 {
            model.take(&cache, &Step::Unpin(0));
        }
        model.take(&cache, step);
        model.compare(&cache);
    }
    drop((cache, model));
    assert_eq!(pool.metrics().allocated, 0);
}

proptest! {
    #![proptest_config(cases(256))]

    #[test]
    fn lru_of_one_shard_orders_by_first_uses_between_changes(steps in vec(step(), 1..120)) {
        run(Limits { bytes: 10_000, blocks: 12 }, false, &steps);
    }

    #[test]
    fn exact_lru_orders_by_last_uses(steps in vec(step(), 1..120)) {
        run(Limits { bytes: 10_000, blocks: 12 }, true, &steps);
    }

    /// The pool is fragmented, so its requests fail. The number of evicted values depends on the
    /// pool; their order does not.
    #[test]
    fn a_fragmented_pool_evicts_the_oldest(
        steps in vec((0..40u64, 1..20_000usize, any::<bool>()), 1..100),
    ) {
        let pool = pool(64 << 10);
        let cache = one_shard(&pool, |builder| builder);
        let mut order: Vec<u64> = Vec::new();
        let mut pins: Vec<Pinned<u64>> = Vec::new();
        for (key, len, pin) in steps {
            let done = cache.insert_filled(key, len, |bytes| bytes.fill(key as u8));
            if done.is_ok() {
                // The value that they pin has been replaced.
                pins.retain(|pin| *pin.key() != key);
            }
            let pinned = |key: &u64| pins.iter().any(|pin| pin.key() == key);
            let evicted = |order: &[u64], key: &u64| !cache.contains(key) || order.is_empty();
            // The old value of the same key is evicted first, if any is.
            order.retain(|&old| old != key || (pinned(&old) && done.is_err()));
            let last = order.iter().rposition(|key| evicted(&order, key));
            if let Some(last) = last {
                let met: Vec<u64> = order.drain(..=last).collect();
                for key in met {
                    let there = cache.contains(&key);
                    prop_assert!(!there || pinned(&key), "{key} is older than an evicted key");
                    prop_assert!(there || !pinned(&key), "{key} was pinned and evicted");
                    if there {
                        order.push(key);
                    }
                }
            }
            match done {
                Ok(()) => order.push(key),
                Err(KvCacheError::NothingToEvict { .. }) => {
                    prop_assert!(order.iter().all(pinned), "a value could have been evicted");
                    pins.clear();
                }
                Err(error) => prop_assert!(false, "{error}"),
            }
            if pin && pins.len() < 4 && let Some(one) = cache.get(&key) {
                prop_assert!(one.iter().all(|&byte| byte == key as u8));
                order.retain(|&old| old != key);
                order.push(key);
                pins.push(one);
            }
            prop_assert_eq!(cache.len(), order.len() as u64);
            cache.check().unwrap();
        }
    }
}
