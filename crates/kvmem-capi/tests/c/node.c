/*
 * A node: clients of one server share values. The server is in another process; the environment
 * variable KVMEM_TEST_NODE has the path of its socket, and KVMEM_TEST_NODE_IMPATIENT that of one
 * with a short lease.
 */
#include <pthread.h>
#include <stdint.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "check.h"

enum { THREADS = 4, BLOCK = 100000 };

static const char *node;

static kvmem_node_client *connect_with(const kvmem_node_client_options *options) {
    kvmem_node_client *client;
    OK(kvmem_node_client_connect(node, options, &client));
    return client;
}

static kvmem_node_client_options defaults(void) {
    kvmem_node_client_options options;
    OK(kvmem_node_client_options_init(&options, sizeof options));
    CHECK(options.retry_ms == 10000 && options.answer_within_ms == 30000);
    CHECK(options.namespace_name == NULL && options.rings == 0);
    return options;
}

static kvmem_node_stats stats(kvmem_node_client *client) {
    kvmem_node_stats stats;
    OK(kvmem_node_client_get_stats(client, &stats));
    return stats;
}

static kvmem_kv_cache_key text(const char *key) {
    return (kvmem_kv_cache_key){key, strlen(key)};
}

static uint64_t found(kvmem_node_client *client, const char *key) {
    kvmem_kv_cache_key keys = text(key);
    uint64_t count;
    OK(kvmem_node_client_lookup(client, &keys, 1, &count));
    return count;
}

static void nap(long milliseconds) {
    struct timespec time = {milliseconds / 1000, milliseconds % 1000 * 1000000};
    CHECK(nanosleep(&time, NULL) == 0);
}

/* A client does not wait until the server has its release. Only its own later calls see it. */
#define SOON(condition)                                                                         \
    do {                                                                                        \
        for (int tries = 0; !(condition); tries++) {                                            \
            CHECK(tries < 6000);                                                                \
            nap(10);                                                                            \
        }                                                                                       \
    } while (0)

