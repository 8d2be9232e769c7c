//! The header is what the crate says, and the library exports what the header says.
//!
//! `KVMEM_WRITE_HEADER=1 cargo test -p kvmem-capi --test header` writes it anew.

use std::path::{Path, PathBuf};

fn crate_folder() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

#[test]
fn the_header_is_made_of_the_crate() {
    let folder = crate_folder();
    let config =
        cbindgen::Config::from_file(folder.join("cbindgen.toml")).expect("cbindgen.toml is as it should be");
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
