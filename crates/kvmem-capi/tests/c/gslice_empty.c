/*
 * Slices for a type without members, and for 0 bytes: with kvmem's slices (ALONE, WITH_GLIB) and
 * with GLib's (GLIBS_OWN).
 */
#ifdef WITH_GLIB
#include <glib.h>
#endif
#ifdef GLIBS_OWN
#include <glib.h>
#else
#include <kvmem/compat/gslice.h>
#endif

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* A structure without members is an extension of the compiler. */
__extension__ struct empty {};

#ifndef GLIBS_OWN
/*
 * GLib's macros since 2.88 allocate 1 byte for a type without members, and free it with 0 bytes.
 * The block must come back: a leak yields a new address each time. With debug-blocks, freed blocks
 * are in quarantine, and a wrong size aborts.
 */
static void one_byte_is_freed_as_none(void) {
    const char *setting = getenv("KVMEM_SLAB");
    const int reused = setting == NULL || strstr(setting, "debug-blocks") == NULL;
    void *last = NULL;
    int addresses = 0;
    for (int i = 0; i < 10000; i++) {
        void *block = g_slice_alloc(1);
        memset(block, 1, 1);
        addresses += block != last;
        last = block;
        g_slice_free1(0, block);
    }
    if (reused && addresses > 100) {
        fprintf(stderr, "%d of 10000 blocks have a new address\n", addresses);
        exit(1);
    }
}
#endif

int main(void) {
#ifndef GLIBS_OWN
    one_byte_is_freed_as_none();
#endif
    struct empty some;
    struct empty *new = g_slice_new(struct empty);
    struct empty *new0 = g_slice_new0(struct empty);
    struct empty *dup = g_slice_dup(struct empty, &some);
    void *alloc = g_slice_alloc(0), *alloc0 = g_slice_alloc0(0), *copy = g_slice_copy(0, "x");
    printf("new %d, new0 %d, dup %d, alloc %d, alloc0 %d, copy %d\n", new != NULL, new0 != NULL,
           dup != NULL, alloc != NULL, alloc0 != NULL, copy != NULL);
    g_slice_free(struct empty, new);
    g_slice_free(struct empty, new0);
    g_slice_free(struct empty, dup);
    g_slice_free1(0, alloc);
    g_slice_free1(0, alloc0);
    g_slice_free1(0, copy);
    g_slice_free_chain_with_offset(0, NULL, 0);
    return 0;
}
