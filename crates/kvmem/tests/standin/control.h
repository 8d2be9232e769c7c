/*
 * Control: the functions of every stand-in for the test that has loaded it.
 *
 * Each function of the library calls `enter` first. `enter` counts the call, logs its name, waits
 * for the latency that the test has set, and returns the error that the test has injected, or 0.
 * A test can set `meet` to a number. A call with a latency then waits until that number of calls
 * are inside the library at the same time. It returns after a minute at the latest.
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
static char call_log[1 << 16];
static uint64_t latency_ns, waiting, max_waiting, meet;

/* Returns a number of this library by its name. */
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
    size_t used = strlen(call_log);
    if (used + strlen(name) + 2 < sizeof call_log)
        sprintf(call_log + used, "%s\n", name);
    struct timespec wait = {latency_ns / 1000000000, latency_ns % 1000000000};
    if (wait.tv_sec || wait.tv_nsec) {
        if (++waiting > max_waiting)
            max_waiting = waiting;
        uint64_t left = 60 * UINT64_C(1000000000) / latency_ns;
        do {
            pthread_mutex_unlock(&lock);
            nanosleep(&wait, NULL);
            pthread_mutex_lock(&lock);
        } while (max_waiting < meet && left-- > 0);
        waiting--;
    }
    pthread_mutex_unlock(&lock);
    return error;
}

/* Makes `times` calls of a function fail with `error`, from the `nth` call from now on. */
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

/* Copies the names of all calls since the last time, one a line. */
EXPORT void standin_log(char *into, uint64_t size)
{
    pthread_mutex_lock(&lock);
    snprintf(into, size, "%s", call_log);
    call_log[0] = 0;
    pthread_mutex_unlock(&lock);
}

/* A number with a variable of the same name. */
#define NUMBER(variable) \
    if (!strcmp(name, #variable)) \
    return &variable
