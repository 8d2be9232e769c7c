//! *Plan*: the work of registering as data, computed before any of it is done.
//!
//! A plan is a pure function of the memory's pages, the registrars' limits, and the user's options.
//! Its rules:
//!
//! - **Chunks are as large as possible.** One key for everything is the simplest to use. A chunk is
//!   smaller if the device cannot take more, if many keys cost nothing and smaller chunks register
//!   faster, or if the user sets a length.
//! - **Chunks cover the whole region**: the chunks of each registrar follow each other without a
//!   gap or overlap, from the first byte to the last.
//! - **Edges are page boundaries** of the actual pages, and the edges of each registrar are among
//!   those of the registrar with the smallest chunks. One boundary therefore suffices for an
//!   allocator.
//! - **Missing pages are populated first**, by threads that each have their own share. Untouched
//!   memory is never registered by several registrars at once.
//! - **Chunk by chunk, not registrar by registrar**: the kernel's metadata of a chunk's pages is
//!   still in the cache when the next registrar needs it.

use std::fmt;
use std::ops::Range;

use serde::{Deserialize, Serialize};

use super::costs;
use super::layout::MemoryLayout;
use crate::arena::{HumanBytes, Populate, Receipt};
use crate::register::{Account, Limits, Memlock, Policy, RegisterError, RegisterLimit};
use crate::threads::{ROUNDS, ladder};

/// The limit of chunks per registrar; a plan that needs more comes from a mistaken request.
const MAX_CHUNKS: u64 = 1 << 20;
/// Calibration on slices registers at most 1/48 of all bytes.
const SLICES_SHARE: u64 = 48;
/// Calibration on chunks registers at most 1/32 of the chunks in the slower way.
const CHUNKS_SHARE: usize = 32;
/// The same share if no other calibration is possible: 1/8.
const MAX_CHUNKS_SHARE: usize = 8;
/// The longest slice; longer ones add no information.
const MAX_SLICE_BYTES: u64 = 256 << 20;

/// The user's options for a plan, and the machine's cores.
#[derive(Clone, Debug, PartialEq)]
pub struct PlanOptions {
    /// How registrars are called.
    pub policy: Policy,
    /// The number of threads that can run at once.
    pub cores: usize,
    /// How missing pages are populated; with [`Populate::None`] the first registrar, called alone,
    /// faults them in.
    pub populate: Populate,
    /// The largest chunk in bytes; `None`: the registrars' preferred length.
    pub chunk_bytes: Option<u64>,
    /// Whether each range is populated and registered before the next one, in order of addresses.
    pub by_range: bool,
}

impl PlanOptions {
    /// Returns options with this policy and number of cores, and defaults for the rest.
    #[must_use]
    pub fn new(policy: Policy, cores: usize) -> PlanOptions {
        PlanOptions { policy, cores, populate: Populate::Auto, chunk_bytes: None, by_range: false }
    }
}

/// The work of registering one region. Ranges are offsets into it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Plan {
    /// Bytes of the region.
    pub len_bytes: u64,
    /// Bytes of it that are resident.
    pub resident_bytes: u64,
    /// How registrars are called.
    pub policy: Policy,
    /// The ranges that are populated before they are registered.
    pub populate: Vec<Range<usize>>,
    /// The largest number of threads that populate, each with an even share on page boundaries. 0:
    /// nothing is populated.
    pub populate_threads: usize,
    /// The steps: each is populated and then registered before the next begins. One step: the
    /// whole region.
    pub steps: Vec<Range<usize>>,
    /// Each registrar's chunks, in the order in which they are registered.
    pub lanes: Vec<DevicePlan>,
    /// The largest number of registrars called concurrently. The registrar that has done the
    /// fewest chunks is called next.
    pub threads: usize,
    /// How concurrent calls are compared with sequential ones; `None`: they are not compared.
    pub trial: Option<CalibrationPlan>,
    /// The boundary for an allocator: a range that does not straddle a multiple of it has one key
    /// with each registrar. `None`: there is one chunk.
    pub boundary_bytes: Option<u64>,
    /// The estimated time.
    pub estimate: Estimate,
}

