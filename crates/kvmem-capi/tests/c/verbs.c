/* The verbs of a cache, by the table of all languages: what they return, and which calls of the
 * lower tier they make. */
#include "check.h"

static const uint64_t key = 7;
static const kvmem_kv_cache_key keys[] = {{&key, sizeof key}};

/* Counts a value, and releases its pin. */
static uint64_t counted(kvmem_kv_cache_value value) {
    if (value.pin == NULL)
        return 0;
    OK(kvmem_kv_cache_pin_release(value.pin));
    return 1;
}

static uint64_t looked_up(kvmem_status status, kvmem_kv_cache_value value) {
    if (status == KVMEM_ERR_NOT_FOUND)
        return 0;
    OK(status);
    return counted(value);
}

/* Calls a verb; returns the number of values found, removed or counted, or else UINT64_MAX. */
static uint64_t call(kvmem_kv_cache *cache, const char *verb) {
#define IS_VERB(name) (strcmp(verb, name) == 0)
    kvmem_kv_cache_value value;
    kvmem_status status;
    uint32_t answer;
    uint64_t number = UINT64_MAX;
    if (IS_VERB("get")) {
        status = kvmem_kv_cache_get(cache, &key, sizeof key, &value);
        return looked_up(status, value);
    } else if (IS_VERB("get_in_memory")) {
        status = kvmem_kv_cache_get_in_memory(cache, &key, sizeof key, &value);
        return looked_up(status, value);
    } else if (IS_VERB("get_batch")) {
        OK(kvmem_kv_cache_get_batch(cache, keys, 1, &value));
        return counted(value);
    } else if (IS_VERB("get_batch_until")) {
        OK(kvmem_kv_cache_get_batch_until(cache, keys, 1, UINT64_MAX, &value));
        return counted(value);
    } else if (IS_VERB("start_fetch")) {
        kvmem_kv_cache_fetching *fetching;
        OK(kvmem_kv_cache_start_fetch(cache, keys, 1, &fetching));
        OK(kvmem_kv_cache_fetching_wait(fetching, UINT64_MAX, NULL));
        OK(kvmem_kv_cache_fetching_take(fetching, &value, 1));
        return counted(value);
    } else if (IS_VERB("contains")) {
        OK(kvmem_kv_cache_contains(cache, &key, sizeof key, &answer));
        return answer;
    } else if (IS_VERB("contains_in_memory")) {
        OK(kvmem_kv_cache_contains_in_memory(cache, &key, sizeof key, &answer));
        return answer;
    } else if (IS_VERB("len")) {
        OK(kvmem_kv_cache_len(cache, &number));
    } else if (IS_VERB("len_in_memory")) {
        OK(kvmem_kv_cache_len_in_memory(cache, &number));
    } else if (IS_VERB("remove")) {
        OK(kvmem_kv_cache_remove(cache, &key, sizeof key, &answer));
        return answer;
    } else if (IS_VERB("remove_in_memory")) {
        OK(kvmem_kv_cache_remove_in_memory(cache, &key, sizeof key, &answer));
        return answer;
    } else if (IS_VERB("clear")) {
        OK(kvmem_kv_cache_clear(cache));
    } else if (IS_VERB("clear_in_memory")) {
        OK(kvmem_kv_cache_clear_in_memory(cache));
    } else if (IS_VERB("insert")) {
        OK(kvmem_kv_cache_insert(cache, &key, sizeof key, "another", 7, NULL));
    } else if (IS_VERB("evict_to")) {
        OK(kvmem_kv_cache_evict_to(cache, 0, NULL));
    } else if (IS_VERB("prefetch")) {
        OK(kvmem_kv_cache_prefetch(cache, keys, 1));
    } else {
        CHECK(!"the table has an unknown verb");
    }
    return number;
}

static kvmem_kv_cache *above(kvmem_pool *pool) {
    kvmem_kv_cache_options options;
    OK(kvmem_kv_cache_options_init(&options, sizeof options));
    kvmem_lower_tier *tier;
    OK(kvmem_lower_tier_counting(&tier));
    options.lower_tier = tier;
    kvmem_kv_cache *cache;
    OK(kvmem_kv_cache_create(pool, &options, &cache));
    OK(kvmem_lower_tier_destroy(tier));
    OK(kvmem_kv_cache_clear(cache));
    return cache;
}

