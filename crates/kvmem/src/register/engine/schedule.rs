//! *Schedule*: the regions of a run, its steps, and the place of each chunk in its lane.
//!
//! The chunks of all regions follow each other in one lane for each registrar.

use std::ops::Range;
use std::sync::Arc;

use super::lanes::ChunkTurn;
use super::release::IssuedKeys;
use crate::arena::{PinnedRange, Region};
use crate::register::plan::MemoryLayout;
use crate::register::{
    DevicePlan, Key, Limits, Plan, PlanOptions, Platform, RegisterError, Registrar,
};

/// One region that is being registered. Its pages are held until the job is dropped.
pub(in crate::register) struct RegionJob {
    region: Arc<Region>,
    /// Made for this region by [`RegionJob::new`]: all its ranges lie in it.
    plan: Plan,
    /// The bytes of the regions before it.
    start: usize,
    /// Bytes to be made resident, outside of hugetlb pools.
    absent: u64,
    /// The shortest slice worth timing.
    min_slice_bytes: u64,
    _pinned: PinnedRange,
}

impl RegionJob {
    /// Plans how to register a region with the pages that are resident now.
    pub(super) fn new(
        region: Arc<Region>,
        host: &dyn Platform,
        limits: &[Limits],
        options: &PlanOptions,
    ) -> Result<RegionJob, RegisterError> {
        let layout = MemoryLayout::current(&region, host)?;
        let plan = layout.plan(limits, options)?;
        let (absent, min_slice_bytes) = (layout.absent_outside_pools(), layout.min_slice_bytes());
        let _pinned = region.pin_pages();
        Ok(RegionJob { region, plan, start: 0, absent, min_slice_bytes, _pinned })
    }

    pub(in crate::register) fn region(&self) -> &Arc<Region> {
        &self.region
    }

    pub(in crate::register) fn plan(&self) -> &Plan {
        &self.plan
    }

    /// Returns whether registering faults in some of its pages.
    fn is_untouched(&self) -> bool {
        self.plan.populate.is_empty() && self.plan.resident_bytes < self.plan.len_bytes
    }
}

/// A step populates at least this much, so that starting its threads does not count.
pub(super) const MIN_STEP: usize = 256 << 20;
/// A run has at most this many steps: the last one is registered while nothing is populated.
const MAX_STEPS: usize = 32;

/// Ranges that are populated, and the chunks that can be registered then.
pub(super) struct EngineStep {
    /// The ranges to populate, each with its whole mapping.
    pub(super) populate: Vec<(Region, Range<usize>)>,
    /// The number of chunks up to which each lane is opened.
    pub(super) open_chunks: Vec<usize>,
}

/// Regions that are registered together, at least one.
pub(super) struct Schedule {
    jobs: Vec<RegionJob>,
    /// For each lane and job, the number of the lane's chunks that precede those of the job, and
    /// one more entry at the end for the total.
    chunks_before: Vec<Vec<usize>>,
}

impl Schedule {
    /// Returns a schedule for this number of registrars.
    pub(super) fn new(mut jobs: Vec<RegionJob>, registrars: usize) -> Schedule {
        let mut start = 0;
        for job in &mut jobs {
            job.start = start;
            start += job.region.len();
        }
        let chunks_before = (0..registrars).map(|lane| {
            let mut count = 0;
            let counts = jobs.iter().map(|job| {
                count += job.plan.devices[lane].chunks.len();
                count
            });
            [0].into_iter().chain(counts).collect()
        });
        Schedule { chunks_before: chunks_before.collect(), jobs }
    }

    pub(super) fn jobs(&self) -> &[RegionJob] {
        &self.jobs
    }

    /// Returns the job of the first region.
    pub(super) fn first(&self) -> &RegionJob {
        &self.jobs[0]
    }

    /// Returns the bytes of all regions.
    pub(super) fn len_bytes(&self) -> u64 {
        self.jobs.iter().map(|job| job.plan.len_bytes).sum()
    }

    /// Returns the bytes that were resident when the plans were made.
    pub(super) fn resident_bytes(&self) -> u64 {
        self.jobs.iter().map(|job| job.plan.resident_bytes).sum()
    }

    /// Returns the bytes that are populated before they are registered.
    pub(super) fn populated_bytes(&self) -> u64 {
        self.jobs.iter().flat_map(|job| &job.plan.populate).map(|range| range.len() as u64).sum()
    }

    /// Returns the bytes to be made resident, outside of hugetlb pools.
    pub(super) fn absent_bytes(&self) -> u64 {
        self.jobs.iter().map(|job| job.absent).sum()
    }

    /// Returns whether registering faults in some pages of any region.
    pub(super) fn is_untouched(&self) -> bool {
        self.jobs.iter().any(RegionJob::is_untouched)
    }

    /// Returns the shortest slice of the first region that is worth timing.
    pub(super) fn min_slice_bytes(&self) -> u64 {
        self.first().min_slice_bytes
    }

    /// Returns the number of chunks in each lane.
    pub(super) fn chunk_counts(&self) -> impl Iterator<Item = usize> {
        self.chunks_before.iter().map(|before| before[self.jobs.len()])
    }

    /// Returns whether each range is registered before the next is populated.
    pub(super) fn is_by_range(&self) -> bool {
        self.jobs.iter().any(|job| job.plan.steps.len() > 1)
    }

