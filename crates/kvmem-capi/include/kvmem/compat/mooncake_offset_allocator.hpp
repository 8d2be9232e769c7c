// Mooncake's offset allocator on kvmem: programs that use
// mooncake::offset_allocator::OffsetAllocator compile unchanged and run on kvmem's.
// https://www.apache.org/licenses/LICENSE-2.0
//
// With `-I <prefix>/include/kvmem/compat/mooncake` the programs' includes work too:
// "offset_allocator/offset_allocator.hpp", "offset_allocator/offset_allocator.h" and
// "mmap_arena.h". If the original header lies beside the including file, the compiler finds the
// original first: replace it with `#include <kvmem/compat/mooncake_offset_allocator.hpp>`.
//
// Same as the original: any thread may call. `allocate` returns nothing for a size of 0, for a size
// that is too large, or when `max_capacity - 1` allocations are live. Handles can be moved, free
// themselves, and are safe after the allocator is destroyed; `isValid()` is then false.
//
// Better than the original: sizes are not rounded up and offsets not scaled, for any capacity. All
// contiguous free bytes can be allocated. Metadata grows with the live allocations, so
// `init_capacity` is not needed. Free ranges do not count against `max_capacity`.
//
// A promise for callers: until the first free, an allocator places ranges end to end, from the base
// up, whatever their sizes. A store that restarts allocates the sizes of its objects in address
// order, with a filler for each gap, and gets every object at its old address. Requests that fail
// do not change the order; the first free ends it.
//
// docs/cpp.md lists differences, and what does not compile: snapshots by CaptureSnapshot, the inner
// class __Allocator, private members, and the original's includes.
#ifndef KVMEM_COMPAT_MOONCAKE_OFFSET_ALLOCATOR_HPP
#define KVMEM_COMPAT_MOONCAKE_OFFSET_ALLOCATOR_HPP

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdint>
#include <iomanip>
#include <iterator>
#include <limits>
#include <memory>
#include <mutex>
#include <new>
#include <optional>
#include <ostream>
#include <sstream>
#include <stdexcept>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "../handle.hpp"

namespace mooncake {

/// Declared for programs that specialize it; this header does not.
template <typename T>
class Serializer;

} // namespace mooncake

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
/// Declared only: there is no inner class.
class __Allocator;

/// A range by its offset and the index of its node, as `visit_used_nodes` reports it. It frees
/// nothing by itself; an OffsetAllocationHandle made of it does.
struct OffsetAllocation {
    static constexpr uint32 NO_SPACE = 0xffffffff;

    OffsetAllocation(uint32 offset_param, NodeIndex metadata_param) noexcept
        : offset(offset_param), metadata(metadata_param) {}

    /// The offset that was passed to the constructor.
    uint64_t getOffset() const { return offset; }

    /// Returns whether it names no range.
    bool isNoSpace() const { return offset == NO_SPACE; }

private:
    friend class OffsetAllocationHandle;

    uint32 offset;
    NodeIndex metadata;
};

struct OffsetAllocStorageReport {
    /// Free bytes; 0 when no more allocations may be made.
    uint64_t totalFreeSpace;
    /// The longest range that can be allocated now; 0 when no more allocations may be made.
    uint64_t largestFreeRegion;
};

struct OffsetAllocStorageReportFull {
    struct Region {
        /// The smallest size in bytes of the free ranges counted here.
        uint64_t size;
        /// Number of free ranges of at least that size, and less than the size of the next region.
        uint64_t count;
    };

    /// By size, ascending: eight regions for each power of two, in units of `2^n` bytes. `n` is the
    /// smallest number for which the capacity is at most 3.75 GiB units. The last 16 are always
    /// empty: their sizes in units exceed 32 bits, and are truncated.
    Region freeRegions[NUM_LEAF_BINS];
};

struct OffsetAllocatorMetrics {
    /// Bytes in use.
    uint64_t allocated_size_;
    /// Live allocations.
    uint64_t allocated_num_;
    /// As `largestFreeRegion` of OffsetAllocStorageReport.
    uint64_t largest_free_region_;
    /// As `totalFreeSpace` of OffsetAllocStorageReport.
    uint64_t total_free_space_;
    /// Total bytes.
    const uint64_t capacity;
};

