//! *Instance*: what all handles of one space share. It stays where it is for as long as the
//! process.
//!
//! A handle of 20 bytes has no room for a pointer and no use for a count; it has the number of its
//! space's core. Instances stand in a table by that number, and are used again with the core, which
//! is free only when no handle is left (see the offset layer's registry). So whoever holds a handle
//! finds the instance, open or shut.

use std::hint::assert_unchecked;
use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering};

use crate::offset::{AllocError, Ground, Range};
use crate::slab::magazine_settings::MagazineSettings;
use crate::slab::magazines::Magazines;
use crate::slab::source::RoundSource;
use crate::sync::{FIRST, Mutex, Stable};

use super::hot::{CLASSES, HotSizes};
use super::raw::RawTable;

static INSTANCES: Stable<InstancePtr> =
    Stable::new([const { InstancePtr::new(ptr::null_mut()) }; FIRST], InstancePtr::default);

/// Null until there is an instance.
type InstancePtr = AtomicPtr<ExtentInstance>;

/// A magazine holds so much of what may be stranded, where it can: all threads together have a few
/// dozen of them.
const MAGAZINE_SHARE: u64 = 16;
/// The most rounds of a new magazine, and of one that has grown.
const MAX_ROUNDS: (u64, u64) = (32, 256);
/// Full magazines that the depot keeps of a size: enough for threads that free what others
/// allocate. What lies here does not join its neighbours: in a full space of two sizes, of which a
/// twentieth is freed at a time, the smallest utilization was 0.9987 without this limit and is
/// 0.9992 with it, as without caches.
const MAX_FULL_MAGAZINES: usize = 8;
/// A magazine is not filled with more than this part of what is free: the last ranges are for who
/// asks for them.
const REFILL_SHARE: u64 = 16;

pub(super) struct ExtentInstance {
    ground: Ground,
    pub(super) hot: HotSizes,
    pub(super) magazines: Magazines<Range, SpaceSource>,
    /// Seals of raw handles.
    pub(super) raw: RawTable,
    /// Who binds classes.
    binding: Mutex<()>,
}

/// What an instance is opened with.
pub(super) struct InstanceOptions<'a> {
    pub(super) hot_sizes: &'a [u32],
    pub(super) auto: bool,
    pub(super) max_cached_bytes: u64,
}

/// The longest range that may be cached where so much may be stranded.
fn max_hot_size(max_cached_bytes: u64) -> u32 {
    u32::try_from(max_cached_bytes).map_or(u32::MAX - 1, |bytes| bytes.min(u32::MAX - 1))
}

