//! *Reuse*: the worth of a block, learned from the uses of other blocks.
//!
//! A cached block occupies its place for a time, and is worth the uses that it gets meanwhile. Two
//! things predict the next use of a block: its *kind*, which is how often it was used before, and
//! its *age*, which is the time since its last use. A block that was inserted and never used may
//! belong to a scan. A block that was used twenty times and is now older than ever before may not
//! be used again. The cache therefore counts, by kind and age, at which age blocks are used again,
//! including blocks that were evicted recently, and how many are not. These counts give a *worth*
//! for each kind at each age: the maximum number of uses per time that places are occupied, over
//! all horizons *T*:
//!
//! ```text
//!                       uses between ages a and T, of blocks that reached age a
//!   worth(a) =  max    ─────────────────────────────────────────────────────────
//!              T > a    time that those blocks spend between a and T
//! ```
//!
//! This is Gittins' index (*Bandit processes and dynamic allocation indices*, J. R. Stat. Soc. B
//! 41, 1979) of a place. If reuse depends on age alone, the index decides which object to evict:
//! Aalto, Ayesta and Righter (*On the Gittins index in the M/G/1 queue*, Queueing Systems 63, 2009)
//! show it for jobs. Beckmann, Chen and Cidon (*LHD: improving cache hit rate by maximizing hit
//! density*, NSDI 2018) use it for caches; the counts by class and age are theirs.
//!
//! Two rules keep prefixes whole. Each use of a block uses its prefix, too. The prefix is therefore
//! never older than the block, and never of a lower kind. *Worth falls with age, and rises with
//! kind*: the model overrules counts that say otherwise. The start of a prefix is therefore never
//! evicted before its end.
//!
//! The counts say nothing of ages that no block of a kind has reached. There the model expects the
//! kind's overall share of uses, spread evenly over the logarithm of the age. Blocks that were used
//! repeatedly therefore outlive a scan that is longer than all earlier ones.
//!
//! For the first [`FIRST`] model updates, worth is 1 / age for all kinds: the order of LRU.

use crate::sync::{AtomicU32, AtomicU64, Mutex, Ordering};

use super::clock::{ORDERS, Time};
use super::shadow_lru::Comparison;

/// Number of kinds of blocks, by their uses since they were inserted.
pub(super) const KINDS: usize = ORDERS;
/// Number of buckets: four per octave of ages. Ages above 2^28 blocks count as 2^28.
const BUCKETS: usize = 4 * 28;
/// Each model update multiplies all counts by this factor.
const KEPT: f32 = 0.9;
/// Weight of the prior, in blocks of each kind: they behave like the kind as a whole, at any age.
const PRIOR: f32 = 64.0;
/// The minimum number of blocks inserted between two model updates.
const LEAST: Time = 64;
/// Number of model updates before the learned worths are used. Blocks that are evicted and not used
/// again are counted only when they are forgotten.
const FIRST: u32 = 4;

/// Returns the kind of a block that was used `uses` times.
#[inline]
pub(super) fn kind(uses: u8) -> usize {
    match uses {
        0 => 0,
        1 => 1,
        2..=3 => 2,
        4..=15 => 3,
        16.. => 4,
    }
}

#[inline]
fn bucket(age: Time) -> usize {
    let age = age + 1;
    let octave = age.ilog2() as usize;
    // The two bits below the highest.
    let quarter = ((age << 2) >> octave) as usize & 3;
    (4 * octave + quarter).min(BUCKETS - 1)
}

/// Returns the age at which a bucket begins, plus 1.
fn edge(bucket: usize) -> f32 {
    (1u64 << (bucket / 4)) as f32 * (1.0 + (bucket % 4) as f32 / 4.0)
}

/// An outcome for a block: it was used at an age, or it was not used until it was forgotten.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Event(u16);

impl Event {
    pub(super) fn used(uses: u8, age: Time) -> Event {
        Event(3 * Self::cell(uses, age) + 1)
    }

    /// Makes the event of a block that was forgotten at an age and then used after all.
    pub(super) fn returned(uses: u8, age: Time) -> Event {
        Event(3 * Self::cell(uses, age) + 2)
    }

    pub(super) fn forgotten(uses: u8, age: Time) -> Event {
        Event(3 * Self::cell(uses, age))
    }

    fn cell(uses: u8, age: Time) -> u16 {
        (kind(uses) * BUCKETS + bucket(age)) as u16
    }
}

/// A number for each kind and bucket.
type Table = [[f32; BUCKETS]; KINDS];

#[derive(Debug)]
struct Counts {
    used: Table,
    forgotten: Table,
    rounds: u32,
}

