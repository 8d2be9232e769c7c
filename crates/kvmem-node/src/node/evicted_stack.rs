//! *Evicted stack*: keys of evicted values, the last one on top. It says with how much memory a
//! miss would have been a hit.
//!
//! LRU with more memory has what it has with less, and of the rest the values that were used last
//! (Mattson, Gecsei, Slutz and Traiger 1970). Values leave the memory in the order of their last
//! use, so the stack continues that order. The *depth* of a value is the bytes of all values from
//! the top down to it. With twice the memory M a node would have those down to depth M, with four
//! times those down to 3 M, with eight times those down to 7 M. These are the *segments* of the
//! stack, and deeper values leave it. A value that is stored again leaves the stack, too.
//!
//! ```text
//! memory            | segment 0   | segment 1               | segment 2
//! last used   ...   | M bytes: 2x | 2 M bytes: 4x           | 4 M bytes: 8x         | forgotten
//!                   newest        oldest[0]                 oldest[1]       oldest[2]
//! ```
//!
//! Each value knows its segment, and each segment its oldest value: a push moves the ends of the
//! segments, and finds no depth. The segments are exact for any size of values and memory.
//!
//! **Sampling** as in SHARDS (Waldspurger, Park, Garthwaite and Ahmad, FAST 2015), with a fixed
//! size: a value is tracked if some bits of its hash are zero, as those of one value in 2^`shift`.
//! Segments have 2^`shift` times fewer bytes then, and each hit counts 2^`shift` times. When more
//! than [`MAX_TRACKED`] values are tracked, `shift` rises and half of them are forgotten. Stacks
//! that were never longer are exact.

use hashbrown::HashTable;

/// The most values that a stack tracks: 400 KiB.
const MAX_TRACKED: usize = 8192;

/// Segments: up to twice, four and eight times the memory.
const SEGMENTS: usize = 3;

/// The first bit of a hash that says whether its value is tracked. Lower and higher ones find it in
/// tables.
const SAMPLE_BIT: u32 = 24;

/// No value.
const NONE: u32 = u32::MAX;

#[derive(Clone, Copy, Debug)]
struct Tracked {
    hash: u64,
    bytes: u64,
    newer: u32,
    older: u32,
    segment: u8,
    /// A miss of the key was counted.
    is_counted: bool,
}

/// The last values that were evicted.
#[derive(Clone, Debug)]
pub(super) struct EvictedStack {
    by_hash: HashTable<u32>,
    tracked: Vec<Tracked>,
    /// Unused positions of `tracked`.
    unused: Vec<u32>,
    newest: u32,
    /// The oldest value of each segment.
    oldest: [u32; SEGMENTS],
    /// The bytes of each segment.
    bytes: [u64; SEGMENTS],
    memory: u64,
    /// The depths at which segments end.
    limits: [u64; SEGMENTS],
    shift: u32,
    /// Misses that would have been hits with twice, four and eight times the memory.
    hits: [u64; SEGMENTS],
}

impl EvictedStack {
    pub(super) fn new(memory: u64) -> EvictedStack {
        EvictedStack::sampled(memory, 0)
    }

    fn sampled(memory: u64, shift: u32) -> EvictedStack {
        EvictedStack {
            by_hash: HashTable::new(),
            tracked: Vec::new(),
            unused: Vec::new(),
            newest: NONE,
            oldest: [NONE; SEGMENTS],
            bytes: [0; SEGMENTS],
            limits: EvictedStack::limits_of(memory, shift),
            memory,
            shift,
            hits: [0; SEGMENTS],
        }
    }

    pub(super) fn hits(&self) -> [u64; SEGMENTS] {
        self.hits
    }

    /// Changes the memory that the segments are multiples of.
    pub(super) fn set_memory(&mut self, memory: u64) {
        self.memory = memory;
        self.limits = EvictedStack::limits_of(memory, self.shift);
        self.demote();
        self.promote();
    }

    /// Forgets all values. Their hits stay.
    pub(super) fn clear(&mut self) {
        let hits = self.hits;
        *self = EvictedStack { hits, ..EvictedStack::sampled(self.memory, self.shift) };
    }

    /// Adds a value that was evicted. O(1), amortized.
    pub(super) fn push(&mut self, hash: u64, bytes: u64) {
        if self.is_sampled(hash) {
            self.add(hash, bytes, false);
            if self.by_hash.len() > MAX_TRACKED {
                self.halve();
            }
        }
    }

    /// Counts a miss: a hit in the memories in which the value would have been.
    pub(super) fn count_miss(&mut self, hash: u64) {
        if let Some(place) = self.find(hash) {
            let tracked = &mut self.tracked[place as usize];
            tracked.is_counted = true;
            let segment = tracked.segment;
            self.count(segment);
        }
    }