impl ExtentInstance {
    /// That of a core, if it ever had one.
    #[inline(always)]
    pub(super) fn of(core: u32) -> Option<&'static ExtentInstance> {
        // Acquire pairs with the Release in `open`.
        let at = INSTANCES.get(core).load(Ordering::Acquire);
        // SAFETY: an instance is never freed.
        unsafe { at.as_ref() }
    }

    /// That of a core of which there is an extent.
    ///
    /// # Safety
    ///
    /// The core has had an instance.
    #[inline(always)]
    pub(super) unsafe fn known(core: u32) -> &'static ExtentInstance {
        // SAFETY: the caller's promise, and that it is never freed. Acquire pairs with the Release
        // in `open`.
        unsafe { &*INSTANCES.get(core).load(Ordering::Acquire) }
    }

    /// The class of a hot size.
    #[inline(always)]
    pub(super) fn class_of(&self, size: u32) -> Option<usize> {
        let class = self.hot.class_of(size)?;
        // SAFETY: the instance has as many classes as there are hot sizes. Without it the fast way
        // asks once more.
        unsafe { assert_unchecked(class < self.magazines.classes()) };
        Some(class)
    }

    /// Opens that of a space, which nobody uses yet.
    pub(super) fn open(ground: Ground, opening: &InstanceOptions<'_>) -> &'static ExtentInstance {
        let settings = || MagazineSettings {
            max_cached_bytes: Some(0),
            max_full_magazines: MAX_FULL_MAGAZINES,
            ..MagazineSettings::new(CLASSES)
        };
        let instance = Self::of(ground.index()).unwrap_or_else(|| {
            let new: &'static ExtentInstance = Box::leak(Box::new(ExtentInstance {
                ground,
                hot: HotSizes::new(),
                magazines: Magazines::new(SpaceSource::new(ground), settings()),
                raw: RawTable::new(),
                binding: Mutex::new(()),
            }));
            // Release pairs with the Acquire in `of`. The core is the caller's: nobody else opens
            // its instance.
            INSTANCES.get(ground.index()).store(ptr::from_ref(new).cast_mut(), Ordering::Release);
            new
        });
        instance.magazines.enable_caching(opening.max_cached_bytes);
        instance.hot.open(opening.auto, max_hot_size(opening.max_cached_bytes));
        for &size in opening.hot_sizes {
            instance.bind(size, true);
        }
        instance
    }

    /// The bound is what `bound` says now. One at a time, so that the last one says it last.
    pub(super) fn follow_bound(&self, bound: impl FnOnce() -> u64) {
        let _binding = self.binding.lock();
        let bound = bound();
        self.magazines.set_max_cached_bytes(bound);
        self.hot.set_max_size(max_hot_size(bound));
        if self.magazines.charged() > bound {
            self.magazines.trim();
        }
    }

    /// Everything back to the space, and nothing will be cached.
    pub(super) fn shut(&self) {
        let _binding = self.binding.lock();
        // Extents that are left ask whether anything is cached: until nothing is, they have to look
        // at all classes.
        self.magazines.disable_caching(|| self.hot.close());
    }

    /// A request for a size that is not hot.
    #[inline]
    pub(super) fn record_request(&self, size: u64) {
        if self.hot.record_request(size) {
            self.make_hot(size as u32);
        }
    }

    #[cold]
    #[inline(never)]
    fn make_hot(&self, size: u32) {
        let Some(_binding) = self.binding.try_lock() else { return };
        self.bind(size, false);
    }

    fn bind(&self, size: u32, named: bool) {
        let bound = self.magazines.max_cached_bytes();
        self.magazines.rebind(|magazines| {
            if !named && self.hot.should_forget_learned() {
                self.hot.forget_learned();
            }
            if let Some(class) = self.hot.bind(size, named) {
                let rounds = (bound / MAGAZINE_SHARE / u64::from(size)).clamp(1, MAX_ROUNDS.0);
                let max = (rounds * (MAX_ROUNDS.1 / MAX_ROUNDS.0)).min(MAX_ROUNDS.1);
                magazines.reshape(class, u64::from(size), (rounds as usize, max as usize));
            }
        });
    }

    /// Whether no range of `size` bytes can be had, at a moment in the call; false if that takes
    /// longer to know.
    #[inline(always)]
    pub(super) fn is_full(&self, size: u64) -> bool {
        let failed = || size > self.ground.largest_free_hint();
        self.magazines.nothing_cached_fast(|| self.hot.used(), failed)
    }

    /// As above; false if caches may help.
    #[cold]
    #[inline(never)]
    pub(super) fn is_full_slow(&self, size: u64) -> bool {
        let failed = || size > self.ground.largest_free_hint();
        self.magazines.is_local_empty(self.hot.used())
            && self.magazines.nothing_cached(|| self.hot.used(), failed)
    }

    /// Whether a request of `size` bytes cannot be met whatever lies in caches.
    pub(super) fn exceeds_free(&self, size: u64) -> bool {
        self.magazines.max_free(|| self.ground.free_hint()).is_some_and(|max| size > max)
    }

    /// Runs `attempt`, and once more with all caches empty if that may help.
    pub(super) fn with_reclaim<T>(
        &self,
        mut attempt: impl FnMut() -> Result<T, AllocError>,
    ) -> Result<T, AllocError> {
        let error = match attempt() {
            Err(error) if self.caches_may_help(&error) => error,
            result => return result,
        };
        let mut last = Err(error);
        let nothing = self.magazines.nothing_cached(
            || self.hot.used(),
            || {
                last = attempt();
                last.is_err()
            },
        );
        if nothing || last.is_ok() { last } else { self.magazines.reclaim(attempt) }
    }

    fn caches_may_help(&self, error: &AllocError) -> bool {
        match *error {
            AllocError::OutOfSpace { requested, .. } => !self.exceeds_free(requested),
            AllocError::Blocked { .. } | AllocError::TooManyRanges { .. } => true,
            _ => false,
        }
    }
}

/// The space as a source of ranges.
pub(super) struct SpaceSource {
    ground: Ground,
}

impl SpaceSource {
    fn new(ground: Ground) -> Self {
        SpaceSource { ground }
    }

    /// The instance asks only when it stands.
    fn hot(&self) -> Option<&'static HotSizes> {
        ExtentInstance::of(self.ground.index()).map(|instance| &instance.hot)
    }

    /// The size of a class, if there is room for at least one range of it, as far as one can see.
    fn size_of(&self, class: usize) -> Option<u32> {
        let size = self.hot()?.size_of(class);
        (size > 0 && u64::from(size) <= self.ground.largest_free_hint()).then_some(size)
    }
}

impl RoundSource<Range> for SpaceSource {
    const TRACKED: bool = true;

    fn keeps(&self, class: usize, range: &Range) -> bool {
        self.hot().is_some_and(|hot| hot.keeps(class, range.size()))
    }

    fn refill(&self, class: usize, want: usize, out: &mut Vec<Range>) {
        let Some(size) = self.size_of(class) else { return };
        let some = self.ground.free_hint() / REFILL_SHARE / u64::from(size);
        self.ground.take_many(size, want.min(some.max(1) as usize), out);
    }

    fn refill_one(&self, class: usize) -> Option<Range> {
        self.ground.take(self.size_of(class)?).ok()
    }

    fn drain(&self, _: usize, rounds: &mut Vec<Range>) {
        self.ground.give_back_all(rounds);
    }

    fn drain_one(&self, _: usize, round: Range) {
        self.ground.give_back(round);
    }

    fn round_bytes(&self, _: usize) -> usize {
        // Until the class stands for a size.
        1
    }

    unsafe fn postfork_child(&self) {
        if let Some(instance) = ExtentInstance::of(self.ground.index()) {
            // SAFETY: who bound a class, if anybody did, is gone. What the lock guards changes
            // under the lock of the list of caches, which the forking thread had: it is
            // whole.
            unsafe { instance.binding.force_unlock() };
            instance.raw.postfork_child(self.ground);
        }
    }
}
