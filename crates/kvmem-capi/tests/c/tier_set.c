/* Sets of disk tiers, chains of lower tiers, and fixed buffers. */
#include <stdint.h>
#include <unistd.h>

#include "check.h"

enum { FILES = 3, KEYS = 300, BYTES = 6000 };

static char paths[FILES][64];
static const char *list[FILES];
static kvmem_pool *pool;

/* A file that exists keeps its length. */
static void remove_files(void) {
    for (int at = 0; at < FILES; at++)
        CHECK(unlink(list[at]) == 0 || access(list[at], F_OK) != 0);
}

static kvmem_disk_tier_options options_of(uint64_t bytes) {
    kvmem_disk_tier_options options;
    OK(kvmem_disk_tier_options_init(&options, sizeof options));
    CHECK(options.eviction == KVMEM_TIER_EVICT_LRU && options.dsync == 0);
    options.bytes = bytes;
    options.max_entries = 4 * KEYS;
    return options;
}

static void fill(unsigned char *bytes, uint64_t key) {
    memset(bytes, (int) (key & 0xff), BYTES);
    memcpy(bytes, &key, sizeof key);
}

static void store(kvmem_disk_tier *set, uint64_t first, uint64_t count) {
    static unsigned char data[KEYS][BYTES];
    static uint64_t keys[KEYS];
    kvmem_disk_tier_value values[KEYS];
    CHECK(count <= KEYS);
    for (uint64_t at = 0; at < count; at++) {
        keys[at] = first + at;
        fill(data[at], keys[at]);
        values[at] = (kvmem_disk_tier_value){
            .key = &keys[at], .key_bytes = sizeof keys[at], .data = data[at], .bytes = BYTES};
    }
    OK(kvmem_disk_tier_store(set, values, count, NULL));
}

/* Returns how many of the keys have a value, all of which are right. */
static uint64_t fetch(kvmem_disk_tier *set, uint64_t first, uint64_t count) {
    static unsigned char data[KEYS][BYTES];
    static uint64_t keys[KEYS];
    kvmem_disk_tier_request requests[KEYS];
    for (uint64_t at = 0; at < count; at++) {
        keys[at] = first + at;
        requests[at] =
            (kvmem_disk_tier_request){&keys[at], sizeof keys[at], data[at], BYTES, 0, 0, 0};
    }
    OK(kvmem_disk_tier_fetch(set, requests, count));
    uint64_t hits = 0;
    for (uint64_t at = 0; at < count; at++) {
        if (requests[at].outcome != KVMEM_FETCHED_HIT)
            continue;
        unsigned char expected[BYTES];
        fill(expected, keys[at]);
        CHECK(requests[at].bytes == BYTES && memcmp(expected, data[at], BYTES) == 0);
        hits++;
    }
    return hits;
}

static kvmem_disk_tier_stats stats(kvmem_disk_tier *set) {
    kvmem_disk_tier_stats stats;
    OK(kvmem_disk_tier_get_stats(set, &stats));
    return stats;
}

