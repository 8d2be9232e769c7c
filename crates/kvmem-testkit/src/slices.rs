//! *Slices*: operations on slabs by several threads, one at a time, compared with books after every
//! step.
//!
//! The threads are real ones, for what is cached belongs to a thread; but each waits until it is
//! told what to do, and who tells it waits until it is done. So a sequence of operations does the
//! same every time, and what fails can be made shorter.
//!
//! What is compared:
//!
//! 1. A request succeeds unless its size cannot be; refusals say so.
//! 2. A block is aligned and on no other; it keeps what was written to it until it is freed, by
//!    whichever thread; a zeroed one is zero.
//! 3. Statistics are those of the books: objects in use in each class, blocks of the system and
//!    their bytes. What is cached is within its bound, and slabs have room for what is said to be
//!    in them.
//! 4. After a trim, by whichever thread, nothing is cached, and no slab is kept in which nothing is
//!    in use.
//! 5. When all threads have ended and two intervals of the working set have passed, nothing is
//!    cached.
//! 6. In the end everything is given back: no block, no slab, no page is left; and nothing was ever
//!    found to be misuse.
//!
//! The allocator is driven from outside, through its public face alone.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use kvmem::slab::{ManualClock, SlabAllocator, SlabError, SlabSettings};

use self::blocks::{Block, Blocks};
use self::crew::Crew;
use self::op::{Config, How, Op, SEATS, Who};
use crate::driver::Tally;

mod blocks;
pub mod codec;
mod crew;
pub mod op;
#[cfg(any(test, feature = "proptest"))]
pub mod strategy;

/// Bytes in use at most: what would be more is left out.
const IN_USE_MAX: usize = 24 << 20;
/// What the depot keeps for so long goes back.
const WORKING_SET: Duration = Duration::from_secs(15);
/// Blocks that rest under debugging at most.
const RESTING_MAX: usize = 1024;
/// Bytes of slabs that are gone and still resident: so many, or an eighth of what is in use.
const UNUSED_MAX: usize = 1 << 20;

/// Runs a whole test, and frees all in the end.
///
/// # Errors
/// The step after which allocator and books disagree. What is allocated then is leaked.
pub fn run(config: &Config, ops: &[Op]) -> Result<Tally> {
    let mut driver = Driver {
        tally: Tally::default(),
        crew: Crew::default(),
        under_test: Under::new(config)?,
        quiet: 0,
    };
    for (step, op) in ops.iter().enumerate() {
        let done = driver.step(op).and_then(|()| driver.compare());
        if let Err(wrong) = done.with_context(|| format!("step {step}, {op:?}, of {config:?}")) {
            return Err(driver.give_up(wrong));
        }
    }
    match driver.finish().with_context(|| format!("after {} steps of {config:?}", ops.len())) {
        Ok(()) => Ok(driver.tally),
        Err(wrong) => Err(driver.give_up(wrong)),
    }
}

/// An allocator, and the books that know better.
struct Under {
    config: Config,
    slices: SlabAllocator,
    clock: Arc<ManualClock>,
    /// What the allocator took for misuse.
    faults: Arc<Mutex<Vec<String>>>,
    blocks: Blocks,
}

impl Under {
    fn new(config: &Config) -> Result<Under> {
        let clock = Arc::new(ManualClock::default());
        let faults = Arc::new(Mutex::new(Vec::new()));
        let told = faults.clone();
        let mut builder = SlabAllocator::builder()
            .settings(SlabSettings {
                always_malloc: config.always_malloc,
                debug_blocks: config.debug_blocks,
            })
            .limit(config.limit.into())
            .working_set(WORKING_SET)
            .clock(clock.clone())
            .on_fault(move |fault| {
                told.lock().unwrap_or_else(PoisonError::into_inner).push(fault.to_string());
            });
        if let Some(most) = config.stranded_bytes {
            builder = builder.max_cached_bytes(most.into());
        }
        let slices = builder.build()?;
        Ok(Under { config: *config, slices, clock, faults, blocks: Blocks::default() })
    }

    /// Sizes up to this come from slabs.
    fn limit(&self) -> usize {
        if self.config.always_malloc { 0 } else { self.config.limit.into() }
    }

