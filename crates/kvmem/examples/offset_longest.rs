//! Measures the longest single calls of the offset allocator, in its worst situations.
//!
//! ```text
//! cargo run --release --example offset_longest            # a million holes; debug: 20,000
//! cargo run --release --example offset_longest -- 10000   # the number of holes
//! ```
//!
//! Times of single calls include all other work of the machine: on a busy one, the longest is an
//! interruption. Each situation is therefore measured five times, and the shortest of the five
//! longest calls is printed.

use std::error::Error;
use std::time::{Duration, Instant};

use kvmem::offset::{Allocation, OffsetAllocator};

type Result<T> = std::result::Result<T, Box<dyn Error>>;

/// Measures a situation with a number of holes.
type Measure = fn(u64) -> Result<Longest>;

const TIMES: usize = 5;

/// The longest call and the number of calls.
#[derive(Default)]
struct Longest {
    longest: Duration,
    calls: u64,
}

impl Longest {
    fn time<R>(&mut self, call: impl FnOnce() -> R) -> R {
        let start = Instant::now();
        let result = call();
        self.longest = self.longest.max(start.elapsed());
        self.calls += 1;
        result
    }
}

/// Returns a space of holes of these sizes, each followed by a range of one byte, and those ranges.
fn holes(sizes: impl Iterator<Item = u64> + Clone) -> Result<(OffsetAllocator, Vec<Allocation>)> {
    let space = OffsetAllocator::new(sizes.clone().map(|size| size + 1).sum())?;
    let (mut gone, mut kept) = (Vec::new(), Vec::new());
    for size in sizes {
        gone.push(space.allocate(size)?);
        kept.push(space.allocate(1)?);
    }
    drop(gone);
    Ok((space, kept))
}

/// Returns `n` sizes within one bin, which holds sizes from 2^40 to 2^40 + 2^34.
fn one_bin(n: u64) -> impl Iterator<Item = u64> + Clone {
    (0..n).map(move |i| (1 << 40) + i * 7919 % n * 1000)
}

fn behind_short_ones(n: u64) -> Result<Longest> {
    let (space, _kept) = holes(one_bin(n))?;
    let mut longest = Longest::default();
    for i in 0..1000 {
        let size = (1 << 40) + (n - 1 - i % n) * 1000;
        drop(longest.time(|| space.allocate(size)));
    }
    Ok(longest)
}

fn longest_of_all(n: u64) -> Result<Longest> {
    let (space, _kept) = holes(one_bin(n))?;
    let (mut longest, mut taken) = (Longest::default(), Vec::new());
    for _ in 0..n.min(1000) {
        let size = space.metrics().largest_free;
        taken.push(longest.time(|| space.allocate(size))?);
    }
    Ok(longest)
}

fn aligned_near_full(n: u64) -> Result<Longest> {
    let (space, _kept) = holes((0..n).map(|i| 4096 + i % 4096))?;
    let mut longest = Longest::default();
    for i in 0..100 {
        drop(longest.time(|| space.allocate_aligned(4096 + i, 1 << 30)));
    }
    Ok(longest)
}

fn aligned_to_a_foreign_boundary(_: u64) -> Result<Longest> {
    let space = OffsetAllocator::builder(1 << 62).boundary((1 << 27) + 1).build()?;
    let (mut longest, mut taken) = (Longest::default(), Vec::new());
    for i in 0..1000 {
        taken.extend(longest.time(|| space.allocate_aligned((1 << 27) - i, 1 << (20 + i % 20))));
        drop(longest.time(|| space.allocate_aligned((1 << 27) + 1, 1 << 62)));
    }
    Ok(longest)
}

fn scattered_in_a_thousand(n: u64) -> Result<Longest> {
    let (space, _kept) = holes(one_bin(n))?;
    let mut longest = Longest::default();
    for _ in 0..10 {
        drop(longest.time(|| space.allocate_scattered(1000 << 40, 1000))?);
    }
    Ok(longest)
}

fn growing(n: u64) -> Result<Longest> {
    let space = OffsetAllocator::new(1 << 50)?;
    let (mut longest, mut taken) = (Longest::default(), Vec::with_capacity(n as usize));
    for _ in 0..n {
        taken.push(longest.time(|| space.allocate(100))?);
    }
    Ok(longest)
}

/// Frees every other range, which leaves a hole each, and then the others.
fn freeing(n: u64) -> Result<Longest> {
    let space = OffsetAllocator::new(200 * n)?;
    let taken: Vec<_> =
        (0..2 * n).map(|_| space.allocate(100)).collect::<std::result::Result<_, _>>()?;
    let mut longest = Longest::default();
    let mut rest = Vec::with_capacity(n as usize);
    for (i, range) in taken.into_iter().enumerate() {
        if i % 2 == 0 { longest.time(|| drop(range)) } else { rest.push(range) }
    }
    for range in rest {
        longest.time(|| drop(range));
    }
    Ok(longest)
}

fn main() -> Result<()> {
    let usual = if cfg!(debug_assertions) { 20_000 } else { 1_000_000 };
    let n = std::env::args().nth(1).map_or(Ok(usual), |n| n.parse())?;
    println!("{n} holes, µs of the longest call");
    let situations: [(&str, Measure); 7] = [
        ("allocate: the holes of one bin, most too short", behind_short_ones),
        ("allocate: the longest hole of all", longest_of_all),
        ("allocate_aligned: no hole has an aligned start", aligned_near_full),
        ("allocate_aligned: a boundary of 2^27 + 1", aligned_to_a_foreign_boundary),
        ("allocate_scattered: 1,000 ranges", scattered_in_a_thousand),
        ("allocate: metadata grows", growing),
        ("free: metadata grows and shrinks", freeing),
    ];
    for (what, measure) in situations {
        let (mut shortest, mut calls) = (Duration::MAX, 0);
        for _ in 0..TIMES {
            let longest = measure(n)?;
            (shortest, calls) = (shortest.min(longest.longest), longest.calls);
        }
        println!("{:10.1}  of {calls:9} calls  {what}", shortest.as_secs_f64() * 1e6);
    }
    Ok(())
}
