//! Residency: which bytes are resident, and how they become resident.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use kvmem::arena::{ArenaError, CancelToken, Errno, Populate, ProgressOptions};
use kvmem::register::Platform;
use kvmem_testkit::simulated::{CallCosts, SimulatedMachine};

use super::{GIB, PLAIN, addresses, fixed, machine, register};

#[test]
fn all_calls_that_begin_before_memory_is_resident_fault_it_in() {
    let costs = CallCosts { untouched_ms_per_gib: 40.0, untouched_contention: 2.0, ..PLAIN };
    // 10 + 40 × (1 + 2 × 1); the memory is resident for the next run.
    let both = machine(costs, 2, false);
    let region = addresses(GIB);
    assert_eq!(fixed(&both, &region, true).0, 0.130);
    assert_eq!((both.counts().max_in_flight, both.counts().max_untouched_in_flight), (2, 2));
    assert_eq!(fixed(&both, &region, true).0, 0.010);
    let one = machine(costs, 2, false);
    assert_eq!(fixed(&one, &region, false).0, 0.060);
    assert_eq!((one.counts().max_in_flight, one.counts().max_untouched_in_flight), (1, 1));
}

#[test]
fn populating_takes_time_for_missing_bytes_and_reports_progress() {
    let machine = machine(PLAIN, 1, false);
    let region = addresses(64 * GIB);
    assert_eq!(machine.resident_bytes(&region, 0..64 * GIB), Ok(0));
    // 10 GiB/s a thread, 80 at most.
    let done = machine
        .populate(&region, 0..8 * GIB, Populate::threads(2), &ProgressOptions::new())
        .expect("room");
    assert_eq!((done.bytes, done.seconds, done.threads), (8 << 30, 0.4, 2));
    let seen = Arc::new(Mutex::new(Vec::new()));
    let listener = Arc::clone(&seen);
    let options = ProgressOptions::new().progress(move |progress| {
        listener.lock().expect("no panic").push((progress.done_bytes, progress.elapsed));
    });
    let done = machine.populate(&region, 0..32 * GIB, Populate::Auto, &options).expect("room");
    assert_eq!((done.bytes, done.threads), (32 << 30, 8));
    assert!((done.seconds - 0.3).abs() < 1e-6, "{done:?}");
    let seen = seen.lock().expect("no panic");
    assert_eq!(seen.len(), 64);
    assert!(seen.windows(2).all(|pair| pair[0].0 < pair[1].0 && pair[0].1 <= pair[1].1));
    assert_eq!(seen.last(), Some(&(32 << 30, Duration::from_secs_f64(done.seconds))));
    assert_eq!(machine.resident_bytes(&region, GIB..64 * GIB), Ok(31 << 30));
    assert_eq!(
        machine.populate(&region, 0..GIB, Populate::None, &options).expect("nothing").bytes,
        0
    );
    assert!(matches!(
        machine.resident_bytes(&region, 0..65 * GIB),
        Err(ArenaError::OutOfBounds { .. })
    ));
    machine.discard(&region, ..16 * GIB).expect("within");
    machine.touch(&region, 15 * GIB..).expect("within");
    assert_eq!(machine.resident_bytes(&region, 0..64 * GIB), Ok(49 << 30));
}

#[test]
fn populating_stops_when_cancelled_or_out_of_time() {
    let machine = machine(PLAIN, 1, false);
    let region = addresses(64 * GIB);
    let cancel = CancelToken::new();
    let options = ProgressOptions::new().cancel(cancel.clone()).progress({
        let cancel = cancel.clone();
        move |progress| {
            if progress.done_bytes >= 4 << 30 {
                cancel.cancel()
            }
        }
    });
    let error = machine.populate(&region, 0..64 * GIB, Populate::threads(1), &options).unwrap_err();
    assert_eq!(error, ArenaError::Cancelled { done: 4 << 30, total: 64 << 30 });
    assert_eq!(machine.resident_bytes(&region, 0..64 * GIB), Ok(4 << 30));
    // 2 s of virtual time at 10 GiB/s; 4 GiB are resident and take none. A chunk is 1 GiB.
    let budget = Duration::from_secs(2);
    let options = ProgressOptions::new().time_budget(budget);
    let error = machine.populate(&region, 0..64 * GIB, Populate::threads(1), &options).unwrap_err();
    assert_eq!(error, ArenaError::OverBudget { budget, done: 24 << 30, total: 64 << 30 });
}

#[test]
fn memory_is_limited() {
    let machine = SimulatedMachine::builder().memory_bytes(2 << 30).build().expect("good costs");
    let region = addresses(4 * GIB);
    assert_eq!(machine.headroom(2 << 30), Ok(()));
    assert!(matches!(
        machine.headroom((2 << 30) + 1),
        Err(ArenaError::NoHeadroom { need: 2147483649, .. })
    ));
    let populate = |range| {
        machine
            .populate(&region, range, Populate::Auto, &ProgressOptions::new())
            .map(|done| done.bytes)
    };
    assert_eq!(populate(0..GIB), Ok(1 << 30));
    assert!(matches!(populate(GIB..3 * GIB), Err(ArenaError::NoHeadroom { .. })));
    assert_eq!(populate(0..2 * GIB), Ok(2 << 30), "half of it is resident");
    let nic = machine.nic(0).expect("there are eight");
    let error = register(&*nic, &region, 0, 3 * GIB).unwrap_err();
    assert_eq!(error.errno, Errno::ENOMEM);
    register(&*nic, &region, 0, 2 * GIB).expect("all of it is resident");
}
