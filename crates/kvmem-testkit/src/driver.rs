//! Runs the same operations on an allocator and on the [oracle](crate::oracle), and compares them
//! after every step.
//!
//! The comparison has six points:
//!
//! 1. A request succeeds if and only if the oracle says that it fits; errors carry exactly the
//!    oracle's numbers.
//! 2. A granted range is one that the oracle allows: within the space, aligned, overlapping no
//!    other, crossing no boundary.
//! 3. Metrics equal the oracle's; the hint is at least the length of the longest free range.
//! 4. The map equals the oracle's; the bins add up to the free bytes; `check()` succeeds.
//! 5. Every live allocation still reports its range; every raw handle still resolves, also to its
//!    new size.
//! 6. A stale, foreign or garbage handle returns an error with its numbers, and points 3 to 5 hold
//!    as if the call had not happened.
//!
//! Points 1, 2 and 6 cost nothing beyond the step itself ([`Depth::Grants`]); point 3 adds
//! O(log ranges) ([`Depth::Figures`]); points 4 and 5 read everything.
//!
//! Reading may change the allocator: it may defer work until a caller reads its state. A test is
//! therefore run twice, once with a comparison after every step and once with few comparisons.
//!
//! The driver uses only the public interface of the allocator: that of the offset layer, or the one
//! with caches. For the second, cached ranges count as free, and every request must end as if
//! nothing were cached. Other threads free some of the allocations, so some ranges are in caches
//! that do not belong to the requesting thread.

use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::mem::ManuallyDrop;
use std::rc::Rc;

use anyhow::{Result, ensure};
use kvmem::offset::{OffsetAllocator, RawHandle, SpaceError};
use kvmem::slab::ExtentCache;

use self::other_threads::OtherThreads;
use self::sharded::Sharded;
use self::space::{HeldRange, Space};
use self::tested_allocator::TestedAllocator;
use crate::op::{Config, Op, Pick};

mod changes;
mod misuse;
mod other_threads;
mod requests;
pub mod sharded;
mod space;
pub mod tested_allocator;

/// Handles and spaces of the past that are kept for misuse.
const MEMORY: usize = 64;
/// Spaces without an allocator whose allocations are kept.
const ORPHANS: usize = 4;

/// The extent of the comparison after a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Depth {
    /// Points 1, 2 and 6, and the hint: the allocator receives no call besides the step.
    Grants,
    /// Points 1 to 3 and 6.
    Figures,
    /// All points.
    Everything,
}

/// Counts of each outcome of each kind of step.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tally(BTreeMap<&'static str, u64>);

impl Tally {
    pub(crate) fn count(&mut self, what: &'static str) {
        *self.0.entry(what).or_default() += 1;
    }

    /// Returns the count of an outcome, for example `"allocate: granted"`.
    #[must_use]
    pub fn of(&self, what: &str) -> u64 {
        self.0.get(what).copied().unwrap_or(0)
    }

    /// Adds the counts of another run.
    pub fn add(&mut self, other: &Tally) {
        for (what, count) in &other.0 {
            *self.0.entry(what).or_default() += count;
        }
    }
}

impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|(what, count)| writeln!(f, "{count:>12}  {what}"))
    }
}

/// A step after which the allocator and the oracle disagree.
#[derive(Debug)]
pub struct StepError {
    /// Number of steps that succeeded before.
    pub step: usize,
    /// The step, or `None` if the failure was at the beginning or the end.
    pub op: Option<Op>,
    /// The disagreement.
    pub what: anyhow::Error,
}

impl fmt::Display for StepError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.op {
            Some(op) => write!(f, "step {}, {op:?}: {:#}", self.step, self.what),
            None => write!(f, "after {} steps: {:#}", self.step, self.what),
        }
    }
}

impl std::error::Error for StepError {}

/// As [`run`], on a space that is cut into [shards](sharded).
///
/// # Errors
/// Those of [`run`].
pub fn run_sharded(config: &Config, ops: &[Op]) -> Result<Tally, StepError> {
    run_twice(|depth| match config.cache {
        None => run_on::<Sharded<OffsetAllocator>>(config, ops, depth),
        Some(_) => run_on::<Sharded<ExtentCache>>(config, ops, depth),
    })
}

/// Steps between two full comparisons in the run with few comparisons.
const ALONE: usize = 16;

