// Tier values: storing and fetching on a disk tier, or on a set of them. Part of kvmem.hpp.
#ifndef KVMEM_TIER_VALUES_HPP
#define KVMEM_TIER_VALUES_HPP

#include <chrono>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "lower_tier.hpp"
#include "pool.hpp"

namespace kvmem {

/// What opening a tier found.
using DiskTierReport = kvmem_disk_tier_report;

/// Statistics of a disk tier.
using DiskTierStats = kvmem_disk_tier_stats;

/// The outcome of a fetch.
enum class Fetched : std::uint32_t {
    /// The value is in place, and its checksum is right.
    hit = KVMEM_FETCHED_HIT,
    /// The key has no value.
    absent = KVMEM_FETCHED_ABSENT,
    /// The value is longer than the memory for it.
    too_short = KVMEM_FETCHED_TOO_SHORT,
    /// The bytes of the disk were not those that were stored. The value is removed.
    damaged = KVMEM_FETCHED_DAMAGED,
    /// The drive failed. The value stays, and is read again later. It is removed if the file ends
    /// before it, or if only this value fails again and again.
    failed = KVMEM_FETCHED_FAILED,
    /// A power cut took the bytes of the value before they were synced. The value is removed.
    lost = KVMEM_FETCHED_LOST,
    /// The drive has failed to read the value, and does not read it again yet.
    suspect = KVMEM_FETCHED_SUSPECT,
    /// The value is encrypted with a key that the tier does not have. It stays.
    no_key = KVMEM_FETCHED_NO_KEY,
    /// The tag is wrong: a person has changed the bytes and the checksum. The value is removed.
    bad_tag = KVMEM_FETCHED_BAD_TAG,
};

/// A value to store: its key, its bytes, and hints about its worth.
struct DiskTierValue {
    std::string_view key;
    bytes_view bytes;
    /// How long the value is of use, at least; rounded up to whole seconds of the wall clock.
    /// Afterwards it is a miss, and is evicted before all others. 0: forever.
    std::chrono::milliseconds ttl{};
    /// 0 to 3: values of a lower priority are evicted first.
    std::uint32_t priority = 0;
    /// The type of the value's elements. A tier that compresses values tries it first.
    DataType data_type = DataType::unknown;
    /// The name of the namespace whose keys encrypt the value, such as that of a tenant.
    std::string_view namespace_name{};
};

/// A value to fetch: its key, and memory for it, at least as long as the value. Memory that begins
/// at a multiple of 4096 bytes is written to directly.
struct DiskTierRequest {
    std::string_view key;
    bytes_span memory;
};

/// The result of a request.
struct DiskTierResult {
    Fetched outcome;
    /// Bytes of the value, if it was fetched or is longer than the memory; otherwise 0.
    std::uint64_t bytes;
};

namespace detail {

/// The calls that a disk tier and a set of disk tiers share.
class TierValues : public LowerTier {
public:
    /// Stores a value under a key, and replaces the key's value. Returns false if it is too long
    /// for the tier, or if nothing can be evicted for it: the key has no value then.
    bool store(std::string_view key, bytes_view value) {
        DiskTierValue one;
        one.key = key;
        one.bytes = value;
        return store(span<const DiskTierValue>(&one, 1)) == 1;
    }

    bool store(std::string_view key, const void *value, std::size_t bytes) {
        return store(key, bytes_of(value, bytes));
    }

    /// Stores values, all of them together. Returns how many were stored; the others are too long
    /// for the tier, or nothing can be evicted for them, and their keys have no value. Throws if
    /// the drive fails.
    std::size_t store(span<const DiskTierValue> values) {
        std::vector<kvmem_disk_tier_value> list;
        list.reserve(values.size());
        for (const DiskTierValue &one : values) {
            const auto ttl = one.ttl.count();
            if (ttl < 0) {
                throw error(KVMEM_ERR_INVALID_ARGUMENT,
                            "ttl of a value is " + std::to_string(ttl) + " ms: use at least 0");
            }
            list.push_back({one.key.data(), one.key.size(), one.bytes.data(), one.bytes.size(),
                            static_cast<std::uint64_t>(ttl), one.priority,
                            static_cast<std::uint32_t>(one.data_type), one.namespace_name.data(),
                            one.namespace_name.size()});
        }
        std::vector<kvmem_status> results(list.size());
        const kvmem_status status =
            kvmem_disk_tier_store(native_handle(), list.data(), list.size(), results.data());
        if (status == KVMEM_OK) {
            return list.size();
        }
        if (!out_of_space(status)) {
            fail(status);
        }
        std::size_t stored = 0;
        for (const kvmem_status result : results) {
            stored += result == KVMEM_OK ? 1 : 0;
            if (result != KVMEM_OK && !out_of_space(result)) {
                throw error(result, "the drive failed: some of the values were not stored");
            }
        }
        return stored;
    }

