//! *Prose*: the mechanical part of how kvmem is written, checked by the tests in
//! `xtask/tests/prose`.

use std::path::Path;

use crate::deploy::pytest;
use crate::say;
use crate::step::{Kind, Report};

/// Runs the checks.
pub(crate) fn run(root: &Path, report: &mut Report) {
    match pytest(root, Path::new("kvmem"), "prose") {
        Ok(mut tests) => drop(report.command("prose", Kind::Pytest, &mut tests)),
        Err(error) => say!("(the prose is not checked: {error:#})"),
    }
}
