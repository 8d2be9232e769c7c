//! Metrics of setting up: counts of failures, and durations.

use kvmem::arena::{CancelToken, Numa, Populate};
use kvmem::pool::PoolBuilder;
use kvmem::pool::observe::Exporter;

use super::{MemoryRecorder, published, small};
use crate::pool::MIB;
use crate::register::fake::{Fake, Faults, registrars};

const PART: u64 = 128 << 10;
const FAILURES: &str = "kvmem_pool_registration_failures_total";

fn faulty(register: &[u64]) -> Vec<Fake> {
    let mut fakes = Fake::some(2, PART);
    fakes[1] = fakes[1].clone().with(Faults { register: register.to_vec(), ..Faults::default() });
    fakes
}

/// Builds a pool; returns the recorded metrics, and whether the pool was built.
fn building(builder: PoolBuilder) -> (MemoryRecorder, bool) {
    let recorded = MemoryRecorder::default();
    let built = metrics::with_local_recorder(&recorded, || builder.build().is_ok());
    (recorded, built)
}

#[test]
fn a_failed_registration_is_counted_even_without_a_pool() {
    let (recorded, built) = building(small(MIB).name("kv").registrars(registrars(&faulty(&[3]))));
    assert!(!built);
    assert_eq!(recorded.value(FAILURES, &[("pool", "kv"), ("registrar", "fake:1")]), 1.0);
    assert_eq!(recorded.names().len(), 1, "{:?}", recorded.names());
}

#[test]
fn each_part_that_fails_is_counted() {
    let fakes = faulty(&[2, 3, 8]);
    let (recorded, built) = building(small(MIB).registrars(registrars(&fakes)).quarantine(true));
    assert!(built);
    assert_eq!(recorded.value(FAILURES, &[("pool", "pool"), ("registrar", "fake:1")]), 3.0);
    assert_eq!(recorded.of(FAILURES).len(), 1, "the other one did not fail");
}

#[test]
fn a_failed_mapping_is_counted() {
    let (recorded, built) = building(small(MIB).numa(Numa::Bind(vec![1023])));
    assert!(!built);
    assert_eq!(recorded.value("kvmem_pool_populate_failures_total", &[]), 1.0);
}

#[test]
fn a_cancelled_build_is_not_counted_as_a_failure() {
    let cancel = CancelToken::new();
    cancel.cancel();
    let (recorded, built) =
        building(small(MIB).cancel(cancel).registrars(registrars(&faulty(&[]))));
    assert!(!built);
    assert!(recorded.is_empty(), "{:?}", recorded.names());
}

#[test]
fn quarantine_and_seconds_are_published() {
    let mut fakes = faulty(&[4]);
    fakes.iter_mut().for_each(|fake| fake.takes = std::time::Duration::from_millis(2));
    let builder = small(MIB).max_size(2 * MIB).registrars(registrars(&fakes)).quarantine(true);
    let pool = builder.populate(Populate::threads(2)).build().expect("most of it");
    let exporter = Exporter::new().pool(&pool);
    let bad = pool.allocate(5000).expect("room");
    pool.quarantine_block(bad, "the NIC says so");
    let recorded = published(&exporter);
    let value = |name: &str| recorded.value(&format!("kvmem_pool_{name}"), &[]);
    let (capacity, bad) = (MIB as f64, PART as f64 + 5000.0);
    assert_eq!((value("capacity_bytes"), value("quarantined_bytes")), (capacity, bad));
    assert_eq!((value("ready_bytes"), value("free_bytes")), (capacity - bad, capacity - bad));
    assert_eq!((value("allocated_bytes"), value("allocations")), (0.0, 0.0));
    assert!(value("populate_seconds") > 0.0);
    let registering = |recorded: &MemoryRecorder, registrar: &str| {
        recorded.value("kvmem_pool_register_seconds", &[("registrar", registrar)])
    };
    assert!(
        registering(&recorded, "fake:0") >= 7.0 * 0.002,
        "{}",
        registering(&recorded, "fake:0")
    );
    assert!(
        registering(&recorded, "fake:1") >= 7.0 * 0.002,
        "{}",
        registering(&recorded, "fake:1")
    );

    pool.grow_to(2 * MIB as u64).expect("within the maximum size");
    let grown = published(&exporter);
    assert_eq!(grown.value("kvmem_pool_capacity_bytes", &[]), 2.0 * capacity);
    assert_eq!(grown.value("kvmem_pool_free_bytes", &[]), 2.0 * capacity - bad);
    assert!(registering(&grown, "fake:0") >= registering(&recorded, "fake:0") + 8.0 * 0.002);
}
