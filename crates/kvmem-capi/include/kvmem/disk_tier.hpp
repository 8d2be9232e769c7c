// Disk tier: values on a disk, found again after a restart. Part of kvmem.hpp.
#ifndef KVMEM_DISK_TIER_HPP
#define KVMEM_DISK_TIER_HPP

#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "handle.hpp"
#include "span.hpp"

namespace kvmem {

/// Which values that a cache evicts are written to a tier.
enum class Admission : std::uint32_t {
    /// All of them.
    all = KVMEM_ADMIT_ALL,
    /// Those whose key is evicted a second time.
    second_eviction = KVMEM_ADMIT_SECOND_EVICTION,
};

/// Options of a disk tier. The defaults are those of kvmem_disk_tier_options_init.
struct DiskTierOptions {
    /// Length of the file; a new or shorter one becomes as long. Empty: it keeps its length.
    std::optional<std::uint64_t> bytes;
    /// Maximum number of values, fixed when the file is made. Empty: one for each 32 KiB.
    std::optional<std::uint64_t> max_entries;
    /// Bytes of each of the two journals, fixed when the file is made. Empty: 1/64 of the file, at
    /// most 4 MiB.
    std::optional<std::uint64_t> journal_bytes;
    /// Limits the bytes of evicted values that are written per second; more are dropped.
    std::optional<std::uint64_t> max_write_bytes_per_s;
    /// Maximum number of transfers that one call has in flight, from 1 to 4096.
    std::uint32_t depth = 32;
    /// Makes a new tier of a file that holds something else or is damaged. All of it is lost.
    bool format = false;
    /// Reads all values when the tier is opened, and removes damaged ones.
    bool verify_all = false;
    /// Which values that a cache evicts are written.
    Admission admission = Admission::all;
};

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
    /// The drive failed. The value is removed.
    failed = KVMEM_FETCHED_FAILED,
};

/// A value to store: its key, and its bytes.
struct DiskTierValue {
    std::string_view key;
    bytes_view bytes;
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

/// Values on a local disk, found again by their keys after a restart. A full tier evicts the values
/// that were used least recently. A damaged value is a miss, and never the wrong bytes. Below a
/// cache it receives what the cache evicts: see `KvCacheOptions::lower_tier`. One process uses a
/// file at a time.
class DiskTier {
public:
    /// Opens the tier in a file or block device, and makes it if the file is new. Throws
    /// KVMEM_ERR_BAD_TIER if the file cannot be used as a tier, KVMEM_ERR_IN_USE if another process
    /// has it open as one.
    explicit DiskTier(const std::string &path, const DiskTierOptions &options = {}) {
        kvmem_disk_tier_options wanted;
        detail::check(kvmem_disk_tier_options_init(&wanted, sizeof wanted));
        wanted.bytes = options.bytes.value_or(wanted.bytes);
        wanted.max_entries = options.max_entries.value_or(wanted.max_entries);
        wanted.journal_bytes = options.journal_bytes.value_or(wanted.journal_bytes);
        wanted.max_write_bytes_per_s =
            options.max_write_bytes_per_s.value_or(wanted.max_write_bytes_per_s);
        wanted.depth = options.depth;
        wanted.format = options.format ? 1 : 0;
        wanted.verify = options.verify_all ? KVMEM_VERIFY_ALL : KVMEM_VERIFY_LAZY;
        wanted.admission = static_cast<std::uint32_t>(options.admission);
        kvmem_disk_tier *made = nullptr;
        detail::check(kvmem_disk_tier_open(path.c_str(), &wanted, &made, &report_));
        tier_.reset(made);
    }

    /// What opening the file found.
    const DiskTierReport &report() const noexcept { return report_; }

    /// Stores a value under a key, and replaces the key's value. Returns false if it is too long
    /// for the tier, or if nothing can be evicted for it: the key has no value then.
    bool store(std::string_view key, bytes_view value) {
        const DiskTierValue one = {key, value};
        return store(span<const DiskTierValue>(&one, 1)) == 1;
    }

    bool store(std::string_view key, const void *value, std::size_t bytes) {
        return store(key, detail::bytes_of(value, bytes));
    }

    /// Stores values, all of them together. Returns how many were stored; the others are too long
    /// for the tier, or nothing can be evicted for them, and their keys have no value. Throws if
    /// the drive fails.
    std::size_t store(span<const DiskTierValue> values) {
        std::vector<kvmem_disk_tier_value> list;
        list.reserve(values.size());
        for (const DiskTierValue &one : values) {
            list.push_back({one.key.data(), one.key.size(), one.bytes.data(), one.bytes.size()});
        }
        std::vector<kvmem_status> results(list.size());
        const kvmem_status status =
            kvmem_disk_tier_store(native_handle(), list.data(), list.size(), results.data());
        if (status == KVMEM_OK) {
            return list.size();
        }
        if (!detail::out_of_space(status)) {
            detail::fail(status);
        }
        std::size_t stored = 0;
        for (const kvmem_status result : results) {
            stored += result == KVMEM_OK ? 1 : 0;
            if (result != KVMEM_OK && !detail::out_of_space(result)) {
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
        detail::check(kvmem_disk_tier_fetch(native_handle(), list.data(), list.size()));
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
        detail::check(status);
        return bytes;
    }

    /// Removes the value under a key; returns false if there is none.
    bool remove(std::string_view key) {
        const kvmem_kv_cache_key one = {key.data(), key.size()};
        std::uint64_t removed = 0;
        detail::check(kvmem_disk_tier_remove(native_handle(), &one, 1, &removed));
        return removed != 0;
    }

    /// Removes all values, durably.
    void clear() { detail::check(kvmem_disk_tier_clear(native_handle())); }

    /// Makes all that was stored and removed before durable: a power cut does not undo it.
    void sync() { detail::check(kvmem_disk_tier_sync(native_handle())); }

    /// Writes the index, so that opening the file is fast, and syncs. A tier does so by itself when
    /// its journal is full.
    void checkpoint() { detail::check(kvmem_disk_tier_checkpoint(native_handle())); }

    DiskTierStats stats() const {
        DiskTierStats stats;
        detail::check(kvmem_disk_tier_get_stats(native_handle(), &stats));
        return stats;
    }

    kvmem_disk_tier *native_handle() const noexcept { return tier_.get(); }

private:
    detail::Handle<kvmem_disk_tier, kvmem_disk_tier_destroy> tier_;
    DiskTierReport report_;
};

} // namespace kvmem

#endif
