// Offset allocator: ranges of an abstract space (layer 3). Part of kvmem.hpp.
#ifndef KVMEM_OFFSET_HPP
#define KVMEM_OFFSET_HPP

#include <algorithm>
#include <optional>

#include "handle.hpp"
#include "span.hpp"

namespace kvmem {

/// Options of a space: those of C.
struct OffsetOptions
    : detail::WithDefaults<kvmem_offset_allocator_options, kvmem_offset_allocator_options_init> {
    /// With magazines: sizes that are hot from the start, at most 32.
    std::vector<std::uint64_t> hot_sizes;
};

/// Metrics of a space.
using Metrics = kvmem_metrics;

/// The free ranges of similar sizes.
using Bin = kvmem_bin;

/// One range of a map.
using MapRange = kvmem_map_range;

namespace detail {

using Space = Shared<kvmem_offset_allocator, kvmem_offset_allocator_destroy>;

inline kvmem_offset_allocator_options native(const OffsetOptions &options) {
    kvmem_offset_allocator_options wanted = options;
    wanted.hot_sizes = options.hot_sizes.data();
    wanted.hot_size_count = options.hot_sizes.size();
    return wanted;
}

/// A request for at most this many results allocates its result array without looking at the space.
inline constexpr std::uint64_t small_batch = 4096;

/// Returns whether `count` ranges of `bytes` bytes exceed the free bytes, so the result array need
/// not be allocated.
inline bool exceeds_free_bytes(const Metrics &metrics, std::uint64_t bytes,
                               std::uint64_t count) noexcept {
    return bytes != 0 && count > metrics.free / bytes;
}

/// Returns the largest number of ranges that `total` bytes can take now, at most `max`: each range
/// but the last is a whole free range, or everything between two boundaries. `max` may be any
/// number.
inline std::uint64_t useful_range_count(const Metrics &metrics, std::uint64_t total,
                                        std::uint64_t max) noexcept {
    if (total > metrics.free) {
        return 1;
    }
    const std::uint64_t edges = metrics.boundary_bytes == 0 ? 0 : total / metrics.boundary_bytes;
    const std::uint64_t pieces = std::min(total, 2 * metrics.free_ranges + edges + small_batch);
    return std::min(pieces, max);
}

} // namespace detail

/// A range of a space; the destructor frees it. Can be moved and not copied. May outlive its
/// allocator. Any thread may destroy it.
class Allocation {
public:
    /// Makes an empty object.
    Allocation() noexcept = default;
    Allocation(Allocation &&other) noexcept
        : space_(std::move(other.space_)), raw_(std::exchange(other.raw_, {})) {}
    Allocation &operator=(Allocation &&other) noexcept {
        Allocation taken(std::move(other));
        swap(taken);
        return *this;
    }
    ~Allocation() {
        if (space_) {
            kvmem_offset_allocator_free(space_->get(), &raw_);
        }
    }

    /// First offset.
    std::uint64_t offset() const noexcept { return raw_.offset; }

    /// Length in bytes, exactly as requested.
    std::uint64_t size() const noexcept { return raw_.bytes; }

    /// Whether this holds a range.
    explicit operator bool() const noexcept { return static_cast<bool>(space_); }

    /// Frees the range now.
    void reset() noexcept { *this = Allocation(); }

    /// Frees the tail; the range then has `bytes` bytes. O(1).
    void shrink(std::uint64_t bytes) {
        detail::check(kvmem_offset_allocator_shrink(space(), &raw_, bytes));
    }

    /// Extends the range in place with the free bytes behind it; it then has `bytes` bytes. Returns
    /// false if those bytes are not free. O(1).
    bool extend(std::uint64_t bytes) {
        const kvmem_status status = kvmem_offset_allocator_extend(space(), &raw_, bytes);
        if (status != KVMEM_ERR_CANNOT_EXTEND && !detail::out_of_space(status)) {
            detail::check(status);
        }
        return status == KVMEM_OK;
    }

    void swap(Allocation &other) noexcept {
        space_.swap(other.space_);
        std::swap(raw_, other.raw_);
    }

    friend void swap(Allocation &a, Allocation &b) noexcept { a.swap(b); }

    /// The plain data of the range. This object still owns it.
    const kvmem_allocation &native_handle() const noexcept { return raw_; }

private:
    friend class OffsetAllocator;

    /// Takes ownership of a range that was just allocated.
    void take(detail::Space *space) noexcept {
        space->acquire();
        detail::Ref<detail::Space>(space).swap(space_);
    }

    kvmem_offset_allocator *space() const noexcept { return space_ ? space_->get() : nullptr; }

    detail::Ref<detail::Space> space_;
    kvmem_allocation raw_ = {};
};

/// Allocates ranges of a space of up to 2^63 bytes. It never touches the bytes, which may be
/// memory, a file, or a GPU's memory. Any thread. Allocations may outlive it.
class OffsetAllocator {
public:
    explicit OffsetAllocator(std::uint64_t capacity, const OffsetOptions &options = {})
        : space_(new detail::Space) {
        const kvmem_offset_allocator_options wanted = detail::native(options);
        detail::check(kvmem_offset_allocator_create(capacity, &wanted, space_->out()));
    }

    /// Allocates `bytes` bytes; empty if there is no space. Throws if `bytes` is 0. O(1).
    std::optional<Allocation> allocate(std::uint64_t bytes) {
        return try_allocate([&](kvmem_allocation *got) {
            return kvmem_offset_allocator_allocate(get(), bytes, got);
        });
    }