/* What a client has reserved is written in place, and another client reads it in place. */
static void shared(const kvmem_node_client_options *options) {
    kvmem_node_client *writer = connect_with(options), *reader = connect_with(options);
    uint32_t has_rings;
    OK(kvmem_node_client_has_rings(writer, &has_rings));
    CHECK(has_rings == options->rings);
    void *base, *other_base;
    uint64_t bytes;
    OK(kvmem_node_client_memory(writer, &base, &bytes));
    CHECK(bytes >= 8 * MIB);
    OK(kvmem_node_client_memory(reader, &other_base, &bytes));
    CHECK(base != other_base && bytes == stats(reader).capacity);
    uint64_t boundary;
    OK(kvmem_node_client_boundary(reader, &boundary));
    CHECK(boundary == 4 * MIB);

    uint64_t sizes[3] = {BLOCK, BLOCK + 1, 7};
    kvmem_node_reserved reserved[3];
    OK(kvmem_node_client_reserve(writer, sizes, 3, reserved));
    for (int at = 0; at < 3; at++) {
        CHECK(reserved[at].bytes == sizes[at] && reserved[at].offset % 4096 == 0);
        CHECK(reserved[at].data == (char *) base + reserved[at].offset);
        uint32_t valid = 0;
        OK(kvmem_node_reservation_is_valid(reserved[at].reservation, &valid));
        CHECK(valid == 1);
        void *address;
        OK(kvmem_node_reservation_address(reserved[at].reservation, &address));
        CHECK(address == reserved[at].data);
        memset(address, 'a' + at, sizes[at]);
    }
    kvmem_kv_cache_key keys[4] = {text("a"), text("b"), text("none"), text("c")};
    uint64_t count;
    OK(kvmem_node_client_lookup(reader, keys, 4, &count));
    CHECK(count == 0 && stats(reader).reservations == 3);
    kvmem_node_commit commits[3] = {
        {reserved[0].reservation, "a", 1, {0}},
        {reserved[1].reservation, "b", 1, {.priority = 3, .parent = "a", .parent_bytes = 1}},
        {reserved[2].reservation, "c", 1, {.ttl_ms = 3600000, .priority = 1}},
    };
    OK(kvmem_node_client_commit(writer, commits, 3));
    IS(KVMEM_ERR_BAD_HANDLE, kvmem_node_reservation_release(reserved[0].reservation));
    IS(KVMEM_ERR_BAD_HANDLE, kvmem_node_client_commit(writer, commits, 3));

    OK(kvmem_node_client_lookup(reader, keys, 4, &count));
    CHECK(count == 2);
    kvmem_node_value values[4];
    kvmem_node_pins *pins, *prefix;
    OK(kvmem_node_client_acquire(reader, keys, 4, values, &pins));
    for (int at = 0; at < 4; at++) {
        if (at == 2) {
            CHECK(values[at].is_present == 0 && values[at].data == NULL && values[at].bytes == 0);
            continue;
        }
        const char *data = values[at].data;
        char filler = (char) ('a' + (at == 3 ? 2 : at));
        CHECK(values[at].is_present == 1 && values[at].is_pending == 0);
        CHECK(values[at].bytes == sizes[at == 3 ? 2 : at] && data[0] == filler);
        CHECK(data[values[at].bytes - 1] == filler);
        CHECK(data == (char *) other_base + values[at].offset);
    }
    const void *address;
    OK(kvmem_node_pins_address(pins, 1, &address));
    CHECK(address == values[1].data);
    IS(KVMEM_ERR_NOT_FOUND, kvmem_node_pins_address(pins, 2, &address));
    IS(KVMEM_ERR_NOT_FOUND, kvmem_node_pins_address(pins, 4, &address));
    OK(kvmem_node_client_acquire_prefix(reader, keys, 4, values, &prefix));
    CHECK(values[0].is_present && values[1].is_present);
    CHECK(!values[2].is_present && !values[3].is_present);
    CHECK(stats(writer).pinned == 3);

    /* Without a tier, calls that do not wait find the same, and nothing is pending. */
    kvmem_node_pins *tried;
    OK(kvmem_node_client_try_acquire_prefix(reader, keys, 4, values, &tried));
    CHECK(values[1].is_present && !values[2].is_present && !values[2].is_pending);
    CHECK(!values[3].is_present);
    OK(kvmem_node_pins_release(tried));
    OK(kvmem_node_client_try_acquire(reader, keys, 4, values, &tried));
    CHECK(values[3].is_present && !values[2].is_present && !values[2].is_pending);
    OK(kvmem_node_pins_release(tried));
    uint64_t two_sizes[] = {64, 64};
    kvmem_node_reserved tried_blocks[2];
    OK(kvmem_node_client_try_reserve(writer, two_sizes, 2, tried_blocks));
    OK(kvmem_node_reservation_release(tried_blocks[0].reservation));
    OK(kvmem_node_reservation_release(tried_blocks[1].reservation));

    /* One message releases the first ones and pins another. */
    OK(kvmem_node_client_exchange(reader, pins, &keys[3], 1, values, &pins));
    CHECK(values[0].is_present == 1 && values[0].bytes == 7);
    OK(kvmem_node_pins_release(prefix));
    IS(KVMEM_ERR_BAD_HANDLE, kvmem_node_pins_release(prefix));
    SOON(stats(writer).pinned == 1);
    uint32_t valid;
    OK(kvmem_node_pins_is_valid(pins, &valid));
    CHECK(valid == 1);
    IS(KVMEM_ERR_UNSUPPORTED, kvmem_node_pins_verify(pins, 0));
    SAYS("no checksum");
    IS(KVMEM_ERR_NOT_FOUND, kvmem_node_pins_verify(pins, 1));
    uint64_t unverified = 7;
    OK(kvmem_node_client_unverified(reader, &unverified));
    CHECK(unverified == 0);

    /* Removed, and pinned: the bytes stay. */
    uint64_t removed, touched;
    OK(kvmem_node_client_touch(writer, keys, 4, &touched));
    OK(kvmem_node_client_remove(writer, keys, 4, &removed));
    CHECK(touched == 3 && removed == 3 && found(writer, "c") == 0);
    CHECK(memcmp(values[0].data, "ccccccc", 7) == 0);
    OK(kvmem_node_client_touch(writer, keys, 4, NULL));
    OK(kvmem_node_client_remove(writer, keys, 4, NULL));

    /* Pins keep the memory when their client is destroyed. */
    OK(kvmem_node_client_destroy(reader));
    IS(KVMEM_ERR_BAD_HANDLE, kvmem_node_client_keep_alive(reader));
    CHECK(memcmp(values[0].data, "ccccccc", 7) == 0);
    OK(kvmem_node_pins_release(pins));
    OK(kvmem_node_client_keep_alive(writer));
    SOON(stats(writer).pinned == 0 && stats(writer).used == 0);

    /* Nothing at all. */
    OK(kvmem_node_client_acquire(writer, NULL, 0, NULL, &pins));
    OK(kvmem_node_pins_release(pins));
    OK(kvmem_node_client_reserve(writer, NULL, 0, NULL));
    OK(kvmem_node_client_commit(writer, NULL, 0));
    OK(kvmem_node_client_destroy(writer));
}

