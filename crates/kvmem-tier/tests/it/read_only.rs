//! Files that are opened to be read.

use std::io::ErrorKind;
use std::path::Path;
use std::process::Command;

use kvmem_tier::device::{AlignedBuffer, Device, FileDevice};
use kvmem_tier::{DiskTier, DiskTierOptions, inspect, verify};

use crate::files::{open, temp_path};

#[test]
fn a_file_that_is_open_as_a_tier_cannot_be_read() {
    let file = temp_path("busy");
    let tier = open(&file);
    let error = FileDevice::open_read_only(&file, 4).err().unwrap();
    assert_eq!(error.kind(), ErrorKind::WouldBlock);
    assert!(error.to_string().contains("open as a tier"), "{error}");
    drop(tier);
    assert!(FileDevice::open_read_only(&file, 4).is_ok());
}

#[test]
fn programs_that_read_share_a_file_and_cannot_change_it() {
    let file = temp_path("readers");
    let value = vec![7; 100_000];
    open(&file).0.store(&[(b"key", &value)]).remove(0).unwrap();
    let before = std::fs::read(&file).unwrap();
    let (one, two) = (
        FileDevice::open_read_only(&file, 4).unwrap(),
        FileDevice::open_read_only(&file, 4).unwrap(),
    );
    for device in [&one, &two] {
        let contents = inspect(device).unwrap().contents.unwrap();
        assert_eq!((contents.entries.len(), contents.entries[0].len), (1, 100_000));
        assert!(verify(device, &contents, |_| {}).is_empty());
        assert!(!device.is_new() && device.len() == 8 << 20);
    }
    let block = AlignedBuffer::new(1);
    assert!(one.write_at(0, &block).is_err());
    assert_eq!(std::fs::read(&file).unwrap(), before);
    let error = DiskTier::open(&file, &DiskTierOptions::default()).err().unwrap();
    assert!(error.to_string().contains("open already"), "{error}");
    drop((one, two));
    assert_eq!(open(&file).1.entries, 1);
}

#[test]
fn what_is_no_file_cannot_be_read_as_one() {
    let file = temp_path("kinds");
    let kind = |path: &Path| FileDevice::open_read_only(path, 1).err().unwrap().kind();
    assert_eq!(kind(&file), ErrorKind::NotFound);
    assert!(!file.exists(), "it was made");
    assert_eq!(kind(env!("CARGO_TARGET_TMPDIR").as_ref()), ErrorKind::InvalidInput);
    assert_eq!(kind("/dev/zero".as_ref()), ErrorKind::InvalidInput);
    // Opening it would wait for a writer.
    assert!(Command::new("mkfifo").arg(&file).status().unwrap().success());
    assert_eq!(kind(&file), ErrorKind::InvalidInput);
}
