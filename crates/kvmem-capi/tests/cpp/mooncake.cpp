// Mooncake's offset allocator on kvmem, used as by programs that were written for Mooncake: its
// include, its names and its promises.
#include "offset_allocator/offset_allocator.hpp"
// The other name of the header.
#include "offset_allocator/offset_allocator.h"

#include <atomic>
#include <cstring>
#include <map>
#include <random>
#include <sstream>
#include <stdexcept>
#include <thread>
#include <vector>

#include "check.hpp"

using namespace mooncake::offset_allocator;

static_assert(NUM_TOP_BINS == 32 && BINS_PER_LEAF == 8 && TOP_BINS_INDEX_SHIFT == 3);
static_assert(LEAF_BINS_INDEX_MASK == 7 && NUM_LEAF_BINS == 256);
static_assert(std::is_same_v<uint32, unsigned int> && std::is_same_v<NodeIndex, uint32>);
static_assert(OffsetAllocation::NO_SPACE == 0xffffffff);
static_assert(moves_only<OffsetAllocationHandle> &&
              std::is_default_constructible_v<OffsetAllocationHandle>);
static_assert(!std::is_move_constructible_v<OffsetAllocator> &&
              !std::is_copy_constructible_v<OffsetAllocator>);
static_assert(
    std::is_same_v<decltype(OffsetAllocator::create(0, 1)), std::shared_ptr<OffsetAllocator>>);

constexpr size_t GIB = size_t{1} << 30;

/// Whether allocators are made with magazines.
static bool magazines = false;

static std::shared_ptr<OffsetAllocator> make(uint64_t base, size_t size,
                                             uint32 init_capacity = 128 * 1024,
                                             uint32 max_capacity = 1 << 20,
                                             size_t min_alignment_bytes = 1,
                                             uint32 placement = KVMEM_PLACEMENT_RENEWAL) {
    const auto create =
        magazines ? OffsetAllocator::create_with_magazines : OffsetAllocator::create;
    return create(base, size, init_capacity, max_capacity, min_alignment_bytes, placement);
}

static void handles() {
    auto allocator = make(0x1000, GIB, 1000, 1000);
    auto whole = allocator->allocate(GIB);
    CHECK(whole.has_value() && whole->isValid() && whole->address() == 0x1000 &&
          whole->size() == GIB);
    CHECK(whole->ptr() == reinterpret_cast<void *>(0x1000));
    CHECK(!allocator->allocate(1).has_value());
    whole.reset();
    whole = allocator->allocate(GIB);
    CHECK(whole.has_value());
    whole = std::nullopt;

    CHECK(!allocator->allocate(0).has_value() && !allocator->allocate(GIB + 1).has_value());
    CHECK(!allocator->allocate(SIZE_MAX).has_value());

    OffsetAllocationHandle none;
    CHECK(!none.isValid() && none.address() == 0 && none.size() == 0 && none.ptr() == nullptr);
    auto handle = allocator->allocate(1023);
    OffsetAllocationHandle moved(std::move(*handle));
    CHECK(!handle->isValid() && moved.isValid() && moved.size() == 1023);
    handle.reset();
    CHECK(allocator->get_metrics().allocated_num_ == 1);
    move_to_itself(moved);
    CHECK(moved.isValid() && moved.size() == 1023);
    none = std::move(moved);
    CHECK(none.isValid() && !moved.isValid());
    // The assignment frees the old range.
    none = std::move(*allocator->allocate(7));
    CHECK(allocator->get_metrics().allocated_num_ == 1 &&
          allocator->get_metrics().allocated_size_ == 7);
    std::vector<OffsetAllocationHandle> many;
    for (int i = 0; i < 100; ++i) {
        many.push_back(std::move(*allocator->allocate(1000)));
    }
    std::swap(many[0], many.back());
    many.clear();
    CHECK(allocator->get_metrics().allocated_num_ == 1);

    // The handle outlives the allocator.
    const uint64_t address = none.address();
    allocator.reset();
    CHECK(!none.isValid() && none.address() == address && none.size() == 7);
    // The next allocator may have the number of the one that is gone. The old handle is not its.
    auto next = make(address, 10);
    auto all = next->allocate(10);
    CHECK(!none.isValid() && all->isValid());
    none = OffsetAllocationHandle();
    CHECK(all->isValid() && next->get_metrics().allocated_num_ == 1);
}

