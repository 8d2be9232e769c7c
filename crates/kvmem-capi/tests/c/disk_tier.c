/* A disk tier: alone, after a restart, used by threads, and when the file is unusable. */
#include <fcntl.h>
#include <pthread.h>
#include <stdint.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "check.h"

enum { KEYS = 200, THREADS = 4 };

static char path[64];

static kvmem_disk_tier *open_tier(uint64_t bytes, kvmem_disk_tier_report *report) {
    kvmem_disk_tier_options options;
    OK(kvmem_disk_tier_options_init(&options, sizeof options));
    CHECK(options.dsync == 0 && options.format == 0 && options.bytes == UINT64_MAX);
    options.bytes = bytes;
    kvmem_disk_tier *tier;
    OK(kvmem_disk_tier_open(path, &options, &tier, report));
    return tier;
}

static kvmem_disk_tier_stats stats(kvmem_disk_tier *tier) {
    kvmem_disk_tier_stats stats;
    OK(kvmem_disk_tier_get_stats(tier, &stats));
    return stats;
}

/* A value is as long as its key says, and begins with it. */
static uint64_t length(uint64_t key) { return 5000 + key * 131 % 9000; }

static void fill(unsigned char *bytes, uint64_t key, unsigned char version) {
    memset(bytes, (int) (key & 0xff), length(key));
    memcpy(bytes, &key, sizeof key);
    bytes[sizeof key] = version;
}

static unsigned char version_of(const unsigned char *bytes, uint64_t key) {
    uint64_t found;
    memcpy(&found, bytes, sizeof found);
    CHECK(found == key && bytes[length(key) - 1] == (key & 0xff));
    return bytes[sizeof key];
}

struct watched {
    kvmem_cancel *cancel;
    uint64_t done;
};

static void watch(void *user, const kvmem_progress *progress) {
    struct watched *watched = user;
    CHECK(progress->phase == KVMEM_PHASE_VERIFY && progress->done_bytes >= watched->done);
    CHECK(progress->done_bytes <= progress->total_bytes);
    watched->done = progress->done_bytes;
    if (watched->cancel != NULL)
        OK(kvmem_cancel_request(watched->cancel));
}

