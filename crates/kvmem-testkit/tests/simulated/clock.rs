//! Virtual time, compared with hand calculations.

use std::sync::atomic::{AtomicUsize, Ordering};

use kvmem::arena::{Errno, Populate, ProgressOptions};
use kvmem::register::Platform;
use kvmem_testkit::simulated::{Action, CallCosts, LoggedCall};

use super::{GIB, PLAIN, addresses, ends, fixed, machine, register, together};

#[test]
fn calls_without_contention_overlap() {
    assert_eq!(ends(&machine(PLAIN, 4, true), 4, 2), vec![vec![10_000, 20_000]; 4]);
}

#[test]
fn work_under_the_lock_is_serial() {
    let serial = CallCosts { serial_share: 0.4, ..PLAIN };
    let machine = machine(serial, 3, true);
    // 6 ms in parallel, then 4 ms under the lock. All threads request the lock at 6, and get it at
    // 6, 10 and 14. For the second chunks they request it at 16, 20 and 24. The third thread holds
    // it until 18, so they get it at 18, 22 and 26.
    assert_eq!(
        ends(&machine, 3, 2),
        vec![vec![10_000, 22_000], vec![14_000, 26_000], vec![18_000, 30_000]]
    );
    let waited: Vec<u64> = machine.log().iter().map(|entry| entry.waited_ns / 1_000_000).collect();
    assert_eq!(waited, [0, 4, 8, 2, 2, 2]);
}

#[test]
fn one_long_call_takes_the_lock_as_often_as_many_short_ones() {
    let serial = CallCosts { serial_share: 0.4, ..PLAIN };
    let region = addresses(100 * GIB);
    let (one, many) = (machine(serial, 4, true), machine(serial, 4, true));
    let (taken, _) = fixed(&one, &region, true);
    let chunked = ends(&many, 4, 100).concat().into_iter().max();
    // 4 × 100 × 4 ms under the lock, and 6 ms before it is first taken.
    assert_eq!(((taken * 1e3).round(), chunked), (1606.0, Some(1_606_000)));
}

#[test]
fn contention_is_fixed_when_a_call_begins() {
    // Four at once: 10 × (1 + 0.5 × 3).
    let contended = CallCosts { contention: 0.5, ..PLAIN };
    assert_eq!(ends(&machine(contended, 4, true), 4, 2), vec![vec![25_000, 50_000]; 4]);
    let machine = machine(contended, 2, true);
    let region = addresses(2 * GIB);
    let nics = machine.nics();
    let times = together(&machine, 2, |n| {
        if n == 1 {
            register(&*nics[1], &region, 0, GIB / 4).expect("no limit");
        }
        register(&*nics[n], &region, 0, GIB).expect("no limit");
        machine.now().as_micros()
    });
    // Both begin at 0 and slow each other down: 15 and 3.75 ms. At 3.75 the second begins again,
    // concurrently with the first: 15 ms more, though the first ends earlier.
    assert_eq!(times, [15_000, 18_750]);
}

#[test]
fn the_earliest_thread_in_virtual_time_takes_the_next_piece() {
    // NIC 1 is four times as fast, because it registers a quarter each time. An idle thread takes
    // the next piece: which thread takes which piece depends on the virtual clock, not on the
    // system.
    let machine = machine(PLAIN, 2, true);
    let region = addresses(GIB);
    let nics = machine.nics();
    let next = AtomicUsize::new(0);
    let taken = together(&machine, 2, |n| {
        // Relaxed: the machine runs one thread at a time, and its lock orders them.
        let mine = std::iter::from_fn(|| {
            Some(next.fetch_add(1, Ordering::Relaxed)).filter(|piece| *piece < 10)
        });
        mine.inspect(|_| drop(register(&*nics[n], &region, 0, if n == 0 { GIB } else { GIB / 4 })))
            .collect::<Vec<_>>()
    });
    assert_eq!(taken, [vec![0, 5], vec![1, 2, 3, 4, 6, 7, 8, 9]]);
}

#[test]
fn the_log_records_calls_threads_and_times() {
    let costs = CallCosts { untouched_ms_per_gib: 5.0, ..PLAIN };
    let machine = machine(costs, 2, false);
    let region = addresses(4 * GIB);
    machine
        .populate(&region, 0..GIB / 4, Populate::threads(1), &ProgressOptions::new())
        .expect("room");
    let nics = machine.nics();
    let keys = together(&machine, 2, |n| {
        register(&*nics[n], &region, 2 * n * GIB, GIB).expect("no limit")
    });
    nics[0].deregister(keys[1]).unwrap_err();
    nics[0].deregister(keys[0]).expect("the key is live");
    let log = machine.log();
    let base = region.base().addr().get();
    let text: Vec<_> = log
        .iter()
        .map(|entry| {
            let at = entry.address.wrapping_sub(base) / GIB;
            let micros = (entry.start_ns / 1000, entry.end_ns / 1000);
            (entry.action, entry.nic, entry.thread, at.min(9), entry.untouched_bytes >> 20, micros)
        })
        .collect();
    assert_eq!(
        text,
        [
            (Action::Populate, None, 0, 0, 256, (0, 25_000)),
            (Action::Register, Some(0), 0, 0, 768, (25_000, 38_750)),
            (Action::Register, Some(1), 1, 2, 1024, (25_000, 40_000)),
            (Action::Deregister, Some(0), 0, 9, 0, (40_000, 40_000)),
            (Action::Deregister, Some(0), 0, 0, 768, (40_000, 50_000)),
        ]
    );
    assert_eq!(log[3].error, Some(Errno::EINVAL));
    assert!(log[1].overlaps(&log[2]) && !log[0].overlaps(&log[1]));
    let text = serde_json::to_string(&log).expect("plain data");
    assert_eq!(serde_json::from_str::<Vec<LoggedCall>>(&text).expect("what was written"), log);
    assert_eq!(machine.take_log(), log);
    assert!(machine.log().is_empty());
}
