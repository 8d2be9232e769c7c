/*
 * kvmem: memory for KV caches. Mapped, registered, and handed out. https://www.apache.org/licenses/LICENSE-2.0
 *
 * This file is made from crates/kvmem-capi/src by its tests; change it there.
 *
 * Layers: kvmem_region_*, kvmem_bump_* (1, bytes); kvmem_register* (2, keys); kvmem_offset_* (3, offsets); kvmem_slice_* (4, objects);
 * kvmem_pool_*, kvmem_block_* (all of them in one); kvmem_kv_* (values under keys, in a pool).
 *
 * What holds everywhere:
 *
 * - Every call says what became of it (kvmem_status), but for a few that cannot fail; kvmem_last_error() is the text of it, with the numbers
 *   and the way out. A call that fails has changed nothing, and has written to no out-parameter, unless its comment says otherwise.
 * - Sizes and offsets are bytes, as uint64_t.
 * - Objects (kvmem_region *, kvmem_pool *, ...) are handles, not addresses. NULL, destroyed ones, those of another kind and any other
 *   bits are found out and reported. The caller owns what a call has made, and destroys it once; in which order is the caller's choice.
 * - Any thread may use any object, several at once, unless a comment says otherwise. An object is not destroyed while another thread is
 *   in a call on it: that is the caller's to see to.
 * - Allocations (kvmem_allocation, kvmem_block) are plain data; those that were freed before are found out and reported.
 * - Options are filled with their _init function and then changed; NULL is all defaults. A program that was built for an older
 *   version goes on working.
 * - Pointers to structures, lists, texts and out-parameters are NULL, or point to what their type says, aligned. NULL is found out where it
 *   must not be. Texts are UTF-8 and end with a NUL.
 * - Functions of the program that are handed over return, and throw nothing.
 */

#ifndef KVMEM_H
#define KVMEM_H

#include <stddef.h>
#include <stdint.h>

#if UINTPTR_MAX != UINT64_MAX
#error "kvmem's C interface is for 64-bit machines"
#endif

/// Version of this header, first number.
#define KVMEM_VERSION_MAJOR 0

/// Version of this header, second number. While the first is 0, a change of it is a change of the interface.
#define KVMEM_VERSION_MINOR 1

/// Version of this header, third number.
#define KVMEM_VERSION_PATCH 0

/// Format of a report: lines for people.
#define KVMEM_TEXT 0

/// Format of a report: one line of JSON.
#define KVMEM_JSON 1

/// Populate: nothing.
#define KVMEM_POPULATE_NONE 0

/// Populate: by as many threads as pay. Any other number is a number of threads.
#define KVMEM_POPULATE_AUTO UINT32_MAX

/// Pages lie wherever the kernel puts them.
#define KVMEM_NUMA_ANY 0

/// Pages lie on the nodes named, and on no other.
#define KVMEM_NUMA_BIND 1

/// Pages lie on the nodes named in turn, on others when those are full.
#define KVMEM_NUMA_INTERLEAVE 2

/// Memory of this process alone.
#define KVMEM_BACKING_PRIVATE 0

/// A sealed memory file that other processes can attach.
#define KVMEM_BACKING_SHARED 1

/// Memory is made resident.
#define KVMEM_PHASE_POPULATE 0

/// Keys are got.
#define KVMEM_PHASE_REGISTER 1

/// Keys are given back.
#define KVMEM_PHASE_DEREGISTER 2

/// Placement: by what holes are worth to the traffic of late, the default.
#define KVMEM_PLACEMENT_RENEWAL 0

/// Placement: the tightest of the first four holes that fit: fewest instructions.
#define KVMEM_PLACEMENT_BEST_FIT 1

/// A free range.
#define KVMEM_RANGE_FREE 0

/// A range in use.
#define KVMEM_RANGE_USED 1

/// A range that magazines keep for the next request of its size.
#define KVMEM_RANGE_CACHED 2

/// Settings: as the variable KVMEM_SLICE of the environment says; the default.
#define KVMEM_SLICE_FROM_ENVIRONMENT 0

/// Settings: no debugging, whatever the environment says.
#define KVMEM_SLICE_PLAIN 1

/// Settings, to be combined: all blocks are the system's.
#define KVMEM_SLICE_ALWAYS_MALLOC 2

/// Settings, to be combined: misuse of blocks is found: double free, wrong size, foreign pointer, write after free, leaks.
#define KVMEM_SLICE_DEBUG_BLOCKS 4

/// A block was freed that is free already.
#define KVMEM_FAULT_DOUBLE_FREE 1

/// A block was freed with another size than it was allocated with.
#define KVMEM_FAULT_WRONG_SIZE 2

/// What was freed is no block of this allocator.
#define KVMEM_FAULT_FOREIGN 3

/// A block was written to after it had been freed.
#define KVMEM_FAULT_WRITE_AFTER_FREE 4

/// The allocator went while a block was in use.
#define KVMEM_FAULT_LEAK 5

/// The most bytes that a key can have: a longer one is KVMEM_INVALID_ARGUMENT. A longer prefix goes
/// by its hash.
#define KVMEM_MAX_KEY_BYTES (1 << 20)

/// Eviction: what was least recently used goes first; the default.
#define KVMEM_EVICT_LRU 0

/// Eviction: blocks must be used again soon after they have come, or they go.
#define KVMEM_EVICT_SCAN_RESISTANT 1

/// There is no value, and what a lower tier has is the latest: fetch it, and commit it under `lease`.
#define KVMEM_LEASED_LEASE 0

/// There is a value: `value`, pinned; it counts as used.
#define KVMEM_LEASED_PRESENT 1

/// There is no value, and what a lower tier has may be old: one is just being handed over to it, or it is being told to forget one, or it failed
/// at that. Take it for a miss.
#define KVMEM_LEASED_BUSY 2

/// What became of a call. 0 is success; the text of the last failure, with its numbers, is `kvmem_last_error()`.
///
/// Unless a function says otherwise, a call that fails has changed nothing, and has written to none of its out-parameters. Numbers
/// do not change from version to version; new ones may come.
enum kvmem_status
#if defined(__cplusplus) || __STDC_VERSION__ >= 202311L
  : int32_t
#endif // defined(__cplusplus) || __STDC_VERSION__ >= 202311L
 {
    /// It went well.
    KVMEM_OK = 0,
    /// A pointer that has to point somewhere is NULL.
    KVMEM_NULL_ARGUMENT = 1,
    /// A handle that names nothing: never made, destroyed before, or of another kind.
    KVMEM_BAD_HANDLE = 2,
    /// An argument or option that makes no sense: a flag, a text, a number out of its range.
    KVMEM_INVALID_ARGUMENT = 3,
    /// A size of 0 where at least 1 byte is needed.
    KVMEM_ZERO_SIZE = 4,
    /// An alignment that is no power of two.
    KVMEM_BAD_ALIGN = 5,
    /// A request that can never be met here, however empty it is.
    KVMEM_TOO_LARGE = 6,
    /// No room now; there may be when something is freed.
    KVMEM_NO_ROOM = 7,
    /// As many ranges as the books may have.
    KVMEM_BOOKS_FULL = 8,
    /// An allocation cannot be extended where it stands.
    KVMEM_BLOCKED = 9,
    /// A range that is not within what it was asked of.
    KVMEM_OUT_OF_BOUNDS = 10,
    /// An allocation that was freed before, or never made.
    KVMEM_STALE_ALLOCATION = 11,
    /// An allocation, or reference, of another allocator or pool.
    KVMEM_FOREIGN_ALLOCATION = 12,
    /// No room in what is ready yet; more is being made ready.
    KVMEM_NOT_READY = 13,
    /// The system has no memory, or no pages of the kind asked for.
    KVMEM_NO_MEMORY = 14,
    /// A system call was refused.
    KVMEM_SYSTEM = 15,
    /// A limit of the machine, the process or a device stands in the way.
    KVMEM_LIMIT = 16,
    /// A backend, device or facility that is not there.
    KVMEM_NOT_AVAILABLE = 17,
    /// It was cancelled.
    KVMEM_CANCELLED = 18,
    /// The time it was given is over.
    KVMEM_TIMED_OUT = 19,
    /// No registrar of this name.
    KVMEM_NO_SUCH_DEVICE = 20,
    /// A range for which there is no single key.
    KVMEM_STRADDLES = 21,
    /// The keys have been given back.
    KVMEM_ENDED = 22,
    /// The memory is this process's alone, or is shared where it must not be.
    KVMEM_WRONG_BACKING = 23,
    /// It was attached to be read.
    KVMEM_READ_ONLY = 24,
    /// Somebody else uses it, so it cannot be changed or taken.
    KVMEM_IN_USE = 25,
    /// What it is asked of cannot do this.
    KVMEM_UNSUPPORTED = 26,
    /// Nothing is held under the key.
    KVMEM_NOT_FOUND = 27,
    /// No room, and nothing that could be evicted.
    KVMEM_NOTHING_TO_EVICT = 28,
    /// A registrar refused.
    KVMEM_REFUSED = 29,
    /// A registrar did not take keys back; their memory stays mapped.
    KVMEM_KEPT = 30,
    /// An invariant does not hold: a defect of this library.
    KVMEM_CHECK_FAILED = 31,
    /// The buffer is too short for the text or list; as much as fits was written.
    KVMEM_BUFFER_TOO_SMALL = 32,
    /// The call met a defect of this library and was ended. What it was about is poisoned.
    KVMEM_PANICKED = 33,
    /// An earlier call on this object ended with KVMEM_PANICKED; it can only be destroyed.
    KVMEM_POISONED = 34,
    /// The lease was broken: something was put, removed or cleared under the key since it was taken.
    KVMEM_SUPERSEDED = 35,
    /// The program's function has not told a lower tier to forget.
    KVMEM_NOT_FORGOTTEN = 36,
    /// The object was made before this process was forked, and is its parent's: destroy the handle,
    /// and make a new one here.
    KVMEM_FORKED = 37,
};
#ifndef __cplusplus
#if __STDC_VERSION__ >= 202311L
typedef enum kvmem_status kvmem_status;
#else
typedef int32_t kvmem_status;
#endif // __STDC_VERSION__ >= 202311L
#endif // __cplusplus