static void alone(void) {
    kvmem_disk_tier_report report;
    kvmem_disk_tier *tier = open_tier(16 * MIB, &report);
    CHECK(report.created == 1 && report.entries == 0 && report.direct <= 1);
    enum { COUNT = 20 };
    static unsigned char data[COUNT][16384], found[COUNT][16384];
    uint64_t keys[COUNT];
    kvmem_disk_tier_value values[COUNT];
    kvmem_disk_tier_request requests[COUNT];
    kvmem_status results[COUNT];
    for (uint64_t at = 0; at < COUNT; at++) {
        keys[at] = at;
        fill(data[at], at, 1);
        values[at] = (kvmem_disk_tier_value){
            .key = &keys[at], .key_bytes = sizeof keys[at], .data = data[at], .bytes = length(at)};
        requests[at] = (kvmem_disk_tier_request){
            &keys[at], sizeof keys[at], found[at], sizeof found[at], 7, 7, 7};
    }
    OK(kvmem_disk_tier_store(tier, values, COUNT, results));
    OK(kvmem_disk_tier_store(tier, NULL, 0, NULL));
    for (int at = 0; at < COUNT; at++)
        CHECK(results[at] == KVMEM_OK);
    OK(kvmem_disk_tier_fetch(tier, requests, COUNT));
    for (uint64_t at = 0; at < COUNT; at++) {
        CHECK(requests[at].outcome == KVMEM_FETCHED_HIT && requests[at].reserved == 0);
        CHECK(requests[at].bytes == length(at) && version_of(found[at], at) == 1);
    }

    /* Memory that is too short, keys without a value, and values without bytes. */
    uint64_t none = 1000, bytes;
    kvmem_disk_tier_value empty = {.key_bytes = 0};
    OK(kvmem_disk_tier_store(tier, &empty, 1, NULL));
    kvmem_disk_tier_request some[] = {
        {&keys[0], sizeof keys[0], found[0], 100, 0, 0, 0},
        {&none, sizeof none, found[1], sizeof found[1], 5, 5, 0},
        {NULL, 0, NULL, 0, 5, 5, 0},
    };
    OK(kvmem_disk_tier_fetch(tier, some, 3));
    CHECK(some[0].outcome == KVMEM_FETCHED_TOO_SHORT && some[0].bytes == length(0));
    CHECK(some[1].outcome == KVMEM_FETCHED_ABSENT && some[1].bytes == 0);
    CHECK(some[2].outcome == KVMEM_FETCHED_HIT && some[2].bytes == 0);
    OK(kvmem_disk_tier_len_of(tier, &keys[3], sizeof keys[3], &bytes));
    CHECK(bytes == length(3));
    IS(KVMEM_ERR_NOT_FOUND, kvmem_disk_tier_len_of(tier, &none, sizeof none, &bytes));

    /* Two requests that share memory are an error, and nothing is written. */
    some[1] = some[0];
    some[0].capacity = some[1].capacity = 200;
    some[1].data = found[0] + 199;
    IS(KVMEM_ERR_INVALID_ARGUMENT, kvmem_disk_tier_fetch(tier, some, 2));
    SAYS("overlap");

    /* One value is too long; the others are stored, and its key has no value any more. */
    static unsigned char much[17 * 1024 * 1024];
    kvmem_disk_tier_value two[] = {values[0], values[1]};
    two[0].data = much;
    two[0].bytes = sizeof much;
    IS(KVMEM_ERR_TOO_LARGE, kvmem_disk_tier_store(tier, two, 2, results));
    CHECK(results[0] == KVMEM_ERR_TOO_LARGE && results[1] == KVMEM_OK);
    SAYS("holds values of at most");
    IS(KVMEM_ERR_NOT_FOUND, kvmem_disk_tier_len_of(tier, &keys[0], sizeof keys[0], &bytes));

    uint64_t removed;
    kvmem_kv_cache_key gone[] = {{&keys[1], sizeof keys[1]}, {&none, sizeof none}};
    OK(kvmem_disk_tier_remove(tier, gone, 2, &removed));
    CHECK(removed == 1);
    kvmem_disk_tier_stats now = stats(tier);
    CHECK(now.entries == COUNT - 1 && now.stored == COUNT + 2 && now.read_only == 0);
    CHECK(now.written_bytes >= now.bytes && now.metadata_bytes > 0 && now.hits == COUNT + 1);
    CHECK(now.misses == 1 && now.checksum_misses == 0 && now.lost_misses == 0);
    CHECK(now.lifetime_bytes >= now.written_bytes && now.bytes_per_day == now.lifetime_bytes);
    CHECK(now.unverified_values <= now.entries && now.capacity < 16 * MIB);
    OK(kvmem_disk_tier_sync(tier));
    OK(kvmem_disk_tier_checkpoint(tier));

    /* Nobody else can open it. */
    kvmem_disk_tier *other;
    IS(KVMEM_ERR_IN_USE, kvmem_disk_tier_open(path, NULL, &other, NULL));
    SAYS("open already");
    OK(kvmem_disk_tier_destroy(tier));
    IS(KVMEM_ERR_BAD_HANDLE, kvmem_disk_tier_sync(tier));

    /* After a restart. */
    tier = open_tier(UINT64_MAX, &report);
    CHECK(report.created == 0 && report.entries == COUNT - 1 && report.damaged == 0);
    memset(found, 0, sizeof found);
    OK(kvmem_disk_tier_fetch(tier, requests, COUNT));
    for (uint64_t at = 0; at < COUNT; at++)
        CHECK((requests[at].outcome == KVMEM_FETCHED_HIT) == (at > 1) &&
              (at <= 1 || version_of(found[at], at) == 1));
    OK(kvmem_disk_tier_destroy(tier));

    /* What can be read without opening it. */
    kvmem_disk_tier_inspection inspected;
    OK(kvmem_disk_tier_inspect(path, &inspected));
    CHECK(inspected.entries == COUNT - 1 && inspected.file_bytes == 16 * MIB);
    CHECK(inspected.direct <= 1 && inspected.has_io_uring <= 1 && inspected.max_bytes < 16384);
    kvmem_disk_tier_verification verified;
    kvmem_disk_tier_damaged_value damaged = {0};
    struct watched watched = {NULL, 0};
    OK(kvmem_disk_tier_verify(path, NULL, watch, &watched, NULL, &verified, &damaged, 1));
    CHECK(verified.entries == COUNT - 1 && verified.damaged == 0 && damaged.bytes == 0);
    CHECK(watched.done == verified.bytes);
    OK(kvmem_cancel_create(&watched.cancel));
    watched.done = 0;
    IS(KVMEM_ERR_CANCELLED, kvmem_disk_tier_verify(path, NULL, watch, &watched, watched.cancel,
                                                   &verified, NULL, 0));
    SAYS("was cancelled");
    OK(kvmem_cancel_destroy(watched.cancel));
    tier = open_tier(UINT64_MAX, NULL);
    OK(kvmem_disk_tier_clear(tier));
    CHECK(stats(tier).entries == 0);
    OK(kvmem_disk_tier_destroy(tier));
}

