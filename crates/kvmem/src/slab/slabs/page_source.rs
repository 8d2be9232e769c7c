//! *Page source*: where slabs get their pages and where empty slabs return them.
//!
//! Slabs are powers of two of 4 KiB and aligned to their size. Pages come in *spans* of 2 MiB at
//! multiples of 2 MiB. So one system call serves up to 512 slabs, and an aligned run within a span
//! is an aligned run of addresses. The metadata is separate from the pages: two bits for each 4 KiB
//! of a span.
//!
//! ```text
//!   span      │ slab │ slab │      free       │   slab    │ free │ …
//!   free          0      0     1  1  1  1         0  0       1        may be given to a slab
//!   dirty         0      0     0  1  1  0         0  0       1        in a slab before; resident
//! ```
//!
//! The lowest span with a free run serves a request, so the higher spans can become empty. Returned
//! pages stay resident until they exceed both 1 MiB and an eighth of the pages in use. One pass
//! then returns all of them to the kernel and unmaps empty spans. So slabs that come and go cost no
//! system calls, and the resident memory is bounded.

use std::ops::Range;
use std::ptr::NonNull;

use super::reentrancy;
use crate::arena::{ExclusiveRegion, Region};
use crate::sync::Mutex;
use crate::sys;

/// The smallest slab, in bytes.
pub(crate) const UNIT: usize = 4096;
/// The size of a span, in bytes.
pub(crate) const SPAN: usize = 2 << 20;

const UNITS: usize = SPAN / UNIT;
const WORDS: usize = UNITS / 64;
/// Runs have 2^0 to 2^6 units.
const ORDERS: usize = 7;
/// This many unused bytes may stay resident, regardless of the bytes in use.
const MAX_DIRTY_BYTES: usize = 1 << 20;

/// Where spans come from.
pub(crate) enum Origin {
    /// From the kernel, as needed.
    System,
    /// From a region, which the source keeps alive.
    Region(Region),
    /// From a range of addresses that is reserved once and made accessible span by span. One
    /// comparison tells whether an address is within it.
    Reserved(Reserve),
}

impl Origin {
    /// Uses all of a region that no other code can reach.
    pub(crate) fn region(region: ExclusiveRegion) -> Origin {
        Origin::Region(region.into_region())
    }
}

/// A reserved range of addresses without pages.
pub(crate) struct Reserve {
    at: NonNull<u8>,
    len: usize,
    /// The address of the first span, and the number of bytes from there on that are accessible.
    first: usize,
    opened: usize,
}

impl Reserve {
    /// Reserves as many addresses as possible, up to `max` bytes. Returns `None` if fewer than 64
    /// MiB are available.
    pub(crate) fn new(max: usize) -> Option<Reserve> {
        let mut len = max;
        while len >= 64 << 20 {
            if let Ok(at) = sys::reserve(len) {
                return Some(Reserve {
                    at,
                    len,
                    first: at.addr().get().next_multiple_of(SPAN),
                    opened: 0,
                });
            }
            len /= 2;
        }
        None
    }

    /// Returns the addresses that spans can have.
    pub(crate) fn range(&self) -> Range<usize> {
        let end = self.at.addr().get() + self.len;
        self.first..self.first + (end - self.first) / SPAN * SPAN
    }
}

/// One span. `free` and `dirty` have one bit per unit.
struct PageSpan {
    base: NonNull<u8>,
    free: [u64; WORDS],
    /// A subset of `free`.
    dirty: [u64; WORDS],
    free_units: usize,
    /// The number of units within the source; all but at the ends of a region.
    units: usize,
}

/// The bytes of a page source. `slabs + dirty + clean == mapped`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct PageStats {
    pub(crate) mapped: usize,
    pub(crate) slabs: usize,
    pub(crate) dirty: usize,
}

struct PageState {
    origin: Origin,
    /// Sorted by address.
    spans: Vec<PageSpan>,
    /// For each order: no span before this index has a free run.
    hints: [usize; ORDERS],
    stats: PageStats,
}

/// Runs of pages under one lock.
pub(crate) struct PageSource(Mutex<PageState>);

// SAFETY: the state owns its pages; it does not matter which thread uses or unmaps them.
unsafe impl Send for PageSource {}
// SAFETY: all state is under the lock.
unsafe impl Sync for PageSource {}

