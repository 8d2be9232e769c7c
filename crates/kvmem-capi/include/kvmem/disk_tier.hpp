// Disk tier: values on a disk, found again after a restart. Part of kvmem.hpp.
#ifndef KVMEM_DISK_TIER_HPP
#define KVMEM_DISK_TIER_HPP

#include <functional>
#include <memory>

#include "tier_inspection.hpp"
#include "tier_values.hpp"

namespace kvmem {

/// Which values that a cache evicts are written to a tier.
enum class Admission : std::uint32_t {
    /// All of them.
    all = KVMEM_ADMIT_ALL,
    /// Those whose key is evicted a second time.
    second_eviction = KVMEM_ADMIT_SECOND_EVICTION,
    /// Those that `DiskTierOptions::on_admit` chooses.
    custom = KVMEM_ADMIT_CUSTOM,
};

/// Chooses the evicted values that are written, by key and value, which are valid only during the
/// call. Threads that evict or write behind a cache call it, several at once, while the order of
/// the key is locked: it must be short, and must not call the cache or the tier. If it throws, the
/// value is dropped.
using AdmitFn = std::function<bool(bytes_view key, bytes_view value)>;

/// Which values a full tier evicts first.
enum class TierEviction : std::uint32_t {
    /// Values used least recently. A fetch is a use.
    lru = KVMEM_TIER_EVICT_LRU,
    /// Values stored first.
    fifo = KVMEM_TIER_EVICT_FIFO,
};

/// Options of a disk tier. The defaults are those of kvmem_disk_tier_options_init.
struct DiskTierOptions {
    /// Length of the file; a new or shorter one becomes as long. Empty: it keeps its length.
    std::optional<std::uint64_t> bytes;
    /// Maximum number of values, fixed when the file is made. Empty: one for each 32 KiB.
    std::optional<std::uint64_t> max_entries;
    /// Bytes of each of the two journals, fixed when the file is made. Empty: those of a checkpoint
    /// of `max_entries` values, or 1/64 of the file up to 4 MiB if that is longer.
    std::optional<std::uint64_t> journal_bytes;
    /// Limits the bytes that are written per second, those of the index too: an evicted value that
    /// comes when they are used up is dropped. Values that the program stores are always written,
    /// and count.
    std::optional<std::uint64_t> max_write_bytes_per_s;
    /// Maximum number of transfers that one call has in flight, from 1 to 4096.
    std::uint32_t depth = 32;
    /// Makes a new tier of a file that holds something else or is damaged. All of it is lost.
    bool format = false;
    /// Reads all values when the tier is opened, and removes damaged ones.
    bool verify_all = false;
    /// Which values that a cache evicts are written.
    Admission admission = Admission::all;
    /// Which values a full tier evicts first, of those with the same priority.
    TierEviction eviction = TierEviction::lru;
    /// Opens the file with O_DSYNC: a value survives a power cut as soon as it is stored.
    bool dsync = false;
    /// Opens a tier that a process of another host had open, which has ended without closing it.
    bool take_over = false;
    /// With `Admission::custom`: chooses the evicted values that are written. Destroyed with the
    /// tier, or with the last tier of a set.
    AdmitFn on_admit;
};

namespace detail {

inline kvmem_disk_tier_options tier_options(const DiskTierOptions &options) {
    kvmem_disk_tier_options wanted;
    check(kvmem_disk_tier_options_init(&wanted, sizeof wanted));
    wanted.bytes = options.bytes.value_or(wanted.bytes);
    wanted.max_entries = options.max_entries.value_or(wanted.max_entries);
    wanted.journal_bytes = options.journal_bytes.value_or(wanted.journal_bytes);
    wanted.max_write_bytes_per_s =
        options.max_write_bytes_per_s.value_or(wanted.max_write_bytes_per_s);
    wanted.depth = options.depth;
    wanted.format = options.format ? 1 : 0;
    wanted.verify = options.verify_all ? KVMEM_VERIFY_ALL : KVMEM_VERIFY_LAZY;
    wanted.admission = static_cast<std::uint32_t>(options.admission);
    wanted.eviction = static_cast<std::uint32_t>(options.eviction);
    wanted.dsync = options.dsync ? 1 : 0;
    wanted.take_over = options.take_over ? 1 : 0;
    return wanted;
}

/// Options of C with a copy of the function that chooses values. The copy belongs to the tier once
/// it is open.
class AdmittingOptions {
public:
    explicit AdmittingOptions(const DiskTierOptions &options)
        : wanted_(tier_options(options)),
          kept_(options.on_admit ? std::make_unique<AdmitFn>(options.on_admit) : nullptr) {
        if (kept_) {
            wanted_.on_admit = &admits;
            wanted_.on_admit_user = kept_.get();
            wanted_.on_admit_release = &release;
        }
    }

    const kvmem_disk_tier_options *get() const noexcept { return &wanted_; }

    /// The tier has the function now.
    void opened() noexcept { (void)kept_.release(); }

private:
    static int admits(void *user, const void *key, std::uint64_t key_bytes, const void *value,
                      std::uint64_t value_bytes) noexcept {
        try {
            const auto *at_key = static_cast<const std::byte *>(key);
            const auto *at_value = static_cast<const std::byte *>(value);
            const auto &function = *static_cast<AdmitFn *>(user);
            return function(bytes_view(at_key, static_cast<std::size_t>(key_bytes)),
                            bytes_view(at_value, static_cast<std::size_t>(value_bytes)))
                       ? 1
                       : 0;
        } catch (...) {
            return 0;
        }
    }

