// Mooncake's offset allocator on kvmem: programs that say mooncake::offset_allocator::OffsetAllocator compile unchanged and run on
// kvmem's. https://www.apache.org/licenses/LICENSE-2.0
//
// With `-I <prefix>/include/kvmem/compat/mooncake` the includes stay as they are too: "offset_allocator/offset_allocator.hpp",
// "offset_allocator/offset_allocator.h" and "mmap_arena.h". A file that has the original header beside it finds that first: put
// `#include <kvmem/compat/mooncake_offset_allocator.hpp>` in the original's place.
//
// The interface is the same, and so is what it promises: any thread; nothing for a size of 0, one that is too large, or when
// `max_capacity - 1` allocations are alive; handles move, free themselves, and are safe after the allocator, when `isValid()` is false. What is
// different is better: sizes are not rounded up, nor offsets scaled, whatever the capacity; as many bytes as are free can be had if they lie
// together; the books grow with what is alive, so `init_capacity` is not needed; free ranges do not count against `max_capacity`.
// A promise that callers rely on: an allocator that nothing has been freed into hands out its ranges end to end, from the base up,
// whatever their sizes. So a store that restarts allocates the sizes of its objects in the order of their addresses, with a filler
// for each gap, and finds every object where it was. Requests that fail do not end the order; the first free does.
//
// What is not there, and what then fails to compile, is listed in docs/cpp.md: serialize_to,
// deserialize_from, snapshots, the inner class __Allocator, private members, and what the original
// includes.
#ifndef KVMEM_COMPAT_MOONCAKE_OFFSET_ALLOCATOR_HPP
#define KVMEM_COMPAT_MOONCAKE_OFFSET_ALLOCATOR_HPP

#include <algorithm>
#include <cstdint>
#include <iomanip>
#include <iterator>
#include <limits>
#include <memory>
#include <new>
#include <optional>
#include <ostream>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "../handle.hpp"

namespace mooncake::offset_allocator {

using uint8 = unsigned char;
using uint16 = unsigned short;
using uint32 = unsigned int;
using NodeIndex = uint32;

static constexpr uint32 NUM_TOP_BINS = 32;
static constexpr uint32 BINS_PER_LEAF = 8;
static constexpr uint32 TOP_BINS_INDEX_SHIFT = 3;
static constexpr uint32 LEAF_BINS_INDEX_MASK = 0x7;
static constexpr uint32 NUM_LEAF_BINS = NUM_TOP_BINS * BINS_PER_LEAF;

class OffsetAllocator;

/// A range by an offset and the index of its node, as `visit_used_nodes` says it. Frees nothing by
/// itself: an OffsetAllocationHandle made of it does.
struct OffsetAllocation {
    static constexpr uint32 NO_SPACE = 0xffffffff;

    OffsetAllocation(uint32 offset_param, NodeIndex metadata_param) noexcept
        : offset(offset_param), metadata(metadata_param) {}

    /// As it was given to the constructor.
    uint64_t getOffset() const { return offset; }

    /// Whether it names no range.
    bool isNoSpace() const { return offset == NO_SPACE; }

private:
    friend class OffsetAllocationHandle;

    uint32 offset;
    NodeIndex metadata;
};

struct OffsetAllocStorageReport {
    /// Bytes that are free; 0 when no more allocations may be made.
    uint64_t totalFreeSpace;
    /// The longest range that would be granted now; 0 when no more allocations may be made.
    uint64_t largestFreeRegion;
};

struct OffsetAllocStorageReportFull {
    struct Region {
        /// The least size in bytes of the free ranges that are counted here.
        uint64_t size;
        /// Free ranges of at least that size, and less than the next one's.
        uint64_t count;
    };

