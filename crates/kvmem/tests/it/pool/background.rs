//! Initialization in the background: the first parts are used while the rest is populated and
//! registered.

use std::time::Duration;

use kvmem::arena::CancelToken;
use kvmem::pool::{Block, Pool, PoolBuilder, PoolError};
use kvmem::register::Policy;

use super::fake::{Fake, Gate, live, registrars};
use super::{MIB, small};

const PART: usize = 128 << 10;
const LONG: Duration = Duration::from_secs(60);

fn builder(fakes: &[Fake]) -> PoolBuilder {
    small(MIB + PART / 2).registrars(registrars(fakes)).in_background(true)
}

/// Registrars that register the first parts, and wait for the gate in the next one.
fn held_after(parts: usize, count: usize) -> (Vec<Fake>, Gate) {
    let gate = Gate::after(count * parts);
    (Fake::some(count, PART as u64).into_iter().map(|fake| fake.behind(&gate)).collect(), gate)
}

#[test]
fn blocks_come_only_from_ready_parts() {
    let (fakes, gate) = held_after(2, 2);
    let pool = builder(&fakes).build().expect("little memory");
    let report = pool.report();
    assert_eq!(report.capacity_bytes, (MIB + PART / 2) as u64);
    let mut blocks: Vec<Block> = Vec::new();
    let mut not_ready = 0;
    while blocks.len() < 4 * 8 + 2 {
        match pool.allocate(PART / 4) {
            Ok(mut block) => {
                // Parts become ready in order of addresses, each with its keys.
                assert!(
                    block.range().end <= pool.ready_bytes(),
                    "{block:?} of {}",
                    pool.ready_bytes()
                );
                assert_eq!(block.keys().expect("registered").len(), 2);
                block.bytes_mut().fill(1);
                blocks.push(block);
            }
            Err(PoolError::NotReady { ready, capacity, .. }) => {
                assert!(ready <= capacity && capacity == pool.capacity());
                not_ready += 1;
                if blocks.len() >= 2 * 4 {
                    gate.open();
                }
                pool.wait_ready(ready + 1, LONG);
            }
            Err(error) => panic!("{error}"),
        }
    }
    assert!(not_ready > 0, "the whole pool was ready at once");
    assert_eq!(pool.wait_ready(u64::MAX, LONG), pool.capacity());
    assert!(!pool.is_initializing());
    assert!(
        matches!(pool.allocate(1).unwrap_err(), PoolError::Allocate(_)),
        "full, and no more will come"
    );
    assert_eq!(live(&fakes), 2 * 9);
    let report = pool.report();
    assert_eq!(report.registered.expect("all").keys, 18);
    assert_eq!((report.ready_bytes, report.stopped), (pool.capacity(), None));
    drop((pool, blocks));
    assert_eq!(live(&fakes), 0);
}

#[test]
fn metrics_exclude_parts_that_are_not_ready() {
    let (fakes, gate) = held_after(2, 1);
    let pool = builder(&fakes).build().expect("little memory");
    let first = pool.wait_ready(PART as u64, LONG);
    assert!(first >= PART as u64);
    let before = pool.metrics();
    assert!(
        before.capacity < pool.capacity() && before.allocated == 0 && before.live == 0,
        "{before:?}"
    );
    assert!(pool.wait_ready(u64::MAX, Duration::from_millis(1)) <= 2 * PART as u64);
    assert!(matches!(pool.grow_to(pool.capacity()), Err(PoolError::Initializing)));
    assert!(matches!(pool.shrink(), Err(PoolError::Initializing)));
    gate.open();
    pool.wait_ready(u64::MAX, LONG);
    assert_eq!(pool.metrics().capacity, pool.capacity());
}

#[test]
fn dropping_the_pool_ends_the_initialization() {
    for parts in [0, 1, 3] {
        let (fakes, gate) = held_after(parts, 2);
        let pool = builder(&fakes).build().expect("little memory");
        pool.wait_ready((parts * PART) as u64, LONG);
        let block = pool.allocate(10).ok();
        assert_eq!(block.is_some(), parts > 0);
        let opening = std::thread::spawn(move || gate.open());
        drop(pool);
        opening.join().expect("no panic");
        assert_eq!(live(&fakes) == 0, block.is_none());
        if let Some(mut block) = block {
            block.bytes_mut().fill(3);
            assert_eq!(block.keys().expect("registered").len(), 2);
        }
        assert_eq!(live(&fakes), 0);
    }
}

#[test]
fn after_a_cancellation_the_ready_parts_serve_on() {
    let (fakes, gate) = held_after(2, 1);
    let cancel = CancelToken::new();
    let pool = builder(&fakes).cancel(cancel.clone()).build().expect("little memory");
    pool.wait_ready(2 * PART as u64, LONG);
    cancel.cancel();
    gate.open();
    let ready = pool.wait_ready(u64::MAX, LONG);
    assert!((2 * PART as u64..pool.capacity()).contains(&ready));
    assert!(!pool.is_initializing() && pool.report().stopped.is_some());
    let blocks: Vec<Block> = std::iter::from_fn(|| pool.allocate(PART).ok()).collect();
    assert_eq!((blocks.len() * PART) as u64, ready);
    assert_eq!(live(&fakes), blocks.len());
}

#[test]
fn without_registrars_the_background_thread_only_populates() {
    let pool = small(MIB).in_background(true).boundary(PART as u64).build().expect("little memory");
    let report = pool.report();
    assert_eq!(
        (pool.wait_ready(u64::MAX, LONG), report.boundary_bytes),
        (MIB as u64, Some(PART as u64))
    );
    assert_eq!(pool.report().populated.expect("all of it").bytes, MIB as u64);
    assert_eq!(pool.allocate_batch(PART, 8).expect("all of it").len(), 8);
}

#[test]
fn a_listener_may_have_the_last_clone() {
    for policy in [Policy::Sequential, Policy::all_at_once()] {
        last_clone_in_a_listener(policy);
    }
}

fn last_clone_in_a_listener(policy: Policy) {
    use std::sync::{Arc, Mutex};
    let (fakes, gate) = held_after(1, 3);
    let kept: Arc<Mutex<Option<Pool>>> = Arc::default();
    let taken = Arc::clone(&kept);
    let pool = builder(&fakes)
        .policy(policy)
        .on_register(move |_| drop(taken.lock().expect("no panic").take()))
        .build()
        .expect("little memory");
    *kept.lock().expect("no panic") = Some(pool);
    gate.open();
    for _ in 0..20_000 {
        if live(&fakes) == 0 && kept.lock().expect("no panic").is_none() {
            return;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    panic!("{} keys are live", live(&fakes));
}

#[test]
fn a_panic_of_a_registrar_ends_only_the_initialization() {
    let mut fakes = Fake::some(1, PART as u64);
    fakes[0] =
        fakes[0].clone().with(super::fake::Faults { panic_at: Some(3), ..Default::default() });
    let pool = builder(&fakes).build().expect("little memory");
    assert_eq!(pool.wait_ready(u64::MAX, LONG), 2 * PART as u64);
    assert!(pool.report().stopped.expect("a reason").contains("panicked"));
    assert_eq!(std::iter::from_fn(|| pool.allocate(PART).ok().map(std::mem::forget)).count(), 2);
}
