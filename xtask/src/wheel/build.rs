//! *Build*: the command, the C library and the extension module of one architecture, as a wheel.
//!
//! Two builds of one commit give the same bytes, wherever the repository lies: folders of the
//! builder are replaced in messages and file names (`--remap-path-prefix`), and time stamps are
//! those of the commit (`SOURCE_DATE_EPOCH`).
//!
//! Zig links a copy of LLVM's libunwind into everything. A program may keep its own, but a library
//! must not. When a thread ends by `pthread_exit` or is cancelled, glibc unwinds its stack with
//! `libgcc_s.so.1`, and calls Rust's personality function for each frame. Inside of a library with
//! a copy, that function would hand libgcc's state to libunwind, and the process would die. Python
//! ends threads this way when it exits. A library is therefore linked against `libgcc_s.so.1`,
//! which every system with glibc has. The linker needs its names and versions only, so it gets a
//! library of empty functions: `unwinder.c`, `unwinder.map`.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};

use super::{GLIBC, stage};
use crate::dist::build::{LINKS, cargo_home, flags, standard_library};
use crate::dist::{epoch, files, remove};
use crate::run::shown;
use crate::say;
use crate::venv::Environment;

/// Compiles the parts, makes the wheel in `out` and returns its path.
pub(crate) fn build(
    root: &Path,
    work: &Path,
    tools: &Environment,
    machine: &str,
    out: &Path,
) -> Result<PathBuf> {
    let glibc = format!("{}.{}", GLIBC.0, GLIBC.1);
    let triple = format!("{machine}-unknown-linux-gnu");
    standard_library(&triple)?;
    let (flags, epoch) = (flags(root)?, epoch(root)?.to_string());
    // A command with the flags of the compiler and the time stamp.
    let tool = |name: &str| {
        let mut command = Command::new(tools.program(name));
        command.current_dir(root).env("PATH", tools.path()).env("CARGO_TARGET_DIR", work);
        command.env_remove("RUSTFLAGS").env("CARGO_ENCODED_RUSTFLAGS", &flags);
        command.env("SOURCE_DATE_EPOCH", &epoch);
        command
    };

    let folder = work.join("unwinder").join(machine);
    fs::create_dir_all(&folder)?;
    let (sources, unwinder) = (root.join("xtask/src/wheel"), folder.join("libgcc_s.so.1"));
    let versions = format!("-Wl,--version-script={}", sources.join("unwinder.map").display());
    let mut cc = tool("python");
    cc.args(["-m", "ziglang", "cc", "-shared", "-nostdlib", "-Wl,-soname,libgcc_s.so.1"]);
    cc.args(["-target", &format!("{machine}-linux-gnu.{glibc}"), &versions, "-o"]);
    cc.arg(&unwinder).arg(sources.join("unwinder.c"));
    shown(&format!("{machine}: names of the unwinder"), &mut cc)?;
    let link_unwinder = format!("link-arg={}", unwinder.display());

    // One call each: together the packages would share the features of the library.
    let versioned = format!("{triple}.{glibc}");
    let options = ["--locked", "--profile", "dist", "--target", &versioned, "--package"];
    let mut library = tool("cargo-zigbuild");
    library.arg("rustc").args(options).args(["kvmem-capi", "--lib"]);
    shown(&format!("{machine}: the C library"), library.args(["--", "-C", &link_unwinder]))?;
    let mut command = tool("cargo-zigbuild");
    command.arg("zigbuild").args(options).args(["kvmem-cli", "--bin", "kvmem"]);
    shown(&format!("{machine}: the command"), &mut command)?;
    let built = work.join(&triple).join("dist");
    let staged = work.join("stage").join(machine);
    stage::fill(root, &built.join("kvmem"), &built, &staged)?;

    // Maturin writes into an empty folder, since its file is found there by being alone.
    let made = work.join("made").join(machine);
    remove(&made)?;
    let mut maturin = tool("maturin");
    maturin.args(["build", "--locked", "--profile", "dist", "--zig", "--target", &triple]);
    maturin.args(["--compatibility", &format!("manylinux_{}_{}", GLIBC.0, GLIBC.1), "--out"]);
    maturin.arg(&made).arg("--interpreter").arg(tools.program("python"));
    maturin.arg("--manifest-path").arg(root.join("crates/kvmem-python/Cargo.toml"));
    shown(&format!("{machine}: the wheel"), maturin.args(["--", "-C", &link_unwinder]))?;
    let wheel = files(&made)?.pop().context("maturin has made no wheel")?;

    let mut complete = tool("python");
    complete.env("PYTHONPATH", root.join("crates/kvmem-python/backend"));
    complete.args(["-m", "kvmem_build"]).arg(&wheel).arg(&staged);
    shown(&format!("{machine}: the command and the C library added"), &mut complete)?;

    let mut links = tool("python");
    links.arg(root.join(LINKS)).arg(&wheel).arg(format!("--glibc={glibc}"));
    for folder in [root, &cargo_home()?] {
        links.arg("--builder").arg(folder);
    }
    shown(&format!("{machine}: what the wheel needs"), &mut links)?;
    let to = out.join(wheel.file_name().context("the wheel has no name")?);
    fs::copy(&wheel, &to).with_context(|| format!("cannot write {}", to.display()))?;
    say!("\n{}: {:.2} MB", to.display(), fs::metadata(&to)?.len() as f64 / 1e6);
    Ok(to)
}
