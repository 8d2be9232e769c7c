//! *Populating*: makes pages resident with several threads, and without a risk for the process.
//!
//! The first store to a page can kill the process: by SIGBUS if the hugetlb pool is empty or the
//! page is broken, by the OOM killer if a limit is reached. Here the kernel populates the pages on
//! request (`MADV_POPULATE_WRITE`) and returns an error instead; the limits that end in a kill are
//! checked before (see `headroom.rs`). Kernels before 5.14 do not know this request. There the
//! kernel touches each page for us by an atomic addition of 0 (see [`sys::touch`]). The addition
//! changes nothing, loses no store of another thread, and returns an error as well.
//!
//! The threads divide the range evenly, on page boundaries. None begins before all have started.
//! Each works in chunks, and checks between two chunks whether to continue. The best number of
//! threads is measured: the limit can be memory bandwidth, the kernel's own locks, or a host that
//! has to find the pages first.

use std::ops::Range;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use super::collapse::collapse;
use super::headroom::Headroom;
use super::populate_mode::{Populate, Populated};
use super::range::PopulateRange;
use super::residency::measure;
use super::touch::{make_resident, remedy};
use crate::arena::error::limit_behind;
use crate::arena::machine::{hugetlb, usable_cores};
use crate::arena::pages::address_at;
use crate::arena::{ArenaError, Limit, PageSize, ProgressTracker};
use crate::sys;
use crate::threads::{
    ProgressOptions, ROUNDS, RealTime, ThreadProbe, choose_threads, now, seconds, with_team,
};
use crate::trace::span;

/// The bytes that one thread populates between two checks: some 10 ms of work.
const CHUNK: usize = 32 << 20;
/// The same near a limit, where processes that know of no reservations may take the remaining
/// bytes.
const CHUNK_NEAR: usize = 4 << 20;
/// A limit is near if less than this remains beside the bytes to populate.
const NEAR: u64 = 256 << 20;
/// The most bytes that are populated between two readings of the limits.
const CREDIT: u64 = 1 << 30;
/// Below this size, starting threads costs more than they gain.
const MIN_MEASURED: usize = 16 << 20;

/// Populates all ranges one after the other. `resident` is the number of their bytes that are
/// resident already.
pub(crate) fn populate(
    parts: &[PopulateRange],
    how: Populate,
    watch: &ProgressOptions,
    resident: u64,
) -> Result<Vec<Populated>, ArenaError> {
    if how == Populate::None || parts.is_empty() {
        return Ok(Vec::new());
    }
    span!(INFO, "populate", parts = parts.len(), %how);
    let bytes = |parts: &mut dyn Iterator<Item = &PopulateRange>| {
        parts.map(|part| part.len() as u64).sum::<u64>()
    };
    let headroom = Headroom::find();
    let ordinary = bytes(&mut parts.iter().filter(|part| !part.page.is_pooled()));
    let tracker = ProgressTracker::begin(watch, bytes(&mut parts.iter()));
    headroom.reserve(ordinary.saturating_sub(resident), &|| tracker.go_on())?;
    let job = PopulateJob {
        headroom,
        ordinary: AtomicU64::new(ordinary),
        near: AtomicBool::new(false),
        credit: AtomicU64::new(0),
        tracker,
        has_populate_write: sys::has_populate_write(),
        cores: usable_cores(),
        stop: AtomicBool::new(false),
        error: Mutex::new(None),
    };
    job.tracker.go_on()?;
    parts
        .iter()
        .map(|part| match how {
            Populate::Threads(threads) => job.populate_window(part, 0..part.len(), threads.get()),
            _ => job.populate_measured(part),
        })
        .collect()
}

struct PopulateJob<'a> {
    headroom: Headroom,
    /// Bytes of ordinary pages that are not populated yet.
    ordinary: AtomicU64,
    /// Whether a limit was near at its last reading.
    near: AtomicBool,
    /// Bytes that may be populated before the limits are read again.
    credit: AtomicU64,
    tracker: ProgressTracker<'a>,
    /// Whether the kernel supports `MADV_POPULATE_WRITE`.
    has_populate_write: bool,
    cores: usize,
    /// Set with the first error; the other threads then stop too.
    stop: AtomicBool,
    error: Mutex<Option<ArenaError>>,
}