/// Handles are destroyed while another thread destroys their allocator and makes another one.
static void destroyed_beside_the_allocator() {
    for (int round = 0; round < rounds(50); ++round) {
        auto allocator = make(0, GIB);
        std::vector<OffsetAllocationHandle> handles;
        for (int i = 0; i < 200; ++i) {
            handles.push_back(std::move(*allocator->allocate(1000)));
        }
        std::thread other([&handles] { handles.clear(); });
        allocator.reset();
        allocator = make(0, GIB);
        auto kept = allocator->allocate(1000);
        other.join();
        CHECK(kept->isValid() && allocator->get_metrics().allocated_num_ == 1);
    }
}

static void created() {
    CHECK(make(0, 0) == nullptr &&
          make(0, SIZE_MAX) == nullptr);
    auto allocator = make(0, GIB);
    CHECK(allocator && allocator->shared_from_this() == allocator);

    // max_capacity - 1 allocations can be live, or init_capacity - 1 if that is more. When one is
    // freed, another succeeds.
    for (const auto &[init, max, expected_max] :
         {std::tuple{1u, 1000u, 999u}, std::tuple{1000u, 1000u, 999u}, std::tuple{20u, 10u, 19u},
          std::tuple{1u, 2u, 1u}}) {
        auto bounded = make(0, GIB, init, max);
        std::vector<OffsetAllocationHandle> kept;
        for (uint32 i = 0; i < expected_max; ++i) {
            auto handle = bounded->allocate(1024);
            CHECK(handle.has_value());
            kept.push_back(std::move(*handle));
        }
        CHECK(!bounded->allocate(1024).has_value());
        CHECK(bounded->storageReport().totalFreeSpace == 0 &&
              bounded->storageReport().largestFreeRegion == 0);
        kept.erase(kept.begin());
        CHECK(bounded->storageReport().largestFreeRegion != 0);
        kept.push_back(std::move(*bounded->allocate(1024)));
        CHECK(!bounded->allocate(1024).has_value());
    }
    CHECK(!make(0, GIB, 1, 1)->allocate(1).has_value());
    CHECK(!make(0, GIB, 0, 0)->allocate(1).has_value());

    CHECK(make(0, GIB, 10, 10, 1, KVMEM_PLACEMENT_BEST_FIT)->allocate(GIB).has_value());
    CHECK(make(0, GIB, 10, 10, 1, KVMEM_PLACEMENT_BEST_FIT + 1) == nullptr);

    // Every capacity can be allocated completely, to the byte.
    for (const uint64_t size :
         {uint64_t{1}, uint64_t{16}, uint64_t{1000}, 4 * GIB - 1, 4 * GIB, 4 * GIB + 1,
          uint64_t{4026531840}, (uint64_t{1} << 40) + 12345, uint64_t{1} << 63}) {
        auto any = make(0, size);
        CHECK(any->storageReport().largestFreeRegion == size &&
              any->getLargestFreeRegion() >= size);
        CHECK(any->normalizedAllocationSize(size) == size);
        auto all = any->allocate(size);
        CHECK(all.has_value() && all->size() == size && !any->allocate(1).has_value());
    }
}

static void aligned() {
    auto allocator = make(4096, 64 << 20, 16, 16, 512);
    auto first = allocator->allocate(513);
    auto second = allocator->allocate(512);
    CHECK(first->size() == 513 && first->address() % 512 == 0 && second->address() % 512 == 0);
    CHECK(allocator->normalizedAllocationSize(513) == 1024 &&
          allocator->normalizedAllocationSize(512) == 512);
    CHECK(allocator->normalizedAllocationSize(0) == 0 &&
          allocator->normalizedAllocationSize(SIZE_MAX) == 0);
    CHECK(!allocator->allocate(SIZE_MAX).has_value() && !allocator->allocate(0).has_value());
    CHECK(allocator->get_metrics().total_free_space_ == (64 << 20) - 1024 - 512);
}

