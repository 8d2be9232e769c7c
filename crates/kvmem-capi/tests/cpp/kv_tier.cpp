// A cache with a lower tier: evicted values go to the tier, and come back under a lease.
#include <array>
#include <atomic>
#include <map>
#include <mutex>
#include <optional>
#include <stdexcept>
#include <string>
#include <thread>
#include <variant>
#include <vector>

#include "check.hpp"

static_assert(moves_only<kvmem::KvLease> && moves_only<kvmem::KvLeased> &&
              moves_only<kvmem::KvSuperseded>);

// The exception of a test's lower tier.
struct Broken : std::runtime_error {
    Broken() : std::runtime_error("the disk is full") {}
};

static std::string text(const kvmem::KvValue &value) {
    return std::string(reinterpret_cast<const char *>(value.bytes().data()), value.size());
}

static kvmem::Pool small_pool() {
    kvmem::PoolOptions small;
    small.pages = "4k";
    return kvmem::Pool(MIB, small);
}

// Returns whether a call throws `Broken` unchanged.
template <class Call>
static bool breaks(Call call) {
    try {
        call();
    } catch (const Broken &broken) {
        return std::string(broken.what()) == "the disk is full";
    }
    return false;
}

static bool put(kvmem::KvCache &cache, std::string_view key, std::string_view value) {
    return cache.insert(key, value.data(), value.size());
}

static kvmem::KvReservation written(kvmem::KvCache &cache, std::string_view key,
                                    std::string_view value) {
    auto reserved = cache.reserve(key, value.size());
    CHECK(reserved);
    std::memcpy(reserved->bytes().data(), value.data(), value.size());
    return std::move(*reserved);
}

// Takes a lease, which must be available.
static kvmem::KvLease leased(const kvmem::KvCache &cache, std::string_view key) {
    auto found = cache.lease(key);
    CHECK(std::holds_alternative<kvmem::KvLease>(found));
    return std::get<kvmem::KvLease>(std::move(found));
}

static bool unavailable(const kvmem::KvCache &cache, std::string_view key) {
    return std::holds_alternative<kvmem::KvUnavailable>(cache.lease(key));
}

// A lower tier: values by key, under a lock.
class Tier {
public:
    void store(const kvmem::KvValue &value) {
        const std::lock_guard<std::mutex> lock(mutex_);
        if (!value.is_superseded()) {
            values_[std::string(value.cache_key())] = text(value);
        }
    }

    void invalidate(std::string_view key) {
        const std::lock_guard<std::mutex> lock(mutex_);
        values_.erase(std::string(key));
    }

    void clear() {
        const std::lock_guard<std::mutex> lock(mutex_);
        values_.clear();
    }

    std::optional<std::string> find(std::string_view key) {
        const std::lock_guard<std::mutex> lock(mutex_);
        const auto at = values_.find(std::string(key));
        return at == values_.end() ? std::nullopt : std::optional(at->second);
    }

private:
    std::mutex mutex_;
    std::map<std::string, std::string> values_;
};

// Returns the value from the cache or the tier.
static std::optional<kvmem::KvValue> find(kvmem::KvCache &cache, Tier &tier,
                                          std::string_view key) {
    auto found = cache.lease(key);
    if (auto *value = std::get_if<kvmem::KvValue>(&found)) {
        return std::move(*value);
    }
    auto *lease = std::get_if<kvmem::KvLease>(&found);
    if (lease == nullptr) {
        return std::nullopt;
    }
    const auto fetched = tier.find(key);
    if (!fetched) {
        return std::nullopt;
    }
    auto committed = written(cache, key, *fetched).commit_leased(std::move(*lease));
    if (auto *superseded = std::get_if<kvmem::KvSuperseded>(&committed)) {
        return std::move(superseded->found);
    }
    return std::get<kvmem::KvValue>(std::move(committed));
}

static kvmem::KvCacheOptions few(std::uint64_t blocks) {
    kvmem::KvCacheOptions options;
    options.max_blocks = blocks;
    options.shards = 1;
    return options;
}

