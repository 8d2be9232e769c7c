//! *Hot sizes*: the sizes that are cached, and their classes.
//!
//! A size is hot if the user named it, or if it was detected: a thread allocated it repeatedly
//! among sizes that are not hot. Requests that fail do not count, because a caller may repeat one
//! until it has freed enough. Each thread counts in a small table of its own, the [`Detector`],
//! which it may share if there are many threads: nothing that all threads write is on the way of a
//! request. Candidates are in this table, indexed by a hash of the size. A request for another size
//! with the same hash decrements the candidate's count before it replaces the candidate. So sizes
//! that are all different never become hot, and a size that makes up half of the requests of its
//! entry becomes hot after a few. When all classes are taken, all detected sizes are forgotten
//! together, at most once every 2^14 requests for other sizes. Traffic can change, for example when
//! a server loads another model, and sizes that are still hot are soon detected again. If no size
//! stands out among 2^12 requests, detection pauses for 2^16.
//!
//! Where caching costs more than it saves, as where several sizes share a full space, all sizes are
//! *suspended*: none is hot until a thread has made 2^16 requests. Then the named ones are hot
//! again, and this thread detects others. Each time that caching pays no better, the next
//! suspension is twice as long, up to 2^22 requests.
//!
//! All tables are read without a lock, and a reader may see outdated entries. The authoritative
//! check is [`keeps`](HotSizes::keeps), which runs under the owner's lock, and a thread that takes
//! a range checks the range's size.

use std::ptr;

use crate::sync::{AtomicU32, AtomicU64, AtomicUsize, Ordering, fence, thread_number};

/// The number of sizes that can be hot at the same time.
pub(super) const CLASSES: usize = 32;
/// At most a quarter of the buckets is in use, so a size is found with the first or second load.
const BUCKETS: usize = 4 * CLASSES;
const CANDIDATES: usize = 64;
/// The number of detectors. More threads than these share them.
const DETECTORS: usize = 16;
/// A candidate becomes hot when its requests exceed the other requests of its entry by this number.
const REQUESTS_TO_BE_HOT: u32 = 8;
/// The number of requests for sizes that are not hot before detected sizes are forgotten.
const FORGET_AFTER_REQUESTS: u32 = 1 << 14;
/// The number of requests for which no size is hot after caching did not pay off, at first and at
/// most.
const SUSPENDED_REQUESTS: (u32, u32) = (1 << 16, 1 << 22);
/// The number of requests without a hot size after which detection pauses for the least number of
/// requests.
const PAUSE_AFTER_REQUESTS: u32 = 1 << 12;
/// If at least this many ranges were cached since the last suspension, the next one is short.
const PAID_PUTS: u32 = 1 << 15;

/// When sizes are detected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Detection {
    /// Never.
    Off,
    /// After the first free. Until then nothing is cached, so the space places ranges in the order
    /// of the requests.
    AfterFirstFree,
    /// At all times.
    On,
}

impl Detection {
    const fn number(self) -> u32 {
        self as u32
    }
}

pub(super) struct HotSizes {
    /// A hot size in the upper half, its class plus one in the lower half; 0 if empty. A size is
    /// in the bucket of its hash or in the next free one.
    buckets: [AtomicU64; BUCKETS],
    /// The size of each class; 0 if it has none.
    sizes: [AtomicU32; CLASSES],
    /// The number of classes in use, from 0 on.
    used: AtomicUsize,
    /// The number of these that the user named, from 0 on.
    named: AtomicUsize,
    /// Larger sizes are not detected.
    max_size: AtomicU32,
    /// The number of a [`Detection`].
    detection: AtomicU32,
    /// Even while no size is hot and nothing is cached. Counts the changes between that and the
    /// opposite: if a reader finds the same even number before and after, nothing was cached
    /// meanwhile.
    epoch: AtomicU32,
    /// The length of the next suspension.
    suspension: AtomicU32,
    detectors: [Detector; DETECTORS],
}

