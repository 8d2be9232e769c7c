//! In the background: the beginning is usable before the end, and a failure deregisters everything.

use std::sync::Arc;
use std::time::Duration;

use kvmem::arena::{CancelToken, PageSize, Region};
use kvmem::register::{Phase, Policy, RegisterError, RegistrationBuilder, RegistrationSet};

use super::fake::{Fake, Faults, Gate, live, registrars};

const MIB: usize = 1 << 20;
const LONG: Duration = Duration::from_secs(60);

fn region() -> Region {
    Region::builder(16 * MIB).ladder(PageSize::Base).map().expect("a little memory")
}

/// Two registrars that register the first `mib` MiB, and wait for the gate in the next chunk.
fn held_after(mib: usize) -> (Vec<Fake>, Gate) {
    let gate = Gate::after(2 * mib);
    (Fake::some(2, MIB as u64).into_iter().map(|fake| fake.behind(&gate)).collect(), gate)
}

fn builder(fakes: &[Fake]) -> RegistrationBuilder {
    RegistrationSet::builder().registrars(registrars(fakes)).policy(Policy::Sequential)
}

#[test]
fn the_beginning_can_be_used_while_the_rest_is_registered() {
    let (fakes, gate) = held_after(3);
    let work = builder(&fakes).register_in_background(region()).expect("no limit is hit");
    let ready = work.wait_ready(2 * MIB as u64, LONG);
    assert!(ready >= 2 * MIB as u64 && !work.is_finished());
    let key = work.key_for("fake:1", MIB..2 * MIB).expect("it is registered");
    let far = work.key_for("fake:1", 15 * MIB..16 * MIB);
    assert!(matches!(far, Err(RegisterError::OutOfBounds { len, .. }) if len < 16 * MIB));
    assert!(matches!(
        work.key_for("fake:1", MIB - 1..MIB + 1),
        Err(RegisterError::Straddles { .. })
    ));
    assert!(matches!(work.key_for("unknown", 0..1), Err(RegisterError::NoSuchDevice { .. })));
    gate.open();
    assert_eq!(
        work.wait_ready(u64::MAX, LONG),
        16 * MIB as u64,
        "ends when all is ready, not at the timeout"
    );
    assert!(work.is_finished());
    let progress = work.progress();
    assert_eq!((progress.phase, progress.done_bytes), (Phase::Register, 32 * MIB as u64));
    assert_eq!(work.key_for("fake:1", MIB..2 * MIB), Ok(key), "the key is still valid");
    let set = work.wait().expect("nothing fails");
    assert_eq!(set.key_for("fake:1", MIB..2 * MIB), Ok(key), "and the same in the end");
    assert!(fakes.iter().all(|fake| fake.covers(set.region())));
    drop(set);
    assert_eq!(live(&fakes), 0);
}

#[test]
fn ranges_are_populated_and_registered_in_turn() {
    let fakes = Fake::some(2, 4 * MIB as u64);
    let phases = Arc::new(std::sync::Mutex::new(Vec::new()));
    let log = Arc::clone(&phases);
    let builder =
        RegistrationSet::builder().registrars(registrars(&fakes)).policy(Policy::all_at_once());
    let builder = builder.progress(move |progress| {
        let mut log = log.lock().unwrap();
        if log.last() != Some(&progress.phase) {
            log.push(progress.phase);
        }
    });
    let work = builder.register_in_background(region()).expect("no limit is hit");
    let set = work.wait().expect("nothing fails");
    assert_eq!(*phases.lock().unwrap(), [Phase::Populate, Phase::Register].repeat(4));
    assert_eq!(set.outcome().populated.bytes, 16 * MIB as u64);
}

#[test]
fn a_timeout_does_not_stop_the_work() {
    let (fakes, gate) = held_after(3);
    let work = builder(&fakes).register_in_background(region()).expect("no limit is hit");
    let ready = work.wait_ready(u64::MAX, Duration::from_millis(1));
    assert!(ready <= 3 * MIB as u64 && !work.is_finished());
    gate.open();
    assert_eq!(work.wait_ready(u64::MAX, LONG), 16 * MIB as u64);
}

#[test]
fn a_failure_deregisters_the_beginning() {
    let (mut fakes, gate) = held_after(3);
    fakes[1] = fakes[1].clone().with(Faults { register: vec![9], ..Faults::default() });
    let work = builder(&fakes).register_in_background(region()).expect("no limit is hit");
    assert!(work.wait_ready(2 * MIB as u64, LONG) >= 2 * MIB as u64);
    gate.open();
    assert_eq!(work.wait_ready(u64::MAX, LONG), 0, "nothing is ready any more");
    assert!(work.key_for("fake:0", 0..MIB).is_err());
    let error = work.wait().unwrap_err();
    assert!(
        matches!(&error, RegisterError::ChunkFailed { error, .. } if error.chunk == 8),
        "{error}"
    );
    assert_eq!(live(&fakes), 0);
}

#[test]
fn it_can_be_cancelled_and_dropped() {
    let (fakes, gate) = held_after(3);
    let work = builder(&fakes).register_in_background(region()).expect("no limit is hit");
    work.wait_ready(MIB as u64, LONG);
    work.cancel();
    gate.open();
    assert!(matches!(work.wait(), Err(RegisterError::Cancelled { .. })));
    assert_eq!(live(&fakes), 0);

    // Dropping the handle does not cancel the user's token.
    let token = CancelToken::new();
    let (fakes, gate) = held_after(3);
    let builds = builder(&fakes).cancel(token.clone());
    let work = builds.register_in_background(region()).expect("no limit is hit");
    work.wait_ready(MIB as u64, LONG);
    let opening = std::thread::spawn(move || gate.open());
    drop(work);
    opening.join().expect("no panic");
    assert!(!token.is_cancelled());
    assert_eq!(live(&fakes), 0);

    // Cancelling the user's token stops the work.
    let (fakes, gate) = held_after(0);
    let builds = builder(&fakes).cancel(token.clone());
    let work = builds.register_in_background(region()).expect("no limit is hit");
    token.cancel();
    gate.open();
    assert!(matches!(work.wait(), Err(RegisterError::Cancelled { .. })));
    assert_eq!(live(&fakes), 0);
}

#[test]
fn errors_known_before_the_start_are_returned_by_the_start() {
    let error = RegistrationSet::builder().register_in_background(region()).unwrap_err();
    assert_eq!(error, RegisterError::NoRegistrars);
}
