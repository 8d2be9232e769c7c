//! Operations on slabs by several threads, one at a time, compared with a record after every step.
//!
//! The threads are real, because caches belong to threads. But each thread waits for a command, and
//! the driver waits until the command is done. A sequence of operations is therefore deterministic,
//! and a failing one can be shrunk.
//!
//! The comparison has six points:
//!
//! 1. A request succeeds unless its size is invalid; then it returns an error.
//! 2. A block is aligned and overlaps no other. It keeps the bytes written to it until any thread
//!    frees it; a zeroed one is zero.
//! 3. Statistics equal the record's: objects in use in each class, system blocks and their bytes.
//!    Cached bytes are within their limit, and slabs are large enough for their reported contents.
//! 4. After a trim, by any thread, nothing is cached and no empty slab is kept.
//! 5. When all threads have ended and two intervals of the working set have passed, nothing is
//!    cached.
//! 6. At the end everything is returned: no block, slab or page remains, and no misuse was ever
//!    reported.
//!
//! The driver uses only the public interface of the allocator.

use std::sync::PoisonError;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use kvmem::slab::{SlabAllocator, SlabError};

use self::blocks::Block;
use self::op::{How, SEATS, SlabConfig, SlabOp, Who};
use self::under_test::{UnderTest, WORKING_SET};
use self::workers::Workers;
use crate::driver::Tally;

mod blocks;
pub mod codec;
pub mod op;
#[cfg(feature = "proptest")]
pub mod strategy;
mod under_test;
mod workers;

/// The limit of bytes in use: requests beyond it are skipped.
const MAX_IN_USE: usize = 24 << 20;

/// Runs a whole test, and frees everything at the end.
///
/// # Errors
/// The step after which the allocator and the record disagree. Live blocks are then leaked.
pub fn run(config: &SlabConfig, ops: &[SlabOp]) -> Result<Tally> {
    let mut driver = SlabDriver {
        tally: Tally::default(),
        workers: Workers::default(),
        under_test: UnderTest::new(config)?,
        quiet: 0,
    };
    for (step, op) in ops.iter().enumerate() {
        let done = driver.step(op).and_then(|()| driver.under_test.compare());
        if let Err(wrong) = done.with_context(|| format!("step {step}, {op:?}, of {config:?}")) {
            return Err(driver.give_up(wrong));
        }
    }
    match driver.finish().with_context(|| format!("after {} steps of {config:?}", ops.len())) {
        Ok(()) => Ok(driver.tally),
        Err(wrong) => Err(driver.give_up(wrong)),
    }
}

struct SlabDriver {
    under_test: UnderTest,
    workers: Workers,
    tally: Tally,
    /// Intervals of the working set that have passed without another operation.
    quiet: u32,
}

impl SlabDriver {
    fn step(&mut self, op: &SlabOp) -> Result<()> {
        if !matches!(op, SlabOp::Tick { .. } | SlabOp::Look) {
            self.quiet = 0;
        }
        match *op {
            SlabOp::Alloc { seat, size, how } => self.alloc(seat, size, how),
            SlabOp::Batch { seat, size, n } => self.batch(seat, size, n.into()),
            SlabOp::Free { seat, pick } => self.free_batch(seat, pick, 1),
            SlabOp::FreeBatch { seat, pick, n } => self.free_batch(seat, pick, n.into()),
            SlabOp::FreeChain { seat, pick, n, link } => {
                self.free_chain(seat, pick, n.into(), link.into())
            }
            SlabOp::Trim(who) => self.trim(who),
            SlabOp::Tick { who, seconds } => self.tick(who, seconds),
            SlabOp::End(seat) => {
                if self.workers.end(seat)? {
                    self.tally.count("a thread ends");
                }
                Ok(())
            }
            SlabOp::Look => {
                self.tally.count("look");
                self.under_test.blocks.check_all()
            }
            SlabOp::Replace(config) => self.replace(&config),
        }
    }

