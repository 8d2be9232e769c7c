//! *Ghosts*: the record of the blocks that a shard evicted lately, in a table of cache lines.
//!
//! A ghost takes 8 bytes: part of its hash, the time of the last use, the number of uses, and the
//! time of the eviction in coarse steps. The hash chooses a bucket of [`SLOTS`] ghosts, which is
//! one cache line. A look-up and an eviction read one line each, and neither allocates. Two hashes
//! with the same bucket and tag are one ghost: one look-up in 32,768 finds the ghost of another
//! block.
//!
//! A ghost is *forgotten* one period after its eviction, and *dropped* after [`REMEMBERED`]
//! periods. A period is the time in which as many blocks come as the cache holds. A queue has the
//! evictions of the latest period: what the model learns of blocks that are not used again must not
//! be older than what it learns of the others. A ghost is dropped when another one comes to its
//! bucket, and a full bucket drops its oldest ghost.
//!
//! The table doubles when the shard has more blocks. The tag has the bits of the hash that follow
//! those of the bucket's number in the first table: so it has the next bit of the number.

use std::collections::VecDeque;
use std::mem;

use super::clock::Time;
use crate::sync::prefetch;

/// Ghosts in a bucket.
const SLOTS: usize = 8;
/// A ghost is dropped this many periods after its eviction.
const REMEMBERED: u64 = 4;
/// Steps in a period.
const STEPS: u64 = 8;

/// The lines of this many ghosts are fetched before they are forgotten.
const FETCHED_AHEAD: usize = 4;

const TAG_BITS: u32 = 18;
const USES_BITS: u32 = 5;
const STEP_BITS: u32 = 7;

/// The positions of a ghost's fields in its word; the last use has the lowest 32 bits.
const TAG: u32 = 32;
const USES: u32 = TAG + TAG_BITS;
const STEP: u32 = USES + USES_BITS;
const FORGOTTEN: u64 = 1 << 62;
/// Set in each ghost.
const PRESENT: u64 = 1 << 63;

/// Returns some of the lowest bits.
#[inline]
fn low(word: u64, bits: u32) -> u64 {
    word & ((1 << bits) - 1)
}

/// A ghost, or 0.
#[derive(Clone, Copy, Debug, Default)]
struct Packed(u64);

#[derive(Clone, Debug, Default)]
#[repr(align(64))]
struct Bucket([Packed; SLOTS]);

/// The history of an evicted block.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Ghost {
    /// The time of the last use.
    pub(super) used: Time,
    pub(super) uses: u8,
    /// The age at which it was forgotten, if it was.
    pub(super) forgotten: Option<Time>,
}

/// What happens to a ghost that ages.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Aged {
    /// A period has passed since the eviction, at the end of which the block had this age.
    Forgotten { uses: u8, age: Time },
    /// The ghost of a block that was last used at this time has left the table.
    Dropped { used: Time },
}

/// The steps by which ghosts age.
#[derive(Clone, Copy, Debug)]
struct StepClock {
    now: Time,
    /// Number of the present step.
    step: u64,
    ends: Time,
    /// Length of a step.
    length: Time,
}

/// The ghosts of one shard.
#[derive(Debug)]
pub(super) struct Ghosts {
    /// Their number is a power of two, or 0.
    buckets: Vec<Bucket>,
    /// The logarithm of the number of buckets in the first table.
    first_log2: u32,
    clock: StepClock,
    /// The hashes and the times of the evictions whose ghosts are not forgotten, in order.
    queue: VecDeque<(u64, Time)>,
}

impl Packed {
    fn new(tag: u64, used: Time, uses: u8, step: u64) -> Packed {
        let uses = u64::from(uses).min(low(u64::MAX, USES_BITS));
        let step = low(step, STEP_BITS);
        Packed(low(used, 32) | tag << TAG | uses << USES | step << STEP | PRESENT)
    }

    fn uses(self) -> u8 {
        low(self.0 >> USES, USES_BITS) as u8
    }

    /// Returns the number of steps since the eviction.
    fn steps(self, clock: &StepClock) -> u64 {
        low(clock.step.wrapping_sub(self.0 >> STEP), STEP_BITS)
    }

