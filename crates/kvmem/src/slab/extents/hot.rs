//! *Hot sizes*: which sizes are cached, and as which class.
//!
//! Hot is what the user named, and what is learnt: a size that is asked for again and again among
//! those that are not hot yet. Candidates stand in a small table by a hash of the size; a request
//! for another size of the same place wears the one that stands there down before it takes the
//! place. So sizes that are all different never become hot, and one that makes up half of the
//! requests of its place does after a few. When all classes are taken, those that were learnt are
//! forgotten together, but not often: traffic may change, as when a server loads another model, and
//! what is still hot is soon learnt again.
//!
//! All tables are read without a lock and may be out of date for the reader:
//! [`keeps`](HotSizes::keeps), asked under the owner's lock, is what counts, and who gets a range
//! looks at its size.

use crate::sync::{AtomicU32, AtomicU64, AtomicUsize, Ordering};

/// Sizes that can be hot at the same time.
pub(super) const CLASSES: usize = 32;
/// A quarter of them is in use at most, so that a size is found at the first look or the second.
const BUCKETS: usize = 4 * CLASSES;
const CANDIDATES: usize = 64;
/// So many requests more than those of others at its place, and a candidate is hot.
const REQUESTS_TO_BE_HOT: u32 = 8;
/// Requests for sizes that are not hot before what was learnt is forgotten.
const FORGET_AFTER_REQUESTS: u32 = 1 << 14;

pub(super) struct HotSizes {
    /// A hot size above, its class plus one below; 0 for none. A size stands at the place of its
    /// hash or the next free one.
    buckets: [AtomicU64; BUCKETS],
    /// The size of each class; 0 for none.
    sizes: [AtomicU32; CLASSES],
    /// Classes in use, from 0 on.
    used: AtomicUsize,
    /// Of those, which the user named, from 0 on.
    named: AtomicUsize,
    /// No larger size is learnt.
    max_size: AtomicU32,
    /// Sizes are learnt.
    auto: AtomicU32,
    /// A candidate above, how often it was asked for below.
    candidates: [AtomicU64; CANDIDATES],
    /// Requests for sizes that are not hot since something was forgotten.
    cold_requests: AtomicU32,
}

/// Scatters sizes, which are often multiples of a power of two, over `2^BITS` places.
#[inline(always)]
fn hash<const BITS: u32>(size: u32) -> usize {
    (size.wrapping_mul(0x9e37_79b1) >> (u32::BITS - BITS)) as usize
}

impl HotSizes {
    pub(super) fn new() -> Self {
        HotSizes {
            buckets: [const { AtomicU64::new(0) }; BUCKETS],
            sizes: [const { AtomicU32::new(0) }; CLASSES],
            used: AtomicUsize::new(0),
            named: AtomicUsize::new(0),
            max_size: AtomicU32::new(0),
            auto: AtomicU32::new(0),
            candidates: [const { AtomicU64::new(0) }; CANDIDATES],
            cold_requests: AtomicU32::new(0),
        }
    }

    /// The class of a hot size.
    #[inline(always)]
    pub(super) fn class_of(&self, size: u32) -> Option<usize> {
        let mut at = hash::<{ BUCKETS.ilog2() }>(size);
        loop {
            // Relaxed: see the head.
            let bucket = self.buckets[at % BUCKETS].load(Ordering::Relaxed);
            if (bucket >> 32) as u32 == size {
                return (bucket as u32 as usize).checked_sub(1);
            }
            if bucket == 0 {
                return None;
            }
            at += 1;
        }
    }

    /// Whether this is a class, of this size.
    pub(super) fn keeps(&self, class: usize, size: u32) -> bool {
        self.size_of(class) == size
    }

    /// The size of a class, or 0.
    pub(super) fn size_of(&self, class: usize) -> u32 {
        // Relaxed: changes between the owners' locks.
        self.sizes.get(class).map_or(0, |size| size.load(Ordering::Relaxed))
    }

    /// Classes in use. A later call may say more, and fewer only when all are empty.
    #[inline]
    pub(super) fn used(&self) -> usize {
        // Relaxed: who puts a range under a class has seen it counted.
        self.used.load(Ordering::Relaxed)
    }

    /// Classes that the user named.
    pub(super) fn named(&self) -> usize {
        // Relaxed: set once.
        self.named.load(Ordering::Relaxed)
    }

    /// Begins anew. Nobody uses the tables.
    pub(super) fn open(&self, auto: bool, max_size: u32) {
        // Relaxed, all: nobody uses them.
        self.named.store(0, Ordering::Relaxed);
        self.forget_learned();
        self.candidates.iter().for_each(|candidate| candidate.store(0, Ordering::Relaxed));
        self.auto.store(u32::from(auto), Ordering::Relaxed);
        self.set_max_size(max_size);
    }

    /// No larger size is learnt from now on.
    pub(super) fn set_max_size(&self, max_size: u32) {
        // Relaxed: a hint.
        self.max_size.store(max_size, Ordering::Relaxed);
    }

    /// Nothing is hot any more, and nothing is learnt.
    pub(super) fn close(&self) {
        // Relaxed: a hint; see the head.
        self.auto.store(0, Ordering::Relaxed);
        self.named.store(0, Ordering::Relaxed);
        self.forget_learned();
    }

    /// Forgets what was learnt. While nothing is cached.
    pub(super) fn forget_learned(&self) {
        let named = self.named();
        // Relaxed, all: see the head.
        self.sizes[named..].iter().for_each(|size| size.store(0, Ordering::Relaxed));
        self.buckets.iter().for_each(|bucket| bucket.store(0, Ordering::Relaxed));
        self.used.store(named, Ordering::Relaxed);
        self.cold_requests.store(0, Ordering::Relaxed);
        for class in 0..named {
            self.bucket(self.size_of(class), class);
        }
    }