    /// Removes a value. One that is stored again without an earlier miss would have been a hit: a
    /// call for a prefix looks up no key behind its first miss.
    pub(super) fn remove(&mut self, hash: u64, is_stored: bool) {
        if let Some(place) = self.find(hash) {
            let Tracked { segment, is_counted, .. } = self.tracked[place as usize];
            if is_stored && !is_counted {
                self.count(segment);
            }
            self.remove_at(place);
            self.promote();
        }
    }

    fn is_sampled(&self, hash: u64) -> bool {
        hash >> SAMPLE_BIT & ((1 << self.shift) - 1) == 0
    }

    fn find(&self, hash: u64) -> Option<u32> {
        let has_hash = |place: &u32| self.tracked[*place as usize].hash == hash;
        let found = self.is_sampled(hash).then(|| self.by_hash.find(hash, has_hash))?;
        found.copied()
    }

    fn count(&mut self, segment: u8) {
        self.hits[segment.into()..].iter_mut().for_each(|it| *it += 1 << self.shift);
    }

    fn limits_of(memory: u64, shift: u32) -> [u64; SEGMENTS] {
        std::array::from_fn(|segment| memory.saturating_mul((2 << segment) - 1) >> shift)
    }

    fn add(&mut self, hash: u64, bytes: u64, is_counted: bool) {
        let (newer, older, segment) = (NONE, self.newest, 0);
        let tracked = Tracked { hash, bytes, newer, older, segment, is_counted };
        let place = self.unused.pop().unwrap_or(self.tracked.len() as u32);
        match self.tracked.get_mut(place as usize) {
            Some(unused) => *unused = tracked,
            None => self.tracked.push(tracked),
        }
        if let Some(below) = self.tracked.get_mut(older as usize) {
            below.newer = place;
        }
        self.newest = place;
        self.bytes[0] += bytes;
        if self.oldest[0] == NONE {
            self.oldest[0] = place;
        }
        let all = &self.tracked;
        self.by_hash.insert_unique(hash, place, |it| all[*it as usize].hash);
        self.demote();
    }

    fn remove_at(&mut self, place: u32) {
        let Tracked { hash, newer, older, .. } = self.tracked[place as usize];
        self.leave_segment(place);
        match self.tracked.get_mut(newer as usize) {
            Some(above) => above.older = older,
            None => self.newest = older,
        }
        if let Some(below) = self.tracked.get_mut(older as usize) {
            below.newer = newer;
        }
        if let Ok(found) = self.by_hash.find_entry(hash, |it| *it == place) {
            found.remove();
        }
        self.unused.push(place);
    }

    /// Takes a value out of the sums of its segment, of which it is no longer the oldest.
    fn leave_segment(&mut self, place: u32) {
        let Tracked { bytes, newer, segment, .. } = self.tracked[place as usize];
        self.bytes[usize::from(segment)] -= bytes;
        if self.oldest[usize::from(segment)] == place {
            let above = self.tracked.get(newer as usize);
            let is_empty = above.is_none_or(|above| above.segment != segment);
            self.oldest[usize::from(segment)] = if is_empty { NONE } else { newer };
        }
    }

    /// Moves values to the segments of their depths, which have risen.
    fn demote(&mut self) {
        let mut depth = 0;
        for segment in 0..SEGMENTS {
            while depth + self.bytes[segment] > self.limits[segment] {
                let place = self.oldest[segment];
                if segment + 1 == SEGMENTS {
                    self.remove_at(place);
                    continue;
                }
                self.leave_segment(place);
                let tracked = &mut self.tracked[place as usize];
                tracked.segment += 1;
                self.bytes[segment + 1] += tracked.bytes;
                if self.oldest[segment + 1] == NONE {
                    self.oldest[segment + 1] = place;
                }
            }
            depth += self.bytes[segment];
        }
    }

    /// Moves values to the segments of their depths, which have fallen.
    fn promote(&mut self) {
        let mut depth = 0;
        for segment in 0..SEGMENTS {
            while let Some(place) = self.first_behind(segment) {
                let bytes = self.tracked[place as usize].bytes;
                if depth + self.bytes[segment] + bytes > self.limits[segment] {
                    break;
                }
                self.leave_segment(place);
                self.tracked[place as usize].segment = segment as u8;
                self.bytes[segment] += bytes;
                self.oldest[segment] = place;
            }
            depth += self.bytes[segment];
        }
    }

    /// Returns the newest value of the segments behind one.
    fn first_behind(&self, segment: usize) -> Option<u32> {
        let last = self.oldest[..=segment].iter().rev().find(|it| **it != NONE);
        let first = last.map_or(self.newest, |last| self.tracked[*last as usize].older);
        (first != NONE).then_some(first)
    }

