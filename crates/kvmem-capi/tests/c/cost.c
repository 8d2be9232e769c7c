/*
 * Prints the cost of an allocation and its free, in nanoseconds of processor time. KVMEM_COST is
 * the number of rounds. No number is checked.
 */
#include <time.h>

#include "check.h"

static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
    return (double) time.tv_sec * 1e9 + (double) time.tv_nsec;
}

int main(void) {
    const char *requested = getenv("KVMEM_COST");
    uint64_t n = requested != NULL ? strtoull(requested, NULL, 10) : 1000, start_random = 1;
    kvmem_offset_allocator *spaces[2];
    kvmem_offset_allocator_options options;
    OK(kvmem_offset_allocator_options_init(&options, sizeof options));
    for (uint32_t i = 0; i < 2; i++) {
        options.magazines = i;
        OK(kvmem_offset_allocator_create((uint64_t) 1 << 40, &options, &spaces[i]));
    }
    kvmem_slab_allocator *slabs;
    OK(kvmem_slab_allocator_create(NULL, &slabs));
    for (int round = 0; round < 3; round++) {
        for (int i = 0; i < 2; i++) {
            static kvmem_allocation live[1000];
            for (int at = 0; at < 1000; at++)
                OK(kvmem_offset_allocator_allocate(spaces[i], 4096, &live[at]));
            double start = now();
            uint64_t random = start_random;
            for (uint64_t step = 0; step < n; step++) {
                random = random * 6364136223846793005u + 1442695040888963407u;
                kvmem_allocation *one = &live[(random >> 33) % 1000];
                OK(kvmem_offset_allocator_free(spaces[i], one));
                OK(kvmem_offset_allocator_allocate(spaces[i], 4096 + (random >> 60) * 512, one));
            }
            printf("%s pair %.1f ns\n", i ? "offset, magazines" : "offset",
                   (now() - start) / (double) n);
            OK(kvmem_offset_allocator_free_batch(spaces[i], live, 1000, NULL));
        }
        double start = now();
        for (uint64_t step = 0; step < n; step++) {
            void *block;
            OK(kvmem_slab_allocator_allocate(slabs, 64, &block));
            OK(kvmem_slab_allocator_free(slabs, block, 64));
        }
        printf("slab pair %.1f ns\n", (now() - start) / (double) n);
        start = now();
        for (uint64_t step = 0; step < n; step++)
            kvmem_gslice_free1(64, kvmem_gslice_alloc(64));
        printf("gslab pair %.1f ns\n", (now() - start) / (double) n);
    }
    OK(kvmem_slab_allocator_destroy(slabs));
    for (int i = 0; i < 2; i++)
        OK(kvmem_offset_allocator_destroy(spaces[i]));
    return 0;
}
