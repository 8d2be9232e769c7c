//! *ExtentCache*: a shared space whose hot sizes are served by each thread's own magazines.

use std::any::Any;
use std::fmt;
use std::sync::Arc;

use crate::offset::{
    AllocError, BinReport, CheckError, Ground, LONG, Metrics, OffsetAllocator,
    OffsetAllocatorBuilder, Range, SpaceError,
};

use crate::slab::stats::ClassStats;

use super::builder::{ExtentBuilder, stranded_for};
use super::extent::Extent;
use super::instance::{Instance, Opening};
use super::map::{ExtentMapRange, mark};
use super::stats::ExtentStats;

/// Hands out ranges of an abstract space `[0, capacity)`, as [`OffsetAllocator`] does, to many
/// threads at once: allocating and freeing a *hot* size takes no lock and no atomic
/// read-modify-write.
///
/// `Send + Sync`; clones share one space. Extents may outlive it. Hot sizes are
/// [named](ExtentBuilder::hot_sizes) or learnt from what is asked for; all others are the offset
/// layer's, and nothing is refused before what is cached has been taken back.
///
/// # Time complexity
///
/// Allocate and free are O(1), some nanoseconds for a hot size while the thread's magazines serve
/// it. A request that finds no room takes back what is cached, if anything is: O(threads × classes
/// + cached ranges), and it stops all threads that use the space for some microseconds.
///
/// # Drawbacks
///
/// What is cached is not joined with its neighbours until it is wanted. A bound says how much that
/// can be ([`ExtentBuilder::max_cached_bytes`]).
///
/// ```
/// use kvmem::slab::ExtentCache;
///
/// let space = ExtentCache::new(1 << 40)?;
/// for _ in 0..100 {
///     let page = space.allocate(3_274_752)?;
///     drop(page); // from the ninth on no lock is taken
/// }
/// assert_eq!(space.metrics().allocated, 0); // what is cached counts as free
/// assert!(space.stats().cached_ranges > 0);
/// // And can be had: nothing is refused because of it.
/// assert_eq!(space.allocate(1 << 40)?.size(), 1 << 40);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct ExtentCache {
    pub(super) ground: Ground,
    pub(super) instance: &'static Instance,
    pub(super) owner: Arc<Owner>,
}

/// Held by every clone; the last one shuts the instance.
pub(super) struct Owner {
    instance: &'static Instance,
    pub(super) allocator: OffsetAllocator,
    /// The bound follows the capacity.
    bound_follows: bool,
}

impl Drop for Owner {
    fn drop(&mut self) {
        // What has a raw handle can be reached by nobody any more.
        self.instance.raw.close(Ground::of(&self.allocator));
        self.instance.shut();
    }
}

impl ExtentCache {
    /// A space of `capacity` bytes, 1..=2^63, without boundary, that learns which sizes are hot.
    ///
    /// # Errors
    /// See [`OffsetAllocatorBuilder::build`].
    pub fn new(capacity: u64) -> Result<Self, SpaceError> {
        Ok(Self::over(OffsetAllocator::new(capacity)?, &[], true, None))
    }

