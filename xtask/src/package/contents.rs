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
    let mut tracked = Command::new("git");
    let tracked = output(tracked.current_dir(&each.folder).args(["ls-files"]))?;
    let mut packed = Command::new(cargo());
    packed.current_dir(root).args(["package", "--list", "--allow-dirty", "--quiet"]);
    let packed = output(packed.args(["--package", &each.name]))?;
    fields(&each.package)
        .and_then(|()| files(&tracked, &packed))
        .with_context(|| format!("package {}", each.name))
}

/// Checks that no field is missing or empty.
fn fields(package: &Value) -> Result<()> {
    for field in FIELDS {
        let is_empty = match &package[field] {
            Value::String(text) => text.is_empty(),
            Value::Array(list) => list.is_empty(),
            _ => true,
        };
        ensure!(!is_empty, "the manifest has no {field}: add it to Cargo.toml");
    }
    Ok(())
}

/// Compares the tracked files of the crate with those in its package, a line each.
fn files(tracked: &str, packed: &str) -> Result<()> {
    let packed: BTreeSet<&str> = packed.lines().collect();
    let is_needed = |file: &&str| WHOLE.iter().any(|folder| file.starts_with(folder));
    for file in FILES.into_iter().chain(tracked.lines().filter(is_needed)) {
        ensure!(packed.contains(file), "{file} is not packed: see `include` in Cargo.toml");
    }
    if let Some(test) = packed.iter().find(|file| file.starts_with("tests/")) {
        bail!("{test} is packed, and tests need what the package leaves out: see `include`");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn faults_of_a_package_are_found() {
        let tracked = "Cargo.toml\nsrc/lib.rs\ndocs/a.md\ntests/it.rs\n";
        let whole = "Cargo.toml\nLICENSE\nREADME.md\ndocs/a.md\nsrc/lib.rs\n";
        files(tracked, whole).unwrap();
        for missing in ["README.md", "docs/a.md", "src/lib.rs"] {
            let error = files(tracked, &whole.replace(missing, "a")).unwrap_err().to_string();
            assert!(error.contains(missing), "{error}");
        }
        let error = files(tracked, &format!("{whole}tests/it.rs\n")).unwrap_err().to_string();
        assert!(error.contains("tests/it.rs"), "{error}");

        let mut package: Value = FIELDS.iter().map(|field| (*field, json!("text"))).collect();
        fields(&package).unwrap();
        package["keywords"] = json!([]);
        assert!(fields(&package).unwrap_err().to_string().contains("keywords"));
    }
}
