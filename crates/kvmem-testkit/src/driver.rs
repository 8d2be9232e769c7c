//! *Driver*: does the same to an allocator and to the [oracle](crate::oracle), and compares after
//! every step.
//!
//! What is compared:
//!
//! 1. A request succeeds iff the oracle says that it fits; refusals carry exactly the numbers the
//!    oracle knows.
//! 2. What is granted lies where the oracle allows it: in the space, aligned, on no other, across
//!    no boundary.
//! 3. Metrics are the oracle's; the hint is not below the longest free range.
//! 4. The map is the oracle's; the bins add up to what is free; `check()` is content.
//! 5. Every allocation alive still says where it lies; every raw handle still resolves, also to its
//!    new size.
//! 6. A handle that is stale, foreign or garbage is refused with its numbers, and 3 to 5 hold as if
//!    nothing had been.
//!
//! 1, 2 and 6 cost nothing beside the step itself ([`Depth::Grants`]); with 3 it is O(log ranges)
//! ([`Depth::Figures`]); 4 and 5 read everything.
//!
//! Looking may change what is looked at: an allocator is free to put work off until somebody asks.
//! So a test is run twice, once compared after every step and once left alone for most of them.
//!
//! The allocator is driven from outside, through its public face alone: that of the offset layer,
//! or the one with caches. For the second, what is cached is free, and every request has to end as
//! if nothing were; some of what it is given back comes from other threads, so that it lies in
//! caches that are not the asking thread's.

use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::mem::ManuallyDrop;
use std::rc::Rc;

use anyhow::{Result, ensure};
use kvmem::offset::{OffsetAllocator, RawHandle, SpaceError};
use kvmem::slab::ExtentCache;

use self::elsewhere::Elsewhere;
use self::face::Face;
use self::space::{Held, Space};
use crate::op::{Config, Op, Pick};

mod changes;
mod elsewhere;
pub mod face;
mod misuse;
mod requests;
mod space;

/// Handles and spaces of the past that are kept to be misused.
const MEMORY: usize = 64;
/// Spaces without allocator whose allocations are kept.
const ORPHANS: usize = 4;

/// How much is compared after a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Depth {
    /// Points 1, 2 and 6, and the hint: the allocator is asked for nothing that it was not told to
    /// do.
    Grants,
    /// Points 1 to 3 and 6.
    Figures,
    /// All of them.
    Everything,
}

/// How often each kind of step came to each kind of end.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tally(BTreeMap<&'static str, u64>);

impl Tally {
    pub(crate) fn count(&mut self, what: &'static str) {
        *self.0.entry(what).or_default() += 1;
    }

    /// How often it came to this, for example `"allocate: granted"`.
    pub fn of(&self, what: &str) -> u64 {
        self.0.get(what).copied().unwrap_or(0)
    }

    /// Adds what another run counted.
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

/// A step after which allocator and oracle disagree.
#[derive(Debug)]
pub struct Failure {
    /// How many steps had gone well.
    pub step: usize,
    /// The step, or `None` if it was the beginning or the end.
    pub op: Option<Op>,
    /// What is wrong.
    pub what: anyhow::Error,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.op {
            Some(op) => write!(f, "step {}, {op:?}: {:#}", self.step, self.what),
            None => write!(f, "after {} steps: {:#}", self.step, self.what),
        }
    }
}

impl std::error::Error for Failure {}

/// Steps between two looks at everything when the allocator is left alone.
const ALONE: usize = 16;

/// Runs a whole test, comparing everything after every step, and frees all in the end; then once
/// more, with fewer looks. The tally is that of the first run.
///
/// # Errors
/// [`Failure`] where the allocator is wrong. What is allocated then is leaked: books that are
/// broken already may not survive the frees.
pub fn run(config: &Config, ops: &[Op]) -> Result<Tally, Failure> {
    let tally = run_looking(config, ops, |_| Depth::Everything)?;
    run_looking(config, ops, |step| {
        if step % ALONE == ALONE - 1 { Depth::Everything } else { Depth::Grants }
    })
    .map_err(|failure| Failure { what: failure.what.context("left alone"), ..failure })?;
    Ok(tally)
}

fn run_looking(
    config: &Config,
    ops: &[Op],
    depth: impl Fn(usize) -> Depth,
) -> Result<Tally, Failure> {
    match config.cache {
        None => run_face::<OffsetAllocator>(config, ops, depth),
        Some(_) => run_face::<ExtentCache>(config, ops, depth),
    }
}

fn run_face<F: Face>(
    config: &Config,
    ops: &[Op],
    depth: impl Fn(usize) -> Depth,
) -> Result<Tally, Failure> {
    let failure = |step, op| move |what| Failure { step, op, what };
    let mut driver = ManuallyDrop::new(Driver::<F>::new(config).map_err(failure(0, None))?);
    for (step, op) in ops.iter().enumerate() {
        driver.step(op, depth(step)).map_err(failure(step, Some(*op)))?;
    }
    driver.finish().map_err(failure(ops.len(), None))?;
    Ok(ManuallyDrop::into_inner(driver).tally)
}

