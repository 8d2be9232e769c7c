// kvmem for C++17 and later: host memory for KV caches. Maps, registers, divides and caches it.
// https://www.apache.org/licenses/LICENSE-2.0
//
// Layers:
//     1, bytes:    Region, BumpArena
//     2, keys:     Registrars, Registration, BackgroundRegistration
//     3, offsets:  OffsetAllocator, Allocation
//     4, objects:  SlabAllocator, SlabResource (a std::pmr::memory_resource), StdAllocator
//     all four:    Pool, Block, AttachedPool
//     on a pool:   KvCache, KvValue, KvReservation, KvLease (values under keys)
//     on a disk:   DiskTier (values under keys, below a cache or alone)
//     on a node:   NodeClient, NodePins, NodeReservation (values of all processes of a machine)
//     keys of all: prefix_keys (the blocks of a prompt)
//
// The library consists of headers over the C interface; kvmem.h documents each call in more detail.
// Rules for all classes:
//
// - Objects can be moved and not copied; moving does not throw. Objects may be destroyed in any
//   order. A call on a moved-from object throws.
// - Running out of space is not an exception: functions that allocate return a std::optional, empty
//   if there is no space. Where the standard library requires std::bad_alloc, they throw that. All
//   other failures throw kvmem::error, with the numbers and what to do.
// - Any thread may use any object, and several threads may use it at once. An object must not be
//   moved or destroyed while another thread uses it. Allocations, blocks and values are objects of
//   their own: any thread may destroy them at any time, also while another thread destroys the
//   allocator.
// - Sizes and offsets are bytes, as std::uint64_t. Plain data, such as statistics, have the
//   structures of C.
#ifndef KVMEM_HPP
#define KVMEM_HPP

#if defined(_MSVC_LANG) ? _MSVC_LANG < 201703L : __cplusplus < 201703L
#error "kvmem.hpp needs C++17"
#endif

#include "kvmem/bump.hpp"
#include "kvmem/disk_tier.hpp"
#include "kvmem/kv_cache.hpp"
#include "kvmem/lower_tier.hpp"
#include "kvmem/node.hpp"
#include "kvmem/offset.hpp"
#include "kvmem/pool.hpp"
#include "kvmem/prefix.hpp"
#include "kvmem/region.hpp"
#include "kvmem/registration.hpp"
#include "kvmem/slab.hpp"

#endif
