//! *Under*: runs a C or C++ program directly, with the sanitizers, or in valgrind.

use std::path::PathBuf;
use std::process::Command;

use super::{scratch, succeed, succeed_under};

/// The way a program is run.
#[derive(Clone, Copy, PartialEq)]
pub(crate) enum Under {
    Nothing,
    Sanitizers,
    Valgrind,
}

impl Under {
    /// Builds a program with `compile`, which receives its name and flags for `compiler`, and runs
    /// it. The program must succeed.
    pub(crate) fn run(
        self,
        name: &str,
        compiler: &str,
        compile: impl FnOnce(&str, &[&str]) -> PathBuf,
    ) {
        match self {
            Under::Nothing => drop(succeed(&mut Command::new(compile(name, &[])))),
            Under::Sanitizers => {
                let flags = [
                    "-fsanitize=address,undefined",
                    "-fno-sanitize-recover=all",
                    "-fno-omit-frame-pointer",
                ];
                if !sanitizers_work(compiler, &flags) {
                    return;
                }
                let options = "detect_leaks=1:detect_stack_use_after_return=1";
                let program = compile(&format!("{name}-sanitized"), &flags);
                succeed(Command::new(program).env("ASAN_OPTIONS", options));
            }
            Under::Valgrind => {
                let args = [
                    "--quiet",
                    "--error-exitcode=9",
                    "--leak-check=full",
                    "--show-leak-kinds=definite",
                    "--errors-for-leak-kinds=definite",
                ];
                // The same program as without valgrind, with fewer rounds: it is compiled once.
                let fewer = [("KVMEM_TEST_DIVISOR", "10")];
                succeed_under("valgrind", &args, &fewer, compile(name, &[]));
            }
        }
    }
}

/// Returns whether the compiler has the sanitizers' libraries; otherwise prints that the test is
/// skipped.
fn sanitizers_work(compiler: &str, flags: &[&str]) -> bool {
    let source = scratch("programs").join("empty.c");
    std::fs::write(&source, "int main(void) { return 0; }\n")
        .expect("the target folder can be written");
    let program = scratch("programs").join(format!("empty-{:?}", std::thread::current().id()));
    let built = Command::new(compiler).args(flags).arg(source).arg("-o").arg(program).output();
    let works = built.is_ok_and(|output| output.status.success());
    if !works {
        println!("skipped: {compiler} has no sanitizers (apt-get install libasan8 libubsan1)");
    }
    works
}

/// Defines three tests for each program: one for each way to run it. Requires a function `run(name,
/// under)`.
macro_rules! programs {
    ($($name:ident)*) => {
        $(mod $name {
            use super::{Under, run};

            #[test]
            fn plain() {
                run(stringify!($name), Under::Nothing);
            }

            #[test]
            fn under_the_sanitizers() {
                run(stringify!($name), Under::Sanitizers);
            }

            #[test]
            fn under_valgrind() {
                run(stringify!($name), Under::Valgrind);
            }
        })*
    };
}

pub(crate) use programs;
