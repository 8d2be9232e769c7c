/* Evicted values: the program's eviction callback, and a lower tier that the program implements. */
#include <pthread.h>
#include <stddef.h>

#include "check.h"

enum { KEYS = 32 };

static kvmem_pool *small_pool(void) {
    kvmem_pool_options options;
    OK(kvmem_pool_options_init(&options, sizeof options));
    options.pages = "4k";
    kvmem_pool *pool;
    OK(kvmem_pool_create(MIB, &options, &pool));
    return pool;
}

/* Keys and values are numbers. */
static void put(kvmem_kv_cache *cache, uint64_t key, uint64_t value) {
    OK(kvmem_kv_cache_insert(cache, &key, sizeof key, &value, sizeof value, NULL));
}

static kvmem_kv_cache_reservation *written(kvmem_kv_cache *cache, uint64_t key, uint64_t value) {
    kvmem_kv_cache_reserved reserved;
    OK(kvmem_kv_cache_reserve(cache, &key, sizeof key, sizeof value, &reserved));
    memcpy(reserved.data, &value, sizeof value);
    return reserved.reservation;
}

static uint64_t number(const void *data) {
    uint64_t value;
    memcpy(&value, data, sizeof value);
    return value;
}

/* Returns a value that was found; UINT64_MAX: none. */
static uint64_t taken(const kvmem_kv_cache_value *value) {
    if (value->pin == NULL)
        return UINT64_MAX;
    uint64_t found = number(value->data);
    OK(kvmem_kv_cache_pin_release(value->pin));
    return found;
}

/* Returns the value under a key in the cache. */
static uint64_t at(kvmem_kv_cache *cache, uint64_t key) {
    kvmem_kv_cache_value value = {0};
    kvmem_status status = kvmem_kv_cache_get_in_memory(cache, &key, sizeof key, &value);
    CHECK(status == KVMEM_OK || status == KVMEM_ERR_NOT_FOUND);
    return taken(&value);
}

/* Returns the value under a key in the cache or its tier. */
static uint64_t find(kvmem_kv_cache *cache, uint64_t key) {
    const kvmem_kv_cache_key one = {&key, sizeof key};
    kvmem_kv_cache_value value;
    OK(kvmem_kv_cache_get_batch(cache, &one, 1, &value));
    return taken(&value);
}

static uint32_t superseded(kvmem_kv_cache_pin *pin) {
    uint32_t is;
    OK(kvmem_kv_cache_pin_is_superseded(pin, &is));
    return is;
}

/* The values that an eviction callback has got. */
typedef struct sink {
    uint64_t values[KEYS], evicted, released;
    kvmem_kv_cache_pin *borrowed;
    kvmem_kv_cache_value kept; /* by a pin of its own, if `keep` */
    int keep, early;
} sink;

static void take(void *user, const kvmem_kv_cache_value *value, const void *key,
                 uint64_t key_bytes) {
    sink *sink = user;
    CHECK(key_bytes == sizeof(uint64_t) && value->bytes == sizeof(uint64_t));
    /* The key can be read from the pin, too. */
    const void *again;
    uint64_t again_bytes;
    OK(kvmem_kv_cache_pin_cache_key(value->pin, &again, &again_bytes));
    CHECK(again_bytes == key_bytes && number(again) == number(key) && number(key) < KEYS);
    sink->values[number(key)] = number(value->data);
    sink->evicted++;
    sink->borrowed = value->pin;
    if (sink->keep)
        OK(kvmem_kv_cache_pin_clone(value->pin, &sink->kept));
    if (sink->early) {
        OK(kvmem_kv_cache_pin_release(value->pin));
        CHECK(number(key) < KEYS);
    }
}

static void gone(void *user) {
    ((sink *) user)->released++;
}

static kvmem_kv_cache *cache_over(kvmem_pool *pool, sink *sink, uint64_t max_blocks) {
    kvmem_kv_cache_options options;
    OK(kvmem_kv_cache_options_init(&options, sizeof options));
    CHECK(options.on_evict == NULL && options.on_evict_user == NULL &&
          options.on_evict_release == NULL);
    options.max_blocks = max_blocks;
    options.on_evict = take;
    options.on_evict_user = sink;
    options.on_evict_release = gone;
    kvmem_kv_cache *cache;
    OK(kvmem_kv_cache_create(pool, &options, &cache));
    return cache;
}