/// The memory of a pool of another process. It stays as long as this, whatever becomes of that process. Owned by the caller:
/// kvmem_attached_destroy. Any thread, several at once.
typedef struct kvmem_attached_pool kvmem_attached_pool;

/// A region that a thread of the library is registering. Owned by the caller: kvmem_background_wait or kvmem_background_destroy. Any thread.
typedef struct kvmem_background kvmem_background;

/// Hands out the bytes of a region one after another (layer 1). Owned by the caller: kvmem_bump_destroy. Any thread, several at once,
/// without a lock.
typedef struct kvmem_bump_arena kvmem_bump_arena;

/// A token that ends populating, registering or building early. Owned by the caller: kvmem_cancel_destroy. What it was given to
/// keeps what it needs of it, so it may be destroyed at any time; then it cannot be used any more. Any thread.
typedef struct kvmem_cancel kvmem_cancel;

/// Values under keys, in blocks of a pool: found by any thread, pinned while they are used, evicted when room is needed. A key is any bytes. Owned by the
/// caller: kvmem_kv_destroy. Pins, reservations and leases outlive it, and it outlives its pool's handle. Any thread, several at once.
///
/// In a forked child every call on a cache, pin, reservation or lease of the parent returns KVMEM_FORKED, except the
/// calls that destroy. No call waits for a lock that a thread of the parent held.
typedef struct kvmem_kv_cache kvmem_kv_cache;

/// The right to put in under a key what is fetched from a lower tier, unless something is put, removed or cleared under it meanwhile: that breaks
/// it. Owned by the caller: kvmem_kv_commit_leased or kvmem_kv_lease_release. It outlives its cache. Any thread.
typedef struct kvmem_kv_lease kvmem_kv_lease;

/// A pin on a value: it is neither evicted nor freed while this exists. Owned by the caller: kvmem_kv_pin_release. Any thread.
typedef struct kvmem_kv_pin kvmem_kv_pin;

/// Room for a value that is being written. Owned by the caller: kvmem_kv_commit, kvmem_kv_commit_leased or kvmem_kv_abandon. Any thread, one at a
/// time.
typedef struct kvmem_kv_reservation kvmem_kv_reservation;

/// Hands out ranges `[offset, offset + bytes)` of a space (layer 3), and never touches bytes: they may be memory, a file, a GPU's. Owned by the
/// caller: kvmem_offset_destroy. Any thread, several at once.
typedef struct kvmem_offset_allocator kvmem_offset_allocator;

/// Memory that is mapped, populated and registered, and handed out in blocks. Owned by the caller: kvmem_pool_destroy. Blocks that are in use then
/// stay good, with their memory and keys, until they are freed. Any thread, several at once.
typedef struct kvmem_pool kvmem_pool;

/// One contiguous range of memory (layer 1). Owned by the caller: kvmem_region_destroy. What was made on it (a bump arena, a registration)
/// keeps the memory as long as it lives. Any thread, several at once.
typedef struct kvmem_region kvmem_region;

/// Some registrars: rings, NICs, GPUs (layer 2). Owned by the caller: kvmem_registrars_destroy. What was registered with them keeps
/// what it needs, so they may be destroyed at any time. Any thread, several at once.
typedef struct kvmem_registrars kvmem_registrars;

/// A region, registered with some registrars: all of it with all of them (layer 2). Owned by the caller: kvmem_registration_destroy, which
/// gives the keys back. It keeps the memory. Any thread, several at once.
typedef struct kvmem_registration kvmem_registration;

/// Allocates blocks of any size, small ones from each thread's own magazines (layer 4). All blocks are at multiples of 16. Owned by the caller:
/// kvmem_slice_destroy. Any thread, several at once; any thread may free what another has allocated.
typedef struct kvmem_slice_allocator kvmem_slice_allocator;

/// How far it has come.
typedef struct kvmem_progress {
    /// KVMEM_PHASE_POPULATE, KVMEM_PHASE_REGISTER or KVMEM_PHASE_DEREGISTER.
    uint32_t phase;
    /// The thread (of populating) or the registrar (of registering) that did the last piece, from 0.
    uint32_t worker;
    /// Bytes done in this phase. From one report to the next it never falls. Registering counts a byte once for each registrar.
    uint64_t done_bytes;
    /// Bytes that are to be done in it.
    uint64_t total_bytes;
    /// Bytes, from the beginning, that can be used with all registrars.
    uint64_t ready_bytes;
    /// Time since the beginning, in nanoseconds.
    uint64_t elapsed_ns;
} kvmem_progress;

/// Is told of progress: after each piece of some ten milliseconds of work, by the threads that work, one call at a time. `progress` is
/// good for the call only. It must return (no longjmp, no C++ exception), and must not destroy what is being worked on.
typedef void (*kvmem_progress_fn)(void *user, const struct kvmem_progress *progress);

/// How a region is to be mapped. Fill it with kvmem_region_options_init first.
typedef struct kvmem_region_options {
    /// Bytes of this structure, as the program knows it.
    uint64_t struct_size;
    /// Kinds of pages to try, first choice first, of "1G", "2M", "thp", "4k" with commas between. NULL: "2M,thp,4k".
    const char *pages;
    /// 1: fail if the first kind cannot take everything. Default 0.
    uint32_t strict;
    /// KVMEM_BACKING_PRIVATE (the default) or KVMEM_BACKING_SHARED.
    uint32_t backing;
    /// KVMEM_NUMA_ANY (the default), KVMEM_NUMA_BIND or KVMEM_NUMA_INTERLEAVE.
    uint32_t numa_policy;
    /// KVMEM_POPULATE_NONE (the default), KVMEM_POPULATE_AUTO, or a number of threads.
    uint32_t populate;
    /// NUMA nodes, `numa_node_count` of them.
    const uint32_t *numa_nodes;
    /// How many nodes are named.
    uint64_t numa_node_count;
    /// 1: a page without access before and behind. Default 0.
    uint32_t guard_pages;
    /// 1 (the default): a forked child has nothing at these addresses.
    uint32_t dont_fork;
    /// 1 (the default): core dumps leave the region out.
    uint32_t dont_dump;
    /// 0: anything else is KVMEM_INVALID_ARGUMENT.
    uint32_t reserved;
    /// Is told how far populating has come. Default NULL.
    kvmem_progress_fn progress;
    /// Given to `progress`.
    void *progress_user;
    /// Ends populating early. Default NULL.
    const struct kvmem_cancel *cancel;
    /// How long populating may take, in nanoseconds; 0 (the default): as long as it takes.
    uint64_t time_budget_ns;
} kvmem_region_options;

/// What a region is made of, as it was found when it was mapped.
typedef struct kvmem_region_info {
    /// The first address.
    void *data;
    /// Bytes that may be used: what was asked for, in whole pages.
    uint64_t bytes;
    /// Bytes that were asked for.
    uint64_t asked_bytes;
    /// Bytes of addresses held, guard pages included.
    uint64_t mapped_bytes;
    /// Bytes that were resident.
    uint64_t resident_bytes;
    /// Bytes in pages of 1 GiB.
    uint64_t bytes_1g;
    /// Bytes in pages of 2 MiB.
    uint64_t bytes_2m;
    /// Bytes in which the kernel uses transparent hugepages where it can.
    uint64_t bytes_thp;
    /// Bytes in base pages.
    uint64_t bytes_base;
    /// Seconds that populating took.
    double populate_seconds;
    /// Threads that populated.
    uint64_t threads;
} kvmem_region_info;

/// What an arena has handed out. `used_bytes + left_bytes == capacity_bytes`.
typedef struct kvmem_bump_stats {
    /// The first address.
    void *data;
    /// Bytes of the memory.
    uint64_t capacity_bytes;
    /// Bytes handed out, with the padding before them.
    uint64_t used_bytes;
    /// Bytes not handed out.
    uint64_t left_bytes;
} kvmem_bump_stats;

/// What a registrar can take.
typedef struct kvmem_limits {
    /// The most bytes that one key can cover.
    uint64_t max_key_bytes;
    /// How many more keys it can give.
    uint64_t max_keys;
    /// Bytes for a key at which registering is quickest; 0: the fewer keys the better.
    uint64_t good_key_bytes;
    /// RLIMIT_MEMLOCK as it holds for it; UINT64_MAX: no limit that is known.
    uint64_t memlock_bytes;
} kvmem_limits;

/// The right of a device to reach a range of bytes (layer 2). The names are those of verbs; other devices have one of them or none.
typedef struct kvmem_key {
    /// By what its registrar knows it: the index of a fixed buffer, a pointer to a memory region, an address.
    uint64_t handle;
    /// What local work requests say: the lkey; the `buf_index` of a ring; the address on a GPU; 0 where nothing is said.
    uint64_t lkey;
    /// What a remote peer says, if `has_rkey` is 1; else 0.
    uint32_t rkey;
    /// Whether there is an rkey: 1 or 0.
    uint32_t has_rkey;
} kvmem_key;

/// A registrar of the program's own: a NIC's protection domain, a transfer engine.
///
/// Calls come from any thread, for one registrar one at a time. They return (no longjmp, no C++ exception). `register_bytes` and `deregister`
/// return 0, or an errno: then nothing is pinned, or the key stands.
typedef struct kvmem_registrar_callbacks {
    /// Bytes of this structure, as the program knows it.
    uint64_t struct_size;
    /// What it is called; no two that register one region are called the same. Copied.
    const char *name;
    /// The most bytes that one key can cover; 0: no limit.
    uint64_t max_key_bytes;
    /// How many keys it can give; 0: no limit.
    uint64_t max_keys;
    /// Given to the functions.
    void *user;
    /// Pins `bytes` bytes at `data` and writes the key to `out_key`.
    int (*register_bytes)(void *user, void *data, uint64_t bytes, struct kvmem_key *out_key);
    /// Takes a key back.
    int (*deregister)(void *user, const struct kvmem_key *key);
    /// Is called once, when nothing is registered with it any more and it is in nobody's use; may be NULL.
    void (*release)(void *user);
} kvmem_registrar_callbacks;

