/*
 * kvmem: host memory for KV caches. Maps, registers, divides and caches it.
 * https://www.apache.org/licenses/LICENSE-2.0
 *
 * This file is generated from crates/kvmem-capi/src by the crate's tests; change it there.
 *
 * Layers:
 *   1, bytes:    kvmem_region_*, kvmem_bump_arena_*
 *   2, keys:     kvmem_registrars_*, kvmem_registration_*, kvmem_background_registration_*
 *   3, offsets:  kvmem_offset_allocator_*
 *   4, objects:  kvmem_slab_allocator_*
 *   all four:    kvmem_pool_*, kvmem_block_*, kvmem_attached_pool_*
 *   on a pool:   kvmem_kv_cache_* (values under keys)
 *   on a disk:   kvmem_disk_tier_* (values under keys, alone or below a cache)
 *   below one:   kvmem_lower_tier_* (disk tiers, functions of the program, chains of two)
 *   on a node:   kvmem_node_client_* (values of all processes of a machine), kvmem_node_*
 *   keys of all: kvmem_prefix_keys (the blocks of a prompt)
 *
 * Rules for all functions:
 *
 * - Functions that can fail return a kvmem_status. kvmem_last_error() returns the text of the
 *   failure: the numbers, and what to do. A failed call changes nothing and writes to no
 *   out-parameter, unless its comment says otherwise.
 * - Sizes and offsets are bytes, as uint64_t.
 * - Objects (kvmem_region *, kvmem_pool *, ...) are handles, not addresses. A call with NULL, a
 *   destroyed handle, a handle of another type, or any other bits returns an error. The caller owns
 *   the objects that its calls make. It destroys each of them once, in any order.
 * - Any thread may use any object, and several threads may use it at once, unless a comment says
 *   otherwise. The caller must not destroy an object while a call on it runs, in another thread or
 *   around a callback.
 * - Allocations (kvmem_allocation, kvmem_block) are plain data. A call with an allocation that was
 *   freed before returns an error.
 * - Fill in options with their _init function, then change members. NULL selects all defaults. A
 *   program that was built for an older library works with a newer one.
 * - Pointers to structures, lists, texts and out-parameters are NULL, or point to an aligned object
 *   of their type. Where NULL is not allowed, the call returns KVMEM_ERR_NULL_ARGUMENT. Texts are
 *   UTF-8 and end with a NUL.
 * - Callback functions of the program must return. They must not throw or call longjmp.
 */

#ifndef KVMEM_H
#define KVMEM_H

#include <stddef.h>
#include <stdint.h>

#if UINTPTR_MAX != UINT64_MAX
#error "kvmem requires a 64-bit machine"
#endif

/// Version of this header: major number.
#define KVMEM_VERSION_MAJOR 0

/// Version of this header: minor number. While the major number is 0, the interface changes with
/// the minor number.
#define KVMEM_VERSION_MINOR 1

/// Version of this header: patch number.
#define KVMEM_VERSION_PATCH 0

/// Format of a report: lines of text for people.
#define KVMEM_TEXT 0

/// Format of a report: one line of JSON.
#define KVMEM_JSON 1

/// Populate: no pages.
#define KVMEM_POPULATE_NONE 0

/// Populate: with as many threads as improve the speed. Every other number is a number of threads.
#define KVMEM_POPULATE_AUTO UINT32_MAX

/// The kernel chooses the NUMA node of each page.
#define KVMEM_NUMA_ANY 0

/// Pages are allocated on the given nodes only.
#define KVMEM_NUMA_BIND 1

/// Pages are interleaved over the given nodes; other nodes are used when those are full.
#define KVMEM_NUMA_INTERLEAVE 2

/// Memory of this process only.
#define KVMEM_BACKING_PRIVATE 0

/// A sealed memory file that other processes can attach.
#define KVMEM_BACKING_SHARED 1

/// The bytes of blocks are never set to zero: a new block has those of an earlier one, or zeros.
#define KVMEM_INIT_ON_NEVER 0

/// The bytes of a block are set to zero before it is handed out.
#define KVMEM_INIT_ON_ALLOC 1

/// The bytes of a block are set to zero before they become free.
#define KVMEM_INIT_ON_FREE 2

/// Memory is being made resident.
#define KVMEM_PHASE_POPULATE 0

/// Keys are being acquired.
#define KVMEM_PHASE_REGISTER 1

/// Keys are being given back.
#define KVMEM_PHASE_DEREGISTER 2

/// The values of a disk tier are being read and compared with their checksums.
#define KVMEM_PHASE_VERIFY 3

/// The tier may still have an older value under the key. The cache does not fetch the key any more
/// until it is cleared.
#define KVMEM_TIER_FAILED 0

/// The tier has the value.
#define KVMEM_TIER_STORED 1

/// The tier has no value under the key: it is full, or does not want the value, or the value is
/// superseded.
#define KVMEM_TIER_NOT_STORED 2

/// Placement by renewal value: what each hole is worth to the recent traffic. The default.
#define KVMEM_PLACEMENT_RENEWAL 0

/// Placement in the first hole that fits, of the tightest bins. Fewest instructions.
#define KVMEM_PLACEMENT_BEST_FIT 1

/// No size becomes hot by itself.
#define KVMEM_AUTO_HOT_SIZES_OFF 0

/// Sizes that are requested frequently become hot. The default.
#define KVMEM_AUTO_HOT_SIZES_ON 1

/// Sizes that are requested frequently become hot, but none before the first free. Until then,
/// ranges follow each other from offset 0 up, as without magazines. Without named hot sizes.
#define KVMEM_AUTO_HOT_SIZES_AFTER_FIRST_FREE 2

/// A free range.
#define KVMEM_RANGE_FREE 0

/// A range in use.
#define KVMEM_RANGE_USED 1

/// A range that a magazine caches for the next request of its size.
#define KVMEM_RANGE_CACHED 2

/// Settings: taken from the environment variable KVMEM_SLAB. The default.
#define KVMEM_SLAB_FROM_ENVIRONMENT 0

/// Settings: no debugging, regardless of the environment.
#define KVMEM_SLAB_PLAIN 1

/// Settings, a flag: all blocks come from the system's malloc.
#define KVMEM_SLAB_ALWAYS_MALLOC 2

/// Settings, a flag: detects misuse of blocks: double free, wrong size, foreign pointer, write
/// after free, leaks.
#define KVMEM_SLAB_DEBUG_BLOCKS 4

/// A block was freed twice.
#define KVMEM_FAULT_DOUBLE_FREE 1

/// A block was freed with a size that differs from its allocation.
#define KVMEM_FAULT_WRONG_SIZE 2

/// A freed address is not a block of this allocator.
#define KVMEM_FAULT_FOREIGN 3

/// A block was written to after it was freed.
#define KVMEM_FAULT_WRITE_AFTER_FREE 4

/// The allocator was destroyed while a block was in use.
#define KVMEM_FAULT_LEAK 5

/// Type of a value's elements: it is not known. The default.
#define KVMEM_DATA_UNKNOWN 0

/// Type of a value's elements: 8 bits of exponent, 7 of mantissa.
#define KVMEM_DATA_BFLOAT16 1

/// Type of a value's elements: IEEE 754 binary16.
#define KVMEM_DATA_FLOAT16 2

/// Type of a value's elements: 4 bits of exponent, 3 of mantissa, without infinities.
#define KVMEM_DATA_FLOAT8_E4M3FN 3

/// Type of a value's elements: 5 bits of exponent, 2 of mantissa.
#define KVMEM_DATA_FLOAT8_E5M2 4

/// Verification when a tier is opened: none; each value is verified when it is fetched. The
/// default.
#define KVMEM_VERIFY_LAZY 0

/// Verification when a tier is opened: all values are read, and damaged ones removed.
#define KVMEM_VERIFY_ALL 1

/// Admission: every evicted value is written. The default.
#define KVMEM_ADMIT_ALL 0

/// Admission: an evicted value is written if its key is evicted a second time.
#define KVMEM_ADMIT_SECOND_EVICTION 1

/// Admission: an evicted value is written if `on_admit` says so.
#define KVMEM_ADMIT_CUSTOM 2

/// Eviction from a full tier: values used least recently first. A fetch is a use. The default.
#define KVMEM_TIER_EVICT_LRU 0

/// Eviction from a full tier: values stored first come first.
#define KVMEM_TIER_EVICT_FIFO 1

/// A fetch: the value is in place, and its checksum is right.
#define KVMEM_FETCHED_HIT 0

/// A fetch: the key has no value.
#define KVMEM_FETCHED_ABSENT 1

/// A fetch: the value is longer than the memory for it; `bytes` has its length.
#define KVMEM_FETCHED_TOO_SHORT 2

/// A fetch: the bytes of the disk were not those that were stored. The value is removed.
#define KVMEM_FETCHED_DAMAGED 3

/// A fetch: the drive failed. The value stays, and is read again later. It is removed if the file
/// ends before it, or if only this value fails again and again.
#define KVMEM_FETCHED_FAILED 4

/// A fetch: a power cut took the bytes of the value before they were synced. The value is removed.
#define KVMEM_FETCHED_LOST 5

/// A fetch: the drive has failed to read the value, and does not read it again yet.
#define KVMEM_FETCHED_SUSPECT 6

/// A fetch: the value is encrypted with a key that the tier does not have. It stays.
#define KVMEM_FETCHED_NO_KEY 7

/// A fetch: the bytes have their checksum, and their tag is wrong: a person has changed them, or
/// put them in the place of others. The value is removed.
#define KVMEM_FETCHED_BAD_TAG 8

/// Damage: the bytes on the drive are not those that were stored.
#define KVMEM_DAMAGE_CHECKSUM 0

/// Damage: the drive failed to read them.
#define KVMEM_DAMAGE_DEVICE 1

/// Damage: the bytes have their checksum, and the keys do not decode them: they are encrypted with
/// another key, or were changed together with the checksum.
#define KVMEM_DAMAGE_ENCODING 2

/// The largest size of a key, in bytes. A longer key fails with KVMEM_ERR_INVALID_ARGUMENT; use a
/// hash of it.
#define KVMEM_MAX_KEY_BYTES (1 << 20)

/// A full queue: the thread that evicts a value waits until a writer has made room. The default.
#define KVMEM_WHEN_FULL_WAIT 0

/// A full queue: the value is not written, and an older one of the lower tier is removed.
#define KVMEM_WHEN_FULL_DROP 1

/// The end of the cache: the values in the queue are written first. The default.
#define KVMEM_ON_DROP_WRITE 0

/// The end of the cache: the values in the queue are lost, and older ones of the lower tier are
/// removed first.
#define KVMEM_ON_DROP_DISCARD 1

/// Eviction: the least recently used value goes first. The default.
#define KVMEM_EVICT_LRU 0

/// Eviction: a value that is not used again soon after its insertion goes first.
#define KVMEM_EVICT_SCAN_RESISTANT 1

/// A miss: no value of the key was ever stored, as far as the server knows.
#define KVMEM_NODE_MISS_NEVER_STORED 0

/// A miss: the value was evicted for others.
#define KVMEM_NODE_MISS_EVICTED 1

/// A miss: the time of the value was over.
#define KVMEM_NODE_MISS_EXPIRED 2

/// A miss: a client or an operator removed the value.
#define KVMEM_NODE_MISS_REMOVED 3

/// A miss: the bytes of the value did not have their checksum.
#define KVMEM_NODE_MISS_DAMAGED 4

/// A miss: the value is in the tier, which is away or detached.
#define KVMEM_NODE_MISS_TIER_AWAY 5

/// A miss: the value was evicted to the tier, which has let it go since.
#define KVMEM_NODE_MISS_TIER_LOST 6

/// A miss: the tier has the value and did not bring it.
#define KVMEM_NODE_MISS_NOT_FETCHED 7

/// The largest size of a key of a node, in bytes. An empty or longer key fails with
/// KVMEM_ERR_INVALID_ARGUMENT; use a hash of it.
#define KVMEM_NODE_MAX_KEY_BYTES 64

/// The maximum number of keys, sizes or values of one call on a node. More fail with
/// KVMEM_ERR_INVALID_ARGUMENT; make several calls.
#define KVMEM_NODE_MAX_BATCH 1024

/// The value of a key is in the memory of the node.
#define KVMEM_NODE_IN_MEMORY 1

/// The value of a key is in the tier of the node, as far as that answers without waiting for a
/// network.
#define KVMEM_NODE_IN_TIER 2

/// The state of a tier: the node has none.
#define KVMEM_NODE_TIER_NONE 0

/// The state of a tier: it stores and finds values.
#define KVMEM_NODE_TIER_WORKING 1

/// The state of a tier: it finds what it has and stores nothing, because its device failed.
#define KVMEM_NODE_TIER_READ_ONLY 2

/// The state of a tier: it neither stores nor finds values now, and may do both later.
#define KVMEM_NODE_TIER_AWAY 3

/// An event: the value can be found under its key.
#define KVMEM_NODE_EVENT_STORED 0

/// An event: another value came under the key.
#define KVMEM_NODE_EVENT_REPLACED 1

/// An event: a client or an operator removed the value.
#define KVMEM_NODE_EVENT_REMOVED 2

/// An event: the value was evicted, or its time was over.
#define KVMEM_NODE_EVENT_EVICTED 3

/// An event: the value was removed because its bytes did not have their checksum.
#define KVMEM_NODE_EVENT_DAMAGED 4

/// An event without a key: the tier has let values go whose keys it does not know.
/// kvmem_node_client_locate tells which are left.
#define KVMEM_NODE_EVENT_TIER_EVICTED 5

/// The namespace of events that concern all of them.
#define KVMEM_NODE_NO_NAMESPACE 65535

/// The size of a kvmem_prefix_key in bytes.
#define KVMEM_PREFIX_KEY_BYTES 32

/// The result of a call. 0 is success. `kvmem_last_error()` returns the text of the last
/// failure, with its numbers.
///
/// Unless a function's comment says otherwise, a failed call changes nothing and writes to none
/// of its out-parameters. The numbers do not change between versions; new ones may be added.
enum kvmem_status
#if defined(__cplusplus) || __STDC_VERSION__ >= 202311L
  : int32_t
#endif // defined(__cplusplus) || __STDC_VERSION__ >= 202311L
 {
    /// Success.
    KVMEM_OK = 0,
    /// A required pointer is NULL.
    KVMEM_ERR_NULL_ARGUMENT = 1,
    /// The handle names no object: it was never returned, it was destroyed, or it is of another
    /// type.
    KVMEM_ERR_BAD_HANDLE = 2,
    /// An argument or option is not valid: an unknown flag, a malformed text, a number out of
    /// range.
    KVMEM_ERR_INVALID_ARGUMENT = 3,
    /// The size is 0; at least 1 byte is required.
    KVMEM_ERR_ZERO_SIZE = 4,
    /// The alignment is not a power of two.
    KVMEM_ERR_BAD_ALIGN = 5,
    /// The request is longer than this object can ever allocate, even when empty.
    KVMEM_ERR_TOO_LARGE = 6,
    /// No free range is long enough now. The request may succeed after something is freed.
    KVMEM_ERR_OUT_OF_SPACE = 7,
    /// The limit of ranges, used and free, is reached.
    KVMEM_ERR_TOO_MANY_RANGES = 8,
    /// The bytes behind the allocation are not free, so it cannot be extended in place.
    KVMEM_ERR_CANNOT_EXTEND = 9,
    /// The range does not lie within the object.
    KVMEM_ERR_OUT_OF_BOUNDS = 10,
    /// The allocation was freed before, or never existed.
    KVMEM_ERR_STALE_ALLOCATION = 11,
    /// The allocation or reference belongs to another allocator or pool.
    KVMEM_ERR_FOREIGN_ALLOCATION = 12,
    /// The ready part of the pool has no free range that is long enough; more parts are being
    /// prepared.
    KVMEM_ERR_NOT_READY = 13,
    /// The system has no memory, or no pages of the requested kind.
    KVMEM_ERR_NO_MEMORY = 14,
    /// A system call failed.
    KVMEM_ERR_SYSTEM = 15,
    /// A limit of the machine, the process, a device or a namespace is reached.
    KVMEM_ERR_LIMIT = 16,
    /// The backend, device or facility does not exist here.
    KVMEM_ERR_NOT_AVAILABLE = 17,
    /// The call was cancelled.
    KVMEM_ERR_CANCELLED = 18,
    /// The time budget is used up.
    KVMEM_ERR_TIMED_OUT = 19,
    /// No registrar has this name.
    KVMEM_ERR_NO_SUCH_DEVICE = 20,
    /// No single key covers the range.
    KVMEM_ERR_STRADDLES = 21,
    /// The keys were given back before.
    KVMEM_ERR_DEREGISTERED = 22,
    /// The memory is private and must be shared, or is shared and must be private.
    KVMEM_ERR_WRONG_BACKING = 23,
    /// The pool was attached, or the client connected, for reading only.
    KVMEM_ERR_READ_ONLY = 24,
    /// Another user holds the object or range, so it cannot be changed or taken over.
    KVMEM_ERR_IN_USE = 25,
    /// This object does not support the operation.
    KVMEM_ERR_UNSUPPORTED = 26,
    /// No value or allocation exists under this key or slot.
    KVMEM_ERR_NOT_FOUND = 27,
    /// The pool has no free range that is long enough, and the cache has no value that can be
    /// evicted.
    KVMEM_ERR_NOTHING_TO_EVICT = 28,
    /// A registrar failed to register memory.
    KVMEM_ERR_REGISTER_FAILED = 29,
    /// A registrar failed to take keys back; their memory stays mapped.
    KVMEM_ERR_DEREGISTER_FAILED = 30,
    /// An invariant does not hold: a defect of this library.
    KVMEM_ERR_CHECK_FAILED = 31,
    /// The buffer is too small for the text or list; the part that fits was written.
    KVMEM_ERR_BUFFER_TOO_SMALL = 32,
    /// A defect of this library: the call panicked. Its object is poisoned.
    KVMEM_ERR_PANICKED = 33,
    /// An earlier call on this object returned KVMEM_ERR_PANICKED; the object can only be
    /// destroyed.
    KVMEM_ERR_POISONED = 34,
    /// The lower tier failed to remove what the cache removed.
    KVMEM_ERR_INVALIDATE_FAILED = 36,
    /// The object was made before this process was forked and belongs to the parent. Destroy the
    /// handle, and make a new object in this process.
    KVMEM_ERR_FORKED = 37,
    /// The file is no disk tier that can be used: it holds something else, is damaged, or is of a
    /// later version. Nothing was overwritten.
    KVMEM_ERR_BAD_TIER = 38,
    /// No server answers at the socket, and none did within the time that the client waits. The
    /// next call connects again.
    KVMEM_ERR_DISCONNECTED = 39,
    /// The server has other memory than the one before: all values are gone. Destroy the client,
    /// and connect again.
    KVMEM_ERR_MEMORY_REPLACED = 40,
    /// The client was silent for longer than the server's lease: the reservation has ended. Release
    /// it.
    KVMEM_ERR_FENCED = 41,
    /// The bytes of the value do not have the checksum that its writer has calculated.
    KVMEM_ERR_DAMAGED = 42,
    /// The server is of another release of kvmem, or its answer is not possible.
    KVMEM_ERR_PROTOCOL = 43,
    /// The server does not serve this user so, or belongs to a user that the client does not trust.
    KVMEM_ERR_PERMISSION = 44,
};
#ifndef __cplusplus
#if __STDC_VERSION__ >= 202311L
typedef enum kvmem_status kvmem_status;
#else
typedef int32_t kvmem_status;
#endif // __STDC_VERSION__ >= 202311L
#endif // __cplusplus

/// The memory of another process's pool. It stays mapped until it is destroyed, also if that
/// process ends. Owned by the caller: kvmem_attached_pool_destroy. Any thread, several at once.
typedef struct kvmem_attached_pool kvmem_attached_pool;

/// A region that a thread of the library is registering. Owned by the caller:
/// kvmem_background_registration_wait or kvmem_background_registration_destroy. Any thread.
typedef struct kvmem_background_registration kvmem_background_registration;

/// Allocates the bytes of a region one after another (layer 1). Owned by the caller:
/// kvmem_bump_arena_destroy. Any thread, several at once, without a lock.
typedef struct kvmem_bump_arena kvmem_bump_arena;

/// A token that ends populating, registering or building early. Owned by the caller:
/// kvmem_cancel_destroy. Work that was given the token keeps its own reference, so the token may be
/// destroyed at any time; after that it can no longer be used to cancel. Any thread.
typedef struct kvmem_cancel kvmem_cancel;

/// Values on a local disk, or on several, found again by their keys after a restart. A full tier
/// evicts expired values first, then those of the lowest priority, in the order of `eviction`. A
/// damaged value is a miss, and never the wrong bytes. Below a cache it receives what the cache
/// evicts: see kvmem_disk_tier_as_lower_tier. Owned by the caller: kvmem_disk_tier_destroy. Any
/// thread, several at once; a call blocks until the drives are done.
///
/// On several devices, each key belongs to one of them, by a hash of the key and of the file's
/// identity: files may be named in any order, and a device that is gone loses only its own keys.
/// Transfers on different devices run side by side.
///
/// One process uses a file at a time. In a forked child, every call on a tier of the parent returns
/// KVMEM_ERR_FORKED, except kvmem_disk_tier_destroy.
typedef struct kvmem_disk_tier kvmem_disk_tier;

