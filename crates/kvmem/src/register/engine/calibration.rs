//! *Calibration*: measures how many registrars to call concurrently, on this memory and with these
//! registrars.
//!
//! Twice as many threads are compared with the best number so far, in alternation, until that gains
//! nothing. If there are enough chunks, the first ones are used for the comparison: this is real
//! work, and a wrong guess costs only the difference. If a registrar gets everything in a few long
//! chunks, comparing them would be all of the work. Then slices are registered, timed and
//! deregistered.
//!
//! Each measurement has its own range: a second measurement of the same pages would find the
//! kernel's metadata about them in the cache. Both ways use the same registrars. The fastest round
//! of each way counts, because other work on the machine can only slow a round down.

use std::ops::Range;
use std::sync::Arc;

use super::chunk_work::{ChunkRun, ChunkWork};
use super::probe_slice::ProbeSlice;
use super::release::{leak, release};
use crate::register::{Calibration, CalibrationPlan, ChunkError, Deregistered, RegisterError};
use crate::threads::{ThreadProbe, ThreadTeam, choose_threads};

/// Returns the number of threads to register with, at most `max_threads`, and the figures behind
/// it. The first `populated` bytes of the first region are populated.
pub(super) fn calibrate(
    run: &ChunkRun<'_>,
    team: &mut ThreadTeam<'_, '_>,
    plan: CalibrationPlan,
    max_threads: usize,
    populated: usize,
) -> Result<(usize, Option<Calibration>), RegisterError> {
    let work = run.shared();
    let start = work.host.now();
    let (rounds, slices) = match plan {
        CalibrationPlan::Chunks { rounds } => (rounds, None),
        CalibrationPlan::Slices { rounds, slice_bytes } => {
            (rounds, Some(SliceCursor::new(work, slice_bytes as usize, populated)))
        }
    };
    let mut probe = RegisterProbe { run, team, rounds, slices };
    // If registering fails for all numbers, the real work reports it.
    let Some(choice) = choose_threads(1, max_threads, &mut probe)? else {
        return Ok((1, None));
    };
    let seconds = work.host.now().saturating_sub(start).as_secs_f64();
    let sequential = choice.comparisons.first().map_or(0.0, |first| first.fewer_gib_per_s);
    let (mut threads, mut parallel) = (1, 0.0);
    for comparison in &choice.comparisons {
        if comparison.more_gib_per_s > parallel {
            (threads, parallel) = (comparison.more_threads, comparison.more_gib_per_s);
        }
    }
    let measured = Calibration {
        sequential_gib_per_s: sequential,
        parallel_gib_per_s: parallel,
        threads,
        seconds,
    };
    Ok((choice.threads, Some(measured)))
}

/// The work on which numbers of threads are compared.
struct RegisterProbe<'a, 't, 'scope, 'env> {
    run: &'a ChunkRun<'a>,
    team: &'t mut ThreadTeam<'scope, 'env>,
    rounds: usize,
    /// `None`: on chunks.
    slices: Option<SliceCursor<'a>>,
}

impl ThreadProbe for RegisterProbe<'_, '_, '_, '_> {
    type Error = RegisterError;

    fn rounds(&self, _more: usize) -> usize {
        self.rounds
    }

    /// Registers with the first `more` registrars.
    fn measure(&mut self, threads: usize, more: usize) -> Result<Option<f64>, RegisterError> {
        match &mut self.slices {
            Some(slices) => slices.measure(self.team, threads, more),
            None => measure_chunks(self.run, self.team, threads, more).map(Some),
        }
    }
}

/// Registers the next chunk of each of the first `lanes` lanes; returns the speed in GiB/s.
fn measure_chunks(
    run: &ChunkRun<'_>,
    team: &mut ThreadTeam<'_, '_>,
    threads: usize,
    lanes: usize,
) -> Result<f64, RegisterError> {
    let work = run.shared();
    let before = work.tracker.done();
    work.lanes.open((0..lanes).map(|lane| work.lanes.count(lane) + 1).collect::<Vec<_>>());
    let seconds = run.run(team, threads)?.seconds;
    Ok(gib(work.tracker.done() - before) / seconds)
}

/// Slices of the first region, taken in order of addresses.
struct SliceCursor<'a> {
    work: &'a ChunkWork,
    bytes: usize,
    next: usize,
    end: usize,
}

impl SliceCursor<'_> {
    fn new(work: &ChunkWork, bytes: usize, end: usize) -> SliceCursor<'_> {
        SliceCursor { work, bytes, next: 0, end }
    }

    /// Registers one slice with each of the first `lanes` registrars and deregisters it; returns
    /// the speed in GiB/s, or `None` if a registrar failed.
    fn measure(
        &mut self,
        team: &mut ThreadTeam<'_, '_>,
        threads: usize,
        lanes: usize,
    ) -> Result<Option<f64>, RegisterError> {
        self.work.tracker.check()?;
        if self.next + self.bytes > self.end {
            self.next = 0;
        }
        let range = self.next..self.next + self.bytes;
        self.next = range.end;
        let active = ActiveSlice::begin(self.work, range, lanes);
        let seconds = team.run(threads).seconds;
        let (back, kept) = active.end();
        if !kept.is_empty() {
            let kept = kept.into_iter().map(|(_, error)| error).collect();
            return Err(RegisterError::DeregisterFailed { kept });
        }
        Ok((back.keys == lanes).then(|| gib((self.bytes * lanes) as u64) / seconds))
    }
}

/// A slice that threads register instead of their chunks. It is deregistered in any case, even if a
/// registrar panics.
struct ActiveSlice<'a> {
    work: &'a ChunkWork,
    slice: Arc<ProbeSlice>,
}

impl<'a> ActiveSlice<'a> {
    fn begin(work: &'a ChunkWork, range: Range<usize>, lanes: usize) -> ActiveSlice<'a> {
        let slice = Arc::new(ProbeSlice::new(work.schedule.first().region(), range, lanes));
        // SAFETY: the slice is of the first job's region, whose pages the job holds as long as
        // `work` exists. This type borrows `work`, and its `Drop` ends the slice: it deregisters
        // all keys, and leaks the region if one of them fails.
        unsafe { work.set_probe(Some(Arc::clone(&slice))) };
        ActiveSlice { work, slice }
    }

    fn end(self) -> (Deregistered, Vec<(usize, ChunkError)>) {
        self.release()
    }

    /// Deregisters the slice. A second call finds no keys.
    fn release(&self) -> (Deregistered, Vec<(usize, ChunkError)>) {
        // SAFETY: without a slice there are no conditions.
        unsafe { self.work.set_probe(None) };
        let issued = self.slice.take_keys(&self.work.registrars);
        let released = release(&*self.work.host, &issued, 1, &|_, _| ());
        if !released.1.is_empty() {
            leak(self.work.schedule.first().region());
        }
        released
    }
}

impl Drop for ActiveSlice<'_> {
    fn drop(&mut self) {
        self.release();
    }
}

fn gib(bytes: u64) -> f64 {
    bytes as f64 / f64::from(1 << 30)
}
