// Values under keys.
#include <array>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "check.hpp"

static_assert(moves_only<kvmem::KvCache> && moves_only<kvmem::KvValue> &&
              moves_only<kvmem::KvReservation>);

static std::string text(const kvmem::KvValue &value) {
    return std::string(reinterpret_cast<const char *>(value.bytes().data()), value.size());
}

int main() {
    kvmem::Registrars nics = kvmem::testing::simulated_registrars(1);
    std::optional<kvmem::KvValue> kept;
    std::optional<kvmem::KvReservation> remaining;
    {
        kvmem::PoolOptions small;
        small.pages = "4k";
        small.registrars = &nics;
        kvmem::KvCacheOptions options;
        options.max_bytes = 64 * KIB;
        options.max_blocks = 100;
        std::optional<kvmem::Pool> pool(std::in_place, MIB, small);
        kvmem::KvCache cache(*pool, options);
        CHECK(!cache.get("one") && !cache.contains("one") && !cache.remove("one"));
        CHECK(cache.insert("one", "first", 5) && cache.contains("one"));
        // The cache keeps the memory.
        pool.reset();
        CHECK(cache.insert(std::string_view("with\0nul", 8), "other", 5) &&
              !cache.contains("with"));
        // The longest key, and a longer one: an error, not lack of space.
        const std::string longest(KVMEM_MAX_KEY_BYTES, 'k');
        CHECK(cache.insert(longest, "long", 4) && text(*cache.get(longest)) == "long" &&
              cache.remove(longest));
        const std::string longer = longest + 'k';
        THROWS(KVMEM_ERR_INVALID_ARGUMENT, "the key has 1048577 bytes",
               cache.insert(longer, "long", 4));
        THROWS(KVMEM_ERR_INVALID_ARGUMENT, "at most 1048576", cache.get(longer));
        auto value = cache.get("one");
        CHECK(value && *value && text(*value) == "first");
        CHECK(value->key("simulated:0").handle != UINT64_MAX);
        CHECK(cache.insert("one", "second", 6));
        CHECK(text(*value) == "first" && text(*cache.get("one")) == "second");

        // Written in place.
        auto reserved = cache.reserve("two", 6);
        CHECK(reserved && reserved->size() == 6 && !cache.contains("two"));
        CHECK(reserved->key("simulated:0").handle != UINT64_MAX);
        std::memcpy(reserved->bytes().data(), "thirds", 6);
        kvmem::KvReservation moved = std::move(*reserved);
        CHECK(!*reserved && reserved->bytes().empty() && reserved->offset() == 0);
        const kvmem::KvValue third = std::move(moved).commit();
        CHECK(!moved && text(third) == "thirds" && cache.contains("two"));
        THROWS(KVMEM_ERR_NULL_ARGUMENT, "", std::move(moved).commit());
        {
            auto released = cache.reserve("three", 6);
        }
        CHECK(!cache.contains("three"));

        // Eviction leaves pinned values.
        const std::string block(8 * KIB, 'x');
        for (int i = 0; i < 20; ++i) {
            CHECK(cache.insert(std::to_string(i), block.data(), block.size()));
        }
        CHECK(cache.stats().evictions != 0 && !cache.contains("0") && text(*value) == "first");
        CHECK(!cache.insert("long", block.data(), 0x7fffffff));
        CHECK(!cache.reserve("long", 2 * MIB));
        THROWS(KVMEM_ERR_ZERO_SIZE, "", cache.insert("none", block.data(), 0));
        CHECK(cache.evict_to(16 * KIB) <= 16 * KIB);
        CHECK(cache.stats().hits >= 2 && cache.stats().misses == 1);
        // Fetching ahead changes nothing, whatever holds the keys.
        const kvmem::KvCacheStats before = cache.stats();
        cache.prefetch(std::vector<std::string>(33, "19"));
        const std::string_view views[] = {"19", "none", {}};
        cache.prefetch(views);
        cache.prefetch(std::array<const char *, 2>{"19", "none"});
        cache.prefetch(std::vector<std::string_view>());
        CHECK(cache.stats().hits == before.hits && cache.stats().misses == before.misses &&
              cache.stats().blocks == before.blocks);
        THROWS(KVMEM_ERR_INVALID_ARGUMENT, "the key has 1048577 bytes",
               cache.prefetch(std::array<std::string_view, 2>{"19", longer}));
        cache.check();
        CHECK(cache.remove("19"));
        cache.clear();
        CHECK(!cache.contains("18") && text(third) == "thirds");

        kept = std::move(value);
        CHECK(text(*kept) == "first");
        move_to_itself(*kept);
        CHECK(text(*kept) == "first");
        remaining = cache.reserve("remaining", 10);
        kvmem::KvCache same = std::move(cache);
        THROWS(KVMEM_ERR_NULL_ARGUMENT, "", cache.get("one"));
        CHECK(!same.get("one"));
        kvmem::KvCacheOptions wrong;
        wrong.max_bytes = 0;
        THROWS(KVMEM_ERR_INVALID_ARGUMENT, "", kvmem::KvCache(kvmem::Pool(MIB, small), wrong));
    }
    // Pin and reservation outlive the cache and the pool.
    CHECK(text(*kept) == "first" && kvmem::testing::live_keys(nics, 0) == 1);
    {
        kvmem::PoolOptions small;
        small.pages = "4k";
        kvmem::KvCache other(kvmem::Pool(MIB, small));
        CHECK(other.insert("other", "value", 5));
        *kept = std::move(*other.get("other"));
        CHECK(text(*kept) == "value");
    }
    remaining->bytes()[9] = std::byte{1};
    kept.reset();
    remaining.reset();
    CHECK(kvmem::testing::live_keys(nics, 0) == 0);
    return 0;
}
