/* Pool, blocks, sharing, and the cache. */
#include <sys/mman.h>
#include <unistd.h>

#include "check.h"

static void record_phase(void *user, const kvmem_progress *progress) {
    uint64_t *phases = user;
    *phases |= (uint64_t) 1 << progress->phase;
}

static kvmem_pool *pool_with(void (*change)(kvmem_pool_options *), uint64_t bytes) {
    kvmem_pool_options options;
    OK(kvmem_pool_options_init(&options, sizeof options));
    options.pages = "4k";
    if (change != NULL)
        change(&options);
    kvmem_pool *pool;
    OK(kvmem_pool_create(bytes, &options, &pool));
    return pool;
}

/* Returns whether a page is mapped there. */
static int has_page(void *at) {
    unsigned char resident;
    return mincore(at, 4096, &resident) == 0;
}

static uint64_t keys_of(kvmem_registrars *nic) {
    uint64_t keys;
    OK(kvmem_registrars_live_keys(nic, 0, &keys));
    return keys;
}

static void share(kvmem_pool_options *options) {
    options->backing = KVMEM_BACKING_SHARED;
}

static void grow(kvmem_pool_options *options) {
    options->max_bytes = 16 * MIB;
    options->boundary_bytes = 4 * MIB;
}

static void sizes(void) {
    uint64_t bytes;
    OK(kvmem_parse_size("64GiB", &bytes));
    CHECK(bytes == 64ull << 30);
    OK(kvmem_parse_size("4096", &bytes));
    CHECK(bytes == 4096);
    IS(KVMEM_ERR_INVALID_ARGUMENT, kvmem_parse_size("many", &bytes));
    SAYS("64GiB");
}

