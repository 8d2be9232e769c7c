//! `kvmem tier`, run as a command on small files.

use std::fs;
use std::path::Path;
use std::process::Output;

use kvmem_testkit::fixture::from_text;
use kvmem_tier::{DiskTier, DiskTierOptions};
use serde_json::Value;
use tempfile::TempPath;

use crate::command::{run, text};

fn kvmem(args: &[&str]) -> Output {
    run("tier", args)
}

/// A path of a file that is removed at the end.
struct TempFile(TempPath);

impl TempFile {
    fn new(name: &str) -> TempFile {
        let mut builder = tempfile::Builder::new();
        let unmade = builder.prefix(name).make_in(env!("CARGO_TARGET_TMPDIR"), |_| Ok(()));
        TempFile(unmade.unwrap().into_temp_path())
    }

    /// Makes a tier of 8 MiB with values of 10,000 bytes, each of which contains its number. The
    /// file is as a killed process leaves it, with a journal.
    fn tier(name: &str, values: u32) -> TempFile {
        let file = TempFile::new(name);
        let options = DiskTierOptions {
            bytes: Some(8 << 20),
            max_entries: Some(128),
            journal_bytes: Some(128 << 10),
            ..DiskTierOptions::default()
        };
        let (tier, _) = DiskTier::open(&file.0, &options).unwrap();
        for number in 0..values {
            let value = number.to_le_bytes().repeat(2500);
            tier.store(&[(&number.to_le_bytes(), &value)]).remove(0).unwrap();
        }
        let bytes = fs::read(&file.0).unwrap();
        drop(tier);
        fs::write(&file.0, bytes).unwrap();
        file
    }

    fn path(&self) -> &str {
        self.0.to_str().unwrap()
    }

    fn json(&self, command: &str) -> (Output, Value) {
        let output = kvmem(&[command, self.path(), "--json", "-"]);
        let report = serde_json::from_slice(&output.stdout).unwrap_or_else(|error| {
            panic!("{error}: {}{}", text(&output.stdout), text(&output.stderr))
        });
        (output, report)
    }

    /// Flips a bit of a byte.
    fn flip(&self, at: usize) {
        let mut bytes = fs::read(&self.0).unwrap();
        bytes[at] ^= 1;
        fs::write(&self.0, bytes).unwrap();
    }

    /// Returns where the bytes of the value `number` begin.
    fn find(&self, number: u32) -> usize {
        let value = number.to_le_bytes().repeat(1024);
        let bytes = fs::read(&self.0).unwrap();
        bytes.chunks(4096).position(|block| block == value).unwrap() * 4096
    }
}

#[test]
fn a_new_tier_is_shown_empty() {
    let file = TempFile::tier("fresh", 0);
    let before = fs::read(&file.0).unwrap();
    let output = kvmem(&["inspect", file.path()]);
    let shown = text(&output.stdout);
    assert!(output.status.success(), "{}", text(&output.stderr));
    assert_eq!(text(&output.stderr), "");
    for part in [
        "8.00 MiB",
        "superblock 1   generation 1, epoch 1",
        "superblock 2   generation 1, epoch 1",
        "values         0 of at most 189: 0 B and 0 B of padding",
        "journal        number 1: 0 change(s) in 0 of 32 blocks",
        "utilization    0.00 %",
        "\ndata ",
    ] {
        assert!(shown.contains(part), "no {part:?} in\n{shown}");
    }
    assert!(!shown.contains("lengths") && !shown.contains("dropped"), "{shown}");
    let (_, report) = file.json("inspect");
    let tier = &report["tier"];
    assert_eq!((&tier["values"]["count"], &tier["values"]["len_min"]), (&0.into(), &Value::Null));
    let data = &tier["parts"][5];
    assert_eq!((&data["name"], &data["bytes"]), (&"data".into(), &tier["free_bytes"]));
    let end = data["offset"].as_u64().unwrap() + data["bytes"].as_u64().unwrap();
    assert_eq!(end, 8 << 20);
    let verified = kvmem(&["verify", file.path()]);
    assert!(verified.status.success(), "{}", text(&verified.stderr));
    assert_eq!(fs::read(&file.0).unwrap(), before);
}

