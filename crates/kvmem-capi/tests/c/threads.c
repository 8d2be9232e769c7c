/*
 * Several threads on the same objects. Each thread has its own last error. If two threads free the
 * same allocation, one succeeds.
 */
#include <pthread.h>
#include <stdatomic.h>

#include "check.h"

enum { THREADS = 4, STEPS = 2000 };

static kvmem_offset_allocator *spaces[2];
static kvmem_slab_allocator *slab;
static kvmem_pool *pool;
static kvmem_kv_cache *cache;
static kvmem_bump_arena *arena;

/* Blocks that one thread passes to the next. */
static _Atomic(void *) handed[THREADS];
/* An allocation that all threads free. */
static kvmem_allocation common;
static kvmem_pool *common_pool;
static atomic_int freed, destroyed;
static pthread_barrier_t barrier;

static void *work(void *argument) {
    uint64_t thread = *(uint64_t *) argument;
    for (uint64_t step = 0, steps = rounds(STEPS); step < steps; step++) {
        uint64_t bytes = 1 + (step * 7 + thread) % 500;
        kvmem_allocation a;
        OK(kvmem_offset_allocator_allocate(spaces[step & 1], bytes, &a));
        kvmem_block block;
        OK(kvmem_pool_allocate(pool, bytes, &block));
        memset(block.data, (int) thread, block.bytes);
        void *mine, *bumped;
        OK(kvmem_slab_allocator_allocate(slab, 64, &mine));
        memset(mine, (int) thread, 64);
        if (step % 16 == 0)
            OK(kvmem_bump_arena_allocate(arena, 8, 8, &bumped));
        void *other = atomic_exchange(&handed[(thread + 1) % THREADS], mine);
        OK(kvmem_slab_allocator_free(slab, other, 64));

        uint64_t key = step % 50;
        kvmem_kv_cache_value value;
        kvmem_status found = kvmem_kv_cache_get(cache, &key, sizeof key, &value);
        if (found == KVMEM_OK) {
            CHECK(memcmp(value.data, &key, sizeof key) == 0);
            OK(kvmem_kv_cache_pin_release(value.pin));
        } else {
            IS(KVMEM_ERR_NOT_FOUND, found);
            OK(kvmem_kv_cache_insert(cache, &key, sizeof key, &key, sizeof key, NULL));
        }

        /* Error texts belong to the thread. */
        if (step % 100 == 0) {
            char words[64];
            kvmem_allocation none;
            IS(KVMEM_ERR_TOO_LARGE,
               kvmem_offset_allocator_allocate(spaces[0], ((uint64_t) 1 << 40) + thread, &none));
            snprintf(words, sizeof words, "%llu", (1ull << 40) + (unsigned long long) thread);
            SAYS(words);
        }
        for (uint64_t byte = 0; byte < block.bytes; byte++)
            CHECK(((unsigned char *) block.data)[byte] == thread);
        OK(kvmem_block_free(&block));
        OK(kvmem_offset_allocator_free(spaces[step & 1], &a));
    }

    pthread_barrier_wait(&barrier);
    freed += kvmem_offset_allocator_free(spaces[0], &common) == KVMEM_OK;
    pthread_barrier_wait(&barrier);
    destroyed += kvmem_pool_destroy(common_pool) == KVMEM_OK;
    return NULL;
}

int main(void) {
    kvmem_offset_allocator_options options;
    OK(kvmem_offset_allocator_options_init(&options, sizeof options));
    for (uint32_t i = 0; i < 2; i++) {
        options.magazines = i;
        OK(kvmem_offset_allocator_create((uint64_t) 1 << 30, &options, &spaces[i]));
    }
    kvmem_pool_options plain;
    OK(kvmem_pool_options_init(&plain, sizeof plain));
    plain.pages = "4k";
    OK(kvmem_pool_create(4 * MIB, &plain, &pool));
    OK(kvmem_pool_create(4096, &plain, &common_pool));
    OK(kvmem_kv_cache_create(pool, NULL, &cache));
    OK(kvmem_slab_allocator_create(NULL, &slab));
    kvmem_region *region;
    OK(kvmem_region_map(MIB, NULL, &region));
    OK(kvmem_bump_arena_create(region, &arena));
    OK(kvmem_offset_allocator_allocate(spaces[0], 1000, &common));

    pthread_t threads[THREADS];
    uint64_t numbers[THREADS];
    CHECK(pthread_barrier_init(&barrier, NULL, THREADS) == 0);
    for (uint64_t i = 0; i < THREADS; i++) {
        numbers[i] = i;
        CHECK(pthread_create(&threads[i], NULL, work, &numbers[i]) == 0);
    }
    for (int i = 0; i < THREADS; i++)
        CHECK(pthread_join(threads[i], NULL) == 0);
    CHECK(freed == 1 && destroyed == 1);

    for (int i = 0; i < THREADS; i++)
        OK(kvmem_slab_allocator_free(slab, handed[i], 64));
    kvmem_slab_allocator_stats stats;
    OK(kvmem_slab_allocator_get_stats(slab, &stats));
    CHECK(stats.in_use == 0);
    kvmem_bump_arena_stats bumped;
    OK(kvmem_bump_arena_get_stats(arena, &bumped));
    CHECK(bumped.used == THREADS * ((rounds(STEPS) + 15) / 16) * 8);
    OK(kvmem_pool_check(pool));
    OK(kvmem_kv_cache_check(cache));
    for (int i = 0; i < 2; i++) {
        OK(kvmem_offset_allocator_check(spaces[i]));
        OK(kvmem_offset_allocator_destroy(spaces[i]));
    }
    OK(kvmem_kv_cache_destroy(cache));
    OK(kvmem_pool_destroy(pool));
    OK(kvmem_slab_allocator_destroy(slab));
    OK(kvmem_bump_arena_destroy(arena));
    OK(kvmem_region_destroy(region));
    return 0;
}