/// Runs a whole test with a full comparison after every step, and frees everything at the end; then
/// runs it once more with few comparisons. The tally is that of the first run.
///
/// # Errors
/// [`StepError`] if the allocator and the oracle disagree. Live allocations are then leaked,
/// because frees might not survive broken metadata.
pub fn run(config: &Config, ops: &[Op]) -> Result<Tally, StepError> {
    run_twice(|depth| run_comparing(config, ops, depth))
}

/// Runs a test with a full comparison after every step, and with few. The tally is that of the
/// first run.
fn run_twice(
    run: impl Fn(fn(usize) -> Depth) -> Result<Tally, StepError>,
) -> Result<Tally, StepError> {
    let tally = run(|_| Depth::Everything)?;
    run(|step| if step % ALONE == ALONE - 1 { Depth::Everything } else { Depth::Grants }).map_err(
        |failure| StepError { what: failure.what.context("with few comparisons"), ..failure },
    )?;
    Ok(tally)
}

fn run_comparing(
    config: &Config,
    ops: &[Op],
    depth: impl Fn(usize) -> Depth,
) -> Result<Tally, StepError> {
    match config.cache {
        None => run_on::<OffsetAllocator>(config, ops, depth),
        Some(_) => run_on::<ExtentCache>(config, ops, depth),
    }
}

fn run_on<A: TestedAllocator>(
    config: &Config,
    ops: &[Op],
    depth: impl Fn(usize) -> Depth,
) -> Result<Tally, StepError> {
    let failure = |step, op| move |what| StepError { step, op, what };
    let mut driver = ManuallyDrop::new(Driver::<A>::new(config).map_err(failure(0, None))?);
    for (step, op) in ops.iter().enumerate() {
        driver.step(op, depth(step)).map_err(failure(step, Some(*op)))?;
    }
    driver.finish().map_err(failure(ops.len(), None))?;
    Ok(ManuallyDrop::into_inner(driver).tally)
}

/// An allocator with its oracle.
pub struct Driver<A: TestedAllocator> {
    space: Space<A>,
    /// Spaces whose allocator was dropped.
    orphans: VecDeque<Space<A>>,
    /// Handles of this space that are no longer valid.
    stale: VecDeque<RawHandle>,
    /// Handles of other spaces.
    foreign: VecDeque<RawHandle>,
    tally: Tally,
    /// Requests that failed as expected.
    failed_requests: u64,
    /// Whether the figures were read since the last step, which makes the hint exact.
    figures_read: bool,
}

impl<A: TestedAllocator> Driver<A> {
    /// Creates an empty space with these settings.
    ///
    /// # Errors
    /// The allocator rejects the settings, or is wrong from the start.
    pub fn new(config: &Config) -> Result<Self> {
        let (space, handle) = Space::new(config, Rc::new(OtherThreads::default()))?;
        let mut driver = Driver {
            space,
            orphans: VecDeque::new(),
            stale: VecDeque::from([handle]),
            foreign: VecDeque::new(),
            tally: Tally::default(),
            failed_requests: 0,
            figures_read: false,
        };
        driver.compare(Depth::Everything)?;
        Ok(driver)
    }

    /// Applies one step to both, and compares.
    ///
    /// # Errors
    /// The allocator and the oracle disagree.
    pub fn step(&mut self, op: &Op, depth: Depth) -> Result<()> {
        match *op {
            Op::Allocate { size, raw } => self.allocate(self.space.amount(size), None, raw)?,
            Op::AllocateAligned { size, align, raw } => {
                self.allocate(self.space.amount(size), Some(align), raw)?;
            }
            Op::AllocateBatch { size, n } => self.allocate_batch(self.space.amount(size), n)?,
            Op::AllocateScattered { total, max_ranges } => {
                self.allocate_scattered(self.space.amount(total), max_ranges.into())?;
            }
            Op::Held(pick, change) => self.change(pick, change)?,
            Op::Orphan(pick, change) => self.change_orphan(pick, change)?,
            Op::FreeBatch { first, len, order } => self.free_batch(first, len, order)?,
            Op::Burst { seed, n } => self.burst(seed, n)?,
            Op::Misuse { call, handle } => self.misuse(call, handle)?,
            Op::Grow(to) => self.grow(self.space.amount(to))?,
            Op::ShrinkTo(to) => self.shrink_to(self.space.amount(to))?,
            Op::Clone => self.space.clone_allocator(),
            Op::Replace(config) => self.replace(&config)?,
        }
        self.compare(depth)
    }

