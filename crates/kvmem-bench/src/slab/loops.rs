//! *Loops*: what the threads do with a heap.
//!
//! The first two are those of the program that GLib's slice allocator was presented with. A thread
//! has 10,000 blocks. A round frees every second one and then allocates each of those again, of a
//! new size; the other half lives throughout. Sizes come from the same linear congruential
//! generator, which every thread starts with the same seed. Blocks are not written while
//! the clock runs, as there; each is written as a whole before resident memory is looked at.

use std::hint::spin_loop;
use std::thread;
use std::time::Instant;

use super::Pattern;
use super::heap::Heap;
use super::ring::Ring;
use crate::crew::Place;

/// Blocks of a thread.
pub(super) const BLOCKS: usize = 10_000;
/// Where every thread's generator starts.
pub(super) const SEED: u32 = 123_456_789;
/// Rounds before the clock starts.
const WARM_ROUNDS: u32 = 10;
/// How often a thread that waits looks again before it yields.
const SPINS: u32 = 64;

/// What a thread did.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Done {
    /// Blocks that were allocated and freed while the clock ran; those that a producer made count
    /// with the consumer.
    pub(super) pairs: u64,
    /// How long that took.
    pub(super) nanoseconds: f64,
    /// The heap had no block for a request.
    pub(super) refused: bool,
}

/// The generator of the published program.
#[derive(Clone, Copy, Debug)]
struct Random(u32);

impl Random {
    /// A size from 1 to `max`. The high bits say which: the low ones of such a generator repeat
    /// soon.
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
struct Block {
    at: *mut u8,
    size: u32,
}

/// The published program on one thread.
pub(super) fn halves<H: Heap>(heap: &H, pattern: Pattern, max: u32, place: &Place<'_>) -> Done {
    let mut sizes = Sizes::new(pattern, max);
    // Not zeroes, which would stay untouched pages: the table is there before memory is looked at.
    let mut blocks = vec![Block { at: std::ptr::dangling_mut(), size: 1 }; BLOCKS];
    place.ready();
    let mut refused = false;
    for block in &mut blocks {
        *block = allocate(heap, &mut sizes, &mut refused);
    }
    for _ in 0..WARM_ROUNDS {
        round(heap, &mut blocks, &mut sizes, &mut refused);
    }
    let start = place.start();
    let mut rounds = 0;
    loop {
        round(heap, &mut blocks, &mut sizes, &mut refused);
        rounds += 1;
        if refused || !place.goes_on() {
            break;
        }
    }
    let nanoseconds = start.elapsed().as_nanos() as f64;
    for block in &blocks {
        write(*block);
    }
    place.done();
    for block in blocks {
        free(heap, block);
    }
    Done { pairs: rounds * (BLOCKS as u64).div_ceil(2), nanoseconds, refused }
}

#[inline(always)]
fn round<H: Heap>(heap: &H, blocks: &mut [Block], sizes: &mut Sizes, refused: &mut bool) {
    for block in blocks.iter().step_by(2) {
        free(heap, *block);
    }
    for block in blocks.iter_mut().step_by(2) {
        *block = allocate(heap, sizes, refused);
    }
}

#[inline(always)]
fn allocate<H: Heap>(heap: &H, sizes: &mut Sizes, refused: &mut bool) -> Block {
    let size = sizes.next();
    let at = heap.alloc(size as usize);
    *refused |= at.is_null();
    Block { at, size }
}

#[inline(always)]
fn free<H: Heap>(heap: &H, block: Block) {
    if !block.at.is_null() {
        // SAFETY: blocks come from `allocate` with the size that they are kept with, and each is
        // freed once: it is replaced, sent away or dropped with its table right after.
        unsafe { heap.free(block.at, block.size as usize) }
    }
}

fn write(block: Block) {
    if !block.at.is_null() {
        // SAFETY: the block is ours, and of that size.
        unsafe { block.at.write_bytes(0xA5, block.size as usize) }
    }
}

/// One end of a ring: threads of even index allocate and write a block's first byte, the next ones
/// free.
pub(super) fn across<H: Heap>(heap: &H, max: u32, rings: &[Ring], place: &Place<'_>) -> Done {
    place.ready();
    let idle = Done { pairs: 0, nanoseconds: 0.0, refused: false };
    let Some(ring) = rings.get(place.index / 2) else { return idle };
    let done = if place.index.is_multiple_of(2) {
        produce(heap, max, ring, place)
    } else {
        consume(heap, ring, place)
    };
    place.done();
    done
}

fn produce<H: Heap>(heap: &H, max: u32, ring: &Ring, place: &Place<'_>) -> Done {
    let mut sizes = Sizes::new(Pattern::ProducerConsumer, max);
    let mut sender = ring.sender();
    let mut refused = false;
    let start = place.start();
    // At least one block, however late this thread came to run.
    loop {
        let mut tries = 0;
        while !sender.has_room() && place.goes_on() {
            tries += 1;
            spin(place, tries);
        }
        if sender.has_room() {
            let block = allocate(heap, &mut sizes, &mut refused);
            if !refused {
                // SAFETY: the block is ours, and has at least a byte.
                unsafe { block.at.write(1) };
                sender.put(block.at, block.size);
            }
        }
        if refused || !place.goes_on() {
            break;
        }
    }
    Done { pairs: 0, nanoseconds: start.elapsed().as_nanos() as f64, refused }
}

fn consume<H: Heap>(heap: &H, ring: &Ring, place: &Place<'_>) -> Done {
    let mut receiver = ring.receiver();
    let mut pairs = 0;
    let start: Instant = place.start();
    loop {
        // Asked first: what was sent before is then seen.
        let over = receiver.over();
        while let Some((at, size)) = receiver.take() {
            free(heap, Block { at, size });
            pairs += 1;
        }
        if over {
            break;
        }
        spin(place, 1);
    }
    Done { pairs, nanoseconds: start.elapsed().as_nanos() as f64, refused: false }
}

fn spin(place: &Place<'_>, tries: u32) {
    if place.crowded || tries > SPINS { thread::yield_now() } else { spin_loop() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_those_of_the_generator() {
        let mut sizes = Sizes::new(Pattern::Random, 512);
        let first = 123_456_789u32.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        assert_eq!(sizes.next(), 1 + first / (1 << 23));
        let (mut least, mut most, mut sum) = (u32::MAX, 0, 0u64);
        for _ in 0..100_000 {
            let size = sizes.next();
            (least, most, sum) = (least.min(size), most.max(size), sum + u64::from(size));
        }
        assert_eq!((least, most), (1, 512));
        assert!((250..263).contains(&(sum / 100_000)), "{sum}");
        assert!((0..100).all(|_| Sizes::new(Pattern::Fixed, 64).next() == 64));
    }
}