/// One registrar's chunks.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DevicePlan {
    /// The registrar's name.
    pub device: String,
    /// The chunks in order, without a gap or overlap, from 0 to the end.
    pub chunks: Vec<Range<usize>>,
}

/// How two ways of calling are compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum CalibrationPlan {
    /// On the first chunks: real work, and nothing is registered twice.
    Chunks {
        /// The number of rounds.
        rounds: usize,
    },
    /// On slices that are registered, timed and deregistered, if chunks are few and long.
    Slices {
        /// The number of rounds.
        rounds: usize,
        /// Bytes of a slice.
        slice_bytes: u64,
    },
}

/// Estimated times in seconds, on a machine like the one on which the costs were measured.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Estimate {
    /// Populating.
    pub populate_seconds: f64,
    /// Registering with one call after another.
    pub sequential_seconds: f64,
    /// Registering with concurrent calls that do not slow each other down.
    pub parallel_seconds: f64,
}

/// Plans how to register a region, given its receipt. Queries nothing and has no side effects.
///
/// The receipt describes the residency at the time of mapping. A builder's
/// [`plan`](crate::register::RegistrationBuilder::plan) queries the current residency. It also handles parts
/// of regions and foreign memory, which may begin at any address.
///
/// Takes time in proportion to the number of chunks: some 100 µs for 1 TiB and eight rings.
///
/// ```
/// use kvmem::arena::Region;
/// use kvmem::register::{Limits, Policy, PlanOptions, plan};
///
/// let region = Region::builder(1 << 30).map()?;
/// let nics = ["mlx5_0", "mlx5_1"].map(|nic| Limits { max_bytes: 256 << 20, ..Limits::none(nic) });
/// let plan = plan(region.receipt(), &nics, &PlanOptions::new(Policy::Auto, 2))?;
/// assert_eq!(plan.lanes[1].chunks.len(), 4);
/// assert_eq!(plan.lanes[1].chunks[3], 768 << 20..1 << 30);
/// assert_eq!(plan.boundary_bytes, Some(256 << 20));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
/// [`NoRegistrars`](RegisterError::NoRegistrars), [`SameName`](RegisterError::SameName),
/// [`Empty`](RegisterError::Empty), and [`Limited`](RegisterError::Limited) if a known limit is too
/// small. Planning reports that before minutes of populating are spent.
pub fn plan(
    receipt: &Receipt,
    limits: &[Limits],
    options: &PlanOptions,
) -> Result<Plan, RegisterError> {
    MemoryLayout::from_receipt(receipt).plan(limits, options)
}

impl MemoryLayout {
    /// Plans how to register this memory; see [`plan`].
    pub(in crate::register) fn plan(
        &self,
        limits: &[Limits],
        options: &PlanOptions,
    ) -> Result<Plan, RegisterError> {
        check_names(limits)?;
        if self.len == 0 {
            return Err(RegisterError::Empty);
        }
        check_memlock(limits, self.len as u64)?;
        let caps: Vec<u64> = limits.iter().map(|limits| cap(limits, options)).collect();
        for (limits, cap) in limits.iter().zip(&caps) {
            check_keys(limits, (self.len as u64).div_ceil(*cap))?;
        }
        let ends = self.chunk_ends(caps.iter().copied().min().unwrap_or(u64::MAX));
        let lanes = limits.iter().zip(&caps).map(|(limits, cap)| {
            let lane = DevicePlan { device: limits.device.clone(), chunks: merge(&ends, *cap) };
            check_keys(limits, lane.chunks.len() as u64).map(|()| lane)
        });
        let lanes = lanes.collect::<Result<Vec<DevicePlan>, RegisterError>>()?;

        let absent = self.absent_ranges();
        let populates = options.policy != Policy::Sequential && options.populate != Populate::None;
        let populate_threads = match options.populate {
            _ if absent.is_empty() || !populates => 0,
            Populate::Threads(threads) => threads.get().min(options.cores.max(1)),
            _ => options.cores.max(1),
        };
        let untouched = populate_threads == 0 && !absent.is_empty();
        let (strategy, max_threads) = CallStrategy::choose(
            options,
            &[&lanes],
            self.len as u64,
            untouched,
            self.min_slice_bytes(),
        );
        Ok(Plan {
            len_bytes: self.len as u64,
            resident_bytes: self.resident_bytes(),
            policy: options.policy,
            populate: if populate_threads > 0 { absent } else { Vec::new() },
            populate_threads,
            steps: steps(&ends, options.by_range),
            threads: strategy.threads,
            trial: strategy.trial,
            boundary_bytes: boundary(&ends),
            estimate: self.estimate(lanes.len(), max_threads, populate_threads),
            lanes,
        })
    }

