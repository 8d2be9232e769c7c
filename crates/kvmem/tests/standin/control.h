/*
 * Control: what every stand-in offers to the test that has loaded it.
 *
 * Each function of the library calls `enter` first. That counts it, writes its name into the log, waits as long as the test has
 * said, and tells the error that the test wants of it, or 0.
 */

#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define EXPORT __attribute__((visibility("default")))

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static struct call {
    char name[64];
    uint64_t made, nth, times;
    int error;
} calls[64];
static char told[1 << 16];
static uint64_t latency_ns, waiting, most_waiting;

/* A number of this library by its name. */
static uint64_t *number(const char *name, uint64_t at);

static struct call *call_of(const char *name)
{
    for (size_t at = 0; at < sizeof calls / sizeof *calls; at++) {
        if (!calls[at].name[0])
            snprintf(calls[at].name, sizeof calls[at].name, "%s", name);
        if (!strcmp(calls[at].name, name))
            return &calls[at];
    }
    abort();
}

static int enter(const char *name)
{
    pthread_mutex_lock(&lock);
    struct call *call = call_of(name);
    call->made++;
    int error = call->made >= call->nth && call->made - call->nth < call->times ? call->error : 0;
    size_t used = strlen(told);
    if (used + strlen(name) + 2 < sizeof told)
        sprintf(told + used, "%s\n", name);
    struct timespec wait = {latency_ns / 1000000000, latency_ns % 1000000000};
    if (wait.tv_sec || wait.tv_nsec) {
        if (++waiting > most_waiting)
            most_waiting = waiting;
        pthread_mutex_unlock(&lock);
        nanosleep(&wait, NULL);
        pthread_mutex_lock(&lock);
        waiting--;
    }
    pthread_mutex_unlock(&lock);
    return error;
}

/* Calls of this function fail with this error: `times` of them, the `nth` from now and those after it. */
EXPORT void standin_fail(const char *name, uint64_t nth, uint64_t times, int error)
{
    pthread_mutex_lock(&lock);
    struct call *call = call_of(name);
    call->nth = call->made + nth;
    call->times = times;
    call->error = error;
    pthread_mutex_unlock(&lock);
}

EXPORT uint64_t standin_calls(const char *name)
{
    pthread_mutex_lock(&lock);
    uint64_t made = call_of(name)->made;
    pthread_mutex_unlock(&lock);
    return made;
}

EXPORT void standin_latency(uint64_t nanoseconds)
{
    pthread_mutex_lock(&lock);
    latency_ns = nanoseconds;
    pthread_mutex_unlock(&lock);
}

EXPORT void standin_set(const char *name, uint64_t at, uint64_t value)
{
    pthread_mutex_lock(&lock);
    *number(name, at) = value;
    pthread_mutex_unlock(&lock);
}

EXPORT uint64_t standin_get(const char *name, uint64_t at)
{
    pthread_mutex_lock(&lock);
    uint64_t value = *number(name, at);
    pthread_mutex_unlock(&lock);
    return value;
}

/* The names of all calls since the last time, one a line. */
EXPORT void standin_log(char *into, uint64_t size)
{
    pthread_mutex_lock(&lock);
    snprintf(into, size, "%s", told);
    told[0] = 0;
    pthread_mutex_unlock(&lock);
}

/* A number that has a variable of its name. */
#define NUMBER(variable)                                                                                             \
    if (!strcmp(name, #variable))                                                                                    \
    return &variable