/* Chooses the values of even keys. */
static int admits_even(void *user, const void *key, uint64_t key_bytes, const void *value,
                       uint64_t value_bytes) {
    uint64_t number, found;
    CHECK(user != NULL && key_bytes == sizeof number && value_bytes > sizeof found);
    memcpy(&number, key, sizeof number);
    memcpy(&found, value, sizeof found);
    CHECK(number == found && value_bytes == length(number));
    return number % 2 == 0;
}

static void count_release(void *user) { ++*(unsigned *) user; }

static void unusable(void) {
    kvmem_disk_tier *tier;
    kvmem_disk_tier_options options;
    OK(kvmem_disk_tier_options_init(&options, sizeof options));
    IS(KVMEM_ERR_SYSTEM, kvmem_disk_tier_open("/tmp", NULL, &tier, NULL));
    IS(KVMEM_ERR_SYSTEM, kvmem_disk_tier_open("/tmp/no such folder/tier", NULL, &tier, NULL));
    FILE *file = fopen(path, "wb");
    CHECK(file != NULL);
    options.bytes = 5000;
    IS(KVMEM_ERR_INVALID_ARGUMENT, kvmem_disk_tier_open(path, &options, &tier, NULL));
    SAYS("enlarge it to");
    for (int at = 0; at < 100000; at++)
        CHECK(fputs("something else", file) >= 0);
    CHECK(fclose(file) == 0);
    options.bytes = UINT64_MAX;
    IS(KVMEM_ERR_BAD_TIER, kvmem_disk_tier_open(path, &options, &tier, NULL));
    SAYS("it is no disk tier");
    kvmem_disk_tier_inspection found;
    kvmem_disk_tier_verification result;
    IS(KVMEM_ERR_BAD_TIER, kvmem_disk_tier_inspect(path, &found));
    SAYS("it is no disk tier");
    IS(KVMEM_ERR_BAD_TIER, kvmem_disk_tier_verify(path, NULL, NULL, NULL, NULL, &result, NULL, 0));
    IS(KVMEM_ERR_INVALID_ARGUMENT, kvmem_disk_tier_inspect("/tmp", &found));
    SAYS("neither a file nor a block device");
    IS(KVMEM_ERR_SYSTEM, kvmem_disk_tier_inspect("/tmp/no such folder/tier", &found));
    SAYS("cannot open /tmp/no such folder/tier: No such file");
    options.format = 1;
    OK(kvmem_disk_tier_open(path, &options, &tier, NULL));
    IS(KVMEM_ERR_IN_USE, kvmem_disk_tier_inspect(path, &found));
    SAYS("it is open as a tier: close that first");
    OK(kvmem_disk_tier_destroy(tier));
    struct {
        uint32_t *member;
        uint32_t wrong;
        const char *words;
    } wrong[] = {
        {&options.format, 2, "format is 2"},
        {&options.verify, 2, "verify is 2: use KVMEM_VERIFY_LAZY"},
        {&options.admission, 2, "admission is KVMEM_ADMIT_CUSTOM and on_admit is NULL"},
        {&options.admission, 3, "admission is 3: use KVMEM_ADMIT_ALL"},
        {&options.eviction, 2, "eviction is 2: use KVMEM_TIER_EVICT_LRU"},
        {&options.dsync, 2, "dsync is 2"},
    };
    for (size_t at = 0; at < sizeof wrong / sizeof *wrong; at++) {
        uint32_t right = *wrong[at].member;
        *wrong[at].member = wrong[at].wrong;
        IS(KVMEM_ERR_INVALID_ARGUMENT, kvmem_disk_tier_open(path, &options, &tier, NULL));
        SAYS(wrong[at].words);
        *wrong[at].member = right;
    }
    unsigned released = 0;
    options.on_admit = admits_even;
    options.on_admit_user = &released;
    options.on_admit_release = count_release;
    IS(KVMEM_ERR_INVALID_ARGUMENT, kvmem_disk_tier_open(path, &options, &tier, NULL));
    SAYS("on_admit is set and admission is 0: use KVMEM_ADMIT_CUSTOM");
    CHECK(released == 0);
    options.on_admit = NULL;
    options.max_write_bytes_per_s = 0;
    IS(KVMEM_ERR_INVALID_ARGUMENT, kvmem_disk_tier_open(path, &options, &tier, NULL));
    SAYS("max_write_bytes_per_s is 0");
}

