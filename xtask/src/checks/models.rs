//! Model checks of the concurrent parts, which are unit tests in modules `models`.
//!
//! The libraries that have some are built once against loom's atomics and locks and once against
//! shuttle's. A wrapper in `xtask/rustc` adds the flags to the crates of the workspace alone, so
//! both builds, and that of the fuzz targets, share all other crates.

use std::path::Path;

use crate::programs::{self, ProgramKind};
use crate::schedule::Task;
use crate::step::{Kind, Report};

use super::CHECKS;

/// The model checks of one checker: `loom`, which tries every order of small cases, or `shuttle`,
/// which tries random schedules of larger ones. Builds them, and adds the task that runs them.
pub(super) fn task<'a>(root: &'a Path, checker: &'static str) -> Task<'a> {
    let build = move |report: &mut Report| {
        let args = ["test", "--no-run", "--profile", "checks", "--target-dir", CHECKS, "--locked"];
        let args =
            [&args[..], &["--package", "kvmem", "--package", "kvmem-node", "--lib"]].concat();
        let wrapper = root.join("xtask/rustc").join(checker);
        let variables = [("RUSTC_WORKSPACE_WRAPPER", wrapper.as_os_str())];
        let programs =
            programs::build_with(root, report, &format!("{checker}: build"), &args, &variables);
        let run = |program: programs::Program| {
            let name = format!("{checker}: {}", program.name);
            Task::new(checker, name.clone(), move |report| {
                report.command(&name, Kind::Tests, program.command().arg("models::"));
            })
            .background()
        };
        programs.into_iter().filter(|program| program.kind == ProgramKind::Test).map(run).collect()
    };
    Task::growing(checker, format!("{checker}: build"), build).with(CHECKS).background()
}
