//! Threads that enter, stay away, panic, and wait for each other.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Barrier as Rendezvous;
use std::thread;
use std::time::{Duration, Instant};

use kvmem::register::Platform;
use kvmem_testkit::simulated::SimulatedMachine;

use super::{GIB, PLAIN, addresses, machine, register, together};

#[test]
fn a_thread_that_panics_leaves() {
    let machine = machine(PLAIN, 3, true);
    let region = addresses(GIB);
    let nics = machine.nics();
    let work = |n: usize| {
        register(&*nics[n], &region, 0, GIB).expect("no limit");
        assert!(n != 1, "as planned");
        register(&*nics[n], &region, 0, GIB).expect("no limit");
    };
    let caught = together(&machine, 3, |n| catch_unwind(AssertUnwindSafe(|| work(n))).is_err());
    assert_eq!(caught, [false, true, false]);
    assert_eq!((machine.now().as_millis(), machine.stalls()), (20, 0));
}

#[test]
fn a_thread_that_ends_without_leaving_has_left() {
    let machine = machine(PLAIN, 3, true);
    let region = addresses(GIB);
    let nics = machine.nics();
    let gate = Rendezvous::new(3);
    thread::scope(|scope| {
        for n in 1..3 {
            let (machine, region, nics, gate) = (&machine, &region, &nics, &gate);
            scope.spawn(move || {
                gate.wait();
                machine.enter(n);
                register(&*nics[n], region, 0, GIB).expect("no limit");
                // It does not leave.
            });
        }
        machine.gather(3);
        gate.wait();
        machine.enter(0);
        for _ in 0..3 {
            register(&*nics[0], &region, 0, GIB).expect("no limit");
        }
        machine.leave();
    });
    // Waits for the end of the gathering, when the last of the threads has ended.
    register(&*nics[0], &region, 0, GIB).expect("no limit");
    assert_eq!((machine.now().as_millis(), machine.stalls()), (40, 0));
}

#[test]
fn a_seat_that_no_thread_takes_is_skipped() {
    let timeout = Duration::from_millis(50);
    let machine = SimulatedMachine::builder()
        .nics(1)
        .resident(true)
        .stall_timeout(timeout)
        .build()
        .expect("good costs");
    let region = addresses(GIB);
    let start = Instant::now();
    machine.gather(3);
    machine.enter(0);
    register(&*machine.nics()[0], &region, 0, GIB).expect("no limit");
    machine.leave();
    assert!(start.elapsed() >= timeout);
    assert_eq!(machine.stalls(), 1);
    // In the next one not even the first thread enters; the gathering after it waits for the
    // timeout.
    machine.gather(2);
    machine.gather(1);
    machine.enter(0);
    machine.leave();
    assert_eq!(machine.stalls(), 2);
}