/// How a region is to be registered. Fill it with kvmem_registration_options_init first.
typedef struct kvmem_registration_options {
    /// Bytes of this structure, as the program knows it.
    uint64_t struct_size;
    /// "auto", "sequential", "parallel" or "parallel:N". NULL: "auto".
    const char *policy;
    /// Who makes resident what is not: KVMEM_POPULATE_AUTO (the default), KVMEM_POPULATE_NONE, or a number of threads.
    uint32_t populate;
    /// 1: each chunk is populated and registered before the next is. Default 0.
    uint32_t by_range;
    /// The most bytes that one key is to cover; 0 (the default): as the registrars like it best.
    uint64_t chunk_bytes;
    /// Is told how far it has come, of kvmem_registration_deregister too: as long as the registration lives. Default NULL.
    kvmem_progress_fn progress;
    /// Given to `progress`.
    void *progress_user;
    /// Ends it early: then nothing is registered. Default NULL.
    const struct kvmem_cancel *cancel;
    /// How long it may take, in nanoseconds; 0 (the default): as long as it takes.
    uint64_t time_budget_ns;
} kvmem_registration_options;

/// A chunk of a region with its key.
typedef struct kvmem_chunk {
    /// Where it begins in the region.
    uint64_t offset;
    /// Its length.
    uint64_t bytes;
    /// The key to it.
    struct kvmem_key key;
} kvmem_chunk;

/// What registering did.
typedef struct kvmem_registration_info {
    /// Bytes of the region.
    uint64_t bytes;
    /// Bytes of them that were resident before.
    uint64_t resident_bytes;
    /// Registrars.
    uint64_t devices;
    /// Keys given.
    uint64_t keys;
    /// What an offset allocator may be told as its boundary, so that every allocation has one key; 0: it need not be told any.
    uint64_t boundary_bytes;
    /// How many registrars were called side by side; 1: one call after another.
    uint64_t threads;
    /// Seconds that populating took.
    double populate_seconds;
    /// Seconds that registering took.
    double register_seconds;
} kvmem_registration_info;

/// How a space is to be. Fill it with kvmem_offset_options_init first.
typedef struct kvmem_offset_options {
    /// Bytes of this structure, as the program knows it.
    uint64_t struct_size;
    /// No allocation straddles a multiple of so many bytes, nor is longer; 0 (the default): there is no such boundary.
    uint64_t boundary_bytes;
    /// At most so many ranges, used and free together, are on the books; 0 (the default): about 2^32.
    uint32_t max_ranges;
    /// KVMEM_PLACEMENT_RENEWAL (the default) or KVMEM_PLACEMENT_BEST_FIT.
    uint32_t placement;
    /// 1: hot sizes are served from each thread's own magazines, without a lock (layer 4). Default 0.
    uint32_t magazines;
    /// With magazines, 1 (the default): sizes become hot that are asked for again and again.
    uint32_t learn;
    /// With magazines: sizes in bytes that are hot from the beginning, `hot_size_count` of them, at most 32.
    const uint64_t *hot_sizes;
    /// How many sizes are named.
    uint64_t hot_size_count;
    /// With magazines: they keep at most so many bytes; UINT64_MAX (the default): a 32nd part of the space.
    uint64_t stranded_bytes;
} kvmem_offset_options;

/// An allocation by plain data: it may be copied and kept anywhere. Any bits are safe to hand back: one that was freed before, or is of
/// another allocator, is found out and nothing is touched.
typedef struct kvmem_allocation {
    /// Its allocator, by a number never used again in this process; 0: no allocation.
    uint64_t allocator;
    /// Its place in the allocator's books.
    uint32_t slot;
    /// Which of those that had the place.
    uint32_t generation;
    /// Where it begins.
    uint64_t offset;
    /// Its length, exactly as asked for.
    uint64_t bytes;
} kvmem_allocation;

/// Figures of a space. What magazines keep counts as free.
typedef struct kvmem_metrics {
    /// Length of the space.
    uint64_t capacity_bytes;
    /// Bytes in use; exactly what was asked for.
    uint64_t allocated_bytes;
    /// Bytes not in use.
    uint64_t free_bytes;
    /// The longest range that would be granted now.
    uint64_t largest_free_bytes;
    /// Allocations alive.
    uint64_t live;
    /// Free ranges on the books.
    uint64_t free_ranges;
    /// Heap memory of the books.
    uint64_t metadata_bytes;
    /// What no allocation straddles; 0: there is no boundary.
    uint64_t boundary_bytes;
} kvmem_metrics;

/// The free ranges of sizes that are close together.
typedef struct kvmem_bin {
    /// Least size, in bytes.
    uint64_t min_bytes;
    /// Greatest size, in bytes.
    uint64_t max_bytes;
    /// Free ranges of such sizes.
    uint64_t ranges;
    /// Their sum in bytes.
    uint64_t bytes;
} kvmem_bin;

/// One range of the map.
typedef struct kvmem_map_range {
    /// Where it begins.
    uint64_t offset;
    /// Its length.
    uint64_t bytes;
    /// KVMEM_RANGE_FREE, KVMEM_RANGE_USED or KVMEM_RANGE_CACHED.
    uint32_t state;
    /// 0.
    uint32_t reserved;
} kvmem_map_range;

/// A misuse that was found.
typedef struct kvmem_slice_fault {
    /// KVMEM_FAULT_DOUBLE_FREE and so on; more kinds may come.
    uint32_t kind;
    /// 0.
    uint32_t reserved;
    /// The address that it is about.
    void *block;
    /// The block's size in bytes, as it was allocated; of a foreign pointer, as it was freed.
    uint64_t bytes;
    /// All of it in words, good for the call only.
    const char *text;
} kvmem_slice_fault;

/// Is told of misuse, by the thread that did it. When it returns (no longjmp, no C++ exception), the operation is left out. It must not use
/// the allocator.
typedef void (*kvmem_slice_fault_fn)(void *user, const struct kvmem_slice_fault *fault);

/// How an allocator of blocks is to be. Fill it with kvmem_slice_options_init first.
typedef struct kvmem_slice_options {
    /// Bytes of this structure, as the program knows it.
    uint64_t struct_size;
    /// Pages come from this region and from nowhere else; NULL (the default): from the system. It must be private and in nobody else's use
    /// (KVMEM_IN_USE), and belongs to the allocator afterwards: the handle is good no more. If the call fails it stays the caller's.
    struct kvmem_region *region;
    /// Blocks of more bytes than this are the system's: at most 8192, which UINT64_MAX (the default) stands for.
    uint64_t limit_bytes;
    /// How long full magazines are kept that nobody needs, in nanoseconds; 0 (the default): 15 seconds.
    uint64_t working_set_ns;
    /// The most bytes that all magazines together may keep; UINT64_MAX (the default): no bound.
    uint64_t stranded_bytes;
    /// KVMEM_SLICE_FROM_ENVIRONMENT, KVMEM_SLICE_PLAIN, or the others combined by `|`.
    uint32_t settings;
    /// 0: anything else is KVMEM_INVALID_ARGUMENT.
    uint32_t reserved;
    /// Is told of misuse. NULL (the default): it is written to the standard error stream, and the process is aborted.
    kvmem_slice_fault_fn on_fault;
    /// Given to `on_fault`.
    void *on_fault_user;
} kvmem_slice_options;

/// Figures of an allocator of blocks.
typedef struct kvmem_slice_stats {
    /// Bytes mapped.
    uint64_t mapped_bytes;
    /// Bytes of them in slabs.
    uint64_t slab_bytes;
    /// Bytes of pages that are in no slab.
    uint64_t unused_bytes;
    /// Bytes of blocks that magazines keep.
    uint64_t cached_bytes;
    /// Blocks in use that came from slabs.
    uint64_t in_use;
    /// Blocks in use that are the system's.
    uint64_t system_blocks;
    /// Their bytes.
    uint64_t system_bytes;
} kvmem_slice_stats;

/// How a pool is to be. Fill it with kvmem_pool_options_init first.
typedef struct kvmem_pool_options {
    /// Bytes of this structure, as the program knows it.
    uint64_t struct_size;
    /// The most bytes that the pool can grow to; 0 (the default): its size.
    uint64_t max_bytes;
    /// Kinds of pages to try, first choice first, of "1G", "2M", "thp", "4k" with commas between. NULL: "2M,thp,4k".
    const char *pages;
    /// 1: fail if the first kind cannot take everything. Default 0.
    uint32_t strict;
    /// KVMEM_BACKING_PRIVATE (the default) or KVMEM_BACKING_SHARED, which other processes can attach.
    uint32_t backing;
    /// KVMEM_NUMA_ANY (the default), KVMEM_NUMA_BIND or KVMEM_NUMA_INTERLEAVE.
    uint32_t numa_policy;
    /// KVMEM_POPULATE_AUTO (the default), KVMEM_POPULATE_NONE (a first touch can then end the process), or a number of threads.
    uint32_t populate;
    /// NUMA nodes, `numa_node_count` of them.
    const uint32_t *numa_nodes;
    /// How many nodes are named.
    uint64_t numa_node_count;
    /// 1: a page without access before and behind. Default 0.
    uint32_t guard_pages;
    /// 1: kvmem_pool_create returns when the memory is mapped, and a thread makes it ready part by part. Default 0.
    uint32_t in_background;
    /// 1: parts that cannot be populated or registered are kept from use and reported. Default 0: then there is no pool.
    uint32_t quarantine;
    /// 1 (the default): sizes become hot that are asked for again and again, and are served without a lock.
    uint32_t learn;
    /// With whom all of the pool is registered; NULL (the default): with nobody. The handle stays the caller's.
    const struct kvmem_registrars *registrars;
    /// "auto", "sequential", "parallel" or "parallel:N". NULL: "auto".
    const char *policy;
    /// Parts of at most so many bytes, whose edges no block straddles; 0 (the default): as the registrars take it best.
    uint64_t boundary_bytes;
    /// Sizes in bytes that are hot from the beginning, `hot_size_count` of them, at most 32.
    const uint64_t *hot_sizes;
    /// How many sizes are named.
    uint64_t hot_size_count;
    /// All magazines together keep at most so many bytes; UINT64_MAX (the default): a 32nd part of the pool.
    uint64_t stranded_bytes;
    /// Ends building early. Default NULL.
    const struct kvmem_cancel *cancel;
    /// Is told how far populating and registering have come; with `in_background` as long as the pool is. Default NULL.
    kvmem_progress_fn progress;
    /// Given to `progress`.
    void *progress_user;
} kvmem_pool_options;

