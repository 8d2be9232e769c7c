//! Policies: who is called when, and what was found out.

use std::sync::atomic::Ordering;
use std::time::Duration;

use kvmem::arena::{PageSize, Populate, Region};
use kvmem::register::{Policy, RegistrationSet};

use super::fake::{Fake, registrars};

const MIB: usize = 1 << 20;

fn region(how: Populate) -> Region {
    Region::builder(16 * MIB).ladder(PageSize::Base).populate(how).map().expect("a little memory")
}

/// So many registrars are called at once, and no more.
fn are_called_at_once(many: usize, policy: Policy, populated: Populate, populate: Populate) {
    let fakes: Vec<_> = Fake::some(4, 4 * MIB as u64)
        .into_iter()
        .map(|fake| fake.meeting(many).taking(Duration::from_millis(2)))
        .collect();
    let builder =
        RegistrationSet::builder().registrars(registrars(&fakes)).policy(policy).populate(populate);
    let set = builder.register(region(populated)).expect("nothing stands in the way");
    assert_eq!(fakes[0].most.load(Ordering::SeqCst), many, "{policy:?}");
    assert_eq!(set.outcome().threads > 1, many > 1);
}

#[test]
fn as_many_are_called_at_once_as_the_policy_says() {
    let there = Populate::threads(1);
    are_called_at_once(1, Policy::Sequential, there, Populate::Auto);
    are_called_at_once(2, Policy::parallel(2), there, Populate::Auto);
    are_called_at_once(4, Policy::all_at_once(), there, Populate::Auto);
}

#[test]
fn untouched_memory_is_populated_first_or_goes_to_one_at_a_time() {
    are_called_at_once(4, Policy::all_at_once(), Populate::None, Populate::Auto);
    are_called_at_once(1, Policy::all_at_once(), Populate::None, Populate::None);
    are_called_at_once(1, Policy::Auto, Populate::None, Populate::None);
    let outcome = |policy, populate| {
        let builder = RegistrationSet::builder().registrars(registrars(&Fake::some(2, u64::MAX)));
        let set = builder.policy(policy).populate(populate).register(region(Populate::None));
        set.expect("nothing stands in the way").outcome().clone()
    };
    let populated = outcome(Policy::Auto, Populate::Auto);
    assert_eq!((populated.populated.bytes, populated.resident_bytes), (16 * MIB as u64, 0));
    let alone = outcome(Policy::Sequential, Populate::Auto);
    assert_eq!((alone.populated.bytes, alone.populated.threads), (0, 0));
}

#[test]
fn reading_is_not_touching() {
    // What was only read is the kernel's common page of zeros: registering would have to find every
    // page.
    let region = region(Populate::None);
    // SAFETY: nobody writes to it.
    let sum: u64 =
        unsafe { region.bytes() }.iter().step_by(4096).map(|byte| u64::from(*byte)).sum();
    assert_eq!(sum, 0);
    if !region.residency(..).expect("a way to know").method.eq(&kvmem::arena::Method::Scan) {
        println!("skipped: this kernel cannot tell the common page of zeros from others");
        return;
    }
    let builder = RegistrationSet::builder().registrars(registrars(&Fake::some(2, u64::MAX)));
    let plan = builder.plan(&region).expect("nothing stands in the way");
    assert_eq!((plan.resident_bytes, plan.populate.len()), (0, 1));
}

#[test]
fn residency_is_what_is_so_now() {
    let builder = RegistrationSet::builder().registrars(registrars(&Fake::some(2, u64::MAX)));
    let plan =
        |region: &Region| builder.plan(region).expect("nothing stands in the way").populate.len();
    let there = region(Populate::threads(1));
    assert_eq!(plan(&there), 0);
    there.discard(..).expect("nothing is registered");
    assert_eq!(plan(&there), 1, "the receipt does not count any more");
    there.populate(.., Populate::Auto, &Default::default()).expect("a little memory");
    assert_eq!(plan(&there), 0);
}
