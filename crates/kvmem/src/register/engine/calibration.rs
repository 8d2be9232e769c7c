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
use super::team::TimedTeam;
use crate::register::plan::{CalibrationPlan, ladder};
use crate::register::{Calibration, ChunkError, Deregistered, Key, RegisterError};

/// How much faster more threads must be to be used.
const GAIN: f64 = 1.02;

impl Engine {
    /// Returns the number of threads to register with, and the figures behind it.
    pub(in crate::register) fn choose(
        &self,
        team: &mut TimedTeam<'_, '_, '_>,
    ) -> Result<(usize, Option<Calibration>), RegisterError> {
        let Some(trial) = self.strategy.trial else { return Ok((self.strategy.threads, None)) };
        let start = self.host.now();
        let mut probe = match trial {
            CalibrationPlan::Chunks { rounds } => Probe { rounds, slices: None },
            CalibrationPlan::Slices { rounds, slice_bytes } => {
                Probe { rounds, slices: Some(SliceProbe::new(self, slice_bytes as usize)) }
            }
        };
        let (mut best, mut sequential, mut parallel, mut tried) = (1, 0.0f64, 0.0f64, 1);
        for more in ladder(self.strategy.threads) {
            let (mut best_speed, mut more_speed) = (0.0f64, 0.0f64);
            for _ in 0..probe.rounds {
                for (threads, speed) in [(best, &mut best_speed), (more, &mut more_speed)] {
                    // A number that cannot be measured is not chosen. If registering fails for all
                    // numbers, the real work reports it.
                    let Some(measured) = probe.measure(self, team, threads, more)? else {
                        return Ok((1, None));
                    };
                    *speed = speed.max(measured);
                }
            }
            if best == 1 {
                sequential = best_speed;
            }
            if more_speed > parallel {
                (parallel, tried) = (more_speed, more);
            }
            if more_speed < best_speed * GAIN {
                break;
            }
            best = more;
        }
        let seconds = self.host.now().saturating_sub(start).as_secs_f64();
        let trial = Calibration {
            sequential_gib_per_s: sequential,
            parallel_gib_per_s: parallel,
            threads: tried,
            seconds,
        };
        Ok((best, Some(trial)))
    }

    /// Registers the next chunk of each of the first `lanes` lanes; returns the speed in GiB/s.
    fn measure_chunks(
        &self,
        team: &mut TimedTeam<'_, '_, '_>,
        threads: usize,
        lanes: usize,
    ) -> Result<f64, RegisterError> {
        let before = self.tracker.done();
        self.lanes.open((0..lanes).map(|lane| self.lanes.count(lane) + 1).collect::<Vec<_>>());
        let (_, seconds) = self.run_team(team, threads)?;
        Ok(gib(self.tracker.done() - before) / seconds)
    }
}

/// The work on which two ways are compared.
struct Probe<'a> {
    rounds: usize,
    /// `None`: on chunks.
    slices: Option<SliceProbe<'a>>,
}

impl Probe<'_> {
    /// Returns the speed in GiB/s of `threads` threads with the first `lanes` lanes; `None` if it
    /// cannot be measured.
    fn measure(
        &mut self,
        engine: &Engine,
        team: &mut TimedTeam<'_, '_, '_>,
        threads: usize,
        lanes: usize,
    ) -> Result<Option<f64>, RegisterError> {
        match &mut self.slices {
            Some(slices) => slices.measure(team, threads, lanes),
            None => engine.measure_chunks(team, threads, lanes).map(Some),
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
        team: &mut TimedTeam<'_, '_, '_>,
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
        let (_, seconds) = team.run(threads);
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
