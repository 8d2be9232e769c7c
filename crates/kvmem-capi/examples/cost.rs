//! Measures in Rust what `tests/c/cost.c` measures in C: nanoseconds of processor time. The
//! argument is the number of rounds.

use std::hint::black_box;
use std::mem::MaybeUninit;

use kvmem::offset::OffsetAllocator;
use kvmem::slab::SlabAllocator;

fn now() -> f64 {
    let mut time = MaybeUninit::uninit();
    // SAFETY: the variable has room for a time.
    let time = unsafe {
        libc::clock_gettime(libc::CLOCK_PROCESS_CPUTIME_ID, time.as_mut_ptr());
        time.assume_init()
    };
    time.tv_sec as f64 * 1e9 + time.tv_nsec as f64
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let n: u64 = std::env::args().nth(1).map_or(Ok(1000), |n| n.parse())?;
    let space = OffsetAllocator::new(1 << 40)?;
    let slabs = SlabAllocator::new()?;
    for _ in 0..3 {
        let mut live =
            (0..1000).map(|_| space.allocate(4096).map(Some)).collect::<Result<Vec<_>, _>>()?;
        let (start, mut random) = (now(), 1_u64);
        for _ in 0..n {
            random = random.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            let one = &mut live[(random >> 33) as usize % 1000];
            *one = None;
            *one = Some(space.allocate(4096 + (random >> 60) * 512)?);
        }
        println!("offset pair {:.1} ns", (now() - start) / n as f64);
        let start = now();
        for _ in 0..n {
            let block = black_box(slabs.allocate(64)?);
            // SAFETY: the block is live, of this size, and not used again.
            unsafe { slabs.free(block, 64) };
        }
        println!("slab pair {:.1} ns", (now() - start) / n as f64);
    }
    Ok(())
}