namespace detail {

using Space = kvmem::detail::Handle<kvmem_offset_allocator, kvmem_offset_allocator_destroy>;

/// Returns whether a range was allocated. A size of 0 and one that is too large count as "no
/// space"; other failures are defects and throw.
inline bool is_allocated(kvmem_status status) {
    return status != KVMEM_ERR_ZERO_SIZE && kvmem::detail::allocated(status);
}

/// Returns the handle of an allocation, as in kvmem_space_range.
inline uint64_t handle_of(const kvmem_allocation &one) noexcept {
    return uint64_t{one.slot} << 32 | one.generation;
}

/// Formats bytes for people: "1.50 GB".
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

/// Returns the smallest size of a bin, in units, truncated to 32 bits.
inline uint32 size_of_bin(uint32 bin) noexcept {
    const uint32 part = bin & LEAF_BINS_INDEX_MASK;
    const uint32 octave = bin >> TOP_BINS_INDEX_SHIFT;
    return octave == 0 ? part : (BINS_PER_LEAF + part) << (octave - 1);
}

/// Returns the bin of a size in units: the last one whose smallest size is not greater.
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

/// The first word of a serialized allocator, in the byte order of the machine. Its last byte is the
/// version of the format.
inline constexpr uint64_t SNAPSHOT_MAGIC = 0x6b766d656d4f4101;

/// The words of a serialized allocator before its ranges.
struct SnapshotHeader {
    uint64_t magic;
    uint64_t base;
    uint64_t capacity;
    uint64_t unit;
    /// The largest number of live allocations.
    uint64_t limit;
    /// 1 if the allocator has magazines, otherwise 0.
    uint64_t magazines;
    /// Ranges in use.
    uint64_t count;
    /// Pairs of words that follow: `count` offsets and lengths, then zeros.
    uint64_t slots;
};

/// Checksum of words. A change of one word always changes it.
class SnapshotChecksum {
public:
    void add(const uint64_t *words, size_t count) noexcept {
        for (size_t at = 0; at < count; ++at) {
            sum_ = (sum_ ^ words[at]) * 0x9e3779b97f4a7c15;
            sum_ ^= sum_ >> 29;
        }
    }
    uint64_t sum() const noexcept { return sum_; }

private:
    uint64_t sum_ = SNAPSHOT_MAGIC;
};

/// Throws if a serialized allocator begins as one of another version of the format does.
inline void require_version(uint64_t magic) {
    const uint64_t version = magic & 0xff, known = SNAPSHOT_MAGIC & 0xff;
    if (magic != SNAPSHOT_MAGIC && magic >> 8 == SNAPSHOT_MAGIC >> 8) {
        throw std::runtime_error("Deserializing OffsetAllocator failed: it has version " +
                                 std::to_string(version) + ", and this library reads version " +
                                 std::to_string(known) + ": use the " +
                                 (version > known ? "newer" : "older") + " kvmem that wrote it");
    }
}

/// Throws unless `holds`.
inline void require(bool holds, const char *what) {
    if (!holds) {
        throw std::runtime_error(std::string("Deserializing OffsetAllocator failed: ") + what);
    }
}

} // namespace detail

/// A range of the allocator's space; the destructor frees it. Any thread may destroy it.
class OffsetAllocationHandle {
public:
    /// Makes an empty handle.
    OffsetAllocationHandle() noexcept = default;

    /// Makes a handle of the range of `allocation`, at the address `base`, of `size` bytes as
    /// requested. The destructor frees it, unless another handle has freed it before. If no range
    /// is live at its node, nothing is freed.
    OffsetAllocationHandle(std::shared_ptr<OffsetAllocator> allocator, OffsetAllocation allocation,
                           uint64_t base, uint64_t size);
    OffsetAllocationHandle(OffsetAllocationHandle &&other) noexcept
        : space_(std::exchange(other.space_, {})), handle_(std::exchange(other.handle_, 0)),
          address_(std::exchange(other.address_, 0)), size_(std::exchange(other.size_, 0)) {}
    OffsetAllocationHandle &operator=(OffsetAllocationHandle &&other) noexcept {
        OffsetAllocationHandle taken(std::move(other));
        std::swap(space_, taken.space_);
        std::swap(handle_, taken.handle_);
        std::swap(address_, taken.address_);
        std::swap(size_, taken.size_);
        return *this;
    }
    OffsetAllocationHandle(const OffsetAllocationHandle &) = delete;
    OffsetAllocationHandle &operator=(const OffsetAllocationHandle &) = delete;
    ~OffsetAllocationHandle() {
        if (handle_ != 0) {
            // Safe after the allocator is gone.
            kvmem_space_free(space_, handle_);
        }
    }

