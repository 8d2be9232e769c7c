// Regions, bump arenas and spans.
#include <memory>
#include <vector>

#include <unistd.h>

#include "check.hpp"
#if __cplusplus >= 202002L
#include <span>
#endif

static_assert(moves_only<kvmem::Region> && moves_only<kvmem::BumpArena> &&
              moves_only<kvmem::CancelToken>);

static void spans() {
    std::byte bytes[4] = {};
    kvmem::bytes_span span(bytes, sizeof bytes);
    span[2] = std::byte{7};
    const kvmem::bytes_view view = span;
    CHECK(view.size() == 4 && view.size_bytes() == 4 && !view.empty() && view[2] == std::byte{7});
    int sum = 0;
    for (const std::byte byte : view) {
        sum += std::to_integer<int>(byte);
    }
    CHECK(sum == 7);
    CHECK(span.subspan(2, 2).size() == 2 && span.subspan(2, 2)[0] == std::byte{7});
    CHECK(kvmem::bytes_span().empty() && kvmem::bytes_span().data() == nullptr);
    static_assert(!std::is_convertible_v<kvmem::bytes_view, kvmem::bytes_span>);
#if __cplusplus >= 202002L
    std::span<std::byte> standard = span;
    std::span<const std::byte> of_result = kvmem::bytes_view(span);
    CHECK(standard.data() == bytes && of_result.size() == 4);
#endif
}

static void regions() {
    kvmem::RegionOptions options;
    options.pages = "4k";
    options.populate = 1;
    options.guard_pages = true;
    std::uint64_t reported = 0;
    options.progress = [&](const kvmem::Progress &progress) { reported = progress.done_bytes; };
    kvmem::Region region(MIB, options);
    CHECK(region.data() != nullptr && region.size() == MIB && region.bytes().size() == MIB);
    CHECK(reported == MIB);
    const kvmem::RegionInfo info = region.info();
    CHECK(info.data == region.data() && info.requested_bytes == MIB && info.bytes_base == MIB);
    CHECK(region.resident_bytes(0, MIB) == MIB);
    std::memset(region.data(), 0x5a, region.size());
    region.discard(0, MIB);
    CHECK(region.bytes()[MIB - 1] == std::byte{0});
    region.populate(0, MIB, 1,
                    [&](const kvmem::Progress &progress) { reported += progress.done_bytes; });
    CHECK(reported > MIB);
    CHECK(!region.report().empty() && region.report_json().front() == '{');

    // A moved-from region is empty, and calls on it throw.
    kvmem::Region moved = std::move(region);
    CHECK(region.data() == nullptr && region.size() == 0 && region.native_handle() == nullptr);
    THROWS(KVMEM_ERR_NULL_ARGUMENT, "kvmem_region", region.info());
    move_to_itself(moved);
    CHECK(moved.size() == MIB);
    kvmem::Region other(4096, options);
    other = std::move(moved);
    CHECK(other.size() == MIB);

    THROWS(KVMEM_ERR_ZERO_SIZE, "", kvmem::Region(0));
    options.pages = "3M";
    THROWS(KVMEM_ERR_INVALID_ARGUMENT, "3M", kvmem::Region(MIB, options));
    THROWS(KVMEM_ERR_OUT_OF_BOUNDS, "", other.discard(MIB, 4096));
    THROWS(KVMEM_ERR_WRONG_BACKING, "", other.share(true));

    kvmem::RegionOptions cancelled;
    kvmem::CancelToken cancel;
    cancelled.populate = 1;
    cancelled.cancel = &cancel;
    cancel.cancel();
    THROWS(KVMEM_ERR_CANCELLED, "", kvmem::Region(MIB, cancelled));
}

static void preflight() {
    kvmem::RegionOptions options;
    options.pages = "4k";
    const kvmem::Preflight small = kvmem::preflight(4096, options);
    CHECK(small.fits && !small.report.empty());
    CHECK(!kvmem::preflight(std::uint64_t{1} << 50, options).fits);
    options.pages = "3M";
    THROWS(KVMEM_ERR_INVALID_ARGUMENT, "3M", kvmem::preflight(4096, options));
}