/// The model that all shards of a cache learn together.
#[derive(Debug)]
pub(in crate::cache) struct Reuse {
    /// The worths, each as the bits of an `f32`.
    worth: [[AtomicU32; BUCKETS]; KINDS],
    /// The time of the next model update.
    due: AtomicU64,
    counts: Mutex<Box<Counts>>,
    /// The comparison of hits with those of LRU.
    pub(super) comparison: Comparison,
}

impl Default for Reuse {
    fn default() -> Self {
        let zero = [[0.0; BUCKETS]; KINDS];
        let counts = Counts { used: zero, forgotten: zero, rounds: 0 };
        let lru = |bucket| AtomicU32::new((1.0 / edge(bucket)).to_bits());
        Reuse {
            worth: std::array::from_fn(|_| std::array::from_fn(lru)),
            due: AtomicU64::new(0),
            counts: Mutex::new(Box::new(counts)),
            comparison: Comparison::default(),
        }
    }
}

impl Reuse {
    /// Returns the worth of a block of a kind at an age. O(1).
    #[inline]
    pub(super) fn worth(&self, kind: usize, age: Time) -> f32 {
        // Relaxed: each is a figure for itself.
        f32::from_bits(self.worth[kind][bucket(age)].load(Ordering::Relaxed))
    }

    /// Counts events, and empties the list.
    pub(super) fn count(&self, events: &mut Vec<Event>) {
        let mut guard = self.counts.lock();
        let Counts { used, forgotten, .. } = &mut **guard;
        for Event(event) in events.drain(..) {
            let (kind, bucket) = (event as usize / 3 / BUCKETS, event as usize / 3 % BUCKETS);
            let forgotten = &mut forgotten[kind][bucket];
            match event % 3 {
                0 => *forgotten += 1.0,
                1 => used[kind][bucket] += 1.0,
                _ => *forgotten = (*forgotten - 1.0).max(0.0),
            }
        }
    }

    /// Returns whether a model update is due, for a cache that holds `held` blocks. An update is
    /// due four times while as many blocks are inserted as are held.
    #[inline]
    pub(super) fn is_due(&self, now: Time, held: u64) -> bool {
        // Relaxed, both: a thread that sees an old figure only updates the model once more.
        let due = now >= self.due.load(Ordering::Relaxed);
        if due {
            self.due.store(now + (held / 4).max(LEAST), Ordering::Relaxed);
        }
        due
    }

    /// Updates the model: computes new worths from the counts. O(kinds × buckets²) at most, some
    /// ten thousand steps.
    #[cold]
    pub(super) fn learn(&self) {
        self.comparison.update();
        let mut counts = self.counts.lock();
        counts.rounds = counts.rounds.saturating_add(1);
        if counts.rounds > FIRST {
            let learned = worths(&counts);
            for (shown, worth) in self.worth.iter().flatten().zip(learned.iter().flatten()) {
                // Relaxed: as in `worth`.
                shown.store(worth.to_bits(), Ordering::Relaxed);
            }
        }
        let Counts { used, forgotten, .. } = &mut **counts;
        used.iter_mut().chain(forgotten).flatten().for_each(|count| *count *= KEPT);
    }
}