#[test]
fn a_filled_tier_is_shown_and_verified() {
    let file = TempFile::tier("filled", 50);
    let before = fs::read(&file.0).unwrap();
    let (output, report) = file.json("inspect");
    assert!(output.status.success(), "{}", text(&output.stderr));
    let tier = &report["tier"];
    let values = &tier["values"];
    assert_eq!((&values["count"], &values["bytes"]), (&50.into(), &500_000.into()));
    assert_eq!(values["padding_bytes"], 50 * 2288);
    assert_eq!((&values["len_min"], &values["len_max"]), (&10_000.into(), &10_000.into()));
    // The journal of 32 blocks was three quarters full twice, and a checkpoint replaced it.
    let (journal, checkpoint) = (&tier["journal"], &tier["checkpoint"]);
    assert_eq!((&journal["changes"], &journal["blocks"]), (&2.into(), &2.into()));
    assert_eq!((&checkpoint["changes"], &checkpoint["blocks"]), (&48.into(), &1.into()));
    assert_eq!(tier["identity"].as_str().unwrap().len(), 32);
    assert_eq!(report["error"], Value::Null);
    let used = tier["parts"][5]["bytes"].as_u64().unwrap() - tier["free_bytes"].as_u64().unwrap();
    assert_eq!(used, 50 * 3 * 4096);

    let (output, report) = file.json("verify");
    assert!(output.status.success(), "{}", text(&output.stderr));
    assert_eq!((&report["values"], &report["damaged"]), (&50.into(), &0.into()));
    assert_eq!(report["bytes"], 50 * 3 * 4096);
    let shown = text(&kvmem(&["verify", file.path()]).stdout);
    assert!(shown.contains("values         50, 600.00 KiB read"), "{shown}");
    assert!(shown.ends_with("damaged        0\n"), "{shown}");
    assert_eq!(fs::read(&file.0).unwrap(), before);
}

#[test]
fn flipped_bytes_are_found_by_verifying() {
    let file = TempFile::tier("flipped", 50);
    let offsets = [3, 17].map(|number| file.find(number));
    file.flip(offsets[0] + 9999);
    file.flip(offsets[1]);
    let output = kvmem(&["verify", file.path()]);
    let shown = text(&output.stdout);
    assert_eq!(output.status.code(), Some(1), "{shown}");
    assert!(text(&output.stderr).contains("2 of 50 values are damaged"), "{output:?}");
    for offset in offsets {
        let named = format!(" {offset} ");
        let line = shown.lines().find(|line| line.contains(&named));
        assert!(line.unwrap().contains("10000  its checksum is wrong"), "{shown}");
    }
    let (output, report) = file.json("verify");
    assert_eq!((output.status.code(), &report["damaged"]), (Some(1), &2.into()));
    let named = report["damaged_values"].as_array().unwrap();
    assert_eq!((named.len(), named[0]["digest"].as_str().unwrap().len()), (2, 32));
    // The index is whole.
    assert!(kvmem(&["inspect", file.path()]).status.success());

    // At most 20 are named.
    for number in 20..45 {
        file.flip(file.find(number) + 1);
    }
    let output = kvmem(&["verify", file.path()]);
    let shown = text(&output.stdout);
    assert!(shown.contains("damaged        27\n") && shown.ends_with("and 7 more\n"), "{shown}");
    assert_eq!(shown.matches("its checksum is wrong").count(), 20, "{shown}");
}

#[test]
fn a_damaged_index_is_shown_as_far_as_it_can_be_read() {
    let file = TempFile::tier("index", 5);
    file.flip(100);
    let output = kvmem(&["inspect", file.path()]);
    assert!(output.status.success(), "one superblock is enough: {}", text(&output.stderr));
    assert!(text(&output.stdout).contains("superblock 1   not valid: its checksum is wrong"));
    assert!(kvmem(&["verify", file.path()]).status.success());
    let (_, report) = file.json("inspect");
    assert_eq!(report["superblocks"][0]["error"], "its checksum is wrong");
    let checkpoint = report["tier"]["parts"].as_array().unwrap().iter().find(|part| {
        part["in_use"] == true && part["name"].as_str().unwrap().starts_with("checkpoint")
    });
    file.flip(checkpoint.unwrap()["offset"].as_u64().unwrap() as usize + 10);
    for command in ["inspect", "verify"] {
        let output = kvmem(&[command, file.path()]);
        assert_eq!(output.status.code(), Some(1), "{output:?}");
        assert!(text(&output.stderr).contains("the index is lost"), "{output:?}");
    }
    let (output, report) = file.json("inspect");
    assert_eq!((output.status.code(), &report["tier"]), (Some(1), &Value::Null));
    assert!(report["error"].as_str().unwrap().contains("block 0 of the checkpoint is damaged"));
    assert_eq!(report["superblocks"][1]["generation"], 1);
}

