// kvmem for C++17 and later: memory for KV caches. Mapped, registered, and handed out. https://www.apache.org/licenses/LICENSE-2.0
//
// Layers: Region, BumpArena (1, bytes); Registrars, Registration (2, keys); OffsetAllocator, Allocation (3, offsets); SliceAllocator with a
// std::pmr::memory_resource and a standard allocator (4, objects); Pool, Block (all of them in one); KvCache (values under keys, in a pool).
//
// All of it is in headers, on the C interface (kvmem.h), which says more about each call. What holds everywhere:
//
// - Objects move and do not copy; moving throws nothing. The order of destruction is free. A call on an object that was moved from throws.
// - Out of space is an answer: allocations are std::optional, and empty then. Where the standard library asks for std::bad_alloc, it is
//   that. All else that fails throws kvmem::error, with the numbers and the way out.
// - Any thread may use any object, several at once. As everywhere, an object is not moved or destroyed while another thread uses it; allocations,
//   blocks and values are objects of their own, which any thread may let go at any time, also while the allocator goes.
// - Sizes and offsets are bytes, as std::uint64_t. Plain figures are the structures of C.
#ifndef KVMEM_HPP
#define KVMEM_HPP

#if defined(_MSVC_LANG) ? _MSVC_LANG < 201703L : __cplusplus < 201703L
#error "kvmem.hpp needs C++17"
#endif

#include "kvmem/bump.hpp"
#include "kvmem/kv_cache.hpp"
#include "kvmem/offset.hpp"
#include "kvmem/pool.hpp"
#include "kvmem/region.hpp"
#include "kvmem/registration.hpp"
#include "kvmem/slice.hpp"

#endif
