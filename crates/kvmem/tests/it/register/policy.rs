//! Policies: how many registrars are called at once, and what is populated first.

use std::sync::atomic::Ordering;
use std::time::Duration;

use kvmem::arena::{PageSize, Populate, Region};
use kvmem::register::{Policy, RegistrationSet};

use super::fake::{Fake, registrars};

const MIB: usize = 1 << 20;

fn region(how: Populate) -> Region {
    Region::builder(16 * MIB).ladder(PageSize::Base).populate(how).map().expect("a little memory")
}

/// Checks that exactly `many` registrars are called at once.
fn are_called_at_once(many: usize, policy: Policy, populated: Populate, populate: Populate) {
    let fakes: Vec<_> = Fake::some(4, 4 * MIB as u64)
        .into_iter()
        .map(|fake| fake.meeting(many).taking(Duration::from_millis(2)))
        .collect();
    let builder =
        RegistrationSet::builder().registrars(registrars(&fakes)).policy(policy).populate(populate);
    let set = builder.register(region(populated)).expect("no limit is hit");
    assert_eq!(fakes[0].max_inside.load(Ordering::SeqCst), many, "{policy:?}");
    assert_eq!(set.outcome().threads > 1, many > 1);
}

#[test]
fn the_policy_sets_how_many_are_called_at_once() {
    let resident = Populate::threads(1);
    are_called_at_once(1, Policy::Sequential, resident, Populate::Auto);
    are_called_at_once(2, Policy::parallel(2), resident, Populate::Auto);
    are_called_at_once(4, Policy::all_at_once(), resident, Populate::Auto);
}

#[test]
fn untouched_memory_is_populated_first_or_registered_by_one_at_a_time() {
    are_called_at_once(4, Policy::all_at_once(), Populate::None, Populate::Auto);
    are_called_at_once(1, Policy::all_at_once(), Populate::None, Populate::None);
    are_called_at_once(1, Policy::Auto, Populate::None, Populate::None);
    let outcome = |policy, populate| {
        let builder = RegistrationSet::builder().registrars(registrars(&Fake::some(2, u64::MAX)));
        let set = builder.policy(policy).populate(populate).register(region(Populate::None));
        set.expect("no limit is hit").outcome().clone()
    };
    let populated = outcome(Policy::Auto, Populate::Auto);
    assert_eq!((populated.populated.bytes, populated.resident_bytes), (16 * MIB as u64, 0));
    let alone = outcome(Policy::Sequential, Populate::Auto);
    assert_eq!((alone.populated.bytes, alone.populated.threads), (0, 0));
}

#[test]
fn reading_is_not_touching() {
    // Memory that was only read maps the kernel's zero page: registering would have to allocate
    // every page.
    let region = region(Populate::None);
    // SAFETY: nothing writes to it.
    let sum: u64 =
        unsafe { region.bytes() }.iter().step_by(4096).map(|byte| u64::from(*byte)).sum();
    assert_eq!(sum, 0);
    if !region
        .residency(..)
        .expect("the kernel reports residency")
        .method
        .eq(&kvmem::arena::Method::Scan)
    {
        println!("skipped: this kernel cannot distinguish the zero page");
        return;
    }
    let builder = RegistrationSet::builder().registrars(registrars(&Fake::some(2, u64::MAX)));
    let plan = builder.plan(&region).expect("no limit is hit");
    assert_eq!((plan.resident_bytes, plan.populate.len()), (0, 1));
}

#[test]
fn plans_use_the_current_residency() {
    let builder = RegistrationSet::builder().registrars(registrars(&Fake::some(2, u64::MAX)));
    let plan = |region: &Region| builder.plan(region).expect("no limit is hit").populate.len();
    let resident = region(Populate::threads(1));
    assert_eq!(plan(&resident), 0);
    resident.discard(..).expect("nothing is registered");
    assert_eq!(plan(&resident), 1, "the receipt is outdated");
    resident.populate(.., Populate::Auto, &Default::default()).expect("a little memory");
    assert_eq!(plan(&resident), 0);
}
