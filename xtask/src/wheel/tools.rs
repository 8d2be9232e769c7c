//! *Tools*: an environment with what builds and tests wheels, from the package index.
//!
//! Maturin makes the wheel, zig links it, cargo-zigbuild lets cargo call zig. Auditwheel
//! and twine judge the result as the index would, and nox installs it.

use std::path::Path;

use anyhow::Result;

use crate::dist::build::ZIG;
use crate::venv::{self, Environment};

/// The tools. Those that decide what is inside of a wheel are pinned, so two runs agree.
const PACKAGES: [&str; 7] = [
    "maturin==1.16.*",
    ZIG[0],
    ZIG[1],
    "auditwheel==6.*",
    "twine==7.*",
    "nox>=2026.10",
    "pyelftools>=0.32",
];

/// Installs the tools into `work/tools`, unless they are there.
pub(crate) fn install(work: &Path) -> Result<Environment> {
    venv::make(&work.join("tools"), &PACKAGES)
}
