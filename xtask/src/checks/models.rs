//! Model checks of the concurrent parts, which are unit tests in modules `models`.
//!
//! The libraries that have some are built once against loom's atomics and locks and once against
//! shuttle's. A wrapper in `xtask/rustc` adds the flags to the crates of the workspace alone, so
//! both builds, and that of the fuzz targets, share all other crates. A check that fails has found
//! a wrong order of steps, and runs no second time: random orders might miss it.
//!
//! The tests of the simulated cores are built and run the same way.

use std::path::Path;

use super::CHECKS;
use crate::programs::nextest;
use crate::schedule::Task;
use crate::step::{Kind, Report};

/// The model checks of one checker: `loom`, which tries every order of small cases, or `shuttle`,
/// which tries random schedules of larger ones; or the tests of `simulated` cores.
pub(super) fn task<'a>(root: &'a Path, checker: &'static str) -> Task<'a> {
    let run = move |report: &mut Report| {
        let args = ["run", "--cargo-profile", "checks", "--target-dir", CHECKS, "--locked"];
        let tests: &[&str] = match checker {
            "simulated" => {
                &["-p", "kvmem-testkit", "-p", "kvmem-lab", "-E", "test(/\\b(cores|simulate)::/)"]
            }
            _ => &["-p", "kvmem", "-p", "kvmem-node", "-E", "test(/\\bmodels::/)"],
        };
        match nextest(root, &[&args[..], &["--lib"], tests].concat()) {
            Ok(mut checks) => {
                // One at a time: the other processors have tests.
                checks.args(["--test-threads", "1"]);
                checks.env("RUSTC_WORKSPACE_WRAPPER", root.join("xtask/rustc").join(checker));
                report.command(checker, Kind::Tests, &mut checks);
            }
            Err(error) => drop(report.check(checker, || Err(error))),
        }
    };
    Task::new(checker, checker, run).with(CHECKS).background()
}
