// Mooncake's mmap arena on kvmem: programs that say mooncake::MmapArena compile unchanged and run on a kvmem region.
// https://www.apache.org/licenses/LICENSE-2.0
//
// The same: the pool in whole hugepages of 2 MiB, resident from the beginning, not inherited by forked children; allocation without a lock, freed all at once when the arena
// goes; nothing for a size of 0, or when there is no room. Better: what alignment needs is all the padding there is, and a call that fails costs nanoseconds
// and logs nothing. Why `initialize` failed is kvmem_last_error().
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
        /// Bytes handed out, with the padding before them.
        size_t reserved_bytes;
        /// The most that was ever handed out.
        size_t peak_reserved_bytes;
        /// Calls of `allocate` that were met.
        size_t num_allocations;
        /// Calls that were not, but for those of 0 bytes.
        size_t num_failed_allocs;
    };

    MmapArena() = default;
    ~MmapArena() { kvmem_bump_destroy(arena_.load(std::memory_order_relaxed)); }
    MmapArena(const MmapArena &) = delete;
    MmapArena &operator=(const MmapArena &) = delete;
    MmapArena(MmapArena &&) = delete;
    MmapArena &operator=(MmapArena &&) = delete;

    /// Maps the pool and makes it resident: `pool_size` rounded up to whole 2 MiB, of hugepages, and of others only with `allow_regular_page_fallback`.
    /// False if that cannot be, if an argument makes no sense, or if it was done before.
    bool initialize(size_t pool_size, size_t alignment = kMinAlignment, bool allow_regular_page_fallback = true) {
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
        if (kvmem_region_get_info(mapped, &info) != KVMEM_OK || kvmem_bump_create(mapped, &arena) != KVMEM_OK) {
            return false;
        }
        base_ = info.data;
        size_ = static_cast<size_t>(info.bytes);
        alignment_ = std::max(alignment, kMinAlignment);
        // Release pairs with the acquire in `arena`: whoever sees the arena sees what was written before.
        arena_.store(arena, std::memory_order_release);
        return true;
    }

    /// `size` bytes at a multiple of `alignment` (0: the arena's) and of the arena's; NULL if it cannot be. Good as long as the arena.
    void *allocate(size_t size, size_t alignment = 0) {
        kvmem_bump_arena *const arena = this->arena();
        if (arena == nullptr || size == 0) {
            return nullptr;
        }
        void *data = nullptr;
        const bool granted =
            kvmem_bump_alloc(arena, size, std::max(alignment, alignment_), &data) == KVMEM_OK;
        // Relaxed: counts, for people.
        (granted ? allocations_ : failed_).fetch_add(1, std::memory_order_relaxed);
        return data;
    }

    Stats getStats() const {
        kvmem_bump_arena *const arena = this->arena();
        kvmem_bump_stats stats = {};
        if (arena != nullptr) {
            kvmem_bump_get_stats(arena, &stats);
        }
        // Nothing is ever given back, so that the peak is what is handed out now.
        const size_t reserved = static_cast<size_t>(stats.used_bytes);
        return {getPoolSize(), reserved, reserved, allocations_.load(std::memory_order_relaxed),
                failed_.load(std::memory_order_relaxed)};
    }

    bool isInitialized() const { return arena() != nullptr; }

    /// Whether an address is in the pool, handed out or not.
    bool owns(const void *ptr) const {
        std::uint32_t owns = 0;
        kvmem_bump_arena *const arena = this->arena();
        return arena != nullptr && ptr != nullptr && kvmem_bump_owns(arena, ptr, &owns) == KVMEM_OK &&
               owns != 0;
    }

    void *getPoolBase() const { return isInitialized() ? base_ : nullptr; }

    size_t getPoolSize() const { return isInitialized() ? size_ : 0; }

private:
    static constexpr size_t HUGEPAGE = size_t{2} << 20;

    /// Acquire pairs with the release in `initialize`.
    kvmem_bump_arena *arena() const noexcept { return arena_.load(std::memory_order_acquire); }

    std::atomic<kvmem_bump_arena *> arena_{nullptr};
    /// Written once, before the arena is seen.
    void *base_ = nullptr;
    size_t size_ = 0;
    size_t alignment_ = kMinAlignment;
    std::atomic<size_t> allocations_{0};
    std::atomic<size_t> failed_{0};
    std::mutex initializing_;
};

} // namespace mooncake

#endif