/* A commit that fails changes nothing, and can be repeated. */
static void all_or_none(void) {
    kvmem_node_client *client = connect_with(NULL), *other = connect_with(NULL);
    uint64_t sizes[2] = {1000, 1000};
    kvmem_node_reserved reserved[2], foreign;
    OK(kvmem_node_client_reserve(client, sizes, 2, reserved));
    OK(kvmem_node_client_reserve(other, sizes, 1, &foreign));
    memset(reserved[0].data, 1, 1000);
    memset(reserved[1].data, 2, 1000);
    kvmem_node_commit right = {reserved[1].reservation, "second", 6, {0}};
    char long_key[65] = {0};
    struct {
        kvmem_node_commit second;
        kvmem_status status;
        const char *words;
    } wrong[] = {
        {{reserved[1].reservation, "first", 5, {0}},
         KVMEM_ERR_INVALID_ARGUMENT, "element 1"},
        {{reserved[0].reservation, "second", 6, {0}},
         KVMEM_ERR_INVALID_ARGUMENT, "element 1"},
        {{reserved[1].reservation, "second", 6, {.priority = 4}},
         KVMEM_ERR_INVALID_ARGUMENT, "use 0 to 3"},
        {{reserved[1].reservation, "second", 6, {.data_type = 5}},
         KVMEM_ERR_INVALID_ARGUMENT, "use KVMEM_DATA_UNKNOWN"},
        {{reserved[1].reservation, "", 0, {0}}, KVMEM_ERR_INVALID_ARGUMENT, "1 to 64"},
        {{reserved[1].reservation, long_key, 65, {0}},
         KVMEM_ERR_INVALID_ARGUMENT, "1 to 64"},
        {{reserved[1].reservation, "second", 6, {.parent = ""}},
         KVMEM_ERR_INVALID_ARGUMENT, "1 to 64"},
        {{reserved[1].reservation, "second", 6, {.parent = long_key, .parent_bytes = 65}},
         KVMEM_ERR_INVALID_ARGUMENT, "1 to 64"},
        {{reserved[1].reservation, "second", 6, {.parent_bytes = 1}},
         KVMEM_ERR_NULL_ARGUMENT, "key"},
        {{reserved[1].reservation, NULL, 5, {0}}, KVMEM_ERR_NULL_ARGUMENT, "key"},
        {{NULL, "second", 6, {0}}, KVMEM_ERR_NULL_ARGUMENT, "kvmem_node_reservation"},
        {{(void *) client, "second", 6, {0}},
         KVMEM_ERR_BAD_HANDLE, "is a kvmem_node_client"},
        {{foreign.reservation, "second", 6, {0}},
         KVMEM_ERR_FOREIGN_ALLOCATION, "element 1"},
    };
    for (size_t at = 0; at < sizeof wrong / sizeof *wrong; at++) {
        kvmem_node_commit both[2] = {
            {reserved[0].reservation, "first", 5, {0}},
            wrong[at].second,
        };
        IS(wrong[at].status, kvmem_node_client_commit(client, both, 2));
        SAYS(wrong[at].words);
        CHECK(found(client, "first") == 0 && stats(client).reservations == 3);
    }
    kvmem_node_commit both[2] = {{reserved[0].reservation, "first", 5, {0}}, right};
    OK(kvmem_node_client_commit(client, both, 2));
    CHECK(found(other, "first") == 1 && found(other, "second") == 1);
    OK(kvmem_node_reservation_release(foreign.reservation));
    SOON(stats(client).reservations == 0);

    /* A reservation keeps its client's connection. */
    OK(kvmem_node_client_reserve(other, sizes, 1, &foreign));
    OK(kvmem_node_client_destroy(other));
    CHECK(stats(client).reservations == 1);
    memset(foreign.data, 3, 1000);
    OK(kvmem_node_reservation_release(foreign.reservation));
    OK(kvmem_node_client_destroy(client));
}

