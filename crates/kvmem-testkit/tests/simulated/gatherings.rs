//! Threads that enter, stay away, panic, and wait for each other.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Barrier as Rendezvous;
use std::thread;
use std::time::{Duration, Instant};

use kvmem::register::Platform;
use kvmem_testkit::simulated::{CallCosts, SimulatedMachine};

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

#[test]
fn threads_that_wait_for_each_other_continue_after_the_timeout() {
    let timeout = Duration::from_millis(50);
    let machine = SimulatedMachine::builder()
        .nics(2)
        .resident(true)
        .stall_timeout(timeout)
        .build()
        .expect("good costs");
    let region = addresses(GIB);
    let nics = machine.nics();
    let meet = Rendezvous::new(2);
    // They wait for each other while only one of them may run.
    together(&machine, 2, |n| {
        meet.wait();
        register(&*nics[n], &region, 0, GIB).expect("no limit");
    });
    assert!(machine.stalls() > 0);
    assert_eq!(machine.counts().registers, 2);
}

#[test]
fn calls_out_of_order_have_no_effect() {
    let machine = machine(PLAIN, 1, true);
    let region = addresses(GIB);
    machine.leave();
    machine.enter(0);
    machine.enter(7);
    register(&*machine.nics()[0], &region, 0, GIB).expect("no limit");
    machine.leave();
    machine.gather(0);
    machine.enter(5);
    // A call by a thread that has not entered.
    register(&*machine.nics()[0], &region, 0, GIB).expect("no limit");
    machine.enter(0);
    machine.gather(1);
    machine.enter(0);
    machine.enter(0);
    register(&*machine.nics()[0], &region, 0, GIB).expect("no limit");
    assert_eq!(machine.now().as_millis(), 30, "within");
    machine.leave();
    machine.leave();
    assert_eq!((machine.now().as_millis(), machine.stalls()), (30, 0));
}

#[test]
fn a_thousand_gatherings() {
    let machine = machine(CallCosts { serial_share: 0.5, contention: 0.25, ..PLAIN }, 4, true);
    let region = addresses(4 * GIB);
    let nics = machine.nics();
    let gate = Rendezvous::new(4);
    let work = |n: usize| {
        for _ in 0..250 {
            for threads in [4usize, 2, 3, 1] {
                if n == 0 {
                    machine.gather(threads);
                }
                gate.wait();
                if n < threads {
                    machine.enter(n);
                    for chunk in 0..n {
                        let key = register(&*nics[n], &region, chunk * GIB, GIB).expect("no limit");
                        nics[n].deregister(key).expect("the key is live");
                    }
                    machine.leave();
                }
                gate.wait();
            }
        }
    };
    thread::scope(|scope| {
        (1..4).for_each(|n| drop(scope.spawn(move || work(n))));
        work(0);
    });
    let first = machine.log();
    assert_eq!(first.len(), 250 * 2 * (6 + 1 + 3));
    // Every round equals the first.
    let round = first.len() / 250;
    let length = first[round].start_ns - first[0].start_ns;
    for (n, entry) in first.iter().enumerate() {
        let offset = length * (n / round) as u64;
        let mut expected = first[n % round].clone();
        expected.start_ns += offset;
        expected.end_ns += offset;
        assert_eq!(*entry, expected, "entry {n}");
    }
    assert_eq!((machine.live_keys(), machine.stalls()), (0, 0));
}

#[test]
fn independent_users_take_turns() {
    let machine = machine(PLAIN, 8, true);
    let region = addresses(GIB);
    let nics = machine.nics();
    thread::scope(|scope| {
        for user in 0..4 {
            let (machine, region, nics) = (&machine, &region, &nics);
            scope.spawn(move || {
                for _ in 0..50 {
                    let start = machine.now();
                    let keys = together(machine, 2, |n| {
                        register(&*nics[2 * user + n], region, 0, GIB).expect("no limit")
                    });
                    assert!(machine.now() >= start + Duration::from_millis(10));
                    for (n, key) in keys.into_iter().enumerate() {
                        nics[2 * user + n].deregister(key).expect("the key is live");
                    }
                }
            });
        }
    });
    let counts = machine.counts();
    assert_eq!((counts.registers, counts.live_keys, counts.max_in_flight), (400, 0, 2));
    // 200 gatherings of 10 ms, and 400 calls outside of gatherings.
    assert_eq!((machine.now().as_millis(), machine.stalls()), (6000, 0));
}