/* An options structure that ends with `max_blocks`, as an older one may, and a longer one. */
static void options_of_other_versions(void) {
    kvmem_pool *pool = small_pool();
    kvmem_kv_cache *cache;
    uint64_t older[3];
    CHECK(sizeof older == offsetof(kvmem_kv_cache_options, on_evict));
    OK(kvmem_kv_cache_options_init((kvmem_kv_cache_options *) (void *) older, sizeof older));
    CHECK(older[0] == sizeof older);
    older[2] = 1; /* max_blocks */
    OK(kvmem_kv_cache_create(pool, (const kvmem_kv_cache_options *) (const void *) older, &cache));
    put(cache, 1, 1);
    put(cache, 2, 2);
    CHECK(at(cache, 1) == UINT64_MAX && at(cache, 2) == 2);
    OK(kvmem_kv_cache_destroy(cache));

    struct {
        kvmem_kv_cache_options options;
        uint64_t more[2];
    } newer;
    OK(kvmem_kv_cache_options_init(&newer.options, sizeof newer));
    OK(kvmem_kv_cache_create(pool, &newer.options, &cache));
    OK(kvmem_kv_cache_destroy(cache));
    newer.more[1] = 1;
    IS(KVMEM_ERR_INVALID_ARGUMENT, kvmem_kv_cache_create(pool, &newer.options, &cache));
    SAYS("newer");
    newer.options.struct_size = 7;
    IS(KVMEM_ERR_INVALID_ARGUMENT, kvmem_kv_cache_create(pool, &newer.options, &cache));

    /* If the cache is not made, the user data stay the caller's. */
    sink sink = {0};
    kvmem_kv_cache_options options;
    OK(kvmem_kv_cache_options_init(&options, sizeof options));
    options.on_evict_user = &sink;
    options.on_evict_release = gone;
    IS(KVMEM_ERR_INVALID_ARGUMENT, kvmem_kv_cache_create(pool, &options, &cache));
    SAYS("on_evict");
    options.on_evict = take;
    options.eviction = 9;
    IS(KVMEM_ERR_INVALID_ARGUMENT, kvmem_kv_cache_create(pool, &options, &cache));
    options.eviction = KVMEM_EVICT_LRU;
    options.max_bytes = 0;
    IS(KVMEM_ERR_INVALID_ARGUMENT, kvmem_kv_cache_create(pool, &options, &cache));
    CHECK(sink.released == 0);
    options.max_bytes = UINT64_MAX;
    options.on_evict_release = NULL;
    OK(kvmem_kv_cache_create(pool, &options, &cache));
    OK(kvmem_kv_cache_destroy(cache));
    OK(kvmem_pool_destroy(pool));
}

static void evicted_values(void) {
    kvmem_pool *pool = small_pool();
    sink sink = {0};
    kvmem_kv_cache *cache = cache_over(pool, &sink, 2);
    put(cache, 1, 11);
    put(cache, 1, 21); /* replaced, so not given */
    put(cache, 2, 22);
    CHECK(sink.evicted == 0);
    put(cache, 3, 13);
    CHECK(sink.evicted == 1 && sink.values[1] == 21);
    /* The borrowed pin is released. */
    IS(KVMEM_ERR_BAD_HANDLE, kvmem_kv_cache_pin_release(sink.borrowed));

    /* Keeps a pin of its own, and releases the borrowed one by mistake. */
    sink.keep = 1;
    put(cache, 4, 14);
    sink.keep = 0;
    CHECK(sink.values[2] == 22 && number(sink.kept.data) == 22 && superseded(sink.kept.pin) == 0);
    sink.early = 1;
    put(cache, 5, 15);
    sink.early = 0;
    CHECK(sink.values[3] == 13 && sink.evicted == 3);
    IS(KVMEM_ERR_BAD_HANDLE, kvmem_kv_cache_pin_release(sink.borrowed));

    /* Evicted by evict_to and by a reservation; not by a removal or clearing. */
    OK(kvmem_kv_cache_evict_to(cache, 0, NULL));
    CHECK(sink.evicted == 5 && sink.values[4] == 14 && sink.values[5] == 15);
    put(cache, 6, 16);
    put(cache, 7, 17);
    OK(kvmem_kv_cache_reservation_release(written(cache, 8, 18)));
    CHECK(sink.evicted == 6 && sink.values[6] == 16);
    uint64_t key = 7;
    OK(kvmem_kv_cache_remove(cache, &key, sizeof key, NULL));
    put(cache, 9, 19);
    OK(kvmem_kv_cache_clear(cache));
    CHECK(sink.evicted == 6);

    /* A pin learns what happens to its key. */
    kvmem_kv_cache_value first, second, cloned;
    key = 10;
    put(cache, key, 1);
    OK(kvmem_kv_cache_get(cache, &key, sizeof key, &first));
    OK(kvmem_kv_cache_pin_clone(first.pin, &cloned));
    CHECK(cloned.pin != first.pin && cloned.data == first.data && cloned.bytes == 8 &&
          cloned.offset == first.offset);
    CHECK(!superseded(first.pin));
    put(cache, key, 2);
    OK(kvmem_kv_cache_get(cache, &key, sizeof key, &second));
    CHECK(superseded(first.pin) && superseded(cloned.pin) && !superseded(second.pin));
    OK(kvmem_kv_cache_pin_release(first.pin));
    CHECK(number(cloned.data) == 1);
    OK(kvmem_kv_cache_remove(cache, &key, sizeof key, NULL));
    CHECK(superseded(second.pin));
    const void *name;
    uint64_t name_bytes;
    IS(KVMEM_ERR_BAD_HANDLE, kvmem_kv_cache_pin_cache_key(first.pin, &name, &name_bytes));
    IS(KVMEM_ERR_NULL_ARGUMENT, kvmem_kv_cache_pin_cache_key(second.pin, &name, NULL));
    OK(kvmem_kv_cache_pin_cache_key(second.pin, &name, &name_bytes));
    CHECK(name_bytes == 8 && number(name) == 10);
    kvmem_kv_cache_reservation *reserved = written(cache, 12, 1);
    OK(kvmem_kv_cache_reservation_cache_key(reserved, &name, &name_bytes));
    CHECK(name_bytes == 8 && number(name) == 12);
    OK(kvmem_kv_cache_reservation_release(reserved));
    OK(kvmem_kv_cache_pin_release(cloned.pin));
    OK(kvmem_kv_cache_pin_release(second.pin));

    /* Destroying the cache does not evict. */
    put(cache, 11, 1);
    OK(kvmem_kv_cache_destroy(cache));
    CHECK(sink.evicted == 6 && sink.released == 1 && number(sink.kept.data) == 22);
    OK(kvmem_kv_cache_pin_release(sink.kept.pin));
    OK(kvmem_pool_destroy(pool));
}