/// Values under keys, stored in blocks of a pool. Any thread can look up a value. A value is pinned
/// while it is used, and evicted when the cache needs space. A key is any bytes. Owned by the
/// caller: kvmem_kv_cache_destroy. Pins and reservations may outlive the cache, and the cache
/// may outlive its pool's handle. Any thread, several at once.
///
/// In a forked child, every call on a cache, pin or reservation of the parent returns
/// KVMEM_ERR_FORKED, except the calls that destroy or release it. No call waits for a lock that a
/// thread of the parent held.
typedef struct kvmem_kv_cache kvmem_kv_cache;

/// Values of several keys, some of which are being fetched from the lower tier by a thread of the
/// cache. The values that are there are pinned. Owned by the caller:
/// kvmem_kv_cache_fetching_take, kvmem_kv_cache_fetching_detach or kvmem_kv_cache_fetching_cancel.
/// It keeps the cache. Any thread. In a forked child every call returns KVMEM_ERR_FORKED, except
/// kvmem_kv_cache_fetching_cancel.
typedef struct kvmem_kv_cache_fetching kvmem_kv_cache_fetching;

/// A pin on a value. While it exists, the value is neither evicted nor freed. Owned by the caller:
/// kvmem_kv_cache_pin_release. Any thread.
typedef struct kvmem_kv_cache_pin kvmem_kv_cache_pin;

/// A block for a value that is being written. Owned by the caller:
/// kvmem_kv_cache_reservation_commit or kvmem_kv_cache_reservation_release. Any thread, one at a
/// time.
typedef struct kvmem_kv_cache_reservation kvmem_kv_cache_reservation;

/// Storage for what a cache evicts: a disk tier, a set of them, functions of the program
/// (kvmem_lower_tier_custom), or a chain of two lower tiers. See `lower_tier` of
/// kvmem_kv_cache_options. It keeps what it was made of. Owned by the caller:
/// kvmem_lower_tier_destroy. Any thread. In a forked child every call returns KVMEM_ERR_FORKED,
/// except kvmem_lower_tier_destroy.
typedef struct kvmem_lower_tier kvmem_lower_tier;

/// A connection to the server of a node: `kvmem serve`. The server keeps the values of all engines
/// of a machine in one memory, which outlives them. A client maps this memory once, and reads and
/// writes values in place. Its calls say keys and receive places.
///
/// A call that finds the server ended connects again by itself, for `retry_ms` milliseconds. The
/// mapping and its registrations with devices stay meanwhile, and so do pins and reservations.
/// Owned by the caller: kvmem_node_client_destroy. Any thread, several at once; their calls
/// overlap.
///
/// All clients that map the memory for writing trust each other: each writes to its own
/// reservations and to nothing else.
///
/// In a forked child, every call on a client, pins or a reservation of the parent returns
/// KVMEM_ERR_FORKED, except the calls that destroy or release it. The child connects anew.
typedef struct kvmem_node_client kvmem_node_client;

/// The pins of one call. While they exist, their values are neither evicted nor overwritten, also
/// if they are removed or replaced, and also if the server ends and starts again. Owned by the
/// caller: kvmem_node_pins_release, or kvmem_node_client_exchange. May outlive their client's
/// handle. Any thread, several at once.
typedef struct kvmem_node_pins kvmem_node_pins;

/// A block of a node's memory for a value that is being written. Owned by the caller:
/// kvmem_node_client_commit or kvmem_node_reservation_release. May outlive its client's handle. Any
/// thread.
typedef struct kvmem_node_reservation kvmem_node_reservation;

/// Allocates ranges `[offset, offset + bytes)` of a space (layer 3). It never touches the bytes,
/// which may be memory, a file, or a GPU's memory. Owned by the caller:
/// kvmem_offset_allocator_destroy. Any thread, several at once.
typedef struct kvmem_offset_allocator kvmem_offset_allocator;

/// Memory that is mapped, populated, registered and divided into blocks. Owned by the caller:
/// kvmem_pool_destroy. Blocks in use stay valid after that, with their memory and keys, until they
/// are freed. Any thread, several at once.
typedef struct kvmem_pool kvmem_pool;

/// One contiguous range of memory (layer 1). Owned by the caller: kvmem_region_destroy. Objects
/// made on it (a bump arena, a registration) keep the memory mapped as long as they live. Any
/// thread, several at once.
typedef struct kvmem_region kvmem_region;

/// A list of registrars: rings, NICs, GPUs (layer 2). Owned by the caller:
/// kvmem_registrars_destroy. Registrations keep what they need, so the list may be destroyed at any
/// time. Any thread, several at once.
typedef struct kvmem_registrars kvmem_registrars;

/// A region that is registered with some registrars: the whole region with each of them (layer 2).
/// Owned by the caller: kvmem_registration_destroy, which gives the keys back. Keeps the memory
/// mapped. Any thread, several at once.
typedef struct kvmem_registration kvmem_registration;

/// Allocates blocks of any size, small ones from each thread's own magazines (layer 4). All blocks
/// are aligned to 16 bytes. Owned by the caller: kvmem_slab_allocator_destroy. Any thread, several
/// at once. Any thread may free blocks of another thread.
typedef struct kvmem_slab_allocator kvmem_slab_allocator;

/// The progress of long work.
typedef struct kvmem_progress {
    /// KVMEM_PHASE_POPULATE, KVMEM_PHASE_REGISTER, KVMEM_PHASE_DEREGISTER or KVMEM_PHASE_VERIFY.
    uint32_t phase;
    /// The thread (populating) or the registrar (registering) that finished the last unit of work,
    /// counted from 0.
    uint32_t worker;
    /// Bytes done in this phase. Never decreases between reports. Registering counts a byte once
    /// for each registrar.
    uint64_t done_bytes;
    /// Total bytes of this phase.
    uint64_t total_bytes;
    /// Bytes from the start of the memory that can be used with all registrars.
    uint64_t ready_bytes;
    /// Nanoseconds since the work began.
    uint64_t elapsed_ns;
} kvmem_progress;

/// Receives progress after each unit of work, about ten milliseconds. Worker threads call it, one
/// call at a time, unless a function says otherwise. `progress` is valid only during the call. The
/// function must return (no longjmp, no C++ exception), and must not destroy the object that is
/// being worked on.
typedef void (*kvmem_progress_fn)(void *user, const struct kvmem_progress *progress);

/// Options of a region. Fill them in with kvmem_region_options_init first.
typedef struct kvmem_region_options {
    /// Size of this structure in bytes, as the program knows it.
    uint64_t struct_size;
    /// Kinds of pages to try, in order: "1G", "2M", "thp", "4k", separated by commas. NULL:
    /// "2M,thp,4k".
    const char *pages;
    /// 1: fail if the first kind cannot provide all pages. Default 0.
    uint32_t strict;
    /// KVMEM_BACKING_PRIVATE (the default) or KVMEM_BACKING_SHARED.
    uint32_t backing;
    /// KVMEM_NUMA_ANY (the default), KVMEM_NUMA_BIND or KVMEM_NUMA_INTERLEAVE.
    uint32_t numa_policy;
    /// KVMEM_POPULATE_NONE (the default), KVMEM_POPULATE_AUTO, or a number of threads.
    uint32_t populate;
    /// NUMA nodes, `numa_node_count` of them.
    const uint32_t *numa_nodes;
    /// Number of NUMA nodes.
    uint64_t numa_node_count;
    /// 1: a page without access before and behind the region. Default 0.
    uint32_t guard_pages;
    /// 1 (the default): the region is not mapped in a forked child.
    uint32_t dont_fork;
    /// 1 (the default): core dumps do not contain the region.
    uint32_t dont_dump;
    /// 1, with KVMEM_BACKING_SHARED: seals the memory file with F_SEAL_FUTURE_WRITE (Linux 5.1),
    /// so only this region can write to it. No other mapping can be made for writing, by any
    /// process or user, this process included. kvmem_region_attach and
    /// kvmem_region_discard fail. Default 0.
    uint32_t readers_only;
    /// Receives the progress of populating. Default NULL.
    kvmem_progress_fn progress;
    /// Passed to `progress`.
    void *progress_user;
    /// Ends populating early. Default NULL.
    const struct kvmem_cancel *cancel;
    /// Time budget for populating in nanoseconds; 0 (the default): no limit.
    uint64_t time_budget_ns;
} kvmem_region_options;

/// Properties of a region, as measured when it was mapped.
typedef struct kvmem_region_info {
    /// The first address.
    void *data;
    /// Usable bytes: the requested bytes, rounded up to whole pages.
    uint64_t bytes;
    /// Requested bytes.
    uint64_t requested_bytes;
    /// Bytes of address space, including guard pages.
    uint64_t mapped_bytes;
    /// Bytes that were resident.
    uint64_t resident_bytes;
    /// Bytes in pages of 1 GiB.
    uint64_t bytes_1g;
    /// Bytes in pages of 2 MiB.
    uint64_t bytes_2m;
    /// Bytes in which the kernel may use transparent hugepages.
    uint64_t bytes_thp;
    /// Bytes in base pages.
    uint64_t bytes_base;
    /// Seconds spent on populating.
    double populate_seconds;
    /// Number of threads that populated.
    uint64_t threads;
} kvmem_region_info;

/// Bytes that an arena has allocated. `used + remaining == capacity`.
typedef struct kvmem_bump_arena_stats {
    /// Length of the memory in bytes.
    uint64_t capacity;
    /// Bytes allocated since the arena was made or last reset, including the padding before
    /// them and the skipped ends of chunks.
    uint64_t used;
    /// Bytes that remain, those in chunks of threads included.
    uint64_t remaining;
    /// The first address.
    void *data;
} kvmem_bump_arena_stats;

/// Limits of a registrar.
typedef struct kvmem_limits {
    /// Largest number of bytes that one key covers.
    uint64_t max_key_bytes;
    /// Number of further keys that the registrar can give.
    uint64_t max_keys;
    /// Bytes per key that serve best: registering is fastest with them, or holds others up least.
    /// 0: fewer keys are better.
    uint64_t preferred_chunk_bytes;
    /// 1: transfers name memory by its address, without a key, and fail if their range lies in two
    /// keys. Such a registrar gets one key for a whole region, unless `chunk_bytes` is set. Else 0.
    uint64_t copies_by_address;
    /// RLIMIT_MEMLOCK as it applies to this registrar. UINT64_MAX: no known limit.
    uint64_t memlock_bytes;
} kvmem_limits;

/// The right of a device to access a range of bytes (layer 2). The names are those of verbs; other
/// devices have one of the numbers or none.
typedef struct kvmem_key {
    /// The registrar's own name for the range: the index of a fixed buffer, a pointer to a memory
    /// region, or an address.
    uint64_t handle;
    /// The number in local work requests: the lkey, the `buf_index` of a ring, or the address on a
    /// GPU; 0 if requests carry none.
    uint64_t lkey;
    /// The number that a remote peer uses, if `has_rkey` is 1; otherwise 0.
    uint32_t rkey;
    /// Whether the key has an rkey: 1 or 0.
    uint32_t has_rkey;
} kvmem_key;

/// A registrar that the program implements: a NIC's protection domain, a transfer engine.
///
/// Any thread calls the functions, one call at a time for each registrar. They must return (no
/// longjmp, no C++ exception). `register_bytes` and `deregister` return 0, or an errno. On an
/// errno, nothing is pinned, or the key stays valid.
typedef struct kvmem_registrar_callbacks {
    /// Size of this structure in bytes, as the program knows it.
    uint64_t struct_size;
    /// Name of the registrar. Two registrars of one region must have different names. Copied.
    const char *name;
    /// Largest number of bytes that one key covers; 0: no limit.
    uint64_t max_key_bytes;
    /// Number of keys that the registrar can give; 0: no limit.
    uint64_t max_keys;
    /// Passed to the functions.
    void *user;
    /// Pins `bytes` bytes at `data` and writes the key to `out_key`.
    int (*register_bytes)(void *user, void *data, uint64_t bytes, struct kvmem_key *out_key);
    /// Takes a key back.
    int (*deregister)(void *user, const struct kvmem_key *key);
    /// Called once, when nothing is registered with the registrar any more and no object uses it;
    /// may be NULL.
    void (*release)(void *user);
} kvmem_registrar_callbacks;

/// Hints about the worth of a value of a cache. All 0: none.
typedef struct kvmem_value_hints {
    /// After this many milliseconds the value is a miss, also in the lower tier. 0: it stays until
    /// it is evicted.
    uint64_t ttl_ms;
    /// 0 to 3: the lower tier evicts values of a lower priority first. The cache's own policy
    /// ignores it.
    uint32_t priority;
    /// Number of blocks of the prefix that come before the value. Blocks at the end of a prefix are
    /// evicted before those at its start, in whatever order they are inserted and looked up.
    uint32_t depth;
    /// The type of the value's elements: KVMEM_DATA_UNKNOWN, KVMEM_DATA_BFLOAT16,
    /// KVMEM_DATA_FLOAT16, KVMEM_DATA_FLOAT8_E4M3FN or KVMEM_DATA_FLOAT8_E5M2. A tier that
    /// compresses values tries it first.
    uint32_t data_type;
    /// Always 0.
    uint32_t reserved;
} kvmem_value_hints;

/// A value that a cache passes to a tier of the program. Valid during the call.
typedef struct kvmem_tier_value {
    /// The bytes of the key.
    const void *key;
    /// Number of bytes of the key.
    uint64_t key_bytes;
    /// The bytes of the value.
    const void *data;
    /// Number of bytes of the value.
    uint64_t bytes;
    /// For kvmem_tier_value_is_superseded.
    const void *value;
    /// Its hints, with what is left of its time to live.
    struct kvmem_value_hints hints;
} kvmem_tier_value;

/// A key in a list of keys.
typedef struct kvmem_kv_cache_key {
    /// The bytes of the key; may be NULL if there are none.
    const void *key;
    /// Number of bytes.
    uint64_t key_bytes;
} kvmem_kv_cache_key;

/// A value that a cache wants from a tier of the program. Valid during the call.
typedef struct kvmem_tier_read {
    /// The bytes of the key.
    const void *key;
    /// Number of bytes of the key.
    uint64_t key_bytes;
    /// Memory for the value.
    void *data;
    /// Number of bytes of the memory: as many as `ask` said.
    uint64_t bytes;
} kvmem_tier_read;

/// A lower tier that the program implements.
///
/// Any thread calls the functions, several at once. The cache holds no lock during a call. They
/// must return (no longjmp, no C++ exception). `remove` and `clear` return 0; any other number
/// means that the tier may still have values that it was to remove.
///
/// A removal and a store of the same key may come from two threads at once. The tier orders them
/// by a lock of its own, and under this lock calls kvmem_tier_value_is_superseded: a superseded
/// value is not stored.
typedef struct kvmem_tier_callbacks {
    /// Size of this structure in bytes, as the program knows it.
    uint64_t struct_size;
    /// Passed to the functions.
    void *user;
    /// Stores `count` values, and replaces those that are there. Writes the outcome of each:
    /// KVMEM_TIER_STORED, KVMEM_TIER_NOT_STORED or KVMEM_TIER_FAILED, which is there before. A
    /// value that is not stored leaves no older one behind.
    void (*store)(void *user,
                  const struct kvmem_tier_value *values,
                  uint64_t count,
                  uint32_t *out_outcomes);
    /// Writes the number of bytes of each key's value; UINT64_MAX, which is there before: the tier
    /// has none. May wait, for a network.
    void (*ask)(void *user,
                const struct kvmem_kv_cache_key *keys,
                uint64_t count,
                uint64_t *out_bytes);
    /// Reads `count` values into memory. Writes 1 for each whose bytes are whole and right; 0 is
    /// there before. A value may have gone, or have another length, since `ask`. Of the values of a
    /// call, the last one counts as used last.
    void (*fetch)(void *user,
                  const struct kvmem_tier_read *reads,
                  uint64_t count,
                  uint32_t *out_found);
    /// Removes the values of keys.
    int (*remove)(void *user, const struct kvmem_kv_cache_key *keys, uint64_t count);
    /// Removes every value.
    int (*clear)(void *user);
    /// Called once, when no lower tier and no cache uses the functions any more; may be NULL. Not
    /// called if the tier could not be made.
    void (*release)(void *user);
} kvmem_tier_callbacks;

/// Options of a registration. Fill them in with kvmem_registration_options_init first.
typedef struct kvmem_registration_options {
    /// Size of this structure in bytes, as the program knows it.
    uint64_t struct_size;
    /// "auto", "sequential", "parallel" or "parallel:N". NULL: "auto".
    const char *policy;
    /// Populates pages that are not resident: KVMEM_POPULATE_AUTO (the default),
    /// KVMEM_POPULATE_NONE (the registrar faults them in), or a number of threads.
    uint32_t populate;
    /// 1: populate and register each chunk before the next one. Default 0.
    uint32_t by_range;
    /// Largest number of bytes that one key covers. 0 (the default): the registrars' preferred
    /// size; a GPU, which copies by address, gets one key for the whole region then. Copies must
    /// not cross an edge between two keys.
    uint64_t chunk_bytes;
    /// Receives progress, also of kvmem_registration_deregister. Called as long as the
    /// registration lives. Default NULL.
    kvmem_progress_fn progress;
    /// Passed to `progress`.
    void *progress_user;
    /// Ends registering early; nothing is registered then. Default NULL.
    const struct kvmem_cancel *cancel;
    /// Time budget in nanoseconds; 0 (the default): no limit.
    uint64_t time_budget_ns;
} kvmem_registration_options;

/// A chunk of a region, and its key.
typedef struct kvmem_chunk {
    /// Offset of the chunk in the region.
    uint64_t offset;
    /// Length in bytes.
    uint64_t bytes;
    /// The key.
    struct kvmem_key key;
} kvmem_chunk;

/// The result of registering.
typedef struct kvmem_registration_info {
    /// Bytes of the region.
    uint64_t bytes;
    /// Bytes that were resident before.
    uint64_t resident_bytes;
    /// Number of registrars.
    uint64_t devices;
    /// Number of keys.
    uint64_t keys;
    /// The boundary to give an offset allocator so that every allocation has a single key. 0: none
    /// is needed.
    uint64_t boundary_bytes;
    /// Number of registrars that were called in parallel; 1: one call after another.
    uint64_t threads;
    /// Seconds spent on populating.
    double populate_seconds;
    /// Seconds spent on registering.
    double register_seconds;
} kvmem_registration_info;

/// Options of a space. Fill them in with kvmem_offset_allocator_options_init first.
typedef struct kvmem_offset_allocator_options {
    /// Size of this structure in bytes, as the program knows it.
    uint64_t struct_size;
    /// No allocation crosses a multiple of this many bytes, or is longer. 0 (the default): no
    /// boundary.
    uint64_t boundary_bytes;
    /// Limits the number of ranges, used and free. 0 (the default): about 2^32.
    uint32_t max_ranges;
    /// KVMEM_PLACEMENT_RENEWAL (the default) or KVMEM_PLACEMENT_BEST_FIT.
    uint32_t placement;
    /// 1: hot sizes are served from each thread's own magazines, without a lock (layer 4). Default
    /// 0.
    uint32_t magazines;
    /// With magazines: KVMEM_AUTO_HOT_SIZES_ON (the default), KVMEM_AUTO_HOT_SIZES_OFF or
    /// KVMEM_AUTO_HOT_SIZES_AFTER_FIRST_FREE.
    uint32_t auto_hot_sizes;
    /// With magazines: sizes in bytes that are hot from the start, `hot_size_count` of them, at
    /// most 32.
    const uint64_t *hot_sizes;
    /// Number of hot sizes.
    uint64_t hot_size_count;
    /// With magazines: limits the bytes that all of them cache. UINT64_MAX (the default): 1/32 of
    /// the space.
    uint64_t max_cached_bytes;
} kvmem_offset_allocator_options;

/// An allocation as plain data: it may be copied and stored anywhere. Any bits are safe to pass
/// back. If the allocation was freed before, or belongs to another allocator, the call returns an
/// error and changes nothing.
typedef struct kvmem_allocation {
    /// Number of its allocator, never reused in this process; 0: no allocation.
    uint64_t allocator;
    /// Its slot in the allocator's metadata.
    uint32_t slot;
    /// Generation of the slot.
    uint32_t generation;
    /// First offset.
    uint64_t offset;
    /// Length in bytes, exactly as requested.
    uint64_t bytes;
} kvmem_allocation;

/// Figures of a space at one moment. Sizes are bytes.
typedef struct kvmem_metrics {
    /// Length of the space.
    uint64_t capacity;
    /// Bytes in use: exactly the requested sizes, since sizes are not rounded.
    uint64_t allocated;
    /// Bytes not in use.
    uint64_t free;
    /// The longest range that could be allocated now.
    uint64_t largest_free;
    /// Allocations alive.
    uint64_t live;
    /// Free ranges, as many as in the map. Neighbours are coalesced, except at boundaries:
    /// there, only segments that are wholly free are.
    uint64_t free_ranges;
    /// Heap memory of the metadata.
    uint64_t metadata_bytes;
    /// The boundary that no allocation crosses; 0: none.
    uint64_t boundary_bytes;
} kvmem_metrics;

/// A space by number, for allocations that may outlive it. The kvmem_space_* functions take any
/// bits, and kvmem_space_free may be called after the allocator was destroyed, and while another
/// thread destroys it.
typedef struct kvmem_space {
    /// Number of its allocator, as in kvmem_allocation.
    uint64_t allocator;
    /// Number of the space. Another space may have it when this one is gone.
    uint32_t number;
    /// 0.
    uint32_t reserved;
} kvmem_space;

/// An allocation of a space by number, in two registers.
typedef struct kvmem_space_range {
    /// Its slot, times 2^32, plus the generation of the slot: the members of kvmem_allocation. 0:
    /// the call failed.
    uint64_t handle;
    /// First offset. If the call failed: its kvmem_status.
    uint64_t offset;
} kvmem_space_range;

