/* Layer 4: blocks, chains, batches, and detected misuse. */
#include "check.h"

struct node {
    uint64_t value;
    struct node *next;
};

static uint32_t last_fault;
static unsigned faults;

static void fault(void *user, const kvmem_slab_fault *fault) {
    CHECK(user == &faults && fault->text != NULL && fault->text[0] != 0);
    last_fault = fault->kind;
    faults += 1;
}

static void blocks(kvmem_slab_allocator *slab) {
    uint64_t sizes[] = {1, 8, 24, 100, 512, 4096, 8192, 8193, 100000};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        void *a, *b, *c;
        OK(kvmem_slab_allocator_allocate(slab, sizes[i], &a));
        memset(a, 1, sizes[i]);
        OK(kvmem_slab_allocator_allocate_zeroed(slab, sizes[i], &b));
        OK(kvmem_slab_allocator_copy(slab, a, sizes[i], &c));
        CHECK((uintptr_t) a % 16 == 0 && a != b && b != c);
        for (uint64_t byte = 0; byte < sizes[i]; byte++)
            CHECK(((char *) b)[byte] == 0 && ((char *) c)[byte] == 1);
        uint64_t usable;
        OK(kvmem_slab_allocator_usable(slab, sizes[i], &usable));
        CHECK(usable >= sizes[i]);
        OK(kvmem_slab_allocator_free(slab, a, sizes[i]));
        OK(kvmem_slab_allocator_free(slab, b, sizes[i]));
        OK(kvmem_slab_allocator_free(slab, c, sizes[i]));
    }
    OK(kvmem_slab_allocator_free(slab, NULL, 8));
    void *none;
    IS(KVMEM_ERR_ZERO_SIZE, kvmem_slab_allocator_allocate(slab, 0, &none));
    IS(KVMEM_ERR_TOO_LARGE, kvmem_slab_allocator_allocate(slab, UINT64_MAX, &none));

    struct node *first = NULL;
    for (uint64_t i = 0; i < 1000; i++) {
        void *node;
        OK(kvmem_slab_allocator_allocate(slab, sizeof *first, &node));
        *(struct node *) node = (struct node) {i, first};
        first = node;
    }
    IS(KVMEM_ERR_OUT_OF_BOUNDS, kvmem_slab_allocator_free_chain(slab, first, sizeof *first, 12));
    OK(kvmem_slab_allocator_free_chain(slab, first, sizeof *first, offsetof(struct node, next)));
    OK(kvmem_slab_allocator_free_chain(slab, NULL, sizeof *first, 0));

    void *batch[100];
    uint64_t count;
    OK(kvmem_slab_allocator_allocate_batch(slab, 64, 100, batch, &count));
    CHECK(count == 100);
    void *hole = batch[50];
    batch[50] = NULL;
    IS(KVMEM_ERR_NULL_ARGUMENT,
       kvmem_slab_allocator_free_batch(slab, (void *const *) batch, 100, 64));
    batch[50] = hole;
    OK(kvmem_slab_allocator_free_batch(slab, (void *const *) batch, 100, 64));

    kvmem_slab_allocator_stats stats;
    OK(kvmem_slab_allocator_tick(slab));
    OK(kvmem_slab_allocator_trim(slab));
    OK(kvmem_slab_allocator_get_stats(slab, &stats));
    CHECK(stats.in_use == 0 && stats.system_blocks == 0 && stats.cached_bytes == 0);
}

