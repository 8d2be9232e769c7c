/*
 * Forks while other threads insert, look up and remove in a cache. Each call of the child returns
 * KVMEM_ERR_FORKED.
 */
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include "check.h"

enum { THREADS = 3, FORKS = 60, KEYS = 200, HELD = 100, BYTES = 256 };

static atomic_int stop;
static atomic_int turns;
static kvmem_kv_cache *cache;

static void *work(void *argument) {
    unsigned seed = (unsigned) (size_t) argument;
    unsigned char value[BYTES] = {1};
    while (!stop) {
        seed = seed * 1103515245u + 12345u;
        uint64_t key = (seed >> 8) % KEYS;
        kvmem_kv_cache_value found;
        kvmem_status status;
        switch ((seed >> 24) % 4) {
        case 0:
            status = kvmem_kv_cache_get(cache, &key, sizeof key, &found);
            CHECK(status == KVMEM_OK || status == KVMEM_ERR_NOT_FOUND);
            if (status == KVMEM_OK)
                OK(kvmem_kv_cache_pin_release(found.pin));
            break;
        case 1:
            OK(kvmem_kv_cache_remove(cache, &key, sizeof key, NULL));
            break;
        default:
            OK(kvmem_kv_cache_insert(cache, &key, sizeof key, value, sizeof value, NULL));
        }
        turns++;
    }
    return NULL;
}

static void in_child(kvmem_kv_cache_reserved reserved) {
    uint64_t key = 1, held;
    uint32_t answer;
    unsigned char value[BYTES] = {1};
    kvmem_kv_cache_value found;
    kvmem_kv_cache_reserved other;
    kvmem_kv_cache_stats stats;
    IS(KVMEM_ERR_FORKED, kvmem_kv_cache_contains(cache, &key, sizeof key, &answer));
    IS(KVMEM_ERR_FORKED, kvmem_kv_cache_get(cache, &key, sizeof key, &found));
    const kvmem_kv_cache_key one = {&key, sizeof key};
    IS(KVMEM_ERR_FORKED, kvmem_kv_cache_prefetch(cache, &one, 1));
    IS(KVMEM_ERR_FORKED, kvmem_kv_cache_insert(cache, &key, sizeof key, value, sizeof value, NULL));
    IS(KVMEM_ERR_FORKED, kvmem_kv_cache_reserve(cache, &key, sizeof key, BYTES, &other));
    IS(KVMEM_ERR_FORKED, kvmem_kv_cache_remove(cache, &key, sizeof key, NULL));
    IS(KVMEM_ERR_FORKED, kvmem_kv_cache_clear(cache));
    IS(KVMEM_ERR_FORKED, kvmem_kv_cache_evict_to(cache, 0, &held));
    IS(KVMEM_ERR_FORKED, kvmem_kv_cache_check(cache));
    IS(KVMEM_ERR_FORKED, kvmem_kv_cache_reservation_commit(reserved.reservation, &found));
    IS(KVMEM_ERR_FORKED, kvmem_kv_cache_get_stats(cache, &stats));
    OK(kvmem_kv_cache_reservation_release(reserved.reservation));
    OK(kvmem_kv_cache_destroy(cache));
}

int main(void) {
    kvmem_pool_options wanted;
    kvmem_kv_cache_options options;
    kvmem_pool *pool;
    OK(kvmem_pool_options_init(&wanted, sizeof wanted));
    OK(kvmem_pool_create(1 << 20, &wanted, &pool));
    OK(kvmem_kv_cache_options_init(&options, sizeof options));
    options.max_blocks = HELD;
    OK(kvmem_kv_cache_create(pool, &options, &cache));

    pthread_t threads[THREADS];
    for (size_t i = 0; i < THREADS; i++)
        CHECK(pthread_create(&threads[i], NULL, work, (void *) (i + 1)) == 0);
    while (turns < 1000)
        usleep(100);
    for (int i = 0; i < FORKS; i++) {
        uint64_t key = 1000;
        kvmem_kv_cache_reserved reserved;
        OK(kvmem_kv_cache_reserve(cache, &key, sizeof key, BYTES, &reserved));
        pid_t child = fork();
        CHECK(child >= 0);
        if (child == 0) {
            /* The alarm kills a child that waits forever; its status then differs from 0. */
            alarm(300);
            in_child(reserved);
            _exit(0);
        }
        int status;
        CHECK(waitpid(child, &status, 0) == child);
        CHECK(status == 0);
        OK(kvmem_kv_cache_reservation_release(reserved.reservation));
    }
    stop = 1;
    for (int i = 0; i < THREADS; i++)
        CHECK(pthread_join(threads[i], NULL) == 0);
    OK(kvmem_kv_cache_check(cache));
    OK(kvmem_kv_cache_destroy(cache));
    OK(kvmem_pool_destroy(pool));
    return 0;
}
