//! *Tools*: an environment with what builds and tests wheels, from the package index.
//!
//! Maturin makes the wheel, zig links it, cargo-zigbuild lets cargo call zig. Auditwheel and twine
//! judge the result as the index would.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail, ensure};

use super::target::Target;
use crate::dist::build::ZIG;
use crate::python;
use crate::setup::{self, works};
use crate::workspace::cargo;

/// The tools. Those that decide what is inside of a wheel are pinned, so two runs agree.
const PACKAGES: [&str; 5] = ["maturin==1.16.*", ZIG[0], ZIG[1], "auditwheel==6.*", "twine==7.*"];

/// An environment with the tools.
pub(crate) struct Tools {
    folder: PathBuf,
}

impl Tools {
    /// Returns the path of one of its programs.
    pub(crate) fn program(&self, name: &str) -> PathBuf {
        self.folder.join("bin").join(name)
    }

    /// Returns a `PATH` in which its programs come first.
    pub(crate) fn path(&self) -> OsString {
        python::path_with(&self.folder.join("bin"))
    }
}

/// Installs the tools into `work/tools`, unless they are there.
pub(crate) fn install(work: &Path) -> Result<Tools> {
    let missing = "the C linker cc is missing";
    ensure!(
        setup::package(missing, "build-essential", || works("readelf", &["--version"]))?,
        "readelf is missing, which shows what a library links: {}",
        setup::by_hand("build-essential")
    );
    let folder = work.join("tools");
    let tools = Tools { folder: folder.clone() };
    let python = tools.program("python");
    if !works(&python, &["-c", ""]) {
        let Some(found) = python::find() else {
            bail!(
                "Python 3.11 or later with the modules venv and ensurepip is missing: {}",
                setup::by_hand("python3 python3-venv")
            );
        };
        let mut make = Command::new(found);
        make.args(["-m", "venv", "--clear"]).arg(&folder);
        super::run_shown("tools: an environment", &mut make)?;
    }
    let mut install = Command::new(&python);
    install.args(["-m", "pip", "install", "--quiet", "--no-input", "--disable-pip-version-check"]);
    install.args(PACKAGES);
    super::run_shown("tools: maturin, zig, auditwheel, twine", &mut install)
        .context("check the network, or set a mirror of the package index in pip.conf")?;
    Ok(tools)
}

/// Makes sure that the Rust compiler can compile for a target.
pub(crate) fn compiler(target: Target) -> Result<()> {
    let triple = target.triple();
    let libraries = Command::new("rustc")
        .args(["--print", "target-libdir", "--target", &triple])
        .stderr(Stdio::null())
        .output()
        .context("cannot run rustc")?;
    let libraries = PathBuf::from(String::from_utf8_lossy(&libraries.stdout).trim());
    if libraries.is_dir() {
        return Ok(());
    }
    ensure!(
        works("rustup", &["--version"]),
        "{} has no standard library for {triple}, and rustup, which installs it, is missing: \
         install the toolchain's target {triple}",
        Path::new(&cargo()).display()
    );
    let mut add = Command::new("rustup");
    add.args(["target", "add", &triple]);
    super::run_shown(&format!("rustup target add {triple}"), &mut add)
}