    /// Returns whether this holds a range whose allocator still exists.
    bool isValid() const {
        return space_.allocator != 0 && kvmem_space_exists(space_) == KVMEM_OK;
    }

    /// The allocator's base plus the offset.
    uint64_t address() const { return address_; }

    void *ptr() const { return reinterpret_cast<void *>(address()); }

    /// The size, exactly as requested.
    uint64_t size() const { return size_; }

    /// Leaves the range in use and makes this handle empty; returns the address. Serialized
    /// allocators contain the range; `createHandleAtNode` makes a handle of it again. The original
    /// lacks this function.
    uint64_t release() noexcept {
        space_ = {};
        handle_ = 0;
        size_ = 0;
        return std::exchange(address_, 0);
    }

private:
    friend class OffsetAllocator;

    /// A handle of a range that may have another one, or of none if `handle` is 0.
    OffsetAllocationHandle(const kvmem_space &space, uint64_t handle, uint64_t address,
                           uint64_t size) noexcept
        : space_(space), handle_(handle), address_(address), size_(size) {}

    /// The space; without one, the number of its allocator is 0.
    kvmem_space space_ = {};
    /// As in kvmem_space_range. 0: nothing to free.
    uint64_t handle_ = 0;
    uint64_t address_ = 0;
    /// As requested.
    uint64_t size_ = 0;
};

inline std::ostream &operator<<(std::ostream &os, const OffsetAllocatorMetrics &metrics) {
    const double share = metrics.capacity == 0
                             ? 0.0
                             : 100.0 * static_cast<double>(metrics.allocated_size_) /
                                   static_cast<double>(metrics.capacity);
    std::ostringstream percent;
    percent << std::fixed << std::setprecision(1) << share;
    return os << "OffsetAllocatorMetrics{allocated="
              << detail::bytes_in_words(metrics.allocated_size_)
              << ", allocs=" << metrics.allocated_num_
              << ", capacity=" << detail::bytes_in_words(metrics.capacity)
              << ", utilization=" << percent.str()
              << "%, free_space=" << detail::bytes_in_words(metrics.total_free_space_)
              << ", largest_free=" << detail::bytes_in_words(metrics.largest_free_region_) << "}";
}

/// Allocates ranges of `[base, base + size)` without touching them.
class OffsetAllocator : public std::enable_shared_from_this<OffsetAllocator> {
public:
    /// Returns NULL if `size` is 0 or more than 2^63. At most `max(init_capacity, max_capacity) -
    /// 1` allocations are live at a time. Addresses are multiples of `min_alignment_bytes` from
    /// `base`. `placement` is a KVMEM_PLACEMENT of kvmem.h; an unknown one returns NULL.
    static std::shared_ptr<OffsetAllocator> create(uint64_t base, size_t size,
                                                   uint32 init_capacity = 128 * 1024,
                                                   uint32 max_capacity = (1 << 20),
                                                   size_t min_alignment_bytes = 1,
                                                   uint32 placement = KVMEM_PLACEMENT_RENEWAL) {
        return make(base, size, init_capacity, max_capacity, min_alignment_bytes, placement, 0);
    }

    /// As `create`, which the original has, for programs whose threads allocate at the same time:
    /// sizes that come again and again are served from each thread's own magazines, without a lock.
    /// No size is before the first free; see the promise above. Ranges in magazines count against
    /// the limit of live allocations until a request needs them back.
    static std::shared_ptr<OffsetAllocator>
    create_with_magazines(uint64_t base, size_t size, uint32 init_capacity = 128 * 1024,
                          uint32 max_capacity = (1 << 20), size_t min_alignment_bytes = 1,
                          uint32 placement = KVMEM_PLACEMENT_RENEWAL) {
        return make(base, size, init_capacity, max_capacity, min_alignment_bytes, placement, 1);
    }

    OffsetAllocator(const OffsetAllocator &) = delete;
    OffsetAllocator &operator=(const OffsetAllocator &) = delete;
    OffsetAllocator(OffsetAllocator &&) = delete;
    OffsetAllocator &operator=(OffsetAllocator &&) = delete;
    ~OffsetAllocator() = default;

