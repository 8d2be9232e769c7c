//! Misuse of every function that the header declares: NULL for every pointer, and for every handle one that was destroyed, one of every other
//! kind, and bits that never were one. The program is made of the header, so that no function is left out.

use std::fmt::Write;
use std::process::Command;

#[allow(dead_code, reason = "each test uses a part of it")]
mod support;

#[path = "support/header.rs"]
mod header;

use header::{Function, Parameter};
use support::{compile, scratch, succeed};

/// What makes one object of each kind, `live`, and one that is destroyed, `dead`.
const MAKING: &[(&str, &str, &str)] = &[
    ("kvmem_region", "kvmem_region_map(65536, NULL, &MADE)", "kvmem_region_destroy"),
    ("kvmem_bump_arena", "kvmem_bump_create(live_kvmem_region, &MADE)", "kvmem_bump_destroy"),
    (
        "kvmem_registrars",
        "kvmem_registrars_simulated(1, UINT64_MAX, UINT64_MAX, &MADE)",
        "kvmem_registrars_destroy",
    ),
    (
        "kvmem_registration",
        "kvmem_register(live_kvmem_region, live_kvmem_registrars, NULL, &MADE)",
        "kvmem_registration_destroy",
    ),
    (
        "kvmem_background",
        "kvmem_register_in_background(live_kvmem_region, live_kvmem_registrars, NULL, &MADE)",
        "kvmem_background_destroy",
    ),
    ("kvmem_offset_allocator", "kvmem_offset_create(1 << 20, NULL, &MADE)", "kvmem_offset_destroy"),
    ("kvmem_slice_allocator", "kvmem_slice_create(NULL, &MADE)", "kvmem_slice_destroy"),
    ("kvmem_pool", "kvmem_pool_create(65536, &shared, &MADE)", "kvmem_pool_destroy"),
    ("kvmem_attached_pool", "kvmem_pool_attach(fd, 0, &MADE)", "kvmem_attached_destroy"),
    ("kvmem_kv_cache", "kvmem_kv_create(live_kvmem_pool, NULL, &MADE)", "kvmem_kv_destroy"),
    ("kvmem_kv_pin", "make_pin(&MADE)", "kvmem_kv_pin_release"),
    ("kvmem_kv_reservation", "make_reservation(&MADE)", "kvmem_kv_abandon"),
    ("kvmem_kv_lease", "make_lease(&MADE)", "kvmem_kv_lease_release"),
    ("kvmem_cancel", "kvmem_cancel_create(&MADE)", "kvmem_cancel_destroy"),
];

/// Bits that never were a handle. Some look like one.
const GARBAGE: [&str; 6] = [
    "(void *) 1",
    "(void *) 0xdeadbeef",
    "(void *) UINTPTR_MAX",
    "(void *) &place",
    "(void *) ((uintptr_t) live ^ (uintptr_t) 1 << 50)",
    "(void *) ((uintptr_t) live ^ 0xfff000)",
];

/// What stands for a parameter where it is not what is tried.
fn usual(parameter: &Parameter, objects: &[String]) -> String {
    if let Some(object) = parameter.object(objects) {
        return format!("live_{object}");
    }
    let (of, name) = (parameter.of.as_str(), parameter.name.as_str());
    match name {
        // Nothing that is not a block may be freed, and nobody is to be called.
        "block" | "first" if of == "void *" => "NULL".into(),
        "blocks" if of.contains("void") => "(void *const *) no_blocks".into(),
        "progress" | "release" | "user" | "options" => "NULL".into(),
        "device" => "\"simulated:0\"".into(),
        "devices" => "\"mlock\"".into(),
        "text" => "\"1MiB\"".into(),
        "why" => "\"it is bad\"".into(),
        "forget" => "forget".into(),
        "fd" => "fd".into(),
        "key" | "data" => "place.bytes".into(),
        _ if of.ends_with('*') => "(void *) &place".into(),
        "format" | "read_only" | "writable" | "deregister" | "index" | "nth" | "how" | "offset"
        | "next_offset" => "0".into(),
        _ => "1".into(),
    }
}

/// A call with one parameter replaced.
fn call(function: &Function, objects: &[String], at: usize, with: &str) -> String {
    let arguments: Vec<String> = function
        .parameters
        .iter()
        .enumerate()
        .map(|(index, parameter)| if index == at { with.to_owned() } else { usual(parameter, objects) })
        .collect();
    format!("{}({})", function.name, arguments.join(", "))
}

