// Sets of disk tiers, chains, the queue of evicted values, and fetches in the background.
#include <chrono>
#include <string>
#include <thread>
#include <unistd.h>
#include <vector>

#include "check.hpp"

using namespace std::chrono_literals;
using kvmem::Chain;
using kvmem::DiskTier;
using kvmem::KvCache;
using kvmem::TierSet;
using Clock = std::chrono::steady_clock;

static_assert(moves_only<TierSet> && moves_only<Chain> && moves_only<kvmem::KvFetching>);

static std::vector<std::string> paths;

/// Removes the files of tiers: one that exists keeps its length.
static void remove_files() {
    for (const std::string &path : paths) {
        CHECK(std::remove(path.c_str()) == 0 || access(path.c_str(), F_OK) != 0);
    }
}

static kvmem::DiskTierOptions of(std::uint64_t bytes) {
    kvmem::DiskTierOptions options;
    options.bytes = bytes;
    options.max_entries = 1000;
    return options;
}

static std::string key(std::uint64_t number) { return "key " + std::to_string(number); }

static std::string value(std::uint64_t number) {
    return std::string(4000 + number * 7 % 2000, static_cast<char>('a' + number % 23)) +
           std::to_string(number);
}

static std::vector<std::string> keys(std::uint64_t first, std::uint64_t count) {
    std::vector<std::string> keys;
    for (std::uint64_t at = 0; at < count; at++) {
        keys.push_back(key(first + at));
    }
    return keys;
}

template <class Bytes>
static std::string text(const Bytes &bytes) {
    return std::string(reinterpret_cast<const char *>(bytes.data()), bytes.size());
}

/// Checks the values of keys; returns how many there are.
static std::uint64_t count(const std::vector<std::optional<kvmem::KvValue>> &found,
                           std::uint64_t first) {
    std::uint64_t values = 0;
    for (std::size_t at = 0; at < found.size(); at++) {
        CHECK(!found[at] || text(found[at]->bytes()) == value(first + at));
        values += found[at] ? 1 : 0;
    }
    return values;
}

static void sets() {
    {
        TierSet set(paths, of(4 * MIB));
        CHECK(set.reports().size() == 3 && set.reports()[2]->created == 1);
        for (std::uint64_t number = 0; number < 100; number++) {
            const std::string one = value(number);
            CHECK(set.store(key(number), one.data(), one.size()));
        }
        CHECK(set.stats().entries == 100 && text(*set.fetch(key(5))) == value(5));
        CHECK(set.remove(key(5)) && !set.len_of(key(5)) && !set.remove(key(5)));
        set.sync();
        set.checkpoint();
        TierSet moved = std::move(set);
        CHECK(moved.stats().entries == 99 && set.native_handle() == nullptr);
        THROWS(KVMEM_ERR_NULL_ARGUMENT, "NULL", set.sync());
        THROWS(KVMEM_ERR_IN_USE, paths[1].c_str(), TierSet({paths[1]}));
    }
    std::vector<std::string> more = paths;
    more.insert(more.begin(), paths[0] + ".none");
    THROWS(KVMEM_ERR_SYSTEM, "No such file", (TierSet(more)));
    TierSet set = TierSet::open_available(more);
    CHECK(!set.reports()[0] && set.reports()[1] && set.reports()[1]->created == 0);
    CHECK(set.stats().entries == 99);
    set.clear();
    CHECK(set.stats().entries == 0);
    THROWS(KVMEM_ERR_INVALID_ARGUMENT, "at least one", (TierSet(std::vector<std::string>())));
}

static void chains(const kvmem::Pool &pool) {
    TierSet upper({paths[0], paths[1]}, of(MIB));
    DiskTier lower(paths[2], of(8 * MIB));
    kvmem::KvCacheOptions options;
    const Chain chain(upper, lower);
    options.lower_tier = &chain;
    options.write_behind_bytes = MIB / 4;
    KvCache cache(pool, options);
    for (std::uint64_t number = 0; number < 500; number++) {
        const std::string one = value(number);
        CHECK(cache.insert(key(number), one.data(), one.size()));
    }
    CHECK(cache.evict_to(0) == 0);
    cache.flush();
    CHECK(cache.flush_until(Clock::now()) && cache.write_behind_error().empty());
    const kvmem::WriteBehindStats queue = cache.write_behind_stats();
    CHECK(queue.values == 0 && queue.evicted >= 500 && queue.failed == 0);
    CHECK(upper.stats().evictions > 0 && lower.stats().entries == 500);

    kvmem::KvFetching fetching = cache.start_fetch(keys(0, 20));
    fetching.wait();
    CHECK(fetching.is_done() && fetching.wait_for(0s) && count(fetching.take(), 0) == 20);
    CHECK(!fetching);
    THROWS(KVMEM_ERR_NULL_ARGUMENT, "NULL", fetching.take());
    fetching = cache.start_fetch(keys(20, 20));
    CHECK(fetching.wait_until(Clock::now() + 120s));
    kvmem::KvFetching moved = std::move(fetching);
    CHECK(count(moved.take(), 20) == 20);
    cache.start_fetch(keys(40, 20)).cancel();
    cache.start_fetch(keys(60, 20)).detach();
    for (int tries = 0; !cache.contains_in_memory(key(79)) ||
                       !cache.contains_in_memory(key(60)); tries++) {
        CHECK(tries < 12000);
        std::this_thread::sleep_for(10ms);
    }
    CHECK(count(cache.get_batch_until(keys(80, 20), Clock::now() + 120s), 80) == 20);
    CHECK(count(cache.get_batch_until(keys(80, 20), Clock::time_point::max()), 80) == 20);
    CHECK(count(cache.get_batch_until(keys(100, 20), Clock::time_point::min()), 100) <= 20);
    CHECK(cache.start_fetch(std::vector<std::string>()).take().empty());
    const auto none = cache.start_fetch(std::vector<std::string>{"none"});
    none.wait();
    cache.clear();
    CHECK(lower.stats().entries == 0 && upper.stats().entries == 0);

    const TierSet gone = std::move(upper);
    THROWS(KVMEM_ERR_NULL_ARGUMENT, "NULL", (Chain(upper, lower)));
    options.lower_tier = &upper;
    THROWS(KVMEM_ERR_NULL_ARGUMENT, "moved from", (KvCache(pool, options)));
    options.lower_tier = &lower;
    options.write_behind_writers = 100;
    THROWS(KVMEM_ERR_INVALID_ARGUMENT, "use 1 to 64", (KvCache(pool, options)));
}

int main() {
    for (int at = 0; at < 3; at++) {
        paths.push_back("/tmp/kvmem-tier-set-cpp-" + std::to_string(getpid()) + "-" +
                        std::to_string(at));
    }
    kvmem::PoolOptions options;
    options.pages = "4k";
    const kvmem::Pool pool(MIB, options);
    sets();
    remove_files();
    remove_files();
    chains(pool);
    remove_files();
    remove_files();
    return 0;
}