static void leases() {
    kvmem::Pool pool = small_pool();
    kvmem::KvCache cache(pool);
    kvmem::KvCache other(pool);

    // A fetched value is committed; the first commit succeeds.
    kvmem::KvLease lease = leased(cache, "one");
    kvmem::KvLease same = leased(cache, "one");
    CHECK(lease && lease.is_valid() && same.is_valid());
    kvmem::KvReservation reserved = written(cache, "one", "fetched");
    CHECK(reserved.cache_key() == "one");
    auto committed = std::move(reserved).commit_leased(std::move(lease));
    CHECK(!reserved && !lease);
    THROWS(KVMEM_ERR_NULL_ARGUMENT, "", lease.is_valid());
    const kvmem::KvValue value = std::get<kvmem::KvValue>(std::move(committed));
    CHECK(text(value) == "fetched" && value.cache_key() == "one" && !value.is_superseded());
    CHECK(!same.is_valid());
    committed = written(cache, "one", "later").commit_leased(std::move(same));
    auto &superseded = std::get<kvmem::KvSuperseded>(committed);
    CHECK(!same && superseded.reservation && superseded.reservation.size() == 5 &&
          superseded.found);
    CHECK(text(*superseded.found) == "fetched");
    // The reservation is still usable.
    CHECK(text(std::move(superseded.reservation).commit()) == "later" && value.is_superseded());

    // If the key has a value, there is no lease but the value.
    auto found = cache.lease("one");
    CHECK(text(std::get<kvmem::KvValue>(found)) == "later");

    // An insertion, a removal and a clearing make a lease invalid; the newer value stays.
    for (int how = 0; how < 3; ++how) {
        lease = leased(cache, "two");
        CHECK(put(cache, "two", "new"));
        if (how == 1) {
            CHECK(cache.remove("two"));
        } else if (how == 2) {
            cache.clear();
        }
        CHECK(!lease.is_valid());
        committed = written(cache, "two", "old").commit_leased(std::move(lease));
        auto &there = std::get<kvmem::KvSuperseded>(committed).found;
        CHECK(there.has_value() == (how == 0) && cache.contains("two") == (how == 0));
        CHECK(!there || text(*there) == "new");
        cache.remove("two");
    }

    // A lease for another key or cache: both objects stay.
    lease = leased(cache, "three");
    kvmem::KvLease foreign = leased(other, "three");
    reserved = written(cache, "three", "3");
    THROWS(KVMEM_ERR_INVALID_ARGUMENT, "another key",
           written(cache, "four", "4").commit_leased(std::move(lease)));
    THROWS(KVMEM_ERR_INVALID_ARGUMENT, "another cache",
           std::move(reserved).commit_leased(std::move(foreign)));
    CHECK(lease.is_valid() && foreign.is_valid() && reserved && !cache.contains("three"));
    CHECK(std::holds_alternative<kvmem::KvValue>(
        std::move(reserved).commit_leased(std::move(lease))));
    THROWS(KVMEM_ERR_NULL_ARGUMENT, "", std::move(reserved).commit_leased(std::move(foreign)));
    CHECK(foreign.is_valid());

    // A moved-from lease is empty.
    kvmem::KvLease moved = std::move(foreign);
    CHECK(moved && !foreign && moved.is_valid());
    move_to_itself(moved);
    CHECK(moved.is_valid());
    THROWS(KVMEM_ERR_NULL_ARGUMENT, "",
           written(other, "three", "3").commit_leased(std::move(foreign)));
    kvmem::KvCache gone = std::move(cache);
    THROWS(KVMEM_ERR_NULL_ARGUMENT, "", cache.lease("one"));
    kvmem::KvValue first = std::move(*gone.get("three"));
    const kvmem::KvValue second = first.clone();
    const kvmem::KvValue third = std::move(first);
    THROWS(KVMEM_ERR_NULL_ARGUMENT, "", first.cache_key());
    THROWS(KVMEM_ERR_NULL_ARGUMENT, "", first.is_superseded());
    THROWS(KVMEM_ERR_NULL_ARGUMENT, "", first.clone());
    THROWS(KVMEM_ERR_NULL_ARGUMENT, "", reserved.cache_key());
    CHECK(second.bytes().data() == third.bytes().data() && second.offset() == third.offset());
    gone.check();
}

