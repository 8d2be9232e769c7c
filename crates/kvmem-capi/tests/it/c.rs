//! Runs the programs of `tests/c`, built with the machine's C compiler: under the sanitizers, and
//! those with objects that outlive others in valgrind, too. They test the interface; what the calls
//! do is tested in Rust.

use std::path::PathBuf;
use std::process::Command;

use kvmem_node::ServerOptions;

use crate::support::node_server::{ServedNode, with_nodes};
use crate::support::under::{Under, programs};
use crate::support::{
    STRICT, cache_verbs, code_blocks, compile, crate_folder, driver_of_gpus, has, prefix,
    prefix_vectors, scratch, succeed,
};

fn run(name: &str, under: Under) {
    let source = crate_folder().join(format!("tests/c/{name}.c"));
    under.run(name, "cc", |name, flags| compile(&source, name, flags));
}

programs!(
    register offset disk_tier tier_set threads gslice cost,
    and in valgrind: arena slab pool kv_tier fetching
);

#[test]
fn verbs_return_and_call_what_the_table_says() {
    let program = compile(&crate_folder().join("tests/c/verbs.c"), "verbs", &[]);
    let (variable, path) = cache_verbs();
    succeed(Command::new(program).env(variable, path));
}

// Not under tools that report leaks: the library of the driver is never unloaded.
#[test]
fn memory_of_a_gpu_with_a_driver_that_stands_in() {
    let program = compile(&crate_folder().join("tests/c/cuda.c"), "cuda", &[]);
    succeed(Command::new(program).env("LD_LIBRARY_PATH", driver_of_gpus()));
}

/// Clients of nodes whose servers are in this process.
mod node {
    use super::*;

    #[test]
    fn clients_outlive_their_server() {
        let source = crate_folder().join("tests/c/node_restart.c");
        let program = compile(&source, "node_restart", &[]);
        ServedNode::start(ServerOptions::default()).obey(program);
    }

    fn run(name: &str, under: Under) {
        let source = crate_folder().join(format!("tests/c/{name}.c"));
        with_nodes(|variables| {
            under.run_with(name, "cc", variables, |name, flags| compile(&source, name, flags));
        });
    }

    programs!(, and in valgrind: node);
}

/// The example for authors of servers on llama.cpp, with a stand-in for its library.
mod llama {
    use super::*;

    fn run(name: &str, under: Under) {
        let source = crate_folder().join("examples/llama_prefix.c");
        let folder = crate_folder().join("tests/c/llama");
        let (include, main) = (format!("-I{}", folder.display()), folder.join("main.c"));
        let main = main.to_str().expect("the checkout has a UTF-8 path");
        with_nodes(|variables| {
            under.run_with(name, "cc", variables, |name, flags| {
                compile(&source, name, &[flags, &[&include, main]].concat())
            });
        });
    }

    programs!(llama_prefix);
}

/// Keys of prefixes, by the vectors of all languages.
mod keys {
    use super::*;

    fn run(name: &str, under: Under) {
        let source = crate_folder().join(format!("tests/c/{name}.c"));
        under
            .run_with(name, "cc", &[prefix_vectors()], |name, flags| compile(&source, name, flags));
    }

    programs!(prefix);
}

// Not under Valgrind: it runs one thread at a time, and objects that other threads were making leak
// in a child. Not under the sanitizers: a thread that is in their allocator during a fork leaves
// its lock held, so a child hangs in `malloc`: about one of a thousand of these.
#[test]
fn a_fork_while_threads_make_objects() {
    run("fork", Under::Nothing);
}

#[test]
fn a_fork_while_threads_use_a_cache() {
    run("kv_fork", Under::Nothing);
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
        // The program frees each slice as a slice, so every version of GLib is allowed.
        let flags: Vec<&str> =
            flags.split_whitespace().chain([&*define, "-DKVMEM_GSLICE_NO_G_FREE"]).collect();
        let program = compile(&crate_folder().join("tests/c/gslice.c"), order, &flags);
        succeed(&mut Command::new(program));
    }
}

/// For a type without members, and for 0 bytes, kvmem returns the same as GLib.
#[test]
fn an_empty_type_gives_what_glib_gives() {
    let source = crate_folder().join("tests/c/gslice_empty.c");
    let pkg_config = |arg: &str| {
        let output = Command::new("pkg-config").args([arg, "glib-2.0"]).output().ok()?;
        output.status.success().then(|| String::from_utf8_lossy(&output.stdout).into_owned())
    };
    let none = "new 0, new0 0, dup 0, alloc 0, alloc0 0, copy 0\n";
    for optimize in ["-O0", "-O2"] {
        let mut with_glib_output = Vec::new();
        // Without GLib's headers, and with them.
        let include = pkg_config("--cflags").map(|flags| flags.replace("-I", "-isystem "));
        let with_glib = include.iter().map(|flags| (flags.as_str(), "-DWITH_GLIB"));
        for (number, (flags, define)) in [("", "-DALONE")].into_iter().chain(with_glib).enumerate()
        {
            let flags: Vec<&str> = flags
                .split_whitespace()
                .chain([define, optimize, "-DKVMEM_GSLICE_NO_G_FREE"])
                .collect();
            let program = compile(&source, &format!("empty{optimize}-{number}"), &flags);
            for setting in ["", "always-malloc", "debug-blocks"] {
                let output = succeed(Command::new(&program).env("KVMEM_SLAB", setting));
                if define == "-DALONE" {
                    assert_eq!(output, none);
                } else {
                    with_glib_output.push(output);
                }
            }
        }
        // The same with GLib's own functions.
        let (Some(include), Some(libs)) = (include, pkg_config("--libs")) else {
            println!("skipped: GLib's headers are missing");
            continue;
        };
        let program = scratch("programs").join(format!("empty{optimize}-glib"));
        let mut cc = Command::new("cc");
        cc.args(["-std=c11", "-D_GNU_SOURCE", "-DGLIBS_OWN", optimize])
            .args(include.split_whitespace());
        cc.arg(&source).arg("-o").arg(&program).args(libs.split_whitespace());
        if cc.output().is_ok_and(|output| output.status.success()) {
            // Before 2.88 the same as `none`: the macros are GLib's.
            let glibs = succeed(&mut Command::new(program));
            assert!(with_glib_output.iter().all(|one| *one == glibs), "{with_glib_output:?}");
        } else {
            println!("skipped: GLib cannot be linked");
        }
    }
}

