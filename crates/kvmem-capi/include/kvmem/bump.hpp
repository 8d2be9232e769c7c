// Bump arena: the bytes of a region, allocated one after another (layer 1). Part of kvmem.hpp.
#ifndef KVMEM_BUMP_HPP
#define KVMEM_BUMP_HPP

#include <optional>

#include "region.hpp"

namespace kvmem {

/// Statistics of an arena.
using BumpStats = kvmem_bump_arena_stats;

/// Allocates the bytes of a region without a lock, and frees them all at once. Any thread. Keeps
/// the region's memory mapped.
class BumpArena {
public:
    explicit BumpArena(const Region &region) {
        kvmem_bump_arena *made = nullptr;
        detail::check(kvmem_bump_arena_create(region.native_handle(), &made));
        arena_.reset(made);
    }

    /// Allocates `bytes` bytes at a multiple of `align`, a power of two; empty if there is no
    /// space. Valid until the arena is reset or destroyed.
    std::optional<bytes_span> allocate(std::uint64_t bytes,
                                       std::uint64_t align = alignof(std::max_align_t)) {
        void *data = nullptr;
        if (!detail::allocated(kvmem_bump_arena_allocate(arena_.get(), bytes, align, &data))) {
            return std::nullopt;
        }
        return detail::bytes_of(data, bytes);
    }

    /// Returns whether an address lies in the arena's memory, allocated or not.
    bool owns(const void *address) const {
        std::uint32_t owns = 0;
        detail::check(kvmem_bump_arena_owns(arena_.get(), address, &owns));
        return owns != 0;
    }

    BumpStats stats() const {
        BumpStats stats;
        detail::check(kvmem_bump_arena_get_stats(arena_.get(), &stats));
        return stats;
    }

    /// Frees all allocations. No other thread may use the arena meanwhile, and the program must not
    /// use the allocated bytes any more.
    void reset() { detail::check(kvmem_bump_arena_reset(arena_.get())); }

    kvmem_bump_arena *native_handle() const noexcept { return arena_.get(); }

private:
    detail::Handle<kvmem_bump_arena, kvmem_bump_arena_destroy> arena_;
};

} // namespace kvmem

#endif
