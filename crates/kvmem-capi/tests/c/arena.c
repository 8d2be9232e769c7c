/* Layer 1: regions and bump arenas. */
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include "check.h"

static int released;
static uint64_t reported;

static void release(void *user) {
    CHECK(user == &released);
    released += 1;
}

static void progress(void *user, const kvmem_progress *progress) {
    CHECK(user == &reported && progress->phase == KVMEM_PHASE_POPULATE);
    CHECK(progress->done_bytes >= reported && progress->done_bytes <= progress->total_bytes);
    reported = progress->done_bytes;
}

static void regions(void) {
    kvmem_region_options options;
    OK(kvmem_region_options_init(&options, sizeof options));
    CHECK(options.struct_size == sizeof options && options.dont_fork == 1);
    options.pages = "4k";
    options.populate = 2;
    options.progress = progress;
    options.progress_user = &reported;
    kvmem_region *region;
    OK(kvmem_region_map(MIB + 1, &options, &region));
    CHECK(reported >= MIB);

    kvmem_region_info info;
    OK(kvmem_region_get_info(region, &info));
    CHECK(info.requested_bytes == MIB + 1 && info.bytes >= MIB + 1 &&
          info.bytes_base == info.bytes);
    CHECK(info.resident_bytes == info.bytes && info.mapped_bytes >= info.bytes &&
          info.threads >= 1);
    memset(info.data, 7, info.bytes);

    uint64_t resident, error;
    OK(kvmem_region_residency(region, 0, info.bytes, &resident, &error));
    CHECK(resident == info.bytes && error == 0);
    OK(kvmem_region_discard(region, 0, MIB / 2));
    CHECK(((char *) info.data)[0] == 0 && ((char *) info.data)[MIB / 2] == 7);
    OK(kvmem_region_populate(region, 0, MIB / 2, KVMEM_POPULATE_AUTO, NULL, NULL, NULL));
    IS(KVMEM_ERR_OUT_OF_BOUNDS, kvmem_region_discard(region, info.bytes, 4096));
    IS(KVMEM_ERR_OUT_OF_BOUNDS, kvmem_region_discard(region, UINT64_MAX, UINT64_MAX));
    IS(KVMEM_ERR_INVALID_ARGUMENT, kvmem_region_discard(region, 1, 4096));
    int fd;
    IS(KVMEM_ERR_WRONG_BACKING, kvmem_region_share(region, 0, &fd));
    OK(kvmem_region_destroy(region));
    IS(KVMEM_ERR_BAD_HANDLE, kvmem_region_destroy(region));
    SAYS("was destroyed");
}

static void reports(void) {
    kvmem_region *region;
    OK(kvmem_region_map(4096, NULL, &region));
    uint64_t needed;
    OK(kvmem_region_report(region, KVMEM_TEXT, NULL, 0, &needed));
    CHECK(needed > 10 && needed < 10000);
    char *text = malloc(needed);
    IS(KVMEM_ERR_BUFFER_TOO_SMALL, kvmem_region_report(region, KVMEM_TEXT, text, 5, &needed));
    CHECK(strlen(text) == 4);
    OK(kvmem_region_report(region, KVMEM_TEXT, text, needed, NULL));
    CHECK(strlen(text) == needed - 1);
    free(text);
    char json[4096];
    OK(kvmem_region_report(region, KVMEM_JSON, json, sizeof json, NULL));
    CHECK(strstr(json, "_bytes\":4096") != NULL);
    IS(KVMEM_ERR_INVALID_ARGUMENT, kvmem_region_report(region, 2, json, sizeof json, NULL));
    OK(kvmem_region_destroy(region));
}

static void preflight(void) {
    static char text[64 * 1024];
    uint32_t fits = 7;
    kvmem_region_options options;
    OK(kvmem_region_options_init(&options, sizeof options));
    options.pages = "4k";
    OK(kvmem_preflight_report(4096, &options, &fits, KVMEM_TEXT, text, sizeof text, NULL));
    CHECK(fits <= 1 && strlen(text) > 100);
    OK(kvmem_preflight_report((uint64_t) 1 << 60, &options, &fits, KVMEM_JSON, text, sizeof text,
                              NULL));
    CHECK(fits == 0 && text[0] == '{');
    IS(KVMEM_ERR_INVALID_ARGUMENT,
       kvmem_preflight_report(0, NULL, NULL, KVMEM_TEXT, text, sizeof text, NULL));
}

/*
 * With readers_only, no other mapping can write to the memory file, not even one of this process.
 */