static void blocks(void) {
    kvmem_registrars *nics;
    OK(kvmem_registrars_simulated(2, MIB, UINT64_MAX, &nics));
    kvmem_pool_options options;
    OK(kvmem_pool_options_init(&options, sizeof options));
    uint64_t phases = 0, hot[] = {4096};
    options.pages = "4k";
    options.registrars = nics;
    options.policy = "sequential";
    options.hot_sizes = hot;
    options.hot_size_count = 1;
    options.progress = record_phase;
    options.progress_user = &phases;
    kvmem_pool *pool;
    OK(kvmem_pool_create(4 * MIB, &options, &pool));
    CHECK(phases & 1 << KVMEM_PHASE_REGISTER);
    OK(kvmem_registrars_destroy(nics));

    kvmem_pool_info info;
    OK(kvmem_pool_get_info(pool, &info));
    CHECK(info.capacity_bytes == 4 * MIB && info.ready_bytes == 4 * MIB &&
          info.boundary_bytes == MIB);
    CHECK(info.devices == 2 && info.share_id == 0 && info.initializing == 0);

    kvmem_block a, b, batch[8];
    OK(kvmem_pool_allocate(pool, 4096, &a));
    OK(kvmem_pool_allocate_aligned(pool, 1000, 65536, &b));
    CHECK(a.data == (char *) info.data + a.offset && (uintptr_t) b.data % 65536 == 0 &&
          b.bytes == 1000);
    memset(a.data, 1, a.bytes);
    memset(b.data, 2, b.bytes);
    kvmem_key key;
    OK(kvmem_block_key(&a, "simulated:1", &key));
    IS(KVMEM_ERR_NO_SUCH_DEVICE, kvmem_block_key(&a, "none", &key));
    OK(kvmem_block_shrink(&b, 500));
    OK(kvmem_block_extend(&b, 600));
    IS(KVMEM_ERR_TOO_LARGE, kvmem_block_extend(&b, 8 * MIB));
    CHECK(b.bytes == 600);
    kvmem_block_ref reference;
    IS(KVMEM_ERR_WRONG_BACKING, kvmem_block_reference(&b, &reference));

    kvmem_block copy = a;
    OK(kvmem_block_free(&a));
    IS(KVMEM_ERR_STALE_ALLOCATION, kvmem_block_free(&copy));
    IS(KVMEM_ERR_STALE_ALLOCATION, kvmem_block_key(&copy, "simulated:1", &key));
    IS(KVMEM_ERR_STALE_ALLOCATION, kvmem_block_shrink(&copy, 1));
    IS(KVMEM_ERR_STALE_ALLOCATION, kvmem_block_quarantine(&copy, "freed"));
    memset(&copy, 0, sizeof copy);
    IS(KVMEM_ERR_NULL_ARGUMENT, kvmem_block_free(&copy));
    memset(&copy, 0xa5, sizeof copy);
    IS(KVMEM_ERR_BAD_HANDLE, kvmem_block_free(&copy));
    copy = b;
    copy.allocator += 1;
    IS(KVMEM_ERR_FOREIGN_ALLOCATION, kvmem_block_free(&copy));

    OK(kvmem_pool_allocate_batch(pool, 1000, 8, batch));
    uint64_t count;
    OK(kvmem_block_free_batch(batch, 8, &count));
    CHECK(count == 8);
    IS(KVMEM_ERR_STALE_ALLOCATION, kvmem_block_free_batch(batch, 8, &count));
    CHECK(count == 0);
    OK(kvmem_pool_allocate_scattered(pool, 3 * MIB, 8, batch, &count));
    OK(kvmem_block_free_batch(batch, count, NULL));
    IS(KVMEM_ERR_TOO_LARGE, kvmem_pool_allocate(pool, MIB + 1, &a));
    IS(KVMEM_ERR_ZERO_SIZE, kvmem_pool_allocate(pool, 0, &a));

    OK(kvmem_pool_allocate(pool, 5000, &a));
    OK(kvmem_block_quarantine(&a, "a device said so"));
    static char text[16384];
    OK(kvmem_pool_report(pool, KVMEM_TEXT, text, sizeof text, NULL));
    CHECK(strstr(text, "a device said so") != NULL);
    OK(kvmem_pool_report(pool, KVMEM_JSON, text, sizeof text, NULL));
    kvmem_metrics metrics;
    OK(kvmem_pool_get_metrics(pool, &metrics));
    CHECK(metrics.live == 1 && metrics.allocated == 600 &&
          metrics.capacity == 4 * MIB - 5000);
    kvmem_bin bins[100];
    kvmem_map_range map[100];
    OK(kvmem_pool_bins(pool, bins, 100, &count));
    OK(kvmem_pool_map(pool, map, 100, &count));
    OK(kvmem_pool_trim(pool));
    OK(kvmem_pool_check(pool));
    OK(kvmem_block_free(&b));
    OK(kvmem_pool_destroy(pool));
    IS(KVMEM_ERR_BAD_HANDLE, kvmem_pool_destroy(pool));
}

/* Blocks stay valid when their pool is destroyed. The memory is released with the last one. */
static void blocks_outlive_their_pool(void) {
    kvmem_pool *pool = pool_with(NULL, MIB);
    kvmem_block a, b, c;
    OK(kvmem_pool_allocate(pool, 5000, &a));
    OK(kvmem_pool_allocate(pool, 5000, &b));
    OK(kvmem_pool_destroy(pool));
    IS(KVMEM_ERR_BAD_HANDLE, kvmem_pool_destroy(pool));
    IS(KVMEM_ERR_BAD_HANDLE, kvmem_pool_allocate(pool, 1, &c));
    memset(a.data, 1, a.bytes);
    kvmem_block copy = a;
    OK(kvmem_block_shrink(&a, 4000));
    OK(kvmem_block_free(&a));
    IS(KVMEM_ERR_STALE_ALLOCATION, kvmem_block_free(&copy));
    memset(b.data, 2, b.bytes);
    OK(kvmem_block_free(&b));
    IS(KVMEM_ERR_BAD_HANDLE, kvmem_block_free(&b));
}

static void resizing(void) {
    kvmem_pool *pool = pool_with(grow, 4 * MIB);
    kvmem_block block;
    uint64_t capacity;
    IS(KVMEM_ERR_TOO_LARGE, kvmem_pool_grow_to(pool, 32 * MIB));
    OK(kvmem_pool_grow_to(pool, 8 * MIB));
    OK(kvmem_pool_allocate(pool, 4 * MIB, &block));
    OK(kvmem_block_free(&block));
    OK(kvmem_pool_shrink_to(pool, 1, &capacity));
    CHECK(capacity < 4 * MIB);
    uint64_t ready;
    OK(kvmem_pool_wait_ready(pool, UINT64_MAX, 0, &ready));
    CHECK(ready == capacity);
    OK(kvmem_pool_destroy(pool));
}