static void check(kvmem_pool *pool, const char *verb, int place, const char *answer,
                  const char *calls) {
    enum { MEMORY, TIER, BOTH, MISSING };
    kvmem_kv_cache *cache = above(pool);
    if (place != MISSING)
        OK(kvmem_kv_cache_insert(cache, &key, sizeof key, "value", 5, NULL));
    if (place == TIER || place == BOTH)
        OK(kvmem_kv_cache_evict_to(cache, 0, NULL));
    if (place == BOTH)
        CHECK(call(cache, "get") == 1);
    char made[64];
    OK(kvmem_lower_tier_calls(made, sizeof made, NULL));
    uint64_t returned = call(cache, verb);
    OK(kvmem_lower_tier_calls(made, sizeof made, NULL));
    if (returned == UINT64_MAX)
        OK(kvmem_kv_cache_len(cache, &returned));
    if (returned != strtoull(answer, NULL, 10) || strcmp(made, calls) != 0) {
        fprintf(stderr, "%s in place %d: %llu %s, wanted %s %s\n", verb, place,
                (unsigned long long) returned, made, answer, calls);
        exit(1);
    }
    OK(kvmem_kv_cache_destroy(cache));
}

static int has(kvmem_kv_cache *cache, uint64_t number) {
    uint32_t contains;
    OK(kvmem_kv_cache_contains(cache, &number, sizeof number, &contains));
    return contains == 1;
}

/* Hints reach the tier, by each call that takes them. */
static void check_hints(kvmem_pool *pool) {
    kvmem_kv_cache *cache = above(pool);
    const kvmem_value_hints hints = {
        .ttl_ms = 3600000, .priority = 3, .depth = 5, .data_type = KVMEM_DATA_FLOAT8_E5M2};
    const kvmem_value_hints bad = {.priority = 4}, brief = {.ttl_ms = 1}, typed = {.data_type = 5};
    kvmem_value_hints got;
    kvmem_kv_cache_reserved reserved;
    uint64_t one = 1, other = 2, last = 3;
    OK(kvmem_kv_cache_insert(cache, &one, sizeof one, "one", 3, &hints));
    kvmem_kv_cache_new_value values[] = {{&other, sizeof other, "other", 5, hints},
                                         {&last, sizeof last, "last", 4, bad}};
    IS(KVMEM_ERR_INVALID_ARGUMENT, kvmem_kv_cache_insert_batch(cache, values, 2));
    SAYS("priority is 4: use 0 to 3");
    values[1].hints = typed;
    IS(KVMEM_ERR_INVALID_ARGUMENT, kvmem_kv_cache_insert_batch(cache, values, 2));
    SAYS("data_type is 5: use KVMEM_DATA_UNKNOWN, KVMEM_DATA_BFLOAT16");
    CHECK(!has(cache, other));
    values[1].hints = brief;
    OK(kvmem_kv_cache_insert_batch(cache, values, 2));
    OK(kvmem_kv_cache_insert_batch(cache, NULL, 0));
    OK(kvmem_kv_cache_reserve(cache, &key, sizeof key, 3, &reserved));
    memcpy(reserved.data, "key", 3);
    IS(KVMEM_ERR_INVALID_ARGUMENT,
       kvmem_kv_cache_reservation_set_hints(reserved.reservation, &bad));
    OK(kvmem_kv_cache_reservation_set_hints(reserved.reservation, &hints));
    OK(kvmem_kv_cache_reservation_commit(reserved.reservation, NULL));
    while (has(cache, last))
        ;
    CHECK(has(cache, one) && has(cache, other) && has(cache, key));
    OK(kvmem_kv_cache_evict_to(cache, 0, NULL));
    const uint64_t hinted[] = {one, other, key};
    for (int at = 0; at < 3; at++) {
        OK(kvmem_lower_tier_hints(&hinted[at], sizeof hinted[at], &got));
        CHECK(got.ttl_ms <= 3600000 && got.ttl_ms > 1800000 && got.priority == 3);
        CHECK(got.depth == 5 && got.data_type == KVMEM_DATA_FLOAT8_E5M2);
    }
    IS(KVMEM_ERR_NOT_FOUND, kvmem_lower_tier_hints(&last, sizeof last, &got));
    OK(kvmem_kv_cache_destroy(cache));
}

int main(void) {
    kvmem_pool_options options;
    OK(kvmem_pool_options_init(&options, sizeof options));
    options.pages = "4k";
    kvmem_pool *pool;
    OK(kvmem_pool_create(MIB, &options, &pool));
    FILE *table = fopen(getenv("KVMEM_TEST_CACHE_VERBS"), "r");
    CHECK(table != NULL);
    char row[256];
    int rows = 0;
    while (fgets(row, sizeof row, table) != NULL) {
        if (row[0] == '#')
            continue;
        char words[9][32];
        CHECK(sscanf(row, "%31s %31s %31s %31s %31s %31s %31s %31s %31s", words[0], words[1],
                     words[2], words[3], words[4], words[5], words[6], words[7], words[8]) == 9);
        for (int place = 0; place < 4; place++)
            check(pool, words[0], place, words[2 * place + 1], words[2 * place + 2]);
        rows++;
    }
    CHECK(rows >= 16 && fclose(table) == 0);
    check_hints(pool);
    OK(kvmem_pool_destroy(pool));
    return 0;
}