    /// Allocates `size` bytes, or returns nothing. O(1). While no size comes again and again, a
    /// request that no free range can satisfy costs three loads and no call; kvmem_last_error()
    /// does not know of it.
    [[nodiscard]] std::optional<OffsetAllocationHandle> allocate(size_t size) {
        // A size of 0 wraps around to the largest number. The bound never exceeds the capacity, and
        // covers every free that happened before this call. With the same even epoch before and
        // after, nothing was cached when the bound was loaded; the acquire loads keep the order.
        const uint32_t epoch = __atomic_load_n(epoch_, __ATOMIC_ACQUIRE);
        if (size - 1 >= __atomic_load_n(largest_free_, __ATOMIC_ACQUIRE) && epoch % 2 == 0 &&
            __atomic_load_n(epoch_, __ATOMIC_RELAXED) == epoch) {
            return std::nullopt;
        }
        return allocate_from_space(size);
    }

    /// Returns the bytes that `allocate(size)` takes; 0 if it can never succeed.
    [[nodiscard]] uint64_t normalizedAllocationSize(size_t size) const {
        const uint64_t length = normalized(size);
        return length <= capacity_ ? length : 0;
    }

    /// Returns an upper bound of the longest range that can be allocated now. Takes no lock. While
    /// ranges are in magazines, the bound is the sum of all free bytes.
    [[nodiscard]] uint64_t getLargestFreeRegion() const noexcept {
        uint64_t bytes = 0;
        kvmem_offset_allocator_largest_free_hint(owner_.get(), &bytes);
        return bytes;
    }

    /// As `get_metrics`.
    [[nodiscard]] OffsetAllocStorageReport storageReport() const {
        const OffsetAllocatorMetrics metrics = get_metrics();
        return {metrics.total_free_space_, metrics.largest_free_region_};
    }

