//! What preflight promises is what the arena does.

use super::{Machine, Requirements, System, Value};
use crate::arena::machine::{MachineFiles, MadeUpTree, cpu_levels, tightest_quota, within_quota};
use crate::arena::{Ladder, PageSize};

/// A quota of one and a half processors once meant one thread to populate, and two to preflight.
#[test]
fn populating_and_preflight_count_the_same_processors() {
    let tree = MadeUpTree::new(
        "processors",
        &[
            ("proc/self/cgroup", "0::/a/b\n"),
            (
                "proc/self/mountinfo",
                "30 23 0:26 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw,nsdelegate\n",
            ),
            ("sys/fs/cgroup/a/cpu.max", "max 100000\n"),
        ],
    );
    let requirements =
        Requirements::new(1 << 30, Ladder::from(PageSize::Base)).expect("valid requirements");
    for (quota, mask, expected) in [
        ("150000 100000", 8, 2),
        ("50000 100000", 8, 1),
        ("1000 100000", 8, 1),
        ("200000 100000", 8, 2),
        ("200100 100000", 8, 3),
        ("1000000 100000", 8, 8),
        ("max 100000", 8, 8),
        ("150000 100000", 1, 1),
    ] {
        tree.write("sys/fs/cgroup/a/b/cpu.max", quota);
        let files = MachineFiles::under(tree.root());
        let populating = within_quota(mask, tightest_quota(&files, &cpu_levels(&files)));
        let system = System { cpus: u32::try_from(mask).ok(), ..System::unknown() };
        let report = Machine::new(tree.root(), system).preflight(&requirements);
        let preflight = report.check("cpus").map(|check| check.value.clone());
        assert_eq!((populating, preflight), (expected, Some(Value::Count(expected))), "{quota}");
    }
}
