/*
 * GLib's slices on kvmem: the process's kvmem allocator serves g_slice_alloc, g_slice_new,
 * g_slice_free and so on. https://www.apache.org/licenses/LICENSE-2.0
 *
 * A program that uses g_slice_… and is compiled with this header runs on kvmem, with or without
 * GLib's headers. Include it before or after <glib.h>. All files of a program that exchange slices
 * must include it, because a block must be freed by the allocator that it came from. A library that
 * was compiled without it uses GLib's own slices.
 *
 * Same as GLib: any thread; a block of 0 bytes is NULL; freeing NULL does nothing; freeing another
 * block with 0 bytes, as GLib's macros since 2.88 do for a type without members, frees one of 1
 * byte; the process aborts if there is no memory. Blocks are aligned to 16 bytes. With
 * KVMEM_SLAB=debug-blocks in the environment, misuse is detected.
 *
 * Different from GLib 2.76 and later: there, a block of g_slice_alloc may be freed with g_free and
 * the other way round, because both come from malloc. A block of kvmem does not come from malloc:
 * g_free of it aborts the process, whether the program or a library calls it. With those versions,
 * this header therefore does not compile until the program states that it frees each slice as a
 * slice: define KVMEM_GSLICE_NO_G_FREE before the include, or with -D.
 */
#ifndef KVMEM_COMPAT_GSLICE_H
#define KVMEM_COMPAT_GSLICE_H

#include <stddef.h>

/* Determines the version of GLib, even if the program includes <glib.h> later. */
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
 * Macros instead of functions: declarations of GLib's functions, before or after, then declare
 * these functions once more. GLib's gsize is uint64_t, its gpointer void *.
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

/* Allocates a block for one `type`, not initialized. */
#define g_slice_new(type) ((type *) g_slice_alloc(sizeof(type)))

/* Allocates a block for one `type`, all bytes zero. */
#define g_slice_new0(type) ((type *) g_slice_alloc0(sizeof(type)))

/*
 * Copies the `type` at `mem`. The condition only checks its type: a pointer to another type does
 * not compile.
 */
#define g_slice_dup(type, mem) \
    (1 ? (type *) g_slice_copy(sizeof(type), (mem)) : ((void) ((type *) 0 == (mem)), (type *) 0))

/* Frees a block for one `type`. */
#define g_slice_free(type, mem)                        \
    do {                                               \
        if (1)                                         \
            g_slice_free1(sizeof(type), (mem));        \
        else                                           \
            (void) ((type *) 0 == (mem));              \
    } while (0)

/* Frees a chain of blocks that are linked by their member `next`. */
#define g_slice_free_chain(type, mem_chain, next)                                             \
    do {                                                                                      \
        if (1)                                                                                \
            g_slice_free_chain_with_offset(sizeof(type), (mem_chain), offsetof(type, next));  \
        else                                                                                  \
            (void) ((type *) 0 == (mem_chain));                                               \
    } while (0)

#endif /* __G_LIB_H__ */

#endif /* KVMEM_COMPAT_GSLICE_H */
