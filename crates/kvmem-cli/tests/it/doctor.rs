//! `kvmem doctor`, run as a command. The crate `kvmem` tests the verdicts, the chores' group
//! `deploy` compares a report with the schema, and the tests of the tour run the checks as another
//! user.

use std::path::Path;
use std::process::{Command, Output};

use serde_json::Value;

use crate::command::{run, text};

fn kvmem(args: &[&str]) -> Output {
    run("doctor", args)
}

/// Returns the report on standard output. It is complete for every verdict.
#[track_caller]
fn report(output: &Output) -> Value {
    let report: Value = serde_json::from_slice(&output.stdout).unwrap_or_else(|error| {
        panic!("{error}: {}{}", text(&output.stdout), text(&output.stderr))
    });
    let checks = report["checks"].as_array().unwrap();
    assert!(checks.len() >= 15, "{report:#}");
    for check in checks {
        for field in ["name", "value", "need", "verdict", "why", "fix", "source"] {
            assert!(check.get(field).is_some(), "no {field} in {check:#}");
        }
    }
    let mut kinds: Vec<_> = report["registrars"]
        .as_array()
        .unwrap()
        .iter()
        .map(|found| found["backend"].as_str().unwrap())
        .collect();
    kinds.dedup();
    assert_eq!(kinds, ["io_uring", "mlock", "verbs", "cuda", "nixl"], "{report:#}");
    let failed = checks.iter().filter(|check| check["verdict"] == "fail").count();
    assert_eq!(output.status.code(), Some(i32::from(failed > 0)), "{report:#}");
    assert_eq!(failed > 0, report["verdict"] == "fail");
    report
}

#[test]
fn options_set_the_requirements() {
    let args = [
        "--size", "1.5GiB", "--pages", "1G,thp", "--nodes", "1,0", "--shared", "--no-pin", "--json",
    ];
    let report = report(&kvmem(&args));
    let requirements = &report["requirements"];
    assert_eq!(requirements["size_bytes"], 3u64 << 29);
    assert_eq!(requirements["pages"], serde_json::json!(["1G", "thp"]));
    assert_eq!(requirements["nodes"], serde_json::json!([0, 1]));
    assert_eq!(
        (&requirements["shared"], &requirements["pinned"]),
        (&Value::Bool(true), &Value::Bool(false))
    );
    let hugepages =
        report["checks"].as_array().unwrap().iter().find(|check| check["name"] == "hugepages.1G");
    assert_eq!(hugepages.unwrap()["need"]["count"], 2);
}

#[test]
fn excessive_requirements_fail_with_a_reason_and_a_fix() {
    let output = kvmem(&["--size", "1024PiB", "--pages", "4k"]);
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    let table = text(&output.stdout);
    for word in ["1 EiB of 4k pages", "fail     memory.available", "fix: ", " fail, "] {
        assert!(table.contains(word), "no {word:?} in\n{table}");
    }
    assert!(text(&output.stderr).contains("memory.available"), "{output:?}");
    report(&kvmem(&["--size", "1024PiB", "--pages", "4k", "--json"]));
}

#[test]
fn registrars_are_listed_with_limits_or_an_error() {
    let report = report(&kvmem(&["--size", "4096", "--no-pin", "--json"]));
    let table = text(&kvmem(&["--size", "4096", "--no-pin"]).stdout);
    let (_, listed) = table.split_once("\nregistrars\n").unwrap_or_else(|| panic!("{table}"));
    for found in report["registrars"].as_array().unwrap() {
        match found["devices"].as_array() {
            Some(devices) => {
                assert!(!devices.is_empty(), "{found:#}");
                for device in devices {
                    for field in ["max_bytes", "max_keys", "memlock"] {
                        assert!(device.get(field).is_some(), "no {field} in {device:#}");
                    }
                    let name = device["device"].as_str().unwrap();
                    assert!(listed.contains(&format!("  {name}: ")), "no {name} in\n{listed}");
                }
            }
            None => {
                let reason = &found["not_available"];
                assert!(
                    listed.contains(reason["reason"].as_str().unwrap()),
                    "{reason:#}\n{listed}"
                );
                assert!(!reason["remedy"].as_str().unwrap().is_empty(), "{reason:#}");
            }
        }
    }
}