static void on_a_region(void) {
    kvmem_slab_allocator_options options;
    OK(kvmem_slab_allocator_options_init(&options, sizeof options));
    kvmem_region *region;
    OK(kvmem_region_map(MIB, NULL, &region));
    kvmem_bump_arena *arena;
    OK(kvmem_bump_arena_create(region, &arena));
    kvmem_slab_allocator *slab;
    options.region = region;
    IS(KVMEM_ERR_IN_USE, kvmem_slab_allocator_create(&options, &slab));
    OK(kvmem_bump_arena_destroy(arena));
    options.limit_bytes = 100000;
    IS(KVMEM_ERR_INVALID_ARGUMENT, kvmem_slab_allocator_create(&options, &slab));
    kvmem_region_info info;
    OK(kvmem_region_get_info(region, &info));
    options.limit_bytes = 1024;
    OK(kvmem_slab_allocator_create(&options, &slab));
    IS(KVMEM_ERR_BAD_HANDLE, kvmem_region_get_info(region, &info));
    IS(KVMEM_ERR_BAD_HANDLE, kvmem_region_destroy(region));
    void *block;
    OK(kvmem_slab_allocator_allocate(slab, 100, &block));
    CHECK((char *) block >= (char *) info.data && (char *) block < (char *) info.data + info.bytes);
    kvmem_status status;
    while ((status = kvmem_slab_allocator_allocate(slab, 1024, &block)) == KVMEM_OK) {
    }
    CHECK(status == KVMEM_ERR_NO_MEMORY);
    OK(kvmem_slab_allocator_destroy(slab));

    kvmem_region_options shared;
    OK(kvmem_region_options_init(&shared, sizeof shared));
    shared.backing = KVMEM_BACKING_SHARED;
    OK(kvmem_region_map(MIB, &shared, &region));
    options.region = region;
    IS(KVMEM_ERR_WRONG_BACKING, kvmem_slab_allocator_create(&options, &slab));
    OK(kvmem_region_destroy(region));
}

static void misuse_that_is_found(void) {
    kvmem_slab_allocator_options options;
    OK(kvmem_slab_allocator_options_init(&options, sizeof options));
    options.settings = 64;
    kvmem_slab_allocator *slab;
    IS(KVMEM_ERR_INVALID_ARGUMENT, kvmem_slab_allocator_create(&options, &slab));
    options.settings = KVMEM_SLAB_DEBUG_BLOCKS;
    options.on_fault = fault;
    options.on_fault_user = &faults;
    OK(kvmem_slab_allocator_create(&options, &slab));
    void *block;
    OK(kvmem_slab_allocator_allocate(slab, 100, &block));
    OK(kvmem_slab_allocator_free(slab, block, 96));
    CHECK(last_fault == KVMEM_FAULT_WRONG_SIZE);
    OK(kvmem_slab_allocator_free(slab, block, 100));
    CHECK(faults == 1);
    OK(kvmem_slab_allocator_free(slab, block, 100));
    CHECK(last_fault == KVMEM_FAULT_DOUBLE_FREE && faults == 2);
    OK(kvmem_slab_allocator_free(slab, &block, 100));
    CHECK(last_fault == KVMEM_FAULT_FOREIGN && faults == 3);
    OK(kvmem_slab_allocator_allocate(slab, 100, &block));
    uint64_t leaks;
    OK(kvmem_slab_allocator_report_leaks(slab, &leaks));
    CHECK(leaks == 1 && last_fault == KVMEM_FAULT_LEAK);
    OK(kvmem_slab_allocator_free(slab, block, 100));
    OK(kvmem_slab_allocator_destroy(slab));
}

int main(void) {
    kvmem_slab_allocator *slab;
    OK(kvmem_slab_allocator_create(NULL, &slab));
    blocks(slab);
    OK(kvmem_slab_allocator_destroy(slab));
    IS(KVMEM_ERR_BAD_HANDLE, kvmem_slab_allocator_destroy(slab));
    kvmem_slab_allocator_options options;
    OK(kvmem_slab_allocator_options_init(&options, sizeof options));
    options.settings = KVMEM_SLAB_PLAIN | KVMEM_SLAB_ALWAYS_MALLOC;
    OK(kvmem_slab_allocator_create(&options, &slab));
    blocks(slab);
    OK(kvmem_slab_allocator_destroy(slab));
    on_a_region();
    misuse_that_is_found();
    return 0;
}