// An exception of `on_evict` is not passed on; that of an `invalidate` function is.
static void failures() {
    kvmem::Pool pool = small_pool();
    bool broken = false;
    int given = 0;
    Tier tier;
    kvmem::KvCacheOptions options = few(2);
    options.on_evict = [&](const kvmem::KvValue &value) {
        ++given;
        if (broken) {
            throw Broken();
        }
        tier.store(value);
    };
    kvmem::KvCache cache(pool, options);
    CHECK(put(cache, "1", "one") && put(cache, "2", "two"));
    broken = true;
    CHECK(put(cache, "3", "three") && given == 1 && cache.contains("3"));
    CHECK(unavailable(cache, "1") && !tier.find("1") && !find(cache, tier, "1"));

    kvmem::KvLease lease = leased(cache, "4");
    CHECK(breaks([&] { cache.remove_with("3", [] { throw Broken(); }); }));
    CHECK(!cache.contains("3") && unavailable(cache, "3") && lease.is_valid());
    CHECK(breaks([&] { cache.clear_with([] { throw Broken(); }); }));
    CHECK(!cache.contains("2") && unavailable(cache, "2") && unavailable(cache, "4") &&
          !lease.is_valid());
    broken = false;

    // The key is not leased meanwhile.
    int calls = 0;
    CHECK(put(cache, "2", "two"));
    const auto invalidate = [&] {
        ++calls;
        CHECK(unavailable(cache, "2"));
        tier.clear();
    };
    cache.clear_with(invalidate);
    CHECK(calls == 1 && leased(cache, "1") && leased(cache, "2") && leased(cache, "3") &&
          leased(cache, "4"));
    CHECK(put(cache, "2", "two") && cache.remove_with("2", invalidate) &&
          !cache.remove_with("2", invalidate) && calls == 3);

    // An exception that is no std::exception is passed on, too.
    bool caught = false;
    try {
        cache.remove_with("2", [] { throw 42; });
    } catch (int number) {
        caught = number == 42;
    }
    CHECK(caught && unavailable(cache, "2"));
    // If the library rejects the call, it throws as always and does not call the function.
    kvmem::KvCache moved = std::move(cache);
    THROWS(KVMEM_ERR_NULL_ARGUMENT, "", cache.remove_with("2", invalidate));
    THROWS(KVMEM_ERR_NULL_ARGUMENT, "", (cache.clear_with(invalidate), 0));
    CHECK(calls == 3);
}

// Values that the function keeps stay valid. The function is destroyed with the last user of the
// cache.
static void owners() {
    auto kept = std::make_shared<std::vector<kvmem::KvValue>>();
    const std::weak_ptr<std::vector<kvmem::KvValue>> watch = kept;
    std::optional<kvmem::KvLease> lease;
    std::optional<kvmem::KvReservation> reserved;
    std::optional<kvmem::KvValue> value;
    {
        kvmem::Pool pool = small_pool();
        kvmem::KvCacheOptions options = few(3);
        options.on_evict = [kept](kvmem::KvValue evicted) { kept->push_back(std::move(evicted)); };
        {
            // Without a cache, nothing is kept.
            kvmem::KvCacheOptions wrong = options;
            wrong.low_watermark = 5;
            wrong.high_watermark = 4;
            THROWS(KVMEM_ERR_INVALID_ARGUMENT, "", kvmem::KvCache(pool, wrong));
        }
        kvmem::KvCache cache(pool, options);
        for (char letter = 'a'; letter <= 'h'; ++letter) {
            CHECK(put(cache, std::string(1, letter), std::string(1, letter)));
        }
        CHECK(kept->size() == 5 && text(kept->at(0)) == "a" && kept->at(4).cache_key() == "e");
        CHECK(cache.evict_to(0) == 0 && kept->size() == 8 && text(kept->at(7)) == "h");
        kept->clear();
        CHECK(put(cache, "v", "v"));
        value = cache.get("v");
        reserved = written(cache, "r", "r");
        lease = leased(cache, "r");
    }
    kept.reset();
    CHECK(!watch.expired() && lease->is_valid());
    auto committed = std::move(*reserved).commit_leased(std::move(*lease));
    CHECK(watch.expired() && text(*value) == "v" &&
          text(std::get<kvmem::KvValue>(committed)) == "r");
}