/// The free ranges of similar sizes.
typedef struct kvmem_bin {
    /// Smallest size in bytes.
    uint64_t min_bytes;
    /// Largest size in bytes.
    uint64_t max_bytes;
    /// Number of free ranges.
    uint64_t ranges;
    /// Their sum in bytes.
    uint64_t bytes;
} kvmem_bin;

/// One range of a map.
typedef struct kvmem_map_range {
    /// First offset.
    uint64_t offset;
    /// Length in bytes.
    uint64_t bytes;
    /// KVMEM_RANGE_FREE, KVMEM_RANGE_USED or KVMEM_RANGE_CACHED.
    uint32_t state;
    /// Always 0.
    uint32_t reserved;
} kvmem_map_range;

/// A detected misuse.
typedef struct kvmem_slab_fault {
    /// KVMEM_FAULT_DOUBLE_FREE and so on; more kinds may be added.
    uint32_t kind;
    /// Always 0.
    uint32_t reserved;
    /// The address of the block.
    void *block;
    /// The block's size in bytes as allocated; for a foreign pointer, as freed.
    uint64_t bytes;
    /// A description, valid only during the call.
    const char *text;
} kvmem_slab_fault;

/// Receives a detected misuse, in the thread that caused it. When the function returns (no longjmp,
/// no C++ exception), the operation is skipped. It must not use the allocator.
typedef void (*kvmem_slab_fault_fn)(void *user, const struct kvmem_slab_fault *fault);

/// Options of a slab allocator. Fill them in with kvmem_slab_allocator_options_init first.
typedef struct kvmem_slab_allocator_options {
    /// Size of this structure in bytes, as the program knows it.
    uint64_t struct_size;
    /// Pages come only from this region; NULL (the default): from the system. The region must be
    /// private and have no other user (KVMEM_ERR_IN_USE). The allocator takes it over, and its
    /// handle becomes invalid. If the call fails, the region stays the caller's.
    struct kvmem_region *region;
    /// Blocks of more bytes than this come from the system's malloc. At most 8192, which
    /// UINT64_MAX (the default) stands for.
    uint64_t limit_bytes;
    /// How long unused full magazines are kept, in nanoseconds; 0 (the default): 15 seconds.
    uint64_t working_set_ns;
    /// Limits the bytes that all magazines together cache. UINT64_MAX (the default): no limit.
    uint64_t max_cached_bytes;
    /// KVMEM_SLAB_FROM_ENVIRONMENT, KVMEM_SLAB_PLAIN, or a combination of the flags.
    uint32_t settings;
    /// Reserved: any value but 0 is KVMEM_ERR_INVALID_ARGUMENT.
    uint32_t reserved;
    /// Receives detected misuse. NULL (the default): the description is written to the standard
    /// error stream, and the process aborts.
    kvmem_slab_fault_fn on_fault;
    /// Passed to `on_fault`.
    void *on_fault_user;
} kvmem_slab_allocator_options;

/// Statistics of a slab allocator.
typedef struct kvmem_slab_allocator_stats {
    /// Bytes mapped.
    uint64_t mapped_bytes;
    /// Mapped bytes in slabs.
    uint64_t slab_bytes;
    /// Mapped bytes outside of slabs.
    uint64_t unused_bytes;
    /// Bytes of blocks in magazines.
    uint64_t cached_bytes;
    /// Blocks in use that came from slabs.
    uint64_t in_use;
    /// Blocks in use that came from the system's malloc.
    uint64_t system_blocks;
    /// Bytes of those.
    uint64_t system_bytes;
} kvmem_slab_allocator_stats;

/// Options of a pool. Fill them in with kvmem_pool_options_init first.
typedef struct kvmem_pool_options {
    /// Size of this structure in bytes, as the program knows it.
    uint64_t struct_size;
    /// Bytes that the pool can grow to; 0 (the default): its initial size.
    uint64_t max_bytes;
    /// Kinds of pages to try, in order: "1G", "2M", "thp", "4k", separated by commas. NULL:
    /// "2M,thp,4k".
    const char *pages;
    /// 1: fail if the first kind cannot provide all pages. Default 0.
    uint32_t strict;
    /// KVMEM_BACKING_PRIVATE (the default) or KVMEM_BACKING_SHARED, which other processes can
    /// attach.
    uint32_t backing;
    /// KVMEM_NUMA_ANY (the default), KVMEM_NUMA_BIND or KVMEM_NUMA_INTERLEAVE.
    uint32_t numa_policy;
    /// KVMEM_POPULATE_AUTO (the default), KVMEM_POPULATE_NONE (a first touch can then kill the
    /// process), or a number of threads.
    uint32_t populate;
    /// NUMA nodes, `numa_node_count` of them.
    const uint32_t *numa_nodes;
    /// Number of NUMA nodes.
    uint64_t numa_node_count;
    /// 1: a page without access before and behind the pool. Default 0.
    uint32_t guard_pages;
    /// 1: kvmem_pool_create returns as soon as the memory is mapped, and a thread populates and
    /// registers it part by part. Default 0.
    uint32_t in_background;
    /// 1: parts that cannot be populated or registered are quarantined and reported. Default 0:
    /// the call fails instead.
    uint32_t quarantine;
    /// 1 (the default): sizes that are requested frequently become hot, and are served without a
    /// lock.
    uint32_t auto_hot_sizes;
    /// Registrars for the whole pool; NULL (the default): none. The handle stays the caller's.
    const struct kvmem_registrars *registrars;
    /// "auto", "sequential", "parallel" or "parallel:N". NULL: "auto".
    const char *policy;
    /// Size limit of the parts. No block crosses the edge of a part. 0 (the default): the
    /// registrars' preferred size.
    uint64_t boundary_bytes;
    /// Sizes in bytes that are hot from the start, `hot_size_count` of them, at most 32.
    const uint64_t *hot_sizes;
    /// Number of hot sizes.
    uint64_t hot_size_count;
    /// Limits the bytes that all magazines together cache. UINT64_MAX (the default): 1/32 of the
    /// pool.
    uint64_t max_cached_bytes;
    /// Ends building early. Default NULL.
    const struct kvmem_cancel *cancel;
    /// Receives the progress of populating and registering. With `in_background`, called as long
    /// as the pool lives. Default NULL.
    kvmem_progress_fn progress;
    /// Passed to `progress`.
    void *progress_user;
    /// 1, with KVMEM_BACKING_SHARED: seals the memory file with F_SEAL_FUTURE_WRITE (Linux 5.1),
    /// so only this pool can write to it. No other mapping can be made for writing, by any
    /// process or user, this process included. kvmem_pool_shrink_to fails. Default 0.
    uint32_t readers_only;
    /// KVMEM_INIT_ON_NEVER (the default), KVMEM_INIT_ON_ALLOC or KVMEM_INIT_ON_FREE: when the bytes
    /// of blocks are set to zero.
    uint32_t init_on;
} kvmem_pool_options;

/// Bytes of a pool, as plain data: it may be copied and stored anywhere. Any bits are safe to pass
/// back. If the block was freed before, the call returns an error and changes nothing. The bytes
/// belong to the caller until kvmem_block_free.
typedef struct kvmem_block {
    /// Its pool; NULL: no block.
    struct kvmem_pool *pool;
    /// Number of the pool's metadata, never reused in this process.
    uint64_t allocator;
    /// Its slot in the metadata.
    uint32_t slot;
    /// Generation of the slot.
    uint32_t generation;
    /// The first address.
    void *data;
    /// Offset in the pool.
    uint64_t offset;
    /// Length in bytes, exactly as requested.
    uint64_t bytes;
} kvmem_block;

/// Properties of a pool.
typedef struct kvmem_pool_info {
    /// The first address. Block offsets are relative to it.
    void *data;
    /// Bytes of the pool when all parts are ready.
    uint64_t capacity_bytes;
    /// Bytes that the pool can grow to.
    uint64_t max_bytes;
    /// Bytes that are ready: populated, registered, not quarantined.
    uint64_t ready_bytes;
    /// Quarantined bytes.
    uint64_t quarantined_bytes;
    /// The boundary that no block crosses; 0: none.
    uint64_t boundary_bytes;
    /// The number that references name the pool by; 0 for private memory.
    uint64_t share_id;
    /// Number of registrars.
    uint64_t devices;
    /// Whether parts are still being populated or registered: 1 or 0.
    uint32_t initializing;
    /// Always 0.
    uint32_t reserved;
} kvmem_pool_info;

/// A reference to a block, as plain data: all that another process needs to find it.
typedef struct kvmem_block_ref {
    /// The pool, by the number of its memory file.
    uint64_t pool;
    /// Offset of the block in the pool.
    uint64_t offset;
    /// Length in bytes.
    uint64_t bytes;
} kvmem_block_ref;

/// Properties of an attached pool.
typedef struct kvmem_attached_pool_info {
    /// Length in bytes.
    uint64_t bytes;
    /// The number that references name the pool by.
    uint64_t share_id;
    /// Whether it can be written: 1 or 0.
    uint32_t writable;
    /// Always 0.
    uint32_t reserved;
} kvmem_attached_pool_info;

/// Chooses the evicted values that are written to a disk tier: returns 1 to write the value, 0 to
/// drop it. An older value of a key that is dropped is removed from the tier.
///
/// Called by the threads that evict or write behind a cache, by several at once, while the order of
/// the key is locked. The key and the value are valid only during the call. The function must be
/// short, must not call the cache or the tier, and must return (no longjmp, no C++ exception).
typedef int (*kvmem_disk_tier_admit_fn)(void *user,
                                        const void *key,
                                        uint64_t key_bytes,
                                        const void *value,
                                        uint64_t value_bytes);

/// Options of a disk tier. Fill them in with kvmem_disk_tier_options_init first.
typedef struct kvmem_disk_tier_options {
    /// Size of this structure in bytes, as the program knows it.
    uint64_t struct_size;
    /// Length of the file, which becomes as long, with its space allocated. In a shorter file
    /// values that have no room any more are evicted.
    /// UINT64_MAX (the default): a file keeps its length. A block device always does.
    uint64_t bytes;
    /// Maximum number of values, fixed when the file is made. The file keeps 260 bytes for each.
    /// UINT64_MAX (the default): one for each 32 KiB of the file.
    uint64_t max_entries;
    /// Limits the bytes that are written per second, those of the index too: an evicted value that
    /// comes when they are used up is dropped. Values given to kvmem_disk_tier_store are always
    /// written, and count. UINT64_MAX (the default): no limit.
    uint64_t max_write_bytes_per_s;
    /// 1: makes a new tier of a file that holds something else or is damaged; everything in it is
    /// lost. The default is 0.
    uint32_t format;
    /// KVMEM_VERIFY_LAZY (the default) or KVMEM_VERIFY_ALL.
    uint32_t verify;
    /// Which values that a cache evicts are written: KVMEM_ADMIT_ALL (the default),
    /// KVMEM_ADMIT_SECOND_EVICTION or KVMEM_ADMIT_CUSTOM. Values given to kvmem_disk_tier_store are
    /// always written.
    uint32_t admission;
    /// Which values a full tier evicts first, of those with the same priority:
    /// KVMEM_TIER_EVICT_LRU (the default) or KVMEM_TIER_EVICT_FIFO. The file does not keep it.
    uint32_t eviction;
    /// 1: opens the file with O_DSYNC. A value survives a power cut as soon as it is stored,
    /// without kvmem_disk_tier_sync, and storing takes longer. The default is 0.
    uint32_t dsync;
    /// 1: opens a tier that a process of another host had open, which has ended without closing it.
    /// The default is 0: such a tier is KVMEM_ERR_IN_USE. A process of this host that has ended
    /// needs no such word.
    uint32_t take_over;
    /// Chooses the evicted values that are written, with KVMEM_ADMIT_CUSTOM. NULL (the default)
    /// otherwise.
    kvmem_disk_tier_admit_fn on_admit;
    /// Passed to `on_admit` and `on_admit_release`.
    void *on_admit_user;
    /// Called once with `on_admit_user`, by any thread, when the tier, or each tier of a set, is
    /// gone; may be NULL. Not called if the tier could not be opened.
    void (*on_admit_release)(void *user);
    /// How values are compressed before they are written, without loss: "none" (the default, also
    /// NULL) or "auto". Values are read whatever this says.
    const char *codec;
    /// A file with keys that encrypt values, one of 64 hexadecimal digits a line: the first one
    /// writes, all of them read. Only its owner may change it, and no others read it;
    /// "/dev/fd/3" is a descriptor. NULL (the default): values are not encrypted, and those that
    /// are encrypted are misses. With a codec or keys, older versions do not open the file.
    const char *key_file;
} kvmem_disk_tier_options;

/// What opening a disk tier found.
typedef struct kvmem_disk_tier_report {
    /// Whether the tier was made just now.
    uint64_t created;
    /// Values found.
    uint64_t entries;
    /// Changes that the journal had since the last checkpoint.
    uint64_t replayed;
    /// Entries that name bytes outside of the file, or bytes of others: they were dropped.
    uint64_t dropped;
    /// Values that were dropped because they are not encrypted, and the tier was opened with
    /// keys.
    uint64_t unencrypted;
    /// Values that the verification of all found damaged, and removed.
    uint64_t damaged;
    /// Blocks of the journal that are damaged, or that a power cut took, although later ones
    /// are whole. The changes of the later ones count.
    uint64_t journal_damaged;
    /// Of these, blocks whose keys no whole block repeats, and that a power cut may have taken.
    /// If it did not, a value that they removed or replaced may be found again.
    uint64_t journal_unknown;
    /// Values that were dropped since such a block may have removed or replaced them.
    uint64_t in_doubt;
    /// Whether transfers of a file bypass the page cache.
    uint64_t direct;
    /// Whether io_uring transfers the bytes of a file; otherwise threads do, which are slower.
    uint64_t has_io_uring;
} kvmem_disk_tier_report;

/// A value to store. Members that are 0 select the defaults.
typedef struct kvmem_disk_tier_value {
    /// The bytes of the key; may be NULL if there are none.
    const void *key;
    /// Number of bytes of the key.
    uint64_t key_bytes;
    /// The bytes of the value; may be NULL if there are none.
    const void *data;
    /// Number of bytes of the value.
    uint64_t bytes;
    /// How long the value is of use, in milliseconds; at least so long, rounded up to whole seconds
    /// of the wall clock. Afterwards it is a miss, and is evicted before all others. 0: forever.
    uint64_t ttl_ms;
    /// 0 to 3: values of a lower priority are evicted first.
    uint32_t priority;
    /// The type of the value's elements, as in kvmem_value_hints.
    uint32_t data_type;
    /// The name of the namespace whose keys encrypt the value, such as that of a tenant; may be
    /// NULL if it has no bytes, as the one without a name. See kvmem_disk_tier_forget_namespace.
    const void *namespace_name;
    /// Number of bytes of the name.
    uint64_t namespace_bytes;
} kvmem_disk_tier_value;

/// A value to fetch, and the result.
typedef struct kvmem_disk_tier_request {
    /// The bytes of the key; may be NULL if there are none.
    const void *key;
    /// Number of bytes of the key.
    uint64_t key_bytes;
    /// Memory for the value; may be NULL if `capacity` is 0. If it begins at a multiple of 4096
    /// bytes, the drive writes to it directly.
    void *data;
    /// Bytes of this memory: at least those of the value.
    uint64_t capacity;
    /// Receives the bytes of the value, with KVMEM_FETCHED_HIT and KVMEM_FETCHED_TOO_SHORT;
    /// otherwise 0.
    uint64_t bytes;
    /// Receives KVMEM_FETCHED_HIT, KVMEM_FETCHED_ABSENT, KVMEM_FETCHED_TOO_SHORT,
    /// KVMEM_FETCHED_DAMAGED, KVMEM_FETCHED_FAILED, KVMEM_FETCHED_LOST, KVMEM_FETCHED_SUSPECT,
    /// KVMEM_FETCHED_NO_KEY or KVMEM_FETCHED_BAD_TAG.
    uint32_t outcome;
    /// Receives 0.
    uint32_t reserved;
} kvmem_disk_tier_request;

/// Contents of a disk tier, and counts since it was opened; of a set, the sums of those of all
/// its tiers. Sizes are in bytes.
typedef struct kvmem_disk_tier_stats {
    /// Values held.
    uint64_t entries;
    /// Of the values, those in several ranges of the file.
    uint64_t scattered;
    /// Of the values, those whose bytes a power cut may have taken: they were written without a
    /// sync, by a process that was killed before the next checkpoint, and were not read since.
    uint64_t unverified_values;
    /// Of the values, those that the drive failed to read, and that are read again.
    uint64_t suspects;
    /// Bytes of all values held, without padding.
    uint64_t bytes;
    /// Bytes of the file for values.
    uint64_t capacity;
    /// Bytes of the file that values use, padding included.
    uint64_t used;
    /// Bytes of the file that are not used any more, because what was written there was lost.
    uint64_t quarantined;
    /// Values stored.
    uint64_t stored;
    /// Bytes of values written, padding included.
    uint64_t written_bytes;
    /// Bytes of journal, checkpoints and superblocks written.
    uint64_t metadata_bytes;
    /// Bytes that were written to the file over its life: of values, journal, checkpoints and
    /// superblocks. Of a file that an earlier version made, since this one opened it first. The
    /// part of an unfinished checkpoint that a killed process wrote is not counted.
    uint64_t lifetime_bytes;
    /// Bytes that were written in a day of this life, on average; the first day counts whole.
    uint64_t bytes_per_day;
    /// Values fetched.
    uint64_t hits;
    /// Fetches of keys without a value, or whose value was replaced or evicted meanwhile.
    uint64_t misses;
    /// Fetches whose bytes had another checksum than those that were stored.
    uint64_t checksum_misses;
    /// Fetches of values whose bytes a power cut took before they were synced. Their blocks are
    /// free again.
    uint64_t lost_misses;
    /// Fetches that the drive failed with an error.
    uint64_t io_misses;
    /// Fetches of which the file had fewer bytes than were stored: it was cut off.
    uint64_t short_misses;
    /// Fetches of values that the drive has failed to read, and does not read again yet.
    uint64_t suspect_misses;
    /// Fetches of encrypted values whose key the key file does not have.
    uint64_t key_misses;
    /// Fetches of values whose tag was wrong: they were changed, or put in the place of others.
    uint64_t tag_misses;
    /// Bytes of the values that were encoded, before that.
    uint64_t encoded_before_bytes;
    /// Bytes of the forms that they were encoded to.
    uint64_t encoded_after_bytes;
    /// Nanoseconds in which threads compressed and encrypted values.
    uint64_t encode_ns;
    /// Nanoseconds in which threads decrypted and decompressed values.
    uint64_t decode_ns;
    /// Values that a cache evicted and that were not written, by `admission` or
    /// `max_write_bytes_per_s`.
    uint64_t not_admitted;
    /// Values that were not stored because they cannot be encrypted: the system has no random
    /// numbers, they are too long, or the file has no room for their namespace.
    uint64_t encode_failures;
    /// Values that were not stored because the file is too short for them, or all of it was
    /// being written.
    uint64_t space_failures;
    /// Values that were not stored because the drive failed, or the journal before.
    uint64_t device_failures;
    /// Values that a cache evicted as it had fetched them: they were not written again.
    uint64_t unchanged;
    /// Values evicted.
    uint64_t evictions;
    /// Of the evicted values, those that had expired.
    uint64_t expired;
    /// Copies of the superblock that could not be written. The other copy was.
    uint64_t superblock_failures;
    /// Checkpoints written.
    uint64_t checkpoints;
    /// Memory that the index takes.
    uint64_t index_bytes;
    /// Bytes of memory that are registered as fixed buffers with the rings of the file.
    uint64_t fixed_buffer_bytes;
    /// Transfers that used a fixed buffer.
    uint64_t fixed_buffer_transfers;
    /// Whether the journal failed: nothing is stored until the tier can begin it anew, which it
    /// tries in pauses of up to a minute. Values that were stored are still found.
    uint64_t read_only;
} kvmem_disk_tier_stats;

