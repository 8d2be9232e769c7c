//! The headers match the crate, and the library exports exactly the declared functions.
//!
//! `KVMEM_WRITE_HEADER=1 cargo test -p kvmem-capi --test it header` writes the headers.

use kvmem::arena::BumpStats;
use kvmem::cache::KvCacheStats;
use kvmem::offset::Metrics;
use kvmem::pool::observe::Stats;
use kvmem::tier::WriteBehindStats;
use kvmem_node::{NamespaceStats, NodeStats};
use kvmem_tier::{DiskTierInspection, OpenReport, TierStats};

use crate::support::header as declarations;
use crate::support::layout::{Parts, install_into};
use crate::support::{crate_folder, prefix, scratch};

#[test]
fn the_headers_match_the_sources() {
    let config = |name: &str| {
        let file = crate_folder().join(name);
        cbindgen::Config::from_file(file).expect("the configuration can be read")
    };
    let folder = scratch("declarations");
    let builder = |name: &str, text: &str| {
        let file = folder.join(name);
        std::fs::write(&file, text).expect("a folder of its own");
        cbindgen::Builder::new().with_src(file)
    };
    // In the order of the modules, which is that of the declarations in the header.
    let lib = source("lib");
    let modules = lib.lines().filter_map(|line| line.strip_prefix("mod ")?.strip_suffix(';'));
    let text: String = modules.map(|name| declarations_of(&source(name))).collect();
    let text = text + &statistics_structures();
    compare("include/kvmem.h", builder("kvmem.rs", &text).with_config(config("cbindgen.toml")));
    // Only this file: kvmem.h declares the types that it uses.
    let testing = builder("testing.rs", &declarations_of(&source("testing")));
    compare("include/kvmem/testing.h", testing.with_config(config("cbindgen.testing.toml")));
}

/// Returns a source file of the crate, without its head.
fn source(module: &str) -> String {
    let file = crate_folder().join(format!("src/{module}.rs"));
    let text = std::fs::read_to_string(file).expect("the source can be read");
    text.lines().filter(|line| !line.starts_with("//!")).map(|line| format!("{line}\n")).collect()
}

/// Returns a source with what cbindgen cannot see: the items that macros make of tables, and plain
/// pointers as parameters.
fn declarations_of(source: &str) -> String {
    let mut text = String::new();
    let mut rest = source;
    while let Some((before, from)) = rest.split_once("\noptions! {\n") {
        let (table, after) = from.split_once("\n}\n").expect("a table ends");
        let (head, rows) = table.split_once(";\n").expect("a table has a name");
        let (about, names) = head.rsplit_once('\n').expect("a table has a comment");
        let (options, init) = names.trim().split_once(": ").expect("a table has two names");
        let rows = rows.lines().map(|row| match row.split_once(" = ") {
            Some((member, _)) if !member.trim().starts_with("//") => {
                format!("pub {},\n", member.trim())
            }
            _ => format!("{row}\n"),
        });
        text += &format!(
            "{before}
{about}
#[repr(C)]
pub struct {options} {{
    /// Size of this structure in bytes, as the program knows it.
    pub struct_size: u64,
{}}}

/// Fills in the defaults. `struct_size` is `sizeof *options`.
#[unsafe(no_mangle)]
pub unsafe extern \"C\" fn {init}(options: Out<{options}>, struct_size: u64) -> kvmem_status {{}}
",
            rows.collect::<String>()
        );
        rest = after;
    }
    text += rest;
    if let Some((before, from)) = text.split_once("\nstatuses! {\n") {
        let (table, after) = from.split_once("\n}\n").expect("a table ends");
        let (about, rows) = table.split_once("    kvmem_status;\n").expect("it has a name");
        text =
            format!("{before}\n{about}#[repr(i32)]\npub enum kvmem_status {{{rows}\n}}\n{after}");
    }
    for (name, pointer) in
        [("Handle", "*const "), ("In", "*const "), ("Owned", "*mut "), ("Out", "*mut ")]
    {
        text = without_brackets(&text, name, pointer);
    }
    text
}

/// Replaces `name<T>` by `pointer` and `T`.
fn without_brackets(text: &str, name: &str, pointer: &str) -> String {
    let begin = format!(": {name}<");
    let mut parts = text.split(&begin);
    let mut result = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let mut depth = 1;
        let end = part.find(|it| {
            depth += i32::from(it == '<') - i32::from(it == '>');
            depth == 0
        });
        let (of, after) = part.split_at(end.expect("a bracket is closed"));
        // A pointer to a pointer.
        let of = match of.strip_prefix("In<").and_then(|of| of.strip_suffix('>')) {
            Some(of) => format!("*const {of}"),
            None => of.to_owned(),
        };
        result += &format!(": {pointer}{of}{}", &after[1..]);
    }
    result
}

/// Returns the structures of `src/stats.rs`, with the members that the tables of statistics name.
fn statistics_structures() -> String {
    structure::<KvCacheStats>("kvmem_kv_cache_stats", "")
        + &structure::<WriteBehindStats>("kvmem_write_behind_stats", "")
        + &structure::<TierStats>("kvmem_disk_tier_stats", "")
        + &structure::<NodeStats>("kvmem_node_stats", "")
        + &structure::<NamespaceStats>("kvmem_node_namespace_stats", NAMESPACE_NAME)
        + &structure::<OpenReport>("kvmem_disk_tier_report", "")
        + &structure::<DiskTierInspection>("kvmem_disk_tier_inspection", IDENTITY)
        + &structure::<Metrics>("kvmem_metrics", BOUNDARY)
        + &structure::<BumpStats>("kvmem_bump_arena_stats", DATA)
}