static void set_alone(void) {
    kvmem_disk_tier_options options = options_of(8 * MIB);
    kvmem_disk_tier_report reports[FILES];
    kvmem_disk_tier *set;
    OK(kvmem_disk_tier_open_set(list, FILES, &options, &set, reports));
    for (int at = 0; at < FILES; at++)
        CHECK(reports[at].created == 1 && reports[at].entries == 0 && reports[at].direct <= 1);
    store(set, 0, KEYS);
    CHECK(fetch(set, 0, KEYS) == KEYS && fetch(set, KEYS, 10) == 0);
    CHECK(stats(set).entries == KEYS && stats(set).hits == KEYS);
    uint64_t key = 3, bytes, removed;
    OK(kvmem_disk_tier_len_of(set, &key, sizeof key, &bytes));
    CHECK(bytes == BYTES);
    kvmem_kv_cache_key gone = {&key, sizeof key};
    OK(kvmem_disk_tier_remove(set, &gone, 1, &removed));
    CHECK(removed == 1);
    IS(KVMEM_ERR_NOT_FOUND, kvmem_disk_tier_len_of(set, &key, sizeof key, &bytes));
    OK(kvmem_disk_tier_sync(set));
    OK(kvmem_disk_tier_checkpoint(set));
    OK(kvmem_disk_tier_destroy(set));

    /* In another order. */
    const char *turned[FILES] = {list[2], list[0], list[1]};
    OK(kvmem_disk_tier_open_set(turned, FILES, NULL, &set, reports));
    uint64_t entries = 0;
    for (int at = 0; at < FILES; at++) {
        CHECK(reports[at].created == 0 && reports[at].entries > KEYS / 10);
        entries += reports[at].entries;
    }
    CHECK(entries == KEYS - 1 && fetch(set, 0, KEYS) == KEYS - 1);
    /* A file that is open already. */
    kvmem_disk_tier *other;
    IS(KVMEM_ERR_IN_USE, kvmem_disk_tier_open_set(list, 1, NULL, &other, NULL));
    SAYS(list[0]);
    OK(kvmem_disk_tier_destroy(set));

    /* One of them is gone: the others have what they had. */
    char lost[80];
    snprintf(lost, sizeof lost, "%s.lost", list[1]);
    CHECK(rename(list[1], lost) == 0);
    IS(KVMEM_ERR_SYSTEM, kvmem_disk_tier_open_set(list, FILES, NULL, &set, NULL));
    SAYS(list[1]);
    kvmem_status results[FILES];
    memset(reports, 7, sizeof reports);
    OK(kvmem_disk_tier_open_available(list, FILES, NULL, &set, reports, results));
    CHECK(results[0] == KVMEM_OK && results[1] == KVMEM_ERR_SYSTEM && results[2] == KVMEM_OK);
    CHECK(fetch(set, 0, KEYS) == reports[0].entries + reports[2].entries);
    unsigned char untouched[sizeof *reports];
    memset(untouched, 7, sizeof untouched);
    CHECK(memcmp(&reports[1], untouched, sizeof untouched) == 0);
    OK(kvmem_disk_tier_clear(set));
    CHECK(stats(set).entries == 0);
    OK(kvmem_disk_tier_destroy(set));
    CHECK(rename(lost, list[1]) == 0);

    IS(KVMEM_ERR_INVALID_ARGUMENT, kvmem_disk_tier_open_set(NULL, 0, NULL, &set, NULL));
    SAYS("a set of tiers has at least one");
    const char *missing[] = {"/tmp/no such folder/tier", NULL};
    IS(KVMEM_ERR_INVALID_ARGUMENT,
       kvmem_disk_tier_open_available(missing, 1, NULL, &set, NULL, NULL));
    IS(KVMEM_ERR_NULL_ARGUMENT, kvmem_disk_tier_open_set(missing, 2, NULL, &set, NULL));
}

static kvmem_kv_cache *cache_over(kvmem_lower_tier *lower) {
    kvmem_kv_cache_options options;
    OK(kvmem_kv_cache_options_init(&options, sizeof options));
    options.max_bytes = MIB / 4;
    options.lower_tier = lower;
    kvmem_kv_cache *cache;
    OK(kvmem_kv_cache_create(pool, &options, &cache));
    return cache;
}

static void insert(kvmem_kv_cache *cache, uint64_t key) {
    unsigned char bytes[BYTES];
    fill(bytes, key);
    OK(kvmem_kv_cache_insert(cache, &key, sizeof key, bytes, BYTES, NULL));
}

static int has(kvmem_kv_cache *cache, uint64_t key) {
    kvmem_kv_cache_key keys = {&key, sizeof key};
    kvmem_kv_cache_value value;
    OK(kvmem_kv_cache_get_batch(cache, &keys, 1, &value));
    if (value.pin == NULL)
        return 0;
    unsigned char expected[BYTES];
    fill(expected, key);
    CHECK(value.bytes == BYTES && memcmp(expected, value.data, BYTES) == 0);
    OK(kvmem_kv_cache_pin_release(value.pin));
    return 1;
}