    /// Fetches values, all at once; returns the result of each. Two requests must not share memory.
    std::vector<DiskTierResult> fetch(span<const DiskTierRequest> requests) const {
        std::vector<kvmem_disk_tier_request> list;
        list.reserve(requests.size());
        for (const DiskTierRequest &one : requests) {
            list.push_back({one.key.data(), one.key.size(), one.memory.data(), one.memory.size(),
                            0, 0, 0});
        }
        check(kvmem_disk_tier_fetch(native_handle(), list.data(), list.size()));
        std::vector<DiskTierResult> results;
        results.reserve(list.size());
        for (const kvmem_disk_tier_request &one : list) {
            results.push_back({static_cast<Fetched>(one.outcome), one.bytes});
        }
        return results;
    }

    /// Fetches a value; empty if the key has none, or a damaged one.
    std::optional<std::vector<std::byte>> fetch(std::string_view key) const {
        // Again if it is replaced by a longer one meanwhile.
        for (;;) {
            std::vector<std::byte> value(len_of(key).value_or(0));
            const DiskTierRequest one = {key, bytes_span(value.data(), value.size())};
            const DiskTierResult result = fetch(span<const DiskTierRequest>(&one, 1)).front();
            if (result.outcome == Fetched::hit) {
                value.resize(result.bytes);
                return value;
            }
            if (result.outcome != Fetched::too_short) {
                return std::nullopt;
            }
        }
    }

    /// The length of a value in bytes; empty if the key has none. This does not count as a use.
    std::optional<std::uint64_t> len_of(std::string_view key) const {
        std::uint64_t bytes = 0;
        const kvmem_status status =
            kvmem_disk_tier_len_of(native_handle(), key.data(), key.size(), &bytes);
        if (status == KVMEM_ERR_NOT_FOUND) {
            return std::nullopt;
        }
        check(status);
        return bytes;
    }

    /// Removes the value under a key; returns false if there is none.
    bool remove(std::string_view key) {
        const kvmem_kv_cache_key one = {key.data(), key.size()};
        std::uint64_t removed = 0;
        check(kvmem_disk_tier_remove(native_handle(), &one, 1, &removed));
        return removed != 0;
    }

    /// Forgets the keys of a namespace, durably, and removes its values: no copy of their bytes can
    /// be decrypted any more. Returns how many there were; see kvmem_disk_tier_forget_namespace.
    std::uint64_t forget_namespace(std::string_view namespace_name) {
        std::uint64_t removed = 0;
        check(kvmem_disk_tier_forget_namespace(native_handle(), namespace_name.data(),
                                               namespace_name.size(), &removed));
        return removed;
    }

    /// Removes all values, durably.
    void clear() { check(kvmem_disk_tier_clear(native_handle())); }

    /// Makes all that was stored and removed before durable: a power cut does not undo it.
    void sync() { check(kvmem_disk_tier_sync(native_handle())); }

    /// Writes the index, so that opening the file is fast, and syncs. A tier does so by itself when
    /// its journal is full.
    void checkpoint() { check(kvmem_disk_tier_checkpoint(native_handle())); }

    DiskTierStats stats() const {
        DiskTierStats stats;
        check(kvmem_disk_tier_get_stats(native_handle(), &stats));
        return stats;
    }

    /// Registers the memory of a pool with the rings of the file, which transfer it faster then;
    /// see kvmem_disk_tier_register_memory. Throws KVMEM_ERR_NOT_AVAILABLE where there are none:
    /// transfers work as before.
    void register_memory(const Pool &pool) {
        check(kvmem_disk_tier_register_memory(native_handle(), pool.native_handle()));
    }

    /// Deregisters the memory of a pool. Does nothing if it is not registered.
    void deregister_memory(const Pool &pool) {
        check(kvmem_disk_tier_deregister_memory(native_handle(), pool.native_handle()));
    }

    kvmem_disk_tier *native_handle() const noexcept { return tier_.get(); }

protected:
    /// Takes over a handle.
    void adopt(kvmem_disk_tier *made) {
        tier_.reset(made);
        kvmem_lower_tier *lower_tier = nullptr;
        check(kvmem_disk_tier_as_lower_tier(made, &lower_tier));
        lower_tier_.reset(lower_tier);
    }

private:
    Handle<kvmem_disk_tier, kvmem_disk_tier_destroy> tier_;
};

} // namespace detail
} // namespace kvmem

#endif