static void readers_only(void) {
    kvmem_region_options options;
    OK(kvmem_region_options_init(&options, sizeof options));
    CHECK(options.readers_only == 0);
    options.backing = KVMEM_BACKING_SHARED;
    options.pages = "4k";
    options.readers_only = 2;
    kvmem_region *region, *other;
    IS(KVMEM_ERR_INVALID_ARGUMENT, kvmem_region_map(64 * KIB, &options, &region));
    options.readers_only = 1;
    OK(kvmem_region_map(64 * KIB, &options, &region));
    kvmem_region_info info;
    OK(kvmem_region_get_info(region, &info));
    memset(info.data, 7, info.bytes);
    for (uint32_t read_only = 0; read_only < 2; read_only++) {
        int fd;
        OK(kvmem_region_share(region, read_only, &fd));
        IS(KVMEM_ERR_SYSTEM, kvmem_region_attach(fd, 64 * KIB, &other));
        CHECK(mmap(NULL, 64 * KIB, PROT_WRITE, MAP_SHARED, fd, 0) == MAP_FAILED);
        char path[64];
        snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
        int again = open(path, O_RDWR);
        CHECK(again < 0 || pwrite(again, "x", 1, 0) < 0);
        if (again >= 0)
            close(again);
        const char *seen = mmap(NULL, 64 * KIB, PROT_READ, MAP_SHARED, fd, 0);
        CHECK(seen != MAP_FAILED && seen[100] == 7);
        CHECK(munmap((void *) (uintptr_t) seen, 64 * KIB) == 0);
        close(fd);
    }
    CHECK(kvmem_region_discard(region, 0, 4096) != KVMEM_OK);
    ((char *) info.data)[0] = 8;
    OK(kvmem_region_destroy(region));

    /* Private memory ignores it. */
    options.backing = KVMEM_BACKING_PRIVATE;
    OK(kvmem_region_map(4096, &options, &region));
    OK(kvmem_region_discard(region, 0, 4096));
    OK(kvmem_region_destroy(region));
}

static void wrong_options(void) {
    kvmem_region *region = NULL;
    kvmem_region_options options;
    IS(KVMEM_ERR_ZERO_SIZE, kvmem_region_map(0, NULL, &region));
    IS(KVMEM_ERR_TOO_LARGE, kvmem_region_map(UINT64_MAX, NULL, &region));
    memset(&options, 0xff, sizeof options);
    IS(KVMEM_ERR_INVALID_ARGUMENT, kvmem_region_map(4096, &options, &region));
    SAYS("_init");
    IS(KVMEM_ERR_INVALID_ARGUMENT, kvmem_region_options_init(&options, 0));
    OK(kvmem_region_options_init(&options, sizeof options));
    options.pages = "3M";
    IS(KVMEM_ERR_INVALID_ARGUMENT, kvmem_region_map(4096, &options, &region));
    SAYS("3M");
    options.pages = "\xff";
    IS(KVMEM_ERR_INVALID_ARGUMENT, kvmem_region_map(4096, &options, &region));
    SAYS("UTF-8");
    options.pages = NULL;
    options.guard_pages = 2;
    IS(KVMEM_ERR_INVALID_ARGUMENT, kvmem_region_map(4096, &options, &region));
    options.guard_pages = 0;
    options.backing = 9;
    IS(KVMEM_ERR_INVALID_ARGUMENT, kvmem_region_map(4096, &options, &region));
    options.backing = KVMEM_BACKING_PRIVATE;
    options.numa_policy = KVMEM_NUMA_BIND;
    IS(KVMEM_ERR_INVALID_ARGUMENT, kvmem_region_map(4096, &options, &region));
    options.numa_node_count = UINT64_MAX;
    IS(KVMEM_ERR_NULL_ARGUMENT, kvmem_region_map(4096, &options, &region));
    options.numa_node_count = 0;
    options.numa_policy = KVMEM_NUMA_ANY;
    options.cancel = (const kvmem_cancel *) (uintptr_t) 0x1234;
    IS(KVMEM_ERR_BAD_HANDLE, kvmem_region_map(4096, &options, &region));
    kvmem_cancel *cancel;
    OK(kvmem_cancel_create(&cancel));
    OK(kvmem_cancel_request(cancel));
    options.cancel = cancel;
    options.populate = KVMEM_POPULATE_AUTO;
    options.pages = "4k";
    IS(KVMEM_ERR_CANCELLED, kvmem_region_map(16 * MIB, &options, &region));
    OK(kvmem_cancel_destroy(cancel));
    CHECK(region == NULL);

    /* An options structure of an older program, and one of a newer program. */
    struct {
        kvmem_region_options options;
        uint64_t more[2];
    } newer;
    OK(kvmem_region_options_init(&newer.options, sizeof newer));
    CHECK(newer.more[0] == 0 && newer.options.struct_size == sizeof newer);
    OK(kvmem_region_map(4096, &newer.options, &region));
    OK(kvmem_region_destroy(region));
    newer.more[1] = 1;
    IS(KVMEM_ERR_INVALID_ARGUMENT, kvmem_region_map(4096, &newer.options, &region));
    SAYS("newer");
    uint64_t older[2] = {sizeof older, 0};
    OK(kvmem_region_map(4096, (const kvmem_region_options *) (const void *) older, &region));
    OK(kvmem_region_destroy(region));
}