    /// Returns the free ranges by size. O(bins).
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
                return kvmem_offset_allocator_bins(owner_.get(), found, room, count);
            });
        // kvmem's bins are finer, and none of them crosses the edge of a region here.
        for (const kvmem_bin &bin : bins) {
            report.freeRegions[detail::bin_of_size(bin.min_bytes >> shift)].count += bin.ranges;
        }
        return report;
    }

    /// Takes back the ranges in magazines, so that `largest_free_region_` counts them with their
    /// neighbours. O(those ranges).
    [[nodiscard]] OffsetAllocatorMetrics get_metrics() const {
        kvmem::detail::check(kvmem_offset_allocator_trim(owner_.get()));
        kvmem_metrics metrics;
        kvmem::detail::check(kvmem_offset_allocator_get_metrics(owner_.get(), &metrics));
        const bool full = metrics.live >= max_allocations_;
        return {metrics.allocated, metrics.live, full ? 0 : metrics.largest_free,
                full ? 0 : metrics.free, metrics.capacity};
    }

    /// Calls `visit(address, bytes, node)` for each range in use, in address order. `bytes` is the
    /// size of the range, as `normalizedAllocationSize` returns it. Ranges that other threads
    /// allocate or free meanwhile may be visited or not. `visit` may use the allocator. O(n log n).
    template <typename Visit>
    void visit_used_nodes(Visit &&visit) const {
        const auto used = kvmem::detail::list<kvmem_allocation>(
            [&](kvmem_allocation *found, uint64_t room, uint64_t *count) {
                return kvmem_offset_allocator_allocations(owner_.get(), found, room, count);
            });
        for (const kvmem_allocation &one : used) {
            visit(base_ + one.offset, one.bytes, NodeIndex{one.slot});
        }
    }

    /// Makes a handle of the range in use at a node, if it begins at `address` and has the
    /// normalized size of `size`; otherwise returns nothing. The first of a range's handles that is
    /// destroyed frees it. O(1).
    [[nodiscard]] std::optional<OffsetAllocationHandle>
    createHandleAtNode(NodeIndex node_index, uint64_t address, uint64_t size) {
        kvmem_allocation raw;
        const kvmem_status status =
            kvmem_offset_allocator_allocation_at(owner_.get(), node_index, &raw);
        if (status == KVMEM_ERR_NOT_FOUND) {
            return std::nullopt;
        }
        kvmem::detail::check(status);
        if (size == 0 || base_ + raw.offset != address ||
            raw.bytes != normalized(size)) {
            return std::nullopt;
        }
        forget_restored(address);
        return OffsetAllocationHandle(space_, detail::handle_of(raw), address, size);
    }

    /// Makes a handle of the range that `deserialize_from` has restored at `address`, if it has the
    /// normalized size of `size` and no handle was made of it before; otherwise returns nothing.
    /// For programs that store addresses and sizes, but no nodes. O(1) amortized. The original
    /// lacks this function.
    [[nodiscard]] std::optional<OffsetAllocationHandle> createHandleAt(uint64_t address,
                                                                       uint64_t size) {
        const std::lock_guard<std::mutex> lock(restored_mutex_);
        const auto found = restored_.find(address);
        if (found == restored_.end() || size == 0) {
            return std::nullopt;
        }
        kvmem_allocation raw;
        const kvmem_status status = kvmem_offset_allocator_allocation_at(
            owner_.get(), static_cast<uint32>(found->second >> 32), &raw);
        if (status != KVMEM_ERR_NOT_FOUND) {
            kvmem::detail::check(status);
        }
        if (status != KVMEM_OK || detail::handle_of(raw) != found->second) {
            restored_.erase(found);
            return std::nullopt;
        }
        if (raw.bytes != normalized(size)) {
            return std::nullopt;
        }
        restored_.erase(found);
        return OffsetAllocationHandle(space_, detail::handle_of(raw), address, size);
    }

    /// Writes the allocator: base, capacity, unit, limit, and the ranges in use, with a checksum.
    /// The format is kvmem's own. Calls `serializer.write(address, bytes)`. Ranges that other
    /// threads allocate or free meanwhile may be written or not. Several calls write the same
    /// number of bytes unless the allocator grows by a quarter between them. O(n log n).
    template <typename T>
    void serialize_to(T &serializer) const {
        const auto used = kvmem::detail::list<kvmem_allocation>(
            [&](kvmem_allocation *found, uint64_t room, uint64_t *count) {
                return kvmem_offset_allocator_allocations(owner_.get(), found, room, count);
            });
        std::vector<uint64_t> pairs;
        pairs.reserve(2 * used.size());
        uint64_t end = 0;
        for (const kvmem_allocation &one : used) {
            // With magazines, the list may have a range that was freed meanwhile, and another one
            // that was then allocated in its place.
            if (one.offset >= end) {
                pairs.insert(pairs.end(), {one.offset, one.bytes});
                end = one.offset + one.bytes;
            }
        }
        const uint64_t count = pairs.size() / 2;
        const uint64_t slots = snapshot_slots(count);
        // As in SnapshotHeader.
        std::vector<uint64_t> words = {
            detail::SNAPSHOT_MAGIC, base_,      capacity_, unit_,
            max_allocations_,       magazines_, count,     slots,
        };
        words.reserve(words.size() + 2 * slots + 1);
        words.insert(words.end(), pairs.begin(), pairs.end());
        words.resize(words.size() + 2 * (slots - count));
        detail::SnapshotChecksum checksum;
        checksum.add(words.data(), words.size());
        words.push_back(checksum.sum());
        serializer.write(words.data(), words.size() * sizeof words[0]);
    }

    /// Reads an allocator that `serialize_to` has written. All its ranges are in use, and have no
    /// handles: `createHandleAt` and `createHandleAtNode` make them. Calls
    /// `serializer.read(address, bytes)`, which throws at the end of the data; passes its
    /// exceptions on. Throws a std::runtime_error if the data is damaged, was written by the
    /// original, or has another version of the format. The
    /// placement is the default one. O(n).
    template <typename T>
    static std::shared_ptr<OffsetAllocator> deserialize_from(T &serializer) {
        detail::SnapshotHeader header = {};
        serializer.read(&header, sizeof header);
        detail::require_version(header.magic);
        detail::require(header.magic == detail::SNAPSHOT_MAGIC, "unknown format");
        detail::require(header.count <= header.slots, "more ranges than slots");
        // Read in pieces: memory is taken only for bytes that are there.
        detail::SnapshotChecksum checksum;
        checksum.add(&header.magic, sizeof header / sizeof header.magic);
        std::vector<uint64_t> words;
        std::array<uint64_t, 1024> piece = {};
        for (uint64_t left = header.slots; left > 0;) {
            const uint64_t pairs = std::min<uint64_t>(left, piece.size() / 2);
            serializer.read(piece.data(), 2 * pairs * sizeof piece[0]);
            checksum.add(piece.data(), 2 * pairs);
            const uint64_t missing = 2 * header.count - words.size();
            const auto end = piece.begin() + static_cast<std::ptrdiff_t>(
                                                 std::min<uint64_t>(missing, 2 * pairs));
            words.insert(words.end(), piece.begin(), end);
            left -= pairs;
        }
        uint64_t sum = 0;
        serializer.read(&sum, sizeof sum);
        detail::require(sum == checksum.sum(), "the checksum does not match");
        return restore(header, words);
    }