    static void release(void *user) noexcept { delete static_cast<AdmitFn *>(user); }

    kvmem_disk_tier_options wanted_;
    std::unique_ptr<AdmitFn> kept_;
};

/// The functions of C for one disk tier.
struct DiskTierCalls {
    using Object = kvmem_disk_tier;
    static constexpr auto store = kvmem_disk_tier_store;
    static constexpr auto fetch = kvmem_disk_tier_fetch;
    static constexpr auto len_of = kvmem_disk_tier_len_of;
    static constexpr auto remove = kvmem_disk_tier_remove;
    static constexpr auto clear = kvmem_disk_tier_clear;
    static constexpr auto sync = kvmem_disk_tier_sync;
    static constexpr auto checkpoint = kvmem_disk_tier_checkpoint;
    static constexpr auto get_stats = kvmem_disk_tier_get_stats;
    static constexpr auto register_memory = kvmem_disk_tier_register_memory;
    static constexpr auto deregister_memory = kvmem_disk_tier_deregister_memory;
    static constexpr auto as_lower_tier = kvmem_disk_tier_as_lower_tier;
    static constexpr auto destroy = kvmem_disk_tier_destroy;
};

/// The functions of C for a set.
struct TierSetCalls {
    using Object = kvmem_tier_set;
    static constexpr auto store = kvmem_tier_set_store;
    static constexpr auto fetch = kvmem_tier_set_fetch;
    static constexpr auto len_of = kvmem_tier_set_len_of;
    static constexpr auto remove = kvmem_tier_set_remove;
    static constexpr auto clear = kvmem_tier_set_clear;
    static constexpr auto sync = kvmem_tier_set_sync;
    static constexpr auto checkpoint = kvmem_tier_set_checkpoint;
    static constexpr auto get_stats = kvmem_tier_set_get_stats;
    static constexpr auto register_memory = kvmem_tier_set_register_memory;
    static constexpr auto deregister_memory = kvmem_tier_set_deregister_memory;
    static constexpr auto as_lower_tier = kvmem_tier_set_as_lower_tier;
    static constexpr auto destroy = kvmem_tier_set_destroy;
};

} // namespace detail

/// Values on a local disk, found again by their keys after a restart. A full tier evicts expired
/// values first, then those of the lowest priority. A damaged value is a miss, and never the wrong
/// bytes. Below a cache it receives what the cache evicts: see `KvCacheOptions::lower_tier`. One
/// process uses a file at a time. `DiskTier::inspect` and `DiskTier::verify` look into a file that
/// is not open.
class DiskTier : public detail::TierValues<detail::DiskTierCalls>,
                 public detail::TierInspecting {
public:
    /// Opens the tier in a file or block device, and makes it if the file is new. Throws
    /// KVMEM_ERR_BAD_TIER if the file cannot be used as a tier, KVMEM_ERR_IN_USE if another process
    /// has it open as one.
    explicit DiskTier(const std::string &path, const DiskTierOptions &options = {}) {
        detail::AdmittingOptions wanted(options);
        kvmem_disk_tier *made = nullptr;
        detail::check(kvmem_disk_tier_open(path.c_str(), wanted.get(), &made, &report_));
        wanted.opened();
        adopt(made);
    }

    /// What opening the file found.
    const DiskTierReport &report() const noexcept { return report_; }

private:
    DiskTierReport report_;
};

/// Disk tiers on several devices, which hold values together. Each key belongs to one of them;
/// files may be named in any order. Transfers on different devices run side by side.
class TierSet : public detail::TierValues<detail::TierSetCalls> {
public:
    /// Opens the tiers in several files or block devices, side by side, and makes those that are
    /// new. Throws as `DiskTier`.
    explicit TierSet(const std::vector<std::string> &paths, const DiskTierOptions &options = {})
        : reports_(paths.size()) {
        open(paths, options, nullptr);
    }

    /// Opens those of the tiers that can be opened. The keys of the others belong to the rest
    /// meanwhile; see kvmem_tier_set_open_available. Throws if none can be opened.
    static TierSet open_available(const std::vector<std::string> &paths,
                                  const DiskTierOptions &options = {}) {
        return TierSet(paths, options, std::vector<kvmem_status>(paths.size()));
    }

    /// What opening each file found; empty for those that could not be opened.
    const std::vector<std::optional<DiskTierReport>> &reports() const noexcept { return reports_; }

private:
    TierSet(const std::vector<std::string> &paths, const DiskTierOptions &options,
            std::vector<kvmem_status> results)
        : reports_(paths.size()) {
        open(paths, options, &results);
    }

    void open(const std::vector<std::string> &paths, const DiskTierOptions &options,
              std::vector<kvmem_status> *results) {
        detail::AdmittingOptions wanted(options);
        std::vector<const char *> list;
        for (const std::string &path : paths) {
            list.push_back(path.c_str());
        }
        std::vector<DiskTierReport> found(list.size());
        kvmem_tier_set *made = nullptr;
        detail::check(results == nullptr
                          ? kvmem_tier_set_open(list.data(), list.size(), wanted.get(), &made,
                                                found.data())
                          : kvmem_tier_set_open_available(list.data(), list.size(), wanted.get(),
                                                          &made, found.data(), results->data()));
        wanted.opened();
        adopt(made);
        for (std::size_t at = 0; at < found.size(); at++) {
            if (results == nullptr || (*results)[at] == KVMEM_OK) {
                reports_[at] = found[at];
            }
        }
    }

    std::vector<std::optional<DiskTierReport>> reports_;
};

} // namespace kvmem

#endif
