//! *Parts*: the crates inside of the archive, as a software bill of materials.
//!
//! The format is CycloneDX 1.6 in JSON. A component is a crate that is linked into the command or
//! into the C library, with its version, licence, source and checksum; crates that run only while
//! compiling are none. The dependencies are those of the linked crates among themselves.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use time::OffsetDateTime;

use super::build::PACKAGES;
use crate::notices;
use crate::run::output;
use crate::venv;

/// The version of the format.
const FORMAT: &str = "1.6";

/// Returns the list of parts of the archive for a platform.
pub(super) fn list(root: &Path, triple: &str, version: &str, epoch: u64) -> Result<Value> {
    let mut trees = String::new();
    for package in PACKAGES {
        trees += &notices::tree(root, package, triple)?;
    }
    let linked = names(&trees);
    let metadata = notices::metadata(root, triple)?;
    let lock = fs::read_to_string(root.join("Cargo.lock")).context("cannot read Cargo.lock")?;
    let checksums = checksums(&lock);

    let packages = metadata["packages"].as_array().context("cargo metadata lists no packages")?;
    let mut components = BTreeMap::new();
    let mut references = BTreeMap::new();
    for package in packages {
        let name = (text(package, "name"), text(package, "version"));
        if linked.contains(&name) {
            references.insert(text(package, "id"), reference(name));
            components.insert(reference(name), component(package, checksums.get(&name).copied()));
        }
    }
    ensure!(
        components.len() == linked.len(),
        "cargo metadata describes {} of {} linked crates",
        components.len(),
        linked.len()
    );
    let nodes = metadata["resolve"]["nodes"].as_array().context("cargo metadata has no graph")?;
    let mut edges = edges(nodes, &references);
    let whole = format!("kvmem-{version}-{triple}");
    let of_whole: Vec<String> = PACKAGES.iter().map(|name| reference((name, version))).collect();
    edges.insert(whole.clone(), of_whole.into_iter().collect());

    let seconds = OffsetDateTime::from_unix_timestamp(epoch.try_into()?)?;
    let (date, clock) = (seconds.date(), seconds.time());
    let (hour, minute, second) = clock.as_hms();
    Ok(json!({
        "bomFormat": "CycloneDX",
        "specVersion": FORMAT,
        "version": 1,
        "metadata": {
            "timestamp": format!("{date}T{hour:02}:{minute:02}:{second:02}Z"),
            "component": {
                "type": "application",
                "bom-ref": whole,
                "name": "kvmem",
                "version": version,
                "licenses": [{"expression": "Apache-2.0"}],
                "properties": [{"name": "kvmem:platform", "value": triple}],
            },
        },
        "components": components.values().collect::<Vec<_>>(),
        "dependencies": edges
            .into_iter()
            .map(|(from, to)| json!({"ref": from, "dependsOn": to}))
            .collect::<Vec<_>>(),
    }))
}

/// A program for the validator of the format's owners: the exit status is a message if the list of
/// parts is not valid.
const VALIDATE: &str = "import sys
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator
text = open(sys.argv[1], encoding='utf-8').read()
sys.exit(JsonStrictValidator(SchemaVersion.V1_6).validate_str(text))";

/// Compares a list of parts with the schema of its format.
pub(super) fn validate(root: &Path, file: &Path) -> Result<()> {
    let tools = venv::tools(root)?;
    output(Command::new(tools.program("python")).args(["-c", VALIDATE]).arg(file)).map(drop)
}

/// Returns the names and versions in a tree, `name vVERSION …` in each line.
fn names(tree: &str) -> BTreeSet<(&str, &str)> {
    tree.lines()
        .filter_map(|line| {
            let mut words = line.split(' ');
            Some((words.next()?, words.next()?.strip_prefix('v')?))
        })
        .collect()
}

/// Returns the checksums of `Cargo.lock`, which writes one field in each line.
fn checksums(lock: &str) -> BTreeMap<(&str, &str), &str> {
    let field = |block: &'_ str, name: &str| -> Option<(usize, usize)> {
        let start = block.find(&format!("\n{name} = \""))? + name.len() + 5;
        Some((start, start + block[start..].find('"')?))
    };
    lock.split("[[package]]")
        .filter_map(|block| {
            let get = |name| field(block, name).map(|(start, end)| &block[start..end]);
            Some(((get("name")?, get("version")?), get("checksum")?))
        })
        .collect()
}

/// Returns the entry of a crate.
fn component(package: &Value, checksum: Option<&str>) -> Value {
    let name = (text(package, "name"), text(package, "version"));
    let mut component = json!({
        "type": "library",
        "bom-ref": reference(name),
        "name": name.0,
        "version": name.1,
        "purl": reference(name),
        // Older manifests separate alternatives by a slash, which is no expression of SPDX.
        "licenses": [{"expression": text(package, "license").replace('/', " OR ")}],
    });
    if let Some(checksum) = checksum {
        component["hashes"] = json!([{"alg": "SHA-256", "content": checksum}]);
    }
    if let Some(url) = package["repository"].as_str() {
        component["externalReferences"] = json!([{"type": "vcs", "url": url}]);
    }
    component
}

/// Returns the dependencies among the linked crates that are linked themselves.
fn edges(
    nodes: &[Value],
    references: &BTreeMap<&str, String>,
) -> BTreeMap<String, BTreeSet<String>> {
    let mut edges = BTreeMap::new();
    for node in nodes {
        let Some(from) = references.get(text(node, "id")) else { continue };
        let deps = node["deps"].as_array().into_iter().flatten();
        let linked = deps.filter(|dep| {
            let kinds = dep["dep_kinds"].as_array().into_iter().flatten();
            kinds.into_iter().any(|kind| kind["kind"].is_null())
        });
        let to = linked.filter_map(|dep| references.get(text(dep, "pkg")).cloned()).collect();
        edges.insert(from.clone(), to);
    }
    edges
}

/// Returns the name of a crate among all packages of the world.
fn reference((name, version): (&str, &str)) -> String {
    format!("pkg:cargo/{name}@{version}")
}

fn text<'a>(value: &'a Value, field: &str) -> &'a str {
    value[field].as_str().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn checksums_belong_to_their_versions() {
        let lock = "version = 4\n\n[[package]]\nname = \"a\"\nversion = \"1.0.0\"\n\
                    checksum = \"11\"\n\n[[package]]\nname = \"ours\"\nversion = \"0.1.0\"\n\n\
                    [[package]]\nname = \"a\"\nversion = \"2.0.0\"\nchecksum = \"22\"\n";
        let found = checksums(lock);
        assert_eq!(found.len(), 2);
        assert_eq!((found[&("a", "1.0.0")], found[&("a", "2.0.0")]), ("11", "22"));
    }

    #[test]
    fn dependencies_that_run_while_compiling_are_no_edges() {
        let references = BTreeMap::from([("1", "one".to_owned()), ("2", "two".to_owned())]);
        let dep = |id: &str, kind: Value| json!({"pkg": id, "dep_kinds": [{"kind": kind}]});
        let nodes = [
            json!({"id": "1", "deps": [dep("2", json!(null)), dep("3", json!(null))]}),
            json!({"id": "2", "deps": [dep("1", json!("build"))]}),
            json!({"id": "3", "deps": []}),
        ];
        let edges = edges(&nodes, &references);
        assert_eq!(edges.len(), 2);
        assert_eq!(edges["one"], BTreeSet::from(["two".to_owned()]));
        assert!(edges["two"].is_empty());
    }
}