/// The requests of a thread for sizes that are not hot. Aligned to two cache lines, because
/// processors fetch lines in pairs.
#[repr(align(128))]
struct Detector {
    /// The number of requests for which the thread makes no size hot.
    suspended: AtomicU32,
    /// Requests for sizes that are not hot since detected sizes were last forgotten.
    cold_requests: AtomicU32,
    /// A candidate in the upper half, the count of its requests in the lower half.
    candidates: [AtomicU64; CANDIDATES],
}

/// Distributes sizes, which are often multiples of a power of two, over `2^BITS` entries.
#[inline(always)]
fn hash<const BITS: u32>(size: u32) -> usize {
    (size.wrapping_mul(0x9e37_79b1) >> (u32::BITS - BITS)) as usize
}

impl HotSizes {
    pub(super) fn new() -> Self {
        HotSizes {
            buckets: std::array::from_fn(|_| AtomicU64::new(0)),
            sizes: std::array::from_fn(|_| AtomicU32::new(0)),
            used: AtomicUsize::new(0),
            named: AtomicUsize::new(0),
            max_size: AtomicU32::new(0),
            detection: AtomicU32::new(Detection::Off.number()),
            epoch: AtomicU32::new(0),
            suspension: AtomicU32::new(SUSPENDED_REQUESTS.0),
            detectors: std::array::from_fn(|_| Detector {
                suspended: AtomicU32::new(0),
                cold_requests: AtomicU32::new(0),
                candidates: std::array::from_fn(|_| AtomicU64::new(0)),
            }),
        }
    }