/* A small set above a large tier: the chain finds what the set has evicted. */
static void chain(void) {
    remove_files();
    kvmem_disk_tier_options options = options_of(MIB);
    kvmem_disk_tier *set;
    OK(kvmem_disk_tier_open_set(list, 2, &options, &set, NULL));
    options.bytes = 8 * MIB;
    kvmem_disk_tier *tier;
    OK(kvmem_disk_tier_open(list[2], &options, &tier, NULL));
    kvmem_lower_tier *upper, *lower, *both;
    OK(kvmem_disk_tier_as_lower_tier(set, &upper));
    OK(kvmem_disk_tier_as_lower_tier(tier, &lower));
    OK(kvmem_lower_tier_chain(upper, lower, &both));
    kvmem_kv_cache *cache = cache_over(both);
    /* Each keeps what it was made of. */
    OK(kvmem_lower_tier_destroy(upper));
    OK(kvmem_lower_tier_destroy(lower));
    OK(kvmem_lower_tier_destroy(both));
    for (uint64_t key = 0; key < 2 * KEYS; key++)
        insert(cache, key);
    uint64_t held;
    OK(kvmem_kv_cache_evict_to(cache, 0, &held));
    CHECK(stats(set).evictions > 0 && stats(set).entries < 2 * KEYS);
    /* The set still has those that came last. */
    for (uint64_t key = 2 * KEYS; key-- > 0;)
        CHECK(has(cache, key));
    kvmem_disk_tier_stats below;
    OK(kvmem_disk_tier_get_stats(tier, &below));
    CHECK(below.entries == 2 * KEYS && below.hits > 0 && stats(set).hits > 0);
    uint64_t key = 7, bytes;
    OK(kvmem_kv_cache_remove(cache, &key, sizeof key, NULL));
    CHECK(!has(cache, 7) && has(cache, 8));
    IS(KVMEM_ERR_NOT_FOUND, kvmem_disk_tier_len_of(tier, &key, sizeof key, &bytes));
    OK(kvmem_kv_cache_clear(cache));
    CHECK(stats(set).entries == 0 && !has(cache, 8));
    OK(kvmem_kv_cache_check(cache));
    OK(kvmem_kv_cache_destroy(cache));
    OK(kvmem_disk_tier_destroy(set));
    OK(kvmem_disk_tier_destroy(tier));
}

/* Where rings share buffers, the memory of a pool is registered; elsewhere nothing changes. */
static void fixed_buffers(void) {
    remove_files();
    kvmem_disk_tier_options options = options_of(MIB);
    kvmem_disk_tier *set;
    OK(kvmem_disk_tier_open_set(list, 2, &options, &set, NULL));
    kvmem_status status = kvmem_disk_tier_register_memory(set, pool);
    CHECK(status == KVMEM_OK || status == KVMEM_ERR_NOT_AVAILABLE || status == KVMEM_ERR_LIMIT);
    if (status == KVMEM_OK) {
        CHECK(stats(set).fixed_buffer_bytes == 2 * MIB);
    } else {
        CHECK(strlen(kvmem_last_error()) > 0 && stats(set).fixed_buffer_bytes == 0);
        printf("without fixed buffers: %s\n", kvmem_last_error());
    }
    kvmem_block block;
    OK(kvmem_pool_allocate_aligned(pool, 65536, 4096, &block));
    memset(block.data, 3, block.bytes);
    kvmem_disk_tier_value value = {
        .key = "key", .key_bytes = 3, .data = block.data, .bytes = block.bytes};
    OK(kvmem_disk_tier_store(set, &value, 1, NULL));
    memset(block.data, 0, block.bytes);
    kvmem_disk_tier_request request = {"key", 3, block.data, block.bytes, 0, 0, 0};
    OK(kvmem_disk_tier_fetch(set, &request, 1));
    CHECK(request.outcome == KVMEM_FETCHED_HIT && ((char *) block.data)[65535] == 3);
    CHECK((stats(set).fixed_buffer_transfers > 0) == (status == KVMEM_OK));
    OK(kvmem_block_free(&block));
    OK(kvmem_disk_tier_deregister_memory(set, pool));
    OK(kvmem_disk_tier_deregister_memory(set, pool));
    CHECK(stats(set).fixed_buffer_bytes == 0);
    OK(kvmem_disk_tier_destroy(set));

    kvmem_disk_tier *tier;
    OK(kvmem_disk_tier_open(list[0], &options, &tier, NULL));
    CHECK((kvmem_disk_tier_register_memory(tier, pool) == KVMEM_OK) == (status == KVMEM_OK));
    OK(kvmem_disk_tier_deregister_memory(tier, pool));
    OK(kvmem_disk_tier_destroy(tier));
}

int main(void) {
    for (int at = 0; at < FILES; at++) {
        snprintf(paths[at], sizeof paths[at], "/tmp/kvmem-tier-set-%d-%d", (int) getpid(), at);
        list[at] = paths[at];
    }
    kvmem_pool_options options;
    OK(kvmem_pool_options_init(&options, sizeof options));
    options.pages = "4k";
    OK(kvmem_pool_create(MIB, &options, &pool));
    set_alone();
    chain();
    fixed_buffers();
    remove_files();
    OK(kvmem_pool_destroy(pool));
    return 0;
}