#[test]
fn invalid_options_name_the_fault() {
    let cases: [(&[&str], &str); 8] = [
        (&["--size", "much"], "such as 64GiB"),
        (&["--size", "0"], "it comes to 0 bytes"),
        (&["--size", "9EiB"], "it is more than 9223372036854775807 bytes"),
        (&["--pages", "3M"], "1G, 2M, thp"),
        (&["--pages", ""], "1G, 2M, thp"),
        (&["--pages", "2M,2M"], "names 2M twice"),
        (&["--nodes", "first"], "invalid"),
        (&["--json", "/nowhere/at/all.json"], "cannot write"),
    ];
    for (args, words) in cases {
        let output = kvmem(args);
        let stderr = text(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{args:?}: {stderr}");
        assert!(stderr.contains(words), "{args:?}: {stderr}");
        assert!(output.stdout.is_empty(), "{args:?}");
    }
}

/// Returns the check of this name.
#[track_caller]
fn check<'a>(report: &'a Value, name: &str) -> &'a Value {
    let checks = report["checks"].as_array().unwrap();
    checks
        .iter()
        .find(|check| check["name"] == name)
        .unwrap_or_else(|| panic!("no {name} in {report:#}"))
}

#[test]
fn a_path_for_a_disk_tier_is_examined() {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let path = folder.join(format!("{}-doctor.tier", std::process::id()));
    let args = |size| {
        let path = path.to_str().unwrap();
        ["--size", "4096", "--no-pin", "--tier", path, "--tier-size", size, "--json"]
    };
    let rows = [
        "tier.path",
        "tier.lock",
        "tier.filesystem",
        "tier.direct_io",
        "tier.fallocate",
        "tier.space",
        "tier.io_uring",
        "tier.fixed_buffers",
    ];
    let free = report(&kvmem(&args("16MiB")));
    for name in rows {
        let row = check(&free, name);
        assert!(!row["why"].as_str().unwrap().is_empty(), "{row:#}");
        assert!(
            ["ok", "unknown"].contains(&row["verdict"].as_str().unwrap()) || !row["fix"].is_null()
        );
    }
    assert_eq!(check(&free, "tier.space")["need"]["bytes"], 16 << 20);
    assert_eq!(check(&free, "tier.path")["value"]["text"], "new file");
    assert!(!path.exists(), "nothing is made");

    // Too long for the disk, and open in another process: this one.
    let options = kvmem_tier::DiskTierOptions { bytes: Some(1 << 20), ..Default::default() };
    let (tier, _) = kvmem_tier::DiskTier::open(&path, &options).unwrap();
    let output = kvmem(&args("1EiB"));
    let busy = report(&output);
    drop(tier);
    std::fs::remove_file(&path).unwrap();
    assert_eq!(check(&busy, "tier.lock")["verdict"], "fail");
    assert!(check(&busy, "tier.lock")["fix"].as_str().unwrap().contains("fuser"));
    assert_eq!(check(&busy, "tier.space")["verdict"], "fail");
    let said = text(&output.stderr);
    assert!(said.contains("or a disk tier in") && said.contains("tier.lock"), "{said}");

    // A limit on the length of files.
    let limited = r#"ulimit -f 1000 && exec "$0" doctor "$@""#;
    let output = Command::new("sh")
        .args(["-c", limited, env!("CARGO_BIN_EXE_kvmem")])
        .args(args("16MiB"))
        .output()
        .unwrap();
    let space = report(&output);
    let space = check(&space, "tier.space");
    assert!(space["why"].as_str().unwrap().contains("RLIMIT_FSIZE"), "{space:#}");

    // Without the option there are no such rows.
    let without = report(&kvmem(&["--size", "4096", "--no-pin", "--json"]));
    assert!(
        without["checks"]
            .as_array()
            .unwrap()
            .iter()
            .all(|check| { !check["name"].as_str().unwrap().starts_with("tier.") })
    );
    let output = kvmem(&["--tier-size", "1GiB"]);
    assert_eq!(output.status.code(), Some(2), "{output:?}");
}

#[test]
fn remedies_are_printed_as_a_script() {
    // Too much for any machine: there are remedies.
    let output = kvmem(&["--size", "1024PiB", "--pages", "2M,4k", "--fix"]);
    assert!(output.status.success(), "{output:?}");
    let script = text(&output.stdout);
    assert!(script.starts_with("#!/bin/sh\n# Remedies of `kvmem doctor` for 1 EiB"), "{script}");
    assert!(script.contains("\n# fail: memory.available is ") && script.contains("\n# see: "));
    let file =
        Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{}-fix.sh", std::process::id()));
    std::fs::write(&file, script).unwrap();
    let parsed = Command::new("sh").arg("-n").arg(&file).output().unwrap();
    std::fs::remove_file(&file).unwrap();
    assert!(parsed.status.success(), "{parsed:?}");
    for args in [&["--fix", "--json"][..], &["--schema", "--fix"], &["--schema", "--json"]] {
        assert_eq!(kvmem(args).status.code(), Some(2), "{args:?}");
    }
}
