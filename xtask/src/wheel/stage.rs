//! *Stage*: the files that a wheel gets beside those of maturin.
//!
//! `scripts/kvmem` becomes a command of the environment. The files under `package` come into the
//! package: `include`, and `lib` with the C library and its files for pkg-config and CMake, as
//! [`layout`] installs them. A wheel has no symbolic links, so the library is a single file by the
//! name that the loader looks for, and `libkvmem.so`, which the linker looks for, is a script that
//! names it.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result};

use crate::dist::remove;
use crate::layout::{self, Parts};
use crate::workspace::VERSION;

/// Fills the folder `stage` with the built command and the C library in the folder `libraries`.
pub(crate) fn fill(root: &Path, command: &Path, libraries: &Path, stage: &Path) -> Result<()> {
    remove(stage)?;
    let scripts = stage.join("scripts");
    fs::create_dir_all(&scripts)?;
    fs::copy(command, scripts.join("kvmem"))
        .with_context(|| format!("cannot copy {}", command.display()))?;

    let crate_folder = root.join("crates/kvmem-capi");
    let package = stage.join("package");
    let include = crate_folder.join("include");
    layout::install_into(&package, libraries, &include, VERSION, Parts::Shipped)
        .with_context(|| format!("cannot lay out {}", package.display()))?;
    let lib = package.join("lib");
    let major = VERSION.split('.').next().unwrap_or(VERSION);
    let name = format!("libkvmem.so.{major}");
    for extra in ["libkvmem.a", "libkvmem.so", &name] {
        fs::remove_file(lib.join(extra)).with_context(|| format!("cannot remove {extra}"))?;
    }
    fs::rename(lib.join(format!("libkvmem.so.{VERSION}")), lib.join(&name))?;
    fs::write(lib.join("libkvmem.so"), format!("/* For the linker. */\nINPUT({name})\n"))?;
    Ok(())
}
