/* Layer 3: offsets, without magazines and with them. */
#include "check.h"

/* Checks that an allocation by number fails with a status. */
#define FAILS(wanted, call)                                                                     \
    do {                                                                                        \
        const kvmem_space_range fails_range = (call);                                           \
        CHECK(fails_range.handle == 0);                                                         \
        IS(wanted, (kvmem_status)fails_range.offset);                                           \
    } while (0)

static void both_kinds(uint32_t magazines) {
    kvmem_offset_allocator_options options;
    OK(kvmem_offset_allocator_options_init(&options, sizeof options));
    uint64_t hot[] = {4096, 100};
    options.magazines = magazines;
    options.hot_sizes = hot;
    options.hot_size_count = 2;
    options.boundary_bytes = MIB;
    kvmem_offset_allocator *space, *other;
    OK(kvmem_offset_allocator_create(8 * MIB, &options, &space));
    OK(kvmem_offset_allocator_create(8 * MIB, &options, &other));

    kvmem_allocation a, b, batch[10], c_fails = {.allocator = 7};
    OK(kvmem_offset_allocator_allocate(space, 4096, &a));
    OK(kvmem_offset_allocator_allocate_aligned(space, 5000, 65536, &b));
    CHECK(a.bytes == 4096 && b.bytes == 5000 && b.offset % 65536 == 0 &&
          a.allocator == b.allocator);
    uint64_t offset, bytes, count;
    OK(kvmem_offset_allocator_resolve(space, &b, &offset, &bytes));
    CHECK(offset == b.offset && bytes == 5000);
    OK(kvmem_offset_allocator_shrink(space, &b, 1000));
    OK(kvmem_offset_allocator_extend(space, &b, 2000));
    CHECK(b.bytes == 2000);
    IS(KVMEM_ERR_OUT_OF_BOUNDS, kvmem_offset_allocator_shrink(space, &b, 3000));
    IS(KVMEM_ERR_TOO_LARGE, kvmem_offset_allocator_extend(space, &b, 2 * MIB));
    CHECK(b.bytes == 2000);

    /* Copies of a freed allocation, those of another allocator, and other bits are not valid. */
    kvmem_allocation copy = a, wrong = {0};
    OK(kvmem_offset_allocator_free(space, &a));
    IS(KVMEM_ERR_STALE_ALLOCATION, kvmem_offset_allocator_free(space, &copy));
    IS(KVMEM_ERR_STALE_ALLOCATION, kvmem_offset_allocator_resolve(space, &copy, &offset, &bytes));
    IS(KVMEM_ERR_FOREIGN_ALLOCATION, kvmem_offset_allocator_free(other, &b));
    IS(KVMEM_ERR_FOREIGN_ALLOCATION, kvmem_offset_allocator_free(space, &wrong));
    wrong = b;
    wrong.slot = UINT32_MAX;
    IS(KVMEM_ERR_STALE_ALLOCATION, kvmem_offset_allocator_free(space, &wrong));
    wrong = b;
    wrong.generation ^= 12;
    IS(KVMEM_ERR_STALE_ALLOCATION, kvmem_offset_allocator_extend(space, &wrong, 2001));

    /* Requests that fail early record their error, like all others. */
    IS(KVMEM_ERR_TOO_LARGE, kvmem_offset_allocator_allocate(space, MIB + 1, &c_fails));
    SAYS("1048577");
    SAYS("1048576");
    IS(KVMEM_ERR_ZERO_SIZE, kvmem_offset_allocator_allocate(space, 0, &c_fails));
    SAYS("0");
    IS(KVMEM_ERR_TOO_LARGE, kvmem_offset_allocator_allocate(space, UINT64_MAX, &c_fails));
    IS(KVMEM_ERR_NULL_ARGUMENT, kvmem_offset_allocator_allocate(space, UINT64_MAX, NULL));
    SAYS("out_allocation is NULL");
    IS(KVMEM_ERR_NULL_ARGUMENT, kvmem_offset_allocator_allocate(NULL, UINT64_MAX, &c_fails));
    CHECK(c_fails.allocator == 7);

    /* The numbers at the addresses follow the space. */
    const uint64_t *bound;
    const uint32_t *epoch;
    uint64_t hint;
    OK(kvmem_offset_allocator_largest_free_address(space, &bound, &epoch));
    OK(kvmem_offset_allocator_largest_free_hint(space, &hint));
    CHECK(__atomic_load_n(epoch, __ATOMIC_ACQUIRE) % 2 == magazines);
    const uint64_t longest = __atomic_load_n(bound, __ATOMIC_ACQUIRE);
    CHECK(longest >= 1000 && (magazines ? longest <= hint : longest == hint));
    IS(KVMEM_ERR_NULL_ARGUMENT, kvmem_offset_allocator_largest_free_address(space, NULL, &epoch));
    IS(KVMEM_ERR_NULL_ARGUMENT, kvmem_offset_allocator_largest_free_address(space, &bound, NULL));
    OK(kvmem_offset_allocator_grow_to(space, 16 * MIB));
    OK(kvmem_offset_allocator_shrink_to(space, 8 * MIB));

    /* A space by number: all bits are safe, also when the allocator is gone. */
    kvmem_space ref;
    IS(KVMEM_ERR_NULL_ARGUMENT, kvmem_offset_allocator_space(space, NULL));
    OK(kvmem_offset_allocator_space(space, &ref));
    OK(kvmem_space_exists(ref));
    kvmem_metrics before, after;
    OK(kvmem_offset_allocator_get_metrics(space, &before));
    const uint64_t most = before.live + 1;
    kvmem_space_range one = kvmem_space_allocate(ref, 100, most);
    kvmem_allocation same;
    OK(kvmem_offset_allocator_allocation_at(space, (uint32_t)(one.handle >> 32), &same));
    CHECK(same.allocator == ref.allocator && same.generation == (uint32_t)one.handle);
    CHECK(same.offset == one.offset && same.bytes == 100 && ref.reserved == 0);
    FAILS(KVMEM_ERR_TOO_MANY_RANGES, kvmem_space_allocate(ref, 100, most));
    FAILS(KVMEM_ERR_TOO_LARGE, kvmem_space_allocate(ref, 8 * MIB, UINT64_MAX));
    SAYS("8388608");
    FAILS(KVMEM_ERR_ZERO_SIZE, kvmem_space_allocate(ref, 0, UINT64_MAX));
    FAILS(KVMEM_ERR_FOREIGN_ALLOCATION, kvmem_space_allocate((kvmem_space){0}, 1, UINT64_MAX));
    IS(KVMEM_ERR_STALE_ALLOCATION, kvmem_space_free(ref, 0));
    IS(KVMEM_ERR_STALE_ALLOCATION, kvmem_space_free(ref, one.handle + 1));
    IS(KVMEM_ERR_STALE_ALLOCATION, kvmem_space_free(ref, UINT64_MAX));
    const kvmem_space others[] = {
        {ref.allocator, ref.number + 1, 0}, {ref.allocator, UINT32_MAX, 0}, {7, ref.number, 0}};
    for (size_t i = 0; i < sizeof others / sizeof others[0]; ++i) {
        IS(KVMEM_ERR_FOREIGN_ALLOCATION, kvmem_space_free(others[i], one.handle));
    }
    OK(kvmem_space_free(ref, one.handle));
    IS(KVMEM_ERR_STALE_ALLOCATION, kvmem_space_free(ref, one.handle));
    OK(kvmem_offset_allocator_get_metrics(space, &after));
    CHECK(after.live == before.live && after.free == before.free);
    IS(KVMEM_ERR_NOT_FOUND, kvmem_space_exists((kvmem_space){7, UINT32_MAX, 0}));
    IS(KVMEM_ERR_NOT_FOUND, kvmem_space_exists((kvmem_space){7, INT32_MAX, 0}));

    kvmem_offset_allocator *brief;
    OK(kvmem_offset_allocator_create(MIB, &options, &brief));
    OK(kvmem_offset_allocator_space(brief, &ref));
    one = kvmem_space_allocate(ref, 100, UINT64_MAX);
    CHECK(one.handle != 0);
    OK(kvmem_offset_allocator_destroy(brief));
    IS(KVMEM_ERR_NOT_FOUND, kvmem_space_exists(ref));
    IS(KVMEM_ERR_FOREIGN_ALLOCATION, kvmem_space_free(ref, one.handle));
    CHECK(kvmem_space_allocate(ref, 100, UINT64_MAX).handle == 0);

    /* Lost allocations are found again, by slot or all at once. */
    kvmem_allocation found[3], at;
    kvmem_allocation c;
    OK(kvmem_offset_allocator_allocate(space, 100, &c));
    (void) kvmem_offset_allocator_allocations(space, NULL, 0, &count);
    CHECK(count == 2);
    IS(KVMEM_ERR_BUFFER_TOO_SMALL, kvmem_offset_allocator_allocations(space, found, 1, &count));
    OK(kvmem_offset_allocator_allocations(space, found, 3, &count));
    CHECK(count == 2 && found[0].offset < found[1].offset);
    const kvmem_allocation *first = b.offset < c.offset ? &b : &c, *second = first == &b ? &c : &b;
    CHECK(memcmp(&found[0], first, sizeof at) == 0 && memcmp(&found[1], second, sizeof at) == 0);
    OK(kvmem_offset_allocator_allocation_at(space, b.slot, &at));
    CHECK(memcmp(&at, &b, sizeof at) == 0);
    OK(kvmem_offset_allocator_free(space, &c));
    IS(KVMEM_ERR_NOT_FOUND, kvmem_offset_allocator_allocation_at(space, c.slot, &at));
    SAYS("no live allocation");
    IS(KVMEM_ERR_NOT_FOUND, kvmem_offset_allocator_allocation_at(space, UINT32_MAX, &at));

    OK(kvmem_offset_allocator_allocate_batch(space, 100, 10, batch));
    batch[5] = copy;
    IS(KVMEM_ERR_STALE_ALLOCATION, kvmem_offset_allocator_free_batch(space, batch, 10, &count));
    CHECK(count == 9);
    OK(kvmem_offset_allocator_allocate_batch(space, 100, 0, batch));
    IS(KVMEM_ERR_OUT_OF_SPACE, kvmem_offset_allocator_allocate_batch(space, MIB, 9, batch));
    IS(KVMEM_ERR_OUT_OF_SPACE, kvmem_offset_allocator_allocate_batch(space, 1, UINT64_MAX, batch));
    OK(kvmem_offset_allocator_allocate_scattered(space, 3 * MIB, 10, batch, &count));
    bytes = 0;
    for (uint64_t i = 0; i < count; i++) {
        bytes += batch[i].bytes;
        CHECK(batch[i].offset / MIB == (batch[i].offset + batch[i].bytes - 1) / MIB);
    }
    CHECK(bytes == 3 * MIB && count >= 3);
    OK(kvmem_offset_allocator_free_batch(space, batch, count, NULL));
    IS(KVMEM_ERR_INVALID_ARGUMENT,
       kvmem_offset_allocator_allocate_scattered(space, MIB, 0, batch, &count));

    IS(KVMEM_ERR_ZERO_SIZE, kvmem_offset_allocator_allocate(space, 0, &a));
    IS(KVMEM_ERR_TOO_LARGE, kvmem_offset_allocator_allocate(space, MIB + 1, &a));
    IS(KVMEM_ERR_TOO_LARGE, kvmem_offset_allocator_allocate(space, UINT64_MAX, &a));
    IS(KVMEM_ERR_BAD_ALIGN, kvmem_offset_allocator_allocate_aligned(space, 1, 0, &a));
    OK(kvmem_offset_allocator_free(space, &b));

    kvmem_metrics metrics;
    OK(kvmem_offset_allocator_get_metrics(space, &metrics));
    /* One of the batch is still live: its entry was overwritten by a copy. */
    CHECK(metrics.capacity == 8 * MIB && metrics.live == 1 && metrics.allocated == 100);
    CHECK(metrics.free == 8 * MIB - 100 && metrics.boundary_bytes == MIB);
    OK(kvmem_offset_allocator_largest_free_hint(space, &bytes));
    CHECK(bytes >= metrics.largest_free);

    kvmem_bin bins[64];
    OK(kvmem_offset_allocator_bins(space, bins, 64, &count));
    CHECK(count >= 1 && bins[count - 1].max_bytes >= MIB);
    kvmem_map_range map[64];
    OK(kvmem_offset_allocator_trim(space));
    OK(kvmem_offset_allocator_map(space, map, 64, &count));
    uint64_t used = 0;
    offset = 0;
    for (uint64_t i = 0; i < count; i++) {
        CHECK(map[i].offset == offset);
        offset += map[i].bytes;
        used += map[i].state == KVMEM_RANGE_USED ? map[i].bytes : 0;
    }
    CHECK(offset == 8 * MIB && used == 100);
    IS(KVMEM_ERR_BUFFER_TOO_SMALL, kvmem_offset_allocator_map(space, map, 1, &count));
    IS(KVMEM_ERR_IN_USE, kvmem_offset_allocator_shrink_to(space, 1));
    OK(kvmem_offset_allocator_grow_to(space, 16 * MIB));
    IS(KVMEM_ERR_INVALID_ARGUMENT, kvmem_offset_allocator_grow_to(space, MIB));
    OK(kvmem_offset_allocator_shrink_to(space, 8 * MIB));
    OK(kvmem_offset_allocator_check(space));
    char text[400];
    OK(kvmem_offset_allocator_report(space, text, sizeof text, NULL));
    CHECK(strstr(text, "100 of 8388608 bytes in use by 1 allocations") != NULL);
    OK(kvmem_offset_allocator_destroy(space));
    IS(KVMEM_ERR_BAD_HANDLE, kvmem_offset_allocator_free(space, &copy));
    OK(kvmem_offset_allocator_destroy(other));
}