    /// Returns one step: all regions are populated before any is registered.
    pub(super) fn whole(&self) -> Vec<EngineStep> {
        vec![self.step(0..self.len_bytes() as usize)]
    }

    /// Returns the steps of the plans.
    pub(super) fn by_range(&self) -> Vec<EngineStep> {
        let steps = self.jobs.iter().flat_map(|job| {
            job.plan.steps.iter().map(|step| job.start + step.start..job.start + step.end)
        });
        steps.map(|step| self.step(step)).collect()
    }

    /// Returns steps of which one can be populated while the one before is registered. The first
    /// has at least `sampled` chunks in each lane; if a lane has fewer, there is one step.
    pub(super) fn pipeline(&self, sampled: usize) -> Vec<EngineStep> {
        if self.chunk_counts().any(|count| count < sampled) {
            return self.whole();
        }
        let sampled = (0..self.chunks_before.len()).map(|lane| {
            let (job, chunk) = self.chunk_of(ChunkTurn { lane, index: sampled - 1 });
            job.start + job.plan.devices[lane].chunks[chunk].end
        });
        let (first, len) = (sampled.max().unwrap_or(0), self.len_bytes() as usize);
        let least = MIN_STEP.max(len / MAX_STEPS);
        // A chunk of another registrar, with other ends, opens with the step in which it ends.
        let ends = self.jobs.iter().flat_map(|job| {
            let longest = job.plan.devices.iter().min_by_key(|device| device.chunks.len());
            let chunks = longest.into_iter().flat_map(|device| &device.chunks);
            chunks.map(|chunk| job.start + chunk.end)
        });
        let (mut steps, mut start) = (Vec::new(), 0);
        for end in ends {
            let is_long = end - start >= least && len - end >= least;
            if end == len || is_long && end >= first {
                steps.push(self.step(start..end));
                start = end;
            }
        }
        steps
    }

    /// Returns the step that populates a range, and opens the chunks that end in it or before it.
    /// Offsets count from the beginning of the first region.
    fn step(&self, step: Range<usize>) -> EngineStep {
        let first = self.jobs.partition_point(|job| job.start <= step.start).saturating_sub(1);
        let last = self.jobs.partition_point(|job| job.start < step.end).saturating_sub(1);
        let mut populate: Vec<(Region, Range<usize>)> = Vec::new();
        for RegionJob { region, plan, start, .. } in &self.jobs[first..=last] {
            let mapping = region.whole_mapping();
            let at = |offset: usize| {
                offset.clamp(step.start, step.end).saturating_sub(*start).min(region.len())
                    + region.start_in_mapping()
            };
            for absent in &plan.populate {
                let range = at(absent.start + start)..at(absent.end + start);
                match populate.last_mut() {
                    // Adjacent regions of a mapping are populated together.
                    Some((before, so_far))
                        if before.base() == mapping.base() && so_far.end == range.start =>
                    {
                        so_far.end = range.end;
                    }
                    _ if range.is_empty() => {}
                    _ => populate.push((mapping.whole_mapping(), range)),
                }
            }
        }
        let job = &self.jobs[last];
        let open = job.plan.devices.iter().zip(&self.chunks_before).map(|(device, before)| {
            before[last] + device.chunks.partition_point(|chunk| job.start + chunk.end <= step.end)
        });
        EngineStep { populate, open_chunks: open.collect() }
    }

    /// Returns the job of a turn, and the index of the chunk within the job.
    pub(super) fn chunk_of(&self, turn: ChunkTurn) -> (&RegionJob, usize) {
        let before = &self.chunks_before[turn.lane];
        let job = before.partition_point(|before| *before <= turn.index) - 1;
        (&self.jobs[job], turn.index - before[job])
    }

    /// Returns the bytes, from the beginning of the first region, that have keys in all lanes.
    /// `done` returns the number of chunks done in a lane.
    pub(super) fn ready_bytes(&self, done: impl Fn(usize) -> usize) -> u64 {
        let mut ready = 0;
        for (job, RegionJob { plan, .. }) in self.jobs.iter().enumerate() {
            let ends = plan.devices.iter().enumerate().map(|(lane, DevicePlan { chunks, .. })| {
                let before = self.chunks_before[lane][job];
                let done = done(lane).saturating_sub(before).min(chunks.len());
                done.checked_sub(1).map_or(0, |last| chunks[last].end as u64)
            });
            let ends = ends.min().unwrap_or(0);
            ready += ends;
            if ends < plan.len_bytes {
                break;
            }
        }
        ready
    }

    /// Distributes the keys of all lanes over the jobs: for each job, the keys of each lane.
    pub(super) fn issued_keys(
        &self,
        keys: Vec<Vec<Key>>,
        registrars: &[Arc<dyn Registrar>],
    ) -> Vec<Vec<IssuedKeys>> {
        let mut lanes: Vec<_> = keys.into_iter().map(Vec::into_iter).collect();
        let jobs = self.jobs.iter().map(|RegionJob { plan, .. }| {
            let issued = lanes.iter_mut().zip(&plan.devices).zip(registrars);
            let issued = issued.map(|((keys, device), registrar)| {
                let chunks = device.chunks.iter().cloned().enumerate();
                let keys = chunks.zip(keys).map(|((chunk, range), key)| (chunk, range, key));
                IssuedKeys { registrar: Arc::clone(registrar), keys: keys.collect() }
            });
            issued.collect()
        });
        jobs.collect()
    }
}
