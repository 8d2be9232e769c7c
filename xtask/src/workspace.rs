//! *Workspace*: its root, and the targets of its packages, as cargo reports them.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;

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

/// Returns the cargo that started this program, which keeps a `+toolchain` of the caller.
pub(crate) fn cargo() -> OsString {
    std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into())
}

/// Returns the names of the targets of one kind (`bin`, `example`, …) in the package at `manifest`,
/// in name order.
pub(crate) fn targets(manifest: &Path, kind: &str) -> Result<Vec<String>> {
    targets_in(&metadata(manifest)?, &canonical(manifest)?, kind)
}

/// Returns the version of the package at `manifest`.
pub(crate) fn version(manifest: &Path) -> Result<String> {
    let metadata = metadata(manifest)?;
    let version = package_in(&metadata, &canonical(manifest)?)?["version"].as_str();
    Ok(version.context("cargo metadata gives no version")?.to_owned())
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
    let crates = published_in(&metadata(&root.join("Cargo.toml"))?)?;
    ensure!(!crates.is_empty(), "no crate of the workspace is meant to be published");
    Ok(crates)
}

/// Returns the oldest version of Rust that the workspace promises to compile with.
pub(crate) fn rust_version(root: &Path) -> Result<String> {
    let metadata = metadata(&root.join("Cargo.toml"))?;
    let packages = metadata["packages"].as_array().context("cargo metadata lists no packages")?;
    let mut versions: Vec<&str> =
        packages.iter().filter_map(|package| package["rust_version"].as_str()).collect();
    versions.sort_unstable();
    versions.dedup();
    match versions[..] {
        [version] => Ok(version.to_owned()),
        _ => bail!("the packages promise different versions of Rust: {}", versions.join(", ")),
    }
}

fn published_in(metadata: &Value) -> Result<Vec<Published>> {
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
    Ok(crates)
}

fn metadata(manifest: &Path) -> Result<Value> {
    let output = Command::new(cargo())
        .args(["metadata", "--no-deps", "--format-version", "1", "--manifest-path"])
        .arg(manifest)
        .output()
        .context("cannot run cargo metadata")?;
    if !output.status.success() {
        bail!("cargo metadata failed: {}", String::from_utf8_lossy(&output.stderr).trim());
    }
    serde_json::from_slice(&output.stdout).context("cargo metadata printed no JSON")
}

fn canonical(manifest: &Path) -> Result<PathBuf> {
    manifest.canonicalize().with_context(|| format!("{} is missing", manifest.display()))
}

fn package_in<'a>(metadata: &'a Value, manifest: &Path) -> Result<&'a Value> {
    let packages = metadata["packages"].as_array().context("cargo metadata lists no packages")?;
    packages
        .iter()
        .find(|package| {
            package["manifest_path"].as_str().is_some_and(|path| Path::new(path) == manifest)
        })
        .with_context(|| format!("cargo metadata does not list {}", manifest.display()))
}

fn targets_in(metadata: &Value, manifest: &Path, kind: &str) -> Result<Vec<String>> {
    let package = package_in(metadata, manifest)?;
    let mut names: Vec<String> = package["targets"]
        .as_array()
        .into_iter()
        .flatten()
        .filter(|target| {
            target["kind"].as_array().is_some_and(|kinds| kinds.iter().any(|k| k == kind))
        })
        .filter_map(|target| target["name"].as_str().map(str::to_owned))
        .collect();
    names.sort();
    Ok(names)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn picks_the_package_by_manifest_and_the_targets_by_kind() {
        let metadata = json!({"packages": [
            {"manifest_path": "/w/a/Cargo.toml", "targets": [{"name": "other", "kind": ["bin"]}]},
            {"manifest_path": "/w/fuzz/Cargo.toml", "targets": [
                {"name": "replay", "kind": ["bin"]},
                {"name": "fuzz", "kind": ["lib"]},
                {"name": "offset", "kind": ["bin"]},
            ]},
        ]});
        let names = targets_in(&metadata, Path::new("/w/fuzz/Cargo.toml"), "bin").unwrap();
        assert_eq!(names, ["offset", "replay"]);
        assert!(targets_in(&metadata, Path::new("/w/b/Cargo.toml"), "bin").is_err());
    }

    #[test]
    fn a_package_without_registries_is_private() {
        let package = |name: &str, publish: Value| {
            let manifest = format!("/w/{name}/Cargo.toml");
            json!({"name": name, "publish": publish, "manifest_path": manifest})
        };
        let metadata = json!({"packages": [
            package("open", json!(null)),
            package("closed", json!([])),
            package("named", json!(["r"])),
        ]});
        let crates = published_in(&metadata).unwrap();
        let names: Vec<&str> = crates.iter().map(|each| each.name.as_str()).collect();
        assert_eq!(names, ["named", "open"]);
        assert_eq!(crates[1].folder, Path::new("/w/open"));
    }

    #[test]
    fn this_workspace_has_its_command() {
        let manifest = root().unwrap().join("crates/kvmem-cli/Cargo.toml");
        assert_eq!(targets(&manifest, "bin").unwrap(), ["kvmem"]);
        assert_eq!(version(&manifest).unwrap(), env!("CARGO_PKG_VERSION"));
        assert!(target_folder(&root().unwrap()).unwrap().is_absolute());
    }
}
