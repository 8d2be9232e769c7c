// Bump arena: the bytes of a region one after another (layer 1). Part of kvmem.hpp.
#ifndef KVMEM_BUMP_HPP
#define KVMEM_BUMP_HPP

#include <optional>

#include "region.hpp"

namespace kvmem {

/// What an arena has handed out.
using BumpStats = kvmem_bump_stats;

/// Hands out the bytes of a region, by any thread without a lock, and frees them all at once. It keeps the region's memory.
class BumpArena {
public:
    explicit BumpArena(const Region &region) {
        kvmem_bump_arena *made = nullptr;
        detail::check(kvmem_bump_create(region.native_handle(), &made));
        arena_.reset(made);
    }

    /// `bytes` bytes at a multiple of `align`, a power of two; nothing if there is no room. Good until the arena is reset or goes.
    std::optional<bytes_span> allocate(std::uint64_t bytes, std::uint64_t align = alignof(std::max_align_t)) {
        void *data = nullptr;
        if (!detail::granted(kvmem_bump_alloc(arena_.get(), bytes, align, &data))) {
            return std::nullopt;
        }
        return detail::bytes_of(data, bytes);
    }

    /// Whether an address is one of the arena's, handed out or not.
    bool owns(const void *address) const {
        std::uint32_t owns = 0;
        detail::check(kvmem_bump_owns(arena_.get(), address, &owns));
        return owns != 0;
    }

    BumpStats stats() const {
        BumpStats stats;
        detail::check(kvmem_bump_get_stats(arena_.get(), &stats));
        return stats;
    }

    /// Frees all that was handed out. No other thread uses the arena meanwhile, and nobody uses the bytes any more.
    void reset() { detail::check(kvmem_bump_reset(arena_.get())); }

    kvmem_bump_arena *native_handle() const noexcept { return arena_.get(); }

private:
    detail::Handle<kvmem_bump_arena, kvmem_bump_destroy> arena_;
};

} // namespace kvmem

#endif