static void reports() {
    auto allocator = make(0, MIB, 1000, 1000);
    CHECK(allocator->normalizedAllocationSize(1023) == 1023 &&
          allocator->normalizedAllocationSize(0) == 0);
    CHECK(allocator->normalizedAllocationSize(MIB) == MIB &&
          allocator->normalizedAllocationSize(MIB + 1) == 0);

    const OffsetAllocatorMetrics before = allocator->get_metrics();
    CHECK(before.allocated_size_ == 0 && before.allocated_num_ == 0 && before.capacity == MIB &&
          before.total_free_space_ == MIB && before.largest_free_region_ == MIB);
    auto one = allocator->allocate(1023);
    auto two = allocator->allocate(2048);
    auto three = allocator->allocate(100);
    OffsetAllocatorMetrics metrics = allocator->get_metrics();
    CHECK(metrics.allocated_size_ == 3171 && metrics.allocated_num_ == 3);
    CHECK(metrics.total_free_space_ == MIB - 3171 && metrics.largest_free_region_ <= MIB - 3171);
    CHECK(allocator->getLargestFreeRegion() >= metrics.largest_free_region_);
    // A failed request makes the hint exact.
    CHECK(!allocator->allocate(MIB - 1000).has_value());
    CHECK(allocator->getLargestFreeRegion() == allocator->storageReport().largestFreeRegion);
    two.reset();
    const OffsetAllocStorageReport report = allocator->storageReport();
    CHECK(report.totalFreeSpace == MIB - 1123 && report.largestFreeRegion <= report.totalFreeSpace);

    std::ostringstream words;
    words << metrics;
    CHECK(words.str().find("allocs=3") != std::string::npos &&
          words.str().find("1.00 MB") != std::string::npos &&
          words.str().find("utilization=0.3%") != std::string::npos);
    one.reset();
    three.reset();

    // The full report contains all free ranges, with ascending sizes. Every other one of some
    // adjacent ranges is freed, so none coalesce.
    for (const auto &[capacity, sizes] :
         {std::pair{uint64_t{MIB}, std::vector<uint64_t>{1, 7, 8, 9, 100, 1000, 1024, 4000, 70000}},
          std::pair{uint64_t{1} << 40,
                    std::vector<uint64_t>{1, 5000, 1 << 20, (1 << 20) + 1, uint64_t{9} << 30}}}) {
        auto space = make(0, capacity);
        std::vector<OffsetAllocationHandle> freed;
        std::vector<OffsetAllocationHandle> kept;
        for (const uint64_t size : sizes) {
            freed.push_back(std::move(*space->allocate(size)));
            kept.push_back(std::move(*space->allocate(3)));
        }
        freed.clear();
        const OffsetAllocStorageReportFull full = space->storageReportFull();
        uint64_t ranges = 0;
        uint64_t least = 0;
        for (uint32 i = 0; i < NUM_LEAF_BINS; ++i) {
            CHECK(i == 0 || i >= 240 || full.freeRegions[i].size > full.freeRegions[i - 1].size);
            CHECK(i < 240 || full.freeRegions[i].count == 0);
            ranges += full.freeRegions[i].count;
            least += full.freeRegions[i].count * full.freeRegions[i].size;
        }
        // At least those that were freed between two live ones, and not more bytes in all than are
        // free.
        CHECK(ranges >= 1 && ranges <= sizes.size() + 2 &&
              least <= space->get_metrics().total_free_space_);
        kept.clear();
        const OffsetAllocStorageReportFull empty = space->storageReportFull();
        uint64_t last = 0;
        for (const auto &region : empty.freeRegions) {
            if (region.count != 0) {
                CHECK(region.count == 1 && last == 0);
                last = region.size;
            }
        }
        CHECK(last <= capacity && last > capacity - capacity / 8 - 1);
    }
}

// The sizes of the original's bins, which are counted in 32 bits: a program that compares two
// reports finds all 256 equal.
static void bins() {
    for (const auto &[capacity, shift] :
         {std::pair{uint64_t{MIB}, 0}, std::pair{uint64_t{4026531840}, 0},
          std::pair{uint64_t{4026531841} + GIB, 1}, std::pair{uint64_t{1} << 40, 9}}) {
        const OffsetAllocStorageReportFull report =
            make(0, capacity)->storageReportFull();
        for (uint32 bin = 0; bin < NUM_LEAF_BINS; ++bin) {
            const uint32 exponent = bin / 8;
            const uint32 mantissa = bin % 8;
            const uint32 units = exponent == 0 ? mantissa : (mantissa | 8) << (exponent - 1);
            CHECK(report.freeRegions[bin].size == uint64_t{units} << shift);
        }
    }
    // A report depends on the free ranges only, not on their history.
    auto allocator = make(0, GIB);
    const auto same = [](const OffsetAllocStorageReportFull &a,
                         const OffsetAllocStorageReportFull &b) {
        for (uint32 bin = 0; bin < NUM_LEAF_BINS; ++bin) {
            if (a.freeRegions[bin].size != b.freeRegions[bin].size ||
                a.freeRegions[bin].count != b.freeRegions[bin].count) {
                return false;
            }
        }
        return true;
    };
    std::mt19937_64 random(7);
    std::vector<OffsetAllocationHandle> kept;
    for (int round = 0; round < 20; ++round) {
        const OffsetAllocStorageReportFull before = allocator->storageReportFull();
        std::vector<OffsetAllocationHandle> gone;
        for (int i = 0; i < 50; ++i) {
            gone.push_back(std::move(*allocator->allocate(1 + random() % (1 << 20))));
        }
        gone.clear();
        CHECK(same(before, allocator->storageReportFull()));
        kept.push_back(std::move(*allocator->allocate(1 + random() % (1 << 20))));
    }
    // After mixed traffic, the report counts the gaps between the ranges in use.
    allocator = make(0, 4 * GIB);
    const auto counts_gaps = [&allocator] {
        uint64_t gaps = 0, counted = 0, end = 0;
        allocator->visit_used_nodes([&](uint64_t address, uint64_t bytes, NodeIndex) {
            gaps += address != end;
            end = address + bytes;
        });
        gaps += end != 4 * GIB;
        for (const auto &region : allocator->storageReportFull().freeRegions) {
            counted += region.count;
        }
        return counted == gaps;
    };
    for (int i = 0; i < 2000; ++i) {
        const size_t limit = i % 2 == 0 ? 8 << 10 : 4 << 20;
        if (auto handle = allocator->allocate(1 + random() % limit)) {
            kept.push_back(std::move(*handle));
        }
        if (random() % 3 != 0) {
            std::swap(kept[random() % kept.size()], kept.back());
            kept.pop_back();
        }
        CHECK(i % 100 != 0 || counts_gaps());
    }
    kept.clear();
    CHECK(counts_gaps());
    CHECK(same(allocator->storageReportFull(), make(0, 4 * GIB)->storageReportFull()));
    CHECK(allocator->storageReport().largestFreeRegion == 4 * GIB);
}