    fn estimate(&self, lanes: usize, threads: usize, populate_threads: usize) -> Estimate {
        let gib = |bytes: u64| bytes as f64 / f64::from(1 << 30);
        let (mut absent, mut register) = (0.0, 0.0);
        for segment in &self.segments {
            let len = segment.range.len() as u64;
            absent +=
                gib(len - segment.resident_bytes.min(len)) * costs::populate_ms(segment.page) / 1e3;
            register += gib(len) * costs::register_ms(segment.page) / 1e3 * lanes as f64;
        }
        // Pages that are not populated beforehand are faulted in by the first registrar.
        let (populate, fault_in) = if populate_threads > 0 {
            (absent / populate_threads as f64, 0.0)
        } else {
            (0.0, absent)
        };
        Estimate {
            populate_seconds: populate,
            sequential_seconds: register + fault_in,
            parallel_seconds: register / threads as f64 + fault_in,
        }
    }
}

/// Checks the limits that do not depend on the pages, for `len` bytes in keys of at most `part`
/// bytes.
pub(crate) fn admit(limits: &[Limits], len: u64, part: u64) -> Result<(), RegisterError> {
    check_names(limits)?;
    check_memlock(limits, len)?;
    limits.iter().try_for_each(|limits| check_keys(limits, len.div_ceil(part.max(1))))
}

fn check_names(limits: &[Limits]) -> Result<(), RegisterError> {
    if limits.is_empty() {
        return Err(RegisterError::NoRegistrars);
    }
    let mut names: Vec<&str> = limits.iter().map(|limits| &*limits.device).collect();
    names.sort_unstable();
    match names.windows(2).find(|pair| pair[0] == pair[1]) {
        Some(pair) => Err(RegisterError::SameName { device: pair[0].to_owned() }),
        None => Ok(()),
    }
}

/// Returns the largest chunk in bytes.
fn cap(limits: &Limits, options: &PlanOptions) -> u64 {
    let wanted = options.chunk_bytes.or(limits.preferred_chunk_bytes).unwrap_or(u64::MAX);
    wanted.min(limits.max_bytes).max(1)
}

pub(in crate::register) fn check_keys(limits: &Limits, need: u64) -> Result<(), RegisterError> {
    let limit = limits.max_keys.min(MAX_CHUNKS);
    let exceeded = RegisterLimit::Keys { limit, need };
    if need > limit {
        Err(RegisterError::Limited { device: limits.device.clone(), exceeded })
    } else {
        Ok(())
    }
}

/// Compares the bytes that all registrars pin together with the limit that they share.
pub(in crate::register) fn check_memlock(limits: &[Limits], len: u64) -> Result<(), RegisterError> {
    for account in [Account::Rings, Account::Pinned, Account::Locked] {
        let counted =
            |limits: &&Limits| limits.memlock.is_some_and(|memlock| memlock.account == account);
        let counted: Vec<&Limits> = limits.iter().filter(counted).collect();
        let tightest = counted.iter().filter_map(|limits| limits.memlock);
        let Some(memlock) = tightest.min_by_key(|memlock| remaining_bytes(*memlock)) else {
            continue;
        };
        let need_bytes = len.saturating_mul(counted.len() as u64);
        if need_bytes > remaining_bytes(memlock) {
            let Memlock { limit_bytes, used_bytes, .. } = memlock;
            let names: Vec<&str> = counted.iter().map(|limits| &*limits.device).collect();
            let exceeded = RegisterLimit::Memlock { account, limit_bytes, used_bytes, need_bytes };
            return Err(RegisterError::Limited { device: names.join(", "), exceeded });
        }
    }
    Ok(())
}

