//! The automatic policy on the two published machines, in virtual time: it stays close to the
//! better of the fixed policies.

use std::sync::Arc;

use kvmem::arena::{PageSize, Region};
use kvmem::register::{Outcome, Policy, RegisterError, RegistrationSet};
use kvmem_testkit::simulated::{CallCosts, Costs, Fault, NicLimits, Published, SimulatedMachine};

fn region(gib: usize) -> Arc<Region> {
    // Only addresses; no test touches the memory.
    Arc::new(Region::builder(gib << 30).ladder(PageSize::Thp).map().expect("addresses"))
}

/// Registers and deregisters; returns the total seconds and the outcome.
fn run(machine: &SimulatedMachine, region: &Arc<Region>, policy: Policy) -> (f64, Outcome) {
    let builder = RegistrationSet::builder()
        .registrars(machine.nics())
        .policy(policy)
        .platform(machine.platform());
    let start = machine.platform().now();
    let mut set = builder.register(Arc::clone(region)).expect("no limit is hit");
    set.deregister().expect("nothing fails");
    let seconds = (machine.platform().now() - start).as_secs_f64();
    let counts = machine.counts();
    assert_eq!((machine.live_keys(), counts.unknown_keys), (0, 0));
    assert!(
        counts.max_untouched_in_flight <= 1,
        "untouched memory is registered by one registrar at a time"
    );
    (seconds, set.outcome().clone())
}

#[test]
fn auto_is_close_to_the_better_fixed_policy_on_both_published_machines() {
    for published in Published::ALL {
        let region = region((published.len_bytes >> 30) as usize);
        for resident in [true, false] {
            let fixed = if resident {
                [published.resident_sequential, published.resident_parallel]
            } else {
                [published.untouched_sequential, published.untouched_parallel]
            };
            let machine = published.machine(resident);
            let (seconds, outcome) = run(&machine, &region, Policy::Auto);
            let name = published.name;
            // The published figures, and the same policies in this library.
            let (sequential, _) = run(&published.machine(resident), &region, Policy::Sequential);
            let (parallel, _) = run(&published.machine(resident), &region, Policy::all_at_once());
            assert!(
                seconds <= 1.10 * sequential.min(parallel),
                "{name}, {resident}: {seconds} s, {outcome}"
            );
            for policy in fixed {
                let all = policy.register + policy.deregister.unwrap_or(0.0);
                assert!(
                    seconds <= 1.10 * all,
                    "{name}, {resident}: {seconds} s, published {all} s, {outcome}"
                );
            }
            let measured = outcome.calibration.expect("calibration is possible");
            let wins =
                published.resident_parallel.register < published.resident_sequential.register;
            assert_eq!(
                outcome.chosen(),
                if wins { "parallel" } else { "sequential" },
                "{name}: {measured:?}"
            );
            assert_eq!(outcome.populated.bytes > 0, !resident);
            assert_eq!(outcome.keys, published.nics, "one key for everything");
            // A second run gives the same result, to the nanosecond.
            assert_eq!(
                run(&published.machine(resident), &region, Policy::Auto),
                (seconds, outcome)
            );
        }
    }
}

#[test]
fn calibration_uses_chunks_if_there_are_enough() {
    for (resident, chosen) in [
        (SimulatedMachine::parallel_wins(true), "parallel"),
        (SimulatedMachine::parallel_loses(true), "sequential"),
    ] {
        for nic in 0..8 {
            let limits = NicLimits { max_bytes: 1 << 30, ..NicLimits::default() };
            resident.nic(nic).expect("there are eight").set_limits(limits);
        }
        let (_, outcome) = run(&resident, &region(200), Policy::Auto);
        assert_eq!((outcome.chosen(), outcome.keys), (chosen, 1600));
        // Real work: nothing was registered twice.
        assert_eq!(resident.counts().registers, 1600);
    }
}

#[test]
fn threads_are_added_while_they_gain() {
    // A lock around 40 % of each call: two at once gain, more than four do not.
    let call = CallCosts {
        ms_per_gib: 20.0,
        serial_share: 0.4,
        serial_bytes: 64 << 20,
        ..CallCosts::default()
    };
    let costs = Costs { register: call, ..Costs::default() };
    let machine = SimulatedMachine::builder().costs(costs).cores(64).nics(8).resident(true).build();
    let (_, outcome) = run(&machine, &region(64), Policy::Auto);
    let measured = outcome.calibration.expect("calibration is possible");
    assert!((2..=4).contains(&outcome.threads), "{outcome}");
    assert!(measured.parallel_gib_per_s > 1.8 * measured.sequential_gib_per_s, "{measured:?}");
}

#[test]
fn a_failed_calibration_is_abandoned_and_leaves_no_keys() {
    let machine = SimulatedMachine::parallel_wins(true);
    let nic = machine.nic(1).expect("there are eight");
    nic.inject(Fault::register(0));
    let (_, outcome) = run(&machine, &region(64), Policy::Auto);
    assert_eq!(
        (outcome.calibration, outcome.threads),
        (None, 1),
        "an unmeasured number is not chosen"
    );
    // A call that fails every time is an error.
    nic.inject(Fault::register(0).forever());
    let builder =
        RegistrationSet::builder().registrars(machine.nics()).platform(machine.platform());
    let error = builder.register(region(64)).unwrap_err();
    assert!(
        matches!(&error, RegisterError::ChunkFailed { error, .. } if error.device == "simulated:1"),
        "{error}"
    );
    assert_eq!(machine.live_keys(), 0);
}

#[test]
fn a_slice_that_cannot_be_deregistered_is_reported() {
    let machine = SimulatedMachine::parallel_wins(true);
    machine.nic(0).expect("there are eight").inject(Fault::deregister(0).forever());
    let region = region(64);
    let builder =
        RegistrationSet::builder().registrars(machine.nics()).platform(machine.platform());
    let error = builder.register(Arc::clone(&region)).unwrap_err();
    let RegisterError::DeregisterFailed { kept } = &error else { panic!("{error}") };
    assert_eq!(kept[0].device, "simulated:0");
    assert_eq!(machine.live_keys(), 1);
    assert!(region.discard(..4096).is_err(), "its pages stay");
}

#[test]
fn deregistering_in_parallel_is_never_slower() {
    for published in Published::ALL {
        let region = region((published.len_bytes >> 30) as usize);
        let deregister = |policy| {
            let machine = published.machine(true);
            let builder = RegistrationSet::builder()
                .registrars(machine.nics())
                .platform(machine.platform())
                .policy(policy);
            let mut set = builder.register(Arc::clone(&region)).expect("no limit is hit");
            set.deregister().expect("nothing fails").seconds
        };
        let one_after_another = published.resident_sequential.deregister.unwrap_or(f64::INFINITY);
        // The sequential policy also deregisters one key after another.
        let sequential = deregister(Policy::Sequential);
        assert!(sequential <= 1.02 * one_after_another, "{}", published.name);
        for policy in [Policy::all_at_once(), Policy::Auto] {
            assert!(deregister(policy) <= sequential / 4.0, "{}", published.name);
        }
    }
}
