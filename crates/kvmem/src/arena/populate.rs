//! *Populating*: making pages resident, on several threads, without getting anybody killed.
//!
//! A page that is first touched by a store can end the process: with SIGBUS if its pool is empty or
//! the page broken, by the OOM killer if a limit is reached. Here the kernel is asked to do it
//! (`MADV_POPULATE_WRITE`), which answers with an error instead; and the limits that end in a kill
//! are asked before (see `headroom.rs`). Kernels before 5.14 do not know that request. There each
//! page is touched by the kernel on our behalf, by an atomic addition of 0 (see [`sys::touch`]),
//! which changes nothing, loses no store of another thread, and answers with an error as well.
//!
//! The range is divided evenly among threads, on page boundaries. None begins before all have been
//! started. Each works in chunks; between two of them it looks whether to go on. How many threads
//! are best is measured: the kernel can be bound by memory bandwidth, by its own locks, or by a
//! host that has to find the pages first.

use std::cell::Cell;
use std::fmt;
use std::num::NonZeroUsize;
use std::ops::Range;
use std::ptr::NonNull;
use std::str::FromStr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use super::collapse::collapse;
use super::crew::lead;
use super::diagnose::limit_behind;
use super::headroom::Headroom;
use super::residency::measure;
use super::watch::{ProgressOptions, Watched};
use super::{ArenaError, Call, Errno, Limit, PageSize, cores, pool};
use crate::sys;
use crate::trace::span;

/// What one thread does between two looks at the watch: some 10 ms.
const CHUNK: usize = 32 << 20;
/// The same near a limit, where others that know of no reservations may take what is left.
const CHUNK_NEAR: usize = 4 << 20;
/// A limit is near if it has less than this left beside what is about to be populated.
const NEAR: u64 = 256 << 20;
/// The most that is populated between two looks at the limits.
const CREDIT: u64 = 1 << 30;
/// Below this, starting threads costs more than they gain.
const WORTH_MEASURING: usize = 16 << 20;
/// How much faster more threads must be to be worth having.
const GAIN: f64 = 1.02;
/// How often two thread counts are compared. The fastest run of each counts: what slows one down is
/// somebody else.
const ROUNDS: usize = 3;

/// Whether, and by how many threads, pages are made resident.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Populate {
    /// Pages become resident when they are first touched.
    #[default]
    None,
    /// By so many threads, but by no more than there are cores that the process may use.
    Threads(NonZeroUsize),
    /// By as many threads as turn out fastest on the first slices.
    Auto,
}

impl Populate {
    /// By `threads` threads; by none if that is 0.
    #[must_use]
    pub fn threads(threads: usize) -> Populate {
        NonZeroUsize::new(threads).map_or(Populate::None, Populate::Threads)
    }
}

impl fmt::Display for Populate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Populate::None => f.pad("none"),
            Populate::Threads(threads) => fmt::Display::fmt(threads, f),
            Populate::Auto => f.pad("auto"),
        }
    }
}

impl FromStr for Populate {
    type Err = String;

    /// `none`, `auto`, or a number of threads.
    fn from_str(text: &str) -> Result<Populate, String> {
        match text {
            "none" => Ok(Populate::None),
            "auto" => Ok(Populate::Auto),
            number => number.parse().map(Populate::Threads).map_err(|_| {
                format!("`{text}` is neither none, nor auto, nor a number of threads")
            }),
        }
    }
}

/// What populating has done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Populated {
    /// Bytes that are resident now, those that were before included.
    pub bytes: u64,
    /// How long it took in seconds.
    pub seconds: f64,
    /// Threads that did most of it.
    pub threads: usize,
}

impl Populated {
    /// Its speed in GiB/s.
    #[must_use]
    pub fn gib_per_s(&self) -> f64 {
        if self.seconds > 0.0 {
            self.bytes as f64 / (1u64 << 30) as f64 / self.seconds
        } else {
            0.0
        }
    }
}

/// A range of pages of one kind that is to be populated.
#[derive(Clone, Debug)]
pub(crate) struct Part {
    /// Its first address, on a page boundary.
    pub(crate) at: NonNull<u8>,
    /// Its place in the region, for errors.
    pub(crate) range: Range<usize>,
    pub(crate) page: PageSize,
    /// Hugepages are made here, not by faults.
    pub(crate) by_collapse: bool,
}