/// Contents of the file of a disk tier. Sizes are in bytes.
typedef struct kvmem_disk_tier_inspection {
    /// Length of the file or block device.
    uint64_t file_bytes;
    /// When the file was last written to, in nanoseconds since 1970. 0 for a block device.
    uint64_t modified_ns;
    /// When the file was made, or first opened by a program that counts what it writes, in
    /// seconds since 1970. 0: not yet.
    uint64_t since;
    /// Bytes that were written to the file since then, up to the last checkpoint.
    uint64_t lifetime_bytes;
    /// Copies of the superblock that are valid, of two.
    uint64_t superblocks;
    /// How often a superblock was written.
    uint64_t generation;
    /// How often a journal was begun.
    uint64_t epoch;
    /// Bytes of the tier: at most those of the file.
    uint64_t tier_bytes;
    /// Bytes for values.
    uint64_t capacity;
    /// Values.
    uint64_t entries;
    /// The most values that the tier can hold.
    uint64_t max_entries;
    /// Of the values, those in several ranges of the file.
    uint64_t scattered;
    /// Of the values, those that a power cut may have taken, and that were not read since.
    uint64_t unverified_values;
    /// The bytes of all values, without padding, before they were encoded.
    uint64_t value_bytes;
    /// The bytes that are stored of all values, without padding: with those of the values they
    /// are the ratio of compression.
    uint64_t stored_bytes;
    /// Of the values, those that are encoded: compressed or encrypted.
    uint64_t encoded;
    /// Of the values, those that are encrypted.
    uint64_t encrypted;
    /// Namespaces of encrypted values.
    uint64_t namespaces;
    /// The bytes that values use, padding included.
    uint64_t used_bytes;
    /// The length of the shortest value. 0 without values.
    uint64_t min_bytes;
    /// Half of the values are at most this long. 0 without values.
    uint64_t median_bytes;
    /// The length of the longest value. 0 without values.
    uint64_t max_bytes;
    /// Bytes that are not in use.
    uint64_t free_bytes;
    /// Bytes of the longest range that is not in use.
    uint64_t longest_free_bytes;
    /// Parts of the file that are not used any more, because what was written there was lost.
    uint64_t quarantined;
    /// Bytes of these parts.
    uint64_t quarantined_bytes;
    /// Entries that name bytes outside of the file, or bytes of others: they are no values.
    uint64_t dropped;
    /// Changes in the checkpoint.
    uint64_t checkpoint_changes;
    /// Changes in the journal, after the checkpoint.
    uint64_t journal_changes;
    /// Blocks of 4096 bytes that these have.
    uint64_t journal_blocks;
    /// Blocks of 4096 bytes that the journal can have.
    uint64_t max_journal_blocks;
    /// Blocks of the journal that are damaged, or that a power cut took, although later ones
    /// are whole. The changes of the later ones count.
    uint64_t journal_damaged;
    /// Of these, blocks whose keys no whole block repeats, and that a power cut may have taken.
    /// If it did not, a value that they removed or replaced may be found again.
    uint64_t journal_unknown;
    /// Values that were dropped since such a block may have removed or replaced them.
    uint64_t in_doubt;
    /// The version of the file's format.
    uint64_t format_version;
    /// Whether transfers bypass the page cache.
    uint64_t direct;
    /// Whether io_uring transfers the bytes; otherwise threads do, which are slower.
    uint64_t has_io_uring;
    /// The identity of the file, chosen at random when it was made.
    uint8_t identity[16];
} kvmem_disk_tier_inspection;

/// What a verification has found. Sizes are in bytes.
typedef struct kvmem_disk_tier_verification {
    /// Values read.
    uint64_t entries;
    /// Bytes read, padding included.
    uint64_t bytes;
    /// How long that took, in nanoseconds.
    uint64_t elapsed_ns;
    /// Values that are not what was stored. A fetch of one is a miss.
    uint64_t damaged;
    /// Entries that name bytes outside of the file, or bytes of others: they are no values.
    uint64_t dropped;
} kvmem_disk_tier_verification;

/// A value that is not what was stored.
typedef struct kvmem_disk_tier_damaged_value {
    /// The digest of the value's key.
    uint8_t digest[16];
    /// Where its bytes begin in the file.
    uint64_t offset;
    /// Its length in bytes.
    uint64_t bytes;
    /// In how many ranges of the file it lies.
    uint32_t ranges;
    /// KVMEM_DAMAGE_CHECKSUM, KVMEM_DAMAGE_DEVICE or KVMEM_DAMAGE_ENCODING.
    uint32_t damage;
    /// The system's error number, with KVMEM_DAMAGE_DEVICE; otherwise 0, and 0 if there is none.
    int32_t os_error;
    /// Whether a power cut may have taken the value before a sync: 1 or 0. If so, the drive is
    /// sound, and a fetch makes its bytes free again.
    uint32_t is_unverified;
} kvmem_disk_tier_damaged_value;

/// A pinned value.
typedef struct kvmem_kv_cache_value {
    /// The pin. The bytes are valid until it is released.
    struct kvmem_kv_cache_pin *pin;
    /// The bytes, for reading. The address has no particular alignment.
    const void *data;
    /// Number of bytes.
    uint64_t bytes;
    /// Offset of the first byte in the pool.
    uint64_t offset;
} kvmem_kv_cache_value;

/// Eviction callback: receives each value that is evicted. Values
/// that are removed, replaced or cleared are not passed to it. One exception: if a key's new value
/// does not fit beside the old one, the old one is evicted first.
///
/// `value`, its pin and `key` are valid only during the call; kvmem_kv_cache_pin_clone makes a pin
/// that stays. Until the last pin is released, the bytes stay in use, but the cache does not count
/// them and goes on to evict other values. A program that keeps pins must limit them to a part of
/// the pool.
///
/// Called by the thread that inserts, commits, reserves or calls kvmem_kv_cache_evict_to, by
/// several threads at once. The cache holds no lock during the call. The function may call the
/// cache, except for calls that evict. It must return (no longjmp, no C++ exception).
///
/// To store evicted values and find them again, use a lower tier: kvmem_lower_tier_custom.
typedef void (*kvmem_kv_cache_evict_fn)(void *user,
                                        const struct kvmem_kv_cache_value *value,
                                        const void *key,
                                        uint64_t key_bytes);

/// Options of a cache. Fill them in with kvmem_kv_cache_options_init first.
typedef struct kvmem_kv_cache_options {
    /// Size of this structure in bytes, as the program knows it.
    uint64_t struct_size;
    /// Limits the bytes of all values. UINT64_MAX (the default): the pool is the limit.
    uint64_t max_bytes;
    /// Limits the number of values. UINT64_MAX (the default): about 2^32.
    uint64_t max_blocks;
    /// Receives each evicted value. NULL (the default): evicted bytes are freed at once.
    kvmem_kv_cache_evict_fn on_evict;
    /// Passed to `on_evict` and `on_evict_release`.
    void *on_evict_user;
    /// Called once with `on_evict_user`, by any thread, when the cache and all its
    /// reservations are gone; may be NULL. Not called if the cache could not be made.
    void (*on_evict_release)(void *user);
    /// A lower tier that receives each evicted value, and that kvmem_kv_cache_get asks for values
    /// that the cache does not have; see kvmem_disk_tier_as_lower_tier and kvmem_lower_tier_custom.
    /// NULL (the default): none. Not with `on_evict`. The cache keeps the tier: its handle may be
    /// destroyed before the cache.
    const struct kvmem_lower_tier *lower_tier;
    /// Puts a queue of as many bytes above the lower tier. An insertion that evicts leaves the
    /// value there, where it is still found, and a thread writes many of them at once. They stay in
    /// use in the pool meanwhile. Destroying the cache writes what is left. UINT64_MAX (the
    /// default): no queue; the thread that evicts a value writes it.
    uint64_t write_behind_bytes;
    /// What happens to an evicted value when the queue is full: KVMEM_WHEN_FULL_WAIT (the default)
    /// or KVMEM_WHEN_FULL_DROP.
    uint32_t write_behind_when_full;
    /// Number of threads that write the values of the queue, from 1 (the default) to 64.
    uint32_t write_behind_writers;
    /// What happens to the values in the queue when the cache and all its reservations and fetches
    /// are gone: KVMEM_ON_DROP_WRITE (the default) or KVMEM_ON_DROP_DISCARD.
    uint32_t write_behind_on_drop;
    /// KVMEM_EVICT_LRU (the default) or KVMEM_EVICT_SCAN_RESISTANT.
    uint32_t eviction;
} kvmem_kv_cache_options;

/// A value to insert, with its key and its hints.
typedef struct kvmem_kv_cache_new_value {
    /// The bytes of the key; may be NULL if there are none.
    const void *key;
    /// Number of bytes of the key.
    uint64_t key_bytes;
    /// The bytes of the value.
    const void *data;
    /// Number of bytes of the value.
    uint64_t bytes;
    /// Its hints; all 0: none.
    struct kvmem_value_hints hints;
} kvmem_kv_cache_new_value;

/// A block for a value that is written in place.
typedef struct kvmem_kv_cache_reserved {
    /// The reservation. The bytes belong to the caller until it is committed or released.
    struct kvmem_kv_cache_reservation *reservation;
    /// The bytes, for writing.
    void *data;
    /// Number of bytes.
    uint64_t bytes;
    /// Offset of the first byte in the pool.
    uint64_t offset;
} kvmem_kv_cache_reserved;

/// Figures of a cache. Each is exact; they are not of one instant while other threads change
/// the cache. Sizes are in bytes.
typedef struct kvmem_kv_cache_stats {
    /// Blocks in the cache, including those being written. Blocks that were removed or replaced
    /// while pinned are not included.
    uint64_t blocks;
    /// Bytes of these blocks.
    uint64_t bytes;
    /// Look-ups that found their key in memory.
    uint64_t hits;
    /// Look-ups that did not find their key in memory.
    uint64_t misses;
    /// Values committed.
    uint64_t insertions;
    /// Committed values that replaced another value under the same key.
    uint64_t replacements;
    /// Blocks evicted.
    uint64_t evictions;
    /// Blocks removed by their key.
    uint64_t removals;
    /// Insertions that failed because no block could be evicted.
    uint64_t insertion_failures;
    /// Evicted values that the eviction sink or the lower tier failed to store.
    uint64_t sink_failures;
    /// Fetched values that were not inserted because the key was changed meanwhile.
    uint64_t superseded;
} kvmem_kv_cache_stats;

/// State and counts of the queue between a cache and its lower tier.
///
/// Every value that the cache evicted is `written`, `replaced`, `dropped`, `failed`, `rejected`
/// or still in the queue.
typedef struct kvmem_write_behind_stats {
    /// Values in the queue, including those being written.
    uint64_t values;
    /// Bytes of the values in the queue. They are in use in the pool.
    uint64_t bytes;
    /// Removals in the queue.
    uint64_t removals;
    /// The most bytes that were in the queue at once.
    uint64_t max_bytes;
    /// Values that the cache evicted.
    uint64_t evicted;
    /// Values that the tier took: it stored them, or did not want them.
    uint64_t written;
    /// Bytes of the values that the tier took.
    uint64_t written_bytes;
    /// Batches of values that were passed to the tier.
    uint64_t batches;
    /// Values that a later value, or a removal of their key, made superfluous before they were
    /// written.
    uint64_t replaced;
    /// Values that were not written because the queue was full.
    uint64_t dropped;
    /// Values that the tier failed to take.
    uint64_t failed;
    /// Values that the queue did not take: it was closed, or full of removals.
    uint64_t rejected;
    /// Threads that waited because the queue was full.
    uint64_t waits;
    /// Values that were fetched out of the queue.
    uint64_t hits;
    /// Calls of the tier by a writer that panicked.
    uint64_t panics;
    /// Keys that are not fetched, because the tier failed to remove an older value.
    uint64_t untrusted;
} kvmem_write_behind_stats;

/// A value of a node, for operators.
typedef struct kvmem_node_listed {
    /// The name of its namespace, with a NUL behind it.
    char namespace_name[64];
    /// The key. The bytes after it are 0.
    uint8_t key[64];
    /// Number of bytes of the key.
    uint64_t key_bytes;
    /// Bytes of the value.
    uint64_t bytes;
    /// Milliseconds since it was last acquired or stored.
    uint64_t idle_ms;
    /// Clients that have it pinned, and the server itself.
    uint32_t pins;
    /// Its priority; values of priority 0 are evicted first.
    uint32_t priority;
} kvmem_node_listed;

/// A client of a node, for operators.
typedef struct kvmem_node_session {
    /// The name of its namespace, with a NUL behind it.
    char namespace_name[64];
    /// Values that it has pinned.
    uint64_t pins;
    /// Its reservations.
    uint64_t reservations;
    /// Milliseconds since its last message.
    uint64_t silent_ms;
    /// The process; 0: its number is not visible to the server.
    uint32_t pid;
    /// 1: it is connected now. 0: it has not returned since the server started again, or has closed
    /// its connection without saying that it writes no more.
    uint32_t is_connected;
} kvmem_node_session;

/// A key that was acquired and had no value.
typedef struct kvmem_node_miss {
    /// The name of its namespace, with a NUL behind it.
    char namespace_name[64];
    /// The name of the namespace for whose block the value was evicted, with a NUL behind it; "":
    /// for none.
    char evicted_for[64];
    /// The key. The bytes after it are 0.
    uint8_t key[64];
    /// Number of bytes of the key.
    uint64_t key_bytes;
    /// Milliseconds since the miss.
    uint64_t ago_ms;
    /// Seconds between the moment when the value left the memory and the miss; UINT64_MAX: the
    /// server does not know a value of the key.
    uint64_t gone_s;
    /// Why there was no value: KVMEM_NODE_MISS_NEVER_STORED, KVMEM_NODE_MISS_EVICTED,
    /// KVMEM_NODE_MISS_EXPIRED, KVMEM_NODE_MISS_REMOVED, KVMEM_NODE_MISS_DAMAGED,
    /// KVMEM_NODE_MISS_TIER_AWAY, KVMEM_NODE_MISS_TIER_LOST or KVMEM_NODE_MISS_NOT_FETCHED.
    uint32_t reason;
    /// The priority of the value; UINT32_MAX: the server does not know a value of the key.
    uint32_t priority;
} kvmem_node_miss;

/// The size of the memory of a node after a call that changes it.
typedef struct kvmem_node_resized {
    /// Bytes for values and reservations now.
    uint64_t size_bytes;
    /// Bytes that were requested, in whole pages. The server goes on until the memory has them.
    uint64_t wanted_bytes;
    /// Bytes behind that end that are pinned, reserved, or being stored or verified.
    uint64_t held_bytes;
    /// Clients that have registered the memory with devices, or may have: while there are any, the
    /// memory does not shrink.
    uint64_t registered_clients;
} kvmem_node_resized;

/// Options of a client of a node. Fill them in with kvmem_node_client_options_init first.
typedef struct kvmem_node_client_options {
    /// Size of this structure in bytes, as the program knows it.
    uint64_t struct_size;
    /// The namespace of all keys of the client, such as a model or a tenant. NULL (the default):
    /// the one without a name.
    const char *namespace_name;
    /// How long a call waits for a server that has ended to start again, in milliseconds. 0: the
    /// call fails at once, and the next one connects again. The default is 10000.
    uint64_t retry_ms;
    /// How long a call waits for the answer of a server that is there, in milliseconds. The call
    /// then fails with KVMEM_ERR_DISCONNECTED, and the server may do it yet. A call takes at most
    /// the sum of this time and of `retry_ms`, and an eighth more. The default is 30000.
    uint64_t answer_within_ms;
    /// 1: maps the memory for reading only. Calls that write fail with KVMEM_ERR_READ_ONLY then.
    /// The default is 0.
    uint32_t read_only;
    /// 1: enters the pages of the memory into the page table when it is mapped. 0 (the default): at
    /// the first access to each page.
    uint32_t populate;
    /// 1: calculates the CRC-32C of each value that the client commits. The default is 0.
    uint32_t checksums;
    /// 1: verifies each value that is acquired. A damaged value is a miss, and the server removes
    /// it. A value without a checksum is a miss, too: see kvmem_node_client_unverified. The client
    /// writes checksums, also if `checksums` is 0. The default is 0.
    uint32_t verify;
    /// 1: makes the calls through rings in shared memory instead of the socket. A call then waits
    /// awake for its answer for some microseconds. A server that has no more rings serves the
    /// client by the socket. The default is 0.
    uint32_t rings;
    /// Always 0.
    uint32_t reserved;
    /// What the client registers the whole memory with when it connects: all of it with all of
    /// them, or connecting fails as kvmem_registration_create does. The keys stay valid until the
    /// client, its pins and its reservations are gone, also when the server starts again. A client
    /// that is `read_only` has none: KVMEM_ERR_READ_ONLY. NULL (the default): it registers nothing.
    /// The list may be destroyed once the client is connected.
    const struct kvmem_registrars *registrars;
    /// The users whose servers the client trusts with its values, `server_user_count` of them, at
    /// most 64. NULL (the default): its own user and root. A server that systemd gives the socket
    /// counts as root's. KVMEM_ERR_PERMISSION if the server is another user's.
    const uint32_t *server_users;
    /// Number of `server_users`.
    uint64_t server_user_count;
} kvmem_node_client_options;

/// Hints about the worth of a value of a node. All 0: none.
typedef struct kvmem_node_hints {
    /// After this many milliseconds the value is gone. 0: it stays until it is evicted.
    uint64_t ttl_ms;
    /// 0 to 3: values of a lower priority are evicted first.
    uint32_t priority;
    /// The type of the value's elements, as in kvmem_value_hints. The node passes it to its tier.
    uint32_t data_type;
    /// The bytes of the key of the parent, the value before it in a chain, such as that of the
    /// block before it in a prompt. NULL: the value stands alone. The node evicts a value only when
    /// it has no more values with it as their parent, and a use of a value is one of its parent.
    const void *parent;
    /// Number of bytes of the parent's key: 1 to KVMEM_NODE_MAX_KEY_BYTES; 0 without a parent.
    uint64_t parent_bytes;
} kvmem_node_hints;

/// A value to insert, with its key and its hints.
typedef struct kvmem_node_new_value {
    /// The bytes of the key: 1 to KVMEM_NODE_MAX_KEY_BYTES.
    const void *key;
    /// Number of bytes of the key.
    uint64_t key_bytes;
    /// The bytes of the value.
    const void *data;
    /// Number of bytes of the value.
    uint64_t bytes;
    /// Its hints; all 0: none.
    struct kvmem_node_hints hints;
} kvmem_node_new_value;

/// A value of a node, or none.
typedef struct kvmem_node_value {
    /// The bytes, for reading, valid until the pins are released; NULL if the key has no value.
    const void *data;
    /// Number of bytes; 0 if the key has no value.
    uint64_t bytes;
    /// Offset of the first byte in the memory of the node.
    uint64_t offset;
    /// Whether the key has a value: 1 or 0.
    uint32_t is_present;
    /// Whether the tier below the node is about to read the value, and a later call finds it: 1 or
    /// 0. Always 0 after a call that waits for the tier.
    uint32_t is_pending;
} kvmem_node_value;

/// A block that was reserved.
typedef struct kvmem_node_reserved {
    /// The reservation. The bytes belong to the caller until it is committed or released.
    struct kvmem_node_reservation *reservation;
    /// The bytes, for writing. They hold what an earlier value left there.
    void *data;
    /// Number of bytes, as requested.
    uint64_t bytes;
    /// Offset of the first byte in the memory of the node.
    uint64_t offset;
} kvmem_node_reserved;

/// A reservation, and what it becomes.
typedef struct kvmem_node_commit {
    /// The reservation, of the same client.
    struct kvmem_node_reservation *reservation;
    /// The bytes of the key: 1 to KVMEM_NODE_MAX_KEY_BYTES.
    const void *key;
    /// Number of bytes of the key.
    uint64_t key_bytes;
    /// Its hints; all 0: none.
    struct kvmem_node_hints hints;
} kvmem_node_commit;

/// Figures of a node, for all its clients and namespaces. Counts begin when its server starts.
/// Sizes are in bytes.
typedef struct kvmem_node_stats {
    /// Bytes of the memory that values and reservations can use now.
    uint64_t capacity;
    /// Bytes that the memory is to have, and has soon unless blocks behind its end are in use.
    uint64_t wanted_capacity;
    /// The least capacity under memory pressure.
    uint64_t min_capacity;
    /// The largest capacity that the memory can have while its clients have it mapped.
    uint64_t max_capacity;
    /// Bytes that values and reservations use: each takes whole units of the alignment.
    uint64_t used;
    /// Bytes of the largest free range.
    uint64_t largest_free;
    /// Values that can be found.
    uint64_t values;
    /// The most values and reservations that there can be.
    uint64_t max_blocks;
    /// Clients that are connected, or whose process lives.
    uint64_t sessions;
    /// Sessions whose client has not returned since the server restarted.
    uint64_t orphaned_sessions;
    /// Values that are pinned.
    uint64_t pinned;
    /// Bytes of values that are pinned.
    uint64_t pinned_bytes;
    /// Reservations.
    uint64_t reservations;
    /// Bytes of reservations.
    uint64_t reserved_bytes;
    /// Bytes of reservations whose client was silent for longer than its lease, and of blocks
    /// into which a device may still read for an earlier server.
    uint64_t fenced_bytes;
    /// Bytes of values whose parent is neither in memory nor in the tier: no look-up from the
    /// start of a prefix on finds them.
    uint64_t dead_bytes;
    /// Keys that were acquired and had a value.
    uint64_t hits;
    /// Keys that were acquired and had none.
    uint64_t misses;
    /// Misses whose key has had no value that the server remembers.
    uint64_t never_stored_misses;
    /// Misses whose value was evicted for others.
    uint64_t evicted_misses;
    /// Misses whose value's time was over.
    uint64_t expired_misses;
    /// Misses whose value was removed.
    uint64_t removed_misses;
    /// Misses whose value's bytes did not have their checksum.
    uint64_t damaged_misses;
    /// Misses whose value was evicted to the tier, which does not work now.
    uint64_t tier_away_misses;
    /// Misses whose value was evicted to the tier, which has let it go since.
    uint64_t tier_lost_misses;
    /// Misses whose value the tier has and could not bring.
    uint64_t not_fetched_misses;
    /// Blocks that were reserved.
    uint64_t reserved_total;
    /// Values that were committed.
    uint64_t committed_total;
    /// Values that were removed.
    uint64_t removed_total;
    /// Values that were evicted for others.
    uint64_t evicted_total;
    /// Values that were evicted, or whose time was over, before anybody acquired them.
    uint64_t evicted_unused_total;
    /// Values whose time was over.
    uint64_t expired_total;
    /// Reservations that were fenced: their client was silent for longer than its lease.
    uint64_t fenced_total;
    /// Reservations that failed because nothing could be evicted.
    uint64_t out_of_space_total;
    /// Times that the server has given memory back because the machine or its cgroup was short
    /// of it.
    uint64_t pressure_total;
    /// Bytes that were given back to the kernel.
    uint64_t given_back_bytes_total;
    /// Values that the server has verified in the background.
    uint64_t scrubbed_total;
    /// Values that were removed because their bytes did not have their checksum.
    uint64_t damaged_total;
    /// Values that the tier has stored.
    uint64_t tier_stored_total;
    /// Values that the tier was to store and did not: it failed, was away, had no room or did
    /// not want them.
    uint64_t tier_not_stored_total;
    /// Values that were fetched from the tier.
    uint64_t tier_fetched_total;
    /// Values that the tier could not fetch or remove.
    uint64_t tier_failed_total;
    /// Whether the tier works: 0 there is none, 1 it works, 2 it stores nothing because its
    /// device failed, 3 it is away and may work later.
    uint64_t tier_state;
    /// Calls that were served within 4.1 µs.
    uint64_t calls_within_4us;
    /// Calls that were served within 16.4 µs.
    uint64_t calls_within_16us;
    /// Calls that were served within 65.5 µs.
    uint64_t calls_within_64us;
    /// Calls that were served within 262 µs.
    uint64_t calls_within_256us;
    /// Calls that were served within 1.05 ms.
    uint64_t calls_within_1ms;
    /// Calls that were served within 4.2 ms.
    uint64_t calls_within_4ms;
    /// Calls that were served within 16.8 ms.
    uint64_t calls_within_16ms;
    /// Calls that were served within 67.1 ms.
    uint64_t calls_within_64ms;
    /// Calls that were served.
    uint64_t calls;
    /// Subscribers to the KV events.
    uint64_t kv_event_subscribers;
    /// Milliseconds for which changes have waited for the publisher of KV events.
    uint64_t kv_event_wait_ms;
    /// Batches of KV events that were published to all.
    uint64_t kv_event_batches_total;
    /// KV events that were published to all.
    uint64_t kv_events_total;
    /// Batches that were sent to subscribers that requested a replay.
    uint64_t kv_event_replayed_total;
    /// Times that changes were lost, so that the publisher got a list of all values instead.
    uint64_t kv_event_lists_total;
    /// Subscribers that were disconnected because they read too slowly or broke the protocol.
    uint64_t kv_event_disconnected_total;
} kvmem_node_stats;