/* Below a cache. */

static kvmem_pool *pool;

static kvmem_kv_cache *cache_over(kvmem_disk_tier *tier) {
    kvmem_kv_cache_options options;
    OK(kvmem_kv_cache_options_init(&options, sizeof options));
    CHECK(options.lower_tier == NULL);
    kvmem_lower_tier *lower;
    OK(kvmem_disk_tier_as_lower_tier(tier, &lower));
    options.lower_tier = lower;
    kvmem_kv_cache *cache;
    OK(kvmem_kv_cache_create(pool, &options, &cache));
    OK(kvmem_lower_tier_destroy(lower));
    return cache;
}

static void insert(kvmem_kv_cache *cache, uint64_t key, unsigned char version) {
    unsigned char bytes[16384];
    fill(bytes, key, version);
    OK(kvmem_kv_cache_insert(cache, &key, sizeof key, bytes, length(key), NULL));
}

/* The program chooses what is written, and its data are released with the tier. */
static void custom_admission(void) {
    unsigned released = 0;
    kvmem_disk_tier_options options;
    OK(kvmem_disk_tier_options_init(&options, sizeof options));
    options.bytes = 16 * MIB;
    options.dsync = 1;
    options.admission = KVMEM_ADMIT_CUSTOM;
    options.on_admit = admits_even;
    options.on_admit_user = &released;
    options.on_admit_release = count_release;
    kvmem_disk_tier *tier;
    OK(kvmem_disk_tier_open(path, &options, &tier, NULL));
    kvmem_kv_cache *cache = cache_over(tier);
    for (uint64_t key = 0; key < 40; key++)
        insert(cache, key, 1);
    OK(kvmem_kv_cache_evict_to(cache, 0, NULL));
    kvmem_disk_tier_stats found = stats(tier);
    CHECK(found.entries == 20 && found.not_admitted == 20 && found.unverified_values == 0);
    CHECK(found.lost_misses == 0 && found.bytes_per_day == found.lifetime_bytes);
    CHECK(found.lifetime_bytes == found.written_bytes + found.metadata_bytes);
    OK(kvmem_disk_tier_destroy(tier));
    CHECK(released == 0);
    OK(kvmem_kv_cache_destroy(cache));
    CHECK(released == 1);
    CHECK(unlink(path) == 0);
}

/* Returns the version of a key in the cache or the tier; 0: none. */
static unsigned char get(kvmem_kv_cache *cache, uint64_t key) {
    kvmem_kv_cache_key keys = {&key, sizeof key};
    kvmem_kv_cache_value value;
    OK(kvmem_kv_cache_get_batch(cache, &keys, 1, &value));
    if (value.pin == NULL)
        return 0;
    CHECK(value.bytes == length(key));
    unsigned char version = version_of(value.data, key);
    OK(kvmem_kv_cache_pin_release(value.pin));
    return version;
}

/* Each thread has keys of its own, and knows their latest versions. */
struct worker {
    kvmem_kv_cache *cache;
    uint64_t first;
};

static void sink(void *user, const kvmem_kv_cache_value *value, const void *key, uint64_t bytes) {
    (void) user, (void) value, (void) key, (void) bytes;
}

static void wrong_caches(void) {
    kvmem_disk_tier *tier = open_tier(UINT64_MAX, NULL);
    kvmem_kv_cache_options options;
    OK(kvmem_kv_cache_options_init(&options, sizeof options));
    kvmem_lower_tier *lower;
    OK(kvmem_disk_tier_as_lower_tier(tier, &lower));
    options.lower_tier = lower;
    options.on_evict = sink;
    kvmem_kv_cache *cache;
    IS(KVMEM_ERR_INVALID_ARGUMENT, kvmem_kv_cache_create(pool, &options, &cache));
    SAYS("both set");
    options.on_evict = NULL;
    OK(kvmem_disk_tier_destroy(tier));
    OK(kvmem_lower_tier_destroy(lower));
    IS(KVMEM_ERR_BAD_HANDLE, kvmem_kv_cache_create(pool, &options, &cache));
    /* Without a tier. */
    OK(kvmem_kv_cache_create(pool, NULL, &cache));
    insert(cache, 1, 1);
    CHECK(get(cache, 1) == 1 && get(cache, 2) == 0);
    uint32_t removed;
    uint64_t key = 1;
    OK(kvmem_kv_cache_remove(cache, &key, sizeof key, &removed));
    CHECK(removed == 1 && get(cache, 1) == 0);
    OK(kvmem_kv_cache_clear(cache));
    OK(kvmem_kv_cache_destroy(cache));
}

