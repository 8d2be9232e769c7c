//! Lifetimes: registrations end in any order, once each, and never after their memory is unmapped.

use std::sync::Arc;
use std::thread;

use kvmem::arena::{ArenaError, PageSize, Region};
use kvmem::register::{Phase, Policy, RegisterError, RegistrationSet};

use super::fake::{Fake, live, registrars};

const MIB: usize = 1 << 20;

fn region(mib: usize) -> Arc<Region> {
    Arc::new(Region::builder(mib * MIB).ladder(PageSize::Base).map().expect("a little memory"))
}

fn register(fakes: &[Fake], region: Arc<Region>) -> RegistrationSet {
    let builder = RegistrationSet::builder().registrars(registrars(fakes));
    builder.register(region).expect("no limit is hit")
}

#[test]
fn keys_are_found_by_device_and_range() {
    let fakes = Fake::some(2, MIB as u64);
    let set = register(&fakes, region(4));
    assert_eq!(set.devices().collect::<Vec<_>>(), ["fake:0", "fake:1"]);
    assert_eq!(set.boundary_bytes(), Some(MIB as u64));
    assert!(fakes.iter().all(|fake| fake.covers(set.region())));
    let chunks: Vec<_> = set.registration("fake:1").expect("the set has it").chunks().collect();
    assert_eq!(chunks.len(), 4);
    for (range, key) in &chunks {
        assert_eq!(set.key_for("fake:1", range.clone()), Ok(*key));
        assert_eq!(set.key_for("fake:1", range.start..=range.end - 1), Ok(*key));
        assert_eq!(set.key_for("fake:1", range.start + 5..range.start + 6), Ok(*key));
    }
    assert_eq!(set.key_for("fake:1", 4 * MIB..), Ok(chunks[3].1), "an empty range at the end");
    let error = set.key_for("fake:0", MIB - 1..MIB + 1).unwrap_err();
    assert!(matches!(error, RegisterError::Straddles { edge, .. } if edge == MIB), "{error}");
    assert!(matches!(set.key_for("fake:0", ..), Err(RegisterError::Straddles { .. })));
    assert!(matches!(
        set.key_for("fake:0", 0..4 * MIB + 1),
        Err(RegisterError::OutOfBounds { .. })
    ));
    #[allow(clippy::reversed_empty_ranges)]
    let backwards = set.key_for("fake:0", 5..3);
    assert!(matches!(backwards, Err(RegisterError::OutOfBounds { .. })));
    let error = set.key_for("mlx5_0", 0..1).unwrap_err();
    assert!(error.to_string().contains("fake:0, fake:1"), "{error}");
}

#[test]
fn dropping_in_any_order_deregisters_everything() {
    let fakes = Fake::some(3, MIB as u64);
    for order in [[0, 1, 2], [0, 2, 1], [1, 0, 2], [1, 2, 0], [2, 0, 1], [2, 1, 0]] {
        let region = region(3);
        let memory = Arc::downgrade(&region);
        let mut parts: Vec<_> =
            register(&fakes, region).into_registrations().into_iter().map(Some).collect();
        for (step, which) in order.into_iter().enumerate() {
            assert!(memory.upgrade().is_some());
            parts[which] = None;
            assert_eq!(live(&fakes), (2 - step) * 3);
        }
        assert!(memory.upgrade().is_none(), "the last one unmaps the memory");
    }
}

#[test]
fn a_second_deregister_does_nothing() {
    let fakes = Fake::some(2, MIB as u64);
    let region = region(2);
    let mut set = register(&fakes, Arc::clone(&region));
    let done = set.deregister().expect("nothing fails");
    assert_eq!((done.keys, live(&fakes)), (4, 0));
    let done = set.deregister().expect("no keys remain");
    assert_eq!((done.keys, done.threads), (0, 0));
    assert!(matches!(set.key_for("fake:0", 0..1), Err(RegisterError::Deregistered { .. })));
    assert!(!set.registrations()[0].is_live() && set.registrations()[0].chunks().len() == 0);
    drop(set);
    assert_eq!(Arc::strong_count(&region), 1);
}

