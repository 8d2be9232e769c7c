//! *Program*: the common parts of generated programs that call every declared function.

use std::fmt::Write;

use super::header::{Function, Parameter};

/// For each type of object: its name, the call that makes one, and the function that destroys it.
pub(crate) const MAKING: &[(&str, &str, &str)] = &[
    ("kvmem_region", "kvmem_region_map(65536, NULL, &MADE)", "kvmem_region_destroy"),
    (
        "kvmem_bump_arena",
        "kvmem_bump_arena_create(live_kvmem_region, &MADE)",
        "kvmem_bump_arena_destroy",
    ),
    (
        "kvmem_registrars",
        "kvmem_registrars_simulated(1, UINT64_MAX, UINT64_MAX, &MADE)",
        "kvmem_registrars_destroy",
    ),
    (
        "kvmem_registration",
        "kvmem_registration_create(live_kvmem_region, live_kvmem_registrars, NULL, &MADE)",
        "kvmem_registration_destroy",
    ),
    (
        "kvmem_background_registration",
        "kvmem_background_registration_create(live_kvmem_region, live_kvmem_registrars, NULL, \
         &MADE)",
        "kvmem_background_registration_destroy",
    ),
    (
        "kvmem_offset_allocator",
        "kvmem_offset_allocator_create(1 << 20, NULL, &MADE)",
        "kvmem_offset_allocator_destroy",
    ),
    (
        "kvmem_slab_allocator",
        "kvmem_slab_allocator_create(NULL, &MADE)",
        "kvmem_slab_allocator_destroy",
    ),
    ("kvmem_pool", "kvmem_pool_create(65536, &shared, &MADE)", "kvmem_pool_destroy"),
    (
        "kvmem_attached_pool",
        "kvmem_attached_pool_attach(fd, 0, &MADE)",
        "kvmem_attached_pool_destroy",
    ),
    (
        "kvmem_kv_cache",
        "kvmem_kv_cache_create(live_kvmem_pool, NULL, &MADE)",
        "kvmem_kv_cache_destroy",
    ),
    ("kvmem_disk_tier", "make_tier(NULL, &MADE)", "kvmem_disk_tier_destroy"),
    (
        "kvmem_lower_tier",
        "kvmem_disk_tier_as_lower_tier(live_kvmem_disk_tier, &MADE)",
        "kvmem_lower_tier_destroy",
    ),
    ("kvmem_kv_cache_pin", "make_pin(&MADE)", "kvmem_kv_cache_pin_release"),
    ("kvmem_kv_cache_reservation", "make_reservation(&MADE)", "kvmem_kv_cache_reservation_release"),
    ("kvmem_kv_cache_fetching", "make_fetching(&MADE)", "kvmem_kv_cache_fetching_cancel"),
    (
        "kvmem_node_client",
        "kvmem_node_client_connect(node, NULL, &MADE)",
        "kvmem_node_client_destroy",
    ),
    ("kvmem_node_pins", "make_node_pins(&MADE)", "kvmem_node_pins_release"),
    ("kvmem_node_reservation", "make_node_reservation(&MADE)", "kvmem_node_reservation_release"),
    ("kvmem_cancel", "kvmem_cancel_create(&MADE)", "kvmem_cancel_destroy"),
];

/// Returns the argument for a parameter that is not under test.
pub(crate) fn usual(parameter: &Parameter, objects: &[String]) -> String {
    if let Some(object) = parameter.object(objects) {
        return format!("live_{object}");
    }
    let (of, name) = (parameter.of.as_str(), parameter.name.as_str());
    match name {
        // No live block may be freed, and no callback called.
        "block" | "first" if of == "void *" => "NULL".into(),
        "blocks" if of.contains("void") => "(void *const *) no_blocks".into(),
        "progress" | "release" | "user" | "options" => "NULL".into(),
        "device" => "\"simulated:0\"".into(),
        "devices" => "\"mlock\"".into(),
        "text" => "\"1MiB\"".into(),
        "why" => "\"it is bad\"".into(),
        // For a node its socket, for a tier a file that is none.
        "path" => "node".into(),
        "fd" => "fd".into(),
        "key" | "data" => "place.bytes".into(),
        _ if of.ends_with('*') => "(void *) &place".into(),
        // Passed by value.
        _ if of.starts_with("struct ") => format!("({of}){{0}}"),
        "format" | "read_only" | "writable" | "deregister" | "index" | "nth" | "how" | "offset"
        | "next_offset" | "from" => "0".into(),
        _ => "1".into(),
    }
}

