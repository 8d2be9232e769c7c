//! Passes impossible numbers for every number that a declared function or an options structure
//! takes. The process must survive, and a length that no list can have must return an error. The
//! program is generated from the headers, so no number is left out.

use std::fmt::Write;
use std::process::Command;

use kvmem_node::ServerOptions;

use crate::support::header::{self, Function};
use crate::support::node_server::ServedNode;
use crate::support::program::{MAKING, beginning, call};
use crate::support::{compile, scratch, succeed};

/// More elements than any list can have.
const LONG: [&str; 9] = [
    "UINT64_MAX",
    "UINT64_MAX - 7",
    "(UINT64_C(1) << 63) + 1",
    "UINT64_C(1) << 63",
    "(UINT64_C(1) << 62) + 1",
    "UINT64_C(1) << 62",
    "UINT64_C(1) << 61",
    "UINT64_C(1) << 60",
    "UINT64_C(1) << 48",
];

/// More bytes than a key can have.
const LONG_KEYS: [&str; 3] = ["KVMEM_MAX_KEY_BYTES + 1", "UINT64_C(1) << 32", "UINT64_C(1) << 40"];

const WORDS: [&str; 4] = ["UINT32_MAX", "UINT32_MAX - 1", "UINT32_C(1) << 31", "UINT32_C(1) << 20"];

/// Whether a parameter is the length of memory that is read or written completely.
fn is_length(function: &Function, name: &str) -> bool {
    let has = |wanted: &str| function.parameters.iter().any(|parameter| parameter.name == wanted);
    match name {
        "key_bytes" => true,
        "count" => true,
        "bytes" => has("data"),
        _ => false,
    }
}

#[test]
fn no_number_ends_the_process() {
    let (functions, objects) = header::read();
    let mut program = beginning();
    program.push_str(
        "
#include <sys/resource.h>
#include <unistd.h>

static void report(kvmem_status status, int line) {
    fprintf(stderr, \"line %d: %s: %s\\n\", line, kvmem_status_name(status),
            kvmem_last_error());
    exit(1);
}

/* The call must fail, with a text. */
static void failed(kvmem_status status, int line) {
    if (status == KVMEM_OK || status == KVMEM_ERR_PANICKED || strlen(kvmem_last_error()) == 0)
        report(status, line);
}

static void survived(kvmem_status status, int line) {
    if (status == KVMEM_ERR_PANICKED || status == KVMEM_ERR_POISONED)
        report(status, line);
}

",
    );
    let (mut body, mut tried, mut lengths) = (String::new(), 0, 0);
    for function in functions.iter().filter(|function| function.returns == "kvmem_status") {
        for (at, parameter) in function.parameters.iter().enumerate() {
            // Not the capacity of an array that is written: it is only filled as far as there are
            // results.
            let values: Vec<&str> = match (parameter.of.as_str(), parameter.name.as_str()) {
                ("uint64_t", "key_bytes") => LONG.iter().chain(&LONG_KEYS).copied().collect(),
                ("uint64_t", _) => LONG.to_vec(),
                ("uint32_t", _) => WORDS.to_vec(),
                _ => continue,
            };
            for value in values {
                let call = call(function, &objects, at, value);
                let length = is_length(function, &parameter.name);
                let check = if length { "failed" } else { "survived" };
                // An earlier call has written to it what may look like a key.
                writeln!(body, "    memset(&place, 0, sizeof place);").unwrap();
                writeln!(body, "    alarm(300);\n    {check}({call}, __LINE__);").unwrap();
                tried += 1;
                lengths += u64::from(length);
            }
        }
    }
    assert!(tried > 400 && lengths > 100, "{tried} numbers were tried, {lengths} of them lengths");
    let mut settings = 0;
    for (object, make, end) in MAKING {
        let structure = format!("{object}_options");
        let make = make.replace("NULL", "&options").replace("&shared", "&options");
        let make = make.replace("MADE", "made");
        for (of, name) in header::members(&structure) {
            let values: &[&str] = match of.as_str() {
                "uint64_t" => &LONG,
                "uint32_t" => &WORDS,
                _ => continue,
            };
            for value in values {
                writeln!(body, "    {{\n        alarm(300);\n        {structure} options;")
                    .unwrap();
                writeln!(body, "        OK({structure}_init(&options, sizeof options));").unwrap();
                // Makes the call look at counts and sizes.
                match name.as_str() {
                    "numa_node_count" => {
                        body.push_str("        options.numa_nodes = (uint32_t *) &place;\n")
                    }
                    "server_user_count" => {
                        body.push_str("        options.server_users = (uint32_t *) &place;\n")
                    }
                    "hot_size_count" => body.push_str("        options.hot_sizes = place.words;\n"),
                    _ => {}
                }
                if *object == "kvmem_offset_allocator" && name != "magazines" {
                    body.push_str("        options.magazines = 1;\n");
                }
                writeln!(body, "        options.{name} = {value};").unwrap();
                writeln!(body, "        {object} *made;").unwrap();
                writeln!(body, "        kvmem_status status = {make};").unwrap();
                if name == "reserved" || name.ends_with("_count") || name == "struct_size" {
                    writeln!(body, "        IS(KVMEM_ERR_INVALID_ARGUMENT, status);").unwrap();
                    let said = if name.ends_with("_count") { "elements" } else { name.as_str() };
                    writeln!(
                        body,
                        "        CHECK(strstr(kvmem_last_error(), \"{said}\") != NULL);"
                    )
                    .unwrap();
                }
                writeln!(body, "        survived(status, __LINE__);").unwrap();
                writeln!(
                    body,
                    "        if (status == KVMEM_OK)\n            OK({end}(made));\n    }}"
                )
                .unwrap();
                settings += 1;
            }
        }
    }
    assert!(settings > 150, "{settings} settings were tried");
    program.push_str("int main(void) {\n    make();\n");
    // A call that requests all memory fails at this limit, instead of exhausting the machine.
    program.push_str(
        "    struct rlimit limit = {UINT64_C(16) << 30, UINT64_C(16) << 30};\n    \
         CHECK(setrlimit(RLIMIT_AS, &limit) == 0);\n",
    );
    program.push_str(&body);
    program.push_str("    return 0;\n}\n");
    let source = scratch("programs").join("lengths.c");
    std::fs::write(&source, program).expect("the target folder can be written");
    let node = ServedNode::start(ServerOptions::default());
    succeed(node.tell(&mut Command::new(compile(&source, "lengths", &[]))));
}