/// A member that is no number.
const IDENTITY: &str = "/// The identity of the file, chosen at random when it was made.
pub identity: [u8; 16],
";

const NAMESPACE_NAME: &str = "/// The name, with a NUL behind it.
pub namespace_name: [c_char; 64],
";

const BOUNDARY: &str = "/// The boundary that no allocation crosses; 0: none.
pub boundary_bytes: u64,
";
const DATA: &str = "/// The first address.
pub data: *mut c_void,
";

fn structure<S: Stats>(name: &str, more: &str) -> String {
    let comment =
        |lines: &[&str]| -> String { lines.iter().map(|line| format!("///{line}\n")).collect() };
    let members = S::FIELDS.iter().filter(|field| field.is_number);
    let members = members.map(|it| format!("{}pub {}: u64,\n", comment(it.lines), it.name));
    let about: Vec<&str> = S::ABOUT.lines().collect();
    let members = members.collect::<String>();
    format!("{}#[repr(C)]\npub struct {name} {{\n{members}{more}}}\n", comment(&about))
}

/// Compares a header with the generated text. Writes it first if `KVMEM_WRITE_HEADER` is set.
fn compare(path: &str, builder: cbindgen::Builder) {
    let mut text = Vec::new();
    builder.generate().expect("the sources can be parsed").write(&mut text);
    let text = hang_long_declarations(&String::from_utf8(text).expect("a header is UTF-8"));
    let file = crate_folder().join(path);
    if std::env::var_os("KVMEM_WRITE_HEADER").is_some() {
        std::fs::write(&file, &text).expect("the header can be written");
    }
    let present = std::fs::read_to_string(&file).expect("the header can be read");
    assert!(
        present == text,
        "{path} differs from the sources: run KVMEM_WRITE_HEADER=1 cargo test -p kvmem-capi --test \
         header"
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
        declarations::read().0.into_iter().map(|function| function.name).collect();
    declared.sort();
    assert_eq!(exported, declared);
    assert!(exported.iter().all(|name| name.starts_with("kvmem_")), "{exported:?}");
}

#[test]
fn a_shipped_prefix_has_no_headers_for_tests() {
    let (shipped, lib) = (scratch("shipped"), scratch("built"));
    for name in ["libkvmem_capi.so", "libkvmem_capi.a"] {
        std::fs::write(lib.join(name), "").expect("the target folder can be written");
    }
    let headers = || {
        let kvmem = std::fs::read_dir(shipped.join("include/kvmem")).expect("it is installed");
        let names = kvmem.map(|entry| entry.expect("a readable folder").file_name());
        let mut names: Vec<String> =
            names.map(|name| name.into_string().expect("a plain name")).collect();
        names.sort();
        names
    };
    let install = |parts| {
        let include = crate_folder().join("include");
        install_into(&shipped, &lib, &include, env!("CARGO_PKG_VERSION"), parts)
            .expect("the prefix can be written");
        headers()
    };
    let all = install(Parts::WithTesting);
    assert!(all.iter().filter(|name| name.starts_with("testing.")).count() == 2, "{all:?}");
    // An installation without them removes those of an earlier one.
    let without: Vec<String> =
        all.into_iter().filter(|name| !name.starts_with("testing.")).collect();
    assert_eq!(install(Parts::Shipped), without);
    // No other header needs them.
    for name in without.iter().filter(|name| name.ends_with(".hpp")) {
        let text = std::fs::read_to_string(shipped.join("include/kvmem").join(name));
        assert!(!text.expect("a header").contains("testing.h"), "{name}");
    }
}

#[test]
fn the_soname_has_the_version_of_the_interface() {
    let said = std::process::Command::new("readelf")
        .arg("-d")
        .arg(prefix().join("lib/libkvmem.so"))
        .output();
    let said = said.expect("readelf comes with the linker").stdout;
    assert!(String::from_utf8_lossy(&said).contains("soname: [libkvmem.so.0]"));
}

#[test]
fn every_function_is_documented() {
    for function in declarations::read().0 {
        assert!(function.comment.trim().len() > 10, "{} has no documentation", function.name);
    }
}

/// Indents the parameters of a function by 4 where a line would exceed 100 columns otherwise.
/// cbindgen always aligns them to the parenthesis.
fn hang_long_declarations(text: &str) -> String {
    let hang = |declaration: &str| {
        let is_long = declaration.lines().any(|line| line.len() > 100);
        match declaration.split_once('(') {
            Some((head, rest)) if is_long && head.starts_with("kvmem_status ") => {
                let rest: Vec<&str> = rest.lines().map(str::trim).collect();
                format!("{head}(\n    {}", rest.join("\n    "))
            }
            _ => declaration.to_owned(),
        }
    };
    // A declaration begins in the first column, after its comment.
    let mut result = String::new();
    let mut declaration = String::new();
    for line in text.split_inclusive('\n') {
        if declaration.is_empty() && !line.starts_with("kvmem_status ") {
            result.push_str(line);
            continue;
        }
        declaration.push_str(line);
        if line.trim_end().ends_with(';') {
            let hung = hang(&declaration);
            result.push_str(hung.trim_end());
            result.push('\n');
            declaration.clear();
        }
    }
    result
}