static void read_only_and_namespaces(void) {
    kvmem_node_client_options options = defaults();
    options.namespace_name = "model";
    options.populate = 1;
    kvmem_node_client *writer = connect_with(&options), *nameless = connect_with(NULL);
    OK(kvmem_node_client_insert(writer, "of a model", 10, "value", 5, NULL));
    CHECK(found(writer, "of a model") == 1 && found(nameless, "of a model") == 0);
    const kvmem_node_hints hints = {
        .ttl_ms = 3600000, .priority = 3, .parent = "1", .parent_bytes = 1};
    kvmem_node_new_value values[] = {{"1", 1, "one", 3, {0}}, {"2", 1, "two", 3, hints}};
    values[1].hints.priority = 4;
    IS(KVMEM_ERR_INVALID_ARGUMENT, kvmem_node_client_insert_batch(writer, values, 2));
    SAYS("priority is 4: use 0 to 3");
    CHECK(found(writer, "1") == 0);
    values[1].hints.priority = 3;
    values[1].hints.data_type = 5;
    IS(KVMEM_ERR_INVALID_ARGUMENT, kvmem_node_client_insert_batch(writer, values, 2));
    SAYS("data_type is 5");
    values[1].hints.data_type = KVMEM_DATA_FLOAT16;
    OK(kvmem_node_client_insert_batch(writer, values, 2));
    OK(kvmem_node_client_insert_batch(writer, NULL, 0));
    CHECK(found(writer, "1") == 1 && found(writer, "2") == 1);
    options.read_only = 1;
    kvmem_node_client *reader = connect_with(&options);
    kvmem_kv_cache_key key = text("of a model");
    kvmem_node_value value;
    kvmem_node_pins *pins;
    OK(kvmem_node_client_acquire(reader, &key, 1, &value, &pins));
    CHECK(value.bytes == 5 && memcmp(value.data, "value", 5) == 0);
    OK(kvmem_node_pins_release(pins));
    uint64_t size = 5, removed;
    kvmem_node_reserved reserved;
    IS(KVMEM_ERR_READ_ONLY, kvmem_node_client_reserve(reader, &size, 1, &reserved));
    SAYS("read-only");
    IS(KVMEM_ERR_READ_ONLY, kvmem_node_client_insert(reader, "key", 3, "value", 5, NULL));
    IS(KVMEM_ERR_READ_ONLY, kvmem_node_client_remove(reader, &key, 1, &removed));
    OK(kvmem_node_client_remove(writer, &key, 1, NULL));
    OK(kvmem_node_client_destroy(reader));
    OK(kvmem_node_client_destroy(nameless));
    OK(kvmem_node_client_destroy(writer));
}

static void wrong_connections(void) {
    kvmem_node_client *client;
    kvmem_node_client_options options = defaults();
    options.retry_ms = 0;
    IS(KVMEM_ERR_DISCONNECTED, kvmem_node_client_connect("/tmp/no such socket", &options, &client));
    SAYS("start `kvmem serve`");
    options = defaults();
    uint32_t *flags[] = {&options.read_only, &options.populate, &options.checksums,
                         &options.verify, &options.rings, &options.reserved};
    for (size_t at = 0; at < sizeof flags / sizeof *flags; at++) {
        *flags[at] = 2;
        IS(KVMEM_ERR_INVALID_ARGUMENT, kvmem_node_client_connect(node, &options, &client));
        *flags[at] = 0;
    }
    static char name[1000];
    memset(name, 'n', sizeof name - 1);
    options.namespace_name = name;
    IS(KVMEM_ERR_INVALID_ARGUMENT, kvmem_node_client_connect(node, &options, &client));
    SAYS("namespace");
    /* The server is this user's, and the client is told to trust others alone. */
    options = defaults();
    CHECK(options.server_users == NULL && options.server_user_count == 0);
    const uint32_t users[] = {geteuid() + 1, geteuid()};
    options.server_users = users;
    options.server_user_count = 1;
    IS(KVMEM_ERR_PERMISSION, kvmem_node_client_connect(node, &options, &client));
    SAYS("server_users");
    options.server_user_count = 65;
    IS(KVMEM_ERR_INVALID_ARGUMENT, kvmem_node_client_connect(node, &options, &client));
    SAYS("the limit is 64");
    options.server_user_count = 2;
    OK(kvmem_node_client_destroy(connect_with(&options)));
    options.server_users = NULL;
    IS(KVMEM_ERR_NULL_ARGUMENT, kvmem_node_client_connect(node, &options, &client));
}

