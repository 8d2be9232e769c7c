//! The programs of `tests/c`, built by the machine's C compiler: plain, under the sanitizers, and under valgrind.

#[allow(dead_code, reason = "each test uses a part of it")]
mod support;

#[macro_use]
#[path = "support/under.rs"]
mod under;

use std::path::PathBuf;
use std::process::Command;

use support::{STRICT, compile, crate_folder, has, prefix, scratch, succeed};
use under::Under;

fn run(name: &str, under: Under) {
    let source = crate_folder().join(format!("tests/c/{name}.c"));
    under.run(name, "cc", |name, flags| compile(&source, name, flags));
}

programs!(arena register offset slice pool kv_tier threads gslice cost);

// Not under Valgrind: what other threads were making is leaked in a child, and it runs one thread at a time.
#[test]
fn a_fork_in_the_middle() {
    run("fork", Under::Nothing);
}

#[test]
fn a_fork_in_the_middle_under_the_sanitizers() {
    run("fork", Under::Sanitizers);
}

#[test]
fn a_fork_while_threads_use_a_cache() {
    run("kv_fork", Under::Nothing);
}

#[test]
fn a_fork_while_threads_use_a_cache_under_the_sanitizers() {
    run("kv_fork", Under::Sanitizers);
}

#[test]
fn slices_beside_the_headers_of_glib() {
    let Ok(output) = Command::new("pkg-config").args(["--cflags", "glib-2.0"]).output() else {
        return println!("skipped: pkg-config is missing");
    };
    if !output.status.success() {
        return println!("skipped: GLib's headers are missing");
    }
    let flags = String::from_utf8_lossy(&output.stdout).replace("-I", "-isystem ");
    for order in ["GLIB_BEFORE", "GLIB_AFTER"] {
        let define = format!("-D{order}");
        let flags: Vec<&str> = flags.split_whitespace().chain([&*define]).collect();
        let program = compile(&crate_folder().join("tests/c/gslice.c"), order, &flags);
        succeed(&mut Command::new(program));
    }
}

#[test]
fn the_headers_are_strict_c_and_cpp() {
    for header in ["kvmem.h", "kvmem/compat/gslice.h"] {
        let path = prefix().join("include").join(header);
        succeed(Command::new("cc").args(STRICT).args(["-fsyntax-only", "-x", "c"]).arg(&path));
        for standard in ["-std=c++17", "-std=c++20"] {
            if has("c++") {
                let mut cpp = Command::new("c++");
                cpp.args([
                    standard,
                    "-Wall",
                    "-Wextra",
                    "-Wpedantic",
                    "-Werror",
                    "-fsyntax-only",
                    "-x",
                    "c++",
                ]);
                succeed(cpp.arg(&path));
            }
        }
    }
}

/// The examples of `docs/c.md`, as they stand there.
fn examples() -> Vec<PathBuf> {
    let thread = std::thread::current().id();
    let write = |(at, code): (usize, &String)| {
        let source = scratch("programs").join(format!("example-{thread:?}-{at}.c"));
        std::fs::write(&source, code).expect("the target folder can be written");
        source
    };
    blocks("c").iter().enumerate().map(write).collect()
}

/// What the page says that each example prints.
fn expected() -> Vec<String> {
    blocks("text")
}

/// The blocks of the page in a language: one for each example.
fn blocks(language: &str) -> Vec<String> {
    let page = std::fs::read_to_string(crate_folder().join("docs/c.md")).expect("the page is there");
    let begins = format!("```{language}\n");
    let blocks = page.split(&begins).skip(1).filter_map(|rest| rest.split("```").next());
    let blocks: Vec<String> = blocks.map(str::to_owned).collect();
    assert_eq!(blocks.len(), 2, "in {language}");
    blocks
}

#[test]
fn the_examples_of_the_page_run_by_pkg_config() {
    if !has("pkg-config") {
        return;
    }
    let pkg_config = |args: &[&str]| {
        let folder = prefix().join("lib/pkgconfig");
        let said = succeed(Command::new("pkg-config").env("PKG_CONFIG_PATH", folder).args(args).arg("kvmem"));
        said.split_whitespace().map(str::to_owned).collect::<Vec<_>>()
    };
    assert_eq!(pkg_config(&["--modversion"]), [env!("CARGO_PKG_VERSION")]);
    let lib = prefix().join("lib");

    // The static library is alone in its folder, so that the linker cannot take the shared one.
    let alone = scratch("static");
    std::fs::copy(lib.join("libkvmem.a"), alone.join("libkvmem.a")).expect("it can be copied");
    for (at, (example, expected)) in examples().iter().zip(expected()).enumerate() {
        let shared = scratch("programs").join(format!("example-shared-{at}"));
        let mut cc = Command::new("cc");
        cc.args(STRICT).arg(example).arg("-o").arg(&shared).args(pkg_config(&["--cflags", "--libs"]));
        succeed(&mut cc);
        assert_eq!(succeed(Command::new(&shared).env("LD_LIBRARY_PATH", &lib)), expected);

        let program = scratch("programs").join(format!("example-static-{at}"));
        let mut cc = Command::new("cc");
        cc.args(STRICT).arg(example).arg("-o").arg(&program).arg("-L").arg(&alone);
        let lib = format!("-L{}", lib.display());
        let libs = pkg_config(&["--cflags", "--libs", "--static"]).into_iter();
        cc.args(libs.filter(|flag| !flag.starts_with("-L") && *flag != lib));
        succeed(&mut cc);
        assert_eq!(succeed(&mut Command::new(&program)), expected);
    }
}

#[test]
fn the_example_of_the_page_runs_by_cmake() {
    if !has("cmake") {
        return;
    }
    let build = scratch("cmake");
    let mut configure = Command::new("cmake");
    configure.arg("-S").arg(crate_folder().join("tests/cmake")).arg("-B").arg(&build);
    configure.arg(format!("-DCMAKE_PREFIX_PATH={}", prefix().display()));
    configure.arg(format!("-DPROGRAM={}", examples()[0].display()));
    succeed(&mut configure);
    succeed(Command::new("cmake").arg("--build").arg(&build));
    for program in ["with_kvmem", "with_static"] {
        assert_eq!(succeed(&mut Command::new(build.join(program))), expected()[0]);
    }
}
