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

/* A structure without members is an extension of the compiler. */
__extension__ struct empty {};

int main(void) {
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
