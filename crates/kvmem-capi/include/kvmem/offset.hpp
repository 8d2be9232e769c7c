// Offset allocator: ranges of an abstract space (layer 3). Part of kvmem.hpp.
#ifndef KVMEM_OFFSET_HPP
#define KVMEM_OFFSET_HPP

#include <algorithm>
#include <optional>

#include "handle.hpp"
#include "span.hpp"

namespace kvmem {

/// How to choose among the holes that fit.
enum class Placement : std::uint32_t {
    /// By what holes are worth to the traffic of late.
    renewal = KVMEM_PLACEMENT_RENEWAL,
    /// The tightest of the first four: fewest instructions.
    best_fit = KVMEM_PLACEMENT_BEST_FIT,
};

/// How a space is to be. What is not said is as kvmem_offset_options_init has it.
struct OffsetOptions {
    /// No allocation straddles a multiple of so many bytes, nor is longer; 0: there is no such boundary.
    std::uint64_t boundary = 0;
    /// At most so many ranges, used and free together, are on the books; 0: about 2^32.
    std::uint32_t max_ranges = 0;
    Placement placement = Placement::renewal;
    /// Hot sizes are served from each thread's own magazines, without a lock (layer 4).
    bool magazines = false;
    /// With magazines: sizes become hot that are asked for again and again.
    bool learn = true;
    /// With magazines: sizes that are hot from the beginning, at most 32.
    std::vector<std::uint64_t> hot_sizes;
    /// With magazines: they keep at most so many bytes; nothing: a 32nd part of the space.
    std::optional<std::uint64_t> stranded_bytes;
};

/// Figures of a space.
using Metrics = kvmem_metrics;

/// The free ranges of sizes that are close together.
using Bin = kvmem_bin;

/// One range of the map.
using MapRange = kvmem_map_range;

namespace detail {

using Space = Shared<kvmem_offset_allocator, kvmem_offset_destroy>;

inline kvmem_offset_options native(const OffsetOptions &options) {
    kvmem_offset_options wanted;
    check(kvmem_offset_options_init(&wanted, sizeof wanted));
    wanted.boundary_bytes = options.boundary;
    wanted.max_ranges = options.max_ranges;
    wanted.placement = static_cast<std::uint32_t>(options.placement);
    wanted.magazines = options.magazines;
    wanted.learn = options.learn;
    wanted.hot_sizes = options.hot_sizes.data();
    wanted.hot_size_count = options.hot_sizes.size();
    if (options.stranded_bytes) {
        wanted.stranded_bytes = *options.stranded_bytes;
    }
    return wanted;
}

/// Results of a request that are few enough to make room for without a look at the space.
inline constexpr std::uint64_t few_results = 4096;

/// Whether `count` ranges of `bytes` bytes are more than a space has: then nothing need be made
/// room for.
inline bool is_hopeless(const Metrics &metrics, std::uint64_t bytes, std::uint64_t count) noexcept {
    return bytes != 0 && count > metrics.free_bytes / bytes;
}

/// As many pieces as `total` bytes can take now, at most `max`: each piece but the last is a whole
/// free range, or all between two edges. `max` may be as great as there are numbers.
inline std::uint64_t max_pieces(const Metrics &metrics, std::uint64_t total, std::uint64_t max) noexcept {
    if (total > metrics.free_bytes) {
        return 1;
    }
    const std::uint64_t edges = metrics.boundary_bytes == 0 ? 0 : total / metrics.boundary_bytes;
    const std::uint64_t pieces = std::min(total, 2 * metrics.free_ranges + edges + few_results);
    return std::min(pieces, max);
}

} // namespace detail

/// A range of a space, freed when it goes. Moves; does not copy. It may outlive its allocator, and be freed by any thread.
class Allocation {
public:
    /// No range.
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
            kvmem_offset_free(space_->get(), &raw_);
        }
    }

    /// Where it begins.
    std::uint64_t offset() const noexcept { return raw_.offset; }

    /// Its length, exactly as asked for.
    std::uint64_t size() const noexcept { return raw_.bytes; }

    /// Whether there is a range.
    explicit operator bool() const noexcept { return static_cast<bool>(space_); }

    /// Frees it now.
    void reset() noexcept { *this = Allocation(); }

    /// Gives back the tail: it is `bytes` bytes afterwards. O(1).
    void shrink(std::uint64_t bytes) { detail::check(kvmem_offset_shrink(space(), &raw_, bytes)); }

    /// Takes in free bytes that lie behind: it is `bytes` bytes afterwards; false if they are not free. Nothing is moved. O(1).
    bool extend(std::uint64_t bytes) {
        const kvmem_status status = kvmem_offset_extend(space(), &raw_, bytes);
        if (status != KVMEM_BLOCKED && !detail::no_room(status)) {
            detail::check(status);
        }
        return status == KVMEM_OK;
    }

    void swap(Allocation &other) noexcept {
        space_.swap(other.space_);
        std::swap(raw_, other.raw_);
    }

    friend void swap(Allocation &a, Allocation &b) noexcept { a.swap(b); }

    /// By plain data. It stays this object's to free.
    const kvmem_allocation &native_handle() const noexcept { return raw_; }

private:
    friend class OffsetAllocator;

    /// What was just granted is this one's now.
    void take(detail::Space *space) noexcept {
        space->keep();
        detail::Part<detail::Space>(space).swap(space_);
    }

    kvmem_offset_allocator *space() const noexcept { return space_ ? space_->get() : nullptr; }

    detail::Part<detail::Space> space_;
    kvmem_allocation raw_ = {};
};

