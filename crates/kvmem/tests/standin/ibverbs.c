/*
 * Stand-in for libibverbs.so.1: devices without hardware.
 *
 * Counts live objects, and fails as a driver does (limits, access flags). Calls that would crash
 * the real library count as misuse: unknown or destroyed objects, and owners that are destroyed
 * before the objects that they own.
 */

#include "control.h"

#include <errno.h>

struct ibv_device {
    char name[16];
};

struct ibv_context {
    struct ibv_device *device;
    uint64_t domains;
};

struct ibv_pd {
    struct ibv_context *context;
    uint32_t handle;
    uint64_t regions;
};

struct ibv_mr {
    struct ibv_context *context;
    struct ibv_pd *pd;
    void *addr;
    size_t length;
    uint32_t handle, lkey, rkey;
    struct ibv_mr *next;
};

/* As in the header; unused fields only keep their place. */
struct ibv_device_attr {
    char before_max_mr_size[80];
    uint64_t max_mr_size;
    char before_max_mr[48];
    int max_mr;
    char after_max_mr[92];
};

static struct ibv_device all[16];
static struct ibv_mr *regions;
static uint64_t devices = 2, max_mr_size = 1ull << 40, max_mr = 1000, memlock = ~0ull;
static uint64_t live_lists, live_contexts, live_domains, live_regions, pinned, misuse;
static uint64_t access_requested[64], registered;
/* 1 if the device was given another address than the host's. */
static uint64_t foreign_iova;
static uint32_t keys = 0x100;

static uint64_t *number(const char *name, uint64_t at)
{
    NUMBER(devices);
    NUMBER(max_mr_size);
    NUMBER(max_mr);
    NUMBER(memlock);
    NUMBER(live_lists);
    NUMBER(live_contexts);
    NUMBER(live_domains);
    NUMBER(live_regions);
    NUMBER(misuse);
    NUMBER(registered);
    NUMBER(foreign_iova);
    NUMBER(max_waiting);
    NUMBER(meet);
    if (!strcmp(name, "access") && at < 64)
        return &access_requested[at];
    abort();
}

/* Called with the lock held. With an error of -1 it returns failure without an error number. */
static void *fail_call(int error)
{
    pthread_mutex_unlock(&lock);
    errno = error == -1 ? 0 : error;
    return NULL;
}

EXPORT struct ibv_device **ibv_get_device_list(int *count)
{
    int error = enter("ibv_get_device_list");
    pthread_mutex_lock(&lock);
    if (error)
        return fail_call(error);
    struct ibv_device **list = calloc(devices + 1, sizeof *list);
    for (uint64_t at = 0; at < devices; at++) {
        snprintf(all[at].name, sizeof all[at].name, "mlx5_%d", (int)at);
        list[at] = &all[at];
    }
    live_lists++;
    if (count)
        *count = (int)devices;
    pthread_mutex_unlock(&lock);
    return list;
}

EXPORT void ibv_free_device_list(struct ibv_device **list)
{
    enter("ibv_free_device_list");
    pthread_mutex_lock(&lock);
    live_lists--;
    free(list);
    pthread_mutex_unlock(&lock);
}

EXPORT const char *ibv_get_device_name(struct ibv_device *device)
{
    return device->name;
}

EXPORT struct ibv_context *ibv_open_device(struct ibv_device *device)
{
    int error = enter("ibv_open_device");
    pthread_mutex_lock(&lock);
    if (!live_lists)
        misuse++;
    if (error)
        return fail_call(error);
    struct ibv_context *context = calloc(1, sizeof *context);
    context->device = device;
    live_contexts++;
    pthread_mutex_unlock(&lock);
    return context;
}

EXPORT int ibv_close_device(struct ibv_context *context)
{
    int error = enter("ibv_close_device");
    pthread_mutex_lock(&lock);
    if (context->domains)
        misuse++;
    live_contexts--;
    free(context);
    pthread_mutex_unlock(&lock);
    return error;
}

EXPORT int ibv_query_device(struct ibv_context *context, struct ibv_device_attr *attr)
{
    (void)context;
    int error = enter("ibv_query_device");
    if (error)
        return error;
    _Static_assert(sizeof *attr == 232, "the header's size");
    memset(attr, 0x5a, sizeof *attr);
    attr->max_mr_size = max_mr_size;
    attr->max_mr = (int)max_mr;
    return 0;
}

EXPORT struct ibv_pd *ibv_alloc_pd(struct ibv_context *context)
{
    int error = enter("ibv_alloc_pd");
    pthread_mutex_lock(&lock);
    if (error)
        return fail_call(error);
    struct ibv_pd *pd = calloc(1, sizeof *pd);
    pd->context = context;
    context->domains++;
    live_domains++;
    pthread_mutex_unlock(&lock);
    return pd;
}

EXPORT int ibv_dealloc_pd(struct ibv_pd *pd)
{
    int error = enter("ibv_dealloc_pd");
    pthread_mutex_lock(&lock);
    if (!error && pd->regions)
        error = EBUSY;
    if (!error) {
        pd->context->domains--;
        live_domains--;
        free(pd);
    }
    pthread_mutex_unlock(&lock);
    return error;
}

static struct ibv_mr *reg(int error, struct ibv_pd *pd, void *addr, size_t length,
                          unsigned int access)
{
    pthread_mutex_lock(&lock);
    access_requested[registered++ % 64] = access;
    if (error)
        return fail_call(error);
    /* Remote write and atomic need local write. */
    if ((access & (2 | 8) && !(access & 1)) || length > max_mr_size)
        return fail_call(EINVAL);
    if (live_regions >= max_mr && (int)max_mr > 0)
        return fail_call(ENOMEM);
    if (pinned + length > memlock)
        return fail_call(ENOMEM);
    struct ibv_mr *mr = calloc(1, sizeof *mr);
    mr->context = pd->context;
    mr->pd = pd;
    mr->addr = addr;
    mr->length = length;
    mr->handle = keys;
    mr->lkey = keys++;
    mr->rkey = keys++;
    mr->next = regions;
    regions = mr;
    pd->regions++;
    live_regions++;
    pinned += length;
    pthread_mutex_unlock(&lock);
    return mr;
}

EXPORT struct ibv_mr *ibv_reg_mr(struct ibv_pd *pd, void *addr, size_t length, int access)
{
    return reg(enter("ibv_reg_mr"), pd, addr, length, (unsigned int)access);
}

EXPORT struct ibv_mr *ibv_reg_mr_iova2(struct ibv_pd *pd, void *addr, size_t length, uint64_t iova,
                                       unsigned int access)
{
    int error = enter("ibv_reg_mr_iova2");
    if (iova != (uintptr_t)addr)
        foreign_iova = 1;
    return reg(error, pd, addr, length, access);
}

EXPORT int ibv_dereg_mr(struct ibv_mr *mr)
{
    int error = enter("ibv_dereg_mr");
    pthread_mutex_lock(&lock);
    struct ibv_mr **at = &regions;
    while (*at && *at != mr)
        at = &(*at)->next;
    if (!*at) {
        misuse++;
        error = EFAULT;
    }
    if (!error) {
        *at = mr->next;
        mr->pd->regions--;
        live_regions--;
        pinned -= mr->length;
        free(mr);
    }
    pthread_mutex_unlock(&lock);
    if (error < 0)
        errno = -error > 1 ? -error : EIO;
    return error;
}
