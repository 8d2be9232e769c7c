//! *Check*: unpacks the archive and uses it as its reader would.
//!
//! Programs of another platform are not run; what is around them is checked all the same.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Result, ensure};

use super::{Shipment, archive, build, manual, remove};
use crate::run::{output, succeed};
use crate::say;
use crate::setup::{self, works};
use crate::step::Report;

/// The program that uses the library.
const CONSUMER: &str = "xtask/src/dist/consumer.c";

/// Runs all checks as steps.
pub(super) fn run(shipment: &Shipment<'_>, report: &mut Report) {
    for (tool, debian) in
        [("pkg-config", "pkg-config"), ("mandoc", "mandoc"), ("zsh", "zsh"), ("fish", "fish")]
    {
        let probe = if tool == "mandoc" { "/dev/null" } else { "--version" };
        // What could not be installed is named by the check that goes without.
        let _ = setup::package(&format!("{tool} is missing"), debian, || works(tool, &[probe]));
    }
    let Shipment { out, version, .. } = shipment;
    report.check("dist: checksums", || {
        succeed(Command::new("sha256sum").current_dir(out).args([
            "--check",
            "--strict",
            archive::SUMS,
        ]))
    });
    report.check("dist: the same bytes again", || same_bytes(shipment));
    let mut prefix = PathBuf::new();
    if !report.check("dist: unpack", || unpack(shipment).map(|folder| prefix = folder)) {
        return;
    }
    report.check("dist: no paths of the builder", || no_paths(shipment.root, &prefix));
    report.check("dist: manual pages and completions", || {
        manual::check(&shipment.scratch.join("manual"))?;
        completes(&prefix)
    });
    if build::host().is_ok_and(|host| host != shipment.triple) {
        say!("(the programs are those of {}, so none of them is run)", shipment.triple);
        return;
    }
    report.check("dist: the command runs", || {
        let said = output(Command::new(prefix.join("bin/kvmem")).arg("--version"))?;
        ensure!(said.trim() == format!("kvmem {version}"), "kvmem --version says {said:?}");
        Ok(())
    });
    report.check("dist: C by pkg-config", || by_pkg_config(shipment, &prefix));
}

/// Packs once more, and compares.
fn same_bytes(shipment: &Shipment<'_>) -> Result<()> {
    let name = format!("{}.tar.gz", shipment.name());
    let again = shipment.scratch.join("again.tar.gz");
    archive::write(&shipment.stage(), shipment.epoch, &again)?;
    let is_same = fs::read(&again)? == fs::read(shipment.out.join(&name))?;
    ensure!(is_same, "packed again, {name} differs: see {}", again.display());
    Ok(())
}

/// Unpacks the archive into a new folder, and returns the folder inside.
fn unpack(shipment: &Shipment<'_>) -> Result<PathBuf> {
    let folder = shipment.scratch.join("unpacked");
    remove(&folder)?;
    fs::create_dir_all(&folder)?;
    let archive = shipment.out.join(format!("{}.tar.gz", shipment.name()));
    let mut tar = Command::new("tar");
    succeed(tar.arg("--extract").arg("--directory").arg(&folder).arg("--file").arg(archive))?;
    Ok(folder.join(shipment.name()))
}

/// Checks that the static library contains neither the folder of the repository, nor that of cargo.
fn no_paths(root: &Path, prefix: &Path) -> Result<()> {
    let content = fs::read(prefix.join("lib/libkvmem.a"))?;
    for folder in [root, &build::cargo_home()?] {
        let name = folder.as_os_str().as_encoded_bytes();
        let found = content.windows(name.len()).any(|window| window == name);
        ensure!(!found, "lib/libkvmem.a contains the builder's path {}", folder.display());
    }
    Ok(())
}

/// Lets bash complete the beginning of a subcommand.
fn completes(prefix: &Path) -> Result<()> {
    let script = "source \"$1\"; COMP_WORDS=(kvmem do); COMP_CWORD=1; _kvmem kvmem do kvmem; \
                  echo \"${COMPREPLY[*]}\"";
    let file = prefix.join("share/bash-completion/completions/kvmem");
    let said = output(Command::new("bash").args(["-c", script, "bash"]).arg(file))?;
    ensure!(said.trim() == "doctor", "bash completes `kvmem do` to {said:?}");
    Ok(())
}

/// Compiles and runs the program with the flags of pkg-config, shared and static.
fn by_pkg_config(shipment: &Shipment<'_>, prefix: &Path) -> Result<()> {
    let lib = prefix.join("lib");
    let flags = |arguments: &[&str]| -> Result<Vec<String>> {
        let mut ask = Command::new("pkg-config");
        ask.env("PKG_CONFIG_PATH", lib.join("pkgconfig")).args(arguments).arg("kvmem");
        Ok(output(&mut ask)?.split_whitespace().map(str::to_owned).collect())
    };
    let is_version = flags(&["--modversion"])? == [shipment.version];
    ensure!(is_version, "pkg-config knows another version than {}", shipment.version);
    let shared = flags(&["--cflags", "--libs"])?;
    // The linker prefers the shared library, so the static one is named by its file.
    let archive = lib.join("libkvmem.a").display().to_string();
    let alone = flags(&["--cflags", "--libs", "--static"])?
        .into_iter()
        .map(|flag| if flag == "-lkvmem" { archive.clone() } else { flag })
        .collect();
    for (kind, flags, path) in [("shared", shared, &*lib), ("static", alone, Path::new(""))] {
        let program = shipment.scratch.join(format!("consumer-{kind}"));
        let mut cc = Command::new("cc");
        cc.args(["-std=c11", "-Wall", "-Werror"]).arg(shipment.root.join(CONSUMER));
        output(cc.arg("-o").arg(&program).args(flags))?;
        // It prints the version of the library.
        let said = output(Command::new(&program).env("LD_LIBRARY_PATH", path))?;
        ensure!(said.trim() == shipment.version, "{} says {said:?}", program.display());
    }
    Ok(())
}
