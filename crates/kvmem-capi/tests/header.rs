//! The header is what the crate says, and the library exports what the header says.
//!
//! `KVMEM_WRITE_HEADER=1 cargo test -p kvmem-capi --test header` writes it anew.

use std::path::Path;

#[allow(dead_code, reason = "each test uses a part of it")]
mod support;

#[allow(dead_code, reason = "each test uses a part of it")]
#[path = "support/header.rs"]
mod functions;

use support::{crate_folder, prefix};

#[test]
fn the_header_is_made_of_the_crate() {
    let folder = crate_folder();
    let config = cbindgen::Config::from_file(folder.join("cbindgen.toml"))
        .expect("cbindgen.toml is as it should be");
    let made = cbindgen::Builder::new().with_crate(&folder).with_config(config).generate();
    let mut text = Vec::new();
    made.expect("the crate can be read").write(&mut text);
    let text = String::from_utf8(text).expect("a header of UTF-8");

    let path = folder.join("include/kvmem.h");
    if std::env::var_os("KVMEM_WRITE_HEADER").is_some() {
        std::fs::write(&path, &text).expect("the header can be written");
    }
    let there = std::fs::read_to_string(&path).expect("the header is there");
    assert!(
        there == text,
        "{} is not what the crate says: KVMEM_WRITE_HEADER=1 cargo test -p kvmem-capi --test header",
        Path::new("include/kvmem.h").display()
    );
}

#[test]
fn the_library_exports_what_the_header_declares() {
    let nm = std::process::Command::new("nm")
        .args(["-D", "--defined-only"])
        .arg(prefix().join("lib/libkvmem.so"))
        .output()
        .expect("nm comes with the linker");
    let mut exported: Vec<String> = String::from_utf8_lossy(&nm.stdout)
        .lines()
        .filter_map(|line| line.split_whitespace().nth(2).map(str::to_owned))
        .collect();
    exported.sort();
    let mut declared: Vec<String> =
        functions::read().0.into_iter().map(|function| function.name).collect();
    declared.sort();
    assert_eq!(exported, declared);
    assert!(exported.iter().all(|name| name.starts_with("kvmem_")), "{exported:?}");
}

#[test]
fn the_loader_knows_the_library_by_its_interface() {
    let said = std::process::Command::new("readelf")
        .arg("-d")
        .arg(prefix().join("lib/libkvmem.so"))
        .output();
    let said = said.expect("readelf comes with the linker").stdout;
    assert!(String::from_utf8_lossy(&said).contains("soname: [libkvmem.so.0]"));
}

#[test]
fn every_function_says_what_it_does() {
    for function in functions::read().0 {
        assert!(function.comment.trim().len() > 10, "{} says nothing", function.name);
    }
}
