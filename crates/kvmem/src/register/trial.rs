//! *Trial*: finding out how many registrars side by side are fastest, on this memory and with these
//! registrars.
//!
//! Twice as many threads are compared with the best so far, in turns, until that gains nothing.
//! Where there are chunks enough, the first of them are what is compared on: real work, and a wrong
//! guess costs only the difference. Where a registrar gets all in a few long chunks, a comparison
//! on them would be all of the work; then slices are registered, timed, and given back.
//!
//! Each measurement has a range of its own: a second look at the same pages finds their books in
//! the cache. Both ways have the same registrars. Of each way the fastest round counts: what slows
//! one down is somebody else.

use std::ops::Range;
use std::sync::{Arc, PoisonError};

use super::crew::Crew;
use super::engine::{Engine, leak};
use super::lanes::Lanes;
use super::plan::{CalibrationPlan, ladder};
use super::release::{Given, release};
use super::{Calibration, ChunkError, Deregistered, Key, RegisterError};

/// How much faster more threads must be to be worth having.
const GAIN: f64 = 1.02;

impl Engine {
    /// How many threads are to register, and what that was decided on.
    pub(super) fn choose(
        &self,
        crew: &mut Crew<'_, '_, '_>,
    ) -> Result<(usize, Option<Calibration>), RegisterError> {
        let Some(trial) = self.way.trial else { return Ok((self.way.threads, None)) };
        let start = self.host.now();
        let mut on = match trial {
            CalibrationPlan::Chunks { rounds } => Yardstick { rounds, slices: None },
            CalibrationPlan::Slices { rounds, slice_bytes } => {
                Yardstick { rounds, slices: Some(Slices::new(self, slice_bytes as usize)) }
            }
        };
        let (mut best, mut alone, mut together, mut tried) = (1, 0.0f64, 0.0f64, 1);
        for more in ladder(self.way.threads) {
            let (mut with_best, mut with_more) = (0.0f64, 0.0f64);
            for _ in 0..on.rounds {
                for (threads, speed) in [(best, &mut with_best), (more, &mut with_more)] {
                    // What cannot be measured is not chosen; whether it can be done at all, the
                    // real work will tell.
                    let Some(found) = on.measure(self, crew, threads, more)? else {
                        return Ok((1, None));
                    };
                    *speed = speed.max(found);
                }
            }
            if best == 1 {
                alone = with_best;
            }
            if with_more > together {
                (together, tried) = (with_more, more);
            }
            if with_more < with_best * GAIN {
                break;
            }
            best = more;
        }
        let seconds = self.host.now().saturating_sub(start).as_secs_f64();
        let found = Calibration {
            sequential_gib_per_s: alone,
            parallel_gib_per_s: together,
            threads: tried,
            seconds,
        };
        Ok((best, Some(found)))
    }

    /// Registers the next chunk of each of the first lanes; returns the speed in GiB/s.
    fn chunks(
        &self,
        crew: &mut Crew<'_, '_, '_>,
        threads: usize,
        lanes: usize,
    ) -> Result<f64, RegisterError> {
        let before = self.watching.done();
        self.lanes.open((0..lanes).map(|lane| self.lanes.count(lane) + 1).collect::<Vec<_>>());
        let (_, seconds) = self.sweep(crew, threads)?;
        Ok(gib(self.watching.done() - before) / seconds)
    }
}

/// What two ways are compared on.
struct Yardstick<'a> {
    rounds: usize,
    /// `None`: chunks.
    slices: Option<Slices<'a>>,
}

impl Yardstick<'_> {
    /// The speed in GiB/s of so many threads with so many of the lanes; `None` if that cannot be
    /// found out.
    fn measure(
        &mut self,
        engine: &Engine,
        crew: &mut Crew<'_, '_, '_>,
        threads: usize,
        lanes: usize,
    ) -> Result<Option<f64>, RegisterError> {
        match &mut self.slices {
            Some(slices) => slices.measure(crew, threads, lanes),
            None => engine.chunks(crew, threads, lanes).map(Some),
        }
    }
}

/// Slices of the first region, taken one after the other.
struct Slices<'a> {
    engine: &'a Engine,
    bytes: usize,
    next: usize,
    end: usize,
}

impl Slices<'_> {
    fn new(engine: &Engine, bytes: usize) -> Slices<'_> {
        // What is there for certain: the first step.
        let end = engine.jobs[0].plan.steps[0].end;
        Slices { engine, bytes, next: 0, end }
    }

    /// Registers one slice with each of the first lanes, and gives it back; returns the speed in
    /// GiB/s, or `None` if a registrar refused.
    fn measure(
        &mut self,
        crew: &mut Crew<'_, '_, '_>,
        threads: usize,
        lanes: usize,
    ) -> Result<Option<f64>, RegisterError> {
        self.engine.watching.go_on()?;
        if self.next + self.bytes > self.end {
            self.next = 0;
        }
        let range = self.next..self.next + self.bytes;
        self.next = range.end;
        let (engine, region) = (self.engine, &self.engine.jobs[0].region);
        let aside = Aside::begin(engine, range, lanes);
        let (_, seconds) = crew.sweep(threads);
        let (back, kept) = aside.end();
        if !kept.is_empty() {
            leak(region);
            return Err(RegisterError::DeregisterFailed {
                kept: kept.into_iter().map(|(_, error)| error).collect(),
            });
        }
        Ok((back.keys == lanes).then(|| gib((self.bytes * lanes) as u64) / seconds))
    }
}

/// A slice that threads work on instead of their chunks. It is given back in any case, a panic of a
/// registrar included.
struct Aside<'a> {
    engine: &'a Engine,
    slice: Arc<Slice>,
}

impl<'a> Aside<'a> {
    fn begin(engine: &'a Engine, range: Range<usize>, lanes: usize) -> Aside<'a> {
        let slice = Arc::new(Slice { range, turns: Lanes::new(lanes) });
        slice.turns.open(vec![1; lanes]);
        *engine.aside.lock().unwrap_or_else(PoisonError::into_inner) = Some(Arc::clone(&slice));
        Aside { engine, slice }
    }

    fn end(self) -> (Deregistered, Vec<(usize, ChunkError)>) {
        self.give_back()
    }

    fn give_back(&self) -> (Deregistered, Vec<(usize, ChunkError)>) {
        *self.engine.aside.lock().unwrap_or_else(PoisonError::into_inner) = None;
        let Slice { range, turns } = &*self.slice;
        let given =
            turns.drain().into_iter().zip(&self.engine.registrars).map(|(keys, registrar)| Given {
                registrar: Arc::clone(registrar),
                keys: keys.into_iter().map(|key| (0, range.clone(), key)).collect(),
            });
        release(&*self.engine.host, &given.collect::<Vec<_>>(), 1, &|_, _| ())
    }
}

impl Drop for Aside<'_> {
    fn drop(&mut self) {
        // Nothing is left after `end`.
        if !self.give_back().1.is_empty() {
            leak(&self.engine.jobs[0].region);
        }
    }
}

/// A range of the first region that is registered with each of some lanes.
pub(super) struct Slice {
    range: Range<usize>,
    turns: Lanes<Key>,
}

impl Slice {
    /// What one thread does.
    pub(super) fn register(&self, engine: &Engine) {
        let region = &engine.jobs[0].region;
        while let Some(turn) = self.turns.take() {
            // SAFETY: the slice lies in the region, which `engine` keeps mapped and held. Whoever
            // made the slice gives the key back, or has the region never unmapped.
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
