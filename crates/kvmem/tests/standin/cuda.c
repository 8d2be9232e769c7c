/*
 * Stand-in for libcuda.so.1: GPUs without hardware.
 *
 * Enforces the rules of the driver: it is started first, a context is current in the calling
 * thread, a range is registered once in the process, a copy lies in one registered range or in
 * none. Calls that would harm the real driver count as misuse.
 *
 * The memory of the GPU is the host's. Copies are made at once, unless COPIES_BY_STREAM is defined.
 */

#include "control.h"

typedef int CUresult, CUdevice;
typedef void *CUcontext;

enum {
    SUCCESS = 0,
    INVALID_VALUE = 1,
    NOT_INITIALIZED = 3,
    INVALID_DEVICE = 101,
    INVALID_CONTEXT = 201,
    ALREADY_REGISTERED = 712,
    NOT_REGISTERED = 713,
};

static struct range {
    uintptr_t at;
    size_t length;
    unsigned int flags;
    struct range *next;
} *ranges;

static uint64_t devices = 2, started, live_ranges, retained, released, pushed, misuse, registered;
/* Copies that were made, and those that met the edge of a registered range. */
static uint64_t copied, crossed;
static uint64_t flags_requested[64], context_used[64];
/* One entry for each device; its address is the handle. */
static char contexts[16];
static _Thread_local CUcontext stack[8];
static _Thread_local int depth;

static uint64_t *number(const char *name, uint64_t at)
{
    NUMBER(devices);
    NUMBER(live_ranges);
    NUMBER(retained);
    NUMBER(released);
    NUMBER(pushed);
    NUMBER(misuse);
    NUMBER(registered);
    NUMBER(copied);
    NUMBER(crossed);
    NUMBER(max_waiting);
    NUMBER(meet);
    if (!strcmp(name, "flags") && at < 64)
        return &flags_requested[at];
    if (!strcmp(name, "context") && at < 64)
        return &context_used[at];
    abort();
}

/* Returns the number of contexts on the calling thread's stack. */
EXPORT uint64_t standin_depth(void)
{
    return (uint64_t)depth;
}

static CUresult done(CUresult result)
{
    pthread_mutex_unlock(&lock);
    return result;
}

EXPORT CUresult cuInit(unsigned int flags)
{
    CUresult error = enter("cuInit");
    if (!error && flags)
        error = INVALID_VALUE;
    if (!error)
        started = 1;
    return error;
}

EXPORT CUresult cuDeviceGetCount(int *count)
{
    CUresult error = enter("cuDeviceGetCount");
    if (error || !started)
        return error ? error : NOT_INITIALIZED;
    *count = (int)devices;
    return SUCCESS;
}

EXPORT CUresult cuDeviceGet(CUdevice *device, int ordinal)
{
    CUresult error = enter("cuDeviceGet");
    if (error || ordinal < 0 || (uint64_t)ordinal >= devices)
        return error ? error : INVALID_DEVICE;
    *device = ordinal;
    return SUCCESS;
}

EXPORT CUresult cuDeviceGetName(char *name, int length, CUdevice device)
{
    CUresult error = enter("cuDeviceGetName");
    if (!error)
        snprintf(name, (size_t)length, "Stand-in %d", device);
    return error;
}

EXPORT CUresult cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice device)
{
    CUresult error = enter("cuDevicePrimaryCtxRetain");
    pthread_mutex_lock(&lock);
    if (error)
        return done(error);
    retained++;
    *context = &contexts[device];
    return done(SUCCESS);
}

EXPORT CUresult cuDevicePrimaryCtxRelease_v2(CUdevice device)
{
    CUresult error = enter("cuDevicePrimaryCtxRelease_v2");
    (void)device;
    pthread_mutex_lock(&lock);
    if (released == retained)
        misuse++;
    released++;
    return done(error);
}

EXPORT CUresult cuDevicePrimaryCtxRelease(CUdevice device)
{
    return cuDevicePrimaryCtxRelease_v2(device);
}