/// An allocator beside its oracle.
pub struct Driver<F: Face> {
    space: Space<F>,
    /// Spaces whose allocator is gone.
    orphans: VecDeque<Space<F>>,
    /// Handles of this space that are no good any more.
    stale: VecDeque<RawHandle>,
    /// Handles of other spaces.
    foreign: VecDeque<RawHandle>,
    tally: Tally,
    /// Requests refused.
    refusals: u64,
    /// The figures have been looked at since the last step, so that the hint is exact.
    looked: bool,
}

impl<F: Face> Driver<F> {
    /// An empty space with these settings.
    ///
    /// # Errors
    /// The allocator refuses the settings, or is wrong from the start.
    pub fn new(config: &Config) -> Result<Self> {
        let (space, handle) = Space::new(config, Rc::new(Elsewhere::default()))?;
        let mut driver = Driver {
            space,
            orphans: VecDeque::new(),
            stale: VecDeque::from([handle]),
            foreign: VecDeque::new(),
            tally: Tally::default(),
            refusals: 0,
            looked: false,
        };
        driver.compare(Depth::Everything)?;
        Ok(driver)
    }

    /// Does one step to both, and compares.
    ///
    /// # Errors
    /// They disagree.
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
            Op::FreeRun { first, len, order } => self.free_batch(first, len, order)?,
            Op::Burst { seed, n } => self.burst(seed, n)?,
            Op::Misuse { call, handle } => self.misuse(call, handle)?,
            Op::Grow(to) => self.grow(self.space.amount(to))?,
            Op::ShrinkTo(to) => self.shrink_to(self.space.amount(to))?,
            Op::Clone => self.space.clone_allocator(),
            Op::Replace(config) => self.replace(&config)?,
        }
        self.compare(depth)
    }

    /// Frees all that is allocated and sees that nothing is left behind.
    ///
    /// # Errors
    /// Something is.
    pub fn finish(&mut self) -> Result<()> {
        while !self.space.is_empty() {
            self.change(Pick::MAX / 2, crate::op::Change::Free)?;
        }
        self.compare(Depth::Everything)?;
        self.count_reaps();
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

    /// What happened so far.
    pub fn tally(&self) -> &Tally {
        &self.tally
    }

    /// Requests that were rightly refused so far.
    pub fn refusals(&self) -> u64 {
        self.refusals
    }

    /// Allocations alive in the space.
    pub fn live(&self) -> usize {
        self.space.oracle.live()
    }

    fn compare(&mut self, depth: Depth) -> Result<()> {
        self.space.compare_hint()?;
        self.looked = depth > Depth::Grants;
        if depth >= Depth::Figures {
            self.space.compare_figures()?;
        }
        if depth == Depth::Everything {
            if self.space.allocator().cached().0 > 0 {
                self.tally.count("something is cached");
            }
            self.space.compare_everything()?;
            self.orphans.iter().try_for_each(Space::compare_held)?;
            if self.space.holds_back() {
                self.tally.count("a free range held back");
            }
        }
        Ok(())
    }

    /// The allocator is dropped while its allocations live on; a new one takes its place.
    fn replace(&mut self, config: &Config) -> Result<()> {
        let (space, handle) = Space::new(config, self.space.elsewhere.clone())?;
        self.count_reaps();
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
        let got = self.space.allocator().grow(to);
        let full = matches!(got, Err(SpaceError::TooManyRanges { ranges }) if self.space.may_be_full(ranges));
        ensure!(got == expected || full, "grow to {to}: {got:?} instead of {expected:?}");
        self.tally.count(if got.is_ok() { "grow: granted" } else { "grow: refused" });
        if got.is_ok() { Ok(self.space.oracle.set_capacity(to)?) } else { Ok(()) }
    }

    fn shrink_to(&mut self, to: u64) -> Result<()> {
        let expected =
            self.space.expect_capacity(to).and_then(|()| self.space.expect_shrink_to(to));
        let got = self.space.allocator().shrink_to(to);
        ensure!(got == expected, "shrink to {to}: {got:?} instead of {expected:?}");
        self.tally.count(if got.is_ok() { "shrink_to: granted" } else { "shrink_to: refused" });
        if got.is_ok() { Ok(self.space.oracle.set_capacity(to)?) } else { Ok(()) }
    }

    /// Counts how often what was cached of a space that is about to go was taken back.
    fn count_reaps(&mut self) {
        let (_, reclaims) = self.space.allocator().cached();
        *self.tally.0.entry("reaps").or_default() += reclaims;
    }

    /// Remembers a handle that is no good from now on.
    fn outdate(&mut self, handle: RawHandle) {
        self.stale.push_back(handle);
        if self.stale.len() > MEMORY {
            self.stale.pop_front();
        }
    }

    /// Keeps what was granted.
    fn hold(&mut self, offset: u64, size: u64, held: Held<F>) -> Result<()> {
        self.space.oracle.grant(offset, size)?;
        self.space.hold(offset, held);
        Ok(())
    }
}

/// Which of `len` things a pick means; `None` of none.
fn pick_of(pick: Pick, len: usize) -> Option<usize> {
    (len > 0).then(|| usize::from(pick) * len / (usize::from(Pick::MAX) + 1))
}
