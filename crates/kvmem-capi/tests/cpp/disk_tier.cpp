// A disk tier: alone, below a cache, and after a restart.
#include <memory>
#include <string>
#include <sys/stat.h>
#include <thread>
#include <unistd.h>
#include <vector>

#include "check.hpp"

using kvmem::DiskTier;
using kvmem::Fetched;

static_assert(moves_only<DiskTier>);

static std::string path;

static kvmem::DiskTierOptions of(std::uint64_t bytes) {
    kvmem::DiskTierOptions options;
    options.bytes = bytes;
    return options;
}

static std::string value(std::uint64_t key, int version = 0) {
    return std::string(3000 + key * 97 % 5000, static_cast<char>('a' + key % 23)) +
           std::to_string(key) + "/" + std::to_string(version);
}

static std::string key(std::uint64_t number) { return "key " + std::to_string(number); }

template <class Bytes>
static std::string text(const Bytes &bytes) {
    return std::string(reinterpret_cast<const char *>(bytes.data()), bytes.size());
}

static void alone() {
    DiskTier tier(path, of(16 * MIB));
    CHECK(tier.report().created == 1 && tier.report().entries == 0);
    std::vector<std::string> keys, values;
    for (std::uint64_t number = 0; number < 50; number++) {
        keys.push_back(key(number));
        values.push_back(value(number));
    }
    std::vector<kvmem::DiskTierValue> stored;
    for (std::size_t at = 0; at < keys.size(); at++) {
        kvmem::DiskTierValue one;
        one.key = keys[at];
        one.bytes = kvmem::detail::bytes_of(values[at].data(), values[at].size());
        stored.push_back(one);
    }
    CHECK(tier.store(kvmem::span<const kvmem::DiskTierValue>(stored.data(), stored.size())) == 50);
    CHECK(tier.store("empty", nullptr, 0) && tier.len_of("empty") == std::uint64_t{0});
    CHECK(tier.fetch("empty") && tier.fetch("empty")->empty() && !tier.fetch("none"));
    CHECK(text(*tier.fetch(key(7))) == value(7) && tier.len_of(key(7)) == value(7).size());
    CHECK(!tier.len_of("none"));

    std::vector<std::vector<std::byte>> memory(keys.size(), std::vector<std::byte>(9000));
    std::vector<kvmem::DiskTierRequest> requests;
    for (std::size_t at = 0; at < keys.size(); at++) {
        requests.push_back({keys[at], kvmem::bytes_span(memory[at].data(), memory[at].size())});
    }
    requests[3].key = "none";
    requests[4].memory = kvmem::bytes_span(memory[4].data(), 10);
    const auto results =
        tier.fetch(kvmem::span<const kvmem::DiskTierRequest>(requests.data(), requests.size()));
    for (std::size_t at = 0; at < keys.size(); at++) {
        if (at == 3) {
            CHECK(results[at].outcome == Fetched::absent && results[at].bytes == 0);
        } else if (at == 4) {
            CHECK(results[at].outcome == Fetched::too_short);
            CHECK(results[at].bytes == values[at].size());
        } else {
            CHECK(results[at].outcome == Fetched::hit);
            memory[at].resize(results[at].bytes);
            CHECK(text(memory[at]) == values[at]);
        }
    }

    // A value that is too long, beside one that is not.
    const std::string much(17 * MIB, 'x');
    CHECK(!tier.store(key(1), much.data(), much.size()) && !tier.len_of(key(1)));
    kvmem::DiskTierValue two[] = {stored[0], stored[1]};
    two[0].bytes = kvmem::detail::bytes_of(much.data(), much.size());
    two[0].key = "much";
    CHECK(tier.store(kvmem::span<const kvmem::DiskTierValue>(two, 2)) == 1);
    CHECK(tier.remove(key(2)) && !tier.remove(key(2)));
    tier.sync();
    tier.checkpoint();
    CHECK(tier.stats().entries == 50 && tier.stats().read_only == 0);

    THROWS(KVMEM_ERR_IN_USE, "open already", DiskTier(path));
    DiskTier moved = std::move(tier);
    CHECK(moved.stats().entries == 50 && tier.native_handle() == nullptr);
    THROWS(KVMEM_ERR_NULL_ARGUMENT, "tier is NULL", tier.sync());
    moved.clear();
    CHECK(moved.stats().entries == 0);
}