    /// Frees every allocation and checks that the space is empty.
    ///
    /// # Errors
    /// The space is not empty afterwards, or a comparison fails.
    pub fn finish(&mut self) -> Result<()> {
        while !self.space.is_empty() {
            self.change(Pick::MAX / 2, crate::op::Change::Free)?;
        }
        self.compare(Depth::Everything)?;
        self.count_reclaims();
        self.space.allocator().trim();
        let metrics = self.space.allocator().metrics();
        let oracle = &self.space.oracle;
        ensure!(
            (metrics.allocated, metrics.live, metrics.largest_free) == (0, 0, oracle.limit()),
            "all is freed, and this is left: {metrics:?}"
        );
        while self.orphans.iter().any(|orphan| !orphan.is_empty()) {
            self.change_orphan(Pick::MAX, crate::op::Change::Free)?;
        }
        Ok(())
    }

    /// Returns the counts so far.
    pub fn tally(&self) -> &Tally {
        &self.tally
    }

    /// Returns the number of requests that failed as expected.
    pub fn failed_requests(&self) -> u64 {
        self.failed_requests
    }

    /// Returns the number of live allocations in the space.
    pub fn live(&self) -> usize {
        self.space.oracle.live()
    }

    fn compare(&mut self, depth: Depth) -> Result<()> {
        self.space.compare_hint()?;
        self.figures_read = depth > Depth::Grants;
        if depth >= Depth::Figures {
            self.space.compare_figures()?;
        }
        if depth == Depth::Everything {
            if self.space.allocator().cached().0 > 0 {
                self.tally.count("something is cached");
            }
            self.space.compare_everything()?;
            self.orphans.iter().try_for_each(Space::compare_held)?;
        }
        Ok(())
    }

    /// Drops the allocator while its allocations live on, and creates a new one.
    fn replace(&mut self, config: &Config) -> Result<()> {
        let (space, handle) = Space::new(config, self.space.other_threads.clone())?;
        self.count_reclaims();
        let mut old = std::mem::replace(&mut self.space, space);
        self.foreign.extend(self.stale.drain(..));
        self.foreign.extend(old.orphan()?);
        self.stale.push_back(handle);
        self.orphans.push_back(old);
        if self.orphans.len() > ORPHANS {
            self.orphans.pop_front();
        }
        while self.foreign.len() > MEMORY {
            self.foreign.pop_front();
        }
        self.tally.count("replace");
        Ok(())
    }

    fn grow(&mut self, to: u64) -> Result<()> {
        let expected = self.space.expect_capacity(to).and_then(|()| self.space.expect_grow(to));
        let got = self.space.allocator().grow_to(to);
        let full = matches!(
            got,
            Err(SpaceError::TooManyRanges { ranges }) if self.space.may_be_full(ranges)
        );
        ensure!(got == expected || full, "grow to {to}: {got:?} instead of {expected:?}");
        self.tally.count(if got.is_ok() { "grow: granted" } else { "grow: failed" });
        if got.is_ok() { Ok(self.space.oracle.set_capacity(to)?) } else { Ok(()) }
    }

    fn shrink_to(&mut self, to: u64) -> Result<()> {
        let expected =
            self.space.expect_capacity(to).and_then(|()| self.space.expect_shrink_to(to));
        let got = self.space.allocator().shrink_to(to);
        ensure!(got == expected, "shrink to {to}: {got:?} instead of {expected:?}");
        self.tally.count(if got.is_ok() { "shrink_to: granted" } else { "shrink_to: failed" });
        if got.is_ok() { Ok(self.space.oracle.set_capacity(to)?) } else { Ok(()) }
    }

    /// Counts how often the cached ranges of a space that is about to be dropped were reclaimed.
    fn count_reclaims(&mut self) {
        let (_, reclaims) = self.space.allocator().cached();
        *self.tally.0.entry("reclaims").or_default() += reclaims;
    }

    /// Remembers a handle that is invalid from now on.
    fn outdate(&mut self, handle: RawHandle) {
        self.stale.push_back(handle);
        if self.stale.len() > MEMORY {
            self.stale.pop_front();
        }
    }

    /// Records a granted range.
    fn hold(&mut self, offset: u64, size: u64, held: HeldRange<A>) -> Result<()> {
        self.space.oracle.grant(offset, size)?;
        self.space.hold(offset, held);
        Ok(())
    }
}

/// Returns the index among `len` entries that a pick selects; `None` if there are none.
fn pick_of(pick: Pick, len: usize) -> Option<usize> {
    (len > 0).then(|| usize::from(pick) * len / (usize::from(Pick::MAX) + 1))
}
