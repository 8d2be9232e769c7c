/* Fetches in the background, fetches with a deadline, and the queue of evicted values. */
#include <pthread.h>
#include <stdint.h>
#include <unistd.h>

#include "check.h"

enum { KEYS = 200, BYTES = 5000, SECOND = 1000000000 };

static char path[64];
static kvmem_pool *pool;
static kvmem_disk_tier *tier;
static kvmem_lower_tier *lower;

static uint64_t numbers[KEYS + 1];
static kvmem_kv_cache_key keys[KEYS + 1];

static void fill(unsigned char *bytes, uint64_t key) {
    memset(bytes, (int) (key & 0xff), BYTES);
    memcpy(bytes, &key, sizeof key);
}

static kvmem_kv_cache_options options_over_tier(void) {
    kvmem_kv_cache_options options;
    OK(kvmem_kv_cache_options_init(&options, sizeof options));
    CHECK(options.write_behind_bytes == UINT64_MAX && options.write_behind_writers == 1);
    options.lower_tier = lower;
    return options;
}

static kvmem_kv_cache *make(const kvmem_kv_cache_options *options) {
    kvmem_kv_cache *cache;
    OK(kvmem_kv_cache_create(pool, options, &cache));
    return cache;
}

static void insert(kvmem_kv_cache *cache, uint64_t key) {
    unsigned char bytes[BYTES];
    fill(bytes, key);
    OK(kvmem_kv_cache_insert(cache, &key, sizeof key, bytes, BYTES, NULL));
}

/* Checks values, and releases them. Returns how many there are. */
static uint64_t release(const kvmem_kv_cache_value *values, uint64_t first, uint64_t count) {
    uint64_t found = 0;
    for (uint64_t at = 0; at < count; at++) {
        if (values[at].pin == NULL)
            continue;
        unsigned char expected[BYTES];
        fill(expected, first + at);
        CHECK(values[at].bytes == BYTES && memcmp(expected, values[at].data, BYTES) == 0);
        OK(kvmem_kv_cache_pin_release(values[at].pin));
        found++;
    }
    return found;
}

static kvmem_kv_cache_fetching *start(kvmem_kv_cache *cache, uint64_t first, uint64_t count) {
    kvmem_kv_cache_fetching *fetching;
    OK(kvmem_kv_cache_start_fetch(cache, &keys[first], count, &fetching));
    return fetching;
}

static void in_background(void) {
    kvmem_kv_cache_options options = options_over_tier();
    kvmem_kv_cache *cache = make(&options);
    for (uint64_t key = 0; key < KEYS; key++)
        insert(cache, key);
    uint64_t held;
    OK(kvmem_kv_cache_evict_to(cache, 0, &held));
    kvmem_kv_cache_value values[KEYS + 1];

    /* Waits, and takes the values. */
    kvmem_kv_cache_fetching *fetching = start(cache, 0, 50);
    uint32_t done = 7;
    OK(kvmem_kv_cache_fetching_wait(fetching, UINT64_MAX, &done));
    CHECK(done == 1);
    OK(kvmem_kv_cache_fetching_is_done(fetching, &done));
    CHECK(done == 1);
    IS(KVMEM_ERR_INVALID_ARGUMENT, kvmem_kv_cache_fetching_take(fetching, values, 49));
    SAYS("count is 49, and the fetch has 50 keys");
    OK(kvmem_kv_cache_fetching_take(fetching, values, 50));
    CHECK(release(values, 0, 50) == 50);
    IS(KVMEM_ERR_BAD_HANDLE, kvmem_kv_cache_fetching_take(fetching, values, 50));

    /* Polls. */
    fetching = start(cache, 50, 50);
    for (int tries = 0;; tries++) {
        OK(kvmem_kv_cache_fetching_wait(fetching, SECOND / 100, &done));
        if (done == 1)
            break;
        CHECK(tries < 12000);
    }
    OK(kvmem_kv_cache_fetching_wait(fetching, 0, NULL));
    OK(kvmem_kv_cache_fetching_take(fetching, values, 50));
    CHECK(release(values, 50, 50) == 50);

    /* A key without a value, and no keys at all. */
    fetching = start(cache, KEYS, 1);
    OK(kvmem_kv_cache_fetching_wait(fetching, UINT64_MAX, &done));
    OK(kvmem_kv_cache_fetching_take(fetching, values, 1));
    CHECK(done == 1 && values[0].pin == NULL);
    OK(kvmem_kv_cache_start_fetch(cache, NULL, 0, &fetching));
    OK(kvmem_kv_cache_fetching_is_done(fetching, &done));
    OK(kvmem_kv_cache_fetching_take(fetching, NULL, 0));
    CHECK(done == 1);

    /* Detached fetches end in the cache; cancelled ones end anyhow. */
    OK(kvmem_kv_cache_fetching_detach(start(cache, 100, 20)));
    for (int tries = 0;; tries++) {
        uint32_t all = 1, contains;
        for (uint64_t key = 100; key < 120; key++) {
            OK(kvmem_kv_cache_contains_in_memory(cache, &key, sizeof key, &contains));
            all &= contains;
        }
        if (all == 1)
            break;
        CHECK(tries < 120000 && usleep(1000) == 0);
    }
    for (uint64_t first = 0; first < KEYS; first += 10)
        OK(kvmem_kv_cache_fetching_cancel(start(cache, first, 10)));

    /* With a deadline: a long one, and one that has passed. */
    OK(kvmem_kv_cache_evict_to(cache, 0, &held));
    OK(kvmem_kv_cache_get_batch_until(cache, &keys[120], 20, UINT64_MAX, values));
    CHECK(release(values, 120, 20) == 20);
    OK(kvmem_kv_cache_get_batch_until(cache, &keys[120], 20, 0, values));
    CHECK(release(values, 120, 20) == 20);
    OK(kvmem_kv_cache_get_batch_until(cache, &keys[140], 20, 0, values));
    CHECK(release(values, 140, 20) <= 20);
    OK(kvmem_kv_cache_get_batch_until(cache, NULL, 0, 0, NULL));

    /* It keeps the cache. */
    fetching = start(cache, 150, 20);
    OK(kvmem_kv_cache_destroy(cache));
    OK(kvmem_kv_cache_fetching_wait(fetching, UINT64_MAX, &done));
    OK(kvmem_kv_cache_fetching_take(fetching, values, 20));
    CHECK(done == 1 && release(values, 150, 20) == 20);
}

