//! *Workspace*: its root, its version and the crates that are published.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;

use crate::run::output;

/// Returns the folder of the workspace's `Cargo.toml`: the parent of this crate's folder.
pub(crate) fn root() -> Result<PathBuf> {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let root = here.parent().context("the chores' crate has no parent folder")?;
    if !root.join("Cargo.toml").is_file() {
        bail!(
            "{} holds no Cargo.toml: was the checkout moved since this was built?",
            root.display()
        );
    }
    Ok(root.to_owned())
}

/// The version of all crates of the workspace.
pub(crate) const VERSION: &str = env!("CARGO_PKG_VERSION");

/// Returns the cargo that started this program, which keeps a `+toolchain` of the caller.
pub(crate) fn cargo() -> OsString {
    std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into())
}

/// Returns the target folder.
pub(crate) fn target_folder(root: &Path) -> Result<PathBuf> {
    let metadata = metadata(&root.join("Cargo.toml"))?;
    Ok(metadata["target_directory"]
        .as_str()
        .context("cargo metadata gives no target directory")?
        .into())
}

/// A crate that is meant to be published.
pub(crate) struct Published {
    pub(crate) name: String,
    /// Its folder.
    pub(crate) folder: PathBuf,
    /// All that cargo tells about it.
    pub(crate) package: Value,
}

/// Returns the crates of the workspace that a registry may get, in name order.
pub(crate) fn published(root: &Path) -> Result<Vec<Published>> {
    let metadata = metadata(&root.join("Cargo.toml"))?;
    let packages = metadata["packages"].as_array().context("cargo metadata lists no packages")?;
    let mut crates = Vec::new();
    // `publish` is null or a list of registries; an empty list forbids all.
    for package in packages.iter().filter(|package| package["publish"] != Value::Array(vec![])) {
        let name = package["name"].as_str().context("a package has no name")?.to_owned();
        let manifest = package["manifest_path"].as_str().context("a package has no manifest")?;
        let folder = Path::new(manifest).parent().context("a manifest has no folder")?.to_owned();
        crates.push(Published { name, folder, package: package.clone() });
    }
    crates.sort_by(|a, b| a.name.cmp(&b.name));
    ensure!(!crates.is_empty(), "no crate of the workspace is meant to be published");
    Ok(crates)
}

fn metadata(manifest: &Path) -> Result<Value> {
    let mut metadata = Command::new(cargo());
    metadata.args(["metadata", "--no-deps", "--format-version", "1", "--manifest-path"]);
    let metadata = output(metadata.arg(manifest))?;
    serde_json::from_str(&metadata).context("cargo metadata printed no JSON")
}
