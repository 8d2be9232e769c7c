//! The programs of `tests/cpp`, built by the machine's C++ compiler in C++17 and C++20: plain, under the sanitizers, and under valgrind.

#[allow(dead_code, reason = "each test uses a part of it")]
mod support;

#[macro_use]
#[path = "support/under.rs"]
mod under;

use std::path::{Path, PathBuf};
use std::process::Command;

use support::{crate_folder, has, prefix, scratch, succeed};
use under::Under;

/// The warnings that C++ code has to be free of.
const STRICT: [&str; 6] = ["-Wall", "-Wextra", "-Wpedantic", "-Wshadow", "-Wconversion", "-Werror"];

/// Standards that the headers are good for.
const STANDARDS: [&str; 2] = ["-std=c++17", "-std=c++20"];

/// Builds a program of C++ against the prefix.
fn compile(source: &Path, name: &str, standard: &str, flags: &[&str]) -> PathBuf {
    let program = scratch("programs").join(name);
    let (include, lib) = (prefix().join("include"), prefix().join("lib"));
    let mut cpp = Command::new("c++");
    cpp.arg(standard).args(STRICT).args(["-g", "-O1", "-pthread"]).args(flags);
    cpp.arg("-I").arg(&include).arg("-I").arg(crate_folder().join("tests/cpp"));
    // The includes of programs that were written for Mooncake.
    cpp.arg("-I").arg(include.join("kvmem/compat/mooncake"));
    cpp.arg(source).arg("-o").arg(&program);
    cpp.arg("-L").arg(&lib).arg("-lkvmem").arg(format!("-Wl,-rpath,{}", lib.display()));
    succeed(&mut cpp);
    program
}

fn run(name: &str, under: Under) {
    if !has("c++") {
        return;
    }
    let source = crate_folder().join(format!("tests/cpp/{name}.cpp"));
    for standard in STANDARDS {
        // Slow, and the same machine code but for a few lines.
        if under == Under::Valgrind && standard != STANDARDS[0] {
            continue;
        }
        let name = format!("{name}-{}", &standard["-std=".len()..]);
        under.run(&name, "c++", |name, flags| compile(&source, name, standard, flags));
    }
}

programs!(arena registration offset slice pool kv_cache kv_tier threads moved mooncake mooncake_arena);

/// Every header, those that are made for inclusion by others too.
fn headers(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(folder).expect("the headers are there") {
        let path = entry.expect("a file").path();
        if path.is_dir() {
            headers(&path, found);
        } else if path.extension().is_some_and(|kind| kind == "hpp")
            || path.parent().is_some_and(|folder| folder.ends_with("mooncake"))
        {
            found.push(path);
        }
    }
}

#[test]
fn every_header_stands_alone_and_twice() {
    if !has("c++") {
        return;
    }
    let mut all = Vec::new();
    headers(&prefix().join("include"), &mut all);
    assert!(all.len() > 12, "{all:?}");
    let source = scratch("programs").join("alone.cpp");
    for header in all {
        let include = format!("#include \"{}\"\n", header.display());
        std::fs::write(&source, format!("{include}{include}")).expect("the target folder can be written");
        for standard in STANDARDS {
            succeed(Command::new("c++").arg(standard).args(STRICT).arg("-fsyntax-only").arg(&source));
        }
    }
}

/// The blocks of a page that begin with a word: one for each example.
fn blocks(page: &str, begins: &str) -> Vec<String> {
    let page = std::fs::read_to_string(crate_folder().join("docs").join(page)).expect("the page is there");
    let begins = format!("```{begins}\n");
    let blocks = page.split(&begins).skip(1).filter_map(|rest| rest.split("```").next());
    let blocks: Vec<String> = blocks.map(str::to_owned).collect();
    assert_eq!(blocks.len(), 2, "{begins:?}");
    blocks
}

#[test]
fn the_examples_of_the_page_run() {
    if !has("c++") {
        return;
    }
    for (at, (code, says)) in blocks("cpp.md", "cpp").iter().zip(blocks("cpp.md", "text")).enumerate() {
        let source = scratch("programs").join(format!("example-{at}.cpp"));
        std::fs::write(&source, code).expect("the target folder can be written");
        for standard in STANDARDS {
            let name = format!("example-{at}-{}", &standard["-std=".len()..]);
            let program = compile(&source, &name, standard, &[]);
            assert_eq!(succeed(&mut Command::new(program)), says);
        }
    }
}
