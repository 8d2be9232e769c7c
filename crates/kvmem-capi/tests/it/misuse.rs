//! Misuses every declared function. Passes NULL for every pointer, and for every handle a destroyed
//! one, one of every other type, and bits that never were a handle. The program is generated from
//! the headers, so no function is left out.

use std::fmt::Write;
use std::process::Command;

use kvmem_node::ServerOptions;

use crate::support::header::{self, Function, Parameter};
use crate::support::node_server::ServedNode;
use crate::support::program::{MAKING, beginning, call};
use crate::support::{compile, scratch, succeed};

/// Bits that never were a handle; some look like one.
const GARBAGE: [&str; 6] = [
    "(void *) 1",
    "(void *) 0xdeadbeef",
    "(void *) UINTPTR_MAX",
    "(void *) &place",
    "(void *) ((uintptr_t) live ^ (uintptr_t) 1 << 50)",
    "(void *) ((uintptr_t) live ^ 0xfff000)",
];

/// Names of parameters that may be NULL in every function.
const MAY_BE_NULL: [&str; 7] =
    ["options", "progress", "release", "user", "cancel", "first", "address"];

/// Whether a parameter may be NULL.
fn may_be_null(function: &Function, parameter: &Parameter) -> bool {
    let (name, of) = (parameter.name.as_str(), parameter.of.as_str());
    let by_comment = [format!("`{name}` (may be NULL"), format!("`{name}` may be NULL")];
    by_comment.iter().any(|words| function.comment.contains(words.as_str()))
        || MAY_BE_NULL.contains(&name)
        // NULL is allowed for a buffer when only the length is requested, for a key of no bytes,
        // and for no block.
        || name == "out_needed"
        || (name == "block" && of == "void *")
}

#[test]
fn every_function_rejects_invalid_arguments() {
    let (functions, objects) = header::read();
    let made: Vec<&str> = MAKING.iter().map(|making| making.0).collect();
    assert_eq!(
        {
            let mut all = objects.clone();
            all.sort();
            all
        },
        {
            let mut all = made.clone();
            all.sort_unstable();
            all
        }
    );
    assert!(functions.len() > 120, "{} functions are declared", functions.len());

    let mut program = beginning();
    let mut tried = 0;
    let mut names = Vec::new();
    for function in functions.iter().filter(|function| function.returns == "kvmem_status") {
        writeln!(program, "static void try_{}(void) {{", function.name).unwrap();
        for (at, parameter) in function.parameters.iter().enumerate() {
            if let Some(object) = parameter.object(&objects) {
                // NULL means "no token"; for every other handle it is an error.
                if !may_be_null(function, parameter) {
                    writeln!(
                        program,
                        "    IS(KVMEM_ERR_NULL_ARGUMENT, {});",
                        call(function, &objects, at, "NULL")
                    )
                    .unwrap();
                    tried += 1;
                }
                let mut bad: Vec<String> = GARBAGE
                    .iter()
                    .map(|bits| bits.replace("live", &format!("live_{object}")))
                    .collect();
                bad.push(format!("dead_{object}"));
                bad.extend(
                    made.iter()
                        .filter(|other| **other != object)
                        .map(|other| format!("(void *) live_{other}")),
                );
                for handle in bad {
                    writeln!(
                        program,
                        "    IS(KVMEM_ERR_BAD_HANDLE, {});",
                        call(function, &objects, at, &handle)
                    )
                    .unwrap();
                    tried += 1;
                }
            } else if parameter.is_pointer() && !may_be_null(function, parameter) {
                // The other arguments are plausible. The call may fail for another reason, but must
                // not succeed.
                let call = call(function, &objects, at, "NULL");
                writeln!(program, "    memset(&place, 0, sizeof place);").unwrap();
                if parameter.name.starts_with("out_") {
                    writeln!(program, "    CHECK(({call}) != KVMEM_OK);").unwrap();
                } else {
                    writeln!(program, "    IS(KVMEM_ERR_NULL_ARGUMENT, {call});").unwrap();
                }
                tried += 1;
            }
        }
        program.push_str("}\n\n");
        names.push(&function.name);
    }
    program.push_str("int main(void) {\n    make();\n");
    for name in names {
        writeln!(program, "    try_{name}();").unwrap();
    }
    // All other objects still exist.
    for (object, _, destroy) in MAKING.iter().rev() {
        writeln!(program, "    OK({destroy}(live_{object}));").unwrap();
    }
    program.push_str("    return 0;\n}\n");
    assert!(tried > 1000, "{tried} mistakes were tried");

    let source = scratch("programs").join("misuse.c");
    std::fs::write(&source, program).expect("the target folder can be written");
    let node = ServedNode::start(ServerOptions::default());
    succeed(node.tell(&mut Command::new(compile(&source, "misuse", &[]))));
}