static void shared_and_wrapped(void) {
    kvmem_region_options options;
    OK(kvmem_region_options_init(&options, sizeof options));
    options.backing = KVMEM_BACKING_SHARED;
    options.pages = "4k";
    kvmem_region *region, *other;
    kvmem_region_info info, seen;
    int fd;
    OK(kvmem_region_map(64 * KIB, &options, &region));
    OK(kvmem_region_get_info(region, &info));
    OK(kvmem_region_share(region, 0, &fd));
    OK(kvmem_region_attach(fd, 64 * KIB, &other));
    IS(KVMEM_ERR_INVALID_ARGUMENT, kvmem_region_attach(fd, 32 * KIB, &other));
    close(fd);
    IS(KVMEM_ERR_INVALID_ARGUMENT, kvmem_region_attach(fd, 0, &other));
    IS(KVMEM_ERR_INVALID_ARGUMENT, kvmem_region_attach(-1, 0, &other));
    uint64_t resident, mapped;
    OK(kvmem_region_populate(region, 0, 64 * KIB, 1, NULL, NULL, NULL));
    OK(kvmem_region_populate_aliases(region, KVMEM_POPULATE_AUTO, &mapped));
    OK(kvmem_region_residency(other, 0, 64 * KIB, &resident, NULL));
    CHECK(mapped == 64 * KIB && resident == mapped);
    OK(kvmem_region_get_info(other, &seen));
    strcpy(info.data, "from one to the other");
    CHECK(seen.data != info.data && strcmp(seen.data, "from one to the other") == 0);
    OK(kvmem_region_destroy(region));
    CHECK(strcmp(seen.data, "from one to the other") == 0);
    OK(kvmem_region_destroy(other));

    static char bytes[1000];
    OK(kvmem_region_wrap(bytes, sizeof bytes, release, &released, &region));
    kvmem_bump_arena *arena;
    OK(kvmem_bump_arena_create(region, &arena));
    OK(kvmem_region_destroy(region));
    CHECK(released == 0);
    OK(kvmem_bump_arena_destroy(arena));
    CHECK(released == 1);
    IS(KVMEM_ERR_ZERO_SIZE, kvmem_region_wrap(bytes, 0, release, &released, &region));
    IS(KVMEM_ERR_TOO_LARGE, kvmem_region_wrap(bytes, UINT64_MAX, release, &released, &region));
    CHECK(released == 1);
}

static void bump(void) {
    kvmem_region *region;
    kvmem_bump_arena *arena;
    OK(kvmem_region_map(64 * KIB, NULL, &region));
    OK(kvmem_bump_arena_create(region, &arena));
    OK(kvmem_region_destroy(region));

    void *first, *second;
    OK(kvmem_bump_arena_allocate(arena, 1, 1, &first));
    OK(kvmem_bump_arena_allocate(arena, 100, 4096, &second));
    CHECK((uintptr_t) second % 4096 == 0 && first != second);
    memset(second, 1, 100);
    uint32_t owns;
    OK(kvmem_bump_arena_owns(arena, second, &owns));
    CHECK(owns == 1);
    OK(kvmem_bump_arena_owns(arena, &owns, &owns));
    CHECK(owns == 0);
    IS(KVMEM_ERR_ZERO_SIZE, kvmem_bump_arena_allocate(arena, 0, 1, &first));
    IS(KVMEM_ERR_BAD_ALIGN, kvmem_bump_arena_allocate(arena, 1, 3, &first));
    IS(KVMEM_ERR_TOO_LARGE, kvmem_bump_arena_allocate(arena, UINT64_MAX, 1, &first));
    IS(KVMEM_ERR_OUT_OF_SPACE, kvmem_bump_arena_allocate(arena, 1 << 30, 1, &first));
    SAYS("1073741824");

    kvmem_bump_arena_stats stats;
    OK(kvmem_bump_arena_get_stats(arena, &stats));
    CHECK(stats.used + stats.remaining == stats.capacity &&
          stats.used == 4096 + 100);
    OK(kvmem_bump_arena_reset(arena));
    OK(kvmem_bump_arena_get_stats(arena, &stats));
    CHECK(stats.used == 0 && stats.data == first);
    OK(kvmem_bump_arena_destroy(arena));
    IS(KVMEM_ERR_BAD_HANDLE, kvmem_bump_arena_reset(arena));
}

int main(void) {
    CHECK(strcmp(kvmem_last_error(), "") == 0);
    char version[32];
    snprintf(version, sizeof version, "%d.%d.%d", KVMEM_VERSION_MAJOR, KVMEM_VERSION_MINOR,
             KVMEM_VERSION_PATCH);
    CHECK(strcmp(kvmem_version(), version) == 0);
    CHECK(strcmp(kvmem_status_name(KVMEM_ERR_OUT_OF_SPACE), "KVMEM_ERR_OUT_OF_SPACE") == 0);
    regions();
    reports();
    preflight();
    wrong_options();
    shared_and_wrapped();
    readers_only();
    bump();
    return 0;
}
