/*
 * Stand-in for libcuda.so.1: what the benchmark of GPUs calls, besides the functions for
 * registering. The memory of the GPU is the host's, and copies are made when the stream is
 * synchronized.
 */

#define COPIES_BY_STREAM
#include "../../crates/kvmem/tests/standin/cuda.c"

#include <stddef.h>
#include <sys/mman.h>

typedef void *CUstream;

enum { OUT_OF_MEMORY = 2 };

struct location {
    int kind, id;
};

struct properties {
    int kind, handle_types;
    struct location location;
    void *meta_data;
    unsigned char flags[8];
};

struct access {
    struct location location;
    int flags;
};

static struct copy {
    void *to;
    const void *from;
    size_t length;
} copies[4096];
static size_t copies_started;
static int own_contexts;

EXPORT CUresult cuCtxCreate_v2(CUcontext *context, unsigned int flags, CUdevice device)
{
    CUresult error = enter("cuCtxCreate_v2");
    (void)flags;
    (void)device;
    pthread_mutex_lock(&lock);
    if (error)
        return done(error);
    *context = &contexts[8 + own_contexts++ % 8];
    stack[depth++ % 8] = *context;
    pushed++;
    return done(SUCCESS);
}

EXPORT CUresult cuCtxDestroy_v2(CUcontext context)
{
    (void)context;
    return enter("cuCtxDestroy_v2");
}

EXPORT CUresult cuMemHostAlloc(void **at, size_t length, unsigned int flags)
{
    CUresult error = enter("cuMemHostAlloc");
    if (error || !depth || flags & ~7u)
        return error ? error : INVALID_VALUE;
    *at = aligned_alloc(4096, (length + 4095) / 4096 * 4096);
    return *at ? SUCCESS : OUT_OF_MEMORY;
}

EXPORT CUresult cuMemFreeHost(void *at)
{
    free(at);
    return enter("cuMemFreeHost");
}

EXPORT CUresult cuMemAlloc_v2(uint64_t *at, size_t length)
{
    CUresult error = enter("cuMemAlloc_v2");
    if (error || !depth)
        return error ? error : INVALID_CONTEXT;
    *at = (uint64_t)malloc(length);
    return *at ? SUCCESS : OUT_OF_MEMORY;
}

EXPORT CUresult cuMemFree_v2(uint64_t at)
{
    free((void *)at);
    return enter("cuMemFree_v2");
}

EXPORT CUresult cuStreamCreate(CUstream *stream, unsigned int flags)
{
    *stream = flags ? NULL : copies;
    return enter("cuStreamCreate");
}

EXPORT CUresult cuStreamDestroy_v2(CUstream stream)
{
    if (stream != copies || copies_started)
        misuse++;
    return enter("cuStreamDestroy_v2");
}

static CUresult start(CUresult error, void *to, const void *from, size_t length, CUstream stream)
{
    pthread_mutex_lock(&lock);
    if (error || stream != copies || copies_started == sizeof copies / sizeof *copies)
        return done(error ? error : INVALID_VALUE);
    if (!may_copy(to, length) || !may_copy(from, length))
        return done(INVALID_VALUE);
    copies[copies_started++] = (struct copy){to, from, length};
    return done(SUCCESS);
}

EXPORT CUresult cuMemcpyHtoDAsync_v2(uint64_t to, const void *from, size_t length, CUstream stream)
{
    return start(enter("cuMemcpyHtoDAsync_v2"), (void *)to, from, length, stream);
}

EXPORT CUresult cuMemcpyDtoHAsync_v2(void *to, uint64_t from, size_t length, CUstream stream)
{
    return start(enter("cuMemcpyDtoHAsync_v2"), to, (void *)from, length, stream);
}

/* Copies nothing where BROKEN is defined. */
EXPORT CUresult cuStreamSynchronize(CUstream stream)
{
    CUresult error = enter("cuStreamSynchronize");
#ifndef BROKEN
    for (size_t at = 0; stream == copies && at < copies_started; at++)
        memcpy(copies[at].to, copies[at].from, copies[at].length);
#else
    (void)stream;
#endif
    copies_started = 0;
    return error;
}

EXPORT CUresult cuMemGetAllocationGranularity(size_t *bytes, const struct properties *wanted,
                                              unsigned int option)
{
    (void)option;
    *bytes = 2 << 20;
    return wanted->location.kind == 3 ? enter("cuMemGetAllocationGranularity") : INVALID_VALUE;
}

EXPORT CUresult cuMemCreate(uint64_t *handle, size_t length, const struct properties *wanted,
                            uint64_t flags)
{
    CUresult error = enter("cuMemCreate");
    if (error || wanted->kind != 1 || wanted->location.kind != 3 || length % (2 << 20) || flags)
        return error ? error : INVALID_VALUE;
    *handle = length;
    return SUCCESS;
}

EXPORT CUresult cuMemRelease(uint64_t handle)
{
    if (!handle)
        misuse++;
    return enter("cuMemRelease");
}

EXPORT CUresult cuMemAddressReserve(uint64_t *at, size_t length, size_t align, uint64_t wanted,
                                    uint64_t flags)
{
    (void)align;
    (void)wanted;
    (void)flags;
    void *base = mmap(NULL, length, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    *at = (uint64_t)base;
    return base == MAP_FAILED ? OUT_OF_MEMORY : enter("cuMemAddressReserve");
}

EXPORT CUresult cuMemAddressFree(uint64_t at, size_t length)
{
    munmap((void *)at, length);
    return enter("cuMemAddressFree");
}

EXPORT CUresult cuMemMap(uint64_t at, size_t length, size_t offset, uint64_t handle, uint64_t flags)
{
    (void)at;
    return handle == length && !offset && !flags ? enter("cuMemMap") : INVALID_VALUE;
}

EXPORT CUresult cuMemUnmap(uint64_t at, size_t length)
{
    mprotect((void *)at, length, PROT_NONE);
    return enter("cuMemUnmap");
}

EXPORT CUresult cuMemSetAccess(uint64_t at, size_t length, const struct access *wanted,
                               size_t count)
{
    CUresult error = enter("cuMemSetAccess");
    if (error || count != 2 || wanted[0].flags != 3 || wanted[1].location.kind != 1)
        return error ? error : INVALID_VALUE;
    return mprotect((void *)at, length, PROT_READ | PROT_WRITE) ? INVALID_VALUE : SUCCESS;
}
