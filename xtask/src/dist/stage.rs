//! *Stage*: the folder that becomes the archive.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};

use super::build::{LINKS, PACKAGES, cargo_home};
use super::manual::COMPLETIONS;
use super::{Shipment, files, remove};
use crate::layout::{self, Parts};
use crate::notices;
use crate::run::output;
use crate::say;
use crate::venv;

/// The text that explains the archive, with places for the version and for what it needs.
const README: &str = include_str!("README.md");

/// What stands before the table of the notices.
const NOTICES_HEAD: &str = include_str!("../notices/archive.md");

/// Lays out all files: those of `built`, the manual, the licences.
pub(super) fn fill(shipment: &Shipment<'_>, built: &Path) -> Result<()> {
    let Shipment { root, triple, version, scratch, .. } = shipment;
    let stage = shipment.stage();
    remove(&stage)?;
    let include = root.join("crates/kvmem-capi/include");
    layout::install_into(&stage, built, &include, version, Parts::Shipped)
        .with_context(|| format!("cannot lay out {}", stage.display()))?;
    copy(&built.join("kvmem"), &stage.join("bin/kvmem"))?;

    let manual = scratch.join("manual");
    for page in files(&manual.join("man1"))? {
        let name = page.file_name().context("a page has no name")?;
        copy(&page, &stage.join("share/man/man1").join(name))?;
    }
    for (_, from, to) in COMPLETIONS {
        copy(&manual.join("completions").join(from), &stage.join(to))?;
    }

    copy(&root.join("LICENSE"), &stage.join("LICENSE"))?;
    fs::write(stage.join("THIRD-PARTY.md"), notices(root, triple)?)?;
    let library = stage.join(format!("lib/libkvmem.so.{version}"));
    let glibc = newest_glibc(root, &[stage.join("bin/kvmem"), library])?;
    say!("the command and the library need glibc {glibc} or later");
    let readme = README.replace("VERSION", version).replace("GLIBC", &glibc);
    fs::write(stage.join("README.md"), readme).context("cannot write README.md")
}

/// Returns the licences of the crates that are inside.
pub(super) fn notices(root: &Path, triple: &str) -> Result<String> {
    notices::of_packages(root, &PACKAGES, triple, NOTICES_HEAD)
}

fn copy(from: &Path, to: &Path) -> Result<()> {
    let folder = to.parent().context("a file has no folder")?;
    fs::create_dir_all(folder)?;
    fs::copy(from, to).with_context(|| format!("cannot copy {}", from.display()))?;
    Ok(())
}

/// Returns the newest version of glibc that one of the files takes symbols from. They must name no
/// folder of the builder.
fn newest_glibc(root: &Path, files: &[PathBuf]) -> Result<String> {
    let mut newest = (0, 0);
    for file in files {
        let mut links = Command::new(venv::tools(root)?.program("python"));
        links.arg(root.join(LINKS)).arg(file);
        for folder in [root, &cargo_home()?] {
            links.arg("--builder").arg(folder);
        }
        let said = output(&mut links)?;
        let glibc = said.trim().rsplit_once("glibc ").and_then(|(_, glibc)| glibc.split_once('.'));
        let (major, minor) = glibc.with_context(|| format!("no glibc in {said:?}"))?;
        newest = newest.max((major.parse::<u32>()?, minor.parse()?));
    }
    Ok(format!("{}.{}", newest.0, newest.1))
}