/// Bytes of a pool, by plain data: it may be copied and kept anywhere. Any bits are safe to hand back: a block that was freed before is found
/// out and nothing is touched. The bytes are the caller's until kvmem_block_free.
typedef struct kvmem_block {
    /// Its pool; NULL: no block.
    struct kvmem_pool *pool;
    /// The pool's books, by a number never used again in this process.
    uint64_t allocator;
    /// Its place in the books.
    uint32_t slot;
    /// Which of those that had the place.
    uint32_t generation;
    /// The first address.
    void *data;
    /// Where it begins in the pool.
    uint64_t offset;
    /// Its length, exactly as asked for.
    uint64_t bytes;
} kvmem_block;

/// What a pool is, and where.
typedef struct kvmem_pool_info {
    /// The first address, to which blocks' offsets are added.
    void *data;
    /// Bytes that blocks can have, when all of it is ready.
    uint64_t capacity_bytes;
    /// Bytes up to which it can grow.
    uint64_t max_bytes;
    /// Bytes that can be used now: populated, registered, not in quarantine.
    uint64_t ready_bytes;
    /// Bytes in quarantine.
    uint64_t quarantined_bytes;
    /// What no block straddles; 0: there is no such edge.
    uint64_t boundary_bytes;
    /// By what references name it; 0: its memory is private.
    uint64_t number;
    /// Registrars.
    uint64_t devices;
    /// Whether parts are still being made ready: 1 or 0.
    uint32_t under_way;
    /// 0.
    uint32_t reserved;
} kvmem_pool_info;

/// A block by plain data: what another process needs to find it.
typedef struct kvmem_block_ref {
    /// The pool, by the number of its memory file.
    uint64_t pool;
    /// Where the block begins in the pool.
    uint64_t offset;
    /// Its length.
    uint64_t bytes;
} kvmem_block_ref;

/// What an attached pool is.
typedef struct kvmem_attached_info {
    /// Its length in bytes.
    uint64_t bytes;
    /// By what references name it.
    uint64_t number;
    /// Whether it can be written: 1 or 0.
    uint32_t writable;
    /// 0.
    uint32_t reserved;
} kvmem_attached_info;

/// A value, pinned.
typedef struct kvmem_kv_value {
    /// The pin: the bytes are good until it is released.
    struct kvmem_kv_pin *pin;
    /// The bytes, to be read. The first is at any address, aligned to nothing.
    const void *data;
    /// How many.
    uint64_t bytes;
    /// Where they begin in the pool.
    uint64_t offset;
} kvmem_kv_value;

/// Is given each value that is evicted, for room or by the watermarks, to keep it elsewhere, and answers 0 if it has *taken* it. What is removed,
/// replaced or cleared is not given; but where there is no room beside the value that a key has already, that one is evicted first.
///
/// `value`, its pin and `key` are good for the call only; kvmem_kv_pin_clone makes a pin that stays. Until the last pin goes the bytes are in
/// use, though not counted by the cache, which goes on to evict others: whoever keeps pins must bound them to a part of the pool.
///
/// It is called by the thread that inserts, commits, reserves or calls kvmem_kv_evict_to, by several at once, under no lock of the cache's, and
/// may call the cache for what does not evict. It returns (no longjmp, no C++ exception).
///
/// A lower tier must never have an older value under a key than the latest. Until this returns the key is not leased. Of several values of a key that
/// threads hand over at once the latest may come first: ask kvmem_kv_pin_is_superseded under the lock under which values are taken, and do not take
/// what is. What is not taken must leave nothing older behind; then the answer is 0, too. Where that cannot be seen to, answer anything else: from
/// then on the key is not leased, until kvmem_kv_clear_with succeeds.
typedef int (*kvmem_kv_evict_fn)(void *user,
                                 const struct kvmem_kv_value *value,
                                 const void *key,
                                 uint64_t key_bytes);

/// How a cache is to be. Fill it with kvmem_kv_options_init first.
typedef struct kvmem_kv_options {
    /// Bytes of this structure, as the program knows it.
    uint64_t struct_size;
    /// At most so many bytes are held; UINT64_MAX (the default): as many as find room in the pool.
    uint64_t max_bytes;
    /// At most so many values are held; UINT64_MAX (the default): about 2^32.
    uint64_t max_blocks;
    /// An insertion that leaves more bytes than `high_watermark_bytes` evicts down to these. Both UINT64_MAX (the default): no watermarks.
    uint64_t low_watermark_bytes;
    /// See there.
    uint64_t high_watermark_bytes;
    /// KVMEM_EVICT_LRU (the default) or KVMEM_EVICT_SCAN_RESISTANT.
    uint32_t eviction;
    /// Into how many shards keys are divided; 1 makes LRU exact; 0 (the default): some for each processor.
    uint32_t shards;
    /// Is given each value that is evicted, and `on_evict_user`: a lower tier; NULL (the default): nobody is, and its bytes are free at once.
    kvmem_kv_evict_fn on_evict;
    /// Given to it.
    void *on_evict_user;
    /// Is called once with `on_evict_user`, by any thread, when the cache is gone with all its leases and reservations; may be NULL. Not if the cache
    /// could not be made.
    void (*on_evict_release)(void *user);
} kvmem_kv_options;

/// Room for a value, to be written in place.
typedef struct kvmem_kv_room {
    /// The reservation: the bytes are the caller's until it is committed or abandoned.
    struct kvmem_kv_reservation *reservation;
    /// The bytes, to be written.
    void *data;
    /// How many.
    uint64_t bytes;
    /// Where they begin in the pool.
    uint64_t offset;
} kvmem_kv_room;

/// What a cache holds, and what it has done.
typedef struct kvmem_kv_stats {
    /// Values held, those being written included.
    uint64_t blocks;
    /// Bytes of them.
    uint64_t bytes;
    /// Calls of kvmem_kv_get that found their key.
    uint64_t hits;
    /// Calls of kvmem_kv_get that did not.
    uint64_t misses;
    /// Values put in.
    uint64_t insertions;
    /// Of those, values that took the place of another.
    uint64_t replacements;
    /// Values evicted.
    uint64_t evictions;
    /// Values removed by their key.
    uint64_t removals;
    /// Values refused because there was nothing to evict.
    uint64_t refusals;
    /// Evicted values that `on_evict` failed to take.
    uint64_t not_taken;
    /// Values fetched and not put in, because their lease was broken.
    uint64_t superseded;
} kvmem_kv_stats;

/// What kvmem_kv_get_lease found.
typedef struct kvmem_kv_leased {
    /// KVMEM_LEASED_LEASE, KVMEM_LEASED_PRESENT or KVMEM_LEASED_BUSY.
    uint32_t outcome;
    /// The lease, with KVMEM_LEASED_LEASE; else NULL.
    struct kvmem_kv_lease *lease;
    /// The value, with KVMEM_LEASED_PRESENT; else its pin is NULL.
    struct kvmem_kv_value value;
} kvmem_kv_leased;

/// Tells a lower tier to forget, and answers 0; or anything else: it may still have what was to be forgotten. Is called once, before the call
/// that it was given to returns, by the same thread, under no lock of the cache's. It returns (no longjmp, no C++ exception).
typedef int (*kvmem_kv_forget_fn)(void *user);

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

/// The version of the library, such as "0.1.0". Never NULL, valid for ever. Any thread.
const char *kvmem_version(void);

/// The name of a status, such as "KVMEM_NO_ROOM"; "KVMEM_UNKNOWN_STATUS" for a number that is none. Never NULL, valid for ever.
/// Any thread.
const char *kvmem_status_name(int32_t status);

/// The text of the failure that this thread met last, with the numbers in it and the way out; "" if it has met none.
///
/// Never NULL. The text is good until the same thread calls this function again, or ends. A call that succeeds does not change it.
const char *kvmem_last_error(void);

/// Makes a token that has not been used.
kvmem_status kvmem_cancel_create(struct kvmem_cancel **out_cancel);

/// Uses a token: what it was given to ends at its next chunk with KVMEM_CANCELLED. It cannot be taken back. Any thread, also while
/// the work goes on.
kvmem_status kvmem_cancel_use(const struct kvmem_cancel *cancel);

/// Destroys a token. What it was given to goes on.
kvmem_status kvmem_cancel_destroy(struct kvmem_cancel *cancel);

/// Fills in the defaults. `struct_size` is `sizeof *options`.
kvmem_status kvmem_region_options_init(struct kvmem_region_options *options, uint64_t struct_size);

/// Says of every limit of this machine that will bite whether it lets a region of `bytes` bytes with these options be mapped and registered, and what to
/// do about those that do not, before anything is mapped. `options` may be NULL. `out_fits` (may be NULL) is 1 if nothing stands in the way, else 0. The
/// rest as for kvmem_region_report.
kvmem_status kvmem_preflight_report(uint64_t bytes,
                                    const struct kvmem_region_options *options,
                                    uint32_t *out_fits,
                                    uint32_t format,
                                    char *buffer,
                                    uint64_t capacity,
                                    uint64_t *out_needed);

/// Maps a region of at least `bytes` bytes, whole or not at all. `options` may be NULL.
///
/// Without populating it takes some ten system calls; populating takes as long as the kernel needs to clear that much memory.
kvmem_status kvmem_region_map(uint64_t bytes,
                              const struct kvmem_region_options *options,
                              struct kvmem_region **out_region);

/// Maps the memory that another process shares: `fd` is what kvmem_region_share gave there. The descriptor stays the caller's; the region
/// has a duplicate. `expected_bytes`, if not 0, is how long it has to be.
kvmem_status kvmem_region_attach(int fd,
                                 uint64_t expected_bytes,
                                 struct kvmem_region **out_region);

