/* A cache with a lower tier: evicted values go to the tier, and come back under a lease. */
#include <pthread.h>
#include <stdatomic.h>
#include <stddef.h>

#include "check.h"

enum { KEYS = 32, THREADS = 4, STEPS = 4000 };

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
    OK(kvmem_kv_cache_insert(cache, &key, sizeof key, &value, sizeof value));
}

static kvmem_kv_cache_leased lease(kvmem_kv_cache *cache, uint64_t key) {
    kvmem_kv_cache_leased leased;
    memset(&leased, 0xa5, sizeof leased);
    OK(kvmem_kv_cache_get_lease(cache, &key, sizeof key, &leased));
    CHECK((leased.outcome == KVMEM_LEASED_LEASE) == (leased.lease != NULL));
    CHECK((leased.outcome == KVMEM_LEASED_PRESENT) == (leased.value.pin != NULL));
    return leased;
}

/* Takes a lease, which must be available. */
static kvmem_kv_cache_lease *leased(kvmem_kv_cache *cache, uint64_t key) {
    kvmem_kv_cache_leased found = lease(cache, key);
    CHECK(found.outcome == KVMEM_LEASED_LEASE);
    return found.lease;
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

/* Returns the value under a key; UINT64_MAX: none. */
static uint64_t at(kvmem_kv_cache *cache, uint64_t key) {
    kvmem_kv_cache_value value;
    kvmem_status status = kvmem_kv_cache_get(cache, &key, sizeof key, &value);
    if (status == KVMEM_ERR_NOT_FOUND)
        return UINT64_MAX;
    OK(status);
    uint64_t found = number(value.data);
    OK(kvmem_kv_cache_pin_release(value.pin));
    return found;
}

static uint32_t is_valid(kvmem_kv_cache_lease *lease) {
    uint32_t is;
    OK(kvmem_kv_cache_lease_is_valid(lease, &is));
    return is;
}

static uint32_t superseded(kvmem_kv_cache_pin *pin) {
    uint32_t is;
    OK(kvmem_kv_cache_pin_is_superseded(pin, &is));
    return is;
}

/* A lower tier for some keys. */
typedef struct tier {
    pthread_mutex_t lock;
    uint64_t values[KEYS]; /* 0: none */
    kvmem_kv_cache *cache;
    int answer; /* what its functions answer */
    uint64_t evicted, invalidated, released;
    kvmem_kv_cache_pin *borrowed;
    kvmem_kv_cache_value kept; /* by a pin of its own, if `keep` */
    int keep, early;
    uint64_t key; /* to be invalidated */
    void (*meanwhile)(struct tier *, uint64_t key); /* before it looks whether it should take it */
} tier;

static int take(void *user, const kvmem_kv_cache_value *value, const void *key,
                uint64_t key_bytes) {
    tier *tier = user;
    CHECK(key_bytes == sizeof(uint64_t) && value->bytes == sizeof(uint64_t));
    /* The key can be read from the pin, too. */
    const void *again;
    uint64_t again_bytes;
    OK(kvmem_kv_cache_pin_cache_key(value->pin, &again, &again_bytes));
    CHECK(again_bytes == key_bytes && number(again) == number(key) && number(key) < KEYS);
    if (tier->meanwhile != NULL)
        tier->meanwhile(tier, number(key));
    CHECK(pthread_mutex_lock(&tier->lock) == 0);
    if (tier->answer == 0 && !superseded(value->pin))
        tier->values[number(key)] = number(value->data);
    tier->evicted++;
    tier->borrowed = value->pin;
    int answer = tier->answer;
    CHECK(pthread_mutex_unlock(&tier->lock) == 0);
    /* The key is not leased until this function returns. */
    if (tier->cache != NULL)
        CHECK(lease(tier->cache, number(key)).outcome != KVMEM_LEASED_LEASE);
    if (tier->keep)
        OK(kvmem_kv_cache_pin_clone(value->pin, &tier->kept));
    if (tier->early) {
        OK(kvmem_kv_cache_pin_release(value->pin));
        CHECK(number(key) < KEYS);
    }
    return answer;
}

static int invalidate(void *user) {
    tier *tier = user;
    if (tier->cache != NULL)
        CHECK(lease(tier->cache, tier->key).outcome == KVMEM_LEASED_UNAVAILABLE);
    CHECK(pthread_mutex_lock(&tier->lock) == 0);
    if (tier->answer == 0)
        tier->values[tier->key] = 0;
    tier->invalidated++;
    CHECK(pthread_mutex_unlock(&tier->lock) == 0);
    return tier->answer;
}

static int forget_all(void *user) {
    tier *tier = user;
    if (tier->cache != NULL)
        for (uint64_t key = 0; key < KEYS; key++)
            CHECK(lease(tier->cache, key).outcome == KVMEM_LEASED_UNAVAILABLE);
    if (tier->answer == 0)
        memset(tier->values, 0, sizeof tier->values);
    tier->invalidated++;
    return tier->answer;
}

static void gone(void *user) {
    ((tier *) user)->released++;
}

static void start(tier *tier) {
    memset(tier, 0, sizeof *tier);
    CHECK(pthread_mutex_init(&tier->lock, NULL) == 0);
}

static kvmem_kv_cache_options options_over(tier *tier, uint64_t max_blocks) {
    kvmem_kv_cache_options options;
    OK(kvmem_kv_cache_options_init(&options, sizeof options));
    CHECK(options.on_evict == NULL && options.on_evict_user == NULL &&
          options.on_evict_release == NULL);
    options.max_blocks = max_blocks;
    options.shards = 1;
    options.on_evict = take;
    options.on_evict_user = tier;
    options.on_evict_release = gone;
    return options;
}

static kvmem_kv_cache *cache_over(kvmem_pool *pool, tier *tier, uint64_t max_blocks) {
    const kvmem_kv_cache_options options = options_over(tier, max_blocks);
    kvmem_kv_cache *cache;
    OK(kvmem_kv_cache_create(pool, &options, &cache));
    return cache;
}

/* An options structure that ends with `shards`, as in older versions, and one that is longer. */
static void options_of_other_versions(void) {
    kvmem_pool *pool = small_pool();
    kvmem_kv_cache *cache;
    uint64_t older[6];
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
    tier tier;
    start(&tier);
    kvmem_kv_cache_options options;
    OK(kvmem_kv_cache_options_init(&options, sizeof options));
    options.on_evict_user = &tier;
    options.on_evict_release = gone;
    IS(KVMEM_ERR_INVALID_ARGUMENT, kvmem_kv_cache_create(pool, &options, &cache));
    SAYS("on_evict");
    options.on_evict = take;
    options.eviction = 9;
    IS(KVMEM_ERR_INVALID_ARGUMENT, kvmem_kv_cache_create(pool, &options, &cache));
    options.eviction = KVMEM_EVICT_LRU;
    options.low_watermark_bytes = 2;
    options.high_watermark_bytes = 1;
    IS(KVMEM_ERR_INVALID_ARGUMENT, kvmem_kv_cache_create(pool, &options, &cache));
    CHECK(tier.released == 0);
    options.low_watermark_bytes = 1;
    options.on_evict_release = NULL;
    OK(kvmem_kv_cache_create(pool, &options, &cache));
    OK(kvmem_kv_cache_destroy(cache));
    OK(kvmem_pool_destroy(pool));
}

static void evicted_values(void) {
    kvmem_pool *pool = small_pool();
    tier tier;
    start(&tier);
    kvmem_kv_cache *cache = cache_over(pool, &tier, 2);
    tier.cache = cache;
    put(cache, 1, 11);
    put(cache, 1, 21); /* replaced, so not given */
    put(cache, 2, 22);
    CHECK(tier.evicted == 0);
    put(cache, 3, 13);
    CHECK(tier.evicted == 1 && tier.values[1] == 21);
    /* The borrowed pin is released. */
    IS(KVMEM_ERR_BAD_HANDLE, kvmem_kv_cache_pin_release(tier.borrowed));

    /* Keeps a pin of its own, and releases the borrowed one by mistake. */
    tier.keep = 1;
    put(cache, 4, 14);
    tier.keep = 0;
    CHECK(tier.values[2] == 22 && number(tier.kept.data) == 22 && superseded(tier.kept.pin) == 0);
    tier.early = 1;
    put(cache, 5, 15);
    tier.early = 0;
    CHECK(tier.values[3] == 13 && tier.evicted == 3);
    IS(KVMEM_ERR_BAD_HANDLE, kvmem_kv_cache_pin_release(tier.borrowed));

    /* Evicted by evict_to and by a reservation; not by a removal or clearing. */
    OK(kvmem_kv_cache_evict_to(cache, 0, NULL));
    CHECK(tier.evicted == 5 && tier.values[4] == 14 && tier.values[5] == 15);
    put(cache, 6, 16);
    put(cache, 7, 17);
    OK(kvmem_kv_cache_reservation_release(written(cache, 8, 18)));
    CHECK(tier.evicted == 6 && tier.values[6] == 16);
    uint64_t key = 7;
    OK(kvmem_kv_cache_remove(cache, &key, sizeof key));
    put(cache, 9, 19);
    OK(kvmem_kv_cache_clear(cache));
    CHECK(tier.evicted == 6);

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
    OK(kvmem_kv_cache_remove(cache, &key, sizeof key));
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
    CHECK(tier.evicted == 6 && tier.released == 1 && number(tier.kept.data) == 22);
    OK(kvmem_kv_cache_pin_release(tier.kept.pin));
    OK(kvmem_pool_destroy(pool));
}

static void newer(tier *tier, uint64_t key) {
    tier->meanwhile = NULL;
    put(tier->cache, key, 99);
}

static void removed(tier *tier, uint64_t key) {
    tier->meanwhile = NULL;
    tier->key = key;
    uint32_t was_there;
    OK(kvmem_kv_cache_remove_with(tier->cache, &key, sizeof key, invalidate, tier, &was_there));
    CHECK(was_there == 0);
}

/* A value on its way to the tier is superseded if the key gets a newer value, or loses it. */
static void in_flight(void) {
    void (*const meanwhile[])(tier *, uint64_t) = {newer, removed};
    for (int how = 0; how < 2; how++) {
        kvmem_pool *pool = small_pool();
        tier tier;
        start(&tier);
        kvmem_kv_cache *cache = cache_over(pool, &tier, 2);
        tier.cache = cache;
        put(cache, 1, 11);
        put(cache, 2, 12);
        tier.meanwhile = meanwhile[how];
        put(cache, 3, 13);
        CHECK(tier.meanwhile == NULL && tier.values[1] == 0 && at(cache, 3) == 13);
        CHECK(at(cache, 1) == (how == 0 ? 99 : UINT64_MAX));
        if (how == 1)
            OK(kvmem_kv_cache_lease_release(leased(cache, 1)));
        OK(kvmem_kv_cache_check(cache));
        OK(kvmem_kv_cache_destroy(cache));
        OK(kvmem_pool_destroy(pool));
    }
}

static void leases(void) {
    kvmem_pool *pool = small_pool();
    kvmem_kv_cache *cache, *other;
    OK(kvmem_kv_cache_create(pool, NULL, &cache));
    OK(kvmem_kv_cache_create(pool, NULL, &other));
    uint64_t key = 1;
    kvmem_kv_cache_value value;

    /* A fetched value is committed. */
    kvmem_kv_cache_lease *held = leased(cache, 1), *same = leased(cache, 1);
    CHECK(is_valid(held) && is_valid(same));
    OK(kvmem_kv_cache_reservation_commit_leased(written(cache, 1, 5), held, &value));
    CHECK(number(value.data) == 5 && at(cache, 1) == 5);
    IS(KVMEM_ERR_BAD_HANDLE, kvmem_kv_cache_lease_release(held));
    /* The first commit succeeds; the second returns the reservation. */
    CHECK(!is_valid(same));
    kvmem_kv_cache_reservation *reserved = written(cache, 1, 6);
    kvmem_kv_cache_value found;
    IS(KVMEM_ERR_SUPERSEDED, kvmem_kv_cache_reservation_commit_leased(reserved, same, &found));
    SAYS("after the lease was taken");
    CHECK(found.pin != value.pin && found.data == value.data && at(cache, 1) == 5);
    IS(KVMEM_ERR_BAD_HANDLE, kvmem_kv_cache_lease_release(same));
    OK(kvmem_kv_cache_pin_release(found.pin));
    OK(kvmem_kv_cache_pin_release(value.pin));
    /* The reservation is still usable. */
    OK(kvmem_kv_cache_reservation_commit(reserved, NULL));
    CHECK(at(cache, 1) == 6);

    /* If the key has a value, there is no lease but the value. */
    kvmem_kv_cache_leased present = lease(cache, 1);
    CHECK(present.outcome == KVMEM_LEASED_PRESENT && number(present.value.data) == 6);
    OK(kvmem_kv_cache_pin_release(present.value.pin));

    /*
     * An insertion, a removal and a clearing make a lease invalid, also if the value is evicted
     * again. The newer value stays.
     */
    held = leased(cache, 2);
    put(cache, 2, 22);
    CHECK(!is_valid(held));
    reserved = written(cache, 2, 2);
    IS(KVMEM_ERR_SUPERSEDED, kvmem_kv_cache_reservation_commit_leased(reserved, held, NULL));
    CHECK(at(cache, 2) == 22);
    OK(kvmem_kv_cache_reservation_release(reserved));
    IS(KVMEM_ERR_BAD_HANDLE, kvmem_kv_cache_reservation_release(reserved));

    for (int how = 0; how < 4; how++) {
        key = 3;
        held = leased(cache, key);
        if (how != 0)
            put(cache, key, 33);
        if (how == 1)
            OK(kvmem_kv_cache_remove(cache, &key, sizeof key));
        else if (how == 2)
            OK(kvmem_kv_cache_evict_to(cache, 0, NULL));
        else
            OK(kvmem_kv_cache_clear(cache));
        CHECK(!is_valid(held));
        reserved = written(cache, key, 3);
        memset(&found, 0xa5, sizeof found);
        IS(KVMEM_ERR_SUPERSEDED, kvmem_kv_cache_reservation_commit_leased(reserved, held, &found));
        CHECK(found.pin == NULL && found.data == NULL && at(cache, key) == UINT64_MAX);
        /* A later lease is valid. */
        held = leased(cache, key);
        OK(kvmem_kv_cache_reservation_commit_leased(reserved, held, NULL));
        CHECK(at(cache, key) == 3);
        OK(kvmem_kv_cache_remove(cache, &key, sizeof key));
    }
    kvmem_kv_cache_stats stats;
    OK(kvmem_kv_cache_get_stats(cache, &stats));
    CHECK(stats.superseded == 6 && stats.sink_failures == 0);

    /* A removal of a missing value makes a lease invalid, too. */
    held = leased(cache, 4);
    key = 4;
    IS(KVMEM_ERR_NOT_FOUND, kvmem_kv_cache_remove(cache, &key, sizeof key));
    CHECK(!is_valid(held));
    OK(kvmem_kv_cache_lease_release(held));
    IS(KVMEM_ERR_BAD_HANDLE, kvmem_kv_cache_lease_release(held));
    uint32_t is;
    IS(KVMEM_ERR_BAD_HANDLE, kvmem_kv_cache_lease_is_valid(held, &is));

    /* A lease for another key or cache: both objects stay. */
    held = leased(cache, 5);
    kvmem_kv_cache_lease *foreign = leased(other, 5);
    reserved = written(cache, 5, 55);
    kvmem_kv_cache_reservation *wrong = written(cache, 6, 66);
    IS(KVMEM_ERR_INVALID_ARGUMENT, kvmem_kv_cache_reservation_commit_leased(wrong, held, &found));
    SAYS("for another key");
    IS(KVMEM_ERR_INVALID_ARGUMENT,
       kvmem_kv_cache_reservation_commit_leased(reserved, foreign, &found));
    IS(KVMEM_ERR_NULL_ARGUMENT, kvmem_kv_cache_reservation_commit_leased(reserved, NULL, &found));
    IS(KVMEM_ERR_BAD_HANDLE, kvmem_kv_cache_reservation_commit_leased(
                                 reserved, (kvmem_kv_cache_lease *) (void *) reserved, &found));
    IS(KVMEM_ERR_NULL_ARGUMENT, kvmem_kv_cache_reservation_commit_leased(NULL, held, &found));
    IS(KVMEM_ERR_BAD_HANDLE, kvmem_kv_cache_reservation_commit_leased(
                                 (kvmem_kv_cache_reservation *) (void *) cache, held, &found));
    CHECK(is_valid(held) && is_valid(foreign) && at(cache, 5) == UINT64_MAX);
    OK(kvmem_kv_cache_reservation_commit_leased(reserved, held, NULL));
    IS(KVMEM_ERR_BAD_HANDLE, kvmem_kv_cache_reservation_commit_leased(reserved, foreign, &found));
    CHECK(at(cache, 5) == 55 && at(other, 5) == UINT64_MAX && is_valid(foreign));
    OK(kvmem_kv_cache_lease_release(foreign));
    OK(kvmem_kv_cache_reservation_release(wrong));

    kvmem_kv_cache_leased none;
    IS(KVMEM_ERR_NULL_ARGUMENT, kvmem_kv_cache_get_lease(cache, NULL, 4, &none));
    IS(KVMEM_ERR_NULL_ARGUMENT, kvmem_kv_cache_get_lease(cache, "key", 3, NULL));
    IS(KVMEM_ERR_INVALID_ARGUMENT, kvmem_kv_cache_get_lease(cache, "key", UINT64_MAX, &none));
    OK(kvmem_kv_cache_get_lease(cache, NULL, 0, &none));
    CHECK(none.outcome == KVMEM_LEASED_LEASE);
    OK(kvmem_kv_cache_lease_release(none.lease));

    OK(kvmem_kv_cache_check(cache));
    OK(kvmem_kv_cache_destroy(other));
    OK(kvmem_kv_cache_destroy(cache));
    OK(kvmem_pool_destroy(pool));
}

/*
 * If the tier fails to store or to invalidate a value, its key is not leased until all is cleared.
 */
static void failures(void) {
    kvmem_pool *pool = small_pool();
    tier tier;
    start(&tier);
    kvmem_kv_cache *cache = cache_over(pool, &tier, 2);
    uint32_t removed = 9;
    uint64_t key = 1;
    put(cache, 1, 1);
    put(cache, 2, 2);
    tier.answer = 5;
    put(cache, 3, 3); /* evicts 1, which is not taken; the insertion is another matter */
    CHECK(tier.evicted == 1 && tier.values[1] == 0 && at(cache, 3) == 3);
    CHECK(lease(cache, 1).outcome == KVMEM_LEASED_UNAVAILABLE);
    kvmem_kv_cache_stats stats;
    OK(kvmem_kv_cache_get_stats(cache, &stats));
    CHECK(stats.evictions == 1 && stats.sink_failures == 1);
    kvmem_kv_cache_lease *held = leased(cache, 4);

    tier.key = key = 3;
    IS(KVMEM_ERR_INVALIDATE_FAILED,
       kvmem_kv_cache_remove_with(cache, &key, sizeof key, invalidate, &tier, &removed));
    SAYS("returned 5");
    CHECK(removed == 9 && tier.invalidated == 1 && at(cache, 3) == UINT64_MAX);
    CHECK(lease(cache, 3).outcome == KVMEM_LEASED_UNAVAILABLE && is_valid(held));
    /* The key stays that way if another key is invalidated, until all is cleared. */
    tier.answer = 0;
    tier.cache = cache;
    OK(kvmem_kv_cache_remove_with(cache, &key, sizeof key, invalidate, &tier, &removed));
    CHECK(removed == 0 && lease(cache, 3).outcome == KVMEM_LEASED_UNAVAILABLE);
    tier.cache = NULL;
    put(cache, 3, 33);
    CHECK(at(cache, 3) == 33); /* the cache itself goes on */

    tier.answer = -1;
    IS(KVMEM_ERR_INVALIDATE_FAILED, kvmem_kv_cache_clear_with(cache, forget_all, &tier));
    SAYS("returned -1");
    CHECK(!is_valid(held) && at(cache, 3) == UINT64_MAX &&
          lease(cache, 7).outcome == KVMEM_LEASED_UNAVAILABLE);
    OK(kvmem_kv_cache_lease_release(held));
    tier.answer = 0;
    tier.cache = cache;
    OK(kvmem_kv_cache_clear_with(cache, forget_all, &tier));
    tier.cache = NULL;
    for (key = 0; key < KEYS; key++)
        OK(kvmem_kv_cache_lease_release(leased(cache, key)));

    /*
     * `invalidate` is called whether the key has a value or not, but not for an invalid argument.
     */
    uint64_t calls = tier.invalidated;
    tier.key = key = 5;
    put(cache, key, 5);
    held = leased(cache, 6);
    OK(kvmem_kv_cache_remove_with(cache, &key, sizeof key, invalidate, &tier, &removed));
    CHECK(removed == 1 && tier.invalidated == calls + 1);
    tier.key = key = 6;
    OK(kvmem_kv_cache_remove_with(cache, &key, sizeof key, invalidate, &tier, NULL));
    CHECK(!is_valid(held) && tier.invalidated == calls + 2);
    OK(kvmem_kv_cache_lease_release(held));
    put(cache, key, 6);
    IS(KVMEM_ERR_NULL_ARGUMENT,
       kvmem_kv_cache_remove_with(cache, &key, sizeof key, NULL, &tier, &removed));
    SAYS("invalidate");
    IS(KVMEM_ERR_NULL_ARGUMENT,
       kvmem_kv_cache_remove_with(cache, NULL, 3, invalidate, &tier, &removed));
    IS(KVMEM_ERR_NULL_ARGUMENT, kvmem_kv_cache_clear_with(cache, NULL, &tier));
    IS(KVMEM_ERR_NULL_ARGUMENT, kvmem_kv_cache_clear_with(NULL, forget_all, &tier));
    CHECK(tier.invalidated == calls + 2 && at(cache, key) == 6);
    OK(kvmem_kv_cache_destroy(cache));
    CHECK(tier.released == 1);
    OK(kvmem_pool_destroy(pool));
}

/* Leases and reservations keep the cache, and with it the user data; pins do not. */
static void the_last_user_ends_the_cache(void) {
    kvmem_pool *pool = small_pool();
    tier tier;
    start(&tier);
    kvmem_kv_cache_options options = options_over(&tier, 3);
    options.low_watermark_bytes = 8;
    options.high_watermark_bytes = 16;
    kvmem_kv_cache *cache;
    OK(kvmem_kv_cache_create(pool, &options, &cache));
    uint64_t key = 1;
    kvmem_kv_cache_value value;
    put(cache, 1, 1);
    OK(kvmem_kv_cache_get(cache, &key, sizeof key, &value));
    put(cache, 5, 15);
    kvmem_kv_cache_lease *held = leased(cache, 2), *another = leased(cache, 3);
    kvmem_kv_cache_reservation *reserved = written(cache, 2, 2);
    OK(kvmem_kv_cache_destroy(cache));
    OK(kvmem_pool_destroy(pool));
    kvmem_kv_cache_leased none;
    IS(KVMEM_ERR_BAD_HANDLE, kvmem_kv_cache_get_lease(cache, &key, sizeof key, &none));
    CHECK(is_valid(held) && is_valid(another) && tier.released == 0);
    kvmem_kv_cache_value second;
    /* A reservation still evicts above the watermark, and the sink still receives the value. */
    CHECK(tier.evicted == 0);
    OK(kvmem_kv_cache_reservation_commit_leased(reserved, held, &second));
    CHECK(number(second.data) == 2 && tier.evicted == 1 && tier.values[5] == 15 &&
          tier.released == 0);
    OK(kvmem_kv_cache_lease_release(another));
    CHECK(tier.released == 1 && tier.evicted == 1 && number(value.data) == 1 &&
          number(second.data) == 2);
    OK(kvmem_kv_cache_pin_release(value.pin));
    OK(kvmem_kv_cache_pin_release(second.pin));
}

/* Returns a value that was cached or fetched under a lease; 0: none. */
static uint64_t find(kvmem_kv_cache *cache, tier *tier, uint64_t key) {
    kvmem_kv_cache_leased found = lease(cache, key);
    kvmem_kv_cache_value value = found.value;
    if (found.outcome == KVMEM_LEASED_UNAVAILABLE)
        return 0;
    if (found.outcome == KVMEM_LEASED_LEASE) {
        CHECK(pthread_mutex_lock(&tier->lock) == 0);
        uint64_t fetched = tier->values[key];
        CHECK(pthread_mutex_unlock(&tier->lock) == 0);
        if (fetched == 0) {
            OK(kvmem_kv_cache_lease_release(found.lease));
            return 0;
        }
        kvmem_kv_cache_reservation *reserved = written(cache, key, fetched);
        kvmem_status status =
            kvmem_kv_cache_reservation_commit_leased(reserved, found.lease, &value);
        if (status == KVMEM_ERR_SUPERSEDED) {
            OK(kvmem_kv_cache_reservation_release(reserved));
            if (value.pin == NULL)
                return 0;
        } else
            OK(status);
    }
    uint64_t there = number(value.data);
    OK(kvmem_kv_cache_pin_release(value.pin));
    return there;
}

static void to_and_fro(void) {
    kvmem_pool *pool = small_pool();
    tier tier;
    start(&tier);
    kvmem_kv_cache *cache = cache_over(pool, &tier, 4);
    for (uint64_t key = 0; key < KEYS; key++)
        put(cache, key, 100 + key);
    for (uint64_t key = 0; key < KEYS; key++)
        CHECK(find(cache, &tier, key) == 100 + key);

    /* A fetch does not undo a removal. */
    uint64_t key = 3;
    kvmem_kv_cache_lease *held = leased(cache, key);
    kvmem_kv_cache_reservation *reserved = written(cache, key, tier.values[key]);
    CHECK(tier.values[key] == 103);
    tier.key = key;
    OK(kvmem_kv_cache_remove_with(cache, &key, sizeof key, invalidate, &tier, NULL));
    IS(KVMEM_ERR_SUPERSEDED, kvmem_kv_cache_reservation_commit_leased(reserved, held, NULL));
    OK(kvmem_kv_cache_reservation_release(reserved));
    CHECK(find(cache, &tier, key) == 0);
    OK(kvmem_kv_cache_check(cache));
    OK(kvmem_kv_cache_destroy(cache));
    OK(kvmem_pool_destroy(pool));
    CHECK(tier.released == 1);
}

/*
 * Each thread writes its own keys, with increasing values, and looks up all keys. No thread may
 * find a value older than one that was there before.
 */
static struct {
    kvmem_kv_cache *cache;
    tier tier;
    _Atomic uint64_t latest[KEYS];
} race;

static int forget_one(void *user) {
    CHECK(pthread_mutex_lock(&race.tier.lock) == 0);
    race.tier.values[*(uint64_t *) user] = 0;
    CHECK(pthread_mutex_unlock(&race.tier.lock) == 0);
    return 0;
}

static void *work(void *argument) {
    uint64_t thread = *(uint64_t *) argument, random = 1 + thread;
    for (uint64_t step = 1, steps = rounds(STEPS); step <= steps; step++) {
        random = random * 6364136223846793005u + 1442695040888963407u;
        uint64_t key = (random >> 33) % KEYS;
        uint64_t before = atomic_load(&race.latest[key]);
        uint64_t found = find(race.cache, &race.tier, key);
        CHECK(found == 0 || found >= before);
        if (key % THREADS != thread)
            continue;
        if (random >> 62 == 0)
            OK(kvmem_kv_cache_remove_with(race.cache, &key, sizeof key, forget_one, &key, NULL));
        else
            put(race.cache, key, step);
        /* A removal is ordered between the values before it and after it. */
        atomic_store(&race.latest[key], random >> 62 == 0 ? step + 1 : step);
    }
    return NULL;
}

static void many_threads(void) {
    kvmem_pool *pool = small_pool();
    start(&race.tier);
    race.cache = cache_over(pool, &race.tier, 8);
    pthread_t threads[THREADS];
    uint64_t numbers[THREADS];
    for (uint64_t i = 0; i < THREADS; i++) {
        numbers[i] = i;
        CHECK(pthread_create(&threads[i], NULL, work, &numbers[i]) == 0);
    }
    for (int i = 0; i < THREADS; i++)
        CHECK(pthread_join(threads[i], NULL) == 0);
    CHECK(race.tier.evicted > rounds(100));
    OK(kvmem_kv_cache_check(race.cache));
    OK(kvmem_kv_cache_destroy(race.cache));
    CHECK(race.tier.released == 1);
    OK(kvmem_pool_check(pool));
    OK(kvmem_pool_destroy(pool));
}

int main(void) {
    options_of_other_versions();
    evicted_values();
    in_flight();
    leases();
    failures();
    the_last_user_ends_the_cache();
    to_and_fro();
    many_threads();
    return 0;
}
