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
    /// Bytes that are not resident and not populated beforehand: registering faults them in.
    faulted: u64,
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
        let faulted = if plan.populate.is_empty() { layout.absent_outside_pools() } else { 0 };
        let (min_slice_bytes, _pinned) = (layout.min_slice_bytes(), region.pin_pages());
        Ok(RegionJob { region, plan, faulted, min_slice_bytes, _pinned })
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
/// A region has at most this many steps: the last one is registered while nothing is populated.
const MAX_STEPS: usize = 32;

/// Ranges that are populated, and the chunks that can be registered then.
pub(super) struct EngineStep {
    /// The ranges to populate, each with the index of its job.
    pub(super) populate: Vec<(usize, Range<usize>)>,
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
    pub(super) fn new(jobs: Vec<RegionJob>, registrars: usize) -> Schedule {
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

    /// Returns the bytes that registering faults in.
    pub(super) fn faulted_bytes(&self) -> u64 {
        self.jobs.iter().map(|job| job.faulted).sum()
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
        let populate = self.jobs.iter().enumerate().flat_map(|(job, RegionJob { plan, .. })| {
            plan.populate.iter().map(move |range| (job, range.clone()))
        });
        vec![EngineStep {
            populate: populate.collect(),
            open_chunks: self.chunk_counts().collect(),
        }]
    }

    /// Returns the steps of the plans.
    pub(super) fn by_range(&self) -> Vec<EngineStep> {
        self.cut(|job| job.plan.steps.clone())
    }

    /// Returns steps of which one can be populated while the one before is registered. The first
    /// has at least `sampled` chunks in each lane; if the first region has fewer, there is one
    /// step.
    pub(super) fn pipeline(&self, sampled: usize) -> Vec<EngineStep> {
        let devices = &self.first().plan.devices;
        if devices.iter().any(|device| device.chunks.len() < sampled) {
            return self.whole();
        }
        let sampled = devices.iter().map(|device| device.chunks[..sampled].last());
        let mut first = sampled.flatten().map(|chunk| chunk.end).max().unwrap_or(0);
        self.cut(|job| {
            let (len, mut start) = (job.plan.len_bytes as usize, 0);
            let least = MIN_STEP.max(len / MAX_STEPS);
            // A chunk of another registrar, with other ends, opens with the step in which it ends.
            let longest = job.plan.devices.iter().min_by_key(|device| device.chunks.len());
            let mut steps = Vec::new();
            for end in longest.into_iter().flat_map(|device| &device.chunks).map(|chunk| chunk.end)
            {
                let is_long = end - start >= least && len - end >= least;
                if end == len || is_long && end >= first {
                    steps.push(start..end);
                    start = end;
                }
            }
            first = 0;
            steps
        })
    }

    /// Cuts each job at the steps that `steps` returns.
    fn cut(&self, mut steps_of: impl FnMut(&RegionJob) -> Vec<Range<usize>>) -> Vec<EngineStep> {
        let mut steps = Vec::new();
        for (job, region_job) in self.jobs.iter().enumerate() {
            let plan = &region_job.plan;
            for step in &steps_of(region_job) {
                let common =
                    |range: &Range<usize>| range.start.max(step.start)..range.end.min(step.end);
                let populate = plan.populate.iter().map(common).filter(|range| !range.is_empty());
                let open_chunks =
                    plan.devices.iter().zip(&self.chunks_before).map(|(device, before)| {
                        before[job] + device.chunks.partition_point(|chunk| chunk.end <= step.end)
                    });
                steps.push(EngineStep {
                    populate: populate.map(|range| (job, range)).collect(),
                    open_chunks: open_chunks.collect(),
                });
            }
        }
        steps
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