    /// Returns the time since the last use.
    fn age(self, clock: &StepClock) -> Time {
        low(clock.now.wrapping_sub(self.0), 32)
    }

    /// Returns the age at the end of the first period.
    fn forgotten_age(self, clock: &StepClock) -> Time {
        let later = self.steps(clock).saturating_sub(STEPS);
        self.age(clock).saturating_sub(later * clock.length)
    }

    fn forget(&mut self, clock: &StepClock, aged: &mut impl FnMut(Aged)) {
        if self.0 & FORGOTTEN == 0 {
            aged(Aged::Forgotten { uses: self.uses(), age: self.forgotten_age(clock) });
            self.0 |= FORGOTTEN;
        }
    }

    /// Takes the ghost out of the table.
    fn leave(&mut self, clock: &StepClock, aged: &mut impl FnMut(Aged)) {
        self.forget(clock, aged);
        aged(Aged::Dropped { used: clock.now.saturating_sub(self.age(clock)) });
        *self = Packed(0);
    }
}

impl Bucket {
    /// Returns the ghost with this tag.
    #[inline]
    fn find(&mut self, tag: u64) -> Option<&mut Packed> {
        let wanted = PRESENT | tag << TAG;
        let mask = PRESENT | low(u64::MAX, TAG_BITS) << TAG;
        self.0.iter_mut().find(|ghost| ghost.0 & mask == wanted)
    }

    /// Drops the ghosts that are too old. Returns an empty place; drops the ghost that was evicted
    /// first if there is none.
    #[inline]
    fn empty_place(&mut self, clock: &StepClock, aged: &mut impl FnMut(Aged)) -> &mut Packed {
        let (mut place, mut oldest) = (0, 0);
        for (at, ghost) in self.0.iter_mut().enumerate() {
            let mut steps = ghost.steps(clock);
            if steps >= REMEMBERED * STEPS && ghost.0 != 0 {
                ghost.leave(clock, aged);
            }
            if ghost.0 == 0 {
                steps = 1 << STEP_BITS;
            }
            if steps > oldest {
                (place, oldest) = (at, steps);
            }
        }
        let place = &mut self.0[place];
        if place.0 != 0 {
            place.leave(clock, aged);
        }
        place
    }
}

impl StepClock {
    /// Sets the time, in a cache that holds `held` blocks.
    #[inline]
    fn set(&mut self, now: Time, held: u64) {
        self.now = now;
        if now >= self.ends {
            self.length = (held / STEPS).max(1);
            let passed = 1 + (now - self.ends) / self.length;
            self.step += passed;
            self.ends += passed * self.length;
        }
    }
}

impl Default for Ghosts {
    fn default() -> Self {
        let clock = StepClock { now: 0, step: 0, ends: 0, length: 1 };
        Ghosts { buckets: Vec::new(), first_log2: 0, clock, queue: VecDeque::new() }
    }
}

impl Ghosts {
    /// Returns the number of the bucket for a hash, and the tag. There are buckets.
    #[inline]
    fn place(&self, hash: u64) -> (usize, u64) {
        // Any of the hash's bits may be the same for all blocks of a shard.
        let mixed = hash.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 16;
        (mixed as usize & (self.buckets.len() - 1), low(mixed >> self.first_log2, TAG_BITS))
    }

    /// Starts to fetch what the other functions read for a hash.
    #[inline]
    pub(super) fn prefetch(&self, hash: u64) {
        if !self.buckets.is_empty() {
            prefetch(&raw const self.buckets[self.place(hash).0]);
        }
    }

    /// Takes out the ghost of a hash, in a cache that holds `held` blocks.
    #[inline]
    pub(super) fn take(&mut self, hash: u64, now: Time, held: u64) -> Option<Ghost> {
        if self.buckets.is_empty() {
            return None;
        }
        let (bucket, tag) = self.place(hash);
        let ghost = mem::take(self.buckets[bucket].find(tag)?);
        self.clock.set(now, held);
        let clock = &self.clock;
        // One that is too old, in a bucket to which no ghost has come since.
        if ghost.steps(clock) >= REMEMBERED * STEPS {
            return None;
        }
        let forgotten = (ghost.0 & FORGOTTEN != 0).then(|| ghost.forgotten_age(clock));
        let used = now.saturating_sub(ghost.age(clock));
        Some(Ghost { used, uses: ghost.uses(), forgotten })
    }