static void nodes() {
    // Named as in records that were stored outside of the process.
    OffsetAllocation none(OffsetAllocation::NO_SPACE, OffsetAllocation::NO_SPACE);
    CHECK(none.isNoSpace() && none.getOffset() == OffsetAllocation::NO_SPACE);
    const OffsetAllocation some(7, 8);
    none = some;
    CHECK(!none.isNoSpace() && none.getOffset() == 7);

    for (const size_t unit : {size_t{1}, size_t{512}}) {
        auto allocator = make(0x10000, MIB, 1000, 1000, unit);
        std::map<uint64_t, std::pair<uint64_t, NodeIndex>> used;
        const auto visit = [&] {
            used.clear();
            uint64_t last = 0;
            allocator->visit_used_nodes([&](uint64_t address, uint64_t bytes, uint32 node) {
                CHECK(address > last && used.emplace(address, std::pair{bytes, node}).second);
                last = address;
            });
        };
        visit();
        CHECK(used.empty());
        std::vector<OffsetAllocationHandle> handles;
        for (size_t i = 0; i < 100; ++i) {
            handles.push_back(std::move(*allocator->allocate(100 + i)));
        }
        for (size_t i = 0; i < 100; i += 2) {
            handles[i] = OffsetAllocationHandle();
        }
        visit();
        CHECK(used.size() == 50);
        for (size_t i = 1; i < 100; i += 2) {
            const auto &[bytes, node] = used.at(handles[i].address());
            CHECK(bytes == allocator->normalizedAllocationSize(handles[i].size()));
            // A node, address or size that does not match the metadata gives no handle.
            const uint64_t at = handles[i].address();
            const uint64_t size = handles[i].size();
            CHECK(!allocator->createHandleAtNode(node, at + 1, size) &&
                  !allocator->createHandleAtNode(node, at, 0));
            CHECK(!allocator->createHandleAtNode(node, at, size + 512));
            CHECK(!allocator->createHandleAtNode(node + 1000000, at, size));
            CHECK(!allocator->createHandleAtNode(OffsetAllocation::NO_SPACE, at, size));
            // Another handle: the first one destroyed frees the range, the other does nothing.
            auto other = allocator->createHandleAtNode(node, at, size);
            CHECK(other && other->isValid() && other->address() == at && other->size() == size);
            if (i % 4 == 1) {
                other.reset();
            } else {
                OffsetAllocationHandle third(allocator, OffsetAllocation(uint32(at), node), at,
                                             size);
                CHECK(third.isValid() && third.address() == at && third.size() == size);
                third = OffsetAllocationHandle();
            }
            CHECK(!allocator->createHandleAtNode(node, at, size));
        }
        visit();
        CHECK(used.empty() && allocator->get_metrics().allocated_num_ == 0);
        // The range now belongs to another allocation at the same offset: the old handles do not
        // free it.
        auto whole = allocator->allocate(MIB);
        CHECK(whole);
        handles.clear();
        CHECK(allocator->get_metrics().allocated_num_ == 1);
        OffsetAllocationHandle nothing(allocator, OffsetAllocation(OffsetAllocation::NO_SPACE, 0),
                                       5, 6);
        CHECK(nothing.isValid() && nothing.address() == 5 && nothing.size() == 6);
        OffsetAllocationHandle unowned(nullptr, some, 5, 6);
        CHECK(!unowned.isValid() && unowned.address() == 5 && unowned.size() == 6);
        nothing = std::move(unowned);
        CHECK(allocator->get_metrics().allocated_num_ == 1);
    }
}