// SAFETY: a part is a range of addresses; what threads do with them changes no byte.
unsafe impl Sync for Part {}

impl Part {
    fn len(&self) -> usize {
        self.range.len()
    }

    /// The last page boundary in memory that is not behind `offset`, but not before `least`.
    fn boundary(&self, offset: usize, least: usize) -> usize {
        (offset - ((self.at.addr().get() + offset) % self.page.bytes()).min(offset)).max(least)
    }

    /// The share of one of `threads` threads of a window.
    fn share(&self, window: &Range<usize>, thread: usize, threads: usize) -> Range<usize> {
        let edge = |n: usize| match n {
            0 => window.start,
            n if n == threads => window.end,
            n => self.boundary(
                window.start + (window.len() as u128 * n as u128 / threads as u128) as usize,
                window.start,
            ),
        };
        edge(thread)..edge(thread + 1)
    }
}

/// Populates all parts, one after the other. `resident` of their bytes are known to be there
/// already.
pub(crate) fn populate(
    parts: &[Part],
    how: Populate,
    watch: &ProgressOptions,
    resident: u64,
) -> Result<Vec<Populated>, ArenaError> {
    if how == Populate::None || parts.is_empty() {
        return Ok(Vec::new());
    }
    span!(INFO, "populate", parts = parts.len(), %how);
    let bytes =
        |parts: &mut dyn Iterator<Item = &Part>| parts.map(|part| part.len() as u64).sum::<u64>();
    let headroom = Headroom::find();
    let ordinary = bytes(&mut parts.iter().filter(|part| !part.page.is_pooled()));
    let watched = Watched::begin(watch, bytes(&mut parts.iter()));
    headroom.reserve(ordinary.saturating_sub(resident), &|| watched.go_on())?;
    let work = Work {
        headroom,
        ordinary: AtomicU64::new(ordinary),
        near: AtomicBool::new(false),
        credit: AtomicU64::new(0),
        watched,
        known: sys::populate_is_known(),
        cores: cores::usable(),
        stop: AtomicBool::new(false),
        error: Mutex::new(None),
    };
    work.watched.go_on()?;
    parts
        .iter()
        .map(|part| match how {
            Populate::Threads(threads) => work.sweep(part, 0..part.len(), threads.get()),
            _ => work.measured(part),
        })
        .collect()
}

struct Work<'a> {
    headroom: Headroom,
    /// Bytes of ordinary pages that are not populated yet.
    ordinary: AtomicU64,
    /// Whether a limit was near when it was asked last.
    near: AtomicBool,
    /// Bytes that may be populated before the limits are asked again.
    credit: AtomicU64,
    watched: Watched<'a>,
    /// Whether the kernel knows the request.
    known: bool,
    cores: usize,
    /// Set with the first error, so that the other threads stop too.
    stop: AtomicBool,
    error: Mutex<Option<ArenaError>>,
}