static void shared() {
    kvmem::RegionOptions options;
    options.pages = "4k";
    options.backing = KVMEM_BACKING_SHARED;
    kvmem::Region region(64 * KIB, options);
    const int fd = region.share(false);
    kvmem::Region same = kvmem::Region::attach(fd, 64 * KIB);
    close(fd);
    CHECK(region.populate_aliases() == 64 * KIB && same.resident_bytes(0, 64 * KIB) == 64 * KIB);
    region.bytes()[100] = std::byte{42};
    CHECK(same.data() != region.data() && same.bytes()[100] == std::byte{42});
}

static void readers_only() {
    kvmem::RegionOptions options;
    options.pages = "4k";
    options.backing = KVMEM_BACKING_SHARED;
    options.readers_only = true;
    kvmem::Region region(64 * KIB, options);
    region.bytes()[0] = std::byte{1};
    const int fd = region.share(false);
    THROWS(KVMEM_ERR_SYSTEM, "", kvmem::Region::attach(fd));
    close(fd);
    THROWS(KVMEM_ERR_SYSTEM, "", region.discard(0, 4096));
}

static void wrapped() {
    const long page = sysconf(_SC_PAGESIZE);
    int released = 0;
    void *memory =
        std::aligned_alloc(static_cast<std::size_t>(page), 4 * static_cast<std::size_t>(page));
    {
        const std::uint64_t bytes = 4 * static_cast<std::uint64_t>(page);
        kvmem::Region region = kvmem::Region::wrap(memory, bytes, [&released, memory] {
            ++released;
            std::free(memory);
        });
        CHECK(region.data() == memory && region.size() == bytes);
        kvmem::BumpArena arena(region);
        // The arena keeps the memory mapped.
        region = kvmem::Region(4096);
        CHECK(released == 0);
        auto some = arena.allocate(100);
        CHECK(some && some->data() == memory);
    }
    CHECK(released == 1);
    released = 0;
    THROWS(KVMEM_ERR_NULL_ARGUMENT, "",
           kvmem::Region::wrap(nullptr, 4096, [&released] { ++released; }));
    CHECK(released == 0);
}

static void bump() {
    kvmem::RegionOptions options;
    options.pages = "4k";
    kvmem::BumpArena arena{kvmem::Region(64 * KIB, options)};
    const auto one = arena.allocate(100);
    const auto two = arena.allocate(1000, 4096);
    CHECK(one && two && one->size() == 100 && two->size() == 1000);
    CHECK(reinterpret_cast<std::uintptr_t>(two->data()) % 4096 == 0);
    std::memset(two->data(), 1, two->size());
    CHECK(arena.owns(one->data()) && !arena.owns(&arena));
    CHECK(!arena.allocate(MIB));
    THROWS(KVMEM_ERR_BAD_ALIGN, "3", arena.allocate(1, 3));
    THROWS(KVMEM_ERR_ZERO_SIZE, "", arena.allocate(0));
    CHECK(arena.stats().used + arena.stats().remaining == arena.stats().capacity);
    arena.reset();
    CHECK(arena.stats().used == 0);
    kvmem::BumpArena moved = std::move(arena);
    THROWS(KVMEM_ERR_NULL_ARGUMENT, "", arena.allocate(1));
    CHECK(moved.allocate(1));
    kvmem::Region none(4096, options);
    const kvmem::Region gone = std::move(none);
    THROWS(KVMEM_ERR_NULL_ARGUMENT, "", kvmem::BumpArena(none));
}

int main() {
    CHECK(std::string(kvmem::version()) == std::to_string(KVMEM_VERSION_MAJOR) + "." +
                                               std::to_string(KVMEM_VERSION_MINOR) + "." +
                                               std::to_string(KVMEM_VERSION_PATCH));
    spans();
    regions();
    preflight();
    shared();
    readers_only();
    wrapped();
    bump();
    return 0;
}