fn remaining_bytes(memlock: Memlock) -> u64 {
    memlock.limit_bytes.saturating_sub(memlock.used_bytes)
}

/// Merges pieces, given by their ends, into chunks of at most `cap` bytes.
fn merge(ends: &[usize], cap: u64) -> Vec<Range<usize>> {
    let (mut chunks, mut start, mut end) = (Vec::new(), 0, 0);
    for &next in ends {
        if end > start && (next - start) as u64 > cap {
            chunks.push(start..end);
            start = end;
        }
        end = next;
    }
    chunks.push(start..end);
    chunks
}

fn steps(ends: &[usize], by_range: bool) -> Vec<Range<usize>> {
    let ends = if by_range { ends } else { &ends[ends.len() - 1..] };
    let starts = [0].into_iter().chain(ends.iter().copied());
    starts.zip(ends).map(|(start, end)| start..*end).collect()
}

/// Returns the largest number that divides all ends but the last.
fn boundary(ends: &[usize]) -> Option<u64> {
    let (_, inner) = ends.split_last()?;
    inner.iter().map(|end| *end as u64).reduce(gcd)
}

fn gcd(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { gcd(b, a % b) }
}

/// How registrars are called for one or more regions.
#[derive(Clone, Copy, Debug)]
pub(in crate::register) struct CallStrategy {
    pub(in crate::register) policy: Policy,
    /// The largest number of registrars called concurrently.
    pub(in crate::register) threads: usize,
    pub(in crate::register) trial: Option<CalibrationPlan>,
}

impl CallStrategy {
    /// Returns the strategy for these lanes of these regions, which have `len` bytes in total and
    /// may be untouched; and the number of threads that could be used at all.
    pub(in crate::register) fn choose(
        options: &PlanOptions,
        jobs: &[&[DevicePlan]],
        len: u64,
        untouched: bool,
        min_slice_bytes: u64,
    ) -> (CallStrategy, usize) {
        let lanes = jobs.first().map_or(0, |lanes| lanes.len());
        let max_threads = match options.policy {
            Policy::Sequential => 1,
            // Nothing else populates the pages: the first registrar faults them in, called alone.
            _ if untouched => 1,
            Policy::Parallel(threads) => threads.get().min(lanes),
            Policy::Auto => options.cores.max(1).min(lanes),
        };
        let auto = options.policy == Policy::Auto;
        let trial = (auto && max_threads > 1)
            .then(|| {
                calibration_plan(jobs, lanes, len, max_threads, options.by_range, min_slice_bytes)
            })
            .flatten();
        // Work that is too short to measure is too short to be worth threads.
        let threads = if auto && trial.is_none() { 1 } else { max_threads };
        (CallStrategy { policy: options.policy, threads, trial }, max_threads)
    }
}

