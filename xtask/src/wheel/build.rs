//! *Build*: the command, the C library and the extension module of one target, as a wheel.
//!
//! Two builds of one commit give the same bytes, wherever the repository lies: folders of the
//! builder are replaced in messages and file names (`--remap-path-prefix`), and time stamps are
//! those of the commit (`SOURCE_DATE_EPOCH`).

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

use super::stage::remove;
use super::target::{GLIBC, Target};
use super::{stage, unwinder};
use crate::dist::build::{LINKS, cargo_home, flags, standard_library};
use crate::dist::epoch;
use crate::say;
use crate::venv::Environment;

/// Compiles the parts, makes the wheel in `out` and returns its path.
pub(crate) fn build(
    root: &Path,
    work: &Path,
    tools: &Environment,
    target: Target,
    out: &Path,
) -> Result<PathBuf> {
    standard_library(&target.triple())?;
    let recipe = Recipe { root, work, tools };
    let machine = target.machine();

    let unwinder = unwinder::make(tools, target, &work.join("unwinder").join(machine))?;
    let link_unwinder = format!("link-arg={}", unwinder.display());

    // One call each: together the packages would share the features of the library.
    let triple = format!("{}.{}.{}", target.triple(), GLIBC.0, GLIBC.1);
    let options = ["--locked", "--profile", "dist", "--target", &triple, "--package"];
    let mut library = recipe.with_flags(tools.program("cargo-zigbuild"))?;
    library.arg("rustc").args(options).args(["kvmem-capi", "--lib"]);
    library.args(["--", "-C", &link_unwinder]);
    super::run_shown(&format!("{machine}: the C library"), &mut library)?;
    let mut command = recipe.with_flags(tools.program("cargo-zigbuild"))?;
    command.arg("zigbuild").args(options).args(["kvmem-cli", "--bin", "kvmem"]);
    super::run_shown(&format!("{machine}: the command"), &mut command)?;
    let built = work.join(target.triple()).join("dist");
    let staged = work.join("stage").join(machine);
    stage::fill(root, &built.join("kvmem"), &built, &staged)?;

    // Maturin writes into an empty folder, since its file is found there by being alone.
    let made = work.join("made").join(machine);
    remove(&made)?;
    let mut maturin = recipe.with_flags(tools.program("maturin"))?;
    maturin.args(["build", "--locked", "--profile", "dist", "--zig", "--target", &target.triple()]);
    maturin.args(["--compatibility", &format!("manylinux_{}_{}", GLIBC.0, GLIBC.1)]);
    maturin.arg("--out").arg(&made);
    maturin.arg("--interpreter").arg(tools.program("python"));
    maturin.arg("--manifest-path").arg(root.join("crates/kvmem-python/Cargo.toml"));
    maturin.args(["--", "-C", &link_unwinder]);
    super::run_shown(&format!("{machine}: the wheel"), &mut maturin)?;
    let wheel = only_file(&made)?;

    let mut complete = recipe.with_flags(tools.program("python"))?;
    complete.env("PYTHONPATH", root.join("crates/kvmem-python/backend"));
    complete.args(["-m", "kvmem_build"]).arg(&wheel).arg(&staged);
    super::run_shown(&format!("{machine}: the command and the C library added"), &mut complete)?;

    let mut links = Command::new(tools.program("python"));
    links.arg(root.join(LINKS)).arg(&wheel).arg(format!("--glibc={}.{}", GLIBC.0, GLIBC.1));
    for folder in [root, &cargo_home()?] {
        links.arg("--builder").arg(folder);
    }
    super::run_shown(&format!("{machine}: what the wheel needs"), &mut links)?;
    let name = wheel.file_name().context("the wheel has no name")?;
    let to = out.join(name);
    fs::copy(&wheel, &to).with_context(|| format!("cannot write {}", to.display()))?;
    say!("\n{}: {:.2} MB", to.display(), fs::metadata(&to)?.len() as f64 / 1e6);
    Ok(to)
}

/// The common part of all commands of one build.
struct Recipe<'a> {
    root: &'a Path,
    work: &'a Path,
    tools: &'a Environment,
}

impl Recipe<'_> {
    /// Returns a command with the flags of the compiler and the time stamp.
    fn with_flags(&self, program: impl AsRef<std::ffi::OsStr>) -> Result<Command> {
        let mut command = Command::new(program);
        command.current_dir(self.root).env("PATH", self.tools.path());
        command.env("CARGO_TARGET_DIR", self.work);
        command.env_remove("RUSTFLAGS").env("CARGO_ENCODED_RUSTFLAGS", flags(self.root)?);
        command.env("SOURCE_DATE_EPOCH", epoch(self.root)?.to_string());
        Ok(command)
    }
}

fn only_file(folder: &Path) -> Result<PathBuf> {
    let mut files = Vec::new();
    for entry in
        fs::read_dir(folder).with_context(|| format!("cannot read {}", folder.display()))?
    {
        files.push(entry?.path());
    }
    match files.as_slice() {
        [file] => Ok(file.clone()),
        _ => bail!("{} holds {} files instead of one wheel", folder.display(), files.len()),
    }
}