    /// Runs `work` with the allocator on a worker thread, or on this one, which never has a cache.
    fn run_on<T: Send + 'static>(
        &mut self,
        who: Who,
        work: impl FnOnce(&SlabAllocator) -> T + Send + 'static,
    ) -> Result<T> {
        let allocator = self.under_test.allocator.clone();
        match who {
            Who::Seat(seat) => self.workers.run_on(seat, move || work(&allocator)),
            Who::Outsider => Ok(work(&allocator)),
        }
    }

    fn fits(&self, bytes: usize) -> bool {
        self.under_test.blocks.bytes().saturating_add(bytes) <= MAX_IN_USE
    }

    fn alloc(&mut self, seat: u8, size: usize, how: How) -> Result<()> {
        if size == usize::MAX {
            let got =
                self.run_on(Who::Seat(seat), move |allocator| allocator.allocate(size).map(Block))?;
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
        let got = self.run_on(Who::Seat(seat), move |allocator| {
            let block = Block(match how {
                How::Plain => allocator.allocate(size)?,
                How::Zeroed => allocator.allocate_zeroed(size)?,
                How::Copy => allocator.copy(&vec![byte; size])?,
            });
            let is_as_requested = match how {
                How::Plain => true,
                How::Zeroed => block.is_all(0, size),
                How::Copy => block.is_all(byte, size),
            };
            block.fill(byte, size);
            Ok((block, is_as_requested))
        })?;
        if size == 0 {
            ensure!(matches!(got, Err(SlabError::ZeroSize)), "{got:?}");
            self.tally.count("alloc: no bytes");
            return Ok(());
        }
        let (block, is_as_requested) = got?;
        ensure!(is_as_requested, "{how:?} of {size} bytes has other contents than requested");
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
        let got = self.run_on(Who::Seat(seat), move |allocator| {
            let mut blocks = Vec::new();
            let count = allocator.allocate_batch(size, n, &mut blocks)?;
            let blocks: Vec<_> = blocks.into_iter().map(Block).collect();
            blocks.iter().for_each(|block| block.fill(byte, size));
            Ok((count, blocks))
        })?;
        if size == 0 && n > 0 {
            ensure!(matches!(got, Err(SlabError::ZeroSize)), "{:?}", got.map(|(count, _)| count));
            return Ok(());
        }
        let (count, blocks) = got?;
        ensure!(
            (count, blocks.len()) == (n, n),
            "{n} blocks were requested, {count} reported, {} returned",
            blocks.len()
        );
        self.tally.count("alloc_batch");
        blocks.into_iter().try_for_each(|block| self.under_test.blocks.add(block, size, byte))
    }

    /// Frees up to `n` blocks in address order.
    fn free_batch(&mut self, seat: u8, pick: u16, n: usize) -> Result<()> {
        let run = self.under_test.blocks.take_run(pick, n);
        let freed = run.len();
        let intact = self.run_on(Who::Seat(seat), move |allocator| {
            run.into_iter().all(|held| {
                let intact = held.is_intact();
                // SAFETY: the record had the block, with this size, and no longer has it.
                unsafe { allocator.free(held.block.0, held.size) };
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

    /// Frees up to `n` blocks of one size as a chain whose links are at byte `link` of each.
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
        let intact = self.run_on(Who::Seat(seat), move |allocator| {
            let intact = run.iter().all(blocks::LiveBlock::is_intact);
            let mut first: Option<Block> = None;
            for held in run {
                let next = first.map_or(std::ptr::null_mut(), |block| block.0.as_ptr());
                // SAFETY: the link is within the block, which belongs to this function.
                unsafe { held.block.0.add(link).cast::<*mut u8>().write_unaligned(next) };
                first = Some(held.block);
            }
            // SAFETY: the record had the blocks, with this size, and no longer has them.
            unsafe { allocator.free_chain(first.map(|block| block.0), size, link) };
            intact
        })?;
        ensure!(intact, "a block was changed before it was freed");
        Ok(())
    }

    fn trim(&mut self, who: Who) -> Result<()> {
        self.run_on(who, SlabAllocator::trim)?;
        self.tally.count(if who == Who::Outsider { "trim from outside" } else { "trim" });
        let under_test = &self.under_test;
        let stats = under_test.allocator.stats();
        ensure!(stats.cached_bytes == 0, "{} bytes are cached after a trim", stats.cached_bytes);
        for class in &stats.classes {
            ensure!(
                class.slabs <= class.in_use,
                "a slab is kept in which nothing is in use: {class:?}"
            );
        }
        // The trim also released blocks that debugging held back.
        self.under_test.compare_in_use(0)
    }

    fn tick(&mut self, who: Who, seconds: u8) -> Result<()> {
        let before = self.under_test.allocator.stats().cached_bytes;
        let by = Duration::from_secs(seconds.into());
        self.under_test.clock.advance(by);
        self.run_on(who, SlabAllocator::tick)?;
        let after = self.under_test.allocator.stats().cached_bytes;
        ensure!(after <= before, "a tick brought the cached bytes from {before} to {after}");
        if after < before {
            self.tally.count("tick gives back");
        }
        if by >= WORKING_SET {
            self.quiet += 1;
        }
        if self.quiet >= 2 && self.workers.running() == 0 {
            ensure!(
                after == 0,
                "{after} bytes are still cached after {} intervals without requests",
                self.quiet
            );
            self.tally.count("tick with no thread left");
        }
        Ok(())
    }

    /// Drops the allocator and creates another. Threads keep running, with caches of the dropped
    /// allocator.
    fn replace(&mut self, config: &SlabConfig) -> Result<()> {
        let next = UnderTest::new(config)?;
        let mut old = std::mem::replace(&mut self.under_test, next);
        let debug_blocks = old.config.debug_blocks;
        let limit = old.limit();
        let mut leaked = 0;
        for held in old.blocks.take_run(0, usize::MAX) {
            ensure!(held.is_intact(), "{} bytes were changed", held.size);
            // Blocks of the system outlive the allocator and would leak.
            if held.size > limit {
                // SAFETY: the record had the block, with this size, and no longer has it.
                unsafe { old.allocator.free(held.block.0, held.size) };
            } else {
                leaked += 1;
            }
        }
        let found = old.faults();
        ensure!(found.is_empty(), "misuse was reported that did not happen: {found:?}");
        let faults = old.faults.clone();
        drop(old);
        // With debugging each leaked block is reported, and nothing else is.
        let reported = faults.lock().unwrap_or_else(PoisonError::into_inner).len();
        let expected = if debug_blocks { leaked } else { 0 };
        ensure!(reported == expected, "{reported} leaks were reported instead of {expected}");
        self.tally.count("replace");
        Ok(())
    }

    /// Frees every block, by all threads in turn, and checks that nothing remains.
    fn finish(&mut self) -> Result<()> {
        self.under_test.blocks.check_all()?;
        let mut seat = 0;
        while self.under_test.blocks.bytes() > 0 {
            self.free_batch(seat, u16::MAX / 2, 100)?;
            self.under_test.compare()?;
            seat = (seat + 1) % SEATS;
        }
        self.trim(Who::Outsider)?;
        let is_empty = |allocator: &SlabAllocator| {
            let stats = allocator.stats();
            let remaining =
                (stats.slab_bytes, stats.unused_bytes, stats.mapped_bytes, stats.system_blocks);
            ensure!(remaining == (0, 0, 0, 0), "all is freed, and this remains: {stats:?}");
            ensure!(allocator.report_leaks() == 0, "all is freed, and leaks are reported");
            Ok(())
        };
        is_empty(&self.under_test.allocator)?;
        for seat in 0..SEATS {
            self.workers.end(seat)?;
        }
        is_empty(&self.under_test.allocator)?;
        self.under_test.compare()
    }

    /// Ends the threads and leaks the broken allocator.
    fn give_up(mut self, wrong: anyhow::Error) -> anyhow::Error {
        for seat in 0..SEATS {
            let _ = self.workers.end(seat);
        }
        std::mem::forget(self.under_test);
        wrong
    }
}
