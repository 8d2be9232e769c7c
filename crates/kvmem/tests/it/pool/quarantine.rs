//! Quarantine: failed ranges are kept from use, and the rest of the pool serves on.

use std::time::Duration;

use kvmem::pool::{Block, Cause, PoolError};
use kvmem::register::RegisterError;

use super::fake::{Fake, Faults, live, registrars};
use super::{MIB, small};

const PART: usize = 128 << 10;

/// Returns two registrars; these calls of the second one fail.
fn faulty(register: &[u64]) -> Vec<Fake> {
    let mut fakes = Fake::some(2, PART as u64);
    fakes[1] = fakes[1].clone().with(Faults { register: register.to_vec(), ..Faults::default() });
    fakes
}

#[test]
fn parts_that_fail_are_left_out() {
    for in_background in [false, true] {
        let fakes = faulty(&[2, 3, 8]);
        let built = small(MIB)
            .registrars(registrars(&fakes))
            .quarantine(true)
            .in_background(in_background)
            .build();
        let pool = built.expect("most of it");
        assert_eq!(pool.wait_ready(u64::MAX, Duration::from_secs(60)), (5 * PART) as u64);
        let report = pool.report();
        let bad: Vec<_> =
            report.quarantined.iter().map(|bad| bad.range.start as usize / PART).collect();
        assert_eq!(bad, [1, 2, 7]);
        assert!(
            report
                .quarantined
                .iter()
                .all(|bad| bad.cause == Cause::Register && bad.why.contains("fake_reg_mr"))
        );
        assert_eq!((report.quarantined_bytes(), live(&fakes)), ((3 * PART) as u64, 2 * 5));
        assert!(report.to_string().contains("in quarantine, not registered"), "{report}");
        let blocks: Vec<Block> = std::iter::from_fn(|| pool.allocate(PART / 2).ok()).collect();
        assert_eq!(blocks.len(), 10);
        assert!(blocks.iter().all(|block| !bad.contains(&(block.offset() as usize / PART))));
        let metrics = pool.metrics();
        assert_eq!(
            (metrics.capacity, metrics.allocated, metrics.live),
            ((5 * PART) as u64, (5 * PART) as u64, 10)
        );
        drop(pool);
        assert_eq!(live(&fakes), 10);
        drop(blocks);
        assert_eq!(live(&fakes), 0);
    }
}

#[test]
fn if_every_part_fails_the_build_fails() {
    let fakes = faulty(&(1..=8).collect::<Vec<_>>());
    let error = small(MIB).registrars(registrars(&fakes)).quarantine(true).build().unwrap_err();
    let PoolError::Register(inner) = &error else { panic!("{error}") };
    assert!(matches!(**inner, RegisterError::ChunkFailed { .. }), "{error}");
    assert_eq!(live(&fakes), 0);
}

#[test]
fn without_quarantine_one_failure_fails_the_build() {
    for chunk in 1..=8 {
        let fakes = faulty(&[chunk]);
        assert!(small(MIB).registrars(registrars(&fakes)).build().is_err());
        assert_eq!(live(&fakes), 0, "chunk {chunk}");
    }
}

#[test]
fn callers_quarantine_bad_blocks() {
    let pool = small(MIB).build().expect("little memory");
    let bad = pool.allocate(5000).expect("room");
    let range = bad.range();
    pool.quarantine_block(bad, "the NIC says IBV_WC_REM_ACCESS_ERR");
    let report = pool.report();
    assert_eq!(
        (report.quarantined[0].range.clone(), report.quarantined[0].cause),
        (range.clone(), Cause::Quarantined)
    );
    assert_eq!(pool.ready_bytes(), (MIB - 5000) as u64);
    assert_eq!((pool.metrics().allocated, pool.metrics().free), (0, (MIB - 5000) as u64));
    let mut blocks: Vec<Block> = std::iter::from_fn(|| pool.allocate(1000).ok()).collect();
    assert!(
        blocks.iter().all(|block| block.range().end <= range.start || block.offset() >= range.end)
    );
    // A block of another pool is only freed.
    let other = small(MIB).build().expect("little memory");
    other.quarantine_block(blocks.pop().expect("many"), "not ours");
    assert_eq!((other.ready_bytes(), other.report().quarantined.len()), (MIB as u64, 0));
    // The quarantine ends with the pool.
    drop((blocks, pool));
}