static kvmem_write_behind_stats queue_of(kvmem_kv_cache *cache) {
    kvmem_write_behind_stats stats;
    OK(kvmem_kv_cache_get_write_behind_stats(cache, &stats));
    return stats;
}

static void write_behind(void) {
    OK(kvmem_disk_tier_clear(tier));
    kvmem_kv_cache_options options = options_over_tier();
    options.write_behind_bytes = MIB / 4;
    options.write_behind_writers = 2;
    kvmem_kv_cache *cache = make(&options);
    for (uint64_t key = 0; key < KEYS; key++)
        insert(cache, key);
    /* What is in the queue is found, too. */
    kvmem_kv_cache_value values[KEYS];
    for (uint64_t first = 0; first < KEYS; first += 20) {
        OK(kvmem_kv_cache_get_batch(cache, &keys[first], 20, values));
        CHECK(release(values, first, 20) == 20);
    }
    uint64_t held;
    uint32_t flushed = 7;
    OK(kvmem_kv_cache_evict_to(cache, 0, &held));
    OK(kvmem_kv_cache_flush(cache, UINT64_MAX, &flushed));
    kvmem_write_behind_stats stats = queue_of(cache);
    CHECK(flushed == 1 && stats.values == 0 && stats.evicted >= KEYS && stats.failed == 0);
    CHECK(stats.evicted == stats.written + stats.replaced && stats.max_bytes <= MIB / 4);
    char text[10];
    uint64_t needed;
    OK(kvmem_kv_cache_write_behind_error(cache, text, sizeof text, &needed));
    CHECK(needed == 1 && text[0] == 0);
    kvmem_disk_tier_stats below;
    OK(kvmem_disk_tier_get_stats(tier, &below));
    CHECK(below.entries == KEYS);
    /* Destroying the cache writes what is left, or does not. */
    for (uint64_t key = 0; key < KEYS; key++)
        OK(kvmem_kv_cache_remove(cache, &key, sizeof key, NULL));
    for (uint32_t on_drop = KVMEM_ON_DROP_WRITE; on_drop <= KVMEM_ON_DROP_DISCARD; on_drop++) {
        OK(kvmem_kv_cache_destroy(cache));
        options.write_behind_on_drop = on_drop;
        options.write_behind_when_full = KVMEM_WHEN_FULL_DROP;
        cache = make(&options);
        for (uint64_t key = 0; key < 20; key++)
            insert(cache, key);
        OK(kvmem_kv_cache_evict_to(cache, 0, &held));
    }
    OK(kvmem_kv_cache_destroy(cache));
    OK(kvmem_disk_tier_get_stats(tier, &below));
    CHECK(below.entries <= 20);

    /* Without a queue there is nothing to wait for. */
    options = options_over_tier();
    cache = make(&options);
    OK(kvmem_kv_cache_flush(cache, 0, &flushed));
    CHECK(flushed == 1 && queue_of(cache).evicted == 0);
    OK(kvmem_kv_cache_destroy(cache));

    struct {
        uint32_t *member;
        uint32_t wrong;
        const char *words;
    } wrong[] = {
        {&options.write_behind_when_full, 2, "use KVMEM_WHEN_FULL_WAIT or"},
        {&options.write_behind_on_drop, 2, "use KVMEM_ON_DROP_WRITE or"},
        {&options.write_behind_writers, 0, "write_behind_writers is 0: use 1 to 64"},
        {&options.write_behind_writers, 65, "write_behind_writers is 65"},
        {&options.eviction, 2, "use KVMEM_EVICT_LRU or"},
    };
    for (size_t at = 0; at < sizeof wrong / sizeof *wrong; at++) {
        uint32_t right = *wrong[at].member;
        *wrong[at].member = wrong[at].wrong;
        IS(KVMEM_ERR_INVALID_ARGUMENT, kvmem_kv_cache_create(pool, &options, &cache));
        SAYS(wrong[at].words);
        *wrong[at].member = right;
    }
    options.write_behind_bytes = 0;
    IS(KVMEM_ERR_INVALID_ARGUMENT, kvmem_kv_cache_create(pool, &options, &cache));
    SAYS("write_behind_bytes is 0");
    options.write_behind_bytes = MIB;
    options.lower_tier = NULL;
    IS(KVMEM_ERR_INVALID_ARGUMENT, kvmem_kv_cache_create(pool, &options, &cache));
    SAYS("without lower_tier");
}

