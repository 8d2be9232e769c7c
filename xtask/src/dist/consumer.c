/* A program of somebody who has unpacked the archive: it takes a range of a space and frees it. */
#include <kvmem.h>
#include <stdio.h>
#include <string.h>

int main(void) {
    kvmem_offset_allocator *space;
    kvmem_allocation range;
    if (kvmem_offset_allocator_create(1 << 20, NULL, &space) != KVMEM_OK ||
        kvmem_offset_allocator_allocate(space, 4096, &range) != KVMEM_OK || range.bytes != 4096 ||
        kvmem_offset_allocator_free(space, &range) != KVMEM_OK ||
        kvmem_offset_allocator_destroy(space) != KVMEM_OK) {
        fprintf(stderr, "%s\n", kvmem_last_error());
        return 1;
    }
    puts(kvmem_version());
    return 0;
}
