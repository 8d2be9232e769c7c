//! *Venv*: environments of Python with packages from the index of pip's configuration.
//!
//! An environment is made once, and again when other packages are wanted or its Python has changed.
//! [`tools`] is the one of the chores' own tools: linters, pytest; [`site_tools`] that of the site.

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Mutex, PoisonError};

use anyhow::{Context, Result, ensure};

use crate::say;
use crate::setup::{self, by_hand, works};
use crate::step::succeeds;

/// The chores' own tools.
const TOOLS: &str = include_str!("../requirements/tools.txt");

/// The arguments of a quiet installation by pip.
pub(crate) const PIP: [&str; 6] =
    ["-m", "pip", "install", "--quiet", "--no-input", "--disable-pip-version-check"];

/// Interpreters to look for, in order of preference.
const PYTHONS: [&str; 5] = ["python3", "python3.11", "python3.12", "python3.13", "python3.14"];

/// Program whose exit status is 0 if its interpreter is suitable.
const IS_SUITABLE: &str = "\
import sys, sysconfig, venv, ensurepip
is_free_threaded = sysconfig.get_config_var('Py_GIL_DISABLED')
sys.exit(sys.version_info < (3, 11) or bool(is_free_threaded))";

/// An environment.
#[derive(Clone)]
pub(crate) struct Environment {
    folder: PathBuf,
}

impl Environment {
    /// Returns the path of one of its programs.
    pub(crate) fn program(&self, name: &str) -> PathBuf {
        self.folder.join("bin").join(name)
    }

    /// Returns a `PATH` in which its programs come first.
    pub(crate) fn path(&self) -> OsString {
        path_with(&[&self.folder.join("bin")])
    }
}

/// Returns the environment of the chores' own tools.
pub(crate) fn tools(root: &Path) -> Result<Environment> {
    make(&root.join("target/tools"), TOOLS)
}

/// Returns the environment of what makes and checks the site.
pub(crate) fn site_tools(root: &Path) -> Result<Environment> {
    make(&root.join("target/site-tools"), include_str!("../requirements/site.txt"))
}

/// Returns the requirements of a text: a line each, without comments.
pub(crate) fn requirements(text: &str) -> Vec<&str> {
    text.lines().filter(|line| !line.starts_with('#')).collect()
}

/// Returns the environment in a folder, which has these packages, a line each.
pub(crate) fn make(folder: &Path, packages: &str) -> Result<Environment> {
    make_with(folder, packages, "")
}

/// Returns the environment in a folder, which has these packages; `overrides` replaces some of
/// their requirements, a line each. pip cannot do that, and uv can.
pub(crate) fn make_with(folder: &Path, packages: &str, overrides: &str) -> Result<Environment> {
    // Two groups of steps may want one environment.
    static TURN: Mutex<()> = Mutex::new(());
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    let environment = Environment { folder: folder.to_owned() };
    let found = find().with_context(|| {
        let package = by_hand("python3 python3-venv");
        format!("Python 3.11 or later with the modules venv and ensurepip is missing: {package}")
    })?;
    let version = Command::new(&found).arg("--version").stdin(Stdio::null()).output()?;
    let version = String::from_utf8_lossy(&version.stdout).trim().to_owned();
    let (stamp, wanted) =
        (folder.join("packages.txt"), format!("{version}\n{overrides}{packages}"));
    let packages = &requirements(packages)[..];
    let python = environment.program("python");
    if fs::read_to_string(&stamp).is_ok_and(|was| was == wanted) && works(&python, &["-c", ""]) {
        return Ok(environment);
    }
    say!("a new environment in {}, by {found}", folder.display());
    let made = succeeds(Command::new(&found).args(["-m", "venv", "--clear"]).arg(folder));
    ensure!(made, "{found} could not make a virtual environment in {}", folder.display());
    let pip = |packages: &[&str]| {
        succeeds(Command::new(&python).args(PIP).args(["--retries", "3"]).args(packages))
    };
    let installed = if overrides.is_empty() {
        pip(packages)
    } else {
        let file = folder.join("overrides.txt");
        fs::write(&file, overrides)?;
        let mut uv = Command::new(environment.program("uv"));
        uv.args(["pip", "install", "--quiet", "--no-cache", "--python"]).arg(&python);
        // uv does not read the settings of pip.
        let certificate = ["SSL_CERT_FILE", "PIP_CERT"].into_iter().find_map(std::env::var_os);
        uv.envs(certificate.map(|file| ("SSL_CERT_FILE", file)));
        pip(&["uv"]) && succeeds(uv.arg("--override").arg(file).args(packages))
    };
    ensure!(
        installed,
        "pip cannot install {}: check the network, or set a mirror in pip.conf",
        packages.join(", ")
    );
    fs::write(&stamp, wanted)?;
    Ok(environment)
}

/// Returns a suitable Python, after installing its Debian package if necessary.
pub(crate) fn find() -> Option<String> {
    let found = || PYTHONS.into_iter().find(|python| works(python, &["-c", IS_SUITABLE]));
    let missing = "Python with the module venv is missing";
    setup::package(missing, "python3-venv", || found().is_some()).ok()?;
    found().map(str::to_owned)
}

/// Returns `PATH` with folders before it.
pub(crate) fn path_with(folders: &[&Path]) -> std::ffi::OsString {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let folders = folders.iter().map(PathBuf::from).chain(std::env::split_paths(&path));
    std::env::join_paths(folders).unwrap_or(path)
}
