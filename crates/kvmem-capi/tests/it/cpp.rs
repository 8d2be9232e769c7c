//! Runs the programs of `tests/cpp`, built with the machine's C++ compiler in C++17 or C++20, under
//! the sanitizers. They test the interface; what the calls do is tested in Rust.

use std::path::{Path, PathBuf};
use std::process::Command;

use kvmem_node::ServerOptions;

use crate::support::node_server::{ServedNode, with_nodes};
use crate::support::under::{Under, programs};
use crate::support::{
    cache_verbs, code_blocks, compiled, crate_folder, driver_of_gpus, has, prefix, prefix_vectors,
    scratch, succeed,
};

/// Warnings that the headers and programs must not cause.
const STRICT: [&str; 6] = ["-Wall", "-Wextra", "-Wpedantic", "-Wshadow", "-Wconversion", "-Werror"];

/// The supported standards.
const STANDARDS: [&str; 2] = ["-std=c++17", "-std=c++20"];

/// Builds a C++ program against the prefix.
fn compile(source: &Path, name: &str, standard: &str, flags: &[&str]) -> PathBuf {
    let program = scratch("programs").join(name);
    let (include, lib) = (prefix().join("include"), prefix().join("lib"));
    let mut cpp = Command::new("c++");
    cpp.arg(standard).args(STRICT).args(["-g1", "-pthread"]).args(flags);
    cpp.arg("-I").arg(&include).arg("-I").arg(crate_folder().join("tests/cpp"));
    // The includes of programs that were written for Mooncake.
    cpp.arg("-I").arg(include.join("kvmem/compat/mooncake"));
    cpp.arg(source).arg("-o").arg(&program);
    cpp.arg("-L").arg(&lib).arg("-lkvmem").arg(format!("-Wl,-rpath,{}", lib.display()));
    compiled(name, source, &mut cpp);
    program
}

fn run(name: &str, under: Under) {
    run_with(name, under, &[]);
}

/// Runs a program with environment variables.
fn run_with(name: &str, under: Under, variables: &[(&str, &str)]) {
    if !has("c++") {
        return;
    }
    let source = crate_folder().join(format!("tests/cpp/{name}.cpp"));
    // Each is compiled once: to compile takes longer than to run. The older standard has more code
    // of kvmem's own; `moved` calls every method of every class.
    let standard = STANDARDS[usize::from(name == "moved")];
    let name = format!("{name}-{}", &standard["-std=".len()..]);
    under.run_with(&name, "c++", variables, |name, flags| compile(&source, name, standard, flags));
}

programs!(
    arena registration offset slab pool kv_cache kv_tier disk_tier tier_set threads moved mooncake
    mooncake_arena mooncake_serializer
);

// Not under tools that report leaks: the library of the driver is never unloaded.
#[test]
fn memory_of_a_gpu_with_a_driver_that_stands_in() {
    run_with("cuda", Under::Nothing, &[("LD_LIBRARY_PATH", &driver_of_gpus())]);
}

/// Clients of nodes whose servers are in this process.
mod node {
    use super::*;

    fn run(name: &str, under: Under) {
        with_nodes(|variables| super::run_with(name, under, variables));
    }

    programs!(node);
}

/// Keys of prefixes, by the vectors of all languages.
mod keys {
    use super::*;

    fn run(name: &str, under: Under) {
        super::run_with(name, under, &[prefix_vectors()]);
    }

    programs!(prefix);
}

#[test]
fn verbs_return_and_call_what_the_table_says() {
    run_with("verbs", Under::Nothing, &[cache_verbs()]);
}

// Not under Valgrind, which runs one thread at a time. Not under the sanitizers: a thread that is
// in their allocator during a fork leaves its lock held, so one of twenty runs hangs in `malloc`.
#[test]
fn a_fork_while_threads_use_a_cache() {
    run("kv_fork", Under::Nothing);
}

/// Makes a program whose original header lies beside it, as in Mooncake's own tree.
fn beside(name: &str) -> PathBuf {
    let folder = scratch(name);
    let write = |path: &str, text: &str| {
        std::fs::write(folder.join(path), text).expect("the target folder can be written")
    };
    std::fs::create_dir_all(folder.join("offset_allocator"))
        .expect("the target folder can be written");
    write("offset_allocator/offset_allocator.hpp", "#pragma once\n#define THE_ORIGINAL 1\n");
    write(
        "user.cpp",
        "#include \"offset_allocator/offset_allocator.hpp\"\n\
         int main() {\n\
         #ifdef THE_ORIGINAL\n    return 3;\n\
         #else\n    auto space = mooncake::offset_allocator::OffsetAllocator::create(0, 100);\n\
         return space->allocate(100).has_value() ? 0 : 1;\n\
         #endif\n}\n",
    );
    folder
}

