//! The benchmark of the slab layer: small memory blocks, allocated and freed.
//!
//! 1. *Patterns.* `random` is the program that introduced GLib's slice allocator: 10,000 blocks for
//!    each thread, of random size up to 512 or 1024 bytes; every second one is freed and allocated
//!    again with a new size, for many rounds. `fixed` is the same with blocks of one size. In
//!    `producer-consumer` half of the threads allocate and the other half free.
//! 2. *Contenders.* The library, the C library's malloc, mimalloc, jemalloc, snmalloc, and GLib's
//!    own allocator if the system still has it. Each is called through its own C interface; an
//!    absent one is reported as such.
//! 3. *Time.* Threads are bound to processors and all run for the whole of a fixed time. The time
//!    of a pair is processor time, waiting included: wall time, times the processors in use,
//!    divided by the pairs of all threads. It therefore stays the same if two threads do twice the
//!    work of one, and also if four threads share two processors without disturbing each other.
//! 4. *Memory.* The bytes that became resident from before the first block until all live blocks
//!    were written, before any thread ends; in `producer-consumer`, until all blocks were freed.
//!    Every measurement has its own process, so heaps share neither memory nor history.

mod heap;
mod loops;
mod measure;

use anyhow::Result;

pub use self::measure::{SlabSample, SlabTask, in_child, measure};
use super::suite::{Figures, Run, Turns, names};

use SlabContenderId::{GSlice, Kvmem, Mimalloc};

names! {
    /// The patterns by name.
    pub enum Pattern ("pattern") {
        Random = "random",
        Fixed = "fixed",
        ProducerConsumer = "producer-consumer",
    }
}

names! {
    /// The contenders by name.
    pub enum SlabContenderId ("contender") {
        Kvmem = "kvmem",
        Malloc = "malloc",
        Mimalloc = "mimalloc",
        Jemalloc = "jemalloc",
        Snmalloc = "snmalloc",
        GSlice = "g-slice",
    }
}

/// Runs the benchmark. `once` measures a task in a process of its own.
pub fn run(run: &mut Run, once: impl Fn(&SlabTask) -> Result<SlabSample>) -> Result<()> {
    let reps = run.reps(9, 3);
    run.settings(format_args!("seed {}, {reps} repetition(s)", loops::SEED));
    run.about(
        Pattern::Random.name(),
        "ns of a processor per allocation and free, blocks of random \
        size, every second one replaced; and MiB that became resident",
    );
    run.about(Pattern::Fixed.name(), "the same with blocks of one size");
    run.about(
        Pattern::ProducerConsumer.name(),
        "ns of a processor per block that one thread \
        allocates and another one frees",
    );
    let mut present = Vec::new();
    for contender in run.chosen(&SlabContenderId::ALL) {
        match heap::with_heap!(contender, _heap => ()) {
            Ok(()) => present.push(contender),
            Err(reason) => run.skip(contender.name(), format_args!("{reason:#}")),
        }
    }
    let milliseconds = run.length(250, 20, 2);
    for (pattern, sizes, threads) in [
        (Pattern::Random, &[512, 1024][..], &[1, 2, 3, 4][..]),
        (Pattern::Fixed, &[64], &[1, 2, 3, 4]),
        // Half of the threads allocate for the other half.
        (Pattern::ProducerConsumer, &[512], &[2, 4]),
    ] {
        for (max_block_bytes, threads) in
            sizes.iter().flat_map(|size| threads.iter().map(move |threads| (*size, *threads)))
        {
            let line = format!("{max_block_bytes} B, {threads} thread(s)");
            let at = (pattern.name(), line.as_str());
            run.turns(at, &present, Turns::of(reps), |contender, _| {
                let task = SlabTask { pattern, max_block_bytes, threads, contender, milliseconds };
                let SlabSample { ns_per_pair, rss_bytes } = once(&task)?;
                let figures = Figures::of("ns", ns_per_pair);
                Ok(match rss_bytes {
                    Some(bytes) => figures.with("MiB", bytes as f64 / f64::from(1 << 20)),
                    None => figures,
                })
            })?;
        }
    }
    // Three threads are measured but are not part of a goal.
    let lines = |line: &str| !line.ends_with(" 3 thread(s)");
    for (other, figure, limit) in
        [(Mimalloc, "ns", 0.8), (GSlice, "ns", 0.5), (Mimalloc, "MiB", 1.15)]
    {
        let name = format!("random: {figure} over those of {other}");
        run.at_most(&name, limit, run.over("random", (Kvmem, other), figure, lines));
    }
    Ok(())
}
