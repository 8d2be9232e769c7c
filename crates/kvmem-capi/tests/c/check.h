/* Checks for the test programs. A failed check prints what it expected and ends the program. */
#ifndef CHECK_H
#define CHECK_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <kvmem.h>
#include <kvmem/testing.h>

#define CHECK(condition)                                                                        \
    do {                                                                                        \
        if (!(condition)) {                                                                     \
            fprintf(stderr, "%s:%d: %s; last error: %s\n", __FILE__, __LINE__, #condition,      \
                    kvmem_last_error());                                                        \
            exit(1);                                                                            \
        }                                                                                       \
    } while (0)

/* Checks the status of a call. */
#define IS(wanted, call)                                                                        \
    do {                                                                                        \
        kvmem_status is_status = (call);                                                        \
        if (is_status != (wanted)) {                                                            \
            fprintf(stderr, "%s:%d: %s is %s, wanted %s; last error: %s\n", __FILE__, __LINE__, \
                    #call, kvmem_status_name(is_status), #wanted, kvmem_last_error());          \
            exit(1);                                                                            \
        }                                                                                       \
    } while (0)

#define OK(call) IS(KVMEM_OK, call)

/* Checks that the text of the last failure contains these words. */
#define SAYS(words) CHECK(strstr(kvmem_last_error(), (words)) != NULL)

/*
 * Returns how many rounds to run instead of `usual`, at least one. A tool that slows the program
 * down fifty times sees the same calls in fewer rounds: its test sets KVMEM_TEST_DIVISOR.
 */
static inline uint64_t rounds(uint64_t usual) {
    const char *divisor = getenv("KVMEM_TEST_DIVISOR");
    uint64_t fewer = divisor == NULL ? usual : usual / strtoull(divisor, NULL, 10);
    return fewer == 0 ? 1 : fewer;
}

#define KIB ((uint64_t) 1 << 10)
#define MIB ((uint64_t) 1 << 20)

#endif