// A store that restarts: some objects are recorded with their addresses. A new allocator for the
// same space must place them there again, with a filler for each gap.
static void restores(size_t before, size_t unit, uint32 seed) {
    constexpr size_t OBJECTS = 50;
    const auto create = [&] { return make(1 << 20, 8 * GIB, 16, 100000, unit); };
    std::mt19937_64 random(seed);
    const auto size = [&] {
        // Small, medium and large sizes.
        const size_t sizes[] = {1 + random() % 256, 1 + random() % (64 << 10),
                                1 + random() % (4 << 20)};
        return sizes[random() % 3];
    };
    std::map<uint64_t, uint64_t> recorded;
    auto allocator = create();
    std::vector<OffsetAllocationHandle> mixed;
    std::vector<OffsetAllocationHandle> objects;
    for (size_t i = 0; i < before; ++i) {
        mixed.push_back(std::move(*allocator->allocate(size())));
        if (random() % 3 == 0) {
            std::swap(mixed[random() % mixed.size()], mixed.back());
            mixed.pop_back();
        }
    }
    for (size_t i = 0; i < OBJECTS; ++i) {
        objects.push_back(std::move(*allocator->allocate(size())));
        recorded[objects.back().address()] = objects.back().size();
    }
    mixed.clear();

    auto restarted = create();
    std::vector<OffsetAllocationHandle> restored;
    std::vector<OffsetAllocationHandle> fillers;
    uint64_t end = 1 << 20;
    for (const auto &[address, bytes] : recorded) {
        if (address > end) {
            fillers.push_back(std::move(*restarted->allocate(address - end)));
            CHECK(fillers.back().address() == end);
        }
        // A failed request does not end the order.
        CHECK(!restarted->allocate(9 * GIB) && !restarted->allocate(0));
        restored.push_back(std::move(*restarted->allocate(bytes)));
        CHECK(restored.back().address() == address && restored.back().size() == bytes);
        end = address + restarted->normalizedAllocationSize(bytes);
    }
    CHECK(restored.size() == OBJECTS);
    fillers.clear();
    CHECK(restarted->get_metrics().allocated_num_ == OBJECTS);
    // The same without gaps.
    auto fresh = create();
    end = 1 << 20;
    std::vector<OffsetAllocationHandle> side_by_side;
    for (size_t i = 0; i < before + OBJECTS; ++i) {
        const size_t bytes = size();
        side_by_side.push_back(std::move(*fresh->allocate(bytes)));
        CHECK(side_by_side.back().address() == end);
        end += fresh->normalizedAllocationSize(bytes);
    }
}

// Compares the allocator with a map of the live ranges.
static void model(uint64_t base, uint64_t capacity, uint64_t longest, uint32 seed) {
    std::mt19937_64 random(seed);
    auto allocator = make(base, capacity, 16, 1001);
    std::map<uint64_t, uint64_t> alive;
    std::vector<OffsetAllocationHandle> handles;
    uint64_t used = 0;
    for (int step = 0, steps = rounds(20000); step < steps; ++step) {
        if (handles.empty() || random() % 100 < 55) {
            const uint64_t size = random() % 20 == 0 ? longest : 1 + random() % longest;
            auto handle = allocator->allocate(size);
            if (!handle.has_value()) {
                CHECK(handles.size() == 1000 ||
                      allocator->storageReport().largestFreeRegion < size);
                continue;
            }
            const uint64_t from = handle->address();
            CHECK(handle->size() == size && from >= base && from + size <= base + capacity);
            const auto next = alive.lower_bound(from);
            CHECK(next == alive.end() || next->first >= from + size);
            CHECK(next == alive.begin() ||
                  std::prev(next)->first + std::prev(next)->second <= from);
            alive[from] = size;
            used += size;
            handles.push_back(std::move(*handle));
        } else {
            std::swap(handles[random() % handles.size()], handles.back());
            CHECK(alive.erase(handles.back().address()) == 1);
            used -= handles.back().size();
            handles.pop_back();
        }
        CHECK(allocator->get_metrics().allocated_num_ == handles.size());
        CHECK(allocator->get_metrics().allocated_size_ == used && handles.size() <= 1000);
    }
    handles.clear();
    CHECK(allocator->allocate(capacity).has_value());
}

