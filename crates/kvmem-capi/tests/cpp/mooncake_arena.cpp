// Mooncake's mmap arena on kvmem, used as by programs that were written for Mooncake.
#include "mmap_arena.h"

#include <atomic>
#include <set>
#include <thread>
#include <vector>

#include "check.hpp"

using mooncake::MmapArena;

static_assert(MmapArena::kMinAlignment == 64);

constexpr size_t HUGEPAGE = size_t{2} << 20;

static void usual() {
    MmapArena arena;
    CHECK(!arena.isInitialized() && arena.allocate(1) == nullptr && arena.getPoolBase() == nullptr);
    CHECK(arena.getPoolSize() == 0 && !arena.owns(&arena) &&
          arena.getStats().num_failed_allocs == 0);
    CHECK(!arena.initialize(0) && !arena.initialize(MIB, 3) && !arena.initialize(SIZE_MAX) &&
          !arena.isInitialized());

    CHECK(arena.initialize(MIB, MmapArena::kMinAlignment, true) && arena.isInitialized());
    CHECK(!arena.initialize(MIB));
    const MmapArena::Stats fresh = arena.getStats();
    CHECK(fresh.pool_size == HUGEPAGE && fresh.reserved_bytes == 0 &&
          fresh.peak_reserved_bytes == 0 && fresh.num_allocations == 0 &&
          fresh.num_failed_allocs == 0);
    CHECK(arena.getPoolSize() == HUGEPAGE);

    for (const size_t size : {1, 63, 64, 65, 1000}) {
        void *at = arena.allocate(size);
        CHECK(at != nullptr && reinterpret_cast<uintptr_t>(at) % 64 == 0 && arena.owns(at));
        std::memset(at, 0xaa, size);
    }
    void *page = arena.allocate(100, 4096);
    CHECK(page != nullptr && reinterpret_cast<uintptr_t>(page) % 4096 == 0);
    CHECK(arena.allocate(0) == nullptr);
    MmapArena::Stats stats = arena.getStats();
    CHECK(stats.num_allocations == 6 && stats.num_failed_allocs == 0 &&
          stats.reserved_bytes == 4196 && stats.peak_reserved_bytes == stats.reserved_bytes);

    CHECK(arena.allocate(SIZE_MAX) == nullptr && arena.allocate(SIZE_MAX / 2) == nullptr);
    CHECK(arena.allocate(8, 48 + 64) == nullptr && arena.allocate(HUGEPAGE) == nullptr);
    stats = arena.getStats();
    CHECK(stats.num_failed_allocs == 4 && stats.num_allocations == 6);

    char *base = static_cast<char *>(arena.getPoolBase());
    CHECK(arena.owns(base) && arena.owns(base + HUGEPAGE - 1) && !arena.owns(base + HUGEPAGE));
    CHECK(!arena.owns(nullptr) && !arena.owns(&stats));
}

static void strict() {
    // Hugepages or failure, depending on this machine.
    MmapArena arena;
    if (arena.initialize(1, 4096, false)) {
        CHECK(arena.getPoolSize() == HUGEPAGE &&
              reinterpret_cast<uintptr_t>(arena.allocate(1)) % 4096 == 0);
    } else {
        CHECK(!arena.isInitialized() && std::strlen(kvmem_last_error()) != 0);
        CHECK(arena.initialize(1, 4096));
    }
}

static void threads() {
    MmapArena arena;
    std::atomic<int> first{0};
    std::atomic<size_t> failed{0};
    std::vector<std::vector<void *>> got(4);
    std::vector<std::thread> threads;
    for (auto &mine : got) {
        threads.emplace_back([&] {
            first += arena.initialize(MIB);
            for (int i = 0; i < 20000; ++i) {
                void *at = arena.allocate(64);
                if (at == nullptr) {
                    ++failed;
                } else {
                    std::memset(at, 1, 64);
                    mine.push_back(at);
                }
            }
        });
    }
    for (std::thread &thread : threads) {
        thread.join();
    }
    std::set<void *> all;
    for (const auto &mine : got) {
        all.insert(mine.begin(), mine.end());
    }
    const MmapArena::Stats stats = arena.getStats();
    CHECK(first == 1 && all.size() == HUGEPAGE / 64 && failed == 80000 - HUGEPAGE / 64);
    CHECK(stats.num_allocations == all.size() && stats.num_failed_allocs == failed &&
          stats.reserved_bytes == HUGEPAGE);
}

int main() {
    usual();
    strict();
    threads();
    return 0;
}