/// A region over memory that was made elsewhere: a tensor's bytes, another library's buffer. `release` (may be NULL) is called with `user`
/// when nobody uses the memory any more, once, by any thread; until then the bytes stay mapped for reading and writing. If the call fails
/// `release` is not called.
kvmem_status kvmem_region_wrap(void *data,
                               uint64_t bytes,
                               void (*release)(void *user),
                               void *user,
                               struct kvmem_region **out_region);

/// Destroys a region. The memory goes when nothing that was made on it is left.
kvmem_status kvmem_region_destroy(struct kvmem_region *region);

/// What a region is, and where.
kvmem_status kvmem_region_get_info(const struct kvmem_region *region, struct kvmem_region_info *out_info);

/// The receipt of a region as a text (KVMEM_TEXT) or as JSON (KVMEM_JSON): what was asked, what was got, on which nodes, and why not
/// better.
///
/// At most `capacity` bytes are written to `buffer`, a NUL at the end included; `out_needed` (may be NULL, unless `buffer` is) is set to
/// how many are needed, also when the call ends with KVMEM_BUFFER_TOO_SMALL. With `buffer` NULL and `capacity` 0 it is only asked.
kvmem_status kvmem_region_report(const struct kvmem_region *region,
                                 uint32_t format,
                                 char *buffer,
                                 uint64_t capacity,
                                 uint64_t *out_needed);

/// Makes `[offset, offset + bytes)` resident and writable, without changing a byte of it. `how` is KVMEM_POPULATE_AUTO or a number of
/// threads; `progress` (may be NULL) is told with `user`, and is not called any more after the call.
kvmem_status kvmem_region_populate(const struct kvmem_region *region,
                                   uint64_t offset,
                                   uint64_t bytes,
                                   uint32_t how,
                                   kvmem_progress_fn progress,
                                   void *user,
                                   const struct kvmem_cancel *cancel);

/// Makes the pages of a region's memory file resident in all other shared, writable mappings that this process has of it, such as those of an engine
/// that was given the descriptor: else each page is a fault when it is first touched there. `how` as above. `out_bytes` (may be NULL):
/// how many bytes those mappings have; 0 for private memory.
kvmem_status kvmem_region_populate_elsewhere(const struct kvmem_region *region,
                                             uint32_t how,
                                             uint64_t *out_bytes);

/// How much of `[offset, offset + bytes)` is resident now, in bytes, and the greatest error of that.  `out_error_bytes` may be NULL.
kvmem_status kvmem_region_residency(const struct kvmem_region *region,
                                    uint64_t offset,
                                    uint64_t bytes,
                                    uint64_t *out_resident_bytes,
                                    uint64_t *out_error_bytes);

/// Gives the pages of `[offset, offset + bytes)` back to the kernel: the bytes are zero afterwards. Whole pages only.
kvmem_status kvmem_region_discard(const struct kvmem_region *region,
                                  uint64_t offset,
                                  uint64_t bytes);

/// A descriptor of a shared region's memory, to be sent to another process, which attaches it. Owned by the caller: close(2). With
/// `read_only` 1 the memory can be read by it and not written; a process of the same user, or of root, can still open it for writing by /proc.
/// KVMEM_WRONG_BACKING if the memory is private.
kvmem_status kvmem_region_share(const struct kvmem_region *region,
                                uint32_t read_only,
                                int *out_fd);

/// Makes an arena on all of a region. The region stays the caller's, and may be destroyed before the arena, which keeps the memory. Bytes
/// are not touched.
kvmem_status kvmem_bump_create(const struct kvmem_region *region,
                               struct kvmem_bump_arena **out_arena);

/// Hands out `bytes` bytes at a multiple of `align`, a power of two. They are as the memory was, or as they were left before a reset, and
/// may be used until the arena is reset or destroyed. KVMEM_NO_ROOM costs some nanoseconds.
kvmem_status kvmem_bump_alloc(const struct kvmem_bump_arena *arena,
                              uint64_t bytes,
                              uint64_t align,
                              void **out_data);

/// Whether an address is one of the arena's, handed out or not: 1 or 0.
kvmem_status kvmem_bump_owns(const struct kvmem_bump_arena *arena, const void *address, uint32_t *out_owns);

/// Figures of an arena.
kvmem_status kvmem_bump_get_stats(const struct kvmem_bump_arena *arena, struct kvmem_bump_stats *out_stats);

/// Frees all that was handed out, at once. No other thread uses the arena meanwhile, and nobody uses the bytes any more.
kvmem_status kvmem_bump_reset(struct kvmem_bump_arena *arena);

/// Destroys an arena, and with it all that it has handed out.
kvmem_status kvmem_bump_destroy(struct kvmem_bump_arena *arena);

/// Opens registrars by words with commas between: "io_uring", "io_uring:N" (rings), "mlock", "verbs", "verbs:NIC", "cuda", "cuda:N".
/// KVMEM_NOT_AVAILABLE says what the first one that cannot be had would need.
kvmem_status kvmem_registrars_open(const char *devices,
                                   struct kvmem_registrars **out_registrars);

/// Registrars that are not there, for tests: NICs "simulated:0" and so on, at most 4096, that keep books of their keys and take no time. A key
/// covers at most `max_key_bytes` bytes, and each NIC gives at most `max_keys` keys (UINT64_MAX: no limit).
kvmem_status kvmem_registrars_simulated(uint64_t nics,
                                        uint64_t max_key_bytes,
                                        uint64_t max_keys,
                                        struct kvmem_registrars **out_registrars);

/// Lets a simulated registrar refuse: the `nth` call from now on, from 0, and the next ones, `times` in all. With `deregister` 0 calls that
/// ask for keys, with 1 calls that give them back. KVMEM_UNSUPPORTED if it is not simulated.
kvmem_status kvmem_registrars_inject(const struct kvmem_registrars *registrars,
                                     uint64_t index,
                                     uint32_t deregister,
                                     uint64_t nth,
                                     uint64_t times);

/// Keys that a simulated registrar has given and not got back. KVMEM_UNSUPPORTED if it is not simulated.
kvmem_status kvmem_registrars_live_keys(const struct kvmem_registrars *registrars,
                                        uint64_t index,
                                        uint64_t *out_keys);

/// How many registrars there are.
kvmem_status kvmem_registrars_count(const struct kvmem_registrars *registrars, uint64_t *out_count);

/// The name of the registrar at `index`, by which keys are asked for. `buffer` as for kvmem_region_report.
kvmem_status kvmem_registrars_name(const struct kvmem_registrars *registrars,
                                   uint64_t index,
                                   char *buffer,
                                   uint64_t capacity,
                                   uint64_t *out_needed);

/// What the registrar at `index` can take.
kvmem_status kvmem_registrars_limits(const struct kvmem_registrars *registrars,
                                     uint64_t index,
                                     struct kvmem_limits *out_limits);

/// Destroys the object. Registrars that nothing is registered with are closed.
kvmem_status kvmem_registrars_destroy(struct kvmem_registrars *registrars);

/// Which registrars there are on this machine, and what those that are missing would need; as a text or JSON, see kvmem_region_report.
kvmem_status kvmem_discover_report(uint32_t format,
                                   char *buffer,
                                   uint64_t capacity,
                                   uint64_t *out_needed);

/// A registrar that the program brings itself. The structure is copied. If the call fails `release` is not called.
kvmem_status kvmem_registrars_custom(const struct kvmem_registrar_callbacks *callbacks,
                                     struct kvmem_registrars **out_registrars);

/// Fills in the defaults. `struct_size` is `sizeof *options`.
kvmem_status kvmem_registration_options_init(struct kvmem_registration_options *options,
                                             uint64_t struct_size);

/// Registers a region, all of it with all registrars, or nothing. The region stays the caller's, and may be destroyed before the
/// registration, which keeps the memory. `options` may be NULL.
kvmem_status kvmem_register(const struct kvmem_region *region,
                            const struct kvmem_registrars *registrars,
                            const struct kvmem_registration_options *options,
                            struct kvmem_registration **out_registration);

/// The key with which `device` can reach all of `[offset, offset + bytes)`. KVMEM_STRADDLES if that takes more than one; the registration's
/// boundary says how to avoid that.
kvmem_status kvmem_registration_key(const struct kvmem_registration *registration,
                                    const char *device,
                                    uint64_t offset,
                                    uint64_t bytes,
                                    struct kvmem_key *out_key);

/// All chunks of a device with their keys, in order; none if they have been given back. At most `capacity` are written to `out_chunks` (NULL
/// with `capacity` 0: none); `out_count` is set to how many there are, also when the call ends with KVMEM_BUFFER_TOO_SMALL.
kvmem_status kvmem_registration_chunks(const struct kvmem_registration *registration,
                                       const char *device,
                                       struct kvmem_chunk *out_chunks,
                                       uint64_t capacity,
                                       uint64_t *out_count);

/// What registering did.
kvmem_status kvmem_registration_get_info(const struct kvmem_registration *registration,
                                         struct kvmem_registration_info *out_info);

/// What registering did, and on what grounds, as a text or JSON; see kvmem_region_report.
kvmem_status kvmem_registration_report(const struct kvmem_registration *registration,
                                       uint32_t format,
                                       char *buffer,
                                       uint64_t capacity,
                                       uint64_t *out_needed);

/// Gives all keys back; a second time does nothing. `out_keys` (may be NULL) is set to how many were given back. KVMEM_KEPT if some were not
/// taken: they stay out, the memory stays mapped, and this can be tried again.
kvmem_status kvmem_registration_deregister(const struct kvmem_registration *registration,
                                           uint64_t *out_keys);

/// Gives the keys back that are still out, and destroys the registration. Keys that are not taken back keep their memory mapped for the life
/// of the process.
kvmem_status kvmem_registration_destroy(struct kvmem_registration *registration);

/// Begins to register a region, chunk by chunk in order of addresses, and goes on in a thread of its own. As kvmem_register otherwise.
kvmem_status kvmem_register_in_background(const struct kvmem_region *region,
                                          const struct kvmem_registrars *registrars,
                                          const struct kvmem_registration_options *options,
                                          struct kvmem_background **out_background);