/* A client's devices have keys to the whole memory while it, its pins or its reservations live. */
static void registrars(void) {
    kvmem_node_client_options options = defaults();
    CHECK(options.registrars == NULL);
    kvmem_registrars *nics;
    OK(kvmem_registrars_simulated(2, UINT64_MAX, UINT64_MAX, &nics));
    options.registrars = nics;
    kvmem_node_client *client = connect_with(&options), *without = connect_with(NULL);
    void *base;
    uint64_t bytes, live, size = 100, other;
    OK(kvmem_node_client_memory(client, &base, &bytes));
    kvmem_node_reserved reserved;
    OK(kvmem_node_client_reserve(client, &size, 1, &reserved));
    kvmem_key keys[2];
    OK(kvmem_node_client_key(client, "simulated:0", reserved.offset, size, &keys[0]));
    OK(kvmem_node_client_key(client, "simulated:1", 0, bytes, &keys[1]));
    IS(KVMEM_ERR_OUT_OF_BOUNDS, kvmem_node_client_key(client, "simulated:1", 1, bytes, &keys[1]));
    IS(KVMEM_ERR_NO_SUCH_DEVICE, kvmem_node_client_key(client, "mlx5_0", 0, 1, &keys[1]));
    IS(KVMEM_ERR_NO_SUCH_DEVICE, kvmem_node_client_key(without, "simulated:0", 0, 1, &keys[1]));
    IS(KVMEM_ERR_NULL_ARGUMENT, kvmem_node_client_key(client, NULL, 0, 1, &keys[1]));
    IS(KVMEM_ERR_NULL_ARGUMENT, kvmem_node_client_key(client, "simulated:0", 0, 1, NULL));
    OK(kvmem_node_client_destroy(client));
    OK(kvmem_registrars_live_keys(nics, 1, &live));
    CHECK(live == 1);
    OK(kvmem_node_reservation_release(reserved.reservation));
    OK(kvmem_registrars_live_keys(nics, 1, &live));
    OK(kvmem_registrars_live_keys(nics, 0, &other));
    CHECK(live == 0 && other == 0);

    options.read_only = 1;
    IS(KVMEM_ERR_READ_ONLY, kvmem_node_client_connect(node, &options, &client));
    options.read_only = 0;
    OK(kvmem_registrars_inject(nics, 1, 0, 0, 1));
    IS(KVMEM_ERR_REGISTER_FAILED, kvmem_node_client_connect(node, &options, &client));
    OK(kvmem_registrars_live_keys(nics, 0, &live));
    CHECK(live == 0);
    SOON(stats(without).sessions == 1);
    OK(kvmem_registrars_destroy(nics));
    IS(KVMEM_ERR_BAD_HANDLE, kvmem_node_client_connect(node, &options, &client));
    OK(kvmem_node_client_destroy(without));
}