/// Finds a free run of `2^order` units at a multiple of its length in a word; returns its first
/// bit.
#[inline]
fn run_in(word: u64, order: usize) -> Option<u32> {
    const STARTS: [u64; ORDERS] = [
        u64::MAX,
        0x5555_5555_5555_5555,
        0x1111_1111_1111_1111,
        0x0101_0101_0101_0101,
        0x0001_0001_0001_0001,
        0x0000_0001_0000_0001,
        1,
    ];
    let mut starts = word;
    for step in 0..order {
        starts &= starts >> (1 << step);
    }
    starts &= STARTS[order];
    (starts != 0).then(|| starts.trailing_zeros())
}

/// Returns the first byte of the page that contains an address.
fn page_start(at: NonNull<u8>) -> NonNull<u8> {
    // SAFETY: pages are mapped whole, so the beginning of the page is part of the same memory.
    unsafe { at.sub(at.addr().get() % sys::page_size()) }
}

/// Returns the bits of a run.
#[inline]
fn bits(first: u32, order: usize) -> u64 {
    (u64::MAX >> (64 - (1u32 << order))) << first
}

impl PageSpan {
    fn new(base: NonNull<u8>) -> PageSpan {
        PageSpan {
            base,
            free: [u64::MAX; WORDS],
            dirty: [0; WORDS],
            free_units: UNITS,
            units: UNITS,
        }
    }

    /// Makes the span at a multiple of [`SPAN`] of which only the addresses in `range` exist.
    fn part(base: NonNull<u8>, range: Range<usize>) -> PageSpan {
        let mut span =
            PageSpan { free: [0; WORDS], free_units: 0, units: 0, ..PageSpan::new(base) };
        for unit in 0..UNITS {
            let at = base.addr().get() + unit * UNIT;
            if range.start <= at && at + UNIT <= range.end {
                span.free[unit / 64] |= 1 << (unit % 64);
                span.units += 1;
            }
        }
        span.free_units = span.units;
        span
    }

    /// Takes a run; returns its address and the number of its units that were dirty.
    fn take(&mut self, order: usize) -> Option<(NonNull<u8>, usize)> {
        if self.free_units < 1 << order {
            return None;
        }
        for word in 0..WORDS {
            let Some(first) = run_in(self.free[word], order) else { continue };
            let run = bits(first, order);
            self.free[word] &= !run;
            let dirty = (self.dirty[word] & run).count_ones() as usize;
            self.dirty[word] &= !run;
            self.free_units -= 1 << order;
            // SAFETY: the unit is within the span. (The beginning of a partial span may be outside
            // the region, the sum is not: hence `wrapping_add`.)
            let at = self.base.as_ptr().wrapping_add((word * 64 + first as usize) * UNIT);
            return NonNull::new(at).map(|at| (at, dirty));
        }
        None
    }

    fn give(&mut self, at: usize, order: usize) {
        let unit = (at - self.base.addr().get()) / UNIT;
        let run = bits((unit % 64) as u32, order);
        self.free[unit / 64] |= run;
        self.dirty[unit / 64] |= run;
        self.free_units += 1 << order;
    }

    /// Marks units as clean and calls `purge` with the byte range of each run of whole dirty pages.
    /// Returns the number of units.
    fn purge(&mut self, page: usize, mut purge: impl FnMut(Range<usize>)) -> usize {
        let mut purged = 0;
        let is = |bits: &[u64; WORDS], unit: usize| bits[unit / 64] >> (unit % 64) & 1 == 1;
        let mut unit = 0;
        while unit < UNITS {
            if !is(&self.dirty, unit) {
                unit += 1;
                continue;
            }
            let start = unit;
            while unit < UNITS && is(&self.dirty, unit) {
                unit += 1;
            }
            let whole = (start * UNIT).next_multiple_of(page)..unit * UNIT / page * page;
            if whole.is_empty() {
                continue;
            }
            for done in whole.start / UNIT..whole.end / UNIT {
                self.dirty[done / 64] &= !(1 << (done % 64));
            }
            purged += whole.len() / UNIT;
            purge(whole);
        }
        purged
    }
}

/// Unmaps a span that [`map_span`] mapped.
///
/// # Safety
/// The span is the caller's, and no code uses any of it.
#[cfg(not(miri))]
unsafe fn unmap_span(span: NonNull<u8>) -> Result<(), sys::Errno> {
    // SAFETY: the caller's promise.
    unsafe { sys::munmap(span, SPAN) }
}