/// Waits until the first `bytes` bytes can be used with all registrars, the work has ended, or the time is over; `out_ready_bytes` is how many
/// can be used then. A timeout of 0 only asks.
kvmem_status kvmem_background_wait_ready(const struct kvmem_background *background,
                                         uint64_t bytes,
                                         uint64_t timeout_ns,
                                         uint64_t *out_ready_bytes);

/// How far it has come; `out_finished` (may be NULL) is 1 if there is nothing more to wait for, else 0.
kvmem_status kvmem_background_progress(const struct kvmem_background *background,
                                       struct kvmem_progress *out_progress,
                                       uint32_t *out_finished);

/// As kvmem_registration_key, for what is registered already.
kvmem_status kvmem_background_key(const struct kvmem_background *background,
                                  const char *device,
                                  uint64_t offset,
                                  uint64_t bytes,
                                  struct kvmem_key *out_key);

/// Waits for the end, and makes a registration of it; the background object is gone then, also if the call fails, but for KVMEM_NULL_ARGUMENT
/// and KVMEM_BAD_HANDLE. If it fails all keys have been given back.
kvmem_status kvmem_background_wait(struct kvmem_background *background,
                                   struct kvmem_registration **out_registration);

/// Ends it early, and gives everything back. Waits for the thread.
kvmem_status kvmem_background_destroy(struct kvmem_background *background);

/// Fills in the defaults. `struct_size` is `sizeof *options`.
kvmem_status kvmem_offset_options_init(struct kvmem_offset_options *options, uint64_t struct_size);

/// Makes a space of `capacity_bytes` bytes, 1 to 2^63. `options` may be NULL. About 40 KiB whatever the capacity.
kvmem_status kvmem_offset_create(uint64_t capacity_bytes,
                                 const struct kvmem_offset_options *options,
                                 struct kvmem_offset_allocator **out_allocator);

/// Grants `bytes` bytes. O(1). KVMEM_NO_ROOM, KVMEM_TOO_LARGE, KVMEM_ZERO_SIZE or KVMEM_BOOKS_FULL if it cannot be; that costs
/// nanoseconds too.
kvmem_status kvmem_offset_allocate(const struct kvmem_offset_allocator *allocator,
                                   uint64_t bytes,
                                   struct kvmem_allocation *out_allocation);

/// Grants `bytes` bytes that begin at a multiple of `align`, a power of two.
kvmem_status kvmem_offset_allocate_aligned(const struct kvmem_offset_allocator *allocator,
                                           uint64_t bytes,
                                           uint64_t align,
                                           struct kvmem_allocation *out_allocation);

/// Grants `count` ranges of `bytes` bytes each, or none. `out_allocations` has room for `count`. O(count).
kvmem_status kvmem_offset_allocate_batch(const struct kvmem_offset_allocator *allocator,
                                         uint64_t bytes,
                                         uint64_t count,
                                         struct kvmem_allocation *out_allocations);

/// Grants `total_bytes` bytes in at most `max_ranges` ranges whose sizes add up, or nothing. `out_allocations` has room for `max_ranges`;
/// `out_count` is set to how many there are. One range if there is one that fits.
kvmem_status kvmem_offset_allocate_scattered(const struct kvmem_offset_allocator *allocator,
                                             uint64_t total_bytes,
                                             uint64_t max_ranges,
                                             struct kvmem_allocation *out_allocations,
                                             uint64_t *out_count);

/// Frees an allocation. O(1). KVMEM_STALE_ALLOCATION if it was freed before, KVMEM_FOREIGN_ALLOCATION if it is of another allocator. Only the
/// first three members of `allocation` are looked at, and nothing is written to it.
kvmem_status kvmem_offset_free(const struct kvmem_offset_allocator *allocator,
                               const struct kvmem_allocation *allocation);

/// Frees `count` allocations. Those that cannot be freed are left out: the status is that of the first of them, and `out_freed` (may be NULL) is
/// set to how many were freed, also then.
kvmem_status kvmem_offset_free_batch(const struct kvmem_offset_allocator *allocator,
                                     const struct kvmem_allocation *allocations,
                                     uint64_t count,
                                     uint64_t *out_freed);

/// Where an allocation lies, as the books know it, for those who have kept its first three members only.
kvmem_status kvmem_offset_resolve(const struct kvmem_offset_allocator *allocator,
                                  const struct kvmem_allocation *allocation,
                                  uint64_t *out_offset,
                                  uint64_t *out_bytes);

/// The allocation that is alive at a place in the books, which is its member `slot`: for programs
/// that have kept no more of it, and for handing over what another part of the program has
/// forgotten. O(1). KVMEM_NOT_FOUND if there is none.
kvmem_status kvmem_offset_allocation_at(const struct kvmem_offset_allocator *allocator,
                                        uint32_t slot,
                                        struct kvmem_allocation *out_allocation);

/// All allocations that are alive, in the order of their offsets. O(n log n) for the most that ever
/// were alive at once. Lists as for kvmem_registration_chunks; while other threads allocate, the
/// next call may find more.
kvmem_status kvmem_offset_allocations(const struct kvmem_offset_allocator *allocator,
                                      struct kvmem_allocation *out_allocations,
                                      uint64_t capacity,
                                      uint64_t *out_count);

/// Gives back the tail: the allocation is `new_bytes` bytes afterwards, which is written to it, and begins where it did. O(1).
kvmem_status kvmem_offset_shrink(const struct kvmem_offset_allocator *allocator,
                                 struct kvmem_allocation *allocation,
                                 uint64_t new_bytes);

/// Takes in free bytes that lie behind: the allocation is `new_bytes` bytes afterwards, which is written to it, and begins where it did. Nothing is
/// moved. O(1). KVMEM_BLOCKED if they are not free.
kvmem_status kvmem_offset_extend(const struct kvmem_offset_allocator *allocator,
                                 struct kvmem_allocation *allocation,
                                 uint64_t new_bytes);

/// Moves the end of the space up to `capacity_bytes`. O(1).
kvmem_status kvmem_offset_grow(const struct kvmem_offset_allocator *allocator, uint64_t capacity_bytes);

/// Moves the end of the space down to `capacity_bytes`; KVMEM_IN_USE if something in use lies behind it.
kvmem_status kvmem_offset_shrink_to(const struct kvmem_offset_allocator *allocator, uint64_t capacity_bytes);

/// Figures of a space. O(1); with magazines O(threads).
kvmem_status kvmem_offset_get_metrics(const struct kvmem_offset_allocator *allocator,
                                      struct kvmem_metrics *out_metrics);

/// An upper bound of the longest range that would be granted now, without the lock.
kvmem_status kvmem_offset_largest_free_hint(const struct kvmem_offset_allocator *allocator,
                                            uint64_t *out_bytes);

/// The free ranges by size, ascending: bins that hold any. Lists as for kvmem_registration_chunks; about 2000 are always enough.
kvmem_status kvmem_offset_bins(const struct kvmem_offset_allocator *allocator,
                               struct kvmem_bin *out_bins,
                               uint64_t capacity,
                               uint64_t *out_count);

/// The whole space in address order: a range for every allocation, and free ranges joined. O(ranges). Lists as for kvmem_registration_chunks;
/// while other threads allocate, the next call may find more.
kvmem_status kvmem_offset_map(const struct kvmem_offset_allocator *allocator,
                              struct kvmem_map_range *out_ranges,
                              uint64_t capacity,
                              uint64_t *out_count);

/// Takes back what magazines keep, so that neighbours join. Without magazines it does nothing.
kvmem_status kvmem_offset_trim(const struct kvmem_offset_allocator *allocator);

/// Checks the books against their numbered invariants. O(ranges). KVMEM_CHECK_FAILED is a defect of this library.
kvmem_status kvmem_offset_check(const struct kvmem_offset_allocator *allocator);

/// Figures of a space as a text, for logs; see kvmem_region_report.
kvmem_status kvmem_offset_report(const struct kvmem_offset_allocator *allocator,
                                 char *buffer,
                                 uint64_t capacity,
                                 uint64_t *out_needed);

/// Destroys an allocator. Its allocations need not be freed before; freeing them afterwards is KVMEM_BAD_HANDLE and harms nothing.
kvmem_status kvmem_offset_destroy(struct kvmem_offset_allocator *allocator);

/// Fills in the defaults. `struct_size` is `sizeof *options`.
kvmem_status kvmem_slice_options_init(struct kvmem_slice_options *options, uint64_t struct_size);

/// Makes an allocator. No page is mapped before the first block. `options` may be NULL.
kvmem_status kvmem_slice_create(const struct kvmem_slice_options *options,
                                struct kvmem_slice_allocator **out_allocator);

/// A block of `bytes` bytes, not initialized. O(1) but for pages that are new. It may be used until it is freed or the allocator is destroyed.
kvmem_status kvmem_slice_alloc(const struct kvmem_slice_allocator *allocator,
                               uint64_t bytes,
                               void **out_block);

/// A block of `bytes` bytes, all zero.
kvmem_status kvmem_slice_alloc_zeroed(const struct kvmem_slice_allocator *allocator,
                                      uint64_t bytes,
                                      void **out_block);

/// A block with a copy of the `bytes` bytes at `data`.
kvmem_status kvmem_slice_copy(const struct kvmem_slice_allocator *allocator,
                              const void *data,
                              uint64_t bytes,
                              void **out_block);

/// Frees a block; NULL is none. `bytes` is what it was allocated with. It is of this allocator, has not been freed, and nobody uses it any more:
/// that is found out only with KVMEM_SLICE_DEBUG_BLOCKS, and is else undefined behaviour, as with free(3). O(1).
kvmem_status kvmem_slice_free(const struct kvmem_slice_allocator *allocator,
                              void *block,
                              uint64_t bytes);

/// Frees a chain of blocks of one size: each has, `next_offset` bytes from its beginning, the address of the next one, and the last one NULL there.
/// `first` may be NULL. Otherwise as kvmem_slice_free. O(blocks).
kvmem_status kvmem_slice_free_chain(const struct kvmem_slice_allocator *allocator,
                                    void *first,
                                    uint64_t bytes,
                                    uint64_t next_offset);