#[test]
fn what_is_no_tier_is_not_shown() {
    let file = TempFile::new("foreign");
    let folder = env!("CARGO_TARGET_TMPDIR");
    let foreign = vec![b'x'; 20_000];
    for command in ["inspect", "verify"] {
        let fails = |path: &str| {
            let output = kvmem(&[command, path]);
            let stderr = text(&output.stderr);
            assert_eq!(output.status.code(), Some(2), "{stderr}");
            assert!(output.stdout.is_empty() && stderr.contains(path), "{stderr}");
            stderr
        };
        assert!(fails(file.path()).contains("No such file"));
        assert!(!file.0.exists(), "it was made");
        assert!(fails(folder).contains("neither a file nor a block device"));
        assert!(fails("/dev/zero").contains("neither a file nor a block device"));
        for content in [&[][..], b"short", &foreign] {
            fs::write(&file.0, content).unwrap();
            assert!(fails(file.path()).contains("it is no disk tier"));
            assert_eq!(fs::read(&file.0).unwrap(), content);
        }
        fs::remove_file(&file.0).unwrap();
    }
}

/// A damaged block of the journal is shown, with the values that it may concern, and the process
/// that was killed is named.
#[test]
fn damage_of_the_journal_is_shown() {
    let file = TempFile::tier("journal", 5);
    let (_, report) = file.json("inspect");
    let tier = &report["tier"];
    assert_eq!((&tier["journal_damaged"], &tier["in_doubt"]), (&0.into(), &0.into()));
    let pid = format!("process {} of host ", std::process::id());
    assert!(tier["owner"].as_str().unwrap().starts_with(&pid), "{tier}");
    let journal = &tier["parts"][2];
    assert_eq!((&journal["name"], &journal["in_use"]), (&"journal 1".into(), &true.into()));
    file.flip(journal["offset"].as_u64().unwrap() as usize + 4096 + 70);
    let (output, report) = file.json("inspect");
    assert!(output.status.success());
    let tier = &report["tier"];
    assert_eq!((&tier["journal_damaged"], &tier["journal_unknown"]), (&1.into(), &0.into()));
    assert_eq!(tier["values"]["count"], 4);
    for command in ["inspect", "verify"] {
        let shown = text(&kvmem(&[command, file.path()]).stdout);
        assert!(shown.contains("1 block(s) of the journal are damaged"), "{shown}");
    }
}

/// Parts that were quarantined and are sound are used again, and the report says which.
#[test]
fn sound_parts_are_given_back_on_request() {
    let file = TempFile::tier("repair", 5);
    let verify = DiskTierOptions { verify: kvmem_tier::Verify::All, ..DiskTierOptions::default() };
    // A power cut may have taken a value of a killed process: it is not quarantined before it was
    // read once.
    DiskTier::open(&file.0, &verify).unwrap().0.checkpoint().unwrap();
    let at = file.find(1);
    file.flip(at);
    drop(DiskTier::open(&file.0, &verify).unwrap());
    let (_, report) = file.json("inspect");
    assert_eq!(report["tier"]["quarantined_bytes"], 3 * 4096);
    let repaired = kvmem(&["verify", file.path(), "--repair", "--json", "-"]);
    assert!(repaired.status.success(), "{}", text(&repaired.stderr));
    let report: Value = serde_json::from_slice(&repaired.stdout).unwrap();
    let repair = &report["repair"];
    assert_eq!((&repair["returned_bytes"], &repair["left_bytes"]), (&12_288.into(), &0.into()));
    assert_eq!((&repair["returned"][0]["offset"], &report["values"]), (&at.into(), &4.into()));
    let (_, report) = file.json("inspect");
    assert_eq!(
        (&report["tier"]["quarantined_bytes"], &report["tier"]["owner"]),
        (&0.into(), &Value::Null)
    );
    let shown = text(&kvmem(&["verify", file.path(), "--repair"]).stdout);
    assert!(shown.contains("repair         0 part(s) with 0 B are used again"), "{shown}");
}