    /// Has the size be the next class. While nothing is cached. `None` if it is hot already or all
    /// classes are taken.
    pub(super) fn bind(&self, size: u32, named: bool) -> Option<usize> {
        let class = self.used();
        if class == CLASSES || self.class_of(size).is_some() {
            return None;
        }
        // Relaxed, all: see the head.
        self.sizes[class].store(size, Ordering::Relaxed);
        self.used.store(class + 1, Ordering::Relaxed);
        if named {
            self.named.store(class + 1, Ordering::Relaxed);
        }
        self.bucket(size, class);
        Some(class)
    }

    fn bucket(&self, size: u32, class: usize) {
        let mut at = hash::<{ BUCKETS.ilog2() }>(size);
        // Relaxed, both: see the head.
        while self.buckets[at % BUCKETS].load(Ordering::Relaxed) != 0 {
            at += 1;
        }
        self.buckets[at % BUCKETS]
            .store(u64::from(size) << 32 | (class as u64 + 1), Ordering::Relaxed);
    }

    /// A request for a size that is not hot; whether it ought to be.
    #[inline]
    pub(super) fn record_request(&self, size: u64) -> bool {
        // Relaxed, all: what threads overwrite for each other is a request or two.
        let auto = self.auto.load(Ordering::Relaxed) != 0;
        if !auto || size.wrapping_sub(1) >= u64::from(self.max_size.load(Ordering::Relaxed)) {
            return false;
        }
        self.cold_requests
            .store(self.cold_requests.load(Ordering::Relaxed).saturating_add(1), Ordering::Relaxed);
        let candidate = &self.candidates[hash::<{ CANDIDATES.ilog2() }>(size as u32)];
        let seen = candidate.load(Ordering::Relaxed);
        let count = seen as u32;
        let next = match seen >> 32 == size {
            true if count + 1 >= REQUESTS_TO_BE_HOT => {
                candidate.store(0, Ordering::Relaxed);
                return self.has_room();
            }
            true => seen + 1,
            false if count > 1 => seen - 1,
            false => size << 32 | 1,
        };
        candidate.store(next, Ordering::Relaxed);
        false
    }

    /// Whether a size can be learnt: a class is left, or it is time to forget.
    fn has_room(&self) -> bool {
        self.used() < CLASSES || self.should_forget_learned()
    }

    /// Whether all classes are taken, some are learnt, and traffic has been for other sizes for
    /// some time.
    pub(super) fn should_forget_learned(&self) -> bool {
        // Relaxed: a hint.
        self.used() == CLASSES
            && self.named() < CLASSES
            && self.cold_requests.load(Ordering::Relaxed) >= FORGET_AFTER_REQUESTS
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(hot: &HotSizes, size: u32) -> bool {
        let now = hot.record_request(u64::from(size));
        if now {
            if hot.should_forget_learned() {
                hot.forget_learned();
            }
            assert!(hot.bind(size, false).is_some());
        }
        now
    }

    #[test]
    fn all_classes_are_found_whatever_their_sizes() {
        for step in [1, 16, 4096, 1 << 20, 658_432, 3_274_752 / 3] {
            let hot = HotSizes::new();
            hot.open(true, u32::MAX);
            let sizes: Vec<u32> = (1..=CLASSES as u32).map(|i| i * step).collect();
            for (class, &size) in sizes.iter().enumerate() {
                assert_eq!(hot.bind(size, true), Some(class));
                assert_eq!(hot.bind(size, true), None, "twice");
            }
            assert_eq!(hot.bind(7, true), None, "no class is left");
            for (class, &size) in sizes.iter().enumerate() {
                assert_eq!(hot.class_of(size), Some(class));
                assert!(hot.keeps(class, size) && !hot.keeps(class, size + 1));
            }
            assert_eq!((hot.class_of(0), hot.class_of(u32::MAX)), (None, None));
        }
    }

    #[test]
    fn sizes_that_come_again_are_learnt_and_others_are_not() {
        let hot = HotSizes::new();
        hot.open(true, 1 << 30);
        assert!(
            (1..100_000).all(|i| !hot.record_request(u64::from(i * 7919u32 % (1 << 30)))),
            "all are different"
        );
        let hot = HotSizes::new();
        hot.open(true, 1 << 30);
        let requested =
            (0..1000u32).position(|i| request(&hot, if i % 2 == 0 { 4096 } else { i + 10_000 }));
        assert!(requested.is_some_and(|requested| requested < 40), "{requested:?}");
        assert!(
            !hot.record_request((1 << 30) + 1) && !hot.record_request(0),
            "too large to be hot"
        );
        hot.close();
        assert!((0..100).all(|_| !hot.record_request(4096)));
        assert_eq!(hot.class_of(4096), None);
    }

    #[test]
    fn what_was_learnt_is_forgotten_when_traffic_changes_and_names_stay() {
        let hot = HotSizes::new();
        hot.open(true, 1 << 30);
        assert_eq!(hot.bind(77, true), Some(0));
        for size in 1..CLASSES as u32 {
            while !request(&hot, size * 1000) {}
        }
        assert_eq!(hot.used(), CLASSES);
        let mut requested = 0;
        while !request(&hot, 5) {
            requested += 1;
            assert!(requested <= 2 * FORGET_AFTER_REQUESTS);
        }
        // Those that were learnt were strangers until then.
        assert!(requested + CLASSES as u32 * REQUESTS_TO_BE_HOT >= FORGET_AFTER_REQUESTS, "{requested}");
        assert_eq!(
            (hot.class_of(77), hot.class_of(5), hot.class_of(1000)),
            (Some(0), Some(1), None)
        );
    }
}
