/*
 * GLib's slices on kvmem. Built without GLib's headers, with them before (GLIB_BEFORE), and with
 * them after (GLIB_AFTER).
 */
#ifdef GLIB_BEFORE
#include <glib.h>
#endif

#include <kvmem/compat/gslice.h>

#ifdef GLIB_AFTER
#include <glib.h>
#endif

#include "check.h"

struct node {
    int value;
    struct node *next;
};

int main(void) {
    struct node *first = NULL;
    for (int i = 0; i < 1000; i++) {
        struct node *node = g_slice_new(struct node);
        node->value = i;
        node->next = first;
        first = node;
    }
    struct node *copy = g_slice_dup(struct node, first);
    CHECK(copy != first && copy->value == 999 && copy->next == first->next);
    g_slice_free(struct node, copy);
    g_slice_free_chain(struct node, first, next);

    struct node *zero = g_slice_new0(struct node);
    CHECK(zero->value == 0 && zero->next == NULL);
    g_slice_free1(sizeof *zero, zero);

    char *bytes = g_slice_alloc(100);
    memset(bytes, 1, 100);
    char *same = g_slice_copy(100, bytes);
    CHECK(memcmp(bytes, same, 100) == 0 && (uintptr_t) bytes % 16 == 0);
    g_slice_free1(100, bytes);
    g_slice_free1(100, same);
    char *large = g_slice_alloc0(100000);
    CHECK(large[99999] == 0);
    g_slice_free1(100000, large);

    CHECK(g_slice_alloc(0) == NULL && g_slice_alloc0(0) == NULL && g_slice_copy(0, "") == NULL);
    g_slice_free1(100, NULL);
    g_slice_free(struct node, NULL);
    g_slice_free_chain(struct node, NULL, next);
    g_slice_free_chain_with_offset(16, NULL, 0);

    /* kvmem's function: GLib need not be linked. */
    void *(*alloc)(uint64_t) = g_slice_alloc;
    CHECK(alloc == kvmem_gslice_alloc);
    return 0;
}