impl Work<'_> {
    /// Populates a part with the number of threads that is fastest on its first slices.
    ///
    /// Twice as many threads are compared with the best so far, in turns, until that gains nothing.
    /// A slice is real work, so what a wrong guess costs is only the difference on this slice.
    fn measured(&self, part: &Part) -> Result<Populated, ArenaError> {
        let page = part.page.bytes();
        let slice = (part.len() / 16).clamp(4 << 20, 256 << 20).next_multiple_of(page);
        let mut total = Populated::default();
        let mut at = 0;
        // A few pages of 1 GiB cannot be compared, but to clear a whole one takes long enough for a
        // thread of its own.
        let mut best =
            if part.page == PageSize::Huge1G && part.len() / 16 < page { self.cores } else { 1 };
        let mut run = |threads: usize, len: usize| {
            let to = part.boundary((at + len).min(part.len()), at);
            let to = if part.len() - to < page { part.len() } else { to };
            let done = self.sweep(part, at..to, threads)?;
            at = to;
            total.bytes += done.bytes;
            total.seconds += done.seconds;
            total.threads = done.threads;
            Ok((done.gib_per_s(), part.len() - at))
        };
        let mut left = part.len();
        while part.len() >= WORTH_MEASURING && best < self.cores {
            let more = (2 * best).min(self.cores);
            // Each thread needs a page, and the rest must be worth it.
            let each = slice.max(more * page);
            if left / 8 < each {
                break;
            }
            let (mut with_best, mut with_more) = (0.0f64, 0.0f64);
            for _ in 0..ROUNDS {
                with_best = with_best.max(run(best, each)?.0);
                let (speed, rest) = run(more, each)?;
                with_more = with_more.max(speed);
                left = rest;
            }
            if with_more < with_best * GAIN {
                break;
            }
            best = more;
        }
        if left > 0 {
            run(best, left)?;
        }
        Ok(total)
    }

    /// Populates a window of a part with so many threads, or fewer if they cannot be had.
    fn sweep(
        &self,
        part: &Part,
        window: Range<usize>,
        threads: usize,
    ) -> Result<Populated, ArenaError> {
        let pages = window.len().div_ceil(part.page.bytes());
        let threads = threads.min(self.cores).min(pages).max(1);
        let start = Cell::new(Instant::now());
        let work = |number, threads| {
            self.work(part, part.share(&window, number, threads), number, threads)
        };
        let threads = lead("kvmem-populate", &work, |crew| {
            crew.sweep(threads, |_| start.set(Instant::now()))
        });
        let took = start.get().elapsed();
        match self.error.lock().unwrap_or_else(PoisonError::into_inner).take() {
            Some(error) => Err(error),
            None => Ok(Populated { bytes: window.len() as u64, seconds: seconds(took), threads }),
        }
    }

    /// What one thread does.
    fn work(&self, part: &Part, share: Range<usize>, number: usize, threads: usize) {
        span!(DEBUG, "populate_range", thread = number, threads, bytes = share.len());
        let mut at = share.start;
        // Relaxed: it only says that there is no point in going on; the error itself is under a
        // lock.
        while at < share.end && !self.stop.load(Ordering::Relaxed) {
            // Relaxed: it bounds what one call takes; any value will do.
            let chunk = if self.near.load(Ordering::Relaxed) { CHUNK_NEAR } else { CHUNK };
            let chunk = chunk.max(part.page.bytes());
            let to = part.boundary(at.saturating_add(chunk).min(share.end), at);
            let to = if to == at { share.end } else { to };
            let began = self.watched.now();
            if let Err(error) = self.chunk(part, at..to, threads) {
                // Relaxed: see above.
                self.stop.store(true, Ordering::Relaxed);
                self.error.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(error);
                return;
            }
            if !part.page.is_pooled() {
                // Relaxed: a count; the pages are resident, and the kernel has counted them.
                let before = self.ordinary.fetch_sub((to - at) as u64, Ordering::Relaxed);
                self.headroom.lower_to(before.saturating_sub((to - at) as u64));
            }
            self.watched.add(to - at, number, began);
            at = to;
        }
    }

    /// Asks the limits whether a chunk has room, unless they had much more than that left when they
    /// were asked last: reading them takes as long as a few MiB of hugepages.
    fn ask(&self, at: NonNull<u8>, len: usize, threads: usize) -> Result<(), ArenaError> {
        // Relaxed: it is a number of bytes that guards nothing; two threads that see the same one
        // ask twice.
        let credit = self.credit.load(Ordering::Relaxed);
        if credit >= len as u64 {
            // Relaxed: as above.
            self.credit.store(credit - len as u64, Ordering::Relaxed);
            return Ok(());
        }
        // The others are about to take as much.
        let soon = self.watched.left().min((threads * len) as u64);
        let more = match self.headroom.check(soon) {
            Ok(more) => more,
            // What is there needs no room.
            Err(_) if measure(at, len).is_ok_and(|found| found.is_whole()) => return Ok(()),
            Err(_) => self.headroom.wait(soon, &|| self.watched.go_on())?,
        };
        // Relaxed: it bounds what one call takes; any value will do.
        self.near.store(more < NEAR, Ordering::Relaxed);
        // Others take from it too: a quarter is ours, and no more than a second's worth.
        // Relaxed: as above.
        self.credit.store((more / 4).min(CREDIT), Ordering::Relaxed);
        Ok(())
    }

    fn chunk(&self, part: &Part, chunk: Range<usize>, threads: usize) -> Result<(), ArenaError> {
        self.watched.go_on()?;
        // SAFETY: the chunk lies in the part.
        let at = unsafe { part.at.add(chunk.start) };
        if !part.page.is_pooled() {
            self.ask(at, chunk.len(), threads)?;
        }
        if part.by_collapse {
            // What does not become a hugepage is populated page by page.
            collapse(at, chunk.len());
        }
        let filled =
            if self.known { fill(at, chunk.len()) } else { touch(at, chunk.len(), part.page) };
        filled.map_err(|(call, errno)| {
            let range = part.range.start + chunk.start..part.range.start + chunk.end;
            let limit = if part.page.is_pooled() {
                pool::free(part.page).map(|free| Limit::Pool { page: part.page, free })
            } else {
                limit_behind(errno, chunk.len() as u64)
            };
            ArenaError::Populate { range, call, errno, limit, remedy: remedy(errno, part.page) }
        })
    }
}

