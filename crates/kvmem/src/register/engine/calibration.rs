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
use std::sync::{Arc, PoisonError};

use super::engine::{Engine, leak};
use super::lanes::Lanes;
use super::release::{IssuedKeys, release};
use crate::register::CalibrationPlan;
use crate::register::{Calibration, ChunkError, Deregistered, Key, RegisterError};
use crate::threads::{ThreadProbe, ThreadTeam, choose_threads};

impl Engine {
    /// Returns the number of threads to register with, and the figures behind it.
    pub(in crate::register) fn choose(
        &self,
        team: &mut ThreadTeam<'_, '_>,
    ) -> Result<(usize, Option<Calibration>), RegisterError> {
        let Some(trial) = self.strategy.trial else { return Ok((self.strategy.threads, None)) };
        let start = self.host.now();
        let (rounds, slices) = match trial {
            CalibrationPlan::Chunks { rounds } => (rounds, None),
            CalibrationPlan::Slices { rounds, slice_bytes } => {
                (rounds, Some(SliceProbe::new(self, slice_bytes as usize)))
            }
        };
        let mut probe = RegisterProbe { engine: self, team, rounds, slices };
        // If registering fails for all numbers, the real work reports it.
        let Some(choice) = choose_threads(1, self.strategy.threads, &mut probe)? else {
            return Ok((1, None));
        };
        let seconds = self.host.now().saturating_sub(start).as_secs_f64();
        let mut measured =
            Calibration { sequential_gib_per_s: 0.0, parallel_gib_per_s: 0.0, threads: 1, seconds };
        if let Some(first) = choice.comparisons.first() {
            measured.sequential_gib_per_s = first.fewer_gib_per_s;
        }
        for comparison in choice.comparisons {
            if comparison.more_gib_per_s > measured.parallel_gib_per_s {
                measured.parallel_gib_per_s = comparison.more_gib_per_s;
                measured.threads = comparison.more_threads;
            }
        }
        Ok((choice.threads, Some(measured)))
    }

    /// Registers the next chunk of each of the first `lanes` lanes; returns the speed in GiB/s.
    fn measure_chunks(
        &self,
        team: &mut ThreadTeam<'_, '_>,
        threads: usize,
        lanes: usize,
    ) -> Result<f64, RegisterError> {
        let before = self.tracker.done();
        self.lanes.open((0..lanes).map(|lane| self.lanes.count(lane) + 1).collect::<Vec<_>>());
        let (_, seconds) = self.run_team(team, threads)?;
        Ok(gib(self.tracker.done() - before) / seconds)
    }
}

/// The work on which numbers of threads are compared.
struct RegisterProbe<'a, 't, 'scope, 'env> {
    engine: &'a Engine,
    team: &'t mut ThreadTeam<'scope, 'env>,
    rounds: usize,
    /// `None`: on chunks.
    slices: Option<SliceProbe<'a>>,
}

impl ThreadProbe for RegisterProbe<'_, '_, '_, '_> {
    type Error = RegisterError;

    fn rounds(&self, _more: usize) -> usize {
        self.rounds
    }

    /// Registers with the first `more` lanes.
    fn measure(&mut self, threads: usize, more: usize) -> Result<Option<f64>, RegisterError> {
        match &mut self.slices {
            Some(slices) => slices.measure(self.team, threads, more),
            None => self.engine.measure_chunks(self.team, threads, more).map(Some),
        }
    }
}

/// Slices of the first region, taken in order of addresses.
struct SliceProbe<'a> {
    engine: &'a Engine,
    bytes: usize,
    next: usize,
    end: usize,
}

impl SliceProbe<'_> {
    fn new(engine: &Engine, bytes: usize) -> SliceProbe<'_> {
        // Only the first step is certain to be populated.
        let end = engine.jobs[0].plan.steps[0].end;
        SliceProbe { engine, bytes, next: 0, end }
    }

    /// Registers one slice with each of the first `lanes` lanes and deregisters it; returns the
    /// speed in GiB/s, or `None` if a registrar failed.
    fn measure(
        &mut self,
        team: &mut ThreadTeam<'_, '_>,
        threads: usize,
        lanes: usize,
    ) -> Result<Option<f64>, RegisterError> {
        self.engine.tracker.check()?;
        if self.next + self.bytes > self.end {
            self.next = 0;
        }
        let range = self.next..self.next + self.bytes;
        self.next = range.end;
        let (engine, region) = (self.engine, &self.engine.jobs[0].region);
        let active = ActiveSlice::begin(engine, range, lanes);
        let seconds = team.run(threads).seconds;
        let (back, kept) = active.end();
        if !kept.is_empty() {
            leak(region);
            return Err(RegisterError::DeregisterFailed {
                kept: kept.into_iter().map(|(_, error)| error).collect(),
            });
        }
        Ok((back.keys == lanes).then(|| gib((self.bytes * lanes) as u64) / seconds))
    }
}

/// A slice that threads register instead of their chunks. It is deregistered in any case, even if a
/// registrar panics.
struct ActiveSlice<'a> {
    engine: &'a Engine,
    slice: Arc<ProbeSlice>,
}

impl<'a> ActiveSlice<'a> {
    fn begin(engine: &'a Engine, range: Range<usize>, lanes: usize) -> ActiveSlice<'a> {
        let slice = Arc::new(ProbeSlice { range, turns: Lanes::new(lanes) });
        slice.turns.open(vec![1; lanes]);
        *engine.probe.lock().unwrap_or_else(PoisonError::into_inner) = Some(Arc::clone(&slice));
        ActiveSlice { engine, slice }
    }

    fn end(self) -> (Deregistered, Vec<(usize, ChunkError)>) {
        self.release()
    }

    fn release(&self) -> (Deregistered, Vec<(usize, ChunkError)>) {
        *self.engine.probe.lock().unwrap_or_else(PoisonError::into_inner) = None;
        let ProbeSlice { range, turns } = &*self.slice;
        let issued =
            turns.drain().into_iter().zip(&self.engine.registrars).map(|(keys, registrar)| {
                IssuedKeys {
                    registrar: Arc::clone(registrar),
                    keys: keys.into_iter().map(|key| (0, range.clone(), key)).collect(),
                }
            });
        release(&*self.engine.host, &issued.collect::<Vec<_>>(), 1, &|_, _| ())
    }
}

impl Drop for ActiveSlice<'_> {
    fn drop(&mut self) {
        // No keys remain after `end`.
        if !self.release().1.is_empty() {
            leak(&self.engine.jobs[0].region);
        }
    }
}

/// A range of the first region that is registered in some lanes.
pub(in crate::register) struct ProbeSlice {
    range: Range<usize>,
    turns: Lanes<Key>,
}

impl ProbeSlice {
    /// The work of one thread.
    pub(in crate::register) fn register(&self, engine: &Engine) {
        let region = &engine.jobs[0].region;
        while let Some(turn) = self.turns.take() {
            // SAFETY: the slice lies in the region, which `engine` keeps mapped and held. The
            // creator of the slice deregisters the key, or never unmaps the region.
            let key = unsafe {
                engine.registrars[turn.lane]
                    .register(region.base().add(self.range.start), self.range.len())
            };
            self.turns.finish(turn, key.ok());
        }
    }
}

fn gib(bytes: u64) -> f64 {
    bytes as f64 / f64::from(1 << 30)
}
