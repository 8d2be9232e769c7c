//! `kvmem mount` as its users meet it, with small sizes.

use std::path::Path;
use std::process::{Command, Output, Stdio};

use serde_json::Value;

fn mount(args: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_kvmem"));
    command.arg("mount").args(args).stdin(Stdio::null()).output().unwrap()
}

#[test]
fn the_receipt_says_what_was_got() {
    let file = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{}-receipt.json", std::process::id()));
    let json = file.to_str().unwrap();
    let output = mount(&["--size", "10MiB", "--pages", "thp,4k", "--populate", "2", "--json", json]);
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{stderr}");
    assert_eq!(stderr, "", "no progress bar where standard error is no terminal");
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.contains("10 MiB") && text.contains("resident"), "{text}");

    let receipt: Value = serde_json::from_str(&std::fs::read_to_string(&file).unwrap()).unwrap();
    std::fs::remove_file(&file).unwrap();
    assert_eq!(receipt["asked_bytes"], 10 << 20);
    let ranges = receipt["ranges"].as_array().unwrap();
    let resident: u64 = ranges.iter().map(|range| range["resident_bytes"].as_u64().unwrap()).sum();
    assert!(resident >= 10 << 20, "{receipt}");
    assert!(ranges.iter().all(|range| range["asked"] == "thp"), "{receipt}");
}

#[test]
fn json_alone_goes_to_standard_output() {
    let output = mount(&["--size", "1MiB", "--pages", "4k", "--populate", "none", "--json"]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let receipt: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((&receipt["usable_bytes"], &receipt["threads"]), (&(1 << 20).into(), &0.into()));
    assert_eq!(receipt["ranges"][0]["resident_bytes"], 0);
}

#[test]
fn what_cannot_be_had_ends_with_status_1() {
    // So many pages of 1 GiB are reserved nowhere.
    let size = ["--size", "64TiB", "--pages", "1G", "--strict", "--populate", "none"];
    let output = mount(&size);
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{stderr}");
    assert!(stderr.starts_with("kvmem: ") && stderr.contains("1G"), "{stderr}");
    assert_eq!(String::from_utf8_lossy(&output.stdout), "");
}

#[test]
fn options_that_make_no_sense_end_with_status_2() {
    for (arguments, expected) in [
        (&[][..], "--size"),
        (&["--size", "0"], "0 bytes"),
        (&["--size", "big"], "examples"),
        (&["--size", "16EiB"], "16EiB"),
        (&["--size", "1MiB", "--pages", "3M"], "3M"),
        (&["--size", "1MiB", "--numa", "bind:x"], "bind:x"),
        (&["--size", "1MiB", "--numa", "bind:1023"], "1023"),
        (&["--size", "1MiB", "--populate", "0"], "--populate"),
        (&["--size", "1MiB", "--time-limit", "0"], "--time-limit"),
        (&["--size", "1MiB", "--json", "no/such/folder/receipt.json"], "no/such/folder"),
    ] {
        let output = mount(arguments);
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {stderr}");
        assert!(stderr.contains(expected), "{arguments:?}: {stderr}");
        assert_eq!(String::from_utf8_lossy(&output.stdout), "");
    }
}
