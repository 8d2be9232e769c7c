//! *OpsRun*: a recording through a contender.
//!
//! The first pass is not timed: it compares each result with the recorded one and samples the
//! utilization. The following passes are timed as a whole, each on a fresh contender; the median
//! counts. The time of `null` is the loop and its table.

use std::time::Instant;

use kvmem_bench::contender::{Contender, ContenderId, CreateError, RangeHandle, Space, Visitor};

use super::format::{Call, Recording};
use super::report::Row;

/// Timed passes.
const PASSES: usize = 3;

/// Sends a recording through one contender.
///
/// # Errors
/// [`CreateError`] if the contender cannot serve such a space.
pub fn run(recording: &Recording, contender: ContenderId) -> Result<Row, CreateError> {
    contender.visit(OpsRun { recording })
}

struct OpsRun<'a> {
    recording: &'a Recording,
}

impl Visitor for OpsRun<'_> {
    type Output = Result<Row, CreateError>;

    fn visit<C: Contender>(self) -> Self::Output {
        let recording = self.recording;
        let capacity = recording.header.capacity;
        let space = || C::create(Space { capacity, max_live: recording.places as usize + 1 });
        let mut table: Vec<Option<C::Handle>> = Vec::new();
        table.resize_with(recording.places as usize, || None);

        let mut row = watch::<C>(&space()?, recording, &mut table);
        table.fill_with(|| None);
        let mut seconds = Vec::with_capacity(PASSES);
        for _ in 0..PASSES {
            let space = space()?;
            let start = Instant::now();
            drive(&space, recording, &mut table);
            seconds.push(start.elapsed().as_secs_f64());
            table.fill_with(|| None);
        }
        seconds.sort_by(f64::total_cmp);
        row.ns_per_call = 1e9 * seconds[PASSES / 2] / recording.calls.len().max(1) as f64;
        Ok(row)
    }
}

/// Sends all calls, one after the other.
fn drive<C: Contender>(space: &C, recording: &Recording, table: &mut [Option<C::Handle>]) {
    for call in &recording.calls {
        match *call {
            Call::Served { size, place } => table[place as usize] = space.allocate(size),
            Call::Failed { size } => drop(space.allocate(size)),
            Call::Freed { place } => table[place as usize] = None,
        }
    }
}

/// Sends all calls, and compares each result with the recorded one.
fn watch<C: Contender>(space: &C, recording: &Recording, table: &mut [Option<C::Handle>]) -> Row {
    let mut row = Row::new(C::ID);
    let mut offsets = recording.offsets.iter();
    let (mut live, mut peak, mut full) = (0u64, 0u64, false);
    let (mut sum, mut samples) = (0.0, 0u64);
    for call in &recording.calls {
        match *call {
            Call::Served { size, place } => {
                let recorded = offsets.next();
                let held = space.allocate(size);
                match &held {
                    Some(held) => {
                        row.served += 1;
                        row.same_place += u64::from(recorded == Some(&held.offset()));
                        live += size;
                    }
                    None => {
                        row.failures += 1;
                        row.failed_bytes += size;
                    }
                }
                table[place as usize] = held;
            }
            Call::Failed { size } => match space.allocate(size) {
                Some(_) => row.found_room += 1,
                None => row.failed_too += 1,
            },
            Call::Freed { place } => {
                if let Some(held) = table[place as usize].take() {
                    live -= held.size();
                }
            }
        }
        peak = peak.max(live);
        full |= matches!(call, Call::Failed { .. });
        // At a recorded failure the space was as full as possible.
        if full && !matches!(call, Call::Freed { .. }) {
            sum += live as f64;
            samples += 1;
        }
    }
    let of_space = |bytes: f64| bytes / recording.header.capacity as f64;
    row.utilization_peak = of_space(peak as f64);
    row.utilization_end = of_space(live as f64);
    row.utilization_full_mean = (samples > 0).then(|| of_space(sum / samples as f64));
    row.metadata_bytes = space.metadata_bytes();
    let failed =
        recording.calls.iter().filter(|call| matches!(call, Call::Failed { .. })).count() as u64;
    row.same_decisions = row.same_place == recording.offsets.len() as u64
        && row.failed_too == failed
        && row.failures == 0;
    row
}