/* Threads fetch the same keys, each in its own way. A value that another thread is evicting may be
 * a miss, and is never a wrong one. */
static void *work(void *argument) {
    kvmem_kv_cache *cache = argument;
    kvmem_kv_cache_value values[10];
    uint64_t random = (uint64_t) (uintptr_t) &values;
    for (int step = 0, steps = rounds(300); step < steps; step++) {
        random = random * UINT64_C(6364136223846793005) + 1442695040888963407;
        uint64_t first = (random >> 40) % (KEYS - 10);
        kvmem_kv_cache_fetching *fetching;
        switch ((random >> 33) % 4) {
        case 0:
            OK(kvmem_kv_cache_get_batch(cache, &keys[first], 10, values));
            release(values, first, 10);
            break;
        case 1:
            fetching = start(cache, first, 10);
            OK(kvmem_kv_cache_fetching_wait(fetching, UINT64_MAX, NULL));
            OK(kvmem_kv_cache_fetching_take(fetching, values, 10));
            release(values, first, 10);
            break;
        case 2:
            OK(kvmem_kv_cache_fetching_cancel(start(cache, first, 10)));
            break;
        default:
            OK(kvmem_kv_cache_get_batch_until(cache, &keys[first], 10, SECOND / 1000, values));
            release(values, first, 10);
        }
    }
    return NULL;
}

static void threads(void) {
    kvmem_kv_cache_options options = options_over_tier();
    options.write_behind_bytes = MIB / 4;
    kvmem_kv_cache *cache = make(&options);
    for (uint64_t key = 0; key < KEYS; key++)
        insert(cache, key);
    pthread_t running[3];
    for (int at = 0; at < 3; at++)
        CHECK(pthread_create(&running[at], NULL, work, cache) == 0);
    for (int at = 0; at < 3; at++)
        CHECK(pthread_join(running[at], NULL) == 0);
    OK(kvmem_kv_cache_flush(cache, UINT64_MAX, NULL));
    OK(kvmem_kv_cache_check(cache));
    OK(kvmem_kv_cache_destroy(cache));
}

int main(void) {
    for (uint64_t at = 0; at <= KEYS; at++) {
        numbers[at] = at;
        keys[at] = (kvmem_kv_cache_key){&numbers[at], sizeof numbers[at]};
    }
    snprintf(path, sizeof path, "/tmp/kvmem-fetching-%d", (int) getpid());
    kvmem_pool_options options;
    OK(kvmem_pool_options_init(&options, sizeof options));
    options.pages = "4k";
    OK(kvmem_pool_create(MIB, &options, &pool));
    kvmem_disk_tier_options wanted;
    OK(kvmem_disk_tier_options_init(&wanted, sizeof wanted));
    wanted.bytes = 8 * MIB;
    OK(kvmem_disk_tier_open(path, &wanted, &tier, NULL));
    OK(kvmem_disk_tier_as_lower_tier(tier, &lower));
    in_background();
    write_behind();
    threads();
    OK(kvmem_lower_tier_destroy(lower));
    OK(kvmem_disk_tier_destroy(tier));
    CHECK(unlink(path) == 0);
    OK(kvmem_pool_destroy(pool));
    return 0;
}
