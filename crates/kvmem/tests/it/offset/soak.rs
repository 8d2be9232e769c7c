//! A long run; see `kvmem_testkit::soak`.
//!
//! `KVMEM_SOAK_OPS=100000000 cargo test --release -p kvmem --test it soak -- --nocapture` sets its
//! length; `KVMEM_SOAK_SEED` selects another sequence.

use std::time::Instant;

use kvmem::offset::OffsetAllocator;
use kvmem::slab::ExtentCache;
use kvmem_testkit::driver::tested_allocator::TestedAllocator;
use kvmem_testkit::soak::soak;

pub(crate) fn setting(name: &str, default: u64) -> u64 {
    match std::env::var(name) {
        Ok(value) => {
            value.replace('_', "").parse().unwrap_or_else(|error| panic!("{name}={value}: {error}"))
        }
        Err(_) => default,
    }
}

#[test]
fn long_lives() {
    run::<OffsetAllocator>(80_000);
}

/// The same above caches.
#[test]
fn long_lives_with_caches() {
    run::<ExtentCache>(50_000);
}

fn run<A: TestedAllocator>(ops: u64) {
    let (ops, seed) = (setting("KVMEM_SOAK_OPS", ops), setting("KVMEM_SOAK_SEED", 1));
    let start = Instant::now();
    let report = soak::<A>(ops, seed, |report| {
        if report.ages % 10 == 0 {
            eprintln!("{} operations in {:.0?}", report.ops, start.elapsed());
        }
    });
    let report = report.unwrap_or_else(|failure| panic!("seed {seed}: {failure}"));
    let seconds = start.elapsed().as_secs_f64();
    eprintln!(
        "seed {seed}, {seconds:.1} s, {:.0} operations a second\n{report}",
        report.ops as f64 / seconds
    );
    assert_eq!(report.ops, ops);
}
