//! *Plan*: what will be done, before anything is.
//!
//! A pure function of what the memory is made of, what the registrars can take, and what the user
//! wants. Its rules:
//!
//! - **Chunks are as large as may be.** One key for everything is best for whoever uses it. A chunk
//!   is smaller where the device cannot take more, where many keys cost nothing and smaller chunks
//!   are registered more quickly, or where the user says so.
//! - **Chunks cover all of it**: each registrar's follow each other without gap or overlap, from
//!   the first byte to the last.
//! - **Edges are page boundaries** of the pages that are really there, and those of one registrar
//!   are among those of the one with the smallest chunks. So there is one boundary that an
//!   allocator can be told.
//! - **What is not there is populated first**, by threads that have each a share of their own.
//!   Untouched memory is never registered by several at once.
//! - **Chunk by chunk, not registrar by registrar**: the books that the kernel keeps of the pages
//!   of one chunk are still in the cache when the next registrar needs them.

use std::fmt;
use std::ops::Range;

use serde::{Deserialize, Serialize};

use super::ground::Ground;
use super::{Account, Limits, Memlock, Policy, RegisterError, RegisterLimit, costs};
use crate::arena::{Populate, Receipt, Size};

/// No registrar is planned more chunks than this: with as many, something is wrong with the wish.
const MOST_CHUNKS: u64 = 1 << 20;
/// What a trial of slices may cost: one part in so many of all bytes.
const SLICES_SHARE: u64 = 48;
/// A trial of chunks: one part in so many is registered in the way that turns out slower.
const CHUNKS_SHARE: usize = 32;
/// The same, where nothing else is possible.
const CHUNKS_SHARE_AT_MOST: usize = 8;
/// Longer slices tell nothing more.
const SLICE_MAX: u64 = 256 << 20;
/// How often two ways are compared.
const ROUNDS: usize = 3;

/// What the user wants, and what bounds it.
#[derive(Clone, Debug, PartialEq)]
pub struct PlanOptions {
    /// In which way registrars are called.
    pub policy: Policy,
    /// How many threads can run at once.
    pub cores: usize,
    /// Who makes resident what is not; [`Populate::None`]: the first registrar does, alone.
    pub populate: Populate,
    /// The most bytes of a chunk; `None`: as the registrars like it best.
    pub chunk_bytes: Option<u64>,
    /// Whether each range is populated and registered before the next one is, in order of
    /// addresses.
    pub by_range: bool,
}

impl PlanOptions {
    /// This policy on so many cores, the rest as usual.
    #[must_use]
    pub fn new(policy: Policy, cores: usize) -> PlanOptions {
        PlanOptions { policy, cores, populate: Populate::Auto, chunk_bytes: None, by_range: false }
    }
}

/// What will be done with one region. Ranges are offsets into it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Plan {
    /// Bytes of the region.
    pub len_bytes: u64,
    /// Bytes of it that are resident.
    pub resident_bytes: u64,
    /// In which way registrars are called.
    pub policy: Policy,
    /// What is populated before it is registered.
    pub populate: Vec<Range<usize>>,
    /// By how many threads at most, each with an even share on page boundaries. 0: nothing is
    /// populated.
    pub populate_threads: usize,
    /// What is done before the next of these is begun: populated, then registered. One: all.
    pub steps: Vec<Range<usize>>,
    /// Each registrar's chunks, in the order in which it gets them.
    pub lanes: Vec<DevicePlan>,
    /// How many registrars are called side by side at most. Whoever is furthest behind comes next.
    pub threads: usize,
    /// How it is found out whether that pays; `None`: it is not asked.
    pub trial: Option<CalibrationPlan>,
    /// A boundary that no range may straddle which is to have one key with each registrar; `None`:
    /// there is one chunk.
    pub boundary_bytes: Option<u64>,
    /// About how long it will take.
    pub estimate: Estimate,
}

/// One registrar's chunks.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DevicePlan {
    /// Its name.
    pub device: String,
    /// In order, without gap or overlap, from 0 to the end.
    pub chunks: Vec<Range<usize>>,
}

