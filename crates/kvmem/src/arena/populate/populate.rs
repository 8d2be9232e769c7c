//! *Populating*: makes pages resident with several threads, and without a risk for the process.
//!
//! The first store to a page can kill the process: by SIGBUS if the hugetlb pool is empty or the
//! page is broken, by the OOM killer if a limit is reached. Here the kernel populates the pages on
//! request (`MADV_POPULATE_WRITE`) and returns an error instead; the limits that end in a kill are
//! checked before (see `headroom.rs`). Kernels before 5.14 do not know this request. There the
//! kernel touches each page for us by an atomic addition of 0 (see [`sys::touch`]). The addition
//! changes nothing, loses no store of another thread, and returns an error as well.
//!
//! The threads divide each window of the range evenly, on page boundaries. None begins before all
//! have started. Each works in chunks, and checks between two chunks whether to continue. The best
//! number of threads is measured while the work goes on: the limit can be memory bandwidth, the
//! kernel's own locks, or a host that has to find the pages first.

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
use crate::arena::{ArenaError, Limit, ProgressTracker};
use crate::sys;
use crate::threads::{
    ProgressOptions, RealTime, ThreadTeam, WindowedWork, do_windows, now, seconds, with_team,
};
use crate::trace::span;

/// The bytes that one thread populates between two checks: some 10 ms of work.
const CHUNK: usize = 32 << 20;
/// The same near a limit, where processes that know of no reservations may take the remaining
/// bytes.
const CHUNK_NEAR: usize = 4 << 20;
/// A limit is near if less than this remains in addition to the bytes to populate.
const NEAR: u64 = 256 << 20;
/// The most bytes that are populated between two readings of the limits.
const CREDIT: u64 = 1 << 30;
/// Below this size, starting threads costs more than they gain.
const MIN_MEASURED: usize = 16 << 20;
/// The bytes for which a thread is started: some hundred microseconds of hugepages.
const MIN_SHARE: usize = 2 << 20;
/// The longest window on which a number of threads is measured.
const MAX_SAMPLE: usize = 256 << 20;

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
        parts,
        headroom,
        ordinary: AtomicU64::new(ordinary),
        near: AtomicBool::new(false),
        credit: AtomicU64::new(0),
        tracker,
        has_populate_write: sys::has_populate_write(),
        cores: usable_cores(),
        window: Mutex::new((0, 0..0)),
        stop: AtomicBool::new(false),
        error: Mutex::new(None),
    };
    job.tracker.go_on()?;
    let work = |number, threads| job.populate_share(number, threads);
    with_team("kvmem-populate", &RealTime, &work, |team| {
        (0..parts.len()).map(|index| job.populate_range(index, how, team)).collect()
    })
}

struct PopulateJob<'a> {
    parts: &'a [PopulateRange],
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
    /// The window that the threads populate, in the range with this index. Only the leader replaces
    /// it, between two runs.
    window: Mutex<(usize, Range<usize>)>,
    /// Set with the first error; the other threads then stop too.
    stop: AtomicBool,
    error: Mutex<Option<ArenaError>>,
}

impl PopulateJob<'_> {
    /// Populates a range with a fixed number of threads, or with the number that is fastest.
    fn populate_range(
        &self,
        index: usize,
        how: Populate,
        team: &mut ThreadTeam<'_, '_>,
    ) -> Result<Populated, ArenaError> {
        let part = &self.parts[index];
        let total = Populated::default();
        let mut work = Windows { job: self, index, team, at: 0, longest: 0, total };
        match how {
            Populate::Threads(threads) => {
                work.run(threads.get().min(self.cores), part.len())?;
            }
            _ if part.len() < MIN_MEASURED.max(part.page.bytes()) => {
                work.run(1, part.len())?;
            }
            _ => do_windows(self.cores.min(part.len() / MIN_SHARE), &mut work)?,
        }
        Ok(work.total)
    }

    /// Does the work of one thread in the current window.
    fn populate_share(&self, number: usize, threads: usize) {
        let (index, window) = self.window.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let part = &self.parts[index];
        let share = part.share(&window, number, threads);
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

/// A range that is populated window by window.
struct Windows<'a, 't, 'scope, 'env> {
    job: &'a PopulateJob<'a>,
    /// The index of the range.
    index: usize,
    team: &'t mut ThreadTeam<'scope, 'env>,
    /// The offset up to which the range is populated.
    at: usize,
    /// The bytes of the longest window so far, whose threads are reported.
    longest: usize,
    total: Populated,
}

impl<'a> Windows<'a, '_, '_, '_> {
    fn part(&self) -> &'a PopulateRange {
        &self.job.parts[self.index]
    }
}

impl WindowedWork for Windows<'_, '_, '_, '_> {
    type Error = ArenaError;

    fn remaining(&self) -> usize {
        self.part().len() - self.at
    }

    /// Each thread needs a page, and enough of them to hide its start.
    fn sample(&self, threads: usize) -> usize {
        let page = self.part().page.bytes();
        let share = threads * page.max(MIN_SHARE / 2);
        (self.part().len() / 64).next_multiple_of(page).min(MAX_SAMPLE).max(share)
    }

    fn run(&mut self, threads: usize, len: usize) -> Result<f64, ArenaError> {
        let (job, part) = (self.job, self.part());
        let page = part.page.bytes();
        let to = part.boundary(self.at.saturating_add(len).min(part.len()), self.at);
        let to = if part.len() - to < page { part.len() } else { to };
        let window = self.at..to;
        let (began, bytes) = (now(), window.len());
        let threads = threads.min(bytes.div_ceil(page)).max(1);
        *job.window.lock().unwrap_or_else(PoisonError::into_inner) = (self.index, window);
        // Threads that wait would wait awake, for the whole of a long window.
        if bytes > MAX_SAMPLE {
            self.team.shrink(threads);
        }
        let run = self.team.run(threads);
        if let Some(error) = job.error.lock().unwrap_or_else(PoisonError::into_inner).take() {
            return Err(error);
        }
        self.at = to;
        self.total.bytes += bytes as u64;
        self.total.seconds += seconds(now().saturating_sub(began));
        if bytes >= self.longest {
            (self.longest, self.total.threads) = (bytes, run.threads);
        }
        Ok(bytes as f64 / f64::from(1 << 30) / run.seconds)
    }
}
