//! *Instance*: the state that all handles of one space share. It stays at its address until the
//! process ends.
//!
//! A handle of 20 bytes has no room for a pointer and needs no reference count; it stores the
//! number of its space's core. Instances are in a table by that number. An instance is reused
//! together with its core, and the core is free only when no handle is left (see the offset layer's
//! registry). So the holder of a handle always finds the instance, open or shut.

use std::hint::assert_unchecked;
use std::ops;
use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering};

use crate::offset::{AllocError, Allocation, LONG, Range, RawAllocation, RawHandle, SpaceHandle};
use crate::slab::magazine::MagazineCore;
use crate::slab::magazine::MagazineSettings;
use crate::slab::magazine::Magazines;
use crate::slab::magazine::RoundSource;
use crate::sync::{AppendOnlyTable, AtomicU64, FIRST, Mutex};

use super::hooks::{HooksSlot, RangeHook, RangeHooks};
use super::hot::{CLASSES, Detection, HotSizes};
use super::raw_table::RawTable;

static INSTANCES: AppendOnlyTable<InstancePtr> = AppendOnlyTable::new(
    [const { InstancePtr::new(ptr::null_mut()) }; FIRST],
    InstancePtr::default,
);

/// Null until the core has an instance.
type InstancePtr = AtomicPtr<ExtentInstance>;

/// A new magazine holds one part in this many of the bound of cached bytes, where possible: all
/// threads together have a few dozen magazines.
const MAGAZINE_SHARE: u64 = 16;
/// The most rounds of a new magazine, and of one that has grown.
const MAX_ROUNDS: (u64, u64) = (32, 256);
/// Full magazines that the depot keeps for each size: enough for threads that free ranges which
/// others allocate. Ranges in the depot do not join their neighbours. In a full space of two sizes,
/// of which a twentieth is freed at a time, the smallest utilization was 0.9987 without this limit;
/// it is 0.9992 with it, the same as without caches.
const MAX_FULL_MAGAZINES: usize = 8;
/// A refill takes at most one part in this many of the free bytes, so the last ranges remain for
/// the threads that request them.
const REFILL_SHARE: u64 = 16;

/// The bytes of a round in a class that stands for no size.
const UNUSED_ROUND_BYTES: u64 = 1;

/// Reason for a missing range: the space is full according to the hint.
const FULL: u64 = 0;
/// Reason for a missing range: the error names it.
const FAILED: u64 = 1;

/// Returns the size as handles store it. A size too large for a handle becomes [`LONG`], which is
/// never hot.
#[inline(always)]
fn short(size: u64) -> u32 {
    u32::try_from(size).unwrap_or(LONG)
}

pub(super) struct ExtentInstance {
    space: SpaceHandle,
    /// Identity of the space's allocator; 0 if the space has none any more.
    id: AtomicU64,
    /// No more ranges than this are in use or cached.
    max_live: AtomicU64,
    pub(super) hot: HotSizes,
    pub(super) magazines: Magazines<Range, SpaceSource>,
    /// The generations of raw handles.
    pub(super) raw: RawTable,
    pub(super) hooks: HooksSlot,
    /// Serializes the binding of classes.
    binding: Mutex<()>,
}

/// The options of an instance.
pub(super) struct InstanceOptions<'a> {
    pub(super) hot_sizes: &'a [u32],
    pub(super) detection: Detection,
    pub(super) max_cached_bytes: u64,
}

/// Returns the longest range that may be cached with this bound of cached bytes.
fn max_hot_size(max_cached_bytes: u64) -> u32 {
    u32::try_from(max_cached_bytes).map_or(u32::MAX - 1, |bytes| bytes.min(u32::MAX - 1))
}