    /// What the allocator took for misuse since this was last asked.
    fn faults(&self) -> Vec<String> {
        std::mem::take(&mut *self.faults.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

struct Driver {
    under_test: Under,
    crew: Crew,
    tally: Tally,
    /// Intervals of the working set that have passed while nothing else was done.
    quiet: u32,
}

impl Driver {
    fn step(&mut self, op: &Op) -> Result<()> {
        if !matches!(op, Op::Tick { .. } | Op::Look) {
            self.quiet = 0;
        }
        match *op {
            Op::Alloc { seat, size, how } => self.alloc(seat, size, how),
            Op::Batch { seat, size, n } => self.batch(seat, size, n.into()),
            Op::Free { seat, pick } => self.free_batch(seat, pick, 1),
            Op::FreeRun { seat, pick, n } => self.free_batch(seat, pick, n.into()),
            Op::FreeChain { seat, pick, n, link } => {
                self.free_chain(seat, pick, n.into(), link.into())
            }
            Op::Trim(who) => self.trim(who),
            Op::Tick { who, seconds } => self.tick(who, seconds),
            Op::End(seat) => {
                if self.crew.end(seat)? {
                    self.tally.count("a thread ends");
                }
                Ok(())
            }
            Op::Look => {
                self.tally.count("look");
                self.under_test.blocks.check_all()
            }
            Op::Replace(config) => self.replace(&config),
        }
    }

    /// Has a thread, or this one, which never has a cache, do something with the allocator.
    fn have<T: Send + 'static>(
        &mut self,
        who: Who,
        work: impl FnOnce(&SlabAllocator) -> T + Send + 'static,
    ) -> Result<T> {
        let slices = self.under_test.slices.clone();
        match who {
            Who::Seat(seat) => self.crew.have(seat, move || work(&slices)),
            Who::Outsider => Ok(work(&slices)),
        }
    }

    fn fits(&self, bytes: usize) -> bool {
        self.under_test.blocks.bytes().saturating_add(bytes) <= IN_USE_MAX
    }

    fn alloc(&mut self, seat: u8, size: usize, how: How) -> Result<()> {
        if size == usize::MAX {
            let got = self.have(Who::Seat(seat), move |slices| slices.alloc(size).map(Block))?;
            ensure!(
                matches!(got, Err(SlabError::TooLarge { requested: usize::MAX, .. })),
                "{got:?}"
            );
            self.tally.count("alloc: too large");
            return Ok(());
        }
        if !self.fits(size) {
            return Ok(());
        }
        let byte = self.under_test.blocks.next_byte();
        let got = self.have(Who::Seat(seat), move |slices| {
            let block = Block(match how {
                How::Plain => slices.alloc(size)?,
                How::Zeroed => slices.alloc_zeroed(size)?,
                How::Copy => slices.copy(&vec![byte; size])?,
            });
            let is_as_asked = match how {
                How::Plain => true,
                How::Zeroed => block.is_all(0, size),
                How::Copy => block.is_all(byte, size),
            };
            block.fill(byte, size);
            Ok((block, is_as_asked))
        })?;
        if size == 0 {
            ensure!(matches!(got, Err(SlabError::ZeroSize)), "{got:?}");
            self.tally.count("alloc: no bytes");
            return Ok(());
        }
        let (block, is_as_asked) = got?;
        ensure!(is_as_asked, "{how:?} of {size} bytes is not what was asked for");
        self.tally.count(match how {
            How::Plain => "alloc",
            How::Zeroed => "alloc_zeroed",
            How::Copy => "copy",
        });
        self.under_test.blocks.add(block, size, byte)
    }

    fn batch(&mut self, seat: u8, size: usize, n: usize) -> Result<()> {
        if !self.fits(size.saturating_mul(n)) {
            return Ok(());
        }
        let byte = self.under_test.blocks.next_byte();
        let got = self.have(Who::Seat(seat), move |slices| {
            let mut blocks = Vec::new();
            let count = slices.alloc_batch(size, n, &mut blocks)?;
            let blocks: Vec<_> = blocks.into_iter().map(Block).collect();
            blocks.iter().for_each(|block| block.fill(byte, size));
            Ok((count, blocks))
        })?;
        if size == 0 && n > 0 {
            ensure!(matches!(got, Err(SlabError::ZeroSize)), "{:?}", got.map(|(count, _)| count));
            return Ok(());
        }
        let (count, blocks) = got?;
        ensure!((count, blocks.len()) == (n, n), "{n} blocks were asked for, {count} promised");
        self.tally.count("alloc_batch");
        blocks.into_iter().try_for_each(|block| self.under_test.blocks.add(block, size, byte))
    }

    /// Frees up to `n` blocks, in the order of their addresses.
    fn free_batch(&mut self, seat: u8, pick: u16, n: usize) -> Result<()> {
        let run = self.under_test.blocks.take_run(pick, n);
        let freed = run.len();
        let intact = self.have(Who::Seat(seat), move |slices| {
            run.into_iter().all(|held| {
                let intact = held.is_intact();
                // SAFETY: the books had the block, with this size; they have it no more.
                unsafe { slices.free(held.block.0, held.size) };
                intact
            })
        })?;
        ensure!(intact, "a block was changed before it was freed");
        match freed {
            0 => {}
            1 => self.tally.count("free"),
            _ => self.tally.count("free of several"),
        }
        Ok(())
    }

    /// Frees up to `n` blocks of one size as a chain that is linked somewhere in them.
    fn free_chain(&mut self, seat: u8, pick: u16, n: usize, link: usize) -> Result<()> {
        let run = self.under_test.blocks.take_alike(pick, n);
        let Some(size) = run.first().map(|held| held.size) else { return Ok(()) };
        let Some(places) = size.checked_sub(size_of::<*mut u8>() - 1).filter(|places| *places > 0)
        else {
            // Too small for a link.
            return run
                .into_iter()
                .try_for_each(|held| self.under_test.blocks.add(held.block, held.size, held.byte));
        };
        let link = link % places;
        if run.len() > 1 {
            self.tally.count("free_chain of several");
        }
        let intact = self.have(Who::Seat(seat), move |slices| {
            let intact = run.iter().all(blocks::Held::is_intact);
            let mut first: Option<Block> = None;
            for held in run {
                let next = first.map_or(std::ptr::null_mut(), |block| block.0.as_ptr());
                // SAFETY: the link is within the block, which is ours.
                unsafe { held.block.0.add(link).cast::<*mut u8>().write_unaligned(next) };
                first = Some(held.block);
            }
            // SAFETY: the books had the blocks, with this size; they have them no more.
            unsafe { slices.free_chain(first.map(|block| block.0), size, link) };
            intact
        })?;
        ensure!(intact, "a block was changed before it was freed");
        Ok(())
    }

    fn trim(&mut self, who: Who) -> Result<()> {
        self.have(who, SlabAllocator::trim)?;
        self.tally.count(if who == Who::Outsider { "trim from outside" } else { "trim" });
        let under_test = &self.under_test;
        let stats = under_test.slices.stats();
        ensure!(stats.cached_bytes == 0, "{} bytes are cached after a trim", stats.cached_bytes);
        for class in &stats.classes {
            ensure!(
                class.slabs <= class.in_use,
                "a slab is kept in which nothing is in use: {class:?}"
            );
        }
        // Blocks that rested under debugging are gone too.
        self.compare_in_use(0)
    }

    fn tick(&mut self, who: Who, seconds: u8) -> Result<()> {
        let before = self.under_test.slices.stats().cached_bytes;
        let by = Duration::from_secs(seconds.into());
        self.under_test.clock.advance(by);
        self.have(who, SlabAllocator::tick)?;
        let after = self.under_test.slices.stats().cached_bytes;
        ensure!(after <= before, "a tick brought the cached bytes from {before} to {after}");
        if after < before {
            self.tally.count("tick gives back");
        }
        if by >= WORKING_SET {
            self.quiet += 1;
        }
        if self.quiet >= 2 && self.crew.working() == 0 {
            ensure!(
                after == 0,
                "{after} bytes are cached that nobody has come for in {} intervals",
                self.quiet
            );
            self.tally.count("tick with no thread left");
        }
        Ok(())
    }

    /// The allocator is dropped, and another takes its place. Threads live on, with caches of what
    /// is gone.
    fn replace(&mut self, config: &Config) -> Result<()> {
        let next = Under::new(config)?;
        let mut old = std::mem::replace(&mut self.under_test, next);
        let debug_blocks = old.config.debug_blocks;
        let limit = old.limit();
        let mut forgotten = 0;
        for held in old.blocks.take_run(0, usize::MAX) {
            ensure!(held.is_intact(), "{} bytes were changed", held.size);
            // What is the system's outlives the allocator, and would be lost.
            if held.size > limit {
                // SAFETY: the books had the block, with this size; they have it no more.
                unsafe { old.slices.free(held.block.0, held.size) };
            } else {
                forgotten += 1;
            }
        }
        let found = old.faults();
        ensure!(found.is_empty(), "misuse was found where there was none: {found:?}");
        let faults = old.faults.clone();
        drop(old);
        // Under debugging each of them is told, and nothing else is.
        let told = faults.lock().unwrap_or_else(PoisonError::into_inner).len();
        let expected = if debug_blocks { forgotten } else { 0 };
        ensure!(told == expected, "{told} leaks were told of {expected}");
        self.tally.count("replace");
        Ok(())
    }

    /// Points 3 and 6.
    fn compare(&self) -> Result<()> {
        let faults = self.under_test.faults();
        ensure!(faults.is_empty(), "misuse was found where there was none: {faults:?}");
        self.compare_in_use(if self.under_test.config.debug_blocks { RESTING_MAX } else { 0 })?;
        let stats = self.under_test.slices.stats();
        if let Some(most) = self.under_test.config.stranded_bytes {
            ensure!(
                stats.cached_bytes <= most.into(),
                "{} bytes are cached of at most {most}",
                stats.cached_bytes
            );
        }
        let (mut cached, mut slabs) = (0, 0);
        for class in &stats.classes {
            let room = class.slabs * class.slab_objects;
            ensure!(class.in_use + class.cached <= room, "more than its slabs have: {class:?}");
            cached += class.cached * class.object_bytes;
            slabs += class.slabs * class.slab_bytes;
        }
        ensure!(cached as u64 == stats.cached_bytes, "{cached} bytes are cached: {stats:?}");
        ensure!(slabs == stats.slab_bytes, "{slabs} bytes are in slabs: {stats:?}");
        ensure!(
            stats.slab_bytes + stats.unused_bytes <= stats.mapped_bytes,
            "more than is mapped: {stats:?}"
        );
        ensure!(
            stats.unused_bytes <= UNUSED_MAX.max(stats.slab_bytes / 8),
            "too much is kept: {stats:?}"
        );
        Ok(())
    }

    /// Objects in use of each class, and blocks of the system: those of the books, and up to
    /// `resting` more.
    fn compare_in_use(&self, resting: usize) -> Result<()> {
        let under_test = &self.under_test;
        let stats = under_test.slices.stats();
        let limit = under_test.limit();
        let mut expected = vec![0; stats.classes.len()];
        let (mut blocks, mut bytes) = (0, 0);
        for size in under_test.blocks.sizes() {
            if size > limit {
                (blocks, bytes) = (blocks + 1, bytes + size);
                continue;
            }
            let class = stats.classes.partition_point(|class| class.object_bytes < size);
            let Some(expected) = expected.get_mut(class) else {
                bail!("no class for {size} bytes")
            };
            *expected += 1;
        }
        let mut more = 0;
        for (class, expected) in stats.classes.iter().zip(expected) {
            ensure!(class.in_use >= expected, "{expected} objects are in use: {class:?}");
            more += class.in_use - expected;
        }
        ensure!(stats.system_blocks >= blocks, "{blocks} blocks are the system's: {stats:?}");
        ensure!(stats.system_bytes >= bytes, "{bytes} bytes are the system's: {stats:?}");
        more += stats.system_blocks - blocks;
        ensure!(more <= resting, "{more} more blocks are in use than were handed out: {stats:?}");
        ensure!(
            more > 0 || stats.system_bytes == bytes,
            "{bytes} bytes are the system's: {stats:?}"
        );
        Ok(())
    }

    /// Frees all that is allocated, by all threads in turn, and sees that nothing is left behind.
    fn finish(&mut self) -> Result<()> {
        self.under_test.blocks.check_all()?;
        let mut seat = 0;
        while self.under_test.blocks.bytes() > 0 {
            self.free_batch(seat, u16::MAX / 2, 100)?;
            self.compare()?;
            seat = (seat + 1) % SEATS;
        }
        self.trim(Who::Outsider)?;
        let is_empty = |slices: &SlabAllocator| {
            let stats = slices.stats();
            let left =
                (stats.slab_bytes, stats.unused_bytes, stats.mapped_bytes, stats.system_blocks);
            ensure!(left == (0, 0, 0, 0), "all is freed, and this is left: {stats:?}");
            ensure!(slices.report_leaks() == 0, "all is freed, and leaks are told");
            Ok(())
        };
        is_empty(&self.under_test.slices)?;
        for seat in 0..SEATS {
            self.crew.end(seat)?;
        }
        is_empty(&self.under_test.slices)?;
        self.compare()
    }

    /// Ends the threads, and leaves alone what is broken.
    fn give_up(mut self, wrong: anyhow::Error) -> anyhow::Error {
        for seat in 0..SEATS {
            let _ = self.crew.end(seat);
        }
        std::mem::forget(self.under_test);
        wrong
    }
}