    /// Returns the class of a hot size.
    #[inline(always)]
    pub(super) fn class_of(&self, size: u32) -> Option<usize> {
        let mut at = hash::<{ BUCKETS.ilog2() }>(size);
        loop {
            // Relaxed: readers may see outdated entries; see the head of the module.
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

    /// Returns whether the class exists and has this size.
    pub(super) fn keeps(&self, class: usize, size: u32) -> bool {
        self.size_of(class) == size
    }

    /// Returns the size of a class, or 0 if it is not in use.
    pub(super) fn size_of(&self, class: usize) -> u32 {
        // Relaxed: changes only while all owners are stopped, as the number of classes in use does.
        if class < self.used() { self.sizes[class].load(Ordering::Relaxed) } else { 0 }
    }

    /// Returns the number of classes in use. It may grow between two calls, and shrinks only when
    /// all caches are empty.
    #[inline]
    pub(super) fn used(&self) -> usize {
        // Relaxed: a thread that puts a range under a class has seen it counted.
        self.used.load(Ordering::Relaxed)
    }

    /// Returns the number of classes that the user named.
    pub(super) fn named(&self) -> usize {
        // Relaxed: set once.
        self.named.load(Ordering::Relaxed)
    }

    /// Resets the tables for a new space. No thread may use them.
    pub(super) fn open(&self, detection: Detection, max_size: u32) {
        // Relaxed, all: no other thread uses the tables.
        self.named.store(0, Ordering::Relaxed);
        self.forget_detected();
        for detector in &self.detectors {
            detector.candidates.iter().for_each(|seen| seen.store(0, Ordering::Relaxed));
            detector.suspended.store(0, Ordering::Relaxed);
        }
        self.detection.store(detection.number(), Ordering::Relaxed);
        self.suspension.store(SUSPENDED_REQUESTS.0, Ordering::Relaxed);
        self.end_epoch();
        self.set_max_size(max_size);
    }

    /// Sets the largest size that is detected.
    pub(super) fn set_max_size(&self, max_size: u32) {
        // Relaxed: a hint.
        self.max_size.store(max_size, Ordering::Relaxed);
    }

    /// Records a free of a size that is not hot: detection that waits for the first one begins.
    #[inline]
    pub(super) fn record_free(&self) {
        let (waiting, on) = (Detection::AfterFirstFree.number(), Detection::On.number());
        // Relaxed, both: a hint. Compared again, so that detection does not begin after `close`.
        if self.detection.load(Ordering::Relaxed) == waiting {
            let _ =
                self.detection.compare_exchange(waiting, on, Ordering::Relaxed, Ordering::Relaxed);
        }
    }

    /// Returns true only if nothing was cached, and `and` true, at some moment during the call.
    #[inline(always)]
    pub(super) fn nothing_hot(&self, and: impl FnOnce() -> bool) -> bool {
        // Acquire pairs with the Release in `end_epoch`.
        let epoch = self.epoch.load(Ordering::Acquire);
        epoch.is_multiple_of(2) && and() && {
            // Acquire pairs with the Release fences of a thread that charges a magazine before it
            // takes ranges for it from the source: if `and` saw these missing, the epoch is odd.
            fence(Ordering::Acquire);
            self.epoch.load(Ordering::Relaxed) == epoch
        }
    }

    /// Returns the address of a number that is even while nothing is cached, and changes with that.
    pub(super) fn epoch_address(&self) -> *const u32 {
        // An atomic has the representation of its number.
        ptr::from_ref(&self.epoch).cast()
    }

    /// Makes the epoch even if no size is hot. Called when nothing is cached any more, and never by
    /// two threads at once.
    pub(super) fn end_epoch(&self) {
        // Relaxed: changed by one thread at a time.
        let epoch = self.epoch.load(Ordering::Relaxed);
        if self.used() == 0 && epoch % 2 == 1 {
            // Release pairs with the readers' Acquire: they see the ranges that were returned.
            self.epoch.store(epoch.wrapping_add(1), Ordering::Release);
        }
    }

    /// Makes all sizes cold for some time. `puts` ranges were cached since the last suspension.
    /// Called while nothing is cached.
    pub(super) fn suspend(&self, puts: u32) {
        self.forget_detected();
        // Relaxed, all: hints, and see the head of the module.
        self.buckets.iter().for_each(|bucket| bucket.store(0, Ordering::Relaxed));
        self.used.store(0, Ordering::Relaxed);
        let (min, max) = SUSPENDED_REQUESTS;
        let length = if puts >= PAID_PUTS { min } else { self.suspension.load(Ordering::Relaxed) };
        for detector in &self.detectors {
            detector.suspended.store(length, Ordering::Relaxed);
        }
        self.suspension.store((length * 2).min(max), Ordering::Relaxed);
    }

    /// Makes the named sizes hot again after a suspension; returns false if they are hot. Called
    /// while nothing is cached.
    pub(super) fn resume(&self) -> bool {
        let suspended = self.used() < self.named();
        if suspended {
            self.begin_epoch();
            self.forget_detected();
        }
        suspended
    }

    /// Makes the epoch odd before a size is hot. Called while nothing is cached.
    fn begin_epoch(&self) {
        // Relaxed, both: threads that use the size later synchronize with this one, because they
        // are stopped now; so a thread that sees a range cached sees an odd epoch.
        self.epoch.store(self.epoch.load(Ordering::Relaxed) | 1, Ordering::Relaxed);
    }

    /// Makes all sizes cold and stops the detection.
    pub(super) fn close(&self) {
        // Relaxed: a hint; see the head of the module.
        self.detection.store(Detection::Off.number(), Ordering::Relaxed);
        self.named.store(0, Ordering::Relaxed);
        self.forget_detected();
    }

    /// Forgets the detected sizes. Called while nothing is cached.
    pub(super) fn forget_detected(&self) {
        let named = self.named();
        // Relaxed, all: see the head of the module.
        self.sizes[named..].iter().for_each(|size| size.store(0, Ordering::Relaxed));
        self.buckets.iter().for_each(|bucket| bucket.store(0, Ordering::Relaxed));
        self.used.store(named, Ordering::Relaxed);
        for detector in &self.detectors {
            detector.cold_requests.store(0, Ordering::Relaxed);
        }
        for class in 0..named {
            self.insert(self.size_of(class), class);
        }
    }

    /// Gives the size the next class. Called while nothing is cached. Returns `None` if the size is
    /// hot already or all classes are taken.
    pub(super) fn bind(&self, size: u32, named: bool) -> Option<usize> {
        let class = self.used();
        if class == CLASSES || self.class_of(size).is_some() {
            return None;
        }
        self.begin_epoch();
        // Relaxed, all: see the head of the module.
        self.sizes[class].store(size, Ordering::Relaxed);
        self.used.store(class + 1, Ordering::Relaxed);
        if named {
            self.named.store(class + 1, Ordering::Relaxed);
        }
        self.insert(size, class);
        Some(class)
    }

    /// Enters a hot size in the first free bucket from its hash on.
    fn insert(&self, size: u32, class: usize) {
        let mut at = hash::<{ BUCKETS.ilog2() }>(size);
        // Relaxed, both: see the head of the module.
        while self.buckets[at % BUCKETS].load(Ordering::Relaxed) != 0 {
            at += 1;
        }
        self.buckets[at % BUCKETS]
            .store(u64::from(size) << 32 | (class as u64 + 1), Ordering::Relaxed);
    }

    /// Returns the detector of the calling thread.
    #[inline]
    fn detector(&self) -> &Detector {
        &self.detectors[thread_number() % DETECTORS]
    }

    /// Records an allocation of a size that is not hot; returns whether sizes should become hot.
    #[inline]
    pub(super) fn record_request(&self, size: u64) -> bool {
        let detector = self.detector();
        // Relaxed, all: if threads overwrite each other's counts, a request or two is not counted.
        let suspended = detector.suspended.load(Ordering::Relaxed);
        if suspended > 0 {
            detector.suspended.store(suspended - 1, Ordering::Relaxed);
            return false;
        }
        if self.used() < self.named() {
            return true;
        }
        let on = self.detection.load(Ordering::Relaxed) == Detection::On.number();
        if !on || size > u64::from(self.max_size.load(Ordering::Relaxed)) {
            return false;
        }
        let cold = detector.cold_requests.load(Ordering::Relaxed).saturating_add(1);
        detector.cold_requests.store(cold, Ordering::Relaxed);
        if cold >= PAUSE_AFTER_REQUESTS && self.used() == 0 {
            detector.cold_requests.store(0, Ordering::Relaxed);
            detector.suspended.store(SUSPENDED_REQUESTS.0, Ordering::Relaxed);
            return false;
        }
        let candidate = &detector.candidates[hash::<{ CANDIDATES.ilog2() }>(size as u32)];
        let seen = candidate.load(Ordering::Relaxed);
        let count = seen as u32;
        let next = match seen >> 32 == size {
            true if count + 1 >= REQUESTS_TO_BE_HOT => {
                candidate.store(0, Ordering::Relaxed);
                return self.used() < CLASSES || self.should_forget_detected();
            }
            true => seen + 1,
            false if count > 1 => seen - 1,
            false => size << 32 | 1,
        };
        candidate.store(next, Ordering::Relaxed);
        false
    }

    /// Returns whether all classes are taken, some of them by detected sizes, and enough requests
    /// of the calling thread were for other sizes.
    pub(super) fn should_forget_detected(&self) -> bool {
        // Relaxed: a hint.
        self.used() == CLASSES
            && self.named() < CLASSES
            && self.detector().cold_requests.load(Ordering::Relaxed) >= FORGET_AFTER_REQUESTS
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    fn request(hot: &HotSizes, size: u32) -> bool {
        let now = hot.record_request(u64::from(size));
        if now {
            if hot.should_forget_detected() {
                hot.forget_detected();
            }
            assert!(hot.bind(size, false).is_some());
        }
        now
    }

    #[test]
    fn all_classes_are_found_whatever_their_sizes() {
        for step in [1, 16, 4096, 1 << 20, 658_432, 3_274_752 / 3] {
            let hot = HotSizes::new();
            hot.open(Detection::On, u32::MAX);
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
        hot.open(Detection::On, 1 << 30);
        assert!(
            (1..100_000).all(|i| !hot.record_request(u64::from(i * 7919u32 % (1 << 30)))),
            "all are different"
        );
        let hot = HotSizes::new();
        hot.open(Detection::On, 1 << 30);
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
    fn threads_that_allocate_sizes_of_their_own_find_each_of_them() {
        let hot = HotSizes::new();
        hot.open(Detection::On, 1 << 30);
        std::thread::scope(|scope| {
            for thread in 0..4u32 {
                let hot = &hot;
                // Half of the requests of each thread are for one size, and no other one repeats.
                scope.spawn(move || {
                    let size = |i: u32| match i.is_multiple_of(2) {
                        true => 4096,
                        false => thread << 20 | (i + 10_000),
                    };
                    let found = (0..1000u32).position(|i| hot.record_request(u64::from(size(i))));
                    assert!(found.is_some_and(|requests| requests < 40), "{thread}: {found:?}");
                });
            }
        });
    }

    #[test]
    fn detection_waits_for_the_first_free() {
        let hot = HotSizes::new();
        hot.open(Detection::AfterFirstFree, 1 << 30);
        assert!((0..100).all(|_| !hot.record_request(4096)));
        hot.record_free();
        assert!((0..100).any(|_| hot.record_request(4096)));
        hot.close();
        hot.record_free();
        assert!((0..100).all(|_| !hot.record_request(4096)), "it does not begin after the end");
        hot.open(Detection::Off, 1 << 30);
        hot.record_free();
        assert!((0..100).all(|_| !hot.record_request(4096)));
    }

    #[test]
    fn an_epoch_is_even_while_nothing_is_cached() {
        let hot = HotSizes::new();
        hot.open(Detection::On, 1 << 30);
        let epoch = || hot.epoch.load(Ordering::Relaxed);
        assert_eq!(epoch() % 2, 0);
        while !request(&hot, 4096) {}
        let odd = epoch();
        assert_eq!(odd % 2, 1);
        hot.end_epoch();
        assert_eq!(epoch(), odd, "a size is hot");
        hot.suspend(0);
        assert_eq!(epoch(), odd, "cached ranges are on their way back");
        hot.end_epoch();
        assert_eq!(epoch(), odd + 1);
        let requests = (0..).position(|_| request(&hot, 4096));
        assert_eq!(requests, Some((SUSPENDED_REQUESTS.0 + REQUESTS_TO_BE_HOT - 1) as usize));
    }

    #[test]
    fn pauses_grow_until_caching_has_paid() {
        let hot = HotSizes::new();
        hot.open(Detection::On, u32::MAX);
        let pause = || hot.detector().suspended.load(Ordering::Relaxed);
        for length in [16, 17, 18, 19, 20, 21, 22, 22] {
            hot.suspend(PAID_PUTS - 1);
            assert_eq!(pause(), 1 << length);
        }
        for (puts, length) in [(PAID_PUTS, 16), (0, 17), (PAID_PUTS, 16)] {
            hot.suspend(puts);
            assert_eq!(pause(), 1 << length);
        }
        hot.open(Detection::On, u32::MAX);
        assert_eq!(pause(), 0);
        // No size stands out.
        for size in 1..PAUSE_AFTER_REQUESTS {
            assert!(!request(&hot, size) && pause() == 0);
        }
        assert!(!request(&hot, 77));
        assert_eq!(pause(), SUSPENDED_REQUESTS.0);
    }

    #[test]
    fn what_was_learnt_is_forgotten_when_traffic_changes_and_names_stay() {
        let hot = HotSizes::new();
        hot.open(Detection::On, 1 << 30);
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
        // The detected sizes counted as requests for cold sizes until they became hot.
        assert!(
            requested + CLASSES as u32 * REQUESTS_TO_BE_HOT >= FORGET_AFTER_REQUESTS,
            "{requested}"
        );
        assert_eq!(
            (hot.class_of(77), hot.class_of(5), hot.class_of(1000)),
            (Some(0), Some(1), None)
        );
    }
}
