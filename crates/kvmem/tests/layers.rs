//! A layer uses only the layers below it.
//!
//! Reads the library's source and finds every path that leaves its own layer: `crate::…`,
//! `super::super::…`, grouped or not, in macros too. Comments and strings do not count. For the
//! compiler all layers are one crate; this test keeps them separate, so each layer can be read,
//! tested and one day shipped without those above.

#[path = "layers/cycles.rs"]
mod cycles;

use std::fs;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use proc_macro2::{Delimiter, TokenStream, TokenTree};

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
    ("arena", &["sys", "sync", "trace", "threads"]),
    ("register", &["sys", "sync", "trace", "threads", "arena"]),
    // Offsets of an abstract space: this layer knows of no memory.
    ("offset", &["sys", "sync"]),
    ("slab", &["sys", "sync", "arena", "register", "offset"]),
    ("pool", &["stats", "sys", "sync", "trace", "arena", "register", "offset", "slab"]),
    // The contract with storage below memory.
    ("tier", &["stats", "sys", "sync", "pool"]),
    // Keyed values on a pool, above a tier.
    ("cache", &["stats", "sys", "sync", "offset", "pool", "tier"]),
];

/// Returns the names at the top of the crate that a module's source uses. `module` is the module's
/// path, outermost first.
fn uses(source: &str, module: &[&str]) -> Vec<String> {
    let tokens = TokenStream::from_str(source).expect("the compiler has read it before");
    let mut found = Vec::new();
    walk(tokens, &module.iter().map(ToString::to_string).collect::<Vec<_>>(), &mut found);
    found.sort();
    found.dedup();
    found
}

fn walk(tokens: TokenStream, module: &[String], found: &mut Vec<String>) {
    let tokens: Vec<TokenTree> = tokens.into_iter().collect();
    let mut at = 0;
    while at < tokens.len() {
        match &tokens[at..] {
            // An inline module is one level further down.
            [TokenTree::Ident(word), TokenTree::Ident(name), TokenTree::Group(body), ..]
                if word == "mod" =>
            {
                let inner: Vec<String> = module.iter().cloned().chain([name.to_string()]).collect();
                walk(body.stream(), &inner, found);
                at += 3;
            }
            [TokenTree::Ident(word), ..] if word == "crate" || word == "super" => {
                at += follow(&tokens[at..], module, found);
            }
            [TokenTree::Group(group), ..] => {
                walk(group.stream(), module, found);
                at += 1;
            }
            _ => at += 1,
        }
    }
}

/// Follows a path from its beginning, as seen from `module`; returns the number of tokens read.
fn follow(tokens: &[TokenTree], module: &[String], found: &mut Vec<String>) -> usize {
    let mut base = module;
    let mut at = 0;
    loop {
        match tokens.get(at) {
            Some(TokenTree::Ident(word)) if word == "crate" => base = &[],
            Some(TokenTree::Ident(word)) if word == "super" => {
                base = &base[..base.len().saturating_sub(1)]
            }
            Some(TokenTree::Ident(word)) if word == "self" => {}
            Some(TokenTree::Ident(name)) => {
                if base.is_empty() {
                    found.push(name.to_string());
                }
                return at + 1;
            }
            Some(TokenTree::Group(group)) if at > 0 && group.delimiter() == Delimiter::Brace => {
                let inner: Vec<TokenTree> = group.stream().into_iter().collect();
                for path in inner.split(
                    |token| matches!(token, TokenTree::Punct(comma) if comma.as_char() == ','),
                ) {
                    follow(path, base, found);
                }
                return at + 1;
            }
            // `pub(crate)`, `pub(in super::…)` and the like end here.
            _ => return at.max(1),
        }
        at += 1;
        match &tokens[at.min(tokens.len())..] {
            [TokenTree::Punct(one), TokenTree::Punct(two), ..]
                if one.as_char() == ':' && two.as_char() == ':' =>
            {
                at += 2
            }
            _ => return at,
        }
    }
}

/// Lists the violations in the source file of `module`.
fn violations(source: &str, module: &[&str]) -> Vec<String> {
    let Some((_, below)) = LAYERS.iter().find(|(layer, _)| *layer == module[0]) else {
        return vec![format!("`{}` has no place among the layers", module[0])];
    };
    let allowed = |name: &&String| *name == module[0] || below.contains(&name.as_str());
    let used = uses(source, module);
    used.iter()
        .filter(|name| !allowed(name))
        .map(|name| {
            format!("`{}` uses `{name}`, which is not below `{}`", module.join("::"), module[0])
        })
        .collect()
}

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
    let violations: Vec<String> = all
        .iter()
        // Unit tests in files of their own use what they need.
        .filter(|(module, _)| !module.is_empty() && !module.iter().any(|name| name == "tests"))
        .flat_map(|(module, source)| {
            violations(source, &module.iter().map(String::as_str).collect::<Vec<_>>())
        })
        .collect();
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
const CRATES: [&str; 13] = [
    "kvmem",
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

#[test]
fn the_scanner_finds_every_upward_path() {
    let ways = [
        "use crate::slab::Cache;",
        "use crate::{sync::Mutex, slab::{self, Cache}};",
        "use super::super::slab::Cache;",
        "use super::super::{sync, slab as s};",
        "use super::{heap, super::slab};",
        "fn f() { crate::slab::trim(); }",
        "fn f(cache: &crate::slab::Cache) {}",
        "fn f() { assert_eq!(1, crate::slab::trim()); }",
        "mod tests { use super::super::super::slab; }",
        "mod tests { mod inner { use super::super::super::super::slab::*; } }",
        "macro_rules! m { () => { $crate::slab::trim() }; }",
        "pub(in crate::slab) struct S;",
    ];
    for way in ways {
        let found = violations(way, &["offset", "core"]);
        assert_eq!(found.len(), 1, "{way}: {found:?}");
        assert!(found[0].contains("`slab`"), "{way}: {found:?}");
    }
}

#[test]
fn the_scanner_allows_everything_else() {
    let fine = [
        "use crate::sync::Mutex;",
        "use crate::offset::heap::Heap;",
        "use super::{heap::Heap, bins::{self, Hole}};",
        "use super::super::sync::Mutex;",
        "pub(crate) fn f() {} pub(super) struct S(pub(super) u8);",
        "mod tests { use super::super::slab; }",
        "//! use crate::slab;\n/* crate::pool */ fn f() -> &'static str { \"crate::slab\" }",
        "use std::sync::Arc; use slab::Slab;",
    ];
    for source in fine {
        assert_eq!(violations(source, &["offset", "core"]), Vec::<String>::new(), "{source}");
    }
    // Downward uses are allowed.
    assert!(violations("use crate::offset::OffsetAllocator;", &["slab", "extents"]).is_empty());
    assert_eq!(violations("use crate::register::Key;", &["offset"]).len(), 1);
    assert_eq!(violations("use crate::arena::Region;", &["offset"]).len(), 1);
    assert_eq!(violations("", &["misc"]).len(), 1, "a module without a place is one breach");
}