/// Figures of a namespace of a node. Sizes are in bytes.
typedef struct kvmem_node_namespace_stats {
    /// Bytes of values and reservations of the namespace: each takes whole units of the
    /// alignment.
    uint64_t bytes;
    /// The most bytes that it may use.
    uint64_t max_bytes;
    /// Values of the namespace that are pinned.
    uint64_t pinned;
    /// Bytes of values of the namespace that are pinned.
    uint64_t pinned_bytes;
    /// Share of the memory, compared with those of the other namespaces.
    uint64_t share;
    /// Keys of the namespace that were acquired and had a value.
    uint64_t hits;
    /// Keys that were acquired and had none.
    uint64_t misses;
    /// Misses whose key has had no value that the server remembers.
    uint64_t never_stored_misses;
    /// Misses whose value was evicted for others.
    uint64_t evicted_misses;
    /// Misses whose value's time was over.
    uint64_t expired_misses;
    /// Misses whose value was removed.
    uint64_t removed_misses;
    /// Misses whose value's bytes did not have their checksum.
    uint64_t damaged_misses;
    /// Misses whose value was evicted to the tier, which does not work now.
    uint64_t tier_away_misses;
    /// Misses whose value was evicted to the tier, which has let it go since.
    uint64_t tier_lost_misses;
    /// Misses whose value the tier has and could not bring.
    uint64_t not_fetched_misses;
    /// Values that were evicted, or whose time was over, before anybody acquired them.
    uint64_t evicted_unused_total;
    /// Bytes that the namespace can have without taking any from others: those that it has and
    /// those that are free, at most its limit.
    uint64_t memory;
    /// Keys of all acquisitions in the namespace, those behind the first miss of a prefix too.
    uint64_t keys;
    /// Keys that would have had a value with half of its memory.
    uint64_t hits_at_half;
    /// Keys that would have had a value with twice its memory.
    uint64_t hits_at_2;
    /// Keys that would have had a value with four times its memory.
    uint64_t hits_at_4;
    /// Keys that would have had a value with eight times its memory.
    uint64_t hits_at_8;
    /// The name, with a NUL behind it.
    char namespace_name[64];
} kvmem_node_namespace_stats;

/// Something that happened to a value.
typedef struct kvmem_node_event {
    /// Counts all events of the server since it started.
    uint64_t number;
    /// KVMEM_NODE_EVENT_STORED, KVMEM_NODE_EVENT_REPLACED, KVMEM_NODE_EVENT_REMOVED,
    /// KVMEM_NODE_EVENT_EVICTED or KVMEM_NODE_EVENT_DAMAGED.
    uint32_t kind;
    /// The number of the key's namespace.
    uint32_t namespace_number;
    /// Number of bytes of the key.
    uint64_t key_bytes;
    /// The key. The bytes after it are 0.
    uint8_t key[64];
} kvmem_node_event;

/// The key of a block of tokens, and of all tokens up to its end. Its bytes are a key of a node, of
/// a cache or of a disk tier.
typedef struct kvmem_prefix_key {
    /// The bytes of the key.
    uint8_t bytes[32];
} kvmem_prefix_key;

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

/// Returns the version of the loaded library, such as "0.1.0". Never NULL; valid for the life of
/// the process. Any thread.
const char *kvmem_version(void);

/// Returns the name of a status, such as "KVMEM_ERR_OUT_OF_SPACE", or "KVMEM_UNKNOWN_STATUS" for a
/// number that is no status. Never NULL; valid for the life of the process. Any thread.
const char *kvmem_status_name(int32_t status);

/// Returns the text of this thread's last failure: what failed, the numbers, and what to do; "" if
/// no call of this thread has failed.
///
/// Never NULL. The text is valid until the same thread calls this function again, or ends. A call
/// that succeeds does not change it.
const char *kvmem_last_error(void);

/// Makes a token.
kvmem_status kvmem_cancel_create(struct kvmem_cancel **out_cancel);

/// Requests cancellation: work that was given the token ends at its next chunk with
/// KVMEM_ERR_CANCELLED. A request cannot be undone. Any thread, also while the work runs.
kvmem_status kvmem_cancel_request(const struct kvmem_cancel *cancel);

/// Destroys a token. Work that was given the token continues.
kvmem_status kvmem_cancel_destroy(struct kvmem_cancel *cancel);

/// Fills in the defaults. `struct_size` is `sizeof *options`.
kvmem_status kvmem_region_options_init(struct kvmem_region_options *options, uint64_t struct_size);

/// Checks every limit of this machine that applies to a region of `bytes` bytes with these options,
/// before anything is mapped. The report says which limits prevent mapping or registering it, and
/// what to do. `options` may be NULL. `out_fits` (may be NULL) is 1 if no limit prevents it,
/// otherwise 0. The other arguments as for kvmem_region_report.
kvmem_status kvmem_preflight_report(uint64_t bytes,
                                    const struct kvmem_region_options *options,
                                    uint32_t *out_fits,
                                    uint32_t format,
                                    char *buffer,
                                    uint64_t capacity,
                                    uint64_t *out_needed);

/// Maps a region of at least `bytes` bytes, or nothing. `options` may be NULL.
///
/// Mapping takes about ten system calls. Populating takes as long as the kernel needs to clear that
/// much memory.
kvmem_status kvmem_region_map(uint64_t bytes,
                              const struct kvmem_region_options *options,
                              struct kvmem_region **out_region);

/// Maps the memory that another process shares. `fd` comes from that process's kvmem_region_share.
/// The descriptor stays the caller's; the region keeps a duplicate. If `expected_bytes` is not 0,
/// the memory must have that length.
kvmem_status kvmem_region_attach(int fd, uint64_t expected_bytes, struct kvmem_region **out_region);

/// Makes a region over existing memory: a tensor's bytes, another library's buffer. `release` (may
/// be NULL) is called once with `user`, by any thread, when no object uses the memory any more.
/// Until then the bytes must stay mapped for reading and writing. If the call fails, `release` is
/// not called.
kvmem_status kvmem_region_wrap(void *data,
                               uint64_t bytes,
                               void (*release)(void *user),
                               void *user,
                               struct kvmem_region **out_region);

/// Destroys a region. The memory is unmapped when no object that was made on it is left.
kvmem_status kvmem_region_destroy(struct kvmem_region *region);

/// Returns the properties of a region.
kvmem_status kvmem_region_get_info(const struct kvmem_region *region,
                                   struct kvmem_region_info *out_info);

/// Writes the receipt of a region as text (KVMEM_TEXT) or as JSON (KVMEM_JSON): what was requested,
/// what was mapped on which nodes, and what prevented better pages.
///
/// Writes at most `capacity` bytes to `buffer`, including the NUL. `out_needed` (may be NULL,
/// unless `buffer` is NULL) receives the required size, also with KVMEM_ERR_BUFFER_TOO_SMALL. With
/// `buffer` NULL and `capacity` 0 the call only asks for the size.
kvmem_status kvmem_region_report(const struct kvmem_region *region,
                                 uint32_t format,
                                 char *buffer,
                                 uint64_t capacity,
                                 uint64_t *out_needed);

/// Makes `[offset, offset + bytes)` resident and writable without changing its contents. `how` is
/// KVMEM_POPULATE_AUTO or a number of threads. `progress` (may be NULL) is called with `user`, but
/// not after the call returns.
kvmem_status kvmem_region_populate(const struct kvmem_region *region,
                                   uint64_t offset,
                                   uint64_t bytes,
                                   uint32_t how,
                                   kvmem_progress_fn progress,
                                   void *user,
                                   const struct kvmem_cancel *cancel);

/// Makes the pages of a shared region resident in its aliases: all other shared, writable mappings
/// of the same memory file in this process, for example those of an engine that received the
/// descriptor. Otherwise the first touch of each page there is a page fault. `how` is
/// KVMEM_POPULATE_AUTO or a number of threads. `out_bytes` (may be NULL) receives the length of
/// those mappings in bytes; 0 for private memory.
kvmem_status kvmem_region_populate_aliases(const struct kvmem_region *region,
                                           uint32_t how,
                                           uint64_t *out_bytes);

/// Returns how many bytes of `[offset, offset + bytes)` are resident now, and the largest error of
/// that number. `out_error_bytes` may be NULL.
kvmem_status kvmem_region_residency(const struct kvmem_region *region,
                                    uint64_t offset,
                                    uint64_t bytes,
                                    uint64_t *out_resident_bytes,
                                    uint64_t *out_error_bytes);

/// Gives the pages of `[offset, offset + bytes)` back to the kernel; the bytes are then zero. Both
/// numbers must be multiples of the page size.
kvmem_status kvmem_region_discard(const struct kvmem_region *region,
                                  uint64_t offset,
                                  uint64_t bytes);

/// Returns a descriptor of a shared region's memory. Another process attaches the memory with it.
/// Owned by the caller: close(2). With `read_only` 1, the memory can be mapped for reading only;
/// but a process of the same user, or of root, can still reopen the descriptor for writing through
/// /proc, unless the region was made with `readers_only`. KVMEM_ERR_WRONG_BACKING if the memory is
/// private.
kvmem_status kvmem_region_share(const struct kvmem_region *region, uint32_t read_only, int *out_fd);

/// Makes an arena on a whole region. The region stays the caller's and may be destroyed before the
/// arena, which keeps the memory mapped. No byte is touched.
kvmem_status kvmem_bump_arena_create(const struct kvmem_region *region,
                                     struct kvmem_bump_arena **out_arena);

/// Allocates `bytes` bytes at a multiple of `align`, a power of two. Their contents are those of
/// the memory, or those left before a reset. They are valid until the arena is reset or destroyed.
/// A failure with KVMEM_ERR_OUT_OF_SPACE costs some nanoseconds.
kvmem_status kvmem_bump_arena_allocate(const struct kvmem_bump_arena *arena,
                                       uint64_t bytes,
                                       uint64_t align,
                                       void **out_data);

/// Returns whether an address lies in the arena's memory, allocated or not: 1 or 0.
kvmem_status kvmem_bump_arena_owns(const struct kvmem_bump_arena *arena,
                                   const void *address,
                                   uint32_t *out_owns);

/// Reads the statistics.
kvmem_status kvmem_bump_arena_get_stats(const struct kvmem_bump_arena *arena,
                                        struct kvmem_bump_arena_stats *out_stats);

/// Frees all allocations at once. No other thread may use the arena meanwhile, and the program must
/// not use the allocated bytes any more.
kvmem_status kvmem_bump_arena_reset(struct kvmem_bump_arena *arena);

/// Destroys an arena and all its allocations.
kvmem_status kvmem_bump_arena_destroy(struct kvmem_bump_arena *arena);

/// Opens registrars by name, separated by commas: "io_uring", "io_uring:N" (rings), "mlock",
/// "verbs", "verbs:NIC", "cuda", "cuda:N". KVMEM_ERR_NOT_AVAILABLE: the text says what the first
/// unavailable one requires.
kvmem_status kvmem_registrars_open(const char *devices, struct kvmem_registrars **out_registrars);

/// Returns the number of registrars.
kvmem_status kvmem_registrars_count(const struct kvmem_registrars *registrars, uint64_t *out_count);

/// Returns the name of the registrar at `index`; keys are requested by this name. `buffer` as for
/// kvmem_region_report.
kvmem_status kvmem_registrars_name(const struct kvmem_registrars *registrars,
                                   uint64_t index,
                                   char *buffer,
                                   uint64_t capacity,
                                   uint64_t *out_needed);

/// Returns the limits of the registrar at `index`.
kvmem_status kvmem_registrars_limits(const struct kvmem_registrars *registrars,
                                     uint64_t index,
                                     struct kvmem_limits *out_limits);

/// Destroys the list. Registrars without registrations are closed.
kvmem_status kvmem_registrars_destroy(struct kvmem_registrars *registrars);

/// Reports which registrars this machine has, and what the missing ones require, as text or JSON.
/// `buffer` as for kvmem_region_report.
kvmem_status kvmem_discover_report(uint32_t format,
                                   char *buffer,
                                   uint64_t capacity,
                                   uint64_t *out_needed);

/// Makes a list of one registrar that the program implements. The structure is copied. If the call
/// fails, `release` is not called.
kvmem_status kvmem_registrars_custom(const struct kvmem_registrar_callbacks *callbacks,
                                     struct kvmem_registrars **out_registrars);

/// Makes a lower tier of functions of the program. The structure is copied. If the call fails,
/// `release` is not called.
kvmem_status kvmem_lower_tier_custom(const struct kvmem_tier_callbacks *callbacks,
                                     struct kvmem_lower_tier **out_lower_tier);

/// Returns whether the key of a value has received another value since, or was removed or cleared:
/// 1 or 0. KVMEM_ERR_INVALID_ARGUMENT if the calling thread is not in a call of `store` that got
/// the value.
kvmem_status kvmem_tier_value_is_superseded(const struct kvmem_tier_value *value,
                                            uint32_t *out_superseded);

/// Fills in the defaults. `struct_size` is `sizeof *options`.
kvmem_status kvmem_registration_options_init(struct kvmem_registration_options *options,
                                             uint64_t struct_size);

/// Registers a region: the whole region with all registrars, or nothing. The region stays the
/// caller's and may be destroyed before the registration, which keeps the memory mapped. `options`
/// may be NULL.
kvmem_status kvmem_registration_create(const struct kvmem_region *region,
                                       const struct kvmem_registrars *registrars,
                                       const struct kvmem_registration_options *options,
                                       struct kvmem_registration **out_registration);

/// Returns the key with which `device` can access all of `[offset, offset + bytes)`.
/// KVMEM_ERR_STRADDLES if the range needs several keys; an allocator with the registration's
/// `boundary_bytes` avoids that.
kvmem_status kvmem_registration_key(const struct kvmem_registration *registration,
                                    const char *device,
                                    uint64_t offset,
                                    uint64_t bytes,
                                    struct kvmem_key *out_key);

/// Lists all chunks of a device with their keys, in order; none if the keys were given back. Writes
/// at most `capacity` chunks to `out_chunks` (NULL with `capacity` 0: none). `out_count` receives
/// the full number, also with KVMEM_ERR_BUFFER_TOO_SMALL.
kvmem_status kvmem_registration_chunks(const struct kvmem_registration *registration,
                                       const char *device,
                                       struct kvmem_chunk *out_chunks,
                                       uint64_t capacity,
                                       uint64_t *out_count);

/// Returns the result of registering.
kvmem_status kvmem_registration_get_info(const struct kvmem_registration *registration,
                                         struct kvmem_registration_info *out_info);

/// Reports what registering did, and on which measurements it decided, as text or JSON. `buffer` as
/// for kvmem_region_report.
kvmem_status kvmem_registration_report(const struct kvmem_registration *registration,
                                       uint32_t format,
                                       char *buffer,
                                       uint64_t capacity,
                                       uint64_t *out_needed);

/// Gives all keys back. A second call does nothing. `out_keys` (may be NULL) receives the number of
/// keys that were given back. KVMEM_ERR_DEREGISTER_FAILED: a registrar failed to take some keys
/// back. Those stay valid, their memory stays mapped, and the call can be repeated.
kvmem_status kvmem_registration_deregister(const struct kvmem_registration *registration,
                                           uint64_t *out_keys);

/// Gives the remaining keys back and destroys the registration. If a registrar fails to take a key
/// back, the memory stays mapped for the life of the process.
kvmem_status kvmem_registration_destroy(struct kvmem_registration *registration);

/// Starts a thread that registers a region, chunk by chunk in address order. Arguments as for
/// kvmem_registration_create.
kvmem_status kvmem_background_registration_create(
    const struct kvmem_region *region,
    const struct kvmem_registrars *registrars,
    const struct kvmem_registration_options *options,
    struct kvmem_background_registration **out_background);

/// Waits until the first `bytes` bytes can be used with all registrars, the work ends, or the time
/// is over. `out_ready_bytes` receives how many bytes can be used then. A timeout of 0 only asks.
kvmem_status kvmem_background_registration_wait_ready(
    const struct kvmem_background_registration *background,
    uint64_t bytes,
    uint64_t timeout_ns,
    uint64_t *out_ready_bytes);

/// Returns the progress. `out_finished` (may be NULL) is 1 if the work has ended, otherwise 0.
kvmem_status kvmem_background_registration_progress(
    const struct kvmem_background_registration *background,
    struct kvmem_progress *out_progress,
    uint32_t *out_finished);

/// Returns the key with which `device` can access all of `[offset, offset + bytes)`, if that range
/// is registered already. KVMEM_ERR_STRADDLES if the range needs several keys.
kvmem_status kvmem_background_registration_key(
    const struct kvmem_background_registration *background,
    const char *device,
    uint64_t offset,
    uint64_t bytes,
    struct kvmem_key *out_key);

/// Waits for the end of the work and makes a registration of it. Consumes the background
/// registration, also if the call fails, except with KVMEM_ERR_NULL_ARGUMENT and
/// KVMEM_ERR_BAD_HANDLE. If the work failed, all keys have been given back.
kvmem_status kvmem_background_registration_wait(struct kvmem_background_registration *background,
                                                struct kvmem_registration **out_registration);

/// Ends the work early and gives all keys back. Waits for the thread.
kvmem_status kvmem_background_registration_destroy(
    struct kvmem_background_registration *background);

/// Fills in the defaults. `struct_size` is `sizeof *options`.
kvmem_status kvmem_offset_allocator_options_init(struct kvmem_offset_allocator_options *options,
                                                 uint64_t struct_size);

/// Makes a space of `capacity_bytes` bytes, 1 to 2^63. `options` may be NULL. Takes about 40 KiB of
/// memory for any capacity.
kvmem_status kvmem_offset_allocator_create(uint64_t capacity_bytes,
                                           const struct kvmem_offset_allocator_options *options,
                                           struct kvmem_offset_allocator **out_allocator);

/// Allocates `bytes` bytes. O(1), also on failure. Fails with KVMEM_ERR_OUT_OF_SPACE,
/// KVMEM_ERR_TOO_LARGE, KVMEM_ERR_ZERO_SIZE or KVMEM_ERR_TOO_MANY_RANGES.
kvmem_status kvmem_offset_allocator_allocate(const struct kvmem_offset_allocator *allocator,
                                             uint64_t bytes,
                                             struct kvmem_allocation *out_allocation);

/// Allocates `bytes` bytes at a multiple of `align`, a power of two.
kvmem_status kvmem_offset_allocator_allocate_aligned(const struct kvmem_offset_allocator *allocator,
                                                     uint64_t bytes,
                                                     uint64_t align,
                                                     struct kvmem_allocation *out_allocation);

/// Allocates `count` ranges of `bytes` bytes each, or none. `out_allocations` has room for `count`.
/// O(count).
kvmem_status kvmem_offset_allocator_allocate_batch(const struct kvmem_offset_allocator *allocator,
                                                   uint64_t bytes,
                                                   uint64_t count,
                                                   struct kvmem_allocation *out_allocations);

/// Allocates `total_bytes` bytes in at most `max_ranges` ranges, or nothing. Uses a single range if
/// one is long enough. `out_allocations` has room for `max_ranges`; `out_count` receives the number
/// of ranges.
kvmem_status kvmem_offset_allocator_allocate_scattered(
    const struct kvmem_offset_allocator *allocator,
    uint64_t total_bytes,
    uint64_t max_ranges,
    struct kvmem_allocation *out_allocations,
    uint64_t *out_count);

/// Frees an allocation. O(1). KVMEM_ERR_STALE_ALLOCATION if it was freed before,
/// KVMEM_ERR_FOREIGN_ALLOCATION if it belongs to another allocator. Reads only the first three
/// members of `allocation`, and writes nothing to it.
kvmem_status kvmem_offset_allocator_free(const struct kvmem_offset_allocator *allocator,
                                         const struct kvmem_allocation *allocation);