static void shared(void) {
    kvmem_pool *pool = pool_with(share, MIB);
    kvmem_block block;
    OK(kvmem_pool_allocate(pool, 100, &block));
    strcpy(block.data, "bytes");
    kvmem_block_ref reference, wrong;
    OK(kvmem_block_reference(&block, &reference));
    int fds[2];
    OK(kvmem_pool_share(pool, 0, &fds[0]));
    OK(kvmem_pool_share(pool, 1, &fds[1]));
    kvmem_attached_pool *writer, *reader;
    OK(kvmem_attached_pool_attach(fds[0], 1, &writer));
    OK(kvmem_attached_pool_attach(fds[1], 0, &reader));
    close(fds[0]);
    close(fds[1]);
    uint64_t bytes;
    OK(kvmem_pool_populate_aliases(pool, KVMEM_POPULATE_AUTO, &bytes));
    CHECK(bytes == MIB); // the writer's; the reader's cannot be
    OK(kvmem_pool_populate_aliases(pool, 1, NULL));
    IS(KVMEM_ERR_INVALID_ARGUMENT, kvmem_attached_pool_attach(fds[0], 0, &writer));
    kvmem_attached_pool_info info;
    OK(kvmem_attached_pool_get_info(reader, &info));
    CHECK(info.bytes == MIB && info.share_id == reference.pool && info.writable == 0);
    void *data;
    OK(kvmem_attached_pool_data(reader, &reference, 0, &data));
    CHECK(strcmp(data, "bytes") == 0);
    IS(KVMEM_ERR_READ_ONLY, kvmem_attached_pool_data(reader, &reference, 1, &data));
    OK(kvmem_attached_pool_data(writer, &reference, 1, &data));
    strcpy(data, "answer");
    CHECK(strcmp(block.data, "answer") == 0);
    wrong = reference;
    wrong.pool += 1;
    IS(KVMEM_ERR_FOREIGN_ALLOCATION, kvmem_attached_pool_data(reader, &wrong, 0, &data));
    wrong = reference;
    wrong.offset = UINT64_MAX;
    IS(KVMEM_ERR_OUT_OF_BOUNDS, kvmem_attached_pool_data(reader, &wrong, 0, &data));
    OK(kvmem_block_free(&block));
    OK(kvmem_pool_destroy(pool));
    CHECK(strcmp(data, "answer") == 0);
    OK(kvmem_attached_pool_destroy(writer));
    OK(kvmem_attached_pool_destroy(reader));
}

