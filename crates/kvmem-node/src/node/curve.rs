//! *Curve*: how many keys of a namespace would have had a value with half, twice, four and eight
//! times its memory.
//!
//! The *memory* of a namespace is the bytes that it can have without taking any from others: those
//! that it has and those that are free, at most its limit. If the node has no entry left, it is
//! what the namespace has, because entries are what limits it. The node alone decides what a
//! namespace has when there are several: the curve says what a multiple of that would bring.
//!
//! **More memory.** Hits stay hits, and [`EvictedStack`] says which misses would be hits. It costs
//! hits nothing: evictions, stores and misses change it.
//!
//! **Half of the memory.** A hit would be a miss if the values that were used since take more than
//! half of the memory. The *age* of a value is the number of uses of any value since its own last
//! one. Half of the memory has the values of at most [`half_age`](Curve::half_age), so a hit costs
//! one comparison. Every 1024 uses or more, a few values correct that age: each makes it shorter or
//! longer by at most a 32nd, so that it settles where younger values have these bytes.

use super::evicted_stack::EvictedStack;
use super::node::Node;
use crate::format::State;

/// The namespaces of lower numbers have stacks: in all of them at most 25 MiB.
const MAX_STACKS: u16 = 64;

/// The fewest uses between two corrections of ages. A correction looks at one value for 32 uses.
const MIN_USES: u64 = 1024;
const USES_PER_SAMPLE: u64 = 32;
const MAX_SAMPLES: u64 = 256;

/// The part of an age by which a value corrects it.
const STEP: f64 = 1.0 / 32.0;

/// The odd number next to 2^64 divided by the golden ratio: its multiples are evenly spread.
const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;

/// The curve of a namespace, since the server started.
#[derive(Clone, Debug)]
pub(super) struct Curve {
    /// Keys of all acquisitions, those behind the first miss of a prefix too.
    pub(super) keys: u64,
    /// Hits that would be misses with half of the memory.
    pub(super) old_hits: u64,
    /// The age of values from which on half of the memory would not have them.
    pub(super) half_age: u64,
    /// The same, before it is rounded.
    age: f64,
    stack: Option<Box<EvictedStack>>,
}

impl Default for Curve {
    fn default() -> Curve {
        Curve { keys: 0, old_hits: 0, half_age: u64::MAX, age: f64::INFINITY, stack: None }
    }
}

impl Curve {
    /// Returns the hits with twice, four or eight times the memory, of a number of hits.
    pub(super) fn hits(&self, hits: u64, segment: usize) -> u64 {
        let more = self.stack.as_ref().map_or(0, |stack| stack.hits()[segment]);
        // A sampled miss counts more than once, and a value can be stored without a look-up.
        (hits + more).min(self.keys.max(hits))
    }

    pub(super) fn stack(&mut self) -> Option<&mut EvictedStack> {
        self.stack.as_deref_mut()
    }

    /// Corrects the age by the age and the weight of one value. `share` is the share of the bytes
    /// of all values that half of the memory has.
    fn correct(&mut self, age: u64, weight: f64, share: f64) {
        let (age, step) = (age as f64, STEP * weight.min(8.0));
        self.age = match share {
            1.0.. => f64::INFINITY,
            _ if self.age.is_infinite() => age,
            _ if age > self.age => self.age * (1.0 + step * share),
            _ => (self.age * (1.0 - step * (1.0 - share))).max(1.0),
        };
        self.half_age = self.age as u64;
    }
}

impl Node {
    /// Returns the bytes that a namespace can have without taking any from others.
    pub(super) fn memory_of(&self, number: u16, free: u64) -> u64 {
        let namespace = self.namespaces.get(number);
        let free = if self.has_free_slot() { free } else { 0 };
        (namespace.bytes + free).min(namespace.limits.max_bytes)
    }

    /// Puts a value that is evicted on the stack of its namespace.
    pub(super) fn push_evicted(&mut self, number: u16, hash: u64, bytes: u64) {
        let curve = &mut self.namespaces.at(number).curve;
        if let Some(stack) = &mut curve.stack {
            stack.push(hash, bytes);
        } else if number < MAX_STACKS {
            let memory = self.memory_of(number, self.space.metrics().free);
            let mut stack = Box::new(EvictedStack::new(memory));
            stack.push(hash, bytes);
            self.namespaces.at(number).curve.stack = Some(stack);
        }
    }

