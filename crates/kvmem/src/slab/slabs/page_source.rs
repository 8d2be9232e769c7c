//! *Page source*: where slabs get their pages and where empty slabs return them.
//!
//! Slabs are powers of two of 4 KiB and aligned to their size. Pages come in *spans* of 2 MiB at
//! multiples of 2 MiB. So one system call serves up to 512 slabs, and an aligned run within a span
//! is an aligned run of addresses. The metadata is separate from the pages: two bits for each 4 KiB
//! of a span.
//!
//! ```text
//!   span      │ slab │ slab │      free       │   slab    │ free │ …
//!   free          0      0     1  1  1  1         0  0       1        may be used for a slab
//!   dirty         0      0     0  1  1  0         0  0       1        in a slab before; resident
//! ```
//!
//! The lowest span with a free run serves a request, so the higher spans can become empty. Returned
//! pages stay resident until they exceed both 1 MiB and an eighth of the pages in use. One pass
//! then returns all of them to the kernel and unmaps empty spans. So slabs that come and go cost no
//! system calls, and the resident memory is bounded.

use std::ptr::NonNull;

use super::page_origin::Origin;
use super::page_span::{ORDERS, PageSpan, SPAN, UNIT, UNITS};
use super::reentrancy;
use crate::sync::{Mutex, hold_over_fork, release_over_fork};
use crate::sys;

/// This many unused bytes may stay resident, regardless of the bytes in use.
const MAX_DIRTY_BYTES: usize = 1 << 20;

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
        let base = self.origin.make_span()?;
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
        let PageState { origin, spans, hints, stats } = self;
        if let Origin::System = origin {
            spans.retain(|span| {
                // SAFETY: the span came from this origin. All of its units are free, so no slab
                // uses it, and it leaves the list, so no slab gets it again.
                let gone = span.free_units == UNITS && unsafe { origin.unmap_span(span.base) };
                if gone {
                    stats.mapped -= SPAN;
                    stats.dirty -= span.dirty_units() * UNIT;
                }
                !gone
            });
            *hints = [0; ORDERS];
        }
        for span in spans {
            let base = span.base;
            // SAFETY: the units of the range exist, and all are free: no slab uses them, and the
            // next one writes before it reads.
            let purged = span.purge(page, |range| unsafe { origin.discard(base, range) });
            stats.dirty -= purged * UNIT;
        }
    }
}

impl PageSource {
    pub(crate) fn new(origin: Origin) -> PageSource {
        let parts = origin.parts();
        let (hints, stats) = ([0; ORDERS], PageStats::default());
        let mut state = PageState { origin, spans: Vec::with_capacity(parts.len()), hints, stats };
        for (base, range) in parts {
            state.insert(PageSpan::part(base, range));
        }
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
        hold_over_fork(&self.0);
    }

    /// Releases the lock that [`prefork`](Self::prefork) took, in the parent and in the child.
    pub(crate) fn postfork(&self) {
        release_over_fork(&self.0);
    }

    /// Returns whether the pages are mapped; see [`Origin::is_mapped`].
    pub(crate) fn is_mapped(&self) -> bool {
        self.0.lock().origin.is_mapped()
    }

    pub(crate) fn stats(&self) -> PageStats {
        self.0.lock().stats
    }
}

impl Drop for PageState {
    fn drop(&mut self) {
        for span in &self.spans {
            // SAFETY: the span came from this origin. Its users are gone: the source ends with its
            // slabs, after which no object of theirs may be used.
            let _ = unsafe { self.origin.unmap_span(span.base) };
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::super::page_origin::Reserve;
    use super::*;
    use crate::arena::{ExclusiveRegion, Region};

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
