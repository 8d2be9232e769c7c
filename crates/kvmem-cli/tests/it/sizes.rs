//! Sizes as options of the command. The tests of the library, C and Python use the same table.

use std::process::{Command, Stdio};

const TABLE: &str = include_str!("../../../kvmem/tests/data/sizes.tsv");

#[test]
fn sizes_parse_as_in_the_table() {
    for line in TABLE.lines().filter(|line| !line.starts_with('#')) {
        let (text, expected) = line.split_once('\t').expect("a text and what it is");
        let size = format!("--size={text}");
        let output = Command::new(env!("CARGO_BIN_EXE_kvmem"))
            .args(["doctor", &size, "--pages", "4k", "--json"])
            .stdin(Stdio::null())
            .output()
            .unwrap();
        let message = String::from_utf8_lossy(&output.stderr);
        match expected.parse::<u64>() {
            Ok(bytes) => {
                // The machine may have less.
                let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
                assert_eq!(report["requirements"]["size_bytes"], bytes, "{text:?}: {message}");
            }
            Err(_) => {
                assert_eq!(output.status.code(), Some(2), "{text:?}: {message}");
                assert!(message.contains("such as 64GiB"), "{text:?}: {message}");
            }
        }
    }
}
