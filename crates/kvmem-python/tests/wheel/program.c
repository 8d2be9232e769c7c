/* A pool and one of its blocks. `cargo xtask wheel --check` compiles this with a wheel's files. */
#include <stdio.h>
#include <string.h>

#include <kvmem.h>

static int failed(const char *what) {
    fprintf(stderr, "%s: %s\n", what, kvmem_last_error());
    return 1;
}

int main(void) {
    kvmem_pool_options options;
    kvmem_pool *pool;
    kvmem_block block;
    if (kvmem_pool_options_init(&options, sizeof options) != KVMEM_OK)
        return failed("options");
    options.pages = "4k";
    if (kvmem_pool_create(1 << 20, &options, &pool) != KVMEM_OK)
        return failed("pool");
    if (kvmem_pool_allocate(pool, 65536, &block) != KVMEM_OK)
        return failed("block");
    memset(block.data, 7, block.bytes);
    printf("kvmem %s: %llu bytes at offset %llu\n", kvmem_version(),
           (unsigned long long) block.bytes, (unsigned long long) block.offset);
    if (kvmem_block_free(&block) != KVMEM_OK)
        return failed("free");
    return kvmem_pool_destroy(pool) == KVMEM_OK ? 0 : failed("destroy");
}