/// Frees `count` allocations. Skips those that cannot be freed; the status is that of the first of
/// them. `out_freed` (may be NULL) receives how many were freed, in either case.
kvmem_status kvmem_offset_allocator_free_batch(const struct kvmem_offset_allocator *allocator,
                                               const struct kvmem_allocation *allocations,
                                               uint64_t count,
                                               uint64_t *out_freed);

/// Returns the offset and length of an allocation from the metadata, for programs that store only
/// its first three members.
kvmem_status kvmem_offset_allocator_resolve(const struct kvmem_offset_allocator *allocator,
                                            const struct kvmem_allocation *allocation,
                                            uint64_t *out_offset,
                                            uint64_t *out_bytes);

/// Returns the live allocation at a slot of the metadata; `slot` is that member of
/// kvmem_allocation. For programs that store only the slot, or that free what another part of the
/// program has lost. O(1). KVMEM_ERR_NOT_FOUND if the slot has none.
kvmem_status kvmem_offset_allocator_allocation_at(const struct kvmem_offset_allocator *allocator,
                                                  uint32_t slot,
                                                  struct kvmem_allocation *out_allocation);

/// Lists all live allocations in offset order. O(n log n), where n is the largest number that was
/// ever live. Lists are written as by kvmem_registration_chunks. While other threads allocate, the
/// next call may find more.
kvmem_status kvmem_offset_allocator_allocations(const struct kvmem_offset_allocator *allocator,
                                                struct kvmem_allocation *out_allocations,
                                                uint64_t capacity,
                                                uint64_t *out_count);

/// Frees the tail of an allocation, which then has `new_bytes` bytes at the same offset. Writes the
/// new length to `allocation`. O(1).
kvmem_status kvmem_offset_allocator_shrink(const struct kvmem_offset_allocator *allocator,
                                           struct kvmem_allocation *allocation,
                                           uint64_t new_bytes);

/// Extends an allocation in place with the free bytes behind it. It then has `new_bytes` bytes at
/// the same offset. Writes the new length to `allocation`. O(1). KVMEM_ERR_CANNOT_EXTEND if those
/// bytes are not free.
kvmem_status kvmem_offset_allocator_extend(const struct kvmem_offset_allocator *allocator,
                                           struct kvmem_allocation *allocation,
                                           uint64_t new_bytes);

/// Raises the capacity of the space to `capacity_bytes`. O(1).
kvmem_status kvmem_offset_allocator_grow_to(const struct kvmem_offset_allocator *allocator,
                                            uint64_t capacity_bytes);

/// Lowers the capacity of the space to `capacity_bytes`. KVMEM_ERR_IN_USE if an allocation lies
/// behind the new end.
kvmem_status kvmem_offset_allocator_shrink_to(const struct kvmem_offset_allocator *allocator,
                                              uint64_t capacity_bytes);

/// Reads the metrics. O(1); with magazines O(threads).
kvmem_status kvmem_offset_allocator_get_metrics(const struct kvmem_offset_allocator *allocator,
                                                struct kvmem_metrics *out_metrics);

/// Returns an upper bound of the longest range that can be allocated now. Takes no lock.
kvmem_status kvmem_offset_allocator_largest_free_hint(
    const struct kvmem_offset_allocator *allocator,
    uint64_t *out_bytes);

/// Returns the addresses of two numbers that tell without a call that a request must fail: if the
/// first is less than the requested bytes, and the second has the same even value before and after.
/// The first is an upper bound of the longest free range, and the second is even while no magazine
/// keeps a range; load with acquire. The addresses are valid as long as the allocator; other
/// threads write the numbers.
kvmem_status kvmem_offset_allocator_largest_free_address(
    const struct kvmem_offset_allocator *allocator,
    const uint64_t **out_largest_free,
    const uint32_t **out_epoch);

/// Returns the numbers of a space.
kvmem_status kvmem_offset_allocator_space(const struct kvmem_offset_allocator *allocator,
                                          struct kvmem_space *out_space);

/// Allocates `bytes` bytes as kvmem_offset_allocator_allocate does, if fewer than `max_live`
/// allocations are live; otherwise fails with KVMEM_ERR_TOO_MANY_RANGES. All calls for a space with
/// magazines pass the same limit, and it is not destroyed during the call.
/// KVMEM_ERR_FOREIGN_ALLOCATION if the allocator was destroyed.
struct kvmem_space_range kvmem_space_allocate(struct kvmem_space space,
                                              uint64_t bytes,
                                              uint64_t max_live);

/// Frees an allocation of a space by its handle, as kvmem_offset_allocator_free does.
/// KVMEM_ERR_FOREIGN_ALLOCATION if the allocator was destroyed.
kvmem_status kvmem_space_free(struct kvmem_space space, uint64_t handle);

/// Returns KVMEM_OK if the allocator of a space exists, and KVMEM_ERR_NOT_FOUND if it was
/// destroyed.
kvmem_status kvmem_space_exists(struct kvmem_space space);

/// Lists the free ranges by size, ascending: all bins that are not empty. Lists are written as by
/// kvmem_registration_chunks; there are fewer than about 2000 bins.
kvmem_status kvmem_offset_allocator_bins(const struct kvmem_offset_allocator *allocator,
                                         struct kvmem_bin *out_bins,
                                         uint64_t capacity,
                                         uint64_t *out_count);

/// Lists the whole space in offset order: every allocation, and every free range that the metrics
/// and the bins count. O(ranges). Lists are written as by kvmem_registration_chunks. While other
/// threads allocate, the next call may find more.
kvmem_status kvmem_offset_allocator_map(const struct kvmem_offset_allocator *allocator,
                                        struct kvmem_map_range *out_ranges,
                                        uint64_t capacity,
                                        uint64_t *out_count);

/// Returns all ranges in magazines to the space, where they coalesce. Does nothing without
/// magazines.
kvmem_status kvmem_offset_allocator_trim(const struct kvmem_offset_allocator *allocator);

/// Checks the numbered invariants of the metadata. O(ranges). KVMEM_ERR_CHECK_FAILED is a defect of
/// this library.
kvmem_status kvmem_offset_allocator_check(const struct kvmem_offset_allocator *allocator);

/// Writes the metrics as text, for logs. `buffer` as for kvmem_region_report.
kvmem_status kvmem_offset_allocator_report(const struct kvmem_offset_allocator *allocator,
                                           char *buffer,
                                           uint64_t capacity,
                                           uint64_t *out_needed);

/// Destroys an allocator. Its allocations need not be freed first. Freeing one later returns
/// KVMEM_ERR_BAD_HANDLE and is harmless.
kvmem_status kvmem_offset_allocator_destroy(struct kvmem_offset_allocator *allocator);

/// Fills in the defaults. `struct_size` is `sizeof *options`.
kvmem_status kvmem_slab_allocator_options_init(struct kvmem_slab_allocator_options *options,
                                               uint64_t struct_size);

/// Makes an allocator. No page is mapped before the first block. `options` may be NULL.
kvmem_status kvmem_slab_allocator_create(const struct kvmem_slab_allocator_options *options,
                                         struct kvmem_slab_allocator **out_allocator);

/// Allocates a block of `bytes` bytes, not initialized. O(1), except for new pages. Valid until it
/// is freed or the allocator is destroyed.
kvmem_status kvmem_slab_allocator_allocate(const struct kvmem_slab_allocator *allocator,
                                           uint64_t bytes,
                                           void **out_block);

/// Allocates a block of `bytes` bytes, all zero.
kvmem_status kvmem_slab_allocator_allocate_zeroed(const struct kvmem_slab_allocator *allocator,
                                                  uint64_t bytes,
                                                  void **out_block);

/// Allocates a block with a copy of the `bytes` bytes at `data`.
kvmem_status kvmem_slab_allocator_copy(const struct kvmem_slab_allocator *allocator,
                                       const void *data,
                                       uint64_t bytes,
                                       void **out_block);

/// Frees a block; NULL does nothing. `bytes` is the size of its allocation. The block must be a
/// live block of this allocator that the program does not use any more. Violations are detected
/// only with KVMEM_SLAB_DEBUG_BLOCKS; otherwise they are undefined behaviour, as with free(3).
/// O(1).
kvmem_status kvmem_slab_allocator_free(const struct kvmem_slab_allocator *allocator,
                                       void *block,
                                       uint64_t bytes);

/// Frees a chain of blocks of one size, under the conditions of kvmem_slab_allocator_free. Each
/// block stores the address of the next one at `next_offset`, the last one NULL. `first` may be
/// NULL. O(blocks).
kvmem_status kvmem_slab_allocator_free_chain(const struct kvmem_slab_allocator *allocator,
                                             void *first,
                                             uint64_t bytes,
                                             uint64_t next_offset);

/// Allocates up to `count` blocks of one size. Writes them to `out_blocks`, and their number to
/// `out_count`. Allocates fewer only if no memory is left, and fails if there is none for the first
/// block.
kvmem_status kvmem_slab_allocator_allocate_batch(const struct kvmem_slab_allocator *allocator,
                                                 uint64_t bytes,
                                                 uint64_t count,
                                                 void **out_blocks,
                                                 uint64_t *out_count);

/// Frees `count` blocks of one size, under the conditions of kvmem_slab_allocator_free, in less
/// time than one by one. If one of them is NULL, none is freed.
kvmem_status kvmem_slab_allocator_free_batch(const struct kvmem_slab_allocator *allocator,
                                             void *const *blocks,
                                             uint64_t count,
                                             uint64_t bytes);

/// Returns the number of bytes that a request for `bytes` bytes really takes.
kvmem_status kvmem_slab_allocator_usable(const struct kvmem_slab_allocator *allocator,
                                         uint64_t bytes,
                                         uint64_t *out_usable_bytes);

/// Returns all cached memory: magazines of all threads to the slabs, empty slabs to the page
/// allocator, pages to the kernel.
kvmem_status kvmem_slab_allocator_trim(const struct kvmem_slab_allocator *allocator);

/// Returns memory that was not used within the working set's time. For programs that allocate
/// nothing for a while.
kvmem_status kvmem_slab_allocator_tick(const struct kvmem_slab_allocator *allocator);

/// Reads the statistics. O(classes).
kvmem_status kvmem_slab_allocator_get_stats(const struct kvmem_slab_allocator *allocator,
                                            struct kvmem_slab_allocator_stats *out_stats);

/// With debugging enabled, passes every block in use to `on_fault`. `out_leaks` receives their
/// number; 0 without debugging.
kvmem_status kvmem_slab_allocator_report_leaks(const struct kvmem_slab_allocator *allocator,
                                               uint64_t *out_leaks);

/// Destroys an allocator. Its slabs are unmapped, with all blocks in them. Blocks from the system's
/// malloc (above the limit) must be freed first.
kvmem_status kvmem_slab_allocator_destroy(struct kvmem_slab_allocator *allocator);

/// Allocates a block of the process's allocator, not initialized and aligned to 16 bytes; NULL for
/// 0 bytes. Aborts the process if there is no memory. Any thread.
void *kvmem_gslice_alloc(uint64_t bytes);

/// Allocates a block of the process's allocator, all zero; NULL for 0 bytes. Aborts the process if
/// there is no memory. Any thread.
void *kvmem_gslice_alloc0(uint64_t bytes);

/// Allocates a block of the process's allocator with a copy of the bytes at `data`; NULL for 0
/// bytes. Aborts the process if there is no memory. Any thread.
void *kvmem_gslice_copy(uint64_t bytes, const void *data);

/// Frees a block of the process's allocator, under the conditions of kvmem_slab_allocator_free;
/// NULL does nothing. 0 bytes count as 1: g_slice_new of GLib 2.88 and later allocates 1 byte for a
/// type without members, and g_slice_free frees it with 0. Any thread.
void kvmem_gslice_free1(uint64_t bytes, void *block);

/// Frees a chain of blocks of the process's allocator; see kvmem_slab_allocator_free_chain. Aborts
/// the process if the link lies outside of the block.
void kvmem_gslice_free_chain_with_offset(uint64_t bytes, void *first, uint64_t next_offset);

/// Fills in the defaults. `struct_size` is `sizeof *options`.
kvmem_status kvmem_pool_options_init(struct kvmem_pool_options *options, uint64_t struct_size);

/// Parses a size such as "64GiB" or "512M" (powers of 1024), "64GB" (a power of 1000) or "4096".
/// Fails with KVMEM_ERR_INVALID_ARGUMENT if the text is not a size from 1 byte to INT64_MAX; the
/// error text says what is wrong.
kvmem_status kvmem_parse_size(const char *text, uint64_t *out_bytes);

/// Builds a pool of at least `bytes` bytes: maps it, populates it, and registers the beginning
/// while the rest is populated. `options` may be NULL. Takes as long as the kernel needs to clear
/// and pin that much memory. If the call fails, nothing is left behind.
kvmem_status kvmem_pool_create(uint64_t bytes,
                               const struct kvmem_pool_options *options,
                               struct kvmem_pool **out_pool);

/// Allocates a block of `bytes` bytes. O(1), some nanoseconds for a hot size. Fails with
/// KVMEM_ERR_OUT_OF_SPACE, KVMEM_ERR_TOO_LARGE, KVMEM_ERR_NOT_READY and so on.
///
/// A block may start at any address, since sizes are not rounded: see kvmem_pool_allocate_aligned.
/// A new block contains the bytes of an earlier block, or zeros: see `init_on` of the options.
kvmem_status kvmem_pool_allocate(struct kvmem_pool *pool,
                                 uint64_t bytes,
                                 struct kvmem_block *out_block);

/// Allocates a block of `bytes` bytes whose first address is a multiple of `align`, a power of two.
/// O(1).
kvmem_status kvmem_pool_allocate_aligned(struct kvmem_pool *pool,
                                         uint64_t bytes,
                                         uint64_t align,
                                         struct kvmem_block *out_block);

/// Allocates `count` blocks of `bytes` bytes each, or none. `out_blocks` has room for `count`.
/// O(count).
kvmem_status kvmem_pool_allocate_batch(struct kvmem_pool *pool,
                                       uint64_t bytes,
                                       uint64_t count,
                                       struct kvmem_block *out_blocks);

/// Allocates `total_bytes` bytes in at most `max_blocks` blocks, as few and as long as possible.
/// `out_blocks` has room for `max_blocks`; `out_count` receives the number of blocks.
kvmem_status kvmem_pool_allocate_scattered(struct kvmem_pool *pool,
                                           uint64_t total_bytes,
                                           uint64_t max_blocks,
                                           struct kvmem_block *out_blocks,
                                           uint64_t *out_count);

/// Returns the current properties of a pool.
kvmem_status kvmem_pool_get_info(const struct kvmem_pool *pool, struct kvmem_pool_info *out_info);

/// Reports the pages, timings and decisions of a pool as text or JSON. `buffer` as for
/// kvmem_region_report.
kvmem_status kvmem_pool_report(const struct kvmem_pool *pool,
                               uint32_t format,
                               char *buffer,
                               uint64_t capacity,
                               uint64_t *out_needed);

/// Reads the metrics of the ready part. Ranges in magazines count as free.
kvmem_status kvmem_pool_get_metrics(const struct kvmem_pool *pool,
                                    struct kvmem_metrics *out_metrics);

/// Lists the free ranges by size; see kvmem_offset_allocator_bins.
kvmem_status kvmem_pool_bins(const struct kvmem_pool *pool,
                             struct kvmem_bin *out_bins,
                             uint64_t capacity,
                             uint64_t *out_count);

/// Lists the whole pool in address order; see kvmem_offset_allocator_map. Parts that are not ready
/// or are quarantined appear as used.
kvmem_status kvmem_pool_map(const struct kvmem_pool *pool,
                            struct kvmem_map_range *out_ranges,
                            uint64_t capacity,
                            uint64_t *out_count);

/// Waits until `bytes` bytes are ready, no more will become ready, or the time is over.
/// `out_ready_bytes` receives how many bytes are ready then. A timeout of 0 only asks.
kvmem_status kvmem_pool_wait_ready(const struct kvmem_pool *pool,
                                   uint64_t bytes,
                                   uint64_t timeout_ns,
                                   uint64_t *out_ready_bytes);

/// Grows the pool to at least `bytes` bytes, in whole parts, up to `max_bytes` of its options.
/// Threads can allocate and free blocks meanwhile.
kvmem_status kvmem_pool_grow_to(const struct kvmem_pool *pool, uint64_t bytes);

/// Shrinks the pool to the fewest whole parts with at least `bytes` bytes. The parts behind the new
/// end are deregistered and their pages given back. KVMEM_ERR_IN_USE if a block lies there.
/// `out_capacity_bytes` (may be NULL) receives the new length.
kvmem_status kvmem_pool_shrink_to(const struct kvmem_pool *pool,
                                  uint64_t bytes,
                                  uint64_t *out_capacity_bytes);

/// Returns all ranges in magazines to the pool, where they coalesce.
kvmem_status kvmem_pool_trim(const struct kvmem_pool *pool);

/// Checks the numbered invariants of the metadata. KVMEM_ERR_CHECK_FAILED is a defect of this
/// library.
kvmem_status kvmem_pool_check(const struct kvmem_pool *pool);

/// Returns a descriptor of the pool's memory. Another process attaches the pool with it. Owned by
/// the caller: close(2). With `read_only` 1, the memory can be mapped for reading only; but a
/// process of the same user, or of root, can still reopen the descriptor for writing through /proc,
/// unless the pool was made with `readers_only`. With `read_only` 0, the other process must write
/// only to blocks that it was lent. KVMEM_ERR_WRONG_BACKING if the memory is private.
kvmem_status kvmem_pool_share(const struct kvmem_pool *pool, uint32_t read_only, int *out_fd);

/// Makes the pages of a shared pool resident in its aliases: all other shared, writable mappings of
/// the same memory file in this process, for example those of an engine that received the
/// descriptor. Otherwise the first touch of each page there is a page fault. `how` is
/// KVMEM_POPULATE_AUTO or a number of threads. `out_bytes` (may be NULL) receives the length of
/// those mappings in bytes.
kvmem_status kvmem_pool_populate_aliases(const struct kvmem_pool *pool,
                                         uint32_t how,
                                         uint64_t *out_bytes);

/// Destroys a pool. Blocks in use stay valid, with their memory and keys, and so do the values of
/// caches. The memory is released with the last of them. No other call on the pool or its blocks
/// may run meanwhile.
kvmem_status kvmem_pool_destroy(struct kvmem_pool *pool);

/// Frees a block. O(1), some nanoseconds for a hot size. KVMEM_ERR_STALE_ALLOCATION if it was freed
/// before. Reads only the first four members of `block`, and writes nothing to it. Any thread.
kvmem_status kvmem_block_free(const struct kvmem_block *block);

/// Frees `count` blocks of one or several pools. Skips those that cannot be freed; the status is
/// that of the first of them. `out_freed` (may be NULL) receives how many were freed, in either
/// case.
kvmem_status kvmem_block_free_batch(const struct kvmem_block *blocks,
                                    uint64_t count,
                                    uint64_t *out_freed);

/// Frees the tail of a block, which then has `new_bytes` bytes at the same address. Writes the new
/// length to `block`. O(1).
kvmem_status kvmem_block_shrink(struct kvmem_block *block, uint64_t new_bytes);

/// Extends a block in place with the free bytes behind it. It then has `new_bytes` bytes at the
/// same address. Writes the new length to `block`. O(1). KVMEM_ERR_CANNOT_EXTEND if those bytes are
/// not free.
kvmem_status kvmem_block_extend(struct kvmem_block *block, uint64_t new_bytes);

/// Returns the key with which `device` can access the whole block. Valid as long as the block.
kvmem_status kvmem_block_key(const struct kvmem_block *block,
                             const char *device,
                             struct kvmem_key *out_key);

/// Returns a reference to a block: three numbers for another process that has attached the pool. A
/// reference says where the bytes are, and does not keep them. KVMEM_ERR_WRONG_BACKING if the
/// pool's memory is private.
kvmem_status kvmem_block_reference(const struct kvmem_block *block,
                                   struct kvmem_block_ref *out_reference);

/// Quarantines a block whose memory has proved faulty: its bytes are not used again as long as the
/// pool exists. Consumes the block. `why` appears in the pool's report.
kvmem_status kvmem_block_quarantine(const struct kvmem_block *block, const char *why);

/// Maps the memory of another process's pool. `fd` comes from that process's kvmem_pool_share. The
/// descriptor stays the caller's; the object keeps a duplicate. With `writable` 1 the memory can be
/// written.
kvmem_status kvmem_attached_pool_attach(int fd,
                                        uint32_t writable,
                                        struct kvmem_attached_pool **out_pool);

/// Returns the address of a block in this process. With `writable` 1 it can be written, if the pool
/// was attached so; otherwise KVMEM_ERR_READ_ONLY. Only the process of the pool knows whether the
/// block is still allocated, so the two processes must agree on that. The address is valid as long
/// as the attached pool.
kvmem_status kvmem_attached_pool_data(const struct kvmem_attached_pool *pool,
                                      const struct kvmem_block_ref *reference,
                                      uint32_t writable,
                                      void **out_data);

/// Returns the properties of an attached pool.
kvmem_status kvmem_attached_pool_get_info(const struct kvmem_attached_pool *pool,
                                          struct kvmem_attached_pool_info *out_info);

/// Unmaps the memory. The program must not use its bytes any more.
kvmem_status kvmem_attached_pool_destroy(struct kvmem_attached_pool *pool);

/// Fills in the defaults. `struct_size` is `sizeof *options`.
kvmem_status kvmem_disk_tier_options_init(struct kvmem_disk_tier_options *options,
                                          uint64_t struct_size);