/// Returns the worths that follow from the counts.
fn worths(counts: &Counts) -> Table {
    let sum = |table: &[f32; BUCKETS]| table.iter().sum::<f32>();
    let all_used: f32 = counts.used.iter().map(sum).sum();
    let all: f32 = all_used + counts.forgotten.iter().map(sum).sum::<f32>();
    let share_of_all = if all > 0.0 { all_used / all } else { 0.5 };
    let mut worth = [[0.0; BUCKETS]; KINDS];
    let lengths: [f32; BUCKETS] = std::array::from_fn(|at| edge(at + 1) - edge(at));
    for kind in 0..KINDS {
        let (known_used, known_forgotten) = (&counts.used[kind], &counts.forgotten[kind]);
        let known = sum(known_used) + sum(known_forgotten);
        // The prior: the kind's share of uses, spread evenly over the logarithm of the age.
        let share = (sum(known_used) + PRIOR * share_of_all) / (known + PRIOR);
        let used: [f32; BUCKETS] =
            std::array::from_fn(|at| known_used[at] + PRIOR * share / BUCKETS as f32);
        let ended: [f32; BUCKETS] = std::array::from_fn(|at| {
            used[at]
                + known_forgotten[at]
                + if at == BUCKETS - 1 { PRIOR * (1.0 - share) } else { 0.0 }
        });
        // The number of blocks that reached the beginning of each bucket.
        let mut came = [0.0f32; BUCKETS + 1];
        (0..BUCKETS).rev().for_each(|at| came[at] = came[at + 1] + ended[at]);
        for from in 0..BUCKETS {
            let (mut uses, mut time, mut best) = (0.0f32, 0.0f32, 0.0f32);
            for at in from..BUCKETS {
                if came[at] <= 0.0 {
                    break;
                }
                uses += used[at];
                time += (came[at] + came[at + 1]) / 2.0 * lengths[at];
                best = best.max(uses / time);
            }
            worth[kind][from] = best;
            if from > 0 {
                // Worth falls with age.
                worth[kind][from] = best.min(worth[kind][from - 1]);
            }
        }
        if kind > 0 {
            // Worth rises with kind.
            let (lower, higher) = worth.split_at_mut(kind);
            for (worth, least) in higher[0].iter_mut().zip(&lower[kind - 1]) {
                *worth = worth.max(*least);
            }
        }
    }
    worth
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn buckets_follow_each_other_and_hold_the_ages_between_their_edges() {
        let mut last = 0;
        for age in (0..5000).chain([1 << 20, 1 << 27, 1 << 40]) {
            let at = bucket(age);
            assert!(at >= last && at < BUCKETS, "{age}");
            assert!(
                edge(at) <= (age + 1) as f32
                    && (at == BUCKETS - 1 || ((age + 1) as f32) < edge(at + 1))
            );
            last = at;
        }
        assert_eq!(last, BUCKETS - 1);
    }

    #[test]
    fn before_anything_is_learned_the_oldest_is_worth_least_whatever_its_kind() {
        let reuse = Reuse::default();
        for age in [0, 10, 1000, 100_000] {
            assert!((1..KINDS).all(|kind| reuse.worth(kind, age) == reuse.worth(0, age)));
            assert!(reuse.worth(0, age) > reuse.worth(0, 2 * age + 1));
        }
    }

    #[test]
    fn a_block_used_once_is_worth_less_than_one_that_returns_and_less_with_age() {
        let reuse = Reuse::default();
        for _ in 0..20 {
            let mut events = Vec::new();
            for number in 0..100 {
                // New ones are seldom used; those that were, are used at an age of about 1000 or
                // never.
                let new = if number < 5 { Event::used(0, 500) } else { Event::forgotten(0, 4000) };
                let old = if number < 80 {
                    Event::used(1, 900 + number)
                } else {
                    Event::forgotten(1, 4000)
                };
                events.extend([new, old]);
            }
            reuse.count(&mut events);
            assert!(events.is_empty());
            reuse.learn();
        }
        assert!(reuse.worth(0, 100) < 0.2 * reuse.worth(1, 100));
        assert!(reuse.worth(1, 3000) < 0.2 * reuse.worth(1, 800));
        for kind in 0..KINDS {
            for age in 0..5000 {
                assert!(reuse.worth(kind, age + 1) <= reuse.worth(kind, age), "it falls with age");
                assert!(
                    kind == 0 || reuse.worth(kind - 1, age) <= reuse.worth(kind, age),
                    "it rises with kind"
                );
            }
        }
    }

    #[test]
    fn it_is_due_once_in_a_quarter_of_what_is_held() {
        let reuse = Reuse::default();
        let due = (0..1000).filter(|&now| reuse.is_due(now, 400)).count();
        assert_eq!(due, 10);
        let due = (1000..1000 + 10 * LEAST).filter(|&now| reuse.is_due(now, 3)).count();
        assert_eq!(due, 10, "not for each block of a small one");
    }

    /// Returns the numbers of uses and of forgotten blocks that are counted for a kind at an age.
    fn counted(reuse: &Reuse, kind: usize, age: Time) -> (f32, f32) {
        let counts = reuse.counts.lock();
        (counts.used[kind][bucket(age)], counts.forgotten[kind][bucket(age)])
    }

    #[test]
    fn events_are_counted_by_kind_and_age_and_a_return_takes_a_forgotten_one_back() {
        let reuse = Reuse::default();
        let (used, forgotten, returned) = (Event::used, Event::forgotten, Event::returned);
        // One of each kind, with as many uses as the kind begins or ends with.
        for (kind, uses) in [(0, 0), (1, 1), (2, 2), (2, 3), (3, 4), (3, 15), (4, 16), (4, 255)] {
            let age = 100 + 1000 * kind as Time;
            let before = counted(&reuse, kind, age);
            reuse.count(&mut vec![used(uses, age), forgotten(uses, age), forgotten(uses, age)]);
            assert_eq!(counted(&reuse, kind, age), (before.0 + 1.0, before.1 + 2.0), "{uses} uses");
            reuse.count(&mut vec![returned(uses, age)]);
            assert_eq!(counted(&reuse, kind, age), (before.0 + 1.0, before.1 + 1.0), "{uses} uses");
        }
        reuse.count(&mut vec![returned(0, 100), returned(0, 100), used(0, 1 << 40)]);
        assert_eq!(counted(&reuse, 0, 100), (1.0, 0.0), "there is none left to take back");
        assert_eq!(counted(&reuse, 0, Time::from(u32::MAX)), (1.0, 0.0), "the oldest share one");
        let counts = reuse.counts.lock();
        let sum = |table: &Table| table.iter().flatten().sum::<f32>();
        assert_eq!((sum(&counts.used), sum(&counts.forgotten)), (9.0, 7.0));
    }

    #[test]
    fn worths_are_shown_after_the_first_updates_and_counts_fade_with_each() {
        let reuse = Reuse::default();
        let lru = reuse.worth(0, 1000);
        reuse.count(&mut (0..1000).map(|_| Event::forgotten(0, 1000)).collect());
        for round in 1..=FIRST {
            reuse.learn();
            assert_eq!(reuse.worth(0, 1000), lru, "after {round} updates");
        }
        let left = 1000.0 * KEPT.powi(FIRST as i32);
        assert!((counted(&reuse, 0, 1000).1 - left).abs() < 0.01);
        let expected = worths(&reuse.counts.lock());
        reuse.learn();
        assert!(reuse.worth(0, 1000) < 0.5 * lru);
        for (kind, worths) in expected.iter().enumerate() {
            for (at, &worth) in worths.iter().enumerate() {
                assert_eq!(reuse.worth(kind, edge(at).ceil() as Time - 1), worth, "{kind} {at}");
            }
        }
    }

    /// Computes the worths from the formula at the head of the file.
    fn naive(counts: &Counts) -> Vec<Vec<f64>> {
        let sum = |row: &[f32; BUCKETS]| row.iter().map(|&it| f64::from(it)).sum::<f64>();
        let used_in_all: f64 = counts.used.iter().map(sum).sum();
        let all = used_in_all + counts.forgotten.iter().map(sum).sum::<f64>();
        let share_of_all = if all == 0.0 { 0.5 } else { used_in_all / all };
        let (prior, last) = (f64::from(PRIOR), BUCKETS - 1);
        let mut worths: Vec<Vec<f64>> = Vec::new();
        for (used, forgotten) in counts.used.iter().zip(&counts.forgotten) {
            let known = sum(used) + sum(forgotten);
            let share = (sum(used) + prior * share_of_all) / (known + prior);
            // The uses at an age, and the blocks that reach no later one.
            let uses = |at: usize| f64::from(used[at]) + prior * share / BUCKETS as f64;
            let unused = |at: usize| if at == last { prior * (1.0 - share) } else { 0.0 };
            let end = |at: usize| uses(at) + f64::from(forgotten[at]) + unused(at);
            let reached: Vec<f64> = (0..=BUCKETS).map(|at| (at..BUCKETS).map(end).sum()).collect();
            // Blocks leave a bucket evenly over its length.
            let length = |at: usize| f64::from(edge(at + 1)) - f64::from(edge(at));
            let spent = |at: usize| (reached[at] + reached[at + 1]) / 2.0 * length(at);
            let mut kind: Vec<f64> = Vec::new();
            for from in 0..BUCKETS {
                let horizons = (from..BUCKETS).scan((0.0, 0.0), |(used, time), at| {
                    (*used, *time) = (*used + uses(at), *time + spent(at));
                    Some(*used / *time)
                });
                let best = horizons.fold(0.0, f64::max);
                kind.push(kind.last().map_or(best, |younger| best.min(*younger)));
            }
            if let Some(lower) = worths.last() {
                kind.iter_mut().zip(lower).for_each(|(worth, least)| *worth = worth.max(*least));
            }
            worths.push(kind);
        }
        worths
    }

    #[test]
    fn worths_are_the_most_uses_per_time_over_all_horizons() {
        let mut random = 1u64;
        for (every, most) in [(0, 0), (1, 100), (7, 1000), (40, 10), (113, 100_000)] {
            let mut next = |at: usize| {
                random = random.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(1);
                let count = (random >> 33) % most.max(1);
                if every > 0 && at.is_multiple_of(every) { count as f32 } else { 0.0 }
            };
            let zero = [[0.0; BUCKETS]; KINDS];
            let mut counts = Counts { used: zero, forgotten: zero, rounds: 0 };
            for table in [&mut counts.used, &mut counts.forgotten] {
                table.iter_mut().flatten().enumerate().for_each(|(at, it)| *it = next(at));
            }
            let expected = naive(&counts);
            for (kind, worths) in worths(&counts).iter().enumerate() {
                for (at, &worth) in worths.iter().enumerate() {
                    let (worth, expected) = (f64::from(worth), expected[kind][at]);
                    let is_near = (worth - expected).abs() <= 1e-3 * expected;
                    assert!(is_near, "every {every}: {worth}, {expected} of {kind} at {at}");
                }
            }
        }
    }
}