    /// Adds the ghost of a block that is evicted now, in a cache that holds `held` blocks, of which
    /// `len` are this shard's.
    #[inline]
    pub(super) fn add(
        &mut self,
        hash: u64,
        (used, uses): (Time, u8),
        now: Time,
        (held, len): (u64, usize),
        mut aged: impl FnMut(Aged),
    ) {
        // Space for 10 to 20 times as many ghosts as blocks. With half of that, full buckets
        // dropped ghosts that recorded traces needed.
        let wanted = 10 * (len + 1);
        if self.buckets.len() * SLOTS < wanted {
            self.grow(wanted.div_ceil(SLOTS).next_power_of_two());
        }
        self.clock.set(now, held);
        let (bucket, tag) = self.place(hash);
        let place = self.buckets[bucket].empty_place(&self.clock, &mut aged);
        *place = Packed::new(tag, used, uses, self.clock.step);
        self.queue.push_back((hash, now));
        self.forget(now, (held, len), aged);
    }

    /// Forgets the ghosts of a period ago.
    #[inline]
    fn forget(&mut self, now: Time, (held, len): (u64, usize), mut aged: impl FnMut(Aged)) {
        // With blocks of several sizes, one insertion may evict several blocks.
        let max = REMEMBERED as usize * (len + 1);
        while let Some(&(hash, at)) = self.queue.front()
            && (now - at > held || self.queue.len() > max)
        {
            self.queue.pop_front();
            if let Some(&(later, _)) = self.queue.get(FETCHED_AHEAD) {
                self.prefetch(later);
            }
            let (bucket, tag) = self.place(hash);
            // Otherwise the block has returned, and perhaps been evicted again.
            if let Some(ghost) = self.buckets[bucket].find(tag)
                && ghost.steps(&self.clock) + 1 >= STEPS
            {
                ghost.forget(&self.clock, &mut aged);
            }
        }
    }

