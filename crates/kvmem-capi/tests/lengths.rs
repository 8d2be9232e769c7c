//! Numbers that no caller can mean, for every number that a function of the header or an options
//! structure takes: the process lives, and a length that no list can have is refused. The program
//! is made of the header, so that no number is left out.

use std::fmt::Write;
use std::process::Command;

#[allow(dead_code, reason = "each test uses a part of it")]
mod support;

#[allow(dead_code, reason = "each test uses a part of it")]
#[path = "support/header.rs"]
mod header;

#[allow(dead_code, reason = "each test uses a part of it")]
#[path = "support/program.rs"]
mod program;

use header::Function;
use program::{beginning, call};
use support::{compile, scratch, succeed};

/// More than any list of the caller's can have.
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

/// More than a key can have.
const LONG_KEYS: [&str; 3] = ["KVMEM_MAX_KEY_BYTES + 1", "UINT64_C(1) << 32", "UINT64_C(1) << 40"];

const WORDS: [&str; 4] = ["UINT32_MAX", "UINT32_MAX - 1", "UINT32_C(1) << 31", "UINT32_C(1) << 20"];

/// Whether a parameter says how much there is at an address that is read or written in full.
fn is_length(function: &Function, name: &str) -> bool {
    let has = |wanted: &str| function.parameters.iter().any(|parameter| parameter.name == wanted);
    match name {
        "key_bytes" => true,
        "count" => true,
        "bytes" => has("data"),
        _ => false,
    }
}

/// What an options structure is made with, and what it takes for its numbers to be looked at.
const STRUCTURES: [(&str, &str, &str); 6] = [
    (
        "kvmem_region_options",
        "kvmem_region_map(65536, &options, &made.region)",
        "kvmem_region_destroy(made.region)",
    ),
    (
        "kvmem_registration_options",
        "kvmem_register(live_kvmem_region, live_kvmem_registrars, &options, &made.registration)",
        "kvmem_registration_destroy(made.registration)",
    ),
    (
        "kvmem_offset_options",
        "kvmem_offset_create(1 << 20, &options, &made.space)",
        "kvmem_offset_destroy(made.space)",
    ),
    (
        "kvmem_slice_options",
        "kvmem_slice_create(&options, &made.slices)",
        "kvmem_slice_destroy(made.slices)",
    ),
    (
        "kvmem_pool_options",
        "kvmem_pool_create(65536, &options, &made.pool)",
        "kvmem_pool_destroy(made.pool)",
    ),
    (
        "kvmem_kv_options",
        "kvmem_kv_create(live_kvmem_pool, &options, &made.cache)",
        "kvmem_kv_destroy(made.cache)",
    ),
];

/// The members of a structure: type and name.
fn members(of: &str) -> Vec<(String, String)> {
    let path = support::crate_folder().join("include/kvmem.h");
    let text = std::fs::read_to_string(path).expect("the header is there");
    let begins = format!("typedef struct {of} {{");
    let body = text.split(&begins).nth(1).and_then(|rest| rest.split('}').next());
    let body = body.unwrap_or_else(|| panic!("{of} is in the header"));
    let line = |line: &str| {
        let (of, name) = line.trim().strip_suffix(';')?.rsplit_once(' ')?;
        Some((of.to_owned(), name.to_owned()))
    };
    body.lines().filter_map(line).collect()
}

