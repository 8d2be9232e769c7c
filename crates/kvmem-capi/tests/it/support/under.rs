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
        self.run_with(name, compiler, &[], compile);
    }

    /// As [`run`](Self::run), with environment variables.
    pub(crate) fn run_with(
        self,
        name: &str,
        compiler: &str,
        variables: &[(&str, &str)],
        compile: impl FnOnce(&str, &[&str]) -> PathBuf,
    ) {
        let variables = || variables.iter().copied();
        let flags = [
            "-fsanitize=address,undefined",
            "-fno-sanitize-recover=all",
            "-fno-omit-frame-pointer",
        ];
        match self {
            Under::Sanitizers if sanitizers_work(compiler, &flags) => {
                let options = "detect_leaks=1:detect_stack_use_after_return=1";
                let program = compile(&format!("{name}-sanitized"), &flags);
                succeed(Command::new(program).env("ASAN_OPTIONS", options).envs(variables()));
            }
            Under::Nothing | Under::Sanitizers => {
                drop(succeed(Command::new(compile(name, &[])).envs(variables())));
            }
            Under::Valgrind => {
                let args = [
                    "--quiet",
                    "--error-exitcode=9",
                    "--leak-check=full",
                    "--show-leak-kinds=definite",
                    "--errors-for-leak-kinds=definite",
                ];
                // With fewer rounds.
                let fewer = std::iter::once(("KVMEM_TEST_DIVISOR", "10"));
                let variables: Vec<_> = fewer.chain(variables()).collect();
                succeed_under("valgrind", &args, &variables, compile(name, &[]));
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

/// Defines a test for each program: under the sanitizers, or directly where there are none. For
/// those behind `and in valgrind`, whose objects outlive others or are misused, a second one there:
/// the sanitizers do not see what the library reads and writes. Requires a function `run(name,
/// under)`.
macro_rules! programs {
    ($($name:ident)* $(, and in valgrind: $($lifetime:ident)*)?) => {
        $(#[test]
        fn $name() {
            run(stringify!($name), Under::Sanitizers);
        })*
        $($(mod $lifetime {
            use super::{Under, run};

            #[test]
            fn under_the_sanitizers() {
                run(stringify!($lifetime), Under::Sanitizers);
            }

            #[test]
            fn in_valgrind() {
                run(stringify!($lifetime), Under::Valgrind);
            }
        })*)?
    };
}

pub(crate) use programs;