#[test]
fn an_open_tier_is_not_read() {
    let file = TempFile::tier("open", 1);
    let tier = DiskTier::open(&file.0, &DiskTierOptions::default()).unwrap();
    let output = kvmem(&["inspect", file.path()]);
    assert_eq!(output.status.code(), Some(2), "{output:?}");
    assert!(text(&output.stderr).contains("it is open as a tier"), "{output:?}");
    drop(tier);
    assert!(kvmem(&["inspect", file.path()]).status.success());
}

#[test]
fn outputs_do_not_replace_the_tier() {
    let file = TempFile::tier("kept", 1);
    let before = fs::read(&file.0).unwrap();
    for command in ["inspect", "verify"] {
        let output = kvmem(&[command, file.path(), "--json", file.path()]);
        assert_eq!(output.status.code(), Some(2), "{output:?}");
        assert!(text(&output.stderr).contains("the output would replace it"), "{output:?}");
    }
    assert_eq!(fs::read(&file.0).unwrap(), before);
}

#[test]
fn invalid_options_end_with_status_2() {
    let file = TempFile::new("invalid");
    let path = file.path();
    for (arguments, expected) in
        [(&[][..], "inspect"), (&["inspect"], "FILE"), (&["repair", path], "repair")]
    {
        let output = kvmem(arguments);
        let stderr = text(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {stderr}");
        assert!(stderr.contains(expected), "{arguments:?}: {stderr}");
        assert!(output.stdout.is_empty(), "{arguments:?}");
        assert!(!file.0.exists(), "{arguments:?} leaves a file");
    }
}

/// Returns the CRC-32C of bytes, bit by bit.
fn crc_32c(bytes: &[u8]) -> u32 {
    let step = |sum: u32, _| sum >> 1 ^ (0x82F6_3B78 * (sum & 1));
    !bytes.iter().fold(!0, |sum, byte| (0..8).fold(sum ^ u32::from(*byte), step))
}

/// Files that programs of earlier versions have written, and what a later one may write.
#[test]
fn files_of_other_versions_are_read_or_named() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../kvmem-tier/tests/data");
    let file = TempFile::new("version");
    for (name, version, values) in [
        ("disk-tier-v1", 1, 3),
        ("disk-tier-v2-first", 2, 4),
        ("disk-tier-v2", 2, 4),
        ("disk-tier-v3", 3, 5),
    ] {
        let text_of = fs::read_to_string(folder.join(name).with_extension("txt")).unwrap();
        let mut bytes = from_text(&text_of).unwrap();
        fs::write(&file.0, &bytes).unwrap();
        let (output, report) = file.json("inspect");
        assert!(output.status.success(), "{name}: {}", text(&output.stderr));
        assert_eq!(report["tier"]["format_version"], version, "{name}");
        assert_eq!(report["tier"]["values"]["count"], values, "{name}");
        let (output, report) = file.json("verify");
        assert!(output.status.success(), "{name}: {}", text(&output.stderr));
        assert_eq!(report["damaged"], 0, "{name}");
        assert!(fs::read(&file.0).unwrap() == bytes, "{name} was changed");
        for copy in bytes[..8192].chunks_exact_mut(4096) {
            copy[8] = 4;
            copy[12..16].fill(0);
            let sum = crc_32c(copy);
            copy[12..16].copy_from_slice(&sum.to_le_bytes());
        }
        fs::write(&file.0, &bytes).unwrap();
        for command in ["inspect", "verify"] {
            let output = kvmem(&[command, file.path()]);
            let stderr = text(&output.stderr);
            assert_eq!(output.status.code(), Some(2), "{stderr}");
            let expected = "version 4, and this program reads versions 1 to 3: use a newer kvmem";
            assert!(stderr.contains(expected), "{stderr}");
            assert!(fs::read(&file.0).unwrap() == bytes, "{name} was changed");
        }
    }
}
