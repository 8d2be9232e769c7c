// Contenders for the counted loops that live in C++: the class that replaces Mooncake's allocator,
// the C interface below it, and one that places nothing. loaded.rs calls them.
#include <algorithm>
#include <cstdint>
#include <memory>
#include <new>
#include <optional>
#include <utility>

#include <kvmem.h>
#include <kvmem/compat/mooncake_offset_allocator.hpp>

namespace {

/// The functions of a contender, as in loaded.rs.
struct contender {
    void *(*create)(uint64_t capacity, uint64_t max_live);
    void (*destroy)(void *space);
    bool (*allocate)(void *space, uint64_t size, void *handle);
    void (*free)(void *handle);
    uint64_t (*size)(const void *handle);
};

/// The bytes of a handle, as in loaded.rs.
constexpr size_t HANDLE_BYTES = 40;

using mooncake::offset_allocator::OffsetAllocationHandle;
using mooncake::offset_allocator::OffsetAllocator;
// Moving one is a copy of its members, after which the old one is empty: the caller may move it as
// bytes.
static_assert(sizeof(OffsetAllocationHandle) <= HANDLE_BYTES);

/// A space of the C interface, and the bound that a program reads before it calls.
struct c_space {
    kvmem_offset_allocator *allocator;
    const uint64_t *largest_free;
};

/// A range of the C interface, with its space.
struct c_range {
    const kvmem_offset_allocator *space;
    kvmem_allocation range;
};
static_assert(sizeof(c_range) <= HANDLE_BYTES);

/// A space that counts bytes.
struct counted {
    uint64_t capacity;
    uint64_t live;
};
struct counted_range {
    counted *space;
    uint64_t size;
};

/// The class, made by one of its two factories.
template <decltype(OffsetAllocator::create) *CREATE, uint32_t PLACEMENT>
constexpr contender class_for_cpp = {
    [](uint64_t capacity, uint64_t max_live) -> void * {
        // The defaults of the class, or more for longer loops.
        const uint64_t limit = std::max<uint64_t>(max_live + 1, 1 << 20);
        const auto max_capacity = static_cast<uint32_t>(std::min<uint64_t>(limit, UINT32_MAX));
        auto space = CREATE(0, capacity, 128 * 1024, max_capacity, 1, PLACEMENT);
        return space ? new std::shared_ptr<OffsetAllocator>(std::move(space)) : nullptr;
    },
    [](void *space) { delete static_cast<std::shared_ptr<OffsetAllocator> *>(space); },
    [](void *space, uint64_t size, void *handle) {
        auto found = (*static_cast<std::shared_ptr<OffsetAllocator> *>(space))->allocate(size);
        if (!found) {
            return false;
        }
        new (handle) OffsetAllocationHandle(std::move(*found));
        return true;
    },
    [](void *handle) { static_cast<OffsetAllocationHandle *>(handle)->~OffsetAllocationHandle(); },
    [](const void *handle) { return static_cast<const OffsetAllocationHandle *>(handle)->size(); },
};

} // namespace

extern "C" {

extern const contender drop_in;
const contender drop_in = class_for_cpp<OffsetAllocator::create, KVMEM_PLACEMENT_RENEWAL>;

extern const contender drop_in_cached;
const contender drop_in_cached =
    class_for_cpp<OffsetAllocator::create_with_magazines, KVMEM_PLACEMENT_RENEWAL>;

extern const contender drop_in_best_fit;
const contender drop_in_best_fit =
    class_for_cpp<OffsetAllocator::create, KVMEM_PLACEMENT_BEST_FIT>;

extern const contender c_interface;
const contender c_interface = {
    [](uint64_t capacity, uint64_t) -> void * {
        auto space = std::make_unique<c_space>();
        if (kvmem_offset_allocator_create(capacity, nullptr, &space->allocator) != KVMEM_OK) {
            return nullptr;
        }
        const uint32_t *even = nullptr; // without magazines
        kvmem_offset_allocator_largest_free_address(space->allocator, &space->largest_free, &even);
        return space.release();
    },
    [](void *space) {
        const std::unique_ptr<c_space> owned(static_cast<c_space *>(space));
        kvmem_offset_allocator_destroy(owned->allocator);
    },
    [](void *space, uint64_t size, void *handle) {
        auto *range = static_cast<c_range *>(handle);
        const auto *of = static_cast<const c_space *>(space);
        if (size - 1 >= __atomic_load_n(of->largest_free, __ATOMIC_RELAXED)) {
            return false;
        }
        range->space = of->allocator;
        return kvmem_offset_allocator_allocate(range->space, size, &range->range) == KVMEM_OK;
    },
    [](void *handle) {
        auto *range = static_cast<c_range *>(handle);
        kvmem_offset_allocator_free(range->space, &range->range);
    },
    [](const void *handle) { return static_cast<const c_range *>(handle)->range.bytes; },
};

extern const contender loaded_null;
const contender loaded_null = {
    [](uint64_t capacity, uint64_t) -> void * { return new counted{capacity, 0}; },
    [](void *space) { delete static_cast<counted *>(space); },
    [](void *space, uint64_t size, void *handle) {
        auto *all = static_cast<counted *>(space);
        if (size > all->capacity - all->live) {
            return false;
        }
        all->live += size;
        new (handle) counted_range{all, size};
        return true;
    },
    [](void *handle) {
        auto *range = static_cast<counted_range *>(handle);
        range->space->live -= range->size;
    },
    [](const void *handle) { return static_cast<const counted_range *>(handle)->size; },
};

} // extern "C"
