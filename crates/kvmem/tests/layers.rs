//! A layer uses only the layers below it.
//!
//! Reads the library's source and finds every path that leaves its own layer. For the compiler all
//! layers are one crate; this test keeps them separate, so each layer can be read, tested and one
//! day shipped without those above.

#[path = "layers/cycles.rs"]
mod cycles;

use std::fs;
use std::path::{Path, PathBuf};

/// Every module of the crate, and the modules that it may use.
const LAYERS: [(&str, &[&str]); 12] = [
    ("sys", &[]),
    ("sync", &["sys"]),
    // Where spans are emitted, if anywhere.
    ("trace", &[]),
    // Teams of threads: populating and registering use them.
    ("threads", &["sys", "trace"]),
    // The table that makes a structure of statistics, and its metrics.
    ("stats", &[]),
    ("arena", &["stats", "sys", "sync", "trace", "threads"]),
    ("register", &["sys", "sync", "trace", "threads", "arena"]),
    // Offsets of an abstract space: this layer knows of no memory.
    ("offset", &["stats", "sys", "sync"]),
    ("slab", &["sys", "sync", "arena", "register", "offset"]),
    ("pool", &["stats", "sys", "sync", "trace", "arena", "register", "offset", "slab"]),
    // The contract with storage below memory.
    ("tier", &["stats", "sys", "sync", "pool"]),
    // Keyed values on a pool, above a tier.
    ("cache", &["stats", "sys", "sync", "offset", "pool", "tier"]),
];

fn source_root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("src")
}

/// Collects all source files with their modules. The front page is that of the path without names.
fn sources(folder: &Path, module: &[String], all: &mut Vec<(Vec<String>, String)>) {
    for entry in fs::read_dir(folder).expect("the source is there") {
        let path = entry.expect("a readable folder").path();
        let stem = path.file_stem().expect("a name").to_str().expect("a plain name").to_owned();
        let below =
            |name: &str| module.iter().cloned().chain([name.to_owned()]).collect::<Vec<_>>();
        if path.is_dir() {
            sources(&path, &below(&stem), all);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            let here = match stem.as_str() {
                // A program beside a library uses it as another crate.
                "main" if folder.join("lib.rs").exists() => continue,
                "lib" | "main" | "mod" => module.to_vec(),
                name => below(name),
            };
            all.push((here, fs::read_to_string(&path).expect("a readable file")));
        }
    }
}

#[test]
fn layers_use_only_what_is_below() {
    let mut all = Vec::new();
    sources(&source_root(), &[], &mut all);
    assert!(all.len() > 10, "only {} source files were found", all.len());
    let violations = cycles::upward(&all, &LAYERS);
    assert!(violations.is_empty(), "{}", violations.join("\n"));
}

/// Lists the folders of all crates: of the product, the laboratory, the chores and the fuzzers.
fn crates() -> Vec<PathBuf> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let product = fs::read_dir(root.join("crates")).expect("the crates are there");
    let mut all: Vec<PathBuf> = product.map(|entry| entry.expect("a folder").path()).collect();
    all.extend(["lab", "xtask", "fuzz"].map(|name| root.join(name)));
    all.sort();
    assert!(all.len() > 10 && all.iter().all(|one| one.join("Cargo.toml").exists()), "{all:?}");
    all
}

/// All crates; each uses only those before it. Tests may use others.
const CRATES: [&str; 14] = [
    "kvmem",
    "kvmem-encoding",
    "kvmem-tier",
    "kvmem-cluster",
    "kvmem-node",
    "kvmem-trace",
    "kvmem-cli",
    "kvmem-capi",
    "kvmem-python",
    "kvmem-dynamo",
    // What measures and checks: no crate of the product uses it.
    "kvmem-testkit",
    "kvmem-lab",
    "kvmem-fuzz",
    "xtask",
];

#[test]
fn a_crate_uses_only_those_before_it() {
    let mut names = Vec::new();
    for folder in crates() {
        let manifest = fs::read_to_string(folder.join("Cargo.toml")).expect("it is there");
        let mut section = "";
        let (mut name, mut used) = ("", Vec::new());
        for line in manifest.lines() {
            let word = line.split([' ', '.', '=']).next().unwrap_or_default();
            match section {
                _ if line.starts_with('[') => section = line,
                "[package]" if word == "name" => name = line.split('"').nth(1).expect("a name"),
                // An optional dependency belongs to a feature for tests.
                "[dependencies]" if CRATES.contains(&word) && !line.contains("optional") => {
                    used.push(word.to_owned());
                }
                _ => {}
            }
        }
        let place = |name: &str| CRATES.iter().position(|other| *other == name);
        let own = place(name).unwrap_or_else(|| panic!("{name} has no place among the crates"));
        for other in used {
            assert!(place(&other) < Some(own), "{name} uses {other}, which stands behind it");
        }
        names.push(name.to_owned());
    }
    assert_eq!(names.len(), CRATES.len(), "{names:?}");
}

#[test]
fn the_modules_of_a_crate_form_no_cycle() {
    let mut faults = Vec::new();
    for folder in crates() {
        let name = folder.file_name().expect("a name").to_str().expect("a plain name");
        let mut all = Vec::new();
        sources(&folder.join("src"), &[], &mut all);
        // The library's layers are read from their front pages, which only list what they have.
        let found = cycles::faults(&all, name == "kvmem");
        faults.extend(found.iter().map(|fault| format!("{name}: {fault}")));
    }
    assert!(faults.is_empty(), "{} faults\n{}", faults.len(), faults.join("\n"));
}

#[test]
fn the_offset_layer_forbids_unsafe_code() {
    let front =
        fs::read_to_string(source_root().join("offset/mod.rs")).expect("the layer is there");
    assert!(front.lines().any(|line| line.trim() == "#![forbid(unsafe_code)]"));
}
