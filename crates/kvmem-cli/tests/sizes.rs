//! Sizes as options of the built command: the table that the library, C and Python are tested with
//! as well.

use std::process::{Command, Stdio};

const TABLE: &str = include_str!("../../kvmem/tests/data/sizes.tsv");

#[test]
fn texts_are_read_as_the_table_says() {
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
                // Whether or not the machine has so much.
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
