/*
 * Stand-in for libnixl_capi.so: agents that transfer nothing.
 *
 * Counts live objects, accepts what the real library accepts (duplicate, overlapping and empty
 * ranges), and does not find ranges that are not registered. Calls that would harm the real library
 * count as misuse: unknown or destroyed objects, parts that outlive their agent, and concurrent
 * calls of one agent.
 */

#include "control.h"

enum {
    SUCCESS = 0,
    INVALID_PARAM = -1,
    BACKEND = -2,
    NOT_FOUND = -6,
};

enum { DRAM, VRAM, BLOCK, OBJECT };

/* The number with which a test makes a call succeed and create nothing. */
enum { NOTHING = 1000 };

/* The header of every object. Destroyed objects are not freed: their use is recognized. */
struct object {
    const char *kind;
    int destroyed;
};

struct agent {
    struct object object;
    char name[64];
    uint64_t parts;
    int inside;
};

struct backend {
    struct object object;
    struct agent *agent;
    char name[32];
};

struct opt_args {
    struct object object;
    struct backend *backend;
};

struct params {
    struct object object;
    char text[256];
};

struct mem_list {
    struct object object;
    size_t count;
    unsigned kinds[4];
};

struct string_list {
    struct object object;
};

struct reg_list {
    struct object object;
    unsigned kind;
    size_t count;
    uintptr_t at;
    size_t length;
    uint64_t device;
};

static struct range {
    struct agent *agent;
    uintptr_t at;
    size_t length;
    struct range *next;
} *ranges;

static const char *const plugins[] = {"GDS", "POSIX", "UCX", "VRAM_ONLY"};

static uint64_t live_objects, live_ranges, live_blobs, misuse, registered;
static uint64_t last_device = ~0ull, last_length;
static char last_agent[64], last_params[256];

static uint64_t *number(const char *name, uint64_t at)
{
    (void)at;
    NUMBER(live_objects);
    NUMBER(live_ranges);
    NUMBER(live_blobs);
    NUMBER(misuse);
    NUMBER(registered);
    NUMBER(last_device);
    NUMBER(last_length);
    NUMBER(max_waiting);
    NUMBER(meet);
    abort();
}

/* Returns the name of the agent that was created last. */
EXPORT const char *standin_agent(void)
{
    return last_agent;
}

/* Returns the parameters of the backend that was created last. */
EXPORT const char *standin_params(void)
{
    return last_params;
}

static void *make(const char *kind, size_t size)
{
    struct object *object = calloc(1, size);
    object->kind = kind;
    live_objects++;
    return object;
}

/* Returns whether this is a live object of this kind. */
static int is_live(void *object, const char *kind)
{
    struct object *it = object;
    if (it && !it->destroyed && !strcmp(it->kind, kind))
        return 1;
    misuse++;
    return 0;
}

static int leave(int status)
{
    pthread_mutex_unlock(&lock);
    return status;
}

static int destroy(const char *call, void *object, const char *kind)
{
    int error = enter(call);
    pthread_mutex_lock(&lock);
    if (error)
        return leave(error);
    if (!is_live(object, kind))
        return leave(INVALID_PARAM);
    ((struct object *)object)->destroyed = 1;
    live_objects--;
    return leave(SUCCESS);
}

/* Begins a call of an agent. `leave_agent` ends it. */
static int enter_agent(const char *call, struct agent *agent)
{
    pthread_mutex_lock(&lock);
    int known = is_live(agent, "agent");
    if (known && agent->inside++)
        misuse++;
    pthread_mutex_unlock(&lock);
    int error = enter(call);
    pthread_mutex_lock(&lock);
    return error ? error : known ? SUCCESS : INVALID_PARAM;
}

static int leave_agent(struct agent *agent, int status)
{
    agent->inside--;
    return leave(status == NOTHING ? SUCCESS : status);
}

EXPORT int nixl_capi_create_agent(const char *name, struct agent **into)
{
    int error = enter("nixl_capi_create_agent");
    pthread_mutex_lock(&lock);
    if (error == NOTHING)
        return leave(SUCCESS);
    if (error)
        return leave(error);
    if (!*name)
        return leave(BACKEND);
    struct agent *agent = make("agent", sizeof *agent);
    snprintf(agent->name, sizeof agent->name, "%s", name);
    snprintf(last_agent, sizeof last_agent, "%s", name);
    *into = agent;
    return leave(SUCCESS);
}