int main(void) {
    for (uint32_t magazines = 0; magazines < 2; magazines++) {
        both_kinds(magazines);
    }
    kvmem_offset_allocator *space;
    IS(KVMEM_ERR_INVALID_ARGUMENT, kvmem_offset_allocator_create(0, NULL, &space));
    IS(KVMEM_ERR_INVALID_ARGUMENT, kvmem_offset_allocator_create(UINT64_MAX, NULL, &space));
    kvmem_offset_allocator_options options;
    OK(kvmem_offset_allocator_options_init(&options, sizeof options));
    options.placement = 7;
    IS(KVMEM_ERR_INVALID_ARGUMENT, kvmem_offset_allocator_create(1, &options, &space));
    options.placement = KVMEM_PLACEMENT_BEST_FIT;
    options.magazines = 1;
    options.auto_hot_sizes = 3;
    IS(KVMEM_ERR_INVALID_ARGUMENT, kvmem_offset_allocator_create(1, &options, &space));
    options.magazines = 0;
    options.max_ranges = 1;
    IS(KVMEM_ERR_INVALID_ARGUMENT, kvmem_offset_allocator_create(1, &options, &space));
    options.max_ranges = 16;
    OK(kvmem_offset_allocator_create(1000, &options, &space));
    kvmem_allocation a;
    kvmem_status status;
    while ((status = kvmem_offset_allocator_allocate(space, 2, &a)) == KVMEM_OK) {
    }
    CHECK(status == KVMEM_ERR_TOO_MANY_RANGES);
    OK(kvmem_offset_allocator_destroy(space));
    return 0;
}
