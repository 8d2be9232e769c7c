//! The striped lock, and the cache that is built on it: lookups that pin, evictions that check
//! pins, and pins that end at any time.

use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::sync::atomic::{AtomicBool, AtomicUsize, Ordering, fence};

use super::{preemptions, spawn};
use crate::sync::{AtomicU32, Striped};

/// A striped lock with a number as the state of each stripe.
type NumberedLock<T> = Striped<T, AtomicU32>;

/// Checks all orders with up to four preemptions: with more, three threads have too many.
fn check(run: impl Fn() + Send + Sync + 'static) {
    preemptions::check(4, run);
}

/// A value that may be accessed under the lock alone: loom fails if a reader and a writer access it
/// without order.
struct Value(UnsafeCell<u32>);

// SAFETY: the lock excludes conflicting accesses; loom detects it if not.
unsafe impl Sync for Value {}
// SAFETY: as for `Sync`.
unsafe impl Send for Value {}

fn value() -> Arc<NumberedLock<Value>> {
    Arc::new(Striped::new(Value(UnsafeCell::new(0))))
}

fn get(lock: &NumberedLock<Value>, number: usize) -> u32 {
    // SAFETY: only read, under the lock.
    lock.read(number).0.with(|value| unsafe { *value })
}

fn add_one(lock: &NumberedLock<Value>) {
    // SAFETY: under the writer's lock.
    lock.write().0.with_mut(|value| unsafe { *value += 1 });
}

#[test]
fn a_reader_joins_and_meets_writers() {
    check(|| {
        let lock = value();
        let reader = spawn(&lock, move |lock| (get(&lock, 0), get(&lock, 0)));
        add_one(&lock);
        add_one(&lock);
        let (first, second) = reader.join().unwrap();
        assert!(first <= second && second <= 2, "{first} and then {second}");
        assert_eq!(get(&lock, 1), 2);
    });
}

#[test]
fn a_stripe_is_left_out_and_joined_again() {
    check(|| {
        let lock = value();
        // The stripe is joined, and one writer has taken it since it was read by: the next writer
        // leaves it out.
        assert_eq!(get(&lock, 0), 0);
        add_one(&lock);
        let reader = spawn(&lock, move |lock| get(&lock, 0));
        add_one(&lock);
        add_one(&lock);
        assert!((1..=3).contains(&reader.join().unwrap()));
        assert_eq!(get(&lock, 0), 3);
    });
}

#[test]
fn two_readers_and_a_writer() {
    check(|| {
        let lock = value();
        let readers = [0, 1].map(|number| spawn(&lock, move |lock| get(&lock, number)));
        add_one(&lock);
        assert!(readers.into_iter().all(|reader| reader.join().unwrap() <= 1));
        assert_eq!(get(&lock, 0), 1);
    });
}

#[test]
fn a_note_of_a_reader_reaches_one_writer() {
    check(|| {
        let lock = value();
        let note = |lock: &NumberedLock<Value>| {
            let reading = lock.read(0);
            let own = reading.own();
            // Relaxed, and two steps: this reader alone has the state.
            own.store(own.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
        };
        let reports = |lock: &NumberedLock<Value>| -> u32 {
            let mut writing = lock.write();
            // Relaxed: the writer alone has the states.
            writing.parts().1.map(|own| own.swap(0, Ordering::Relaxed)).sum()
        };
        let reader = spawn(&lock, move |lock| [(), ()].map(|()| note(&lock)));
        let early = reports(&lock) + reports(&lock);
        reader.join().unwrap();
        // The last writer has seen everything before it, so a stripe that was left out had nothing
        // more to report.
        assert_eq!(early + reports(&lock), 2);
    });
}

/// A block with the reference count of an `Arc`: one for the index and one for each pin. Its bytes
/// are used by the holders of pins and by the thread that frees it.
struct Block {
    count: AtomicUsize,
    bytes: UnsafeCell<u32>,
    freed: AtomicBool,
}

// SAFETY: as for `Value`.
unsafe impl Sync for Block {}
// SAFETY: as for `Value`.
unsafe impl Send for Block {}

/// The index of a shard that holds at most one block.
type Index = NumberedLock<Option<Arc<Block>>>;

fn index() -> (Arc<Index>, Arc<Block>) {
    let count = AtomicUsize::new(1);
    let block = Arc::new(Block { count, bytes: UnsafeCell::new(7), freed: AtomicBool::new(false) });
    (Arc::new(Striped::new(Some(block.clone()))), block)
}

impl Block {
    /// Decrements the count, like `Arc::drop`.
    fn let_go(&self) {
        // Release pairs with the fence below in the thread that drops the last reference.
        if self.count.fetch_sub(1, Ordering::Release) == 1 {
            fence(Ordering::Acquire);
            // SAFETY: no other reference exists.
            self.bytes.with_mut(|bytes| unsafe { *bytes = 0 });
            assert!(!self.freed.swap(true, Ordering::Relaxed), "freed twice");
        }
    }
}

/// Looks the block up like `Shard::get`, and drops the pin.
fn look_up(index: &Index, number: usize) -> bool {
    let reading = index.read(number);
    let pinned = reading.clone().inspect(|block| {
        // Relaxed: as in `Arc::clone`.
        block.count.fetch_add(1, Ordering::Relaxed);
    });
    drop(reading);
    pinned.is_some_and(|block| {
        // SAFETY: the block is pinned.
        assert_eq!(block.bytes.with(|bytes| unsafe { *bytes }), 7);
        block.let_go();
        true
    })
}

/// Evicts like the shard does: returns whether the index is empty afterwards.
fn evict(index: &Index) -> bool {
    let mut entry = index.write();
    // Relaxed: as in `Arc::strong_count`; see `is_pinned`.
    let unpinned = entry.take_if(|block| block.count.load(Ordering::Relaxed) == 1);
    unpinned.inspect(|block| {
        block.let_go();
        assert!(block.freed.load(Ordering::Relaxed), "an evicted block leaves its bytes free");
    });
    entry.is_none()
}

/// Removes the block like the shard does: pins may outlive the entry.
fn remove(index: &Index) {
    let removed = index.write().take();
    removed.inspect(|block| block.let_go());
}

#[test]
fn a_block_is_evicted_only_unpinned_and_freed_once() {
    check(|| {
        let (index, block) = index();
        let readers = [0, 1].map(|number| spawn(&index, move |index| look_up(&index, number)));
        let evicted = evict(&index);
        let found = readers.map(|reader| reader.join().unwrap());
        assert!(evicted || found == [true; 2], "what stays is found");
        assert!(evict(&index), "no pin is left");
        assert!(block.freed.load(Ordering::Relaxed));
    });
}

#[test]
fn a_block_that_is_removed_is_freed_by_its_last_pin() {
    check(|| {
        let (index, block) = index();
        let readers = [0, 1].map(|number| spawn(&index, move |index| look_up(&index, number)));
        remove(&index);
        readers.into_iter().for_each(|reader| {
            reader.join().unwrap();
        });
        assert!(block.freed.load(Ordering::Relaxed));
        assert!(!look_up(&index, 0));
    });
}