impl ExtentInstance {
    /// Returns the instance of a core, if it ever had one.
    #[inline(always)]
    pub(super) fn of(core: u32) -> Option<&'static ExtentInstance> {
        // Acquire pairs with the Release in `open`.
        let at = INSTANCES.get(core).load(Ordering::Acquire);
        // SAFETY: an instance is never freed.
        unsafe { at.as_ref() }
    }

    /// Returns the instance of a core that an extent refers to.
    ///
    /// # Safety
    ///
    /// The core has had an instance.
    #[inline(always)]
    pub(super) unsafe fn known(core: u32) -> &'static ExtentInstance {
        // SAFETY: the caller promises that the core has had an instance, so the pointer is not
        // null; an instance is never freed, and all access to it is shared. Acquire pairs with the
        // Release in `open`.
        unsafe { &*INSTANCES.get(core).load(Ordering::Acquire) }
    }

    /// Returns the class of a hot size.
    #[inline(always)]
    pub(super) fn class_of(&self, size: u32) -> Option<usize> {
        let class = self.hot.class_of(size)?;
        // SAFETY: the instance has a class for each hot size. Without this hint the fast path would
        // check the class again.
        unsafe { assert_unchecked(class < self.magazines.classes()) };
        Some(class)
    }

    /// Opens the instance of a space that no other thread uses yet.
    pub(super) fn open(
        space: SpaceHandle,
        id: u64,
        opening: &InstanceOptions<'_>,
    ) -> &'static ExtentInstance {
        let settings = || MagazineSettings {
            max_cached_bytes: Some(0),
            max_full_magazines: MAX_FULL_MAGAZINES,
            ..MagazineSettings::new(CLASSES)
        };
        let instance = Self::of(space.index()).unwrap_or_else(|| {
            let new: &'static ExtentInstance = Box::leak(Box::new(ExtentInstance {
                space,
                id: AtomicU64::new(0),
                max_live: AtomicU64::new(u64::MAX),
                hot: HotSizes::new(),
                magazines: Magazines::new(SpaceSource::new(space), settings()),
                raw: RawTable::new(),
                hooks: HooksSlot::new(),
                binding: Mutex::new(()),
            }));
            // Release pairs with the Acquire in `of`. The core belongs to the caller, so no other
            // thread opens its instance.
            INSTANCES.get(space.index()).store(ptr::from_ref(new).cast_mut(), Ordering::Release);
            new
        });
        instance.hooks.set(None);
        // Relaxed: no other thread uses the instance yet.
        instance.max_live.store(u64::MAX, Ordering::Relaxed);
        instance.magazines.enable_caching(opening.max_cached_bytes);
        instance.hot.open(opening.detection, max_hot_size(opening.max_cached_bytes));
        for &size in opening.hot_sizes {
            instance.bind(size, true);
        }
        instance.hooks.set_cold(opening.hot_sizes.is_empty());
        // Release pairs with the Acquire in `of_allocator`: the instance is open.
        instance.id.store(id, Ordering::Release);
        instance
    }

    /// Returns the instance of the core with this number if it is that of the allocator `id`, which
    /// still exists. Any numbers are safe.
    #[inline(always)]
    pub(super) fn of_allocator(core: u32, id: u64) -> Option<&'static ExtentInstance> {
        // Acquire pairs with the Release in `open`.
        let at = INSTANCES.find(core)?.load(Ordering::Acquire);
        // SAFETY: an instance is never freed.
        let instance = unsafe { at.as_ref() }?;
        // Acquire pairs with the Release in `open`.
        (id != 0 && instance.id.load(Ordering::Acquire) == id).then_some(instance)
    }

    /// Makes the instance unknown to [`of_allocator`](Self::of_allocator).
    pub(super) fn leave(&self) {
        // Relaxed: a thread that found the instance before uses it while it ends.
        self.id.store(0, Ordering::Relaxed);
    }

    /// Limits the ranges that are in use or cached from the next request on.
    #[inline]
    pub(super) fn set_max_live(&self, max_live: u64) {
        // Relaxed, both: the threads of a space set the same limit, each before it requests.
        if self.max_live.load(Ordering::Relaxed) != max_live {
            self.max_live.store(max_live, Ordering::Relaxed);
        }
    }

    /// Allocates a range, and runs its hook.
    #[inline(always)]
    pub(super) fn allocate(&self, size: u64) -> Result<Range, AllocError> {
        // Before the fast path, so that nothing has to be kept across a call.
        match self.hooks.get_or_cold() {
            None => self.allocate_without_hooks(size),
            Some(hooks) if hooks.are_cold() => self.allocate_from_space(size),
            Some(hooks) => self.allocate_with_hooks(hooks, size),
        }
    }

    #[cold]
    #[inline(never)]
    fn allocate_with_hooks(&self, hooks: &RangeHooks, size: u64) -> Result<Range, AllocError> {
        let range = self.allocate_without_hooks(size)?;
        // Freed if the hook panics.
        let allocation = self.space.allocation(range);
        self.run(hooks.allocated, range);
        allocation.forget();
        Ok(range)
    }

    #[inline(always)]
    fn allocate_without_hooks(&self, size: u64) -> Result<Range, AllocError> {
        if let Some(class) = self.class_of(short(size))
            && let Some(range) = self.magazines.get_loaded(class)
        {
            return Ok(range);
        }
        self.allocate_from_space(size)
    }

    #[inline(always)]
    fn allocate_from_space(&self, size: u64) -> Result<Range, AllocError> {
        // Most requests of a full space fail here: nothing is cached, or too little. The hint of a
        // cut space is above every size.
        let largest = self.space.whole_hint();
        let exceeds_hint = || size.wrapping_sub(1) >= self.space.whole_hint();
        if size.wrapping_sub(1) >= largest
            && (self.hot.nothing_hot(exceeds_hint)
                || size > self.magazines.max_free_fast(|| self.space.whole_free()))
        {
            return Err(self.space.error_above(size, largest));
        }
        // The error is passed separately, so a successful result stays in registers. It is made
        // here, so callers that ignore it do not pay for it.
        let mut failure = AllocError::ZeroSize;
        match Range::from_words(self.allocate_or_fail(size, &mut failure)).found() {
            Ok(range) => Ok(range),
            Err(FULL) => Err(self.space.early_error(size)),
            Err(_) => Err(failure),
        }
    }

    /// Makes a raw handle of a range of the allocator `id`.
    #[inline(always)]
    pub(super) fn issue_raw(&self, range: Range, id: u64, size: u64) -> RawAllocation {
        let (slot, offset) = (range.node(), range.offset());
        let generation = self.raw.entry(slot).issue(range);
        RawAllocation { handle: RawHandle { allocator: id, slot, generation }, offset, size }
    }

    /// Allocates a range that the thread's loaded magazine does not have; returns its words. A
    /// request that must fail takes no lock: it writes nothing but the mark of the owner lock.
    #[inline(never)]
    fn allocate_or_fail(&self, size: u64, failure: &mut AllocError) -> (u64, u64) {
        let may_serve = size > 0 && self.space.may_serve(size);
        if self.hot.nothing_hot(|| true) {
            // Nothing is cached, and the space decides.
            if !may_serve && self.hot.nothing_hot(|| size == 0 || !self.space.may_have(size)) {
                return Range::none(FULL).into_words();
            }
            // If it fails, the caches are queried: a size may have become hot meanwhile.
            if let Some(range) = self.space.try_take(size, self.max_live()) {
                self.record_request(size);
                return range.into_words();
            }
        }
        if !may_serve
            && (size > self.magazines.max_free_fast(|| self.space.free_bound())
                || self.is_full(size)
                || self.exceeds_free(size))
        {
            return Range::none(FULL).into_words();
        }
        self.allocate_slow(size, failure).into_words()
    }

    #[cold]
    #[inline(never)]
    fn allocate_slow(&self, size: u64, failure: &mut AllocError) -> Range {
        if !self.space.may_serve(size) && !self.space.may_have(size) && self.is_full_slow(size) {
            return Range::none(FULL);
        }
        if !self.magazines.pays_off() {
            self.suspend();
        }
        let class = self.class_of(short(size));
        match class.and_then(|class| self.magazines.get(class)) {
            Some(range) if u64::from(range.size()) == size => return range,
            // The class stands for another size meanwhile.
            Some(other) => self.space.give_back(other),
            None => (),
        }
        match self.with_reclaim(|| self.space.take(size, self.max_live())) {
            Ok(range) => {
                if class.is_none() {
                    self.record_request(size);
                }
                range
            }
            Err(error) => {
                *failure = error;
                Range::none(FAILED)
            }
        }
    }

    fn max_live(&self) -> u64 {
        // Relaxed: see `set_max_live`.
        self.max_live.load(Ordering::Relaxed)
    }

    /// Frees a range: into the thread's magazines if its size is hot.
    #[inline(always)]
    pub(super) fn free(&self, range: Range) {
        match self.hooks.get_or_cold() {
            None => self.free_without_hooks(range),
            Some(hooks) if hooks.are_cold() => self.free_uncached(range.into_words()),
            Some(hooks) => self.free_with_hooks(hooks, range),
        }
    }

    #[inline(always)]
    fn free_without_hooks(&self, range: Range) {
        // No size from 4 GiB − 1 B up is hot.
        match self.class_of(range.size()) {
            Some(class) => self.magazines.put(class, range),
            None => self.free_uncached(range.into_words()),
        }
    }

    /// Not inlined: keeps this code out of the path of hot sizes.
    #[inline(never)]
    fn free_uncached(&self, words: (u64, u64)) {
        self.hot.record_free();
        self.space.give_back(Range::from_words(words));
    }

    /// Sets the bound of cached bytes to the value of `bound`. Calls are serialized, so the last
    /// one prevails.
    pub(super) fn follow_bound(&self, bound: impl FnOnce() -> u64) {
        let _binding = self.binding.lock();
        let bound = bound();
        self.magazines.set_max_cached_bytes(bound);
        self.hot.set_max_size(max_hot_size(bound));
        if self.magazines.charged() > bound {
            self.magazines.trim();
        }
    }

    /// Returns all ranges to the space and disables caching.
    pub(super) fn shut(&self) {
        let _binding = self.binding.lock();
        // Remaining extents ask whether anything is cached. Until nothing is, they have to check
        // all classes.
        self.magazines.disable_caching(|magazines| {
            self.hot.close();
            release_classes(magazines, 0);
        });
        self.hooks.set_cold(true);
    }

    /// Records an allocation of a size that is not hot.
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

    /// Makes all sizes cold for some time.
    #[cold]
    #[inline(never)]
    fn suspend(&self) {
        let Some(_binding) = self.binding.try_lock() else { return };
        // Sizes that are hot later are judged anew.
        let puts = self.magazines.try_again();
        self.magazines.rebind(|magazines| {
            self.hot.suspend(puts);
            release_classes(magazines, self.hot.named());
        });
        self.follow_hot_sizes();
        // The cached ranges are back in the space.
        self.hot.end_epoch();
    }

    fn bind(&self, size: u32, named: bool) {
        let bound = self.magazines.max_cached_bytes();
        self.magazines.rebind(|magazines| {
            if self.hot.resume() {
                return;
            }
            if !named && self.hot.should_forget_detected() {
                self.hot.forget_detected();
                release_classes(magazines, self.hot.used());
            }
            if let Some(class) = self.hot.bind(size, named) {
                let rounds = (bound / MAGAZINE_SHARE / u64::from(size)).clamp(1, MAX_ROUNDS.0);
                let max = (rounds * (MAX_ROUNDS.1 / MAX_ROUNDS.0)).min(MAX_ROUNDS.1);
                magazines.reshape(class, u64::from(size), (rounds as usize, max as usize));
            }
        });
        self.follow_hot_sizes();
    }

    /// Adapts the ways of requests after sizes have become hot or cold.
    fn follow_hot_sizes(&self) {
        let cold = self.hot.used() == 0;
        // Where sizes are hot, most threads stay out of the space, and a request that must fail
        // relies on the exact hint: with a bound it would reclaim all caches.
        self.space.set_combining(cold);
        self.hooks.set_cold(cold);
    }

    /// Returns true only if no range of `size` bytes was available at some moment during the call;
    /// false if that takes longer to find out.
    #[inline(always)]
    pub(super) fn is_full(&self, size: u64) -> bool {
        let exceeds_hint = || size > self.space.largest_free_hint();
        self.magazines.nothing_cached_fast(|| self.hot.used(), exceeds_hint)
    }

    /// Checks all caches. Returns true only if no range of `size` bytes was available at some
    /// moment during the call; false if a reclaim may help.
    #[cold]
    #[inline(never)]
    pub(super) fn is_full_slow(&self, size: u64) -> bool {
        let exceeds_hint = || size > self.space.largest_free_hint();
        self.magazines.is_local_empty(self.hot.used())
            && self.magazines.nothing_cached(|| self.hot.used(), exceeds_hint)
    }

    /// Returns whether the request exceeds all free bytes, cached or not.
    pub(super) fn exceeds_free(&self, size: u64) -> bool {
        let free = || self.space.free_bound();
        size > self.magazines.max_free_fast(free) || size > self.magazines.max_free(free)
    }

    /// Runs `attempt`, and again with all caches empty if it fails and a reclaim may help.
    pub(super) fn with_reclaim<T>(
        &self,
        mut attempt: impl FnMut() -> Result<T, AllocError>,
    ) -> Result<T, AllocError> {
        match attempt() {
            Err(error) if self.caches_may_help(&error) => {
                self.magazines.retry(error, || self.hot.used(), attempt)
            }
            result => result,
        }
    }

    /// Runs a hook on a whole range. The range comes by value: a reference to an extent would keep
    /// the extents of all callers in memory.
    #[cold]
    #[inline(never)]
    pub(super) fn run(&self, hook: Option<RangeHook>, range: Range) {
        let Some(hook) = hook else { return };
        let allocation = self.space.allocation(range);
        let bytes = allocation.range();
        allocation.forget();
        // SAFETY: the range is of this space, and only the caller has it.
        unsafe { hook(self.space.index(), bytes) }
    }

    /// Frees a range as dropping an extent does, after its hook.
    #[cold]
    #[inline(never)]
    pub(super) fn free_with_hooks(&self, hooks: &RangeHooks, range: Range) {
        self.run(hooks.freed, range);
        self.free_without_hooks(range);
    }

    /// Runs the hook of freed ranges on the tail that shrinking to `new_size` bytes is about to cut
    /// off. Runs nothing if shrinking will fail for its argument.
    pub(super) fn before_shrink(&self, allocation: &Allocation, new_size: u64) {
        if self.hooks.get().is_some() && new_size > 0 {
            self.before_cut(allocation, allocation.offset() + new_size..allocation.range().end);
        }
    }

    /// Runs the hook of freed ranges on a part of an allocation, in bytes of the space, that is
    /// about to be cut out. Runs nothing if it is not a part of the allocation: the cut will fail.
    pub(super) fn before_cut(&self, allocation: &Allocation, part: ops::Range<u64>) {
        let Some(hook) = self.hooks.get().and_then(|hooks| hooks.freed) else { return };
        let whole = allocation.range();
        if whole.start <= part.start && part.start < part.end && part.end <= whole.end {
            // SAFETY: the part lies in the allocation, which the caller owns.
            unsafe { hook(self.space.index(), part) }
        }
    }

    /// Extends an allocation, and runs the hook of allocated ranges on its new bytes.
    pub(super) fn extend(
        &self,
        allocation: &mut Allocation,
        new_size: u64,
    ) -> Result<(), AllocError> {
        let hook = self.hooks.get().and_then(|hooks| hooks.allocated);
        // Reading a long length takes a lock, so it is read only for a hook.
        let old_end = hook.map(|_| allocation.range().end);
        self.with_reclaim(|| allocation.extend(new_size))?;
        if let (Some(hook), Some(old_end)) = (hook, old_end)
            && old_end < allocation.range().end
        {
            // SAFETY: the bytes lie in the allocation, which the caller owns.
            unsafe { hook(self.space.index(), old_end..allocation.range().end) }
        }
        Ok(())
    }

    fn caches_may_help(&self, error: &AllocError) -> bool {
        match *error {
            AllocError::OutOfSpace { requested, .. } => !self.exceeds_free(requested),
            AllocError::CannotExtend { .. } | AllocError::TooManyRanges { .. } => true,
            _ => false,
        }
    }
}

