/*
 * Clients of a node whose server ends and starts again. The program writes to its output what is to
 * happen to the server, and goes on when it reads a line.
 */
#include <stdint.h>

#include "check.h"

static const char *node;

static void server(const char *what) {
    char line[16];
    CHECK(puts(what) >= 0 && fflush(stdout) == 0);
    CHECK(fgets(line, sizeof line, stdin) != NULL);
}

static kvmem_node_client *connect_for(uint64_t retry_ms) {
    kvmem_node_client_options options;
    OK(kvmem_node_client_options_init(&options, sizeof options));
    options.retry_ms = retry_ms;
    kvmem_node_client *client;
    OK(kvmem_node_client_connect(node, &options, &client));
    return client;
}

static kvmem_node_commit reserve(kvmem_node_client *client, const char *key) {
    uint64_t size = 1000;
    kvmem_node_reserved reserved;
    OK(kvmem_node_client_reserve(client, &size, 1, &reserved));
    memset(reserved.data, *key, size);
    return (kvmem_node_commit){reserved.reservation, key, strlen(key), {0}};
}

static uint64_t found(kvmem_node_client *client, const char *key) {
    kvmem_kv_cache_key keys = {key, strlen(key)};
    uint64_t count;
    OK(kvmem_node_client_lookup(client, &keys, 1, &count));
    return count;
}

int main(void) {
    node = getenv("KVMEM_TEST_NODE");
    CHECK(node != NULL);
    kvmem_node_client *patient = connect_for(60000), *hasty = connect_for(0);
    OK(kvmem_node_client_insert(patient, "kept", 4, "value", 5, NULL));
    kvmem_kv_cache_key key = {"kept", 4};
    kvmem_node_value value;
    kvmem_node_pins *pins;
    OK(kvmem_node_client_acquire(patient, &key, 1, &value, &pins));
    kvmem_node_commit first = reserve(patient, "first"), second = reserve(hasty, "second");
    void *before, *after;
    uint64_t bytes;
    OK(kvmem_node_client_memory(patient, &before, &bytes));

    /* Everything is as it was. */
    server("stop");
    server("start");
    OK(kvmem_node_client_commit(patient, &first, 1));
    CHECK(found(patient, "kept") == 1 && found(patient, "first") == 1);
    OK(kvmem_node_client_memory(patient, &after, &bytes));
    uint32_t valid;
    OK(kvmem_node_pins_is_valid(pins, &valid));
    CHECK(before == after && valid == 1 && memcmp(value.data, "value", 5) == 0);

    /* A client that does not wait fails once, and connects again in the next call. */
    IS(KVMEM_ERR_DISCONNECTED, kvmem_node_client_keep_alive(hasty));
    CHECK(found(hasty, "kept") == 1);
    /* A commit that fails because no server answers is repeated later. */
    server("stop");
    IS(KVMEM_ERR_DISCONNECTED, kvmem_node_client_keep_alive(hasty));
    IS(KVMEM_ERR_DISCONNECTED, kvmem_node_client_commit(hasty, &second, 1));
    SAYS("no server answers");
    server("start");
    OK(kvmem_node_client_commit(hasty, &second, 1));
    CHECK(found(patient, "second") == 1);

    /* The values are gone, but for the bytes that are mapped. */
    kvmem_node_commit lost = reserve(patient, "lost");
    server("stop");
    server("replace");
    IS(KVMEM_ERR_MEMORY_REPLACED, kvmem_node_client_keep_alive(patient));
    SAYS("connect again");
    IS(KVMEM_ERR_MEMORY_REPLACED, kvmem_node_client_commit(patient, &lost, 1));
    CHECK(memcmp(value.data, "value", 5) == 0);
    OK(kvmem_node_reservation_release(lost.reservation));
    OK(kvmem_node_pins_release(pins));
    OK(kvmem_node_client_destroy(patient));
    OK(kvmem_node_client_destroy(hasty));
    patient = connect_for(60000);
    CHECK(found(patient, "kept") == 0);
    OK(kvmem_node_client_destroy(patient));
    return 0;
}
