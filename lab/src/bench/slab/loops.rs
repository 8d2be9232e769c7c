//! The loops that threads run on a heap.
//!
//! The first two come from the program that introduced GLib's slice allocator. A thread has 10,000
//! blocks. A round frees every second one and then allocates each of those again with a new size;
//! the other half stays allocated throughout. Sizes come from the same linear congruential
//! generator, which every thread starts with the same seed. As in the original, blocks are not
//! written while the clock runs; each is written completely before resident memory is read.

use std::hint::spin_loop;
use std::thread;
use std::time::Instant;

use super::Pattern;
use super::heap::Heap;
use super::ring::Ring;
use crate::bench::team::Member;

/// Blocks of a thread.
pub(super) const BLOCKS: usize = 10_000;
/// The initial state of every thread's generator.
pub(super) const SEED: u32 = 123_456_789;
/// Rounds before the clock starts.
const WARM_ROUNDS: u32 = 10;
/// Polls of a waiting thread before it yields.
const SPINS: u32 = 64;

/// The work of one thread.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct ThreadWork {
    /// Blocks allocated and freed while the clock ran; the consumer counts the blocks of its
    /// producer.
    pub(super) pairs: u64,
    /// The duration.
    pub(super) nanoseconds: f64,
    /// Whether the heap ran out of memory.
    pub(super) failed: bool,
}

/// The generator of the published program.
#[derive(Clone, Copy, Debug)]
struct Random(u32);

impl Random {
    /// Returns a size from 1 to `max`, chosen by the high bits: the low bits of such a generator
    /// have a short period.
    #[inline]
    fn size(&mut self, max: u32) -> u32 {
        self.0 = self.0.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        1 + ((u64::from(self.0) * u64::from(max)) >> 32) as u32
    }
}

/// Sizes of blocks.
#[derive(Clone, Copy, Debug)]
struct Sizes {
    random: Random,
    max: u32,
    fixed: bool,
}

impl Sizes {
    fn new(pattern: Pattern, max: u32) -> Self {
        Self { random: Random(SEED), max, fixed: pattern == Pattern::Fixed }
    }

    #[inline]
    fn next(&mut self) -> u32 {
        if self.fixed { self.max } else { self.random.size(self.max) }
    }
}

#[derive(Clone, Copy)]
struct HeapBlock {
    at: *mut u8,
    size: u32,
}

/// Runs the original program on one thread.
pub(super) fn halves<H: Heap>(
    heap: &H,
    pattern: Pattern,
    max: u32,
    member: &Member<'_>,
) -> ThreadWork {
    let mut sizes = Sizes::new(pattern, max);
    // Not zeroes, whose pages would stay untouched: the table must be resident before memory is
    // read.
    let mut blocks = vec![HeapBlock { at: std::ptr::dangling_mut(), size: 1 }; BLOCKS];
    member.ready();
    let mut failed = false;
    for block in &mut blocks {
        *block = allocate(heap, &mut sizes, &mut failed);
    }
    for _ in 0..WARM_ROUNDS {
        round(heap, &mut blocks, &mut sizes, &mut failed);
    }
    let start = member.start();
    let mut rounds = 0;
    loop {
        round(heap, &mut blocks, &mut sizes, &mut failed);
        rounds += 1;
        if failed || !member.keeps_running() {
            break;
        }
    }
    let nanoseconds = start.elapsed().as_nanos() as f64;
    for block in &blocks {
        write(*block);
    }
    member.done();
    for block in blocks {
        free(heap, block);
    }
    ThreadWork { pairs: rounds * (BLOCKS as u64).div_ceil(2), nanoseconds, failed }
}

#[inline(always)]
fn round<H: Heap>(heap: &H, blocks: &mut [HeapBlock], sizes: &mut Sizes, failed: &mut bool) {
    for block in blocks.iter().step_by(2) {
        free(heap, *block);
    }
    for block in blocks.iter_mut().step_by(2) {
        *block = allocate(heap, sizes, failed);
    }
}