    /// Allocates `bytes` bytes at a multiple of `align`, a power of two.
    std::optional<Allocation> allocate_aligned(std::uint64_t bytes, std::uint64_t align) {
        return try_allocate([&](kvmem_allocation *got) {
            return kvmem_offset_allocator_allocate_aligned(get(), bytes, align, got);
        });
    }

    /// Allocates `count` ranges of `bytes` bytes each, or none. O(count).
    std::optional<std::vector<Allocation>> allocate_batch(std::uint64_t bytes,
                                                          std::uint64_t count) {
        if (count > detail::small_batch && detail::exceeds_free_bytes(metrics(), bytes, count)) {
            return std::nullopt;
        }
        // At least one element, because `data()` of an empty vector may be NULL.
        std::vector<kvmem_allocation> raw(count == 0 ? 1 : count);
        return try_allocate_all(raw, [&] {
            const kvmem_status status =
                kvmem_offset_allocator_allocate_batch(get(), bytes, count, raw.data());
            raw.resize(count);
            return status;
        });
    }

    /// Allocates `total` bytes in at most `max_ranges` ranges, as few and as long as possible, or
    /// none. `max_ranges` may be UINT64_MAX.
    std::optional<std::vector<Allocation>> allocate_scattered(std::uint64_t total,
                                                              std::uint64_t max_ranges) {
        if (max_ranges > detail::small_batch) {
            max_ranges = detail::useful_range_count(metrics(), total, max_ranges);
        }
        // At least one element, because `data()` of an empty vector may be NULL.
        std::vector<kvmem_allocation> raw(max_ranges == 0 ? 1 : max_ranges);
        return try_allocate_all(raw, [&] {
            std::uint64_t count = 0;
            const kvmem_status status = kvmem_offset_allocator_allocate_scattered(
                get(), total, max_ranges, raw.data(), &count);
            raw.resize(count);
            return status;
        });
    }

    /// Raises the capacity of the space to `capacity`.
    void grow_to(std::uint64_t capacity) {
        detail::check(kvmem_offset_allocator_grow_to(get(), capacity));
    }

    /// Lowers the capacity of the space to `capacity`; throws with KVMEM_ERR_IN_USE if an
    /// allocation lies behind the new end.
    void shrink_to(std::uint64_t capacity) {
        detail::check(kvmem_offset_allocator_shrink_to(get(), capacity));
    }

    Metrics metrics() const {
        Metrics metrics;
        detail::check(kvmem_offset_allocator_get_metrics(get(), &metrics));
        return metrics;
    }

    /// Returns an upper bound of the longest range that can be allocated now. Takes no lock.
    std::uint64_t largest_free_hint() const {
        std::uint64_t bytes = 0;
        detail::check(kvmem_offset_allocator_largest_free_hint(get(), &bytes));
        return bytes;
    }

    /// Returns the free ranges by size, ascending: all bins that are not empty.
    std::vector<Bin> bins() const {
        return detail::list<Bin>([&](Bin *bins, std::uint64_t capacity, std::uint64_t *count) {
            return kvmem_offset_allocator_bins(get(), bins, capacity, count);
        });
    }

    /// Returns the whole space in offset order. O(ranges).
    std::vector<MapRange> map() const {
        return detail::list<MapRange>(
            [&](MapRange *ranges, std::uint64_t capacity, std::uint64_t *count) {
                return kvmem_offset_allocator_map(get(), ranges, capacity, count);
            });
    }

    /// Returns all ranges in magazines to the space, where they coalesce.
    void trim() { detail::check(kvmem_offset_allocator_trim(get())); }

    /// Checks the invariants of the metadata; throws with KVMEM_ERR_CHECK_FAILED, a defect of the
    /// library. O(ranges).
    void check() const { detail::check(kvmem_offset_allocator_check(get())); }

    /// Returns the metrics as text, for logs.
    std::string report() const {
        return detail::text([&](char *buffer, std::uint64_t capacity, std::uint64_t *needed) {
            return kvmem_offset_allocator_report(get(), buffer, capacity, needed);
        });
    }

    /// The handle of the C interface; NULL after a move.
    kvmem_offset_allocator *native_handle() const noexcept { return get(); }

private:
    kvmem_offset_allocator *get() const noexcept { return space_ ? space_->get() : nullptr; }

    /// Runs a call that allocates; empty if there is no space. The call writes directly into the
    /// result: reading a copy would stall on the bytes just written.
    template <class Call>
    std::optional<Allocation> try_allocate(Call call) {
        std::optional<Allocation> got(std::in_place);
        if (detail::allocated(call(&got->raw_))) {
            got->take(space_.get());
        } else {
            got.reset();
        }
        return got;
    }

    /// Runs a call that fills `raw`, and takes ownership of the results; empty if there is no
    /// space.
    template <class Call>
    std::optional<std::vector<Allocation>>
    try_allocate_all(const std::vector<kvmem_allocation> &raw, Call call) {
        std::vector<Allocation> all;
        all.reserve(raw.size());
        if (!detail::allocated(call())) {
            return std::nullopt;
        }
        for (const kvmem_allocation &one : raw) {
            all.emplace_back().raw_ = one;
            all.back().take(space_.get());
        }
        return all;
    }

    detail::Owner<detail::Space> space_;
};

} // namespace kvmem

#endif
