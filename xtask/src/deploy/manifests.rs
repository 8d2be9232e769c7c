//! *Manifests*: what a schema does not say about the Kubernetes manifests.

use std::path::Path;

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use super::linters::{Linters, files};
use super::{dockerfile, parses, understands};
use crate::workspace::version;

/// Checks every container of every manifest.
pub(super) fn check(root: &Path, tools: &Linters, command: &Path) -> Result<()> {
    let version = version(&root.join("crates/kvmem-cli/Cargo.toml"))?;
    let mut containers = 0;
    for file in files(&root.join("deploy/kubernetes")) {
        for document in tools.documents(&file)? {
            let pod = &document["spec"]["template"]["spec"];
            let of = |list: &str| pod[list].as_array().cloned().unwrap_or_default();
            for container in &[of("initContainers"), of("containers")].concat() {
                containers += 1;
                check_container(pod, container, &version, command)
                    .with_context(|| format!("{}", file.display()))?;
            }
        }
    }
    ensure!(containers == 5, "there are {containers} containers, and 5 are known");
    Ok(())
}

fn check_container(pod: &Value, container: &Value, version: &str, command: &Path) -> Result<()> {
    let image = container["image"].as_str().context("a container has no image")?;
    let (_, tag) = image.split_once(':').context("an image has no version")?;
    ensure!(tag == version, "{image} is not of version {version}");
    if pod["securityContext"]["runAsNonRoot"] == true {
        ensure!(
            pod["securityContext"]["runAsUser"] == dockerfile::USER,
            "the image has another user"
        );
    }
    check_volumes(pod, container)?;
    if container["command"][0] == "install" {
        // It gives a folder to the server, and maps no memory.
        return Ok(());
    }
    let arguments = container["args"].as_array().context("a container has no args")?;
    let arguments: Vec<&str> = arguments.iter().filter_map(Value::as_str).collect();
    check_resources(&container["resources"], &arguments)?;
    check_probes(container, command)?;
    // The Python package has the other command; its tests run it.
    match arguments.first() {
        Some(&"doctor") => understands(command, &arguments),
        Some(&("serve" | "keeper")) => parses(command, &arguments),
        _ => Ok(()),
    }
}

/// Checks that the command knows what the probes run of it.
fn check_probes(container: &Value, command: &Path) -> Result<()> {
    for probe in ["startupProbe", "livenessProbe", "readinessProbe"] {
        let words = container[probe]["exec"]["command"].as_array().into_iter().flatten();
        let words: Vec<&str> = words.filter_map(Value::as_str).collect();
        if let Some((&"kvmem", arguments)) = words.split_first() {
            parses(command, arguments)?;
        }
    }
    Ok(())
}

/// Checks that the pages of 2 MiB suffice for the pool, and that they are requested as they are
/// limited, which Kubernetes demands.
fn check_resources(resources: &Value, arguments: &[&str]) -> Result<()> {
    let (requests, limits) = (&resources["requests"], &resources["limits"]);
    let is_same = |name: &str| requests[name].is_string() && requests[name] == limits[name];
    ensure!(is_same("memory"), "memory differs");
    if arguments.first() == Some(&"keeper") {
        // It holds the memory, and maps none of it.
        return Ok(());
    }
    ensure!(is_same("hugepages-2Mi"), "hugepages-2Mi differs");
    let size = arguments.iter().find_map(|word| word.strip_prefix("--size="));
    let size = size.and_then(|size| size.strip_suffix("GiB")).context("no --size in GiB")?;
    let pages = limits["hugepages-2Mi"].as_str().unwrap_or_default();
    ensure!(pages == format!("{size}Gi"), "{size} GiB need other hugepages than {pages}");
    Ok(())
}

/// Checks that every mount names a volume, and that every volume is mounted.
fn check_volumes(pod: &Value, container: &Value) -> Result<()> {
    let names = |list: &Value| {
        let list = list.as_array().into_iter().flatten();
        let mut names: Vec<String> =
            list.filter_map(|one| one["name"].as_str().map(str::to_owned)).collect();
        names.sort();
        names
    };
    let (mounts, volumes) = (names(&container["volumeMounts"]), names(&pod["volumes"]));
    ensure!(mounts == volumes, "{mounts:?} are mounted, of {volumes:?}");
    Ok(())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn resources_must_suffice() {
        let resources = |pages: &str, limit: &str| {
            json!({"requests": {"memory": "1Gi", "hugepages-2Mi": pages},
                   "limits": {"memory": "1Gi", "hugepages-2Mi": limit}})
        };
        let check = |resources| check_resources(&resources, &["doctor", "--size=4GiB"]);
        assert!(check(resources("4Gi", "4Gi")).is_ok());
        let of_keeper = json!({"requests": {"memory": "1Gi"}, "limits": {"memory": "1Gi"}});
        assert!(check_resources(&of_keeper, &["keeper"]).is_ok() && check(of_keeper).is_err());
        assert!(check(resources("4Gi", "8Gi")).is_err() && check(resources("2Gi", "2Gi")).is_err());
    }

    #[test]
    fn mounts_and_volumes_belong_together() {
        let pod = json!({"volumes": [{"name": "a"}]});
        assert!(check_volumes(&pod, &json!({"volumeMounts": [{"name": "a"}]})).is_ok());
        assert!(check_volumes(&pod, &json!({"volumeMounts": []})).is_err());
        assert!(check_volumes(&json!({}), &json!({"volumeMounts": [{"name": "a"}]})).is_err());
    }
}
