// The verbs of a cache, by the table of all languages: what they return, and which calls of the
// lower tier they make.
#include <chrono>
#include <cstdlib>
#include <fstream>
#include <functional>
#include <map>
#include <sstream>
#include <string>
#include <vector>

#include "check.hpp"

using namespace std::chrono_literals;

namespace {

/// The tier that records its calls.
class Counting : public kvmem::LowerTier {
public:
    Counting() {
        kvmem_lower_tier *made = nullptr;
        CHECK(kvmem_lower_tier_counting(&made) == KVMEM_OK);
        lower_tier_.reset(made);
    }

    static std::string calls() {
        char text[64];
        CHECK(kvmem_lower_tier_calls(text, sizeof text, nullptr) == KVMEM_OK);
        return text;
    }
};

const std::string key = "key";

std::uint64_t found(const std::vector<std::optional<kvmem::KvValue>> &values) {
    return values.at(0) ? 1 : 0;
}

using Verb = std::function<std::optional<std::uint64_t>(kvmem::KvCache &)>;

/// Makes a verb that returns nothing.
template <class Call>
Verb silent(Call call) {
    return [call](kvmem::KvCache &cache) -> std::optional<std::uint64_t> {
        call(cache);
        return std::nullopt;
    };
}

const std::vector<std::string> keys = {key};

const std::map<std::string, Verb> verbs = {
    {"get", [](kvmem::KvCache &cache) { return cache.get(key) ? 1 : 0; }},
    {"get_in_memory", [](kvmem::KvCache &cache) { return cache.get_in_memory(key) ? 1 : 0; }},
    {"get_batch", [](kvmem::KvCache &cache) { return found(cache.get_batch(keys)); }},
    {"get_batch_until",
     [](kvmem::KvCache &cache) {
         return found(cache.get_batch_until(keys, std::chrono::steady_clock::now() + 60s));
     }},
    {"start_fetch",
     [](kvmem::KvCache &cache) {
         auto fetching = cache.start_fetch(keys);
         CHECK(fetching.wait_until(std::chrono::steady_clock::now() + 60s));
         return found(fetching.take());
     }},
    {"contains", [](kvmem::KvCache &cache) { return cache.contains(key); }},
    {"contains_in_memory", [](kvmem::KvCache &cache) { return cache.contains_in_memory(key); }},
    {"len", [](kvmem::KvCache &cache) { return cache.len(); }},
    {"len_in_memory", [](kvmem::KvCache &cache) { return cache.len_in_memory(); }},
    {"remove", [](kvmem::KvCache &cache) { return cache.remove(key); }},
    {"remove_in_memory", [](kvmem::KvCache &cache) { return cache.remove_in_memory(key); }},
    {"clear", silent([](kvmem::KvCache &cache) { cache.clear(); })},
    {"clear_in_memory", silent([](kvmem::KvCache &cache) { cache.clear_in_memory(); })},
    {"insert", silent([](kvmem::KvCache &cache) { CHECK(cache.insert(key, "another", 7)); })},
    {"evict_to", silent([](kvmem::KvCache &cache) { CHECK(cache.evict_to(0) == 0); })},
    {"prefetch", silent([](kvmem::KvCache &cache) { cache.prefetch(keys); })},
};

void check(const kvmem::Pool &pool, const Verb &verb, const std::string &place,
           const std::string &name, std::uint64_t answer, const std::string &calls) {
    Counting tier;
    kvmem::KvCacheOptions options;
    options.lower_tier = &tier;
    kvmem::KvCache cache(pool, options);
    cache.clear();
    if (place != "missing") {
        CHECK(cache.insert(key, "value", 5));
    }
    if (place == "tier" || place == "both") {
        cache.evict_to(0);
    }
    if (place == "both") {
        CHECK(cache.get(key));
    }
    (void)Counting::calls();
    const auto returned = verb(cache);
    const std::string made = Counting::calls();
    const std::uint64_t got = returned ? *returned : cache.len();
    if (got != answer || made != calls) {
        std::fprintf(stderr, "%s in %s: %s, wanted %s\n", name.c_str(), place.c_str(),
                     made.c_str(), calls.c_str());
        std::exit(1);
    }
}

// Hints reach the tier, by each call that takes them.
void check_hints(const kvmem::Pool &pool) {
    Counting tier;
    kvmem::KvCacheOptions options;
    options.lower_tier = &tier;
    kvmem::KvCache cache(pool, options);
    const kvmem::KvHints hints = {1h, 3, 5, kvmem::DataType::bfloat16};
    CHECK(cache.insert("one", "1", 1, hints));
    CHECK(cache.insert_batch({{"other", kvmem::detail::bytes_of("2", 1), hints},
                              {"plain", kvmem::detail::bytes_of("3", 1)}}));
    auto reserved = cache.reserve("last", 1);
    reserved->set_hints(hints);
    (void)std::move(*reserved).commit();
    THROWS(KVMEM_ERR_INVALID_ARGUMENT, "priority is 4: use 0 to 3",
           cache.insert("bad", "4", 1, {0s, 4, 0}));
    THROWS(KVMEM_ERR_INVALID_ARGUMENT, "ttl is -1 ms", cache.insert("bad", "4", 1, {-1ms}));
    cache.evict_to(0);
    for (const std::string name : {"one", "other", "last", "plain"}) {
        kvmem_value_hints got;
        CHECK(kvmem_lower_tier_hints(name.data(), name.size(), &got) == KVMEM_OK);
        const bool plain = name == "plain";
        CHECK((got.ttl_ms == 0) == plain && got.priority == (plain ? 0 : 3) &&
              got.depth == (plain ? 0 : 5) &&
              got.data_type == (plain ? KVMEM_DATA_UNKNOWN : KVMEM_DATA_BFLOAT16));
    }
    CHECK(!cache.contains("bad"));
}

} // namespace

int main() {
    kvmem::PoolOptions options;
    options.pages = "4k";
    kvmem::Pool pool(MIB, options);
    std::ifstream table(std::getenv("KVMEM_TEST_CACHE_VERBS"));
    std::string row;
    std::size_t rows = 0;
    while (std::getline(table, row)) {
        if (row.at(0) == '#') {
            continue;
        }
        std::istringstream words(row);
        std::string name, calls;
        words >> name;
        for (const char *place : {"memory", "tier", "both", "missing"}) {
            std::uint64_t answer = 0;
            CHECK(words >> answer >> calls);
            check(pool, verbs.at(name), place, name, answer, calls);
        }
        rows++;
    }
    CHECK(rows == verbs.size());
    check_hints(pool);
}