static void cache(void) {
    kvmem_pool *pool = pool_with(NULL, MIB);
    kvmem_kv_cache_options options;
    OK(kvmem_kv_cache_options_init(&options, sizeof options));
    options.max_bytes = 100000;
    options.max_blocks = 100;
    kvmem_kv_cache *cache;
    OK(kvmem_kv_cache_create(pool, &options, &cache));

    uint64_t key = 7;
    OK(kvmem_kv_cache_insert(cache, &key, sizeof key, "value", 6, NULL));
    OK(kvmem_kv_cache_insert(cache, "a text", 6, "other", 6, NULL));
    OK(kvmem_kv_cache_insert(cache, NULL, 0, "of no key", 10, NULL));
    kvmem_kv_cache_value value, again;
    OK(kvmem_kv_cache_get(cache, &key, sizeof key, &value));
    CHECK(value.bytes == 6 && strcmp(value.data, "value") == 0);
    uint32_t contains;
    OK(kvmem_kv_cache_contains(cache, "a text", 6, &contains));
    CHECK(contains == 1);

    /* Fetching ahead changes nothing. */
    kvmem_kv_cache_stats before, after;
    OK(kvmem_kv_cache_get_stats(cache, &before));
    const kvmem_kv_cache_key keys[] = {{&key, sizeof key}, {"absent", 6}, {NULL, 0}};
    OK(kvmem_kv_cache_prefetch(cache, keys, 3));
    OK(kvmem_kv_cache_prefetch(cache, NULL, 0));
    OK(kvmem_kv_cache_get_stats(cache, &after));
    CHECK(memcmp(&before, &after, sizeof before) == 0);
    const kvmem_kv_cache_key bad[] = {{&key, sizeof key}, {NULL, 1}};
    IS(KVMEM_ERR_NULL_ARGUMENT, kvmem_kv_cache_prefetch(cache, bad, 2));
    const kvmem_kv_cache_key too_long = {&key, KVMEM_MAX_KEY_BYTES + 1};
    IS(KVMEM_ERR_INVALID_ARGUMENT, kvmem_kv_cache_prefetch(cache, &too_long, 1));
    IS(KVMEM_ERR_INVALID_ARGUMENT, kvmem_kv_cache_prefetch(cache, keys, UINT64_MAX));
    uint32_t removed;
    OK(kvmem_kv_cache_remove(cache, "a text", 6, &removed));
    CHECK(removed == 1);
    OK(kvmem_kv_cache_remove(cache, "a text", 6, &removed));
    CHECK(removed == 0);
    IS(KVMEM_ERR_NOT_FOUND, kvmem_kv_cache_get(cache, "a text", 6, &again));

    /* A pinned value stays, whatever happens to its key. */
    OK(kvmem_kv_cache_insert(cache, &key, sizeof key, "newer", 6, NULL));
    CHECK(strcmp(value.data, "value") == 0);
    OK(kvmem_kv_cache_get(cache, &key, sizeof key, &again));
    CHECK(strcmp(again.data, "newer") == 0);
    OK(kvmem_kv_cache_pin_release(value.pin));
    IS(KVMEM_ERR_BAD_HANDLE, kvmem_kv_cache_pin_release(value.pin));
    kvmem_key device_key;
    IS(KVMEM_ERR_NO_SUCH_DEVICE, kvmem_kv_cache_pin_key(again.pin, "none", &device_key));

    kvmem_kv_cache_reserved reserved;
    OK(kvmem_kv_cache_reserve(cache, "reserved", 8, 1000, &reserved));
    memset(reserved.data, 5, reserved.bytes);
    const kvmem_value_hints third = {.depth = 3};
    OK(kvmem_kv_cache_reservation_set_hints(reserved.reservation, &third));
    IS(KVMEM_ERR_NULL_ARGUMENT, kvmem_kv_cache_reservation_set_hints(NULL, NULL));
    IS(KVMEM_ERR_NO_SUCH_DEVICE,
       kvmem_kv_cache_reservation_key(reserved.reservation, "none", &device_key));
    OK(kvmem_kv_cache_reservation_commit(reserved.reservation, &value));
    IS(KVMEM_ERR_BAD_HANDLE, kvmem_kv_cache_reservation_commit(reserved.reservation, &value));
    CHECK(((const char *) value.data)[999] == 5);
    OK(kvmem_kv_cache_pin_release(value.pin));
    OK(kvmem_kv_cache_reserve(cache, "none", 4, 1000, &reserved));
    OK(kvmem_kv_cache_reservation_release(reserved.reservation));
    IS(KVMEM_ERR_BAD_HANDLE, kvmem_kv_cache_reservation_release(reserved.reservation));
    IS(KVMEM_ERR_ZERO_SIZE, kvmem_kv_cache_reserve(cache, "none", 4, 0, &reserved));
    IS(KVMEM_ERR_TOO_LARGE, kvmem_kv_cache_reserve(cache, "none", 4, 200000, &reserved));

    static char bytes[10000];
    for (key = 100; key < 200; key++)
        OK(kvmem_kv_cache_insert(cache, &key, sizeof key, bytes, sizeof bytes, NULL));
    kvmem_kv_cache_stats stats;
    OK(kvmem_kv_cache_get_stats(cache, &stats));
    CHECK(stats.bytes <= 100000 && stats.evictions >= 90 && stats.hits == 2 && stats.misses == 1);
    uint64_t held;
    OK(kvmem_kv_cache_evict_to(cache, 20000, &held));
    CHECK(held <= 20000);
    OK(kvmem_kv_cache_check(cache));
    OK(kvmem_kv_cache_clear(cache));

    /* A pin outlives its cache, and a cache its pool. */
    OK(kvmem_pool_destroy(pool));
    OK(kvmem_kv_cache_insert(cache, "last", 4, "one", 4, NULL));
    OK(kvmem_kv_cache_get(cache, "last", 4, &value));
    OK(kvmem_kv_cache_destroy(cache));
    CHECK(strcmp(value.data, "one") == 0 && strcmp(again.data, "newer") == 0);
    OK(kvmem_kv_cache_pin_release(value.pin));
    OK(kvmem_kv_cache_pin_release(again.pin));

    pool = pool_with(NULL, MIB);
    options.eviction = 5;
    IS(KVMEM_ERR_INVALID_ARGUMENT, kvmem_kv_cache_create(pool, &options, &cache));
    options.eviction = KVMEM_EVICT_SCAN_RESISTANT;
    options.max_bytes = 0;
    IS(KVMEM_ERR_INVALID_ARGUMENT, kvmem_kv_cache_create(pool, &options, &cache));
    OK(kvmem_pool_destroy(pool));
}

