/* Layer 2: registrars of all kinds, registrations, keys. */
#include <errno.h>

#include "check.h"

struct mine {
    int keys, released, must_fail;
};

static int take(void *user, void *data, uint64_t bytes, kvmem_key *out_key) {
    struct mine *mine = user;
    if (mine->must_fail && mine->keys == 2)
        return EIO;
    mine->keys += 1;
    out_key->handle = (uint64_t) (uintptr_t) data;
    out_key->lkey = bytes;
    out_key->rkey = 77;
    out_key->has_rkey = 1;
    return 0;
}

static int give_back(void *user, const kvmem_key *key) {
    struct mine *mine = user;
    CHECK(key->rkey == 77 && key->has_rkey == 1);
    mine->keys -= 1;
    return 0;
}

static void gone(void *user) {
    struct mine *mine = user;
    mine->released += 1;
}

static void record_phase(void *user, const kvmem_progress *progress) {
    uint64_t *phases = user;
    *phases |= (uint64_t) 1 << progress->phase;
}

static kvmem_region *region_of(uint64_t bytes) {
    kvmem_region_options options;
    OK(kvmem_region_options_init(&options, sizeof options));
    options.pages = "4k";
    kvmem_region *region;
    OK(kvmem_region_map(bytes, &options, &region));
    return region;
}

static void simulated(void) {
    kvmem_region *region = region_of(4 * MIB);
    kvmem_registrars *nics;
    OK(kvmem_registrars_simulated(2, MIB, UINT64_MAX, &nics));
    uint64_t count, live;
    OK(kvmem_registrars_count(nics, &count));
    CHECK(count == 2);
    char name[32];
    OK(kvmem_registrars_name(nics, 1, name, sizeof name, NULL));
    CHECK(strcmp(name, "simulated:1") == 0);
    IS(KVMEM_ERR_NO_SUCH_DEVICE, kvmem_registrars_name(nics, 2, name, sizeof name, NULL));
    kvmem_limits limits;
    OK(kvmem_registrars_limits(nics, 0, &limits));
    CHECK(limits.max_key_bytes == MIB && limits.memlock_bytes == UINT64_MAX &&
          limits.copies_by_address == 0);

    kvmem_registration_options options;
    OK(kvmem_registration_options_init(&options, sizeof options));
    options.policy = "parallel";
    uint64_t phases = 0;
    options.progress = record_phase;
    options.progress_user = &phases;
    kvmem_registration *registration;
    OK(kvmem_registration_create(region, nics, &options, &registration));
    CHECK(phases & 1 << KVMEM_PHASE_REGISTER);
    kvmem_registration_info info;
    OK(kvmem_registration_get_info(registration, &info));
    CHECK(info.devices == 2 && info.keys == 8 && info.bytes == 4 * MIB &&
          info.boundary_bytes == MIB);

    kvmem_key key;
    OK(kvmem_registration_key(registration, "simulated:1", MIB, MIB, &key));
    IS(KVMEM_ERR_STRADDLES, kvmem_registration_key(registration, "simulated:1", MIB - 1, 2, &key));
    IS(KVMEM_ERR_NO_SUCH_DEVICE, kvmem_registration_key(registration, "mlx5_0", 0, 1, &key));
    IS(KVMEM_ERR_OUT_OF_BOUNDS,
       kvmem_registration_key(registration, "simulated:0", 4 * MIB, 1, &key));
    kvmem_chunk chunks[4];
    IS(KVMEM_ERR_BUFFER_TOO_SMALL,
       kvmem_registration_chunks(registration, "simulated:0", chunks, 3, &count));
    OK(kvmem_registration_chunks(registration, "simulated:0", chunks, 4, &count));
    CHECK(count == 4 && chunks[3].offset == 3 * MIB && chunks[3].bytes == MIB);
    char text[2000];
    OK(kvmem_registration_report(registration, KVMEM_TEXT, text, sizeof text, NULL));

    /* Registrations outlive the handles of their region and registrars. */
    OK(kvmem_region_destroy(region));
    OK(kvmem_registrars_live_keys(nics, 0, &live));
    CHECK(live == 4);
    OK(kvmem_registration_deregister(registration, &count));
    CHECK(count == 8 && phases & 1 << KVMEM_PHASE_DEREGISTER);
    OK(kvmem_registration_deregister(registration, &count));
    CHECK(count == 0);
    IS(KVMEM_ERR_DEREGISTERED, kvmem_registration_key(registration, "simulated:1", 0, 1, &key));
    OK(kvmem_registration_destroy(registration));

    /* All or nothing. */
    region = region_of(4 * MIB);
    OK(kvmem_registrars_inject(nics, 1, 0, 2, 1));
    IS(KVMEM_ERR_REGISTER_FAILED, kvmem_registration_create(region, nics, NULL, &registration));
    SAYS("simulated:1");
    for (uint64_t nic = 0; nic < 2; nic++) {
        OK(kvmem_registrars_live_keys(nics, nic, &live));
        CHECK(live == 0);
    }
    OK(kvmem_registration_create(region, nics, NULL, &registration));
    /* Four keys, three attempts each. */
    OK(kvmem_registrars_inject(nics, 0, 1, 0, 12));
    IS(KVMEM_ERR_DEREGISTER_FAILED, kvmem_registration_deregister(registration, NULL));
    OK(kvmem_registration_deregister(registration, NULL));
    OK(kvmem_registration_destroy(registration));
    options.policy = "all of them";
    IS(KVMEM_ERR_INVALID_ARGUMENT,
       kvmem_registration_create(region, nics, &options, &registration));
    OK(kvmem_registrars_destroy(nics));

    OK(kvmem_registrars_simulated(1, MIB, 3, &nics));
    IS(KVMEM_ERR_LIMIT, kvmem_registration_create(region, nics, NULL, &registration));
    SAYS("3");
    OK(kvmem_registrars_destroy(nics));
    IS(KVMEM_ERR_INVALID_ARGUMENT, kvmem_registrars_simulated(0, 1, 1, &nics));
    IS(KVMEM_ERR_INVALID_ARGUMENT, kvmem_registrars_simulated(1, 0, 1, &nics));
    OK(kvmem_region_destroy(region));
}