static void operators(void) {
    kvmem_node_client_options options = defaults();
    options.namespace_name = "of operators";
    kvmem_node_client *client = connect_with(NULL), *other = connect_with(&options);
    OK(kvmem_node_client_insert(other, "key", 3, "value", 5, NULL));
    kvmem_kv_cache_key key = text("key");
    kvmem_node_value value;
    kvmem_node_pins *pins;
    OK(kvmem_node_client_acquire(other, &key, 1, &value, &pins));
    static kvmem_node_listed values[512];
    uint64_t from = 0, count, seen = 0;
    do {
        OK(kvmem_node_operator_list(client, from, values, 512, &count, &from));
        for (uint64_t at = 0; at < count; at++) {
            if (strcmp(values[at].namespace_name, "of operators") == 0) {
                CHECK(values[at].key_bytes == 3 && memcmp(values[at].key, "key\0", 4) == 0);
                CHECK(values[at].bytes == 5 && values[at].pins == 1 && values[at].priority == 0);
                seen++;
            }
        }
    } while (from != UINT64_MAX);
    CHECK(seen == 1);
    OK(kvmem_node_operator_list(client, UINT64_MAX, NULL, 0, &count, &from));
    CHECK(count == 0 && from == UINT64_MAX);
    from = 0;
    OK(kvmem_node_client_list_namespace(other, from, values, 512, &count, &from));
    CHECK(count == 1 && from == UINT64_MAX && memcmp(values[0].key, "key\0", 4) == 0);
    OK(kvmem_node_client_list_namespace(other, UINT64_MAX, NULL, 0, &count, &from));
    CHECK(count == 0 && from == UINT64_MAX);
    kvmem_kv_cache_key sought[2] = {key, text("missing")};
    uint32_t places[2] = {9, 9};
    OK(kvmem_node_client_locate(other, sought, 2, places));
    CHECK(places[0] == KVMEM_NODE_IN_MEMORY && places[1] == 0);
    OK(kvmem_node_client_locate(client, sought, 1, places));
    CHECK(places[0] == 0);
    CHECK(kvmem_node_client_locate(other, sought, 1, NULL) == KVMEM_ERR_NULL_ARGUMENT);
    kvmem_node_pins *none = NULL;
    kvmem_node_miss misses[2];
    kvmem_node_value nothing;
    OK(kvmem_node_client_acquire(other, sought + 1, 1, &nothing, &none));
    OK(kvmem_node_pins_release(none));
    OK(kvmem_node_client_misses(other, misses, 2, &count));
    CHECK(count == 1 && misses[0].reason == KVMEM_NODE_MISS_NEVER_STORED);
    CHECK(misses[0].key_bytes == 7 && memcmp(misses[0].key, "missing", 8) == 0);
    CHECK(strcmp(misses[0].namespace_name, "of operators") == 0 && misses[0].evicted_for[0] == 0);
    CHECK(misses[0].gone_s == UINT64_MAX && misses[0].priority == UINT32_MAX);
    OK(kvmem_node_client_misses(client, misses, 2, &count));
    CHECK(count <= 2 && (count == 0 || strcmp(misses[0].namespace_name, "of operators") != 0));
    OK(kvmem_node_operator_misses(client, misses, 1, &count));
    CHECK(count == 1 && strcmp(misses[0].namespace_name, "of operators") == 0);
    CHECK(kvmem_node_client_misses(other, NULL, 1, &count) == KVMEM_ERR_NULL_ARGUMENT);
    static kvmem_node_namespace_stats namespaces[256];
    OK(kvmem_node_client_namespaces(client, namespaces, 1, &count));
    CHECK(count == 1);
    OK(kvmem_node_client_namespaces(client, namespaces, 256, &count));
    seen = 0;
    for (uint64_t at = 0; at < count; at++) {
        const kvmem_node_namespace_stats *of = &namespaces[at];
        if (strcmp(of->namespace_name, "of operators") == 0) {
            CHECK(of->keys == 2 && of->hits == 1 && of->never_stored_misses == 1);
            CHECK(of->hits_at_half == 1 && of->hits == 1 && of->hits_at_8 == 1);
            CHECK(of->memory > of->bytes && of->max_bytes == UINT64_MAX);
            seen++;
        }
    }
    CHECK(seen == 1);
    CHECK(kvmem_node_client_namespaces(client, NULL, 1, &count) == KVMEM_ERR_NULL_ARGUMENT);
    static kvmem_node_session sessions[256];
    OK(kvmem_node_operator_sessions(client, sessions, 1, &count));
    CHECK(count == 1);
    OK(kvmem_node_operator_sessions(client, sessions, 256, &count));
    seen = 0;
    for (uint64_t at = 0; at < count; at++) {
        CHECK(sessions[at].pid == (uint32_t)getpid());
        if (strcmp(sessions[at].namespace_name, "of operators") == 0) {
            CHECK(sessions[at].pins == 1 && sessions[at].is_connected == 1);
            seen++;
        }
    }
    CHECK(seen == 1);
    uint64_t evicted, reclaimed, removed;
    OK(kvmem_node_operator_evict(client, "of operators", 1, &evicted));
    CHECK(evicted == 0);
    kvmem_node_resized resized;
    CHECK(kvmem_node_operator_resize(client, UINT64_MAX, &resized) == KVMEM_ERR_INVALID_ARGUMENT);
    CHECK(kvmem_node_operator_resize(client, 4096, NULL) == KVMEM_ERR_NULL_ARGUMENT);
    uint32_t valid;
    OK(kvmem_node_pins_is_valid(pins, &valid));
    CHECK(valid == 1);
    OK(kvmem_node_operator_reclaim_pins(client, (uint32_t)getpid(), &reclaimed));
    CHECK(reclaimed >= 1);
    /* The client has made no call since. */
    OK(kvmem_node_pins_is_valid(pins, &valid));
    CHECK(valid == 0);
    OK(kvmem_node_operator_evict(client, "of operators", 1, &evicted));
    CHECK(evicted == 4096);
    OK(kvmem_node_client_insert(other, "key", 3, "value", 5, NULL));
    OK(kvmem_node_operator_clear(client, "of operators", &removed));
    CHECK(removed == 1);
    /* Its own namespace, and no other one. */
    OK(kvmem_node_client_insert(other, "key", 3, "value", 5, NULL));
    OK(kvmem_node_client_insert(client, "key", 3, "value", 5, NULL));
    OK(kvmem_node_client_evict(other, 1, &evicted));
    CHECK(evicted == 4096);
    OK(kvmem_node_client_clear(other, &removed));
    CHECK(removed == 0);
    OK(kvmem_node_client_clear(client, &removed));
    CHECK(removed >= 1);
    kvmem_node_stats stats;
    OK(kvmem_node_client_get_stats(client, &stats));
    CHECK(stats.pinned_bytes == 0 && stats.tier_state == KVMEM_NODE_TIER_NONE);
    OK(kvmem_node_pins_release(pins));
    OK(kvmem_node_client_destroy(other));
    OK(kvmem_node_client_destroy(client));
}

