//! The simulation beside what can be computed.

use super::costs::{Costs, NS};
use super::machine::{SimulatedMachine, SimulatedOutcome};
use super::way::Way;
use super::*;
use crate::concurrency::{CallKind, RecordedCall};
use crate::suite::Named;

const CAPACITY: u64 = 16 << 30;
const CALL: u64 = 100 * NS;
const LOOP: u64 = 10 * NS;
const CALLS: u64 = 8_000;

/// Calls of the same length, allocations and frees in turns, of `sizes` sizes.
fn calls(threads: usize, sizes: u64) -> Vec<Vec<RecordedCall>> {
    let call = |thread: usize, at: u64| RecordedCall {
        kind: if at.is_multiple_of(2) { CallKind::Allocate } else { CallKind::Free },
        bytes: 4096 * (1 + (at / 2 + 1000 * thread as u64) % sizes),
        ps: CALL,
    };
    (0..threads).map(|thread| (0..200).map(|at| call(thread, at)).collect()).collect()
}

fn costs(line_ns: u64) -> Costs {
    Costs { line: line_ns * NS, metadata_lines: 4, think: LOOP }
}

fn simulated(way: &Way, line_ns: u64, cores: usize, sizes: u64) -> SimulatedOutcome {
    let recorded = calls(64, sizes);
    SimulatedMachine::new(way, costs(line_ns), &recorded, cores, CAPACITY).run(CALLS)
}

/// Returns whether the rate is that of one call in `ns` nanoseconds, within a hundredth.
fn is_one_call_in(outcome: &SimulatedOutcome, ns: u64) -> bool {
    (outcome.mops() * ns as f64 / 1e3 - 1.0).abs() < 0.01
}

#[test]
fn the_same_run_gives_the_same_figures() {
    for way in WayId::ALL {
        for cores in [2, 64] {
            let [one, other] = [(); 2].map(|()| simulated(&way.way(), 100, cores, 1000));
            assert_eq!(one, other, "{way}");
        }
    }
}

#[test]
fn every_call_is_served_once_and_ends_once() {
    for way in WayId::ALL {
        for cores in [1, 2, 17, 64, 100] {
            for line_ns in [0, 175] {
                for sizes in [1, 1000] {
                    let outcome = simulated(&way.way(), line_ns, cores, sizes);
                    let counts = (outcome.begun, outcome.ended, outcome.done);
                    let at = format!("{way} ×{cores}, {line_ns} ns, {sizes} sizes");
                    assert_eq!(counts, (CALLS, CALLS, CALLS), "{at}");
                    assert_eq!(outcome.latencies.len() as u64, CALLS, "{at}");
                }
            }
        }
    }
}

#[test]
fn one_thread_has_the_rate_of_its_calls_and_moves_no_line() {
    for way in WayId::ALL {
        let outcome = simulated(&way.way(), 175, 1, 100_000);
        assert!(is_one_call_in(&outcome, 110), "{way}: {}", outcome.mops());
        assert_eq!((outcome.transfers, outcome.percentile(50)), (0, 100.0), "{way}");
    }
}

#[test]
fn a_full_queue_passes_the_lock_and_the_metadata_at_each_call() {
    for line_ns in [45, 175] {
        let outcome = simulated(&WayId::QueueLock.way(), line_ns, 64, 1000);
        let turn = 100 + 5 * line_ns;
        assert!(is_one_call_in(&outcome, turn), "{}", outcome.mops());
        assert!((outcome.lines() - 5.0).abs() < 0.01, "{}", outcome.lines());
        // Each thread waits for the turns of all others.
        let waits = 64 * turn - 10;
        assert!((outcome.percentile(50) / waits as f64 - 1.0).abs() < 0.01);
    }
}

#[test]
fn a_spin_lock_is_between_its_bounds() {
    for line_ns in [45, 175] {
        let outcome = simulated(&WayId::SpinLock.way(), line_ns, 2, 1000);
        let ns = 1e3 / outcome.mops();
        let (never_passed, always_passed) = (110, 100 + 5 * line_ns);
        assert!(ns > f64::from(never_passed) && ns < always_passed as f64, "{ns}");
    }
}

#[test]
fn a_turn_of_the_holder_is_bounded_by_its_slots() {
    for (way, slots) in [(WayId::Combining, 16), (WayId::Combining64, 64)] {
        for cores in [2, 16, 64] {
            for line_ns in [0, 45, 175] {
                let outcome = simulated(&way.way(), line_ns, cores, 1000);
                // Two passes, each with a request and two notes of each slot.
                let bound = 2 * 3 * slots.min(cores as u64);
                let longest = outcome.longest_turn;
                assert!((1..=bound).contains(&longest), "{way} ×{cores}: {longest}");
            }
        }
    }
}

#[test]
fn combining_keeps_the_metadata_with_their_owner() {
    for line_ns in [45, 100, 175] {
        let lock = simulated(&WayId::QueueLock.way(), line_ns, 16, 1000);
        let combining = simulated(&WayId::Combining.way(), line_ns, 16, 1000);
        assert!(combining.mops() > lock.mops() && combining.lines() < lock.lines());
    }
}

#[test]
fn shards_with_a_thread_each_are_independent() {
    let one = simulated(&WayId::Shards32.way(), 175, 1, 1000).mops();
    let all = simulated(&WayId::Shards32.way(), 175, 32, 1000);
    assert!((all.mops() / one / 32.0 - 1.0).abs() < 0.02, "{}", all.mops());
    assert_eq!(all.transfers, 0);
}

#[test]
fn magazines_serve_sizes_that_come_again() {
    let again = simulated(&WayId::Magazines.way(), 175, 64, 3);
    assert!(again.hits > CALLS * 9 / 10, "{}", again.hits);
    let below = simulated(&WayId::Combining.way(), 175, 64, 3);
    assert!(again.mops() > 10.0 * below.mops(), "{} {}", again.mops(), below.mops());
    let never = simulated(&WayId::Magazines.way(), 175, 64, 1_000_000);
    assert!(never.hits == 0, "{}", never.hits);
}

#[test]
fn rows_are_reported_in_full() {
    let options = SimulateOptions {
        quick: true,
        reps: Some(1),
        threads: vec![1, 4],
        line_ns: vec![45, 175],
        ..SimulateOptions::default()
    };
    let report = run(&options, &mut ()).unwrap();
    let scenarios = <SimulatedScenario as Named>::ALL.len();
    assert_eq!(report.rows.len(), scenarios * 2 * WayId::ALL.len() * 2);
    assert!(report.rows.iter().all(|row| row.mops > 0.0 && row.p50_ns <= row.p99_ns));
    let text = report.to_string();
    for part in ["fragmented, 45 ns a transfer", "high-water, 175 ns", "combining-64", "p50/p99 ×4"]
    {
        assert!(text.contains(part), "{part} is missing in\n{text}");
    }
    let json = serde_json::to_string(&report).unwrap();
    assert_eq!(serde_json::from_str::<SimulateReport>(&json).unwrap().to_string(), text);
}
