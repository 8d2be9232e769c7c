/*
 * GLib's slices on kvmem: g_slice_alloc, g_slice_new, g_slice_free and so on are served by the process's kvmem allocator.
 * https://www.apache.org/licenses/LICENSE-2.0
 *
 * A program that says g_slice_… is compiled against this header and runs on kvmem, with GLib's headers or without. With them it may be
 * included before or after <glib.h>; every file of the program that hands slices to another includes it, for a block is freed by whom it
 * came from. A library that was compiled without it goes on using GLib's own slices.
 *
 * As in GLib: any thread; a block of 0 bytes is NULL; freeing NULL does nothing; if there is no memory the process ends. Blocks are at
 * multiples of 16. Misuse is found with KVMEM_SLICE=debug-blocks in the environment.
 *
 * One thing is not as in GLib 2.76 and later: there a block of g_slice_alloc may be given to
 * g_free, and the other way round, for both are malloc's. A block of kvmem's is not malloc's:
 * g_free of it ends the process, whether the program calls it or a library that was handed the
 * block. So with those versions this header does not compile, until the program says that it frees
 * each slice as a slice: define KVMEM_GSLICE_NO_G_FREE before it is included, or with -D.
 */
#ifndef KVMEM_COMPAT_GSLICE_H
#define KVMEM_COMPAT_GSLICE_H

#include <stddef.h>

/* The version of GLib, also where the program includes <glib.h> later. */
#if !defined(GLIB_CHECK_VERSION) && defined(__has_include)
#if __has_include(<glib.h>)
#include <glib.h>
#endif
#endif

#if defined(GLIB_CHECK_VERSION) && !defined(KVMEM_GSLICE_NO_G_FREE)
#if GLIB_CHECK_VERSION(2, 76, 0)
#error "Since GLib 2.76 slices may be freed by g_free; with kvmem's slices that ends the process. \
Free every slice by g_slice_free or g_slice_free1, and define KVMEM_GSLICE_NO_G_FREE."
#endif
#endif

#include "../../kvmem.h"

/*
 * Names and not functions: GLib's declarations, before or after, then declare these functions again, as they are. GLib's gsize is
 * uint64_t, its gpointer void *.
 */
#undef g_slice_alloc
#undef g_slice_alloc0
#undef g_slice_copy
#undef g_slice_free1
#undef g_slice_free_chain_with_offset
#define g_slice_alloc kvmem_gslice_alloc
#define g_slice_alloc0 kvmem_gslice_alloc0
#define g_slice_copy kvmem_gslice_copy
#define g_slice_free1 kvmem_gslice_free1
#define g_slice_free_chain_with_offset kvmem_gslice_free_chain_with_offset

#ifndef __G_LIB_H__ /* GLib's own macros say the same in terms of the names above. */

/* A block for one `type`, not initialized. */
#define g_slice_new(type) ((type *) g_slice_alloc(sizeof(type)))

/* The same, all bytes zero. */
#define g_slice_new0(type) ((type *) g_slice_alloc0(sizeof(type)))

/* A copy of the `type` at `mem`. The condition is there for its type alone: it refuses a pointer to something else. */
#define g_slice_dup(type, mem) \
    (1 ? (type *) g_slice_copy(sizeof(type), (mem)) : ((void) ((type *) 0 == (mem)), (type *) 0))

/* Frees a block for one `type`. */
#define g_slice_free(type, mem)                              \
    do {                                                     \
        if (1)                                               \
            g_slice_free1(sizeof(type), (mem));              \
        else                                                 \
            (void) ((type *) 0 == (mem));                    \
    } while (0)

/* Frees a chain of blocks that are linked by their member `next`. */
#define g_slice_free_chain(type, mem_chain, next)                                                   \
    do {                                                                                            \
        if (1)                                                                                      \
            g_slice_free_chain_with_offset(sizeof(type), (mem_chain), offsetof(type, next));        \
        else                                                                                        \
            (void) ((type *) 0 == (mem_chain));                                                     \
    } while (0)

#endif /* __G_LIB_H__ */

#endif /* KVMEM_COMPAT_GSLICE_H */