    /// By size, ascending: eight to a power of two, in units of `2^n` bytes, where `n` is the least with which the capacity is at most 3.75 GiB
    /// of them. The last 16 never count any: their sizes in units are beyond 32 bits, and are what is left of them there.
    Region freeRegions[NUM_LEAF_BINS];
};

struct OffsetAllocatorMetrics {
    /// Bytes in use.
    uint64_t allocated_size_;
    /// Allocations alive.
    uint64_t allocated_num_;
    /// As in OffsetAllocStorageReport.
    uint64_t largest_free_region_;
    /// As in OffsetAllocStorageReport.
    uint64_t total_free_space_;
    /// Bytes in all.
    const uint64_t capacity;
};

namespace detail {

/// A space with what handles have to know of it.
struct Base {
    uint64_t address = 0;
};

using Space = kvmem::detail::Shared<kvmem_offset_allocator, kvmem_offset_destroy, Base>;

/// Whether there is a range. A size of 0 and one that is too large are refused as if there were no room; what else fails is a defect, and thrown.
inline bool is_granted(kvmem_status status) {
    return status != KVMEM_ZERO_SIZE && kvmem::detail::granted(status);
}

/// Bytes as people say them: "1.50 GB".
inline std::string bytes_in_words(uint64_t bytes) {
    static constexpr const char *UNITS[] = {"B", "KB", "MB", "GB", "TB", "PB", "EB"};
    double value = static_cast<double>(bytes);
    size_t unit = 0;
    while (value >= 1024 && unit + 1 < std::size(UNITS)) {
        value /= 1024;
        ++unit;
    }
    std::ostringstream words;
    words << std::fixed << std::setprecision(unit == 0 ? 0 : 2) << value << ' ' << UNITS[unit];
    return words.str();
}

/// The least size of a bin, in units; of those beyond 32 bits the lower 32.
inline uint32 size_of_bin(uint32 bin) noexcept {
    const uint32 part = bin & LEAF_BINS_INDEX_MASK;
    const uint32 octave = bin >> TOP_BINS_INDEX_SHIFT;
    return octave == 0 ? part : (BINS_PER_LEAF + part) << (octave - 1);
}

/// The bin of a size in units: the last whose least size is not greater.
inline uint32 bin_of_size(uint64_t units) noexcept {
    if (units < BINS_PER_LEAF) {
        return static_cast<uint32>(units);
    }
    uint32 octave = 0;
    while (units >> octave >= 2 * BINS_PER_LEAF) {
        ++octave;
    }
    const uint32 part = static_cast<uint32>(units >> octave) & LEAF_BINS_INDEX_MASK;
    return ((octave + 1) << TOP_BINS_INDEX_SHIFT) | part;
}

} // namespace detail

/// A range of the allocator's space, freed when this goes, by any thread.
class OffsetAllocationHandle {
public:
    /// No range.
    OffsetAllocationHandle() noexcept = default;

    /// The range of `allocation`, at the address `base`, of `size` bytes as they were asked for. It
    /// is freed when this goes, unless another handle has freed it before. If no range is alive at
    /// its node, nothing is freed.
    OffsetAllocationHandle(std::shared_ptr<OffsetAllocator> allocator, OffsetAllocation allocation, uint64_t base,
                           uint64_t size);
    OffsetAllocationHandle(OffsetAllocationHandle &&other) noexcept
        : space_(std::move(other.space_)), range_(std::exchange(other.range_, {})) {}
    OffsetAllocationHandle &operator=(OffsetAllocationHandle &&other) noexcept {
        OffsetAllocationHandle taken(std::move(other));
        space_.swap(taken.space_);
        std::swap(range_, taken.range_);
        return *this;
    }
    OffsetAllocationHandle(const OffsetAllocationHandle &) = delete;
    OffsetAllocationHandle &operator=(const OffsetAllocationHandle &) = delete;
    ~OffsetAllocationHandle() {
        if (space_) {
            // Looks at the first three members only.
            kvmem_offset_free(space_->get(), &range_);
        }
    }

    /// Whether there is a range, and its allocator is still there.
    bool isValid() const { return space_ && space_->owned(); }

    /// The allocator's base and the offset.
    uint64_t address() const { return range_.offset; }

    void *ptr() const { return reinterpret_cast<void *>(address()); }

    /// The size, exactly as asked for.
    uint64_t size() const { return range_.bytes; }

private:
    friend class OffsetAllocator;

    /// A range that may have another handle too.
    void share(detail::Space *space, const kvmem_allocation &raw, uint64_t address, uint64_t size) noexcept {
        space->keep();
        kvmem::detail::Part<detail::Space>(space).swap(space_);
        range_ = raw;
        range_.offset = address;
        range_.bytes = size;
    }

    /// What was just granted is this one's now; how many there were before.
    uint64_t take(detail::Space *space, uint64_t size) noexcept {
        const uint64_t before = space->keep();
        kvmem::detail::Part<detail::Space>(space).swap(space_);
        range_.offset += space->with().address;
        range_.bytes = size;
        return before;
    }