/// Blocks of one size at once: up to `count` are written to `out_blocks`, and how many to `out_count`. Fewer only if there is no memory for more;
/// it fails if there is not even one.
kvmem_status kvmem_slice_alloc_batch(const struct kvmem_slice_allocator *allocator,
                                     uint64_t bytes,
                                     uint64_t count,
                                     void **out_blocks,
                                     uint64_t *out_count);

/// Frees `count` blocks of one size, as kvmem_slice_free does one by one, in less time. None of them is NULL: then none is freed.
kvmem_status kvmem_slice_free_batch(const struct kvmem_slice_allocator *allocator,
                                    void *const *blocks,
                                    uint64_t count,
                                    uint64_t bytes);

/// Bytes that a request for `bytes` bytes really takes.
kvmem_status kvmem_slice_usable(const struct kvmem_slice_allocator *allocator,
                                uint64_t bytes,
                                uint64_t *out_usable_bytes);

/// Gives back what is cached: magazines of all threads to the slabs, empty slabs to the pages, pages to the kernel.
kvmem_status kvmem_slice_trim(const struct kvmem_slice_allocator *allocator);

/// Gives back what nobody came for in the working set's time: for programs that have fallen silent.
kvmem_status kvmem_slice_tick(const struct kvmem_slice_allocator *allocator);

/// Figures of an allocator. O(classes).
kvmem_status kvmem_slice_get_stats(const struct kvmem_slice_allocator *allocator,
                                   struct kvmem_slice_stats *out_stats);

/// With debugging on, tells `on_fault` of every block that is in use now; `out_leaks` is how many there are. Else 0.
kvmem_status kvmem_slice_report_leaks(const struct kvmem_slice_allocator *allocator,
                                      uint64_t *out_leaks);

/// Destroys an allocator. Blocks from slabs go with it, freed or not; those that are the system's (above the limit) have to be freed before.
kvmem_status kvmem_slice_destroy(struct kvmem_slice_allocator *allocator);

/// A block of the process's allocator, not initialized, at a multiple of 16; of 0 bytes: NULL. Ends the process if there is no memory. Any
/// thread.
void *kvmem_gslice_alloc(uint64_t bytes);

/// As kvmem_gslice_alloc, all bytes zero.
void *kvmem_gslice_alloc0(uint64_t bytes);

/// As kvmem_gslice_alloc, with a copy of the bytes at `data`; NULL if there are none.
void *kvmem_gslice_copy(uint64_t bytes, const void *data);

/// Frees a block of the process's allocator; NULL is none. Otherwise as kvmem_slice_free. Any thread.
void kvmem_gslice_free1(uint64_t bytes, void *block);

/// Frees a chain of blocks of the process's allocator; see kvmem_slice_free_chain. Ends the process if the link lies outside of the block.
void kvmem_gslice_free_chain_with_offset(uint64_t bytes,
                                         void *first,
                                         uint64_t next_offset);

/// Fills in the defaults. `struct_size` is `sizeof *options`.
kvmem_status kvmem_pool_options_init(struct kvmem_pool_options *options, uint64_t struct_size);

/// Reads a size such as "64GiB" or "512M" (powers of 1024), "64GB" (a power of 1000) or "4096".
/// KVMEM_INVALID_ARGUMENT where the text is no size from 1 byte to INT64_MAX; the message says what
/// is wrong with it.
kvmem_status kvmem_parse_size(const char *text, uint64_t *out_bytes);

/// Builds a pool of at least `bytes` bytes: maps, populates, registers. `options` may be NULL. Takes as long as the kernel needs to clear and pin that
/// much memory. If it fails nothing is left behind.
kvmem_status kvmem_pool_create(uint64_t bytes,
                               const struct kvmem_pool_options *options,
                               struct kvmem_pool **out_pool);

/// A block of `bytes` bytes. O(1), some nanoseconds for a hot size. KVMEM_NO_ROOM, KVMEM_TOO_LARGE, KVMEM_NOT_READY and so on if it cannot be.
///
/// It begins at any byte, since sizes are not rounded: see kvmem_pool_allocate_aligned. What stands in a fresh block is what the last one left
/// there, or zeros.
kvmem_status kvmem_pool_allocate(struct kvmem_pool *pool,
                                 uint64_t bytes,
                                 struct kvmem_block *out_block);

/// A block of `bytes` bytes whose first address is a multiple of `align`, a power of two. O(1).
kvmem_status kvmem_pool_allocate_aligned(struct kvmem_pool *pool,
                                         uint64_t bytes,
                                         uint64_t align,
                                         struct kvmem_block *out_block);

/// `count` blocks of `bytes` bytes each, all of them or none. `out_blocks` has room for `count`. O(count).
kvmem_status kvmem_pool_allocate_batch(struct kvmem_pool *pool,
                                       uint64_t bytes,
                                       uint64_t count,
                                       struct kvmem_block *out_blocks);

/// `total_bytes` bytes in at most `max_blocks` blocks, as few and as long as can be had. `out_blocks` has room for `max_blocks`; `out_count` is set to
/// how many there are.
kvmem_status kvmem_pool_allocate_scattered(struct kvmem_pool *pool,
                                           uint64_t total_bytes,
                                           uint64_t max_blocks,
                                           struct kvmem_block *out_blocks,
                                           uint64_t *out_count);

/// What a pool is, as it is now.
kvmem_status kvmem_pool_get_info(const struct kvmem_pool *pool, struct kvmem_pool_info *out_info);

/// What a pool is made of, how it came to be, and on what grounds, as a text or JSON; see kvmem_region_report.
kvmem_status kvmem_pool_report(const struct kvmem_pool *pool,
                               uint32_t format,
                               char *buffer,
                               uint64_t capacity,
                               uint64_t *out_needed);

/// Figures of what is ready. What magazines keep counts as free.
kvmem_status kvmem_pool_get_metrics(const struct kvmem_pool *pool, struct kvmem_metrics *out_metrics);

/// The free ranges by size; see kvmem_offset_bins.
kvmem_status kvmem_pool_bins(const struct kvmem_pool *pool,
                             struct kvmem_bin *out_bins,
                             uint64_t capacity,
                             uint64_t *out_count);

/// All of the pool in order of addresses; see kvmem_offset_map. What is not ready, or is in quarantine, is shown as used.
kvmem_status kvmem_pool_map(const struct kvmem_pool *pool,
                            struct kvmem_map_range *out_ranges,
                            uint64_t capacity,
                            uint64_t *out_count);

/// Waits until so many bytes are ready, no more will be, or the time is over; `out_ready_bytes` is how many are ready then. A timeout of 0 only asks.
kvmem_status kvmem_pool_wait_ready(const struct kvmem_pool *pool,
                                   uint64_t bytes,
                                   uint64_t timeout_ns,
                                   uint64_t *out_ready_bytes);

/// The pool is at least `bytes` long afterwards, in whole parts, up to `max_bytes` of its options. Blocks are handed out meanwhile as ever.
kvmem_status kvmem_pool_grow_to(const struct kvmem_pool *pool,
                                uint64_t bytes);

/// The pool is as short as whole parts allow, but not shorter than `bytes`. What lies behind is deregistered, and its pages are given back.
/// KVMEM_IN_USE if a block lies there. `out_capacity_bytes` (may be NULL) is how long it is then.
kvmem_status kvmem_pool_shrink_to(const struct kvmem_pool *pool,
                                  uint64_t bytes,
                                  uint64_t *out_capacity_bytes);

/// Takes back what magazines keep, so that neighbours join.
kvmem_status kvmem_pool_trim(const struct kvmem_pool *pool);

/// Checks the books against their numbered invariants. KVMEM_CHECK_FAILED is a defect of this library.
kvmem_status kvmem_pool_check(const struct kvmem_pool *pool);

/// A descriptor of the pool's memory, by which another process attaches it. Owned by the caller: close(2). With `read_only` 1 it can be read by it and
/// not written; a process of the same user, or of root, can still open it for writing by /proc. Who gets the other kind writes only to blocks that it was
/// lent. KVMEM_WRONG_BACKING if the memory is private.
kvmem_status kvmem_pool_share(const struct kvmem_pool *pool,
                              uint32_t read_only,
                              int *out_fd);

/// Makes a pool's pages resident in all other shared, writable mappings that this process has of its memory, such as those of an engine that was given
/// the descriptor: else each page is a fault when it is first touched there. `how` is KVMEM_POPULATE_AUTO or a number of threads.
/// `out_bytes` (may be NULL): how many bytes those mappings have.
kvmem_status kvmem_pool_populate_elsewhere(const struct kvmem_pool *pool,
                                           uint32_t how,
                                           uint64_t *out_bytes);

/// Destroys a pool. Blocks that are in use stay good, with their memory and keys, and so does what caches hold; all goes with the last of it. No other
/// call on the pool or its blocks goes on meanwhile.
kvmem_status kvmem_pool_destroy(struct kvmem_pool *pool);

/// Frees a block. O(1), some nanoseconds for a hot size. KVMEM_STALE_ALLOCATION if it was freed before. Only the first four members of `block` are
/// looked at, and nothing is written to it. Any thread.
kvmem_status kvmem_block_free(const struct kvmem_block *block);

/// Frees `count` blocks, of one pool or several. Those that cannot be freed are left out: the status is that of the first of them, and `out_freed` (may be
/// NULL) is set to how many were freed, also then.
kvmem_status kvmem_block_free_batch(const struct kvmem_block *blocks,
                                    uint64_t count,
                                    uint64_t *out_freed);

/// Gives back the tail: the block is `new_bytes` bytes afterwards, which is written to it, and begins where it did. O(1).
kvmem_status kvmem_block_shrink(struct kvmem_block *block,
                                uint64_t new_bytes);

/// Takes in free bytes that lie behind: the block is `new_bytes` bytes afterwards, which is written to it, and begins where it did. Nothing is moved. O(1).
/// KVMEM_BLOCKED if they are not free.
kvmem_status kvmem_block_extend(struct kvmem_block *block,
                                uint64_t new_bytes);