/// Returns a call with one argument replaced.
pub(crate) fn call(function: &Function, objects: &[String], at: usize, with: &str) -> String {
    let arguments: Vec<String> = function
        .parameters
        .iter()
        .enumerate()
        .map(
            |(index, parameter)| {
                if index == at { with.to_owned() } else { usual(parameter, objects) }
            },
        )
        .collect();
    format!("{}({})", function.name, arguments.join(", "))
}

/// Returns the start of such a program: its variables, and `make()`, which makes a live and a
/// destroyed object of each type.
pub(crate) fn beginning() -> String {
    let mut program = String::from(
        "#include \"check.h\"\n#include <unistd.h>\n\n\
         static union { char bytes[65536]; uint64_t words[8192]; } place;\n\
         static void *no_blocks[1];\n\
         static int fd;\n\
         static const char *node;\n\
         static kvmem_pool_options shared;\n\n",
    );
    for (object, ..) in MAKING {
        writeln!(program, "static {object} *live_{object}, *dead_{object};").unwrap();
    }
    program.push_str(
        "
static kvmem_status make_pin(kvmem_kv_cache_pin **out) {
    kvmem_kv_cache_value value;
    OK(kvmem_kv_cache_insert(live_kvmem_kv_cache, \"pin\", 3, \"value\", 5, NULL));
    kvmem_status status = kvmem_kv_cache_get(live_kvmem_kv_cache, \"pin\", 3, &value);
    *out = value.pin;
    return status;
}

static kvmem_status make_reservation(kvmem_kv_cache_reservation **out) {
    kvmem_kv_cache_reserved reserved;
    kvmem_status status =
        kvmem_kv_cache_reserve(live_kvmem_kv_cache, \"reserved\", 8, 100, &reserved);
    *out = reserved.reservation;
    return status;
}

static kvmem_status make_fetching(kvmem_kv_cache_fetching **out) {
    kvmem_kv_cache_key key = {\"fetched\", 7};
    return kvmem_kv_cache_start_fetch(live_kvmem_kv_cache, &key, 1, out);
}

/* Makes a tier in a file that has no name any more. */
static kvmem_status make_tier(const kvmem_disk_tier_options *given, kvmem_disk_tier **out) {
    char path[] = \"/tmp/kvmem-tier-XXXXXX\";
    int file = mkstemp(path);
    CHECK(file >= 0 && close(file) == 0);
    kvmem_disk_tier_options options;
    OK(kvmem_disk_tier_options_init(&options, sizeof options));
    if (given != NULL && given->struct_size == sizeof options) {
        options = *given;
        given = NULL;
    }
    if (options.bytes == UINT64_MAX)
        options.bytes = 1 << 20;
    kvmem_status status =
        kvmem_disk_tier_open(path, given != NULL ? given : &options, out, NULL);
    CHECK(unlink(path) == 0);
    return status;
}

static kvmem_status make_node_pins(kvmem_node_pins **out) {
    kvmem_kv_cache_key key = {\"pinned\", 6};
    kvmem_node_value value;
    OK(kvmem_node_client_insert(live_kvmem_node_client, key.key, key.key_bytes, \"value\", 5,
                                NULL));
    return kvmem_node_client_acquire(live_kvmem_node_client, &key, 1, &value, out);
}

static kvmem_status make_node_reservation(kvmem_node_reservation **out) {
    uint64_t size = 100;
    kvmem_node_reserved reserved;
    kvmem_status status = kvmem_node_client_reserve(live_kvmem_node_client, &size, 1, &reserved);
    *out = reserved.reservation;
    return status;
}

static void make(void) {
    node = getenv(\"KVMEM_TEST_NODE\");
    CHECK(node != NULL);
    OK(kvmem_pool_options_init(&shared, sizeof shared));
    shared.backing = KVMEM_BACKING_SHARED;
    shared.pages = \"4k\";
",
    );
    for (object, make, destroy) in MAKING {
        for state in ["dead", "live"] {
            writeln!(program, "    OK({});", make.replace("MADE", &format!("{state}_{object}")))
                .unwrap();
            if state == "dead" {
                writeln!(program, "    OK({destroy}(dead_{object}));").unwrap();
            }
        }
        if *object == "kvmem_pool" {
            program.push_str("    OK(kvmem_pool_share(live_kvmem_pool, 0, &fd));\n");
        }
    }
    program.push_str("}\n\n");
    program
}
