// Mooncake's mmap arena on kvmem: programs that use mooncake::MmapArena compile unchanged and run
// on a kvmem region. https://www.apache.org/licenses/LICENSE-2.0
//
// Same as the original: the pool consists of whole hugepages of 2 MiB, is resident from the start,
// and is not inherited by forked children. Allocation takes no lock. All allocations are freed at
// once with the arena. `allocate` returns NULL for a size of 0, or when there is no space.
//
// Better than the original: padding is only what alignment needs. A call that fails costs
// nanoseconds and logs nothing. kvmem_last_error() says why `initialize` failed.
#ifndef KVMEM_COMPAT_MOONCAKE_MMAP_ARENA_HPP
#define KVMEM_COMPAT_MOONCAKE_MMAP_ARENA_HPP

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <mutex>

#include "../handle.hpp"

namespace mooncake {

class MmapArena {
public:
    /// Every address is a multiple of it.
    static constexpr size_t kMinAlignment = 64;

    struct Stats {
        /// Bytes of the pool.
        size_t pool_size;
        /// Bytes allocated, including the padding before them.
        size_t reserved_bytes;
        /// The maximum of `reserved_bytes`.
        size_t peak_reserved_bytes;
        /// Calls of `allocate` that succeeded.
        size_t num_allocations;
        /// Calls of `allocate` that failed, except those for 0 bytes.
        size_t num_failed_allocs;
    };

    MmapArena() = default;
    ~MmapArena() { kvmem_bump_arena_destroy(arena_.load(std::memory_order_relaxed)); }
    MmapArena(const MmapArena &) = delete;
    MmapArena &operator=(const MmapArena &) = delete;
    MmapArena(MmapArena &&) = delete;
    MmapArena &operator=(MmapArena &&) = delete;

    /// Maps the pool and makes it resident. `pool_size` is rounded up to whole hugepages of 2 MiB;
    /// smaller pages are used only with `allow_regular_page_fallback`. Returns false if the memory
    /// cannot be mapped, an argument is not valid, or the arena was initialized before.
    bool initialize(size_t pool_size, size_t alignment = kMinAlignment,
                    bool allow_regular_page_fallback = true) {
        const std::lock_guard<std::mutex> one_at_a_time(initializing_);
        if (isInitialized() || pool_size == 0 || (alignment & (alignment - 1)) != 0 ||
            pool_size > std::numeric_limits<size_t>::max() - (HUGEPAGE - 1)) {
            return false;
        }
        const size_t bytes = (pool_size + HUGEPAGE - 1) / HUGEPAGE * HUGEPAGE;
        kvmem_region_options options;
        if (kvmem_region_options_init(&options, sizeof options) != KVMEM_OK) {
            return false;
        }
        options.pages = allow_regular_page_fallback ? "2M,thp,4k" : "2M";
        options.strict = !allow_regular_page_fallback;
        options.populate = KVMEM_POPULATE_AUTO;
        kvmem_region *mapped = nullptr;
        if (kvmem_region_map(bytes, &options, &mapped) != KVMEM_OK) {
            return false;
        }
        const kvmem::detail::Handle<kvmem_region, kvmem_region_destroy> region(mapped);
        kvmem_region_info info;
        kvmem_bump_arena *arena = nullptr;
        if (kvmem_region_get_info(mapped, &info) != KVMEM_OK ||
            kvmem_bump_arena_create(mapped, &arena) != KVMEM_OK) {
            return false;
        }
        base_ = info.data;
        size_ = static_cast<size_t>(info.bytes);
        alignment_ = std::max(alignment, kMinAlignment);
        // Release pairs with the acquire in `arena`: a thread that sees the arena sees the members
        // written above.
        arena_.store(arena, std::memory_order_release);
        return true;
    }

    /// Allocates `size` bytes at a multiple of `alignment` and of the arena's alignment; 0 selects
    /// the arena's. Returns NULL if it fails. Valid as long as the arena.
    void *allocate(size_t size, size_t alignment = 0) {
        kvmem_bump_arena *const arena = this->arena();
        if (arena == nullptr || size == 0) {
            return nullptr;
        }
        void *data = nullptr;
        const bool allocated =
            kvmem_bump_arena_allocate(arena, size, std::max(alignment, alignment_), &data) ==
            KVMEM_OK;
        // Relaxed: statistics only.
        (allocated ? allocations_ : failed_).fetch_add(1, std::memory_order_relaxed);
        return data;
    }

    Stats getStats() const {
        kvmem_bump_arena *const arena = this->arena();
        kvmem_bump_arena_stats stats = {};
        if (arena != nullptr) {
            kvmem_bump_arena_get_stats(arena, &stats);
        }
        // No bytes are ever freed, so the maximum is the current number.
        const size_t reserved = static_cast<size_t>(stats.used);
        return {getPoolSize(), reserved, reserved, allocations_.load(std::memory_order_relaxed),
                failed_.load(std::memory_order_relaxed)};
    }

    bool isInitialized() const { return arena() != nullptr; }

    /// Returns whether an address lies in the pool, allocated or not.
    bool owns(const void *ptr) const {
        std::uint32_t owns = 0;
        kvmem_bump_arena *const arena = this->arena();
        return arena != nullptr && ptr != nullptr &&
               kvmem_bump_arena_owns(arena, ptr, &owns) == KVMEM_OK && owns != 0;
    }

    void *getPoolBase() const { return isInitialized() ? base_ : nullptr; }

    size_t getPoolSize() const { return isInitialized() ? size_ : 0; }

private:
    static constexpr size_t HUGEPAGE = size_t{2} << 20;

    /// Acquire pairs with the release in `initialize`.
    kvmem_bump_arena *arena() const noexcept { return arena_.load(std::memory_order_acquire); }

    std::atomic<kvmem_bump_arena *> arena_{nullptr};
    /// Written once, before the arena is published.
    void *base_ = nullptr;
    size_t size_ = 0;
    size_t alignment_ = kMinAlignment;
    std::atomic<size_t> allocations_{0};
    std::atomic<size_t> failed_{0};
    std::mutex initializing_;
};

} // namespace mooncake

#endif
