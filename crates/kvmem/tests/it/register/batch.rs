//! Batches: several regions in one call, all or none, with one budget of threads.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use kvmem::arena::{PageSize, Populate, Region};
use kvmem::register::{Limits, Policy, RegisterError, RegisterLimit, RegistrationSet};

use super::fake::{Fake, Faults, live, registrars};

const MIB: usize = 1 << 20;

fn regions(mib: &[usize]) -> Vec<Arc<Region>> {
    let region = |mib: &usize| {
        Region::builder(mib * MIB).ladder(PageSize::Base).populate(Populate::Auto).map()
    };
    mib.iter().map(|mib| Arc::new(region(mib).expect("a little memory"))).collect()
}

#[test]
fn every_region_goes_to_every_registrar() {
    for policy in [Policy::Sequential, Policy::all_at_once(), Policy::Auto] {
        let fakes = Fake::some(3, MIB as u64);
        let regions = regions(&[1, 5, 2]);
        let builder = RegistrationSet::builder().registrars(registrars(&fakes)).policy(policy);
        let sets = builder.register_batch(regions.clone()).expect("nothing stands in the way");
        assert_eq!(sets.len(), 3);
        for (set, region) in sets.iter().zip(&regions) {
            assert_eq!(set.region().base(), region.base());
            for registration in set.registrations() {
                let chunks: Vec<_> = registration.chunks().map(|(range, _)| range).collect();
                assert_eq!(chunks.len(), region.len() / MIB);
                assert_eq!(chunks.last().expect("some").end, region.len());
            }
            assert_eq!(
                (set.outcome().len_bytes, set.outcome().keys),
                (8 << 20, 24),
                "of all of the batch"
            );
        }
        drop(sets);
        assert_eq!(live(&fakes), 0);
    }
    assert!(RegistrationSet::builder().register_batch([]).expect("nothing to do").is_empty());
}

#[test]
fn one_budget_of_threads_holds_for_all() {
    let fakes: Vec<_> = Fake::some(6, MIB as u64)
        .into_iter()
        .map(|fake| fake.meeting(3).taking(Duration::from_millis(2)))
        .collect();
    let builder =
        RegistrationSet::builder().registrars(registrars(&fakes)).policy(Policy::parallel(3));
    let sets = builder.register_batch(regions(&[1, 1, 2])).expect("nothing stands in the way");
    assert_eq!(sets[0].outcome().threads, 3);
    assert_eq!(fakes[0].most.load(Ordering::SeqCst), 3, "so many at once, and no more");
}

#[test]
fn a_failure_in_one_region_undoes_all() {
    let regions = regions(&[2, 2, 2]);
    for nth in 1..=6 {
        let mut fakes = Fake::some(2, MIB as u64);
        fakes[1] = fakes[1].clone().with(Faults { register: vec![nth], ..Faults::default() });
        let builder =
            RegistrationSet::builder().registrars(registrars(&fakes)).policy(Policy::Auto);
        let error = builder.register_batch(regions.clone()).unwrap_err();
        let RegisterError::Refused { error, .. } = error else { panic!("{error}") };
        assert_eq!(error.chunk, (nth as usize - 1) % 2, "counted within its region");
        assert_eq!(live(&fakes), 0);
    }
    for region in regions {
        region.discard(..).expect("nothing is registered");
    }
}

#[test]
fn limits_are_held_against_what_all_need_together() {
    let limits = Limits { max_bytes: MIB as u64, max_keys: 5, ..Limits::none("few") };
    let fake = Fake::new("few", limits);
    let builder = RegistrationSet::builder().registrar(fake.clone());
    drop(builder.register_batch(regions(&[3, 2])).expect("five keys"));
    let error = builder.register_batch(regions(&[3, 3])).unwrap_err();
    let exceeded = RegisterLimit::Keys { limit: 5, need: 6 };
    assert_eq!(error, RegisterError::Limited { device: "few".to_owned(), exceeded });
    assert_eq!(fake.calls(), 5);
}