/*
 * A cache, its pins and its reservations keep the memory and keys of a destroyed pool, in any
 * order, but not longer; with blocks of the program, and without.
 */
static void the_last_user_ends_the_pool(void) {
    enum { BLOCK = 1, PIN = 2, RESERVATION = 4, ALL = 8 };
    for (int with = 0; with < ALL; with++) {
        kvmem_registrars *nic;
        OK(kvmem_registrars_simulated(1, UINT64_MAX, UINT64_MAX, &nic));
        kvmem_pool_options options;
        OK(kvmem_pool_options_init(&options, sizeof options));
        options.pages = "4k";
        options.registrars = nic;
        kvmem_pool *pool;
        OK(kvmem_pool_create(MIB, &options, &pool));
        kvmem_pool_info info;
        OK(kvmem_pool_get_info(pool, &info));
        kvmem_kv_cache *cache;
        OK(kvmem_kv_cache_create(pool, NULL, &cache));
        OK(kvmem_kv_cache_insert(cache, "key", 3, "value", 6, NULL));
        kvmem_block block;
        kvmem_kv_cache_value value;
        kvmem_kv_cache_reserved reserved;
        if (with & BLOCK)
            OK(kvmem_pool_allocate(pool, 1000, &block));
        if (with & PIN)
            OK(kvmem_kv_cache_get(cache, "key", 3, &value));
        if (with & RESERVATION)
            OK(kvmem_kv_cache_reserve(cache, "other", 5, 1000, &reserved));

        OK(kvmem_pool_destroy(pool));
        IS(KVMEM_ERR_BAD_HANDLE, kvmem_pool_destroy(pool));
        CHECK(has_page(info.data) && keys_of(nic) == 1);
        kvmem_block freed = {0};
        if (with & BLOCK) {
            memset(block.data, 1, block.bytes);
            OK(kvmem_block_shrink(&block, 500));
            freed = block;
            if (with & PIN) {
                OK(kvmem_block_free(&block));
                IS(KVMEM_ERR_BAD_HANDLE, kvmem_block_free(&freed));
            }
        }
        OK(kvmem_kv_cache_destroy(cache));
        if (with != 0)
            CHECK(has_page(info.data) && keys_of(nic) == 1);
        if (with & RESERVATION) {
            memset(reserved.data, 2, reserved.bytes);
            OK(kvmem_kv_cache_reservation_release(reserved.reservation));
        }
        if (with & PIN) {
            CHECK(strcmp(value.data, "value") == 0);
            OK(kvmem_kv_cache_pin_release(value.pin));
        }
        if (with & BLOCK && !(with & PIN)) {
            CHECK(has_page(info.data) && keys_of(nic) == 1);
            OK(kvmem_block_free(&block));
            IS(KVMEM_ERR_BAD_HANDLE, kvmem_block_free(&freed));
        }
        CHECK(!has_page(info.data) && keys_of(nic) == 0);
        OK(kvmem_registrars_destroy(nic));
    }
}

int main(void) {
    sizes();
    blocks();
    blocks_outlive_their_pool();
    resizing();
    shared();
    cache();
    the_last_user_ends_the_pool();
    return 0;
}