EXPORT CUresult cuCtxPushCurrent_v2(CUcontext context)
{
    CUresult error = enter("cuCtxPushCurrent_v2");
    pthread_mutex_lock(&lock);
    if (error)
        return done(error);
    if (released == retained)
        misuse++;
    stack[depth++ % 8] = context;
    pushed++;
    return done(SUCCESS);
}

/* Pops the context even if it returns an error, as the driver does. */
EXPORT CUresult cuCtxPopCurrent_v2(CUcontext *context)
{
    CUresult error = enter("cuCtxPopCurrent_v2");
    pthread_mutex_lock(&lock);
    if (!depth) {
        misuse++;
        return done(INVALID_CONTEXT);
    }
    *context = stack[--depth % 8];
    pushed--;
    return done(error);
}

static CUresult reg(CUresult error, void *at, size_t length, unsigned int flags)
{
    pthread_mutex_lock(&lock);
    flags_requested[registered % 64] = flags;
    context_used[registered % 64] = depth ? (uint64_t)((char *)stack[depth - 1] - contexts) : ~0ull;
    registered++;
    if (error)
        return done(error);
    if (!depth)
        return done(INVALID_CONTEXT);
    if (!at || !length || flags & ~0xfu)
        return done(INVALID_VALUE);
    uintptr_t from = (uintptr_t)at;
    for (struct range *range = ranges; range; range = range->next)
        if (from < range->at + range->length && range->at < from + length)
            return done(ALREADY_REGISTERED);
    struct range *range = malloc(sizeof *range);
    *range = (struct range){from, length, flags, ranges};
    ranges = range;
    live_ranges++;
    return done(SUCCESS);
}

EXPORT CUresult cuMemHostRegister_v2(void *at, size_t length, unsigned int flags)
{
    return reg(enter("cuMemHostRegister_v2"), at, length, flags);
}

EXPORT CUresult cuMemHostRegister(void *at, size_t length, unsigned int flags)
{
    return reg(enter("cuMemHostRegister"), at, length, flags);
}

static struct range **find(void *at)
{
    struct range **range = &ranges;
    while (*range && (*range)->at != (uintptr_t)at)
        range = &(*range)->next;
    return range;
}

EXPORT CUresult cuMemHostUnregister(void *at)
{
    CUresult error = enter("cuMemHostUnregister");
    pthread_mutex_lock(&lock);
    struct range **range = find(at);
    if (!*range) {
        misuse++;
        return done(NOT_REGISTERED);
    }
    if (error || !depth)
        return done(error ? error : INVALID_CONTEXT);
    struct range *gone = *range;
    *range = gone->next;
    free(gone);
    live_ranges--;
    return done(SUCCESS);
}

/* Returns the address with its highest bit set, which differs from the host's address. */
EXPORT CUresult cuMemHostGetDevicePointer_v2(uint64_t *pointer, void *at, unsigned int flags)
{
    CUresult error = enter("cuMemHostGetDevicePointer_v2");
    pthread_mutex_lock(&lock);
    struct range *range = *find(at);
    if (!error && (!range || !(range->flags & 2) || flags))
        error = INVALID_VALUE;
    if (!error)
        *pointer = (uint64_t)at | 1ull << 63;
    return done(error);
}

/*
 * Returns whether a copy may have its host's end here: within one registered range, or outside of
 * all. The driver fails with INVALID_VALUE if the bytes begin in a range and end elsewhere. The
 * caller has the lock.
 */
static int may_copy(const void *at, size_t length)
{
    /* A mapped address of the GPU stands for the host's. */
    uintptr_t from = (uintptr_t)at & ~(1ull << 63);
    for (struct range *range = ranges; range; range = range->next) {
        if (from >= range->at + range->length || range->at >= from + length)
            continue;
        if (from >= range->at && from + length <= range->at + range->length)
            return 1;
        crossed++;
        return 0;
    }
    return 1;
}

#ifndef COPIES_BY_STREAM

