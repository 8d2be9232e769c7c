//! *Figures*: three that are measured on the spot, each compared with something that every program
//! has: memory of `malloc`, one mutex, and a plain copy.
//!
//! Both sides of a figure are measured alternately, and the median of [`ROUNDS`] rounds counts. A
//! moment in which the machine is busy affects both.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::hint::black_box;
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use kvmem::cache::KvCache;
use kvmem::offset::OffsetAllocator;
use kvmem::pool::{Pool, PoolError};

use super::printer::{Going, Missing};

/// Rounds of each side.
const ROUNDS: usize = 5;
/// The duration of a round.
const ROUND: Duration = Duration::from_millis(60);
/// The memory that is used, at most.
const POOL: u64 = 128 << 20;
/// A page of a KV cache.
const PAGE: usize = 512 << 10;
/// A block that two threads allocate and free.
const BLOCK: usize = 4096;
/// Calls between two looks at the clock.
const CALLS: usize = 256;

/// One figure of kvmem, and of what it is compared with.
#[derive(Clone, Debug)]
pub(super) struct Figure {
    /// Its name and unit.
    pub(super) what: &'static str,
    /// Of kvmem.
    pub(super) kvmem: f64,
    /// The name of the other, and its figure.
    pub(super) other: (&'static str, f64),
}

/// Measures all of them, with at most the memory of the tour's pool.
pub(super) fn measure(pool_bytes: u64) -> Result<[Figure; 3], Missing> {
    let going = Going::new("figures", Some(3));
    let missing = |error: PoolError| Missing::new("memory for the figures", error.to_string(), &[]);
    let bytes = pool_bytes.min(POOL) as usize;
    let pool = Pool::builder(bytes).hot_sizes([BLOCK as u64]).build().map_err(missing)?;
    let two_threads = two_threads(&pool);
    going.at(1, "new pages".to_owned());
    let new_pages = new_pages(&pool);
    going.at(2, "copies".to_owned());
    let copies = copies(&pool);
    Ok([two_threads, new_pages, copies])
}

/// Measures both sides alternately, and returns the median of each.
fn medians(mut kvmem: impl FnMut() -> f64, mut other: impl FnMut() -> f64) -> [f64; 2] {
    let mut rounds: [Vec<f64>; 2] = Default::default();
    for _ in 0..ROUNDS {
        rounds[0].push(kvmem());
        rounds[1].push(other());
    }
    rounds.map(|mut figures| {
        figures.sort_by(f64::total_cmp);
        figures[ROUNDS / 2]
    })
}

/// Repeats a call for a round, and returns how many there were in a second.
fn rate(mut call: impl FnMut()) -> f64 {
    let (start, mut calls) = (Instant::now(), 0);
    loop {
        call();
        calls += 1;
        let took = start.elapsed();
        if took >= ROUND {
            return f64::from(calls) / took.as_secs_f64();
        }
    }
}

/// Pages are stored in a cache, which evicts the oldest ones; or in memory of `malloc`, as many of
/// them.
fn new_pages(pool: &Pool) -> Figure {
    let (cache, mut key) = (KvCache::new(pool), 0_u64);
    let gb = PAGE as f64 / 1e9;
    let of_cache = || {
        gb * rate(|| {
            key += 1;
            cache.insert_filled(key, PAGE, |bytes| bytes.fill(1)).expect("it evicts others");
        })
    };
    let pages = pool.capacity() as usize / PAGE;
    let mut held = VecDeque::with_capacity(pages);
    let of_malloc = || {
        gb * rate(|| {
            if held.len() == pages {
                held.pop_front();
            }
            let mut page: Vec<u8> = Vec::with_capacity(PAGE);
            page.resize(PAGE, 1);
            held.push_back(black_box(page));
        })
    };
    let [kvmem, other] = medians(of_cache, of_malloc);
    Figure { what: "new pages, written: GB/s", kvmem, other: ("malloc", other) }
}

/// Two threads allocate and free blocks of one size.
fn two_threads(pool: &Pool) -> Figure {
    let space = OffsetAllocator::new(pool.capacity()).expect("a pool has a capacity");
    let space = Mutex::new(space);
    let both = |call: &(dyn Fn() + Sync)| {
        let work = || CALLS as f64 * rate(|| (0..CALLS).for_each(|_| call())) / 1e6;
        thread::scope(|scope| {
            // Without a second thread this one works alone.
            let other = thread::Builder::new().spawn_scoped(scope, work).ok();
            let own = work();
            own + other.and_then(|other| other.join().ok()).unwrap_or(0.0)
        })
    };
    let of_pool =
        || both(&|| drop(black_box(pool.allocate(BLOCK).expect("the pool is nearly free"))));
    let of_mutex = || {
        both(&|| {
            // The block is freed by another call, as its owner would.
            let block = space.lock().unwrap_or_else(PoisonError::into_inner).allocate(BLOCK as u64);
            let block = black_box(block.expect("the space is nearly free"));
            let _space = space.lock().unwrap_or_else(PoisonError::into_inner);
            drop(block);
        })
    };
    let [kvmem, other] = medians(of_pool, of_mutex);
    Figure { what: "blocks, 2 threads: M/s", kvmem, other: ("one mutex", other) }
}

/// Values are looked up and copied out of a cache.
fn copies(pool: &Pool) -> Figure {
    let cache: KvCache<usize> = KvCache::new(pool);
    let keys = (pool.capacity() as usize / PAGE / 2).max(1);
    (0..keys).for_each(|key| {
        cache.insert_filled(key, PAGE, |bytes| bytes.fill(key as u8)).expect("half of the pool");
    });
    let plain = vec![1; keys * PAGE];
    let gb = PAGE as f64 / 1e9;
    let into = RefCell::new(vec![0; PAGE]);
    let round = |copy: &dyn Fn(usize, &mut [u8])| {
        let mut at = 0;
        gb * rate(|| {
            at = (at + 7) % keys;
            copy(at, &mut into.borrow_mut());
            black_box(&into);
        })
    };
    let of_cache = |at: usize, into: &mut [u8]| {
        into.copy_from_slice(&cache.get(&at).expect("it is in the cache"))
    };
    let of_memory = |at: usize, into: &mut [u8]| into.copy_from_slice(&plain[at * PAGE..][..PAGE]);
    let [kvmem, other] = medians(|| round(&of_cache), || round(&of_memory));
    Figure { what: "pages copied out: GB/s", kvmem, other: ("plain copy", other) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_figure_is_measured() {
        for figure in measure(16 << 20).expect("16 MiB") {
            let Figure { what, kvmem, other: (name, other) } = figure;
            assert!(kvmem > 0.0 && other > 0.0, "{what}: {kvmem}, {name} {other}");
        }
    }
}
