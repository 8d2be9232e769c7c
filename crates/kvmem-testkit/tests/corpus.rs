//! The stored inputs of the fuzz targets: every one of them passes, and together they reach the
//! common outcomes.

use std::path::Path;

use kvmem_testkit::driver::{self, Tally};
use kvmem_testkit::{codec, slabs};

/// Returns the stored inputs of a target.
fn stored(target: &str) -> Vec<Vec<u8>> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus").join(target);
    let files = std::fs::read_dir(folder).expect("the corpus is stored");
    files.map(|file| std::fs::read(file.unwrap().path()).unwrap()).collect()
}

fn assert_reached(tally: &Tally, outcomes: &[&str]) {
    for what in outcomes {
        assert!(tally.of(what) > 0, "no step has the outcome “{what}”:\n{tally}");
    }
}

#[test]
fn offsets() {
    let mut tally = Tally::default();
    for bytes in stored("offset") {
        let (config, ops) = codec::decode(&bytes).expect("a valid input");
        tally.add(&driver::run(&config, &ops).unwrap());
    }
    assert_reached(
        &tally,
        &["allocate: granted", "free", "allocate_scattered: granted in several", "extend: granted"],
    );
}

#[test]
fn cached_spaces() {
    let mut tally = Tally::default();
    for bytes in stored("extents") {
        let (config, ops) = codec::decode_cached(&bytes).expect("a valid input");
        tally.add(&driver::run(&config, &ops).unwrap());
    }
    assert_reached(
        &tally,
        &["allocate: granted", "allocate: failed", "something is cached", "reclaims"],
    );
}

#[test]
fn blocks() {
    let mut tally = Tally::default();
    for bytes in stored("slab") {
        let (config, ops) = slabs::codec::decode(&bytes).expect("a valid input");
        tally.add(&slabs::run(&config, &ops).unwrap());
    }
    let outcomes = ["alloc", "free_chain of several", "trim", "tick with no thread left"];
    assert_reached(&tally, &outcomes);
}