// All inserted values are found in the cache or the tier, and a removal is not undone.
static void evict_and_fetch() {
    kvmem::Pool pool = small_pool();
    Tier tier;
    kvmem::KvCacheOptions options = few(4);
    options.on_evict = [&](const kvmem::KvValue &value) { tier.store(value); };
    kvmem::KvCache cache(pool, options);
    for (int i = 0; i < 20; ++i) {
        CHECK(put(cache, std::to_string(i), "value " + std::to_string(i)));
    }
    for (int i = 0; i < 20; ++i) {
        const auto value = find(cache, tier, std::to_string(i));
        CHECK(value && text(*value) == "value " + std::to_string(i));
    }
    CHECK(!find(cache, tier, "20"));

    kvmem::KvLease lease = leased(cache, "3");
    const auto fetched = tier.find("3");
    CHECK(fetched == "value 3");
    // As another thread would, meanwhile.
    CHECK(!cache.remove_with("3", [&] { tier.invalidate("3"); }));
    const auto committed = written(cache, "3", *fetched).commit_leased(std::move(lease));
    CHECK(!std::get<kvmem::KvSuperseded>(committed).found && !find(cache, tier, "3"));
    cache.check();
}

// A value on its way to the tier is superseded if the key gets a newer one.
static void in_flight() {
    kvmem::Pool pool = small_pool();
    Tier tier;
    kvmem::KvCache *there = nullptr;
    bool superseded = false;
    kvmem::KvCacheOptions options = few(2);
    options.on_evict = [&](const kvmem::KvValue &value) {
        if (value.cache_key() == "1" && text(value) == "old") {
            CHECK(!value.is_superseded() && unavailable(*there, "1") && put(*there, "1", "new"));
            superseded = value.is_superseded();
        }
        tier.store(value);
    };
    kvmem::KvCache cache(pool, options);
    there = &cache;
    CHECK(put(cache, "1", "old") && put(cache, "2", "two") && put(cache, "3", "three"));
    CHECK(superseded && !tier.find("1") && text(*find(cache, tier, "1")) == "new");
    CHECK(cache.evict_to(0) == 0 && tier.find("1") == "new");
}

// Each thread writes its own keys, with increasing values, and looks up all keys. No thread may
// find a value older than one that was there before.
static void many_threads() {
    constexpr std::size_t KEYS = 32;
    constexpr std::size_t THREADS = 4;
    const auto steps = static_cast<std::size_t>(rounds(3000));
    kvmem::Pool pool = small_pool();
    Tier tier;
    std::atomic<int> given{0};
    std::array<std::atomic<std::size_t>, KEYS> latest{};
    kvmem::KvCacheOptions options = few(8);
    options.on_evict = [&](const kvmem::KvValue &value) {
        ++given;
        tier.store(value);
    };
    kvmem::KvCache cache(pool, options);
    std::vector<std::thread> threads;
    for (std::size_t thread = 0; thread < THREADS; ++thread) {
        threads.emplace_back([&, thread] {
            std::uint64_t random = thread + 1;
            for (std::size_t step = 1; step <= steps; ++step) {
                random = random * 6364136223846793005u + 1442695040888963407u;
                const std::size_t at = (random >> 33) % KEYS;
                const std::string key = std::to_string(at);
                const std::size_t before = latest[at];
                const auto found = find(cache, tier, key);
                CHECK(!found || std::stoul(text(*found)) >= before);
                if (at % THREADS != thread) {
                    continue;
                }
                if (random >> 62 == 0) {
                    cache.remove_with(key, [&] { tier.invalidate(key); });
                    latest[at] = step + 1;
                } else {
                    CHECK(put(cache, key, std::to_string(step)));
                    latest[at] = step;
                }
            }
        });
    }
    for (std::thread &thread : threads) {
        thread.join();
    }
    CHECK(given > rounds(100));
    cache.check();
    pool.check();
}

int main() {
    leases();
    failures();
    owners();
    evict_and_fetch();
    in_flight();
    many_threads();
    return 0;
}
