//! A contender that is a program of its own: the head of `tier` has its calls.

use serde::{Deserialize, Serialize};

use super::{PassTime, Room};
use crate::bench::beside::{Beside, BesideProgram};
use crate::bench::tier::TierMeasureError;

/// A program that takes part.
pub(in crate::bench::tier) struct BesideContender(BesideProgram);

/// What it is told.
#[derive(Serialize)]
#[serde(tag = "call", rename_all = "lowercase")]
enum Call<'a> {
    Open { dir: &'a str, bytes: u64, value_bytes: u64, depth: u32 },
    Store { first: u64, count: u64 },
    Fetch { numbers: &'a [u64] },
}

/// What it says.
#[derive(Deserialize)]
struct Answer {
    seconds: Option<f64>,
    cpu_seconds: Option<f64>,
}

impl BesideContender {
    /// Starts the program for values of one length.
    pub(in crate::bench::tier) fn new(
        beside: &Beside,
        room: Room<'_>,
        value_bytes: u64,
    ) -> Result<BesideContender, TierMeasureError> {
        let mut program = BesideProgram::start(beside)?;
        let dir = room.dir.to_str();
        let dir = dir.ok_or_else(|| program.failed("the directory is no UTF-8"))?;
        let Room { bytes, depth, .. } = room;
        let _: Answer = program.call(&Call::Open { dir, bytes, value_bytes, depth })?;
        Ok(BesideContender(program))
    }

    pub(in crate::bench::tier) fn store(
        &mut self,
        first: u64,
        count: u64,
    ) -> Result<PassTime, TierMeasureError> {
        self.timed(&Call::Store { first, count })
    }

    pub(in crate::bench::tier) fn fetch(
        &mut self,
        numbers: &[u64],
    ) -> Result<PassTime, TierMeasureError> {
        self.timed(&Call::Fetch { numbers })
    }

    fn timed(&mut self, call: &Call<'_>) -> Result<PassTime, TierMeasureError> {
        let Answer { seconds, cpu_seconds } = self.0.call(call)?;
        let (Some(seconds), Some(cpu_seconds)) = (seconds, cpu_seconds) else {
            return Err(self.0.failed("it answered without `seconds` and `cpu_seconds`").into());
        };
        Ok(PassTime { seconds, cpu_seconds })
    }
}