EXPORT int nixl_capi_destroy_agent(struct agent *agent)
{
    pthread_mutex_lock(&lock);
    if (is_live(agent, "agent") && (agent->parts || agent->inside))
        misuse++;
    pthread_mutex_unlock(&lock);
    return destroy("nixl_capi_destroy_agent", agent, "agent");
}

EXPORT int nixl_capi_get_available_plugins(struct agent *agent, struct string_list **into)
{
    int error = enter_agent("nixl_capi_get_available_plugins", agent);
    if (!error)
        *into = make("string list", sizeof **into);
    return leave_agent(agent, error);
}

EXPORT int nixl_capi_string_list_size(struct string_list *list, size_t *size)
{
    int error = enter("nixl_capi_string_list_size");
    pthread_mutex_lock(&lock);
    if (!error && is_live(list, "string list"))
        *size = sizeof plugins / sizeof *plugins;
    return leave(error);
}

EXPORT int nixl_capi_string_list_get(struct string_list *list, size_t at, const char **into)
{
    int error = enter("nixl_capi_string_list_get");
    pthread_mutex_lock(&lock);
    if (error == NOTHING)
        return leave(SUCCESS);
    if (!error && is_live(list, "string list"))
        *into = plugins[at];
    return leave(error);
}

EXPORT int nixl_capi_destroy_string_list(struct string_list *list)
{
    return destroy("nixl_capi_destroy_string_list", list, "string list");
}

EXPORT int nixl_capi_get_plugin_params(struct agent *agent, const char *name,
                                       struct mem_list **mems, struct params **params)
{
    int error = enter_agent("nixl_capi_get_plugin_params", agent);
    if (error)
        return leave_agent(agent, error);
    size_t known = 0;
    while (known < sizeof plugins / sizeof *plugins && strcmp(plugins[known], name))
        known++;
    /* The plugin of GDS exists, but cannot be loaded. */
    if (known == sizeof plugins / sizeof *plugins || !strcmp(name, "GDS"))
        return leave_agent(agent, BACKEND);
    *mems = make("mem list", sizeof **mems);
    **mems = (struct mem_list){(*mems)->object, 2, {VRAM, DRAM}};
    if (!strcmp(name, "VRAM_ONLY"))
        (*mems)->count = 1;
    *params = make("params", sizeof **params);
    return leave_agent(agent, SUCCESS);
}

EXPORT int nixl_capi_mem_list_size(struct mem_list *list, size_t *size)
{
    int error = enter("nixl_capi_mem_list_size");
    pthread_mutex_lock(&lock);
    if (!error && is_live(list, "mem list"))
        *size = list->count;
    return leave(error);
}

EXPORT int nixl_capi_mem_list_get(struct mem_list *list, size_t at, unsigned *kind)
{
    int error = enter("nixl_capi_mem_list_get");
    pthread_mutex_lock(&lock);
    if (!error && is_live(list, "mem list")) {
        if (at >= list->count)
            misuse++;
        *kind = list->kinds[at];
    }
    return leave(error);
}

EXPORT int nixl_capi_destroy_mem_list(struct mem_list *list)
{
    return destroy("nixl_capi_destroy_mem_list", list, "mem list");
}

EXPORT int nixl_capi_params_add(struct params *params, const char *key, const char *value)
{
    int error = enter("nixl_capi_params_add");
    pthread_mutex_lock(&lock);
    if (!error && is_live(params, "params")) {
        size_t used = strlen(params->text);
        snprintf(params->text + used, sizeof params->text - used, "%s=%s;", key, value);
    }
    return leave(error);
}

EXPORT int nixl_capi_destroy_params(struct params *params)
{
    return destroy("nixl_capi_destroy_params", params, "params");
}

EXPORT int nixl_capi_create_backend(struct agent *agent, const char *name, struct params *params,
                                    struct backend **into)
{
    int error = enter_agent("nixl_capi_create_backend", agent);
    if (error || !is_live(params, "params"))
        return leave_agent(agent, error);
    struct backend *backend = make("backend", sizeof *backend);
    backend->agent = agent;
    snprintf(backend->name, sizeof backend->name, "%s", name);
    snprintf(last_params, sizeof last_params, "%s", params->text);
    agent->parts++;
    *into = backend;
    return leave_agent(agent, SUCCESS);
}

EXPORT int nixl_capi_destroy_backend(struct backend *backend)
{
    struct agent *agent = backend->agent;
    int error = destroy("nixl_capi_destroy_backend", backend, "backend");
    pthread_mutex_lock(&lock);
    if (!error && is_live(agent, "agent"))
        agent->parts--;
    return leave(error);
}