/// Returns a calibration that costs little compared with the whole; `None` if there is none.
fn calibration_plan(
    jobs: &[&[DevicePlan]],
    lanes: usize,
    len: u64,
    threads: usize,
    by_range: bool,
    min_slice_bytes: u64,
) -> Option<CalibrationPlan> {
    let steps = ladder(threads).count();
    // The chunks or slices that one round needs for each of the two ways.
    let each: usize = ladder(threads).sum();
    let counts =
        (0..lanes).map(|lane| jobs.iter().map(|lanes| lanes[lane].chunks.len()).sum::<usize>());
    let (shortest, total) =
        counts.fold((usize::MAX, 0), |(least, sum), count| (least.min(count), sum + count));
    let on_chunks = |share: usize, max_rounds: usize| {
        let rounds = (shortest / (2 * steps)).min(total / (share * each)).min(max_rounds);
        (rounds > 0 && !by_range).then_some(CalibrationPlan::Chunks { rounds })
    };
    let on_slices = || {
        let work = len.saturating_mul(lanes as u64);
        let slices = (2 * ROUNDS * each) as u64;
        // Slices are taken from the first step of the first region.
        let longest =
            jobs.first()?.iter().filter_map(|lane| lane.chunks.first()).map(Range::len).min()?
                as u64;
        let slice_bytes = (work / (SLICES_SHARE * slices)).min(MAX_SLICE_BYTES).min(longest)
            / min_slice_bytes
            * min_slice_bytes;
        (slice_bytes > 0).then_some(CalibrationPlan::Slices { rounds: ROUNDS, slice_bytes })
    };
    on_chunks(CHUNKS_SHARE, ROUNDS).or_else(on_slices).or_else(|| on_chunks(MAX_CHUNKS_SHARE, 1))
}

impl Plan {
    /// Returns the number of keys that the plan needs.
    #[must_use]
    pub fn keys(&self) -> usize {
        self.lanes.iter().map(|lane| lane.chunks.len()).sum()
    }
}

impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let hex = |range: &Range<usize>| format!("{:#x}..{:#x}", range.start, range.end);
        let (len, resident) = (HumanBytes(self.len_bytes), HumanBytes(self.resident_bytes));
        writeln!(
            f,
            "{len} for {} registrar(s), {}; {resident} of it resident",
            self.lanes.len(),
            self.policy
        )?;
        for range in &self.populate {
            let size = HumanBytes(range.len() as u64);
            writeln!(
                f,
                "  populate  {}  {size}, by up to {} thread(s), an even share each",
                hex(range),
                self.populate_threads
            )?;
        }
        let mut lanes = &self.lanes[..];
        while let Some(first) = lanes.first() {
            let same = lanes.iter().take_while(|lane| lane.chunks == first.chunks).count();
            let (names, rest) = lanes.split_at(same);
            let names: Vec<&str> = names.iter().map(|lane| &*lane.device).collect();
            let longest = first.chunks.iter().map(Range::len).max().unwrap_or(0);
            writeln!(
                f,
                "  register  {} chunk(s) of up to {}, each with {}",
                first.chunks.len(),
                HumanBytes(longest as u64),
                names.join(", ")
            )?;
            lanes = rest;
        }
        if self.steps.len() > 1 {
            writeln!(
                f,
                "  steps     {}: each is populated and registered before the next",
                self.steps.len()
            )?;
        }
        match (self.threads, self.trial) {
            (1, _) => writeln!(f, "  order     chunk by chunk, one call after another")?,
            (threads, None) => {
                writeln!(f, "  order     chunk by chunk, {threads} registrars side by side")?
            }
            (threads, Some(trial)) => {
                let (how, rounds) = match trial {
                    CalibrationPlan::Chunks { rounds } => ("the first chunks".to_owned(), rounds),
                    CalibrationPlan::Slices { rounds, slice_bytes } => {
                        (format!("slices of {}", HumanBytes(slice_bytes)), rounds)
                    }
                };
                writeln!(
                    f,
                    "  order     chunk by chunk, up to {threads} registrars side by side if that \
                     is faster on {how} ({rounds} round(s))"
                )?;
            }
        }
        if let Some(boundary) = self.boundary_bytes {
            writeln!(
                f,
                "  boundary  {}: what does not straddle a multiple of it has one key",
                HumanBytes(boundary)
            )?;
        }
        let Estimate { populate_seconds, sequential_seconds, parallel_seconds } = self.estimate;
        writeln!(
            f,
            "  estimate  populate {populate_seconds:.2} s, \
             register {parallel_seconds:.2} to {sequential_seconds:.2} s"
        )
    }
}
