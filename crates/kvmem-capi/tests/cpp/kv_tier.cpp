// Evicted values: the program's eviction callback, and a lower tier that the program implements.
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "check.hpp"

static_assert(moves_only<kvmem::KvReservation> && moves_only<kvmem::CustomTier>);

static std::string text(kvmem::bytes_view bytes) {
    return std::string(reinterpret_cast<const char *>(bytes.data()), bytes.size());
}

static kvmem::Pool small_pool() {
    kvmem::PoolOptions options;
    options.pages = "4k";
    return kvmem::Pool(MIB, options);
}

static bool put(kvmem::KvCache &cache, std::string_view key, std::string_view value) {
    return cache.insert(key, value.data(), value.size());
}

static kvmem::KvCacheOptions few(std::uint64_t blocks) {
    kvmem::KvCacheOptions options;
    options.max_blocks = blocks;
    return options;
}

// Values that the function keeps stay valid. The function is destroyed with the last user of the
// cache, and its exceptions end nothing.
static void the_eviction_callback() {
    auto kept = std::make_shared<std::vector<kvmem::KvValue>>();
    const std::weak_ptr<std::vector<kvmem::KvValue>> watch = kept;
    std::optional<kvmem::KvReservation> reserved;
    std::optional<kvmem::KvValue> value;
    {
        kvmem::Pool pool = small_pool();
        kvmem::KvCacheOptions options = few(3);
        options.on_evict = [kept](kvmem::KvValue evicted) {
            kept->push_back(std::move(evicted));
            throw std::runtime_error("dropped");
        };
        {
            // Without a cache, nothing is kept.
            kvmem::KvCacheOptions wrong = options;
            wrong.max_bytes = 0;
            THROWS(KVMEM_ERR_INVALID_ARGUMENT, "", kvmem::KvCache(pool, wrong));
        }
        kvmem::KvCache cache(pool, options);
        for (char letter = 'a'; letter <= 'h'; ++letter) {
            CHECK(put(cache, std::string(1, letter), std::string(1, letter)));
        }
        CHECK(kept->size() == 5 && text(kept->at(0).bytes()) == "a");
        CHECK(kept->at(4).cache_key() == "e");
        CHECK(cache.evict_to(0) == 0 && kept->size() == 8 && text(kept->at(7).bytes()) == "h");
        kept->clear();
        CHECK(put(cache, "v", "v"));
        value = cache.get("v");
        reserved = cache.reserve("r", 1);
    }
    kept.reset();
    CHECK(!watch.expired());
    const kvmem::KvValue committed = std::move(*reserved).commit();
    CHECK(watch.expired() && text(value->bytes()) == "v" && committed.size() == 1);
}

using Keys = std::vector<std::string_view>;

// A tier in a map. While `broken`, every call throws.
class MapTier : public kvmem::Tier {
public:
    std::vector<bool> store(const std::vector<kvmem::TierValue> &values) override {
        const std::lock_guard<std::mutex> lock(mutex);
        works();
        std::vector<bool> stored;
        for (const kvmem::TierValue &value : values) {
            stored.push_back(!value.is_superseded());
            if (value.key() == "hinted") {
                hinted = value.hints();
            }
            if (stored.back()) {
                map[std::string(value.key())] = text(value.bytes());
            }
        }
        return stored;
    }

    std::vector<std::optional<std::uint64_t>> ask(const Keys &keys) override {
        const std::lock_guard<std::mutex> lock(mutex);
        works();
        std::vector<std::optional<std::uint64_t>> sizes;
        for (const std::string_view key : keys) {
            const auto found = map.find(std::string(key));
            sizes.push_back(found == map.end() ? std::nullopt
                                               : std::optional(found->second.size()));
        }
        return sizes;
    }

    std::vector<bool> fetch(const std::vector<kvmem::TierRead> &reads) override {
        const std::lock_guard<std::mutex> lock(mutex);
        works();
        std::vector<bool> fetched;
        for (const kvmem::TierRead &read : reads) {
            const auto found = map.find(std::string(read.key));
            const bool whole = found != map.end() && found->second.size() == read.into.size();
            if (whole) {
                std::memcpy(read.into.data(), found->second.data(), read.into.size());
            }
            fetched.push_back(whole);
        }
        return fetched;
    }