static void background(void) {
    kvmem_region *region = region_of(4 * MIB);
    kvmem_registrars *nics;
    OK(kvmem_registrars_simulated(1, MIB, UINT64_MAX, &nics));
    kvmem_background_registration *background;
    OK(kvmem_background_registration_create(region, nics, NULL, &background));
    uint64_t ready;
    OK(kvmem_background_registration_wait_ready(background, 4 * MIB, UINT64_MAX, &ready));
    CHECK(ready == 4 * MIB);
    kvmem_key key;
    OK(kvmem_background_registration_key(background, "simulated:0", 0, MIB, &key));
    kvmem_progress progress;
    uint32_t finished;
    OK(kvmem_background_registration_progress(background, &progress, &finished));
    kvmem_registration *registration;
    OK(kvmem_background_registration_wait(background, &registration));
    IS(KVMEM_ERR_BAD_HANDLE, kvmem_background_registration_wait(background, &registration));
    OK(kvmem_registration_destroy(registration));
    OK(kvmem_background_registration_create(region, nics, NULL, &background));
    OK(kvmem_background_registration_destroy(background));
    uint64_t live;
    OK(kvmem_registrars_live_keys(nics, 0, &live));
    CHECK(live == 0);
    OK(kvmem_registrars_destroy(nics));
    OK(kvmem_region_destroy(region));
}

static void custom(void) {
    struct mine mine = {0, 0, 0};
    kvmem_registrar_callbacks callbacks = {0};
    kvmem_registrars *registrars;
    IS(KVMEM_ERR_INVALID_ARGUMENT, kvmem_registrars_custom(&callbacks, &registrars));
    callbacks.struct_size = sizeof callbacks;
    IS(KVMEM_ERR_NULL_ARGUMENT, kvmem_registrars_custom(&callbacks, &registrars));
    callbacks.name = "mine";
    callbacks.max_key_bytes = MIB;
    callbacks.user = &mine;
    callbacks.deregister = give_back;
    callbacks.release = gone;
    IS(KVMEM_ERR_NULL_ARGUMENT, kvmem_registrars_custom(&callbacks, &registrars));
    CHECK(mine.released == 0);
    callbacks.register_bytes = take;
    OK(kvmem_registrars_custom(&callbacks, &registrars));
    uint64_t live;
    IS(KVMEM_ERR_UNSUPPORTED, kvmem_registrars_live_keys(registrars, 0, &live));

    kvmem_region *region = region_of(4 * MIB);
    kvmem_registration *registration;
    OK(kvmem_registration_create(region, registrars, NULL, &registration));
    CHECK(mine.keys == 4);
    kvmem_region_info info;
    OK(kvmem_region_get_info(region, &info));
    kvmem_key key;
    OK(kvmem_registration_key(registration, "mine", 2 * MIB + 5, 100, &key));
    CHECK(key.handle == (uint64_t) (uintptr_t) info.data + 2 * MIB && key.lkey == MIB &&
          key.rkey == 77);
    OK(kvmem_registrars_destroy(registrars));
    CHECK(mine.released == 0);
    OK(kvmem_registration_destroy(registration));
    CHECK(mine.keys == 0 && mine.released == 1);

    mine.must_fail = 1;
    OK(kvmem_registrars_custom(&callbacks, &registrars));
    IS(KVMEM_ERR_REGISTER_FAILED,
       kvmem_registration_create(region, registrars, NULL, &registration));
    CHECK(mine.keys == 0);
    OK(kvmem_registrars_destroy(registrars));
    OK(kvmem_region_destroy(region));
}

/* The registrars of this machine; a container may forbid them. */
static void real(void) {
    kvmem_registrars *registrars;
    IS(KVMEM_ERR_INVALID_ARGUMENT, kvmem_registrars_open("no such thing", &registrars));
    static char text[64 * 1024];
    OK(kvmem_discover_report(KVMEM_TEXT, text, sizeof text, NULL));
    CHECK(strstr(text, "mlock") != NULL);
    const char *kinds[] = {"mlock", "io_uring"};
    for (int i = 0; i < 2; i++) {
        kvmem_status status = kvmem_registrars_open(kinds[i], &registrars);
        if (status == KVMEM_ERR_NOT_AVAILABLE) {
            printf("skipped: %s\n", kvmem_last_error());
            continue;
        }
        OK(status);
        kvmem_region *region = region_of(64 * KIB);
        kvmem_registration *registration;
        status = kvmem_registration_create(region, registrars, NULL, &registration);
        if (status == KVMEM_ERR_LIMIT || status == KVMEM_ERR_REGISTER_FAILED) {
            printf("skipped: %s\n", kvmem_last_error());
        } else {
            OK(status);
            OK(kvmem_registration_destroy(registration));
        }
        OK(kvmem_registrars_destroy(registrars));
        OK(kvmem_region_destroy(region));
    }
}

int main(void) {
    simulated();
    background();
    custom();
    real();
    return 0;
}
