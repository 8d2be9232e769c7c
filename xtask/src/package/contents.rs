//! *Contents*: the files of a package and the fields of its manifest.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;

use crate::run::output;
use crate::workspace::{Published, cargo};

/// Fields of a manifest that a registry shows or needs.
const FIELDS: [&str; 8] = [
    "description",
    "license",
    "readme",
    "documentation",
    "rust_version",
    "keywords",
    "categories",
    "authors",
];

/// Files that every package has.
const FILES: [&str; 3] = ["Cargo.toml", "README.md", "LICENSE"];

/// Folders whose tracked files are all in the package.
const WHOLE: [&str; 2] = ["src/", "docs/"];

/// Checks the manifest and the files of one crate.
pub(super) fn check(root: &Path, each: &Published) -> Result<()> {
    fields(&each.package)
        .and_then(|()| files(&tracked(root, &each.folder)?, &packed(root, &each.name)?))
        .with_context(|| format!("package {}", each.name))
}

/// Checks that no field is missing or empty.
fn fields(package: &Value) -> Result<()> {
    for field in FIELDS {
        let is_there = match &package[field] {
            Value::String(text) => !text.is_empty(),
            Value::Array(list) => !list.is_empty(),
            _ => false,
        };
        ensure!(is_there, "the manifest has no {field}: add it to Cargo.toml");
    }
    Ok(())
}

/// Compares the tracked files of the crate with those in its package.
fn files(tracked: &BTreeSet<String>, packed: &BTreeSet<String>) -> Result<()> {
    for file in FILES {
        ensure!(packed.contains(file), "{file} is not packed: see `include` in Cargo.toml");
    }
    for file in tracked {
        let needed = WHOLE.iter().any(|folder| file.starts_with(folder));
        ensure!(
            !needed || packed.contains(file),
            "{file} is not packed: see `include` in Cargo.toml"
        );
    }
    if let Some(test) = packed.iter().find(|file| file.starts_with("tests/")) {
        bail!("{test} is packed, and tests need what the package leaves out: see `include`");
    }
    Ok(())
}

/// Returns the files that git tracks in a folder, from there on.
fn tracked(root: &Path, folder: &Path) -> Result<BTreeSet<String>> {
    let mut git = Command::new("git");
    lines(git.current_dir(root.join(folder)).args(["ls-files"]))
}

/// Returns the files that cargo would pack.
fn packed(root: &Path, name: &str) -> Result<BTreeSet<String>> {
    let mut list = Command::new(cargo());
    list.current_dir(root).args(["package", "--list", "--allow-dirty", "--quiet"]);
    lines(list.args(["--package", name]))
}

fn lines(command: &mut Command) -> Result<BTreeSet<String>> {
    Ok(output(command)?.lines().map(str::to_owned).collect())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn set(names: &[&str]) -> BTreeSet<String> {
        names.iter().map(|&name| name.to_owned()).collect()
    }

    #[test]
    fn a_file_that_is_left_out_is_found() {
        let tracked = set(&["Cargo.toml", "src/lib.rs", "docs/a.md", "tests/it.rs"]);
        let whole = set(&["Cargo.toml", "LICENSE", "README.md", "docs/a.md", "src/lib.rs"]);
        files(&tracked, &whole).unwrap();
        for missing in ["README.md", "docs/a.md", "src/lib.rs"] {
            let mut packed = whole.clone();
            packed.remove(missing);
            let error = files(&tracked, &packed).unwrap_err().to_string();
            assert!(error.contains(missing), "{error}");
        }
        let mut packed = whole;
        packed.insert("tests/it.rs".to_owned());
        assert!(files(&tracked, &packed).unwrap_err().to_string().contains("tests/it.rs"));
    }

    #[test]
    fn an_empty_field_is_found() {
        let mut package = json!({
            "description": "d", "license": "l", "readme": "r", "documentation": "u",
            "rust_version": "1.89", "keywords": ["k"], "categories": ["c"], "authors": ["a"],
        });
        fields(&package).unwrap();
        package["keywords"] = json!([]);
        assert!(fields(&package).unwrap_err().to_string().contains("keywords"));
    }
}
