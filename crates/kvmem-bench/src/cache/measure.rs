//! *Measure*: one scenario with one contender on so many threads.

use std::time::Duration;

use super::contender::{Shared, Visitor, visit};
use super::{ContenderId, KEYS, MeasureError, Scenario};
use crate::crew::{self, Place};

/// Calls between two looks whether the time has run out.
const CALLS: u64 = 64;
/// Calls before the clock starts.
const WARM_CALLS: u64 = 20_000;
/// Keys from here on are never put in before the clock starts.
const STRANGERS: u64 = 1 << 40;

/// One measurement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Task {
    pub(super) scenario: Scenario,
    pub(super) contender: ContenderId,
    pub(super) threads: u32,
    pub(super) time: Duration,
}

/// Runs `task` once: million calls a second of all threads.
pub(super) fn measure(task: &Task) -> Result<f64, MeasureError> {
    struct Run<'a>(&'a Task);
    impl Visitor for Run<'_> {
        type Output = Result<f64, MeasureError>;
        fn visit<C: Shared>(self) -> Self::Output {
            with::<C>(self.0)
        }
    }
    visit(task.contender, Run(task))
}

fn with<C: Shared>(task: &Task) -> Result<f64, MeasureError> {
    let cache = C::create(task.contender)?;
    for key in 0..KEYS {
        cache.insert(key)?;
    }
    // A contender may hold some fewer than its limit allows.
    let held: Vec<u64> = (0..KEYS).filter(|&key| cache.get(key)).collect();
    if (held.len() as u64) < KEYS * 9 / 10 {
        return Err(MeasureError::Wrong { wrong: KEYS - held.len() as u64, calls: KEYS });
    }
    let found = crew::run(task.threads, task.time, |place| work(&cache, &held, task.scenario, place), || ());
    let mut per_ns = 0.0;
    for shift in found.map_err(|_| MeasureError::Panicked)?.threads {
        let Shift { calls, nanoseconds } = shift?;
        per_ns += calls as f64 / nanoseconds.max(1.0);
    }
    if per_ns > 0.0 { Ok(per_ns * 1e3) } else { Err(MeasureError::Nothing) }
}

/// What a thread did.
struct Shift {
    calls: u64,
    nanoseconds: f64,
}

fn work<C: Shared>(
    cache: &C,
    held: &[u64],
    scenario: Scenario,
    place: &Place<'_>,
) -> Result<Shift, MeasureError> {
    let mut state = place.index as u64 + 1;
    let mut random = move || {
        state = state.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
        state >> 33
    };
    // Each thread's strangers are its own.
    let mut fresh = STRANGERS + ((place.index as u64) << 32);
    let mut wrong = 0;
    let mut call = || {
        match scenario {
            Scenario::GetHit => {
                let key = held[((random() * held.len() as u64) >> 31) as usize];
                wrong += u64::from(!cache.get(key));
            }
            Scenario::GetMiss => wrong += u64::from(cache.get(STRANGERS + random())),
            Scenario::InsertEvict => {
                fresh += 1;
                cache.insert(fresh)?;
            }
        }
        Ok::<(), MeasureError>(())
    };
    place.ready();
    for _ in 0..WARM_CALLS {
        call()?;
    }
    let mut calls = 0;
    let start = place.start();
    loop {
        for _ in 0..CALLS {
            call()?;
        }
        calls += CALLS;
        if !place.goes_on() {
            break;
        }
    }
    let nanoseconds = start.elapsed().as_nanos() as f64;
    place.done();
    if wrong > 0 { Err(MeasureError::Wrong { wrong, calls }) } else { Ok(Shift { calls, nanoseconds }) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_scenario_is_measured() {
        for scenario in Scenario::ALL {
            for contender in ContenderId::ALL {
                let task = Task { scenario, contender, threads: 2, time: Duration::from_millis(2) };
                let mops = measure(&task).unwrap();
                assert!(mops > 0.0, "{scenario} {contender}: {mops}");
            }
        }
    }
}