impl PopulateJob<'_> {
    /// Populates a range with the number of threads that is fastest on its first slices. Each slice
    /// is real work, so a wrong guess costs only the difference on this slice.
    fn populate_measured(&self, part: &PopulateRange) -> Result<Populated, ArenaError> {
        let mut probe = SliceProbe::new(self, part);
        let page = part.page.bytes();
        // A few pages of 1 GiB cannot be compared, but clearing one takes long enough for a thread
        // of its own.
        let start =
            if part.page == PageSize::Huge1G && part.len() / 16 < page { self.cores } else { 1 };
        let choice = choose_threads(start, self.cores, &mut probe)?;
        let remaining = part.len() - probe.at;
        if remaining > 0 {
            probe.populate(choice.map_or(1, |choice| choice.threads), remaining)?;
        }
        Ok(probe.total)
    }

    /// Populates a window of a range with `threads` threads, or fewer if no more can be started.
    fn populate_window(
        &self,
        part: &PopulateRange,
        window: Range<usize>,
        threads: usize,
    ) -> Result<Populated, ArenaError> {
        let pages = window.len().div_ceil(part.page.bytes());
        let threads = threads.min(self.cores).min(pages).max(1);
        let work = |number, threads| {
            self.populate_share(part, part.share(&window, number, threads), number, threads)
        };
        let run = with_team("kvmem-populate", &RealTime, &work, |team| team.run(threads));
        // The end of the helpers counts, too: every window has its own.
        let seconds = seconds(now().saturating_sub(run.began));
        match self.error.lock().unwrap_or_else(PoisonError::into_inner).take() {
            Some(error) => Err(error),
            None => Ok(Populated { bytes: window.len() as u64, seconds, threads: run.threads }),
        }
    }

    /// Does the work of one thread.
    fn populate_share(
        &self,
        part: &PopulateRange,
        share: Range<usize>,
        number: usize,
        threads: usize,
    ) {
        span!(DEBUG, "populate_range", thread = number, threads, bytes = share.len());
        let mut at = share.start;
        // Relaxed: the flag only says that more work is useless; the error itself is under a lock.
        while at < share.end && !self.stop.load(Ordering::Relaxed) {
            // Relaxed: it bounds the work of one call; any value is correct.
            let chunk = if self.near.load(Ordering::Relaxed) { CHUNK_NEAR } else { CHUNK };
            let chunk = chunk.max(part.page.bytes());
            let to = part.boundary(at.saturating_add(chunk).min(share.end), at);
            let to = if to == at { share.end } else { to };
            let began = self.tracker.now();
            if let Err(error) = self.populate_chunk(part, at..to, threads) {
                // Relaxed: the flag publishes nothing; the error itself is under a lock.
                self.stop.store(true, Ordering::Relaxed);
                self.error.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(error);
                return;
            }
            if !part.page.is_pooled() {
                // Relaxed: a count; the pages are resident, and the kernel has counted them.
                let before = self.ordinary.fetch_sub((to - at) as u64, Ordering::Relaxed);
                self.headroom.lower_to(before.saturating_sub((to - at) as u64));
            }
            self.tracker.add(to - at, number, began);
            at = to;
        }
    }

    /// Checks that the limits allow a chunk, unless the last reading left much more than that. A
    /// reading takes as long as a few MiB of hugepages.
    fn check_limits(&self, at: NonNull<u8>, len: usize, threads: usize) -> Result<(), ArenaError> {
        // Relaxed: a number of bytes that guards nothing; two threads that see the same value both
        // read the limits.
        let credit = self.credit.load(Ordering::Relaxed);
        if credit >= len as u64 {
            // Relaxed: a number of bytes that guards nothing.
            self.credit.store(credit - len as u64, Ordering::Relaxed);
            return Ok(());
        }
        // The other threads are about to take the same amount.
        let wanted = self.tracker.left().min((threads * len) as u64);
        let more = match self.headroom.check(wanted) {
            Ok(more) => more,
            // Resident pages need no more memory.
            Err(_) if measure(at, len).is_ok_and(|found| found.is_whole()) => return Ok(()),
            Err(_) => self.headroom.wait(wanted, &|| self.tracker.go_on())?,
        };
        // Relaxed: it bounds the work of one call; any value is correct.
        self.near.store(more < NEAR, Ordering::Relaxed);
        // Other processes use the remaining bytes too: this call takes a quarter, at most a
        // second's worth.
        // Relaxed: a number of bytes that guards nothing.
        self.credit.store((more / 4).min(CREDIT), Ordering::Relaxed);
        Ok(())
    }

    fn populate_chunk(
        &self,
        part: &PopulateRange,
        chunk: Range<usize>,
        threads: usize,
    ) -> Result<(), ArenaError> {
        self.tracker.go_on()?;
        let at = address_at(part.at, chunk.start);
        if !part.page.is_pooled() {
            self.check_limits(at, chunk.len(), threads)?;
        }
        if part.by_collapse {
            // Blocks that do not become hugepages are populated page by page.
            collapse(at, chunk.len());
        }
        let filled = make_resident(at, chunk.len(), part.page, self.has_populate_write);
        filled.map_err(|(call, errno)| {
            let range = part.range.start + chunk.start..part.range.start + chunk.end;
            let limit = if part.page.is_pooled() {
                hugetlb::free(part.page).map(|free| Limit::Pool { page: part.page, free })
            } else {
                limit_behind(errno, chunk.len() as u64)
            };
            ArenaError::Populate { range, call, errno, limit, remedy: remedy(errno, part.page) }
        })
    }
}

