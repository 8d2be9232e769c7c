// A cache with a lower tier: what is evicted goes there, and comes back under a lease.
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

// What a lower tier of a test throws.
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

// That a call throws `Broken`, as it was thrown.
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
    auto room = cache.reserve(key, value.size());
    CHECK(room);
    std::memcpy(room->bytes().data(), value.data(), value.size());
    return std::move(*room);
}

// A lease where there must be one.
static kvmem::KvLease leased(const kvmem::KvCache &cache, std::string_view key) {
    auto found = cache.lease(key);
    CHECK(std::holds_alternative<kvmem::KvLease>(found));
    return std::get<kvmem::KvLease>(std::move(found));
}

static bool busy(const kvmem::KvCache &cache, std::string_view key) {
    return std::holds_alternative<kvmem::KvUnavailable>(cache.lease(key));
}

// Values by their keys, under a lock.
class Below {
public:
    void take(const kvmem::KvValue &value) {
        const std::lock_guard<std::mutex> lock(mutex_);
        if (!value.is_superseded()) {
            values_[std::string(value.cache_key())] = text(value);
        }
    }

    void invalidate(std::string_view key) {
        const std::lock_guard<std::mutex> lock(mutex_);
        values_.erase(std::string(key));
    }

    void forget_all() {
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

// The value, from here or from below.
static std::optional<kvmem::KvValue> find(kvmem::KvCache &cache, Below &below,
                                          std::string_view key) {
    auto found = cache.lease(key);
    if (auto *value = std::get_if<kvmem::KvValue>(&found)) {
        return std::move(*value);
    }
    auto *lease = std::get_if<kvmem::KvLease>(&found);
    if (lease == nullptr) {
        return std::nullopt;
    }
    const auto fetched = below.find(key);
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

    // Fetched, and put in; the first commit wins.
    kvmem::KvLease lease = leased(cache, "one");
    kvmem::KvLease same = leased(cache, "one");
    CHECK(lease && lease.is_valid() && same.is_valid());
    kvmem::KvReservation room = written(cache, "one", "fetched");
    CHECK(room.cache_key() == "one");
    auto committed = std::move(room).commit_leased(std::move(lease));
    CHECK(!room && !lease);
    THROWS(KVMEM_ERR_NULL_ARGUMENT, "", lease.is_valid());
    const kvmem::KvValue value = std::get<kvmem::KvValue>(std::move(committed));
    CHECK(text(value) == "fetched" && value.cache_key() == "one" && !value.is_superseded());
    CHECK(!same.is_valid());
    committed = written(cache, "one", "later").commit_leased(std::move(same));
    auto &superseded = std::get<kvmem::KvSuperseded>(committed);
    CHECK(!same && superseded.reservation && superseded.reservation.size() == 5 &&
          superseded.found);
    CHECK(text(*superseded.found) == "fetched");
    // The room is as good as before.
    CHECK(text(std::move(superseded.reservation).commit()) == "later" && value.is_superseded());

    // A value, where there is one.
    auto found = cache.lease("one");
    CHECK(text(std::get<kvmem::KvValue>(found)) == "later");

    // Broken by an insertion, a removal, a clearing; the newer value stays.
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

    // Of another key or cache: both stay.
    lease = leased(cache, "three");
    kvmem::KvLease foreign = leased(other, "three");
    room = written(cache, "three", "3");
    THROWS(KVMEM_ERR_INVALID_ARGUMENT, "another key",
           written(cache, "four", "4").commit_leased(std::move(lease)));
    THROWS(KVMEM_ERR_INVALID_ARGUMENT, "another cache",
           std::move(room).commit_leased(std::move(foreign)));
    CHECK(lease.is_valid() && foreign.is_valid() && room && !cache.contains("three"));
    CHECK(std::holds_alternative<kvmem::KvValue>(std::move(room).commit_leased(std::move(lease))));
    THROWS(KVMEM_ERR_NULL_ARGUMENT, "", std::move(room).commit_leased(std::move(foreign)));
    CHECK(foreign.is_valid());

    // What was moved from has nothing.
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
    THROWS(KVMEM_ERR_NULL_ARGUMENT, "", room.cache_key());
    CHECK(second.bytes().data() == third.bytes().data() && second.offset() == third.offset());
    gone.check();
}

// What `on_evict` throws stays there; what forgetting throws comes out.
static void what_fails() {
    kvmem::Pool pool = small_pool();
    bool broken = false;
    int given = 0;
    Below below;
    kvmem::KvCacheOptions options = few(2);
    options.on_evict = [&](const kvmem::KvValue &value) {
        ++given;
        if (broken) {
            throw Broken();
        }
        below.take(value);
    };
    kvmem::KvCache cache(pool, options);
    CHECK(put(cache, "1", "one") && put(cache, "2", "two"));
    broken = true;
    CHECK(put(cache, "3", "three") && given == 1 && cache.contains("3"));
    CHECK(busy(cache, "1") && !below.find("1") && !find(cache, below, "1"));

    kvmem::KvLease lease = leased(cache, "4");
    CHECK(breaks([&] { cache.remove_with("3", [] { throw Broken(); }); }));
    CHECK(!cache.contains("3") && busy(cache, "3") && lease.is_valid());
    CHECK(breaks([&] { cache.clear_with([] { throw Broken(); }); }));
    CHECK(!cache.contains("2") && busy(cache, "2") && busy(cache, "4") && !lease.is_valid());
    broken = false;

    // Nobody fetches meanwhile.
    int told = 0;
    CHECK(put(cache, "2", "two"));
    const auto invalidate = [&] {
        ++told;
        CHECK(busy(cache, "2"));
        below.forget_all();
    };
    cache.clear_with(invalidate);
    CHECK(told == 1 && leased(cache, "1") && leased(cache, "2") && leased(cache, "3") &&
          leased(cache, "4"));
    CHECK(put(cache, "2", "two") && cache.remove_with("2", invalidate) &&
          !cache.remove_with("2", invalidate) && told == 3);

    // Not even what is no std::exception is lost.
    bool caught = false;
    try {
        cache.remove_with("2", [] { throw 42; });
    } catch (int number) {
        caught = number == 42;
    }
    CHECK(caught && busy(cache, "2"));
    // What the library refuses is thrown as ever, and nobody is told.
    kvmem::KvCache moved = std::move(cache);
    THROWS(KVMEM_ERR_NULL_ARGUMENT, "", cache.remove_with("2", invalidate));
    THROWS(KVMEM_ERR_NULL_ARGUMENT, "", (cache.clear_with(invalidate), 0));
    CHECK(told == 3);
}

// Kept values stay, and what `on_evict` has goes with the last that has to do with the cache.
static void owners() {
    auto kept = std::make_shared<std::vector<kvmem::KvValue>>();
    const std::weak_ptr<std::vector<kvmem::KvValue>> watch = kept;
    std::optional<kvmem::KvLease> lease;
    std::optional<kvmem::KvReservation> room;
    std::optional<kvmem::KvValue> value;
    {
        kvmem::Pool pool = small_pool();
        kvmem::KvCacheOptions options = few(3);
        options.on_evict = [kept](kvmem::KvValue evicted) { kept->push_back(std::move(evicted)); };
        {
            // No cache, so nothing stays.
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
        room = written(cache, "r", "r");
        lease = leased(cache, "r");
    }
    kept.reset();
    CHECK(!watch.expired() && lease->is_valid());
    auto committed = std::move(*room).commit_leased(std::move(*lease));
    CHECK(watch.expired() && text(*value) == "v" &&
          text(std::get<kvmem::KvValue>(committed)) == "r");
}

// All that is put in can be had, from here or from below, and a removal is not undone.
static void to_and_fro() {
    kvmem::Pool pool = small_pool();
    Below below;
    kvmem::KvCacheOptions options = few(4);
    options.on_evict = [&](const kvmem::KvValue &value) { below.take(value); };
    kvmem::KvCache cache(pool, options);
    for (int i = 0; i < 20; ++i) {
        CHECK(put(cache, std::to_string(i), "value " + std::to_string(i)));
    }
    for (int i = 0; i < 20; ++i) {
        const auto value = find(cache, below, std::to_string(i));
        CHECK(value && text(*value) == "value " + std::to_string(i));
    }
    CHECK(!find(cache, below, "20"));

    kvmem::KvLease lease = leased(cache, "3");
    const auto fetched = below.find("3");
    CHECK(fetched == "value 3");
    // Another thread, meanwhile.
    CHECK(!cache.remove_with("3", [&] { below.invalidate("3"); }));
    const auto committed = written(cache, "3", *fetched).commit_leased(std::move(lease));
    CHECK(!std::get<kvmem::KvSuperseded>(committed).found && !find(cache, below, "3"));
    cache.check();
}

// What is handed over is not taken if something newer came while it was on its way.
static void on_its_way() {
    kvmem::Pool pool = small_pool();
    Below below;
    kvmem::KvCache *there = nullptr;
    bool superseded = false;
    kvmem::KvCacheOptions options = few(2);
    options.on_evict = [&](const kvmem::KvValue &value) {
        if (value.cache_key() == "1" && text(value) == "old") {
            CHECK(!value.is_superseded() && busy(*there, "1") && put(*there, "1", "new"));
            superseded = value.is_superseded();
        }
        below.take(value);
    };
    kvmem::KvCache cache(pool, options);
    there = &cache;
    CHECK(put(cache, "1", "old") && put(cache, "2", "two") && put(cache, "3", "three"));
    CHECK(superseded && !below.find("1") && text(*find(cache, below, "1")) == "new");
    CHECK(cache.evict_to(0) == 0 && below.find("1") == "new");
}

// Each thread writes keys of its own, counting up, and looks up all: nobody finds what is older than what stood there before.
static void many_threads() {
    constexpr std::size_t KEYS = 32;
    constexpr std::size_t THREADS = 4;
    constexpr std::size_t STEPS = 3000;
    kvmem::Pool pool = small_pool();
    Below below;
    std::atomic<int> given{0};
    std::array<std::atomic<std::size_t>, KEYS> latest{};
    kvmem::KvCacheOptions options = few(8);
    options.on_evict = [&](const kvmem::KvValue &value) {
        ++given;
        below.take(value);
    };
    kvmem::KvCache cache(pool, options);
    std::vector<std::thread> threads;
    for (std::size_t thread = 0; thread < THREADS; ++thread) {
        threads.emplace_back([&, thread] {
            std::uint64_t random = thread + 1;
            for (std::size_t step = 1; step <= STEPS; ++step) {
                random = random * 6364136223846793005u + 1442695040888963407u;
                const std::size_t at = (random >> 33) % KEYS;
                const std::string key = std::to_string(at);
                const std::size_t before = latest[at];
                const auto found = find(cache, below, key);
                CHECK(!found || std::stoul(text(*found)) >= before);
                if (at % THREADS != thread) {
                    continue;
                }
                if (random >> 62 == 0) {
                    cache.remove_with(key, [&] { below.invalidate(key); });
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
    CHECK(given > 100);
    cache.check();
    pool.check();
}

int main() {
    leases();
    what_fails();
    owners();
    to_and_fro();
    on_its_way();
    many_threads();
    return 0;
}