    /// Forgets half of the values.
    fn halve(&mut self) {
        let mut all = Vec::with_capacity(self.by_hash.len());
        let mut place = self.newest;
        while let Some(tracked) = self.tracked.get(place as usize) {
            all.push(*tracked);
            place = tracked.older;
        }
        self.shift += 1;
        self.clear();
        for Tracked { hash, bytes, is_counted, .. } in all.into_iter().rev() {
            if self.is_sampled(hash) {
                self.add(hash, bytes, is_counted);
            }
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use kvmem_testkit::random::Random;

    use super::*;

    /// The same stack as a plain list, the newest value first.
    #[derive(Default)]
    struct Model {
        list: Vec<(u64, u64, bool)>,
        memory: u64,
        shift: u32,
        hits: [u64; SEGMENTS],
    }

    impl Model {
        /// Returns the first segment that reaches the depth of a value.
        fn segment(&self, at: usize) -> Option<usize> {
            let depth: u64 = self.list[..=at].iter().map(|it| it.1).sum();
            let limit = |segment: usize| (self.memory * ((2 << segment) - 1)) >> self.shift;
            (0..SEGMENTS).find(|segment| depth <= limit(*segment))
        }

        fn forget_deep(&mut self) {
            while !self.list.is_empty() && self.segment(self.list.len() - 1).is_none() {
                self.list.pop();
            }
        }

        fn count(&mut self, at: usize) {
            let segment = self.segment(at).expect("deeper values are forgotten");
            self.hits[segment..].iter_mut().for_each(|it| *it += 1 << self.shift);
        }

        fn check(&self, stack: &EvictedStack) {
            let mut place = stack.newest;
            for (at, (hash, bytes, is_counted)) in self.list.iter().enumerate() {
                let found = stack.tracked[place as usize];
                assert_eq!((found.hash, found.bytes), (*hash, *bytes));
                assert_eq!(found.is_counted, *is_counted);
                assert_eq!(Some(usize::from(found.segment)), self.segment(at), "of {at}");
                assert_eq!(stack.find(*hash), Some(place));
                place = found.older;
            }
            assert_eq!((place, stack.by_hash.len()), (NONE, self.list.len()));
            assert_eq!((stack.hits, stack.shift), (self.hits, self.shift));
        }
    }

    fn hash_of(key: u64) -> u64 {
        Random::new(key).bits()
    }

    #[test]
    fn a_stack_is_a_list_by_depth() {
        for seed in 0..40 {
            let mut random = Random::new(seed);
            let memory = 1 + random.below(400);
            let mut stack = EvictedStack::new(memory);
            let mut model = Model { memory, ..Model::default() };
            for _ in 0..600 {
                let hash = hash_of(random.below(60));
                let at = model.list.iter().position(|it| it.0 == hash);
                match random.below(8) {
                    0 => {
                        stack.count_miss(hash);
                        if let Some(at) = at {
                            model.count(at);
                            model.list[at].2 = true;
                        }
                    }
                    1 | 2 => {
                        let is_stored = random.once_in(2);
                        stack.remove(hash, is_stored);
                        if let Some(at) = at {
                            if is_stored && !model.list[at].2 {
                                model.count(at);
                            }
                            model.list.remove(at);
                        }
                    }
                    3 if random.once_in(8) => {
                        model.memory = 1 + random.below(400);
                        stack.set_memory(model.memory);
                        model.forget_deep();
                    }
                    4 if random.once_in(50) => {
                        stack.clear();
                        model.list.clear();
                    }
                    5 if random.once_in(30) && stack.shift < 3 => {
                        stack.halve();
                        model.shift += 1;
                        model.list.retain(|it| stack.is_sampled(it.0));
                        model.forget_deep();
                    }
                    _ if at.is_some() => {}
                    _ => {
                        let bytes = 1 + random.below(40);
                        stack.push(hash, bytes);
                        if stack.is_sampled(hash) {
                            model.list.insert(0, (hash, bytes, false));
                            model.forget_deep();
                        }
                    }
                }
                model.check(&stack);
            }
        }
    }

    #[test]
    fn a_stack_is_exact_until_it_is_full() {
        let mut stack = EvictedStack::new(1 << 20);
        let full = MAX_TRACKED as u64;
        (0..full).for_each(|key| stack.push(hash_of(key), 1));
        assert_eq!((stack.by_hash.len(), stack.shift), (MAX_TRACKED, 0));
        stack.push(hash_of(full), 1);
        assert_eq!(stack.shift, 1);
    }

    #[test]
    fn memory_is_bounded_and_hits_are_weighed() {
        let mut stack = EvictedStack::new(1 << 20);
        let keys = 100_000;
        for key in 0..keys {
            stack.push(hash_of(key), 1);
        }
        assert!(stack.by_hash.len() <= MAX_TRACKED && stack.tracked.len() <= MAX_TRACKED + 1);
        assert_eq!(stack.shift, 4);
        (0..keys).for_each(|key| stack.count_miss(hash_of(key)));
        let error = stack.hits[0] as f64 / keys as f64 - 1.0;
        assert!(error.abs() < 0.04, "{error}");
    }
}