static void *work(void *argument) {
    struct worker *worker = argument;
    enum { OWN = 40 };
    unsigned char latest[OWN] = {0};
    uint64_t random = worker->first + 1;
    for (uint64_t step = 0, steps = rounds(2000); step < steps; step++) {
        random = random * UINT64_C(6364136223846793005) + 1442695040888963407;
        uint64_t at = (random >> 40) % OWN, key = worker->first + at;
        switch ((random >> 33) % 6) {
        case 0:
            OK(kvmem_kv_cache_remove(worker->cache, &key, sizeof key, NULL));
            latest[at] = 0;
            break;
        case 1:
        case 2:
            latest[at] = (unsigned char) (1 + step % 250);
            insert(worker->cache, key, latest[at]);
            break;
        default: {
            unsigned char found = get(worker->cache, key);
            CHECK(found == 0 || found == latest[at]);
        }
        }
    }
    return NULL;
}

static void threads(void) {
    kvmem_disk_tier *tier = open_tier(16 * MIB, NULL);
    kvmem_kv_cache *cache = cache_over(tier);
    pthread_t running[THREADS];
    struct worker workers[THREADS];
    for (uint64_t at = 0; at < THREADS; at++) {
        workers[at] = (struct worker){cache, at * 1000};
        CHECK(pthread_create(&running[at], NULL, work, &workers[at]) == 0);
    }
    for (int at = 0; at < THREADS; at++)
        CHECK(pthread_join(running[at], NULL) == 0);
    OK(kvmem_kv_cache_check(cache));
    OK(kvmem_kv_cache_destroy(cache));
    OK(kvmem_disk_tier_destroy(tier));
}

static char keys_path[80];

/* Writes a key file: one key for each letter, which is all of its digits. */
static void write_keys(const char *letters, mode_t mode) {
    (void) unlink(keys_path);
    const int file = open(keys_path, O_CREAT | O_WRONLY, 0600);
    CHECK(file >= 0);
    for (; *letters != 0; letters++) {
        char line[65];
        memset(line, *letters, 64);
        line[64] = '\n';
        CHECK(write(file, line, sizeof line) == (ssize_t) sizeof line);
    }
    CHECK(close(file) == 0 && chmod(keys_path, mode) == 0);
}

static kvmem_status open_encoded(const char *codec, kvmem_disk_tier **tier) {
    kvmem_disk_tier_options options;
    OK(kvmem_disk_tier_options_init(&options, sizeof options));
    CHECK(options.codec == NULL && options.key_file == NULL);
    options.bytes = 16 * MIB;
    options.codec = codec;
    options.key_file = keys_path;
    return kvmem_disk_tier_open(path, &options, tier, NULL);
}

enum { ENCODED = 20, ENCODED_BYTES = 32768 };

/* Numbers of few exponents. */
static void fill_numbers(unsigned char *bytes, uint64_t key) {
    uint64_t state = key + 1;
    for (int at = 0; at < ENCODED_BYTES; at += 2) {
        state = state * 6364136223846793005u + 1442695040888963407u;
        bytes[at] = (unsigned char) (state >> 40);
        bytes[at + 1] = (state >> 50) % 2 ? 0x3f : 0xbf;
    }
}

/* Fetches all values; each has this outcome, and is right if it is there. */
static void fetch_all(kvmem_disk_tier *tier, uint64_t first, uint32_t outcome) {
    static unsigned char found[ENCODED_BYTES], expected[ENCODED_BYTES];
    for (uint64_t key = first; key < ENCODED; key++) {
        kvmem_disk_tier_request request = {&key, sizeof key, found, sizeof found, 0, 0, 0};
        OK(kvmem_disk_tier_fetch(tier, &request, 1));
        CHECK(request.outcome == outcome);
        fill_numbers(expected, key);
        CHECK(outcome != KVMEM_FETCHED_HIT || memcmp(found, expected, sizeof found) == 0);
    }
}