static void events(void) {
    kvmem_node_client *client = connect_with(NULL);
    uint64_t from, count;
    kvmem_node_event list[8];
    /* A number that no event has yet goes on with the next one. */
    OK(kvmem_node_client_events(client, UINT64_MAX, 0, NULL, 0, &count, &from));
    CHECK(count == 0);
    const kvmem_node_hints hints = {.ttl_ms = 3600000, .priority = 1};
    OK(kvmem_node_client_insert(client, "event", 5, "1", 1, &hints));
    OK(kvmem_node_client_insert(client, "event", 5, "2", 1, NULL));
    kvmem_kv_cache_key key = text("event");
    OK(kvmem_node_client_remove(client, &key, 1, NULL));
    uint32_t kinds[8], kind_count = 0;
    for (uint64_t next = from;; from = next) {
        OK(kvmem_node_client_events(client, from, 0, list, 2, &count, &next));
        CHECK(count <= 2 && next == from + count);
        for (uint64_t at = 0; at < count; at++) {
            CHECK(list[at].number == from + at && list[at].key_bytes == 5);
            CHECK(memcmp(list[at].key, "event\0", 6) == 0 && kind_count < 8);
            kinds[kind_count++] = list[at].kind;
        }
        if (count == 0)
            break;
    }
    CHECK(kind_count == 4 && kinds[3] == KVMEM_NODE_EVENT_REMOVED);
    CHECK(kinds[0] == KVMEM_NODE_EVENT_STORED);
    CHECK((kinds[1] == KVMEM_NODE_EVENT_REPLACED && kinds[2] == KVMEM_NODE_EVENT_STORED) ||
          (kinds[2] == KVMEM_NODE_EVENT_REPLACED && kinds[1] == KVMEM_NODE_EVENT_STORED));
    OK(kvmem_node_client_events(client, from, 20, list, 8, &count, &from));
    CHECK(count == 0);
    IS(KVMEM_ERR_NULL_ARGUMENT, kvmem_node_client_events(client, 0, 0, NULL, 1, &count, &from));
    OK(kvmem_node_client_destroy(client));
}