// What the file holds, and a value of it that is damaged.
static void looked_into() {
    {
        DiskTier tier(path, of(16 * MIB));
        tier.clear();
        const std::string damaged(10'000, 'd'), whole(5'000, 'w');
        CHECK(tier.store("damaged", damaged.data(), damaged.size()));
        CHECK(tier.store("whole", whole.data(), whole.size()));
        THROWS(KVMEM_ERR_IN_USE, "open as a tier", DiskTier::inspect(path));
    }
    std::FILE *file = std::fopen(path.c_str(), "r+b");
    CHECK(file != nullptr);
    std::vector<char> block(4096);
    long at = -1;
    for (long next = 0; at < 0 && std::fread(block.data(), 4096, 1, file) == 1; next += 4096) {
        at = block == std::vector<char>(4096, 'd') ? next : at;
    }
    CHECK(at >= 0 && std::fseek(file, at + 5, SEEK_SET) == 0 && std::fputc('x', file) == 'x');
    CHECK(std::fclose(file) == 0);

    const kvmem::DiskTierInspection found = DiskTier::inspect(path);
    CHECK(found.entries == 2 && found.value_bytes == 15'000 && found.used_bytes == 5 * 4096);
    CHECK(found.min_bytes == 5'000 && found.max_bytes == 10'000 && found.file_bytes == 16 * MIB);
    std::uint64_t calls = 0;
    kvmem::DiskTierVerifyOptions options;
    options.progress = [&](const kvmem::Progress &progress) {
        calls += progress.phase == KVMEM_PHASE_VERIFY ? 1 : 0;
    };
    kvmem::DiskTierVerification verified = DiskTier::verify(path, options);
    CHECK(verified.entries == 2 && verified.bytes == 5 * 4096 && calls == 2);
    CHECK(verified.damaged == 1 && verified.damaged_values.size() == 1);
    CHECK(verified.damaged_values[0].offset == static_cast<std::uint64_t>(at));
    CHECK(verified.damaged_values[0].damage == KVMEM_DAMAGE_CHECKSUM);
    options.max_damaged_values = 0;
    verified = DiskTier::verify(path, options);
    CHECK(verified.damaged == 1 && verified.damaged_values.empty());
    const kvmem::CancelToken cancel;
    options.cancel = &cancel;
    options.progress = [&](const kvmem::Progress &) { cancel.cancel(); };
    THROWS(KVMEM_ERR_CANCELLED, "was cancelled", DiskTier::verify(path, options));
}

static void wrong() {
    kvmem::DiskTierOptions options = of(16 * MIB);
    options.verify = 2;
    THROWS(KVMEM_ERR_INVALID_ARGUMENT, "verify is 2", DiskTier(path, options));
    THROWS(KVMEM_ERR_SYSTEM, "No such file", DiskTier(path + ".none"));
    THROWS(KVMEM_ERR_INVALID_ARGUMENT, "enlarge it to", DiskTier(path + ".none", of(5000)));
    std::FILE *file = std::fopen(path.c_str(), "wb");
    CHECK(file != nullptr);
    const std::string other(100'000, 'x');
    CHECK(std::fwrite(other.data(), other.size(), 1, file) == 1 && std::fclose(file) == 0);
    THROWS(KVMEM_ERR_BAD_TIER, "no disk tier", DiskTier(path));
    THROWS(KVMEM_ERR_BAD_TIER, "no disk tier", DiskTier::inspect(path));
    THROWS(KVMEM_ERR_BAD_TIER, "no disk tier", DiskTier::verify(path));
    options = of(16 * MIB);
    options.format = true;
    options.verify = KVMEM_VERIFY_ALL;
    options.dsync = true;
    {
        DiskTier tier(path, options);
        CHECK(tier.report().created == 1 && tier.store("key", "value", 5));
    }
    // With `dsync` a stored value is durable at once.
    CHECK(DiskTier::inspect(path).unverified_values == 0);
}

/// The program chooses what is written; what it throws drops the value.
static void custom_admission(const kvmem::Pool &pool) {
    const auto calls = std::make_shared<int>(0);
    {
        kvmem::DiskTierOptions options = of(16 * MIB);
        options.dsync = true;
        options.admission = KVMEM_ADMIT_CUSTOM;
        options.on_admit = [calls](kvmem::bytes_view key, kvmem::bytes_view value) {
            ++*calls;
            CHECK(value.size() >= 3000);
            if (text(key) == "key 7") {
                throw 7;
            }
            return text(key).back() == '7';
        };
        DiskTier tier(path, options);
        kvmem::KvCacheOptions above;
        above.lower_tier = &tier;
        kvmem::KvCache cache(pool, above);
        for (std::uint64_t number = 0; number < 40; number++) {
            const std::string one = value(number);
            CHECK(cache.insert(key(number), one.data(), one.size()));
        }
        cache.evict_to(0);
        CHECK(tier.stats().entries == 3 && tier.stats().not_admitted == 37 && *calls == 40);
        CHECK(calls.use_count() == 3);
    }
    CHECK(calls.use_count() == 1);
    // A tier that cannot be opened takes no function.
    kvmem::DiskTierOptions options;
    options.on_admit = [calls](kvmem::bytes_view, kvmem::bytes_view) { return *calls > 0; };
    THROWS(KVMEM_ERR_INVALID_ARGUMENT, "use KVMEM_ADMIT_CUSTOM", DiskTier(path, options));
    CHECK(calls.use_count() == 2);
    CHECK(std::remove(path.c_str()) == 0);
}

static void encoded() {
    const std::string keys = path + ".keys";
    const auto write_keys = [&keys](const std::string &digits) {
        (void)std::remove(keys.c_str());
        std::FILE *file = std::fopen(keys.c_str(), "w");
        for (const char digit : digits) {
            const std::string line = std::string(64, digit) + "\n";
            CHECK(std::fwrite(line.data(), 1, line.size(), file) == line.size());
        }
        CHECK(std::fclose(file) == 0 && chmod(keys.c_str(), 0400) == 0);
    };
    kvmem::DiskTierOptions options = of(16 * MIB);
    options.codec = "auto";
    options.key_file = keys.c_str();
    THROWS(KVMEM_ERR_SYSTEM, "cannot read the key file", DiskTier(path, options));
    write_keys("1");
    const std::string text_of = std::string(20'000, 'x');
    {
        DiskTier tier(path, options);
        std::vector<kvmem::DiskTierValue> values(2);
        for (std::size_t at = 0; at < 2; at++) {
            values[at].key = at == 0 ? "a" : "b";
            values[at].bytes = kvmem::detail::bytes_of(text_of.data(), text_of.size());
            values[at].data_type = kvmem::DataType::float8_e4m3fn;
            values[at].namespace_name = at == 0 ? "first" : "second";
        }
        CHECK(tier.store(kvmem::span<const kvmem::DiskTierValue>(values.data(), 2)) == 2);
        CHECK(tier.stats().encoded_after_bytes < tier.stats().encoded_before_bytes);
    }
    write_keys("2");
    {
        DiskTier tier(path, options);
        std::vector<std::byte> memory(text_of.size());
        const kvmem::DiskTierRequest one = {"a", kvmem::bytes_span(memory.data(), memory.size())};
        const auto results = tier.fetch(kvmem::span<const kvmem::DiskTierRequest>(&one, 1));
        CHECK(results[0].outcome == Fetched::no_key && !tier.fetch("b"));
        CHECK(tier.stats().key_misses == 2);
    }
    kvmem::DiskTierVerifyOptions verify;
    verify.key_file = keys;
    CHECK(DiskTier::verify(path, verify).damaged == 2 && DiskTier::verify(path).damaged == 0);
    write_keys("21");
    CHECK(DiskTier::verify(path, verify).damaged == 0);
    DiskTier tier(path, options);
    CHECK(text(*tier.fetch("a")) == text_of && text(*tier.fetch("b")) == text_of);
    CHECK(tier.forget_namespace("first") == 1 && tier.forget_namespace("first") == 0);
    CHECK(!tier.fetch("a") && text(*tier.fetch("b")) == text_of);
    CHECK(std::remove(path.c_str()) == 0 && std::remove(keys.c_str()) == 0);
}

int main() {
    path = "/tmp/kvmem-disk-tier-cpp-" + std::to_string(getpid());
    kvmem::PoolOptions options;
    options.pages = "4k";
    const kvmem::Pool pool(MIB, options);
    custom_admission(pool);
    encoded();
    alone();
    looked_into();
    wrong();
    CHECK(std::remove(path.c_str()) == 0);
    return 0;
}