/// Hands out ranges of a space of up to 2^63 bytes, and never touches bytes: they may be memory, a file, a GPU's. Any thread. Allocations may
/// outlive it.
class OffsetAllocator {
public:
    explicit OffsetAllocator(std::uint64_t capacity, const OffsetOptions &options = {})
        : space_(new detail::Space) {
        const kvmem_offset_options wanted = detail::native(options);
        detail::check(kvmem_offset_create(capacity, &wanted, space_->out()));
    }

    /// `bytes` bytes; nothing if there is no room. Throws if `bytes` is 0. O(1).
    std::optional<Allocation> allocate(std::uint64_t bytes) {
        return grant([&](kvmem_allocation *got) { return kvmem_offset_allocate(get(), bytes, got); });
    }

    /// `bytes` bytes that begin at a multiple of `align`, a power of two.
    std::optional<Allocation> allocate_aligned(std::uint64_t bytes, std::uint64_t align) {
        return grant(
            [&](kvmem_allocation *got) { return kvmem_offset_allocate_aligned(get(), bytes, align, got); });
    }

    /// `count` ranges of `bytes` bytes each, or nothing. O(count).
    std::optional<std::vector<Allocation>> allocate_batch(std::uint64_t bytes, std::uint64_t count) {
        if (count > detail::few_results && detail::is_hopeless(metrics(), bytes, count)) {
            return std::nullopt;
        }
        // One element at least: `data()` of an empty vector may be NULL.
        std::vector<kvmem_allocation> raw(count == 0 ? 1 : count);
        return grant_many(raw, [&] {
            const kvmem_status status = kvmem_offset_allocate_batch(get(), bytes, count, raw.data());
            raw.resize(count);
            return status;
        });
    }

    /// `total` bytes in at most `max_ranges` ranges, as few and as long as can be had, or nothing.
    /// `max_ranges` may be UINT64_MAX.
    std::optional<std::vector<Allocation>> allocate_scattered(std::uint64_t total, std::uint64_t max_ranges) {
        if (max_ranges > detail::few_results) {
            max_ranges = detail::max_pieces(metrics(), total, max_ranges);
        }
        // As above.
        std::vector<kvmem_allocation> raw(max_ranges == 0 ? 1 : max_ranges);
        return grant_many(raw, [&] {
            std::uint64_t count = 0;
            const kvmem_status status =
                kvmem_offset_allocate_scattered(get(), total, max_ranges, raw.data(), &count);
            raw.resize(count);
            return status;
        });
    }

    /// Moves the end of the space up to `capacity`.
    void grow(std::uint64_t capacity) { detail::check(kvmem_offset_grow(get(), capacity)); }

    /// Moves the end of the space down to `capacity`; throws with KVMEM_IN_USE if something in use lies behind it.
    void shrink_to(std::uint64_t capacity) { detail::check(kvmem_offset_shrink_to(get(), capacity)); }

    Metrics metrics() const {
        Metrics metrics;
        detail::check(kvmem_offset_get_metrics(get(), &metrics));
        return metrics;
    }

    /// An upper bound of the longest range that would be granted now, without the lock.
    std::uint64_t largest_free_hint() const {
        std::uint64_t bytes = 0;
        detail::check(kvmem_offset_largest_free_hint(get(), &bytes));
        return bytes;
    }

    /// The free ranges by size, ascending: bins that hold any.
    std::vector<Bin> bins() const {
        return detail::list<Bin>([&](Bin *bins, std::uint64_t capacity, std::uint64_t *count) {
            return kvmem_offset_bins(get(), bins, capacity, count);
        });
    }

    /// The whole space in address order. O(ranges).
    std::vector<MapRange> map() const {
        return detail::list<MapRange>([&](MapRange *ranges, std::uint64_t capacity, std::uint64_t *count) {
            return kvmem_offset_map(get(), ranges, capacity, count);
        });
    }

    /// Takes back what magazines keep, so that neighbours join.
    void trim() { detail::check(kvmem_offset_trim(get())); }

    /// Checks the books against their invariants; throws with KVMEM_CHECK_FAILED, which is a defect of the library. O(ranges).
    void verify() const { detail::check(kvmem_offset_check(get())); }

    /// Figures as a text, for logs.
    std::string report() const {
        return detail::text([&](char *buffer, std::uint64_t capacity, std::uint64_t *needed) {
            return kvmem_offset_report(get(), buffer, capacity, needed);
        });
    }

    /// NULL after it was moved from.
    kvmem_offset_allocator *native_handle() const noexcept { return get(); }

private:
    kvmem_offset_allocator *get() const noexcept { return space_ ? space_->get() : nullptr; }

    /// Written where it stays: a copy would wait for what was just written.
    template <class Call>
    std::optional<Allocation> grant(Call call) {
        std::optional<Allocation> got(std::in_place);
        if (detail::granted(call(&got->raw_))) {
            got->take(space_.get());
        } else {
            got.reset();
        }
        return got;
    }

    template <class Call>
    std::optional<std::vector<Allocation>> grant_many(const std::vector<kvmem_allocation> &raw, Call call) {
        std::vector<Allocation> all;
        all.reserve(raw.size());
        if (!detail::granted(call())) {
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