fn seconds(took: Duration) -> f64 {
    // A clock may be too coarse to see it; work that was done took some time.
    took.as_secs_f64().max(1e-9)
}

/// Tries again what the kernel says is worth trying again, but not for ever.
fn again(mut call: impl FnMut() -> Result<(), Errno>) -> Result<(), Errno> {
    let mut tries = 0;
    loop {
        match call() {
            Err(Errno::EINTR | Errno::EAGAIN) if tries < 100 => tries += 1,
            result => return result,
        }
    }
}

fn fill(at: NonNull<u8>, len: usize) -> Result<(), (Call, Errno)> {
    again(|| sys::populate_write(at, len)).map_err(|errno| (Call::PopulateWrite, errno))
}

fn touch(at: NonNull<u8>, len: usize, page: PageSize) -> Result<(), (Call, Errno)> {
    let step = if page.is_pooled() { page.bytes() } else { sys::page_size() };
    for offset in (0..len).step_by(step) {
        // SAFETY: within the chunk.
        let at = unsafe { at.add(offset) };
        again(|| sys::touch(at)).map_err(|errno| (Call::Touch, errno))?;
    }
    Ok(())
}

fn remedy(errno: Errno, page: PageSize) -> &'static str {
    match errno {
        Errno::EHWPOISON => {
            "a page is broken (hardware memory error): the kernel has set it aside, so map anew"
        }
        Errno::EFAULT | Errno::ENOMEM if page.is_pooled() => {
            "the pool, its hugetlb cgroup or the bound NUMA nodes have no page left: reserve more, or allow smaller pages"
        }
        Errno::EFAULT => {
            "a store there would be a deadly signal: the memory cannot be written to, or there is none left"
        }
        Errno::ENOMEM => {
            "the kernel has no memory of the kind asked for: ask for less, or bind to more NUMA nodes"
        }
        Errno::EINTR | Errno::EAGAIN => "it was interrupted again and again: try once more",
        _ => "the kernel cannot make these pages resident: is this ordinary writable memory?",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_are_disjoint_even_and_on_page_boundaries() {
        for page in [PageSize::Base, PageSize::Huge2M] {
            let size = page.bytes();
            for pages in [1, 2, 3, 7, 64, 1000] {
                for skew in [0, size / 2] {
                    let at = NonNull::without_provenance((1 << 40 | skew).try_into().unwrap());
                    let part = Part { at, range: 0..pages * size, page, by_collapse: false };
                    for threads in 1..=pages.min(9) {
                        let mut end = 0;
                        for thread in 0..threads {
                            let share = part.share(&(0..part.len()), thread, threads);
                            assert_eq!(share.start, end);
                            let even = part.len() / threads;
                            assert!(share.len() + 2 * size > even && share.len() < even + 2 * size);
                            let inner = thread > 0;
                            assert!(
                                !inner
                                    || share.is_empty()
                                    || (skew + share.start).is_multiple_of(size)
                                    || share.start == 0
                            );
                            end = share.end;
                        }
                        assert_eq!(end, part.len());
                    }
                }
            }
        }
    }

    #[test]
    fn how_to_populate_is_read_as_it_is_shown() {
        for how in [Populate::None, Populate::Auto, Populate::threads(3)] {
            assert_eq!(how.to_string().parse(), Ok(how));
        }
        assert_eq!(Populate::threads(0), Populate::None);
        assert!("0".parse::<Populate>().is_err());
    }
}
