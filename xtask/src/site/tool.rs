//! *Tool*: Sphinx with MyST and the theme Furo, in a virtual environment of its own.
//!
//! The environment is made once and kept in `target/site/venv` until the list of packages changes.
//! The packages come from the index of pip's configuration. They are pinned to their major
//! versions, because warnings are errors here and a new version may have new ones.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail, ensure};

use crate::python;
use crate::say;
use crate::setup;

/// The packages of the environment.
const PACKAGES: [&str; 3] = ["sphinx>=9,<10", "myst-parser>=5,<6", "furo>=2025.12.19"];

/// Python with Sphinx.
pub(super) struct Sphinx {
    python: PathBuf,
}

impl Sphinx {
    /// Makes the environment, unless it is there.
    pub(super) fn install(target: &Path) -> Result<Sphinx> {
        let environment = target.join("venv");
        let python = environment.join("bin/python");
        let stamp = environment.join("packages.txt");
        let wanted = PACKAGES.join("\n");
        let is_there = std::fs::read_to_string(&stamp).is_ok_and(|packages| packages == wanted)
            && setup::works(&python, &["-c", "import sphinx, myst_parser, furo"]);
        if is_there {
            return Ok(Sphinx { python });
        }
        let Some(system) = python::find() else {
            bail!(
                "Python 3.11 or later with the modules venv and ensurepip is missing: {}",
                setup::by_hand("python3 python3-venv")
            )
        };
        say!("site: a new environment in {}, by {system}", environment.display());
        run(Command::new(&system).args(["-m", "venv", "--clear"]).arg(&environment))
            .context("cannot make a virtual environment")?;
        let mut install = Command::new(&python);
        install.args(["-m", "pip", "install", "--quiet", "--no-input"]);
        install.args(["--disable-pip-version-check", "--retries", "3"]).args(PACKAGES);
        run(&mut install).with_context(|| {
            format!(
                "pip cannot install {}: check the network, or set a mirror in pip.conf",
                PACKAGES.join(", ")
            )
        })?;
        std::fs::write(&stamp, wanted)?;
        Ok(Sphinx { python })
    }

    /// Turns the pages of a folder into a site. Warnings are errors.
    pub(super) fn build(
        &self,
        settings: &Path,
        source: &Path,
        out: &Path,
        version: &str,
    ) -> Result<()> {
        let mut build = Command::new(&self.python);
        build.args(["-m", "sphinx", "--builder", "html", "--quiet", "--jobs", "2"]);
        // Each page has the menu of all, so all are written when one changes.
        build.args(["--write-all", "--fail-on-warning", "--conf-dir"]).arg(settings);
        build.arg(format!("--define=release={version}"));
        build.arg("--doctree-dir").arg(source.with_file_name("doctrees"));
        build.arg(source).arg(out);
        // No byte code beside the settings, in the repository.
        run(build.env("PYTHONDONTWRITEBYTECODE", "1")).context("Sphinx has found faults, see above")
    }

    /// Runs a program in Python and returns its output.
    pub(super) fn output<S: AsRef<OsStr>>(&self, arguments: &[S]) -> Result<String> {
        let mut program = Command::new(&self.python);
        program.args(arguments).stdin(Stdio::null()).stderr(Stdio::inherit());
        let output = program.env("PYTHONDONTWRITEBYTECODE", "1").output()?;
        ensure!(output.status.success(), "{} ended with {}", shown(&program), output.status);
        Ok(String::from_utf8(output.stdout)?)
    }

    /// Serves a folder on the loopback interface until it is interrupted.
    pub(super) fn serve(&self, folder: &Path, port: u16) -> Result<()> {
        say!("http://127.0.0.1:{port}/ (Ctrl-C ends it)");
        let mut serve = Command::new(&self.python);
        serve.args(["-m", "http.server", "--bind", "127.0.0.1", &port.to_string(), "--directory"]);
        run(serve.arg(folder))
    }
}

fn run(command: &mut Command) -> Result<()> {
    let status = command
        .stdin(Stdio::null())
        .status()
        .with_context(|| format!("cannot run {}", shown(command)))?;
    ensure!(status.success(), "{} ended with {status}", shown(command));
    Ok(())
}

/// The program and its first arguments.
fn shown(command: &Command) -> String {
    let words = std::iter::once(command.get_program()).chain(command.get_args().take(3));
    words.map(|word| word.to_string_lossy()).collect::<Vec<_>>().join(" ")
}