// A request that no free range can satisfy is answered by one load: no call records a failure.
static void requests_above_the_bound() {
    auto allocator = make(0, 1000, 100, 100, 8);
    auto expected_max = allocator->allocate(900);
    CHECK(expected_max.has_value());
    std::uint64_t bytes = 0;
    CHECK(kvmem_parse_size("teapot", &bytes) == KVMEM_ERR_INVALID_ARGUMENT);
    const std::string before = kvmem_last_error();
    CHECK(!before.empty());
    for (const size_t size :
         {size_t{0}, size_t{101}, size_t{900}, size_t{1000}, size_t{1001}, SIZE_MAX}) {
        CHECK(!allocator->allocate(size).has_value());
        CHECK(before == kvmem_last_error());
    }
    // The bound follows the space.
    expected_max.reset();
    CHECK(allocator->allocate(900).has_value());
    CHECK(allocator->allocate(1000).has_value());
}

// The serializers of Mooncake's serializer.h: one measures, one writes into a buffer of that size,
// and one reads and throws at the end.
struct Counter {
    void write(const void *, size_t bytes) { size += bytes; }
    void set_error(const char *) { CHECK(false); }
    size_t size = 0;
};

struct Writer {
    void write(const void *data, size_t bytes) {
        CHECK(bytes <= buffer.size() - at);
        std::memcpy(buffer.data() + at, data, bytes);
        at += bytes;
    }
    void set_error(const char *) { CHECK(false); }
    std::vector<unsigned char> buffer;
    size_t at = 0;
};

struct Reader {
    void read(void *data, size_t bytes) {
        if (bytes > buffer.size() - at) {
            throw std::runtime_error("buffer_overflow");
        }
        std::memcpy(data, buffer.data() + at, bytes);
        at += bytes;
    }
    const std::vector<unsigned char> &buffer;
    size_t at = 0;
};

static std::vector<unsigned char> serialized(const OffsetAllocator &allocator) {
    Counter counter;
    allocator.serialize_to(counter);
    Writer writer;
    writer.buffer.resize(counter.size);
    allocator.serialize_to(writer);
    CHECK(writer.at == counter.size);
    return writer.buffer;
}

/// Returns nothing if the data is rejected. Only standard exceptions are thrown.
static std::shared_ptr<OffsetAllocator> deserialized(const std::vector<unsigned char> &buffer) {
    Reader reader{buffer};
    try {
        auto allocator = OffsetAllocator::deserialize_from(reader);
        CHECK(allocator != nullptr && reader.at == buffer.size());
        return allocator;
    } catch (const std::runtime_error &) {
        return nullptr;
    }
}

using Used = std::map<uint64_t, std::pair<uint64_t, NodeIndex>>;

static Used used_ranges(const OffsetAllocator &allocator) {
    Used used;
    allocator.visit_used_nodes([&](uint64_t address, uint64_t bytes, NodeIndex node) {
        CHECK(used.emplace(address, std::pair(bytes, node)).second);
    });
    return used;
}

