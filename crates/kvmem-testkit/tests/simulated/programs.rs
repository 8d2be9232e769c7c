//! Any program of calls, on any machine: the result is deterministic, and the counts add up.

use kvmem::arena::{Populate, ProgressOptions, Region};
use kvmem::register::Platform;
use kvmem_testkit::simulated::{CallCosts, Costs, Fault, LoggedCall, SimulatedMachine};
use proptest::prelude::*;

use super::{GIB, addresses, register, together};

const CHUNKS: usize = 6;

#[derive(Clone, Copy, Debug)]
enum Step {
    Register(usize),
    DeregisterOldest,
    Populate(usize, usize),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => (0..CHUNKS).prop_map(Step::Register),
        2 => Just(Step::DeregisterOldest),
        1 => (0..CHUNKS, 1usize..4).prop_map(|(chunk, threads)| Step::Populate(chunk, threads)),
    ]
}

fn costs() -> impl Strategy<Value = CallCosts> {
    // Few and round times, for many ties.
    (0u8..3, 0u8..3, 0u8..3, 0u8..5, 0u8..3, 0u8..3).prop_map(
        |(call, gib, fault, share, others, faulting)| CallCosts {
            us_per_call: f64::from(call) * 1000.0,
            ms_per_gib: f64::from(gib) * 4.0,
            untouched_ms_per_gib: f64::from(fault) * 10.0,
            serial_share: f64::from(share) / 4.0,
            serial_bytes: (GIB / 3) as u64,
            contention: f64::from(others) / 2.0,
            untouched_contention: f64::from(faulting),
        },
    )
}

fn run(
    costs: Costs,
    fault: Option<(usize, u64)>,
    region: &Region,
    program: &[Vec<Step>],
) -> (SimulatedMachine, Vec<LoggedCall>) {
    let machine =
        SimulatedMachine::builder().costs(costs).nics(program.len()).build().expect("good costs");
    if let Some((nic, nth)) = fault.and_then(|(nic, nth)| machine.nic(nic).zip(Some(nth))) {
        nic.inject(Fault::register(nth));
    }
    let nics = machine.nics();
    together(&machine, program.len(), |n| {
        let mut keys = std::collections::VecDeque::new();
        for step in &program[n] {
            match *step {
                Step::Register(chunk) => {
                    keys.extend(register(&*nics[n], region, chunk * GIB, GIB).ok())
                }
                Step::DeregisterOldest => {
                    keys.pop_front()
                        .into_iter()
                        .for_each(|key| nics[n].deregister(key).expect("the key is live"));
                }
                Step::Populate(chunk, threads) => {
                    let range = chunk * GIB..(chunk + 1) * GIB;
                    machine
                        .populate(
                            region,
                            range,
                            Populate::threads(threads),
                            &ProgressOptions::new(),
                        )
                        .expect("room");
                }
            }
        }
        keys.into_iter().for_each(|key| nics[n].deregister(key).expect("the key is live"));
    });
    let log = machine.take_log();
    (machine, log)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn any_program_runs_the_same_way_twice(
        register in costs(),
        deregister in costs(),
        fault in proptest::option::of((0usize..4, 0u64..4)),
        program in proptest::collection::vec(proptest::collection::vec(step(), 0..10), 1..5),
    ) {
        let region = addresses(CHUNKS * GIB);
        let costs = Costs { register, deregister, ..Costs::default() };
        let (machine, log) = run(costs, fault, &region, &program);
        let (again, same) = run(costs, fault, &region, &program);
        prop_assert_eq!(&log, &same);
        prop_assert_eq!(machine.counts(), again.counts());

        // The log is in the order of ends. The calls of a thread do not overlap, and no call waits
        // longer than it takes.
        prop_assert!(log.is_sorted_by_key(|entry| entry.end_ns));
        for n in 0..program.len() {
            let mine: Vec<_> = log.iter().filter(|entry| entry.thread == n).collect();
            prop_assert!(mine.windows(2).all(|pair| pair[0].end_ns <= pair[1].start_ns));
            prop_assert!(mine.iter().all(|entry| entry.start_ns + entry.waited_ns <= entry.end_ns));
        }
        let end = log.last().map_or(0, |entry| entry.end_ns);
        prop_assert_eq!(machine.now().as_nanos(), u128::from(end));

        let counts = machine.counts();
        prop_assert_eq!((counts.live_keys, counts.live_bytes), (0, 0));
        prop_assert_eq!((counts.unknown_keys, machine.stalls()), (0, 0));
        let failed = log.iter().filter(|entry| entry.error.is_some()).count();
        prop_assert_eq!(counts.failed, failed as u64);
        prop_assert!(machine.nics().len() >= counts.max_in_flight);
        let touched = |chunk: usize| {
            let address = region.base().addr().get() + chunk * GIB;
            log.iter().any(|entry| entry.address == address && entry.error.is_none())
        };
        for chunk in 0..CHUNKS {
            let resident = machine.resident_bytes(&region, chunk * GIB..(chunk + 1) * GIB);
            prop_assert_eq!(resident, Ok(if touched(chunk) { GIB as u64 } else { 0 }));
        }
    }
}