    kvmem::detail::Part<detail::Space> space_;
    /// With the address in the place of the offset, and the size that was asked for.
    kvmem_allocation range_ = {};
};

inline std::ostream &operator<<(std::ostream &os, const OffsetAllocatorMetrics &metrics) {
    const double share = metrics.capacity == 0 ? 0.0
                                               : 100.0 * static_cast<double>(metrics.allocated_size_) /
                                                     static_cast<double>(metrics.capacity);
    std::ostringstream percent;
    percent << std::fixed << std::setprecision(1) << share;
    return os << "OffsetAllocatorMetrics{allocated=" << detail::bytes_in_words(metrics.allocated_size_)
              << ", allocs=" << metrics.allocated_num_
              << ", capacity=" << detail::bytes_in_words(metrics.capacity) << ", utilization=" << percent.str()
              << "%, free_space=" << detail::bytes_in_words(metrics.total_free_space_)
              << ", largest_free=" << detail::bytes_in_words(metrics.largest_free_region_) << "}";
}

/// Hands out ranges of `[base, base + size)` without touching them.
class OffsetAllocator : public std::enable_shared_from_this<OffsetAllocator> {
public:
    /// NULL if `size` is 0 or more than 2^63. At most `max(init_capacity, max_capacity) - 1` allocations are alive at a time. Addresses are multiples of
    /// `min_alignment_bytes` from `base`.
    static std::shared_ptr<OffsetAllocator> create(uint64_t base, size_t size,
                                                   uint32 init_capacity = 128 * 1024,
                                                   uint32 max_capacity = (1 << 20),
                                                   size_t min_alignment_bytes = 1) {
        const uint64_t unit = std::max<uint64_t>(min_alignment_bytes, 1);
        kvmem::detail::Owner<detail::Space> space(new detail::Space(detail::Base{base}));
        const kvmem_status status = kvmem_offset_create(size, nullptr, space->out());
        if (status == KVMEM_INVALID_ARGUMENT || status == KVMEM_ZERO_SIZE || status == KVMEM_TOO_LARGE) {
            return nullptr;
        }
        kvmem::detail::check(status);
        const uint32 most = std::max(init_capacity, max_capacity);
        return std::shared_ptr<OffsetAllocator>(
            new OffsetAllocator(std::move(space), size, unit, most == 0 ? 0 : most - 1));
    }

    OffsetAllocator(const OffsetAllocator &) = delete;
    OffsetAllocator &operator=(const OffsetAllocator &) = delete;
    OffsetAllocator(OffsetAllocator &&) = delete;
    OffsetAllocator &operator=(OffsetAllocator &&) = delete;
    ~OffsetAllocator() = default;

    /// A range of `size` bytes, or nothing. O(1).
    [[nodiscard]] std::optional<OffsetAllocationHandle> allocate(size_t size) {
        std::optional<OffsetAllocationHandle> handle;
        // 0 wraps around to the top. Before a call: such a space does not grow.
        if (size - 1 >= capacity_ || space_->parts() >= most_) {
            return handle;
        }
        // Written where it stays: a copy would wait for what was just written.
        handle.emplace();
        if (!detail::is_granted(kvmem_offset_allocate(space_->get(), normalized(size), &handle->range_))) {
            handle.reset();
            return handle;
        }
        // Exact, also if other threads have allocated since the first look.
        const uint64_t before = handle->take(space_.get(), size);
        if (before >= most_) {
            handle.reset();
        }
        return handle;
    }

    /// Bytes that `allocate(size)` takes; 0 if it never can be granted.
    [[nodiscard]] uint64_t normalizedAllocationSize(size_t size) const {
        const uint64_t length = normalized(size);
        return length <= capacity_ ? length : 0;
    }

    /// An upper bound of the longest range that would be granted now, without a lock.
    [[nodiscard]] uint64_t getLargestFreeRegion() const noexcept {
        uint64_t bytes = 0;
        kvmem_offset_largest_free_hint(space_->get(), &bytes);
        return bytes;
    }

    [[nodiscard]] OffsetAllocStorageReport storageReport() const {
        const OffsetAllocatorMetrics metrics = get_metrics();
        return {metrics.total_free_space_, metrics.largest_free_region_};
    }