#[test]
fn no_number_ends_the_process() {
    let (functions, objects) = header::read();
    let mut program = beginning();
    program.push_str(
        "
#include <sys/resource.h>
#include <unistd.h>

static union {
    kvmem_region *region;
    kvmem_registration *registration;
    kvmem_offset_allocator *space;
    kvmem_slice_allocator *slices;
    kvmem_pool *pool;
    kvmem_kv_cache *cache;
} made;

/* What is refused says the number that was wrong with it. */
static void refused(kvmem_status status, int line) {
    if (status == KVMEM_OK || status == KVMEM_PANICKED || strlen(kvmem_last_error()) == 0) {
        fprintf(stderr, \"line %d: %s: %s\\n\", line, kvmem_status_name(status), kvmem_last_error());
        exit(1);
    }
}

static void survived(kvmem_status status, int line) {
    if (status == KVMEM_PANICKED || status == KVMEM_POISONED) {
        fprintf(stderr, \"line %d: %s: %s\\n\", line, kvmem_status_name(status), kvmem_last_error());
        exit(1);
    }
}

",
    );
    let (mut body, mut tried, mut lengths) = (String::new(), 0, 0);
    for function in functions.iter().filter(|function| function.returns == "kvmem_status") {
        for (at, parameter) in function.parameters.iter().enumerate() {
            // Of an array that is written, as much as there is: a list of granted ranges is as long
            // as they are.
            let values: Vec<&str> = match (parameter.of.as_str(), parameter.name.as_str()) {
                ("uint64_t", "key_bytes") => LONG.iter().chain(&LONG_KEYS).copied().collect(),
                ("uint64_t", _) => LONG.to_vec(),
                ("uint32_t", _) => WORDS.to_vec(),
                _ => continue,
            };
            for value in values {
                let call = call(function, &objects, at, value);
                let length = is_length(function, &parameter.name);
                let check = if length { "refused" } else { "survived" };
                writeln!(body, "    alarm(30);\n    {check}({call}, __LINE__);").unwrap();
                tried += 1;
                lengths += u64::from(length);
            }
        }
    }
    assert!(tried > 400 && lengths > 100, "{tried} numbers were tried, {lengths} of them lengths");
    let mut settings = 0;
    for (structure, make, end) in STRUCTURES {
        for (of, name) in members(structure) {
            let values: &[&str] = match of.as_str() {
                "uint64_t" => &LONG,
                "uint32_t" => &WORDS,
                _ => continue,
            };
            for value in values {
                writeln!(body, "    {{\n        alarm(30);\n        {structure} options;").unwrap();
                writeln!(body, "        OK({structure}_init(&options, sizeof options));").unwrap();
                // So that counts and sizes are looked at.
                match name.as_str() {
                    "numa_node_count" => {
                        body.push_str("        options.numa_nodes = (uint32_t *) &place;\n")
                    }
                    "hot_size_count" => body.push_str("        options.hot_sizes = place.words;\n"),
                    _ => {}
                }
                if structure == "kvmem_offset_options" && name != "magazines" {
                    body.push_str("        options.magazines = 1;\n");
                }
                writeln!(body, "        options.{name} = {value};").unwrap();
                writeln!(body, "        kvmem_status status = {make};").unwrap();
                if name == "reserved" || name.ends_with("_count") || name == "struct_size" {
                    writeln!(body, "        IS(KVMEM_INVALID_ARGUMENT, status);").unwrap();
                    let said = if name.ends_with("_count") { "elements" } else { name.as_str() };
                    writeln!(
                        body,
                        "        CHECK(strstr(kvmem_last_error(), \"{said}\") != NULL);"
                    )
                    .unwrap();
                }
                writeln!(body, "        survived(status, __LINE__);").unwrap();
                writeln!(body, "        if (status == KVMEM_OK)\n            OK({end});\n    }}")
                    .unwrap();
                settings += 1;
            }
        }
    }
    assert!(settings > 150, "{settings} settings were tried");
    program.push_str("int main(void) {\n    make();\n");
    // What asks for all memory there is ends here, and not the machine.
    program.push_str(
        "    struct rlimit limit = {UINT64_C(16) << 30, UINT64_C(16) << 30};\n    CHECK(setrlimit(RLIMIT_AS, &limit) == 0);\n",
    );
    program.push_str(&body);
    program.push_str("    return 0;\n}\n");
    let source = scratch("programs").join("lengths.c");
    std::fs::write(&source, program).expect("the target folder can be written");
    succeed(&mut Command::new(compile(&source, "lengths", &[])));
}
