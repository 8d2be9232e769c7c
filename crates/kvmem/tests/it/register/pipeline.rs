//! Populating and registering overlap, in virtual time: chunks are registered while the next ones
//! are populated.

use std::sync::Arc;
use std::time::Duration;

use kvmem::arena::{CancelToken, PageSize, Region};
use kvmem::register::{Outcome, Policy, RegisterError, RegistrationSet};
use kvmem_testkit::simulated::{
    CallCosts, Costs, Fault, NicLimits, PopulateCosts, SimulatedMachine,
};

const GIB: u64 = 1 << 30;

/// Addresses; no test touches the memory.
fn untouched(bytes: usize) -> Arc<Region> {
    Arc::new(Region::builder(bytes).ladder(PageSize::Thp).map().expect("addresses"))
}

/// A machine whose registrars take chunks of up to 1 GiB.
fn machine(nics: usize, cores: usize, ms_per_gib: f64, gib_per_s: f64) -> SimulatedMachine {
    let register = CallCosts { ms_per_gib, ..CallCosts::default() };
    let populate = PopulateCosts { gib_per_s: gib_per_s / 4.0, max_gib_per_s: gib_per_s };
    let costs = Costs { register, populate, ..Costs::default() };
    let limits = NicLimits { max_bytes: GIB, ..NicLimits::default() };
    let builder = SimulatedMachine::builder().cores(cores).nics(nics).costs(costs).limits(limits);
    builder.build()
}

fn register(
    machine: &SimulatedMachine,
    region: &Arc<Region>,
    policy: Policy,
) -> Result<(f64, Outcome), RegisterError> {
    let builder = RegistrationSet::builder()
        .registrars(machine.nics())
        .policy(policy)
        .platform(machine.platform());
    let start = machine.platform().now();
    let mut set = builder.register(Arc::clone(region))?;
    let seconds = (machine.platform().now() - start).as_secs_f64();
    let outcome = set.outcome().clone();
    set.deregister().expect("nothing fails");
    assert_eq!(machine.live_keys(), 0);
    Ok((seconds, outcome))
}

#[test]
fn one_registrar_takes_little_longer_than_the_slower_of_both() {
    // As a GPU: one registrar, and pages that are populated 2 times as fast, as fast, and half as
    // fast as they are registered.
    for (ms_per_gib, gib_per_s) in [(20.0, 100.0), (20.0, 50.0), (37.0, 13.5)] {
        for gib in [8usize, 32, 96] {
            let region = untouched(gib << 30);
            let machine = machine(1, 16, ms_per_gib, gib_per_s);
            let (seconds, outcome) = register(&machine, &region, Policy::Auto).expect("no limit");
            let (populating, registering) =
                (gib as f64 / gib_per_s, gib as f64 * (ms_per_gib + 0.02) / 1e3);
            let longer = populating.max(registering);
            let wanted = if gib == 8 { 1.3 } else { 1.15 };
            assert!(seconds <= wanted * longer, "{gib} GiB: {seconds} s, longer {longer} s");
            assert_eq!((outcome.keys, outcome.threads), (gib, 1));
            assert_eq!(outcome.populated.bytes, region.len() as u64);
            assert!(outcome.register_seconds >= registering * 0.99, "{outcome}");
            // Every byte was resident when it was registered.
            assert_eq!(machine.counts().max_untouched_in_flight, 0);
        }
    }
}

#[test]
fn several_registrars_are_compared_on_the_first_step() {
    let region = untouched(96 << 30);
    let machine = machine(4, 16, 20.0, 50.0);
    let (seconds, outcome) = register(&machine, &region, Policy::Auto).expect("no limit");
    assert_eq!((outcome.chosen(), outcome.keys), ("parallel", 4 * 96));
    assert!(outcome.calibration.is_some());
    assert!(seconds <= 1.25 * (96.0 / 50.0), "{seconds} s");
    assert_eq!(machine.counts().max_untouched_in_flight, 0);
    assert_eq!(machine.counts().registers, 4 * 96, "nothing was registered twice");
}

#[test]
fn without_a_free_core_all_is_populated_first() {
    let region = untouched(32 << 30);
    let machine = machine(1, 1, 20.0, 50.0);
    let (seconds, outcome) = register(&machine, &region, Policy::Auto).expect("no limit");
    let both = outcome.populated.seconds + outcome.register_seconds;
    assert!((seconds - both).abs() < 1e-6, "{seconds} s, {both} s");
}

#[test]
fn a_failure_in_the_middle_leaves_nothing_registered() {
    let region = untouched(32 << 30);
    for nth in [0, 1, 15, 31] {
        let machine = machine(1, 16, 20.0, 50.0);
        machine.nic(0).expect("one").inject(Fault::register(nth));
        let error = register(&machine, &region, Policy::Auto).expect_err("injected");
        assert!(matches!(error, RegisterError::ChunkFailed { .. }), "{error}");
        assert_eq!((machine.live_keys(), machine.counts().registers), (0, nth + 1));
    }
    // Memory ends while chunks are registered.
    let machine = SimulatedMachine::builder()
        .cores(16)
        .nics(1)
        .limits(NicLimits { max_bytes: GIB, ..NicLimits::default() })
        .memory_bytes(10 << 30)
        .build();
    let error = register(&machine, &region, Policy::Auto).expect_err("too little memory");
    assert!(matches!(error, RegisterError::Populate(_)), "{error}");
    assert_eq!(machine.live_keys(), 0);
}

#[test]
fn cancelling_ends_both() {
    let region = untouched(32 << 30);
    let machine = machine(1, 16, 20.0, 50.0);
    let cancel = CancelToken::new();
    let token = cancel.clone();
    let error = RegistrationSet::builder()
        .registrars(machine.nics())
        .platform(machine.platform())
        .cancel(cancel)
        .progress(move |progress| {
            if progress.ready_bytes >= 4 * GIB {
                token.cancel();
            }
        })
        .register(region)
        .expect_err("cancelled");
    let RegisterError::Cancelled { done, total } = error else { panic!("{error}") };
    assert!((4 * GIB..8 * GIB).contains(&done) && total == 32 * GIB, "{done} of {total}");
    assert_eq!(machine.live_keys(), 0);
    let spent = machine.platform().now();
    assert!(spent < Duration::from_millis(400), "{spent:?}");
}