private:
    friend class OffsetAllocationHandle;

    /// 3.75 GiB, in units.
    static constexpr uint64_t MAX_BIN_UNITS = 4026531840;

    OffsetAllocator(detail::Space owner, const kvmem_space &space, uint64_t base, uint64_t capacity,
                    uint64_t unit, uint64_t max_allocations, const uint64_t *largest_free,
                    const uint32_t *epoch, uint64_t magazines)
        : largest_free_(largest_free), epoch_(epoch), unit_(unit), space_(space),
          max_allocations_(max_allocations), base_(base), capacity_(capacity),
          owner_(std::move(owner)), magazines_(magazines) {}

    static std::shared_ptr<OffsetAllocator> make(uint64_t base, size_t size, uint32 init_capacity,
                                                 uint32 max_capacity, size_t min_alignment_bytes,
                                                 uint32 placement, uint32 magazines) {
        const uint64_t unit = std::max<uint64_t>(min_alignment_bytes, 1);
        kvmem_offset_allocator_options options;
        kvmem::detail::check(kvmem_offset_allocator_options_init(&options, sizeof options));
        options.placement = placement;
        options.magazines = magazines;
        options.auto_hot_sizes = KVMEM_AUTO_HOT_SIZES_AFTER_FIRST_FREE;
        kvmem_offset_allocator *created = nullptr;
        const kvmem_status status = kvmem_offset_allocator_create(size, &options, &created);
        detail::Space owner(created);
        if (status == KVMEM_ERR_INVALID_ARGUMENT || status == KVMEM_ERR_ZERO_SIZE ||
            status == KVMEM_ERR_TOO_LARGE) {
            return nullptr;
        }
        kvmem::detail::check(status);
        const uint64_t *largest_free = nullptr;
        const uint32_t *epoch = nullptr;
        kvmem::detail::check(
            kvmem_offset_allocator_largest_free_address(created, &largest_free, &epoch));
        kvmem_space space;
        kvmem::detail::check(kvmem_offset_allocator_space(created, &space));
        const uint32 limit = std::max(init_capacity, max_capacity);
        return std::shared_ptr<OffsetAllocator>(
            new OffsetAllocator(std::move(owner), space, base, size, unit,
                                limit == 0 ? 0 : limit - 1, largest_free, epoch, magazines));
    }

    /// Makes the allocator of a header and its ranges: pairs of offset and length.
    static std::shared_ptr<OffsetAllocator> restore(const detail::SnapshotHeader &header,
                                                    const std::vector<uint64_t> &words) {
        detail::require(header.unit > 0 && header.magazines <= 1 &&
                            header.limit < std::numeric_limits<uint32>::max(),
                        "invalid header");
        uint64_t end = 0;
        for (size_t at = 0; at < words.size(); at += 2) {
            const uint64_t offset = words[at];
            const uint64_t bytes = words[at + 1];
            detail::require(offset >= end && offset <= header.capacity && bytes > 0 &&
                                bytes <= header.capacity - offset && offset % header.unit == 0 &&
                                bytes % header.unit == 0,
                            "invalid range");
            end = offset + bytes;
        }
        const auto made = make(header.base, header.capacity, 1,
                               static_cast<uint32>(header.limit + 1), header.unit,
                               KVMEM_PLACEMENT_RENEWAL, static_cast<uint32>(header.magazines));
        detail::require(made != nullptr, "invalid capacity");
        made->place(words);
        return made;
    }

    /// Places ranges at their offsets in this new allocator: until the first free, ranges lie end
    /// to end, so a filler takes each gap until all are placed. O(n).
    void place(const std::vector<uint64_t> &words) {
        kvmem_offset_allocator *space = owner_.get();
        std::vector<kvmem_allocation> fillers;
        uint64_t end = 0;
        const auto append = [&](uint64_t bytes) {
            kvmem_allocation placed;
            kvmem::detail::check(kvmem_offset_allocator_allocate(space, bytes, &placed));
            detail::require(placed.offset == end, "a range is placed elsewhere");
            end += bytes;
            return placed;
        };
        restored_.reserve(words.size() / 2);
        for (size_t at = 0; at < words.size(); at += 2) {
            if (words[at] > end) {
                fillers.push_back(append(words[at] - end));
            }
            const uint64_t address = base_ + words[at];
            restored_.emplace(address, detail::handle_of(append(words[at + 1])));
        }
        if (!fillers.empty()) {
            kvmem::detail::check(kvmem_offset_allocator_free_batch(space, fillers.data(),
                                                                   fillers.size(), nullptr));
        }
        kvmem::detail::check(kvmem_offset_allocator_trim(space));
    }

    /// Returns the number of slots for `count` ranges, with room for more. Never less than before,
    /// so a program may measure first and write then.
    uint64_t snapshot_slots(uint64_t count) const noexcept {
        uint64_t slots = snapshot_slots_.load(std::memory_order_relaxed);
        while (slots < count || slots == 0) {
            const uint64_t more = count + count / 4 + 64;
            if (snapshot_slots_.compare_exchange_weak(slots, more, std::memory_order_relaxed)) {
                return more;
            }
        }
        return slots;
    }

    /// Removes a range from those of which `createHandleAt` makes handles.
    void forget_restored(uint64_t address) {
        const std::lock_guard<std::mutex> lock(restored_mutex_);
        restored_.erase(address);
    }

    /// Allocates through the C interface. Not inlined, so requests that fail early save no
    /// registers for it.
    __attribute__((noinline)) std::optional<OffsetAllocationHandle>
    allocate_from_space(size_t size) {
        // Space, result and handle travel in registers: through memory, each word would be written
        // and read once more.
        const kvmem_space_range range =
            kvmem_space_allocate(space_, normalized(size), max_allocations_);
        if (range.handle == 0) {
            // "No space" is not an error, and any other status throws.
            detail::is_allocated(static_cast<kvmem_status>(range.offset));
            return std::nullopt;
        }
        return OffsetAllocationHandle(space_, range.handle, base_ + range.offset, size);
    }

    /// Rounds `size` up to whole units. A size that is too large for that stays too large.
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

    /// An upper bound of the longest free range. Written by the library.
    const uint64_t *largest_free_;
    /// Even while no range is in a magazine. Written by the library.
    const uint32_t *epoch_;
    /// Every range's length, and every offset, is a multiple of it.
    uint64_t unit_;
    kvmem_space space_;
    /// The largest number of live allocations.
    uint64_t max_allocations_;
    /// The address of offset 0.
    uint64_t base_;
    uint64_t capacity_;
    detail::Space owner_;
    /// 1 if the space has magazines, otherwise 0.
    uint64_t magazines_;
    /// The largest number of slots that was ever serialized.
    mutable std::atomic<uint64_t> snapshot_slots_{0};
    std::mutex restored_mutex_;
    /// Restored ranges without a handle: their addresses, and their handles as in
    /// kvmem_space_range.
    std::unordered_map<uint64_t, uint64_t> restored_;
};

inline OffsetAllocationHandle::OffsetAllocationHandle(std::shared_ptr<OffsetAllocator> allocator,
                                                      OffsetAllocation allocation, uint64_t base,
                                                      uint64_t size) {
    address_ = base;
    size_ = size;
    if (!allocator) {
        return;
    }
    space_ = allocator->space_;
    if (allocation.isNoSpace()) {
        return;
    }
    kvmem_allocation raw;
    const kvmem_status status = kvmem_offset_allocator_allocation_at(
        allocator->owner_.get(), allocation.metadata, &raw);
    if (status != KVMEM_ERR_NOT_FOUND) {
        kvmem::detail::check(status);
        handle_ = detail::handle_of(raw);
        allocator->forget_restored(allocator->base_ + raw.offset);
    }
}

} // namespace mooncake::offset_allocator

#endif