    #[cold]
    #[inline(never)]
    fn grow(&mut self, buckets: usize) {
        if self.buckets.is_empty() {
            self.buckets.resize(buckets, Bucket::default());
            self.first_log2 = buckets.ilog2();
        }
        while self.buckets.len() < buckets {
            let bit = TAG + self.buckets.len().ilog2() - self.first_log2;
            let mut upper = self.buckets.clone();
            let ghosts = self.buckets.iter_mut().zip(&mut upper);
            for (lower, upper) in
                ghosts.flat_map(|(lower, upper)| lower.0.iter_mut().zip(&mut upper.0))
            {
                *(if upper.0 >> bit & 1 == 1 { lower } else { upper }) = Packed(0);
            }
            self.buckets.append(&mut upper);
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::collections::HashMap;

    use super::*;

    fn hash(key: u64) -> u64 {
        (key + 1).wrapping_mul(0xd134_2543_de82_ef95).rotate_left(29)
    }

    /// Counts the ghosts.
    fn all(table: &Ghosts) -> usize {
        table.buckets.iter().flat_map(|bucket| &bucket.0).filter(|ghost| ghost.0 != 0).count()
    }

    #[test]
    fn a_ghost_is_found_once_until_it_is_dropped() {
        let (mut ghosts, held) = (Ghosts::default(), 1000);
        let mut seen = Vec::new();
        assert_eq!(ghosts.take(hash(7), 5000, held), None);
        ghosts.add(hash(7), (4000, 3), 5000, (held, 1000), |aged| seen.push(aged));
        let young = ghosts.take(hash(7), 5900, held);
        assert_eq!(young, Some(Ghost { used: 4000, uses: 3, forgotten: None }));
        assert_eq!(ghosts.take(hash(7), 5900, held), None);
        assert!(seen.is_empty());

        let mut ghosts = Ghosts::default();
        let mut add = |ghosts: &mut Ghosts, key, now| {
            ghosts.add(hash(key), (now - 1000, 3), now, (held, 0), |aged| seen.push(aged));
        };
        add(&mut ghosts, 7, 5000);
        let is_near = |key: &u64| ghosts.place(hash(*key)).0 == ghosts.place(hash(7)).0;
        let near = (8..).find(is_near).expect("a key with the same bucket");
        add(&mut ghosts, near, 8000);
        let old = ghosts.take(hash(7), 8000, held).expect("a ghost");
        assert!(ghosts.take(hash(near), 8000, held).is_some_and(|ghost| ghost.forgotten.is_none()));
        add(&mut ghosts, 7, 9000);
        add(&mut ghosts, near, 13_200);
        let [first, Aged::Forgotten { uses: 3, .. }, dropped] = seen[..] else {
            panic!("{seen:?}")
        };
        let Aged::Forgotten { uses: 3, age } = first else { panic!("{first:?}") };
        assert!(age.abs_diff(2000) <= 2 * held / STEPS, "a period after its eviction: {age}");
        assert_eq!((old.used, old.forgotten), (4000, Some(age)));
        assert_eq!(dropped, Aged::Dropped { used: 8000 });
        assert_eq!(ghosts.take(hash(7), 13_200, held), None);
        assert!(ghosts.take(hash(near), 13_200, held).is_some());
        assert_eq!(all(&ghosts), 0);
    }

    /// Each ghost that was added is found, was reported as dropped, or is in the table: against a
    /// table that forgets nothing, while the shard grows from 10 blocks to 2,000.
    #[test]
    fn a_table_that_grows_loses_no_ghost() {
        let (mut ghosts, mut model) = (Ghosts::default(), HashMap::new());
        let (mut dropped, mut found, mut absent) = (0, 0, 0);
        for now in 1..40_000u64 {
            let len = (now / 20).clamp(10, 2000);
            let aged = |aged| {
                if let Aged::Dropped { used } = aged {
                    assert!(used < now);
                    dropped += 1;
                }
            };
            if now % 3 == 0 {
                let key = now.saturating_sub(1 + hash(now) % (2 * len));
                let expected = model.remove(&key);
                let ghost = ghosts.take(hash(key), now, len);
                match (ghost, expected) {
                    (Some(ghost), Some((used, uses))) => {
                        assert_eq!((ghost.used, ghost.uses), (used, uses), "{key}");
                        found += 1;
                    }
                    (None, _) => absent += usize::from(expected.is_some()),
                    (Some(ghost), None) => panic!("{key} was taken or never added: {ghost:?}"),
                }
            } else {
                let (used, uses) = (now - 1, (now % 20) as u8);
                ghosts.add(hash(now), (used, uses), now, (len, len as usize), aged);
                model.insert(now, (used, uses));
            }
        }
        assert!(found > 5000 && absent <= dropped, "{found} {absent} {dropped}");
        assert_eq!(model.len() + absent, all(&ghosts) + dropped);
        assert!(ghosts.buckets.len() * SLOTS <= 20 * 2048 && all(&ghosts) > 2 * 2000);
    }

    #[test]
    fn steps_end_after_an_eighth_of_what_is_held() {
        let mut clock = StepClock { now: 0, step: 0, ends: 0, length: 1 };
        for held in [80, 160, 7, 800] {
            let (start, began) = (clock.ends, clock.step);
            let length = (held / STEPS).max(1);
            for later in 0..3 * length {
                clock.set(start + later, held);
                assert_eq!(clock.step, began + 1 + later / length, "{later} of {held}");
                assert_eq!(clock.ends, start + (1 + later / length) * length);
            }
        }
        // After a pause of any length.
        clock.set(clock.ends + 12_345, 80);
        assert!(clock.ends > clock.now && clock.ends <= clock.now + 10);
    }

    #[test]
    fn a_full_bucket_drops_the_ghost_that_was_evicted_first() {
        let clock = StepClock { now: 1000, step: 50, ends: 1010, length: 10 };
        let mut bucket = Bucket::default();
        let mut left = Vec::new();
        let mut add = |bucket: &mut Bucket, clock: &StepClock, tag: u64, used: Time| {
            let place = bucket.empty_place(clock, &mut |aged| left.push(aged));
            *place = Packed::new(tag, used, tag as u8, clock.step);
        };
        // All of one step: the first place has the first of them.
        for tag in 0..SLOTS as u64 {
            add(&mut bucket, &clock, tag, 900 + tag);
        }
        for tag in 0..SLOTS as u64 {
            assert!(bucket.find(tag).is_some_and(|it| it.age(&clock) == 100 - tag));
        }
        let later = StepClock { now: 1020, step: 52, ends: 1030, length: 10 };
        add(&mut bucket, &clock, 100, 950);
        *bucket.find(5).unwrap() = Packed::new(5, 905, 5, 48);
        add(&mut bucket, &later, 101, 951);
        assert!([0, 5].iter().all(|&gone| bucket.find(gone).is_none()));
        assert!([1, 2, 3, 4, 6, 7, 100, 101].iter().all(|&tag| bucket.find(tag).is_some()));
        let gone = |uses, age, used| [Aged::Forgotten { uses, age }, Aged::Dropped { used }];
        assert_eq!(left, [gone(0, 100, 900), gone(5, 115, 905)].concat());
    }

    /// Adds the ghosts of these keys, used a time unit before, and returns what was forgotten.
    fn forgotten(
        ghosts: &mut Ghosts,
        keys: std::ops::Range<u64>,
        now: Time,
        counts: (u64, usize),
    ) -> Vec<u8> {
        let mut all = Vec::new();
        for key in keys {
            ghosts.add(hash(key), (now - 1, key as u8), now, counts, |aged| {
                if let Aged::Forgotten { uses, .. } = aged {
                    all.push(uses);
                }
            });
        }
        all
    }

    #[test]
    fn ghosts_are_forgotten_in_order_after_a_period() {
        let (held, len) = (80, 100);
        let mut ghosts = Ghosts::default();
        assert!(forgotten(&mut ghosts, 0..3, 1000, (held, len)).is_empty());
        assert!(forgotten(&mut ghosts, 3..6, 1005, (held, len)).is_empty());
        // One that has returned is not.
        assert!(ghosts.take(hash(1), 1006, held).is_some_and(|ghost| ghost.forgotten.is_none()));
        assert!(forgotten(&mut ghosts, 10..11, 1000 + held, (held, len)).is_empty());
        assert_eq!(forgotten(&mut ghosts, 11..12, 1001 + held, (held, len)), [0, 2]);
        assert_eq!(forgotten(&mut ghosts, 12..13, 1006 + held, (held, len)), [3, 4, 5]);
        assert_eq!(ghosts.queue.len(), 3);
        assert!(ghosts.take(hash(4), 1090, held).is_some_and(|ghost| ghost.forgotten.is_some()));
        // A ghost is forgotten, too, if a step was longer when it was evicted.
        let clock = StepClock { now: 0, step: 0, ends: 21, length: 20 };
        let mut ghosts = Ghosts { clock, ..Ghosts::default() };
        assert!(forgotten(&mut ghosts, 0..1, 1, (144, len)).is_empty());
        assert!(forgotten(&mut ghosts, 1..2, 145, (144, len)).is_empty());
        assert_eq!(forgotten(&mut ghosts, 2..3, 146, (144, len)), [0]);
    }

    #[test]
    fn the_queue_is_as_long_as_a_few_times_the_shard() {
        for len in [1, 2, 9] {
            let mut ghosts = Ghosts::default();
            let max = REMEMBERED as usize * (len + 1);
            // One commit evicts all of them.
            for key in 0..3 * max {
                forgotten(&mut ghosts, key as u64..key as u64 + 1, 1000, (1000, len));
                assert_eq!(ghosts.queue.len(), max.min(key + 1), "{key} of {len}");
            }
        }
    }

    #[test]
    fn ghosts_are_found_after_the_table_has_doubled_several_times() {
        let mut ghosts = Ghosts::default();
        forgotten(&mut ghosts, 0..40, 1000, (10_000, 20));
        let before = ghosts.buckets.len();
        for (key, len) in [(40, 40), (41, 600), (42, 2000)] {
            forgotten(&mut ghosts, key..key + 1, 1000, (10_000, len));
        }
        assert_eq!((before, ghosts.buckets.len(), all(&ghosts)), (32, 4096, 43));
        for key in 0..43 {
            let found = ghosts.take(hash(key), 1000, 10_000);
            let uses = (key as u8).min(31);
            assert_eq!(found, Some(Ghost { used: 999, uses, forgotten: None }), "{key}");
        }
        assert_eq!(all(&ghosts), 0);
    }
}