static void *host(const void *at)
{
    return (void *)((uintptr_t)at & ~(1ull << 63));
}

/* Either end may be memory of the host: the driver knows which by its address. */
static CUresult copy(CUresult error, void *to, const void *from, size_t length)
{
    pthread_mutex_lock(&lock);
    if (error)
        return done(error);
    if (!depth)
        return done(INVALID_CONTEXT);
    if (!to || !from || !may_copy(to, length) || !may_copy(from, length))
        return done(INVALID_VALUE);
    memmove(host(to), host(from), length);
    copied++;
    return done(SUCCESS);
}

EXPORT CUresult cuMemcpy(uint64_t to, uint64_t from, size_t length)
{
    return copy(enter("cuMemcpy"), (void *)to, (void *)from, length);
}

EXPORT CUresult cuMemcpyAsync(uint64_t to, uint64_t from, size_t length, void *stream)
{
    (void)stream;
    return copy(enter("cuMemcpyAsync"), (void *)to, (void *)from, length);
}

EXPORT CUresult cuMemcpyHtoD_v2(uint64_t to, const void *from, size_t length)
{
    return copy(enter("cuMemcpyHtoD_v2"), (void *)to, from, length);
}

EXPORT CUresult cuMemcpyDtoH_v2(void *to, uint64_t from, size_t length)
{
    return copy(enter("cuMemcpyDtoH_v2"), to, (void *)from, length);
}

EXPORT CUresult cuMemcpyHtoDAsync_v2(uint64_t to, const void *from, size_t length, void *stream)
{
    (void)stream;
    return copy(enter("cuMemcpyHtoDAsync_v2"), (void *)to, from, length);
}

EXPORT CUresult cuMemcpyDtoHAsync_v2(void *to, uint64_t from, size_t length, void *stream)
{
    (void)stream;
    return copy(enter("cuMemcpyDtoHAsync_v2"), to, (void *)from, length);
}

/* Fails at the first copy that is not possible, and stores its number. */
EXPORT CUresult cuMemcpyBatchAsync(uint64_t *to, uint64_t *from, size_t *lengths, size_t count,
                                   void *attributes, size_t *indices, size_t attribute_count,
                                   size_t *failed, void *stream)
{
    CUresult error = enter("cuMemcpyBatchAsync");
    (void)attributes;
    (void)indices;
    (void)attribute_count;
    (void)stream;
    for (size_t at = 0; !error && at < count; at++) {
        error = copy(SUCCESS, (void *)to[at], (void *)from[at], lengths[at]);
        if (error && failed)
            *failed = at;
    }
    return error;
}

#endif

EXPORT CUresult cuGetErrorName(CUresult result, const char **name)
{
    static const struct {
        CUresult result;
        const char *name;
    } names[] = {
        {1, "CUDA_ERROR_INVALID_VALUE"},
        {2, "CUDA_ERROR_OUT_OF_MEMORY"},
        {3, "CUDA_ERROR_NOT_INITIALIZED"},
        {34, "CUDA_ERROR_STUB_LIBRARY"},
        {46, "CUDA_ERROR_DEVICE_UNAVAILABLE"},
        {100, "CUDA_ERROR_NO_DEVICE"},
        {101, "CUDA_ERROR_INVALID_DEVICE"},
        {201, "CUDA_ERROR_INVALID_CONTEXT"},
        {304, "CUDA_ERROR_OPERATING_SYSTEM"},
        {712, "CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED"},
        {713, "CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED"},
        {800, "CUDA_ERROR_NOT_PERMITTED"},
        {801, "CUDA_ERROR_NOT_SUPPORTED"},
        {802, "CUDA_ERROR_SYSTEM_NOT_READY"},
        {803, "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH"},
        {999, "CUDA_ERROR_UNKNOWN"},
    };
    for (size_t at = 0; at < sizeof names / sizeof *names; at++)
        if (names[at].result == result) {
            *name = names[at].name;
            return SUCCESS;
        }
    *name = NULL;
    return INVALID_VALUE;
}