/// Miri cannot unmap parts of a mapping and does not align mappings, so spans come from the heap.
#[cfg(miri)]
const SPAN_LAYOUT: std::alloc::Layout = match std::alloc::Layout::from_size_align(SPAN, SPAN) {
    Ok(layout) => layout,
    Err(_) => panic!("a power of two"),
};

#[cfg(miri)]
unsafe fn unmap_span(span: NonNull<u8>) -> Result<(), sys::Errno> {
    // SAFETY: the caller's promise; `map_span` allocated it with this layout.
    unsafe { std::alloc::dealloc(span.as_ptr(), SPAN_LAYOUT) };
    Ok(())
}

#[cfg(miri)]
fn map_span() -> Option<NonNull<u8>> {
    // SAFETY: the layout is not empty.
    NonNull::new(unsafe { std::alloc::alloc_zeroed(SPAN_LAYOUT) })
}

/// Maps `SPAN` bytes at a multiple of `SPAN`.
#[cfg(not(miri))]
fn map_span() -> Option<NonNull<u8>> {
    let first = sys::map_anonymous(SPAN).ok()?;
    if first.addr().get().is_multiple_of(SPAN) {
        return Some(first);
    }
    // SAFETY: the range is mapped and unused.
    let _ = unsafe { sys::munmap(first, SPAN) };
    let wide = sys::map_anonymous(2 * SPAN).ok()?;
    let before = wide.addr().get().wrapping_neg() % SPAN;
    // SAFETY: `before` < SPAN.
    let at = unsafe { wide.add(before) };
    if before > 0 {
        // SAFETY: the front of the unused mapping, in whole pages.
        let _ = unsafe { sys::munmap(wide, before) };
    }
    // SAFETY: the back of the unused mapping: `before + SPAN` < `2 * SPAN`.
    let _ = unsafe { sys::munmap(at.add(SPAN), SPAN - before) };
    Some(at)
}

impl PageState {
    fn take(&mut self, order: usize) -> Option<NonNull<u8>> {
        loop {
            for at in self.hints[order]..self.spans.len() {
                if let Some((run, dirty)) = self.spans[at].take(order) {
                    self.hints[order] = at;
                    self.stats.dirty -= dirty * UNIT;
                    self.stats.slabs += UNIT << order;
                    return Some(run);
                }
            }
            self.hints[order] = self.spans.len();
            self.grow()?;
        }
    }

    /// Adds one span.
    #[cold]
    fn grow(&mut self) -> Option<()> {
        // The list of spans grows too, under the lock.
        let _guard = reentrancy::enter();
        let base = match &mut self.origin {
            Origin::System => map_span()?,
            Origin::Region(_) => return None,
            Origin::Reserved(reserve) => {
                let range = reserve.range();
                let at = range.start + reserve.opened;
                if at >= range.end {
                    return None;
                }
                // SAFETY: within the reserved range.
                let base = unsafe { reserve.at.add(at - reserve.at.addr().get()) };
                // SAFETY: the range belongs to the reserve.
                unsafe { sys::protect(base, SPAN) }.ok()?;
                reserve.opened += SPAN;
                base
            }
        };
        self.insert(PageSpan::new(base));
        Some(())
    }

    fn insert(&mut self, span: PageSpan) {
        let at = self.spans.partition_point(|other| other.base < span.base);
        self.stats.mapped += span.units * UNIT;
        self.spans.insert(at, span);
        for hint in &mut self.hints {
            *hint = (*hint).min(at);
        }
    }

    fn give(&mut self, run: NonNull<u8>, order: usize) {
        let span = run.addr().get() & !(SPAN - 1);
        let Ok(at) = self.spans.binary_search_by_key(&span, |span| span.base.addr().get()) else {
            debug_assert!(false, "pages of another source");
            return;
        };
        self.spans[at].give(run.addr().get(), order);
        self.stats.slabs -= UNIT << order;
        self.stats.dirty += UNIT << order;
        for hint in &mut self.hints {
            *hint = (*hint).min(at);
        }
    }

