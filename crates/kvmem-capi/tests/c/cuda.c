/* Layer 2 with a GPU: memory has one key, or keys whose edges are errors. */
#include "check.h"

int main(void) {
    kvmem_region_options options;
    OK(kvmem_region_options_init(&options, sizeof options));
    options.pages = "4k";
    kvmem_region *region;
    OK(kvmem_region_map(16 * MIB, &options, &region));
    kvmem_registrars *gpu;
    OK(kvmem_registrars_open("cuda:0", &gpu));
    kvmem_limits limits;
    OK(kvmem_registrars_limits(gpu, 0, &limits));
    CHECK(limits.copies_by_address == 1);

    kvmem_registration *registration;
    OK(kvmem_registration_create(region, gpu, NULL, &registration));
    kvmem_registration_info info;
    OK(kvmem_registration_get_info(registration, &info));
    CHECK(info.keys == 1 && info.boundary_bytes == 0);
    kvmem_key key;
    OK(kvmem_registration_key(registration, "cuda:0", 0, 16 * MIB, &key));
    OK(kvmem_registration_destroy(registration));

    kvmem_registration_options pieces;
    OK(kvmem_registration_options_init(&pieces, sizeof pieces));
    pieces.chunk_bytes = 4 * MIB;
    OK(kvmem_registration_create(region, gpu, &pieces, &registration));
    OK(kvmem_registration_get_info(registration, &info));
    CHECK(info.keys == 4 && info.boundary_bytes == 4 * MIB);
    OK(kvmem_registration_key(registration, "cuda:0", 4 * MIB, 4 * MIB, &key));
    IS(KVMEM_ERR_STRADDLES, kvmem_registration_key(registration, "cuda:0", 4 * MIB - 1, 2, &key));
    SAYS("4194303..4194305 straddle the edge of a chunk of cuda:0 at 4194304: split");
    OK(kvmem_registration_destroy(registration));
    OK(kvmem_registrars_destroy(gpu));
    OK(kvmem_region_destroy(region));
    return 0;
}