#[inline(always)]
fn allocate<H: Heap>(heap: &H, sizes: &mut Sizes, failed: &mut bool) -> HeapBlock {
    let size = sizes.next();
    let at = heap.alloc(size as usize);
    *failed |= at.is_null();
    HeapBlock { at, size }
}

#[inline(always)]
fn free<H: Heap>(heap: &H, block: HeapBlock) {
    if !block.at.is_null() {
        // SAFETY: `allocate` returned the block with the size stored beside it. Each block is freed
        // once: it is replaced, sent or dropped with its table right afterwards.
        unsafe { heap.free(block.at, block.size as usize) }
    }
}

fn write(block: HeapBlock) {
    if !block.at.is_null() {
        // SAFETY: the block belongs to this thread and has that size.
        unsafe { block.at.write_bytes(0xA5, block.size as usize) }
    }
}

/// Runs one end of a ring: threads with an even index allocate blocks and write their first byte,
/// the next thread frees them.
pub(super) fn across<H: Heap>(
    heap: &H,
    max: u32,
    rings: &[Ring],
    member: &Member<'_>,
) -> ThreadWork {
    member.ready();
    let idle = ThreadWork { pairs: 0, nanoseconds: 0.0, failed: false };
    let Some(ring) = rings.get(member.index / 2) else { return idle };
    let done = if member.index.is_multiple_of(2) {
        produce(heap, max, ring, member)
    } else {
        consume(heap, ring, member)
    };
    member.done();
    done
}

fn produce<H: Heap>(heap: &H, max: u32, ring: &Ring, member: &Member<'_>) -> ThreadWork {
    let mut sizes = Sizes::new(Pattern::ProducerConsumer, max);
    let mut sender = ring.sender();
    let mut failed = false;
    let start = member.start();
    // At least one block, even if the scheduler ran this thread late.
    loop {
        let mut tries = 0;
        while !sender.has_space() && member.keeps_running() {
            tries += 1;
            spin(member, tries);
        }
        if sender.has_space() {
            let block = allocate(heap, &mut sizes, &mut failed);
            if !failed {
                // SAFETY: the block belongs to this thread and has at least one byte.
                unsafe { block.at.write(1) };
                sender.put(block.at, block.size);
            }
        }
        if failed || !member.keeps_running() {
            break;
        }
    }
    ThreadWork { pairs: 0, nanoseconds: start.elapsed().as_nanos() as f64, failed }
}

fn consume<H: Heap>(heap: &H, ring: &Ring, member: &Member<'_>) -> ThreadWork {
    let mut receiver = ring.receiver();
    let mut pairs = 0;
    let start: Instant = member.start();
    loop {
        // Read first: blocks sent before the end are then visible below.
        let over = receiver.over();
        while let Some((at, size)) = receiver.take() {
            free(heap, HeapBlock { at, size });
            pairs += 1;
        }
        if over {
            break;
        }
        spin(member, 1);
    }
    ThreadWork { pairs, nanoseconds: start.elapsed().as_nanos() as f64, failed: false }
}

fn spin(member: &Member<'_>, tries: u32) {
    if member.oversubscribed || tries > SPINS { thread::yield_now() } else { spin_loop() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_those_of_the_generator() {
        let mut sizes = Sizes::new(Pattern::Random, 512);
        let first = 123_456_789u32.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        assert_eq!(sizes.next(), 1 + first / (1 << 23));
        let (mut min, mut max, mut sum) = (u32::MAX, 0, 0u64);
        for _ in 0..100_000 {
            let size = sizes.next();
            (min, max, sum) = (min.min(size), max.max(size), sum + u64::from(size));
        }
        assert_eq!((min, max), (1, 512));
        assert!((250..263).contains(&(sum / 100_000)), "{sum}");
        assert!((0..100).all(|_| Sizes::new(Pattern::Fixed, 64).next() == 64));
    }
}