    /// Forgets that a key had a value that was evicted.
    pub(super) fn forget_evicted(&mut self, number: u16, key: &[u8]) {
        let hash = self.hash_of_key(number, key);
        if let Some(stack) = self.namespaces.find(number).and_then(|it| it.curve.stack()) {
            stack.remove(hash, false);
        }
    }

    /// Forgets the values of a namespace that were evicted, or of all.
    pub(super) fn clear_stacks(&mut self, number: Option<u16>) {
        for of in 0..self.namespaces.all().len() as u16 {
            if number.is_none_or(|number| number == of)
                && let Some(stack) = self.namespaces.at(of).curve.stack()
            {
                stack.clear();
            }
        }
    }

    /// Corrects the ages and memories of all curves, if enough values were used.
    pub(super) fn correct_curves(&mut self) {
        if self.next_order < self.curves_due {
            return;
        }
        let used = self.locals.len() as u64;
        let uses = MIN_USES.max(used / 4);
        self.curves_due = self.next_order + uses;
        let free = self.space.metrics().free;
        for number in 0..self.namespaces.all().len() as u16 {
            let memory = self.memory_of(number, free);
            if let Some(stack) = self.namespaces.at(number).curve.stack() {
                stack.set_memory(memory);
            }
        }
        for sample in 0..(uses / USES_PER_SAMPLE).min(MAX_SAMPLES) {
            let spread = (self.next_order + sample).wrapping_mul(GOLDEN) >> 32;
            let slot = ((spread * used) >> 32) as u32;
            if used == 0 || self.word(slot).state != State::Committed {
                continue;
            }
            let number = self.entry(slot).namespace();
            let (space, namespace) = (self.space_of(slot), self.namespaces.get(number));
            let half = self.memory_of(number, free) as f64 / 2.0;
            let (bytes, entries) = (namespace.bytes as f64, namespace.entries() as f64);
            let age = self.next_order.wrapping_sub(self.locals[slot as usize].order);
            let weight = space as f64 * entries / bytes;
            self.namespaces.at(number).curve.correct(age, weight, half / bytes);
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn an_age_is_corrected_by_a_part_for_each_value() {
        let mut curve = Curve::default();
        let mut corrected = |age, weight, share| {
            curve.correct(age, weight, share);
            (curve.age, curve.half_age)
        };
        // The first value that half of the memory may lack.
        assert_eq!(corrected(1000, 1.0, 1.0), (f64::INFINITY, u64::MAX));
        assert_eq!(corrected(1000, 1.0, 0.5), (1000.0, 1000));
        // Older values make it longer, and others shorter: half of a 32nd each.
        assert_eq!(corrected(1001, 1.0, 0.5), (1015.625, 1015));
        assert_eq!(corrected(1001, 1.0, 0.5), (1015.625 * (1.0 - 1.0 / 64.0), 999));
        // A value counts for its bytes, and at most for eight values. A quarter is to be younger.
        let age = 1015.625 * (1.0 - 1.0 / 64.0);
        assert_eq!(corrected(5000, 2.0, 0.25).0, age * (1.0 + 1.0 / 64.0));
        let age = age * (1.0 + 1.0 / 64.0);
        assert_eq!(corrected(0, 100.0, 0.25).0, age * (1.0 - 3.0 / 16.0));
        // One that is as old makes it shorter.
        let mut curve = Curve { age: 64.0, ..Curve::default() };
        curve.correct(64, 1.0, 0.5);
        assert_eq!(curve.age, 63.0);
        (0..1000).for_each(|_| curve.correct(0, 8.0, 0.5));
        assert_eq!((curve.age, curve.half_age), (1.0, 1));
        curve.correct(0, 1.0, 2.0);
        assert_eq!(curve.half_age, u64::MAX, "half of the memory has all");
    }

    #[test]
    fn hits_with_more_memory_are_at_most_all_keys() {
        let mut curve = Curve { keys: 10, ..Curve::default() };
        assert_eq!(curve.hits(4, 0), 4);
        let mut stack = Box::new(EvictedStack::new(10));
        stack.push(1, 5);
        stack.push(2, 20);
        (0..3).for_each(|_| stack.count_miss(2));
        curve.stack = Some(stack);
        assert_eq!([0, 1, 2].map(|segment| curve.hits(4, segment)), [4, 7, 7]);
        assert_eq!(curve.hits(8, 1), 10);
        assert_eq!(curve.hits(12, 1), 12, "values of before the server's start");
    }
}
