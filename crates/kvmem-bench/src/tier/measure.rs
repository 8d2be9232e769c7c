//! One pass of one contender.

use std::fs;
use std::path::{Path, PathBuf};

use kvmem_testkit::workload::stream;
use rand::seq::SliceRandom;
use tempfile::TempDir;

use super::contenders::{BesideContender, PassTime, Room, TierContender, contender, timed};
use super::index::{self, IndexEffort, IndexFigures};
use super::{Beside, TierContenderId, TierMeasureError, TierTransfer};
use crate::values::{Memory, padded};

/// A contender, in this program or another one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Participant {
    Here(TierContenderId),
    Beside(Beside),
}

impl Participant {
    pub(super) fn name(&self) -> &str {
        match self {
            Participant::Here(id) => id.name(),
            Participant::Beside(beside) => &beside.name,
        }
    }
}

/// A measurement.
#[derive(Clone, Debug)]
pub(crate) enum TierTask {
    /// A pass.
    Pass { transfer: TierTransfer, value_bytes: u64, participant: Participant },
    /// The figures of the index.
    Index,
}

/// Its result.
#[derive(Clone, Debug)]
pub(crate) enum TierSample {
    Pass(PassTime),
    Index(IndexFigures),
}

fn temp_dir(parent: &Path) -> Result<TempDir, TierMeasureError> {
    fs::create_dir_all(parent)
        .and_then(|()| TempDir::with_prefix_in("kvmem-bench-", parent))
        .map_err(TierMeasureError::system("make a directory"))
}

/// A contender that takes turns, and the number of its next value.
struct TierTurn {
    participant: Participant,
    contender: AnyContender,
    next: u64,
}

/// A program of its own times itself.
enum AnyContender {
    Here(Box<dyn TierContender>),
    Beside(BesideContender),
}

impl TierTurn {
    /// Makes a contender and fills its room.
    fn new(
        participant: &Participant,
        room: Room<'_>,
        memory: &mut Memory,
    ) -> Result<TierTurn, TierMeasureError> {
        fs::create_dir(room.dir).map_err(TierMeasureError::system("make a directory"))?;
        let contender = match participant {
            Participant::Here(id) => AnyContender::Here(contender(*id, room, memory)?),
            Participant::Beside(beside) => {
                AnyContender::Beside(BesideContender::new(beside, room, memory.len as u64)?)
            }
        };
        let mut turn = TierTurn { participant: participant.clone(), contender, next: 0 };
        while turn.next <= room.bytes / memory.stride as u64 {
            turn.store(memory)?;
        }
        Ok(turn)
    }

    /// Stores as many values as `memory` has.
    fn store(&mut self, memory: &mut Memory) -> Result<PassTime, TierMeasureError> {
        let first = self.next;
        self.next += memory.count as u64;
        match &mut self.contender {
            AnyContender::Here(contender) => timed(|| contender.store(memory, first)),
            AnyContender::Beside(beside) => beside.store(first, memory.count as u64),
        }
    }

    /// Fetches as many of the values that were stored last, in random order.
    fn fetch(
        &mut self,
        memory: &mut Memory,
        window: u64,
        rep: u32,
    ) -> Result<PassTime, TierMeasureError> {
        // All contenders fetch the same ones, counted from the last.
        let mut numbers: Vec<u64> = (1..=window).map(|back| self.next - back).collect();
        numbers.shuffle(&mut stream(1, rep.into()));
        numbers.truncate(memory.count);
        match &mut self.contender {
            AnyContender::Here(contender) => {
                contender.before_fetch(&numbers)?;
                memory.forget();
                let time = timed(|| contender.fetch(memory, &numbers))?;
                memory.compare(&numbers)?;
                Ok(time)
            }
            AnyContender::Beside(beside) => beside.fetch(&numbers),
        }
    }
}

/// What takes turns now: contenders that are full of values of one length.
struct Running {
    value_bytes: u64,
    turns: Vec<TierTurn>,
    memory: Memory,
    /// The values stored last of which fetches choose: half of those that have room.
    window: u64,
    // The files are in it, so it is dropped last.
    _dir: TempDir,
}

/// What measurements share.
pub(crate) struct TierFixture {
    pub(super) dir: PathBuf,
    /// Bytes that each contender may store, and bytes of a pass, about.
    pub(super) bytes: u64,
    pub(super) pass: u64,
    pub(super) depth: u32,
    pub(super) participants: Vec<Participant>,
    pub(super) index: IndexEffort,
    pub(super) running: RunningTurns,
}

/// The turns of one length of values, made when they are needed.
#[derive(Default)]
pub(super) struct RunningTurns(Option<Running>);

impl TierFixture {
    /// Makes the contenders for values of the length that `task` has.
    pub(super) fn prepare(&mut self, task: &TierTask) -> Result<(), TierMeasureError> {
        let TierTask::Pass { value_bytes, .. } = *task else {
            self.running.0 = None;
            return Ok(());
        };
        if self.running.0.as_ref().is_some_and(|running| running.value_bytes == value_bytes) {
            return Ok(());
        }
        // The files of the last length make room for these.
        self.running.0 = None;
        let dir = temp_dir(&self.dir)?;
        let stride = padded(value_bytes);
        let mut memory = Memory::new(value_bytes, (self.pass / stride).max(1))?;
        let mut turns = Vec::new();
        for participant in &self.participants {
            let own = dir.path().join(participant.name());
            let room = Room { dir: &own, bytes: self.bytes, depth: self.depth };
            turns.push(TierTurn::new(participant, room, &mut memory)?);
        }
        let window = (self.bytes / stride / 2).max(memory.count as u64);
        self.running.0 = Some(Running { value_bytes, turns, memory, window, _dir: dir });
        Ok(())
    }

    pub(super) fn measure(
        &mut self,
        task: &TierTask,
        rep: u32,
    ) -> Result<TierSample, TierMeasureError> {
        let TierTask::Pass { transfer, participant, .. } = task else {
            let dir = temp_dir(&self.dir)?;
            return Ok(TierSample::Index(index::measure(dir.path(), self.index)?));
        };
        let running = self.running.0.as_mut().expect("a group is prepared");
        let mut turns = running.turns.iter_mut();
        let turn = turns.find(|turn| turn.participant == *participant);
        let turn = turn.expect("every participant was prepared");
        Ok(TierSample::Pass(match transfer {
            TierTransfer::Store => turn.store(&mut running.memory)?,
            TierTransfer::Fetch => turn.fetch(&mut running.memory, running.window, rep)?,
        }))
    }

    /// Returns the bytes of values that a pass of this length transfers.
    pub(super) fn pass_bytes(pass: u64, value_bytes: u64) -> u64 {
        (pass / padded(value_bytes)).max(1) * value_bytes
    }
}