/* A lower tier that the program implements: a number for some keys; 0: none. */
typedef struct store {
    pthread_mutex_t lock;
    uint64_t values[KEYS];
    int fails; /* `store` writes no outcome, `remove` and `clear` return this */
    uint64_t stored, superseded, released;
    kvmem_tier_value last;            /* of the last call */
    kvmem_kv_cache *cache;            /* from which `store` removes the key, if set */
} store;

static void store_values(void *user, const kvmem_tier_value *values, uint64_t count,
                         uint32_t *outcomes) {
    store *store = user;
    for (uint64_t at = 0; at < count; at++) {
        CHECK(values[at].key_bytes == 8 && values[at].bytes == 8 && values[at].hints.depth == 0);
        CHECK(outcomes[at] == KVMEM_TIER_FAILED);
        uint64_t key = number(values[at].key);
        uint32_t old = 2;
        OK(kvmem_tier_value_is_superseded(&values[at], &old));
        CHECK(old == 0);
        if (store->cache != NULL) {
            kvmem_kv_cache *cache = store->cache;
            store->cache = NULL;
            OK(kvmem_kv_cache_remove_in_memory(cache, values[at].key, values[at].key_bytes, NULL));
            OK(kvmem_tier_value_is_superseded(&values[at], &old));
            CHECK(old == 1);
            store->superseded++;
        }
        CHECK(pthread_mutex_lock(&store->lock) == 0);
        if (!store->fails) {
            store->values[key] = old ? 0 : number(values[at].data);
            outcomes[at] = old ? KVMEM_TIER_NOT_STORED : KVMEM_TIER_STORED;
            store->stored += !old;
        }
        store->last = values[at];
        CHECK(pthread_mutex_unlock(&store->lock) == 0);
    }
}

static void ask(void *user, const kvmem_kv_cache_key *keys, uint64_t count, uint64_t *bytes) {
    store *store = user;
    CHECK(pthread_mutex_lock(&store->lock) == 0);
    for (uint64_t at = 0; at < count; at++) {
        CHECK(bytes[at] == UINT64_MAX);
        if (store->values[number(keys[at].key)] != 0)
            bytes[at] = sizeof(uint64_t);
    }
    CHECK(pthread_mutex_unlock(&store->lock) == 0);
}

static void fetch(void *user, const kvmem_tier_read *reads, uint64_t count, uint32_t *found) {
    store *store = user;
    CHECK(pthread_mutex_lock(&store->lock) == 0);
    for (uint64_t at = 0; at < count; at++) {
        CHECK(found[at] == 0 && reads[at].bytes == sizeof(uint64_t));
        const uint64_t *value = &store->values[number(reads[at].key)];
        found[at] = *value != 0;
        memcpy(reads[at].data, value, sizeof *value);
    }
    CHECK(pthread_mutex_unlock(&store->lock) == 0);
}

static int remove_keys(void *user, const kvmem_kv_cache_key *keys, uint64_t count) {
    store *store = user;
    for (uint64_t at = 0; at < count && !store->fails; at++)
        store->values[number(keys[at].key)] = 0;
    return store->fails;
}

