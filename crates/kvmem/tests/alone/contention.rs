//! A contended space is cut into shards: contention needs processors that no other test uses.

use std::thread;
use std::time::{Duration, Instant};

use kvmem::offset::{Allocation, OffsetAllocator};

use super::alone;

/// Threads that contend for the lock of a space with many ranges cut it.
#[test]
fn contention_cuts_a_space() {
    let _alone = alone();
    const HELD: u64 = 4096;
    let spaces = [
        (OffsetAllocator::new(1 << 30).unwrap(), true),
        (OffsetAllocator::builder(1 << 30).shards(1).build().unwrap(), false),
    ];
    for (space, cuts) in spaces {
        let mut held: Vec<Allocation> =
            (0..HELD).map(|at| space.allocate((64 << 10) + at).unwrap()).collect();
        let kept: Vec<Allocation> = held.drain(..).step_by(2).collect();
        let deadline = Instant::now() + Duration::from_secs(if cuts { 60 } else { 1 });
        thread::scope(|scope| {
            for thread in 0..4 {
                let space = &space;
                scope.spawn(move || {
                    let mut size = thread;
                    while space.shards() == 1 && Instant::now() < deadline {
                        for _ in 0..100 {
                            size = (size * 7 + 13) % 50_000;
                            drop(space.allocate(1000 + size).unwrap());
                        }
                    }
                });
            }
        });
        assert_eq!(space.shards() > 1, cuts);
        space.check().unwrap();
        drop(kept);
        assert_eq!(space.allocate(1 << 30).unwrap().len(), 1 << 30);
    }
}