/// Withdraws the shares of the bound from the classes from `first` on, which stand for no size.
fn release_classes(magazines: &MagazineCore<Range, SpaceSource>, first: usize) {
    (first..CLASSES).for_each(|class| magazines.reshape(class, UNUSED_ROUND_BYTES, (1, 1)));
}

/// The space as a source of ranges.
pub(super) struct SpaceSource {
    space: SpaceHandle,
}

impl SpaceSource {
    fn new(space: SpaceHandle) -> Self {
        SpaceSource { space }
    }

    /// Returns the instance. The magazines call the source only after it is published.
    fn instance(&self) -> Option<&'static ExtentInstance> {
        ExtentInstance::of(self.space.index())
    }

    fn max_live(&self) -> u64 {
        self.instance().map_or(u64::MAX, ExtentInstance::max_live)
    }

    /// Returns the size of a class, if it stands for one and a free range may have it.
    fn size_of(&self, class: usize) -> Option<u32> {
        let size = self.instance()?.hot.size_of(class);
        let fits = |size| self.space.may_serve(size) || self.space.may_have(size);
        (size > 0 && fits(u64::from(size))).then_some(size)
    }
}

impl RoundSource<Range> for SpaceSource {
    const TRACKED: bool = true;

    fn keeps(&self, class: usize, range: &Range) -> bool {
        self.instance().is_some_and(|instance| instance.hot.keeps(class, range.size()))
    }

    fn is_spread(&self) -> bool {
        self.space.is_cut()
    }

    fn refill(&self, class: usize, want: usize, out: &mut Vec<Range>) {
        let Some(size) = self.size_of(class) else { return };
        let some = self.space.free_here() / REFILL_SHARE / u64::from(size);
        self.space.take_many(size, want.min(some.max(1) as usize), self.max_live(), out);
    }

    fn refill_one(&self, class: usize) -> Option<Range> {
        self.space.take(self.size_of(class)?.into(), self.max_live()).ok()
    }

    fn drain(&self, _: usize, rounds: &mut Vec<Range>) {
        self.space.give_back_all(rounds);
    }

    fn drain_one(&self, _: usize, round: Range) {
        self.space.give_back(round);
    }

    fn round_bytes(&self, _: usize) -> usize {
        UNUSED_ROUND_BYTES as usize
    }

    unsafe fn postfork_child(&self) {
        if let Some(instance) = ExtentInstance::of(self.space.index()) {
            // SAFETY: a thread that was binding a class does not exist in the child. The data under
            // the lock changes under the lock of the list of caches, which the forking thread held,
            // so the data is consistent.
            unsafe { instance.binding.force_unlock() };
            instance.raw.postfork_child(self.space);
        }
    }
}