    /// A space with settings of its own: those of the offset layer's builder, and the cache's.
    ///
    /// ```
    /// use kvmem::offset::OffsetAllocator;
    /// use kvmem::slab::ExtentCache;
    ///
    /// let space = ExtentCache::builder(OffsetAllocator::builder(64 << 30).boundary(1 << 30))
    ///     .hot_sizes([3_274_752, 658_432])
    ///     .learn(false)
    ///     .build()?;
    /// assert_eq!(space.stats().classes.len(), 2);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn builder(space: OffsetAllocatorBuilder) -> ExtentBuilder {
        ExtentBuilder::new(space)
    }

    pub(super) fn over(
        allocator: OffsetAllocator,
        hot_sizes: &[u32],
        learns: bool,
        max_cached_bytes: Option<u64>,
    ) -> Self {
        let stranded_bytes = max_cached_bytes.unwrap_or_else(|| stranded_for(allocator.capacity()));
        let ground = Ground::of(&allocator);
        let instance = Instance::open(ground, &Opening { hot_sizes, learns, stranded_bytes });
        let owner = Owner { instance, allocator, bound_follows: max_cached_bytes.is_none() };
        ExtentCache { ground, instance, owner: Arc::new(owner) }
    }

    pub(super) fn allocator(&self) -> &OffsetAllocator {
        &self.owner.allocator
    }

    /// Grants `size` bytes. O(1).
    ///
    /// A request that is longer than all that is free, cached or not, is refused without a lock. If
    /// a request is refused, there was a moment in the call in which it would have been with
    /// nothing cached.
    ///
    /// # Errors
    /// As [`OffsetAllocator::allocate`].
    #[inline]
    pub fn allocate(&self, size: u64) -> Result<Extent, AllocError> {
        if let Some(class) = self.instance.class_of(short(size))
            && let Some(range) = self.instance.magazines.get_loaded(class)
        {
            return Ok(Extent::of(self.ground, range));
        }
        // The error by itself, so that what is granted stays in registers, and made here, so that
        // who does not look at it does not pay for it.
        let mut refused = AllocError::ZeroSize;
        match self.allocate_or_refuse(size, &mut refused).found() {
            Ok(range) => Ok(Extent::of(self.ground, range)),
            Err(FULL) => Err(self.ground.refuse(size)),
            Err(_) => Err(refused),
        }
    }

    /// The longest range that this space could ever grant, however empty it is. One load, without a
    /// lock.
    #[inline(always)]
    #[must_use]
    pub fn limit_hint(&self) -> u64 {
        self.ground.limit_hint()
    }

    /// Why a request of `size` bytes fails that is longer than `limit`, which
    /// [`limit_hint`](Self::limit_hint) returned just now, or 0.
    #[inline]
    #[must_use]
    pub fn fails_early(&self, size: u64, limit: u64) -> AllocError {
        if size == 0 {
            AllocError::ZeroSize
        } else {
            AllocError::TooLarge { requested: size, limit }
        }
    }

    /// A full space answers most requests so: no lock, and nothing is written but the owner's mark.
    #[inline(never)]
    fn allocate_or_refuse(&self, size: u64, refused: &mut AllocError) -> Range {
        if self.instance.is_full(size) || self.instance.is_hopeless(size) {
            return Range::none(FULL);
        }
        self.allocate_slowly(size, refused)
    }

    #[cold]
    #[inline(never)]
    fn allocate_slowly(&self, size: u64, refused: &mut AllocError) -> Range {
        if size > self.ground.largest_free_hint() && self.instance.is_full_after_all(size) {
            return Range::none(FULL);
        }
        match self.instance.class_of(short(size)) {
            Some(class) => match self.instance.magazines.get(class) {
                Some(range) if u64::from(range.size()) == size => return range,
                // The class has come to stand for another size meanwhile.
                Some(other) => self.ground.give_back(other),
                None => (),
            },
            None => self.instance.note(size),
        }
        match self.instance.serve(|| self.allocator().allocate(size)) {
            Ok(allocation) => {
                let range = allocation.as_range();
                allocation.forget();
                range
            }
            Err(error) => {
                *refused = error;
                Range::none(REFUSED)
            }
        }
    }

    /// As [`OffsetAllocator::allocate_aligned`]. The extent is cached like others of its size when
    /// dropped.
    ///
    /// # Errors
    /// As there.
    pub fn allocate_aligned(&self, size: u64, align: u64) -> Result<Extent, AllocError> {
        self.instance.serve(|| self.allocator().allocate_aligned(size, align)).map(Extent::new)
    }

    /// As [`OffsetAllocator::allocate_batch`]: all of them or none, under one lock.
    ///
    /// # Errors
    /// As there.
    pub fn allocate_batch(&self, size: u64, n: usize) -> Result<Vec<Extent>, AllocError> {
        let batch = self.instance.serve(|| self.allocator().allocate_batch(size, n))?;
        Ok(batch.into_iter().map(Extent::new).collect())
    }

    /// As [`OffsetAllocator::allocate_scattered`]. What is cached is taken back before the request
    /// is refused, not to meet it with fewer ranges.
    ///
    /// # Errors
    /// As there.
    pub fn allocate_scattered(
        &self,
        total: u64,
        max_ranges: usize,
    ) -> Result<Vec<Extent>, AllocError> {
        let pieces =
            self.instance.serve(|| self.allocator().allocate_scattered(total, max_ranges))?;
        Ok(pieces.into_iter().map(Extent::new).collect())
    }

    /// As [`OffsetAllocator::free_batch`]: many extents under one lock, neighbours joined first, and
    /// none of them cached.
    pub fn free_batch(&self, run: impl IntoIterator<Item = Extent>) {
        self.allocator().free_batch(run.into_iter().map(Extent::into_allocation));
    }

    /// As [`OffsetAllocator::grow`].
    ///
    /// # Errors
    /// As there.
    pub fn grow(&self, new_capacity: u64) -> Result<(), SpaceError> {
        match self.allocator().grow(new_capacity) {
            // Cached ranges stand on the books.
            Err(SpaceError::TooManyRanges { .. }) => {
                self.instance.magazines.reap(|| self.allocator().grow(new_capacity))?;
            }
            result => result?,
        }
        self.follow_bound();
        Ok(())
    }

    /// As [`OffsetAllocator::shrink_to`]. What is cached is taken back first.
    ///
    /// # Errors
    /// As there.
    pub fn shrink_to(&self, new_capacity: u64) -> Result<(), SpaceError> {
        self.instance.magazines.reap(|| self.allocator().shrink_to(new_capacity))?;
        self.follow_bound();
        Ok(())
    }

    fn follow_bound(&self) {
        if self.owner.bound_follows {
            self.instance.follow_bound(|| stranded_for(self.capacity()));
        }
    }

    /// Keeps something until nobody has the space or an extent of it any more, and drops it then,
    /// in the thread that dropped the last of them.
    pub(crate) fn keep(&self, ward: Box<dyn Any + Send + Sync>) {
        self.ground.keep(ward);
    }

    /// The number of the space: that of no other as long as anybody has this one, or an extent of
    /// it.
    pub(crate) fn number(&self) -> u32 {
        self.ground.index()
    }

    /// Length of the space in bytes. O(1).
    pub fn capacity(&self) -> u64 {
        self.allocator().capacity()
    }

    /// The boundary that no extent straddles, in bytes.
    pub fn boundary(&self) -> Option<u64> {
        self.allocator().boundary()
    }

    /// An upper bound of the largest range that would be granted now, in bytes, without a lock: the
    /// longest free range on the books; if anything may be cached, all that is free, for it may
    /// lie between what is cached. O(1).
    pub fn largest_free_hint(&self) -> u64 {
        let magazines = &self.instance.magazines;
        let bound = magazines.still(|| match magazines.charged() {
            0 => self.ground.largest_free_hint(),
            cached => self.ground.free_hint().saturating_add(cached),
        });
        // While something goes from cache to books or back, it may be in neither number.
        bound.unwrap_or(u64::MAX).min(self.ground.limit_hint())
    }

    /// Takes back what any thread or the depot has cached. From any thread; stops those that use
    /// the space for some microseconds. O(threads × classes + cached ranges).
    pub fn trim(&self) {
        self.instance.magazines.trim();
    }

    /// Figures of the space. What is cached counts as free; `largest_free` leaves out what it would
    /// join. While other threads go on, of about one moment. O(threads × classes).
    pub fn metrics(&self) -> Metrics {
        let cached = self.instance.magazines.stats();
        let ranges: usize =
            cached.classes.iter().map(|class| class.in_threads + class.in_depot).sum();
        let longest = cached.classes.iter().filter(|class| class.in_threads + class.in_depot > 0);
        let longest = longest.map(|class| class.round_bytes as u64).max().unwrap_or(0);
        let mut metrics = self.allocator().metrics();
        metrics.allocated = metrics.allocated.saturating_sub(cached.stranded_bytes);
        metrics.free = metrics.capacity - metrics.allocated;
        metrics.live = metrics.live.saturating_sub(ranges as u64);
        metrics.free_ranges += ranges as u64;
        metrics.largest_free = metrics.largest_free.max(longest);
        metrics.metadata_bytes += self.instance.raw.bytes() as u64;
        metrics
    }

    /// What [`metrics`](Self::metrics) and [`stats`](Self::stats) say, as far as it can be known
    /// without a lock that a request could wait for. O(threads × classes).
    pub(crate) fn glance(&self) -> Glance {
        let magazines = &self.instance.magazines;
        let look = || (self.ground.left(), magazines.stats());
        // What goes from the books to a cache meanwhile is in one of the two, or in both, or in
        // none.
        let (left, cached) = (0..LOOKS).find_map(|_| magazines.still(look)).unwrap_or_else(look);
        let held = |class: &&ClassStats| class.in_threads + class.in_depot > 0;
        let longest =
            cached.classes.iter().filter(held).map(|class| class.round_bytes as u64).max();
        let ranges: usize =
            cached.classes.iter().map(|class| class.in_threads + class.in_depot).sum();
        Glance {
            capacity: left.capacity,
            allocated: left
                .capacity
                .saturating_sub(left.free)
                .saturating_sub(cached.stranded_bytes),
            largest_free: left.largest.max(longest.unwrap_or(0)),
            live: left.live.saturating_sub(ranges as u64),
            cached: cached.stranded_bytes,
            reclaims: magazines.reclaims(),
        }
    }

    /// What is cached, where, and what has been done. Takes no lock. O(threads × classes).
    pub fn stats(&self) -> ExtentStats {
        ExtentStats::of(self.instance)
    }

    /// The free ranges by size, as [`OffsetAllocator::bins`]. What is cached is taken back first.
    pub fn bins(&self) -> Vec<BinReport> {
        self.instance.magazines.reap(|| self.allocator().bins())
    }

    /// The whole space in address order: a range for every extent in use, one for every cached one,
    /// and free ranges joined. What a thread is just moving between cache and books is shown as
    /// used. Stops all threads that use the space meanwhile. O(ranges × log cached).
    pub fn map(&self) -> Vec<ExtentMapRange> {
        self.instance.magazines.frozen(|cached| mark(self.ground.map(), cached))
    }

    /// Checks the books against their numbered invariants, and what is cached against the books.
    /// Stops all threads that use the space meanwhile. O(ranges + cached × log cached).
    ///
    /// # Errors
    /// [`CheckError`]: a defect of this library.
    pub fn check(&self) -> Result<(), CheckError> {
        self.instance.magazines.frozen(|cached| {
            self.ground.check(cached)?;
            let mut nodes: Vec<u32> = cached.iter().map(|range| range.node()).collect();
            nodes.sort_unstable();
            match nodes.windows(2).find(|pair| pair[0] == pair[1]) {
                Some(pair) => Err(CheckError {
                    invariant: 3,
                    what: format!("node {} is cached twice", pair[0]),
                }),
                None => Ok(()),
            }
        })
    }
}

/// Looks at books and caches together before they are looked at one after the other.
const LOOKS: usize = 4;

/// Figures of a space, of about one moment: see [`ExtentCache::glance`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Glance {
    pub(crate) capacity: u64,
    /// Bytes in use, what is cached left out.
    pub(crate) allocated: u64,
    /// The longest free range; what was freed last may not have been joined yet.
    pub(crate) largest_free: u64,
    /// Extents in use.
    pub(crate) live: u64,
    /// Bytes that are cached.
    pub(crate) cached: u64,
    /// Times that what is cached was taken back because a request found no room.
    pub(crate) reclaims: u64,
}

/// Why there is no range: the space is full, as the hint says.
const FULL: u64 = 0;
/// Why there is no range: the error says it.
const REFUSED: u64 = 1;

/// The size as handles know it: [`LONG`], which is never hot, for all that they do not.
#[inline(always)]
fn short(size: u64) -> u32 {
    u32::try_from(size).unwrap_or(LONG)
}

impl fmt::Debug for ExtentCache {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ExtentCache")
            .field("allocator", self.allocator())
            .field("stats", &self.stats())
            .finish()
    }
}
