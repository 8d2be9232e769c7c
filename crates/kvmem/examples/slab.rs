//! A tour of the slab layer: `cargo run --example slab`.

use std::thread;
use std::time::Instant;

use kvmem::slab::{ExtentCache, ObjectCache, SlabAllocator};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("# A million blocks of 1 to 512 bytes, allocated and freed by two threads");
    let slabs = SlabAllocator::new()?;
    let start = Instant::now();
    thread::scope(|scope| {
        for thread in 0..2 {
            let slabs = &slabs;
            scope.spawn(move || {
                for number in 0..500_000usize {
                    let size = (number * 7919 + thread) % 512 + 1;
                    let Ok(block) = slabs.allocate(size) else {
                        return println!("no memory for {size} bytes");
                    };
                    // SAFETY: allocated with this size, freed once and not used afterwards.
                    unsafe {
                        block.write(1);
                        slabs.free(block, size);
                    }
                }
            });
        }
    });
    println!("{:.1} ns per pair and thread", start.elapsed().as_nanos() as f64 / 500_000.0);

    println!("\n# Bytes in slabs while blocks are cached, and after a trim");
    let shown = |stats: &kvmem::slab::SlabStats| println!("{} bytes in slabs", stats.slab_bytes);
    shown(&slabs.stats());
    slabs.trim();
    shown(&slabs.stats());

    println!("\n# Objects that are constructed once and used again");
    let made = std::sync::Arc::new(std::sync::atomic::AtomicUsize::new(0));
    let count = std::sync::Arc::clone(&made);
    let buffers = ObjectCache::new(move || {
        count.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        Vec::<u8>::with_capacity(4096)
    });
    for _ in 0..1000 {
        let mut buffer = buffers.get()?;
        buffer.clear();
        buffer.extend_from_slice(b"used again");
    }
    println!("{} constructed for 1000 uses", made.load(std::sync::atomic::Ordering::Relaxed));

    println!("\n# Two threads in one space of 64 GiB, a million pages of KV cache each");
    let space = ExtentCache::new(64 << 30)?;
    let start = Instant::now();
    thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                for _ in 0..1_000_000 {
                    let Ok(page) = space.allocate(3_274_752) else {
                        return println!("no free range");
                    };
                    drop(page);
                }
            });
        }
    });
    println!("{:.1} ns per pair and thread", start.elapsed().as_nanos() as f64 / 1_000_000.0);
    let stats = space.stats();
    println!(
        "{} ranges are cached, of at most {} bytes",
        stats.cached_ranges, stats.max_cached_bytes
    );
    println!("a request for the whole space succeeds: {}", space.allocate(64 << 30).is_ok());
    Ok(())
}