    /// Returns all unused pages to the kernel.
    fn purge(&mut self) {
        let page = sys::page_size();
        if let Origin::System = self.origin {
            let stats = &mut self.stats;
            self.spans.retain(|span| {
                // SAFETY: the span is mapped, owned by this source, and entirely free.
                let gone = span.free_units == UNITS && unsafe { unmap_span(span.base) }.is_ok();
                if gone {
                    stats.mapped -= SPAN;
                    stats.dirty -=
                        span.dirty.iter().map(|word| word.count_ones() as usize).sum::<usize>()
                            * UNIT;
                }
                !gone
            });
            self.hints = [0; ORDERS];
        }
        for span in &mut self.spans {
            let base = span.base;
            let purged = span.purge(page, |range| match &self.origin {
                Origin::Region(region) => {
                    let from = base.addr().get() + range.start - region.base().addr().get();
                    // Pages of the hugetlb pool and of a registered region cannot be discarded:
                    // they stay resident.
                    let _ = region.discard(from..from + range.len());
                }
                Origin::System | Origin::Reserved(_) => {
                    // SAFETY: within the span.
                    let at = unsafe { base.add(range.start) };
                    // SAFETY: the pages are owned by this source and free: no code relies on their
                    // content. If the kernel refuses, they stay resident.
                    let _ = unsafe { sys::madvise(at, range.len(), libc::MADV_DONTNEED) };
                }
            });
            self.stats.dirty -= purged * UNIT;
        }
    }
}

impl PageSource {
    pub(crate) fn new(origin: Origin) -> PageSource {
        let mut parts = Vec::new();
        if let Origin::Region(region) = &origin {
            let range = region.base().addr().get()..region.base().addr().get() + region.len();
            for base in (range.start & !(SPAN - 1)..range.end).step_by(SPAN) {
                let offset = base.wrapping_sub(range.start);
                if let Some(base) = NonNull::new(region.base().as_ptr().wrapping_add(offset)) {
                    parts.push(PageSpan::part(base, range.clone()));
                }
            }
        }
        let (hints, stats) = ([0; ORDERS], PageStats::default());
        let mut state = PageState { origin, spans: Vec::with_capacity(parts.len()), hints, stats };
        parts.into_iter().for_each(|span| state.insert(span));
        PageSource(Mutex::new(state))
    }

    /// Takes `UNIT << order` bytes at a multiple of that length, up to 256 KiB. Returns `None` if
    /// there are no more.
    pub(crate) fn take(&self, order: usize) -> Option<NonNull<u8>> {
        self.0.lock().take(order)
    }

    /// Takes runs back.
    ///
    /// # Safety
    /// The runs came from [`take`](Self::take) of this source, with this order, and no code uses
    /// them any more.
    pub(crate) unsafe fn give(&self, order: usize, runs: impl Iterator<Item = NonNull<u8>>) {
        let mut state = self.0.lock();
        runs.for_each(|run| state.give(run, order));
        if state.stats.dirty > MAX_DIRTY_BYTES.max(state.stats.slabs / 8) {
            state.purge();
        }
    }

    /// Returns all unused pages to the kernel.
    pub(crate) fn trim(&self) {
        self.0.lock().purge();
    }

    /// Takes the lock before a fork, so the child finds the state consistent.
    pub(crate) fn prefork(&self) {
        std::mem::forget(self.0.lock());
    }

    /// Releases the lock that [`prefork`](Self::prefork) took, in the parent and in the child.
    pub(crate) fn postfork(&self) {
        // SAFETY: `prefork` locked it, in this thread or in the one that this was forked from.
        unsafe { self.0.force_unlock() };
    }

    /// Returns whether the pages are mapped: by default, a forked child does not inherit a region.
    /// Makes a system call.
    pub(crate) fn is_mapped(&self) -> bool {
        match &self.0.lock().origin {
            Origin::Region(region) => {
                let mut page = [0];
                sys::mincore(page_start(region.base()), 1, &mut page) != Err(sys::Errno::ENOMEM)
            }
            Origin::System | Origin::Reserved(_) => true,
        }
    }

    pub(crate) fn stats(&self) -> PageStats {
        self.0.lock().stats
    }
}