/// Whether NULL is one of the things that a parameter may be.
fn may_be_null(function: &Function, parameter: &Parameter) -> bool {
    let (name, of) = (parameter.name.as_str(), parameter.of.as_str());
    let by_comment = [format!("`{name}` (may be NULL"), format!("`{name}` may be NULL")];
    by_comment.iter().any(|words| function.comment.contains(words.as_str()))
        || matches!(name, "options" | "progress" | "release" | "user" | "cancel" | "first" | "address")
        // Asked for its length only, a key of no bytes, a block that is none.
        || name == "out_needed"
        || (name == "block" && of == "void *")
}

#[test]
fn every_function_finds_out_what_is_no_argument() {
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

    let mut program = String::from(
        "#include \"check.h\"\n\n\
         static union { char bytes[65536]; uint64_t words[8192]; } place;\n\
         static void *no_blocks[1];\n\
         static int fd;\n\
         static kvmem_pool_options shared;\n\n",
    );
    for (object, ..) in MAKING {
        writeln!(program, "static {object} *live_{object}, *dead_{object};").unwrap();
    }
    program.push_str(
        "
static kvmem_status make_pin(kvmem_kv_pin **out) {
    kvmem_kv_value value;
    OK(kvmem_kv_insert(live_kvmem_kv_cache, \"pin\", 3, \"value\", 5));
    kvmem_status status = kvmem_kv_get(live_kvmem_kv_cache, \"pin\", 3, &value);
    *out = value.pin;
    return status;
}

static kvmem_status make_reservation(kvmem_kv_reservation **out) {
    kvmem_kv_room room;
    kvmem_status status = kvmem_kv_reserve(live_kvmem_kv_cache, \"room\", 4, 100, &room);
    *out = room.reservation;
    return status;
}

static kvmem_status make_lease(kvmem_kv_lease **out) {
    kvmem_kv_leased leased;
    kvmem_status status = kvmem_kv_get_lease(live_kvmem_kv_cache, \"lease\", 5, &leased);
    *out = leased.lease;
    return status;
}

static int forget(void *user) {
    (void) user;
    return 0;
}

static void make(void) {
    OK(kvmem_pool_options_init(&shared, sizeof shared));
    shared.backing = KVMEM_BACKING_SHARED;
    shared.pages = \"4k\";
",
    );
    for (object, make, destroy) in MAKING {
        for state in ["dead", "live"] {
            writeln!(program, "    OK({});", make.replace("MADE", &format!("{state}_{object}"))).unwrap();
            if state == "dead" {
                writeln!(program, "    OK({destroy}(dead_{object}));").unwrap();
            }
        }
        if *object == "kvmem_pool" {
            program.push_str("    OK(kvmem_pool_share(live_kvmem_pool, 0, &fd));\n");
        }
    }
    program.push_str("}\n\n");

    let mut tried = 0;
    let mut names = Vec::new();
    for function in functions.iter().filter(|function| function.returns == "kvmem_status") {
        writeln!(program, "static void try_{}(void) {{", function.name).unwrap();
        for (at, parameter) in function.parameters.iter().enumerate() {
            if let Some(object) = parameter.object(&objects) {
                // NULL in the place of a token is none; of any other handle it is a mistake.
                if !may_be_null(function, parameter) {
                    writeln!(
                        program,
                        "    IS(KVMEM_NULL_ARGUMENT, {});",
                        call(function, &objects, at, "NULL")
                    )
                    .unwrap();
                    tried += 1;
                }
                let mut bad: Vec<String> =
                    GARBAGE.iter().map(|bits| bits.replace("live", &format!("live_{object}"))).collect();
                bad.push(format!("dead_{object}"));
                bad.extend(
                    made.iter()
                        .filter(|other| **other != object)
                        .map(|other| format!("(void *) live_{other}")),
                );
                for handle in bad {
                    writeln!(program, "    IS(KVMEM_BAD_HANDLE, {});", call(function, &objects, at, &handle))
                        .unwrap();
                    tried += 1;
                }
            } else if parameter.is_pointer() && !may_be_null(function, parameter) {
                // The rest is as it should be, or as good as: a call may fail at something else, but never end well.
                let call = call(function, &objects, at, "NULL");
                writeln!(program, "    memset(&place, 0, sizeof place);").unwrap();
                if parameter.name.starts_with("out_") {
                    writeln!(program, "    CHECK(({call}) != KVMEM_OK);").unwrap();
                } else {
                    writeln!(program, "    IS(KVMEM_NULL_ARGUMENT, {call});").unwrap();
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
    // All that was not to be destroyed is still there.
    for (object, _, destroy) in MAKING.iter().rev() {
        writeln!(program, "    OK({destroy}(live_{object}));").unwrap();
    }
    program.push_str("    return 0;\n}\n");
    assert!(tried > 1000, "{tried} mistakes were tried");

    let source = scratch("programs").join("misuse.c");
    std::fs::write(&source, program).expect("the target folder can be written");
    succeed(&mut Command::new(compile(&source, "misuse", &[])));
}