#[test]
fn registered_pages_are_not_discarded() {
    let fakes = Fake::some(1, u64::MAX);
    let (left, right) =
        Arc::try_unwrap(region(2)).expect("no other reference").split_at(MIB).expect("within");
    let left = Arc::new(left);
    let set = register(&fakes, Arc::clone(&left));
    let again = register(&Fake::some(1, u64::MAX), Arc::clone(&left));
    let error = left.discard(4096..8192).unwrap_err();
    assert_eq!(error, ArenaError::Registered { range: 4096..8192, held: 0..MIB });
    right.discard(..).expect("the other half is not registered");
    drop(set);
    assert!(left.discard(..).is_err(), "still registered by the other set");
    drop(again);
    left.discard(..).expect("not registered any more");
}

#[test]
fn a_region_can_have_several_sets() {
    let region = region(2);
    let (first, second) = (Fake::some(2, MIB as u64), Fake::some(2, u64::MAX));
    let (one, two) = (register(&first, Arc::clone(&region)), register(&second, region));
    drop(one);
    assert_eq!((live(&first), live(&second)), (0, 2));
    drop(two);
    assert_eq!(live(&second), 0);
}

#[test]
fn progress_never_falls_and_ends_at_the_total() {
    let fakes = Fake::some(3, MIB as u64);
    let seen = Arc::new(std::sync::Mutex::new(Vec::new()));
    let log = Arc::clone(&seen);
    let builder = RegistrationSet::builder()
        .registrars(registrars(&fakes))
        .policy(Policy::all_at_once())
        .progress(move |progress| log.lock().unwrap().push(progress));
    let mut set = builder.register(region(8)).expect("no limit is hit");
    set.deregister().expect("nothing fails");
    let seen = seen.lock().unwrap();
    let each = [(Phase::Populate, 8), (Phase::Register, 24), (Phase::Deregister, 24)];
    for (phase, mib) in each {
        let reports: Vec<_> = seen.iter().filter(|progress| progress.phase == phase).collect();
        let all = (mib * MIB) as u64;
        assert!(reports.windows(2).all(|pair| pair[0].done_bytes < pair[1].done_bytes), "{phase}");
        assert!(reports.iter().all(|progress| progress.total_bytes == all), "{phase}");
        assert_eq!(reports.last().expect("some").done_bytes, all, "{phase}");
        // The pieces of one registrar, or of one thread, do not overlap.
        assert!(
            reports.iter().all(|p| p.piece.is_some_and(|piece| piece.ended <= p.elapsed)),
            "{phase}"
        );
        for worker in 0..3 {
            let pieces = reports.iter().filter_map(|progress| progress.piece);
            let mut own: Vec<_> = pieces.filter(|piece| piece.worker == worker).collect();
            own.sort_by_key(|piece| (piece.began, piece.ended));
            assert!(phase == Phase::Populate || !own.is_empty(), "{phase}, {worker}");
            assert!(own.iter().all(|piece| piece.began <= piece.ended), "{phase}, {worker}");
            assert!(own.windows(2).all(|two| two[0].ended <= two[1].began), "{phase}, {worker}");
        }
    }
    let ready: Vec<u64> =
        seen.iter().filter(|p| p.phase == Phase::Register).map(|p| p.ready_bytes).collect();
    assert!(ready.is_sorted() && ready.last() == Some(&(8 * MIB as u64)));
    assert!(seen.windows(2).all(|pair| pair[0].phase <= pair[1].phase));
}

#[test]
fn eight_threads_register_and_deregister_at_once() {
    let fakes = Fake::some(4, MIB as u64);
    let whole = Arc::try_unwrap(region(32)).expect("no other reference");
    let parts: Vec<_> =
        whole.split(4 * MIB).expect("not empty").into_iter().map(Arc::new).collect();
    thread::scope(|scope| {
        for part in &parts {
            scope.spawn(|| {
                for round in 0..20 {
                    let policy =
                        [Policy::Sequential, Policy::all_at_once(), Policy::Auto][round % 3];
                    let builder =
                        RegistrationSet::builder().registrars(registrars(&fakes)).policy(policy);
                    let mut set = builder.register(Arc::clone(part)).expect("no limit is hit");
                    for device in ["fake:0", "fake:3"] {
                        set.key_for(device, MIB..2 * MIB).expect("it is registered");
                    }
                    if round % 2 == 0 {
                        assert_eq!(set.deregister().expect("nothing fails").keys, 16);
                    }
                }
            });
        }
    });
    assert_eq!(live(&fakes), 0);
    for part in parts {
        part.discard(..).expect("nothing is registered");
    }
}