impl Drop for PageState {
    fn drop(&mut self) {
        match &self.origin {
            Origin::System => {
                for span in &self.spans {
                    // SAFETY: the span is owned by this source, and its users are gone.
                    let _ = unsafe { unmap_span(span.base) };
                }
            }
            Origin::Region(_) => {}
            Origin::Reserved(reserve) => {
                // SAFETY: the range is owned by this source, and the users of all its spans are
                // gone.
                let _ = unsafe { sys::munmap(reserve.at, reserve.len) };
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn naive(word: u64, order: usize) -> Option<u32> {
        let len = 1u32 << order;
        (0..64).step_by(len as usize).find(|at| (0..len).all(|bit| word >> (at + bit) & 1 == 1))
    }

    #[test]
    fn runs_are_found_as_by_looking_at_each() {
        let mut word = 0x9E37_79B9_7F4A_7C15u64;
        for round in 0..if cfg!(miri) { 20 } else { 20_000 } {
            word ^= word << 13;
            word ^= word >> 7;
            word ^= word << 17;
            let sparse = if round % 2 == 0 {
                word
            } else {
                word | word.rotate_left(7) | word.rotate_left(23)
            };
            for order in 0..ORDERS {
                assert_eq!(run_in(sparse, order), naive(sparse, order), "{sparse:x} {order}");
            }
        }
        assert_eq!((run_in(u64::MAX, 6), run_in(0, 0)), (Some(0), None));
    }

    fn walk(source: PageSource, max: usize) {
        let mut held: Vec<(usize, NonNull<u8>)> = Vec::new();
        let mut state = 1u64;
        for _ in 0..if cfg!(miri) { 12 } else { 4000 } {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            let order = (state >> 33) as usize % if cfg!(miri) { 2 } else { ORDERS };
            if state >> 60 < 9 {
                let Some(run) = source.take(order) else { continue };
                assert!(run.addr().get().is_multiple_of(UNIT << order));
                let range = |order: usize, run: NonNull<u8>| {
                    run.addr().get()..run.addr().get() + (UNIT << order)
                };
                for (other, at) in &held {
                    let (a, b) = (range(*other, *at), range(order, run));
                    assert!(a.end <= b.start || b.end <= a.start, "{a:?} and {b:?}");
                }
                // SAFETY: the run was taken and is in use by this test only.
                unsafe { run.write_bytes(order as u8, UNIT << order) };
                held.push((order, run));
            } else if !held.is_empty() {
                let (order, run) = held.swap_remove((state >> 40) as usize % held.len());
                // SAFETY: the run was taken and filled so.
                let bytes = unsafe { std::slice::from_raw_parts(run.as_ptr(), UNIT << order) };
                assert!(bytes.iter().all(|byte| *byte == order as u8));
                // SAFETY: taken from this source with this order.
                unsafe { source.give(order, [run].into_iter()) };
            }
            let held: usize = held.iter().map(|(order, _)| UNIT << order).sum();
            let stats = source.stats();
            assert_eq!(stats.slabs, held);
            assert!(
                stats.dirty <= MAX_DIRTY_BYTES.max(held / 8)
                    && stats.slabs + stats.dirty <= stats.mapped
            );
            assert!(stats.mapped <= max);
        }
        for (order, run) in held {
            // SAFETY: taken from this source with this order.
            unsafe { source.give(order, [run].into_iter()) };
        }
        source.trim();
        assert_eq!((source.stats().slabs, source.stats().dirty), (0, 0));
    }

    #[test]
    fn runs_of_the_system_never_overlap() {
        walk(PageSource::new(Origin::System), usize::MAX);
    }

    #[test]
    #[cfg_attr(miri, ignore = "maps")]
    fn runs_of_a_region_never_overlap() {
        let region = Region::builder((5 << 20) + 4096).map().unwrap();
        let len = region.len();
        walk(PageSource::new(Origin::region(ExclusiveRegion::new(region).unwrap())), len);
    }

    #[test]
    #[cfg_attr(miri, ignore = "maps")]
    fn runs_of_a_reserve_never_overlap() {
        let reserve = Reserve::new(64 << 20).unwrap();
        assert!(reserve.range().len() >= 62 << 20);
        walk(PageSource::new(Origin::Reserved(reserve)), 64 << 20);
    }

    #[test]
    fn an_empty_system_source_maps_nothing() {
        let source = PageSource::new(Origin::System);
        let spans = if cfg!(miri) { 1 } else { 4 };
        let runs: Vec<_> = (0..500 * spans).map(|_| source.take(0).unwrap()).collect();
        assert_eq!(source.stats().mapped, spans * SPAN);
        // SAFETY: taken from this source with this order.
        unsafe { source.give(0, runs.into_iter()) };
        source.trim();
        assert_eq!(source.stats(), PageStats::default());
    }
}