/// Populates a range slice by slice while numbers of threads are compared on it.
struct SliceProbe<'a> {
    job: &'a PopulateJob<'a>,
    part: &'a PopulateRange,
    /// Bytes of a slice.
    slice: usize,
    /// The offset up to which the range is populated.
    at: usize,
    total: Populated,
}

impl<'a> SliceProbe<'a> {
    fn new(job: &'a PopulateJob<'a>, part: &'a PopulateRange) -> SliceProbe<'a> {
        let slice = (part.len() / 16).clamp(4 << 20, 256 << 20);
        let slice = slice.next_multiple_of(part.page.bytes());
        SliceProbe { job, part, slice, at: 0, total: Populated::default() }
    }

    /// Returns the bytes of a slice for a comparison up to `more` threads: each thread needs a
    /// page.
    fn slice_for(&self, more: usize) -> usize {
        self.slice.max(more * self.part.page.bytes())
    }

    /// Populates the next `len` bytes; returns the speed in GiB/s.
    fn populate(&mut self, threads: usize, len: usize) -> Result<f64, ArenaError> {
        let (part, page) = (self.part, self.part.page.bytes());
        let to = part.boundary((self.at + len).min(part.len()), self.at);
        let to = if part.len() - to < page { part.len() } else { to };
        let done = self.job.populate_window(part, self.at..to, threads)?;
        self.at = to;
        self.total.bytes += done.bytes;
        self.total.seconds += done.seconds;
        self.total.threads = done.threads;
        Ok(done.gib_per_s())
    }
}

impl ThreadProbe for SliceProbe<'_> {
    type Error = ArenaError;

    /// The rest of the range must justify the comparison.
    fn rounds(&self, more: usize) -> usize {
        let remaining = self.part.len() - self.at;
        let enough = self.part.len() >= MIN_MEASURED && remaining / 8 >= self.slice_for(more);
        if enough { ROUNDS } else { 0 }
    }

    fn measure(&mut self, threads: usize, more: usize) -> Result<Option<f64>, ArenaError> {
        self.populate(threads, self.slice_for(more)).map(Some)
    }
}
