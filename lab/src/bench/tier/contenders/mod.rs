//! *Contenders*: one file each.

mod beside;
mod files;
mod kvmem;
mod plain;

use std::path::Path;
use std::time::Instant;

use rustix::time::{ClockId, clock_gettime};

pub(super) use self::beside::BesideContender;
use super::{TierContenderId, TierMeasureError};
use crate::bench::values::Memory;

/// Time of a pass.
#[derive(Clone, Copy, Debug)]
pub struct PassTime {
    /// Wall time.
    pub seconds: f64,
    /// Processor time of the process, with the kernel's threads for its rings.
    pub cpu_seconds: f64,
}

/// Room for values on a device, and how they are transferred.
#[derive(Clone, Copy, Debug)]
pub(super) struct Room<'a> {
    /// A directory of the contender's own.
    pub(super) dir: &'a Path,
    /// Bytes that it may store.
    pub(super) bytes: u64,
    /// Transfers in flight.
    pub(super) depth: u32,
}

/// A contender in this program.
pub(super) trait TierContender {
    /// Stores the values from the number `first` on, one for each in `memory`, and forgets the
    /// oldest ones that have no room.
    fn store(&mut self, memory: &mut Memory, first: u64) -> Result<(), TierMeasureError>;

    /// Prepares for a pass of fetches, outside of its time.
    fn before_fetch(&mut self, _numbers: &[u64]) -> Result<(), TierMeasureError> {
        Ok(())
    }

    /// Fetches these values into the rooms of `memory`, as many as there are.
    fn fetch(&mut self, memory: &mut Memory, numbers: &[u64]) -> Result<(), TierMeasureError>;
}

/// Makes a contender of this program.
pub(super) fn contender(
    id: TierContenderId,
    room: Room<'_>,
    memory: &Memory,
) -> Result<Box<dyn TierContender>, TierMeasureError> {
    Ok(match id {
        TierContenderId::Kvmem => Box::new(kvmem::Tier::new(room, memory)?),
        TierContenderId::Plain => Box::new(plain::Plain::new(room, memory)?),
        TierContenderId::Files => Box::new(files::Files::new(room, memory, false)?),
        TierContenderId::FilesDirect => Box::new(files::Files::new(room, memory, true)?),
    })
}

/// Times a pass.
pub(super) fn timed(
    pass: impl FnOnce() -> Result<(), TierMeasureError>,
) -> Result<PassTime, TierMeasureError> {
    let (start, cpu) = (Instant::now(), processor_time());
    pass()?;
    let seconds = start.elapsed().as_secs_f64();
    Ok(PassTime { seconds, cpu_seconds: processor_time() - cpu })
}

/// Returns the processor time of this process in seconds, with the kernel's threads for its rings.
fn processor_time() -> f64 {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}