    void remove(const Keys &keys) override {
        const std::lock_guard<std::mutex> lock(mutex);
        works();
        for (const std::string_view key : keys) {
            map.erase(std::string(key));
        }
    }

    void clear() override {
        const std::lock_guard<std::mutex> lock(mutex);
        works();
        map.clear();
    }

    bool broken = false;
    kvmem::KvHints hinted;
    std::mutex mutex;
    std::map<std::string, std::string> map;

private:
    void works() const {
        if (broken) {
            throw std::runtime_error("broken");
        }
    }
};

static std::string find(const kvmem::KvCache &cache, const std::string &key) {
    const auto found = cache.get_batch(std::vector<std::string>{key});
    return found[0] ? text(found[0]->bytes()) : "none";
}

static void a_tier_of_the_program() {
    auto map = std::make_shared<MapTier>();
    const std::weak_ptr<MapTier> watch = map;
    kvmem::Pool pool = small_pool();
    {
        kvmem::KvCacheOptions options = few(4);
        auto tier = std::make_unique<kvmem::CustomTier>(map);
        options.lower_tier = tier.get();
        kvmem::KvCache cache(pool, options);
        tier.reset();
        for (int i = 0; i < 20; ++i) {
            CHECK(put(cache, std::to_string(i), "value " + std::to_string(i)));
        }
        for (int i = 0; i < 20; ++i) {
            CHECK(find(cache, std::to_string(i)) == "value " + std::to_string(i));
        }
        CHECK(find(cache, "20") == "none");
        CHECK(!cache.remove("3") && find(cache, "3") == "none");
        CHECK(map->map.count("3") == 0);

        // Hints reach the tier.
        CHECK(cache.insert("hinted", "hinted", 6, {std::chrono::hours(1), 2, 7}));
        cache.evict_to(0);
        CHECK(map->hinted.priority == 2 && map->hinted.depth == 7);
        const auto ttl = map->hinted.ttl;
        CHECK(ttl > std::chrono::minutes(59) && ttl <= std::chrono::hours(1));

        // A tier that throws: misses, and what it may still have is not fetched until it is
        // cleared.
        cache.evict_to(0);
        map->broken = true;
        CHECK(find(cache, "4") == "none");
        CHECK(put(cache, "5", "new") && cache.evict_to(0) == 0);
        THROWS(KVMEM_ERR_INVALIDATE_FAILED, "remove", cache.remove("6"));
        THROWS(KVMEM_ERR_INVALIDATE_FAILED, "clear", cache.clear());
        map->broken = false;
        CHECK(map->map.at("5") == "value 5" && find(cache, "5") == "none");
        cache.clear();
        CHECK(put(cache, "5", "newer") && cache.evict_to(0) == 0 && find(cache, "5") == "newer");
        cache.check();
        map.reset();
        CHECK(!watch.expired());
    }
    CHECK(watch.expired());
}

// Each thread writes its own keys, with increasing values, and looks up all keys. No thread finds a
// value older than one that was there before.
static void many_threads() {
    constexpr int THREADS = 4, EACH = 6;
    kvmem::Pool pool = small_pool();
    const kvmem::CustomTier tier(std::make_shared<MapTier>());
    kvmem::KvCacheOptions options = few(8);
    options.lower_tier = &tier;
    kvmem::KvCache cache(pool, options);
    std::atomic<int> latest[THREADS * EACH] = {};
    std::vector<std::thread> threads;
    for (int thread = 0; thread < THREADS; ++thread) {
        threads.emplace_back([&, thread] {
            for (int step = 1; step <= rounds(1000); ++step) {
                const int own = thread * EACH + step % EACH;
                CHECK(put(cache, std::to_string(own), std::to_string(step)));
                latest[own] = step;
                const int other = (step * 7 + thread) % (THREADS * EACH);
                const int before = latest[other];
                const std::string found = find(cache, std::to_string(other));
                CHECK(found == "none" || std::stoi(found) >= before);
            }
        });
    }
    for (std::thread &thread : threads) {
        thread.join();
    }
    cache.check();
}

int main() {
    the_eviction_callback();
    a_tier_of_the_program();
    many_threads();
    return 0;
}
