//! The lock that many read, and what a cache builds on it: look-ups that pin, evictions that look
//! at pins, and pins that go at any time.

use kvmem::sync_loom_face::Striped;
use loom::cell::UnsafeCell;
use loom::model::Builder;
use loom::sync::Arc;
use loom::sync::atomic::{AtomicBool, AtomicUsize, Ordering, fence};
use loom::thread;

/// All orders with so many changes of the thread where it could have gone on: with more, three
/// threads are too many to follow.
fn check(run: impl Fn() + Send + Sync + 'static) {
    let mut builder = Builder::new();
    builder.preemption_bound = Some(4);
    builder.check(run);
}

/// What may be used under the lock alone: loom fails where a reader and a writer do so without
/// order.
struct Value(UnsafeCell<u32>);

// SAFETY: the lock's business; loom finds it out if it fails.
unsafe impl Sync for Value {}
// SAFETY: as above.
unsafe impl Send for Value {}

fn value() -> Arc<Striped<Value>> {
    Arc::new(Striped::new(Value(UnsafeCell::new(0))))
}

fn get(lock: &Striped<Value>, number: usize) -> u32 {
    // SAFETY: only read, under the lock.
    lock.read(number, |value, _| value.0.with(|value| unsafe { *value }))
}

fn add_one(lock: &Striped<Value>) {
    // SAFETY: under the writer's lock.
    lock.write(|value, _| value.0.with_mut(|value| unsafe { *value += 1 }));
}

#[test]
fn a_reader_joins_and_meets_writers() {
    check(|| {
        let lock = value();
        let reader = {
            let lock = lock.clone();
            thread::spawn(move || (get(&lock, 0), get(&lock, 0)))
        };
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
        // The stripe is joined, and has been taken in vain once: the next writer leaves it out.
        assert_eq!(get(&lock, 0), 0);
        add_one(&lock);
        let reader = {
            let lock = lock.clone();
            thread::spawn(move || get(&lock, 0))
        };
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
        let readers = [0, 1].map(|number| {
            let lock = lock.clone();
            thread::spawn(move || get(&lock, number))
        });
        add_one(&lock);
        assert!(readers.into_iter().all(|reader| reader.join().unwrap() <= 1));
        assert_eq!(get(&lock, 0), 1);
    });
}

#[test]
fn what_a_reader_notes_is_told_to_a_writer_once() {
    check(|| {
        let lock = value();
        let note = |lock: &Striped<Value>| {
            // Relaxed, and two steps: this reader alone has it.
            lock.read(0, |_, own| own.store(own.load(Ordering::Relaxed) + 1, Ordering::Relaxed));
        };
        let told = |lock: &Striped<Value>| -> u32 {
            // Relaxed: the writer alone has them.
            lock.write(|_, all| all.map(|own| own.swap(0, Ordering::Relaxed)).sum())
        };
        let reader = {
            let lock = lock.clone();
            thread::spawn(move || [(), ()].map(|()| note(&lock)))
        };
        let early = told(&lock) + told(&lock);
        reader.join().unwrap();
        // As the last writer sees all that came before it, a stripe that was left out had nothing
        // to tell.
        assert_eq!(early + told(&lock), 2);
    });
}

/// A block as an `Arc` has it: counted once for the index and once for each pin. Its bytes are used
/// by who has a pin, and by who frees it.
struct Block {
    count: AtomicUsize,
    bytes: UnsafeCell<u32>,
    freed: AtomicBool,
}

// SAFETY: as for `Value`.
unsafe impl Sync for Block {}
// SAFETY: as above.
unsafe impl Send for Block {}

/// The index of a shard that holds one block, or none.
type Index = Striped<Option<Arc<Block>>>;

fn index() -> (Arc<Index>, Arc<Block>) {
    let count = AtomicUsize::new(1);
    let block = Arc::new(Block { count, bytes: UnsafeCell::new(7), freed: AtomicBool::new(false) });
    (Arc::new(Striped::new(Some(block.clone()))), block)
}

impl Block {
    /// As `Arc::drop`.
    fn let_go(&self) {
        // Release pairs with the fence below, of who comes last.
        if self.count.fetch_sub(1, Ordering::Release) == 1 {
            fence(Ordering::Acquire);
            // SAFETY: nobody else has it.
            self.bytes.with_mut(|bytes| unsafe { *bytes = 0 });
            assert!(!self.freed.swap(true, Ordering::Relaxed), "freed twice");
        }
    }
}

/// As `Shard::get`, and then the pin goes.
fn look_up(index: &Index, number: usize) -> bool {
    let pinned = index.read(number, |block, _| {
        let block = block.clone()?;
        // Relaxed: as `Arc::clone`.
        block.count.fetch_add(1, Ordering::Relaxed);
        Some(block)
    });
    pinned.is_some_and(|block| {
        // SAFETY: it is pinned.
        assert_eq!(block.bytes.with(|bytes| unsafe { *bytes }), 7);
        block.let_go();
        true
    })
}

/// As `Books::evict`: whether there was a block without a pin.
fn evict(index: &Index) -> bool {
    index.write(|block, _| {
        // Relaxed: as `Arc::strong_count`; see `is_pinned`.
        let unpinned = block.take_if(|block| block.count.load(Ordering::Relaxed) == 1);
        unpinned.inspect(|block| {
            block.let_go();
            assert!(block.freed.load(Ordering::Relaxed), "an evicted block leaves its bytes free");
        });
        block.is_none()
    })
}

/// As `Books::remove`: pins may outlive it.
fn remove(index: &Index) {
    if let Some(block) = index.write(|block, _| block.take()) {
        block.let_go();
    }
}

#[test]
fn a_block_is_evicted_only_unpinned_and_freed_once() {
    check(|| {
        let (index, block) = index();
        let readers = [0, 1].map(|number| {
            let index = index.clone();
            thread::spawn(move || look_up(&index, number))
        });
        let evicted = evict(&index);
        let found = readers.map(|reader| reader.join().unwrap());
        assert!(evicted || found == [true; 2], "what stays is found");
        assert!(evict(&index), "nobody has a pin");
        assert!(block.freed.load(Ordering::Relaxed));
    });
}

#[test]
fn a_block_that_is_removed_is_freed_by_its_last_pin() {
    check(|| {
        let (index, block) = index();
        let readers = [0, 1].map(|number| {
            let index = index.clone();
            thread::spawn(move || look_up(&index, number))
        });
        remove(&index);
        readers.into_iter().for_each(|reader| {
            reader.join().unwrap();
        });
        assert!(block.freed.load(Ordering::Relaxed));
        assert!(!look_up(&index, 0));
    });
}