    /// The free ranges by size. O(bins).
    [[nodiscard]] OffsetAllocStorageReportFull storageReportFull() const {
        uint32 shift = 0;
        while (capacity_ >> shift > MAX_BIN_UNITS) {
            ++shift;
        }
        OffsetAllocStorageReportFull report;
        for (uint32 bin = 0; bin < NUM_LEAF_BINS; ++bin) {
            report.freeRegions[bin] = {uint64_t{detail::size_of_bin(bin)} << shift, 0};
        }
        const auto bins =
            kvmem::detail::list<kvmem_bin>([&](kvmem_bin *found, uint64_t room, uint64_t *count) {
                return kvmem_offset_bins(space_->get(), found, room, count);
            });
        // kvmem's bins are finer, and none of them reaches over an edge of these.
        for (const kvmem_bin &bin : bins) {
            report.freeRegions[detail::bin_of_size(bin.min_bytes >> shift)].count += bin.ranges;
        }
        return report;
    }

    /// O(1).
    [[nodiscard]] OffsetAllocatorMetrics get_metrics() const {
        kvmem_metrics metrics;
        kvmem::detail::check(kvmem_offset_get_metrics(space_->get(), &metrics));
        const bool full = metrics.live >= most_;
        return {metrics.allocated_bytes, metrics.live, full ? 0 : metrics.largest_free_bytes,
                full ? 0 : metrics.free_bytes, metrics.capacity_bytes};
    }

    /// Calls `visit(address, bytes, node)` for each range that is in use, in the order of
    /// addresses: `bytes` is what it takes, as `normalizedAllocationSize` says. Ranges that other
    /// threads allocate or free meanwhile may be visited or not; `visit` may use the allocator. O(n
    /// log n).
    template <typename Visit>
    void visit_used_nodes(Visit &&visit) const {
        const auto used =
            kvmem::detail::list<kvmem_allocation>([&](kvmem_allocation *found, uint64_t room, uint64_t *count) {
                return kvmem_offset_allocations(space_->get(), found, room, count);
            });
        for (const kvmem_allocation &one : used) {
            visit(space_->with().address + one.offset, one.bytes, NodeIndex{one.slot});
        }
    }

    /// A handle of the range in use at a node, if it begins at `address` and takes what `size`
    /// bytes take; else nothing. The range is freed with the first of its handles that goes. O(1).
    [[nodiscard]] std::optional<OffsetAllocationHandle> createHandleAtNode(NodeIndex node_index, uint64_t address,
                                                                           uint64_t size) {
        kvmem_allocation raw;
        const kvmem_status status = kvmem_offset_allocation_at(space_->get(), node_index, &raw);
        if (status == KVMEM_NOT_FOUND) {
            return std::nullopt;
        }
        kvmem::detail::check(status);
        if (size == 0 || space_->with().address + raw.offset != address || raw.bytes != normalized(size)) {
            return std::nullopt;
        }
        std::optional<OffsetAllocationHandle> handle(std::in_place);
        handle->share(space_.get(), raw, address, size);
        return handle;
    }

private:
    friend class OffsetAllocationHandle;

    /// Of what is 3.75 GiB if units are bytes.
    static constexpr uint64_t MAX_BIN_UNITS = 4026531840;

    OffsetAllocator(kvmem::detail::Owner<detail::Space> space, uint64_t capacity, uint64_t unit, uint64_t most)
        : space_(std::move(space)), capacity_(capacity), unit_(unit), most_(most) {}

    /// `size` in whole units; what is too large for that stays too large.
    uint64_t normalized(uint64_t size) const noexcept {
        if (unit_ == 1) {
            return size;
        }
        const uint64_t over = size % unit_;
        if (over == 0) {
            return size;
        }
        return size > std::numeric_limits<uint64_t>::max() - unit_ ? size : size - over + unit_;
    }

    kvmem::detail::Owner<detail::Space> space_;
    uint64_t capacity_;
    /// Every range is a multiple of it, and so every address.
    uint64_t unit_;
    /// As many allocations may be alive.
    uint64_t most_;
};

inline OffsetAllocationHandle::OffsetAllocationHandle(std::shared_ptr<OffsetAllocator> allocator,
                                                      OffsetAllocation allocation, uint64_t base, uint64_t size) {
    kvmem_allocation raw = {};
    if (allocator) {
        if (!allocation.isNoSpace()) {
            const kvmem_status status =
                kvmem_offset_allocation_at(allocator->space_->get(), allocation.metadata, &raw);
            if (status != KVMEM_NOT_FOUND) {
                kvmem::detail::check(status);
            }
        }
        share(allocator->space_.get(), raw, base, size);
    }
    range_.offset = base;
    range_.bytes = size;
}

} // namespace mooncake::offset_allocator

#endif
