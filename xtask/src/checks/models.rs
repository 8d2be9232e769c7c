//! Model checks of the concurrent parts, which are unit tests in modules `models`.

use std::path::Path;
use std::process::Command;

use super::cargo_in;
use crate::step::{Kind, Report};

/// Runs the model checks in every order: the library is built against loom's atomics.
pub(super) fn loom(root: &Path, report: &mut Report) {
    report.command("loom", Kind::Tests, &mut models(root, "--cfg loom", "target/loom"));
}

/// Runs the model checks that are for random schedules: the library is built against shuttle's
/// atomics.
pub(super) fn shuttle(root: &Path, report: &mut Report) {
    let mut shuttle = models(root, "--cfg loom --cfg shuttle", "target/shuttle");
    report.command("shuttle", Kind::Tests, &mut shuttle);
}

/// Returns the command of the model checks. They have a target folder of their own, because the
/// flags would otherwise rebuild everything twice.
fn models(root: &Path, flags: &str, target: &str) -> Command {
    let mut models =
        cargo_in(root, &["test", "--profile", "models", "--locked", "--package", "kvmem"]);
    models.env("RUSTFLAGS", flags).args(["--target-dir", target, "--lib", "models::"]);
    models
}