/// How two ways of calling are compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum CalibrationPlan {
    /// On the first chunks: real work, of which nothing is done twice.
    Chunks {
        /// How often.
        rounds: usize,
    },
    /// Where chunks are few and long: on slices that are registered and given back.
    Slices {
        /// How often.
        rounds: usize,
        /// Bytes of a slice.
        slice_bytes: u64,
    },
}

/// About how long it will take on a machine like the one the figures were measured on, in seconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Estimate {
    /// Populating.
    pub populate_seconds: f64,
    /// Registering, one call after another.
    pub sequential_seconds: f64,
    /// Registering, if calls side by side do not disturb each other at all.
    pub parallel_seconds: f64,
}

/// Plans how to register a region of which the receipt says what it is made of. Nothing is asked
/// and nothing is done.
///
/// The receipt says what was resident when the region was mapped. A builder's
/// [`plan`](super::RegistrationBuilder::plan) asks what is so now, and knows parts of regions and
/// memory of other owners, which may begin anywhere.
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
/// [`Empty`](RegisterError::Empty), and [`Limited`](RegisterError::Limited) where a limit is known
/// not to suffice: better now than after minutes of populating.
pub fn plan(
    receipt: &Receipt,
    limits: &[Limits],
    terms: &PlanOptions,
) -> Result<Plan, RegisterError> {
    Ground::of(receipt).plan(limits, terms)
}

impl Ground {
    /// See [`plan`].
    pub(super) fn plan(
        &self,
        limits: &[Limits],
        terms: &PlanOptions,
    ) -> Result<Plan, RegisterError> {
        check_names(limits)?;
        if self.len == 0 {
            return Err(RegisterError::Empty);
        }
        check_memlock(limits, self.len as u64)?;
        let caps: Vec<u64> = limits.iter().map(|limits| cap(limits, terms)).collect();
        for (limits, cap) in limits.iter().zip(&caps) {
            check_keys(limits, (self.len as u64).div_ceil(*cap))?;
        }
        let cuts = self.cuts(caps.iter().copied().min().unwrap_or(u64::MAX));
        let lanes = limits.iter().zip(&caps).map(|(limits, cap)| {
            let lane = DevicePlan { device: limits.device.clone(), chunks: join(&cuts, *cap) };
            check_keys(limits, lane.chunks.len() as u64).map(|()| lane)
        });
        let lanes = lanes.collect::<Result<Vec<DevicePlan>, RegisterError>>()?;

        let absent = self.absent();
        let populates = terms.policy != Policy::Sequential && terms.populate != Populate::None;
        let populate_threads = match terms.populate {
            _ if absent.is_empty() || !populates => 0,
            Populate::Threads(threads) => threads.get().min(terms.cores.max(1)),
            _ => terms.cores.max(1),
        };
        let untouched = populate_threads == 0 && !absent.is_empty();
        let (way, most) = Way::find(terms, &[&lanes], self.len as u64, untouched, self.slice_min());
        Ok(Plan {
            len_bytes: self.len as u64,
            resident_bytes: self.resident(),
            policy: terms.policy,
            populate: if populate_threads > 0 { absent } else { Vec::new() },
            populate_threads,
            steps: steps(&cuts, terms.by_range),
            threads: way.threads,
            trial: way.trial,
            boundary_bytes: boundary(&cuts),
            estimate: self.estimate(lanes.len(), most, populate_threads),
            lanes,
        })
    }