/// The key with which `device` can reach all of a block. It is good as long as the block.
kvmem_status kvmem_block_key(const struct kvmem_block *block, const char *device, struct kvmem_key *out_key);

/// A block by three numbers, for another process that has attached the pool. It says where the bytes are, and does not keep them.
/// KVMEM_WRONG_BACKING if the pool's memory is private.
kvmem_status kvmem_block_reference(const struct kvmem_block *block,
                                   struct kvmem_block_ref *out_reference);

/// Keeps the bytes of a block from use for as long as the pool: for blocks that have turned out to be bad. The block is gone afterwards; `why` is
/// in the pool's report.
kvmem_status kvmem_block_condemn(const struct kvmem_block *block,
                                 const char *why);

/// Maps the memory of a pool: `fd` is what kvmem_pool_share gave there. The descriptor stays the caller's; a duplicate is kept. With `writable` 1 it can
/// be written.
kvmem_status kvmem_pool_attach(int fd,
                               uint32_t writable,
                               struct kvmem_attached_pool **out_pool);

/// Where the bytes of a block are in this process. With `writable` 1 to be written, if the pool was attached so (KVMEM_READ_ONLY). That the block is
/// still what it was is known to its own process alone: the two agree on that. The address is good as long as the attached pool.
kvmem_status kvmem_attached_data(const struct kvmem_attached_pool *pool,
                                 const struct kvmem_block_ref *reference,
                                 uint32_t writable,
                                 void **out_data);

/// What an attached pool is.
kvmem_status kvmem_attached_get_info(const struct kvmem_attached_pool *pool,
                                     struct kvmem_attached_info *out_info);

/// Unmaps the memory. Nobody uses its bytes any more.
kvmem_status kvmem_attached_destroy(struct kvmem_attached_pool *pool);

/// Fills in the defaults. `struct_size` is `sizeof *options`.
kvmem_status kvmem_kv_options_init(struct kvmem_kv_options *options, uint64_t struct_size);

/// Makes a cache on a pool, which may have other users too. `options` may be NULL. It holds nothing yet.
kvmem_status kvmem_kv_create(const struct kvmem_pool *pool,
                             const struct kvmem_kv_options *options,
                             struct kvmem_kv_cache **out_cache);

/// The value under a key, pinned; it counts as used. KVMEM_NOT_FOUND if there is none.
kvmem_status kvmem_kv_get(const struct kvmem_kv_cache *cache,
                          const void *key,
                          uint64_t key_bytes,
                          struct kvmem_kv_value *out_value);

/// Whether there is a value under a key: 1 or 0. It does not count as used.
kvmem_status kvmem_kv_contains(const struct kvmem_kv_cache *cache,
                               const void *key,
                               uint64_t key_bytes,
                               uint32_t *out_contains);

/// Copies `bytes` bytes at `data` into a block and puts it under a key, in the place of what is there. Evicts until it fits.
/// KVMEM_NOTHING_TO_EVICT, KVMEM_TOO_LARGE or KVMEM_ZERO_SIZE if it cannot be.
kvmem_status kvmem_kv_insert(const struct kvmem_kv_cache *cache,
                             const void *key,
                             uint64_t key_bytes,
                             const void *data,
                             uint64_t bytes);

/// Makes room for a value of `bytes` bytes, to be written in place, by the processor or a device, and then committed. As kvmem_kv_insert otherwise.
kvmem_status kvmem_kv_reserve(const struct kvmem_kv_cache *cache,
                              const void *key,
                              uint64_t key_bytes,
                              uint64_t bytes,
                              struct kvmem_kv_room *out_room);

/// Puts a value in. The reservation is gone afterwards. `out_value` (may be NULL) is the value, pinned. KVMEM_FORKED in a forked child.
kvmem_status kvmem_kv_commit(struct kvmem_kv_reservation *reservation,
                             struct kvmem_kv_value *out_value);

/// Says that `depth` blocks of the prefix come before the value; 0 is the default. Blocks at the end of a prefix are evicted before those at its
/// start, in whatever order they are committed.
kvmem_status kvmem_kv_reservation_set_depth(struct kvmem_kv_reservation *reservation,
                                            uint32_t depth);

/// Gives the room back. The reservation is gone afterwards.
kvmem_status kvmem_kv_abandon(struct kvmem_kv_reservation *reservation);

/// The key that a value will be put in under: `out_key_bytes` bytes at `out_key`, good as long as the reservation.
kvmem_status kvmem_kv_reservation_cache_key(const struct kvmem_kv_reservation *reservation,
                                            const void **out_key,
                                            uint64_t *out_key_bytes);

/// The key with which `device` can write a reserved value. It is good as long as the value.
kvmem_status kvmem_kv_reservation_key(const struct kvmem_kv_reservation *reservation,
                                      const char *device,
                                      struct kvmem_key *out_key);

/// One pin more on the same value. It is released by itself.
kvmem_status kvmem_kv_pin_clone(const struct kvmem_kv_pin *pin, struct kvmem_kv_value *out_value);

/// The key that a pinned value was put in under: `out_key_bytes` bytes at `out_key`, good until the pin is released.
kvmem_status kvmem_kv_pin_cache_key(const struct kvmem_kv_pin *pin,
                                    const void **out_key,
                                    uint64_t *out_key_bytes);

/// Whether the key of a pinned value has been given another since, or was removed or cleared: 1 or 0. Being evicted does not count: what was
/// evicted is the latest there was. In a kvmem_kv_evict_fn it is answered rightly until that returns; later changes are not told to what was
/// evicted.
kvmem_status kvmem_kv_pin_is_superseded(const struct kvmem_kv_pin *pin,
                                        uint32_t *out_superseded);

/// The key with which `device` can reach a pinned value. It is good as long as the value.
kvmem_status kvmem_kv_pin_key(const struct kvmem_kv_pin *pin, const char *device, struct kvmem_key *out_key);

/// Releases a pin.
kvmem_status kvmem_kv_pin_release(struct kvmem_kv_pin *pin);

/// Takes the value under a key out: its bytes are free when the last pin on it is released. KVMEM_NOT_FOUND if there is none. A lower tier is told by
/// kvmem_kv_remove_with.
kvmem_status kvmem_kv_remove(const struct kvmem_kv_cache *cache,
                             const void *key,
                             uint64_t key_bytes);

/// Takes every value out. Pins stay good. A lower tier is told by kvmem_kv_clear_with.
kvmem_status kvmem_kv_clear(const struct kvmem_kv_cache *cache);

/// Evicts until at most `bytes` bytes are held, or nothing is left that can go. `out_held_bytes` (may be NULL) is how many are held then.
kvmem_status kvmem_kv_evict_to(const struct kvmem_kv_cache *cache,
                               uint64_t bytes,
                               uint64_t *out_held_bytes);

/// Figures of a cache. Takes no lock.
kvmem_status kvmem_kv_get_stats(const struct kvmem_kv_cache *cache, struct kvmem_kv_stats *out_stats);

/// Verifies the invariants, while no other thread is in the cache. O(values). KVMEM_CHECK_FAILED is a defect of this library.
kvmem_status kvmem_kv_check(const struct kvmem_kv_cache *cache);

/// Destroys a cache. Values that are pinned stay until their pins are released. What is held is dropped, not evicted: `on_evict` is given none of it.
kvmem_status kvmem_kv_destroy(struct kvmem_kv_cache *cache);

/// Asks for the right to put in what is fetched from a lower tier. Take it before anything is asked of that. It counts for neither a hit nor a miss.
/// Several leases of a key may live at once; the first commit breaks the others.
kvmem_status kvmem_kv_get_lease(const struct kvmem_kv_cache *cache,
                                const void *key,
                                uint64_t key_bytes,
                                struct kvmem_kv_leased *out_leased);

/// Whether nothing has been put or removed under the key so far: 1 or 0. That may change at once: what counts is the commit. With this, who
/// fetches in steps can end early.
kvmem_status kvmem_kv_lease_is_unbroken(const struct kvmem_kv_lease *lease,
                                        uint32_t *out_unbroken);

/// Gives a lease up.
kvmem_status kvmem_kv_lease_release(struct kvmem_kv_lease *lease);

/// Puts a value in, as kvmem_kv_commit, if nothing was put, removed or cleared under the key since the lease was taken. Both are gone afterwards;
/// `out_value` (may be NULL) is the value, pinned.
///
/// KVMEM_SUPERSEDED: the lease was broken, and is gone; the reservation stays, with what was written, to be abandoned in general; `out_value` is
/// what the key has now, pinned, or its pin is NULL. KVMEM_INVALID_ARGUMENT: the lease is of another key, or of another cache; both stay.
/// KVMEM_FORKED in a forked child; both stay.
kvmem_status kvmem_kv_commit_leased(struct kvmem_kv_reservation *reservation,
                                    struct kvmem_kv_lease *lease,
                                    struct kvmem_kv_value *out_value);

/// Takes the value under a key out, as kvmem_kv_remove, where a lower tier has to forget it, too. While `forget` tells it, the key is not leased,
/// so nobody fetches what is to be forgotten. `out_removed` (may be NULL) is whether there was a value: 1 or 0; `forget` is called in both cases.
///
/// KVMEM_NOT_FORGOTTEN: `forget` has failed. The value is out all the same, and the key is not leased any more, until kvmem_kv_clear_with
/// succeeds: so what the lower tier may still have does not come back.
kvmem_status kvmem_kv_remove_with(const struct kvmem_kv_cache *cache,
                                  const void *key,
                                  uint64_t key_bytes,
                                  kvmem_kv_forget_fn forget,
                                  void *user,
                                  uint32_t *out_removed);

/// Takes every value out, as kvmem_kv_clear, where a lower tier has to forget all, too: as kvmem_kv_remove_with. Keys that are not leased because
/// something failed before are leased again.
///
/// KVMEM_NOT_FORGOTTEN: `forget` has failed. The values are out all the same, and no key is leased any more, until this succeeds.
kvmem_status kvmem_kv_clear_with(const struct kvmem_kv_cache *cache,
                                 kvmem_kv_forget_fn forget,
                                 void *user);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* KVMEM_H */