EXPORT int nixl_capi_create_opt_args(struct opt_args **into)
{
    int error = enter("nixl_capi_create_opt_args");
    pthread_mutex_lock(&lock);
    if (error == NOTHING)
        return leave(SUCCESS);
    if (!error)
        *into = make("opt args", sizeof **into);
    return leave(error);
}

EXPORT int nixl_capi_opt_args_add_backend(struct opt_args *args, struct backend *backend)
{
    int error = enter("nixl_capi_opt_args_add_backend");
    pthread_mutex_lock(&lock);
    if (!error && is_live(args, "opt args") && is_live(backend, "backend"))
        args->backend = backend;
    return leave(error);
}

EXPORT int nixl_capi_destroy_opt_args(struct opt_args *args)
{
    return destroy("nixl_capi_destroy_opt_args", args, "opt args");
}

EXPORT int nixl_capi_create_reg_dlist(unsigned kind, struct reg_list **into)
{
    int error = enter("nixl_capi_create_reg_dlist");
    pthread_mutex_lock(&lock);
    if (error == NOTHING)
        return leave(SUCCESS);
    if (error)
        return leave(error);
    *into = make("reg list", sizeof **into);
    (*into)->kind = kind;
    return leave(SUCCESS);
}

EXPORT int nixl_capi_reg_dlist_add_desc(struct reg_list *list, uintptr_t at, size_t length,
                                        uint64_t device, const void *bytes, size_t count)
{
    int error = enter("nixl_capi_reg_dlist_add_desc");
    pthread_mutex_lock(&lock);
    if (bytes || count)
        misuse++;
    if (!error && is_live(list, "reg list")) {
        list->count++;
        list->at = at;
        list->length = length;
        list->device = device;
    }
    return leave(error);
}

EXPORT int nixl_capi_destroy_reg_dlist(struct reg_list *list)
{
    return destroy("nixl_capi_destroy_reg_dlist", list, "reg list");
}

/* Returns whether a list has one descriptor of host memory, for a backend of this agent. */
static int proper(struct agent *agent, struct reg_list *list, struct opt_args *args)
{
    if (is_live(list, "reg list") && is_live(args, "opt args") && args->backend &&
        args->backend->agent == agent && list->kind == DRAM && list->count == 1)
        return 1;
    misuse++;
    return 0;
}

EXPORT int nixl_capi_register_mem(struct agent *agent, struct reg_list *list, struct opt_args *args)
{
    int error = enter_agent("nixl_capi_register_mem", agent);
    if (error || !proper(agent, list, args))
        return leave_agent(agent, error);
    struct range *range = calloc(1, sizeof *range);
    *range = (struct range){agent, list->at, list->length, ranges};
    ranges = range;
    live_ranges++;
    registered++;
    last_device = list->device;
    last_length = list->length;
    return leave_agent(agent, SUCCESS);
}

EXPORT int nixl_capi_deregister_mem(struct agent *agent, struct reg_list *list,
                                    struct opt_args *args)
{
    int error = enter_agent("nixl_capi_deregister_mem", agent);
    if (error || !proper(agent, list, args))
        return leave_agent(agent, error);
    struct range **at = &ranges;
    while (*at &&
           !((*at)->agent == agent && (*at)->at == list->at && (*at)->length == list->length))
        at = &(*at)->next;
    struct range *range = *at;
    if (!range)
        return leave_agent(agent, NOT_FOUND);
    *at = range->next;
    free(range);
    live_ranges--;
    return leave_agent(agent, SUCCESS);
}

/* Returns the agent's name, and how many ranges it has. */
EXPORT int nixl_capi_get_local_md(struct agent *agent, void **into, size_t *length)
{
    int error = enter_agent("nixl_capi_get_local_md", agent);
    if (error)
        return leave_agent(agent, error);
    size_t count = 0;
    for (struct range *range = ranges; range; range = range->next)
        count += range->agent == agent;
    char *text = malloc(96);
    *length = (size_t)snprintf(text, 96, "%s has %zu", agent->name, count);
    *into = text;
    live_blobs++;
    return leave_agent(agent, SUCCESS);
}

EXPORT void nixl_capi_mem_free(void *blob)
{
    enter("nixl_capi_mem_free");
    pthread_mutex_lock(&lock);
    live_blobs--;
    leave(0);
    free(blob);
}

#ifdef OLD
EXPORT int nixl_capi_reg_dlist_is_sorted(struct reg_list *list, _Bool *sorted)
{
    (void)list;
    *sorted = 0;
    return 0;
}
#endif