/* Compressed and encrypted values, found by another process with the key alone. */
static void encoded(void) {
    snprintf(keys_path, sizeof keys_path, "%s.keys", path);
    kvmem_disk_tier *tier;
    write_keys("a", 0644);
    IS(KVMEM_ERR_INVALID_ARGUMENT, open_encoded("auto", &tier));
    SAYS("has the mode 0644, so other users can read or change it: `chmod 0400");
    write_keys("x", 0400);
    IS(KVMEM_ERR_INVALID_ARGUMENT, open_encoded("auto", &tier));
    SAYS("has 64 characters that are not a key");
    write_keys("a", 0400);
    IS(KVMEM_ERR_INVALID_ARGUMENT, open_encoded("zip", &tier));
    SAYS("codec is \"zip\": use \"none\" or \"auto\"");
    OK(open_encoded("auto", &tier));
    static unsigned char data[ENCODED_BYTES];
    for (uint64_t key = 0; key < ENCODED; key++) {
        fill_numbers(data, key);
        const char *tenant = key < 5 ? "one" : "another";
        const kvmem_disk_tier_value one = {.key = &key,
                                           .key_bytes = sizeof key,
                                           .data = data,
                                           .bytes = sizeof data,
                                           .data_type = KVMEM_DATA_BFLOAT16,
                                           .namespace_name = tenant,
                                           .namespace_bytes = strlen(tenant)};
        OK(kvmem_disk_tier_store(tier, &one, 1, NULL));
    }
    const kvmem_disk_tier_stats before = stats(tier);
    CHECK(before.encoded_before_bytes == ENCODED * (uint64_t) ENCODED_BYTES);
    CHECK(before.encoded_after_bytes < before.encoded_before_bytes / 4 * 3 && before.encode_ns > 0);
    CHECK(before.bytes == before.encoded_before_bytes);
    OK(kvmem_disk_tier_destroy(tier));

    const pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        OK(open_encoded(NULL, &tier));
        fetch_all(tier, 0, KVMEM_FETCHED_HIT);
        OK(kvmem_disk_tier_destroy(tier));
        write_keys("b", 0400);
        OK(open_encoded("auto", &tier));
        fetch_all(tier, 0, KVMEM_FETCHED_NO_KEY);
        CHECK(stats(tier).key_misses == ENCODED);
        OK(kvmem_disk_tier_destroy(tier));
        _exit(0);
    }
    int status;
    CHECK(waitpid(child, &status, 0) == child && status == 0);

    kvmem_disk_tier_inspection inspected;
    OK(kvmem_disk_tier_inspect(path, &inspected));
    CHECK(inspected.encrypted == ENCODED && inspected.stored_bytes < inspected.value_bytes);
    kvmem_disk_tier_verification verified;
    kvmem_disk_tier_damaged_value damaged = {0};
    OK(kvmem_disk_tier_verify(path, keys_path, NULL, NULL, NULL, &verified, &damaged, 1));
    CHECK(verified.damaged == ENCODED && damaged.damage == KVMEM_DAMAGE_ENCODING);
    /* Rotated: the new key writes, and both read. */
    write_keys("ba", 0400);
    OK(kvmem_disk_tier_verify(path, keys_path, NULL, NULL, NULL, &verified, NULL, 0));
    CHECK(verified.damaged == 0 && verified.entries == ENCODED);
    OK(open_encoded("auto", &tier));
    fetch_all(tier, 0, KVMEM_FETCHED_HIT);
    uint64_t removed;
    OK(kvmem_disk_tier_forget_namespace(tier, "one", 3, &removed));
    CHECK(removed == 5);
    fetch_all(tier, 5, KVMEM_FETCHED_HIT);
    CHECK(stats(tier).entries == ENCODED - 5);
    OK(kvmem_disk_tier_destroy(tier));
    CHECK(unlink(path) == 0 && unlink(keys_path) == 0);
}

int main(void) {
    snprintf(path, sizeof path, "/tmp/kvmem-disk-tier-%d", (int) getpid());
    kvmem_pool_options options;
    OK(kvmem_pool_options_init(&options, sizeof options));
    options.pages = "4k";
    OK(kvmem_pool_create(MIB, &options, &pool));
    alone();
    wrong_caches();
    CHECK(unlink(path) == 0);
    encoded();
    custom_admission();
    threads();
    unusable();
    CHECK(unlink(path) == 0);
    OK(kvmem_pool_destroy(pool));
    return 0;
}
