// A cache in a forked child, while other threads use it: each call throws with KVMEM_ERR_FORKED,
// and destructors drop only the child's copy.
#include <array>
#include <atomic>
#include <string_view>
#include <thread>
#include <vector>

#include <sys/wait.h>
#include <unistd.h>

#include "check.hpp"

constexpr int THREADS = 3, FORKS = 30;

#define FORKED(...) THROWS(KVMEM_ERR_FORKED, "before the process was forked", __VA_ARGS__)

static void in_child(kvmem::KvCache cache, kvmem::KvValue value,
                     kvmem::KvReservation reservation) {
    FORKED(cache.get("key"));
    FORKED(cache.contains("key"));
    FORKED(cache.prefetch(std::array<std::string_view, 1>{"key"}));
    FORKED(cache.insert("key", "value", 5));
    FORKED(cache.reserve("key", 5));
    FORKED(cache.remove("key"));
    FORKED(cache.clear());
    FORKED(cache.evict_to(0));
    FORKED(cache.stats());
    FORKED(cache.check());
    FORKED(value.clone());
    FORKED(value.is_superseded());
    FORKED(value.cache_key());
    FORKED(value.key("simulated:0"));
    FORKED(reservation.cache_key());
    FORKED(std::move(reservation).commit());
    // The handle is still there: only a call that succeeds consumes it.
    CHECK(reservation);
}

int main() {
    kvmem::PoolOptions options;
    options.pages = "4k";
    kvmem::Pool pool(MIB, options);
    std::atomic<int> evicted{0};
    {
        kvmem::KvCacheOptions wanted;
        wanted.max_blocks = 50;
        wanted.on_evict = [&](const kvmem::KvValue &) { ++evicted; };
        kvmem::KvCache cache(pool, wanted);
        std::atomic<bool> stop{false};
        std::vector<std::thread> threads;
        for (int thread = 0; thread < THREADS; ++thread) {
            threads.emplace_back([&, thread] {
                for (unsigned n = 0; !stop; ++n) {
                    const std::string key =
                        std::to_string((n * 7 + static_cast<unsigned>(thread)) % 200);
                    if (!cache.get(key)) {
                        CHECK(cache.insert(key, "some value", 10));
                    }
                }
            });
        }
        while (evicted < 100) {
            std::this_thread::yield();
        }
        CHECK(cache.insert("pinned", "value", 5));
        for (int fork_number = 0; fork_number < FORKS; ++fork_number) {
            CHECK(cache.insert("value", "value", 5));
            auto value = cache.get("value");
            while (!value) {
                CHECK(cache.insert("value", "value", 5));
                value = cache.get("value");
            }
            auto reservation = cache.reserve("reserved", 5);
            CHECK(reservation);
            const pid_t child = fork();
            CHECK(child >= 0);
            if (child == 0) {
                // Ends a child that waits forever.
                alarm(300);
                in_child(std::move(cache), std::move(*value), std::move(*reservation));
                _exit(0);
            }
            int status = 0;
            CHECK(waitpid(child, &status, 0) == child && status == 0);
            CHECK(value->cache_key() == "value");
        }
        stop = true;
        for (std::thread &thread : threads) {
            thread.join();
        }
        cache.check();
    }
    CHECK(pool.metrics().live == 0);
    return 0;
}