static int clear(void *user) {
    store *store = user;
    if (!store->fails)
        memset(store->values, 0, sizeof store->values);
    return store->fails;
}

static void end(void *user) {
    ((store *) user)->released++;
}

/* Structures that are no tier: the user data stay the caller's. */
static void no_tiers(void) {
    store store = {.lock = PTHREAD_MUTEX_INITIALIZER};
    const kvmem_tier_callbacks whole = {sizeof whole, &store,      store_values, ask,
                                        fetch,        remove_keys, clear,        end};
    kvmem_lower_tier *tier;
    kvmem_tier_callbacks callbacks = whole;
    callbacks.struct_size = 8;
    IS(KVMEM_ERR_INVALID_ARGUMENT, kvmem_lower_tier_custom(&callbacks, &tier));
    SAYS("kvmem_tier_callbacks");
    void **functions = (void **) (void *) &callbacks;
    for (size_t at = 2; at < 7; at++) {
        callbacks = whole;
        functions[at] = NULL;
        IS(KVMEM_ERR_NULL_ARGUMENT, kvmem_lower_tier_custom(&callbacks, &tier));
    }
    IS(KVMEM_ERR_NULL_ARGUMENT, kvmem_lower_tier_custom(&whole, NULL));
    CHECK(store.released == 0);
    OK(kvmem_lower_tier_custom(&whole, &tier));
    OK(kvmem_lower_tier_destroy(tier));
    CHECK(store.released == 1);
}

static void a_tier_of_the_program(void) {
    kvmem_pool *pool = small_pool();
    store store = {.lock = PTHREAD_MUTEX_INITIALIZER};
    const kvmem_tier_callbacks callbacks = {sizeof callbacks, &store,      store_values, ask,
                                            fetch,            remove_keys, clear,        end};
    kvmem_kv_cache_options options;
    OK(kvmem_kv_cache_options_init(&options, sizeof options));
    options.max_blocks = 2;
    kvmem_lower_tier *tier;
    OK(kvmem_lower_tier_custom(&callbacks, &tier));
    options.lower_tier = tier;
    kvmem_kv_cache *cache;
    OK(kvmem_kv_cache_create(pool, &options, &cache));
    OK(kvmem_lower_tier_destroy(tier));

    for (uint64_t key = 1; key <= 4; key++)
        put(cache, key, 10 * key);
    CHECK(store.stored == 2 && at(cache, 1) == UINT64_MAX);
    for (uint64_t key = 1; key <= 4; key++)
        CHECK(find(cache, key) == 10 * key);
    CHECK(find(cache, 5) == UINT64_MAX);

    /* A value of an earlier call is not looked at. */
    uint32_t is;
    IS(KVMEM_ERR_INVALID_ARGUMENT, kvmem_tier_value_is_superseded(&store.last, &is));
    SAYS("store");

    /* Removed from both. */
    uint64_t key = 1;
    OK(kvmem_kv_cache_remove(cache, &key, sizeof key, NULL));
    CHECK(find(cache, 1) == UINT64_MAX && store.values[1] == 0);

    /* A value that is removed while the tier stores it. */
    OK(kvmem_kv_cache_evict_to(cache, 0, NULL));
    put(cache, 6, 60);
    store.cache = cache;
    OK(kvmem_kv_cache_evict_to(cache, 0, NULL));
    CHECK(store.superseded == 1 && find(cache, 6) == UINT64_MAX);

    /* Failures: what the tier may still have is not fetched until all is cleared. */
    put(cache, 7, 70);
    store.values[7] = 7; /* an older value */
    store.fails = 3;
    OK(kvmem_kv_cache_evict_to(cache, 0, NULL));
    CHECK(find(cache, 7) == UINT64_MAX);
    key = 2;
    IS(KVMEM_ERR_INVALIDATE_FAILED,
       kvmem_kv_cache_remove(cache, &key, sizeof key, NULL));
    SAYS("`remove` of the program's tier returned 3");
    IS(KVMEM_ERR_INVALIDATE_FAILED, kvmem_kv_cache_clear(cache));
    SAYS("`clear` of the program's tier returned 3");
    store.fails = 0;
    CHECK(find(cache, 2) == UINT64_MAX && find(cache, 3) == UINT64_MAX);
    OK(kvmem_kv_cache_clear(cache));
    put(cache, 2, 22);
    OK(kvmem_kv_cache_evict_to(cache, 0, NULL));
    CHECK(find(cache, 2) == 22);

    OK(kvmem_kv_cache_check(cache));
    CHECK(store.released == 0);
    OK(kvmem_kv_cache_destroy(cache));
    CHECK(store.released == 1);
    OK(kvmem_pool_destroy(pool));
}

int main(void) {
    options_of_other_versions();
    evicted_values();
    no_tiers();
    a_tier_of_the_program();
    return 0;
}
