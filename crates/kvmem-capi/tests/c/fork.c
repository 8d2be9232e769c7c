/* A fork while other threads make and destroy objects. The child can do the same. */
#include <pthread.h>
#include <stdatomic.h>
#include <sys/wait.h>
#include <unistd.h>

#include "check.h"

enum { THREADS = 3, FORKS = 100, HELD = 40 };

static atomic_int stop;

static void some(void) {
    kvmem_cancel *held[HELD];
    for (int i = 0; i < HELD; i++)
        OK(kvmem_cancel_create(&held[i]));
    for (int i = 0; i < HELD; i++)
        OK(kvmem_cancel_destroy(held[i]));
}

static void *work(void *argument) {
    (void) argument;
    while (!stop)
        some();
    return NULL;
}

/* The alarm kills a child that waits forever; its status then differs from 0. */
static int in_child(void (*run)(void)) {
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        alarm(300);
        run();
        _exit(0);
    }
    int status;
    CHECK(waitpid(child, &status, 0) == child);
    return status;
}

int main(void) {
    pthread_t threads[THREADS];
    for (int i = 0; i < THREADS; i++)
        CHECK(pthread_create(&threads[i], NULL, work, NULL) == 0);
    for (int i = 0; i < FORKS; i++)
        CHECK(in_child(some) == 0);
    stop = 1;
    for (int i = 0; i < THREADS; i++)
        CHECK(pthread_join(threads[i], NULL) == 0);
    return 0;
}