    fn estimate(&self, lanes: usize, threads: usize, populate_threads: usize) -> Estimate {
        let gib = |bytes: u64| bytes as f64 / f64::from(1 << 30);
        let (mut absent, mut register) = (0.0, 0.0);
        for stretch in &self.stretches {
            let len = stretch.range.len() as u64;
            absent += gib(len - stretch.resident.min(len)) * costs::populate_ms(stretch.page) / 1e3;
            register += gib(len) * costs::register_ms(stretch.page) / 1e3 * lanes as f64;
        }
        // Who is not populated before is so by the first registrar.
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

/// What is known not to suffice for so many bytes in keys of at most `part`, without knowing what
/// they are made of.
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

/// The most bytes of a chunk.
fn cap(limits: &Limits, terms: &PlanOptions) -> u64 {
    let wanted = terms.chunk_bytes.or(limits.preferred_chunk_bytes).unwrap_or(u64::MAX);
    wanted.min(limits.max_bytes).max(1)
}

pub(super) fn check_keys(limits: &Limits, need: u64) -> Result<(), RegisterError> {
    let limit = limits.max_keys.min(MOST_CHUNKS);
    let exceeded = RegisterLimit::Keys { limit, need };
    if need > limit {
        Err(RegisterError::Limited { device: limits.device.clone(), exceeded })
    } else {
        Ok(())
    }
}

/// Holds what all of them are to pin together against the limit that they share.
pub(super) fn check_memlock(limits: &[Limits], len: u64) -> Result<(), RegisterError> {
    for account in [Account::Rings, Account::Pinned, Account::Locked] {
        let counted =
            |limits: &&Limits| limits.memlock.is_some_and(|memlock| memlock.account == account);
        let counted: Vec<&Limits> = limits.iter().filter(counted).collect();
        let tightest = counted.iter().filter_map(|limits| limits.memlock);
        let Some(memlock) = tightest.min_by_key(|memlock| left(*memlock)) else { continue };
        let need_bytes = len.saturating_mul(counted.len() as u64);
        if need_bytes > left(memlock) {
            let Memlock { limit_bytes, used_bytes, .. } = memlock;
            let names: Vec<&str> = counted.iter().map(|limits| &*limits.device).collect();
            let exceeded = RegisterLimit::Memlock { account, limit_bytes, used_bytes, need_bytes };
            return Err(RegisterError::Limited { device: names.join(", "), exceeded });
        }
    }
    Ok(())
}

fn left(memlock: Memlock) -> u64 {
    memlock.limit_bytes.saturating_sub(memlock.used_bytes)
}

/// Joins pieces, given by their ends, to chunks of at most `cap` bytes.
fn join(cuts: &[usize], cap: u64) -> Vec<Range<usize>> {
    let (mut chunks, mut start, mut end) = (Vec::new(), 0, 0);
    for &cut in cuts {
        if end > start && (cut - start) as u64 > cap {
            chunks.push(start..end);
            start = end;
        }
        end = cut;
    }
    chunks.push(start..end);
    chunks
}

fn steps(cuts: &[usize], by_range: bool) -> Vec<Range<usize>> {
    let ends = if by_range { cuts } else { &cuts[cuts.len() - 1..] };
    let starts = [0].into_iter().chain(ends.iter().copied());
    starts.zip(ends).map(|(start, end)| start..*end).collect()
}

/// The greatest number of which all cuts but the last are multiples.
fn boundary(cuts: &[usize]) -> Option<u64> {
    let (_, inner) = cuts.split_last()?;
    inner.iter().map(|cut| *cut as u64).reduce(gcd)
}

fn gcd(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { gcd(b, a % b) }
}

/// The numbers of threads that are compared with the best so far: 2, 4, … up to `threads`.
pub(super) fn ladder(threads: usize) -> impl Iterator<Item = usize> {
    let next = move |more: &usize| (*more < threads).then(|| (2 * more).min(threads));
    std::iter::successors((threads > 1).then_some(2), next)
}

/// In which way registrars are called for one or more regions.
#[derive(Clone, Copy, Debug)]
pub(super) struct Way {
    pub(super) policy: Policy,
    /// How many of them side by side at most.
    pub(super) threads: usize,
    pub(super) trial: Option<CalibrationPlan>,
}

impl Way {
    /// The way for these lanes of these regions, which have `len` bytes in all and are untouched or
    /// not; and how many threads could be used at all.
    pub(super) fn find(
        terms: &PlanOptions,
        jobs: &[&[DevicePlan]],
        len: u64,
        untouched: bool,
        slice_min: u64,
    ) -> (Way, usize) {
        let lanes = jobs.first().map_or(0, |lanes| lanes.len());
        let most = match terms.policy {
            Policy::Sequential => 1,
            // Nobody else makes it resident: the first registrar does, and it does so alone.
            _ if untouched => 1,
            Policy::Parallel(threads) => threads.get().min(lanes),
            Policy::Auto => terms.cores.max(1).min(lanes),
        };
        let auto = terms.policy == Policy::Auto;
        let trial = (auto && most > 1)
            .then(|| trial(jobs, lanes, len, most, terms.by_range, slice_min))
            .flatten();
        // Too little work to find out is too little to be worth threads.
        let threads = if auto && trial.is_none() { 1 } else { most };
        (Way { policy: terms.policy, threads, trial }, most)
    }
}

/// A trial that costs little beside the whole; `None` where there is none.
fn trial(
    jobs: &[&[DevicePlan]],
    lanes: usize,
    len: u64,
    threads: usize,
    by_range: bool,
    slice_min: u64,
) -> Option<CalibrationPlan> {
    let steps = ladder(threads).count();
    // Chunks or slices that one round needs for each of the two ways.
    let each: usize = ladder(threads).sum();
    let counts =
        (0..lanes).map(|lane| jobs.iter().map(|lanes| lanes[lane].chunks.len()).sum::<usize>());
    let (shortest, total) =
        counts.fold((usize::MAX, 0), |(least, sum), count| (least.min(count), sum + count));
    let on_chunks = |share: usize, most: usize| {
        let rounds = (shortest / (2 * steps)).min(total / (share * each)).min(most);
        (rounds > 0 && !by_range).then_some(CalibrationPlan::Chunks { rounds })
    };
    let on_slices = || {
        let work = len.saturating_mul(lanes as u64);
        let slices = (2 * ROUNDS * each) as u64;
        // They are taken from the first region, or of what is done of it first.
        let longest =
            jobs.first()?.iter().filter_map(|lane| lane.chunks.first()).map(Range::len).min()?
                as u64;
        let slice_bytes =
            (work / (SLICES_SHARE * slices)).min(SLICE_MAX).min(longest) / slice_min * slice_min;
        (slice_bytes > 0).then_some(CalibrationPlan::Slices { rounds: ROUNDS, slice_bytes })
    };
    on_chunks(CHUNKS_SHARE, ROUNDS)
        .or_else(on_slices)
        .or_else(|| on_chunks(CHUNKS_SHARE_AT_MOST, 1))
}

impl Plan {
    /// Keys that it takes.
    #[must_use]
    pub fn keys(&self) -> usize {
        self.lanes.iter().map(|lane| lane.chunks.len()).sum()
    }
}

impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let hex = |range: &Range<usize>| format!("{:#x}..{:#x}", range.start, range.end);
        let (len, resident) = (Size(self.len_bytes), Size(self.resident_bytes));
        writeln!(
            f,
            "{len} for {} registrar(s), {}; {resident} of it resident",
            self.lanes.len(),
            self.policy
        )?;
        for range in &self.populate {
            let size = Size(range.len() as u64);
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
                Size(longest as u64),
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
                        (format!("slices of {}", Size(slice_bytes)), rounds)
                    }
                };
                writeln!(
                    f,
                    "  order     chunk by chunk, up to {threads} registrars side by side if that is faster on {how} ({rounds} \
                     round(s))"
                )?;
            }
        }
        if let Some(boundary) = self.boundary_bytes {
            writeln!(
                f,
                "  boundary  {}: what does not straddle a multiple of it has one key",
                Size(boundary)
            )?;
        }
        let Estimate { populate_seconds, sequential_seconds, parallel_seconds } = self.estimate;
        writeln!(
            f,
            "  estimate  populate {populate_seconds:.2} s, register {parallel_seconds:.2} to {sequential_seconds:.2} s"
        )
    }
}
