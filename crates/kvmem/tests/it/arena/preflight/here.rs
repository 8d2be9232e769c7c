//! The machine that runs the tests.

use kvmem::arena::preflight::{Machine, Requirements, System, Value, Verdict};
use kvmem::arena::{Backing, Ladder, PageSize, Populate, Region};

use super::{GIB, requirements};

#[test]
fn all_requirements_get_a_report() {
    let machine = Machine::here();
    for size in [1, 4096, GIB, 64 * GIB, 1 << 50, 1 << 63] {
        for ladder in ["1G,2M,thp,4k", "2M", "thp", "4k"] {
            let report = machine.preflight(&requirements(size, ladder).shared(size > GIB));
            assert!(report.checks.len() >= 15, "{report}");
            assert_eq!(report.tally().fail == 0, report.passes());
            let mut names: Vec<_> = report.checks.iter().map(|check| &check.name).collect();
            names.sort();
            names.dedup();
            assert_eq!(names.len(), report.checks.len(), "each name occurs once");
        }
    }
}

#[test]
fn facts_open_to_all_users_are_known() {
    let report = Machine::here().preflight(&Requirements::new(4096, Ladder::default()).unwrap());
    for name in ["kernel.populate", "maps.left", "rlimit.as", "rlimit.data"] {
        let check = report.check(name).unwrap();
        assert!(check.verdict != Verdict::Unknown && check.value != Value::Unknown, "{check:?}");
    }
    let system = System::here();
    assert!(system.page_bytes.is_power_of_two() && system.page_bytes >= 4096);
    assert!(system.cpus.is_none_or(|cpus| cpus > 0));
}

#[test]
fn impossible_sizes_fail() {
    let report = Machine::here().preflight(&requirements(1 << 60, "4k"));
    assert!(!report.passes(), "{report}");
}

/// The trial answers as the populating of shared memory does.
#[test]
fn shared_memory_that_is_collapsed_is_collapsed_in_the_trial() {
    let setting = std::fs::read_to_string("/sys/kernel/mm/transparent_hugepage/shmem_enabled");
    if !setting.is_ok_and(|words| words.contains("[never]")) {
        eprintln!("skipped: the setting makes hugepages by itself, or forbids them");
        return;
    }
    let region = Region::builder(8 << 20)
        .ladder("thp,4k".parse::<Ladder>().expect("a ladder"))
        .backing(Backing::Shared)
        .populate(Populate::Auto)
        .map()
        .expect("memory");
    let residency = region.residency(..).expect("residency");
    let collapsed = residency.huge_bytes.is_some_and(|huge| huge >= PageSize::Thp.bytes() as u64);
    let answer = System::here().collapse;
    assert_eq!(answer.is_some_and(|answer| answer.is_ok()), collapsed, "{answer:?} {residency:?}");
}
