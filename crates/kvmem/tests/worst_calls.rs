//! What one call obtains from the global allocator and gives back to it, in its worst case.
//!
//! The time of a call that holds the lock is bounded by the records that it reads, which the unit
//! tests count, and by the memory that it obtains or gives back. In a process of its own, and in
//! one test: concurrent code would be measured with it.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use kvmem::offset::{Allocation, OffsetAllocator, RawHandle};

/// Ranges in use at once.
const LIVE: usize = 200_000;
/// Bytes that a call may obtain or give back, whatever the number of ranges: a chunk of nodes, of
/// holes, of splits and of generations, each in the worst case sixteen times, for sixteen ranges
/// that are coalesced together.
const BOUND: usize = 160 << 10;
/// Blocks that a call may obtain or give back.
const MAX_BLOCKS: usize = 128;

/// Bytes and blocks that were obtained and returned.
static OBTAINED: [AtomicUsize; 2] = [AtomicUsize::new(0), AtomicUsize::new(0)];
static FREED: [AtomicUsize; 2] = [AtomicUsize::new(0), AtomicUsize::new(0)];

fn count(counters: &[AtomicUsize; 2], bytes: usize) {
    counters[0].fetch_add(bytes, Relaxed);
    counters[1].fetch_add(1, Relaxed);
}

struct Counting;

#[global_allocator]
static HEAP: Counting = Counting;

// SAFETY: all calls go to the system's allocator unchanged.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(&OBTAINED, layout.size());
        // SAFETY: the caller's promises are those that `System` demands.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        count(&FREED, layout.size());
        // SAFETY: the caller's promises are those that `System` demands.
        unsafe { System.dealloc(at, layout) }
    }

    // A block that is resized counts as a new one: some allocators copy it.
    unsafe fn realloc(&self, at: *mut u8, layout: Layout, new_len: usize) -> *mut u8 {
        count(&OBTAINED, new_len);
        count(&FREED, layout.size());
        // SAFETY: the caller's promises are those that `System` demands.
        unsafe { System.realloc(at, layout, new_len) }
    }
}

/// The bytes and blocks of the worst call.
#[derive(Default)]
struct Worst([usize; 4]);

impl Worst {
    fn of<R>(&mut self, call: impl FnOnce() -> R) -> R {
        let read = || [&OBTAINED[0], &OBTAINED[1], &FREED[0], &FREED[1]].map(|n| n.load(Relaxed));
        let before = read();
        let result = call();
        for ((worst, before), after) in self.0.iter_mut().zip(before).zip(read()) {
            *worst = (*worst).max(after - before);
        }
        result
    }

    fn check(&self, what: &str) {
        let [obtained, _, freed, _] = self.0;
        // A vector of eight bytes for each of 64 ranges grows by an eighth or is freed, one each of
        // nodes, holes, splits and generations; at the end all three of the nodes and holes are.
        let vectors = LIVE / 64 * 8 * 9 / 8;
        eprintln!("{what}: {:?} bytes and blocks obtained, freed", self.0);
        assert!(obtained <= BOUND + 4 * vectors, "{what}: obtained {obtained} bytes");
        assert!(freed <= BOUND + 8 * vectors, "{what}: freed {freed} bytes");
        assert!(self.0[1].max(self.0[3]) <= MAX_BLOCKS, "{what}: {:?}", self.0);
    }
}

/// Tells which range is freed as the nth.
type Order = fn(usize) -> usize;

/// Orders in which ranges are freed.
const ORDERS: [(&str, Order); 4] = [
    ("first in, first out", |i| i),
    ("last in, first out", |i| LIVE - 1 - i),
    ("scattered", |i| (i * 48_271 + 11) % LIVE),
    ("every other one first", |i| if i < LIVE / 2 { 2 * i } else { 2 * (i - LIVE / 2) + 1 }),
];

fn size(i: usize) -> u64 {
    100 + i as u64 * 7919 % 1000
}

#[test]
fn a_call_obtains_and_gives_back_a_bounded_number_of_bytes() {
    for (name, order) in ORDERS {
        let space = OffsetAllocator::new(1 << 50).unwrap();
        let mut live: Vec<Option<Allocation>> = Vec::with_capacity(LIVE);
        let mut worst = Worst::default();
        (0..LIVE).for_each(|i| live.push(Some(worst.of(|| space.allocate(size(i)).unwrap()))));
        worst.check(&format!("allocate, {name}"));
        let mut worst = Worst::default();
        for i in 0..LIVE {
            let freed = live[order(i)].take();
            worst.of(|| drop(freed));
        }
        worst.of(|| space.metrics());
        worst.of(|| drop(space));
        worst.check(&format!("drop, {name}"));

        let space = OffsetAllocator::new(1 << 50).unwrap();
        let mut live: Vec<RawHandle> = Vec::with_capacity(LIVE);
        let mut worst = Worst::default();
        (0..LIVE).for_each(|i| live.push(worst.of(|| space.allocate_raw(size(i)).unwrap().handle)));
        worst.check(&format!("allocate_raw, {name}"));
        let mut worst = Worst::default();
        for i in 0..LIVE {
            assert_eq!(worst.of(|| space.free_raw(live[order(i)])), Ok(size(order(i))));
        }
        worst.of(|| drop(space));
        worst.check(&format!("free_raw, {name}"));

        // The allocator first: the last allocation frees the metadata.
        let space = OffsetAllocator::new(1 << 50).unwrap();
        let mut live: Vec<Option<Allocation>> =
            (0..LIVE).map(|i| Some(space.allocate(size(i)).unwrap())).collect();
        let mut worst = Worst::default();
        worst.of(|| drop(space));
        for i in 0..LIVE {
            let freed = live[order(i)].take();
            worst.of(|| drop(freed));
        }
        worst.check(&format!("drop after the allocator, {name}"));
    }
}
