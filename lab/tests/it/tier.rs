//! `kvmem-lab tier`: a disk tier beside plain transfers.

use std::fs;
use std::process::{Command, Output, Stdio};

use kvmem_tier::device::FileDevice;
use serde_json::Value;
use tempfile::TempPath;

fn kvmem(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_kvmem-lab")).args(args).stdin(Stdio::null()).output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// A path of a file that is removed at the end.
struct TempFile(TempPath);

impl TempFile {
    /// There is no file yet.
    fn new() -> TempFile {
        let mut builder = tempfile::Builder::new();
        let file = builder.suffix(".tier").tempfile_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        fs::remove_file(file.path()).unwrap();
        TempFile(file.into_temp_path())
    }

    fn path(&self) -> &str {
        self.0.to_str().unwrap()
    }
}

#[test]
fn the_benchmark_prints_a_table_and_json() {
    let file = TempFile::new();
    let small = ["--size", "16MiB", "--depth", "4", "--seconds", "1"];
    let json = TempFile::new();
    let sizes = ["--value-bytes", "4KiB,100000", "--json", json.path()];
    let output = kvmem(&[&["tier", file.path()], &small[..], &sizes].concat());
    let stderr = text(&output.stderr);
    assert!(output.status.success(), "{stderr}");
    assert_eq!(stderr, "", "no progress bar where standard error is no terminal");
    assert!(!file.0.exists(), "it is left behind");
    let table = text(&output.stdout);
    for word in ["tier GB/s", "plain s/GB", "\n4 KiB     store", "\n100000 B  fetch", "depth 4"] {
        assert!(table.contains(word), "no {word:?} in\n{table}");
    }
    let report: Value = serde_json::from_slice(&fs::read(&json.0).unwrap()).unwrap();
    assert_eq!((&report["suite"], &report["tier_bytes"]), (&"tier-file".into(), &(8 << 20).into()));
    let rows = report["rows"].as_array().unwrap();
    let names: Vec<_> =
        rows.iter().map(|row| (row["value_bytes"].as_u64(), row["transfer"].as_str())).collect();
    assert_eq!(
        names,
        [
            (Some(4096), Some("store")),
            (Some(4096), Some("fetch")),
            (Some(100_000), Some("store")),
            (Some(100_000), Some("fetch"))
        ]
    );
    for row in rows {
        assert!(row["turns"].as_u64() >= Some(3), "{row:#}");
        for side in ["tier", "plain"] {
            assert!(row[side]["gb_per_s"].as_f64() > Some(0.0), "{row:#}");
            assert!(row[side]["cpu_s_per_gb"].as_f64() > Some(0.0), "{row:#}");
        }
    }

    // With --format an existing file is used, and stays.
    fs::write(&file.0, "precious").unwrap();
    let one = ["--value-bytes", "64KiB"];
    let output = kvmem(&[&["tier", file.path()], &small[..], &one].concat());
    assert_eq!(output.status.code(), Some(2), "{output:?}");
    assert!(text(&output.stderr).contains("exists: name a new file"), "{output:?}");
    assert_eq!(fs::read_to_string(&file.0).unwrap(), "precious");
    let output = kvmem(&[&["tier", file.path(), "--format"], &small[..], &one].concat());
    assert!(output.status.success(), "{}", text(&output.stderr));
    let device = FileDevice::open_read_only(&file.0, 1).unwrap();
    let inspection = kvmem_tier::inspect(&device).unwrap();
    let contents = inspection.contents.as_ref().unwrap();
    assert!(!contents.entries.is_empty());
    assert!(contents.entries.iter().all(|entry| entry.len == 64 << 10));
    assert!(kvmem_tier::verify(&device, contents, |_| {}).is_empty());
}

#[test]
fn the_output_does_not_replace_the_file() {
    let file = TempFile::new();
    fs::write(&file.0, "precious").unwrap();
    let output = kvmem(&["tier", file.path(), "--json", file.path()]);
    assert_eq!(output.status.code(), Some(2), "{output:?}");
    assert!(text(&output.stderr).contains("the output would replace it"), "{output:?}");
    assert_eq!(fs::read_to_string(&file.0).unwrap(), "precious");
}

#[test]
fn invalid_options_end_with_status_2() {
    let file = TempFile::new();
    let path = file.path();
    for (arguments, expected) in [
        (&["tier", path, "--size", "much"][..], "such as 64GiB"),
        (&["tier", path, "--value-bytes", "0"], "0 bytes"),
        (&["tier", path, "--seconds", "0"], "--seconds"),
        (&["tier", path, "--size", "8MiB", "--value-bytes", "1MiB"], "need --size 268435456"),
        (&["tier", path, "--value-bytes", "1GiB"], "lower --depth"),
        (&["tier", path, "--value-bytes", "8EiB"], "8EiB"),
        (&["tier", "/no/such/folder/file"], "cannot open /no/such/folder/file"),
        (&["tier", path, "--json", "/no/such/folder/r.json"], "cannot write"),
    ] {
        let output = kvmem(arguments);
        let stderr = text(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {stderr}");
        assert!(stderr.contains(expected), "{arguments:?}: {stderr}");
        assert!(output.stdout.is_empty(), "{arguments:?}");
        assert!(!file.0.exists(), "{arguments:?} leaves a file");
    }
}