/// Opens the tier in the file or block device at `path`, and makes it if the file is new. `options`
/// may be NULL. `out_report` (may be NULL) receives what was found.
///
/// Fails with KVMEM_ERR_BAD_TIER if the file cannot be used as a tier, KVMEM_ERR_IN_USE if another
/// process has it open as one for three seconds or a process of another host may have,
/// KVMEM_ERR_INVALID_ARGUMENT if it is too short or the key file has another form, KVMEM_ERR_LIMIT
/// if memory for keys cannot be locked, and KVMEM_ERR_SYSTEM.
kvmem_status kvmem_disk_tier_open(const char *path,
                                  const struct kvmem_disk_tier_options *options,
                                  struct kvmem_disk_tier **out_tier,
                                  struct kvmem_disk_tier_report *out_report);

/// Opens the tiers in `count` files or block devices, side by side, and makes those that are new.
/// `options` (may be NULL) hold for each of them. `out_reports` (may be NULL) receives what was
/// found in each, in the order of `paths`.
///
/// Fails as kvmem_disk_tier_open, and names the file. KVMEM_ERR_INVALID_ARGUMENT if there is no
/// file, or if one is a copy of another.
kvmem_status kvmem_disk_tier_open_set(const char *const *paths,
                                      uint64_t count,
                                      const struct kvmem_disk_tier_options *options,
                                      struct kvmem_disk_tier **out_tier,
                                      struct kvmem_disk_tier_report *out_reports);

/// Opens those of the tiers that can be opened, as kvmem_disk_tier_open_set. The keys of the others
/// belong to the rest meanwhile. `out_results` (may be NULL) receives the status of each file, and
/// `out_reports` (may be NULL) the report of each file that was opened; other elements keep their
/// bytes.
///
/// A device that comes back has the values of the time before: a value that was replaced meanwhile
/// is found in its older form. Keys that are hashes of their values do not have that problem; with
/// others, open such a device with `format`, or call kvmem_disk_tier_clear.
///
/// Fails if none can be opened: KVMEM_ERR_INVALID_ARGUMENT.
kvmem_status kvmem_disk_tier_open_available(const char *const *paths,
                                            uint64_t count,
                                            const struct kvmem_disk_tier_options *options,
                                            struct kvmem_disk_tier **out_tier,
                                            struct kvmem_disk_tier_report *out_reports,
                                            kvmem_status *out_results);

/// Stores `count` values under their keys, all of them together, and replaces the values that the
/// keys had. Of two values under one key the later one counts. `out_results` (may be NULL) receives
/// the status of each value.
///
/// A stored value is found again after the process was killed, and after a power cut once
/// kvmem_disk_tier_sync has returned. Values that begin at a multiple of 4096 bytes are written
/// from where they are; others are copied.
///
/// Returns the first failure: KVMEM_ERR_TOO_LARGE, KVMEM_ERR_NOTHING_TO_EVICT, KVMEM_ERR_SYSTEM or
/// KVMEM_ERR_READ_ONLY. The other values are stored nevertheless. A key whose value was not stored
/// has none.
kvmem_status kvmem_disk_tier_store(const struct kvmem_disk_tier *tier,
                                   const struct kvmem_disk_tier_value *values,
                                   uint64_t count,
                                   kvmem_status *out_results);

/// Fetches `count` values, all at once. Each element of `requests` names a key and memory, and
/// receives the result. The bytes of the memory mean something only after KVMEM_FETCHED_HIT. Two
/// elements must not share memory.
kvmem_status kvmem_disk_tier_fetch(const struct kvmem_disk_tier *tier,
                                   struct kvmem_disk_tier_request *requests,
                                   uint64_t count);

/// Returns the length of a value in bytes. This does not count as a use. KVMEM_ERR_NOT_FOUND if the
/// key has no value.
kvmem_status kvmem_disk_tier_len_of(const struct kvmem_disk_tier *tier,
                                    const void *key,
                                    uint64_t key_bytes,
                                    uint64_t *out_bytes);

/// Removes the values of `count` keys. `out_removed` (may be NULL) receives how many there were.
/// The values do not come back after the process was killed; after a power cut they do unless
/// kvmem_disk_tier_sync has returned since.
///
/// KVMEM_ERR_SYSTEM or KVMEM_ERR_READ_ONLY: the values are not found in this process, but may be
/// after a restart.
kvmem_status kvmem_disk_tier_remove(const struct kvmem_disk_tier *tier,
                                    const struct kvmem_kv_cache_key *keys,
                                    uint64_t count,
                                    uint64_t *out_removed);

/// Removes all values, durably. Fails as kvmem_disk_tier_remove.
kvmem_status kvmem_disk_tier_clear(const struct kvmem_disk_tier *tier);

/// Forgets the keys of a namespace, durably, and removes its values: no copy of their bytes can be
/// decrypted any more, except with an older copy of the first two blocks of the file. Values that
/// are stored in it later have new keys. `out_removed` (may be NULL) receives how many values there
/// were; without a `key_file`, none. Fails as kvmem_disk_tier_remove: the keys may still be there.
kvmem_status kvmem_disk_tier_forget_namespace(const struct kvmem_disk_tier *tier,
                                              const void *namespace_name,
                                              uint64_t namespace_bytes,
                                              uint64_t *out_removed);

/// Makes all that was stored and removed before durable: a power cut does not undo it. After
/// KVMEM_ERR_SYSTEM the tier stores nothing until it can begin its journal anew.
kvmem_status kvmem_disk_tier_sync(const struct kvmem_disk_tier *tier);

/// Writes the index, so that opening the file is fast, and syncs. A tier does so by itself when its
/// journal is full. Fails as kvmem_disk_tier_sync.
kvmem_status kvmem_disk_tier_checkpoint(const struct kvmem_disk_tier *tier);

/// Reads the statistics.
kvmem_status kvmem_disk_tier_get_stats(const struct kvmem_disk_tier *tier,
                                       struct kvmem_disk_tier_stats *out_stats);

/// Registers the memory of a pool with the rings of the tier's file: the kernel looks its pages up
/// and pins them once, and not for each transfer. Values of the pool are transferred as before, and
/// faster. The memory stays pinned until the tier is gone or kvmem_disk_tier_deregister_memory is
/// called; the pool gives no pages back to the kernel meanwhile.
///
/// If this fails, transfers work as before. KVMEM_ERR_NOT_AVAILABLE: the tier does not use
/// io_uring, or the kernel is older than Linux 6.12. KVMEM_ERR_LIMIT, for example by
/// RLIMIT_MEMLOCK, and KVMEM_ERR_IN_USE if the pool is still being prepared.
kvmem_status kvmem_disk_tier_register_memory(const struct kvmem_disk_tier *tier,
                                             const struct kvmem_pool *pool);

/// Deregisters the memory of a pool. Does nothing if it is not registered.
kvmem_status kvmem_disk_tier_deregister_memory(const struct kvmem_disk_tier *tier,
                                               const struct kvmem_pool *pool);

/// Closes a tier. Its file stays open and locked until the caches above it are destroyed, too. The
/// end writes a checkpoint if anything has changed, for at most ten seconds.
kvmem_status kvmem_disk_tier_destroy(struct kvmem_disk_tier *tier);

/// Reads what the file or block device at `path` holds, and writes nothing. A program that has it
/// open as a tier must close it first; meanwhile no program can open it as one.
///
/// Fails with KVMEM_ERR_BAD_TIER if the file is no tier or its index is damaged, KVMEM_ERR_IN_USE
/// if it is open as a tier for three seconds, KVMEM_ERR_INVALID_ARGUMENT if it is neither a file
/// nor a block device, and KVMEM_ERR_SYSTEM.
kvmem_status kvmem_disk_tier_inspect(const char *path,
                                     struct kvmem_disk_tier_inspection *out_inspection);

/// Reads every value in the file or block device at `path`, compares it with its checksum, and
/// writes nothing. With `key_file` (may be NULL), the `key_file` of a tier, each value is decrypted
/// and decompressed, too. `progress` (may be NULL) is called with `user` and KVMEM_PHASE_VERIFY at
/// the begin, each time that 128 MiB have been read, and at the end, by the calling thread.
///
/// `out_verification` receives the counts. Damaged values are no failure: `damaged` (may be NULL)
/// receives the first `capacity` of them, in the order of the file.
///
/// Fails as kvmem_disk_tier_inspect, with KVMEM_ERR_INVALID_ARGUMENT for a key file of another
/// form, and with KVMEM_ERR_CANCELLED.
kvmem_status kvmem_disk_tier_verify(const char *path,
                                    const char *key_file,
                                    kvmem_progress_fn progress,
                                    void *user,
                                    const struct kvmem_cancel *cancel,
                                    struct kvmem_disk_tier_verification *out_verification,
                                    struct kvmem_disk_tier_damaged_value *damaged,
                                    uint64_t capacity);

/// Makes a lower tier of a disk tier.
kvmem_status kvmem_disk_tier_as_lower_tier(const struct kvmem_disk_tier *tier,
                                           struct kvmem_lower_tier **out_lower_tier);

/// Makes a chain: `upper` above `lower`. Both get each value that a cache above evicts, and both
/// are told of removals. A fetch asks `upper`, and `lower` for the rest.
kvmem_status kvmem_lower_tier_chain(const struct kvmem_lower_tier *upper,
                                    const struct kvmem_lower_tier *lower,
                                    struct kvmem_lower_tier **out_chain);

/// Destroys a lower tier. What it was made of stays open until the caches and chains above it are
/// destroyed, too.
kvmem_status kvmem_lower_tier_destroy(struct kvmem_lower_tier *lower_tier);

/// Fills in the defaults. `struct_size` is `sizeof *options`.
kvmem_status kvmem_kv_cache_options_init(struct kvmem_kv_cache_options *options,
                                         uint64_t struct_size);

/// Makes an empty cache on a pool. The pool may have other users. `options` may be NULL.
kvmem_status kvmem_kv_cache_create(const struct kvmem_pool *pool,
                                   const struct kvmem_kv_cache_options *options,
                                   struct kvmem_kv_cache **out_cache);

/// Starts to fetch into the processor's caches what kvmem_kv_cache_get and kvmem_kv_cache_reserve
/// of `count` keys read first. The cache misses of calls that follow for these keys then overlap. A
/// hint: changes nothing, and does not count as a use. O(count).
kvmem_status kvmem_kv_cache_prefetch(const struct kvmem_kv_cache *cache,
                                     const struct kvmem_kv_cache_key *keys,
                                     uint64_t count);

/// Copies `bytes` bytes at `data` into a block and puts it under a key, replacing the key's value.
/// Evicts values until the new one fits. `hints` may be NULL; the lower tier gets them with the
/// value. Fails with KVMEM_ERR_NOTHING_TO_EVICT, KVMEM_ERR_TOO_LARGE or KVMEM_ERR_ZERO_SIZE.
kvmem_status kvmem_kv_cache_insert(const struct kvmem_kv_cache *cache,
                                   const void *key,
                                   uint64_t key_bytes,
                                   const void *data,
                                   uint64_t bytes,
                                   const struct kvmem_value_hints *hints);

/// Inserts `count` values as kvmem_kv_cache_insert does, all of them or none. Blocks for all of
/// them are reserved before the first value is put under its key. If the call fails, other values
/// may have been evicted.
kvmem_status kvmem_kv_cache_insert_batch(const struct kvmem_kv_cache *cache,
                                         const struct kvmem_kv_cache_new_value *values,
                                         uint64_t count);

/// Reserves a block of `bytes` bytes for a value under a key. The processor or a device writes the
/// value in place; kvmem_kv_cache_reservation_commit puts it under the key. Evicts values until the
/// block fits. Fails with KVMEM_ERR_NOTHING_TO_EVICT, KVMEM_ERR_TOO_LARGE or KVMEM_ERR_ZERO_SIZE.
kvmem_status kvmem_kv_cache_reserve(const struct kvmem_kv_cache *cache,
                                    const void *key,
                                    uint64_t key_bytes,
                                    uint64_t bytes,
                                    struct kvmem_kv_cache_reserved *out_reserved);

/// Puts the reserved value under its key and consumes the reservation. `out_value` (may be NULL)
/// receives the value, pinned. Returns KVMEM_ERR_FORKED in a forked child.
kvmem_status kvmem_kv_cache_reservation_commit(struct kvmem_kv_cache_reservation *reservation,
                                               struct kvmem_kv_cache_value *out_value);

/// Sets the hints of the value; the default is none. Its time to live begins now.
kvmem_status kvmem_kv_cache_reservation_set_hints(struct kvmem_kv_cache_reservation *reservation,
                                                  const struct kvmem_value_hints *hints);

/// Frees the block. The reservation is invalid afterwards.
kvmem_status kvmem_kv_cache_reservation_release(struct kvmem_kv_cache_reservation *reservation);

/// Returns the key that the value will be put under: `out_key_bytes` bytes at `out_key`, valid as
/// long as the reservation.
kvmem_status kvmem_kv_cache_reservation_cache_key(
    const struct kvmem_kv_cache_reservation *reservation,
    const void **out_key,
    uint64_t *out_key_bytes);

/// Returns the registration key with which `device` can write the reserved value. Valid as long as
/// the value.
kvmem_status kvmem_kv_cache_reservation_key(const struct kvmem_kv_cache_reservation *reservation,
                                            const char *device,
                                            struct kvmem_key *out_key);

/// Adds another pin on the same value. Each pin is released separately.
kvmem_status kvmem_kv_cache_pin_clone(const struct kvmem_kv_cache_pin *pin,
                                      struct kvmem_kv_cache_value *out_value);

/// Returns the key under which the pinned value was put: `out_key_bytes` bytes at `out_key`, valid
/// until the pin is released.
kvmem_status kvmem_kv_cache_pin_cache_key(const struct kvmem_kv_cache_pin *pin,
                                          const void **out_key,
                                          uint64_t *out_key_bytes);

/// Returns whether the key of a pinned value has been given another value since, or was removed or
/// cleared: 1 or 0. Eviction does not count: an evicted value was the key's latest. An evicted
/// value does not learn of later changes.
kvmem_status kvmem_kv_cache_pin_is_superseded(const struct kvmem_kv_cache_pin *pin,
                                              uint32_t *out_superseded);

/// Returns the registration key with which `device` can access the pinned value. Valid as long as
/// the value.
kvmem_status kvmem_kv_cache_pin_key(const struct kvmem_kv_cache_pin *pin,
                                    const char *device,
                                    struct kvmem_key *out_key);

/// Releases a pin.
kvmem_status kvmem_kv_cache_pin_release(struct kvmem_kv_cache_pin *pin);

/// Evicts values until the cache holds at most `bytes` bytes, or no value can be evicted.
/// `out_held_bytes` (may be NULL) receives the number of bytes that remain.
kvmem_status kvmem_kv_cache_evict_to(const struct kvmem_kv_cache *cache,
                                     uint64_t bytes,
                                     uint64_t *out_held_bytes);

/// Reads the statistics. Takes no lock.
kvmem_status kvmem_kv_cache_get_stats(const struct kvmem_kv_cache *cache,
                                      struct kvmem_kv_cache_stats *out_stats);

/// Checks the invariants. No other thread may be in a call on the cache. O(values).
/// KVMEM_ERR_CHECK_FAILED is a defect of this library.
kvmem_status kvmem_kv_cache_check(const struct kvmem_kv_cache *cache);

/// Destroys a cache. Pinned values stay until their pins are released. The other values are
/// dropped, not evicted: `on_evict` does not receive them.
kvmem_status kvmem_kv_cache_destroy(struct kvmem_kv_cache *cache);

/// Waits until every value that the cache evicted before has been given to the lower tier, for
/// `timeout_ns` nanoseconds at most; UINT64_MAX waits without a limit. Values that are evicted
/// meanwhile do not prolong it. `out_flushed` (may be NULL) receives whether all were given: 1 or
/// 0. Without a queue there is nothing to wait for.
kvmem_status kvmem_kv_cache_flush(const struct kvmem_kv_cache *cache,
                                  uint64_t timeout_ns,
                                  uint32_t *out_flushed);

/// Reads the statistics of the queue of evicted values; zeros without a queue.
kvmem_status kvmem_kv_cache_get_write_behind_stats(const struct kvmem_kv_cache *cache,
                                                   struct kvmem_write_behind_stats *out_stats);

/// Writes the message of the latest failure of the lower tier in a writer of the queue, and its
/// NUL. An empty text: there was none. `out_needed` (may be NULL) receives the number of bytes with
/// the NUL. KVMEM_ERR_BUFFER_TOO_SMALL: the text was truncated.
kvmem_status kvmem_kv_cache_write_behind_error(const struct kvmem_kv_cache *cache,
                                               char *buffer,
                                               uint64_t capacity,
                                               uint64_t *out_needed);

/// Returns the value under a key, pinned: from memory, or else from the lower tier, which is
/// fetched and put into the cache. This counts as a use. KVMEM_ERR_NOT_FOUND if neither has a
/// value, if the tier's is damaged, or if no block could be reserved for it. Blocks while the tier
/// reads.
kvmem_status kvmem_kv_cache_get(const struct kvmem_kv_cache *cache,
                                const void *key,
                                uint64_t key_bytes,
                                struct kvmem_kv_cache_value *out_value);

/// Returns the value that memory has under a key, pinned. This counts as a use, and calls no lower
/// tier. KVMEM_ERR_NOT_FOUND if memory has none.
kvmem_status kvmem_kv_cache_get_in_memory(const struct kvmem_kv_cache *cache,
                                          const void *key,
                                          uint64_t key_bytes,
                                          struct kvmem_kv_cache_value *out_value);

/// Returns the values of `count` keys, pinned, in the same order. Values that the cache does not
/// have are fetched from its lower tier, all at once, and put into the cache. Each element of
/// `out_values` receives a value; its pin is NULL if neither has one, if the tier's is damaged, or
/// if no block could be reserved for it. Blocks until the drive is done.
///
/// A value that was put or removed meanwhile is never replaced by an older one of the tier. Without
/// a lower tier, these are the values in the cache.
kvmem_status kvmem_kv_cache_get_batch(const struct kvmem_kv_cache *cache,
                                      const struct kvmem_kv_cache_key *keys,
                                      uint64_t count,
                                      struct kvmem_kv_cache_value *out_values);

/// Returns whether a key has a value, in memory or in the lower tier: 1 or 0. This does not count
/// as a use. The tier is asked if memory has none, and may wait for a network.
kvmem_status kvmem_kv_cache_contains(const struct kvmem_kv_cache *cache,
                                     const void *key,
                                     uint64_t key_bytes,
                                     uint32_t *out_contains);

/// Returns whether memory has a value under a key: 1 or 0. This does not count as a use, and calls
/// no lower tier.
kvmem_status kvmem_kv_cache_contains_in_memory(const struct kvmem_kv_cache *cache,
                                               const void *key,
                                               uint64_t key_bytes,
                                               uint32_t *out_contains);

/// Returns the number of values in memory, those that are being written included, and in the lower
/// tier, each value once. Exact while no other thread changes the cache or the tier; values of a
/// tier that does not know how many it has, such as a cluster, are not counted. With a tier
/// O(values in memory).
kvmem_status kvmem_kv_cache_len(const struct kvmem_kv_cache *cache, uint64_t *out_values);

/// Returns the number of values in memory, those that are being written included. O(1).
kvmem_status kvmem_kv_cache_len_in_memory(const struct kvmem_kv_cache *cache, uint64_t *out_values);

/// Removes the value under a key from memory and from the lower tier. `out_removed` (may be NULL)
/// receives whether memory had a value: 1 or 0. Its bytes are freed when its last pin is released.
///
/// KVMEM_ERR_INVALIDATE_FAILED: the tier failed. The value is removed from memory nevertheless, and
/// the key is not fetched until kvmem_kv_cache_clear succeeds.
kvmem_status kvmem_kv_cache_remove(const struct kvmem_kv_cache *cache,
                                   const void *key,
                                   uint64_t key_bytes,
                                   uint32_t *out_removed);

/// Removes the value under a key from memory alone. `out_removed` (may be NULL) receives whether
/// memory had a value: 1 or 0. A value that the lower tier has under the key stays there.
kvmem_status kvmem_kv_cache_remove_in_memory(const struct kvmem_kv_cache *cache,
                                             const void *key,
                                             uint64_t key_bytes,
                                             uint32_t *out_removed);

/// Removes all values from memory and from the lower tier. Pins stay valid. On success, keys that
/// were not fetched because of an earlier failure are fetched again.
///
/// KVMEM_ERR_INVALIDATE_FAILED: the tier failed. The values are removed from memory nevertheless,
/// and no key is fetched until this call succeeds.
kvmem_status kvmem_kv_cache_clear(const struct kvmem_kv_cache *cache);

/// Removes all values from memory alone. Pins and the values of the lower tier stay.
kvmem_status kvmem_kv_cache_clear_in_memory(const struct kvmem_kv_cache *cache);

/// Begins to fetch from the lower tier what the cache lacks of `count` keys, and returns at once. A
/// thread of the cache reads; the first such call starts it, and the end of the cache ends it.
/// Other calls for the same keys share the reads. Without a lower tier there is nothing to wait
/// for.
kvmem_status kvmem_kv_cache_start_fetch(const struct kvmem_kv_cache *cache,
                                        const struct kvmem_kv_cache_key *keys,
                                        uint64_t count,
                                        struct kvmem_kv_cache_fetching **out_fetching);

/// Returns whether all fetches are done: 1 or 0.
kvmem_status kvmem_kv_cache_fetching_is_done(const struct kvmem_kv_cache_fetching *fetching,
                                             uint32_t *out_done);

