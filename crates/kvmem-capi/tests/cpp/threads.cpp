// Several threads on the same objects; allocations that are destroyed while their allocator is.
#include <atomic>
#include <map>
#include <memory>
#include <memory_resource>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "check.hpp"
#include <kvmem/compat/mooncake_offset_allocator.hpp>

constexpr int THREADS = 4;
static const int steps = rounds(2000);

template <class Work>
static void on_threads(Work work) {
    std::vector<std::thread> threads;
    for (int i = 0; i < THREADS; ++i) {
        threads.emplace_back([&work, i] { work(i); });
    }
    for (std::thread &thread : threads) {
        thread.join();
    }
}

// What one thread passes to the next.
template <class T>
class Exchange {
public:
    void put(T one) {
        const std::lock_guard<std::mutex> lock(mutex_);
        if (held_.size() < 64) {
            held_.push_back(std::move(one));
        } else {
            std::swap(held_[next_++ % 64], one);
        }
    }

private:
    std::mutex mutex_;
    std::vector<T> held_;
    std::size_t next_ = 0;
};

static void together() {
    kvmem::PoolOptions small;
    small.pages = "4k";
    kvmem::Pool pool(4 * MIB, small);
    kvmem::OffsetOptions magazines;
    magazines.magazines = true;
    kvmem::OffsetAllocator space(MIB);
    kvmem::OffsetAllocator cached(MIB, magazines);
    kvmem::SlabAllocator slab;
    kvmem::KvCache cache(pool);
    {
        Exchange<kvmem::Block> blocks;
        Exchange<kvmem::Allocation> ranges;
        on_threads([&](int thread) {
            kvmem::SlabResource resource(slab);
            std::pmr::map<int, std::pmr::string> map(&resource);
            for (int step = 0; step < steps; ++step) {
                const auto bytes = static_cast<std::uint64_t>(1 + (step * 7 + thread) % 500);
                auto block = pool.allocate(bytes);
                CHECK(block);
                std::memset(block->data(), thread, block->size());
                CHECK(block->bytes()[bytes - 1] == static_cast<std::byte>(thread));
                blocks.put(std::move(*block));
                auto range = (step % 2 == 0 ? space : cached).allocate(bytes);
                CHECK(range);
                ranges.put(std::move(*range));
                map[step % 100] = "a text that is too long to stand in the string itself";
                const std::string key = std::to_string(step % 50);
                if (const auto value = cache.get(key)) {
                    CHECK(std::memcmp(value->bytes().data(), key.data(), key.size()) == 0);
                } else {
                    CHECK(cache.insert(key, key.data(), key.size()));
                }
                if (step % 100 == 0) {
                    // Error texts belong to the thread.
                    const auto align = static_cast<std::uint64_t>(2 * thread + 3);
                    const std::string number = std::to_string(align);
                    THROWS(KVMEM_ERR_BAD_ALIGN, number.c_str(), space.allocate_aligned(1, align));
                }
            }
        });
    }
    space.check();
    cached.check();
    CHECK(space.metrics().live == 0 && cached.metrics().live == 0 && slab.stats().in_use == 0);
    cache.clear();
    pool.check();
    CHECK(pool.metrics().live == 0);
}

// Allocators are destroyed while other threads destroy their last allocations.
template <class Make, class Take>
static void going(Make make, Take take) {
    for (int round = 0; round < rounds(50); ++round) {
        auto owner = make();
        std::vector<decltype(take(*owner))> kept[THREADS];
        for (auto &of_thread : kept) {
            for (int i = 0; i < 8; ++i) {
                of_thread.push_back(take(*owner));
                CHECK(of_thread.back());
            }
        }
        std::atomic<int> ready{0};
        on_threads([&](int thread) {
            ++ready;
            while (ready < THREADS) {
                std::this_thread::yield();
            }
            if (thread == 0) {
                owner.reset();
            }
            kept[thread].clear();
        });
    }
}

// The number of live allocations never exceeds the limit, and no allocation fails.
static void bounded() {
    using mooncake::offset_allocator::OffsetAllocationHandle;
    const auto allocator = mooncake::offset_allocator::OffsetAllocator::create(4096, MIB, 16, 33);
    std::atomic<int> alive{0};
    on_threads([&](int) {
        std::vector<OffsetAllocationHandle> mine;
        for (int step = 0; step < steps; ++step) {
            if (auto handle = allocator->allocate(64)) {
                CHECK(++alive <= 32);
                mine.push_back(std::move(*handle));
            }
            if (mine.size() > 12 || step % 3 == 0) {
                if (!mine.empty()) {
                    --alive;
                    mine.pop_back();
                }
            }
        }
        while (!mine.empty()) {
            --alive;
            mine.pop_back();
        }
    });
    std::vector<OffsetAllocationHandle> all;
    while (auto handle = allocator->allocate(64)) {
        all.push_back(std::move(*handle));
    }
    CHECK(all.size() == 32);
}

int main() {
    together();
    going([] { return std::make_unique<kvmem::OffsetAllocator>(MIB); },
          [](kvmem::OffsetAllocator &space) { return space.allocate(100); });
    going([] { return mooncake::offset_allocator::OffsetAllocator::create(0, MIB); },
          [](mooncake::offset_allocator::OffsetAllocator &space) { return space.allocate(100); });
    kvmem::PoolOptions small;
    small.pages = "4k";
    going([&] { return std::make_unique<kvmem::Pool>(MIB, small); },
          [](kvmem::Pool &pool) { return pool.allocate(100); });
    bounded();
    return 0;
}