/* The child cannot use what it inherits, connects anew, and leaves the parent's as it was. */
static void forked(void) {
    kvmem_node_client *client = connect_with(NULL);
    OK(kvmem_node_client_insert(client, "forked", 6, "value", 5, NULL));
    kvmem_kv_cache_key key = text("forked");
    kvmem_node_value value;
    kvmem_node_pins *pins;
    OK(kvmem_node_client_acquire(client, &key, 1, &value, &pins));
    uint64_t size = 1000;
    kvmem_node_reserved reserved;
    OK(kvmem_node_client_reserve(client, &size, 1, &reserved));
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        alarm(300);
        kvmem_node_commit commit = {reserved.reservation, "child", 5, {0}};
        IS(KVMEM_ERR_FORKED, kvmem_node_client_keep_alive(client));
        IS(KVMEM_ERR_FORKED, kvmem_node_client_commit(client, &commit, 1));
        IS(KVMEM_ERR_FORKED, kvmem_node_pins_verify(pins, 0));
        kvmem_node_client *own = connect_with(NULL);
        IS(KVMEM_ERR_FORKED, kvmem_node_client_commit(own, &commit, 1));
        IS(KVMEM_ERR_FORKED, kvmem_node_client_exchange(own, pins, &key, 1, &value, &pins));
        OK(kvmem_node_pins_release(pins));
        OK(kvmem_node_reservation_release(reserved.reservation));
        OK(kvmem_node_client_destroy(client));
        OK(kvmem_node_client_acquire(own, &key, 1, &value, &pins));
        CHECK(value.is_present == 1 && memcmp(value.data, "value", 5) == 0);
        OK(kvmem_node_client_insert(own, "child", 5, "here", 4, NULL));
        OK(kvmem_node_pins_release(pins));
        OK(kvmem_node_client_destroy(own));
        _exit(0);
    }
    int status;
    CHECK(waitpid(child, &status, 0) == child && status == 0);
    CHECK(memcmp(value.data, "value", 5) == 0 && found(client, "child") == 1);
    SOON(stats(client).pinned == 1 && stats(client).reservations == 1);
    kvmem_node_commit commit = {reserved.reservation, "parent", 6, {0}};
    OK(kvmem_node_client_commit(client, &commit, 1));
    OK(kvmem_node_pins_release(pins));
    OK(kvmem_node_client_destroy(client));
}

/* Threads share a client. A value says its key, and a batch of two is there as a whole. */
static void *work(void *argument) {
    kvmem_node_client *client = argument;
    uint64_t random = (uint64_t) (uintptr_t) &random;
    for (uint64_t step = 0, steps = rounds(500); step < steps; step++) {
        random = random * UINT64_C(6364136223846793005) + 1442695040888963407;
        uint64_t numbers[2] = {(random >> 40) % 50 * 2, 0};
        numbers[1] = numbers[0] + 1;
        kvmem_kv_cache_key keys[2] = {{&numbers[0], 8}, {&numbers[1], 8}};
        if (random >> 33 & 1) {
            uint64_t sizes[2] = {20000, 20000};
            kvmem_node_reserved reserved[2];
            OK(kvmem_node_client_reserve(client, sizes, 2, reserved));
            kvmem_node_commit commits[2];
            for (int at = 0; at < 2; at++) {
                memset(reserved[at].data, (int) (step & 0xff), 20000);
                memcpy(reserved[at].data, &numbers[at], 8);
                commits[at] = (kvmem_node_commit){
                    reserved[at].reservation, keys[at].key, 8,
                    {.priority = (uint32_t) (step & 3)}};
            }
            OK(kvmem_node_client_commit(client, commits, 2));
            continue;
        }
        kvmem_node_value values[2];
        kvmem_node_pins *pins;
        OK(kvmem_node_client_acquire(client, keys, 2, values, &pins));
        unsigned char last[2] = {0, 0};
        for (int at = 0; at < 2; at++) {
            if (!values[at].is_present)
                continue;
            CHECK(values[at].bytes == 20000 && memcmp(values[at].data, &numbers[at], 8) == 0);
            last[at] = ((const unsigned char *) values[at].data)[19999];
            CHECK(((const unsigned char *) values[at].data)[8] == last[at]);
        }
        if (values[0].is_present && values[1].is_present)
            CHECK(last[0] == last[1]);
        OK(kvmem_node_pins_release(pins));
    }
    return NULL;
}

static void threads(uint32_t rings) {
    kvmem_node_client_options options = defaults();
    options.rings = rings;
    options.namespace_name = "threads";
    kvmem_node_client *client = connect_with(&options);
    pthread_t running[THREADS];
    for (int at = 0; at < THREADS; at++)
        CHECK(pthread_create(&running[at], NULL, work, client) == 0);
    for (int at = 0; at < THREADS; at++)
        CHECK(pthread_join(running[at], NULL) == 0);
    CHECK(stats(client).pinned == 0 && stats(client).reservations == 0);
    OK(kvmem_node_client_destroy(client));
}

int main(void) {
    node = getenv("KVMEM_TEST_NODE");
    CHECK(node != NULL);
    kvmem_node_client_options options = defaults();
    shared(&options);
    options.rings = 1;
    shared(&options);
    all_or_none();
    read_only_and_namespaces();
    wrong_connections();
    registrars();
    operators();
    events();
    /* Not under Valgrind: the child drops the handles that it inherits, and the objects leak. */
    if (getenv("KVMEM_TEST_DIVISOR") == NULL)
        forked();
    threads(0);
    threads(1);
    return 0;
}
