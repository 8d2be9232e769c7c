//! In the background: the beginning is there before the end, and all goes if anything fails.

use std::sync::Arc;
use std::time::Duration;

use kvmem::arena::{CancelToken, PageSize, Region};
use kvmem::register::{Phase, Policy, RegisterError, RegistrationBuilder, RegistrationSet};

use super::fake::{Fake, Faults, live, registrars};

const MIB: usize = 1 << 20;
const LONG: Duration = Duration::from_secs(60);

fn region() -> Region {
    Region::builder(16 * MIB).ladder(PageSize::Base).map().expect("a little memory")
}

/// Two that take their time, so that there is something to be seen on the way.
fn slow() -> Vec<Fake> {
    Fake::some(2, MIB as u64)
        .into_iter()
        .map(|fake| fake.taking(Duration::from_millis(5)))
        .collect()
}

fn builder(fakes: &[Fake]) -> RegistrationBuilder {
    RegistrationSet::builder().registrars(registrars(fakes)).policy(Policy::Sequential)
}

#[test]
fn the_beginning_can_be_used_while_the_rest_is_worked_on() {
    let fakes = slow();
    let work = builder(&fakes).register_in_background(region()).expect("nothing stands in the way");
    let ready = work.wait_ready(2 * MIB as u64, LONG);
    assert!(ready >= 2 * MIB as u64);
    let key = work.key_for("fake:1", MIB..2 * MIB).expect("it is registered");
    if !work.is_finished() {
        let far = work.key_for("fake:1", 15 * MIB..16 * MIB);
        assert!(
            far.is_ok()
                || matches!(far, Err(RegisterError::OutOfBounds { len, .. }) if len < 16 * MIB)
        );
    }
    assert!(matches!(
        work.key_for("fake:1", MIB - 1..MIB + 1),
        Err(RegisterError::Straddles { .. })
    ));
    assert!(matches!(work.key_for("nobody", 0..1), Err(RegisterError::NoSuchDevice { .. })));
    assert_eq!(
        work.wait_ready(u64::MAX, LONG),
        16 * MIB as u64,
        "ends with all, not with the time"
    );
    assert!(work.is_finished());
    let progress = work.progress();
    assert_eq!((progress.phase, progress.done_bytes), (Phase::Register, 32 * MIB as u64));
    assert_eq!(work.key_for("fake:1", MIB..2 * MIB), Ok(key), "the key is still there");
    let set = work.wait().expect("nothing fails");
    assert_eq!(set.key_for("fake:1", MIB..2 * MIB), Ok(key), "and is the same in the end");
    assert!(fakes.iter().all(|fake| fake.covers(set.region())));
    drop(set);
    assert_eq!(live(&fakes), 0);
}

#[test]
fn what_is_populated_comes_range_by_range() {
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
    let work = builder.register_in_background(region()).expect("nothing stands in the way");
    let set = work.wait().expect("nothing fails");
    assert_eq!(*phases.lock().unwrap(), [Phase::Populate, Phase::Register].repeat(4));
    assert_eq!(set.outcome().populated.bytes, 16 * MIB as u64);
}

#[test]
fn a_timeout_is_not_an_end() {
    let work =
        builder(&slow()).register_in_background(region()).expect("nothing stands in the way");
    let ready = work.wait_ready(u64::MAX, Duration::from_millis(1));
    assert!(ready < 16 * MIB as u64 && !work.is_finished());
}

#[test]
fn a_failure_takes_the_beginning_back() {
    let mut fakes = slow();
    fakes[1] = fakes[1].clone().with(Faults { register: vec![9], ..Faults::default() });
    let work = builder(&fakes).register_in_background(region()).expect("nothing stands in the way");
    assert!(work.wait_ready(2 * MIB as u64, LONG) >= 2 * MIB as u64);
    assert_eq!(work.wait_ready(u64::MAX, LONG), 0, "nothing is ready any more");
    assert!(work.key_for("fake:0", 0..MIB).is_err());
    let error = work.wait().unwrap_err();
    assert!(matches!(&error, RegisterError::Refused { error, .. } if error.chunk == 8), "{error}");
    assert_eq!(live(&fakes), 0);
}

#[test]
fn it_can_be_cancelled_and_dropped() {
    let fakes = slow();
    let work = builder(&fakes).register_in_background(region()).expect("nothing stands in the way");
    work.wait_ready(MIB as u64, LONG);
    work.cancel();
    assert!(matches!(work.wait(), Err(RegisterError::Cancelled { .. })));
    assert_eq!(live(&fakes), 0);

    // Dropping one leaves what else the user's token is for alone.
    let token = CancelToken::new();
    let builder = builder(&fakes).cancel(token.clone());
    let work = builder.register_in_background(region()).expect("nothing stands in the way");
    work.wait_ready(MIB as u64, LONG);
    drop(work);
    assert!(!token.is_cancelled());
    assert_eq!(live(&fakes), 0);

    // The user's token ends it too.
    let work = builder.register_in_background(region()).expect("nothing stands in the way");
    token.cancel();
    assert!(matches!(work.wait(), Err(RegisterError::Cancelled { .. })));
    assert_eq!(live(&fakes), 0);
}

#[test]
fn what_can_be_known_at_once_is_told_at_once() {
    let error = RegistrationSet::builder().register_in_background(region()).unwrap_err();
    assert_eq!(error, RegisterError::NoRegistrars);
}
