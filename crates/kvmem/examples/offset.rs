//! A tour of L3, the offsets: `cargo run --example offset`.
//!
//! An offset space allocates ranges `[offset, offset + size)` of something that it never touches:
//! registered memory, a file, a device's address space. Here it stands for 1 TiB of KV cache.

use std::error::Error;

use kvmem::offset::{AllocError, OffsetAllocator, RawError};

const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;
const TIB: u64 = 1 << 40;

fn main() -> Result<(), Box<dyn Error>> {
    // The space costs some 44 KiB, whatever its length.
    let space = OffsetAllocator::new(TIB)?;

    // Sizes are exact; nothing is rounded. Both objects of a block of GLM-5.1 with sparse
    // attention:
    let kv = space.allocate(3_274_752)?;
    let index = space.allocate(658_432)?;
    assert_eq!(space.metrics().allocated, 3_274_752 + 658_432);
    println!("kv cache at {:?}, its index at {:?}", kv.range(), index.range());

    // Dropping frees, and a freed range coalesces with its neighbours at once.
    drop((kv, index));
    assert_eq!(space.metrics().largest_free, TIB);

    // Alignment, for direct I/O or huge pages. The bytes before it stay free.
    let page = space.allocate_aligned(5 * MIB, 2 * MIB)?;
    assert_eq!(page.offset() % (2 * MIB), 0);

    // Many at a time: one lock, all or none.
    let batch = space.allocate_batch(MIB, 1000)?;
    assert_eq!(batch.len(), 1000);
    space.free_batch(batch);

    // In place: free the tail, extend again, free a part in the middle.
    let mut object = space.allocate(100 * MIB)?;
    object.shrink(60 * MIB)?;
    object.extend(80 * MIB)?;
    let start = object.offset();
    let (head, tail) =
        object.free_range(start + 10 * MIB..start + 20 * MIB).map_err(|(_, error)| error)?;
    assert_eq!(head.map(|head| head.len()), Some(10 * MIB));
    assert_eq!(tail.map(|tail| tail.len()), Some(60 * MIB));

    // Out of space is a small value with the figures. A full store requests often and mostly fails,
    // so the hint tells it without taking the lock.
    let rest = space.allocate(space.metrics().largest_free)?;
    match space.allocate(GIB) {
        Err(AllocError::OutOfSpace { requested, free, largest_free }) => {
            println!(
                "{requested} bytes do not fit: {free} are free, at most {largest_free} in one range"
            );
        }
        other => panic!("there is no room for {other:?}"),
    }
    assert!(space.largest_free_hint() < GIB);
    drop(rest);

    // Scattered free ranges are usable for a consumer that gathers: one request, a few ranges.
    let small = OffsetAllocator::new(100 * MIB)?;
    let blocks = small.allocate_batch(10 * MIB, 10)?;
    let kept: Vec<_> = blocks.into_iter().step_by(2).collect();
    assert!(small.allocate(30 * MIB).is_err());
    let scattered = small.allocate_scattered(30 * MIB, 3)?;
    assert_eq!(scattered.iter().map(|part| part.len()).sum::<u64>(), 30 * MIB);
    println!(
        "30 MiB in {} ranges; fragmentation is {:.2}",
        scattered.len(),
        small.metrics().fragmentation()
    );
    drop((kept, scattered));

    // The space itself grows and shrinks.
    small.grow_to(GIB)?;
    let high = small.allocate(900 * MIB)?;
    assert!(small.shrink_to(100 * MIB).is_err(), "something is in use behind");
    drop(high);
    small.shrink_to(100 * MIB)?;

    // Memory that is registered in chunks: no range lies in two of them.
    let chunked = OffsetAllocator::builder(4 * GIB).boundary(GIB).build()?;
    let blocks = chunked.allocate_batch(600 * MIB, 4)?;
    assert!(blocks.iter().all(|block| block.offset() / GIB == (block.range().end - 1) / GIB));

    // Raw handles, for C and Python: plain data, and every misuse is detected.
    let raw = space.allocate_raw(4096)?;
    assert_eq!(space.resolve_raw(raw.handle)?, raw.offset..raw.offset + raw.size);
    assert_eq!(space.free_raw(raw.handle), Ok(4096));
    assert!(matches!(space.free_raw(raw.handle), Err(RawError::Stale { .. })), "freed twice");
    assert!(matches!(small.free_raw(raw.handle), Err(RawError::Foreign { .. })), "another's");

    // Any thread may allocate, and any thread may free. Allocations may outlive the allocator.
    let last = std::thread::scope(|scope| {
        let threads: Vec<_> = (1..=8)
            .map(|n| {
                scope.spawn({
                    let space = &space;
                    move || space.allocate(n * MIB)
                })
            })
            .collect();
        threads
            .into_iter()
            .map(|thread| thread.join().expect("no panic"))
            .collect::<Result<Vec<_>, _>>()
    })?;
    drop(page);
    for range in space.map() {
        println!(
            "{:>14} … {:>14}  {}",
            range.offset,
            range.offset + range.size,
            if range.used { "used" } else { "free" }
        );
    }
    space.check()?;
    drop(space);
    assert_eq!(last.iter().map(|allocation| allocation.len()).sum::<u64>(), 36 * MIB);
    Ok(())
}
