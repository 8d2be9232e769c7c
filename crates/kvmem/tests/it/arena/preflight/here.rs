//! The machine at hand, whatever it is.

use kvmem::arena::Ladder;
use kvmem::arena::preflight::{Machine, Requirements, System, Value, Verdict};

use super::{GIB, requirements};

#[test]
fn every_wish_gets_an_answer() {
    let machine = Machine::here();
    for size in [1, 4096, GIB, 64 * GIB, 1 << 50, 1 << 63] {
        for ladder in ["1G,2M,thp,4k", "2M", "thp", "4k"] {
            let report = machine.preflight(&requirements(size, ladder).shared(size > GIB));
            assert!(report.checks.len() >= 15, "{report}");
            assert_eq!(report.tally().fail == 0, report.passes());
            let mut names: Vec<_> = report.checks.iter().map(|check| &check.name).collect();
            names.sort();
            names.dedup();
            assert_eq!(names.len(), report.checks.len(), "each name is given once");
        }
    }
}

#[test]
fn what_the_kernel_tells_everybody_is_known() {
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
fn more_than_any_machine_has_fails() {
    let report = Machine::here().preflight(&requirements(1 << 60, "4k"));
    assert!(!report.passes(), "{report}");
}
