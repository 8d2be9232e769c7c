// Memory that is registered with a GPU: one key, or keys whose edges are errors.
#include "check.hpp"

int main() {
    kvmem::RegionOptions options;
    options.pages = "4k";
    const kvmem::Region region(16 * MIB, options);
    const kvmem::Registrars gpu = kvmem::Registrars::open("cuda:0");
    CHECK(gpu.limits(0).copies_by_address == 1);
    {
        const kvmem::Registration whole(region, gpu);
        CHECK(whole.info().keys == 1 && whole.info().boundary_bytes == 0);
        CHECK(whole.key("cuda:0", 0, 16 * MIB).handle != 0);
    }
    kvmem::RegistrationOptions pieces;
    pieces.chunk_bytes = 4 * MIB;
    const kvmem::Registration registration(region, gpu, pieces);
    CHECK(registration.info().keys == 4 && registration.info().boundary_bytes == 4 * MIB);
    CHECK(registration.key("cuda:0", 4 * MIB, 4 * MIB).handle != 0);
    THROWS(KVMEM_ERR_STRADDLES, "straddle the edge of a chunk of cuda:0 at 4194304: split",
           registration.key("cuda:0", 4 * MIB - 1, 2));
    return 0;
}