/// Since GLib 2.76, slices may be freed with `g_free`; kvmem's may not, so the header must not
/// compile.
#[test]
fn a_glib_whose_slices_are_mallocs_is_rejected() {
    let folder = scratch("glib-2.76");
    let fake = |version: (u32, u32)| {
        let text = format!(
            "#ifndef GLIB_CHECK_VERSION\n#define GLIB_CHECK_VERSION(major, minor, micro) \\\n    \
             ({0} > (major) || ({0} == (major) && {1} >= (minor) && (micro) >= 0))\n#endif\n",
            version.0, version.1
        );
        std::fs::write(folder.join("glib.h"), text).expect("the target folder can be written");
    };
    let builds = |includes: &str, flags: &[&str]| {
        let source = scratch("programs").join("glib-2.76.c");
        std::fs::write(&source, format!("{includes}\nint main(void) {{ return 0; }}\n"))
            .expect("it can be written");
        let mut cc = Command::new("cc");
        cc.args(STRICT).arg("-fsyntax-only").args(flags).arg("-I").arg(&folder);
        let output =
            cc.arg("-I").arg(prefix().join("include")).arg(&source).output().expect("cc is there");
        (output.status.success(), String::from_utf8_lossy(&output.stderr).into_owned())
    };
    let ours = "#include <kvmem/compat/gslice.h>\n";
    let before = format!("#include <glib.h>\n{ours}");
    let after = format!("{ours}#include <glib.h>");
    for (version, fine) in
        [((2, 74), true), ((2, 75), true), ((2, 76), false), ((2, 80), false), ((3, 0), false)]
    {
        fake(version);
        for includes in [&before, &after] {
            let (built, output) = builds(includes, &[]);
            assert!(
                built == fine && fine != output.contains("KVMEM_GSLICE_NO_G_FREE"),
                "{version:?}: {output}"
            );
            assert!(builds(includes, &["-DKVMEM_GSLICE_NO_G_FREE"]).0);
            assert!(builds(&format!("#define KVMEM_GSLICE_NO_G_FREE\n{includes}"), &[]).0);
        }
    }
}

#[test]
fn the_headers_are_strict_c_and_cpp() {
    for header in ["kvmem.h", "kvmem/testing.h", "kvmem/compat/gslice.h"] {
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

/// Writes the examples of `docs/c.md` to files.
fn examples() -> Vec<PathBuf> {
    let thread = std::thread::current().id();
    let write = |(at, code): (usize, &String)| {
        let source = scratch("programs").join(format!("example-{thread:?}-{at}.c"));
        std::fs::write(&source, code).expect("the target folder can be written");
        source
    };
    code_blocks("c.md", "c").iter().enumerate().map(write).collect()
}

/// Returns the output of each example, as the page states it.
fn expected() -> Vec<String> {
    code_blocks("c.md", "text")
}

#[test]
fn the_examples_of_the_page_run_by_pkg_config() {
    if !has("pkg-config") {
        return;
    }
    let pkg_config = |args: &[&str]| {
        let folder = prefix().join("lib/pkgconfig");
        let output = succeed(
            Command::new("pkg-config").env("PKG_CONFIG_PATH", folder).args(args).arg("kvmem"),
        );
        output.split_whitespace().map(str::to_owned).collect::<Vec<_>>()
    };
    assert_eq!(pkg_config(&["--modversion"]), [env!("CARGO_PKG_VERSION")]);
    let lib = prefix().join("lib");

    // The static library has a folder of its own, so the linker cannot take the shared one.
    let alone = scratch("static");
    std::fs::copy(lib.join("libkvmem.a"), alone.join("libkvmem.a")).expect("it can be copied");
    for (at, (example, expected)) in examples().iter().zip(expected()).enumerate() {
        // The example that connects to a node has its socket as argument.
        let node = ServedNode::start(ServerOptions::default());
        let shared = scratch("programs").join(format!("example-shared-{at}"));
        let mut cc = Command::new("cc");
        cc.args(STRICT)
            .arg(example)
            .arg("-o")
            .arg(&shared)
            .args(pkg_config(&["--cflags", "--libs"]));
        succeed(&mut cc);
        let mut command = Command::new(&shared);
        let command = command.arg(node.socket()).env("LD_LIBRARY_PATH", &lib);
        assert_eq!(succeed(command), expected);

        let program = scratch("programs").join(format!("example-static-{at}"));
        let mut cc = Command::new("cc");
        cc.args(STRICT).arg(example).arg("-o").arg(&program).arg("-L").arg(&alone);
        let lib = format!("-L{}", lib.display());
        let libs = pkg_config(&["--cflags", "--libs", "--static"]).into_iter();
        cc.args(libs.filter(|flag| !flag.starts_with("-L") && *flag != lib));
        succeed(&mut cc);
        let node = ServedNode::start(ServerOptions::default());
        assert_eq!(succeed(Command::new(&program).arg(node.socket())), expected);
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