static void serializes(size_t unit, uint32 seed) {
    constexpr uint64_t BASE = 1 << 20;
    auto allocator = make(BASE, 8 * GIB, 1, 5001, unit);
    std::mt19937_64 random(seed);
    std::map<uint64_t, uint64_t> sizes;
    std::vector<OffsetAllocationHandle> handles;
    for (int i = 0, steps = rounds(2000); i < steps; ++i) {
        const uint64_t limit = i % 2 == 0 ? 4096 : 4 << 20;
        auto handle = allocator->allocate(1 + random() % limit);
        if (handle) {
            sizes[handle->address()] = handle->size();
            handles.push_back(std::move(*handle));
        }
        if (random() % 3 == 0) {
            std::swap(handles[random() % handles.size()], handles.back());
            sizes.erase(handles.back().address());
            handles.pop_back();
        }
    }
    const auto buffer = serialized(*allocator);
    // A released range stays in use, and in the snapshot.
    const uint64_t released = handles.back().address();
    CHECK(handles.back().release() == released && !handles.back().isValid() &&
          handles.back().size() == 0 && handles.back().address() == 0);
    handles.pop_back();
    CHECK(buffer == serialized(*allocator));

    auto restored = deserialized(buffer);
    CHECK(restored != nullptr && restored->shared_from_this() == restored);
    const Used before = used_ranges(*allocator), after = used_ranges(*restored);
    CHECK(before.size() == sizes.size() && after.size() == sizes.size());
    for (const auto &[address, range] : before) {
        CHECK(after.at(address).first == range.first);
    }
    CHECK(restored->get_metrics().capacity == 8 * GIB);
    CHECK(restored->storageReport().totalFreeSpace == allocator->storageReport().totalFreeSpace &&
          restored->storageReport().largestFreeRegion ==
              allocator->storageReport().largestFreeRegion);
    CHECK(restored->normalizedAllocationSize(1) == unit);
    // The same again: everything that matters is restored.
    CHECK(deserialized(serialized(*restored)) != nullptr);

    // Each restored range has one handle, by its address or by its node.
    const auto free_before = restored->storageReport().totalFreeSpace;
    std::vector<OffsetAllocationHandle> again;
    uint64_t bytes = 0;
    size_t number = 0;
    for (const auto &[address, size] : sizes) {
        CHECK(!restored->createHandleAt(address + 1, size) &&
              !restored->createHandleAt(address, 0) &&
              !restored->createHandleAt(address, size + unit));
        std::optional<OffsetAllocationHandle> handle;
        switch (number++ % 3) {
        case 0:
            handle = restored->createHandleAt(address, size);
            break;
        case 1:
            handle = restored->createHandleAtNode(after.at(address).second, address, size);
            break;
        default:
            handle = OffsetAllocationHandle(
                restored, OffsetAllocation(0, after.at(address).second), address, size);
        }
        CHECK(handle && handle->isValid() && handle->address() == address &&
              handle->size() == size);
        CHECK(!restored->createHandleAt(address, size));
        bytes += restored->normalizedAllocationSize(size);
        again.push_back(std::move(*handle));
    }
    again.clear();
    CHECK(restored->get_metrics().allocated_num_ == 0 &&
          restored->storageReport().totalFreeSpace == free_before + bytes &&
          restored->storageReport().largestFreeRegion == 8 * GIB);
    // The limit is restored too.
    for (int i = 0; i < 5000; ++i) {
        auto handle = restored->allocate(1);
        CHECK(handle.has_value());
        again.push_back(std::move(*handle));
    }
    CHECK(!restored->allocate(1));
}

/// Damaged data is rejected, whatever is damaged.
static void damaged() {
    auto allocator = make(4096, GIB, 16, 1001, 512);
    std::vector<OffsetAllocationHandle> handles;
    for (size_t i = 0; i < 40; ++i) {
        handles.push_back(std::move(*allocator->allocate(1 + 1000 * i)));
    }
    for (size_t i = 0; i < 40; i += 3) {
        handles[i] = OffsetAllocationHandle();
    }
    const auto whole = serialized(*allocator);
    CHECK(deserialized(whole) != nullptr);
    for (size_t bytes = 0; bytes < whole.size(); bytes += bytes < 100 ? 1 : 13) {
        CHECK(!deserialized({whole.begin(), whole.begin() + static_cast<std::ptrdiff_t>(bytes)}));
    }
    for (size_t bit = 0; bit < 8 * whole.size(); bit += bit < 1024 ? 1 : 7) {
        auto flipped = whole;
        flipped[bit / 8] = static_cast<unsigned char>(flipped[bit / 8] ^ (1 << bit % 8));
        CHECK(!deserialized(flipped));
    }
    // Of the original: base, bits of the unit, capacity.
    std::vector<unsigned char> other(1 << 12);
    CHECK(!deserialized(other) && !deserialized({}));

    // With a checksum that matches, the words themselves are checked.
    std::vector<uint64_t> words(whole.size() / 8);
    std::memcpy(words.data(), whole.data(), whole.size());
    const auto with = [&words](std::initializer_list<std::pair<size_t, uint64_t>> changes) {
        auto changed = words;
        for (const auto &[at, word] : changes) {
            changed[at] = word;
        }
        detail::SnapshotChecksum checksum;
        checksum.add(changed.data(), changed.size() - 1);
        changed.back() = checksum.sum();
        std::vector<unsigned char> bytes(8 * changed.size());
        std::memcpy(bytes.data(), changed.data(), bytes.size());
        return deserialized(bytes);
    };
    CHECK(with({}) != nullptr && with({{1, 0}}) != nullptr);
    const uint64_t max = UINT64_MAX;
    // Capacity, unit, limit, magazines, count.
    CHECK(!with({{2, 0}}) && !with({{2, max}}) && !with({{2, 1024}}));
    CHECK(!with({{3, 0}}) && !with({{3, 500}}) && !with({{3, max}}));
    CHECK(!with({{4, max}}) && !with({{4, UINT32_MAX}}));
    // Less than the ranges in use: nothing can be allocated until some are freed.
    CHECK(with({{4, 3}}) && !with({{4, 3}})->allocate(1));
    CHECK(!with({{5, 2}}) && !with({{6, max}}) && !with({{6, words[7] + 1}}));
    // Slots without ranges in the middle, and slots that the data does not have.
    CHECK(!with({{6, words[6] + 1}}) && !with({{7, max}}) && !with({{7, uint64_t{1} << 60}}));
    // The second range: empty, across the first, out of the space, crossing the end, not of units.
    CHECK(!with({{11, 0}}) && !with({{10, words[8]}}) && !with({{10, 2 * GIB}}));
    CHECK(!with({{11, max - 511}}) && !with({{10, max - 511}}) && !with({{11, words[11] + 1}}));
    CHECK(!with({{10, words[10] + 1}}) && !with({{11, 2 * GIB}}));
}

