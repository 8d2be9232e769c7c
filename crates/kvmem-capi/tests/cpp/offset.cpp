// Offset allocators and their allocations.
#include <algorithm>
#include <memory>
#include <optional>
#include <vector>

#include "check.hpp"

static_assert(moves_only<kvmem::Allocation> && moves_only<kvmem::OffsetAllocator>);
static_assert(std::is_nothrow_default_constructible_v<kvmem::Allocation>);

static void allocations(const kvmem::OffsetOptions &options) {
    kvmem::OffsetAllocator space(MIB, options);
    auto a = space.allocate(1000);
    auto b = space.allocate_aligned(5000, 4096);
    CHECK(a && *a && a->size() == 1000 && b && b->offset() % 4096 == 0);
    CHECK(space.metrics().live == 2 && space.metrics().allocated == 6000);

    // Running out of space is no exception; an invalid argument is one, with the numbers.
    CHECK(!space.allocate(2 * MIB) && !space.allocate(MIB));
    THROWS(KVMEM_ERR_ZERO_SIZE, "", space.allocate(0));
    THROWS(KVMEM_ERR_BAD_ALIGN, "3", space.allocate_aligned(1, 3));

    // Moves.
    kvmem::Allocation moved = std::move(*a);
    CHECK(!*a && a->size() == 0 && moved.size() == 1000 && space.metrics().live == 2);
    move_to_itself(moved);
    CHECK(moved.size() == 1000 && space.metrics().live == 2);
    moved = std::move(*b);
    CHECK(moved.size() == 5000 && space.metrics().live == 1);
    swap(moved, *b);
    CHECK(!moved && b->size() == 5000);
    moved = kvmem::Allocation();
    THROWS(KVMEM_ERR_NULL_ARGUMENT, "", moved.shrink(1));

    // Resizes in place.
    b->shrink(100);
    CHECK(b->size() == 100 && space.metrics().allocated == 100);
    CHECK(b->extend(200) && b->size() == 200 && !b->extend(4 * MIB));
    THROWS(KVMEM_ERR_ZERO_SIZE, "", b->shrink(0));
    b->reset();
    CHECK(!*b && space.metrics().live == 0);

    auto batch = space.allocate_batch(1024, 10);
    CHECK(batch && batch->size() == 10 && space.metrics().live == 10);
    CHECK(!space.allocate_batch(512 * KIB, 3) && space.metrics().live == 10);
    CHECK(space.allocate_batch(1, 0)->empty());
    for (const std::uint64_t count :
         {UINT64_MAX, UINT64_MAX / 2, std::uint64_t{1} << 60, std::uint64_t{1} << 40}) {
        CHECK(!space.allocate_batch(1, count) && !space.allocate_batch(UINT64_MAX, count));
        THROWS(KVMEM_ERR_ZERO_SIZE, "0", space.allocate_scattered(0, count));
        CHECK(!space.allocate_scattered(MIB, count));
        CHECK(space.allocate_scattered(100, count)->size() == 1);
    }
    CHECK(space.metrics().live == 10);
    for (std::size_t i = 0; i < batch->size(); i += 2) {
        (*batch)[i].reset();
    }
    CHECK(space.allocate_scattered(MIB - 6 * KIB, UINT64_MAX)->size() > 1);
    auto scattered = space.allocate_scattered(MIB - 6 * KIB, 8);
    CHECK(scattered && scattered->size() > 1);
    std::uint64_t sum = 0;
    for (const kvmem::Allocation &one : *scattered) {
        sum += one.size();
    }
    CHECK(sum == MIB - 6 * KIB);
    CHECK(!space.allocate_scattered(MIB, 8));
    scattered.reset();
    batch.reset();
    space.trim();
    CHECK(space.metrics().free == MIB);
    space.check();
    CHECK(!space.bins().empty() && space.map().front().bytes == MIB);
    CHECK(space.largest_free_hint() >= MIB && !space.report().empty());
}

static void spaces() {
    kvmem::OffsetAllocator space(MIB);
    space.grow_to(2 * MIB);
    auto last = space.allocate_aligned(MIB, MIB);
    auto first = space.allocate_aligned(MIB, MIB);
    CHECK(last && first && !space.allocate(1));
    THROWS(KVMEM_ERR_IN_USE, "", space.shrink_to(MIB));
    last.reset();
    first.reset();
    space.shrink_to(MIB);
    CHECK(space.metrics().capacity == MIB);

    kvmem::OffsetAllocator moved = std::move(space);
    THROWS(KVMEM_ERR_NULL_ARGUMENT, "", space.allocate(1));
    move_to_itself(moved);
    CHECK(moved.allocate(1));
    THROWS(KVMEM_ERR_INVALID_ARGUMENT, "9223372036854775808", kvmem::OffsetAllocator(UINT64_MAX));
    kvmem::OffsetOptions bounded;
    bounded.boundary_bytes = 64 * KIB;
    kvmem::OffsetAllocator edges(MIB, bounded);
    CHECK(!edges.allocate(64 * KIB + 1) && edges.allocate(64 * KIB));
}

// Allocations and allocators are destroyed in every order.
static void outlive() {
    std::optional<kvmem::Allocation> last;
    {
        std::vector<kvmem::Allocation> kept;
        {
            kvmem::OffsetAllocator space(MIB);
            for (int i = 0; i < 5; ++i) {
                kept.push_back(*space.allocate(100));
            }
        }
        CHECK(kept[4].size() == 100);
        kept.erase(kept.begin());
        kept[0].shrink(50);
        CHECK(kept[0].extend(100) && !kept[0].extend(2 * MIB));
        last = std::move(kept[2]);
    }
    CHECK(last->size() == 100);
    // Another space does not affect it, and is destroyed first.
    {
        kvmem::OffsetAllocator other(MIB);
        last = std::move(*other.allocate(7));
    }
    CHECK(last->size() == 7);
    auto a = std::make_unique<kvmem::OffsetAllocator>(MIB);
    auto b = a->allocate(1);
    *a = kvmem::OffsetAllocator(MIB);
    CHECK(a->metrics().live == 0);
    a.reset();
    b.reset();
}

int main() {
    kvmem::OffsetOptions options;
    allocations(options);
    options.placement = KVMEM_PLACEMENT_BEST_FIT;
    allocations(options);
    options.magazines = true;
    options.hot_sizes = {1024, 1000};
    options.max_cached_bytes = 64 * KIB;
    allocations(options);
    spaces();
    outlive();
    options.magazines = false;
    return 0;
}
