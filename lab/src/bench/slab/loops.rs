//! The loops that threads run on a heap.
//!
//! The first two come from the program that introduced GLib's slice allocator. A thread has 10,000
//! blocks. A round frees every second one and then allocates each of those again with a new size;
//! the other half stays allocated throughout. Sizes come from the same linear congruential
//! generator, which every thread starts with the same seed. As in the original, blocks are not
//! written while the clock runs; each is written completely before resident memory is read.

use std::hint::spin_loop;
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::Instant;

use rtrb::{Consumer, Producer, RingBuffer};

use super::Pattern;
use super::heap::Heap;
use crate::bench::team::Member;

/// Blocks of a thread.
pub(super) const BLOCKS: usize = 10_000;
/// The initial state of every thread's generator.
pub(super) const SEED: u32 = 123_456_789;
/// Rounds before the clock starts.
const WARM_ROUNDS: u32 = 10;
/// The largest number of blocks in transit, and how many are sent together: the queue's cache lines
/// move between processors once a batch.
const QUEUE: (usize, usize) = (2048, 64);
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

/// Sizes of blocks: those of the published program's generator, or one size.
#[derive(Clone, Copy, Debug)]
struct Sizes {
    random: u32,
    max: u32,
    fixed: bool,
}

impl Sizes {
    fn new(pattern: Pattern, max: u32) -> Self {
        Self { random: SEED, max, fixed: pattern == Pattern::Fixed }
    }

    /// Returns a size from 1 to `max`, chosen by the high bits: the low bits of such a generator
    /// have a short period.
    #[inline]
    fn next(&mut self) -> u32 {
        if self.fixed {
            return self.max;
        }
        self.random = self.random.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        1 + ((u64::from(self.random) * u64::from(self.max)) >> 32) as u32
    }
}

#[derive(Clone, Copy)]
pub(super) struct HeapBlock {
    at: *mut u8,
    size: u32,
}

// SAFETY: the thread that has the block is the only user of its bytes.
unsafe impl Send for HeapBlock {}

/// The two ends of a queue, until their threads take them.
pub(super) type Queue = Mutex<(Option<Producer<HeapBlock>>, Option<Consumer<HeapBlock>>)>;

/// Makes queues from one thread to another.
pub(super) fn queues(count: u32) -> Vec<Queue> {
    let queue = |_| {
        let (sender, receiver) = RingBuffer::new(QUEUE.0);
        Mutex::new((Some(sender), Some(receiver)))
    };
    (0..count).map(queue).collect()
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

/// Runs one end of a queue: threads with an even index allocate blocks and write their first byte,
/// the next thread frees them.
pub(super) fn across<H: Heap>(
    heap: &H,
    max: u32,
    queues: &[Queue],
    member: &Member<'_>,
) -> ThreadWork {
    member.ready();
    let idle = ThreadWork { pairs: 0, nanoseconds: 0.0, failed: false };
    let Some(queue) = queues.get(member.index / 2) else { return idle };
    let mut queue = queue.lock().unwrap_or_else(PoisonError::into_inner);
    let end = if member.index.is_multiple_of(2) {
        (queue.0.take(), None)
    } else {
        (None, queue.1.take())
    };
    drop(queue);
    let done = match end {
        (Some(sender), _) => produce(heap, max, sender, member),
        (_, Some(receiver)) => consume(heap, receiver, member),
        _ => idle,
    };
    member.done();
    done
}

fn produce<H: Heap>(
    heap: &H,
    max: u32,
    mut sender: Producer<HeapBlock>,
    member: &Member<'_>,
) -> ThreadWork {
    let mut sizes = Sizes::new(Pattern::ProducerConsumer, max);
    let mut batch = Vec::with_capacity(QUEUE.1);
    let mut failed = false;
    let start = member.start();
    // At least one block, even if the scheduler ran this thread late.
    loop {
        let block = allocate(heap, &mut sizes, &mut failed);
        if !failed {
            // SAFETY: the block belongs to this thread and has at least one byte.
            unsafe { block.at.write(1) };
            batch.push(block);
        }
        let ends = failed || !member.keeps_running();
        if ends || batch.len() == QUEUE.1 {
            let mut tries = 0;
            // The receiver takes blocks until the sender is dropped.
            while sender.slots() < batch.len() {
                tries += 1;
                spin(member, tries);
            }
            if let Ok(room) = sender.write_chunk_uninit(batch.len()) {
                room.fill_from_iter(batch.drain(..));
            }
        }
        if ends {
            break;
        }
    }
    ThreadWork { pairs: 0, nanoseconds: start.elapsed().as_nanos() as f64, failed }
}

fn consume<H: Heap>(
    heap: &H,
    mut receiver: Consumer<HeapBlock>,
    member: &Member<'_>,
) -> ThreadWork {
    let mut pairs = 0;
    let start: Instant = member.start();
    loop {
        // Read first: blocks sent before the end are then visible to the read of the slots.
        let over = receiver.is_abandoned();
        if let Ok(blocks) = receiver.read_chunk(receiver.slots()) {
            pairs += blocks.len() as u64;
            blocks.into_iter().for_each(|block| free(heap, block));
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