/// Data of version 1 is read and written as it always was. Data of another version says so.
static void versions() {
    magazines = false;
    // Base, capacity, unit, limit, magazines, ranges, slots, and the ranges; zeros; the checksum.
    std::vector<uint64_t> words = {0x6b766d656d4f4101, 4096, GIB, 512, 1000, 0, 2, 66,
                                   0,                  1024, 1024, 5120};
    words.resize(8 + 2 * 66);
    words.push_back(0xfe7738018c31e3f5);
    const auto bytes_of = [](const std::vector<uint64_t> &from) {
        std::vector<unsigned char> bytes(8 * from.size());
        std::memcpy(bytes.data(), from.data(), bytes.size());
        return bytes;
    };
    const auto restored = deserialized(bytes_of(words));
    CHECK(restored != nullptr && restored->get_metrics().allocated_num_ == 2);
    CHECK(restored->createHandleAt(4096, 1000) && restored->createHandleAt(4096 + 1024, 5000));
    auto allocator = make(4096, GIB, 16, 1001, 512);
    const auto first = allocator->allocate(1000), second = allocator->allocate(5000);
    CHECK(first && second && serialized(*allocator) == bytes_of(words));
    for (const auto &[version, age] : {std::pair(0, "older"), {2, "newer"}, {255, "newer"}}) {
        auto other = words;
        other[0] = (words[0] & ~uint64_t{0xff}) | static_cast<uint64_t>(version);
        const auto bytes = bytes_of(other);
        Reader reader{bytes};
        try {
            OffsetAllocator::deserialize_from(reader);
            CHECK(false);
        } catch (const std::runtime_error &error) {
            const std::string text = error.what();
            CHECK(text.find("version " + std::to_string(version)) != std::string::npos &&
                  text.find("reads version 1") != std::string::npos &&
                  text.find(age) != std::string::npos);
        }
    }
}

/// Programs measure and write while other threads allocate and free.
static void serialized_beside_threads() {
    auto allocator = make(0, GIB);
    std::atomic<bool> stop{false};
    std::thread other([&] {
        std::mt19937_64 random(1);
        std::vector<OffsetAllocationHandle> handles;
        while (!stop.load()) {
            if (handles.size() < 40 && random() % 2 == 0) {
                handles.push_back(std::move(*allocator->allocate(1 + random() % 4096)));
            } else if (!handles.empty()) {
                handles.pop_back();
            }
        }
    });
    for (int i = 0; i < rounds(500); ++i) {
        const auto restored = deserialized(serialized(*allocator));
        CHECK(restored != nullptr);
        // With magazines, the list may have ranges that were never live together.
        CHECK(magazines || restored->get_metrics().allocated_num_ <= 40);
    }
    stop = true;
    other.join();
}

int main() {
    requests_above_the_bound();
    handles();
    destroyed_beside_the_allocator();
    created();
    aligned();
    reports();
    bins();
    nodes();
    for (const size_t before : {0, 20, 50, 200, 2000}) {
        for (uint32 seed = 0; seed < static_cast<uint32>(rounds(5)); ++seed) {
            restores(before, 1, seed);
            restores(before, 4096, seed);
        }
    }
    versions();
    for (const bool with_magazines : {false, true}) {
        magazines = with_magazines;
        serializes(1, 1);
        serializes(4096, 2);
        damaged();
        serialized_beside_threads();
    }
    magazines = false;
    model(0, GIB, 64 << 10, 1);
    model(uint64_t{1} << 46, MIB + 7, 4096, 2);
    model(4096, (uint64_t{1} << 40) + 1, uint64_t{4} << 30, 3);
    return 0;
}