/// Waits until all fetches are done, for `timeout_ns` nanoseconds at most; UINT64_MAX waits without
/// a limit. `out_done` (may be NULL) receives whether they are: 1 or 0.
kvmem_status kvmem_kv_cache_fetching_wait(const struct kvmem_kv_cache_fetching *fetching,
                                          uint64_t timeout_ns,
                                          uint32_t *out_done);

/// Takes the values that are there, without waiting, and destroys the handle. `count` is the number
/// of keys that were fetched; each element of `out_values` receives the value of a key, pinned, or
/// a NULL pin. Fetches that are not done are cancelled or end in the background, as by
/// kvmem_kv_cache_fetching_cancel. If the call fails, the handle stays, except for want of handles.
kvmem_status kvmem_kv_cache_fetching_take(struct kvmem_kv_cache_fetching *fetching,
                                          struct kvmem_kv_cache_value *out_values,
                                          uint64_t count);

/// Lets all fetches go on without the handle, and destroys it. Their values are in the cache when
/// they end, and are not pinned.
kvmem_status kvmem_kv_cache_fetching_detach(struct kvmem_kv_cache_fetching *fetching);

/// Cancels the fetches that no thread has begun, unless other calls want the same values, and
/// destroys the handle. A fetch that has begun ends in the background, and its value is in the
/// cache then.
kvmem_status kvmem_kv_cache_fetching_cancel(struct kvmem_kv_cache_fetching *fetching);

/// Returns what kvmem_kv_cache_get_batch returns, as far as it is there after `timeout_ns`
/// nanoseconds. Fetches that have begun by then end in the background, and their values are in the
/// cache afterwards. The others are cancelled.
kvmem_status kvmem_kv_cache_get_batch_until(const struct kvmem_kv_cache *cache,
                                            const struct kvmem_kv_cache_key *keys,
                                            uint64_t count,
                                            uint64_t timeout_ns,
                                            struct kvmem_kv_cache_value *out_values);

/// Lists at most `capacity` values from entry `from` on, in `out_values`, for operators.
/// `out_count` receives how many there are, and `out_next` the entry to go on with; UINT64_MAX:
/// there are no more. The first call begins with entry 0. A call returns at most 512.
///
/// Fails with KVMEM_ERR_UNSUPPORTED unless the process is of the server's user or of root. So do
/// the other calls of operators.
kvmem_status kvmem_node_operator_list(const struct kvmem_node_client *client,
                                      uint64_t from,
                                      struct kvmem_node_listed *out_values,
                                      uint64_t capacity,
                                      uint64_t *out_count,
                                      uint64_t *out_next);

/// Lists at most `capacity` values of the client's own namespace, from entry `from` on, in
/// `out_values`: those in memory, and those in the tier that the server has stored there or
/// fetched, which have no pins, priority and time of use. `out_count` receives how many there are,
/// which may be 0 before the end, and `out_next` the entry to go on with; UINT64_MAX: there are no
/// more. The first call begins with entry 0. A call returns at most 512. Any client may call it.
kvmem_status kvmem_node_client_list_namespace(const struct kvmem_node_client *client,
                                              uint64_t from,
                                              struct kvmem_node_listed *out_values,
                                              uint64_t capacity,
                                              uint64_t *out_count,
                                              uint64_t *out_next);

/// Lists the clients of the server, at most `capacity`, in `out_sessions`, for operators.
/// `out_count` receives how many were written. A server has at most 256.
kvmem_status kvmem_node_operator_sessions(const struct kvmem_node_client *client,
                                          struct kvmem_node_session *out_sessions,
                                          uint64_t capacity,
                                          uint64_t *out_count);

/// Lists the last misses of the client's own namespace, at most `capacity`, in `out_misses`, the
/// last one first. `out_count` receives how many were written. Of each call the server remembers
/// the first key without a value, and of all calls the last 256. Any client may call it.
kvmem_status kvmem_node_client_misses(const struct kvmem_node_client *client,
                                      struct kvmem_node_miss *out_misses,
                                      uint64_t capacity,
                                      uint64_t *out_count);

/// Lists the last misses of all namespaces, as kvmem_node_client_misses those of one, for
/// operators.
kvmem_status kvmem_node_operator_misses(const struct kvmem_node_client *client,
                                        struct kvmem_node_miss *out_misses,
                                        uint64_t capacity,
                                        uint64_t *out_count);

/// Evicts values of at least `bytes`, in the usual order, for operators: those of the namespace
/// `namespace_name` (may be NULL: of all). `out_evicted` (may be NULL) receives the bytes of the
/// values that were evicted.
kvmem_status kvmem_node_operator_evict(const struct kvmem_node_client *client,
                                       const char *namespace_name,
                                       uint64_t bytes,
                                       uint64_t *out_evicted);

/// Removes all values of the namespace `namespace_name` (may be NULL: of all), for operators.
/// Pinned ones keep their bytes until the last pin is released. `out_removed` (may be NULL)
/// receives how many there were. Fails with KVMEM_ERR_UNSUPPORTED for one namespace of a server
/// with a tier, which cannot tell its values from others.
kvmem_status kvmem_node_operator_clear(const struct kvmem_node_client *client,
                                       const char *namespace_name,
                                       uint64_t *out_removed);

/// Changes the bytes of the memory that are used, for operators: up to the length of its file,
/// which the server's option --max sets. A smaller memory evicts values in the usual order, moves
/// others to its front, and gives its pages back to the kernel. `out_resized` receives how far the
/// server came: blocks that are pinned or reserved stay, and it goes on when they are free.
///
/// Fails with KVMEM_ERR_INVALID_ARGUMENT for a size that the memory cannot have.
kvmem_status kvmem_node_operator_resize(const struct kvmem_node_client *client,
                                        uint64_t bytes,
                                        struct kvmem_node_resized *out_resized);

/// Evicts values of at least `bytes` from the client's own namespace, in the usual order.
/// `out_evicted` (may be NULL) receives the bytes of the values that were evicted.
kvmem_status kvmem_node_client_evict(const struct kvmem_node_client *client,
                                     uint64_t bytes,
                                     uint64_t *out_evicted);

/// Removes all values of the client's own namespace. Pinned ones keep their bytes until the last
/// pin is released. `out_removed` (may be NULL) receives how many there were. Fails with
/// KVMEM_ERR_UNSUPPORTED if the server has a tier, which cannot tell the values of a namespace from
/// others: kvmem_node_operator_clear removes all.
kvmem_status kvmem_node_client_clear(const struct kvmem_node_client *client, uint64_t *out_removed);

/// Ends the pins of a process that is connected, for operators who know that it no longer reads:
/// kvmem_node_pins_is_valid tells it at once. `out_reclaimed` (may be NULL) receives how many
/// values it had pinned.
kvmem_status kvmem_node_operator_reclaim_pins(const struct kvmem_node_client *client,
                                              uint32_t pid,
                                              uint64_t *out_reclaimed);

/// Fills in the defaults. `struct_size` is `sizeof *options`.
kvmem_status kvmem_node_client_options_init(struct kvmem_node_client_options *options,
                                            uint64_t struct_size);

/// Connects to the server at the socket `path`, and maps its memory. `options` may be NULL.
///
/// Fails with KVMEM_ERR_DISCONNECTED if no server answers for `retry_ms` milliseconds;
/// KVMEM_ERR_PERMISSION if it does not serve this user in this namespace, or does not let it write,
/// or is the server of a user that is not in `server_users`; KVMEM_ERR_LIMIT if it has as many
/// clients or namespaces as it can have; KVMEM_ERR_PROTOCOL if it is of another release; and the
/// errors of mapping memory.
///
/// ```c
/// kvmem_node_client *client;
/// kvmem_node_client_connect("/run/kvmem.sock", NULL, &client);
/// kvmem_kv_cache_key keys[] = {{"prefix 1", 8}, {"prefix 2", 8}};
/// kvmem_node_value values[2];
/// kvmem_node_pins *pins;
/// kvmem_node_client_acquire(client, keys, 2, values, &pins);
/// if (values[0].is_present)
///     read(values[0].data, values[0].bytes);
/// kvmem_node_pins_release(pins);
/// ```
kvmem_status kvmem_node_client_connect(const char *path,
                                       const struct kvmem_node_client_options *options,
                                       struct kvmem_node_client **out_client);

/// Returns the memory: `out_bytes` bytes at `out_data`, to register it with a GPU or a NIC. The
/// offsets of values and reservations count from its first byte. It stays mapped, and at the same
/// address, until the client and its pins and reservations are gone. Of a client that is
/// `read_only`, it must not be written to.
kvmem_status kvmem_node_client_memory(const struct kvmem_node_client *client,
                                      void **out_data,
                                      uint64_t *out_bytes);

/// Returns the number of bytes of which no value crosses a multiple, or is longer. 0: a value may
/// be as long as the memory. A program that registers the memory by itself, in pieces, ends them at
/// multiples: a GPU cannot copy a value that lies in two pieces.
kvmem_status kvmem_node_client_boundary(const struct kvmem_node_client *client,
                                        uint64_t *out_bytes);

/// Returns the key with which `device` can access all of `[offset, offset + bytes)` of the memory,
/// such as a value that is pinned or reserved. See the option `registrars`.
/// KVMEM_ERR_NO_SUCH_DEVICE if the client has no such registrar; KVMEM_ERR_STRADDLES if the range
/// needs several keys, as one that crosses a multiple of kvmem_node_client_boundary may.
kvmem_status kvmem_node_client_key(const struct kvmem_node_client *client,
                                   const char *device,
                                   uint64_t offset,
                                   uint64_t bytes,
                                   struct kvmem_key *out_key);

/// Returns whether the calls go through rings now: 1 or 0. See the option `rings`.
kvmem_status kvmem_node_client_has_rings(const struct kvmem_node_client *client,
                                         uint32_t *out_has_rings);

/// Returns how many values were misses because the client verifies values and these have no
/// checksum: their writers have connected without the option `checksums`. See the option `verify`.
/// O(1).
kvmem_status kvmem_node_client_unverified(const struct kvmem_node_client *client,
                                          uint64_t *out_unverified);

/// Tells where the values of `count` keys are. Each element of `out_places`, an array of `count`
/// elements, receives KVMEM_NODE_IN_MEMORY, KVMEM_NODE_IN_TIER, both or 0. Nothing is pinned or
/// fetched, so the values may go at once. This does not count as a use.
kvmem_status kvmem_node_client_locate(const struct kvmem_node_client *client,
                                      const struct kvmem_kv_cache_key *keys,
                                      uint64_t count,
                                      uint32_t *out_places);

/// Returns how many of `count` keys, from the first one on, have values without a gap. Nothing is
/// pinned: the values may be evicted at once. This does not count as a use.
kvmem_status kvmem_node_client_lookup(const struct kvmem_node_client *client,
                                      const struct kvmem_kv_cache_key *keys,
                                      uint64_t count,
                                      uint64_t *out_found);

/// Reserves a block, copies `bytes` bytes at `data` into it, and commits it under a key. `hints`
/// may be NULL. Fails as kvmem_node_client_reserve and kvmem_node_client_commit do; nothing stays
/// reserved then.
kvmem_status kvmem_node_client_insert(const struct kvmem_node_client *client,
                                      const void *key,
                                      uint64_t key_bytes,
                                      const void *data,
                                      uint64_t bytes,
                                      const struct kvmem_node_hints *hints);

/// Inserts `count` values as kvmem_node_client_insert does, all of them or none.
kvmem_status kvmem_node_client_insert_batch(const struct kvmem_node_client *client,
                                            const struct kvmem_node_new_value *values,
                                            uint64_t count);

/// Removes the values of `count` keys. Pinned ones keep their bytes until the last pin is released.
/// `out_removed` (may be NULL) receives how many there were.
kvmem_status kvmem_node_client_remove(const struct kvmem_node_client *client,
                                      const struct kvmem_kv_cache_key *keys,
                                      uint64_t count,
                                      uint64_t *out_removed);

/// Marks the values of `count` keys as used now. `out_touched` (may be NULL) receives how many
/// there are.
kvmem_status kvmem_node_client_touch(const struct kvmem_node_client *client,
                                     const struct kvmem_kv_cache_key *keys,
                                     uint64_t count,
                                     uint64_t *out_touched);

/// Says that this client lives. A client that has reservations makes this call, or another one,
/// more often than the server's lease; otherwise its reservations are fenced.
kvmem_status kvmem_node_client_keep_alive(const struct kvmem_node_client *client);

/// Destroys a client. Its pins and reservations stay valid: the memory stays mapped, and the
/// connection open, until they are released, too.
kvmem_status kvmem_node_client_destroy(struct kvmem_node_client *client);

/// Pins the values of `count` keys, in one call. `out_values` receives a value for each key, in
/// their order; `is_present` is 0 where a key has none. `out_pins` receives the pins of all of
/// them, also if there are none. This counts as a use.
///
/// KVMEM_ERR_LIMIT: the client or its namespace would have more pins than it may have.
kvmem_status kvmem_node_client_acquire(const struct kvmem_node_client *client,
                                       const struct kvmem_kv_cache_key *keys,
                                       uint64_t count,
                                       struct kvmem_node_value *out_values,
                                       struct kvmem_node_pins **out_pins);

/// Pins the values of the keys before the first one that has none: what is left of a prefix. All
/// keys from that one on have `is_present` 0. Otherwise the call is kvmem_node_client_acquire.
kvmem_status kvmem_node_client_acquire_prefix(const struct kvmem_node_client *client,
                                              const struct kvmem_kv_cache_key *keys,
                                              uint64_t count,
                                              struct kvmem_node_value *out_values,
                                              struct kvmem_node_pins **out_pins);

/// Pins the values that memory has, without waiting for the tier below the node. `is_pending` says
/// which of the other keys the tier reads meanwhile: a later call finds them. The server bounds
/// what it reads for such calls. Otherwise the call is kvmem_node_client_acquire.
kvmem_status kvmem_node_client_try_acquire(const struct kvmem_node_client *client,
                                           const struct kvmem_kv_cache_key *keys,
                                           uint64_t count,
                                           struct kvmem_node_value *out_values,
                                           struct kvmem_node_pins **out_pins);

/// Pins the values of the keys before the first one that memory does not have, without waiting for
/// the tier below the node. Otherwise the call is kvmem_node_client_try_acquire.
kvmem_status kvmem_node_client_try_acquire_prefix(const struct kvmem_node_client *client,
                                                  const struct kvmem_kv_cache_key *keys,
                                                  uint64_t count,
                                                  struct kvmem_node_value *out_values,
                                                  struct kvmem_node_pins **out_pins);

/// Releases earlier pins and acquires those of `count` keys, in one message to the server. Consumes
/// `pins`, also if the server or the connection fails; a call with a wrong argument changes
/// nothing. Otherwise the call is kvmem_node_client_acquire.
kvmem_status kvmem_node_client_exchange(const struct kvmem_node_client *client,
                                        struct kvmem_node_pins *pins,
                                        const struct kvmem_kv_cache_key *keys,
                                        uint64_t count,
                                        struct kvmem_node_value *out_values,
                                        struct kvmem_node_pins **out_pins);

/// Returns whether the values are still pinned: 1 or 0. If they are, the bytes that this thread has
/// read before are those of the values: check after reading, where a server may reclaim pins. Makes
/// no call.
kvmem_status kvmem_node_pins_is_valid(const struct kvmem_node_pins *pins, uint32_t *out_valid);

/// Returns the address of the first byte of the value at `index`, for reading, valid until the pins
/// are released: the `data` of its kvmem_node_value. KVMEM_ERR_STALE_ALLOCATION: the values are no
/// longer pinned. KVMEM_ERR_NOT_FOUND: the key at `index` has no value. Makes no call.
kvmem_status kvmem_node_pins_address(const struct kvmem_node_pins *pins,
                                     uint64_t index,
                                     const void **out_address);

/// Compares the bytes of the value at `index` with the checksum that its writer has calculated.
/// KVMEM_ERR_DAMAGED: they differ. KVMEM_ERR_UNSUPPORTED: the writer has calculated none, because
/// it has connected without the option `checksums`. KVMEM_ERR_NOT_FOUND: the key at `index` has no
/// value. O(bytes).
kvmem_status kvmem_node_pins_verify(const struct kvmem_node_pins *pins, uint64_t index);

/// Releases all pins of a call. The bytes of the values are not valid any more.
kvmem_status kvmem_node_pins_release(struct kvmem_node_pins *pins);

/// Reserves a block for each of `count` sizes, all or none, and writes to `out_reserved` where they
/// are. Values are evicted for them. The processor or a device writes the values in place;
/// kvmem_node_client_commit makes them visible. A client that ends in any way frees its blocks.
///
/// Fails with KVMEM_ERR_OUT_OF_SPACE if nothing more can be evicted, KVMEM_ERR_ZERO_SIZE,
/// KVMEM_ERR_TOO_LARGE, KVMEM_ERR_READ_ONLY, or KVMEM_ERR_LIMIT if the client or its namespace
/// would have more than it may have.
kvmem_status kvmem_node_client_reserve(const struct kvmem_node_client *client,
                                       const uint64_t *sizes,
                                       uint64_t count,
                                       struct kvmem_node_reserved *out_reserved);

/// Reserves blocks without waiting for the tier below the node: while the tier is about to free
/// space, the call fails with KVMEM_ERR_OUT_OF_SPACE, and a later one may succeed. Otherwise the
/// call is kvmem_node_client_reserve.
kvmem_status kvmem_node_client_try_reserve(const struct kvmem_node_client *client,
                                           const uint64_t *sizes,
                                           uint64_t count,
                                           struct kvmem_node_reserved *out_reserved);

/// Makes `count` reservations values under keys, all of them or none, whatever ends meanwhile. The
/// values that the keys had are replaced. Consumes the reservations.
///
/// If the call fails, the reservations stay as they were, and the call may be repeated: with
/// KVMEM_ERR_DISCONNECTED the server may have committed all of them before it ended, and a
/// repetition then succeeds. KVMEM_ERR_FENCED: the client was silent for longer than the server's
/// lease, and the reservations can only be released. KVMEM_ERR_INVALID_ARGUMENT: a key or a
/// reservation comes twice. KVMEM_ERR_FOREIGN_ALLOCATION: a reservation is of another client.
kvmem_status kvmem_node_client_commit(const struct kvmem_node_client *client,
                                      const struct kvmem_node_commit *values,
                                      uint64_t count);

/// Returns whether the server still has the reservation: 1 or 0. It gives the block to no other
/// client before this process has unmapped the memory, or has ended, so the answer is 0 only after
/// an operator or a fault has ended the client's session; write no more then. Makes no call.
/// KVMEM_ERR_POISONED: a commit that had the reservation has failed in an unexpected way.
kvmem_status kvmem_node_reservation_is_valid(const struct kvmem_node_reservation *reservation,
                                             uint32_t *out_valid);

/// Returns the address of the first byte of the block, for writing, valid until the reservation is
/// committed or released: the `data` of its kvmem_node_reserved. KVMEM_ERR_STALE_ALLOCATION: the
/// server has ended the session of the reservation. Makes no call.
kvmem_status kvmem_node_reservation_address(const struct kvmem_node_reservation *reservation,
                                            void **out_address);

/// Frees the block. Transfers of devices into it have ended by then. The reservation is invalid
/// afterwards.
kvmem_status kvmem_node_reservation_release(struct kvmem_node_reservation *reservation);

/// Reads the statistics from the server.
kvmem_status kvmem_node_client_get_stats(const struct kvmem_node_client *client,
                                         struct kvmem_node_stats *out_stats);

/// Reads the statistics of all namespaces, at most `capacity`, into `out_namespaces`. The position
/// of each is its number, and those that the client may not use have no figures. `out_count`
/// receives how many were written. A server has at most 256. `max_bytes` is UINT64_MAX if a
/// namespace has no limit.
kvmem_status kvmem_node_client_namespaces(const struct kvmem_node_client *client,
                                          struct kvmem_node_namespace_stats *out_namespaces,
                                          uint64_t capacity,
                                          uint64_t *out_count);

/// Returns at most `capacity` events from number `from` on, in `out_events`: for routers that send
/// a request where its prefix is. Waits for the first one for at most `wait_ms` milliseconds.
/// `out_count` receives how many there are, and `out_next` the number to go on with. 0 is the
/// number of the oldest event that the server has, and 2^63 and above are that of the next one. For
/// any other `from`, events were lost if `out_next` is not `from + out_count`: the server keeps the
/// latest ones, and a server that has restarted has none of those before and other numbers. The
/// call returns at once then. A call returns at most 512.
kvmem_status kvmem_node_client_events(const struct kvmem_node_client *client,
                                      uint64_t from,
                                      uint64_t wait_ms,
                                      struct kvmem_node_event *out_events,
                                      uint64_t capacity,
                                      uint64_t *out_count,
                                      uint64_t *out_next);

/// Calculates the keys of the complete blocks of a prompt: `count / block` of them, the first one
/// first. The key of a block is a hash of the key before it and of the block's tokens, so two
/// prompts share a key only if they have the same tokens up to the block's end. The first block
/// stands behind the `salt` (NULL with `salt_bytes` 0: none), which names all else that the values
/// depend on, such as the weights of the model and the type of its KV cache. All languages have the
/// same keys, on all machines.
///
/// Writes at most `capacity` keys to `out_keys` (NULL with `capacity` 0: none). `out_count`
/// receives the full number, also with KVMEM_ERR_BUFFER_TOO_SMALL, which calculates none.
/// KVMEM_ERR_ZERO_SIZE: `block` is 0. O(count).
kvmem_status kvmem_prefix_keys(const int32_t *tokens,
                               uint64_t count,
                               uint64_t block,
                               const void *salt,
                               uint64_t salt_bytes,
                               struct kvmem_prefix_key *out_keys,
                               uint64_t capacity,
                               uint64_t *out_count);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* KVMEM_H */