#[test]
fn a_forwarding_header_replaces_an_original_beside_the_includer() {
    if !has("c++") {
        return;
    }
    let folder = beside("beside");
    let run = |name: &str| {
        let program = compile(&folder.join("user.cpp"), name, STANDARDS[0], &[]);
        Command::new(program).status().expect("it can be run").code()
    };
    // A quoted include looks beside the including file first, whatever `-I` says.
    assert_eq!(run("beside-original"), Some(3));
    let page =
        std::fs::read_to_string(crate_folder().join("docs/cpp.md")).expect("the page is there");
    let forward = "#include <kvmem/compat/mooncake_offset_allocator.hpp>";
    assert!(page.contains(forward), "the page says how");
    let text = format!("#pragma once\n{forward}\n");
    std::fs::write(folder.join("offset_allocator/offset_allocator.hpp"), text)
        .expect("it can be replaced");
    assert_eq!(run("beside-forwarded"), Some(0));
    // Without any header beside it, the include finds kvmem's.
    std::fs::remove_file(folder.join("offset_allocator/offset_allocator.hpp"))
        .expect("it is there");
    assert_eq!(run("beside-gone"), Some(0));
}

/// Compiles each line of code that the page lists as missing, and checks that it fails.
#[test]
fn code_that_the_page_lists_as_missing_does_not_compile() {
    if !has("c++") {
        return;
    }
    let page =
        std::fs::read_to_string(crate_folder().join("docs/cpp.md")).expect("the page is there");
    let section = page.split("### Missing functions").nth(1).expect("the section is there");
    let rows = section.lines().filter(|line| line.starts_with("| `"));
    let codes: Vec<&str> = rows.filter_map(|row| row.split('`').nth(1)).collect();
    assert!(codes.len() >= 8, "{codes:?}");
    // Each line in a function of its own, between two that compile. The compiler reports each error
    // with the name that `#line` gives to the line.
    let works = "(void)allocator->get_metrics()";
    let all = [&[works], &codes[..], &[works]].concat();
    let mut program = String::from(
        "#include \"offset_allocator/offset_allocator.hpp\"\n#include \"mmap_arena.h\"\n\
         using namespace mooncake;\nusing namespace mooncake::offset_allocator;\n",
    );
    for (at, code) in all.iter().enumerate() {
        program += &format!(
            "void use_{at}(std::shared_ptr<OffsetAllocator> allocator, \
             OffsetAllocationHandle &handle, MmapArena &arena) {{\n    \
             (void)allocator; (void)handle; (void)arena;\n\
             #line 1 \"line_{at}\"\n    {code};\n}}\n"
        );
    }
    let source = scratch("programs").join("missing.cpp");
    std::fs::write(&source, program).expect("the target folder can be written");
    let mut cpp = Command::new("c++");
    cpp.args([STANDARDS[0], "-fsyntax-only", "-I"])
        .arg(prefix().join("include/kvmem/compat/mooncake"));
    let output = cpp.arg(&source).output().expect("c++ is there").stderr;
    let output = String::from_utf8_lossy(&output);
    for (at, code) in all.iter().enumerate() {
        let fails = output.lines().any(|line| line.starts_with(&format!("line_{at}:")));
        assert_eq!(fails, *code != works, "{code}: the page lists what does not compile\n{output}");
    }
}

/// Finds all headers, including those with Mooncake's names.
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
fn every_header_can_be_included_alone_and_twice() {
    if !has("c++") {
        return;
    }
    let mut all = Vec::new();
    headers(&prefix().join("include"), &mut all);
    assert!(all.len() > 12, "{all:?}");
    let include = prefix().join("include");
    // In the older standard, whose own headers include fewer others.
    for header in all {
        let path = header.strip_prefix(&include).expect("a header of the prefix");
        let name = format!("alone-{}", path.display().to_string().replace('/', "-"));
        let source = scratch("programs").join(format!("{name}.cpp"));
        let line = format!("#include \"{}\"\n", header.display());
        std::fs::write(&source, format!("{line}{line}")).expect("the target folder can be written");
        let mut cpp = Command::new("c++");
        cpp.arg(STANDARDS[0]).args(STRICT).arg("-fsyntax-only").arg(&source);
        compiled(&name, &source, &mut cpp);
    }
}

#[test]
fn the_examples_of_the_page_run() {
    if !has("c++") {
        return;
    }
    for (at, (code, says)) in
        code_blocks("cpp.md", "cpp").iter().zip(code_blocks("cpp.md", "text")).enumerate()
    {
        let source = scratch("programs").join(format!("example-{at}.cpp"));
        std::fs::write(&source, code).expect("the target folder can be written");
        let program = compile(&source, &format!("example-{at}"), STANDARDS[0], &[]);
        // The example that connects to a node has its socket as argument.
        let node = ServedNode::start(ServerOptions::default());
        assert_eq!(succeed(Command::new(program).arg(node.socket())), says);
    }
}

/// Compiles the program of the how-to for Mooncake's users, which knows nothing of kvmem.
#[test]
fn the_program_of_the_how_to_runs() {
    if !has("c++") {
        return;
    }
    let page = crate_folder().join("../../docs/how-to/replace-mooncakes-allocator.md");
    let page = std::fs::read_to_string(page).expect("the page is there");
    let block = |text: &str, start: &str| {
        let (_, rest) = text.split_once(start).expect("the page has the block");
        let (block, rest) = rest.split_once("```\n").expect("a block ends");
        (block.to_owned(), rest.to_owned())
    };
    let (code, rest) = block(&page, "```cpp\n");
    let (says, _) = block(&rest, "```text\n");
    let source = scratch("programs").join("how-to.cpp");
    std::fs::write(&source, code).expect("the target folder can be written");
    let program = compile(&source, "how-to", STANDARDS[0], &[]);
    assert_eq!(succeed(&mut Command::new(program)), says);
}
